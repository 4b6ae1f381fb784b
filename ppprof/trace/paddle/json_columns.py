"""Columns of Paddle's JSON events, from the scanner and from the decoder.

There are four kinds of events: host, launch, device and memory. Integers are int64, with `MISSING`
for a missing value, or int32 if no value is missing. Real numbers are float64, NaN if missing.
Texts are indices into `PaddleColumns.texts`, -1 if missing. Times are nanoseconds. ``position``
orders the events as in the file: it is an event's byte offset or, for a decoded event, the offset
of its piece of text plus the event's number in the piece.
"""

from __future__ import annotations

import json
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import compress, groupby
from typing import Optional

import msgspec
import numpy as np
import polars as pl

from ppprof.arrays import Array, Bool
from ppprof.trace.annotations import ANNOTATION_KEYS
from ppprof.trace.fastpath.fixed_layout import INPUTS, MISSING, TEXTS, Scanned, narrowed
from ppprof.trace.fastpath.layouts import Dialect
from ppprof.trace.fastpath.string_table import StringTable
from ppprof.trace.json.trace_events import IGNORED_PHASES, NO_TEXT, Args, Event, Scalar
from ppprof.trace.json.values import attribute_columns, nanoseconds, texts
from ppprof.trace.labels import Labels, renumbered
from ppprof.trace.operator_inputs import INPUT_KEYS, compact
from ppprof.trace.schema import DEVICE_CATEGORIES

_TIMES = ("ts", "dur", "begin", "finish")
REALS = ("blocks_per_sm", "warps_per_sm", "occupancy", "bandwidth")
_CONFIG = (
    *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"),
    *("registers", "shared_bytes", "blocks_per_sm", "warps_per_sm", "occupancy"),
)
_TRACKED = ("position", "name", "cat", "pid", "tid", *_TIMES)
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "host": (*_TRACKED, "depth", "sequence", "forward", *ANNOTATION_KEYS, *INPUTS),
    "launch": (*_TRACKED, "correlation_id"),
    "device": (
        *("position", "name", "cat", *_TIMES, "device", "context", "stream", "correlation_id"),
        *("bytes", "bandwidth", "value", *_CONFIG),
    ),
    "memory": (
        *("position", "cat", "pid", "tid", "ts", "place", "addr", "bytes"),
        *("current_allocated", "current_reserved", "peak_allocated", "peak_reserved"),
    ),
}
"""Kind of event -> its columns."""

OPTIONAL = frozenset(
    (
        *("depth", "sequence", "forward", *ANNOTATION_KEYS, *INPUTS),
        *("context", "bandwidth", "value", *_CONFIG),
    )
)
"""Columns that some files or some events lack."""


class PaddleArgs(Args, gc=False):
    """The fields of an event's ``args`` that are read."""

    rank: Scalar = None
    start_time: Scalar = None
    end_time: Scalar = None
    depth: Scalar = None
    folded: Scalar = None
    sequence: Scalar = None
    forward: Scalar = None
    axis: Scalar = None
    group: Scalar = None
    peers: Scalar = None
    stage: Scalar = None
    chunk: Scalar = None
    micro_batch: Scalar = None
    phase: Scalar = None
    correlation_id: Scalar = msgspec.field(default=None, name="correlation id")
    bandwidth: Scalar = msgspec.field(default=None, name="memory bandwidth (GB/s)")
    value: Scalar = None
    occupancy: Scalar = msgspec.field(default=None, name="theoretical achieved occupancy %")
    place: Scalar = None
    addr: Scalar = None
    increase_bytes: Scalar = None
    current_allocated: Scalar = None
    current_reserved: Scalar = None
    peak_allocated: Scalar = None
    peak_reserved: Scalar = None
    input_shapes: msgspec.Raw = NO_TEXT
    input_dtypes: msgspec.Raw = NO_TEXT
    attributes: msgspec.Raw = NO_TEXT
    callstack: Scalar = None


class PaddleEvent(Event, gc=False):
    """One event of the list ``traceEvents``."""

    args: Optional[PaddleArgs] = None


def by_rank(
    first: int, events: Sequence[PaddleEvent]
) -> Iterator[tuple[int, int, Sequence[PaddleEvent]]]:
    """Yield each run of events of one rank: its rank, the position of its first event, the events.

    The events of a timeline that `ppprof.trace.merge` wrote have a rank, those of other files rank 0.
    """
    for rank, run in groupby(events, rank_of):
        group = list(run)
        yield rank, first, group
        first += len(group)


def rank_of(event: PaddleEvent) -> int:
    """Return the rank of an event of a merged timeline; 0 for any other event."""
    rank = event.args.rank if event.args is not None else None
    return rank if isinstance(rank, int) and 0 <= rank < _MOST_RANKS else 0


