"""Functions and layers that call many small operators: a loop in Python where one operator would do."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from ppprof.analysis.advice.multiplied_by_zero import multiplied_by_zero
from ppprof.analysis.advice.own_lines import line_of_operators, starts_beside
from ppprof.analysis.advice.repeated_calls import repeated_calls
from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.grouping import intervals_of, matching
from ppprof.analysis.profile.intervals import Intervals, contains, covered_within, together
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import (
    SampledSteps,
    line_name,
    sample_lines,
    sampled_steps,
)
from ppprof.arrays import Bool
from ppprof.trace import Frame
from ppprof.trace.event_lines import frame_of_call
from ppprof.trace.operator_inputs import LAYER
from ppprof.trace.schema import OPERATOR_OF_PROGRAM

UPDATES = (
    "^(merged_|fused_|sparse_|lars_)?"
    "(adamw?|nadam|radam|asgd|sgd|momentum|lamb|adagrad|rmsprop|rprop|adadelta|adamax)_?( |$)"
)
"""The names of operators that update parameters, in lower case: ``adamw_ dygraph``, ``sgd_``."""
MANY_OPERATORS = 64
"""Least number of operators that one call of a layer makes itself, not through layers in it."""
MANY_OUTSIDE = 16
"""Least number of times that a line outside of layers calls operators, again and again ahead of one Backward, in a
function without products: others may be the blocks of a model."""
_PRODUCTS = "^(matmul|linear|addmm|bmm|einsum|.*conv[123]d.*|fused_.*|flash_attn.*) "
"""The names of operators with weights, in lower case."""
MANY_OF_A_FUNCTION = 256
"""Least number of operators that loops of a function call in a step, also through layers of packages."""
MANY_CALLS = 32
"""Least number of calls of a layer in one call of another one, such as of a cell over a sequence."""
SMALL_NS = 50_000
"""Longest mean time of these operators, each of the median of its name: about what Paddle needs to call one from Python."""
LEAST_SMALL = 0.05
"""Share of a step. Less time of a layer is not worth a change."""
_LONGEST_GAP_NS = 1_000_000
"""Python between two operators of a line takes less; a longer gap is something else."""
_LEAST_SAMPLES = 3
_MOSTLY = 0.5
"""A line stands for a layer if it has at least this share of the samples in it."""
_NEARLY_ALL = 0.9
"""Share of the samples in the calls of a layer that have the line that calls it."""


def small_operators(profile: Profile, updating: Intervals) -> pl.DataFrame:
    """Return the functions and layers that call many small operators, as a part of the training.

    Time beside it, and of layers without gradients, is that of `ppprof.analysis.advice.own_lines`, and that of
    calls which compute again what is known that of `repeated_calls`.

    Args:
        profile: one rank's window.
        updating: from the first to the last update of each Optimization, the time of `optimizer-unfused`.

    Returns:
        step; name, the layer's path and the line where these are known; calls (operators) and
        time_ns, with the gradients of the operators. Of a layer and a function with one name, the longer one.
    """
    repeated, is_repeated = _of_repeated_layers(profile)
    others = _of_functions(profile, updating, is_repeated), _of_layers(profile, is_repeated)
    parts = [
        part.group_by("step", "name").agg(pl.col("calls", "time_ns").sum())
        for part in (repeated, *others)
    ]
    return pl.concat(parts).sort("time_ns").unique(["step", "name"], keep="last")


def _of_repeated_layers(profile: Profile) -> tuple[pl.DataFrame, Bool]:
    """Return the layers that another one calls at least `MANY_CALLS` times in one call, all of small operators.

    ::

        Forward    Net  ##############################
                     Cell  ####   ####   ####   ####
        operators          a b  c a b  c a b  c a b      time_ns: with the gaps, without the operators of
        time_ns            ####### ###### ###### ###     others in them, and with the gradients of a and b

    Outside layers, the calls ahead of one Backward count together. Blocks of a model are several layers; and
    outermost layers, which have no name, are left out.

    Returns:
        step; name, the layer's path and the line that calls it; calls (operators) and time_ns. And whether
        each host event is below such a layer.
    """
    tree = profile.tree
    is_layer = (tree.hosts["category"] == "Forward").to_numpy()
    layer = pl.Series(tree.enclosing(is_layer), dtype=pl.Int64)
    hosts = tree.hosts_with("step", "shapes", "attributes")
    hosts = hosts.with_columns(layer=layer, row=pl.col("row").cast(pl.Int64))
    above = hosts["name"].cast(pl.String).gather(layer.replace(-1, None)).fill_null("")
    hosts = hosts.with_columns(above=above)
    calls = _repeated(hosts.filter(is_layer & ~_are_apart(profile)), tree)
    is_called = np.zeros(tree.hosts.height, bool)
    is_called[calls["row"].to_numpy()] = True
    dur = pl.col("end_ns") - pl.col("start_ns")
    operators = hosts.with_columns(call=pl.Series(tree.enclosing(is_called), dtype=pl.Int64))
    is_outermost = pl.Series(tree.is_outermost_operator)
    beside = intervals_of(hosts.filter(is_outermost & pl.Series(tree.enclosing(is_called) < 0)))
    is_of_program = pl.col("name").cast(pl.String).str.starts_with(OPERATOR_OF_PROGRAM)
    operators = operators.filter(is_outermost & (pl.col("call") >= 0) & ~is_of_program).join(
        calls.select("own", call="row"), "call", maintain_order="left"
    )
    operators = operators.with_columns(usual_ns=_usual(dur, "own"))
    sums = operators.group_by("step", "own").agg(
        calls=pl.len().cast(pl.Int64),
        called_ns=pl.col("usual_ns").sum(),
        operators=pl.col("row"),
        num_layers=pl.col("call").n_unique(),
    )
    # A layer of one operator, such as an activation, may be called anywhere.
    is_cell = pl.col("calls") >= 2 * pl.col("num_layers")
    sums = sums.filter((pl.col("calls") >= MANY_OF_A_FUNCTION) & is_cell & _are_small("own"))
    sums = sums.drop("num_layers")
    calls = calls.join(sums.select("step", "own"), ["step", "own"], "semi").sort("start_ns")
    following = pl.col("start_ns").shift(-1).over("step", "thread", "own")
    goes_on = (following - pl.col("end_ns")).is_between(0, _LONGEST_GAP_NS)
    calls = calls.with_columns(next_ns=pl.when(goes_on).then(following).otherwise("end_ns"))
    # An operator of another layer in between is no part of the loop's small ones.
    others_ns = covered_within(
        together(beside), calls["end_ns"].to_numpy(), calls["next_ns"].to_numpy()
    )
    calls = calls.with_columns(
        time_ns=pl.col("next_ns") - pl.col("start_ns") - pl.Series(others_ns)
    )
    times = calls.group_by("step", "own").agg(pl.col("time_ns").sum(), first=pl.col("row").first())
    found = sums.join(times, ["step", "own"]).join(
        _of_gradients(profile, sums), ["step", "own"], "left"
    )
    names = {}
    for (layer,), of_layer in found.group_by("own"):
        line = _calling_line(profile, calls.filter(own=layer))
        line = line or line_of_operators(profile, of_layer["operators"].explode())
        path = _path(hosts, of_layer["first"][0])
        names[layer] = f"{path} ({line})" if line else path
    table = found.select(
        *("step", "calls"),
        time_ns=pl.col("time_ns") + pl.col("backward_ns").fill_null(0),
        name=pl.col("own").replace_strict(names, return_dtype=pl.String),
    )
    return table, tree.below(calls["row"].sort().to_numpy())


def _repeated(layers: pl.DataFrame, tree: Tree) -> pl.DataFrame:
    """Return the calls of layers that repeat `MANY_CALLS` times, with column own: which layer is called."""
    layers = layers.with_columns(
        own=pl.col("attributes").cast(pl.String).str.json_path_match(f"$.{LAYER}"),
        num_backwards=_num_backwards(layers, tree),
    )
    key = ["step", "thread", "layer", "num_backwards", "own"]
    layers = layers.drop_nulls(["step", "own"]).filter(pl.col("own") != "")
    # Several models may have a layer of one name.
    layers = layers.with_columns(own=pl.concat_str("above", pl.lit("/"), "own"))
    return layers.filter(pl.len().over(key) >= MANY_CALLS)


def _are_apart(profile: Profile) -> Bool:
    """Return which host events are beside the training, or would not be there without `repeated_calls` and gradients that are 0."""
    is_apart = starts_beside(profile) | repeated_calls(profile).is_inside
    is_apart[multiplied_by_zero(profile).gradients["row"].to_numpy()] = True
    return is_apart


def _num_backwards(events: pl.DataFrame, tree: Tree) -> pl.Series:
    """Return how many Backwards have begun before each event."""
    backward = tree.of_category("Backward")["start_ns"].sort().to_numpy()
    return pl.Series(np.searchsorted(backward, events["start_ns"].to_numpy()))


def _of_functions(profile: Profile, updating: Intervals, is_repeated: Bool) -> pl.DataFrame:
    """Return the functions whose loops call at least `MANY_OF_A_FUNCTION` operators in a step, all small.

    ::

        operators  a  b  a  b  a  b   c     a and b: called by two lines of a loop in a function
        time_ns    #################        with the gaps, and with the gradients of a and b

    A line is of a loop if `MANY_OPERATORS` times in one call of a layer, or `MANY_OUTSIDE` times outside layers,
    it is the next to call an operator: the lines of a model's layers are in one call of each layer. Lines that call
    so many operators alone count, too, without the others of their function; one whose operators are not small, such as of
    a model, without all others; and an optimizer's operators without all others.
    """
    tree = profile.tree
    # An optimizer clips gradients, and one of the user's updates parameters, by operators for each of them.
    is_layer = tree.hosts["category"].is_in(["Forward", "Optimization"]).to_numpy()
    hosts = tree.hosts_with("step", "callstack", "shapes")
    hosts = hosts.with_columns(layer=pl.Series(tree.enclosing(is_layer)))
    in_optimizer = tree.below(tree.events.host_rows("Optimization"))
    # LBFGS computes the whole model again and again: that is no loop.
    phases = tree.events.host_rows("Forward", "Backward")
    in_closure = tree.below(phases[in_optimizer[phases]])
    hosts = hosts.with_columns(in_optimizer=pl.Series(in_optimizer))
    is_apart = _are_apart(profile) | in_closure | is_repeated
    outer = hosts.filter(tree.is_outermost_operator & ~is_apart)
    outer = outer.sort("thread", "start_ns")
    # Paddle's own updates are no loop of the user's.
    is_between = pl.Series(contains(updating, outer["start_ns"].to_numpy()))
    is_updating = outer["in_optimizer"] & (is_between | matching(outer["name"], UPDATES))
    outer = outer.with_columns(is_updating=is_updating, num_backwards=_num_backwards(outer, tree))
    is_called = pl.col("name").cast(pl.String).str.ends_with(" dygraph")
    is_next = pl.col("callstack").ne_missing(pl.col("callstack").shift(1).over("thread"))
    line, key = ["step", "callstack", "in_optimizer"], ["function", "in_optimizer"]
    stack, times = pl.col("callstack").cast(pl.String), pl.col("is_next").sum()
    dur, following = pl.col("end_ns") - pl.col("start_ns"), pl.col("start_ns").shift(-1)
    lines = (
        outer.with_columns(is_next=is_next, is_product=matching(outer["name"], _PRODUCTS))
        .filter(is_called, ~pl.col("is_updating"))
        .drop_nulls(["step", "callstack"])
        .with_columns(usual_ns=_usual(dur, *line[1:]))
        .group_by(*line, "layer", "num_backwards")
        .agg(pl.len(), pl.col("is_product").any(), called_ns=pl.col("usual_ns").sum(), times=times)
        .group_by(line)
        .agg(
            calls=pl.col("len").sum(),
            is_in_loop=(pl.col("times") >= MANY_OPERATORS).any(),
            is_repeated=((pl.col("layer") < 0) & (pl.col("times") >= MANY_OUTSIDE)).any(),
            has_product=pl.col("is_product").any(),
            called_ns=pl.col("called_ns").sum(),
        )
        .with_columns(is_small=_are_small(*line[1:]))
    )
    functions = {text: _function(text) for text in lines.select(stack).to_series().unique()}
    lines = lines.with_columns(function=stack.replace_strict(functions, return_dtype=pl.String))
    is_in_loop = pl.col("is_in_loop") | (
        pl.col("is_repeated") & ~pl.col("has_product").any().over("step", "function")
    )
    lines = lines.with_columns(is_in_loop=is_in_loop)
    lines = lines.filter(pl.col("is_in_loop") | (pl.col("calls") >= MANY_OF_A_FUNCTION))
    is_of_function = pl.col("is_in_loop") | pl.col("is_small")
    lines = lines.select(*line, function=pl.when(is_of_function).then("function").otherwise(stack))
    outer = outer.join(lines, line, "left", maintain_order="left")
    gap = following.over("thread") - pl.col("end_ns")
    both = (pl.col(name) == pl.col(name).shift(-1).over("thread") for name in ("step", *key))
    goes_on = pl.all_horizontal(*both)
    is_gap = goes_on.fill_null(value=False) & gap.is_between(0, _LONGEST_GAP_NS)
    outer = outer.with_columns(
        time_ns=dur + pl.when(is_gap).then(gap).otherwise(0),
        usual_ns=_usual(dur, *key),
        is_called=is_called,
    )
    sums = (
        outer.filter(~pl.col("is_updating"))
        .drop_nulls("function")
        .group_by("step", *key)
        .agg(
            calls=pl.col("is_called").sum().cast(pl.Int64),
            called_ns=pl.col("usual_ns").filter("is_called").sum(),
            time_ns=pl.col("time_ns").sum(),
            operators=pl.col("row").filter("is_called"),
            layer=pl.col("layer").filter("is_called").unique(),
        )
    )
    many = sums.filter((pl.col("calls") >= MANY_OF_A_FUNCTION) & _are_small(*key))
    parts = []
    for (text, _), of_function in many.group_by(key):
        name = line_of_operators(profile, of_function["operators"].explode()) or str(text)
        paths = {_path(hosts, row) for row in of_function["layer"].explode().unique()}
        name = f"{path} ({name})" if len(paths) == 1 and (path := paths.pop()) else name
        parts.append(of_function.select("step", "calls", "time_ns", name=pl.lit(name)))
    schema = {"step": pl.Int64, "calls": pl.Int64, "time_ns": pl.Int64, "name": pl.String}
    return pl.concat([pl.DataFrame(schema=schema), *parts])


def _function(stack: str) -> str:
    """Return the file and the function of a call stack's line; the stack itself without one."""
    frame = frame_of_call(stack)
    return stack if frame is None else f"{frame.file}, {frame.function}"


