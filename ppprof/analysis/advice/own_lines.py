"""Time beside the training, by line of the user's code: logging, saving, evaluation, reading results.

Samples of Python stacks say which line runs; events say whether it trains::

    step       ##############################################
    events     Forward   Backward  Optimization
    lines      12        13        14            15 > log:7 > json     15 > evaluate:30 ...
    beside                                       log:7                 15

A line trains if Paddle loads data, communicates, computes gradients or what they need, or updates
parameters while it runs. `_LineChooser.of` chooses the line that is named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from ppprof.analysis.profile.grouping import intervals_of, matching
from ppprof.analysis.profile.intervals import Intervals, contains, difference, together
from ppprof.analysis.profile.profile import PHASES, Profile, once
from ppprof.analysis.profile.python_lines import SampledSteps, line_name, sampled_steps
from ppprof.analysis.profile.remote_flows import remote_waiting
from ppprof.analysis.profile.step_basis import SLOW
from ppprof.analysis.ranks.device_steps import host_steps, stepping_threads
from ppprof.arrays import Bool, Int64
from ppprof.trace import Frame
from ppprof.trace.event_lines import frame_of_call
from ppprof.trace.operator_inputs import REPEATED
from ppprof.trace.schema import OPERATOR_OF_PROGRAM, RUN_OF_EXECUTOR
from ppprof.trace.steps import reason_of_pause

LEAST_BESIDE = 0.05
"""Share of a step. Less time of one line is not worth a change."""
_TRAINS = 0.1
"""A line trains if at least this share of its time does: a sample at an edge may be on the wrong side."""
_MOST_TRAINING = 0.5
"""So does a line with this share of the training: a loop of which all but some percent is a callback."""
_MOST = 0.5
"""An inner line is named in place of the line that calls it if it takes at least this share of its time; and
a line gives a gap its name if it takes at least this share of it, or else of all gaps at its place."""
_LOOP = 0.9
"""A function with this share of the time has the loop of steps in it."""
_LEAST_SAMPLES = 3
"""Fewest samples of a line that give a gap its name: one or two may be of its edges."""
_LEAST_LONG_NS = 500_000
"""Shorter stretches beside the training are hardly longer than a sample is late."""
_CLEARS = (
    *("clear_grad", "clear_gradients", "zero_grad"),
    *("clip_grad_norm_", "clip_grad_value_", "_unscale", "unscale_", "unscale_method"),
)
"""Ends of the names of functions that clear, clip or scale gradients: that is in no event of an optimizer, and
is a part of the training."""
_COMPILES, _COMPILER = "_build_once", "paddle.jit."
"""Function in which ``to_static`` compiles a program, without its class (Python 3.10 knows none), and its package."""
_NODE = "^global_(?!gradnodeaccumulation)"
"""Names, in lower case, of nodes of the graph of gradients, but of those that add to a gradient: no operator is theirs."""
_ANY_NODE = "^global_"
_USERS_NODE = "pylayer|gradnodeaccumulation"
"""Nodes in which the user's code runs: a ``PyLayer.backward``, and hooks of a parameter's gradient."""
_KNOWN = 0.9
"""With fewer Backwards whose operators are known, the others may be of layers of an earlier step."""
_OTHER_PHASES = ("Backward", "Optimization", "Dataloader", "Communication")

CLEARING = "gradients are cleared"
"""Stands for the line of samples in which gradients are cleared, clipped or scaled, a part of the training."""

Path = tuple[Frame, ...]
"""The user's frames of a stack, the outermost first."""
_Function = tuple[Path, str, str]
"""The path to a call, and file and name of the function that it calls."""


