"""The beginning of a JSON trace: where its events are, and who wrote it."""

from __future__ import annotations

import re
from typing import Any

from ppprof.errors import TraceError
from ppprof.trace.fastpath.layouts import dialect_of
from ppprof.trace.fastpath.native.scanner import new_scans as scans_of_paddle
from ppprof.trace.fastpath.ranges import RangeScans
from ppprof.trace.json.recovery import HEAD_BYTES, keys_before, start_of_events
from ppprof.trace.other_formats import writer_of
from ppprof.trace.source import BLOCK_BYTES, MAX_EVENT_BYTES, TraceStream

Keys = dict[str, Any]

_KINETO = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|python_function|user_annotation|kernel|gpu_\w+|cuda_\w+|cpu_instant_event|'
    rb'Runtime|ac2g|fwdbwd|Trace)"'
)
_OTHER = re.compile(
    rb'"ph"\s*:\s*"[BEbe]"|"(pid|ts|dur)"\s*:\s*"|"(CANN|Ascend Hardware|CPU HIP API)"'
)
"""What other writers write, and Paddle does not: pairs, numbers in quotes, names of processes."""
_PADDLE = re.compile(rb'"cname"\s*:|"start_time"\s*:')


def read_keys(source: TraceStream) -> Keys:
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
            writer = writer_of(text)
            if writer is not None:
                raise other_writer(source.path, writer)
            raise TraceError(
                f'{source.path}: no list of events ("traceEvents": [...]) in its '
                f"{'first ' if more else ''}{len(text)} bytes; expected the JSON of Paddle's or "
                "torch's profiler"
            )
        text += more


def other_writer(path: object, writer: str, skipped: str = "") -> TraceError:
    """Return the error for a file of a writer that is known, and not read."""
    return TraceError(
        f"{path}: a file of {writer}, which ppprof does not read{skipped}; expected JSON of "
        "Paddle's or torch's profiler, of torch_npu or msprof, or of rocprof"
    )


def looks_like_kineto(head: bytes) -> bool:
    """Return whether the beginning of a file is JSON of torch's profiler."""
    start = start_of_events(head) if head.lstrip()[:1] in (b"{", b"[") else -1
    if start < 0 or not is_kineto(keys_before(head[:start]), head[start:]):
        return False
    return b'"schemaVersion"' in head[:start] or bool(_KINETO.search(head))


def is_kineto(keys: Keys, text: bytes) -> bool:
    """Return whether the file is Kineto's, or that of another writer than Paddle.

    Kineto's schema version is a number, Paddle's is a string. If the file has no schema version,
    the events at the beginning of ``text`` decide.
    """
    version = keys.get("schemaVersion")
    if version is not None:
        return isinstance(version, (int, float))
    return bool(_KINETO.search(text) or _OTHER.search(text)) and not _PADDLE.search(text)


def new_scans(source: TraceStream) -> RangeScans[Any] | None:
    """Return threads that read the events of a file; None if the fastest readers do not know it.

    Args:
        source: the file, just opened; `can_divide` is true.
    """
    head = source.peek(HEAD_BYTES)
    start = start_of_events(head)
    if start < 0:
        return None
    source.read(start)
    keys, dialect = keys_before(head[:start]), dialect_of(head[start:])
    if is_kineto(keys, head[start:]):
        # Most traces are Paddle's, and need none of this.
        from ppprof.trace.kineto.compiled_reader import new_scans as scans_of_kineto
        from ppprof.trace.kineto.compiled_reader import part_bounds

        return scans_of_kineto(source, part_bounds(source))
    return scans_of_paddle(source, dialect) if dialect else None
