"""`diff`: two runs side by side; the library behind ``ppprof diff``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Union

import polars as pl

from ppprof.analysis.diff.costs import BY_NAME, Costs, Device, costs
from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.naming import Naming, normalized
from ppprof.analysis.diff.run_costs import PARTS_NS, RunCosts
from ppprof.analysis.profile.module_tree import MODULES
from ppprof.choices import StepRange
from ppprof.errors import InputError, UsageError
from ppprof.run.ranks import steps_on_one_clock
from ppprof.run.run import Run, opened
from ppprof.run.traces import WindowResult
from ppprof.rundir.recordings import Recording
from ppprof.safe_yaml import safe_load
from ppprof.topology import RankSelector
from ppprof.trace.communication_names import SECTION, read_names
from ppprof.trace.formats import framework_of
from ppprof.units import format_ranges

Steps = Union[StepRange, str, int, None]

_MOST_PARTS = 16
"""Most tables of one kind that are kept before they are summed; each comes from one window."""

_LINES = {"name": pl.String, "step": pl.Int64, "rank": pl.Int64, "time_ns": pl.Int64}
"""Columns of `RunCosts.lines`; those that are not summed come first, as in `_summed`."""

_STEPS_OF_A_WINDOW = 2**32

_NO_STEP = -1
"""Step of all events of a window without steps: of no other window."""

_LOCATION_KEYS = ("output_dir", "profiler_log", "input_dir", "input", "ckpt_dir", "log_dir")
"""Keys of a config that name a place. They are not compared: they differ between any two runs."""


@dataclass(frozen=True)
class RunSide:
    """One side of a comparison: some windows and steps of a run."""

    run: Run
    ranks: RankSelector = "all"
    """The ranks, as `ppprof.run.run.Run.select_ranks` takes them."""
    window: int | None = None
    """Number of the window; None: all windows."""
    steps: StepRange | None = None
    """The steps; None: all steps."""
    has_all_times: bool = False
    """Whether the step times are those of all steps, even with a ``window``."""

    @cached_property
    def recordings(self) -> Sequence[Recording]:
        """The recordings of these ranks and this window; empty for a run without traces.

        Raises:
            UsageError: no such ranks or window; the message names the existing ones.
        """
        if not self.run.has_traces:
            return ()
        return self.run.select_ranks(self.ranks, self.window)

    @cached_property
    def framework(self) -> str | None:
        """``paddle`` or ``torch``, from the first readable file; None without a readable file."""
        for recording in self.recordings:
            for path in recording.every_file:
                with suppress(InputError):  # reported where the window is read
                    return framework_of(path)
        return None


def diff(
    baseline: Run | str | Path,
    experiment: Run | str | Path,
    *,
    ranks: RankSelector | tuple[RankSelector, RankSelector] = "all",
    windows: int | tuple[int | None, int | None] | None = None,
    steps: Steps | tuple[Steps, Steps] = None,
    exact: bool = False,
    names: str | Path | None = None,
    executor: Executor | None = None,
) -> Diff:
    """Compare two runs, or two parts of one run. Every trace is read once.

        diff = ppprof.diff("base", "tuned")
        print(diff.change)                      # faster: -12.1% (95% interval -13.0% to -11.3%)
        diff.operators.head()                   # the largest change first
        run = ppprof.open("profiler_log")
        ppprof.diff(run, run, ranks=(0, 3))     # rank 3 compared with rank 0

    Args:
        baseline: the run to compare with, or its path for `ppprof.open`.
        experiment: the run that is compared; may be the same run.
        ranks: the ranks of both runs, such as ``"all"``, ``3`` or ``{"pp": 0}``; or a pair
            (baseline's, experiment's). See `ppprof.run.run.Run.select_ranks`.
        windows: the number of the window in both runs, or such a pair; None: all windows.
        steps: only steps A to B-1 of both runs, as ``"A:B"``, or such a pair; None: all steps.
        exact: compare operators and kernels by their recorded names. By default template arguments,
            architectures and other marks of a build are ignored.
        names: a YAML file of ``name: [other names...]`` that count as the same operator. It adds to
            the built-in file, which is used only if one run is Paddle's and the other PyTorch's.
        executor: any of ``concurrent.futures``, which reads several ranks at once; None: this
            process reads one after the other.

    Raises:
        UsageError: no such ranks, window or steps (the message names the existing ones), or
            ``names`` is given together with ``exact``.
        InputError: no window of a run can be read, or a run has neither traces nor step times.
    """
    if exact and names is not None:
        raise UsageError("exact: operators keep their recorded names, so names has no effect")
    sides = [
        RunSide(opened(run), rank, window, StepRange.of(chosen))
        for run, rank, window, chosen in zip(
            (baseline, experiment), _pair(ranks), _pair(windows), _pair(steps)
        )
    ]
    own_names = {} if names is None else _read_names(names)
    naming = naming_for(sides, exact=exact, names=own_names)
    return compare(*(measure(side, naming, executor) for side in sides))


def _pair(value: Any) -> tuple[Any, Any]:
    return value if isinstance(value, tuple) else (value, value)


def naming_for(
    sides: Sequence[RunSide], *, exact: bool = False, names: Mapping[str, str] | None = None
) -> Naming:
    """Return how operators and kernels are named when these sides are compared.

    Args:
        sides: both sides of the comparison; or one side, which is not compared.
        exact: whether operators and kernels keep their recorded names.
        names: name -> the name of the operator that it counts as; None: no such names. The
            built-in names apply, too, if the sides have different frameworks.
    """
    own_names = names or {}
    if exact or len(sides) < 2:
        return Naming(exact, own_names)
    frameworks = {side.framework for side in sides} - {None}
    if len(frameworks) > 1:
        return Naming(same={**_built_in_names(), **own_names})
    return Naming(same=own_names)


def _read_names(path: str | Path) -> dict[str, str]:
    """Return the operator that each name counts as, from a file ``name: [other names...]``.

    Raises:
        InputError: missing, or not such a file; says where.
    """
    groups = {key: names for key, names in read_names(path).items() if key != SECTION}
    return _operators_of(groups, str(path))


def _built_in_names() -> dict[str, str]:
    """Return the operator that each name of Paddle's and PyTorch's counts as."""
    source = files("ppprof.analysis.diff").joinpath("operator_names.yaml")
    return _operators_of(safe_load(source.read_text("utf-8")), "operator_names.yaml")


def _operators_of(groups: Mapping[str, Any], where: str) -> dict[str, str]:
    expected = "expected lines such as 'matmul: [matmul, \"aten::mm\"]'"
    problems: list[str] = []
    operators: dict[str, str] = {}
    for operator, names in groups.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            problems.append(f"{where}: {operator}: {names!r}: {expected}")
            continue
        for name in names:
            first = operators.setdefault(normalized(name), str(operator))
            if first != str(operator):
                problems.append(f"{where}: {name}: counts as {first} and as {operator}")
    if problems:
        raise InputError("\n".join(problems))
    return operators


def compare(baseline: RunCosts, experiment: RunCosts) -> Diff:
    """Return the comparison of two runs' costs.

    If only one run links gradients to forward modules, the gradients of neither run are attributed
    to modules and lines. Otherwise every module would differ between the runs.
    """
    recorded = [side for side in (baseline, experiment) if side.frameworks]
    if len({side.attributes_gradients for side in recorded}) > 1:
        return Diff(baseline.without_attribution(), experiment.without_attribution())
    return Diff(baseline, experiment)


def measure(
    side: RunSide, naming: Naming | None = None, executor: Executor | None = None
) -> RunCosts:
    """Return the costs of one side of a comparison; reads its windows.

    Args:
        side: the side.
        naming: how operators and kernels are named; None: as by `Naming` without arguments.
        executor: any of ``concurrent.futures``, which reads several ranks at once; None: this
            process reads one after the other.

    Raises:
        UsageError: no such ranks, window or steps; the message names the existing ones.
        InputError: no window can be read, or the run has neither traces nor step times.
    """
    results: Iterator[WindowResult[Costs]] = iter(())
    if side.recordings:
        work = partial(costs, naming=naming or Naming())
        results = side.run.map_windows(work, side.recordings, executor)
    return costs_of_run(side, results)


def costs_of_run(side: RunSide, results: Iterable[WindowResult[Costs]]) -> RunCosts:
    """Return the costs of one side of a comparison, summed over its windows.

    Args:
        side: the side.
        results: the result of `ppprof.analysis.diff.costs.costs` for each window of the side; empty
            for a run without traces.

    Raises:
        UsageError: no such steps; the message names the existing ones.
        InputError: the run has neither traces nor step times.
    """
    run = side.run
    sums = _Sums()
    windows = []
    for result in results:
        rank, window = result.recording.rank, result.recording.window
        windows.append((rank, window, result.value.breakdown, result.value.calls))
        sums.add(result.value, run.stages.get(rank), rank, window, side.steps)
    times = _step_times(side)
    steps = _steps(steps_on_one_clock(run, windows) if windows else None)
    if side.steps is not None:
        # A step time of the window is that of a step in its trace, or of one recorded ahead of it.
        timed = times["step"] if side.window is None else times["step"].clear()
        existing = format_ranges("step", [*steps["step"], *timed])
        steps = steps.filter(side.steps.contains(pl.col("step")))
        times = times.filter(side.steps.contains(pl.col("step")))
        if steps.is_empty() and (times.is_empty() or side.window is not None):
            raise UsageError(f"{run}: no step of {side.steps}; it has {existing}")
    if windows and side.steps is None and steps.is_empty():
        steps = _one_steps(sorted({(rank, window) for rank, window, *_ in windows}))
    if steps.is_empty() and times.is_empty():
        raise UsageError(f"{run}: no steps of window {side.window}, rank {side.ranks}")
    # If every window restarts its step count at 0, as with a profiler made anew for each, step
    # numbers repeat; qualify them by window.
    repeats = steps.select(pl.struct("rank", "step").is_duplicated().any()).item()
    steps = _of_all_ranks(_without_window(steps, repeats=repeats))
    return sums.run_costs(run, steps, times, repeats=repeats)


def _of_all_ranks(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that all ranks recorded; all steps without any.

    Else a step that lacks a rank, such as one whose device events were lost there, would change the means.
    """
    num_ranks = steps["rank"].n_unique()
    shared = steps.filter(pl.col("rank").n_unique().over("step") == num_ranks)
    return steps if shared.is_empty() else shared


