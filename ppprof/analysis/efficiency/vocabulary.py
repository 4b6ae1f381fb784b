"""Operators that pass over a language model's whole vocabulary, other than matrix products."""

from __future__ import annotations

import re

import polars as pl

from ppprof.analysis.efficiency.efficiency import operator_work
from ppprof.analysis.efficiency.operator_formulas import LOSSES
from ppprof.analysis.efficiency.operator_work import family_of
from ppprof.analysis.profile.profile import Profile

VOCABULARY = {"step": pl.Int64(), "name": pl.String(), "time_ns": pl.Int64()}
"""Columns of `vocabulary_work`."""

LEAST_WORDS = 8192
"""Fewer classes are no vocabulary."""

_TABLES = {"embedding": 1, "c_embedding": 0}
"""Operator -> place of its table among the inputs."""
_SHAPE = re.compile(r"\[([0-9]{1,18}(?:,[0-9]{1,18})*)\]")


def vocabulary_work(profile: Profile) -> pl.DataFrame:
    """Return the operators on logits, such as the loss, and those on the embedding's table.

    Logits are what a cross entropy gets; other operators pass over them if the last dim of their
    first input is as long. Gradients count like their operators, matrix products not at all.

    Returns:
        A row for each call, columns of `VOCABULARY`. The name has the shapes:
        ``cross_entropy_with_softmax_grad [1024,50304] [1024,1]``. time_ns is as in
        `ppprof.analysis.efficiency.efficiency.efficiency`.
    """
    calls = operator_work(profile).drop_nulls("shapes")
    kinds = calls.select("name", "shapes").unique(maintain_order=True)
    inputs = [[_sizes(shape) for shape in _SHAPE.findall(text)] for text in kinds["shapes"]]
    operators = [name.removesuffix("_grad").rstrip("_") for name in kinds["name"]]
    words = {shapes[0][-1] for name, shapes in zip(operators, inputs) if name in LOSSES and shapes}
    words = {size for size in words if size >= LEAST_WORDS}
    is_wide = [
        _rows_of_table(name, shapes) >= LEAST_WORDS
        or (bool(shapes) and shapes[0][-1] in words and family_of(name) != "product")
        for name, shapes in zip(operators, inputs)
    ]
    wide = calls.join(kinds.filter(pl.Series(is_wide, dtype=pl.Boolean)), on=["name", "shapes"])
    step = profile.trace.events["step"].gather(wide["row"])
    return wide.select(
        step.alias("step"), pl.format("{} {}", "name", "shapes").alias("name"), "time_ns"
    ).cast(VOCABULARY)  # type: ignore[arg-type]


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def _rows_of_table(operator: str, shapes: list[list[int]]) -> int:
    """Return the number of rows of an embedding's table; 0 for another operator."""
    place = _TABLES.get(operator)
    return shapes[place][0] if place is not None and place < len(shapes) else 0
