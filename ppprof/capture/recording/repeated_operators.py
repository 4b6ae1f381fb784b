"""Functions of the user's code whose operators compute again what the step has computed before.

In the first step of a window, an operator whose result has the number of an earlier one is a repeated one
(`ValueNumbers`). Those of one function count together, by the line that calls the function::

    block 0    bias()  arange  pow  multiply    add      values are known
    block 1    bias()  arange  pow  multiply    add
                       repeated                 another value

A function counts if repeated operators have most of its time there, without the first ones. A function that a
chosen one calls is a part of it. In a later step, an operator is a repeated one if its line calls it as often as
in the first step, and if the calls of layers are the same. If its arguments then differ from those of the operator
that it repeats, they were equal by chance, and the function does not count at all.

As with layers, a Backward that frees its graph ends what is known, and an operator in a call of a layer does not
count if the earlier one is in another call of that layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from ppprof.arrays import Int64
from ppprof.capture.recording.repeated_calls import LayerCall, Place

_MOST_OPERATORS = 100_000
"""Limit of the operators of a step, some 30 MB."""
_MOST_ROWS = 1_000_000
"""Limit of the repeated operators of a window, some 8 MB in the file. With more, only the first step's are known."""
_MOSTLY = 0.5
"""Least share of a function's time that repeated operators have, without those that are repeated later."""

Group = tuple[CodeType, int]
"""A function, and the line that calls it."""


class _Operator(NamedTuple):
    """A call of an operator in the first step."""

    call: tuple[int, int]
    """Thread and start."""
    place: tuple[int, int]
    """As `Place`."""
    around: LayerCall | None
    number: int | None
    """Of the result; None if it is unknown."""
    earlier: int
    """Index of the operator whose result has the same number; -1 without one."""


class RepeatedGroup(NamedTuple):
    """A function that computes again what is known."""

    place: Place
    """A line of the function, and the line that calls it."""
    earlier: Place
    """Likewise, of the operators that it repeats."""
    rows: list[int]
    """Rows of the calls of the repeated operators."""


@dataclass
class _Times:
    """How long the operators of a group take."""

    repeated_ns: int = 0
    other_ns: int = 0
    """Of those that are neither repeated nor repeat another one."""
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """Indices of the repeated operators, and of those that they repeat."""


class RepeatedOperators:
    """The operators of a window's first step, and which of them repeat others."""

    def __init__(self) -> None:
        self._operators: list[_Operator] = []
        self._seen: dict[int, int] = {}
        """Index of the first operator with a result of each number."""
        self._ends: list[int] = []
        """The number of calls of operators until the end of each step."""

    def note(
        self,
        call: tuple[int, int],
        place: tuple[int, int],
        around: LayerCall | None,
        number: int | None,
    ) -> None:
        """Note a call in the first step.

        Args:
            call: its thread and start.
            place: its lines, as `Place`.
            around: the call of a layer inside which it was made; None outside of layers.
            number: of its result; None if it is unknown.
        """
        operators, index = self._operators, len(self._operators)
        if index > _MOST_OPERATORS:
            return
        earlier = -1
        if number is not None:
            first = self._seen.setdefault(number, index)
            if first != index:
                before = operators[first].around
                if around and before and around != before and around[2] == before[2]:
                    self._seen[number] = index
                else:
                    earlier = first
        operators.append(_Operator(call, place, around, number, earlier))

    def begin_backward(self, *, retains: bool) -> None:
        """Note that a call begins to compute gradients, and whether it retains the graph."""
        if not retains:
            self._seen.clear()

    def forget(self) -> None:
        """Forget all operators: those that follow have no numbers."""
        self._operators.clear()
        self._seen.clear()

    def end_step(self, num_calls: int) -> None:
        """Note the end of a step, by how many calls of operators the window has until now."""
        self._ends.append(num_calls)
        self._seen.clear()

    def found(
        self,
        calls: Int64,
        keys: Sequence[tuple[Any, ...]],
        alike: Iterable[int],
        changed: set[int],
        code_of: Callable[[int], CodeType],
    ) -> list[RepeatedGroup]:
        """Return the functions that compute again what is known.

        Args:
            calls: thread, start, end and row of the signature of all calls of operators.
            keys: name, line and arguments of each signature.
            alike: the later steps with the same calls of layers, from 1.
            changed: numbers of tensors that were changed later: none could be used twice.
            code_of: returns the function of a line.
        """
        operators = self._operators
        if len(operators) > _MOST_OPERATORS or all(each.earlier < 0 for each in operators):
            return []
        end = self._ends[0] if self._ends else len(calls)
        row_of = {
            (thread, start): row for row, (thread, start) in enumerate(calls[:end, :2].tolist())
        }
        rows = [row_of.get(each.call, -1) for each in operators]
        chosen = _chosen(self._times(calls, rows, changed, code_of), code_of)
        steps = _Steps(calls, keys, [0, *self._ends], list(alike))
        found = []
        for pairs in chosen.values():
            in_steps = steps.rows_of([(rows[index], rows[earlier]) for index, earlier in pairs])
            if in_steps:
                place = Place(*operators[pairs[0][0]].place)
                before = [operators[earlier].place for _, earlier in pairs]
                found.append(RepeatedGroup(place, _usual(before, code_of), in_steps))
        if sum(len(each.rows) for each in found) > _MOST_ROWS:
            return [each._replace(rows=[row for row in each.rows if row < end]) for each in found]
        return found

    def _times(
        self,
        calls: Int64,
        rows: Sequence[int],
        changed: set[int],
        code_of: Callable[[int], CodeType],
    ) -> Mapping[Group, _Times]:
        """Return the times of each function with a known caller."""
        dur_ns = np.append(calls[:, 2] - calls[:, 1], 0)[list(rows)].tolist()
        repeated = {each.earlier for each in self._operators}
        groups: dict[Group, _Times] = defaultdict(_Times)
        for index, ((_, (line, caller), _, number, earlier), length_ns) in enumerate(
            zip(self._operators, dur_ns)
        ):
            if line < 0 or caller < 0 or rows[index] < 0 or number in changed:
                continue
            times = groups[code_of(line), caller]
            if earlier >= 0 and rows[earlier] >= 0:
                times.repeated_ns += length_ns
                times.pairs.append((index, earlier))
            elif index not in repeated:
                times.other_ns += length_ns
        return groups