def _step_times(side: RunSide) -> pl.DataFrame:
    """Return the rows of the run's step times that belong to the side's ranks and window.

    Raises:
        InputError: the run has neither traces nor step times.
        UsageError: the job has no such ranks.
    """
    if side.recordings:
        ranks = {recording.rank for recording in side.recordings}
        times = side.run.step_times.filter(pl.col("rank").is_in(ranks))
    else:
        times = side.run.step_times_of(side.ranks)
    if side.window is None or side.has_all_times:
        return times
    return times.filter(pl.col("window") == side.window)


def _without_window(table: pl.DataFrame, *, repeats: bool) -> pl.DataFrame:
    """Return the table without ``window``; if windows repeat step numbers, that becomes part of the step."""
    if repeats:
        table = table.with_columns(step=pl.col("window") * _STEPS_OF_A_WINDOW + pl.col("step"))
    return table.drop("window")


class _Sums:
    """The costs of the windows of a run: `BY_NAME` and modules, summed over ranks."""

    def __init__(self) -> None:
        modules = {"window": pl.Int64, "stage": pl.Int64, **MODULES, "calls": pl.Int64}
        self._parts: dict[str, list[pl.DataFrame]] = {
            **{
                kind: [pl.DataFrame(schema={"window": pl.Int64, **schema})]
                for kind, schema in BY_NAME.items()
            },
            **{
                kind: [pl.DataFrame(schema={"window": pl.Int64, **_LINES})]
                for kind in ("lines", "unattributed_lines")
            },
            "modules": [pl.DataFrame(schema=modules)],
            "unattributed_modules": [pl.DataFrame(schema=modules)],
        }
        self._devices: list[Device] = []
        self._frameworks: set[str] = set()
        self._has_forward_links = False

    def add(
        self,
        window_costs: Costs,
        stage: int | None,
        rank: int,
        window: int,
        steps: StepRange | None,
    ) -> None:
        """Add the costs of one window, whose rank is in a pipeline stage, to the sums of the run."""
        lines = [
            each.with_columns(rank=pl.lit(rank, pl.Int64)).select(*_LINES)
            for each in (window_costs.lines, window_costs.unattributed_lines)
        ]
        parts = {
            **{kind: getattr(window_costs, kind) for kind in BY_NAME},
            **dict(zip(("lines", "unattributed_lines"), lines)),
            "modules": _module_calls(window_costs.modules, stage),
            "unattributed_modules": _module_calls(window_costs.unattributed_modules, stage),
        }
        for name, table in parts.items():
            if steps is not None:
                table = table.filter(steps.contains(pl.col("step")))
            if window_costs.breakdown.parts.is_empty():
                table = table.with_columns(step=pl.lit(_NO_STEP, pl.Int64))
            tables = self._parts[name]
            tables.append(table.select(pl.lit(window, pl.Int64).alias("window"), pl.all()))
            if len(tables) > _MOST_PARTS:
                self._parts[name] = [_summed(pl.concat(tables))]
        # The utilization of a whole window does not describe some of its steps.
        device = window_costs.device
        self._devices.append(device if steps is None else Device(*device[:2], *[None] * 4))
        self._frameworks.add(window_costs.framework)
        self._has_forward_links |= window_costs.has_forward_links

    def run_costs(
        self, run: Run, steps: pl.DataFrame, times: pl.DataFrame, *, repeats: bool
    ) -> RunCosts:
        """Return the sums as the costs of a run, with its steps and the facts in its manifest."""
        topology = run.topology
        tables = {
            name: _summed(_without_window(_summed(pl.concat(parts)), repeats=repeats))
            for name, parts in self._parts.items()
        }
        return RunCosts(
            str(run),
            steps,
            times,
            devices=self._devices,
            frameworks=frozenset(self._frameworks),
            has_forward_links=self._has_forward_links,
            facts=_facts(run.manifest),
            num_replicas=topology.replicas if topology else 1,
            coordinates=_coordinates(run),
            **tables,
        )


