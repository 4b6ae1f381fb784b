"""Which reader a file needs, told by its content, and which writer, told by its name.

Where what is done::

    JSON       json_file: Paddle's or Kineto's; source: its bytes, block by block
      fast     fixed_layout reads the layouts of known writers by scan; stretches, in processes
      any      json_text decodes, and mends what is broken; json_values
      Paddle   paddle_columns -> clock, nesting -> paddle_events;  paddle_json_writer
      Kineto   kineto_columns -> nesting -> kineto_json
    protobuf   wire -> paddle_pb -> remote;  paddle_pb_writer -> wire_writer
    timeline   merge: many ranks in one file; json_lines, as paddle_json_writer
    both       schema: what all of them make; forest, steps, facts, texts, words; cache
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ppprof.errors import TraceError, UsageError
from ppprof.paths import store_errors_as_oserror, to_path
from ppprof.trace.cache import fingerprint, keep, load
from ppprof.trace.json_reader import read_json
from ppprof.trace.paddle.json_writer import write_paddle_json
from ppprof.trace.paddle.pb_writer import write_paddle_pb
from ppprof.trace.remote_calls import read_window
from ppprof.trace.schema import Trace
from ppprof.trace.source import TraceStream

SUFFIXES = (".json", ".json.gz", ".pb")
"""Of the formats that can be written."""

Progress = Callable[[int, int], None]
"""Called with the bytes that were read so far and those of the whole file."""


def read(path: str | Path, *, progress: Progress | None = None, cache: bool = True) -> Trace:
    """The trace in a file.

    Args:
        path: a file of any format that is known, here or in a store (``s3://bucket/a.json``).
        progress: called while a long file is read, and once at the end.
        cache: keep what is slow to parse beside the file, see `ppprof.trace.cache`. A ``.pb`` is
            not slow; beside what is in a store nothing is kept.

    Raises:
        TraceError: missing, unreadable, or not a trace; says where and why.
    """
    try:
        with store_errors_as_oserror(path):
            return _read(path, progress, cache)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error


_FRAMEWORK_BYTES = 4 << 20


def framework_of(path: str | Path) -> str:
    """Return ``torch`` or ``paddle``: the framework whose operators a trace file begins with.

    Raises:
        TraceError: missing or unreadable.
    """
    try:
        with store_errors_as_oserror(path), TraceStream(path) as source:
            return "torch" if b"aten::" in source.peek(_FRAMEWORK_BYTES) else "paddle"
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error


def _read(path: str | Path, progress: Progress | None, use_cache: bool) -> Trace:
    with TraceStream(path) as source:
        head = source.peek(64)
        if source.damage and not head:
            raise TraceError(f"{path}: {source.damage}")
    if not head:
        raise TraceError(f"{path}: empty")
    if not head.strip(b"\0"):
        raise TraceError(
            f"{path}: begins with zeros, not with a trace: it was never written to the disk, which "
            "was full or went away; use another file"
        )
    if head.lstrip()[:1] in (b"{", b"["):
        return _read_json(path, progress, use_cache)
    trace = read_window(path)
    if progress is not None:
        size = to_path(path).stat().st_size
        progress(size, size)
    return trace


def write(trace: Trace, path: str | Path) -> Mapping[str, int]:
    """Writes a trace in the format that the file's name ends in: .json, .json.gz or .pb.

    The file appears when it is complete, and reading it gives the trace again, but for what is
    returned; for numbers that a trace does not know, which a ``.pb`` must have and has as 0; and
    for control characters in names and empty names, which JSON has written out.

    Returns:
        What the format has no place for, kind -> how many; empty where nothing was lost.

    Raises:
        UsageError: no such format.
        OSError: the file cannot be written.
    """
    write_as = write_paddle_pb if suffix_of(path) == ".pb" else write_paddle_json
    return write_as(trace, path)


def suffix_of(path: str | Path) -> str:
    """The end of a file's name that is a format.

    Raises:
        UsageError: it is none.
    """
    for suffix in SUFFIXES:
        if str(path).endswith(suffix):
            return suffix
    raise UsageError(f"{path}: expected a name that ends in one of {', '.join(SUFFIXES)}")


def _read_json(path: str | Path, progress: Progress | None, use_cache: bool) -> Trace:
    """From what was kept of it where there is that, else from the file."""
    of = fingerprint(path) if use_cache else None
    kept = load(path, of) if of else None
    if kept is not None:
        return kept
    trace = read_json(path, progress=progress)
    if of:
        keep(path, trace, of)
    return trace
