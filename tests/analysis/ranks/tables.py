"""Small tables of collectives, as one rank's trace gives them."""

from __future__ import annotations

from typing import Any

import polars as pl

from ppprof.analysis.ranks.collectives import COLLECTIVES


def collectives_of(*rows: tuple[Any, ...], rank: int) -> pl.DataFrame:
    """Return a rank's table from (members, op, step, index, start_ns, end_ns)."""
    names = ["members", "op", "step", "index", "start_ns", "end_ns"]
    table = pl.DataFrame(rows, names, orient="row")
    more = {
        "axis": pl.lit("dp"),
        "rank": pl.lit(rank),
        "bytes": pl.lit(100),
        "is_on_device": pl.lit(value=False),
    }
    return table.with_columns(**more).select(
        pl.col(name).cast(dtype) for name, dtype in COLLECTIVES.items()
    )
