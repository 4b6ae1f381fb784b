"""What Kineto records about collectives: sizes, groups, dtypes and peers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from ppprof.trace.kineto.host_tree import INNER, nest_hosts
from ppprof.trace.kineto.lookup import looked_up, per_text
from ppprof.trace.kineto.terms import SCALAR_TYPES


def rank_lists(information: Mapping[str, Any]) -> Mapping[int, str]:
    """Return the number of each process group -> its global ranks, such as '0,1'.

    ``information`` is the file's ``distributedInfo``. Groups without ranks, and groups whose name
    is not a number, are left out.
    """
    groups = information.get("pg_config")
    rank_lists = {}
    for group in groups if isinstance(groups, list) else ():
        name, ranks = (
            group.get(key) if isinstance(group, dict) else None for key in ("pg_name", "ranks")
        )
        if re.fullmatch(r"\d{1,18}", str(name)) and isinstance(ranks, list):
            rank_lists[int(str(name))] = ",".join(map(str, ranks))
    return rank_lists


def annotations_of(table: pl.DataFrame, rank_lists: Mapping[int, str]) -> pl.DataFrame:
    """Return the annotations of collectives: ``index``, bytes, group, dtype and peers.

    ``index`` is that of ``table``. ``bytes`` is the size of this rank's input; of its output if
    there is no input. Unknown values are null.

    Args:
        table: from `KinetoColumns.collectives`.
        rank_lists: number of a process group -> its global ranks, for collectives that lack them.
    """
    num_elements = pl.when(pl.col("num_in") > 0).then("num_in").otherwise("num_out")
    scalar_type = pl.col("text")
    is_float8 = scalar_type.str.contains(r"^Float8_\w+$")
    dtypes = {name: dtype for name, (dtype, _) in SCALAR_TYPES.items()}
    sizes = {name: size for name, (_, size) in SCALAR_TYPES.items()}
    element_bytes = (
        pl.when(is_float8)
        .then(1)
        .otherwise(scalar_type.replace_strict(sizes, default=None, return_dtype=pl.Int64))
    )
    dtype = (
        pl.when(is_float8)
        .then(scalar_type.str.to_lowercase())
        .otherwise(scalar_type.replace_strict(dtypes, default=None, return_dtype=pl.String))
    )
    # Kineto cuts long lists: "[0, 1, ..., 63]".
    whole = pl.when(~pl.col("text").str.contains(".", literal=True)).then("text")
    listed = whole.str.extract(r"\[([\d, ]+)\]").str.replace_all(" ", "")
    group = pl.coalesce("group", "group_id")
    return table.with_columns(
        *per_text(table["dtype"], element_bytes=element_bytes, dtype=dtype.cast(pl.Categorical())),
        *per_text(table["ranks"], ranks=listed),
    ).select(
        "index",
        bytes=num_elements * pl.col("element_bytes"),
        group=group,
        dtype="dtype",
        peers=pl.coalesce(
            "destination",
            "source",
            "ranks",
            group.replace_strict(rank_lists, default=None, return_dtype=pl.String),
        ),
    )


def with_annotations(hosts: pl.DataFrame, annotations: pl.DataFrame, slack_ns: int) -> pl.DataFrame:
    """Return ``hosts`` with the annotations of each collective on its outermost event.

    Communication events inside that event become OperatorInner. The outermost event gets the sum of
    ``bytes``, and the first known group, dtype and peers of all annotations inside it.
    """
    is_collective = hosts["category"] == "Communication"
    # Only events of collectives are needed here; most events have nothing to do with them.
    rows = np.flatnonzero(is_collective | hosts["index"].is_in(annotations["index"].implode()))
    some = hosts.select("index", "key", "start_ns", "end_ns")[rows]
    is_collective = is_collective.gather(rows)
    is_inner = is_collective & pl.Series(nest_hosts(some, slack_ns, holds=is_collective) >= 0)
    is_outer = is_collective & ~is_inner
    owner = np.where(is_outer, np.arange(len(rows)), nest_hosts(some, slack_ns, holds=is_outer))
    num_bytes = pl.col("bytes")
    sums = (
        some.select("index", row=np.where(owner < 0, -1, np.append(rows, -1)[owner]))
        .join(annotations, on="index", maintain_order="left")
        .group_by("row")
        .agg(
            pl.when(num_bytes.is_not_null().any()).then(num_bytes.sum()),
            pl.col("group", "dtype", "peers").drop_nulls().first(),
        )
    )
    inner = np.zeros(hosts.height, np.bool_)
    inner[rows[is_inner]] = True
    row = np.full(hosts.height, -1, np.int64)
    owned = sums.with_row_index("place").filter(pl.col("row") >= 0)
    row[owned["row"].to_numpy()] = owned["place"].to_numpy()
    return hosts.with_columns(
        looked_up(sums.drop("row"), row),
        category=pl.when(pl.lit(pl.Series(inner))).then(INNER).otherwise("category"),
    )
