"""Rows of products that the next operator leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

import ppprof
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
            Called("gather", (ROWS, (48,))),
            Called("cross_entropy_with_softmax", ((48, 128), (48, 1))),
        ),
        (PRODUCT, SLICE._replace(name="index_select"), LOSS),
        (
            PRODUCT,
            Called("gather_nd", ((48, 20, 128), (48, 2))),
            Called("cross_entropy_with_softmax", ((48, 128), (48, 1))),
        ),
        # masked_select gives all elements in a row.
        (
            PRODUCT,
            Called("masked_select", ((48, 20, 128), (48, 20, 128))),
            Called("reshape", ((48 * 128,),)),
            Called("cross_entropy_with_softmax", ((48, 128), (48, 1))),
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
        # Of unknown shapes, two that take rows.
        (PRODUCT, *[MASK, LOSS] * 2),
    ],
)
def test_rows_that_something_uses_are_not_discarded(called: tuple[Called, ...], tmp_path: Path):
    assert not found(tmp_path, *called)


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
