"""Insert the remote calls of a window into its trace.

Each call becomes a span on a track named after the worker, beside the threads of the calling rank.
Inside it come the events that the worker recorded, with times on the caller's clock::

    worker1   rpc#f(worker0 -> worker1) ........................   sent to received
                rpc#f(worker0 -> worker1)#remote_op: f ======      began to ended
                  rpc#f(worker0 -> worker1)#remote_op: relu ==     recorded in the call

If a call is made inside another call, the other call's name stands before its own name; both
together are its *chain*. The names alone mark remote events, in every format; `ppprof.remote_names`
parses them. The attributes of the call's span are `CALL_ATTRIBUTES`. Other tables would count some remote events as steps, phases or communication
of the rank itself. So these events become user spans.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from hashlib import blake2b

import polars as pl

from ppprof.errors import TraceError
from ppprof.remote_names import REMOTE
from ppprof.rundir.remote_calls import RemoteCall, aligned, read_calls
from ppprof.rundir.run_file import RunFile
from ppprof.trace.annotations import ANNOTATION_KEYS
from ppprof.trace.operator_inputs import to_json
from ppprof.trace.paddle.pb_reader import read_paddle_pb
from ppprof.trace.schema import EVENTS, KERNELS, MEMORY, MEMSETS, Trace, conform, empty
from ppprof.trace.segments import FIRST_FREE_ID, concatenated, free_id

CALL_ATTRIBUTES = (
    *("before_ns", "after_ns", "num_bytes", "num_objects"),
    *("line", "function_line", "carrier"),
)
"""The attributes of a call's span: those of its `RemoteCall`, without what is 0, empty or unknown."""

_RANK_CATEGORIES = (
    "Dataloader",
    "ProfileStep",
    "Forward",
    "Backward",
    "Optimization",
    "Communication",
)
_SPAN = "PythonUserDefined"
_MOST_WORKERS, _TRACKS_OF_WORKER, _MOST_LANES = 2**12, 2**18, 2**10
"""Numbers of ids: the tracks of a worker lie beside each other, first the lanes of its calls."""


@dataclass(frozen=True)
class _AlignedCall:
    """A call, and the offsets that put its times on the clock of the trace."""

    call: RemoteCall
    chain: str
    """Name of the call, after the names of the calls in which it was made."""
    outer_ns: int
    """Offset to add to ``sent_ns`` and ``received_ns``, which are on the caller's clock."""
    inner_ns: int
    """Offset to add to all times on the worker's clock."""


def _number(key: str, num: int) -> int:
    """Return a number below ``num`` that the key has in each trace."""
    digest = blake2b(key.encode("utf-8", "replace"), digest_size=4).digest()
    return int.from_bytes(digest, "big") % num


def with_remote_calls(trace: Trace, folder: RunFile) -> Trace:
    """Return the trace of a window with the remote calls in a folder.

    ``skipped`` counts unreadable calls, and calls whose recording is unreadable.
    """
    calls, num_broken = read_calls(folder)
    if not calls and not num_broken:
        return trace
    aligned_calls = _aligned_calls(calls)
    skipped = {
        "remote calls": num_broken + len(calls) - len(aligned_calls),
        "recordings of remote calls": 0,
    }
    free_ids = _FreeIds(trace)
    parts = [trace]
    for aligned_call in aligned_calls:
        recorded = None
        if not aligned_call.call.note:
            try:
                recording = folder / f"{aligned_call.call.id}.pb"
                recording.open().close()
                recorded = read_paddle_pb(recording.path)
            except (TraceError, OSError):
                skipped["recordings of remote calls"] += 1
        parts.append(_call_trace(aligned_call, recorded, free_ids))
    return dataclasses.replace(
        concatenated(parts),
        extra_info={**trace.extra_info, **free_ids.tracks},
        skipped={**trace.skipped, **{kind: count for kind, count in skipped.items() if count}},
    )


def _aligned_calls(calls: list[RemoteCall]) -> list[_AlignedCall]:
    """Return the calls by the time at which they were sent, without those whose parent call is missing."""
    offsets = aligned(calls)
    aligned_by_id: dict[str | None, _AlignedCall] = {}
    inside = defaultdict(list)
    for call in calls:
        inside[call.parent].append(call)
    waiting = list(reversed(inside[None]))
    while waiting:
        call = waiting.pop()
        outer = aligned_by_id.get(call.parent)
        outer_ns = outer.inner_ns if outer else 0
        chain = f"{outer.chain}{REMOTE}{call.span}" if outer else call.span
        inner_ns = outer_ns + offsets[call.id].offset_ns
        aligned_by_id[call.id] = _AlignedCall(call, chain, outer_ns, inner_ns)
        waiting += reversed(inside[call.id])
    return sorted(aligned_by_id.values(), key=lambda item: item.call.sent_ns + item.outer_ns)