_MOST_RANKS = 1 << 20
_INCOMPLETE = "events without time, process or thread"
_LAST_NS = 2**63 - 1
_NO_ARGS = PaddleArgs()
_ON_DEVICE = frozenset(DEVICE_CATEGORIES)
_EMPTY = PaddleEvent()
_INTEGERS = dict.fromkeys(
    (
        *("depth", "sequence", "forward", "group", "bytes", "stage", "chunk", "micro_batch"),
        *("correlation_id", "device", "context", "stream", "value"),
        *("registers", "shared_bytes", "increase_bytes"),
        *("current_allocated", "current_reserved", "peak_allocated", "peak_reserved"),
    ),
    pl.Int64,
)
_DURATION = r"\[\d[^\[]* [mun]?s\]$"
_THREE = r"\[\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)\s*\]"
_THREAD_NAME = re.compile(r"thread (\d+):(.*)\((?:C\+\+|Python)\)", re.DOTALL)


class DamagedError(Exception):
    """Text that the scanner does not look into is not valid JSON: what its event holds is the decoder's to say."""


class PaddleColumns:
    """The events of a file, collected part by part.

    Args:
        skipped: counts the events that cannot be used, by kind.
    """

    def __init__(self, skipped: Counter[str]) -> None:
        self.texts = StringTable()
        self.thread_names: dict[str, str] = {}
        """Thread id -> name, from metadata events."""
        self.ts_is_exact = True
        """Whether every ``ts`` has nanoseconds; else some are cut to whole microseconds."""
        self.skipped = skipped
        self.ignored: Counter[str] = Counter()
        """Kind -> number of events that no table needs."""
        self._parts: defaultdict[str, list[dict[str, Array]]] = defaultdict(list)

    def add_scanned(self, scanned: Scanned, dialect: Dialect) -> None:
        """Add the events that the scanner read, with the layouts of ``dialect``.

        Raises:
            DamagedError: inputs of an operator are not valid JSON.
        """
        number = self.texts.numbers(
            _unescaped(text) if dialect.escapes and b"\\" in text else text
            for text in scanned.texts
        )
        for kind, columns in scanned.events:
            part = {
                column: renumbered(values, number) if column in TEXTS else values
                for column, values in columns.items()
                if column not in INPUTS
            }
            for column in INPUTS:
                if column in columns and (columns[column] >= 0).any():
                    part[column] = self._inputs(column, columns[column], scanned.texts)
            if kind == "device":  # not every layout has the device in args
                device = part.setdefault("device", part["pid"])
                if device.dtype == np.int64 and (device == MISSING).any():
                    part["device"] = narrowed(np.where(device == MISSING, part["pid"], device))
            unit_ns = 1 if dialect.ts_is_exact else 1000
            part = self._complete(part, _LAST_NS // unit_ns)
            part["ts"] *= unit_ns  # in place: no other object holds the column
            if "occupancy" in part:
                part["occupancy"] = part["occupancy"] / 100
            self._parts[kind].append(part)
        if scanned.num_flows:
            self.ignored[IGNORED_PHASES["s"]] += scanned.num_flows
        if scanned.events and not dialect.ts_is_exact:
            self.ts_is_exact = False

    def _complete(self, part: dict[str, Array], last_ts: int) -> dict[str, Array]:
        """Return a part without the events that the decoder would skip, too; count these.

        Their duration is negative, or their ``ts`` is above ``last_ts``, before or after the epoch.
        """
        ts, dur = part["ts"], part.get("dur", np.zeros(0, np.int64))
        if (
            -last_ts <= ts.min(initial=0)
            and ts.max(initial=0) <= last_ts
            and dur.min(initial=0) >= 0
        ):
            return part
        is_usable = (-last_ts <= ts) & (ts <= last_ts)
        if len(dur):
            is_usable &= dur >= 0
        self.skipped[_INCOMPLETE] += int((~is_usable).sum())
        return {column: values[is_usable] for column, values in part.items()}

    def _inputs(self, column: str, values: Array, found: Sequence[bytes]) -> Array:
        """Return the numbers of texts of inputs, of indices into ``found``; -1 for a text that is no object."""
        used = np.unique(values[values >= 0])
        texts = [
            found[index]
            .replace(b"\\n", b"\n")
            .decode("utf-8", "replace")  # all that Paddle escapes
            if column == "callstack"
            else _compact(found[index])
            for index in used.tolist()
        ]
        numbers = np.full(len(found) + 1, -1, np.int32)
        numbers[used] = self._numbers_of(texts)
        return numbers[values]

    def _numbers_of(self, texts: Sequence[str | None] | pl.Series) -> Array:
        """Return the number of each text in ``self.texts``, which gets the new ones; -1 for None."""
        labels = Labels.of(pl.Series(texts, dtype=pl.String).cast(pl.Categorical()))
        numbers = self.texts.numbers(text.encode("utf-8", "replace") for text in labels.texts)
        return np.append(numbers, np.int32(-1))[labels.number]

    def add_decoded(self, pieces: Iterable[tuple[int, Sequence[PaddleEvent]]]) -> None:
        """Add decoded events, piece by piece.

        Pass many small pieces in one call: it costs as much as a call with one large piece.

        Args:
            pieces: pairs of the file's offset at which a piece begins, and the events of the piece.
        """
        kinds: dict[str, tuple[list[int], list[PaddleEvent]]] = {kind: ([], []) for kind in COLUMNS}
        for first, events in pieces:
            for position, event in enumerate(events, first):
                kind = self._kind(event)
                if kind:
                    positions, chosen = kinds[kind]
                    positions.append(position)
                    chosen.append(event)
        for kind, (positions, chosen) in kinds.items():
            if chosen:
                self._add_kind(kind, positions, chosen)

    @property
    def is_empty(self) -> bool:
        """Whether no event of any kind was collected."""
        return not self._parts

    def table(self, kind: str) -> dict[str, Array]:
        """Return the columns of a kind in the order of the file, and remove them from this object.

        The columns are those of `COLUMNS`. Columns of `OPTIONAL` that no event has are left out.
        """
        parts = self._parts.pop(kind, [])
        lengths = [len(part["position"]) for part in parts]
        table: dict[str, Array] = {}
        for column in COLUMNS[kind]:
            if column in OPTIONAL and not any(column in part for part in parts):
                continue
            pieces = [
                part.pop(column) if column in part else _missing_column(column, length)
                for part, length in zip(parts, lengths)
            ]
            table[column] = np.concatenate(pieces) if pieces else _missing_column(column, 0)
        position = table["position"]
        if (position[1:] < position[:-1]).any():
            order = np.argsort(position, kind="stable")
            for column, values in table.items():
                table[column] = values[order]
        return table

    def _kind(self, event: PaddleEvent) -> str | None:
        args = event.args or _NO_ARGS
        if event.ph == "X":
            if not event.cat:
                self.skipped["events without a category"] += 1
                return None
            if args.folded is not None:
                self.ignored["folded phases"] += 1
                return None
            if event.cat in _ON_DEVICE or args.stream is not None:
                return "device"
            return "launch" if args.correlation_id is not None else "host"
        if event.name == "[memory]":
            if args.increase_bytes is not None:
                return "memory"
            self.skipped["memory events without a size"] += 1
            return None
        if event.ph == "M" and event.name == "thread_name":
            match = _THREAD_NAME.fullmatch(str(args.name))
            if match:
                self.thread_names[match[1]] = match[2]
        if event.ph in IGNORED_PHASES:
            self.ignored[IGNORED_PHASES[event.ph]] += 1
        elif event == _EMPTY:
            self.ignored["empty objects"] += 1
        else:
            self.skipped["events of an unknown ph"] += 1
        return None

    def _add_kind(self, kind: str, positions: list[int], events: list[PaddleEvent]) -> None:
        args = [event.args or _NO_ARGS for event in events]
        columns = {"position": np.array(positions, np.int64), **_numbers_of(kind, events, args)}
        columns.update(
            (column, self._numbers_of(texts)) for column, texts in _texts_of(kind, events, args)
        )
        complete = _is_complete(kind, columns)
        if not complete.all():
            self.skipped[_INCOMPLETE] += int((~complete).sum())
            columns = {column: values[complete] for column, values in columns.items()}
            events = list(compress(events, complete.tolist()))
        if any(b"." not in bytes(event.ts) for event in events):
            self.ts_is_exact = False
        self._parts[kind].append({name: columns[name] for name in COLUMNS[kind] if name in columns})


def _numbers_of(
    kind: str, events: Sequence[PaddleEvent], args: Sequence[PaddleArgs]
) -> dict[str, Array]:
    """Return the columns of numbers, by name; `MISSING` or NaN for missing or impossible values.

    A column of `OPTIONAL` that no event has is left out.
    """
    dtypes = {
        name: dtype
        for name, dtype in _INTEGERS.items()
        if name in COLUMNS[kind] and not (name in OPTIONAL and _is_absent(name, args))
    }
    columns = [
        nanoseconds("ts", texts(event.ts for event in events)),
        pl.Series("pid", [event.pid for event in events], pl.Int64, strict=False),
        pl.Series("tid", [_thread_id(event.tid) for event in events], pl.Int64),
        *attribute_columns(args, dtypes),
    ]
    if kind == "memory":
        size, addr = attribute_columns(args, {"increase_bytes": pl.Int64, "addr": pl.UInt64})
        (negative,) = attribute_columns(args, {"addr": pl.Int64})
        addr = addr.reinterpret(signed=True).fill_null(negative)
        return _arrays([*columns, size.alias("bytes"), addr])
    columns += (
        nanoseconds("dur", texts(event.dur for event in events)),
        nanoseconds("begin", _microseconds([arg.start_time for arg in args])),
        nanoseconds("finish", _microseconds([arg.end_time for arg in args])),
    )
    if kind != "device":
        return _arrays(columns)
    for side in ("grid", "block"):
        text = pl.Series(texts(getattr(arg, side) for arg in args), dtype=pl.String)
        lengths = text.str.extract_groups(_THREE).struct.unnest()
        columns += (
            length.cast(pl.Int64, strict=False).alias(f"{side}_{axis}")
            for axis, length in zip("xyz", lengths)
        )
    arrays = _arrays([*columns, *attribute_columns(args, dict.fromkeys(REALS, pl.Float64))])
    arrays["occupancy"] = arrays["occupancy"] / 100
    # If the args lack device or stream, the event's track has them.
    for column, track in (("device", "pid"), ("stream", "tid")):
        arrays[column] = np.where(arrays[column] == MISSING, arrays[track], arrays[column])
    return arrays


def _arrays(columns: Iterable[pl.Series]) -> dict[str, Array]:
    """Return columns of int64 or float64 as arrays, by name; `MISSING` or NaN for null."""
    return {
        column.name: (
            column.fill_null(np.nan if column.dtype.is_float() else int(MISSING))
            if column.null_count()
            else column
        ).to_numpy()
        for column in columns
    }


def _texts_of(
    kind: str, events: Sequence[PaddleEvent], args: Sequence[PaddleArgs]
) -> Iterator[tuple[str, Sequence[str | None] | pl.Series]]:
    """Yield the name and the values of each column of texts, without those that no event has."""
    for column in COLUMNS[kind]:
        if column == "name":
            names = pl.Series([event.name for event in events], dtype=pl.String)
            yield column, names.str.replace(_DURATION, "")
        elif column == "cat":
            yield column, [event.cat for event in events]
        elif column in INPUT_KEYS and column != "callstack":
            raws = list(map(operator.attrgetter(INPUT_KEYS[column]), args))
            if any(map(len, raws)):
                known = {raw: compact(raw) for raw in set(map(bytes, raws))}
                yield column, [known[bytes(raw)] for raw in raws]
        elif column in TEXTS and not _is_absent(column, args):
            values = map(operator.attrgetter(column), args)
            is_missing = operator.not_ if column == "callstack" else partial(operator.is_, None)
            yield column, [None if is_missing(value) else str(value) for value in values]


def _is_absent(column: str, args: Sequence[PaddleArgs]) -> bool:
    return list(map(operator.attrgetter(column), args)).count(None) == len(args)


def _is_complete(kind: str, columns: Mapping[str, Array]) -> Bool:
    """Return whether each event has every field that an event must have, shape (N,).

    These are a start; a duration of at least 0, except for memory events; and device and stream of
    a device event, process and thread of any other event.
    """
    complete: Bool = columns["ts"] != MISSING
    for column in ("device", "stream") if kind == "device" else ("pid", "tid"):
        complete &= columns[column] != MISSING
    if kind != "memory":
        complete &= columns["dur"] >= 0
    return complete


def _missing_column(column: str, length: int) -> Array:
    if column in REALS:
        return np.full(length, np.nan)
    if column in TEXTS:
        return np.full(length, -1, np.int32)
    return np.full(length, MISSING)


@lru_cache(1024, typed=True)
def _thread_id(tid: Scalar) -> int | None:
    """Return the N of ``"N(C++)"``, ``"N(Python)"``, ``"N"`` or N; None for other values."""
    if isinstance(tid, str):
        number = tid.partition("(")[0].strip()
        return int(number) if re.fullmatch(r"-?[0-9]{1,18}", number) else None
    return tid if isinstance(tid, int) and abs(tid) < 2**63 else None


def _microseconds(values: Sequence[Scalar]) -> pl.Series:
    """Return the text of the number in texts such as ``"1.500 us"``; null for other values."""
    return pl.Series(values, dtype=pl.String, strict=False).str.extract(r"(?s)^(.*) us$", 1)


def _compact(text: bytes) -> str | None:
    inputs = compact(text)
    if inputs is None:
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DamagedError from error
    return inputs


def _unescaped(text: bytes) -> bytes:
    """Return a text between quotation marks without escapes; an unpaired surrogate becomes a `?`."""
    try:
        content = json.loads(f'"{text.decode("utf-8", "replace")}"', strict=False)
    except ValueError:
        return text
    return str(content).encode("utf-8", "replace")
