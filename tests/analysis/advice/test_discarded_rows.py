"""Rows of products that the next operator leaves out."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import ppprof
from ppprof.report.text.advice import finding_rows
from ppprof.trace.operator_inputs import LENGTHS
from tests.fixtures.findings import US, Called, by_rule, differentiating, taking
from tests.fixtures.run_directories import run

PRODUCT, SLICE, LOSS = taking(1)
BIAS = Called("add", ((48, 20, 128), (128,)), gradients=2)
ROWS = (960, 128)
MASK = Called("index_elementwise_get", ())


def found(folder: Path, *called: Called, **options: object) -> list[tuple[str, float]]:
    """The evidence of the finding, name and time in us."""
    made = ppprof.advise(
        ppprof.open(run(folder / "log", **differentiating(*called, each=50, **options)))
    )
    rows = [each.evidence for each in made if each.rule == "discarded-rows"]
    return [(name, time / US) for table in rows for name, _, time in table.iter_rows()]


def test_all_that_computes_on_the_rows_counts(tmp_path: Path):
    """Of 50 95%, of gradients of 40, too; half of the gradient of the slice."""
    relu = Called("relu", ((48, 20, 128),))
    assert sorted(found(tmp_path, PRODUCT, BIAS, relu, SLICE, LOSS)) == [
        ("add [48,20,128] [128]", 47.5),
        ("add_grad [48,20,128] [128]", 38),
        ("matmul [48,20,64] [64,128]", 47.5),
        ("matmul_grad [48,20,64] [64,128]", 38),
        ("relu [48,20,128]", 47.5),
        ("relu_grad [48,20,128]", 38),
        ("slice_grad [48,20,128]", 20),
    ]


@pytest.mark.parametrize(
    "called",
    [
        # fc(h).reshape([-1, 128])[rows]
        (
            PRODUCT,
            Called("reshape", ((48, 20, 128),)),
            Called("gather", (ROWS, (48,)), {"X2": 0}),
            Called("cross_entropy_with_softmax", ((48, 128), (48, 1))),
        ),
        (PRODUCT, Called("index_select", ((48, 20, 128), (1,)), {"X2": 1}), LOSS),
        # Without an axis it is the first one. The next call may be of another branch.
        (
            PRODUCT,
            Called("reshape", ((48, 20, 128),)),
            Called("gather", (ROWS, (48,))),
            Called("tanh", ((16, 3),)),
        ),
        (
            PRODUCT,
            Called("gather_nd", ((48, 20, 128), (48, 2))),
            Called("cross_entropy_with_softmax", ((48, 128), (48, 1))),
        ),
        # masked_select gives all elements in a row.
        (
            PRODUCT,
            Called("masked_select", ((48, 20, 128), (48, 20, 128))),
            Called("reshape", ((48 * 128,),), {"X1": [-1, 128]}),
            Called("cross_entropy_with_softmax", ((48, 128), (48, 1))),
        ),
        (
            PRODUCT,
            Called("masked_select", ((48, 20, 128), (48, 20, 1))),
            Called("relu", ((48 * 128,),)),
        ),
        # logits[mask]: the shapes are not recorded.
        (
            PRODUCT,
            BIAS,
            MASK,
            Called("cross_entropy_with_softmax", ((48, 128), (48, 1))),
        ),
        # What is computed on the rows that are taken, without a gradient.
        (PRODUCT, SLICE, Called("argmax", ((48, 1, 128),), gradients=0), LOSS),
    ],
)
def test_rows_are_taken_in_many_ways(called: tuple[Called, ...], tmp_path: Path):
    assert ("matmul [48,20,64] [64,128]", 47.5) in found(tmp_path, *called)


@pytest.mark.parametrize(
    "called",
    [
        # Another operator takes all rows: with a gradient, or without, as an accuracy.
        (PRODUCT, SLICE, LOSS, Called("softmax", ((48, 20, 128),))),
        (PRODUCT, SLICE, LOSS, Called("argmax", ((48, 20, 128),), gradients=0)),
        (PRODUCT, Called("argmax", ((48, 20, 128),), gradients=0), SLICE, LOSS),
        # Columns are taken, as of a query and its keys.
        (PRODUCT, SLICE, Called("tanh", ((48, 20, 64),))),
        # An average over the rows uses them.
        (PRODUCT, Called("mean", ((48, 20, 128),)), SLICE, LOSS),
        (PRODUCT, Called("layer_norm", ((48, 20, 128), (128,))), SLICE, LOSS),
        # The product of two activations, as in attention.
        (PRODUCT._replace(shapes=((48, 20, 64), (48, 64, 128))), SLICE, LOSS),
        # A part of another tensor: the slice has no such rows.
        (PRODUCT, SLICE, Called("cross_entropy_with_softmax", ((96, 1, 128), (96, 1)))),
        # A layer that needs no gradients.
        (PRODUCT._replace(gradients=0), SLICE._replace(gradients=0), LOSS),
        # Its weight has as many columns as a row has elements: it is no input of the next product.
        (PRODUCT, SLICE, Called("matmul", ((48, 20, 128), (1, 128)), gradients=2)),
        # The samples of another branch, which get no gradient.
        (PRODUCT, SLICE, Called("matmul", ((48, 128), (128, 64)))),
        (PRODUCT, SLICE, Called("embedding", ((48, 20), (9, 128)))),
        # The product with other rows, whose number may be any.
        (PRODUCT, SLICE, Called("matmul", ((8, 128), (48, 128)), {"transpose_y": True}, 2)),
        # Elements of rows: the values of the actions that were taken.
        (
            PRODUCT,
            Called("masked_select", ((48, 20, 128), (48, 20, 128))),
            Called("subtract", ((128,), (128,))),
        ),
        (
            PRODUCT,
            Called("masked_select", ((48, 20, 128), (48, 20, 128))),
            Called("reshape", ((128,),), {"X1": [-1]}),
        ),
        (PRODUCT, Called("gather_nd", ((48, 20, 128), (48, 3))), LOSS),
        # Columns are gathered; more rows than a half.
        (PRODUCT, Called("gather", ((48, 20, 128), (8,)), {"X2": -1}), LOSS),
        (PRODUCT, Called("gather", ((48, 20, 128), (30,)), {"X2": 0}), LOSS),
        # Of unknown shapes, two that take rows.
        (PRODUCT, *[MASK, LOSS] * 2),
    ],
)
def test_rows_that_something_uses_are_not_discarded(called: tuple[Called, ...], tmp_path: Path):
    assert not found(tmp_path, *called)


def test_a_square_weight_behind_is_no_row(tmp_path: Path):
    """Of 960 rows, 4 are multiplied with 128 times 128."""
    square = Called("matmul", ((4, 128), (128, 128)), gradients=2)
    assert ("matmul [48,20,64] [64,128]", pytest.approx(50 * (1 - 4 / 960), abs=0.01)) in found(
        tmp_path, PRODUCT, SLICE, square
    )


def test_two_products_whose_rows_are_gathered(tmp_path: Path):
    """Of 96 rows, 24 are gathered; the weight of the second product, of the same line, has 128 times 64."""
    gathering = (
        Called("matmul", ((96, 128), (128, 64)), gradients=2),
        Called("gather", ((96, 64), (24,)), {"X2": 0}),
    )
    found_of_both = dict(found(tmp_path, *gathering, *gathering, Called("add", ((24, 64),) * 2)))
    assert found_of_both["matmul [96,128] [128,64]"] == 75


WIDE = Called("matmul", (ROWS, (128, 32)), gradients=2, line=12)
NARROW = Called("matmul", ((960, 32), (32, 128)), gradients=2, line=12)
SIMILARITY = Called("matmul", ((48, 128), ROWS), {"X3": True}, gradients=2, line=12)
OTHER = Called("matmul", ((960, 32), (32, 16)), gradients=2, line=12)


@pytest.mark.parametrize(
    ("other", "is_found"),
    [
        # z = fc2(h), and rows of z
        ((WIDE, Called("gather", ((960, 32), (48,)))), False),
        # z = fc2(g) + h, and rows of z
        (
            (NARROW, Called("add", (ROWS, ROWS), gradients=2), Called("gather", (ROWS, (48,)))),
            False,
        ),
        # z = relu(fc2(g)), and rows of z: shapes do not say that h is not used.
        ((NARROW, Called("relu", (ROWS,)), Called("gather", (ROWS, (48,)))), False),
        # sim = matmul(rows, h, transpose_y=True), and rows of sim
        ((SIMILARITY, Called("gather", ((48, 960), (20,)))), False),
        # z = fc2(g) of another width, and rows of z
        ((OTHER, Called("gather", ((960, 16), (48,)))), True),
    ],
)
def test_another_product_may_use_all_rows(
    other: tuple[Called, ...], is_found: bool, tmp_path: Path
):
    """h = relu(fc1(x)); some rows of h are taken, and then some of another product's."""
    first = Called("matmul", ((960, 64), (64, 128)), gradients=2)
    rows = Called("gather", (ROWS, (48,)))
    names = dict(found(tmp_path, first, Called("relu", (ROWS,)), rows, *other, LOSS))
    assert ("matmul [960,64] [64,128]" in names) is is_found
    assert any(name.startswith("matmul") for name in names)


