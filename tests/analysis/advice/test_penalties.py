"""Penalties on parameters in the loss."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.analysis.advice.disjoint import disjoint
from ppprof.analysis.advice.finding import Finding
from ppprof.run.advise import collect_evidence_of_run
from tests.fixtures.findings import (
    PARAMETERS,
    TRIGGERS,
    US,
    Called,
    differentiating,
    penalised,
)
from tests.fixtures.run_directories import run

ALL = {"X5": True}


def each_of(*names: str, attributes: dict[str, object] | None = None) -> list[Called]:
    """The operators on each parameter; those behind the first one of a norm have its result."""
    return [
        Called(name, (shape,) if number == 0 or names[0] != "p_norm" else ((),), attributes or {})
        for shape in PARAMETERS
        for number, name in enumerate(names)
    ]


def finding(folder: Path, *called: Called, **options: object) -> Finding | None:
    options = {"each": 20, "updated": PARAMETERS, **options}
    made = ppprof.advise(ppprof.open(run(folder / "log", **differentiating(*called, **options))))
    return next((each for each in made if each.rule == "penalty-in-loss"), None)


@pytest.mark.parametrize(
    ("called", "remedy", "confidence", "num"),
    [
        (penalised(*PARAMETERS), "code", "likely", 8),
        (each_of("pow", "sum", attributes={"X1": 2}), None, None, 0),  # the sum of one axis
        (
            [
                call
                for shape in PARAMETERS
                for call in (Called("pow", (shape,), {"X1": 2}), Called("sum", (shape,)))
            ],
            *("code", "likely", 8),
        ),
        (each_of("square", "sum"), "code", "likely", 8),
        (each_of("square", "mean"), "code", "likely", 8),
        (each_of("abs", "sum"), "code-l1", "likely", 8),
        (each_of("p_norm", attributes=ALL), "code-norm", "possible", 4),
        (each_of("p_norm", "square", attributes=ALL), "code", "likely", 8),
        (each_of("p_norm", attributes={**ALL, "X1": 1}), "code-l1", "likely", 4),
        (each_of("p_norm", attributes={"X5": False}), None, None, 0),  # of each row
    ],
)
def test_forms_of_penalties(
    called: list[Called], remedy: str | None, confidence: str | None, num: int, tmp_path: Path
):
    found = finding(tmp_path, *called)
    facts = (None, None) if found is None else (found.facts["remedy"], found.confidence)
    assert facts == (remedy, confidence)
    assert (0 if found is None else found.cost_ns) == pytest.approx(2 * num * 20 * US)


def test_the_penalty_is_added_up(tmp_path: Path):
    """A factor and an addition behind each sum are parts of it."""
    called = [
        each
        for start in range(0, 8, 2)
        for each in (*penalised(*PARAMETERS)[start : start + 2], Called("add", ((), ())))
    ]
    found = finding(tmp_path, *called)
    assert found is not None
    assert found.cost_ns == 2 * 12 * 20 * US


def squares(**changes: object) -> list[Called]:
    """`penalised`, with changes of the squares."""
    return [
        call._replace(**changes) if call.name == "multiply" else call
        for call in penalised(*PARAMETERS)
    ]


@pytest.mark.parametrize(
    ("called", "options"),
    [
        # A product of two tensors, one of which needs no gradients: a mask, a gradient of another model.
        (squares(gradients=1, of_one_leaf=False), {}),
        # Products of the parameters of two networks.
        (squares(of_one_leaf=False), {}),
        # Without gradients: an average, a norm that is only shown.
        (squares(gradients=0, of_one_leaf=False), {}),
        ([Called("square", ((3, 3),)), *squares(in_layer=True)], {}),
        # Activations of a shape that no parameter has.
        (penalised(*PARAMETERS), {"updated": ((16, 16), (16,))}),
        # More than there are parameters of a shape, or of one shape.
        (penalised(*PARAMETERS, (8,)), {}),
        (penalised(*[(8,)] * 4), {"updated": [(8,)] * 4}),
        # The distance between two models.
        (
            [
                call
                for shape in PARAMETERS
                for call in (Called("subtract", (shape, shape)), *penalised(shape))
            ],
            {},
        ),
        # Distances, all computed ahead of their squares or absolute values.
        (squares(name="square", gradients=1, of_one_leaf=False), {}),
        (squares(name="abs", gradients=1, of_one_leaf=False), {}),
        # v / paddle.norm(v): weights that are normalized.
        (
            [
                call
                for shape in PARAMETERS
                for call in (
                    Called("p_norm", (shape,), {**ALL, "X1": 2}),
                    Called("divide", (shape, ()), gradients=2, of_one_leaf=False),
                )
            ],
            {},
        ),
        # Squares of gradients, whose gradients are computed.
        (penalised(*PARAMETERS), {"more": ("Global_MatmulDoubleGradNode",)}),
        # Different lines: three of the parameters, and one.
        ([*penalised(*PARAMETERS[:3]), *penalised(PARAMETERS[3], line=9)], {}),
    ],
)
def test_no_penalty_on_parameters(called: list[Called], options: dict[str, object], tmp_path: Path):
    assert finding(tmp_path, *called, **options) is None


def behind_each(*names: str, **options: object) -> list[Called]:
    """`penalised`, with operators on the sum of each parameter."""
    return [
        each
        for start in range(0, 8, 2)
        for each in (
            *penalised(*PARAMETERS)[start : start + 2],
            *(Called(name, ((),), **options) for name in names),
        )
    ]


def behind_all(*names: str) -> list[Called]:
    """`penalised`, with an addition for each parameter, and operators on the total."""
    added = [
        call._replace(shapes=((), ())) if call.name == "add" else call
        for call in behind_each("add")
    ]
    return [*added, *(Called(name, ((),)) for name in names)]


LEARNED = Called("multiply", ((), ()), gradients=2)
"""A product of two numbers that both need gradients: the square of a total, or a learned factor."""


@pytest.mark.parametrize(
    ("called", "remedy"),
    [
        (behind_each("scale"), "code"),
        (behind_each("sqrt"), "code-norm"),
        (behind_each("pow"), "code-norm"),  # ** 0.5: real numbers are not recorded
        (behind_each("scale", "sqrt"), "code-norm"),
        (behind_each("exp"), None),
        (behind_each("pow", attributes={"X1": 2}), None),
        (behind_all("scale"), "code"),
        (behind_all("sqrt", "scale"), "code-norm"),
        (behind_all("log"), None),
        ([*behind_all(), LEARNED], None),
        ([*behind_all(), LEARNED._replace(gradients=1)], "code"),
        # The root of something else, such as the mean of squared errors.
        ([*behind_all(), Called("mean", ((16, 3),)), Called("sqrt", ((),))], None),
        ([Called("sqrt", ((),)), Called("tanh", ((16, 3),)), *behind_all()], "code"),
    ],
)
def test_operators_behind_the_sums_decide_on_the_gradient(
    called: list[Called], remedy: str | None, tmp_path: Path
):
    """The gradient of a root is that of a norm; behind others but factors and additions, it is unknown."""
    found = finding(tmp_path, *called)
    assert (found and found.facts["remedy"]) == remedy


def test_a_parameter_of_one_element_has_the_operators_of_the_others(tmp_path: Path):
    one = ((1,),)
    found = finding(tmp_path, *penalised(*PARAMETERS, *one), updated=(*PARAMETERS, *one))
    assert found is not None
    assert (found.facts["remedy"], found.facts["penalties"]) == ("code", 4)


def powers(*behind: Called, shapes: tuple[tuple[int, ...], ...] = PARAMETERS) -> list[Called]:
    """(p ** 2).sum() for each parameter, with operators behind each, and an addition."""
    return [
        call
        for shape in shapes
        for call in (
            Called("pow", (shape,), {"X1": 2}),
            Called("sum", (shape,)),
            *behind,
            Called("add", ((), ())),
        )
    ]


ROOT, SQUARE = Called("pow", ((),)), Called("pow", ((),), {"X1": 2})
"""Of a number: ** 0.5, whose exponent is not recorded, and ** 2."""


@pytest.mark.parametrize(
    ("called", "ones", "remedy"),
    [
        # sum((p ** 2).sum() for p in model.parameters()) ** 0.5
        ([*powers(), ROOT], [], "code-norm"),
        ([*powers(), SQUARE], [], None),
        (powers(SQUARE), [], None),
        # The last parameter has one element.
        (powers(shapes=(*PARAMETERS, (1,))), [(1,)], "code"),
        ([*powers(shapes=(*PARAMETERS, (1,))), ROOT], [(1,)], "code-norm"),
        ([*powers(shapes=(*PARAMETERS, (1,))), SQUARE], [(1,)], None),
        (powers(ROOT, shapes=(*PARAMETERS, (1,))), [(1,)], "code-norm"),
        (powers(SQUARE, shapes=(*PARAMETERS, (1,))), [(1,)], None),
        # It has no dims, as have the totals.
        (powers(shapes=(*PARAMETERS, ())), [()], "code"),
        ([*powers(shapes=(*PARAMETERS, ())), SQUARE], [()], None),
        ([*powers(shapes=(*PARAMETERS, ())), SQUARE, Called("sum", ((),))], [()], None),
    ],
)
def test_a_power_of_the_total_on_the_line_of_the_squares(
    called: list[Called], ones: list[tuple[int, ...]], remedy: str | None, tmp_path: Path
):
    """It is no square of a parameter of one element."""
    found = finding(tmp_path, *called, each=10, updated=(*PARAMETERS, *ones))
    assert (found and found.facts["remedy"]) == remedy


@pytest.mark.parametrize(
    ("called", "remedy"),
    [(penalised(*PARAMETERS), "code-some"), (each_of("abs", "sum"), "code-l1-some")],
)
def test_weight_decay_is_for_all_parameters(called: list[Called], remedy: str, tmp_path: Path):
    """Some that the optimizer updates have no penalty."""
    found = finding(tmp_path, *called, updated=(*PARAMETERS, (8, 4)))
    assert found is not None
    assert found.facts["remedy"] == remedy


@pytest.mark.parametrize(
    ("called", "more", "remedy"),
    [
        (penalised(*PARAMETERS) * 2, [], "code"),
        # Of two parameters of one shape, one has a penalty in both.
        (penalised(*PARAMETERS) * 2, [(8,)], "code-some"),
        # The loss of one of them has the penalty.
        ([Called("tanh", ((16, 3),))] * 8 + penalised(*PARAMETERS), [], "code"),
    ],
)
def test_two_backwards_may_have_penalties_each(
    called: list[Called], more: list[tuple[int, ...]], remedy: str, tmp_path: Path
):
    found = finding(tmp_path, *called, updated=(*PARAMETERS, *more), backwards=2)
    assert found is not None
    assert found.facts["remedy"] == remedy


def test_of_two_forms_the_longer_one_is_reported(tmp_path: Path):
    """An elastic net: the optimizer takes one of its penalties, and the other one stays."""
    l1 = [call._replace(line=9) for call in each_of("abs", "sum")]
    found = finding(tmp_path, *behind_each("scale"), *l1)
    assert found is not None
    assert (found.facts["remedy"], found.facts["penalties"]) == ("code", 4)
    assert found.facts["line"] == "train.py:7, forward()"
    assert found.cost_ns == 2 * 12 * 20 * US
    assert not [name for name in found.evidence["name"] if name.startswith("abs")]


def test_a_loop_over_parameters_counts_once(tmp_path: Path):
    """Its operators may be many small ones, too: 400 of 600 are the penalty's."""
    path = run(tmp_path / "log", **TRIGGERS["penalty-in-loss"][0])
    evidence = collect_evidence_of_run(ppprof.open(path))
    step_ns = evidence.step_ns

    def made(rule: str, cost_ns: float, **facts: str) -> Finding:
        return Finding(rule, "major", cost_ns, cost_ns / step_ns, "likely", facts, pl.DataFrame())

    line = "train.py:7, forward()"
    both = [
        made("penalty-in-loss", 400 * US, line=line),
        made("many-small-operators", 500 * US, layer=line),
    ]
    assert [each.cost_ns for each in disjoint(both, evidence)] == [400 * US, 100 * US]
    both[1] = made("many-small-operators", 500 * US, layer="train.py:9, forward()")
    assert [each.cost_ns for each in disjoint(both, evidence)] == [400 * US, 500 * US]
