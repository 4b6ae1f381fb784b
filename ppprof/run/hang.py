"""Why a job hangs: which rank did not come to which communication operation.

Each rank's ring (`ppprof.rundir.flight`) says which operations it has called, and in which it waits. All
members of a group call its collectives in one order, so the n-th of one is the n-th of all; transfers from
one rank to another likewise. A rank that waits, waits for those that have not called the same operation yet.
Following who waits for whom ends at ranks that do not wait, the cause, or in a circle: the ranks call
operations in different orders.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ppprof.errors import InputError
from ppprof.messages import Counted
from ppprof.paths import PathLike, is_remote, to_path
from ppprof.rundir.clocks import read_clocks
from ppprof.rundir.directories import find, newest, run_before
from ppprof.rundir.flight import (
    POINT_TO_POINT,
    REDUCTION,
    STEPS_WENT_ON,
    Group,
    Key,
    Operation,
    Ring,
    Stacks,
    answer_line,
    ranks_with_rings,
    read_rings,
    read_stacks,
    request_stacks,
    withdraw_request,
)
from ppprof.rundir.liveness import HANG, RankState, rank_states
from ppprof.rundir.manifest import read_manifest, read_run_id
from ppprof.units import format_ranges

_log = logging.getLogger("ppprof")

_SIZES_DIFFER = frozenset(["alltoall", "alltoall_single", "gather", "scatter"])
"""Collectives to which ranks may give tensors of different sizes."""
_MOVES = _SIZES_DIFFER | POINT_TO_POINT | {"all_gather", "broadcast"}
"""Operations that move bytes, whatever type each rank names them."""
_MOST_OPERATIONS = 500_000
"""Operations to compare, of all ranks together: some 150 MB."""
_LEAST_OPERATIONS = 64
"""Operations of each rank to compare at least."""
_MOST_EARLIER_STEPS = 16
_STEPS_AHEAD = 2
"""Steps after which a host has left an operation behind that it gave to a device."""
_CLOCKS_NS = 5_000_000_000
"""How far the clocks of hosts may be apart."""
_UNKNOWN_GROUP = Group((), None)
"""Of an operation whose group had no room in the ring."""
MOST_STACKS = 8
"""Ranks whose stacks are read, or asked for."""
_POLL_SECONDS = 0.2
_LEAST_EVEN = 2
"""Steps with as many collectives on each rank, before one without says anything."""
QUIET_NS = 10_000_000_000
"""A shorter time without any operation is no hang: ranks compute in between."""


class Waiting(NamedTuple):
    """A rank that waits in an operation."""

    rank: int
    operation: Operation
    group: Group
    missing: tuple[int, ...]
    """Members that have not called it; empty if all have."""
    overwritten: tuple[int, ...] = ()
    """Members of which that is unknown: they have called too much since."""
    calls: Mapping[int, Operation] = MappingProxyType({})
    """The calls of its members, and of the other side of a transfer, by rank; empty if some have not called it."""

    @property
    def is_backward(self) -> bool:
        """Whether all members are in a backward or behind it: then the rank may compute as well as wait."""
        return self.operation.name == REDUCTION and not (self.missing or self.overwritten)

    @property
    def among(self) -> Sequence[int]:
        """The ranks that the operation is of."""
        is_transfer = self.operation.name in POINT_TO_POINT
        return sorted((self.rank, self.operation.peer)) if is_transfer else self.group.ranks


class Mismatch(NamedTuple):
    """Collectives of equal number in a group, or a send and its receive, that do not fit."""

    group: Group
    sequence: int
    calls: Mapping[int, Operation]
    """The operation of each rank."""
    differs: tuple[str, ...]
    """What differs: name, size, dtype, peer (the root)."""
    since: int
    """From this number on the ranks have called from different lines; ``sequence`` if only there."""

    def holds(self, waiting: Waiting) -> bool:
        """Whether a rank waits in one of the calls."""
        return self.calls.get(waiting.rank) == waiting.operation


class Departure(NamedTuple):
    """Where a rank's step goes another way than its own earlier steps."""

    rank: int
    called: Operation
    expected: Operation | None
    """What the earlier step called there; None if the earlier step ended there."""
    usual_step: int
    """The earlier step that is alike for longest."""
    repeated: Operation
    """The operation that the step calls fewer times than the earlier one; else ``called``."""
    num_now: int
    """How often the step has called ``repeated``. A step that has not ended may call it again, unless there are fewer."""
    num_usual: int
    """How often the earlier step did."""

    @property
    def way(self) -> tuple[object, ...]:
        """What it has in common with departures that are alike: its lines; at one line the operations.

        In a hybrid job, an evaluation's line calls other groups, peers and operations on each rank.
        """
        called, expected = self.called, self.expected
        places = called.place, expected and expected.place
        return (called.way, expected.way) if expected and len({*places}) == 1 else places

    @property
    def text(self) -> str:
        """What the rank did, in words."""
        is_fewer = self.repeated is not self.called
        if is_fewer or self.num_now > self.num_usual > 0:
            then = f" and then {_call(self.called)}" if is_fewer else ""
            return (
                f"called {_call(self.repeated)} {Counted(self.num_now):time|times}{then} in "
                f"step {self.called.step}, but {Counted(self.num_usual):time|times} in step {self.usual_step}, "
                "as with another number of micro-batches"
            )
        called = _call(self.called)
        usual = _call(self.expected) if self.expected else "nothing more"
        if self.expected and called == usual:
            called, usual = (
                f"{_call(each)} ({_with(each)})" for each in (self.called, self.expected)
            )
        return f"called {called} in step {self.called.step}, where step {self.usual_step} called {usual}"


