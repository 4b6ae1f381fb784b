"""Files beside a trace that keep results of reading it: where they are, and when they are valid."""

from __future__ import annotations

import contextlib
import os
import uuid
import zlib
from collections.abc import Iterable
from pathlib import Path

from ppprof.paths import open_regular, to_path

SMALLEST_BYTES = 4 << 20
"""Nothing is kept for smaller trace files, because parsing them is fast enough."""

EVENTS_SUFFIX = ".bin"
"""End of the name of the file that keeps the events of a trace, see `ppprof.trace.cache`."""

_END_BYTES = 1 << 16  # at each end of a file; their checksum is part of the fingerprint

Fingerprint = dict[str, int]


def fingerprint(path: str | Path) -> Fingerprint | None:
    """Return the values that identify a file's content and the code that reads it.

    They are the file's size, its time of modification, a checksum of its first and last 64 KiB, and
    a checksum of this package. None if the file is smaller than `SMALLEST_BYTES`, cannot be read,
    or lies in a store.
    """
    try:
        with to_path(path).open("rb") as file:
            state = os.fstat(file.fileno())
            if state.st_size < SMALLEST_BYTES:
                return None
            ends = zlib.crc32(file.read(_END_BYTES))
            file.seek(-_END_BYTES, os.SEEK_END)
            ends = zlib.crc32(file.read(), ends)
    except OSError:
        return None
    return {
        "size": state.st_size,
        "mtime_ns": state.st_mtime_ns,
        "ends": ends,
        "code": _code(),
    }


def cache_path(path: str | Path, suffix: str) -> Path:
    """Return the path of a file that keeps results of reading the trace file ``path``."""
    # The name must not contain "paddle_trace": VisualDL opens any such file as a trace.
    name = Path(path).name.replace("paddle_trace", "")
    return Path(path).with_name(f".ppprof_cache_{name}{suffix}")


def read_cache(path: Path, most_bytes: int) -> bytes:
    """Return the content of the file at a `cache_path`.

    Raises:
        OSError: the file cannot be read, or is no regular file.
        ValueError: it is longer than ``most_bytes``.
    """
    with open_regular(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes > most_bytes:
            raise ValueError(f"{num_bytes} bytes")
        return file.read(num_bytes)


def write_cache(
    path: str | Path, suffix: str, parts: Iterable[bytes], fingerprint_of_path: Fingerprint
) -> None:
    """Write the file at a `cache_path` in one step, if the trace file still has its fingerprint.

    Raises:
        OSError: the directory cannot be written.
    """
    target = cache_path(path, suffix)
    hidden = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
    try:
        with hidden.open("xb") as file:
            file.writelines(parts)
        if fingerprint(path) == fingerprint_of_path:
            hidden.replace(target)
    finally:
        with contextlib.suppress(OSError):
            hidden.unlink()


def _code() -> int:
    """Return a checksum of the names, sizes and modification times of this package's modules."""
    code = 0
    folders = [str(Path(__file__).parent.parent)]
    while folders:
        with os.scandir(folders.pop(0)) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.endswith(".py"):
                    state = entry.stat()
                    text = f"{entry.name} {state.st_size} {state.st_mtime_ns}"
                    code = zlib.crc32(text.encode(), code)
                elif entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                    folders.append(entry.path)
    return code
