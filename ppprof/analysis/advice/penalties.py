"""Penalties on parameters in the loss: operators and gradients on all parameters, which weight decay saves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import polars as pl

from ppprof.analysis.advice.called_operators import Shape, called_operators, shapes_in
from ppprof.analysis.advice.small_operators import UPDATES
from ppprof.analysis.profile.grouping import matching
from ppprof.analysis.profile.profile import Profile
from ppprof.trace.operator_inputs import shapes_as_shown

LEAST_PARAMETERS = 4
"""Parameters in the penalty of a line. Fewer may be chosen ones, such as an embedding's table."""

PENALTIES = {
    **{"step": pl.Int64(), "name": pl.String(), "time_ns": pl.Int64(), "row": pl.Int64()},
    **{"form": pl.String(), "called_row": pl.Int64(), "is_parameter": pl.Boolean()},
}
"""Columns of `penalties`."""

L2, L1, NORM = "l2", "l1", "norm"
"""Forms of penalties: sums of squares, of absolute values, and of norms."""

_SUMS = frozenset(("sum", "mean", "mean_all"))
_STARTS = frozenset(("multiply", "square", "pow", "abs", "p_norm"))
_LEAST_SHAPES = 2
_MOST_BEHIND = 2
"""Operators on single numbers behind a sum: a factor, and the addition to the penalty."""
_DOUBLE = "doublegradnode"
"""In the names of gradients of gradients, in lower case. A penalty on gradients has the shapes of one on parameters."""

_Call = Mapping[str, Any]
"""A row of `called_operators`, with ``inputs``, a tuple of shapes."""


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

    Returns:
        A row for each operator and each gradient: columns of `PENALTIES`. time_ns of a gradient is with the
        sums that it makes. row is that of the event, called_row that of the operator that a line
        calls. form is `L2`, `L1` or `NORM`. is_parameter is true once for each parameter.
    """
    nothing = pl.DataFrame(schema=PENALTIES)
    sizes = _updated(profile)
    if not sizes or matching(profile.tree.hosts["name"], _DOUBLE).any():
        return nothing
    calls = called_operators(profile).filter(pl.col("gradient_row").is_not_null())
    may_begin = pl.col("name").is_in(_STARTS) & ~pl.col("in_layer") & ~pl.col("in_backward")
    # Of most calls, only these and those around them are looked at.
    around = (may_begin.shift(distance) for distance in range(-1, _MOST_BEHIND + 2))
    calls = calls.filter(pl.any_horizontal(*around))
    if calls.is_empty():
        return nothing
    shapes = {text: tuple(shapes_in(text)) for text in calls["shapes"].unique()}
    backwards = _num_backwards(profile)
    found: list[_Penalty] = []
    for _, lane in calls.group_by("step", "thread", maintain_order=True):
        rows = [{**row, "inputs": shapes[row["shapes"]]} for row in lane.iter_rows(named=True)]
        of_lines: dict[str | None, list[_Penalty]] = {}
        for penalty in _in_lane(rows, sizes):
            of_lines.setdefault(penalty.calls[0]["callstack"], []).append(penalty)
        times = backwards.get(rows[0]["step"], 1)
        found += [
            each for line in of_lines.values() if _is_of_model(line, sizes, times) for each in line
        ]
    rows_of_all = [row for penalty in found for row in _rows(penalty)]
    return pl.DataFrame(rows_of_all, PENALTIES, orient="row")


def _updated(profile: Profile) -> Counter[Shape]:
    """Return how many parameters of each shape a step updates at most."""
    tree = profile.tree
    hosts = tree.hosts.with_columns(
        profile.trace.events.select("step", "shapes").slice(0, tree.hosts.height)
    )
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


def _first_argument(text: str) -> list[Shape]:
    """Return the shapes of the first argument: a parameter, or a list of all."""
    try:
        inputs = msgspec.json.decode(text, type=dict[str, list[tuple[int, ...]]])
    except msgspec.DecodeError:
        return []
    return inputs.get("X0") or inputs.get("Param") or []


def _num_backwards(profile: Profile) -> dict[int, int]:
    """Return step -> its number of Backwards: each may have a penalty."""
    rows = profile.tree.events.host_rows("Backward")
    steps = profile.trace.events["step"].gather(rows).drop_nulls()
    return dict(steps.value_counts().iter_rows())


def _in_lane(rows: Sequence[_Call], sizes: Mapping[Shape, int]) -> list[_Penalty]:
    """Return the penalties in the calls of a step's thread."""
    found = []
    for number, call in enumerate(rows):
        form = None if call["in_layer"] or call["in_backward"] else _form(call)
        shape = call["inputs"][0] if call["inputs"] else ()
        if form is None or shape not in sizes or math.prod(shape) < 2:
            continue
        if number and _may_make(rows[number - 1], shape):
            continue
        behind = list(rows[number + 1 : number + 2 + _MOST_BEHIND])
        own = [call]
        if form != NORM and call["name"] != "p_norm":
            if not behind or not _is_sum_of(behind[0], shape):
                continue
            own.append(behind.pop(0))
        for other in behind[:_MOST_BEHIND]:
            if other["in_layer"] or not _is_of_numbers(other):
                break
            if form == NORM and other is behind[0] and _is_square(other):
                form = L2
            own.append(other)
        found.append(_Penalty(form, shape, own))
    return found


def _form(call: _Call) -> str | None:
    """Return the form of a penalty that may begin with a call; None for others."""
    attributes = _attributes(call)
    if call["name"] == "abs":
        return L1
    if call["name"] == "p_norm":  # X1 is the order, unless it is a real number; X5: of all elements
        return (L1 if attributes.get("X1") == 1 else NORM) if attributes.get("X5") is True else None
    return L2 if _is_square(call) else None


def _is_square(call: _Call) -> bool:
    """Return whether a call squares a tensor. A product with another tensor has one gradient, or other shapes."""
    if call["name"] == "multiply":
        inputs = call["inputs"]
        return len(inputs) == 2 and inputs[0] == inputs[1] and call["num_gradients"] == 2
    return call["name"] == "square" or (call["name"] == "pow" and _attributes(call).get("X1") == 2)


def _is_sum_of(call: _Call, shape: Shape) -> bool:
    """Return whether a call adds up all elements of a tensor; with an axis, some."""
    return (
        call["name"] in _SUMS
        and not call["in_layer"]
        and call["inputs"] == (shape,)
        and not {"X1", "axis"} & _attributes(call).keys()
    )


def _is_of_numbers(call: _Call) -> bool:
    """Return whether all inputs of a call are single numbers."""
    return bool(call["inputs"]) and all(math.prod(shape) == 1 for shape in call["inputs"])


def _may_make(call: _Call, shape: Shape) -> bool:
    """Return whether the result of a call may have a shape, by its inputs."""
    return shape in call["inputs"] and call["name"] not in (*_SUMS, "p_norm")


def _is_of_model(line: Sequence[_Penalty], sizes: Mapping[Shape, int], times: int) -> bool:
    """Return whether the penalties of a line are on a model's parameters: several, and no more than there are."""
    shapes = Counter(penalty.shape for penalty in line)
    is_within = all(num <= times * sizes[shape] for shape, num in shapes.items())
    return len(line) >= LEAST_PARAMETERS and len(shapes) >= _LEAST_SHAPES and is_within


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


def _attributes(call: _Call) -> dict[str, Any]:
    """Return the attributes of a call; {} if unknown."""
    try:
        return msgspec.json.decode(call["attributes"] or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
