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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple, Optional

import numpy as np

from ppprof.arrays import Int64
from ppprof.capture.recording.repeated_calls import LayerCall, Place

_MOST_OPERATORS = 100_000
"""Limit of the operators of a step, some 30 MB."""
_MOST_ROWS = 200_000
"""Limit of the repeated operators of a window, to find which takes 4 us each. With more, only the first step's are known."""
_MOSTLY = 0.5
"""Least share of a function's time that repeated operators have, without others that have equal results."""

_FILLING = frozenset(
    name
    for kind in ("full", "zeros", "ones", "eye", "assign_value")
    for name in (kind, f"{kind}_like", f"{kind}_")
)
"""Functions that only fill new memory: two buffers that are written later are equal until then."""

Group = tuple[CodeType, int]
"""A function, and the line that calls it."""
CallId = tuple[int, int]
"""Thread and start of a call."""
Operator = tuple[CallId, "tuple[int, int]", Optional[LayerCall], Optional[int]]
"""A call of an operator in the first step; its lines, as `Place`; the call of a layer around it, if there is one; and
the number of its result, if it is known."""


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
    """Of those whose results no other operator has until a Backward frees its graph."""
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """Rows of the repeated operators, and of those that they repeat."""


class RepeatedOperators:
    """The operators of a window's first step, and which of them repeat others."""

    def __init__(self) -> None:
        self._noted: list[Operator | None] = []
        """None stands for a Backward that frees its graph."""
        self._ends: list[int] = []
        """The number of calls of operators until the end of each step."""

    def note(self, operator: Operator | None) -> None:
        """Note an operator of the first step, or a Backward that frees its graph."""
        if not self._ends and len(self._noted) <= _MOST_OPERATORS:
            self._noted.append(operator)

    def forget(self) -> None:
        """Forget all operators: those that follow have no numbers."""
        self._noted.clear()

    def end_step(self, num_calls: int) -> None:
        """Note the end of a step, by how many calls of operators the window has until now."""
        self._ends.append(num_calls)

    def begin_segment(self) -> None:
        """Forget the ends of later steps than the first one: a segment begins, with the calls of the first step."""
        del self._ends[1:]

    def found(
        self,
        calls: Int64,
        keys: Sequence[tuple[Any, ...]],
        alike: Sequence[int],
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
        if not 0 < len(self._noted) <= _MOST_OPERATORS:
            return []
        first_step = calls[: self._ends[0]] if self._ends else calls
        row_of = {call: row for row, call in enumerate(map(tuple, first_step[:, :2].tolist()))}
        operators = {
            row_of[operator[0]]: operator
            for operator in self._noted
            if operator is not None and operator[0] in row_of
        }
        alone = {row_of[call] for call in self._alone() if call in row_of}
        pairs_of = [(row_of.get(call), row_of.get(by)) for call, by in self._repeated()]
        repeats = {row: by for row, by in pairs_of if row is not None and by is not None}
        if not repeats:
            return []
        usual_ns = _usual_ns(calls)[: len(first_step)]
        is_filling = np.array([key[0] in _FILLING for key in keys] + [False])
        counted = np.flatnonzero(~is_filling[first_step[:, 3]])
        operators = {row: operators[row] for row in counted.tolist() if row in operators}
        groups = _times(usual_ns, operators, repeats, alone, changed, code_of)
        chosen = _chosen(groups, code_of)
        num = sum(map(len, chosen.values()))
        if not num:
            return []
        steps = _Steps(calls, keys, [0, *self._ends])
        if num * (1 + len(alike)) > _MOST_ROWS:
            alike = ()
        found = []
        for pairs in chosen.values():
            rows = steps.rows_of(pairs, alike)
            if rows:
                before = [operators[row][1] for _, row in pairs]
                place = Place(*operators[pairs[0][0]][1])
                found.append(RepeatedGroup(place, _usual(before, code_of), rows))
        return found

    def _alone(self) -> Iterator[CallId]:
        """Yield the operators whose result no other one has between two Backwards that free their graph."""
        counts: Counter[int] = Counter()
        own: list[tuple[CallId, int | None]] = []
        for operator in [*self._noted, None]:
            if operator is not None:
                call, _, _, number = operator
                own.append((call, number))
                counts.update([] if number is None else [number])
                continue
            yield from (call for call, number in own if number is None or counts[number] == 1)
            counts.clear()
            own.clear()

    def _repeated(self) -> Iterator[tuple[CallId, CallId]]:
        """Yield each repeated operator, and the first one whose result has the same number."""
        seen: dict[int, tuple[CallId, LayerCall | None]] = {}
        for operator in self._noted:
            if operator is None:
                seen.clear()
                continue
            call, _, around, number = operator
            if number is None:
                continue
            first, before = seen.setdefault(number, (call, around))
            if first != call:
                if around and before and around != before and around[2] == before[2]:
                    seen[number] = call, around
                else:
                    yield call, first


def _usual_ns(calls: Int64) -> Int64:
    """Return the median time of the calls of a signature, for each call: a busy processor lengthens some of them."""
    signature, dur_ns = calls[:, 3], calls[:, 2] - calls[:, 1]
    _, number, num = np.unique(signature, return_inverse=True, return_counts=True)
    middle = np.cumsum(num) - num + num // 2
    median: Int64 = dur_ns[np.lexsort((dur_ns, signature))[middle]][number]
    return median


def _times(
    usual_ns: Int64,
    operators: Mapping[int, Operator],
    repeats: Mapping[int, int],
    alone: set[int],
    changed: set[int],
    code_of: Callable[[int], CodeType],
) -> Mapping[Group, _Times]:
    """Return the times of each function with a known caller.

    Args:
        usual_ns: of the first step's calls.
        operators: by their rows.
        repeats: row of a repeated operator -> row of the first one.
        alone: rows of the operators whose results no other one has.
        changed: as for `RepeatedOperators.found`.
        code_of: likewise.
    """
    groups: dict[Group, _Times] = defaultdict(_Times)
    for row, (_, (line, caller), _, number) in operators.items():
        if line < 0 or caller < 0 or number in changed:
            continue
        times = groups[code_of(line), caller]
        length_ns = int(usual_ns[row])
        if row in repeats:
            times.repeated_ns += length_ns
            times.pairs.append((row, repeats[row]))
        elif row in alone:
            times.other_ns += length_ns
    return groups


def _chosen(
    groups: Mapping[Group, _Times], code_of: Callable[[int], CodeType]
) -> Mapping[Group, list[tuple[int, int]]]:
    """Return the pairs of rows of the groups that repeat most of what they do, each with the functions that it calls."""
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
    """

    def __init__(self, calls: Int64, keys: Sequence[tuple[Any, ...]], bounds: list[int]) -> None:
        sites: dict[Any, int] = {}
        arguments: dict[Any, int] = {}
        of_keys = [sites.setdefault(key[:2], len(sites)) for key in keys]
        arguments_of = [arguments.setdefault((key[0], *key[2:]), len(arguments)) for key in keys]
        signature = calls[:, 3]  # -1: the last item
        _, thread = np.unique(calls[:, 0], return_inverse=True)
        self._site = np.array([*of_keys, len(sites)])[signature] + (len(sites) + 1) * thread
        self._arguments = np.array([*arguments_of, -1])[signature]
        self._order = np.argsort(self._site, kind="stable")
        self._sorted = self._site[self._order]
        self._bounds = bounds
        self._known: dict[int, list[Int64]] = {}

    def rows_of(self, pairs: Sequence[tuple[int, int]], alike: Iterable[int]) -> list[int]:
        """Return the rows of repeated operators in all steps, by those of the first step and what they repeat.

        Empty if the arguments of two of them differ in a later step.
        """
        found = [row for row, _ in pairs]
        for step in alike:
            rows = np.array([[self._in_step(row, step) for row in pair] for pair in pairs])
            if (rows < 0).any():
                continue
            arguments = self._arguments[rows]
            if (arguments[:, 0] != arguments[:, 1]).any():
                return []
            found += rows[:, 0].tolist()
        return found

    def _in_step(self, row: int, step: int) -> int:
        """Return the row of a later step for one of the first step; -1 if its line calls the operator more or less often there."""
        steps = self._of_site(int(self._site[row]))
        first, later = steps[0], steps[step]
        return int(later[np.searchsorted(first, row)]) if len(first) == len(later) else -1

    def _of_site(self, site: int) -> list[Int64]:
        """Return the rows of the calls that a line makes in a thread, by step."""
        known = self._known.get(site)
        if known is None:
            begin, end = np.searchsorted(self._sorted, [site, site + 1])
            rows = self._order[begin:end]
            known = self._known[site] = np.split(rows, np.searchsorted(rows, self._bounds))[1:]
        return known