def _of_layers(profile: Profile, is_repeated: Bool) -> pl.DataFrame:
    """Return the calls of layers that make at least `MANY_OPERATORS` small operators themselves.

    ::

        Forward    Net ##################################
                     WindowMean #####################       time_ns: all of it, and of the gradients
        operators  a  s m s m s m s m s m s m s m c     b      of its own operators

    Operators of a program of ``to_static`` are not called one by one.

    Returns:
        step; name, the layer's path and its line where samples know it; calls (operators) and
        time_ns: the call without the layers in it, and the gradients of its operators.
    """
    tree = profile.tree
    hosts = tree.hosts_with("step", "shapes")
    is_layer = (hosts["category"] == "Forward").to_numpy()
    layer = pl.Series(tree.enclosing(is_layer), dtype=pl.Int64)
    hosts = hosts.with_columns(layer=layer, row=pl.col("row").cast(pl.Int64))
    dur = pl.col("end_ns") - pl.col("start_ns")
    is_called = pl.col("name").cast(pl.String).str.starts_with(OPERATOR_OF_PROGRAM).not_()
    is_training = ~(_are_apart(profile) | is_repeated)
    own = hosts.filter(tree.is_outermost_operator & is_training)
    own = own.filter(is_called, pl.col("layer") >= 0)
    own = own.with_columns(usual_ns=_usual(dur, "layer"))
    sums = own.group_by("layer").agg(
        calls=pl.len().cast(pl.Int64), called_ns=pl.col("usual_ns").sum(), operators=pl.col("row")
    )
    many = sums.filter(pl.col("calls") >= MANY_OPERATORS)
    paths = {row: _path(hosts, row) for row in many["layer"].to_list()}
    many = many.with_columns(path=pl.col("layer").replace_strict(paths, return_dtype=pl.String))
    many = many.filter(_are_small("path"))
    inner = hosts.filter(pl.col("category") == "Forward").group_by("layer").agg(inner_ns=dur.sum())
    calls = many.join(
        hosts.select("row", "step", "start_ns", "end_ns"), left_on="layer", right_on="row"
    )
    calls = calls.join(inner, "layer", "left")
    backward = _of_gradients(profile, calls.select("layer", "operators"))
    calls = calls.join(backward, "layer", "left")
    calls = calls.with_columns(
        time_ns=dur - pl.col("inner_ns").fill_null(0) + pl.col("backward_ns").fill_null(0),
    )
    lines = {path: _line(profile, of_path) for (path,), of_path in calls.group_by("path")}
    names = [f"{path} ({lines[path]})" if lines[path] else path for path in calls["path"].to_list()]
    return calls.select("step", "calls", "time_ns", name=pl.Series(names, dtype=pl.String))


