"""Read the events of a Kineto file into columns, in the fastest way.

The compiled core reads blocks of valid JSON, and the decoder what the core leaves. A long file is
divided into parts, which threads scan. Without the core, the decoder reads everything. The result is
the same: the file is divided into the same parts and blocks, and a block that is not valid JSON is
read by the decoder alone.
"""

from __future__ import annotations

import ctypes
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
import polars as pl

from ppprof.arrays import Array, Int32
from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.ahead import take_begun_scans
from ppprof.trace.fastpath.fixed_layout import MISSING, Ranges
from ppprof.trace.fastpath.native.event_reader import EventReader
from ppprof.trace.fastpath.ranges import RangeScans
from ppprof.trace.fastpath.string_table import StringTable
from ppprof.trace.fastpath.threads import num_processors
from ppprof.trace.json.batches import decoded_batches
from ppprof.trace.json.recovery import HEAD_BYTES, EventDecoder
from ppprof.trace.json.trace_events import IGNORED_PHASES
from ppprof.trace.kineto.columns import KinetoColumns, dtypes_of
from ppprof.trace.kineto.compiled_reader import (
    CALLS,
    CLASSES,
    FORMS,
    INPUTS,
    KINETO,
    TEXTS,
    Scan,
    new_scans,
    part_bounds,
)
from ppprof.trace.kineto.event_fields import (
    DETAILS,
    IGNORED_SPANS,
    SPANS,
    WAIT,
    WAIT_SPAN,
    Columns,
    KinetoEvent,
)
from ppprof.trace.kineto.inputs import converted_inputs
from ppprof.trace.kineto.other_writers import ROCPROF
from ppprof.trace.labels import numbered, renumbered
from ppprof.trace.source import Block, TraceStream


def read_kineto_columns(
    source: TraceStream, keys: dict[str, Any], skipped: Counter[str]
) -> KinetoColumns:
    """Return the events of a file.

    Args:
        source: the file, at the first event.
        keys: the keys before the list of events; those after it are added.
        skipped: counts the unreadable parts, by kind.

    Raises:
        TraceError: the file cannot be read.
        MemoryError: there is not enough memory.
    """
    columns = KinetoColumns()
    decoder = EventDecoder(KinetoEvent, source.path, skipped)
    bounds = part_bounds(source)
    # Only rocprof's arrows say which call launched which kernel; the core skips arrows.
    library = None if ROCPROF in source.peek(HEAD_BYTES) else core.library()
    if library is None:
        for first, events in decoded_batches(source, decoder, keys, None, bounds[1:]):
            columns.add_decoded(first, events)
        return columns
    threads = take_begun_scans(source, KINETO) or new_scans(source, bounds)
    with threads or nullcontext():
        scans = _Scans(source, library, threads)
        for first, events in decoded_batches(source, decoder, keys, scans, bounds[1:]):
            columns.add_decoded(first, events)
        scans.finish()
    columns.ignored += scans.ignored
    columns.add_tables(scans.tables())
    return columns


