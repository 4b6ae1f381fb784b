"""What is known of a collective, in an event that has room for a name only."""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

_COLLECTIVE = re.compile(
    r"(?P<name>[^\s\[\]]+)\[(?=\w)"
    r"(op=(?P<op>\w+) ?)?(group=(?P<group>-?\d{1,18}) ?)?(bytes=(?P<bytes>\d{1,18}) ?)?"
    r"(peers=(?P<peers>[\d,]*))?"
    r"\]"
)
"""How capture writes it: ``all_reduce[group=0 bytes=64 peers=0,1]``,
``wait[op=isend group=0 bytes=8 peers=1]``. torch's names, ``c10d::allreduce_``, are no words."""


def facts_of(names: Iterable[str]) -> pl.DataFrame:
    """The facts in the names of collectives; names without any are left out.

    Returns:
        name as given; plain, the name without facts (``isend.wait`` for a wait); group and bytes
        (int64), peers (string); null where unknown.
    """
    rows = [
        {
            "name": name,
            "plain": f"{match['op']}.{match['name']}" if match["op"] else match["name"],
            "group": int(match["group"]) if match["group"] else None,
            "bytes": int(match["bytes"]) if match["bytes"] else None,
            "peers": match["peers"] or None,
        }
        for name in names
        if (match := _COLLECTIVE.fullmatch(name))
    ]
    return pl.DataFrame(
        rows,
        {
            **{"name": pl.String, "plain": pl.String},
            **{"group": pl.Int64, "bytes": pl.Int64, "peers": pl.String},
        },
    )