def beside_training(profile: Profile, gaps: pl.DataFrame, bubbles: Intervals) -> pl.DataFrame:
    """Return the samples of time beside the training, with the line that each belongs to.

    A late sample may be of a later line than the one that ran when it was due. So only samples that
    were due in the stretch beside the training in which they were taken say which line has its time::

        step       step 3                  | step 4
        line       optimizer.step()          optimizer.clear_grad()   log(step)
        due                         x        x                        x
        sample                              .x                        x

    Here, the end of step 3 belongs to no line.

    Garbage collections do not count: `ppprof.analysis.advice.beside.garbage_collection` reports them. Neither do
    layers and operators without gradients that compute again what is known: `ppprof.analysis.advice.repeated_calls` reports them.

    Args:
        profile: one rank's window.
        gaps: stretches in layers and steps without any event: start_ns and end_ns.
        bubbles: when the stage waits for other stages.

    Returns:
        thread, time_ns (the instant), step, name (``train.py:7, log(): json.dumps(record)``, or
        `CLEARING`), statement (the line of the training that calls it, or is it: ``train.py:15:
        log(step)``; the function ``loss.py, soften()`` if most of that is beside the training), caller
        (the line in any case), function (the innermost of the user's below ``name``: ``loss.py, soften()``; null if it is that of the line), calls (the instants that the sample stands for), dur_ns (the time), compiles
        (whether ``to_static`` compiles a program), computes (whether layers compute without gradients
        ahead of a Backward, outside evaluations: a teacher, or a metric) and operates (whether an operator
        runs). No rows without samples.
    """
    schema = {"thread": pl.Int64, "time_ns": pl.Int64, "step": pl.Int64}
    lines = dict.fromkeys(("name", "statement", "caller", "function"), pl.String)
    kinds = dict.fromkeys(("compiles", "computes", "operates"), pl.Boolean)
    nothing = pl.DataFrame(
        schema={**schema, **lines, "calls": pl.Int64, "dur_ns": pl.Int64, **kinds}
    )
    sampled = sampled_steps(profile)
    if sampled is None:
        return nothing
    samples = sampled.samples.filter("is_step")
    trains = np.zeros(samples.height, bool)
    thread, time_ns, weight_ns, late_ns = (
        samples[name].to_numpy() for name in ("thread", "time_ns", "weight_ns", "late_ns")
    )
    due_ns = time_ns - late_ns
    stack = samples["stack"].to_numpy()
    clears = _in_function(sampled, _CLEARS)[stack]
    compiles = _in_function(sampled, (_COMPILES,), _COMPILER)[stack]
    computes, operates = np.zeros((2, samples.height), bool)
    operators = profile.tree.hosts.filter(pl.col("category") == "Operator")
    again = repeated_events(profile)
    clears_ns = noted(sampled.stacks.clears)
    waiting = together(
        *(bubbles, remote_waiting(profile), intervals_of(profile.pauses)),
        noted(sampled.stacks.collections),
    )
    steps, stretches = host_steps(profile), []
    is_known = np.zeros(samples.height, bool)
    for number in stepping_threads(profile).tolist():
        own = thread == number
        training, without_gradients = _training_of_threads(profile)[number]
        training = together(difference(training, together(intervals_of(gaps))), clears_ns)
        again_of = again.filter((pl.col("thread") == number) & _start_in(without_gradients, again))
        training = together(training, together(intervals_of(again_of)))
        trains[own] = contains(training, time_ns[own])
        computes |= own & contains(without_gradients, time_ns)
        of_thread = together(intervals_of(operators.filter(pl.col("thread") == number)))
        operates |= own & contains(of_thread, time_ns)
        first, last = intervals_of(steps.filter(pl.col("thread") == number).sort("start_ns"))
        first = first + 1  # a stretch is of one step
        start, end = difference((first, last), together(training, waiting))
        due_in, taken_in = (
            np.searchsorted(start, instant, side="right") for instant in (due_ns, time_ns)
        )
        is_due, is_taken = (contains((start, end), instant) for instant in (due_ns, time_ns))
        is_known |= own & is_due & is_taken & (due_in == taken_in)
        is_slow = last - first > SLOW * np.median(last - first)  # ppprof's own stall may be in one
        in_slow = is_slow[np.searchsorted(first, start, side="right") - 1]
        ends_step = np.isin(end, last)  # as a step ends, ppprof itself takes time
        is_long = ~ends_step & (end - start >= _LEAST_LONG_NS)
        for kind, splits in ((ends_step, False), (is_long, True), (~ends_step & ~is_long, False)):
            for each in (kind & in_slow, kind & ~in_slow):
                due = own & contains((start[each], end[each]), due_ns)
                stretches.append((int((end - start)[each].sum()), due, splits))
    rows = np.flatnonzero(is_known)
    chosen = _LineChooser(sampled, samples, trains | clears, compiles).of(rows)
    is_named = clears.copy()
    is_named[rows] |= np.array([name is not None for name, *_ in chosen], bool)
    # Samples say whose the time is, and events how much it is. Those that missed the line in a long
    # stretch that keeps the lock say nothing; a short one has no others.
    missed = trains | ~is_named & (late_ns >= _LEAST_LONG_NS)
    dur_ns = np.zeros(samples.height)
    for length_ns, due, splits in stretches:
        says = due & ~missed if splits else due
        dur_ns[due] = weight_ns[due] * (length_ns / max(1, int(weight_ns[says].sum())))
    found = samples[rows].select(
        *schema,
        *pl.DataFrame(chosen, lines, orient="row"),
        calls=sampled.instants,
        dur_ns=pl.Series(dur_ns[rows].round()).cast(pl.Int64),
        compiles=pl.Series(compiles[rows]),
        computes=pl.Series(computes[rows]),
        operates=pl.Series(operates[rows]),
    )
    name = pl.when(pl.Series(clears[rows])).then(pl.lit(CLEARING)).otherwise("name")
    return found.with_columns(name=name).drop_nulls("name")


