"""`diff`: two runs, measured and laid side by side.

The library behind ``ppprof diff``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from ppprof.analysis.diff import costs as of_window
from ppprof.analysis.diff.costs import Costs, Device, costs
from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.naming import Naming, normalized
from ppprof.analysis.diff.run_costs import PARTS, RunCosts
from ppprof.analysis.modules.module_tree import MODULES
from ppprof.analysis.profile.steps import StepRange
from ppprof.analysis.ranks.step_table import join_ranks
from ppprof.errors import InputError, UsageError
from ppprof.paths import read_bounded, to_path
from ppprof.run.run import Run
from ppprof.run.traces import WindowResult
from ppprof.topology import RankSelector, Topology
from ppprof.units import format_ranges, format_skipped

_FOLDED = 16
"""Windows whose tables are held before they are added up."""

_STEPS_OF_A_WINDOW = 2**32

_OF_THE_PLACE = ("output_dir", "profiler_log", "input_dir", "input", "ckpt_dir", "log_dir")
"""Keys of a config that say where, not what."""


def diff(
    baseline: Run,
    experiment: Run,
    *,
    ranks: RankSelector | tuple[RankSelector, RankSelector] = "all",
    windows: int | tuple[int | None, int | None] | None = None,
    steps: str | tuple[str | None, str | None] | None = None,
    exact: bool = False,
    names: str | Path | None = None,
    executor: Executor | None = None,
) -> Diff:
    """What changed from one run to another, or from one part of a run to another.

        found = ppprof.diff(ppprof.open("base"), ppprof.open("tuned"))
        print(found.change)                     # faster: -12.1% (95% interval -13.0% to -11.3%)
        found.operators.head()                  # the biggest change on top
        run = ppprof.open("profiler_log")
        ppprof.diff(run, run, ranks=(0, 3))     # rank 3 against rank 0

    Args:
        baseline: the run to compare with.
        experiment: the run that is compared; may be the same.
        ranks: which ranks of both, or of each; see `Run.select_ranks`.
        windows: only this window of both, or of each; None: all.
        steps: only steps A to B-1 of both, or of each, as ``"A:B"``.
        exact: names of operators and kernels as they were recorded; else template arguments, architectures
            and other marks of a build do not tell two kernels apart.
        names: a YAML file of ``name: [what it is called...]``, beside that for Paddle and PyTorch,
            which is in force where the one run is Paddle's and the other PyTorch's.
        executor: where to read several ranks at once, any of ``concurrent.futures``'s kind.

    Raises:
        UsageError: no such ranks, window or steps; says what there is.
        InputError: nothing of a run can be read.
    """
    of_ranks, of_windows, of_steps = _pair(ranks), _pair(windows), _pair(steps)
    if exact and names is not None:
        raise UsageError("exact: names stay as they were recorded, so names has no effect")
    same = {} if names is None else read_names(names)

    def both(naming: Naming, *, attribute_backward: bool) -> list[RunCosts]:
        parts = zip((baseline, experiment), of_ranks, of_windows, of_steps)
        return [
            measured(
                run,
                rank,
                window,
                steps=wanted,
                naming=naming,
                attribute_backward=attribute_backward,
                executor=executor,
            )
            for run, rank, window, wanted in parts
        ]

    naming = Naming(exact, same)
    sides = both(naming, attribute_backward=True)
    recorded = [side for side in sides if side.frameworks]
    is_across = len({side.frameworks for side in recorded}) > 1 and not exact
    # Where but one of them tells more of its gradients, that would be all that is seen of a Backward.
    is_even = len({side.has_forward_links for side in recorded}) <= 1
    if is_across:
        naming = Naming(same={**_known_names(), **same})
    if is_across or not is_even:
        sides = both(naming, attribute_backward=is_even)
    return Diff(*sides)


def _pair(value: Any) -> tuple[Any, Any]:
    return value if isinstance(value, tuple) else (value, value)


def measured(
    run: Run,
    ranks: RankSelector = "all",
    window: int | None = None,
    *,
    steps: str | None = None,
    naming: Naming | None = None,
    attribute_backward: bool = True,
    executor: Executor | None = None,
) -> RunCosts:
    """One side of a `Diff`: see `diff` for what is chosen, `costs` for ``by_forward``.

    Raises:
        UsageError: no such ranks, window or steps; says what there is.
        InputError: nothing of it can be read.
    """
    wanted = None if steps is None else StepRange.parse(steps)
    made: Iterator[WindowResult[Costs]] = iter(())
    if run.recordings:
        work = partial(costs, naming=naming or Naming(), attribute_backward=attribute_backward)
        made = run.each(work, run.select_ranks(ranks, window), executor)
    return side_of(run, made, ranks, window, wanted)


def side_of(
    run: Run,
    made: Iterable[WindowResult[Costs]],
    ranks: RankSelector = "all",
    window: int | None = None,
    wanted: StepRange | None = None,
) -> RunCosts:
    """One side of a `Diff`, of what its windows cost.

    Args:
        run: the run.
        made: `ppprof.analysis.diff.costs.costs` of the windows chosen; none of a run without traces.
        ranks: which ranks these are.
        window: which window, if it is one.
        wanted: only these steps.

    Raises:
        UsageError: no such ranks, window or steps; says what there is.
        InputError: there is nothing of it.
    """
    times = run.step_times
    tables = _Tables()
    breakdowns = []
    stages = _stages(run)
    for at in made:
        rank, number = at.recording.rank, at.recording.window
        if at.skipped:
            run.tell(format_skipped(at.source, at.skipped))
        breakdowns.append((rank, number, at.value.breakdown.parts))
        tables.add(at.value, stages.get(rank), number, wanted)
    if run.recordings:
        of_ranks = {at.rank for at in run.select_ranks(ranks, window)}
        times = times.filter(pl.col("rank").is_in(of_ranks))
    elif times.is_empty():
        raise InputError(f"{run}: neither a trace in it nor step times")
    elif ranks != "all":
        topology = run.topology or Topology.of(dp=int(times["rank"].to_numpy().max()) + 1)
        times = times.filter(pl.col("rank").is_in(topology.select(ranks)))
    if window is not None:
        times = times.filter(pl.col("window") == window)
    of_steps = _steps(join_ranks(breakdowns, run.places) if breakdowns else None)
    if wanted is not None:
        known = format_ranges("step", [*of_steps["step"], *times["step"]])
        of_steps = of_steps.filter(wanted.contains(pl.col("step")))
        times = times.filter(wanted.contains(pl.col("step")))
        if of_steps.is_empty() and times.is_empty():
            raise UsageError(f"{run}: no step of {wanted}; it has {known}")
    if breakdowns and of_steps.is_empty():
        of_steps = _one_step(sorted({rank for rank, _, _ in breakdowns}))
    if of_steps.is_empty() and times.is_empty():
        raise UsageError(f"{run}: no steps of window {window}, rank {ranks}")
    # Windows that begin to count anew, as of a profiler that is made for each, have steps of one
    # number that are not one: then a step's number tells its window as well.
    repeats = of_steps.select(pl.struct("rank", "step").is_duplicated().any()).item()
    of_steps = _numbered(of_steps, repeats=repeats)
    return tables.side(run, of_steps, times, repeats=repeats)


def _stages(run: Run) -> dict[int, int]:
    """Pipeline stage by rank; empty where there is but one."""
    if run.topology is None or run.topology.degree("pp") == 1:
        return {}
    return dict(run.places.select("rank", "pp").iter_rows())


def _numbered(table: pl.DataFrame, *, repeats: bool) -> pl.DataFrame:
    """Without its window, which the number of the step tells where it has to."""
    if repeats:
        table = table.with_columns(step=pl.col("window") * _STEPS_OF_A_WINDOW + pl.col("step"))
    return table.drop("window")


class _Tables:
    """Tables of windows, added up."""

    def __init__(self) -> None:
        self._parts: dict[str, list[pl.DataFrame]] = {
            "operators": [pl.DataFrame(schema={"window": pl.Int64, **of_window.OPERATORS})],
            "kernels": [pl.DataFrame(schema={"window": pl.Int64, **of_window.KERNELS})],
            "modules": [
                pl.DataFrame(
                    schema={"window": pl.Int64, "stage": pl.Int64, **MODULES, "calls": pl.Int64}
                )
            ],
        }
        self._devices: list[Device] = []
        self._frameworks: set[str] = set()
        self._tells_forwards = False

    def add(self, made: Costs, stage: int | None, window: int, wanted: StepRange | None) -> None:
        """One window's."""
        # A step is one, however many ProfileSteps have its number.
        is_step = pl.col("path") == ""
        modules = (
            made.modules.group_by("path", "step", maintain_order=True)
            .agg(pl.exclude("path", "step").sum(), calls=pl.len().cast(pl.Int64))
            .with_columns(calls=pl.when(is_step).then(1).otherwise("calls").cast(pl.Int64))
            .select(pl.lit(stage, pl.Int64).alias("stage"), *MODULES, "calls")
        )
        parts = {"operators": made.operators, "kernels": made.kernels, "modules": modules}
        for name, table in parts.items():
            if wanted is not None:
                table = table.filter(wanted.contains(pl.col("step")))
            self._parts[name].append(
                table.select(pl.lit(window, pl.Int64).alias("window"), pl.all())
            )
            if len(self._parts[name]) > _FOLDED:
                self._parts[name] = [self._folded(name)]
        # What a whole window was like says nothing of some steps of it.
        device = made.device if wanted is None else Device(*made.device[:2], *[None] * 4)
        self._devices.append(device)
        self._frameworks.add(made.framework)
        self._tells_forwards |= made.has_forward_links

    def _folded(self, name: str) -> pl.DataFrame:
        return _added_up(pl.concat(self._parts[name]))

    def side(
        self, run: Run, steps: pl.DataFrame, times: pl.DataFrame, *, repeats: bool
    ) -> RunCosts:
        """All of it."""
        topology = run.topology
        replicas = topology.degree("dp") * topology.degree("sharding") if topology else 1
        tables = {
            name: _added_up(_numbered(self._folded(name), repeats=repeats)) for name in self._parts
        }
        return RunCosts(
            str(run),
            steps,
            times,
            devices=self._devices,
            frameworks=frozenset(self._frameworks),
            has_forward_links=self._tells_forwards,
            facts=_facts(run.manifest),
            num_replicas=replicas,
            coordinates=_coordinates(run),
            **tables,
        )


