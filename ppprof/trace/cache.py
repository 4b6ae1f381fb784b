"""Save parsed events beside the trace file that they were parsed from.

There is one cache file per trace: a zip archive of Arrow tables, whose checksums detect damage. It
is published in one step and never changed; if two processes write it, the later one replaces the
earlier. It records the fingerprint of the trace file and of the reading code. If either of the two
has changed, the cache file is ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import uuid
import zipfile
import zlib
from pathlib import Path
from typing import Any

import polars as pl

from ppprof.paths import to_path
from ppprof.trace.schema import EVENTS, FRAMES, KERNELS, MEMORY, MEMSETS, Trace

SMALLEST_BYTES = 4 << 20
"""Smaller files are not cached, because parsing them is fast enough."""

_END_BYTES = 1 << 16  # at each end of a file; their checksum is part of the fingerprint
_TABLES = {
    **{"events": EVENTS, "memory": MEMORY, "kernels": KERNELS, "memsets": MEMSETS},
    "frames": FRAMES,
}
_FIELDS = "trace.json"

Fingerprint = dict[str, int]


def fingerprint(path: str | Path) -> Fingerprint | None:
    """Return the values that identify a file's content and the code that reads it.

    They are the file's size, its time of modification, a checksum of its first and last 64 KiB, and
    a checksum of the readers. None if the file is smaller than `SMALLEST_BYTES`, cannot be read, or
    lies in a store.
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


def load(path: str | Path, key: Fingerprint) -> Trace | None:
    """Return the cached trace of the file ``path``, whose `fingerprint` is ``key``.

    None if the cache file is missing, damaged, or of another fingerprint.
    """
    try:
        with zipfile.ZipFile(_cache_path(path)) as archive:
            _check(archive)
            fields: dict[str, Any] = json.loads(archive.read(_FIELDS))
            if fields.pop("of") != key:
                return None
            for name, columns in _TABLES.items():
                fields[name] = pl.read_ipc(io.BytesIO(archive.read(name)))
                if fields[name].schema != {column: dtype for column, (dtype, _) in columns.items()}:
                    return None
        return Trace(**{**fields, "devices": tuple(fields["devices"])})
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        zipfile.BadZipFile,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,  # raised by Arrow's reader; not a subclass of Exception
        RuntimeError,
    ):
        return None  # the trace is then parsed again, and the cache replaced


def _check(archive: zipfile.ZipFile) -> None:
    """Reject an archive with compressed parts, since these could unpack to any size.

    `save` never writes compressed parts.

    Raises:
        zipfile.BadZipFile: a part of the archive is compressed.
    """
    for part in archive.infolist():
        if part.compress_type != zipfile.ZIP_STORED or part.file_size != part.compress_size:
            raise zipfile.BadZipFile(part.filename)


def save(path: str | Path, trace: Trace, key: Fingerprint) -> None:
    """Write ``trace`` to the cache file of the trace file ``path``.

    No cache file is written if the trace file no longer has the fingerprint ``key``, or if the
    directory cannot be written. Errors are not reported.
    """
    target = _cache_path(path)
    hidden = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
    fields = {
        field.name: getattr(trace, field.name)
        for field in dataclasses.fields(trace)
        if field.name not in _TABLES
    }
    with contextlib.suppress(OSError, TypeError, ValueError):
        try:
            with zipfile.ZipFile(hidden, "x", zipfile.ZIP_STORED) as archive:
                archive.writestr(_FIELDS, json.dumps({**fields, "of": key}))
                for name in _TABLES:
                    buffer = io.BytesIO()
                    getattr(trace, name).write_ipc(buffer, compression="lz4")
                    archive.writestr(name, buffer.getbuffer())
            if fingerprint(path) == key:
                hidden.replace(target)
        finally:
            hidden.unlink(missing_ok=True)


def _cache_path(path: str | Path) -> Path:
    # The name must not contain "paddle_trace": VisualDL opens any such file as a trace.
    name = Path(path).name.replace("paddle_trace", "")
    return Path(path).with_name(f".ppprof_cache_{name}.zip")


def _code() -> int:
    """Return a checksum of the names, sizes and modification times of all reading modules."""
    code = 0
    for module in sorted(Path(__file__).parent.rglob("*.py")):
        state = module.stat()
        code = zlib.crc32(f"{module.name} {state.st_size} {state.st_mtime_ns}".encode(), code)
    return code
