"""Time by line of Python, from the samples of stacks in a window.

Each sample stands for some time. Its line is that of the innermost frame that is the
user's: time in Paddle, in a package or in Python's library belongs to the line that called it::

    stack      train.py:52 main() > train.py:41 log() > json/__init__.py dumps()
    own line                        train.py:41 log()
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import contains, covered_within, together, union
from ppprof.analysis.profile.profile import Profile, once
from ppprof.analysis.ranks.device_steps import host_steps
from ppprof.analysis.ranks.step_breakdown import loading_intervals
from ppprof.arrays import Bool, Int64
from ppprof.trace import Frame, PythonStacks
from ppprof.trace.event_lines import frame_of_call
from ppprof.trace.schema import nullable
from ppprof.trace.steps import steps_at
from ppprof.units import format_line

ELSEWHERE = "outside your code"
"""Stands for the line of samples without a frame of the user's."""
LOADERS = ("paddle.io.", "torch.utils.data.")
"""Beginnings of the modules that call the dataset."""
_CONFIDENCE = 1.96
"""Standard deviations of an interval that holds the truth in 95% of cases."""


@dataclass(frozen=True)
class SampledSteps:
    """The samples that were taken in the steps of a window."""

    stacks: PythonStacks
    """What the samples found."""
    samples: pl.DataFrame
    """One row per sample: thread, time_ns, weight_ns, stack (row in ``stacks``, or -1), late_ns, step
    and is_step (whether the thread ends steps)."""
    step_ns: float
    """Time of an average step."""
    num_steps: int
    """Number of the steps."""
    paused: pl.DataFrame
    """The columns of ``samples``, and pause (row in `Profile.pauses`): samples that were taken in pauses."""

    @property
    def instants(self) -> pl.Expr:
        """The number of instants, due at random, that a sample stands for: 1 if it was not late."""
        interval_ns = max(1, self.stacks.interval_ns)
        return (pl.col("weight_ns") / interval_ns).round().clip(1).cast(pl.Int64)

    @cached_property
    def own(self) -> list[list[Frame]]:
        """The user's frames of each stack, the innermost first; the last item is for no stack."""
        frames = self.stacks.frames
        return [
            [frames[row] for row in stack if frames[row].is_own] for stack in self.stacks.stacks
        ] + [[]]

    @cached_property
    def line(self) -> list[Frame | None]:
        """The user's innermost frame of each stack; None without one, and for no stack."""
        return [next(iter(own), None) for own in self.own]

    @property
    def weights(self) -> Int64:
        """The weights of the samples of the threads with steps."""
        weights: Int64 = self.samples.filter("is_step")["weight_ns"].to_numpy()
        return weights


def source_of(stacks: PythonStacks | None, frame: Frame) -> str | None:
    """Return the text of a line without its indentation; None if it was not kept."""
    source = stacks.source if stacks is not None else {}
    return source.get(frame.file, {}).get(frame.line, "").strip() or None


def line_name(stacks: PythonStacks | None, frame: Frame) -> str:
    """Return the name of a line: ``train.py:7, log(): json.dumps(record)``."""
    return format_line(frame.place, frame.function, source_of(stacks, frame) or "")


def call_lines(profile: Profile, stacks: pl.Series) -> dict[str, str]:
    """Return call stack -> name of its line, for those of ``stacks`` whose line is known."""
    return {
        text: line_name(profile.trace.stacks, frame)
        for text in stacks.drop_nulls().unique().cast(pl.String)
        if (frame := frame_of_call(text))
    }