def _added_up(table: pl.DataFrame) -> pl.DataFrame:
    known = ("window", "stage", "path", "name", "step")
    keys = [key for key in known if key in table.columns]
    return table.group_by(keys, maintain_order=True).agg(pl.exclude(keys).sum())


def _steps(joined: pl.DataFrame | None) -> pl.DataFrame:
    """rank, window, step, step_ns and `PARTS`, exposed communication over all axes together."""
    schema = dict.fromkeys(("rank", "window", "step", "step_ns"), pl.Int64)
    if joined is None or joined.is_empty():
        return pl.DataFrame(schema={**schema, **dict.fromkeys(PARTS, pl.Int64)})
    exposed = pl.sum_horizontal(
        pl.lit(0, pl.Int64), *(name for name in joined.columns if name.startswith("exposed_"))
    )
    return joined.with_columns(exposed_ns=exposed).select(*schema, *PARTS)


def _one_step(ranks: Sequence[int]) -> pl.DataFrame:
    """Of traces without steps: all of a trace is one, whose length nobody tells."""
    nothing = {"window": 0, "step": 0, "step_ns": None, **dict.fromkeys(PARTS)}
    schema = dict.fromkeys(("rank", "window", "step", "step_ns"), pl.Int64)
    return pl.DataFrame(
        [{"rank": rank, **nothing} for rank in ranks],
        {**schema, **dict.fromkeys(PARTS, pl.Int64)},
    )


