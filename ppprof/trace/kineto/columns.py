"""Collect Kineto's events as columns, from the compiled reader and from the decoder."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import polars as pl

from ppprof.trace.json.trace_events import IGNORED_PHASES
from ppprof.trace.json.values import attribute_columns, nanoseconds, texts
from ppprof.trace.kineto.event_fields import (
    ANNOTATION,
    ARGS,
    COLLECTIVE_CALL,
    COLLECTIVE_SPAN,
    DETAILS,
    EMPTY,
    FRAME,
    IGNORED_SPANS,
    KINDS,
    NO_ARGS,
    OVERHEAD,
    PROCESS_NAMES,
    SPANS,
    WAIT,
    WAIT_SPAN,
    Columns,
    KinetoEvent,
    OtherArgs,
)
from ppprof.trace.kineto.inputs import converted_inputs
from ppprof.trace.kineto.names import LEAST_FRAME_NS, MODULE, OPERATORS
from ppprof.trace.kineto.other_writers import OtherEvents
from ppprof.trace.kineto.processes import ranks_of, split

_MIN_EVENTS = 1 << 15
"""Fewest decoded events in each part, except in the last one. Making a column costs as much as 1000
of its values, so parts should be large."""
_NOUNS = {
    **{"hosts": "host events", "launches": "launch events"},
    **{"devices": "device events", "memory": "memory events"},
}
_INTEGER = re.compile("-?[0-9]{1,18}")
_NUMBER = re.compile(r"(?:\[[^\]]*\])?[^0-9]*([0-9]{1,9})")
"""The number of a device or stream in an id that is text: ``GPU 0``, ``stream 7``, ``[TP00] 0``."""
_FIRST_ID = 1 << 40
"""Numbers of ids that are text begin here, above those of systems."""
_Events = list[tuple[int, KinetoEvent]]
"""Events with their positions."""


class KinetoColumns:
    """Kineto's events by kind, in the order of the file: the kinds of `SPANS`."""

    def __init__(self) -> None:
        self.thread_names: dict[str, str] = {}
        """Thread id -> name; the number of a device's stream counts as a thread id."""
        self.process_names: dict[int, str] = {}
        """Process id -> its names and labels, and the id itself where it is text."""
        self.ignored: Counter[str] = Counter()
        """Kind -> number of events that no table needs."""
        self.skipped: Counter[str] = Counter()
        """Kind -> number of events that cannot be used."""
        self._parts: defaultdict[str, list[pl.DataFrame]] = defaultdict(list)
        self._pending: _Events = []
        self._ids: dict[str, int] = {}
        self._others: OtherEvents | None = OtherEvents()
        self._has_tables = False
        """Whether each table has a part, if only an empty one."""

    def add_decoded(self, first: int, events: Sequence[KinetoEvent]) -> None:
        """Add the events of a piece of text at offset ``first``."""
        self._pending += enumerate(events, first)
        if len(self._pending) >= _MIN_EVENTS:
            self._convert_pending()

    def add_tables(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Add events as tables: those of `SPANS` and `DETAILS`, and ``inputs``.

        The columns of ``inputs`` are those of `converted_inputs`.
        """
        for name, table in tables.items():
            self._parts[name].append(table)

    def _convert_pending(self) -> None:
        """Convert the pending events to tables, so that their objects can be freed."""
        if self._has_tables and not self._pending:
            return
        self._has_tables = True
        by_kind: dict[str, _Events] = {kind: [] for kind in SPANS}
        pending, self._pending = self._pending, []
        for position, event in pending:
            if isinstance(event.pid, str) or isinstance(event.tid, str):
                self._number_ids(event)
            kind = KINDS.get(event.cat) if event.ph == "X" else None
            if kind is None:
                kind = self._unusual_kind(position, event)
            if kind is not None:
                by_kind[kind].append((position, event))
            if event.name == "thread_name" and event.args:
                self.thread_names[str(event.tid)] = str(event.args.name)
            elif event.name in PROCESS_NAMES and event.args and isinstance(event.pid, int):
                self._add_process_name(event.pid, str(event.args.name or event.args.labels))
        for _, event in by_kind["hosts"]:
            if _is_wait(event):
                event.name, event.cat, event.args = WAIT_SPAN, "user_annotation", None
        self.add_tables({kind: _spans(kind, events) for kind, events in by_kind.items()})
        self.add_tables(
            {name: _details(name, by_kind[kind]) for name, (kind, _, _) in DETAILS.items()}
        )
        self.add_tables({"inputs": _inputs(by_kind["hosts"])})

    def _convert_others(self) -> None:
        """Convert the events that could not be converted before the whole file was known."""
        self._convert_pending()
        others, self._others = self._others, None
        if others is not None:
            self._pending += others.resolved(self.process_names, self.skipped)
            self.ignored += others.counts
            self._convert_pending()

    def _number_ids(self, event: KinetoEvent) -> None:
        """Replace ids that are text by numbers: the number that the text is, else a new one.

        A device event without a device or stream in its args gets the number in the text.
        """
        is_device = KINDS.get(event.cat) == "devices"
        for field, place in (("pid", "device"), ("tid", "stream")):
            text = getattr(event, field)
            if isinstance(text, str) and text:
                if _INTEGER.fullmatch(text):
                    setattr(event, field, int(text))
                    continue
                number = self._ids.setdefault(text, _FIRST_ID + len(self._ids))
                setattr(event, field, number)
                if field == "pid":
                    self.process_names.setdefault(number, text)
                match = _NUMBER.match(text) if is_device else None
                if match:
                    event.args = event.args or OtherArgs()
                    if getattr(event.args, place) is None:
                        setattr(event.args, place, int(match[1]))

    def _add_process_name(self, process: int, name: str) -> None:
        names = self.process_names.get(process)
        self.process_names[process] = f"{names}, {name}" if names else name

    def by_rank(self, path: object) -> dict[int, KinetoColumns]:
        """Return rank -> its events, for a file of several processes; ``{0: self}`` for one process.

        Args:
            path: the file, for messages.

        Raises:
            TraceError: it is unknown which rank some device events belong to.
        """
        self._convert_others()
        tables = {name: self.table(name) for name in (*SPANS, *DETAILS, "inputs")}
        ranks = ranks_of(tables, self.process_names)
        if not ranks:
            self.add_tables(tables)
            return {0: self}
        num_events = sum(tables[kind].height for kind in _NOUNS)
        parts = {}
        for rank, part in split(tables, ranks, self.process_names, path).items():
            parts[rank] = columns = KinetoColumns()
            columns.thread_names, columns._has_tables = self.thread_names, True
            columns.add_tables(part)
            num_events -= sum(part[kind].height for kind in _NOUNS)
        first = next(iter(parts.values()))
        first.ignored, first.skipped = self.ignored, self.skipped
        if num_events:
            first.skipped["events of processes that are no ranks"] = num_events
        return parts

    def _unusual_kind(self, position: int, event: KinetoEvent) -> str | None:
        """Return the kind of an event that is in no table of `KINDS`; None, and count it, if none.

        A span of an unknown ``cat`` is a device event if it has a stream or a device, as accelerators
        of other makers write them.
        """
        if self._others is not None and self._others.add(position, event):
            return None
        if event.ph == "X":
            args = event.args or NO_ARGS
            is_on_device = args.stream is not None or args.device is not None
            if (event.cat == FRAME and event.name.startswith(MODULE)) or (
                event.cat == COLLECTIVE_SPAN and not is_on_device
            ):
                return "hosts"
            if event.cat in IGNORED_SPANS:
                self.ignored[event.cat] += 1
                if event.cat in (OVERHEAD, ANNOTATION):
                    return "overheads" if event.cat == OVERHEAD else "annotations"
                if event.cat == FRAME and _is_long(event):
                    return "frames"
            elif not event.cat:
                self.skipped["events without a category"] += 1
            elif is_on_device:
                return "devices"
            else:
                self.skipped[f"events of the unknown kind {event.cat}"] += 1
        elif event.name == "[memory]" and event.ph == "i":
            return "memory"
        elif event.ph in IGNORED_PHASES:
            self.ignored[IGNORED_PHASES[event.ph]] += 1
        elif event == EMPTY:
            self.ignored["empty objects"] += 1
        else:
            self.skipped["events of an unknown ph"] += 1
        return None

    def table(self, name: str, base_ns: int | None = None) -> pl.DataFrame:
        """Return a table of `SPANS` or `DETAILS`, or ``inputs``, in the order of the file. Called once for each.

        Args:
            name: the table.
            base_ns: nanoseconds to add to each recorded start; None for a table without starts.
        """
        self._convert_pending()
        parts = self._parts.pop(name)
        filled = [part for part in parts if part.height]
        if len(filled) > 1:
            table = pl.concat(filled, rechunk=True)
        else:
            table = filled[0] if filled else parts[0]
        if base_ns is not None:
            table = table.with_columns(pl.col("start_ns") + base_ns)
        return table if table["index"].is_sorted() else table.sort("index")

    def tables(self, base_ns: int) -> dict[str, pl.DataFrame]:
        """Return the hosts, launches, devices and memory events: kind -> table. Called once.

        Events without a time, process or thread are counted in ``skipped``, and so are events with a
        negative or missing duration. But a memory event without a duration is kept, with a duration of 0.

        Args:
            base_ns: nanoseconds to add to each recorded start.

        Returns:
            The columns are those of `SPANS`.
        """
        tables = {}
        for kind, noun in _NOUNS.items():
            table = self.table(kind, base_ns)
            if kind == "memory":  # instants
                table = table.with_columns(pl.col("dur_ns").fill_null(0))
            is_complete = table.select(
                (pl.col("dur_ns") >= 0).fill_null(False)
                & pl.all_horizontal(pl.col("start_ns", "process", "thread").is_not_null())
            ).to_series()
            num_incomplete = table.height - int(is_complete.sum())
            if num_incomplete:
                table = table.filter(is_complete)
                self.skipped[f"{noun} without time, process or thread"] = num_incomplete
            tables[kind] = table
        return tables


def dtypes_of(columns: Columns) -> dict[str, pl.DataType]:
    """Return the dtype of each column."""
    return {name: getattr(pl, dtype)() for name, dtype in columns.items()}


def _is_long(event: KinetoEvent) -> bool:
    try:
        return float(bytes(event.dur).strip(b'"')) * 1000 >= LEAST_FRAME_NS
    except ValueError:
        return False


def _is_wait(event: KinetoEvent) -> bool:
    """Return whether an event is the wait for a collective, which has an event of its own."""
    args = event.args
    return event.name == COLLECTIVE_CALL and args is not None and args.collective == WAIT


def _spans(kind: str, events: _Events) -> pl.DataFrame:
    """Return one row per event: the columns of `SPANS`. Unusable values are null."""
    args = [event.args or NO_ARGS for _, event in events] if ARGS[kind] else []
    return pl.DataFrame(
        [
            pl.Series("index", [index for index, _ in events], pl.Int64),
            pl.Series("name", [event.name for _, event in events], pl.Categorical),
            pl.Series("cat", [event.cat for _, event in events], pl.Categorical),
            pl.Series("process", [event.pid for _, event in events], pl.Int64, strict=False),
            pl.Series("thread", [event.tid for _, event in events], pl.Int64, strict=False),
            nanoseconds("start_ns", texts(event.ts for _, event in events)),
            nanoseconds("dur_ns", texts(event.dur for _, event in events)),
            *attribute_columns(args, dtypes_of(ARGS[kind])),
        ]
    )


def _details(name: str, events: _Events) -> pl.DataFrame:
    """Return one row for each event that has the arg of a table of `DETAILS`."""
    _, required, columns = DETAILS[name]
    rows = [
        (index, event.args)
        for index, event in events
        if event.args is not None and getattr(event.args, required) is not None
    ]
    return pl.DataFrame(
        [
            pl.Series("index", [index for index, _ in rows], pl.Int64),
            *attribute_columns([args for _, args in rows], dtypes_of(columns)),
        ]
    )


def _inputs(events: _Events) -> pl.DataFrame:
    """Return the inputs of the operators among events that have any."""
    rows = [
        (index, *texts([event.args.dims, event.args.types, event.args.concrete]))
        for index, event in events
        if event.args is not None and len(event.args.dims) and event.cat in OPERATORS
    ]
    recorded = dict.fromkeys(("dims", "types", "concrete"), pl.String())
    return converted_inputs(pl.DataFrame(rows, {"index": pl.Int64(), **recorded}, orient="row"))
