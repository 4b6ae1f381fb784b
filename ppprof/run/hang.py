"""Why a job hangs: which rank did not come to which communication operation.

Each rank's ring (`ppprof.rundir.flight`) says which operations it has called, and in which it waits. All
members of a group call its collectives in one order, so the n-th of one is the n-th of all; transfers from
one rank to another likewise. A rank that waits, waits for those that have not called the same operation yet.
Following who waits for whom ends at ranks that do not wait, the cause, or in a circle: the ranks call
operations in different orders.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ppprof.errors import InputError
from ppprof.messages import Counted
from ppprof.paths import PathLike, to_path
from ppprof.rundir.directories import newest
from ppprof.rundir.flight import (
    MOST_OPERATIONS,
    POINT_TO_POINT,
    Group,
    Operation,
    Ring,
    read_rings,
    stacks_path,
)
from ppprof.rundir.liveness import RankState, rank_states
from ppprof.rundir.run_file import RunFile
from ppprof.units import format_ranges

_SIZES_DIFFER = frozenset(["alltoall", "alltoall_single", "gather", "scatter"])
"""Collectives to which ranks may give tensors of different sizes."""
_MOST_STACK_BYTES = 1 << 20


class Waiting(NamedTuple):
    """A rank that waits in an operation."""

    rank: int
    operation: Operation
    group: Group
    missing: tuple[int, ...]
    """Members that have not called it; empty if all have."""


class Mismatch(NamedTuple):
    """Collectives of equal number in a group that are not the same operation."""

    group: Group
    sequence: int
    calls: Mapping[int, Operation]
    """The operation of each rank."""
    differs: tuple[str, ...]
    """What differs: name, size, dtype, peer (the root)."""
    since: int
    """From this number on the ranks have called from different lines; ``sequence`` if only there."""


@dataclass(frozen=True)
class Hang:
    """What the rings say about a job."""

    run: Path
    ranks: tuple[int, ...]
    """Ranks with a ring."""
    steps: Mapping[int, int]
    """Steps that each of them has ended."""
    waiting: tuple[Waiting, ...]
    mismatches: tuple[Mismatch, ...]
    """The first one of each group."""
    circle: tuple[int, ...]
    """Ranks that wait for one another, each for the next, the last for the first; empty without."""
    causes: tuple[int, ...]
    """Ranks that others wait for and that wait in no operation."""
    absent: tuple[int, ...]
    """Ranks that others wait for and that have no ring: it is not known what they do."""
    states: Mapping[int, RankState]
    """How the ranks ended or whether they run, as far as this machine can see."""
    last: Mapping[int, Operation]
    """The last operation of each rank."""
    stacks: Mapping[int, str]
    """What the watchdogs of `causes` wrote last; "" without."""
    on_devices: bool
    """Whether no host waits in an operation: ``waiting`` are operations that went to devices."""
    now_ns: int

    @property
    def idle_s(self) -> float:
        """Seconds since any rank called or ended an operation, or ended a step."""
        latest = max(
            (
                max(each.called_ns, each.returned_ns, abs(each.waited_ns))
                for each in self.last.values()
            ),
            default=self.now_ns,
        )
        return max(0.0, (self.now_ns - latest) / 1e9)

    def verdict(self) -> str:
        """Return the cause in one sentence."""
        if self.mismatches:
            first = self.mismatches[0]
            calls = "; ".join(f"{_ranks(ranks)}: {text}" for text, ranks in _by_text(first).items())
            since = (
                f"; from number {first.since} on they call from different lines"
                if first.since < first.sequence
                else ""
            )
            return (
                f"the ranks of {_group(first.group)} call different operations as number "
                f"{first.sequence}: {calls}{since}"
            )
        if self.circle:
            waits = {each.rank: each for each in self.waiting}
            steps = ", ".join(
                f"rank {rank} waits in {_call(waits[rank].operation)} for rank {after}"
                for rank, after in zip(self.circle, (*self.circle[1:], self.circle[0]))
            )
            return f"the ranks wait for one another, as they call operations in different orders: {steps}"
        if self.causes or self.absent:
            blamed = (*self.causes, *self.absent)
            return "; ".join(self._on_cause(rank) for rank in blamed[:4]) + (
                f"; and {Counted(len(blamed) - 4):more rank|more ranks}" if len(blamed) > 4 else ""
            )
        if self.waiting:
            first_waiting = self.waiting[0]
            return (
                f"all ranks of {_group(first_waiting.group)} have called "
                f"{_call(first_waiting.operation)}, and it does not end: look at the network and at "
                "the devices"
            )
        return "no rank waits in a communication operation that Python called"

    def _on_cause(self, rank: int) -> str:
        waits = [each for each in self.waiting if rank in each.missing]
        calls = sorted(
            {f"{_call(each.operation, False)} of {_group(each.group)}" for each in waits}
        )
        who = _ranks([each.rank for each in waits])
        state = self.states.get(rank)
        how = f" ({state.text})" if state is not None and state.text else ""
        text = f"rank {rank}{how} has not come to {' and '.join(calls[:2])}, where {who} wait"
        last = self.last.get(rank)
        if last is None:
            return f"{text}; it has noted no operation" if rank in self.ranks else text
        return f"{text}; it last called {_call(last)}, {_ago(self.now_ns - last.called_ns)} ago"


def find_hang(paths: Sequence[PathLike]) -> Hang:
    """Return what the rings of a run say.

    Args:
        paths: the run directory (profiler_log; the newest run in it), or that of each node.

    Raises:
        InputError: a directory cannot be read, or none has rings.
    """
    rings: dict[int, Ring] = {}
    states: dict[int, RankState] = {}
    runs = [newest(to_path(path)) for path in paths]
    for run in runs:
        try:
            rings.update(read_rings(run))
            states.update(rank_states(run))
        except OSError as error:
            raise InputError(f"{run}: cannot read what ranks noted: {error}") from error
    if not rings:
        raise InputError(
            f"{runs[0]}: no rank has noted its communication (flight/); it is noted while a session is "
            "open in a job of several ranks, unless Profiler.flight_recorder is False"
        )
    now_ns = time.time_ns()
    waiting = [each for ring in rings.values() for each in _waiting(ring, rings)]
    on_devices = not waiting
    if on_devices:
        waiting = [each for ring in rings.values() for each in _queued(ring, rings)]
    waits_for = {each.rank: each.missing for each in waiting if each.missing}
    blamed = {rank for missing in waits_for.values() for rank in missing} - waits_for.keys()
    causes = sorted(blamed & rings.keys())
    return Hang(
        runs[0],
        tuple(sorted(rings)),
        {rank: ring.step for rank, ring in rings.items()},
        tuple(sorted(waiting, key=lambda each: (each.operation.called_ns, each.rank))),
        tuple(_mismatches(rings)),
        _circle(waits_for) if not causes else (),
        tuple(causes),
        tuple(sorted(blamed - rings.keys())),
        states,
        {rank: ring.operations[-1] for rank, ring in rings.items() if ring.operations},
        {rank: _stacks(runs, rank) for rank in causes},
        on_devices,
        now_ns,
    )


def _waiting(ring: Ring, rings: Mapping[int, Ring]) -> list[Waiting]:
    """Return the operation in which a rank's host waits, if it does: the first one.

    A rank that has called another operation since then no longer waits: an exception ended the wait.
    """
    last_ns = max((each.called_ns for each in ring.operations), default=0)
    for operation in ring.operations:
        still = operation.is_pending and last_ns <= operation.pending_since_ns
        if still and operation.group in ring.groups:
            return [_with_missing(ring, operation, rings)]
    return []


def _queued(ring: Ring, rings: Mapping[int, Ring]) -> list[Waiting]:
    """Return the first operation of a rank that went to a device and that other ranks have not called."""
    for operation in ring.operations:
        if not operation.waited_ns and operation.group in ring.groups:
            found = _with_missing(ring, operation, rings)
            if found.missing:
                return [found]
    return []


def _with_missing(ring: Ring, operation: Operation, rings: Mapping[int, Ring]) -> Waiting:
    group = ring.groups[operation.group]
    others = group.ranks if operation.name not in POINT_TO_POINT else (operation.peer,)
    missing = tuple(
        rank
        for rank in others
        if rank != ring.rank and not _has_called(rings.get(rank), ring.rank, operation)
    )
    return Waiting(ring.rank, operation, group, missing)


def _has_called(other: Ring | None, rank: int, operation: Operation) -> bool:
    """Return whether another rank has called its side of an operation."""
    if other is None:
        return False
    if operation.name in POINT_TO_POINT:
        name = "recv" if operation.name == "send" else "send"
        own = [each for each in other.operations if each.name == name and each.peer == rank]
    else:
        own = [each for each in other.operations if each.name not in POINT_TO_POINT]
    sequences = [each.sequence for each in own if each.group == operation.group]
    if not sequences:  # none, or all of them have been overwritten
        return len(other.operations) >= MOST_OPERATIONS - 1
    return max(sequences) >= operation.sequence


def _mismatches(rings: Mapping[int, Ring]) -> list[Mismatch]:
    """Return the first collective of each group whose calls differ, the earliest first."""
    calls: dict[tuple[int, tuple[int, ...]], dict[int, dict[int, Operation]]] = {}
    for rank, ring in rings.items():
        for each in ring.operations:
            group = ring.groups.get(each.group)
            if group is not None and each.name not in POINT_TO_POINT:
                key = each.group, group.ranks
                calls.setdefault(key, {}).setdefault(each.sequence, {})[rank] = each
    found = []
    for (number, _), by_sequence in calls.items():
        for sequence in sorted(by_sequence):
            own = by_sequence[sequence]
            differs = _differences(list(own.values()))
            if differs:
                group = rings[min(own)].groups[number]
                since = sequence
                while len({each.place for each in by_sequence.get(since - 1, {}).values()}) > 1:
                    since -= 1
                found.append(Mismatch(group, sequence, own, differs, since))
                break
    return sorted(found, key=lambda each: min(call.called_ns for call in each.calls.values()))


def _differences(calls: list[Operation]) -> tuple[str, ...]:
    first = calls[0]
    fields = ["name"]
    if all(each.name == first.name for each in calls):
        fields += ["dtype", "peer"]
        fields += [] if first.name in _SIZES_DIFFER else ["size"]
    return tuple(name for name in fields if len({getattr(each, name) for each in calls}) > 1)


def _circle(waits_for: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Return ranks of which each waits for the next, and the last for the first; empty without a circle."""
    for first in sorted(waits_for):
        path = [first]
        while True:
            following = [rank for rank in waits_for.get(path[-1], ()) if rank in waits_for]
            if not following:
                break
            if following[0] in path:
                return tuple(path[path.index(following[0]) :])
            path.append(following[0])
    return ()


