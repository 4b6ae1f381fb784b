"""Penalties on parameters in the loss: operators and gradients on all parameters, which weight decay saves."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from ppprof.analysis.advice.called_operators import called_operators
from ppprof.analysis.advice.small_operators import UPDATES
from ppprof.analysis.profile.grouping import matching
from ppprof.analysis.profile.profile import Profile
from ppprof.trace.operator_inputs import (
    Shape,
    attributes_of,
    shapes_as_shown,
    shapes_by_input,
    shapes_in,
)

LEAST_PARAMETERS = 4
"""Parameters in the penalty of a line. Fewer may be chosen ones, such as an embedding's table."""

PENALTIES = {
    **{"step": pl.Int64(), "name": pl.String(), "time_ns": pl.Int64(), "row": pl.Int64()},
    **{"form": pl.String(), "called_row": pl.Int64(), "is_parameter": pl.Boolean()},
    "is_of_some": pl.Boolean(),
}
"""Columns of `penalties`."""

L2, L1, NORM = "l2", "l1", "norm"
"""Forms of penalties: sums of squares, of absolute values, and of norms."""

_SUMS = frozenset(("sum", "mean", "mean_all"))
_STARTS = frozenset(("multiply", "square", "pow", "abs", "p_norm"))
_LEAST_SHAPES = 2
_LINEAR = frozenset(
    (
        *("scale", "add", "add_n", "subtract", "cast", "assign", *_SUMS),
        *("reshape", "flatten", "squeeze", "unsqueeze"),
    )
)
"""Operators on single numbers behind which the gradient of a penalty is the same but for a factor."""
_FACTORS = frozenset(("multiply", "divide"))
"""Likewise, if one of their two inputs needs no gradient."""
_MOST_BEHIND = 2
"""Operators on single numbers behind a sum: a factor, and the addition to the penalty."""
_DOUBLE = "doublegradnode"
"""In the names of gradients of gradients, in lower case. A penalty on gradients has the shapes of one on parameters."""

_Call = Mapping[str, Any]
"""A row of `called_operators`, with ``inputs``, a tuple of shapes, and ``place``, its number among all with gradients."""


class _Penalty(NamedTuple):
    """The penalty on one parameter."""

    form: str
    shape: Shape
    calls: Sequence[_Call]


def penalties(profile: Profile) -> pl.DataFrame:
    """Return the operators of penalties on parameters in a loss, with their gradients.

    ::

        multiply      [512,1024] [512,1024]   p * p, outside of all layers
        sum           [512,1024]              .sum()
        add           [] []                   penalty + ...
        multiply      [1024] [1024]           the next parameter
        momentum_     [512,1024] ...          the optimizer updates parameters of these shapes

    A line has penalties on at least `LEAST_PARAMETERS` parameters, not all of one shape. What the operator
    before may have computed is no parameter: the distance between two models is a penalty that no
    optimizer has. In a window with gradients of gradients, penalties may be on these, and are left out.
    So are those behind which an operator on single numbers may change the gradient by more than a factor;
    the root of a sum of squares is a norm.

    Returns:
        A row for each operator and each gradient: columns of `PENALTIES`. time_ns of a gradient is with the
        sums that it makes. row is that of the event, called_row that of the operator that a line
        calls. form is `L2`, `L1` or `NORM`. is_parameter is true once for each parameter. is_of_some is true
        if the step has fewer penalties of this form than its optimizers update parameters, times the Backwards
        that compute their gradients.
    """
    nothing = pl.DataFrame(schema=PENALTIES)
    sizes = _updated(profile)
    if not sizes or matching(profile.tree.hosts["name"], _DOUBLE).any():
        return nothing
    calls = called_operators(profile).filter(pl.col("gradient_row").is_not_null())
    shapes = {text: tuple(shapes_in(text)) for text in calls["shapes"].unique()}
    of_numbers = pl.Series(
        [text for text, each in shapes.items() if _are_numbers(each)], dtype=pl.String
    )
    may_begin = pl.col("name").is_in(_STARTS) & ~pl.col("in_layer") & ~pl.col("in_backward")
    # Of most calls, only these and those around them are looked at.
    around = (may_begin.shift(distance) for distance in range(-1, _MOST_BEHIND + 3))
    is_of_numbers = pl.col("shapes").is_in(of_numbers.implode())
    if not calls.select(may_begin.any()).item():
        return nothing
    calls = calls.with_row_index("place").filter(pl.any_horizontal(*around, is_of_numbers))
    backwards = _starts_of_backwards(profile)
    found: list[_Penalty] = []
    for _, lane in calls.group_by("step", "thread", maintain_order=True):
        rows = [{**row, "inputs": shapes[row["shapes"]]} for row in lane.iter_rows(named=True)]
        times = len(backwards.get(rows[0]["step"], [0]))
        found += _of_models(_in_lane(rows, sizes), rows, sizes, times)
    of_some = _of_some(found, sizes, backwards)
    rows_of_all = [
        (*row, (penalty.calls[0]["step"], penalty.form) in of_some)
        for penalty in found
        for row in _rows(penalty)
    ]
    return pl.DataFrame(rows_of_all, PENALTIES, orient="row")


