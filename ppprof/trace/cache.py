"""Parsed events, kept beside the trace that they were parsed from.

One file a trace: a zip archive of Arrow tables, so that a damaged one is noticed by its checksums.
It is published whole and never changed; of two processes that make one, the later replaces the
earlier's. It says which file it was made from and by which code, and counts for no other.
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
"""A smaller file is parsed in no time."""

_END_BYTES = 1 << 16  # looked at on either side of a file, besides its size and time
_TABLES = {"events": EVENTS, "memory": MEMORY, "kernels": KERNELS, "memsets": MEMSETS}
_WHAT = "trace.json"

Fingerprint = dict[str, int]


def fingerprint(path: str | Path) -> Fingerprint | None:
    """What tells this content of a file from any other; None for a file that is not worth it."""
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


def load(path: str | Path, of: Fingerprint) -> Trace | None:
    """What was kept of this content of the file; None where nothing usable was."""
    try:
        with zipfile.ZipFile(_beside(path)) as archive:
            _check(archive)
            kept: dict[str, Any] = json.loads(archive.read(_WHAT))
            if kept.pop("of") != of:
                return None
            for name in _TABLES:
                kept[name] = pl.read_ipc(io.BytesIO(archive.read(name)))
                if kept[name].schema != {at: dtype for at, (dtype, _) in _TABLES[name].items()}:
                    return None
        return Trace(**{**kept, "devices": tuple(kept["devices"])})
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        zipfile.BadZipFile,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,  # of Arrow's reader: no Exception
        RuntimeError,
    ):
        return None  # then it is parsed again, and what was kept replaced


def _check(archive: zipfile.ZipFile) -> None:
    """Lets no archive pass that unpacks to more than it is: ours are not compressed.

    Raises:
        zipfile.BadZipFile: it is not one of ours.
    """
    for part in archive.infolist():
        if part.compress_type != zipfile.ZIP_STORED or part.file_size != part.compress_size:
            raise zipfile.BadZipFile(part.filename)


def keep(path: str | Path, trace: Trace, of: Fingerprint) -> None:
    """Keeps a trace, if the directory lets it and the file is still what it was read from."""
    target = _beside(path)
    hidden = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
    kept = {
        field.name: getattr(trace, field.name)
        for field in dataclasses.fields(trace)
        if field.name not in _TABLES
    }
    with contextlib.suppress(OSError, TypeError, ValueError):
        try:
            with zipfile.ZipFile(hidden, "x", zipfile.ZIP_STORED) as archive:
                archive.writestr(_WHAT, json.dumps({**kept, "of": of}))
                for name in _TABLES:
                    buffer = io.BytesIO()
                    getattr(trace, name).write_ipc(buffer, compression="lz4")
                    archive.writestr(name, buffer.getbuffer())
            if fingerprint(path) == of:
                hidden.replace(target)
        finally:
            hidden.unlink(missing_ok=True)


def _beside(path: str | Path) -> Path:
    # VisualDL takes any file with "paddle_trace" in its name for a trace.
    name = Path(path).name.replace("paddle_trace", "")
    return Path(path).with_name(f".ppprof_cache_{name}.zip")


def _code() -> int:
    """A number that changes with the code of the readers."""
    found = 0
    for module in sorted(Path(__file__).parent.glob("*.py")):
        state = module.stat()
        found = zlib.crc32(f"{module.name} {state.st_size} {state.st_mtime_ns}".encode(), found)
    return found