def paused_lines(profile: Profile) -> pl.DataFrame:
    """Return the lines of the user's code in which the training's pauses pass, by samples.

    Returns:
        step, name (the line, as `_LineChooser.parts` chooses it: here all other time trains), subject (what
        the pause is for, such as ``evaluation``; "" if unknown), calls (the instants that the samples stand for) and
        time_ns, such that the times of a pause add up to it. No rows without samples.
    """
    schema = {"step": pl.Int64, "name": pl.String, "subject": pl.String}
    nothing = pl.DataFrame(schema={**schema, "calls": pl.Int64, "time_ns": pl.Int64})
    sampled = sampled_steps(profile)
    if sampled is None:
        return nothing
    paused, training = (each.filter("is_step") for each in (sampled.paused, sampled.samples))
    if paused.is_empty():
        return nothing
    samples = pl.concat([training, paused.select(training.columns)])
    trains = np.arange(samples.height) < training.height
    chooser = _LineChooser(sampled, samples, trains, np.zeros(samples.height, bool))
    pauses = profile.pauses.select(
        pause=pl.int_range(pl.len(), dtype=pl.Int64),
        subject=pl.Series(map(reason_of_pause, profile.pauses["name"].to_list()), dtype=pl.String),
        length_ns=pl.col("end_ns") - pl.col("start_ns"),
    )
    paused = paused.join(pauses, "pause", maintain_order="left").with_row_index("row")
    names: list[str | None] = [None] * paused.height
    for _, own in paused.group_by("subject", maintain_order=True):
        rows = own["row"].to_list()
        for row, name in zip(rows, chooser.parts([training.height + row for row in rows])):
            names[row] = name
    whole_ns = pl.col("weight_ns").sum().over("pause").clip(1)
    time_ns = pl.col("weight_ns") * pl.col("length_ns") / whole_ns
    return (
        paused.with_columns(
            name=pl.Series(names, dtype=pl.String),
            calls=sampled.instants,
            time_ns=time_ns.round().cast(pl.Int64),
        )
        .drop_nulls("name")
        .select(*nothing.columns)
    )


def named_by_lines(gaps: pl.DataFrame, samples: pl.DataFrame) -> pl.Series:
    """Return the names of gaps: those of the lines that run in them, where samples know it.

    A gap in which no line has most of the samples has the name of the line that has most of them at
    its place.

    Args:
        gaps: name (the place), thread, start_ns and end_ns.
        samples: from `beside_training`.
    """
    within = gaps.with_row_index("gap").select(
        "gap", place="name", thread="thread", start_ns="start_ns", end_ns="end_ns"
    )
    within = within.sort("start_ns")
    found = samples.sort("time_ns").join_asof(
        within, left_on="time_ns", right_on="start_ns", by="thread", check_sortedness=False
    )
    found = found.filter(pl.col("time_ns") < pl.col("end_ns"))

    def most(key: str) -> Mapping[object, str]:
        sums = found.group_by(key, "name").agg(pl.col("dur_ns", "calls").sum())
        sums = sums.with_columns(whole=pl.col("dur_ns").sum().over(key))
        sums = sums.filter(
            (pl.col("dur_ns") >= _MOST * pl.col("whole")) & (pl.col("calls") >= _LEAST_SAMPLES)
        )
        return dict(sums.sort("dur_ns", "name").select(key, "name").iter_rows())

    of_gap, of_place = most("gap"), most("place")
    names = [
        of_gap.get(number) or of_place.get(place) or place
        for number, place in enumerate(gaps["name"].to_list())
    ]
    return pl.Series(names, dtype=pl.String)


