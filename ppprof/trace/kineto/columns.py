"""Columns of Kineto's events, and the fields of an event that are read.

Sources: libkineto/src/output_json.cpp and ActivityType.h of pytorch/kineto,
torch/csrc/distributed/c10d/ParamCommsUtils.hpp of pytorch/pytorch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Optional

import msgspec
import polars as pl

from ppprof.trace.json.values import (
    IGNORED_PHASES,
    NO_TEXT,
    Scalar,
    attribute_columns,
    nanoseconds,
    texts,
)
from ppprof.trace.kineto.inputs import Inputs, inputs_of
from ppprof.trace.kineto.terms import DEVICES, LAUNCHES, MODULE, OPERATORS
from ppprof.trace.schema import FRAMES, LEAST_FRAME_NS, conform


class KinetoArgs(msgspec.Struct, gc=False, frozen=True):
    """The fields of an event's ``args`` that are read; None or no text for a missing field."""

    name: Scalar = None
    correlation: Scalar = None
    device: Scalar = None
    context: Scalar = None
    stream: Scalar = None
    bytes: Scalar = None
    grid: msgspec.Raw = NO_TEXT
    block: msgspec.Raw = NO_TEXT
    registers: Scalar = msgspec.field(default=None, name="registers per thread")
    shared_bytes: Scalar = msgspec.field(default=None, name="shared memory")
    blocks_per_sm: Scalar = msgspec.field(default=None, name="blocks per SM")
    warps_per_sm: Scalar = msgspec.field(default=None, name="warps per SM")
    occupancy: Scalar = msgspec.field(default=None, name="est. achieved occupancy %")
    collective: Scalar = msgspec.field(default=None, name="Collective name")
    group: Scalar = msgspec.field(default=None, name="Process Group Name")
    group_id: Scalar = msgspec.field(default=None, name="Process Group ID")
    ranks: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Process Group Ranks")
    source: Scalar = msgspec.field(default=None, name="Src Rank")
    destination: Scalar = msgspec.field(default=None, name="Dst Rank")
    num_in: Scalar = msgspec.field(default=None, name="In msg nelems")
    num_out: Scalar = msgspec.field(default=None, name="Out msg nelems")
    dtype: Scalar = None
    sequence: Scalar = msgspec.field(default=None, name="Sequence number")
    forward_thread: Scalar = msgspec.field(default=None, name="Fwd thread id")
    addr: Scalar = msgspec.field(default=None, name="Addr")
    size: Scalar = msgspec.field(default=None, name="Bytes")
    allocated: Scalar = msgspec.field(default=None, name="Total Allocated")
    reserved: Scalar = msgspec.field(default=None, name="Total Reserved")
    device_type: Scalar = msgspec.field(default=None, name="Device Type")
    device_id: Scalar = msgspec.field(default=None, name="Device Id")
    dims: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Concrete Inputs")


_NO_ARGS = KinetoArgs()


class KinetoEvent(msgspec.Struct, gc=False):
    """One event of the list ``traceEvents``.

    Times stay text, because a float64 of microseconds since 1970 holds only multiples of 250 ns.
    """

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: msgspec.Raw = NO_TEXT
    dur: msgspec.Raw = NO_TEXT
    args: Optional[KinetoArgs] = None


_EMPTY = KinetoEvent()

_FRAME = "python_function"
_KINDS = {
    **dict.fromkeys([*OPERATORS, "user_annotation"], "hosts"),
    **dict.fromkeys(LAUNCHES, "launches"),
    **dict.fromkeys(DEVICES, "devices"),
}
"""``cat`` of a span -> kind of event."""
_IGNORED_SPANS = frozenset(
    [
        *(_FRAME, "gpu_user_annotation", "cuda_sync", "cuda_event", "overhead", "Trace"),
        *("external_correlation", "cuda_profiler_range", "cpu_instant_event"),
    ]
)
"""Values of ``cat`` for spans that are no work of the model, or copies of other events."""
_MIN_EVENTS = 1 << 15
"""Fewest events in each part, except in the last one. Making a column costs as much as 1000 of its
values, so parts should be large."""

_COLLECTIVE_ARGS: Mapping[str, Any] = {
    **{"group": pl.Int64, "group_id": pl.Int64, "num_in": pl.Int64, "num_out": pl.Int64},
    **{"source": pl.String, "destination": pl.String, "ranks": pl.String, "dtype": pl.String},
}
_SEQUENCE_ARGS: Mapping[str, Any] = {"sequence": pl.Int64, "forward_thread": pl.Int64}
_INPUTS = {
    "index": pl.Int64(),
    **dict.fromkeys(("shapes", "dtypes", "attributes"), pl.String()),
}
_DEVICE_ARGS: Mapping[str, Any] = {
    **{"correlation": pl.Int64, "device": pl.Int64, "context": pl.Int64, "stream": pl.Int64},
    **{"bytes": pl.Int64, "grid": pl.String, "block": pl.String},
    **{"registers": pl.Int64, "shared_bytes": pl.Int64},
    **dict.fromkeys(("blocks_per_sm", "warps_per_sm", "occupancy"), pl.Float64),
}
_MEMORY_ARGS: Mapping[str, Any] = {
    **{"addr": pl.UInt64, "size": pl.Int64, "allocated": pl.Int64, "reserved": pl.Int64},
    **{"device_type": pl.Int64, "device_id": pl.Int64},
}


