"""Kineto's events from the compiled reader, as the tables that `KinetoColumns` collects."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np
import polars as pl

from ppprof.arrays import Array
from ppprof.trace.fastpath.fixed_layout import MISSING
from ppprof.trace.fastpath.native.event_reader import (
    EventClass,
    EventForms,
    EventReader,
    EventTable,
)
from ppprof.trace.json.values import IGNORED_PHASES
from ppprof.trace.kineto.columns import KinetoColumns
from ppprof.trace.kineto.fields import (
    ARGS,
    COLLECTIVE_CALL,
    DETAILS,
    FRAME,
    IGNORED_SPANS,
    SPANS,
    WAIT,
    WAIT_SPAN,
    Columns,
    KinetoArgs,
)
from ppprof.trace.kineto.inputs import converted_inputs
from ppprof.trace.kineto.terms import DEVICES, LAUNCHES, MODULE, OPERATORS
from ppprof.trace.schema import LEAST_FRAME_NS

_KEYS = {
    field.name: (field.encode_name, field.type is msgspec.Raw)
    for field in msgspec.structs.fields(KinetoArgs)
}
"""Column -> its key in ``args``, and whether its value may be any JSON."""
_CONVERSIONS = {pl.Int64: "d", pl.UInt64: "u", pl.Float64: "g", pl.String: "s", pl.Categorical: "s"}
_SPAN = {
    **{"name": ("name", "s"), "cat": ("cat", "s"), "process": ("pid", "d"), "thread": ("tid", "d")},
    **{"start_ns": ("ts", "t"), "dur_ns": ("dur", "t")},
}
_INPUTS: Columns = dict.fromkeys(("dims", "types", "concrete"), pl.String())
_COLLECTIVE_CALL: Columns = {"collective": pl.String()}


def _args(columns: Columns) -> dict[str, tuple[str, str]]:
    """Return the fields of an `EventTable` for columns that come from ``args``."""
    return {
        column: (f"args.{_KEYS[column][0]}", "r" if _KEYS[column][1] else _CONVERSIONS[type(dtype)])
        for column, dtype in columns.items()
    }


def _arg(column: str) -> str:
    return f"args.{_KEYS[column][0]}"


_TABLES = {
    **{kind: EventTable({**_SPAN, **_args(columns)}) for kind, columns in ARGS.items()},
    **{
        name: EventTable(_args(columns), _arg(required))
        for name, (_, required, columns) in DETAILS.items()
    },
    "inputs": EventTable(_args(_INPUTS), _arg("dims")),
    "calls of collectives": EventTable(_args(_COLLECTIVE_CALL), _arg("collective")),
}
_HOST = ("hosts", *(name for name, (kind, _, _) in DETAILS.items() if kind == "hosts"))
_DEVICE = ("devices", *(name for name, (kind, _, _) in DETAILS.items() if kind == "devices"))
_CLASSES = (
    EventClass(name="thread_name", is_decoded=True),
    *(
        EventClass((*_HOST, "inputs", "calls of collectives"), "X", cat, COLLECTIVE_CALL)
        for cat in sorted(OPERATORS)
    ),
    EventClass(name=COLLECTIVE_CALL, is_decoded=True),
    *(EventClass((*_HOST, "inputs"), "X", cat) for cat in sorted(OPERATORS)),
    EventClass(_HOST, "X", "user_annotation"),
    EventClass(_HOST, "X", FRAME, f"{MODULE}*"),
    EventClass(("frames",), "X", FRAME, least_dur_ns=LEAST_FRAME_NS),
    EventClass((), "X", FRAME),
    *(EventClass(("launches",), "X", cat) for cat in sorted(LAUNCHES)),
    *(EventClass(_DEVICE, "X", cat) for cat in DEVICES),
    EventClass(("memory",), "i", name="[memory]"),
    *(EventClass((), ph) for ph in IGNORED_PHASES),
    *(EventClass((), "X", cat) for cat in sorted(IGNORED_SPANS - {FRAME})),
    EventClass(_DEVICE, "X", "", either=(_arg("stream"), _arg("device"))),
)
FORMS = EventForms(dict(_KEYS.values()), _TABLES, _CLASSES)
"""What the compiled reader reads of Kineto's events."""


