"""Join what operators were called with to the events that Paddle recorded within the calls.

::

    call         [matmul ...............]    [linear .............................]    from Python
    event          matmul dygraph              matmul dygraph   add dygraph            from Paddle
    shapes         those of the call           X0 and X1        the product, and X2

A call and an event belong together if the event lies within the call, on the same thread: both are
timed by the wall clock. An event gets the arguments of the innermost call around it, if that call
has the event's name, or no other event.

Gradients are joined to the operators whose gradients they are::

    step 0  call      [linear] [relu]   [run_backward                             ]
            event      matmul   relu     Global_ReluGradNode  Global_MatmulGradNode
            nodes                        relu's               linear's                  as recorded
    step 1  call      [linear] [relu]   [run_backward ...                             the same order

The nodes are known for the first step of a window. In a later step, a call that computes gradients runs
the same nodes if the same functions have been called ahead of it, back to the first one that created a
node. Whether it does shows in its events: if one has another name than its node, nothing is joined.

Gradients that are 0 have the line of the product with the number 0, if the later step multiplies by 0 there, too. Nodes that C++
creates, as of gradients of gradients, have no call; their events are known by their places in the order::

    step 0  call      [pow] [mean] [0.0 * x] [run_backward                                   ]
            event                             Global_Scale... zero  Global_Mean... zero  ...
    step 1  call      [pow] [mean] [0.1 * x] [run_backward ...                                 not 0

A program of ``to_static`` is one call, and its run one event; all its gradients are one node. Its operators
have the program's line::

    call         [run_program                         ]    Python
    event          interpreter_core_run                    Paddle; the gradient is Global_Dy2StGradNode
                     pd_op.matmul  pd_op.gelu              in the run, or meanwhile on another thread
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.rundir.operator_calls import (
    RUN_BACKWARD,
    Backward,
    Node,
    OperatorCalls,
    Signature,
    is_product_with_zero,
)
from ppprof.trace.operator_inputs import (
    CLEARED,
    LAYER,
    LENGTHS,
    MULTIPLIED,
    NOT_UPDATED,
    NUM_GRADIENTS,
    OF_ONE_LEAF,
    REPEATED,
    UNUSED_GRADIENTS,
    ZERO,
    operator_of_gradient,
    to_json,
)
from ppprof.trace.schema import OPERATOR_OF_PROGRAM, RUN_OF_PROGRAM

_SUFFIX = " dygraph"
_RUNS_OF_PROGRAMS = (RUN_OF_PROGRAM, "Global_Dy2StGradNode")
_PROGRAM = "dy2_st"
"""Stands for the operator of a program, by the name of its gradient."""
_METHODS = {
    **{"sub": "subtract", "mul": "multiply", "div": "divide", "truediv": "divide"},
    **{"floordiv": "floor_divide", "mod": "remainder", "gt": "greater_than"},
    **{
        "ge": "greater_equal",
        "lt": "less_than",
        "le": "less_equal",
        "eq": "equal",
        "ne": "not_equal",
    },
}
"""Operator of a method of tensors, such as ``__rmul__``, if it is named otherwise."""
_MOST_NESTED = 8
_FLOATS = ("float64", "float32", "float16", "bfloat16")


_INPUTS = dict.fromkeys(("shapes", "dtypes", "attributes", "callstack"), pl.String())
"""The columns of events that the calls fill."""
_PREFIX = "Global_"
_MOST_TRIED = 8
"""How many calls with the same nodes to compare with."""
_MOST_ALIGNED = 5_000_000
"""Calls of steps to look for those of samples in: about a second."""
_CALLS_OF_NEEDED = 10
"""To look for one takes as long as to sort so many."""
_LINKS = {
    **{"row": pl.Int64(), "run": pl.Int64(), "call": pl.Int64()},
    **{"operator": pl.String(), "gradients": pl.Int64(), "unused": pl.Int64()},
    "is_of_one_leaf": pl.Boolean(),
}


def with_operator_inputs(events: pl.DataFrame, recorded: OperatorCalls) -> pl.DataFrame:
    """Return the events with shapes, dtypes, attributes and lines of the operators that Python called.

    Args:
        events: reads category, name, thread, start_ns, dur_ns; see `ppprof.trace.schema.EVENTS`.
        recorded: the calls.

    Returns:
        The same rows. An operator without a call keeps its values, usually null.
    """
    events = _with_names_of_layers(events, recorded)
    operators = events.select("category", "name", "thread", "start_ns", "dur_ns").with_row_index(
        "row"
    )
    name = pl.col("name").cast(pl.String)
    is_operator = (pl.col("category") == "Operator") & name.str.ends_with(_SUFFIX)
    operators = operators.filter(is_operator | (name == RUN_OF_PROGRAM))
    call = _calls_around(operators, recorded.calls)
    signature, result = (np.append(recorded.calls[:, column], -1)[call] for column in (3, 4))
    operators = operators.select(
        "row",
        operator=name.str.strip_suffix(_SUFFIX).replace(RUN_OF_PROGRAM, _PROGRAM),
        call=pl.Series(call),
        signature=pl.Series(signature),
        result=pl.Series(result),
    ).filter(pl.col("signature") >= 0)
    if operators.is_empty():
        return events
    is_cast = pl.col("operator") == "cast"
    operators = operators.with_columns(
        num_casts=is_cast.sum().over("call"), num_others=(~is_cast).sum().over("call")
    )
    # Calls of one signature repeat the same operators.
    key = ["operator", "signature", "result", "num_casts", "num_others"]
    kinds = operators.select(key).unique()
    texts = [_inputs(recorded, **kind) for kind in kinds.iter_rows(named=True)]
    kinds = kinds.hstack(pl.DataFrame(texts, _INPUTS, orient="row"))
    operators = operators.join(kinds, on=key)
    known = operators.filter(pl.any_horizontal(pl.col(_INPUTS.keys()).is_not_null())).select(
        "row", *_INPUTS
    )
    events_of_calls = _gradients(events, recorded)
    runs = list(_known_runs(events, recorded, events_of_calls))
    links = links_of_gradients(events, operators, runs).sort("row")
    gradients = links.join(
        known.with_columns(pl.col("row").cast(pl.Int64)), left_on="forward", right_on="row"
    )
    has_attributes = pl.col("shapes").is_not_null() | (pl.col("unused") > 0)
    gradients = gradients.with_columns(
        attributes=pl.when(has_attributes).then(_with_gradients(gradients))
    )
    known = pl.concat([known, gradients.select(known.columns)], how="vertical_relaxed").sort("row")
    forward = events["forward"].scatter(links["row"], links["forward"])
    events = events.with_columns(
        forward,
        *(
            events[name].cast(pl.String).scatter(known["row"], known[name]).cast(pl.Categorical)
            for name in _INPUTS
        ),
    )
    functions = recorded.repeated_functions
    repeated = {row: number for number, each in enumerate(functions) for row in each.calls}
    stacks = [msgspec.structs.astuple(each)[:-1] for each in functions]
    events = _with_attribute(events, REPEATED, stacks, _rows_of_calls(operators, repeated))
    numbers = {row: number for number, row in enumerate(recorded.lengths)}
    rows = _rows_of_calls(operators, numbers)
    events = _with_attribute(events, LENGTHS, list(recorded.lengths.values()), rows)
    events = _with_products(events, operators, recorded, runs, events_of_calls)
    return _with_lines_of_programs(events)


def _rows_of_calls(operators: pl.DataFrame, of_calls: Mapping[int, int]) -> pl.DataFrame:
    """Return row and number of the operators of some calls.

    Args:
        operators: row (of an operator) and call (row of its call).
        of_calls: the number, by the row of the call.
    """
    number = pl.col("call").replace_strict(of_calls, default=None, return_dtype=pl.Int64)
    return operators.select("row", number=number).drop_nulls()


def _with_attribute(
    events: pl.DataFrame, name: str, values: Sequence[Any], rows: pl.DataFrame
) -> pl.DataFrame:
    """Return the events with one more attribute of some of them.

    Args:
        events: all events.
        name: name of the attribute.
        values: its values.
        rows: row (of an event), once, and number (of its value).
    """
    if rows.is_empty():
        return events
    rows = rows.sort("row")
    attributes = events["attributes"].cast(pl.String)
    kinds = list(zip(attributes.gather(rows["row"]).to_list(), rows["number"].to_list()))
    texts = {
        (text, number): to_json({**msgspec.json.decode(text or "{}"), name: values[number]})
        for text, number in set(kinds)
    }
    attributes = attributes.scatter(rows["row"], [texts[kind] for kind in kinds])
    return events.with_columns(attributes.cast(pl.Categorical))


def _with_lines_of_programs(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events with the lines of programs for the operators that start in their runs."""
    name = pl.col("name").cast(pl.String)
    runs = events.filter(name.is_in(_RUNS_OF_PROGRAMS), pl.col("callstack").is_not_null())
    if runs.is_empty():
        return events
    runs = runs.select("callstack", "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    operators = events.select("name", "start_ns").with_row_index("row")
    operators = operators.filter(name.str.starts_with(OPERATOR_OF_PROGRAM)).sort("start_ns")
    operators = operators.join_asof(runs.sort("start_ns"), on="start_ns")
    operators = operators.filter(pl.col("start_ns") <= pl.col("end_ns")).sort("row")
    callstack = events["callstack"].cast(pl.String)
    callstack = callstack.scatter(operators["row"], operators["callstack"].cast(pl.String))
    return events.with_columns(callstack.cast(pl.Categorical))


def _with_names_of_layers(events: pl.DataFrame, recorded: OperatorCalls) -> pl.DataFrame:
    """Return the events with the names of layers in the attributes of their Forward events."""
    if not len(recorded.layer_calls):
        return events
    forwards = events.select("category", "thread", "start_ns", "dur_ns").with_row_index("row")
    forwards = forwards.filter(pl.col("category") == "Forward")
    forwards = forwards.with_columns(call=pl.Series(_calls_around(forwards, recorded.layer_calls)))
    # Other events in a call are those of layers without a name, and of the training's own spans.
    is_own = pl.col("start_ns") == pl.col("start_ns").min().over("call")
    forwards = forwards.filter((pl.col("call") >= 0) & is_own)
    calls = recorded.layer_calls[forwards["call"].to_numpy()]
    repeats, cleared = (
        _rows_of(calls, marked) for marked in (recorded.repeated_calls, recorded.cleared_calls)
    )
    kinds = list(zip(calls[:, 3].tolist(), repeats, cleared))
    texts = {kind: _attributes_of_layer(recorded, *kind) for kind in set(kinds)}
    attributes = events["attributes"].cast(pl.String)
    attributes = attributes.scatter(forwards["row"], [texts[kind] for kind in kinds])
    return events.with_columns(attributes.cast(pl.Categorical))


def _rows_of(calls: Int64, marked: Int64) -> list[int]:
    """Return for each call of a layer what it has in the last column of those that are marked; -1 for others."""
    row_of = {(thread, start): row for thread, start, _, row in marked.tolist()}
    return [row_of.get((thread, start), -1) for thread, start, *_ in calls.tolist()]


def _attributes_of_layer(recorded: OperatorCalls, layer: int, repeat: int, cleared: int) -> str:
    """Return the attributes of calls of a layer; those that repeat no other call have -1 as their repeat."""
    known = _if_known(NOT_UPDATED, recorded.not_updated.get(layer))
    for name, rows, row in (
        (CLEARED, recorded.cleared, cleared),
        (REPEATED, recorded.repeats, repeat),
    ):
        if row >= 0:
            _, *known[name] = msgspec.structs.astuple(rows[row])
    return str(to_json({LAYER: recorded.layers[layer], **known}))


def _with_gradients(gradients: pl.DataFrame) -> pl.Series:
    """Return the attributes of gradients: those of their operators, how many are computed, for which inputs, and how many are unused."""
    key = ["attributes", "gradients", "unused", "is_of_one_leaf"]
    kinds = gradients.select(key).unique()
    texts = [
        to_json(
            {
                **msgspec.json.decode(text or "{}"),
                NUM_GRADIENTS: num,
                **_if_known(UNUSED_GRADIENTS, num_unused or None),
                **_if_known(OF_ONE_LEAF, is_of_one_leaf or None),
            }
        )
        for text, num, num_unused, is_of_one_leaf in kinds.rows()
    ]
    kinds = kinds.with_columns(text=pl.Series(texts, dtype=pl.String))
    return gradients.join(kinds, on=key, how="left", nulls_equal=True, maintain_order="left")[
        "text"
    ]


def _if_known(name: str, value: object) -> dict[str, object]:
    return {} if value is None else {name: value}


def _calls_around(operators: pl.DataFrame, calls: Int64) -> Int64:
    """Return the row of the innermost call around each operator; -1 without one."""
    thread = operators["thread"].fill_null(-1).to_numpy()
    start = operators["start_ns"].to_numpy()
    end = start + operators["dur_ns"].to_numpy()
    # Sort both together: ahead of each operator stands the last call that began until then.
    is_operator = np.arange(len(calls) + len(operators)) >= len(calls)
    starts, threads = np.append(calls[:, 1], start), np.append(calls[:, 0], thread)
    order = np.lexsort((is_operator, starts, threads))
    last = np.maximum.accumulate(np.where(is_operator[order], -1, order))
    candidate = np.empty(len(operators), np.int64)
    candidate[order[is_operator[order]] - len(calls)] = last[is_operator[order]]
    found = np.full(len(operators), -1, np.int64)
    here = np.arange(len(operators))
    for _ in range(_MOST_NESTED):
        here = here[candidate[here] >= 0]
        here = here[calls[candidate[here], 0] == thread[here]]
        is_around = calls[candidate[here], 2] >= end[here]
        found[here[is_around]] = candidate[here[is_around]]
        here = here[~is_around]
        candidate[here] -= 1
    return found


def _inputs(
    recorded: OperatorCalls,
    operator: str,
    signature: int,
    result: int,
    num_casts: int,
    num_others: int,
) -> tuple[str | None, str | None, str | None, str | None]:
    """Return the inputs of an operator of a call, as texts of the columns `_INPUTS`."""
    call = recorded.signatures[signature]
    line = call.callstack or None
    only_line = None, None, None, line
    if operator == _PROGRAM:
        return only_line
    shapes: dict[str, Any] = dict(call.shapes)
    dtypes: dict[str, Any] = dict(call.dtypes)
    if num_casts and num_others:  # `auto_cast` converts arguments ahead of the operator
        computed = recorded.dtypes[result] if result >= 0 else _promoted(dtypes)
        if operator == "cast" or computed not in _FLOATS:
            return only_line
        dtypes = {
            name: [computed if dtype in _FLOATS else dtype for dtype in each]
            for name, each in dtypes.items()
        }
    name = _operator_name(call)
    if call.name.startswith("__r") and shapes.keys() == {"X0", "X1"}:  # x.__rmatmul__(y) is y @ x
        shapes, dtypes = ({"X0": each["X1"], "X1": each["X0"]} for each in (shapes, dtypes))
    if name == "linear" and operator == "matmul":
        shapes, dtypes = _only(shapes, "X0", "X1"), _only(dtypes, "X0", "X1")
    elif name == "linear" and operator == "add" and {"X0", "X1", "X2"} <= shapes.keys():
        product = [*shapes["X0"][0][:-1], *shapes["X1"][0][-1:]]
        shapes = {"X0": [product], "X1": shapes["X2"]}
        dtypes = {"X0": dtypes["X0"], "X1": dtypes["X2"]}
    elif operator not in (name, name.rstrip("_")) and num_others != 1:
        return only_line
    return to_json(shapes), to_json(dtypes), to_json(call.attributes), line


def _promoted(dtypes: Mapping[str, list[str]]) -> str | None:
    """Return the dtype to which Paddle promotes arguments of several floating-point dtypes.

    None if they have one, or are of two without a wider one among them.
    """
    floats = {dtype for each in dtypes.values() for dtype in each if dtype in _FLOATS}
    is_known = len(floats) > 1 and floats != {"float16", "bfloat16"}
    return next(dtype for dtype in _FLOATS if dtype in floats) if is_known else None


def _operator_name(call: Signature) -> str:
    """Return the operator that a function calls, unless its arguments make it call another one.

    >>> _operator_name(Signature("__rmul__", {}, {}, {}))
    'multiply'
    """
    match = re.fullmatch(r"__r?(\w+)__", call.name)
    return _METHODS.get(match[1], match[1]) if match else call.name


def _only(inputs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: inputs[name] for name in names if name in inputs}


def links_of_gradients(
    events: pl.DataFrame, operators: pl.DataFrame, runs: Iterable[_Run]
) -> pl.DataFrame:
    """Return the operator of each gradient for which it is known.

    Args:
        events: reads category, name, thread, start_ns, dur_ns; see `ppprof.trace.schema.EVENTS`.
        operators: the operators that Python called: row (of ``events``), operator, call (row of the
            recorded calls).
        runs: the calls that compute gradients.

    Returns:
        row (of the gradient), forward (row of the operator), gradients (how many it computes), unused
        (how many of them no optimizer uses), int64; is_of_one_leaf (`Node.is_of_one_leaf`), bool.
    """
    nodes = pl.DataFrame(list(_nodes_of_events(runs)), _LINKS, orient="row")
    key, start_ns = ("call", "operator"), events["start_ns"].gather(operators["row"])
    forwards = operators.select(
        "call",
        operator=_plain(pl.col("operator")),
        forward=pl.col("row").cast(pl.Int64),
        start_ns=start_ns,
        end_ns=start_ns + events["dur_ns"].gather(operators["row"]),
    ).sort("start_ns", "forward")
    # With arguments of several dtypes, an operator casts some of them, and calls itself.
    is_within = pl.col("start_ns") < pl.col("end_ns").first().over(key)
    is_first = pl.col("forward") == pl.col("forward").first().over(key)
    forwards = forwards.filter(is_first | ~is_within).filter(pl.len().over(key) == 1)
    forwards = forwards.select(*key, "forward")
    nodes = nodes.with_columns(_plain(pl.col("operator")))
    links = nodes.join(forwards, on=["call", "operator"])
    # An operator has one gradient; if it seems to have two in a run, one of them is another operator's.
    links = links.filter(pl.len().over("forward", "run") == 1)
    return links.select("row", "forward", "gradients", "unused", "is_of_one_leaf")


def _nodes_of_events(runs: Iterable[_Run]) -> Iterator[tuple[int, int, int, str, int, int, bool]]:
    """Yield the columns of `_LINKS` for each gradient whose node is known."""
    for run in runs:
        sample = run.alike[0]
        # Of a discriminator's gradients for real samples, for others, and for the generator, some are unused.
        is_known = all(each.unused == sample.unused for each in run.alike)
        for row, node, call in zip(run.events, sample.nodes, sample.calls):
            operator = operator_of_gradient(node.name)
            if call is not None and operator is not None:
                counts = node.num_gradients, node.num_unused if is_known else 0
                yield row, run.call, run.call + call, operator, *counts, node.is_of_one_leaf


def _known_runs(
    events: pl.DataFrame, recorded: OperatorCalls, gradients: _EventsOfCalls
) -> Iterator[_Run]:
    """Yield the calls that compute gradients, and whose nodes are known; ``gradients`` are from `_gradients`."""
    if not recorded.backwards:
        return
    functions = _functions(recorded)[0]
    samples = [_Sample.of(each, functions) for each in recorded.backwards]
    by_names: dict[tuple[str, ...], list[_Sample]] = {}
    for sample in samples:
        if sample is not None:
            by_names.setdefault(sample.names, []).append(sample)
    runs = _runs(recorded)
    places = _places_in_steps(events, recorded.calls[runs, 1])
    alignment = _Alignment(events, recorded)
    for run, (place, num) in zip(runs.tolist(), places):
        rows, names = gradients.get(run, ([], ()))
        alike = by_names.get(names, [])
        # Usually, each step has as many of them as the first one.
        usual = samples[place] if num == len(samples) else None
        tried = [usual] if usual in alike else alike[:_MOST_TRIED]
        matching = [each for each in tried if each is not None and each.matches(functions, run)]
        if not matching and usual in alike:
            matching = [each for each in alike[:_MOST_TRIED] if each.matches(functions, run)]
        if not matching:
            matching = alignment.moved(tried, run)
        if matching:
            yield _Run(run, rows, matching)


def _runs(recorded: OperatorCalls) -> Int64:
    """Return the rows of the calls that compute gradients, in the thread of those whose nodes are known."""
    functions, backward = _functions(recorded)
    thread = recorded.calls[recorded.backwards[0].call, 0]
    return np.flatnonzero((functions == backward) & (recorded.calls[:, 0] == thread))


def _with_products(
    events: pl.DataFrame,
    operators: pl.DataFrame,
    recorded: OperatorCalls,
    runs: Iterable[_Run],
    gradients: _EventsOfCalls,
) -> pl.DataFrame:
    """Return the events with the attributes `ZERO` and `MULTIPLIED`; ``gradients`` are from `_gradients`."""
    by_zero = [row for row, each in enumerate(recorded.signatures) if is_product_with_zero(each)]
    products = frozenset(np.flatnonzero(np.isin(recorded.calls[:, 3], by_zero)).tolist())
    if not products:
        return events
    lines: dict[tuple[str, str], int] = {}
    zero: dict[int, int] = {}
    multiplied: dict[int, int] = {}
    of_calls: dict[int, int] = {}
    for run in runs:
        if not run.are_zero(products):
            continue
        numbers = {
            product: lines.setdefault(_lines_of_product(recorded, run, product), len(lines))
            for product in run.alike[0].own_products
        }
        for row, product in zip(run.events, run.alike[0].products):
            if product is not None:
                zero[row] = numbers[product]
        for call, product in run.alike[0].multiplied:
            if product not in numbers:
                continue
            rows, _ = gradients.get(run.call + call, ((), ()))
            multiplied.update(dict.fromkeys(rows, numbers[product]))
            if not rows:
                of_calls[run.call + call] = numbers[product]
    values = [*lines]
    schema = {"row": pl.Int64(), "number": pl.Int64()}
    of_calls_of_operators = _rows_of_calls(operators, of_calls).cast({"row": pl.Int64})
    rows_multiplied = pl.concat(
        [pl.DataFrame([*multiplied.items()], schema, orient="row"), of_calls_of_operators]
    )
    rows_zero = pl.DataFrame([*zero.items()], schema, orient="row")
    events = _with_attribute(events, ZERO, values, rows_zero)
    return _with_attribute(events, MULTIPLIED, values, rows_multiplied)


def _lines_of_product(recorded: OperatorCalls, run: _Run, product: int) -> tuple[str, str]:
    """Return the call stacks of a product, and of the last call before it that only it needs; empty if unknown."""
    before = [call for call, by in run.alike[0].multiplied if by == product and call < product]
    rows = [product, *before[-1:]]
    signatures = [int(recorded.calls[run.call + row, 3]) for row in rows]
    line, *term = [recorded.signatures[row].callstack if row >= 0 else "" for row in signatures]
    return line, "".join(term)


def _places_in_steps(events: pl.DataFrame, starts_ns: Int64) -> Iterator[tuple[int, int]]:
    """Yield the place of each call among those of its step, from 0, and how many the step has."""
    steps = events.filter(pl.col("category") == "ProfileStep")["start_ns"].sort().to_numpy()
    step = np.searchsorted(steps, starts_ns, "right")
    order = np.lexsort((starts_ns, step))
    _, first, counts = np.unique(step[order], return_index=True, return_counts=True)
    place, num = np.empty_like(order), np.empty_like(order)
    place[order] = np.arange(len(order)) - np.repeat(first, counts)
    num[order] = np.repeat(counts, counts)
    return zip(place.tolist(), num.tolist())


def _functions(recorded: OperatorCalls) -> tuple[Int64, int]:
    """Return a number for the function of each call, and that of `RUN_BACKWARD`."""
    numbers: dict[str, int] = {RUN_BACKWARD: 0}
    of_signatures = [numbers.setdefault(each.name, len(numbers)) for each in recorded.signatures]
    return np.array([*of_signatures, -1])[recorded.calls[:, 3]], numbers[RUN_BACKWARD]


@dataclass(frozen=True, eq=False)
class _Sample:
    """A call that computes gradients, and whose nodes are known."""

    call: int
    """Its row."""
    nodes: Sequence[Node]
    calls: Sequence[int | None]
    """The call that created each node, as a row relative to this one; None if unknown."""
    functions: Int64
    """From the first call that created a node to this one."""
    names: tuple[str, ...]
    """Of the events."""
    products: Sequence[int | None]
    """The product with 0 for which the gradients of each node are 0, likewise; None for others."""
    multiplied: Sequence[tuple[int, int]]
    """`ppprof.rundir.operator_calls.Backward.multiplied`, likewise, of calls among ``functions``."""

    @property
    def unused(self) -> list[int]:
        """How many gradients of each node are unused."""
        return [node.num_unused for node in self.nodes]

    @property
    def own_products(self) -> set[int]:
        """The products with 0."""
        return {each for each in self.products if each is not None}

    @classmethod
    def of(cls, backward: Backward, functions: Int64) -> _Sample | None:
        rows = [node.call for node in backward.nodes if 0 <= node.call < backward.call]
        if not rows:
            return None
        return cls(
            backward.call,
            backward.nodes,
            [
                node.call - backward.call if 0 <= node.call < backward.call else None
                for node in backward.nodes
            ],
            functions[min(rows) : backward.call + 1],
            tuple(f"{_PREFIX}{node.name}" for node in backward.nodes),
            [
                node.product - backward.call if 0 <= node.product < backward.call else None
                for node in backward.nodes
            ],
            [
                (row - backward.call, product - backward.call)
                for row, product in backward.multiplied
                if min(rows) <= row < backward.call
            ],
        )

    def matches(self, functions: Int64, run: int) -> bool:
        """Return whether another call, whose events have the same names, runs the same nodes."""
        begin = run + 1 - len(self.functions)
        return begin >= 0 and np.array_equal(functions[begin : run + 1], self.functions)


class _Alignment:
    """Finds the calls of a sample in steps that make others between them: an evaluation, or samples that are mined now and then.

    ::

        sample      a b . c d   backward
        other step  a b x y . x y c d   backward

    A call is known if its step makes as many with its signature as that of the sample, up to the backward.
    """

    def __init__(self, events: pl.DataFrame, recorded: OperatorCalls) -> None:
        self._calls = recorded.calls
        self._steps = events.filter(pl.col("category") == "ProfileStep")["start_ns"].sort()
        self._num_left = _MOST_ALIGNED
        self._own: dict[int, tuple[Int64, Int64]] = {}
        """Of samples, by their calls."""

    def moved(self, samples: Iterable[_Sample | None], run: int) -> list[_Sample]:
        """Return those of the samples whose calls are known of another call that computes gradients, with these calls.

        None if these differ: two losses of one network, both computed ahead of their Backwards.
        """
        known = [each for each in samples if each is not None]
        if not known or self._num_left <= 0:
            return []
        others = self._by_signature(run)
        moved = [each for sample in known if (each := self._moved(sample, run, others))]
        return moved if all(each.calls == moved[0].calls for each in moved) else []

    def _moved(self, sample: _Sample, run: int, others: tuple[Int64, Int64]) -> _Sample | None:
        if sample.call not in self._own:
            self._own[sample.call] = self._by_signature(sample.call)
        offsets = {each for each in (*sample.calls, *sample.products) if each is not None}
        offsets.update(row for pair in sample.multiplied for row in pair)
        needed = np.array(sorted(offsets), np.int64)
        self._num_left -= _CALLS_OF_NEEDED * len(needed)
        rows = sample.call + needed
        signatures = self._calls[rows, 3]
        begin, num = _ranges(self._own[sample.call][1], signatures)
        begin_of_others, num_of_others = _ranges(others[1], signatures)
        if (num != num_of_others).any() or (num == 0).any():
            return None
        # Rows of one signature ascend.
        order = self._own[sample.call][0]
        place = np.array(
            [np.searchsorted(order[a : a + n], row) for a, n, row in zip(begin, num, rows)]
        )
        if (place == num).any() or (order[begin + place] != rows).any():
            return None  # it is of an earlier step
        moved = dict(zip(needed.tolist(), (others[0][begin_of_others + place] - run).tolist()))
        return replace(
            sample,
            call=run,
            calls=[None if each is None else moved[each] for each in sample.calls],
            products=[None if each is None else moved[each] for each in sample.products],
            multiplied=[(moved[row], moved[product]) for row, product in sample.multiplied],
        )

    def _by_signature(self, run: int) -> tuple[Int64, Int64]:
        """Return the rows of the calls of a step up to one that computes gradients, and their signatures, sorted by these."""
        thread, start_ns = self._calls[run, :2].tolist()
        number = int(self._steps.search_sorted(start_ns, "right"))
        begin_ns = self._steps[number - 1] if number else 0
        of_thread = int(np.searchsorted(self._calls[:run, 0], thread))
        first = of_thread + int(np.searchsorted(self._calls[of_thread:run, 1], begin_ns))
        self._num_left -= run - first
        signatures = self._calls[first:run, 3]
        order = np.argsort(signatures, kind="stable")
        return order + first, signatures[order]


def _ranges(ordered: Int64, values: Int64) -> tuple[Int64, Int64]:
    """Return where values stand in an ordered array, and how often."""
    begin = np.searchsorted(ordered, values)
    return begin, np.searchsorted(ordered, values, "right") - begin


class _Run(NamedTuple):
    """A call that computes gradients, and whose nodes are known."""

    call: int
    """Its row."""
    events: Sequence[int]
    """Rows of the events of its nodes."""
    alike: Sequence[_Sample]
    """What it runs; several if the first step has several such calls that look the same."""

    def are_zero(self, products: Set[int]) -> bool:
        """Return whether it runs nodes whose gradients are 0; ``products`` are the rows of products with 0."""
        first = self.alike[0]
        are_known = all(
            each.products == first.products and each.multiplied == first.multiplied
            for each in self.alike
        )
        own = {self.call + each for each in first.own_products}
        return are_known and bool(own) and own <= products


_EventsOfCalls = dict[int, tuple[list[int], tuple[str, ...]]]
"""Rows and names of the gradients in each call that computes gradients, by its row."""


def _gradients(events: pl.DataFrame, recorded: OperatorCalls) -> _EventsOfCalls:
    """Return the rows and names of the gradients within each call that computes gradients, by its row.

    A gradient within a call within another one, as recomputation has it, belongs to the inner one.
    """
    if not recorded.backwards:
        return {}
    calls, runs = recorded.calls, _runs(recorded)
    thread = int(calls[recorded.backwards[0].call, 0])
    name = pl.col("name").cast(pl.String)
    found = events.select("category", "name", "thread", "start_ns").with_row_index("row")
    is_gradient = (pl.col("category") == "Operator") & name.str.starts_with(_PREFIX)
    found = found.filter((pl.col("thread") == thread) & is_gradient)
    found = found.select("row", "start_ns", name=name).sort("start_ns", maintain_order=True)
    bounds = np.searchsorted(found["start_ns"].to_numpy(), calls[runs, 1:3])
    run_of = np.full(len(found), -1, np.int64)
    for run, (begin, end) in zip(runs, bounds):  # an inner one begins later
        run_of[begin:end] = run
    groups = found.with_columns(run=run_of).group_by("run").agg("row", "name")
    return {run: (rows, tuple(names)) for run, rows, names in groups.rows()}


def _plain(name: pl.Expr) -> pl.Expr:
    """Return a name as ``LayerNorm`` and ``layer_norm`` both have it."""
    return name.str.to_lowercase().str.replace_all("_", "", literal=True)