def _coordinates(run: Run) -> dict[int, Mapping[str, int]]:
    """Where each rank stands; empty where nobody tells."""
    topology = run.topology
    if topology is None:
        return {}
    return {rank: topology.coordinate(rank) for rank in run.ranks if rank < topology.world_size}


def _facts(manifest: Mapping[str, Any]) -> dict[str, str]:
    """What a manifest tells of the job, by dotted key, as text."""
    facts: dict[str, str] = {}

    def add(key: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                if name not in _OF_THE_PLACE:
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


_MOST_NAMES_BYTES = 1 << 20


def read_names(path: str | Path) -> dict[str, str]:
    """What each name counts as, of a file ``name: [what it is called...]``.

    Raises:
        InputError: missing, or not such a file; says where.
    """
    at = to_path(path)
    try:
        text = read_bounded(at, _MOST_NAMES_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return _names(text, str(path))


def _names(text: str, where: str) -> dict[str, str]:
    import yaml

    from ppprof.safe_yaml import safe_load

    expected = "expected lines such as 'matmul: [matmul, \"aten::mm\"]'"
    try:
        groups = safe_load(text) or {}
    except yaml.YAMLError as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}; {expected}") from error
    if not isinstance(groups, Mapping):
        raise InputError(f"{where}: {expected}")
    problems: list[str] = []
    found: dict[str, str] = {}
    for name, called in groups.items():
        if not isinstance(called, list) or not all(isinstance(at, str) for at in called):
            problems.append(f"{where}: {name}: {called!r}: {expected}")
            continue
        for at in called:
            if found.setdefault(normalized(at), str(name)) != str(name):
                problems.append(f"{where}: {at}: counts as {found[normalized(at)]} and as {name}")
    if problems:
        raise InputError("\n".join(problems))
    return found


def _known_names() -> dict[str, str]:

    from importlib.resources import files

    source = files("ppprof.analysis.diff").joinpath("operator_names.yaml")
    return _names(source.read_text("utf-8"), "operator_names.yaml")