def _in_function(sampled: SampledSteps, ends: tuple[str, ...], package: str = "") -> Bool:
    """Return which stacks are in a function of a package, not the user's, whose name has one of these ends; False for no stack."""
    is_in = [
        frame.function.endswith(ends) and frame.module.startswith(package) and not frame.is_own
        for frame in sampled.stacks.frames
    ]
    of_stacks = [any(is_in[row] for row in stack) for stack in sampled.stacks.stacks]
    return np.array([*of_stacks, False])


def noted(rows: Int64) -> Intervals:
    """Return when noted calls ran, from rows such as `PythonStacks.clears`."""
    return rows[:, 1] - rows[:, 2], rows[:, 1]


@once
def _training_of_threads(profile: Profile) -> Mapping[int, tuple[Intervals, Intervals]]:
    """Return the result of `_training` of each thread with steps."""
    return {thread: _training(profile, thread) for thread in stepping_threads(profile).tolist()}


def _training(profile: Profile, thread: int) -> tuple[Intervals, Intervals]:
    """Return in which intervals a thread trains, and in which its layers compute no gradients before a Backward, outside evaluations."""
    tree, events = profile.tree, profile.trace.events
    hosts = tree.hosts
    own = hosts.filter(pl.col("thread") == thread)
    outermost = _with_gradients(profile, own)
    forward = _trained(outermost.filter(pl.col("category") == "Forward"), outermost)
    evaluates = _evaluations(profile, thread, outermost)
    operators = own.filter(pl.col("category") == "Operator")
    # Operators of a program may run on other threads, and no gradient is linked to a single one.
    name = pl.col("name").cast(pl.String)
    is_compiled = name.str.starts_with(OPERATOR_OF_PROGRAM) | (name == RUN_OF_EXECUTOR)
    compiled = _trained(hosts.filter(is_compiled & ~_start_in(evaluates, hosts)), outermost)
    linked = own.filter(pl.col("row").is_in(events["forward"].drop_nulls().implode()))
    gradients = hosts.filter(events["forward"].slice(0, hosts.height).is_not_null())
    if tree.is_recomputed.any():
        linked, gradients = (
            linked.clear(),
            gradients.clear(),
        )  # what is computed again has none at first
    backward = outermost.filter(pl.col("category") == "Backward")
    is_known = np.append(_num_within(gradients, backward) > 0, False)
    if is_known.sum() < _KNOWN * backward.height:
        is_known[:] = False

    def is_ahead_of_known(spans: pl.DataFrame) -> pl.Series:
        return _is_ahead(spans, backward, is_known)

    has_gradients = ~is_ahead_of_known(forward) & ~_start_in(evaluates, forward)
    has_gradients |= pl.Series(_num_within(linked, forward) > 0)
    phases = own.filter(pl.col("category").is_in(_OTHER_PHASES)), backward
    others = together(*map(intervals_of, (*phases, compiled)))
    whole = forward.filter(
        _is_ahead(forward, backward, is_known & _are_linked(profile, own, backward))
    )
    runs = difference(_runs_without(profile, own, whole, linked), others)
    without = together(intervals_of(forward.filter(has_gradients.not_())), runs)
    forward = forward.filter(has_gradients)
    # Which operators have gradients is unknown: all do from the layers to the Backward.
    until = _next_start(outermost, "Backward", forward["start_ns"].to_numpy())
    between = together((forward["start_ns"].to_numpy(), np.maximum(until, forward["end_ns"])))
    is_unknown = ~is_ahead_of_known(operators) & ~_start_in(evaluates, operators)
    unknown = operators.filter(is_unknown & _start_in(between, operators))
    trained = together(others, *map(intervals_of, (forward, linked, unknown)))
    trained = difference(trained, together(_within_nodes(profile, own), runs))
    return trained, difference(without, evaluates)