@pytest.mark.parametrize("order", [[4, 2, 3, 1, 0], [4, 3, 2, 0, 1]])
def test_rows_of_a_slice_are_those_of_the_gradient_ahead(order: list[int], tmp_path: Path):
    """The next call computes another branch: img = vproj(h)[:, :1], txt = tproj(g)."""
    other = Called("matmul", ((48, 1, 128), (128, 128)), gradients=2)
    before = Called("relu", ((48, 1, 128),), line=5)
    product = PRODUCT, SLICE, other, LOSS
    assert not found(tmp_path / "branches", before, *product, order=order)
    assert found(tmp_path / "chain", before, *product)


@pytest.mark.parametrize(
    ("behind", "is_found"),
    [
        ((Called("argmax", ((48, 20, 128),), gradients=0, line=12),), False),
        # Of the evaluation, which computes the product again.
        ((PRODUCT._replace(gradients=0), Called("argmax", ((48, 20, 128),), gradients=0)), True),
        ((Called("argmax", ((48, 1, 128),), gradients=0, line=12),), True),
    ],
)
def test_a_metric_behind_the_gradients_is_a_use(
    behind: tuple[Called, ...], is_found: bool, tmp_path: Path
):
    assert bool(found(tmp_path, PRODUCT, SLICE, LOSS, behind=behind)) is is_found


