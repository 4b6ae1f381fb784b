"""Read JSON traces of Paddle or Kineto, valid or broken, in the fastest way.

The compiled core scans a file whose events begin like those of a known writer by its fixed layout,
and only events that differ from the layout are decoded. Any other file is decoded completely, and so is
every file without the core, and a damaged one. Both ways give the same trace and differ only in speed.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby
from pathlib import Path

import polars as pl

from ppprof.errors import TraceError
from ppprof.trace.consistency import with_sound_times
from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.fixed_layout import Ranges
from ppprof.trace.fastpath.layouts import DIALECTS, dialect_of
from ppprof.trace.fastpath.native.scanner import Scanner, scanned_ranges
from ppprof.trace.fastpath.ranges import can_divide
from ppprof.trace.json.batches import Batches, decoded_batches
from ppprof.trace.json.recovery import HEAD_BYTES, INVALID_EVENTS, MISFIT_FIELDS, EventDecoder
from ppprof.trace.json.values import drop_nonportable_numbers
from ppprof.trace.json_head import Keys, is_kineto, other_writer, read_keys
from ppprof.trace.other_formats import writer_of
from ppprof.trace.paddle.json_columns import (
    DamagedError,
    PaddleColumns,
    PaddleEvent,
    by_rank,
    rank_of,
)
from ppprof.trace.paddle.json_events import paddle_tables
from ppprof.trace.schema import CATEGORIES, Note, Trace
from ppprof.trace.source import BLOCK_BYTES, Progress, TraceStream
from ppprof.trace.steps import with_step_mark
from ppprof.units import TRUNCATED, format_counts, format_ranges, format_unusable

_OTHER_WRITERS = ("asynchronous spans", "counters", "flows")
"""Events that no table needs, and that a trace of Paddle's or torch's profiler never consists of."""
_LARGE_BYTES = 32 << 20
"""After a larger file is read, freed memory is returned to the system (`_trim_heap`)."""


def read_json_ranks(
    path: str | Path, progress: Progress | None = None, step_mark: str | None = None
) -> dict[int, Trace]:
    """Return rank -> its trace for a JSON file, packed with gzip or not; rank 0 for a single trace.

    All readable events are read. `Trace.skipped` of the first rank counts the unreadable parts.

    Args:
        path: the file.
        progress: called with the number of bytes read so far and the size of the file.
        step_mark: a regular expression for the names of the spans that begin steps; None for the
            recorded steps.

    Raises:
        TraceError: the file is missing or unreadable, unpacks to too many bytes, or holds no trace
            of Paddle's or torch's profiler; says where and why.
    """
    library = core.library()
    try:
        return _read_ranks(path, progress, step_mark, library)
    except DamagedError:
        return _read_ranks(path, progress, step_mark, None)


def _read_ranks(
    path: str | Path, progress: Progress | None, step_mark: str | None, library: ctypes.CDLL | None
) -> dict[int, Trace]:
    """Do what `read_json_ranks` does, with the compiled core if there is a ``library``.

    Raises:
        DamagedError: only with a ``library``; the file has to be read without it.
    """
    skipped: Counter[str] = Counter()
    with TraceStream(path, progress) as source:
        keys = read_keys(source)
        # The schema version decides; without one, events do.
        text = source.peek(HEAD_BYTES if "schemaVersion" in keys else BLOCK_BYTES)
        if is_kineto(keys, text):
            # Most traces are Paddle's, and need none of this.
            from ppprof.trace.kineto.events import kineto_trace
            from ppprof.trace.kineto.reader import read_kineto_columns

            columns = read_kineto_columns(source, keys, skipped)
            if source.size > _LARGE_BYTES:
                _trim_heap()
            traces = {
                rank: kineto_trace(keys, part, step_mark)
                for rank, part in columns.by_rank(path).items()
            }
        else:
            traces = {
                rank: with_step_mark(trace, step_mark)
                for rank, trace in _paddle_traces(source, library, keys, skipped).items()
            }
        if progress:
            progress(source.size, source.size)
        if source.damage:
            skipped[f"{TRUNCATED} ({source.damage})"] += 1
    _check_writer(path, list(traces.values()), keys, skipped, text)
    if source.size > _LARGE_BYTES:
        _trim_heap()
    if len(traces) > 1:
        note: Note = ("several_ranks", {"ranks": format_ranges("rank", traces)})
        first = next(iter(traces))
        traces[first] = dataclasses.replace(traces[first], notes=(note, *traces[first].notes))
        for rank, trace in traces.items():
            if "rank" in trace.extra_info:  # that of one of the merged files
                own = {**trace.extra_info, "rank": str(rank)}
                traces[rank] = dataclasses.replace(trace, extra_info=own)
    for rank, trace in traces.items():
        counts = dict(sorted({**trace.skipped, **skipped}.items()))
        traces[rank] = with_sound_times(dataclasses.replace(trace, skipped=counts))
        skipped.clear()
    return traces


def _check_writer(
    path: str | Path,
    traces: Collection[Trace],
    keys: Keys,
    skipped: Mapping[str, int],
    text: bytes,
) -> None:
    """Reject a file whose events are all of another writer than Paddle's or torch's profiler."""
    events = [trace.events for trace in traces if trace.events.height]
    if not events:
        unread = Counter(dict(skipped))
        for trace in traces:
            if trace.memory.height or trace.frames.height:
                return
            unread.update(trace.skipped)
            unread.update({kind: trace.ignored.get(kind, 0) for kind in _OTHER_WRITERS})
        kinds = {
            kind: num
            for kind, num in unread.items()
            if num and kind != MISFIT_FIELDS and not kind.startswith(TRUNCATED)
        }
        if set(kinds) == {INVALID_EVENTS} and not keys:
            raise TraceError(f"{path}: a JSON list, but none of its items is an event of a trace")
        if kinds and set(kinds) != {INVALID_EVENTS}:
            writer = writer_of(text)
            if writer is None:
                raise TraceError(format_unusable(path, kinds))
            raise other_writer(path, writer, f" ({format_counts(kinds)})")
        return
    if "schemaVersion" in keys:
        return
    categories = pl.concat(table["category"] for table in events)
    if not categories.is_in(CATEGORIES).any():
        first = ", ".join(categories.unique().cast(str).sort().head(5))
        raise TraceError(
            f"{path}: events of neither Paddle's nor torch's profiler (\"cat\": {first})"
        )


def _paddle_traces(
    source: TraceStream, library: ctypes.CDLL | None, keys: Keys, skipped: Counter[str]
) -> dict[int, Trace]:
    columns = {0: PaddleColumns(skipped)}
    dialect = dialect_of(source.peek(HEAD_BYTES))
    if dialect and library:
        _scan_events(source, dialect, library, columns[0], keys)
    else:
        escapes = DIALECTS[dialect].escapes if dialect else True
        reader = EventDecoder(PaddleEvent, source.path, skipped, escapes=escapes)
        for begin, decoded in decoded_batches(source, reader, keys):
            for rank, first, events in by_rank(begin, decoded):
                if rank not in columns:
                    columns[rank] = PaddleColumns(skipped)
                columns[rank].add_decoded([(first, events)])
    if len(columns) > 1 and columns[0].is_empty:  # it has the metadata of all ranks
        metadata = columns.pop(0)
        columns[min(columns)].ignored += metadata.ignored
    return {rank: _paddle_trace(columns[rank], keys) for rank in sorted(columns)}


def _paddle_trace(columns: PaddleColumns, keys: Keys) -> Trace:
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
    """Add the events of a file to ``columns``: read them by their fixed layout, and decode the others.

    Raises:
        DamagedError: others are not valid JSON, or are of several ranks, or the list has no end.
    """
    dialect = DIALECTS[name]
    problems: Counter[str] = Counter()
    reader = EventDecoder(PaddleEvent, source.path, problems, escapes=dialect.escapes)
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
            body = (reader.without_end(piece, keys) if has_end else piece).strip(b" \t\r\n,")
            events = reader.valid_events(body) if body else []
            if events is None or problems or any(map(rank_of, events)):
                raise DamagedError
            yield first, events

    if can_divide(source):
        for scanned in scanned_ranges(source, name):
            columns.add_scanned(scanned, dialect)
            for ranges in _nearby(scanned.unmatched):
                columns.add_decoded(decoded(ranges, _texts(source, ranges), source.size))
    else:
        scanner = Scanner(dialect, library)
        for block in source.blocks(dialect.last_start, num_bytes=scanner.block_bytes):
            end = block.end if block.is_last else None
            columns.add_decoded(decoded(scanner.add(block) or [], block.between, end))
        columns.add_scanned(scanner.scanned(), dialect)
    if not has_end:
        raise DamagedError


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
    """Return small freed pieces to the system, up to a third of the size of a trace; only glibc keeps them."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
