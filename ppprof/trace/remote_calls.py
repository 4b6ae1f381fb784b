"""The remote calls of a window, put into its trace.

Each call becomes a span on a track named after the worker, beside the threads of its rank, with
what was recorded on the other side below it, on the caller's clock::

    worker1   rpc#f(worker0 -> worker1) ........................   sent to received
                rpc#f(worker0 -> worker1)#remote_op: f ======      began to ended
                  rpc#f(worker0 -> worker1)#remote_op: relu ==     recorded in it

A call made in a call has the other's name before its own, and so on: the chain. Names alone say
what is remote, in every format; `call_of` and `ends_of` read it there. Events in which other
tables would see steps, phases or communication of the rank itself become spans of the user.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import polars as pl

from ppprof.errors import TraceError
from ppprof.paths import to_path
from ppprof.rundir.remote_calls import REMOTE, RemoteCall, aligned, read_calls
from ppprof.trace.annotations import FACTS
from ppprof.trace.paddle.pb_reader import read_paddle_pb
from ppprof.trace.schema import EVENTS, KERNELS, MEMORY, MEMSETS, Trace, conform, empty, nullable
from ppprof.trace.step_numbers import steps_of

_END = r"[^\s()]+"
_CALLS = re.compile(rf"(?:rpc#[^\s()]*\({_END} -> {_END}\){REMOTE})+")
_ENDS = re.compile(rf"\(({_END}) -> ({_END})\)")
_OF_A_RANK = ("Dataloader", "ProfileStep", "Forward", "Backward", "Optimization", "Communication")
_SPAN = "PythonUserDefined"


def call_of(name: str) -> str | None:
    """The remote call, with its chain, in which an event was recorded; None for the rank's own.

    >>> call_of("rpc#f(w0 -> w1)#remote_op: rpc#g(w1 -> w2)#remote_op: relu")
    'rpc#f(w0 -> w1)#remote_op: rpc#g(w1 -> w2)'
    >>> call_of("rpc#f(w0 -> w1)"), call_of("relu")
    (None, None)
    """
    match = _CALLS.match(name)
    return match[0][: -len(REMOTE)] if match else None


def ends_of(call: str) -> tuple[str, str]:
    """Who made the outermost call of a chain, and the worker on which the innermost one ran.

    >>> ends_of("rpc#f(w0 -> w1)#remote_op: rpc#g(w1 -> w2)")
    ('w0', 'w2')
    """
    ends = _ENDS.findall(call)
    return ends[0][0], ends[-1][1]


def read_window(raw: str | Path) -> Trace:
    """A raw capture with the remote calls beside it, where there are any.

    Raises:
        TraceError: the capture cannot be read; a call that cannot is counted in ``lost``.
    """
    trace = read_paddle_pb(raw)
    folder = to_path(raw).with_suffix(".calls")
    return _with_calls(trace, folder) if folder.is_dir() else trace


@dataclass(frozen=True)
class _Placed:
    """A call on the clock of the trace."""

    call: RemoteCall
    chain: str
    """Its name with those of the calls that it was made in."""
    outer_ns: int
    """What brings sent and received onto that clock."""
    inner_ns: int
    """What brings the worker's times onto it."""


def _with_calls(trace: Trace, folder: Path) -> Trace:
    calls, num_broken = read_calls(folder)
    placed = _placed(calls)
    skipped = {
        "remote calls": num_broken + len(calls) - len(placed),
        "recordings of remote calls": 0,
    }
    numbers = _Numbers(trace)
    parts = [trace]
    for at in placed:
        recorded = None
        if not at.call.note:
            try:
                recorded = read_paddle_pb(folder / f"{at.call.id}.pb")
            except (TraceError, OSError):
                skipped["recordings of remote calls"] += 1
        parts.append(_part(at, recorded, numbers))
    return dataclasses.replace(
        _together(parts),
        extra_info={**trace.extra_info, **numbers.tracks},
        skipped={**trace.skipped, **{what: count for what, count in skipped.items() if count}},
    )