def _evaluations(profile: Profile, thread: int, outermost: pl.DataFrame) -> Intervals:
    """Return when a thread evaluates layers; with a Backward meanwhile, it trains them as they are."""
    stacks = profile.trace.stacks
    if stacks is None:
        return together()
    start, end = noted(stacks.evaluations[stacks.evaluations[:, 0] == thread])
    backward = outermost.filter(pl.col("category") == "Backward")["start_ns"].to_numpy()
    is_alone = np.searchsorted(backward, start) == np.searchsorted(backward, end)
    return together((start[is_alone], end[is_alone]))


def _start_in(intervals: Intervals, events: pl.DataFrame) -> pl.Series:
    """Return which events start in intervals, a union."""
    return pl.Series(contains(intervals, events["start_ns"].to_numpy()), dtype=pl.Boolean)


@once
def starts_beside(profile: Profile) -> Bool:
    """Return which host events of threads with steps start where these do not train; none without samples.

    Nodes of gradients are of the training, also where the user's code may run in them.
    """
    hosts = profile.tree.hosts
    beside = np.zeros(hosts.height, bool)
    if sampled_steps(profile) is None:
        return beside
    thread, start = hosts["thread"].to_numpy(), hosts["start_ns"].to_numpy()
    for number, (training, _) in _training_of_threads(profile).items():
        beside |= (thread == number) & ~contains(training, start)
    beside[matching(hosts["name"], _ANY_NODE).to_numpy()] = False
    return beside


@once
def starts_without_gradients(profile: Profile) -> Bool:
    """Return which host events of threads with steps start where these compute what a Backward needs, but no gradients.

    They are of the training, though `starts_beside` has them, too: a teacher, a mask. None without samples.
    """
    hosts = profile.tree.hosts
    without = np.zeros(hosts.height, bool)
    if sampled_steps(profile) is None:
        return without
    thread, start = hosts["thread"].to_numpy(), hosts["start_ns"].to_numpy()
    for number, (_, intervals) in _training_of_threads(profile).items():
        without |= (thread == number) & contains(intervals, start)
    return without


def _is_ahead(spans: pl.DataFrame, backward: pl.DataFrame, chosen: Bool) -> pl.Series:
    """Return whether the next Backward behind each span is a chosen one; the last item is for none behind it."""
    following = np.searchsorted(backward["start_ns"].to_numpy(), spans["end_ns"].to_numpy())
    return pl.Series(chosen[following])


def _are_linked(profile: Profile, own: pl.DataFrame, backward: pl.DataFrame) -> Bool:
    """Return of which Backwards each node has a known operator, and False: a ``PyLayer`` runs its own without gradients."""
    nodes = own.filter((own["category"] == "Operator") & matching(own["name"], _NODE))
    is_unlinked = profile.trace.events["forward"].gather(nodes["row"]).is_null()
    return np.append(_num_within(nodes.filter(is_unlinked), backward) == 0, False)


def _runs_without(
    profile: Profile, own: pl.DataFrame, layers: pl.DataFrame, linked: pl.DataFrame
) -> Intervals:
    """Return the runs of operators in layers none of which has a gradient, with the Python between them.

    ::

        Forward     ###################
        operators     n n n n n   g g        g has a gradient
        runs          ---------

    Args:
        profile: one rank's window.
        own: the thread's rows of ``tree.hosts``.
        layers: outermost layers ahead of a Backward whose operators are all known.
        linked: the operators that have a gradient.
    """
    tree = profile.tree
    rows = linked["row"].to_numpy()
    is_outermost = pl.Series(tree.is_outermost_operator)[own["row"]]
    operators = own.filter(
        is_outermost, pl.Series(contains(intervals_of(layers), own["start_ns"].to_numpy()))
    )
    ends = operators["row"].to_numpy() + tree.size[operators["row"].to_numpy()]
    has_gradient = np.searchsorted(rows, ends, side="right") > np.searchsorted(
        rows, operators["row"].to_numpy()
    )
    # Gradients may be computed in a layer, and no gradient is linked to an operator of a program.
    name = operators["name"].cast(pl.String).str.to_lowercase()
    has_gradient |= name.str.contains(f"^global_|^{OPERATOR_OF_PROGRAM}").to_numpy()
    operators = operators.with_columns(has=pl.Series(has_gradient)).sort("start_ns")
    layer = np.searchsorted(
        np.sort(layers["start_ns"].to_numpy()), operators["start_ns"], side="right"
    )
    run = pl.struct("has", "layer").rle_id()
    runs = operators.with_columns(layer=pl.Series(layer)).with_columns(run=run)
    of_runs = runs.filter(~pl.col("has")).group_by("run", maintain_order=True)
    return intervals_of(of_runs.agg(pl.col("start_ns").min(), pl.col("end_ns").max()))