def _updated(profile: Profile) -> Counter[Shape]:
    """Return how many parameters of each shape a step updates at most."""
    hosts = profile.tree.hosts_with("step", "shapes")
    updates = hosts.filter((hosts["category"] == "Operator") & matching(hosts["name"], UPDATES))
    kinds = updates.drop_nulls(["step", "shapes"]).group_by("step", "shapes").len()
    most: Counter[Shape] = Counter()
    for _, of_step in kinds.group_by("step"):
        own: Counter[Shape] = Counter()
        for _, text, num in of_step.iter_rows():
            for shape in _first_argument(str(text)):
                own[shape] += num
        most |= own
    return most


def _first_argument(text: str) -> Sequence[Shape]:
    """Return the shapes of the first argument: a parameter, or a list of all."""
    inputs = shapes_by_input(text) or {}
    return inputs.get("X0") or inputs.get("Param") or []


def _starts_of_backwards(profile: Profile) -> dict[int, list[int]]:
    """Return step -> the starts of its Backwards in ns, ascending: each may have a penalty."""
    rows = profile.tree.events.host_rows("Backward")
    backwards = profile.trace.events.select("step", "start_ns")[rows].drop_nulls("step")
    starts = backwards.sort("start_ns").group_by("step").agg("start_ns")
    return dict(starts.iter_rows())


def _in_lane(rows: Sequence[_Call], sizes: Mapping[Shape, int]) -> list[_Penalty]:
    """Return the penalties in the calls of a step's thread, also those on parameters of one element."""
    found = []
    for number, call in enumerate(rows):
        is_outside = call["inputs"] and not call["in_layer"] and not call["in_backward"]
        form = _form(call) if is_outside else None
        # A distance between two models has the shapes of parameters, too.
        if form is None or not call["is_of_one_leaf"] or call["inputs"][0] not in sizes:
            continue
        shape = call["inputs"][0]
        # Most operators on single numbers are on other ones: there, `_is_of_model` counts instead.
        if number and shape and _may_make(rows[number - 1], shape):
            continue
        behind = list(rows[number + 1 : number + 2 + _MOST_BEHIND])
        own = [call]
        if form != NORM and call["name"] != "p_norm":
            if not behind or not _is_sum_of(behind[0], shape):
                continue
            own.append(behind.pop(0))
        for other in behind[:_MOST_BEHIND]:
            changed = _changed(form, other) if other is behind[0] else None
            is_next = other["place"] == own[-1]["place"] + 1 and not other["in_layer"]
            if not is_next or not (changed or _is_linear(other)):
                break
            form = changed or form
            own.append(other)
        if not _normalizes(rows[number + len(own) : number + len(own) + 1], shape):
            found.append(_Penalty(form, shape, own))
    return found