class Uneven(NamedTuple):
    """The first step in which the ranks of a group called different numbers of its collectives.

    From then on, the n-th call of one rank meets another call of the others.
    """

    group: Group
    step: int
    counts: Mapping[int, int]
    """How many each rank called."""
    call: str
    """The call of which most were left out: ``all_reduce at train.py:35 step``."""

    @property
    def text(self) -> str:
        """The step, and what each rank did, in words."""
        ranks: dict[int, list[int]] = {}
        for rank, num in self.counts.items():
            ranks.setdefault(num, []).append(rank)
        counts = ", ".join(f"{_ranks(ranks[num])}: {num}" for num in sorted(ranks))
        return (
            f"already in step {self.step} the ranks of {_group(self.group)} did not call as many collectives as each "
            f"other ({counts}), above all {self.call}"
        )


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
    """Ranks that others wait for and that wait in no operation; and those whose process is gone while others run."""
    absent: tuple[int, ...]
    """Ranks that others wait for and of which it is not known what they do: they have no ring, or have
    overwritten their notes of the group."""
    states: Mapping[int, RankState]
    """How the ranks ended or whether they run, as far as this machine can see."""
    last: Mapping[int, Operation]
    """The last operation of each rank."""
    problems: Mapping[int, str]
    """What is wrong with rings that are unreadable: these ranks count as absent."""
    damaged: Mapping[int, int]
    """Records that are unreadable, of rings with more than the one that was being written."""
    on_devices: bool
    """Whether some of ``waiting`` are operations that went to devices: no host waits in them."""
    now_ns: int
    departures: tuple[Departure, ...] = ()
    """Ranks whose step goes another way than their own earlier steps."""
    ended_ns: Mapping[int, int] = field(default_factory=dict)
    """When a signal ended the ranks of `stacks` that one has ended, on this machine's clock."""
    uneven: Uneven | None = None
    """None without one, and if no rank waits."""
    num_ranks: int | None = None
    """Of the job; None if it is unknown."""
    stacks: Mapping[int, str] = field(default_factory=dict)
    """What the first of `suspects` wrote last on their threads (`Stacks`); "" without."""

    @property
    def suspects(self) -> tuple[int, ...]:
        """Ranks whose stacks show the cause: `causes`, else those that wait or call what differs; first those that run."""
        calls = [rank for each in self.mismatches[:1] for rank in each.calls]
        waiting = [each.rank for each in self.waiting]
        found = self.causes or self.circle or calls or waiting or self.ranks
        return tuple(sorted(found, key=lambda rank: not self.may_answer(rank)))

    def may_answer(self, rank: int) -> bool:
        """Whether a rank's process runs, as far as is known, or nothing is known of any rank's."""
        has_ended = Stacks(self.stacks.get(rank, "")).is_of_the_end and not self.runs_here(rank)
        return not has_ended and (self.runs(rank) or not self.states)

    def runs_here(self, rank: int) -> bool:
        """Whether a rank's process is seen to run on this machine."""
        return rank in self.states and self.states[rank].pid is not None

    @property
    def is_sure(self) -> bool:
        """Whether the verdict follows from complete notes of hosts that wait."""
        incomplete = self.on_devices or self.problems or self.damaged or self.absent
        in_doubt = self.is_overwritten or self.gone_waiting or self.unseen
        may_wait = any(map(self._is_in_backward, self.causes))
        return not (incomplete or in_doubt or may_wait or self.is_early)

    @property
    def is_overwritten(self) -> bool:
        """Whether it is unknown of some ranks whether they have come to where others wait."""
        return any(each.overwritten for each in self.waiting)

    @property
    def unseen(self) -> tuple[int, ...]:
        """Ranks in an operation that all have called, of which this machine does not see whether they still run."""
        if self.mismatches or self.circle or self.causes or self.absent:
            return ()
        states = {rank: self.states.get(rank) for each in self._complete[:1] for rank in each.among}
        return tuple(rank for rank, state in states.items() if state and state.is_unseen)

    @property
    def gone_waiting(self) -> tuple[int, ...]:
        """Ranks that waited and whose process is gone, while those of others are not: it may have been killed first."""
        gone = [each.rank for each in self.waiting if self._is_gone(each.rank)]
        return () if all(map(self._is_gone, self.ranks)) else tuple(gone)

    @property
    def is_early(self) -> bool:
        """Whether signals ended the processes soon after ranks began to wait, as of a job that did not hang."""
        ends_ns = self.ended_ns.values()
        begun_ns = [each.operation.pending_since_ns for each in self.waiting]
        if not (ends_ns and begun_ns) or any(map(self.runs, self.ranks)):
            return False
        return min(ends_ns) - min(begun_ns) < QUIET_NS

    def _is_in_backward(self, rank: int) -> bool:
        last = self.last.get(rank)
        return last is not None and last.name == REDUCTION and last.is_pending

    def _is_gone(self, rank: int) -> bool:
        return rank in self.states and self.states[rank].is_gone

    @property
    def has_ended(self) -> bool:
        """Whether no rank of the run has an open session or failed, and none waits for another one."""
        return not (self.states or self.waiting or self.mismatches or self.problems)

    @property
    def idle_s(self) -> float | None:
        """Seconds since any rank called or ended an operation; None without operations."""
        if not self.last:
            return None
        times = [
            max(each.called_ns, abs(each.returned_ns), abs(each.waited_ns))
            for each in self.last.values()
        ]
        # Of a rank whose clock is ahead, it is not known.
        past = [ns for ns in times if ns < self.now_ns + _CLOCKS_NS]
        return max(0.0, (self.now_ns - max(past or times)) / 1e9)

    @property
    def _complete(self) -> list[Waiting]:
        """Those that wait in an operation that all have called."""
        return [each for each in self.waiting if not (each.missing or each.overwritten)]

    def verdict(self) -> str:
        """Return the cause in one sentence."""
        alike: dict[str, list[int]] = {}
        for each in self.departures:
            alike.setdefault(each.text, []).append(each.rank)
        ways = [f"{_ranks(ranks)} {text}" for text, ranks in alike.items()]
        return "; ".join([self._cause(), *([self.uneven.text] if self.uneven else []), *ways[:2]])

    def _cause(self) -> str:
        if self.mismatches:
            first = self.mismatches[0]
            calls = "; ".join(f"{_ranks(ranks)}: {text}" for text, ranks in _by_text(first).items())
            since = (
                f"; from number {first.since} on they call from different lines"
                if first.since < first.sequence
                else ""
            )
            if _is_transfer(first):
                return f"{_ranks(first.calls)} do not agree in transfer number {first.sequence}: {calls}"
            return (
                f"the ranks of {_group(first.group)} call different operations as number "
                f"{first.sequence}: {calls}{since}"
            )
        if self.circle:
            waits = {each.rank: each.operation for each in self.waiting}
            texts = [_call(waits[rank]) for rank in self.circle]
            if len({*texts}) < len({(waits[rank].group, waits[rank].peer) for rank in self.circle}):
                texts = [f"{_call(waits[rank])} ({_with(waits[rank])})" for rank in self.circle]
            steps = ", ".join(
                f"rank {rank} waits in {text} for rank {after}"
                for rank, text, after in zip(self.circle, texts, (*self.circle[1:], self.circle[0]))
            )
            return f"the ranks wait for one another, as they call operations in different orders: {steps}"
        if self.causes or self.absent:
            alike: dict[str, list[int]] = {}
            for rank in (*self.causes, *self.absent):
                alike.setdefault(self._on_cause(rank), []).append(rank)
            texts = [_about(ranks, text) for text, ranks in list(alike.items())[:4]]
            num_more = sum(map(len, list(alike.values())[4:]))
            more = f"; and {Counted(num_more):more rank|more ranks}" if num_more else ""
            return "; ".join(texts) + more
        if self.waiting:
            return self._on_complete((*self._complete, *self.waiting)[0])
        if self.has_ended:
            return (
                "no rank waits: the sessions of all ranks have ended without an error, and nothing "
                "is noted after that"
            )
        if self.num_ranks == 1 and not self.last:
            how = self._how(self.ranks[0]) or "--stacks shows where it is"
            return f"the job has one rank, which waits for no other: {how}"
        text = "no rank waits in a communication operation that Python called"
        if not self.last:
            text = (
                "unknown: no rank has called a communication operation from Python "
                "(paddle.DataParallel communicates in C++)"
            )
        return "; ".join(filter(None, [text, self._states_of(sorted(self.states))]))

    def _on_complete(self, waiting: Waiting) -> str:
        """Return the cause where a rank waits in an operation that all have called."""
        call = _call(waiting.operation)
        if not waiting.group.ranks:
            return f"rank {waiting.rank} waits in {call} of a group whose ranks it could not note"
        if waiting.operation.name in POINT_TO_POINT:
            called = f"{_ranks(waiting.among)} have both called the transfer of {call}"
        else:
            called = f"all ranks of {_group(waiting.group)} have called {call}"
        left = [
            f"an exception ended it on rank {rank}, {_ago(self.now_ns + own.returned_ns)} ago"
            for rank, own in waiting.calls.items()
            if own.has_raised and self.runs(rank)
        ]
        ended = self._ended_among(waiting.among)
        if left or ended:
            return f"{called}, but {'; '.join([*left[:2], *filter(None, [ended])])}"
        gone_on = [rank for rank, own in waiting.calls.items() if _has_left(own)]
        places = {own.place for own in waiting.calls.values()}
        if gone_on and waiting.is_backward and not waiting.group.is_on_device and len(places) == 1:
            return (
                f"{called}, but it has ended on {_ranks(gone_on)} alone, as where some parameters had no gradient: "
                "paddle.DataParallel(..., find_unused_parameters=True) reduces without them"
            )
        where = (
            f"; whether {_ranks(self.unseen)} still {'runs' if len(self.unseen) == 1 else 'run'} cannot be "
            "seen from this machine: ask there, too"
            if self.unseen
            else ""
        )
        may_answer = any(map(self.may_answer, waiting.among))
        computes = ", and with --stacks for a rank that computes in it"
        computes = computes if waiting.is_backward and may_answer else ""
        return f"{called}, and it does not end: look at the network and at the devices{computes}{where}"

    def runs(self, rank: int) -> bool:
        """Whether a rank's process is known to have an open session."""
        return rank in self.states and not self.states[rank].has_ended

    def _on_cause(self, rank: int) -> str:
        """Return a text for `_about` on a rank that others wait for."""
        waits = [each for each in self.waiting if rank in (*each.missing, *each.overwritten)]
        calls = " and ".join(
            sorted({f"{_call(each.operation, False)} of {_group(each.group)}" for each in waits})[
                :2
            ]
        )
        who = _ranks([each.rank for each in waits])
        ended = self._ended_among([each.rank for each in waits])
        more = f" ({ended})" if ended else ""
        verb = "waits" if len(waits) == 1 else "wait"
        if rank in self.absent:
            why = (
                "later operations have overwritten what was noted of the group"
                if rank in self.last
                else "<it> <has> no readable ring of this run here; if nodes have own disks, name the directory of each"
            )
            return f"it is unknown whether <ranks> <has> come to {calls}, where {who} {verb}{more}: {why}"
        how = self._how(rank)
        if waits:
            how = f" ({how})" if how else ""
            text = f"<ranks>{how} <has> not come to {calls}, where {who} {verb}{more}"
        else:
            text = f"<ranks>: {how}"
        last = self.last.get(rank)
        if last is None:
            return f"{text}; <it> <has> noted no operation"
        raised = ", which an exception ended" if last.has_raised else ""
        if self._is_in_backward(rank):
            raised = ", in which it may wait for others of its group"
        return f"{text}; <it> last called {_call(last)}{in_context(last)}, {_ago(self.now_ns - last.called_ns)} ago{raised}"

    def _how(self, rank: int) -> str:
        """Return how a rank ended, or that it is stopped; "" if it runs, or if nothing is known of any rank."""
        stacks = Stacks(self.stacks.get(rank, ""))
        at = f"at {stacks.place}" if stacks.place else ""
        if at and stacks.waits_for_ended_loader:
            at += (
                ", where it waits for a DataLoader whose thread has ended, as by an exception of the "
                "dataset, which the training's error output shows,"
            )
        if self.runs_here(rank) or not stacks.is_of_the_end:
            last = f"last seen {at}".rstrip(",") if at else ""
            return ", ".join(filter(None, [self._state(rank), last]))
        if stacks.is_crash:
            return f"crashed{at and f' {at}'}: {stacks.end}"
        end = "Profiler.hang_exit_code" if stacks.end == HANG else stacks.end
        return f"{at or 'ran'} when {end} ended the process"

    def _state(self, rank: int) -> str:
        if rank in self.states:
            return self.states[rank].text
        # A session takes its entry away if it ends in peace, and if it fails after that of another rank.
        if any(state.has_ended and not state.is_gone for state in self.states.values()):
            return "its session has ended, in peace or after another rank failed"
        return "its session has ended" if self.states else ""

    def _ended_among(self, ranks: Sequence[int]) -> str:
        """Return which of some ranks have ended or are stopped, and how; "" if none, or if all of the job have ended."""
        ended = {rank for rank, state in self.states.items() if state.has_ended}
        return "" if ended >= set(self.ranks) else self._states_of(ranks)

    def _states_of(self, ranks: Sequence[int]) -> str:
        """Return how some ranks ended, or that they are stopped; "" if all run, as far as is known."""
        known = [rank for rank in ranks if rank in self.states and self.states[rank].text]
        more = f"; and {Counted(len(known) - 2):more rank|more ranks}" if len(known) > 2 else ""
        return "; ".join(f"rank {rank}: {self.states[rank].text}" for rank in known[:2]) + more


