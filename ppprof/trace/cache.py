"""Save parsed events beside the trace file that they were parsed from.

There is one cache file per trace: `packed_columns` of its tables, whose checksum detects damage. It
is published in one step and never changed; if two processes write it, the later one replaces the
earlier. It records the fingerprint of the trace file and of the reading code. If either of the two
has changed, the cache file is ignored.

A cache file is not trusted, since every user who may write the directory can forge it. It is
used only if `save` could have written it: its sizes are bounded by the size of the trace before
they are used, and its tables must fit together, see `ppprof.trace.consistency`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import msgspec
import polars as pl

from ppprof.trace.cache_files import (
    EVENTS_SUFFIX,
    Fingerprint,
    cache_path,
    read_cache,
    write_cache,
)
from ppprof.trace.consistency import problem
from ppprof.trace.json.values import drop_nonportable_numbers
from ppprof.trace.packed_columns import Count, PackedTable, pack, unpack
from ppprof.trace.schema import EVENTS, FRAMES, KERNELS, MEMORY, MEMSETS, Trace

MOST_HEADER_BYTES = 4 << 20
"""A trace is not cached if all that is known about it besides its tables is longer, as JSON."""
LEAST_EVENT_BYTES = 4
"""A trace is not cached if it has fewer bytes per row; a packed one has 20, any other 100."""
MOST_BYTES_PER_BYTE = 8
"""A trace is not cached if its cache would be as many times longer; it is usually shorter."""
MOST_TEXT_PER_BYTE = 40
"""A trace is not cached if the texts of a column, written in every row, are as many times longer.

They are part of a JSON file, and gzip usually shrinks traces to a 15th to a 40th.
"""

_TABLES = {
    **{"events": EVENTS, "memory": MEMORY, "kernels": KERNELS, "memsets": MEMSETS},
    "frames": FRAMES,
}
_FIELDS = tuple(field.name for field in dataclasses.fields(Trace) if field.name not in _TABLES)
_MAGIC = b"ppprof\x00\x01"
_PREFIX = struct.Struct("<8sII")  # magic, checksum of all that follows the prefix, header's length

_MaybeNumber = Optional[float]
_MaybeText = Optional[str]  # msgspec evaluates annotations, also in Python 3.9


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    """All of a `Trace` but its tables, how these are read, and the trace file's fingerprint."""

    of: Fingerprint
    tables: dict[str, PackedTable]
    version: str
    span: int
    extra_info: dict[str, str]
    devices: tuple[dict[str, object], ...]
    unrecorded_device: _MaybeText
    only_axis: _MaybeText
    stated_flops: _MaybeNumber
    stated_bytes_per_s: _MaybeNumber
    skipped: dict[str, Count]
    ignored: dict[str, Count]


def load(path: str | Path, key: Fingerprint) -> Trace | None:
    """Return the cached trace of the file ``path``, whose `fingerprint` is ``key``.

    None if the cache file is missing, of another fingerprint, or not as `save` writes it. Reading
    it takes memory in proportion to the size of ``path``, whatever the file holds.
    """
    most_bytes = key["size"] * MOST_BYTES_PER_BYTE
    try:
        trace = _unpacked(read_cache(cache_path(path, EVENTS_SUFFIX), most_bytes), key)
    except (
        OSError,
        ValueError,
        OverflowError,
        RecursionError,
        struct.error,
        msgspec.MsgspecError,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,  # not a subclass of Exception
    ):
        return None  # the trace is then parsed again, and the cache replaced
    return trace if trace is not None and problem(trace) is None else None


def _unpacked(content: bytes, key: Fingerprint) -> Trace | None:
    """Return the trace in a cache file; None if the file is of another fingerprint.

    Raises:
        ValueError: `save` writes no such file.
        msgspec.MsgspecError: its header is not as `save` writes it.
        struct.error: it is too short.
    """
    magic, checksum, header_bytes = _PREFIX.unpack_from(content)
    rest = memoryview(content)[_PREFIX.size :]
    if magic != _MAGIC or header_bytes > MOST_HEADER_BYTES or zlib.crc32(rest) != checksum:
        raise ValueError("damaged")
    header = msgspec.json.decode(rest[:header_bytes], type=_Header)
    if header.of != key:
        return None
    if list(header.tables) != list(_TABLES):
        raise ValueError(f"tables {', '.join(header.tables)}")
    packed = header.tables
    _check_sizes(packed, len(rest) - header_bytes, key)
    tables: dict[str, Any] = {}
    position = header_bytes
    for name, schema in _TABLES.items():
        end = position + packed[name].num_bytes()
        tables[name] = unpack(
            packed[name], schema, rest[position:end], key["size"] * MOST_TEXT_PER_BYTE
        )
        position = end
    fields: dict[str, Any] = {name: getattr(header, name) for name in _FIELDS}
    fields["devices"] = tuple(map(drop_nonportable_numbers, header.devices))
    return Trace(**fields, **tables)


def _check_sizes(tables: Mapping[str, PackedTable], num_bytes: int, key: Fingerprint) -> None:
    """Reject tables that do not fill the file, or have too many rows for the trace.

    Raises:
        ValueError: `save` writes no such tables.
    """
    num_rows = sum(table.num_rows for table in tables.values())
    if num_rows * LEAST_EVENT_BYTES > key["size"]:
        raise ValueError(f"{num_rows} rows")
    if sum(table.num_bytes() for table in tables.values()) != num_bytes:
        raise ValueError("tables that are shorter or longer than the file")


def save(path: str | Path, trace: Trace, key: Fingerprint) -> None:
    """Write ``trace`` to the cache file of the trace file ``path``.

    No cache file is written if `load` would not use it, if the trace file no longer has the
    fingerprint ``key``, or if the directory cannot be written. Errors are not reported.
    """
    if problem(trace) is not None:
        return
    with contextlib.suppress(OSError, TypeError, ValueError, OverflowError):
        write_cache(path, EVENTS_SUFFIX, _packed(trace, key), key)


def _packed(trace: Trace, key: Fingerprint) -> list[bytes]:
    """Return the content of the cache file of ``trace``, in parts.

    Raises:
        ValueError: `load` would not use it.
    """
    tables = {}
    parts = []
    for name in _TABLES:
        tables[name], table_parts = pack(getattr(trace, name), key["size"] * MOST_TEXT_PER_BYTE)
        parts += table_parts
    num_bytes = sum(map(len, parts))
    _check_sizes(tables, num_bytes, key)
    fields = {name: getattr(trace, name) for name in _FIELDS}
    header = msgspec.json.encode({**fields, "of": key, "tables": tables})
    if len(header) > MOST_HEADER_BYTES:
        raise ValueError(f"a header of {len(header)} bytes")
    if num_bytes + len(header) > key["size"] * MOST_BYTES_PER_BYTE:
        raise ValueError(f"{num_bytes} bytes")
    checksum = zlib.crc32(header)
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return [_PREFIX.pack(_MAGIC, checksum, len(header)), header, *parts]