@once
def sampled_steps(profile: Profile) -> SampledSteps | None:
    """Return the samples in the steps of a window; None without steps, or without samples in them.

    Pauses are no time of a step.
    """
    stacks, steps = profile.trace.stacks, host_steps(profile)
    if stacks is None or steps.is_empty():
        return None
    schema = dict.fromkeys(("thread", "time_ns", "weight_ns", "stack", "late_ns"), pl.Int64)
    samples = pl.DataFrame(stacks.samples, schema)
    step = steps_at(steps.sort("start_ns"), samples["time_ns"].to_numpy())
    samples = samples.with_columns(
        step=nullable(step), is_step=pl.col("thread").is_in(steps["thread"].unique().implode())
    ).drop_nulls("step")
    start, end = intervals_of(steps)
    pauses = union(*intervals_of(profile.pauses))
    is_paused = contains(pauses, samples["time_ns"].to_numpy())
    paused, samples = samples.filter(is_paused), samples.filter(~is_paused)
    if samples.filter("is_step")["weight_ns"].sum() <= 0:
        return None
    whole_ns = int((end - start - covered_within(pauses, start, end)).sum())
    return SampledSteps(
        stacks, samples, whole_ns / steps.height, steps.height, _with_pause(profile, paused)
    )


def _with_pause(profile: Profile, samples: pl.DataFrame) -> pl.DataFrame:
    pauses = profile.pauses.with_row_index("pause").sort("start_ns")
    begun = np.searchsorted(pauses["start_ns"].to_numpy(), samples["time_ns"].to_numpy(), "right")
    return samples.with_columns(
        pause=pauses["pause"].cast(pl.Int64).gather(np.maximum(begun, 1) - 1)
    )


def sample_lines(sampled: SampledSteps) -> list[str | None]:
    """Return the name of the line of each stack; None without one, and as the last item for no stack."""
    return [None if frame is None else line_name(sampled.stacks, frame) for frame in sampled.line]


def samples_by_line(sampled: SampledSteps) -> pl.DataFrame:
    """Return the samples of known lines, with the time of the window's steps that each stands for.

    Returns:
        step, is_step, thread, time_ns (the instant), stack, name (from `line_name`) and dur_ns.
    """
    lines = sample_lines(sampled)
    scale = sampled.step_ns * sampled.num_steps / float(sampled.weights.sum())
    return sampled.samples.select(
        *("step", "is_step", "thread", "time_ns", "stack"),
        name=pl.Series([lines[row] for row in sampled.samples["stack"]], dtype=pl.String),
        dur_ns=(pl.col("weight_ns") * scale).round().cast(pl.Int64),
    ).drop_nulls("name")


def called_by(sampled: SampledSteps, packages: str | tuple[str, ...]) -> Bool:
    """Return in which stacks a package, one of these, calls a line of the user's, shape (stacks + 1,); False for no stack."""
    frames, called = sampled.stacks.frames, []
    for stack in sampled.stacks.stacks:
        first = next((n for n, row in enumerate(stack) if frames[row].is_own), len(stack))
        called.append(any(frames[row].module.startswith(packages) for row in stack[first:]))
    return np.array([*called, False])


def _in_backward(sampled: SampledSteps) -> Bool:
    """Return in which stacks Paddle's ``backward`` runs, and none of the user's hooks in it; shape (stacks + 1,)."""
    frames, runs = sampled.stacks.frames, []
    for stack in sampled.stacks.stacks:
        inner = itertools.takewhile(lambda row: not frames[row].is_own, stack)
        runs.append(any(frames[row].function.endswith(_BACKWARD) for row in inner))
    return np.array([*runs, False])


LINES = {"name": pl.String, "step": pl.Int64, "time_ns": pl.Int64}
"""Columns of `lines_by_step`."""
_BACKWARD = ("backward", "grad")
"""Ends of the names of functions that compute gradients."""
_LEAST_LINKED = 0.9
"""Share of the time of gradients whose lines are known, from which on they are attributed: another run may know those
of others."""