def find_hang(paths: Sequence[PathLike]) -> Hang:
    """Return what the rings of a run say.

    Args:
        paths: the run directory (profiler_log; the newest run in it), or that of each node.

    Raises:
        InputError: a directory cannot be read, or none has a readable ring.
    """
    rings: dict[int, Ring] = {}
    states: dict[int, RankState] = {}
    problems: dict[int, str] = {}
    runs = _of_one_run(paths, warns=True)
    most = max(_LEAST_OPERATIONS, _MOST_OPERATIONS // max(sum(map(_num_rings, runs)), 1))
    for run in runs:
        try:
            states.update(rank_states(run))
        except OSError as error:
            raise InputError(f"{run}: cannot read which ranks run: {error}") from error
    offsets_ns = _offsets_ns(runs, states)
    for run in runs:
        try:
            readable, unreadable = read_rings(run, most, offsets_ns)
            rings.update(readable)
            problems.update(unreadable)
        except OSError as error:
            raise InputError(f"{run}: cannot read what ranks noted: {error}") from error
    if not rings and problems:
        more = f"; and {Counted(len(problems) - 1):more rank|more ranks}" * (len(problems) > 1)
        raise InputError(f"{problems[min(problems)]}{more}")
    if not rings:
        raise InputError(
            f"{runs[0]}: no rank has noted its communication (flight/); it is noted while a session is "
            "open, unless Profiler.flight_recorder is False"
        )
    missing = _Missing(rings)
    waits = _without_computing(
        {rank: _waiting(ring, missing, states.get(rank)) for rank, ring in rings.items()}
    )
    lost = _lost(rings, states, waits)
    running = [ring for rank, ring in rings.items() if rank not in lost]
    waiting = [each for ring in running for each in waits[ring.rank]]
    waits_for, blamed = _follow(waiting)
    on_hosts = {each.rank for each in waiting}
    queued = [
        each for ring in running if ring.rank not in on_hosts for each in _queued(ring, missing)
    ]
    if queued:
        all_waits, all_blamed = _follow([*waiting, *queued])
        # Else a host that does not wait is the cause, whatever its device waits for.
        if all_blamed or not blamed:
            waiting, waits_for, blamed = [*waiting, *queued], all_waits, all_blamed
    on_devices = len(waiting) > len(on_hosts) or not (waiting or lost)
    blamed |= lost
    causes = tuple(sorted(blamed & rings.keys()))
    circle = _circle(waits_for) if not causes else ()
    absent = blamed - rings.keys()
    if not (causes or circle):
        unknown = {rank for each in waiting for rank in each.overwritten}
        absent |= unknown - {each.rank for each in waiting}
    hang = Hang(
        runs[0],
        tuple(sorted(rings)),
        {rank: ring.step for rank, ring in rings.items()},
        tuple(sorted(waiting, key=lambda each: (each.operation.called_ns, each.rank))),
        tuple(_mismatches(rings)),
        circle,
        causes,
        tuple(sorted(absent)),
        states,
        {rank: ring.operations[-1] for rank, ring in rings.items() if ring.operations},
        problems,
        {rank: ring.unreadable for rank, ring in rings.items() if ring.unreadable > 1},
        on_devices,
        time.time_ns(),
    )
    involved = {*hang.suspects, *[each.rank for each in hang.waiting]} & rings.keys()
    stacks = {
        rank: _stacks(runs, rank, hang.runs_here(rank)) for rank in hang.suspects[:MOST_STACKS]
    }
    ended_ns = {rank: Stacks(text).ended_ns for rank, text in stacks.items()}
    return replace(
        hang,
        stacks=stacks,
        ended_ns={rank: ns + offsets_ns.get(rank, 0) for rank, ns in ended_ns.items() if ns},
        uneven=_first_uneven(rings) if waiting else None,
        num_ranks=_num_ranks(runs[0]),
        departures=_departures([rings[rank] for rank in sorted(involved)]) if waiting else (),
    )


def ask_for_stacks(paths: Sequence[PathLike], ranks: Sequence[int], seconds: float) -> list[int]:
    """Ask running ranks for the stacks of their threads, and wait; return the ranks that answered.

    A rank answers within 6 seconds if no step of it has ended for 5 seconds; on another host, where NFS may
    show it the request a minute late, within 70.

    Args:
        paths: as for `find_hang`; on each node that has a disk of its own, the command must run itself.
        ranks: whom to ask.
        seconds: how long to wait.

    Raises:
        InputError: the run directory cannot be written.
    """
    runs = _of_one_run(paths)
    asked: dict[Path, tuple[str, list[int]]] = {}
    answered = set[int]()
    try:
        for run in runs:
            own = sorted(set(ranks) & set(ranks_with_rings(run)))
            if own and is_remote(run):
                raise InputError(f"{run}: ranks read requests from the directory that they write")
            if own:
                try:
                    asked[run] = answer_line(request_stacks(run, own)).decode().strip(), own
                except OSError as error:
                    raise InputError(f"{run}: cannot ask for stacks: {error}") from error
        deadline = time.monotonic() + seconds
        while len(answered) < len(ranks) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            answered |= {
                rank
                for run, (first, own) in asked.items()
                for rank in set(own) - answered
                if any(each.startswith(first) for each in read_stacks(run, rank))
            }
    finally:
        for run in asked:
            withdraw_request(run)
    return sorted(answered)


def log_unfinished(paths: Sequence[PathLike], command: str) -> None:
    """Log how to ask about the run before the newest one, as before a restart, if not all its ranks ended in peace."""
    with suppress(InputError, OSError):
        earlier = [run for path in paths if (run := run_before(path)) is not None]
        if any(rank_states(newest(run)) for run in earlier):
            _log.info(
                "ranks of an earlier run failed, were killed, or still run: ppprof %s %s",
                *(command, shlex.join(map(str, earlier))),
            )


def _of_one_run(paths: Sequence[PathLike], *, warns: bool = False) -> list[Path]:
    """Return the directories of the run that was started last: the newest one of a node may be of an earlier start.

    Raises:
        InputError: there is no run in a directory.
    """
    logs = [to_path(path) for path in paths]
    runs = [newest(log) for log in logs]
    if len({read_run_id(run) for run in runs}) < 2:
        return runs
    run_id = read_run_id(max(runs, key=_started))
    found = [find(log, run_id) if run_id else None for log in logs]
    for log, run in zip(logs, found):
        if run is None and warns:
            _log.warning(
                "%s: it has no directory of the run that was started last; what its ranks do now is unknown",
                log,
            )
    return [run for run in found if run is not None] or runs


def _started(run: Path) -> float:
    """Return when a run was started, as the seconds of a clock; 0 if that is unknown."""
    with suppress(InputError, KeyError, ValueError, TypeError):
        return datetime.fromisoformat(read_manifest(run)["started"]).timestamp()
    return 0.0


def _num_ranks(run: Path) -> int | None:
    with suppress(InputError, KeyError):
        num = read_manifest(run)["world_size"]
        return num if type(num) is int else None
    return None


def _offsets_ns(runs: Sequence[Path], states: Mapping[int, RankState]) -> dict[int, int]:
    """Return this machine's clock minus that of each rank; rank 0's if no rank with a known clock runs here."""
    offsets_ns: dict[int, int] = {}
    for run in runs:
        with suppress(InputError):
            clocks = read_clocks(run)
            offsets_ns |= {rank: clock.readings[-1].offset_ns for rank, clock in clocks.items()}
    own = (offsets_ns[rank] for rank in offsets_ns if rank in states and states[rank].pid)
    own_ns = next(own, 0)
    return {rank: offset_ns - own_ns for rank, offset_ns in offsets_ns.items()}


class _Missing:
    """Which members of an operation have not called it; asked for many ranks of one group."""

    def __init__(self, rings: Mapping[int, Ring]) -> None:
        self._rings = rings
        self._known: dict[
            tuple[Sequence[int], Key, int],
            tuple[tuple[int, ...], tuple[int, ...], Mapping[int, Operation]],
        ] = {}

    def waiting(self, ring: Ring, operation: Operation) -> Waiting:
        """Return that a rank waits in an operation, and for whom."""
        group = ring.groups.get(operation.group, _UNKNOWN_GROUP)
        ranks, key = group.ranks, operation.key
        if operation.name in POINT_TO_POINT:
            other = "recv" if operation.name == "send" else "send"
            ranks, key = (operation.peer,), (operation.group, other, ring.rank)
        known = ranks, key, operation.sequence
        if known not in self._known:
            has_called = {rank: self._has_called(rank, key, operation.sequence) for rank in ranks}
            missing, overwritten = (
                tuple(rank for rank, called in has_called.items() if called is answer)
                for answer in (False, None)
            )
            calls: dict[int, Operation] = {}
            if not (missing or overwritten):
                found = ((rank, self._call(rank, key, operation.sequence)) for rank in ranks)
                calls = {rank: call for rank, call in found if call is not None}
            self._known[known] = missing, overwritten, calls
        return Waiting(ring.rank, operation, group, *self._known[known])

    def _call(self, rank: int, key: Key, sequence: int) -> Operation | None:
        calls = reversed(self._rings[rank].operations)
        return next((each for each in calls if (each.key, each.sequence) == (key, sequence)), None)

    def _has_called(self, rank: int, key: Key, sequence: int) -> bool | None:
        ring = self._rings.get(rank)
        return ring is not None and ring.has_called(key, sequence)


def _waiting(ring: Ring, missing: _Missing, state: RankState | None) -> list[Waiting]:
    """Return the operation in which a rank's host waits, if it does: of several threads', one that not all have called.

    A rank that an exception has ended waited in what raised it, if that was its last operation; in a backward, which
    computes, if it was long, or if another rank ended before.
    """
    last = ring.operations[-1:]
    found = [missing.waiting(ring, each) for each in ring.operations if each.is_pending]
    if not found and (state is None or state.has_ended):
        raised = [each for each in last if each.has_raised]
        found = [missing.waiting(ring, each) for each in raised]
        # Of a session that ended without a word, an exception may have been caught before.
        found = [each for each in found if each.missing or state is not None]
        found = [
            each
            for each in found
            if each.operation.name != REDUCTION
            or (each.missing and (state is None or each.operation.raised_after_ns >= QUIET_NS))
        ]
    found.sort(key=lambda each: each.is_backward)  # what is called in a backward says more
    return [each for each in found if each.missing][:1] or found[:1]


def _without_computing(
    waits: Mapping[int, Sequence[Waiting]],
) -> dict[int, Sequence[Waiting]]:
    """Return who waits in what, without ranks in a backward that others wait for elsewhere: they compute in it.

    Unless a rank has left it: a host leaves it once all have reduced.
    """
    waited_for = {rank for own in waits.values() for each in own for rank in each.missing}

    def computes(rank: int, each: Waiting) -> bool:
        is_left = not each.group.is_on_device and any(map(_has_left, each.calls.values()))
        has_raised = any(call.has_raised for call in each.calls.values())
        return rank in waited_for and each.is_backward and not (is_left or has_raised)

    return {rank: [each for each in own if not computes(rank, each)] for rank, own in waits.items()}


def _lost(
    rings: Mapping[int, Ring],
    states: Mapping[int, RankState],
    waits: Mapping[int, Sequence[Waiting]],
) -> set[int]:
    """Return the ranks whose process is gone while another one runs: they no longer wait, and cannot come.

    If none runs, it is unknown which were killed first: those that still waited, or those that did not come. So
    it is if most are gone, and waited for one that runs and waits for none: it may have outlived a signal to all.
    """
    gone = {rank for rank, state in states.items() if state.is_gone} & rings.keys()
    runs = rings.keys() - gone
    if not any(state.pid for state in states.values()):
        return set()
    waited_for = {rank for each in gone for wait in waits[each] for rank in wait.missing}
    outlived = len(gone) > len(runs) and not any(waits[rank] for rank in runs) and waited_for & runs
    return set() if outlived else gone


def _follow(waiting: Sequence[Waiting]) -> tuple[dict[int, tuple[int, ...]], set[int]]:
    """Return for whom each rank waits, and the ranks at the end of these chains, which do not wait.

    A rank that waits elsewhere, and of which it is unknown whether it has come, has not come most likely.
    """
    waits = {each.rank for each in waiting}
    waits_for = {
        each.rank: (*each.missing, *(rank for rank in each.overwritten if rank in waits))
        for each in waiting
    }
    blamed = set().union(*{each.missing for each in waiting}) - waits
    return {rank: ranks for rank, ranks in waits_for.items() if ranks}, blamed


def _queued(ring: Ring, missing: _Missing) -> list[Waiting]:
    """Return the first operation of a rank that went to a device and that other ranks have not called."""
    for operation in ring.operations:
        group = ring.groups.get(operation.group)
        if group is not None and group.is_on_device and not operation.waited_ns:
            found = missing.waiting(ring, operation)
            if found.missing:
                return [found]
    return []


def _departures(rings: Sequence[Ring]) -> tuple[Departure, ...]:
    """Return the ranks whose step goes another way than their own earlier steps, unless all do, as in an evaluation."""
    found = [each for ring in rings for each in _departure(ring)]
    ways = {each.way for each in found}
    return tuple(found) if len(found) < len(rings) or len(ways) > 1 else ()


def _departure(ring: Ring) -> list[Departure]:
    """Compare a rank's unfinished step with its earlier ones, of which a part may be overwritten."""
    steps: dict[int, list[Operation]] = {}
    for each in ring.operations:
        steps.setdefault(each.step, []).append(each)
    if ring.operations and ring.operations[0].number > 1:
        del steps[ring.operations[0].step]
    current = steps.pop(ring.step, [])
    if not steps or not current:
        return []
    same, usual = max(
        (_num_alike(current, steps[step]), step) for step in list(steps)[-_MOST_EARLIER_STEPS:]
    )
    if same == len(current):
        return []
    earlier, called = steps[usual], current[same]
    rest = earlier[same:]
    repeated = called
    if _num_of(called, current) <= _num_of(called, earlier):
        repeated = _called_fewer_times(current, rest, same) or called
    counts = _num_of(repeated, current), _num_of(repeated, earlier)
    return [Departure(ring.rank, called, rest[0] if rest else None, usual, repeated, *counts)]


def _called_fewer_times(
    current: Sequence[Operation], rest: Sequence[Operation], same: int
) -> Operation | None:
    """Return what a step repeats fewer times than an earlier one: it goes on with what came after the last time.

    Args:
        current: what the step has called.
        rest: what the earlier step called behind what is alike.
        same: how many calls are alike.
    """
    following = next((n for n, each in enumerate(rest) if each.way == current[same].way), None)
    if following is None:
        return None
    is_last = not _num_of(rest[0], rest[following:]) and not _num_of(rest[0], current[same:])
    return rest[0] if is_last and _num_of(rest[0], current) else None


def _num_of(operation: Operation, calls: Iterable[Operation]) -> int:
    return sum(each.way == operation.way for each in calls)


def _num_alike(calls: Sequence[Operation], others: Sequence[Operation]) -> int:
    differ = (n for n, (call, other) in enumerate(zip(calls, others)) if call.way != other.way)
    return next(differ, min(len(calls), len(others)))


def _first_uneven(rings: Mapping[int, Ring]) -> Uneven | None:
    """Return the earliest uneven step of all groups; steps whose notes are overwritten do not count."""
    calls: dict[tuple[int, Sequence[int]], dict[int, dict[int, list[Operation]]]] = {}
    for rank, ring in rings.items():
        for each in ring.operations:
            group = ring.groups.get(each.group)
            if group is not None and each.name not in POINT_TO_POINT:
                of_steps = calls.setdefault((each.group, group.ranks), {}).setdefault(rank, {})
                of_steps.setdefault(each.step, []).append(each)
    found = []
    for (number, ranks), of_ranks in calls.items():
        if len(ranks) > 1 and of_ranks.keys() == set(ranks):
            group = rings[ranks[0]].groups[number]
            found += _uneven(group, of_ranks, [rings[rank] for rank in ranks])
    return min(found, key=lambda each: each.step, default=None)


def _uneven(
    group: Group, of_ranks: Mapping[int, Mapping[int, list[Operation]]], rings: Sequence[Ring]
) -> list[Uneven]:
    """Return the first uneven step of a group, if two even ones come before, and ranks are shifted ever since.

    In a step that has not ended on all ranks, those that have ended it will call no more.
    """
    begin = max(ring.operations[0].step + (ring.operations[0].number > 1) for ring in rings)
    end = min(ring.step for ring in rings)
    found: list[Uneven] = []
    totals, num_even = Counter[int](), 0
    for step in sorted({step for own in of_ranks.values() for step in own if begin <= step <= end}):
        calls = {rank: own.get(step, []) for rank, own in sorted(of_ranks.items())}
        most = max(calls.values(), key=len)
        ended = {ring.rank: calls[ring.rank] for ring in rings if ring.step > step}
        least = min(ended.values(), key=len, default=most)
        totals.update({rank: len(own) for rank, own in calls.items()})
        if len(most) > len(least) and not found:
            if num_even < _LEAST_EVEN:  # sessions may begin at different calls
                totals, num_even = Counter(), 0
                continue
            ((call, _),) = (Counter(map(_call, most)) - Counter(map(_call, least))).most_common(1)
            known = {rank: len(own) for rank, own in calls.items() if rank in ended or own is most}
            found = [Uneven(group, step, known, call)]
        elif len({*totals.values()}) == 1:
            found = []  # the group does not follow steps, as of a thread of its own
        num_even += not found
    return found


_Calls = dict[int, dict[int, Operation]]
"""By sequence and rank."""


def _mismatches(rings: Mapping[int, Ring]) -> list[Mismatch]:
    """Return, of each group and of each direction of transfers, the first calls that do not fit, the earliest first."""
    calls: dict[tuple[object, ...], _Calls] = {}
    for rank, ring in rings.items():
        for each in ring.operations:
            group = ring.groups.get(each.group)
            if group is not None:
                key: tuple[object, ...] = each.group, group.ranks
                if each.name in POINT_TO_POINT:
                    ends = (rank, each.peer)[:: 1 if each.name == "send" else -1]
                    key = each.group, *ends
                calls.setdefault(key, {}).setdefault(each.sequence, {})[rank] = each
    found = [_first_mismatch(by_sequence, rings) for by_sequence in calls.values()]
    return sorted(
        filter(None, found), key=lambda each: min(call.called_ns for call in each.calls.values())
    )


def _first_mismatch(by_sequence: _Calls, rings: Mapping[int, Ring]) -> Mismatch | None:
    """Return the first calls of equal number that do not fit, and that the ranks have not left behind.

    Calls that differ and that ended on all ranks are no cause, as where gloo reduces tensors of other sizes in
    each step; unless from there on ranks call from other lines than each other, and did not before.
    """
    usual = set()
    numbers = sorted(by_sequence)
    shared = [each for each in numbers if len(by_sequence[each]) > 1]
    lines_differ = {each for each in numbers if _lines_differ(by_sequence[each])}
    alike = [each for each in shared if each not in lines_differ]
    last_alike = max(alike, default=-1)
    since = 0
    for sequence in numbers:
        since = since if sequence - 1 in lines_differ else sequence
        calls = by_sequence[sequence]
        differs = _differences(list(calls.values()))
        if not differs:
            continue
        kind = frozenset((rank, each.way, each.dtype, each.size) for rank, each in calls.items())
        has_ended = all(_has_ended(each, rings[rank]) for rank, each in calls.items())
        if has_ended:
            usual.add(kind)
        # Ranks call from different lines in each operation from one on, and did not before.
        shifts = since - 1 == last_alike
        if kind not in usual or shifts:
            group = next(rings[rank].groups[each.group] for rank, each in calls.items())
            is_known = since == 1 or since - 1 in alike  # else it is where a ring begins
            return Mismatch(group, sequence, calls, differs, since if is_known else sequence)
    return None


def _has_ended(operation: Operation, ring: Ring) -> bool:
    """Return whether an operation has ended on a rank; what a device has not ended, hosts have left behind."""
    on_device = ring.groups[operation.group].is_on_device and not operation.waited_ns
    return _has_left(operation) and (not on_device or ring.step >= operation.step + _STEPS_AHEAD)


def _lines_differ(calls: Mapping[int, Operation]) -> bool:
    return len({each.place for each in calls.values()}) > 1


def _differences(calls: list[Operation]) -> tuple[str, ...]:
    first = calls[0]
    fields = ["name"]
    if first.name in POINT_TO_POINT:
        fields = ["dtype", "size"]
    elif all(each.name == first.name for each in calls):
        fields += ["dtype", "peer"]
        fields += [] if first.name in _SIZES_DIFFER else ["size"]
    differs = tuple(name for name in fields if len({getattr(each, name) for each in calls}) > 1)
    # As of the loss that Fleet's pipeline broadcasts: bfloat16 on the last stage, float16 on the others.
    only_names_differ = differs == ("dtype",) and len({each.size for each in calls}) == 1
    return () if only_names_differ and first.name in _MOVES else differs


def _is_transfer(mismatch: Mismatch) -> bool:
    return any(each.name in POINT_TO_POINT for each in mismatch.calls.values())


def _circle(waits_for: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Return ranks of which each waits for the next, and the last for the first; empty without a circle."""
    seen: set[int] = set()
    for first in sorted(waits_for):
        path: dict[int, Iterator[int]] = {}
        following: int | None = first
        while following is not None or path:
            if following is None:
                path.popitem()
            elif following in path:
                ranks = list(path)
                return tuple(ranks[ranks.index(following) :])
            elif following not in seen:
                seen.add(following)
                path[following] = iter(waits_for[following])
            rest = path[next(reversed(path))] if path else iter(())
            following = next((rank for rank in rest if rank in waits_for), None)
    return ()


def _by_text(mismatch: Mismatch) -> dict[str, list[int]]:
    texts: dict[str, list[int]] = {}
    for rank, call in sorted(mismatch.calls.items()):
        details = {"dtype": call.dtype, "peer": f"root {call.peer}", "size": f"{call.size:,} bytes"}
        shown = ", ".join(text for name, text in details.items() if name in mismatch.differs)
        texts.setdefault(f"{_call(call)} ({shown})" if shown else _call(call), []).append(rank)
    return texts


def _call(operation: Operation, with_place: bool = True) -> str:
    place = f" at {operation.place}" if with_place and operation.place != "?" else ""
    return f"{operation.name}{place}"


def _with(operation: Operation) -> str:
    """Return how calls of one operation at one line differ."""
    return f"group {operation.group}" + (f", rank {operation.peer}" if operation.peer >= 0 else "")


def in_context(operation: Operation) -> str:
    """Return the phase and the module that called an operation, as `` in forward of blocks.0 (Block)``; "" if unknown."""
    is_known = operation.context != "?" and operation.name != REDUCTION
    return f" in {operation.context}" if is_known else ""


def _group(group: Group) -> str:
    axis = f"{group.axis} " if group.axis else ""
    return f"the {axis}group of {_ranks(group.ranks)}"


def _has_left(operation: Operation) -> bool:
    """Whether a rank has gone on behind an operation."""
    return not (operation.is_pending or operation.has_raised)


def _about(ranks: Sequence[int], text: str) -> str:
    """Return a text about ranks; ``<ranks>``, ``<has>`` and ``<it>`` stand for words that depend on how many they are."""
    words = {"<ranks>": _ranks(ranks), "<has>": "has", "<it>": "it"}
    if len(ranks) > 1:
        words |= {"<has>": "have", "<it>": "they"}
    for mark, word in words.items():
        text = text.replace(mark, word)
    return text


def _ranks(ranks: Iterable[int]) -> str:
    return format_ranges("rank", ranks)


def _ago(ns: int) -> str:
    return f"{max(0, ns) / 1e9:.0f} s"


def _stacks(runs: Sequence[Path], rank: int, runs_here: bool) -> str:
    """Return the stacks of a rank's crash, else those that it wrote last; "" without.

    A rank that is seen to run has not crashed: a process that it has forked did.
    """
    stacks = next(filter(None, (read_stacks(run, rank) for run in runs)), [])
    crashes = [each for each in stacks if Stacks(each).is_crash]
    others = [each for each in stacks if each not in crashes]
    newest = (crashes[:1] if not runs_here else []) or others[-1:] or [""]
    return "" if newest[0].startswith(STEPS_WENT_ON) else newest[0]


def _num_rings(run: Path) -> int:
    return len(ranks_with_rings(run))
