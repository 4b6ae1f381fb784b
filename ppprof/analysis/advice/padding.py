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

_NUMBERS = {"embedding": 0, "c_embedding": 1}
"""Operators that look up rows of a table -> the place of the numbers among their inputs."""
_ROUND = 32
"""A width that is a multiple of this stays one: few shapes, for programs and the kernels of devices."""
_LEAST_BATCHES = 4
"""Batches from which the samples of others may be put together with those of one."""
_FIXED_NS = 10_000
"""What an operator on any number of elements takes: to call it, or to launch its kernel."""


class _Lookup(NamedTuple):
    """A call that looks up the words of a batch, in a line that looks up padded ones."""

    row: int
    step: int
    source: tuple[str | None, Shape]
    """Its line, and the dims of its table."""
    samples: int
    width: int
    lengths: Sequence[int]
    """Of the samples, without padding; empty if unknown."""

    @property
    def numbers(self) -> int:
        """How many numbers it looks up."""
        return self.samples * self.width


class _Kept(NamedTuple):
    """What a remedy leaves of the numbers of a lookup, and how many of them are words."""

    remedy: str
    numbers: int
    words: int


def padded(profile: Profile, others: Mapping[int, int]) -> pl.DataFrame:
    """Return the operators that compute for padding, which batches made in another way would not have.

    ::

        ####....    looks up 24 numbers for 8 words; the longest sample has 4 words:
        ###.....    12 numbers, and half of the time of operators on [3,8,...]
        #.......

    Operators on the positions of a batch are those with an input of its dims (`_is_of`), until the next
    batch. Of their time beyond `_FIXED_NS`, the share counts that the numbers have which a batch would not
    have: operators on pairs of positions, such as attention, would save more. What recomputes in a Backward is
    left out.

    Args:
        profile: the window.
        others: what other findings have of the time of operators and gradients, in ns, by their rows.

    Returns:
        A row for each call of such an operator, with its gradient: columns of `PADDED`. time_ns is what it
        would save, lookup_row the call that looks up the words of its batch, and remedy `LONGEST` or
        `GROUPED`. numbers (how many are looked up), words (those that are no padding) and kept (how many the
        remedy leaves) are null, but for the lookup. Empty without recorded lengths.
    """
    calls = called_operators(profile).filter(~pl.col("in_backward"))
    lookups = {each.row: each for each in _lookups(calls)}
    kept = _kept(list(lookups.values()))
    calls = calls.filter(pl.col("step").is_in([lookups[row].step for row in kept]))
    parsed: dict[str | None, list[Shape]] = {}
    last: dict[object, _Lookup] = {}
    rows = []
    for call in calls.iter_rows(named=True):
        text = call["shapes"]
        shapes = parsed.setdefault(text, shapes_in(text))
        is_lookup = call["row"] in kept
        if is_lookup:
            fitting = [lookups[call["row"]]]
            last[fitting[0].source] = fitting[0]
        else:
            of_step = (each for each in last.values() if each.step == call["step"])
            fitting = [each for each in of_step if any(_is_of(shape, each) for shape in shapes)]
        if not fitting:
            continue
        # Of two batches with the same dims, the one with less padding may be that of the operator.
        lookup = max(fitting, key=lambda each: kept[each.row].numbers / each.numbers)
        left = kept[lookup.row]
        times = [(call["row"], call["time_ns"])]
        if call["name"] not in _NUMBERS:  # the gradient of a lookup has the dims of its table
            times.append((call["gradient_row"], call["summed_gradient_ns"] or 0))
        own_ns = sum(max(0, ns - others.get(row, 0) - _FIXED_NS) for row, ns in times)
        saved_ns = (1 - left.numbers / lookup.numbers) * own_ns
        counts = (lookup.numbers, left.words, left.numbers) if is_lookup else (None,) * 3
        name = f"{call['name']} {shapes_as_shown(text or '')}".rstrip()
        key = call["step"], name, round(saved_ns), call["row"], lookup.row, left.remedy
        if saved_ns > 0 or is_lookup:
            rows.append((*key, *counts))
    return pl.DataFrame(rows, PADDED, orient="row")


