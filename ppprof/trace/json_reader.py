"""Traces in JSON, Paddle's or Kineto's, sound or broken: which, and how to read them fastest.

A file whose events begin as one of the known writers begins them is scanned by its fixed layout,
and only what differs from it is decoded; any other file is decoded as a whole. The two can differ
in speed only.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from ppprof.errors import TraceError
from ppprof.trace.fastpath.fixed_layout import Ranges, Scanner
from ppprof.trace.fastpath.layouts import DIALECTS, dialect_of
from ppprof.trace.fastpath.workers import ScanWorkers, stretches
from ppprof.trace.json.recovery import (
    EventText,
    keys_before,
    keys_behind,
    last_event,
    start_of_events,
    whole_events,
)
from ppprof.trace.json.values import without_odd_numbers
from ppprof.trace.kineto.columns import KinetoEvent
from ppprof.trace.kineto.events import kineto_trace
from ppprof.trace.paddle.json_columns import PaddleColumns, PaddleEvent
from ppprof.trace.paddle.json_events import paddle_tables
from ppprof.trace.schema import CATEGORIES, Trace
from ppprof.trace.source import BLOCK_BYTES, LONGEST_EVENT_BYTES, Progress, TraceStream
from ppprof.units import TRUNCATED

Event = TypeVar("Event")
Keys = dict[str, Any]
_Pieces = Iterator[tuple[int, list[Event]]]

_MOST_BLOCKS_AN_EVENT = 4
"""One that seems to be longer is broken."""
_LARGE_BYTES = 32 << 20
"""From here on what a reader leaves behind in memory matters."""
_KINETO = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|python_function|user_annotation|kernel|gpu_\w+|cuda_\w+|cpu_instant_event|'
    rb'Runtime|ac2g|fwdbwd|Trace)"'
)
_PADDLE = re.compile(rb'"cname"\s*:|"start_time"\s*:')


def read_json(path: str | Path, *, progress: Progress | None = None) -> Trace:
    """The trace in a JSON file, whether packed with gzip or not.

    Everything readable is read; ``lost`` counts the rest.

    Raises:
        TraceError: missing, unreadable, refused, or not a trace; says where and why.
    """
    skipped: Counter[str] = Counter()
    with TraceStream(path, progress) as source:
        keys = _keys_before(source)
        text = source.peek(BLOCK_BYTES)
        if _is_kineto(keys, text):
            events = EventText(KinetoEvent, source.path, skipped)
            trace = kineto_trace(keys, (batch for _, batch in _decoded(source, events, keys)))
        else:
            trace = _paddle(source, dialect_of(text), keys, skipped)
        if progress:
            progress(source.size, source.size)
        if source.damage:
            skipped[f"{TRUNCATED} ({source.damage})"] += 1
    if trace.events.is_empty() and skipped and not keys:
        raise TraceError(f"{path}: a JSON list, but nothing in it could be read as a trace's event")
    is_known = "schemaVersion" in keys or trace.events["category"].is_in(CATEGORIES).any()
    if trace.events.height and not is_known:
        found = ", ".join(trace.events["category"].unique().cast(str).sort().head(5))
        raise TraceError(
            f"{source.path}: events of neither Paddle's nor torch's profiler (\"cat\": {found})"
        )
    if source.size > _LARGE_BYTES:
        _trim_heap()
    return dataclasses.replace(trace, skipped={**trace.skipped, **skipped})


def _keys_before(source: TraceStream) -> Keys:
    """The keys before the list of events; the source then stands behind its bracket."""
    text = source.read(1 << 16)
    while True:
        at = start_of_events(text)
        if at >= 0:
            source.unread(text[at:])
            return keys_before(text[:at])
        more = source.read(BLOCK_BYTES)
        if not more or len(text) > LONGEST_EVENT_BYTES:
            raise TraceError(
                f'{source.path}: no list of events ("traceEvents": [...]) in its '
                f"{'first ' if more else ''}{len(text)} bytes; expected the JSON of Paddle's or "
                "torch's profiler"
            )
        text += more


def _is_kineto(keys: Keys, text: bytes) -> bool:
    """Paddle's schema version is a string, Kineto's a number; else by how events look."""
    version = keys.get("schemaVersion")
    if version is not None:
        return isinstance(version, (int, float))
    return bool(_KINETO.search(text)) and not _PADDLE.search(text)


def _decoded(source: TraceStream, reader: EventText[Event], keys: Keys) -> _Pieces[Event]:
    """Position and events of each piece; what follows the list is added to ``keys``."""
    begun = b""  # of an event that holds what looks like the beginning of another
    for block in source.blocks(last_event):
        first = block.first - len(begun)
        text = begun + block.text()
        if block.is_last:
            yield first, reader.last_events(text, keys)
            return
        begun = b""
        events = reader.sound_events(text)
        if events is None:
            starts, stop = whole_events(text)
            end = starts[-1]
            if text[end : end + 1] == b"]":
                found, is_all = keys_behind(text[end + 1 :] + source.peek(LONGEST_EVENT_BYTES))
                if is_all:
                    keys.update(found)
                    yield first, reader.events(text[:end])
                    return
            elif stop == len(text) and len(text) - end < _MOST_BLOCKS_AN_EVENT * len(block.buffer):
                text, begun = text[:end], text[end:]
            events = reader.events(text)
        yield first, events


def _paddle(source: TraceStream, dialect: str | None, keys: Keys, skipped: Counter[str]) -> Trace:
    columns = PaddleColumns(skipped)
    if dialect:
        _scan(source, dialect, columns, keys)
    else:
        reader = EventText(PaddleEvent, source.path, skipped)
        for first, decoded in _decoded(source, reader, keys):
            columns.add_decoded([(first, decoded)])
    events, memory, kernels, memsets = paddle_tables(columns)
    return Trace(
        events=events,
        memory=memory,
        kernels=kernels,
        memsets=memsets,
        version=str(keys.get("schemaVersion", "")),
        span=_whole(keys.get("span_index", keys.get("span_indx"))),
        extra_info={
            **{thread: name for thread, name in columns.thread_names.items() if name},
            **_extra_info(keys.get("ExtraInfo")),
        },
        devices=_devices(keys.get("deviceProperties")),
    )


def _scan(source: TraceStream, name: str, columns: PaddleColumns, keys: Keys) -> None:
    """Reads events by their fixed layout, the odd ones by decoding them."""
    dialect = DIALECTS[name]
    reader = EventText(PaddleEvent, source.path, columns.skipped, escapes=dialect.escapes)
    bounds = stretches(source, name)
    source.num_readers = len(bounds)
    is_whole = len(bounds) == 1
    has_end = False

    def decoded(
        odd: Ranges, text: Callable[[int, int], bytes], end: int | None
    ) -> _Pieces[PaddleEvent]:
        """Position and events of each range; ``end`` is that of the file, if it is reached."""
        nonlocal has_end
        for first, until in odd:
            has_end = until == end
            piece = text(first, until)
            yield first, reader.last_events(piece, keys) if has_end else reader.events(piece)

    scanner = Scanner(dialect)
    with ScanWorkers(source.path, name, bounds) as helpers:
        for block in source.blocks(dialect.last_start, None if is_whole else bounds[0]):
            end = block.end if block.is_last and is_whole else None
            columns.add_decoded(decoded(scanner.add(block), block.between, end))
        columns.add_scanned(scanner.scanned(), dialect)
        for scanned in helpers.scanned():
            columns.add_scanned(scanned, dialect)
            for _, odd in groupby(scanned.odd, lambda range_: range_[0] // BLOCK_BYTES):
                columns.add_decoded(decoded(list(odd), source.between, bounds[-1]))
    if not has_end:
        columns.skipped[TRUNCATED] += 1


def _extra_info(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict):
        return {}
    return {key: str(told) for key, told in value.items() if isinstance(told, (str, int, float))}


def _devices(value: object) -> tuple[Mapping[str, object], ...]:
    found = value if isinstance(value, list) else ()
    return tuple(without_odd_numbers(told) for told in found if isinstance(told, dict))


def _whole(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0


def _trim_heap() -> None:
    """Return freed memory to the system.

    glibc keeps what was freed in small pieces, a third of a trace; elsewhere nothing happens.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