def _by_text(mismatch: Mismatch) -> dict[str, list[int]]:
    texts: dict[str, list[int]] = {}
    for rank, call in sorted(mismatch.calls.items()):
        details = [str(getattr(call, name)) for name in mismatch.differs if name != "name"]
        about = dict(zip((name for name in mismatch.differs if name != "name"), details))
        shown = [f"{'root' if name == 'peer' else name} {value}" for name, value in about.items()]
        texts.setdefault(" ".join([_call(call), *shown]), []).append(rank)
    return texts


def _call(operation: Operation, with_place: bool = True) -> str:
    place = f" at {operation.place}" if with_place and operation.place != "?" else ""
    return f"{operation.name}{place}"


def _group(group: Group) -> str:
    axis = f"{group.axis} " if group.axis else ""
    return f"the {axis}group of {_ranks(group.ranks)}"


def _ranks(ranks: Iterable[int]) -> str:
    return format_ranges("rank", ranks)


def _ago(ns: int) -> str:
    return f"{max(0, ns) / 1e9:.0f} s"


def _stacks(runs: Sequence[Path], rank: int) -> str:
    """Return what a rank's watchdog wrote last; "" without."""
    for run in runs:
        try:
            data, _ = RunFile(run, stacks_path(rank)).read_end(_MOST_STACK_BYTES)
        except OSError:
            continue
        dumps = data.decode("utf-8", "replace").split("Timeout (")
        if len(dumps) > 1:
            return dumps[-1].partition("\n")[2].strip()
    return ""