_NOUNS = {
    **{"hosts": "host events", "launches": "launch events"},
    **{"devices": "device events", "memory": "memory events"},
}


class KinetoColumns:
    """Kineto's events by kind, in the order of the file.

    Kinds: ``hosts`` (operators, annotations, modules), ``launches``, ``devices`` and ``memory``.
    """

    def __init__(self) -> None:
        self.thread_names: dict[str, str] = {}
        """Thread id -> name; the number of a device's stream counts as a thread id."""
        self.ignored: Counter[str] = Counter()
        """Kind -> number of events that no table needs."""
        self.skipped: Counter[str] = Counter()
        """Kind -> number of events that cannot be used."""
        self._parts: defaultdict[str, list[pl.DataFrame]] = defaultdict(list)
        self._collectives: defaultdict[str, list[pl.DataFrame]] = defaultdict(list)
        self._sequences: list[pl.DataFrame] = []
        self._inputs: list[pl.DataFrame] = []
        self._known_inputs: dict[tuple[bytes, bytes, bytes], Inputs] = {}
        self._frames: list[pl.DataFrame] = []
        self._num: Counter[str] = Counter()

    @classmethod
    def from_batches(cls, batches: Iterable[list[KinetoEvent]]) -> KinetoColumns:
        """Return the columns of all batches; small batches are joined into few large parts."""
        columns = cls()
        pending: list[KinetoEvent] = []
        for batch in batches:
            pending += batch
            if len(pending) >= _MIN_EVENTS:
                columns._add(pending)
                pending = []
        columns._add(pending)
        return columns

    def _add(self, batch: list[KinetoEvent]) -> None:
        by_kind: dict[str, list[KinetoEvent]] = {kind: [] for kind in (*_NOUNS, "frames")}
        for event in batch:
            kind = _KINDS.get(event.cat) if event.ph == "X" else None
            if kind is None:
                kind = self._unusual_kind(event)
            if kind is not None:
                by_kind[kind].append(event)
        hosts, devices = by_kind["hosts"], by_kind["devices"]
        for event in hosts:
            if _is_wait(event):
                event.name, event.cat, event.args = f"{event.name}.wait", "user_annotation", None
        for kind, events in (("hosts", hosts), ("devices", devices)):
            self._collectives[kind].append(
                _rows_with(events, self._num[kind], attrgetter("num_in"), _COLLECTIVE_ARGS)
            )
        self._sequences.append(
            _rows_with(hosts, self._num["hosts"], attrgetter("sequence"), _SEQUENCE_ARGS)
        )
        self._inputs.append(self._inputs_of(hosts, self._num["hosts"]))
        self._append("hosts", hosts, {})
        self._append("launches", by_kind["launches"], {"correlation": pl.Int64})
        self._append("devices", devices, _DEVICE_ARGS)
        self._append("memory", by_kind["memory"], _MEMORY_ARGS)
        # Not the events themselves: their times hold the file's text in memory.
        self._frames.append(_table(by_kind["frames"], {}))
        self.thread_names.update(
            (str(event.tid), str(event.args.name))
            for event in batch
            if event.name == "thread_name" and event.args
        )

    def _inputs_of(self, events: list[KinetoEvent], first: int) -> pl.DataFrame:
        """Return the inputs of the operators among events, as `inputs` does."""
        rows = []
        known = self._known_inputs
        for index, event in enumerate(events, first):
            args = event.args
            if args is None or not len(args.dims) or event.cat not in OPERATORS:
                continue
            key = (bytes(args.dims), bytes(args.types), bytes(args.concrete))
            if key not in known:
                known[key] = inputs_of(*(part.decode("utf-8", "replace") for part in key))
            rows.append((index, *known[key]))
        return pl.DataFrame(rows, _INPUTS, orient="row").with_columns(
            pl.col(pl.String).cast(pl.Categorical)
        )

    def _unusual_kind(self, event: KinetoEvent) -> str | None:
        """Return the kind of an event that is in no table of `_KINDS`; None, and count it, if none.

        A span of an unknown ``cat`` is a device event if it has a stream or a device, as accelerators
        of other makers write them.
        """
        if event.ph == "X":
            if event.cat == _FRAME and event.name.startswith(MODULE):
                return "hosts"
            if event.cat in _IGNORED_SPANS:
                self.ignored[event.cat] += 1
                if event.cat == _FRAME and _is_long(event):
                    return "frames"
            elif not event.cat:
                self.skipped["events without a category"] += 1
            elif event.args is not None and (
                event.args.stream is not None or event.args.device is not None
            ):
                return "devices"
            else:
                self.skipped[f"events of the unknown kind {event.cat}"] += 1
        elif event.name == "[memory]" and event.ph == "i":
            return "memory"
        elif event.ph in IGNORED_PHASES:
            self.ignored[IGNORED_PHASES[event.ph]] += 1
        elif event == _EMPTY:
            self.ignored["empty objects"] += 1
        else:
            self.skipped["events of an unknown ph"] += 1
        return None

    def _append(self, kind: str, events: list[KinetoEvent], args: Mapping[str, Any]) -> None:
        first = self._num[kind]
        index = pl.int_range(first, first + len(events), eager=True).alias("index")
        self._parts[kind].append(_table(events, args).insert_column(0, index))
        self._num[kind] += len(events)

    def tables(self, base_ns: int) -> dict[str, pl.DataFrame]:
        """Return one table per kind of event; kind -> table.

        Events without a time, process or thread are counted in ``skipped``, and so are events with a
        negative or missing duration. But a memory event without a duration is kept, with a duration of 0.

        Args:
            base_ns: nanoseconds to add to each recorded start.

        Returns:
            ``index`` of a table is the position in the file among the events of the kind.
        """
        tables = {}
        for kind, parts in self._parts.items():
            table = pl.concat(parts).with_columns(pl.col("start_ns") + base_ns)
            if kind == "memory":  # instants
                table = table.with_columns(pl.col("dur_ns").fill_null(0))
            tables[kind] = table.filter(
                pl.col("dur_ns") >= 0,
                *(pl.col(key).is_not_null() for key in ("start_ns", "process", "thread")),
            )
            if tables[kind].height < table.height:
                noun = f"{_NOUNS[kind]} without time, process or thread"
                self.skipped[noun] = table.height - tables[kind].height
        return tables

    def collectives(self, kind: str) -> pl.DataFrame:
        """Return the args of the collectives among the events of a kind, ``hosts`` or ``devices``.

        The columns are ``index``, as in `tables`, and the keys of `_COLLECTIVE_ARGS`.
        """
        return pl.concat(self._collectives[kind])

    def frames(self, base_ns: int) -> pl.DataFrame:
        """Return the long calls of Python functions: columns of `FRAMES`.

        Args:
            base_ns: nanoseconds to add to each recorded start.
        """
        table = pl.concat(self._frames).with_columns(pl.col("start_ns") + base_ns)
        return conform(table, FRAMES).drop_nulls()

    def inputs(self) -> pl.DataFrame:
        """Return the inputs of the operators that have any.

        The columns are ``index``, as in `tables`, shapes, dtypes and attributes.
        """
        return pl.concat(self._inputs)

    def sequences(self) -> pl.DataFrame:
        """Return the args of the host events that have a sequence number.

        The columns are ``index``, as in `tables`, sequence and forward_thread.
        """
        return pl.concat(self._sequences)