def _gradients(profile: Profile) -> pl.DataFrame:
    """Return thread, start_ns, end_ns and forward (the line of its operator, or null) of each gradient, sorted by start."""
    hosts = profile.tree.hosts
    stacks = profile.trace.events["callstack"].slice(0, hosts.height)
    is_gradient = hosts["name"].cast(pl.String).str.contains("^Global_.*GradNode$")
    found = hosts.select("thread", "start_ns", "end_ns").filter(is_gradient)
    called = stacks.filter(is_gradient)
    lines = call_lines(profile, called)
    forward = called.cast(pl.String).replace_strict(lines, default=None, return_dtype=pl.String)
    return found.with_columns(forward=forward).sort("start_ns")


def _attributed(samples: pl.DataFrame, gradients: pl.DataFrame, in_backward: Bool) -> pl.DataFrame:
    """Return the samples with the names of the lines whose gradients run; as they are if few of these are known."""
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    linked = gradients.drop_nulls("forward").select(length_ns.sum()).item()
    if linked < _LEAST_LINKED * gradients.select(length_ns.sum()).item():
        return samples
    samples = samples.sort("time_ns").join_asof(
        gradients, left_on="time_ns", right_on="start_ns", by="thread", check_sortedness=False
    )
    runs_backward = pl.Series(in_backward[samples["stack"].to_numpy()])
    name = pl.when(runs_backward & (pl.col("time_ns") < pl.col("end_ns"))).then("forward")
    return samples.with_columns(name=pl.coalesce(name, "name"))


def lines_by_step(profile: Profile, *, attribute_backward: bool = True) -> pl.DataFrame:
    """Return the time of each line of the user's code in each step, by samples of threads that end steps.

    Columns of `LINES`. A line is without the lines that it calls; names are those of `line_name`. Time that
    waits for other threads or processes to read data belongs to the line in which these mostly are. Time of a
    gradient belongs to the line that called its operator, if that is known for nearly all gradients, and
    ``attribute_backward``; a hook of the user's that runs in it is time of the hook's line::

        operators       a   b               lines 3 and 4
        Backward               B A          line 5, loss.backward(), which has what is between the gradients
    """
    sampled = sampled_steps(profile)
    if sampled is None:
        return pl.DataFrame(schema=LINES)
    samples = samples_by_line(sampled)
    samples, others = samples.filter("is_step"), samples.filter(~pl.col("is_step"))
    if attribute_backward:
        samples = _attributed(samples, _gradients(profile), _in_backward(sampled))
    reads = others.filter(pl.Series(called_by(sampled, LOADERS)[others["stack"]], dtype=pl.Boolean))
    most = reads.group_by("name").agg(pl.col("dur_ns").sum()).sort("dur_ns", "name").tail(1)
    if most.height:
        waits = contains(together(loading_intervals(profile)), samples["time_ns"].to_numpy())
        waits &= ~called_by(sampled, LOADERS)[samples["stack"].to_numpy()]
        name = pl.when(pl.Series(waits)).then(pl.lit(most["name"][0])).otherwise("name")
        samples = samples.with_columns(name=name)
    times = samples.group_by("name", "step").agg(time_ns=pl.col("dur_ns").sum())
    return times.select(*LINES).sort("step", "name")


PYTHON = {
    "thread": pl.String(),
    "kind": pl.String(),
    "file": pl.String(),
    "line": pl.Int64(),
    "function": pl.String(),
    "source": pl.String(),
    "samples": pl.Int64(),
    "self_ns": pl.Float64(),
    "total_ns": pl.Float64(),
    "self_ratio": pl.Float64(),
    "total_ratio": pl.Float64(),
    "low_ratio": pl.Float64(),
    "high_ratio": pl.Float64(),
}
"""Columns of `python_lines`."""


