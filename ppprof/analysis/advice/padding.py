"""What operators compute for the padding of batches, and what would be left of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from ppprof.analysis.advice.called_operators import called_operators
from ppprof.analysis.profile.profile import Profile
from ppprof.trace.operator_inputs import (
    LENGTHS,
    Shape,
    attributes_of,
    shapes_as_shown,
    shapes_in,
)

LONGEST, GROUPED = "longest", "grouped"
"""What would leave less padding: a batch as wide as its longest sample, or samples of like lengths in a batch."""

LEAST_LONGEST = 0.05
"""Share of the width. If less of it is beyond the longest samples, samples are padded to these."""

PADDED = {
    **{"step": pl.Int64(), "name": pl.String(), "time_ns": pl.Int64()},
    **{"row": pl.Int64(), "lookup_row": pl.Int64(), "remedy": pl.String()},
    **dict.fromkeys(("numbers", "words", "kept"), pl.Int64()),
}
"""Columns of `padded`."""

_LEAST_BATCHES = 4
"""Batches from which the samples of others may be put together with those of one."""
_FIXED_NS = 10_000
"""What an operator on any number of elements takes: to call it, or to launch its kernel."""


class _Lookup(NamedTuple):
    """A call that looks up the words of a padded batch."""

    row: int
    step: int
    line: str | None
    width: int
    lengths: Sequence[int]

    @property
    def numbers(self) -> int:
        """How many numbers it looks up."""
        return self.width * len(self.lengths)


def padded(profile: Profile) -> pl.DataFrame:
    """Return the operators that compute for padding, which batches made in another way would not have.

    ::

        ####....    looks up 24 numbers for 8 words; the longest sample has 4 words:
        ###.....    12 numbers, and half of the time of operators on [3,8,...]
        #.......

    Operators on the positions of a batch are those with an input of its dims (`_is_of`), until the next
    batch. Of their time beyond `_FIXED_NS`, the share counts that the numbers have which a batch would not
    have: operators on pairs of positions, such as attention, would save more.

    Returns:
        A row for each call of such an operator, with its gradient: columns of `PADDED`. time_ns is what it
        would save, lookup_row the call that looks up the words of its batch, and remedy `LONGEST` or
        `GROUPED`. numbers (how many are looked up), words (those that are no padding) and kept (how many the
        remedy leaves) are null, but for the lookup. Empty without recorded lengths.
    """
    calls = called_operators(profile)
    lookups: dict[int, list[_Lookup]] = {}
    for lookup in _lookups(calls):
        lookups.setdefault(lookup.step, []).append(lookup)
    kept = _kept([lookup for of_step in lookups.values() for lookup in of_step])
    parsed: dict[str | None, list[Shape]] = {}
    rows = []
    for call in calls.filter(pl.col("step").is_in(list(lookups))).iter_rows(named=True):
        text = call["shapes"]
        shapes = parsed.setdefault(text, shapes_in(text))
        fitting = [
            each
            for each in lookups[call["step"]]
            if each.row == call["row"] or any(_is_of(shape, each) for shape in shapes)
        ]
        if not fitting:
            continue
        lookup = _nearest(fitting, call["row"], kept)
        remedy, num_kept = kept[lookup.row]
        is_lookup = lookup.row == call["row"]  # its gradient has the dims of the table
        times = call["time_ns"], 0 if is_lookup else call["summed_gradient_ns"] or 0
        saved_ns = (1 - num_kept / lookup.numbers) * sum(max(0, ns - _FIXED_NS) for ns in times)
        counts = (lookup.numbers, sum(lookup.lengths), num_kept) if is_lookup else (None,) * 3
        name = f"{call['name']} {shapes_as_shown(text or '')}".rstrip()
        rows.append((call["step"], name, round(saved_ns), call["row"], lookup.row, remedy, *counts))
    return pl.DataFrame(rows, PADDED, orient="row")


def _nearest(fitting: Sequence[_Lookup], row: int, kept: Mapping[int, tuple[str, int]]) -> _Lookup:
    """Return the last lookup ahead of a call; of several with its dims side by side, that with the least padding."""
    ahead = [each for each in fitting if each.row <= row] or list(fitting)
    of_lines = {each.line: each for each in ahead}  # the last one of each
    return max(of_lines.values(), key=lambda each: (each.row == row, kept[each.row][1]))


def _lookups(calls: pl.DataFrame) -> Iterator[_Lookup]:
    columns = calls.select("row", "step", "callstack", "attributes")
    for *named, attributes in columns.filter(
        pl.col("attributes").str.contains(f'"{LENGTHS}":', literal=True)
    ).rows():
        numbers = attributes_of(attributes).get(LENGTHS)
        are_numbers = isinstance(numbers, list) and all(isinstance(each, int) for each in numbers)
        width, *lengths = numbers if are_numbers and numbers else (0,)
        if lengths and 0 <= min(lengths) <= max(lengths) <= width > 0:  # not of another program
            row, step, line = named
            yield _Lookup(row, step, line, width, lengths)


def _kept(lookups: Sequence[_Lookup]) -> dict[int, tuple[str, int]]:
    """Return for each lookup, by its row, the remedy, and how many numbers it would leave."""
    of_lines: dict[str | None, list[_Lookup]] = {}
    for each in lookups:
        of_lines.setdefault(each.line, []).append(each)
    kept = {}
    for alike in of_lines.values():
        num = sum(each.numbers for each in alike)
        num_longest = sum(max(each.lengths) * len(each.lengths) for each in alike)
        is_longest = num_longest <= (1 - LEAST_LONGEST) * num
        ratio = 1.0 if is_longest else _grouped_ratio(alike)
        for each in alike:
            num_of_batch = max(each.lengths) * len(each.lengths) if is_longest else each.numbers
            kept[each.row] = LONGEST if is_longest else GROUPED, round(ratio * num_of_batch)
    return kept


def _grouped_ratio(lookups: Sequence[_Lookup]) -> float:
    """Return the share of the numbers that is left if all samples are put together by their lengths; 1 for few batches."""
    if len({tuple(each.lengths) for each in lookups}) < _LEAST_BATCHES:
        return 1.0
    lengths = sorted(length for each in lookups for length in each.lengths)
    size = max(1, len(lengths) // len(lookups))
    groups = (lengths[begin : begin + size] for begin in range(0, len(lengths), size))
    num = sum(max(group) * len(group) for group in groups)
    return min(1.0, num / sum(each.numbers for each in lookups))


def _is_of(shape: Shape, lookup: _Lookup) -> bool:
    """Return whether a tensor has a part for each position of a batch.

    >>> lookup = _Lookup(0, 0, None, width=8, lengths=[4, 6, 2])
    >>> [_is_of(shape, lookup) for shape in [(3, 8, 64), (3, 4, 8, 8), (24, 64), (8, 3, 64), (12, 8, 8), (8, 64)]]
    [True, True, True, True, True, False]
    """
    samples, width = len(lookup.lengths), lookup.width
    first, *others = shape or (0,)
    is_of_samples = first == samples and width in others
    is_of_heads = len(shape) == 3 and first % samples == 0 and others[0] == width
    is_flat = first == samples * width
    return is_of_samples or is_of_heads or is_flat or shape[:2] == (width, samples)