def test_a_metric_in_the_next_step_is_a_use(tmp_path: Path):
    """A step ends with the optimizer's update; the window ends ahead of the last metric."""
    metric = Called("argmax", ((48, 20, 128),), gradients=0, line=12)
    assert not found(tmp_path, metric, PRODUCT, SLICE, LOSS)


@pytest.mark.parametrize(("order", "is_found"), [([3, 2, 1, 0], True), ([3, 2, 0, 1], False)])
def test_rows_of_unknown_shapes_are_those_of_the_gradient_behind(
    order: list[int], is_found: bool, tmp_path: Path
):
    """The mask may be on the embedding, whose gradient follows, or on the product."""
    embedding = Called("embedding", ((48, 20), (9, 128)))
    called = embedding, PRODUCT, MASK, LOSS
    assert bool(found(tmp_path, *called, order=order)) is is_found


def test_a_model_that_is_called_twice_is_no_other_use(tmp_path: Path):
    """Of two inputs, whose losses are added."""
    called = PRODUCT, SLICE, LOSS
    assert found(tmp_path, *called, *called)[0] == ("matmul [48,20,64] [64,128]", 95)


def test_the_slice_of_a_vocabulary_counts_once(tmp_path: Path):
    """Its gradient is no part of the passes over the vocabulary."""
    words = 9000
    called = (
        Called("matmul", ((48, 20, 64), (64, words)), gradients=2),
        Called("slice", ((48, 20, words),)),
        Called("cross_entropy_with_softmax", ((48, 1, words), (48, 1, 1))),
    )
    rules = by_rule(run(tmp_path / "log", **differentiating(*called)))
    assert "discarded-rows" in rules
    evidence = rules["wide-vocabulary"].evidence
    assert not [name for name in evidence["name"] if name.startswith("slice_grad")]


