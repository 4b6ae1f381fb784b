"""What the compiled core reads of Kineto's events, and the threads that do."""

from __future__ import annotations

import msgspec

from ppprof.paths import is_remote
from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.fixed_layout import Ranges
from ppprof.trace.fastpath.native.event_reader import (
    EventClass,
    EventForms,
    EventReader,
    EventTable,
)
from ppprof.trace.fastpath.native.store import Control
from ppprof.trace.fastpath.ranges import RangeScans, can_divide, range_bounds
from ppprof.trace.json.recovery import first_event_start
from ppprof.trace.json.trace_events import IGNORED_PHASES
from ppprof.trace.kineto.event_fields import (
    ANNOTATION,
    ARGS,
    COLLECTIVE_CALL,
    DEQUEUE,
    DETAILS,
    ENQUEUE,
    FRAME,
    IGNORED_SPANS,
    OVERHEAD,
    PROCESS_NAMES,
    Columns,
    KinetoArgs,
)
from ppprof.trace.kineto.names import DEVICES, LAUNCHES, LEAST_FRAME_NS, MODULE, OPERATORS
from ppprof.trace.source import BLOCK_BYTES, TraceStream

KINETO = "kineto"
"""The writer of these files, as `RangeScans` names it."""
_TAIL_BYTES = 1 << 20
"""Bytes at the end of a file, about, that are left to the caller: the list of events ends there."""

_KEYS = {
    field.name: (field.encode_name, field.type is msgspec.Raw)
    for field in msgspec.structs.fields(KinetoArgs)
}
"""Column -> its key in ``args``, and whether its value may be any JSON."""
_CONVERSIONS = {"Int64": "d", "UInt64": "u", "Float64": "g", "String": "s", "Categorical": "s"}
_SPAN = {
    **{"name": ("name", "s"), "cat": ("cat", "s"), "process": ("pid", "d"), "thread": ("tid", "d")},
    **{"start_ns": ("ts", "t"), "dur_ns": ("dur", "t")},
}
INPUTS: Columns = dict.fromkeys(("dims", "types", "concrete"), "String")
CALLS: Columns = {"collective": "String"}


def _args(columns: Columns) -> dict[str, tuple[str, str]]:
    """Return the fields of an `EventTable` for columns that come from ``args``."""
    return {
        column: (f"args.{_KEYS[column][0]}", "r" if _KEYS[column][1] else _CONVERSIONS[dtype])
        for column, dtype in columns.items()
    }


def _arg(column: str) -> str:
    return f"args.{_KEYS[column][0]}"


_TABLES = {
    **{kind: EventTable({**_SPAN, **_args(columns)}) for kind, columns in ARGS.items()},
    **{
        name: EventTable(_args(columns), _arg(required))
        for name, (_, required, columns) in DETAILS.items()
    },
    "inputs": EventTable(_args(INPUTS), _arg("dims")),
    "calls of collectives": EventTable(_args(CALLS), _arg("collective")),
}
TEXTS = {
    column: conversion
    for table in _TABLES.values()
    for column, (_, conversion) in table.fields.items()
    if conversion in ("s", "r")
}
"""Column of texts -> its conversion; see `EventTable`."""
_HOST = ("hosts", *(name for name, (kind, _, _) in DETAILS.items() if kind == "hosts"))
_DEVICE = ("devices", *(name for name, (kind, _, _) in DETAILS.items() if kind == "devices"))
CLASSES = (
    *(EventClass(name=name, is_decoded=True) for name in ("thread_name", *PROCESS_NAMES)),
    *(
        EventClass((*_HOST, "inputs", "calls of collectives"), "X", cat, COLLECTIVE_CALL)
        for cat in sorted(OPERATORS)
    ),
    EventClass(name=COLLECTIVE_CALL, is_decoded=True),
    *(EventClass((*_HOST, "inputs"), "X", cat) for cat in sorted(OPERATORS)),
    EventClass(_HOST, "X", "user_annotation"),
    EventClass(_HOST, "X", FRAME, f"{MODULE}*"),
    EventClass(("frames",), "X", FRAME, least_dur_ns=LEAST_FRAME_NS),
    EventClass((), "X", FRAME),
    EventClass(("overheads",), "X", OVERHEAD),
    EventClass(("annotations",), "X", ANNOTATION),
    *(EventClass(("launches",), "X", cat) for cat in sorted(LAUNCHES)),
    *(EventClass(_DEVICE, "X", cat) for cat in DEVICES),
    EventClass(("memory",), "i", name="[memory]"),
    *(EventClass((), ph) for ph in IGNORED_PHASES),
    EventClass((), "X", ENQUEUE, is_decoded=True),
    EventClass((), "X", DEQUEUE, is_decoded=True),
    *(EventClass((), "X", cat) for cat in sorted(IGNORED_SPANS - {FRAME, OVERHEAD, ANNOTATION})),
    EventClass(_DEVICE, "X", "", either=(_arg("stream"), _arg("device"))),
)
FORMS = EventForms(dict(_KEYS.values()), _TABLES, CLASSES)
"""What the compiled reader reads of Kineto's events."""


Scan = tuple[EventReader, Ranges]
"""A reader of the events of a range, and the byte ranges that it leaves to the decoder, ascending."""


def part_bounds(source: TraceStream) -> list[int]:
    """Return the offsets at which a file is divided into parts: the first event, and further ones.

    They follow from the file alone, so that all cores, with any number of threads, read the same
    blocks. A file in a store, or packed with gzip, is not divided.
    """
    if source.is_packed or is_remote(source.path):
        return [source.position]
    bounds = range_bounds(source, source.position, first_event_start)
    tail = source.find(max(source.size - _TAIL_BYTES, bounds[-1]), first_event_start)
    return bounds if tail is None else [*bounds, tail]


def new_scans(source: TraceStream, bounds: list[int]) -> RangeScans[Scan] | None:
    """Return scans of the parts of a file but the last one; None if threads cannot read them."""
    if len(bounds) < 2 or not can_divide(source):
        return None
    return RangeScans(source, KINETO, bounds, _scan)


def _scan(source: TraceStream, first: int, end: int, control: Control) -> Scan | None:
    """Return the scan of a part, None if it is not valid JSON."""
    library = core.library()
    assert library is not None
    reader = EventReader(FORMS, library)
    if reader.add_range(source, first, end, BLOCK_BYTES, control) and control.position == end:
        return reader, reader.ranges()
    return None