def _chosen(
    groups: Mapping[Group, _Times], code_of: Callable[[int], CodeType]
) -> Mapping[Group, list[tuple[int, int]]]:
    """Return the pairs of the groups that repeat most of what they do, each with the functions that it calls."""
    callers: dict[CodeType, list[int]] = defaultdict(list)
    for code, caller in groups:
        callers[code].append(caller)
    counts = [
        group
        for group, times in groups.items()
        if times.pairs and times.repeated_ns >= _MOSTLY * (times.repeated_ns + times.other_ns)
    ]
    chosen: dict[Group, list[tuple[int, int]]] = defaultdict(list)
    for group in counts:
        outer, inside = group, {group}
        while True:
            code = code_of(outer[1])
            around = (code, callers[code][0]) if len(callers.get(code, ())) == 1 else None
            if around is None or around not in counts or around in inside:
                break
            outer = around
            inside.add(outer)
        if outer == group:
            chosen[group][:0] = groups[group].pairs  # its own line is the first
        else:
            chosen[outer] += groups[group].pairs
    return chosen


def _usual(places: Sequence[tuple[int, int]], code_of: Callable[[int], CodeType]) -> Place:
    """Return the first place in the function, with its caller, that most places are in."""
    groups = [(code_of(line) if line >= 0 else None, caller) for line, caller in places]
    (usual, _), *_ = Counter(groups).most_common(1)
    return Place(*places[groups.index(usual)])


class _Steps:
    """The calls of operators in each step, by their lines.

    Args:
        calls: as for `RepeatedOperators.found`.
        keys: likewise.
        bounds: the rows at which steps begin and end.
        alike: the later steps to look at.
    """

    def __init__(
        self, calls: Int64, keys: Sequence[tuple[Any, ...]], bounds: list[int], alike: list[int]
    ) -> None:
        sites: dict[Any, int] = {}
        arguments: dict[Any, int] = {}
        self._site = np.array([*(sites.setdefault(key[:2], len(sites)) for key in keys), -1])
        self._arguments = np.array(
            [*(arguments.setdefault((key[0], *key[2:]), len(arguments)) for key in keys), -1]
        )
        self._thread, self._signature = calls[:, 0], calls[:, 3]
        self._bounds, self._alike = bounds, alike
        self._known: dict[tuple[int, int], list[Int64]] = {}

    def rows_of(self, pairs: Sequence[tuple[int, int]]) -> list[int]:
        """Return the rows of repeated operators in all steps, by those of the first step and what they repeat.

        Empty if the arguments of two of them differ in a later step.
        """
        found = [row for row, _ in pairs]
        for step in self._alike:
            rows = [[self._in_step(row, step) for row in pair] for pair in pairs]
            if any(row is None for pair in rows for row in pair):
                continue
            arguments = self._arguments[self._signature[np.array(rows, np.int64)]]
            if (arguments[:, 0] != arguments[:, 1]).any():
                return []
            found += [row for row, _ in rows if row is not None]
        return found

    def _in_step(self, row: int, step: int) -> int | None:
        """Return the row of a later step for one of the first step; None if its line makes other calls there."""
        site = int(self._site[self._signature[row]])
        first, later = (self._of_site(int(self._thread[row]), site)[number] for number in (0, step))
        if site < 0 or len(first) != len(later):
            return None
        return int(later[np.searchsorted(first, row)])

    def _of_site(self, thread: int, site: int) -> list[Int64]:
        """Return the rows of the calls that a line makes, by step."""
        known = self._known.get((thread, site))
        if known is None:
            is_of = (self._site[self._signature] == site) & (self._thread == thread)
            rows = np.flatnonzero(is_of)
            known = np.split(rows, np.searchsorted(rows, self._bounds))[1:]
            self._known[thread, site] = known
        return known
