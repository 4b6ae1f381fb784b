"""Save parsed events beside the trace file that they were parsed from.

There is one cache file per trace: a zip archive of Arrow tables, whose checksums detect damage. It
is published in one step and never changed; if two processes write it, the later one replaces the
earlier. It records the fingerprint of the trace file and of the reading code, and is ignored for
any other fingerprint.
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
from ppprof.trace.schema import EVENTS, KERNELS, MEMORY, MEMSETS, Trace

SMALLEST_BYTES = 4 << 20
"""Smaller files are parsed fast enough without a cache."""

_END_BYTES = 1 << 16  # at both ends of a file, checked besides its size and time
_TABLES = {"events": EVENTS, "memory": MEMORY, "kernels": KERNELS, "memsets": MEMSETS}
_FIELDS = "trace.json"

Fingerprint = dict[str, int]


def fingerprint(path: str | Path) -> Fingerprint | None:
    """Return the values that identify a file's content; None for a small or unreadable file."""
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
    """Return the cached trace for this fingerprint of the file; None if there is no usable one."""
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
    """Reject an archive that unpacks to more than its size; ours are not compressed.

    Raises:
        zipfile.BadZipFile: the archive is not one of ours.
    """
    for part in archive.infolist():
        if part.compress_type != zipfile.ZIP_STORED or part.file_size != part.compress_size:
            raise zipfile.BadZipFile(part.filename)


def save(path: str | Path, trace: Trace, key: Fingerprint) -> None:
    """Cache a trace, if the directory permits it and the file still has the fingerprint."""
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
    # VisualDL opens any file with "paddle_trace" in its name as a trace.
    name = Path(path).name.replace("paddle_trace", "")
    return Path(path).with_name(f".ppprof_cache_{name}.zip")


def _code() -> int:
    """Return a number that changes with the code of the readers."""
    code = 0
    for module in sorted(Path(__file__).parent.rglob("*.py")):
        state = module.stat()
        code = zlib.crc32(f"{module.name} {state.st_size} {state.st_mtime_ns}".encode(), code)
    return code