def _of_gradients(profile: Profile, operators: pl.DataFrame) -> pl.DataFrame:
    """Return the time of the gradients of operators, without those that are 0 (`multiplied_by_zero`).

    Args:
        profile: one rank's window.
        operators: keys, and operators (rows of events), which are of one key each.

    Returns:
        The keys, and backward_ns. Keys without gradients have no row.
    """
    keys = [name for name in operators.columns if name != "operators"]
    rows = multiplied_by_zero(profile).gradients["row"].cast(pl.Int64)
    events = profile.trace.events.select("forward", "dur_ns", "name").with_row_index("row")
    gradients = events.filter(
        pl.col("forward").is_not_null()
        & pl.col("name").cast(pl.String).str.starts_with("Local_").not_()
        & pl.col("row").cast(pl.Int64).is_in(rows.implode()).not_()
    ).drop("row")
    of_operators = operators.select(*keys, forward="operators").explode("forward")
    return (
        gradients.with_columns(pl.col("forward").cast(pl.Int64))
        .join(of_operators, on="forward")
        .group_by(keys)
        .agg(backward_ns=pl.col("dur_ns").sum())
    )


def _usual(dur: pl.Expr, *key: str) -> pl.Expr:
    """The median of operators of one name and shape: a busy processor lengthens some of them."""
    return dur.median().over(*key, "name", "shapes")