def _lookups(calls: pl.DataFrame) -> Iterator[_Lookup]:
    """Yield the lookups of the lines that have padded ones: a window knows the lengths of its first batches only."""
    calls = calls.filter(pl.col("name").is_in(list(_NUMBERS))).select(
        "row", "step", "callstack", "name", "shapes", "attributes"
    )
    padded = pl.col("attributes").str.contains(f'"{LENGTHS}":', literal=True).fill_null(value=False)
    calls = calls.filter(padded.any().over("callstack"))
    for row, step, line, name, text, attributes in calls.iter_rows():
        shapes, place = shapes_in(text), _NUMBERS[name]
        dims = shapes[place] if len(shapes) == len(_NUMBERS) else ()
        if len(dims) == 2 and min(dims) > 0:
            samples, width = dims
            lengths = _lengths_in(attributes, samples, width)
            # A line of the user's may look up words, positions and types in an installed model.
            yield _Lookup(row, step, (line, shapes[1 - place]), samples, width, lengths)


def _lengths_in(attributes: str | None, samples: int, width: int) -> Sequence[int]:
    """Return the lengths of the samples of a lookup; [] if they are unknown, or of another program."""
    numbers = attributes_of(attributes).get(LENGTHS)
    if not isinstance(numbers, list) or not all(isinstance(each, int) for each in numbers):
        return []
    is_sound = len(numbers) == samples + 1 and numbers[0] == width and min(numbers) >= 0
    return numbers[1:] if is_sound and 0 < max(numbers[1:]) <= width else []


def _kept(lookups: Sequence[_Lookup]) -> dict[int, _Kept]:
    """Return what the remedy of its line would leave of each lookup, by its row."""
    of_lines: dict[object, list[_Lookup]] = {}
    for each in lookups:
        of_lines.setdefault(each.source, []).append(each)
    kept = {}
    for alike in of_lines.values():
        known = [each for each in alike if each.lengths]
        if not known:
            continue
        num = sum(each.numbers for each in known)
        num_longest = sum(_longest(each) for each in known)
        # Widths that differ follow the longest samples already, rounded up.
        is_fixed = len({each.width for each in known}) == 1
        is_longest = is_fixed and num_longest <= (1 - LEAST_LONGEST) * num
        ratio = num_longest / num if is_longest else _grouped_ratio(known)
        words_ratio = sum(sum(each.lengths) for each in known) / num
        for each in alike:
            is_own = is_longest and each.lengths
            numbers = _longest(each) if is_own else round(ratio * each.numbers)
            words = sum(each.lengths) if each.lengths else round(words_ratio * each.numbers)
            kept[each.row] = _Kept(LONGEST if is_longest else GROUPED, numbers, words)
    return kept


def _longest(lookup: _Lookup) -> int:
    """Return how many numbers a batch has that is as wide as its longest sample, rounded up if its width is round."""
    longest = max(lookup.lengths)
    if lookup.width % _ROUND == 0 and lookup.width > 2 * _ROUND:
        longest = -(-longest // _ROUND) * _ROUND
    return longest * lookup.samples


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

    The last dim of a state is that of its features, which may have the same size.

    >>> lookup = _Lookup(0, 0, ("", ()), samples=3, width=8, lengths=[4, 6, 2])
    >>> [_is_of(shape, lookup) for shape in [(3, 8, 64), (3, 4, 8, 8), (24, 64), (8, 3, 64), (12, 8, 8), (8, 64)]]
    [True, True, True, True, True, False]
    """
    samples, width = lookup.samples, lookup.width
    first, *others = shape or (0,)
    is_of_samples = first == samples and width in others[:-1]
    is_of_heads = len(shape) == 3 and first % samples == 0 and others[0] == width
    is_flat = first == samples * width
    return is_of_samples or is_of_heads or is_flat or shape[:2] == (width, samples)