def _module_calls(modules: pl.DataFrame, stage: int | None) -> pl.DataFrame:
    """Return one row per module (path) and step: stage, summed times, and number of calls.

    ``stage`` is null if the job has only one stage.
    """
    is_step = pl.col("path") == ""  # a step is one call, however many ProfileSteps have its number
    return (
        modules.group_by("path", "step", maintain_order=True)
        .agg(pl.exclude("path", "step").sum(), calls=pl.len().cast(pl.Int64))
        .with_columns(calls=pl.when(is_step).then(1).otherwise("calls").cast(pl.Int64))
        .select(pl.lit(stage, pl.Int64).alias("stage"), *MODULES, "calls")
    )


def _summed(table: pl.DataFrame) -> pl.DataFrame:
    keys = ("window", "stage", "path", "name", "step", "rank")
    present = [key for key in keys if key in table.columns]
    return table.group_by(present, maintain_order=True).agg(pl.exclude(present).sum())


def _steps(rows: pl.DataFrame | None) -> pl.DataFrame:
    """Return rank, window, step, step_ns and `PARTS_NS`; exposed communication is summed over axes.

    The parts are null if the trace lacks the events of its device, except for data_loading_ns.

    ``rows`` is the result of `steps_on_one_clock`; None without a window, which gives no rows.
    """
    schema = dict.fromkeys(("rank", "window", "step", "step_ns"), pl.Int64)
    if rows is None or rows.is_empty():
        return pl.DataFrame(schema={**schema, **dict.fromkeys(PARTS_NS, pl.Int64)})
    exposed = pl.sum_horizontal(
        pl.lit(0, pl.Int64), *(name for name in rows.columns if name.startswith("exposed_"))
    )
    is_known = pl.col("rest_ns").is_not_null()
    return rows.with_columns(exposed_ns=pl.when(is_known).then(exposed)).select(*schema, *PARTS_NS)