class _Scans:
    """Reads events with the compiled core; implements `Scans` of `decoded_batches`.

    The events of each part stay as arrays, and the tables are made once, at the end: a table of a
    part costs more than its rows.
    """

    def __init__(
        self, source: TraceStream, library: ctypes.CDLL, threads: RangeScans[Scan] | None
    ) -> None:
        self.ignored: Counter[str] = Counter()
        """Kind -> number of events that no table needs."""
        self._texts = StringTable()
        self._parts: defaultdict[str, list[dict[str, Array]]] = defaultdict(list)
        """Table -> for each reader, the values of the columns that an event has; of texts, their
        numbers in the texts of all readers, -1 for no text."""
        self._source = source
        self._library = library
        self._threads = threads
        self._own: EventReader | None = None
        if threads:
            threads.start(num_processors())

    def part(self, number: int) -> Ranges | None:
        """Wait for a part that threads read, and add its events."""
        self.finish()
        scan = self._threads.take(number, self._source) if self._threads else None
        if scan is None:
            return None
        reader, ranges = scan
        self._keep(reader)
        return ranges

    def add(self, block: Block) -> Ranges | None:
        """Add the events of a block.

        Raises:
            MemoryError: there is not enough memory.
        """
        if self._own is None:
            self._own = EventReader(FORMS, self._library)
        return self._own.add(block)

    def finish(self) -> None:
        """Add the events of the blocks since the last part."""
        if self._own is not None:
            self._keep(self._own)
            self._own = None

    def _keep(self, reader: EventReader) -> None:
        """Keep the events of a reader, which is empty afterwards."""
        self.ignored += _ignored(reader.counts())
        tables = reader.tables()
        numbers = self._texts.numbers(reader.texts())
        for table, columns in tables.items():
            columns["index"] = columns.pop("position")
            for name in TEXTS.keys() & columns.keys():
                columns[name] = renumbered(columns[name], numbers)
            self._parts[table].append(columns)

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables that `KinetoColumns.add_tables` takes. Called once, at the end."""
        texts = self._texts.all()
        tables = {
            name: _table(self._parts.pop(name, []), schema, texts)
            for name, schema in (
                *SPANS.items(),
                *((name, {"index": "Int64", **own}) for name, (_, _, own) in DETAILS.items()),
                ("inputs", {"index": "Int64", **INPUTS}),
                ("calls of collectives", {"index": "Int64", **CALLS}),
            )
        }
        calls = tables.pop("calls of collectives")
        waits = calls.filter(pl.col("collective") == WAIT)["index"]
        if len(waits):
            tables = _with_waits(tables, waits)
        return {**tables, "inputs": converted_inputs(tables["inputs"])}


def _with_waits(tables: Mapping[str, pl.DataFrame], waits: pl.Series) -> dict[str, pl.DataFrame]:
    """Return the tables with these events as waits for a collective, see `KinetoColumns`."""
    is_wait = pl.col("index").is_in(waits.implode())
    hosts = tables["hosts"].with_columns(
        pl.when(is_wait).then(pl.lit(text, pl.Categorical())).otherwise(column).alias(column)
        for column, text in (("name", WAIT_SPAN), ("cat", "user_annotation"))
    )
    others = {
        name: table.filter(~is_wait)
        for name, table in tables.items()
        if name == "inputs" or (name in DETAILS and DETAILS[name][0] == "hosts")
    }
    return {**tables, **others, "hosts": hosts}


def _ignored(counts: list[int]) -> Counter[str]:
    ignored: Counter[str] = Counter()
    for kind, count in zip(CLASSES, counts):
        if kind.cat in IGNORED_SPANS and "hosts" not in kind.tables:
            ignored[kind.cat] += count
        elif kind.phs in IGNORED_PHASES and not kind.tables:
            ignored[IGNORED_PHASES[kind.phs]] += count
    return ignored


def _table(
    parts: Sequence[dict[str, Array]], schema: Columns, texts: Sequence[bytes]
) -> pl.DataFrame:
    """Return a table with the columns of ``schema``; empties ``parts``, so that no table is held twice."""
    lengths = [len(part["index"]) for part in parts]
    columns = []
    for name, dtype in dtypes_of(schema).items():
        if not any(name in part for part in parts):
            column = pl.repeat(None, sum(lengths), dtype=dtype, eager=True)
        elif name in TEXTS:
            column = _texts(name, dtype, _values(name, parts, lengths, np.int32(-1)), texts)
        elif dtype.is_float():
            column = pl.Series(_values(name, parts, lengths, np.nan)).fill_nan(None)
        else:
            column = _integers(dtype, _values(name, parts, lengths, MISSING))
        columns.append(column.alias(name))
    return pl.DataFrame(columns)


def _values(
    name: str, parts: Sequence[dict[str, Array]], lengths: Sequence[int], missing: Any
) -> Array:
    """Take a column out of all parts and return its values; ``missing`` where a part lacks it."""
    return np.concatenate(
        [
            part.pop(name) if name in part else np.full(length, missing)
            for part, length in zip(parts, lengths)
        ]
    )


def _integers(dtype: pl.DataType, values: Array) -> pl.Series:
    numbers = pl.Series(values)
    # A column of int32 has a value in every row.
    if values.dtype == np.int64 and MISSING in values:
        numbers = numbers.set(pl.Series(values == MISSING), None)
    converted: pl.Series = numbers.cast(dtype)
    return converted


def _texts(name: str, dtype: pl.DataType, numbers: Int32, texts: Sequence[bytes]) -> pl.Series:
    """Return a column of texts; without escapes, unless it holds JSON. Each text is decoded once."""
    ids, first = numbered(numbers.view(np.uint32), len(texts))
    is_raw = TEXTS[name] == "r"
    distinct = (
        text.decode("utf-8", "replace")
        if is_raw or b"\\" not in text
        else msgspec.json.decode(b'"%b"' % text, type=str)
        for text in map(texts.__getitem__, numbers[first].tolist())
    )
    ids += 1  # 0: no text
    return pl.Series([None, *distinct], dtype=dtype).gather(pl.Series(ids.view(np.uint32)))
