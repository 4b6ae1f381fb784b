"""Read JSON traces of Paddle or Kineto, valid or broken, in the fastest way.

The compiled core scans a file whose events begin like those of a known writer by its fixed layout,
and only events that differ from the layout are decoded. Any other file is decoded completely, and
every file without the core. Both ways give the same trace and differ only in speed.
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
from typing import Any

from ppprof.errors import TraceError
from ppprof.trace.consistency import with_sound_times
from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.ahead import take_begun_scan
from ppprof.trace.fastpath.fixed_layout import Ranges
from ppprof.trace.fastpath.layouts import DIALECTS, dialect_of
from ppprof.trace.fastpath.native.scanner import Scanner
from ppprof.trace.fastpath.ranges import RangeScans, can_divide
from ppprof.trace.json.batches import Batches, decoded_batches
from ppprof.trace.json.recovery import (
    HEAD_BYTES,
    EventDecoder,
    keys_before,
    start_of_events,
)
from ppprof.trace.json.values import drop_nonportable_numbers
from ppprof.trace.paddle.json_columns import PaddleColumns, PaddleEvent
from ppprof.trace.paddle.json_events import paddle_tables
from ppprof.trace.schema import CATEGORIES, Trace
from ppprof.trace.source import BLOCK_BYTES, MAX_EVENT_BYTES, Progress, TraceStream
from ppprof.units import TRUNCATED

Keys = dict[str, Any]

_LARGE_BYTES = 32 << 20
"""After a larger file is read, freed memory is returned to the system (`_trim_heap`)."""
_KINETO = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|python_function|user_annotation|kernel|gpu_\w+|cuda_\w+|cpu_instant_event|'
    rb'Runtime|ac2g|fwdbwd|Trace)"'
)
_PADDLE = re.compile(rb'"cname"\s*:|"start_time"\s*:')


def read_json(path: str | Path, *, progress: Progress | None = None) -> Trace:
    """Return the trace in a JSON file, packed with gzip or not.

    All readable events are read. `Trace.skipped` counts the unreadable parts.

    Raises:
        TraceError: the file is missing or unreadable, unpacks to too many bytes, or holds no trace
            of Paddle's or torch's profiler; says where and why.
    """
    skipped: Counter[str] = Counter()
    with TraceStream(path, progress) as source:
        keys = _keys_before(source)
        # The schema version decides; without one, events do.
        text = source.peek(HEAD_BYTES if "schemaVersion" in keys else BLOCK_BYTES)
        if _is_kineto(keys, text):
            # Most traces are Paddle's, and need none of this.
            from ppprof.trace.kineto.events import kineto_trace
            from ppprof.trace.kineto.reading import read_kineto_columns

            columns = read_kineto_columns(source, keys, skipped, progress)
            if source.size > _LARGE_BYTES:
                _trim_heap()
            trace = kineto_trace(keys, columns)
        else:
            trace = _paddle_trace(source, dialect_of(text), keys, skipped)
        if progress:
            progress(source.size, source.size)
        if source.damage:
            skipped[f"{TRUNCATED} ({source.damage})"] += 1
    if trace.events.is_empty() and skipped and not keys:
        raise TraceError(f"{path}: a JSON list, but none of its items is an event of a trace")
    is_known = "schemaVersion" in keys or trace.events["category"].is_in(CATEGORIES).any()
    if trace.events.height and not is_known:
        categories = ", ".join(trace.events["category"].unique().cast(str).sort().head(5))
        raise TraceError(
            f"{source.path}: events of neither Paddle's nor torch's profiler "
            f'("cat": {categories})'
        )
    if source.size > _LARGE_BYTES:
        _trim_heap()
    return with_sound_times(dataclasses.replace(trace, skipped={**trace.skipped, **skipped}))


def _keys_before(source: TraceStream) -> Keys:
    """Return the keys before the list of events, and move ``source`` behind the list's bracket.

    Raises:
        TraceError: the file has no list of events.
    """
    text = source.read(HEAD_BYTES)
    while True:
        start = start_of_events(text)
        if start >= 0:
            source.unread(text[start:])
            return keys_before(text[:start])
        more = source.read(BLOCK_BYTES)
        if not more or len(text) > MAX_EVENT_BYTES:
            raise TraceError(
                f'{source.path}: no list of events ("traceEvents": [...]) in its '
                f"{'first ' if more else ''}{len(text)} bytes; expected the JSON of Paddle's or "
                "torch's profiler"
            )
        text += more


def looks_like_kineto(head: bytes) -> bool:
    """Return whether the beginning of a file is JSON of torch's profiler."""
    start = start_of_events(head) if head.lstrip()[:1] in (b"{", b"[") else -1
    return start >= 0 and _is_kineto(keys_before(head[:start]), head[start:])


