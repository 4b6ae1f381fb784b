"""What an event's name says beside the name, where the event has room for a name only.

So is Paddle's event, and capture writes of a collective, of a wait for one and of a pipeline span::

    all_reduce[axis=dp group=3 bytes=4198400 dtype=float32 peers=0,4]
    wait[op=isend axis=pp group=5 bytes=8 dtype=float32 peers=1]
    forward[stage=0 micro_batch=3 phase=warm-up]
    backward[stage=1 chunk=1 micro_batch=3 phase=steady]

Any key may be missing; those there are come in the order of `FACTS`, ``op`` first. A wait is named
after what it waits for, ``isend.wait``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Union

import polars as pl

from ppprof.trace.schema import EVENTS

CATEGORIES = ("Communication", "Forward", "Backward")
"""Of events whose names may hold facts."""

_NUMBER = r"\d{1,18}"  # what fits an int64 whatever the digits are
_FACTS = {
    **{"axis": r"[\w+-]+", "group": f"-?{_NUMBER}", "bytes": _NUMBER, "dtype": r"\w+"},
    "peers": r"[\d,]*",
    **{"stage": _NUMBER, "chunk": _NUMBER, "micro_batch": _NUMBER, "phase": r"[\w-]+"},
}
"""Key, which is a column of `EVENTS`, -> pattern of its values."""

FACTS = tuple(_FACTS)
"""The keys, in the order in which a name has them."""
_NUMBERS = frozenset(key for key in FACTS if EVENTS[key][0] == pl.Int64)
_NAME = re.compile(
    "".join(
        [
            r"(?P<name>[^\s\[\]]+)\[(?=\w)",
            *(
                rf"({key}=(?P<{key}>{value})( (?=\w)|(?=\])))?"
                for key, value in {"op": r"\w+", **_FACTS}.items()
            ),
            r"\]",
        ]
    ),
    re.ASCII,
)

Fact = Union[int, str, None]


def parse_annotation(text: str) -> tuple[str, dict[str, Fact]] | None:
    """The plain name and each of `FACTS`, None where unknown; None for a name that holds none.

    >>> parse_annotation("wait[op=isend group=5]")[0]
    'isend.wait'
    """
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    name = f"{match['op']}.{match['name']}" if match["op"] else match["name"]
    return name, {
        key: None if not match[key] else int(match[key]) if key in _NUMBERS else match[key]
        for key in FACTS
    }


def format_annotation(name: str, facts: Mapping[str, Fact]) -> str | None:
    """The inverse: a name that holds the facts; None where it could not be taken apart again.

    >>> format_annotation("isend.wait", {"axis": "pp", "group": 5})
    'wait[op=isend axis=pp group=5]'
    """
    whole = {key: facts.get(key) for key in FACTS}
    pairs = [f"{key}={value}" for key, value in whole.items() if value is not None]
    op, dot, plain = name.partition(".")
    forms = [(plain, [f"op={op}", *pairs])] if dot and "." not in plain else []
    for start, inside in (*forms, (name, pairs)):
        text = f"{start}[{' '.join(inside)}]"
        if parse_annotation(text) == (name, whole):
            return text
    return None


def has_facts() -> pl.Expr:
    """Whether an event has any; the bytes of a device event are its own, and no fact."""
    return pl.any_horizontal(
        pl.col("bytes").is_not_null() & pl.col("device").is_null(),
        pl.col([key for key in FACTS if key != "bytes"]).is_not_null(),
    )


def with_facts(hosts: pl.DataFrame) -> pl.DataFrame:
    """Takes the facts out of the names that hold some, as far as no column tells them otherwise.

    Args:
        hosts: N rows; reads name and category, string or categorical.

    Returns:
        The N rows, plain names among them; and, where there are any facts, columns of `FACTS`.
    """
    may_hold = pl.any_horizontal(pl.col("category") == category for category in CATEGORIES)
    named = hosts.select("name", "category", row=pl.int_range(pl.len())).filter(may_hold)
    told = _facts_of(named["name"].unique().to_list())
    if told.is_empty():
        return hosts
    known = [key for key in FACTS if key in hosts.columns]
    told = told.cast(
        {"plain": hosts.schema["name"], **{key: hosts.schema[key] for key in ("name", *known)}}
    )
    rows = named.select("row", "name").join(told, on="name").drop("name")
    return (
        hosts.with_columns(row=pl.int_range(pl.len()))
        .join(rows, on="row", how="left", maintain_order="left", suffix="_told")
        .with_columns(
            name=pl.coalesce("plain", "name"),
            **{key: pl.coalesce(key, f"{key}_told") for key in known},
        )
        .drop("row", "plain", *(f"{key}_told" for key in known))
    )


def annotated_names(events: pl.DataFrame) -> pl.DataFrame:
    """Names that hold the facts, of the host events that have some and a name can carry.

    Args:
        events: columns of `EVENTS`.

    Returns:
        row, int64; told, string.
    """
    is_host = pl.col("device").is_null() & pl.col("correlation_id").is_null()
    may_hold = pl.col("category").cast(pl.String).is_in(CATEGORIES)
    hosts = events.select("name", *FACTS, row=pl.int_range(pl.len()))
    hosts = hosts.filter(events.select(is_host & may_hold & has_facts()).to_series())
    told = [
        format_annotation(name, dict(zip(FACTS, facts)))
        for name, *facts in hosts.select("name", *FACTS).iter_rows()
    ]
    return hosts.select("row", told=pl.Series(told, dtype=pl.String)).drop_nulls()


def _facts_of(names: Iterable[str]) -> pl.DataFrame:
    """Each name as given, plain, and its `FACTS`; names without any are left out."""
    found = ((name, parse_annotation(name)) for name in names)
    rows = [{"name": name, "plain": parts[0], **parts[1]} for name, parts in found if parts]
    facts = {key: EVENTS[key][0] for key in FACTS}
    return pl.DataFrame(rows, {"name": pl.String, "plain": pl.String, **facts})