class _FreeIds:
    """Ids of tracks, devices and correlations that the trace does not use, each returned once.

    Those of a worker's tracks and devices derive from the worker: segments and windows, each of which
    is read alone, have one id for one worker.
    """

    def __init__(self, trace: Trace) -> None:
        self.process = _first(trace.events["process"])
        self.tracks: dict[str, str] = {}
        """Id of a new track -> name, as in `Trace.extra_info`."""
        ends = trace.events["start_ns"] + trace.events["dur_ns"]
        self._end_ns = 0 if ends.is_empty() else ends.to_numpy().max()
        self._used_threads = set(_values(trace.events["thread"], trace.memory["thread"]))
        self._used_devices = set(_values(trace.events["device"]))
        self._next_correlation = _next_id(trace.events["correlation_id"])
        self._lanes: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._threads: dict[tuple[str, int], int] = {}
        self._devices: dict[tuple[str, int], int] = {}

    def lane(self, worker: str, start_ns: int, end_ns: int) -> int:
        """Return a track of the worker on which all earlier calls ended by ``start_ns``.

        The track is in use until ``end_ns``. If no track is free, it is a new one.
        """
        if end_ns > self._end_ns:  # in the next segment, other calls may begin before
            worker = f"{worker} (returned later)"
        lanes = self._lanes[worker]
        for index, (thread, last_ns) in enumerate(lanes):
            if last_ns <= start_ns:
                lanes[index] = (thread, end_ns)
                return thread
        name = worker if not lanes else f"{worker} ({len(lanes) + 1})"
        thread = self._new_track(worker, name, len(lanes))
        lanes.append((thread, end_ns))
        return thread

    def thread(self, call: RemoteCall, thread: int) -> int:
        """Return the track for a thread of the call's worker other than the call's own thread."""
        key = (call.process, thread)
        if key not in self._threads:
            name = f"{call.worker} thread {thread}"
            place = _MOST_LANES + _number(repr(key), _TRACKS_OF_WORKER // 2)
            self._threads[key] = self._new_track(call.worker, name, place)
        return self._threads[key]

    def device(self, call: RemoteCall, device: int) -> int:
        """Return the id that a device of the call's worker has in the trace."""
        key = (call.process, device)
        if key not in self._devices:
            self._devices[key] = free_id(1000 + _number(repr(key), 99_000), self._used_devices)
        return self._devices[key]

    def correlations(self, above: int) -> int:
        """Return the number to add to correlation ids, which are all below ``above``."""
        first = self._next_correlation
        self._next_correlation += above
        return first

    def _new_track(self, worker: str, name: str, place: int) -> int:
        begin = FIRST_FREE_ID + _number(worker, _MOST_WORKERS) * _TRACKS_OF_WORKER
        thread = free_id(begin + place, self._used_threads)
        self.tracks[str(thread)] = name
        return thread


def _call_trace(aligned_call: _AlignedCall, recorded: Trace | None, free_ids: _FreeIds) -> Trace:
    """Return one call as a trace: its span, its function, and the events recorded inside.

    Without a recording (``recorded``), the trace has only the spans of the call and of its
    function.
    """
    call = aligned_call.call
    sent_ns, received_ns = (
        call.sent_ns + aligned_call.outer_ns,
        call.received_ns + aligned_call.outer_ns,
    )
    lane = free_ids.lane(call.worker, sent_ns, received_ns)
    rows = [
        (aligned_call.chain, sent_ns, max(0, received_ns - sent_ns), None, 0),
        (
            f"{aligned_call.chain}{REMOTE}{call.name}",
            call.began_ns + aligned_call.inner_ns,
            max(0, call.ended_ns - call.began_ns),
            0,
            1,
        ),
    ]
    spans = pl.DataFrame(rows, ["name", "start_ns", "dur_ns", "parent", "depth"], orient="row")
    attributes = {name: getattr(call, name) for name in CALL_ATTRIBUTES if getattr(call, name)}
    spans = conform(
        spans.with_columns(
            attributes=pl.Series([to_json(attributes), None], dtype=pl.String),
            category=pl.lit(_SPAN),
            process=pl.lit(free_ids.process),
            thread=pl.lit(lane),
        ),
        EVENTS,
    )
    if recorded is None:
        return Trace(spans, empty(MEMORY), empty(KERNELS), empty(MEMSETS))
    threads = {
        thread: lane if thread == call.thread else free_ids.thread(call, thread)
        for thread in _values(recorded.events["thread"], recorded.memory["thread"])
    }
    devices = {
        device: free_ids.device(call, device) for device in _values(recorded.events["device"])
    }
    is_host = pl.col("depth").is_not_null()
    is_in_call = is_host & (pl.col("thread") == call.thread)
    is_of_rank = is_host & pl.col("category").cast(pl.String).is_in(_RANK_CATEGORIES)
    correlation = free_ids.correlations(_next_id(recorded.events["correlation_id"]))
    events = recorded.events.with_columns(
        name=pl.concat_str(pl.lit(f"{aligned_call.chain}{REMOTE}"), pl.col("name").cast(pl.String)),
        category=pl.when(is_of_rank)
        .then(pl.lit(_SPAN))
        .otherwise(pl.col("category").cast(pl.String)),
        start_ns=pl.col("start_ns") + aligned_call.inner_ns,
        # The call's two rows come first. Outermost events on the call's thread lie in row 1.
        parent=pl.when(is_in_call & pl.col("parent").is_null())
        .then(1)
        .otherwise(pl.col("parent") + 2),
        forward=pl.col("forward") + 2,
        depth=pl.col("depth") + pl.when(is_in_call).then(2).otherwise(0),
        process=pl.when(pl.col("process").is_not_null()).then(free_ids.process),
        thread=pl.col("thread").replace(threads),
        device=pl.col("device").replace(devices),
        correlation_id=pl.col("correlation_id") + correlation,
        **{key: pl.when(is_host.not_()).then(key) for key in ANNOTATION_KEYS},
    )
    memory = recorded.memory.with_columns(
        time_ns=pl.col("time_ns") + aligned_call.inner_ns,
        event=(pl.col("event") + 2).fill_null(1),
        process=pl.lit(free_ids.process, pl.Int64),
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


def _values(*columns: pl.Series) -> list[int]:
    return sorted({value for column in columns for value in column.drop_nulls().unique()})


def _next_id(column: pl.Series) -> int:
    """Return the largest value of a column plus 1; 0 for a column without values."""
    largest = column.max()
    return largest + 1 if isinstance(largest, int) else 0


def _first(column: pl.Series) -> int:
    values = column.drop_nulls()
    return int(values[0]) if len(values) else 0