def _within_nodes(profile: Profile, own: pl.DataFrame) -> Intervals:
    """Return when nodes of gradients run nothing that has an event: the user's ``PyLayer.backward`` and hooks do their work there.

    In a node of Paddle's, that is the work of C++ around its operator, whose line is that of the Backward.
    """
    tree = profile.tree
    # Of others without an event inside, it is not known: their operators may not be recorded.
    has_inner = pl.Series(tree.size > 0)[own["row"]]
    is_users = has_inner | matching(own["name"], _USERS_NODE)
    is_node = (own["category"] == "Operator") & matching(own["name"], _ANY_NODE)
    nodes = own.filter(is_node & is_users)
    rows = nodes["row"].to_numpy()
    is_inner = tree.below(rows) & (tree.hosts["category"] != "Backward").to_numpy()
    is_inner[rows] = False
    inner = own.filter(pl.Series(is_inner)[own["row"]])
    return difference(together(intervals_of(nodes)), together(intervals_of(inner)))


def _with_gradients(profile: Profile, own: pl.DataFrame) -> pl.DataFrame:
    """Return a thread's steps and outermost phases; nodes of gradients in none are a Backward each: ``paddle.grad`` has no event.

    Args:
        profile: one rank's window.
        own: the thread's rows of ``tree.hosts``.
    """
    tree = profile.tree
    is_in_phase = pl.Series(tree.below(tree.events.host_rows(*PHASES)))[own["row"]]
    is_node = (own["category"] == "Operator") & matching(own["name"], _NODE)
    nodes = own.filter(is_node & ~is_in_phase)
    nodes = nodes.with_columns(category=pl.lit("Backward").cast(own.schema["category"]))
    outermost = profile.outermost.filter(pl.col("thread").is_in(own["thread"].unique().implode()))
    return pl.concat([outermost.select(own.columns), nodes]).sort("start_ns")


def _num_within(operators: pl.DataFrame, spans: pl.DataFrame) -> Int64:
    """Return how many operators start within each span of their thread."""
    start = np.sort(operators["start_ns"].to_numpy())
    num: Int64 = np.searchsorted(start, spans["end_ns"].to_numpy()) - np.searchsorted(
        start, spans["start_ns"].to_numpy()
    )
    return num


def _trained(forward: pl.DataFrame, outermost: pl.DataFrame) -> pl.DataFrame:
    """Return the events with a Backward behind them in their step, ahead of an update; all without any Backward."""
    if outermost.filter(pl.col("category") == "Backward").is_empty():
        return forward
    end = forward["end_ns"].to_numpy()
    backward, update, step = (
        _next_start(outermost, category, end)
        for category in ("Backward", "Optimization", "ProfileStep")
    )
    return forward.filter(pl.Series(backward < np.minimum(update, step)))


def _next_start(outermost: pl.DataFrame, category: str, time: Int64) -> Int64:
    """Return when the next phase of a category starts at or after each instant; never: the last int64."""
    start = outermost.filter(pl.col("category") == category)["start_ns"].to_numpy()
    never = np.iinfo(np.int64).max
    following: Int64 = np.append(np.sort(start), never)[np.searchsorted(np.sort(start), time)]
    return following