def new_reader(library: ctypes.CDLL) -> EventReader:
    """Return a reader of Kineto's events.

    Raises:
        MemoryError: there is not enough memory.
    """
    return EventReader(FORMS, library)


def add_scanned(columns: KinetoColumns, reader: EventReader) -> None:
    """Add the events that a reader has kept to ``columns``, and count those that it has not.

    The reader is empty afterwards.

    Raises:
        MemoryError: there is not enough memory.
    """
    columns.ignored += _ignored(reader.counts())
    arrays = reader.tables()
    texts = _Texts(reader.texts())
    tables = {
        name: texts.table(arrays.pop(name, {}), schema)
        for name, schema in (
            *SPANS.items(),
            *((name, {"index": pl.Int64(), **fields}) for name, (_, _, fields) in DETAILS.items()),
            ("inputs", {"index": pl.Int64(), **_INPUTS}),
            ("calls of collectives", {"index": pl.Int64(), **_COLLECTIVE_CALL}),
        )
    }
    calls = tables.pop("calls of collectives")
    waits = calls.filter(pl.col("collective") == WAIT)["index"]
    if len(waits):
        tables = _with_waits(tables, waits)
    columns.add_tables({**tables, "inputs": converted_inputs(tables["inputs"])})


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
    for kind, count in zip(_CLASSES, counts):
        if kind.cat in IGNORED_SPANS and kind.tables in ((), ("frames",)):
            ignored[kind.cat] += count
        elif kind.phs in IGNORED_PHASES and not kind.tables:
            ignored[IGNORED_PHASES[kind.phs]] += count
    return ignored


class _Texts:
    """The texts of a reader; columns of texts hold indices into them, -1 for no text."""

    def __init__(self, texts: list[bytes]) -> None:
        self._texts = texts

    def table(self, arrays: Mapping[str, Array], schema: Columns) -> pl.DataFrame:
        """Return a table with the columns of ``schema``; a column without an array is null."""
        num_rows = len(arrays["position"]) if arrays else 0
        columns = []
        for name, dtype in schema.items():
            values = arrays.get("position" if name == "index" else name)
            if values is None:
                column = pl.repeat(None, num_rows, dtype=dtype, eager=True)
            elif dtype in (pl.String, pl.Categorical):
                column = self._gather(values, dtype, is_raw=_KEYS.get(name, ("", False))[1])
            elif dtype == pl.Float64:
                column = pl.Series(values).fill_nan(None)
            else:
                column = pl.Series(values)
                if values.dtype == np.int64 and (is_missing := values == MISSING).any():
                    column = column.set(pl.Series(is_missing), None)
                column = column.cast(dtype)
            columns.append(column.alias(name))
        return pl.DataFrame(columns)

    def _gather(self, numbers: Array, dtype: pl.DataType, *, is_raw: bool) -> pl.Series:
        """Return the texts with these numbers; without escapes, unless ``is_raw``."""
        used = np.flatnonzero(np.bincount(numbers + 1, minlength=1)[1:])
        texts = [self._texts[number] for number in used.tolist()]
        distinct = pl.Series(
            [
                text.decode("utf-8", "replace")
                if is_raw or b"\\" not in text
                else msgspec.json.decode(b'"%b"' % text, type=str)
                for text in texts
            ],
            dtype=dtype,
        )
        place = np.full(len(self._texts) + 1, len(used), np.uint32)
        place[used] = np.arange(len(used))
        # The last item is null, for -1.
        return distinct.extend_constant(None, 1).gather(place[numbers])
