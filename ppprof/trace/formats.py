"""Choose a reader by a file's content, and a writer by a file's name.

Where each format is read and written::

    JSON       json_reader: of Paddle or Kineto; source: the file's bytes, block by block
      fast     fastpath: the fixed layouts of known writers, matched by compiled C or by numpy
      any      json/recovery decodes and repairs; json/values
      Paddle   paddle/json_columns -> json_tree -> json_events;  json_writer
      Kineto   kineto/reader: the compiled reader of events (native/events.c), and the decoder for
               what it leaves -> kineto/columns -> kineto/host_tree -> kineto/events
    protobuf   fastpath/protobuf_native -> paddle/pb_messages -> pb_reader -> raw_captures;  pb_writer
    timeline   merge: many ranks in one file; json/lines, as in paddle/json_writer
    all        schema: the tables; tree_arrays, steps, annotations
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ppprof.choices import ReadOptions, suffix_of
from ppprof.errors import TraceError
from ppprof.paths import store_errors_as_oserror, to_path
from ppprof.trace.communication_names import CommunicationNames
from ppprof.trace.event_lines import with_lines, with_stacks
from ppprof.trace.json_head import looks_like_kineto
from ppprof.trace.json_reader import read_json_ranks
from ppprof.trace.other_formats import signature_of
from ppprof.trace.schema import Trace
from ppprof.trace.source import Progress, TraceStream
from ppprof.trace.steps import with_step_mark
from ppprof.units import format_ranges


def read(
    path: str | Path,
    *,
    progress: Progress | None = None,
    cache: bool | None = None,
    reading: ReadOptions | None = None,
) -> Trace:
    """Return the trace in a file of one rank.

    A raw capture (``.pb``) is returned with the remote calls recorded beside it, see `read_window`;
    a trace of a run directory with its samples of Python stacks.

    Args:
        path: a file of any known format, local or in a store (``s3://bucket/a.json``).
        progress: called while a JSON file is read, and once at the end of any file.
        cache: has no effect; 0.4 will reject it.
        reading: what the user says about the trace; None for nothing.

    Raises:
        TraceError: the file is missing, unreadable, or not a trace, or holds several ranks; says
            where and why.
    """
    warn_of_cache(cache)
    traces = read_ranks(path, progress=progress, reading=reading)
    if len(traces) > 1:
        raise TraceError(
            f"{path}: {format_ranges('rank', traces)} in one file; "
            "ppprof.open reads each of them, `ppprof convert --to kineto` writes a file for each"
        )
    return next(iter(traces.values()))


def read_ranks(
    path: str | Path, *, progress: Progress | None = None, reading: ReadOptions | None = None
) -> dict[int, Trace]:
    """Return rank -> its trace for a file of several ranks, by rank; rank 0 for a file of one.

    The arguments and errors are those of `read`.
    """
    try:
        with store_errors_as_oserror(path):
            reading = reading or ReadOptions()
            traces = _read(path, progress, reading)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    if reading.communication:
        rule = CommunicationNames(reading.communication)
        traces = {rank: replace(trace, communicates=rule) for rank, trace in traces.items()}
    return traces


def warn_of_cache(cache: bool | None) -> None:
    """Warn a program that its caller's caller gives the parameter ``cache`` without effect."""
    if cache is not None:
        message = "cache has no effect: ppprof keeps no caches any more; 0.4 will reject it"
        warnings.warn(message, DeprecationWarning, stacklevel=3)


_FRAMEWORK_BYTES, _TEXT_BYTES = 4 << 20, 512


def framework_of(path: str | Path) -> str:
    """Return ``torch`` or ``paddle``: whose trace a file begins with.

    A trace of torch's profiler that was converted to another format is known by its operators.

    Raises:
        TraceError: the file is missing or unreadable.
    """
    try:
        with store_errors_as_oserror(path), TraceStream(path) as source:
            head = source.peek(_FRAMEWORK_BYTES)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    return "torch" if looks_like_kineto(head) or b"aten::" in head else "paddle"


def _read(path: str | Path, progress: Progress | None, reading: ReadOptions) -> dict[int, Trace]:
    with TraceStream(path) as source:
        head = source.peek(_TEXT_BYTES)
        if source.damage and not head:
            raise TraceError(f"{path}: {source.damage}")
    if not head:
        raise TraceError(f"{path}: empty, not a trace; use a file whose writer has finished")
    if not head.strip(b"\0"):
        raise TraceError(
            f"{path}: begins with zeros, not with a trace; its content never reached the disk, "
            "which was full or disconnected; use another file"
        )
    kind = signature_of(head)
    if kind is not None:
        raise TraceError(
            f"{path}: {kind}; expected JSON of Paddle's or torch's profiler, or Paddle's .pb"
        )
    if head.lstrip()[:1] in (b"{", b"["):
        traces = read_json_ranks(path, progress, reading.step_mark)
        return {rank: with_lines(with_stacks(trace, path)) for rank, trace in traces.items()}
    from ppprof.trace.raw_captures import read_window  # JSON needs no decoder of protobuf

    try:
        trace = with_step_mark(read_window(path), reading.step_mark)
    except TraceError as error:
        if not _is_text(head):
            raise
        raise TraceError(
            f"{path}: text, not a trace; expected JSON of Paddle's or torch's profiler, or Paddle's .pb"
        ) from error
    if progress is not None:
        size = to_path(path).stat().st_size
        progress(size, size)
    return {0: trace}


def _is_text(head: bytes) -> bool:
    text = head.decode("ascii", "replace")  # what stands for other alphabets is printable
    return all(letter.isprintable() or letter.isspace() for letter in text)


def write(trace: Trace, path: str | Path) -> Mapping[str, int]:
    """Write a trace in the format given by the file's suffix: .json, .json.gz or .pb.

    The file appears when it is complete. Reading it returns the same trace, except for three
    things:

    - the values that this function reports as omitted;
    - missing integers, which are stored as 0 in a ``.pb``, and in the memory events of a JSON file;
    - empty names and control characters in names, for which JSON gets visible text.

    Returns:
        Kind -> number of values that the format cannot hold; empty if nothing was omitted.

    Raises:
        UsageError: the suffix is not a known format.
        OSError: the file cannot be written.
    """
    if suffix_of(path) == ".pb":
        from ppprof.trace.paddle.pb_writer import write_paddle_pb

        return {**write_paddle_pb(trace, path), **trace.unheld()}
    from ppprof.trace.paddle.json_writer import write_paddle_json

    return {**write_paddle_json(trace, path), **trace.unheld()}