def _is_long(event: KinetoEvent) -> bool:
    try:
        return float(bytes(event.dur)) * 1000 >= LEAST_FRAME_NS
    except ValueError:
        return False


def _is_wait(event: KinetoEvent) -> bool:
    """Return whether an event is the wait for a collective, which has an event of its own."""
    args = event.args
    return event.name == "record_param_comms" and args is not None and args.collective == "wait"


def _rows_with(
    events: list[KinetoEvent],
    first: int,
    key: Callable[[KinetoArgs], Scalar],
    args: Mapping[str, Any],
) -> pl.DataFrame:
    """Return one row for each event that has the arg of ``key``: its ``index`` and ``args``.

    Args:
        events: consecutive events of one kind.
        first: index of the first of ``events``.
        key: returns the arg that an event must have.
        args: columns to return, name -> dtype.
    """
    rows = [
        (index, event.args)
        for index, event in enumerate(events, first)
        if event.args is not None and key(event.args) is not None
    ]
    return pl.DataFrame(
        [
            pl.Series("index", [index for index, _ in rows], pl.Int64),
            *attribute_columns([event_args for _, event_args in rows], args),
        ]
    )


def _table(events: list[KinetoEvent], args: Mapping[str, Any]) -> pl.DataFrame:
    """Return one row per event: name, cat, process, thread, start_ns, dur_ns and ``args``.

    ``args`` is name -> dtype. Unusable values are null.
    """
    return pl.DataFrame(
        [
            pl.Series("name", [event.name for event in events], pl.String),
            pl.Series("cat", [event.cat for event in events], pl.Categorical),
            pl.Series("process", [event.pid for event in events], pl.Int64, strict=False),
            pl.Series("thread", [event.tid for event in events], pl.Int64, strict=False),
            nanoseconds("start_ns", texts(event.ts for event in events)),
            nanoseconds("dur_ns", texts(event.dur for event in events)),
            *attribute_columns([event.args or _NO_ARGS for event in events] if args else [], args),
        ]
    )
