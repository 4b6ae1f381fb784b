"""What many events of a timeline have in common: name, category, shapes, FLOPs, peers ..."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.efficiency.operator_work import work_of_operators
from ppprof.arrays import Bool, Int64
from ppprof.trace.labels import map_texts
from ppprof.trace.operator_inputs import dtype_as_shown, shapes_as_shown
from ppprof.trace.schema import Trace
from ppprof.units import escape_control_chars

KINDS = (
    *("step", "forward", "backward", "optimization", "dataloader", "span"),
    *("operator", "inner", "communication", "runtime", "kernel", "copy", "python"),
)
"""Kinds of events, as the legend of a timeline lists them. ``inner`` is a part of an operator,
``communication`` is on the host or on a device, ``python`` is a call of a Python function."""

_KIND_OF_CATEGORY = {
    **{"ProfileStep": "step", "Forward": "forward", "Backward": "backward"},
    **{"Optimization": "optimization", "Dataloader": "dataloader", "Operator": "operator"},
    **dict.fromkeys(("UserDefined", "PythonUserDefined", "PythonOp"), "span"),
    **dict.fromkeys(("OperatorInner", "DygraphKernelLaunch", "StaticKernelLaunch"), "inner"),
    **{"Communication": "communication", "CudaRuntime": "runtime"},
    **dict.fromkeys(("Memcpy", "Memset"), "copy"),
}

_OF_EVENTS = (
    *("bytes", "axis", "group", "dtype", "peers", "stage", "chunk"),
    *("micro_batch", "phase", "shapes", "dtypes", "attributes", "callstack"),
)
_OF_KERNELS = (
    *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"),
    *("registers", "shared_bytes", "blocks_per_sm", "occupancy"),
)
_MOST = 40_000
"""Signatures of a rank. If there are more, only names, categories and bytes are kept."""


class Signatures(NamedTuple):
    """The distinct signatures of a window's events, the most frequent first."""

    table: pl.DataFrame
    """One row per signature: name, category, place (0 host, 1 launch, 2 device), further columns
    of `ppprof.trace.schema.EVENTS` and `KERNELS`, flops and moved_bytes. shapes and dtypes are as
    tables show them. A column without any value may be missing."""
    kind: Int64
    """Index in `KINDS` of each signature."""
    of_event: Int64
    """The signature of each event, shape (events,)."""

    def json(self, num: Int64) -> str:
        """Return the table as JSON, a list for each column, with the given number of events.

        Invisible characters of texts are written out, as everywhere on a page.
        """
        columns = {
            column.name: [text and escape_control_chars(text) for text in column]
            if column.dtype == pl.String
            else column.to_list()
            for column in self.table
        }
        return json.dumps(
            {**columns, "kind": self.kind.tolist(), "num": num.tolist()},
            separators=(",", ":"),
            ensure_ascii=False,
        )


def with_python(signatures: Signatures, names: pl.Series) -> Signatures:
    """Return the signatures with further events of kind "python", which have nothing else but a name.

    Args:
        signatures: the signatures of a window's events.
        names: the name of each further event, shape (N,).
    """
    distinct = names.unique(maintain_order=True)
    new = pl.DataFrame({"name": distinct, "place": [0] * len(distinct)})
    number = {name: len(signatures.kind) + index for index, name in enumerate(distinct)}
    of_names = names.replace_strict(number, return_dtype=pl.Int64).to_numpy()
    place = signatures.table.schema.get("place", pl.Int32)
    return Signatures(
        pl.concat(
            [signatures.table, new.with_columns(pl.col("place").cast(place))], how="diagonal"
        ),
        np.append(signatures.kind, np.full(len(distinct), KINDS.index("python"))),
        np.append(signatures.of_event, of_names),
    )


def signatures(trace: Trace, communicating: Bool) -> Signatures:
    """Return the signatures of a window's events.

    Args:
        trace: the window.
        communicating: whether each event is communication, shape (events,).
    """
    place = pl.when(pl.col("device").is_not_null()).then(2).when(pl.col("depth").is_null()).then(1)
    columns = [n for n in _OF_EVENTS if trace.events[n].null_count() < trace.events.height]
    events = trace.events.select(
        *("name", "category"),
        *columns,
        place=place.otherwise(0),
        communicates=pl.Series(communicating),
    )
    if trace.kernels.height:
        kernels = trace.kernels.select("event", *_OF_KERNELS)
        rows = events.select(event=pl.int_range(pl.len(), dtype=pl.Int32))
        events = events.hstack(
            rows.join(kernels, "event", "left", maintain_order="left").drop("event")
        )
    groups = _groups(events)
    if groups.height > _MOST:
        few = ("name", "category", "bytes", "place", "communicates")
        groups = _groups(events.select(name for name in few if name in events.columns))
    of_event = np.empty(events.height, np.int64)
    of_event[groups["row"].explode().to_numpy()] = np.repeat(
        np.arange(groups.height), groups["num"].to_numpy()
    )
    table = groups.drop("row").with_columns(pl.col(pl.Categorical).cast(pl.String))
    return Signatures(_with_work(table.drop("communicates", "num")), _kinds(table), of_event)


def _groups(events: pl.DataFrame) -> pl.DataFrame:
    """Return the distinct rows of ``events``, with num and row: how many there are, and which."""
    keys = events.columns
    groups = events.with_columns(row=pl.int_range(pl.len())).group_by(keys, maintain_order=True)
    return groups.agg("row", num=pl.len().cast(pl.Int64)).sort(
        "num", descending=True, maintain_order=True
    )


def _kinds(table: pl.DataFrame) -> Int64:
    """Return the index in `KINDS` of each row; a device event of an unknown category is a kernel."""
    kinds = {0: "span", 1: "runtime", 2: "kernel"}
    other = pl.col("place").replace_strict(kinds, return_dtype=pl.String)
    kind = pl.col("category").replace_strict(_KIND_OF_CATEGORY, default=other)
    kind = pl.when("communicates").then(pl.lit("communication")).otherwise(kind)
    return (
        table.select(kind.cast(pl.Enum(KINDS)).to_physical().cast(pl.Int64)).to_series().to_numpy()
    )


def _with_work(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with flops and moved_bytes of operators, and with readable inputs."""
    inputs = ("shapes", "dtypes", "attributes")
    if "shapes" not in table.columns:
        return table
    given = table.with_columns(
        pl.lit(None, pl.String).alias(name) for name in inputs if name not in table.columns
    )
    work = work_of_operators(given).rename({"bytes": "moved_bytes"})
    rows = pl.int_range(pl.len(), dtype=pl.Int32).alias("row")
    worked = given.with_columns(rows).join(work, "row", "left", maintain_order="left").drop("row")
    return worked.with_columns(
        map_texts(worked["shapes"], shapes_as_shown), map_texts(worked["dtypes"], dtype_as_shown)
    )