def _placed(calls: list[RemoteCall]) -> list[_Placed]:
    """Calls behind those they were made in; without those of which that one is missing."""
    offsets = aligned(calls)
    found: dict[str | None, _Placed] = {}
    inside = defaultdict(list)
    for call in calls:
        inside[call.parent].append(call)
    waiting = list(reversed(inside[None]))
    while waiting:
        call = waiting.pop()
        outer = found.get(call.parent)
        outer_ns = outer.inner_ns if outer else 0
        chain = f"{outer.chain}{REMOTE}{call.span}" if outer else call.span
        found[call.id] = _Placed(call, chain, outer_ns, outer_ns + offsets[call.id].offset_ns)
        waiting += reversed(inside[call.id])
    return sorted(found.values(), key=lambda at: at.call.sent_ns + at.outer_ns)


class _Numbers:
    """Hands out ids that the trace does not use: of tracks, devices and correlations."""

    def __init__(self, trace: Trace) -> None:
        self.process = _first(trace.events["process"])
        self.tracks: dict[str, str] = {}
        """Name by thread id, as `Trace.extra_info` has them."""
        self._next_thread = max(_above(trace.events["thread"]), _above(trace.memory["thread"]))
        self._next_device = _above(trace.events["device"])
        self._next_correlation = _above(trace.events["correlation_id"])
        self._lanes: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._threads: dict[tuple[str, int], int] = {}
        self._devices: dict[tuple[str, int], int] = {}

    def lane(self, worker: str, start_ns: int, end_ns: int) -> int:
        """A track of the worker on which nothing is left of the calls before."""
        lanes = self._lanes[worker]
        for at, (thread, last_ns) in enumerate(lanes):
            if last_ns <= start_ns:
                lanes[at] = (thread, end_ns)
                return thread
        thread = self._new_track(worker if not lanes else f"{worker} ({len(lanes) + 1})")
        lanes.append((thread, end_ns))
        return thread

    def thread(self, call: RemoteCall, thread: int) -> int:
        """The track of another thread of the worker."""
        at = (call.process, thread)
        if at not in self._threads:
            self._threads[at] = self._new_track(f"{call.worker} thread {thread}")
        return self._threads[at]

    def device(self, call: RemoteCall, device: int) -> int:
        """The worker's device among those of the trace."""
        at = (call.process, device)
        if at not in self._devices:
            self._devices[at] = self._next_device
            self._next_device += 1
        return self._devices[at]

    def correlations(self, above: int) -> int:
        """What to add to correlation ids, all of them below ``above``."""
        first = self._next_correlation
        self._next_correlation += above
        return first

    def _new_track(self, name: str) -> int:
        thread = self._next_thread
        self._next_thread += 1
        self.tracks[str(thread)] = name
        return thread