class _LineChooser:
    """Chooses the lines to name, from samples of threads with steps.

    ``trains`` is whether each is time of training, ``compiles`` whether ``to_static`` compiles, which does not
    train, though the line that calls a program also does.
    """

    def __init__(
        self, sampled: SampledSteps, samples: pl.DataFrame, trains: Bool, compiles: Bool
    ) -> None:
        self._sampled, self._compiles = sampled, compiles
        paths = [_path(own) for own in sampled.own]
        self._paths: list[Path] = [paths[stack] for stack in samples["stack"].to_list()]
        self._weights: list[int] = samples["weight_ns"].to_list()
        whole: dict[Path, int] = defaultdict(int)
        training: dict[Path, int] = defaultdict(int)
        for path, weight, is_training in zip(self._paths, self._weights, trains.tolist()):
            for length in range(1, len(path) + 1):
                whole[path[:length]] += weight
                training[path[:length]] += weight * is_training
        self._whole, self._training = whole, training
        self._functions: dict[_Function, list[Path]] = defaultdict(list)
        for path in whole:
            self._functions[_function(path)].append(path)
        most = _MOST_TRAINING * sum(weight for weight, each in zip(self._weights, trains) if each)
        of_frames: dict[Frame, list[int]] = defaultdict(lambda: [0, 0])
        for path, weight in whole.items():
            sums = of_frames[path[-1]]
            sums[0] += weight
            sums[1] += training[path]
        self._shared = {
            frame for frame, (every, trained) in of_frames.items() if trained > _TRAINS * every
        }
        """The lines that train in some call of their function: those of the model that is evaluated."""
        self._trains = {
            path for path, weight in training.items() if weight > min(_TRAINS * whole[path], most)
        }

    def of(self, rows: Int64) -> list[tuple[str | None, str | None, str | None, str | None]]:
        """Return the names of the line, of the statement, of the line that is the statement or in it, and of the innermost function below the line, for each sample; None for a line that trains, too, unless it compiles.

        ::

            main:52 > loop:12 net(x)           trains
            main:52 > loop:15 > log:7 > dumps  beside, from loop:15 on; log:7 has most of it
            main:52 > loop:15 > log:6          the rest: by the same rule
        """
        groups: dict[Path, list[int]] = defaultdict(list)
        for row in rows.tolist():
            path = self._paths[row]
            none = len(path) if self._compiles[row] else 0
            first = next((n for n in range(1, len(path) + 1) if path[:n] not in self._trains), none)
            if first:
                groups[path[:first]].append(row)
        names: dict[int, tuple[str, str, str, str | None]] = {}
        for outer, members in groups.items():
            rest, statement = members, self._statement(outer)
            caller = line_name(self._sampled.stacks, outer[-1])
            while rest:
                inner = self._inner(outer, rest)
                length, name = len(inner), line_name(self._sampled.stacks, inner[-1])
                of_line = [row for row in rest if self._paths[row][:length] == inner]
                for row in of_line:
                    names[row] = name, statement, caller, self._function_below(inner, row)
                rest = [row for row in rest if self._paths[row][:length] != inner]
        return [names.get(row, (None,) * 4) for row in rows.tolist()]

    def parts(self, rows: Sequence[int]) -> list[str | None]:
        """Return, for each sample, the name of the line that has most of its part of what they all do; None without a line.

        ::

            main:52 > loop:15 > evaluate:30 > gather:7     the parts of evaluate() are its lines 30 and 31;
            main:52 > loop:15 > evaluate:31 > model:90     gather:7 is named, and 31, as model:90 trains, too
        """
        whole = sum(self._weights[row] for row in rows)
        common: Path = ()
        while True:
            groups = self._below(common, rows)
            sums = {each: sum(self._weights[row] for row in groups[each]) for each in groups}
            best = max(sums, key=lambda each: sums[each], default=common)
            if not sums or sums[best] < _LOOP * whole or self._is_model(best):
                break
            common = best
        names: dict[int, str] = {}
        if common and common not in self._trains:
            names = dict.fromkeys(rows, line_name(self._sampled.stacks, common[-1]))
        for path, members in groups.items():
            if path not in self._trains and path[-1] not in self._shared:
                inner = self._inner(path, members)
                names.update(dict.fromkeys(members, line_name(self._sampled.stacks, inner[-1])))
        return [names.get(row) for row in rows]

    def _is_model(self, path: Path) -> bool:
        """Return whether a path that does not train ends in a line that trains elsewhere, as the model's do."""
        return path not in self._trains and path[-1] in self._shared

    def _below(self, path: Path, rows: Sequence[int]) -> dict[Path, list[int]]:
        """Return the paths that are one frame longer than a path, with their samples."""
        below: dict[Path, list[int]] = defaultdict(list)
        for row in rows:
            if len(self._paths[row]) > len(path):
                below[self._paths[row][: len(path) + 1]].append(row)
        return below

    def _statement(self, path: Path) -> str:
        """Return the name of the line at a path's end; that of its function if most of this is beside the training, too.

        The function that has the loop of steps has nearly all of the time: its lines are statements of their own.
        """
        lines = self._functions[_function(path)]
        whole = sum(self._whole[line] for line in lines)
        training = sum(self._training[line] for line in lines)
        is_loop = whole >= _LOOP * sum(self._weights)
        if len(path) == 1 or is_loop or training > _MOST_TRAINING * whole:
            return line_name(self._sampled.stacks, path[-1])
        return self._function_name(path)

    def _function_below(self, path: Path, row: int) -> str | None:
        """Return the name of a sample's innermost function below a path; None if it is that of the path's end."""
        inner, line = self._paths[row], path[-1]
        is_own = (inner[-1].file, inner[-1].function) == (line.file, line.function)
        return None if is_own else self._function_name(inner)

    def _function_name(self, path: Path) -> str:
        """Return the name of the function at a path's end; that of its line outside of functions."""
        function = path[-1].function.rpartition("<locals>.")[2]
        if function.startswith("<"):
            return line_name(self._sampled.stacks, path[-1])
        return f"{path[-1].file}, {function}()"

    def _inner(self, path: Path, rows: Sequence[int]) -> Path:
        """Return the path to the innermost line that has most of the time of its caller's samples below a path.

        A line that trains in another call, such as one of the model that is evaluated, is not named: its caller is.
        """
        while True:
            whole = sum(self._weights[row] for row in rows)
            inner = self._below(path, rows)
            sums = {each: sum(self._weights[row] for row in inner[each]) for each in inner}
            best = max(sums, key=lambda each: sums[each], default=path)
            if not sums or sums[best] < _MOST * whole or best[-1] in self._shared:
                return path
            path, rows = best, inner[best]


