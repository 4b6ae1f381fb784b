"""Annotations: key=value pairs in an event's name.

Paddle's events have a name and no room for other values. So capture writes them into the names of
collectives, of waits for a collective, and of pipeline spans::

    all_reduce[axis=dp group=3 bytes=4198400 dtype=float32 peers=0,4]
    wait[op=isend axis=pp group=5 bytes=8 dtype=float32 peers=1]
    batch_isend_irecv[axis=pp group=5 bytes=12 dtype=float32 peers=>1:8,<3:4]
    forward[stage=0 micro_batch=3 phase=warm-up]
    backward[stage=1 chunk=1 micro_batch=3 phase=steady]

A batch of transfers is one span, since one call launches the kernel of them all. Its peers hold each
transfer: 8 bytes to rank 1 and 4 bytes from rank 3 in the example; its bytes are their sum.

Any key may be missing. ``op`` comes first, the other keys follow in the order of
`ANNOTATION_KEYS`. The plain name of a wait begins with the operation that it waits for:
``wait[op=isend ...]`` has the plain name ``isend.wait``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Union

import numpy as np
import polars as pl

from ppprof.trace.labels import Labels
from ppprof.trace.schema import EVENTS, nullable

CATEGORIES = ("Communication", "Forward", "Backward")
"""Categories of events whose names may be annotated."""

_NUMBER = r"\d{1,18}"  # any 18 digits fit an int64
_VALUE_PATTERNS = {
    **{"axis": r"[\w+-]+", "group": f"-?{_NUMBER}", "bytes": _NUMBER, "dtype": r"\w+"},
    "peers": rf"[\d,]*|[<>]\d+:{_NUMBER}(,[<>]\d+:{_NUMBER})*",
    **{"stage": _NUMBER, "chunk": _NUMBER, "micro_batch": _NUMBER, "phase": r"[\w-]+"},
}
"""Key, which is a column of `EVENTS`, -> pattern of its values."""

ANNOTATION_KEYS = tuple(_VALUE_PATTERNS)
"""Keys in the order in which a name holds them; ``op`` becomes part of the plain name."""
_NUMBERS = frozenset(key for key in ANNOTATION_KEYS if EVENTS[key][0] == pl.Int64)
_NAME = "".join(
    [
        r"(?P<name>[^\s\[\]]+)\[(?=\w)",
        *(
            rf"({key}=(?P<{key}>{value})( (?=\w)|(?=\])))?"
            for key, value in {"op": r"\w+", **_VALUE_PATTERNS}.items()
        ),
        r"\]",
    ]
)

Annotation = Union[int, str, None]


def parse_annotation(text: str) -> tuple[str, dict[str, Annotation]] | None:
    """Return the plain name and the annotations of an annotated name.

    Returns:
        The plain name, and key -> value for every key of `ANNOTATION_KEYS`. A value is an int or a
        string; None if ``text`` lacks the key or its value is empty. None instead of both if
        ``text`` is not an annotated name.

    >>> parse_annotation("wait[op=isend group=5]")[0]
    'isend.wait'
    """
    if not text.endswith("]"):  # as in most traces, which need not compile the pattern
        return None
    match = re.fullmatch(_NAME, text, re.ASCII)
    if match is None:
        return None
    name = f"{match['op']}.{match['name']}" if match["op"] else match["name"]
    return name, {
        key: None if not match[key] else int(match[key]) if key in _NUMBERS else match[key]
        for key in ANNOTATION_KEYS
    }


def format_annotation(name: str, values: Mapping[str, Annotation]) -> str | None:
    """Return the name with annotations for a plain name and its values.

    Keys that are not in `ANNOTATION_KEYS` are ignored. None if `parse_annotation` would not return
    the same name and values again, for example because a value contains a space.

    >>> format_annotation("isend.wait", {"axis": "pp", "group": 5})
    'wait[op=isend axis=pp group=5]'
    """
    whole = {key: values.get(key) for key in ANNOTATION_KEYS}
    pairs = [f"{key}={value}" for key, value in whole.items() if value is not None]
    op, dot, plain = name.partition(".")
    forms = [(plain, [f"op={op}", *pairs])] if dot and "." not in plain else []
    for start, inside in (*forms, (name, pairs)):
        text = f"{start}[{' '.join(inside)}]"
        if parse_annotation(text) == (name, whole):
            return text
    return None


def has_annotations() -> pl.Expr:
    """Return an expression that is true for an event with annotations.

    The column bytes is an annotation only without a device: the bytes of a device event are the
    size of a copy, memset or collective.
    """
    return pl.any_horizontal(
        pl.col("bytes").is_not_null() & pl.col("device").is_null(),
        pl.col([key for key in ANNOTATION_KEYS if key != "bytes"]).is_not_null(),
    )


def split_annotated_names(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return host events with their annotations moved from names to columns.

    Only names of events in `CATEGORIES` are parsed. A column that already has a value in a row
    keeps it.

    Args:
        hosts: N rows; reads name and category, string or categorical, and those columns of
            `ANNOTATION_KEYS` that exist.

    Returns:
        The N rows with plain names. If any name was annotated, all columns of `ANNOTATION_KEYS`
        exist.
    """
    may_hold = np.zeros(hosts.height, bool)
    for category in CATEGORIES:
        may_hold |= (hosts["category"] == category).to_numpy()
    rows = np.flatnonzero(may_hold)
    names = Labels.of(hosts["name"].gather(rows).cast(pl.Categorical()))
    parsed = [parse_annotation(text) for text in names.texts]
    if not any(parsed):
        return hosts
    # A lookup by position: a join would copy the whole table for the few annotated names.
    position = np.full(hosts.height, -1)
    position[rows] = np.append(
        [-1 if parts is None else index for index, parts in enumerate(parsed)], -1
    )[names.number]
    chosen = nullable(position)
    plain = pl.Series([parts and parts[0] for parts in parsed], dtype=hosts.schema["name"])
    columns = {"name": pl.coalesce(plain.gather(chosen), "name")}
    for key in ANNOTATION_KEYS:
        values = [parts and parts[1][key] for parts in parsed]
        value = pl.lit(None, EVENTS[key][0])
        if any(one is not None for one in values):
            value = pl.lit(pl.Series(values, dtype=EVENTS[key][0]).gather(chosen))
        is_present = key in hosts.columns
        columns[key] = pl.coalesce(key, value.cast(hosts.schema[key])) if is_present else value
    return hosts.with_columns(**columns)


def annotated_names(events: pl.DataFrame) -> pl.DataFrame:
    """Return the annotated names of the host events that have annotations.

    Launches, events outside `CATEGORIES`, and events whose annotations a name cannot hold are left
    out.

    Args:
        events: columns of `EVENTS`.

    Returns:
        One row per annotated name: row, int32, the row in ``events``; annotated, string.
    """
    is_host = pl.col("device").is_null() & pl.col("correlation_id").is_null()
    may_hold = pl.col("category").cast(pl.String).is_in(CATEGORIES)
    hosts = events.select("name", *ANNOTATION_KEYS, row=pl.int_range(pl.len(), dtype=pl.Int32))
    hosts = hosts.filter(events.select(is_host & may_hold & has_annotations()).to_series())
    annotated = [
        format_annotation(name, dict(zip(ANNOTATION_KEYS, values)))
        for name, *values in hosts.select("name", *ANNOTATION_KEYS).iter_rows()
    ]
    return hosts.select("row", annotated=pl.Series(annotated, dtype=pl.String)).drop_nulls()