def _one_steps(windows: Sequence[tuple[int, int]]) -> pl.DataFrame:
    """Return a single step of unknown length (null) for each rank and window, for traces without steps."""
    unknown = {"step": _NO_STEP, "step_ns": None, **dict.fromkeys(PARTS_NS)}
    schema = dict.fromkeys(("rank", "window", "step", "step_ns"), pl.Int64)
    return pl.DataFrame(
        [{"rank": rank, "window": window, **unknown} for rank, window in windows],
        {**schema, **dict.fromkeys(PARTS_NS, pl.Int64)},
    )


def _coordinates(run: Run) -> dict[int, Mapping[str, int]]:
    """Return each rank's coordinate; empty without a topology."""
    topology = run.topology
    if topology is None:
        return {}
    return {rank: topology.coordinate(rank) for rank in run.ranks if rank < topology.world_size}


def _facts(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the config, versions and degrees of the job as texts, keyed by dotted key.

    An example is ``config.Model.num_layers`` -> "4". The block ``Profiler`` and keys that name a
    place (`_LOCATION_KEYS`) are left out.
    """
    facts: dict[str, str] = {}

    def add(key: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                if name not in _LOCATION_KEYS:
                    add(f"{key}.{name}", inner)
        else:
            facts[key] = str(value)

    config = manifest.get("config")
    if isinstance(config, Mapping):
        add("config", {name: block for name, block in config.items() if name != "Profiler"})
    if isinstance(manifest.get("versions"), Mapping):
        add("versions", manifest["versions"])
    axes = manifest.get("axes")
    if isinstance(axes, Mapping) and isinstance(axes.get("order"), (list, tuple)):
        degrees = axes.get("degrees")
        if isinstance(degrees, (list, tuple)):
            add("grid", dict(zip(map(str, axes["order"]), degrees)))
    return facts