def line_of_operators(profile: Profile, rows: pl.Series) -> str | None:
    """Return the name of the line that calls most of some operators; None if no function calls half of them.

    A loop may have several lines, none of them with half of the calls: the function decides.

    Args:
        profile: one rank's window.
        rows: rows of its events.
    """
    stacks = profile.trace.events["callstack"].gather(rows)
    of_lines: Counter[Frame] = Counter()
    of_functions: Counter[tuple[str, str]] = Counter()
    for stack, num in stacks.value_counts(sort=True, name="calls").iter_rows():
        frame = frame_of_call(stack)
        if frame is not None:
            of_lines[frame] += num
            of_functions[frame.file, frame.function] += num
    for function, num in of_functions.most_common(1):
        if 2 * num >= len(stacks):
            lines = [each for each in of_lines if (each.file, each.function) == function]
            best = min(lines, key=lambda each: (-of_lines[each], each.line))
            return line_name(profile.trace.stacks, best)
    return None


def _function(path: Path) -> _Function:
    return path[:-1], path[-1].file, path[-1].function


def _path(own: Sequence[Frame]) -> Path:
    """Return the frames of a stack, the outermost first; one for a line and a comprehension in it."""
    path: list[Frame] = []
    for frame in reversed(own):
        if not path or (path[-1].file, path[-1].line) != (frame.file, frame.line):
            path.append(frame)
    return tuple(path)


@once
def repeated_events(profile: Profile) -> pl.DataFrame:
    """Return the host events of layers, and of outermost operators, that have the attribute `REPEATED`, also beside the training.

    Returns:
        Columns of ``Tree.hosts``: row, thread, start_ns, end_ns.
    """
    tree = profile.tree
    hosts = tree.hosts_with("attributes")
    is_repeated = pl.col("attributes").cast(pl.String).str.contains(f'"{REPEATED}":', literal=True)
    is_outermost = (pl.col("category") != "Operator") | pl.Series(tree.is_outermost_operator)
    return hosts.filter(is_outermost & is_repeated).select("row", "thread", "start_ns", "end_ns")