def labelled(num: int, *shape: int) -> Called:
    """A loss that has so many labels; the others are ignored."""
    *rows, _ = shape
    counts = {LENGTHS: [math.prod(rows), num]}
    return Called("cross_entropy_with_softmax", (shape, (*rows, 1)), counts, line=9)


def test_rows_without_a_label_are_left_out_by_the_loss(tmp_path: Path):
    """144 of 960: 85% of all that computes on the rows."""
    loss = labelled(144, 48, 20, 128)
    assert sorted(found(tmp_path, PRODUCT, BIAS, loss)) == [
        ("add [48,20,128] [128]", 42.5),
        ("add_grad [48,20,128] [128]", 34),
        ("cross_entropy_with_softmax [48,20,128] [48,20,1]", 42.5),
        ("cross_entropy_with_softmax_grad [48,20,128] [48,20,1]", 34),
        ("matmul [48,20,64] [64,128]", 42.5),
        ("matmul_grad [48,20,64] [64,128]", 34),
    ]
    calls = differentiating(PRODUCT, BIAS, loss, each=50)
    finding = by_rule(run(tmp_path / "more", **calls))["discarded-rows"]
    facts = finding.facts
    assert (facts["rows"], facts["kept"], facts["wording"]) == (960, 144, "labels")
    assert facts["taken_line"] == "train.py:9, forward()"
    (row,) = finding_rows([finding])
    assert "has a label for 144 of them" in row.what
    assert row.do.startswith("Multiply only the rows that have a label")


def test_labels_of_the_next_word_leave_out_the_last_row_ahead_of_the_loss(tmp_path: Path):
    shift = Called("slice", ((48, 20, 128),), line=8)
    evidence = dict(found(tmp_path, PRODUCT, shift, labelled(96, 48, 19, 128)))
    assert evidence["matmul [48,20,64] [64,128]"] == 45


def test_rows_that_a_slice_leaves_out_are_not_those_without_a_label(tmp_path: Path):
    """Of 20 positions, the loss gets the last 8, all of them with a label."""
    part = Called("slice", ((48, 20, 128),), line=8)
    called = (PRODUCT, part, labelled(384, 48, 8, 128))
    evidence = dict(found(tmp_path, *called))
    assert evidence["matmul [48,20,64] [64,128]"] == 30
    few = PRODUCT, part, labelled(96, 48, 8, 128)
    finding = by_rule(run(tmp_path / "few", **differentiating(*few, each=50)))["discarded-rows"]
    assert (finding.facts["rows"], finding.facts["kept"]) == (960, 384)
    assert finding.facts.get("wording") is None


def test_losses_whose_labels_were_not_counted_are_like_those_of_their_line(tmp_path: Path):
    """One of two calls was counted, as on a device: 144 of 960; and one with more labels than half counts with another."""
    loss = labelled(144, 48, 20, 128)
    unknown = loss._replace(attributes={})
    calls = differentiating(PRODUCT, loss, PRODUCT, unknown, each=50)
    facts = by_rule(run(tmp_path / "unknown", **calls))["discarded-rows"].facts
    assert (facts["rows"], facts["kept"]) == (1920, 288)
    mixed = differentiating(PRODUCT, loss, PRODUCT, labelled(528, 48, 20, 128), each=50)
    facts = by_rule(run(tmp_path / "mixed", **mixed))["discarded-rows"].facts
    assert (facts["rows"], facts["kept"]) == (1920, 672)


@pytest.mark.parametrize(
    "called",
    [
        (PRODUCT, labelled(481, 48, 20, 128)),  # more than half have one
        (PRODUCT, labelled(0, 48, 20, 128)),
        (PRODUCT, Called("cross_entropy_with_softmax", ((48, 20, 128), (48, 20, 1)))),
        # A metric of all positions, and a part of the words alone.
        (PRODUCT, labelled(96, 48, 20, 128), Called("argmax", ((48, 20, 128),), gradients=0)),
        (PRODUCT, Called("slice", ((48, 20, 128),)), labelled(96, 48, 20, 64)),
    ],
)
def test_rows_whose_labels_are_unknown_or_many_are_needed(tmp_path: Path, called: tuple[Called]):
    assert not found(tmp_path, *called)