def _are_small(*key: str) -> pl.Expr:
    """Whether operators take less than `SMALL_NS` on average over the window: a slow step makes none of them large.

    Each counts as the median of its name: where other processes take the processor, a few take milliseconds.
    """
    return pl.col("called_ns").sum().over(key) < SMALL_NS * pl.col("calls").sum().over(key)


def _path(hosts: pl.DataFrame, row: int) -> str:
    """Return the names of the layers around a layer, such as ``Sequential/WindowMean``."""
    names = []
    while row >= 0:
        names.append(str(hosts["name"][row]))
        row = int(hosts["layer"][row])
    return "/".join(reversed(names))


def _line(profile: Profile, calls: pl.DataFrame) -> str | None:
    """Return the line that makes most of a layer's calls, else that with most samples in them."""
    called = line_of_operators(profile, calls["operators"].explode())
    sampled = sampled_steps(profile)
    if called is not None or sampled is None:
        return called
    found = _stacks_in(sampled, calls)
    names = sample_lines(sampled)
    instants: dict[str, int] = {}
    for stack, num in found.iter_rows():
        name = names[stack] or ""
        instants[name] = instants.get(name, 0) + num
    best = max(instants, key=lambda name: instants[name], default="")
    is_known = instants.get(best, 0) >= max(_LEAST_SAMPLES, _MOSTLY * sum(instants.values()))
    return best if best and is_known else None


def _stacks_in(sampled: SampledSteps, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the stacks in calls of layers, and at how many instants each: stack and instants."""
    samples = sampled.samples.filter("is_step")
    inside = contains(together(intervals_of(calls)), samples["time_ns"].to_numpy())
    return samples.filter(pl.Series(inside)).group_by("stack").agg(instants=sampled.instants.sum())


def _calling_line(profile: Profile, calls: pl.DataFrame) -> str | None:
    """Return the innermost line that nearly all samples in the calls of a layer have in common: it calls the layer."""
    sampled = sampled_steps(profile)
    if sampled is None:
        return None
    found = _stacks_in(sampled, calls)
    instants: Counter[tuple[Frame, ...]] = Counter()
    for stack, num in found.iter_rows():
        frames = sampled.own[stack][::-1]
        instants.update({tuple(frames[: depth + 1]): num for depth in range(len(frames))})
    least = max(_LEAST_SAMPLES, _NEARLY_ALL * sum(found["instants"].to_list()))
    shared = [frames for frames, num in instants.items() if num >= least]
    return line_name(sampled.stacks, max(shared, key=len)[-1]) if shared else None