def _is_kineto(keys: Keys, text: bytes) -> bool:
    """Return whether the file is Kineto's.

    Kineto's schema version is a number, Paddle's is a string. If the file has no schema version,
    the events at the beginning of ``text`` decide.
    """
    version = keys.get("schemaVersion")
    if version is not None:
        return isinstance(version, (int, float))
    return bool(_KINETO.search(text)) and not _PADDLE.search(text)


def _paddle_trace(
    source: TraceStream, dialect: str | None, keys: Keys, skipped: Counter[str]
) -> Trace:
    columns = PaddleColumns(skipped)
    library = core.library()
    if dialect and library:
        _scan_events(source, dialect, library, columns, keys)
    else:
        escapes = DIALECTS[dialect].escapes if dialect else True
        reader = EventDecoder(PaddleEvent, source.path, skipped, escapes=escapes)
        for first, decoded in decoded_batches(source, reader, keys):
            columns.add_decoded([(first, decoded)])
    events, memory, kernels, memsets = paddle_tables(columns)
    return Trace(
        events=events,
        memory=memory,
        kernels=kernels,
        memsets=memsets,
        version=str(keys.get("schemaVersion", "")),
        span=_integer(keys.get("span_index", keys.get("span_indx"))),
        extra_info={
            **{thread: name for thread, name in columns.thread_names.items() if name},
            **_extra_info(keys.get("ExtraInfo")),
        },
        devices=_devices(keys.get("deviceProperties")),
        ignored=dict(columns.ignored),
    )


def _scan_events(
    source: TraceStream, name: str, library: ctypes.CDLL, columns: PaddleColumns, keys: Keys
) -> None:
    """Add the events of a file to ``columns``: read them by their fixed layout, or decode them.

    Only events that do not match the layout are decoded. The keys after the list of events are
    added to ``keys``.

    Args:
        source: the file, at the first event.
        name: key in `DIALECTS` of the file's writer.
        library: the library of `core.choose`.
        columns: collects the events.
        keys: collects the keys.
    """
    dialect = DIALECTS[name]
    reader = EventDecoder(PaddleEvent, source.path, columns.skipped, escapes=dialect.escapes)
    has_end = False

    def decoded(
        ranges: Ranges, text: Callable[[int, int], bytes], end: int | None
    ) -> Batches[PaddleEvent]:
        """Yield the offset and the events of each range of bytes.

        ``text`` returns the text of a range. ``end`` is the end of the file, None if no range
        reaches it.
        """
        nonlocal has_end
        for first, until in ranges:
            has_end = until == end
            piece = text(first, until)
            yield first, reader.last_events(piece, keys) if has_end else reader.events(piece)

    if can_divide(source):
        with RangeScans(source, name, take_begun_scan(source, name)) as scans:
            for scanned in scans.scanned():
                columns.add_scanned(scanned, dialect)
                for ranges in _nearby(scanned.unmatched):
                    columns.add_decoded(decoded(ranges, _texts(source, ranges), source.size))
    else:
        scanner = Scanner(dialect, library)
        for block in source.blocks(dialect.last_start, num_bytes=scanner.block_bytes):
            end = block.end if block.is_last else None
            columns.add_decoded(decoded(scanner.add(block), block.between, end))
        columns.add_scanned(scanner.scanned(), dialect)
    if not has_end:
        columns.skipped[TRUNCATED] += 1


def _nearby(ranges: Ranges) -> Iterator[Ranges]:
    """Yield ascending ranges, those together that begin in the same part of a file."""
    for _, nearby in groupby(ranges, lambda range_: range_[0] // BLOCK_BYTES):
        yield list(nearby)


def _texts(source: TraceStream, ranges: Ranges) -> Callable[[int, int], bytes]:
    """Return a function that returns the text of one of some ranges, which are read at once."""
    start = ranges[0][0]
    whole = source.between(start, ranges[-1][1])
    return lambda first, end: whole[first - start : end - start]


def _extra_info(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict):
        return {}
    return {key: str(item) for key, item in value.items() if isinstance(item, (str, int, float))}


def _devices(value: object) -> tuple[Mapping[str, object], ...]:
    devices = value if isinstance(value, list) else ()
    return tuple(drop_nonportable_numbers(device) for device in devices if isinstance(device, dict))


def _integer(value: object) -> int:
    try:
        number = int(str(value))
    except ValueError:
        return 0
    return number if abs(number) < 1 << 63 else 0


def _trim_heap() -> None:
    """Return freed memory to the operating system.

    glibc keeps small freed pieces, which add up to a third of the size of a trace. Without glibc
    this function does nothing.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