def _normalizes(behind: Sequence[_Call], shape: Shape) -> bool:
    """Return whether the call behind a norm uses it with the parameter, as ``v / paddle.norm(v)`` does."""
    inputs = behind[0]["inputs"] if behind else ()
    return shape in inputs and any(math.prod(each) == 1 for each in inputs) and shape != ()


def _changed(form: str, call: _Call) -> str | None:
    """Return the form that an operator on the sum of a parameter makes of another one; None if it is linear, or unknown."""
    if not _are_numbers(call["inputs"]):
        return None
    if form == NORM and (_is_square(call) or _is_power(call, 2)):
        return L2
    return NORM if form == L2 and _is_root(call) else None


def _of_models(
    penalties: Sequence[_Penalty], rows: Sequence[_Call], sizes: Mapping[Shape, int], times: int
) -> list[_Penalty]:
    """Return the penalties of a step's thread whose lines have those of a model, and a known gradient.

    Those on parameters of one element are left out.
    """
    of_lines: dict[str | None, list[_Penalty]] = {}
    for penalty in penalties:
        of_lines.setdefault(penalty.calls[0]["callstack"], []).append(penalty)
    of_models = [line for line in of_lines.values() if _is_of_model(line, sizes, times)]
    lines = [[each for each in line if not _is_of_one(each)] for line in of_models]
    own = {call["place"]: call for line in lines for each in line for call in each.calls}
    # A parameter of one element has the operators of the others. A power of the total has other
    # attributes than the squares of parameters, or no sum behind it.
    starts = {_start(each) for line in lines for each in line}
    of_ones = {
        call["place"]
        for line in of_models
        for each in line
        if _is_of_one(each) and _start(each) in starts
        for call in each.calls
    }
    numbers = {call["place"]: call for call in rows if _are_numbers(call["inputs"])}
    changing = [
        call
        for place, call in numbers.items()
        if place not in own and place not in of_ones and not _is_linear(call)
    ]
    return [each for line in lines for each in _of_total(line, own, numbers, changing)]


def _start(penalty: _Penalty) -> tuple[str | None, str, str | None, str]:
    """Return what penalties of one line have in common: line, name and attributes of the first call, and the form."""
    first = penalty.calls[0]
    return first["callstack"], first["name"], first["attributes"], penalty.form


def _is_of_one(penalty: _Penalty) -> bool:
    """Return whether a penalty is on a parameter of one element."""
    return math.prod(penalty.shape) == 1


def _of_total(
    line: list[_Penalty],
    own: Mapping[int, _Call],
    numbers: Mapping[int, _Call],
    changing: Sequence[_Call],
) -> list[_Penalty]:
    """Return the penalties of a line, as norms if a root of the total follows; [] if their gradient is unknown."""
    forms = {each.form for each in line}
    if forms >= {L2, NORM}:
        return []
    begin = line[0].calls[0]["place"]
    behind = [call for call in changing if call["place"] > begin]
    if not behind:
        return line
    for call in behind:
        place = call["place"] - 1
        while place in numbers and place not in own:
            place -= 1
        if place not in own or not _is_root(call):
            return []
    return [each._replace(form=NORM) for each in line] if forms == {L2} else []


def _of_some(
    found: Sequence[_Penalty], sizes: Mapping[Shape, int], backwards: Mapping[int, Sequence[int]]
) -> set[tuple[int, str]]:
    """Return step and form of the penalties that are not on all updated parameters in each Backward with some."""
    shapes: dict[tuple[int, str], Counter[Shape]] = {}
    own_backwards: dict[tuple[int, str], set[int]] = {}
    for penalty in found:
        first = penalty.calls[0]
        key = first["step"], penalty.form
        shapes.setdefault(key, Counter())[penalty.shape] += 1
        number = bisect_right(backwards.get(first["step"], ()), first["gradient_start_ns"])
        own_backwards.setdefault(key, set()).add(number)
    # Of one element, a penalty has other shapes: those are not counted.
    updated = {shape: num for shape, num in sizes.items() if math.prod(shape) > 1}
    return {
        key
        for key, own in shapes.items()
        if any(own[shape] < len(own_backwards[key]) * num for shape, num in updated.items())
    }