def _part(at: _Placed, recorded: Trace | None, numbers: _Numbers) -> Trace:
    """One call as a trace: its span, what ran in it, and below that what was recorded."""
    call = at.call
    sent_ns, received_ns = call.sent_ns + at.outer_ns, call.received_ns + at.outer_ns
    lane = numbers.lane(call.worker, sent_ns, received_ns)
    rows = [
        (at.chain, sent_ns, max(0, received_ns - sent_ns), None, 0),
        (
            f"{at.chain}{REMOTE}{call.name}",
            call.began_ns + at.inner_ns,
            max(0, call.ended_ns - call.began_ns),
            0,
            1,
        ),
    ]
    spans = pl.DataFrame(rows, ["name", "start_ns", "dur_ns", "parent", "depth"], orient="row")
    spans = conform(
        spans.with_columns(
            category=pl.lit(_SPAN), process=pl.lit(numbers.process), thread=pl.lit(lane)
        ),
        EVENTS,
    )
    if recorded is None:
        return Trace(spans, empty(MEMORY), empty(KERNELS), empty(MEMSETS))
    threads = {
        thread: lane if thread == call.thread else numbers.thread(call, thread)
        for thread in _values(recorded.events["thread"], recorded.memory["thread"])
    }
    devices = {
        device: numbers.device(call, device) for device in _values(recorded.events["device"])
    }
    is_host = pl.col("depth").is_not_null()
    is_below = is_host & (pl.col("thread") == call.thread)
    of_rank = is_host & pl.col("category").cast(pl.String).is_in(_OF_A_RANK)
    correlation = numbers.correlations(_above(recorded.events["correlation_id"]))
    events = recorded.events.with_columns(
        name=pl.concat_str(pl.lit(f"{at.chain}{REMOTE}"), pl.col("name").cast(pl.String)),
        category=pl.when(of_rank).then(pl.lit(_SPAN)).otherwise(pl.col("category").cast(pl.String)),
        start_ns=pl.col("start_ns") + at.inner_ns,
        # Two rows come before these; what is outermost on the thread of the call lies in it.
        parent=pl.when(is_below & pl.col("parent").is_null())
        .then(1)
        .otherwise(pl.col("parent") + 2),
        forward=pl.col("forward") + 2,
        depth=pl.col("depth") + pl.when(is_below).then(2).otherwise(0),
        process=pl.when(pl.col("process").is_not_null()).then(numbers.process),
        thread=pl.col("thread").replace(threads),
        device=pl.col("device").replace(devices),
        correlation_id=pl.col("correlation_id") + correlation,
        **{fact: pl.when(is_host.not_()).then(fact) for fact in FACTS},
    )
    memory = recorded.memory.with_columns(
        time_ns=pl.col("time_ns") + at.inner_ns,
        event=(pl.col("event") + 2).fill_null(1),
        process=pl.lit(numbers.process, pl.Int64),
        thread=pl.col("thread").replace(threads),
        place=pl.concat_str(pl.col("place").cast(pl.String), pl.lit(f" of {call.worker}")),
    )
    return Trace(
        pl.concat([spans, conform(events, EVENTS)]),
        conform(memory, MEMORY),
        recorded.kernels.with_columns(pl.col("event") + 2),
        recorded.memsets.with_columns(pl.col("event") + 2),
        devices=tuple(
            {**device, "id": devices[id], "name": f"{device['name']} of {call.worker}"}
            for device in recorded.devices
            for id in [device["id"]]
            if isinstance(id, int) and id in devices
        ),
    )


def _together(parts: list[Trace]) -> Trace:
    """The first trace with the events of all of them, in the order of `EVENTS`."""
    first = list(accumulate((part.events.height for part in parts), initial=0))
    events = pl.concat(
        part.events.with_columns(pl.col("parent", "forward") + at) for part, at in zip(parts, first)
    )
    is_device = pl.col("device").is_not_null()
    kind = pl.when(pl.col("depth").is_not_null()).then(0).when(is_device).then(2).otherwise(1)
    order = events.select(
        kind=kind,
        thread=pl.when(pl.col("depth").is_not_null()).then("thread"),
        row=pl.int_range(pl.len()),
    ).sort("kind", "thread", "row")["row"]
    row = np.full(events.height + 1, -1, np.int64)  # the last is for nobody, -1
    row[order.to_numpy()] = np.arange(events.height)

    def renumbered(table: pl.DataFrame, column: str) -> pl.DataFrame:
        return table.with_columns(
            nullable(row[table[column].fill_null(-1).to_numpy()]).alias(column)
        )

    def side(name: str) -> pl.DataFrame:
        tables = (
            getattr(part, name).with_columns(pl.col("event") + at) for part, at in zip(parts, first)
        )
        return renumbered(pl.concat(tables), "event")

    events = renumbered(renumbered(events[order], "parent"), "forward")
    return dataclasses.replace(
        parts[0],
        events=events.with_columns(
            step=steps_of(events.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns")))
        ),
        memory=side("memory").sort("thread", "process", "time_ns", maintain_order=True),
        kernels=side("kernels"),
        memsets=side("memsets"),
        devices=tuple(device for part in parts for device in part.devices),
    )


def _values(*columns: pl.Series) -> list[int]:
    return sorted({value for column in columns for value in column.drop_nulls().unique()})


def _above(column: pl.Series) -> int:
    """One more than the largest; 0 where there is none."""
    largest = column.max()
    return largest + 1 if isinstance(largest, int) else 0


def _first(column: pl.Series) -> int:
    known = column.drop_nulls()
    return int(known[0]) if len(known) else 0