def python_lines(profile: Profile) -> pl.DataFrame:
    """Return the time of the user's lines and functions in an average step, from samples.

    ::

        samples        main > log    main > log > json    main         weights 4, 1 and 5
        main           self 50%, total 100%
        log            self 50%, total 50%: what the packages take that it calls is its own

    Returns:
        One row per line and per function that a sample found. thread (``steps`` for the threads that
        end steps, ``others``); kind (``line`` or ``function``); file; line (null for a function);
        function; source (text of the line; null if it was not kept); samples (instants
        at which it is on the stack; of other threads, samples); self_ratio and total_ratio, shares of the samples of threads with
        steps, which add up to 1; self_ns and total_ns, these shares of an average step; low_ratio and
        high_ratio, the 95% interval of total_ratio, null for other threads. The function ``outside your code`` has no file:
        of other threads, such samples are left out. Threads with steps come first, then lines, the
        largest self_ns first.

    Source: Wilson's interval. A late sample counts as the instants at which it was due.
    """
    sampled = sampled_steps(profile)
    if sampled is None:
        return pl.DataFrame(schema=PYTHON)
    # Processes of a loader are sampled at an interval of their own.
    samples = pl.when(pl.col("is_step").first()).then(sampled.instants.sum()).otherwise(pl.len())
    stacks = sampled.samples.group_by("is_step", "stack").agg(
        samples=samples, weight_ns=pl.col("weight_ns").sum()
    )
    rows = [
        (is_step, *place, samples, weight_ns * (number == 0), weight_ns)
        for is_step, stack, samples, weight_ns in stacks.iter_rows()
        if is_step or sampled.own[stack]
        for number, place in _places(sampled, stack)
    ]
    names = ["is_step", "kind", "file", "line", "function", "source", "samples", "own", "whole"]
    table = pl.DataFrame(rows, names, orient="row", infer_schema_length=None)
    key = names[1:6]
    table = table.group_by("is_step", *key).agg(
        pl.col("samples").sum(), pl.col("own").sum(), pl.col("whole").sum()
    )
    whole_ns = int(sampled.weights.sum())
    table = table.with_columns(
        thread=pl.when("is_step").then(pl.lit("steps")).otherwise(pl.lit("others")),
        self_ratio=pl.col("own") / whole_ns,
        total_ratio=pl.col("whole") / whole_ns,
    ).with_columns(
        self_ns=pl.col("self_ratio") * sampled.step_ns,
        total_ns=pl.col("total_ratio") * sampled.step_ns,
    )
    num = sampled.samples.filter("is_step").select(sampled.instants.sum()).item()
    low, high = _interval(table["total_ratio"].to_numpy(), num)
    table = table.with_columns(low_ratio=low, high_ratio=high).with_columns(
        pl.when("is_step").then(pl.col("low_ratio", "high_ratio"))
    )
    order = ["is_step", "kind", "self_ns", "total_ns", "file", "line"]
    descending = [True, True, True, True, False, False]
    return table.sort(order, descending=descending, nulls_last=True).select(
        pl.col(name).cast(dtype) for name, dtype in PYTHON.items()
    )


def _places(
    sampled: SampledSteps, stack: int
) -> list[tuple[int, tuple[str, str, int | None, str, str | None]]]:
    """Return lines and functions of a stack, each once, with 0 for the innermost, else 1."""
    own = sampled.own[stack]
    if not own:
        return [(0, ("function", "", None, ELSEWHERE, None))]
    places: dict[tuple[str, str, int | None, str, str | None], int] = {}
    for number, frame in enumerate(own):
        line = ("line", frame.file, frame.line, frame.function, source_of(sampled.stacks, frame))
        function = ("function", frame.file, None, frame.function, None)
        for place in (line, function):
            places.setdefault(place, min(number, 1))
    return [(number, place) for place, number in places.items()]


def _interval(
    ratio: np.ndarray[tuple[int], np.dtype[np.float64]], num: int
) -> tuple[pl.Series, pl.Series]:
    """Return Wilson's interval of shares that ``num`` samples have given."""
    share = np.clip(ratio, 0, 1)
    z = _CONFIDENCE**2 / num
    middle = (share + z / 2) / (1 + z)
    half = np.sqrt(share * (1 - share) * z + z * z / 4) / (1 + z)
    return pl.Series(np.clip(middle - half, 0, 1)), pl.Series(np.clip(middle + half, 0, 1))