def _form(call: _Call) -> str | None:
    """Return the form of a penalty that may begin with a call; None for others."""
    attributes = attributes_of(call["attributes"])
    if call["name"] == "abs":
        return L1
    if call["name"] == "p_norm":  # X1 is the order, unless it is a real number; X5: of all elements
        return (L1 if attributes.get("X1") == 1 else NORM) if attributes.get("X5") is True else None
    return L2 if _is_square(call) else None


def _is_square(call: _Call) -> bool:
    """Return whether a call squares a tensor. The gradients of a product with another one are of two tensors."""
    if call["name"] == "multiply":
        return call["is_of_one_leaf"] is True and call["num_gradients"] == 2
    return call["name"] == "square" or _is_power(call, 2)


def _is_power(call: _Call, exponent: float) -> bool:
    """Return whether a call raises a tensor to a power. Real exponents are not recorded."""
    return call["name"] == "pow" and attributes_of(call["attributes"]).get("X1") == exponent


def _is_root(call: _Call) -> bool:
    """Return whether a call may compute a square root: exponents such as 0.5 are not recorded."""
    return call["name"] == "sqrt" or (
        call["name"] == "pow" and "X1" not in attributes_of(call["attributes"])
    )


def _is_sum_of(call: _Call, shape: Shape) -> bool:
    """Return whether a call adds up all elements of a tensor; with an axis, some."""
    return (
        call["name"] in _SUMS
        and not call["in_layer"]
        and call["inputs"] == (shape,)
        and not {"X1", "axis"} & attributes_of(call["attributes"]).keys()
    )


def _are_numbers(shapes: Sequence[Shape]) -> bool:
    """Return whether all inputs of a call are single numbers."""
    return bool(shapes) and all(math.prod(shape) == 1 for shape in shapes)


def _is_linear(call: _Call) -> bool:
    """Return whether all that a call changes of a number's gradient is a factor."""
    is_factor = call["name"] in _FACTORS and (call["num_gradients"] or 0) < 2
    return _are_numbers(call["inputs"]) and (call["name"] in _LINEAR or is_factor)


def _may_make(call: _Call, shape: Shape) -> bool:
    """Return whether the result of a call may have a shape, by its inputs."""
    return shape in call["inputs"] and call["name"] not in (*_SUMS, "p_norm")


def _is_of_model(line: Sequence[_Penalty], sizes: Mapping[Shape, int], times: int) -> bool:
    """Return whether the penalties of a line are on a model's parameters: several, and no more than there are."""
    shapes = Counter(penalty.shape for penalty in line)
    is_within = all(num <= times * sizes[shape] for shape, num in shapes.items())
    larger = {shape: num for shape, num in shapes.items() if math.prod(shape) > 1}
    return sum(larger.values()) >= LEAST_PARAMETERS and len(larger) >= _LEAST_SHAPES and is_within


def _rows(penalty: _Penalty) -> list[tuple[object, ...]]:
    """Return the rows of `PENALTIES` of a penalty on one parameter."""
    rows: list[tuple[object, ...]] = []
    for number, call in enumerate(penalty.calls):
        shapes = shapes_as_shown(call["shapes"])
        for name, time, row in (
            (call["name"], "time_ns", "row"),
            (f"{call['name']}_grad", "summed_gradient_ns", "gradient_row"),
        ):
            is_parameter = number == 0 and row == "row"
            where = call[row], penalty.form, call["row"], is_parameter
            rows.append((call["step"], f"{name} {shapes}", call[time], *where))
    return rows
