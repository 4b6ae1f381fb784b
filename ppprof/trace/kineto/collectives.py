"""Collectives in Kineto's files: `annotations_of` reads them, `with_collectives` writes their ``args``.

Paddle records a collective for the span on the host that launches it. torch repeats the values in
the kernels, where HTA and TraceLens look for them. So does this module::

    span    all_reduce[group=3 bytes=4096 dtype=float32 peers=0,1]
    kernel  ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)
    both    "Collective name":"allreduce","In msg nelems":1024,"Out msg nelems":1024,
            "Group size":2,"dtype":"Float","Process Group Name":"3","Process Group Ranks":"[0, 1]"

Source: torch/csrc/distributed/c10d/ParamCommsUtils.hpp of pytorch/pytorch, and the names of operations
in its ProcessGroupNCCL.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from ppprof.trace.communication_names import CommunicationNames, communicates
from ppprof.trace.kineto.host_tree import INNER, nest_hosts
from ppprof.trace.kineto.joins import looked_up, per_text
from ppprof.trace.kineto.names import SCALAR_TYPES
from ppprof.trace.schema import is_kernel
from ppprof.trace.tree_arrays import enclosing

Groups = Mapping[int, tuple[int, ...]]
"""Number of a communication group -> its global ranks, ascending."""
WAIT = ".wait"
"""End of the name of a span that waits for a collective, such as ``isend.wait``."""
_VALUES = ("bytes", "group", "dtype", "peers", "axis")
_OPERATIONS = {
    **{"all_?reduce": "allreduce", "reduce_?scatter": "_reduce_scatter_base"},
    **{"all_?gather": "_allgather_base", "all_?to_?all": "all_to_all"},
    **{"broadcast|bcast": "broadcast", "scatter": "scatter", "gather": "gather"},
    **{"reduce": "reduce", "barrier": "barrier", "send": "send", "recv": "recv"},
}
"""Pattern of the name of a span or kernel, in lower case -> torch's name of the operation."""
_TRANSFER = re.compile(r"(?:^|:)i?(send|recv)", re.IGNORECASE)
_RANKS = re.compile(r"\d{1,18}(,\d{1,18})*")
_BATCH = re.compile(r"[<>](\d{1,18}):\d+")
_SCALARS = {dtype: (name, size) for name, (dtype, size) in SCALAR_TYPES.items()}
_MOST_RANKS = 30
"""Longer lists of ranks are cut, as in torch: the group's ranks are in ``distributedInfo``."""


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


_AXES = (
    (r"expert.*data|data.*expert|(^|_)edp(_|$)", "dp"),
    (r"shard|(^|_)(e?fsdp|hsdp)(_|$)", "sharding"),
    (r"expert|(^|_)ep(_|$)", "ep"),
    (r"tensor.*data", "mp"),
    (r"data_parallel|(^|_)dp_cp(_|$)", "dp"),
    (r"context|sequence|(^|_)(cp|sp|sep)(_|$)", "sep"),
    (r"pipeline|(^|_)pp(_|$)", "pp"),
    (r"tensor|(^|_)(tp|mp)(_|$)|model_parallel", "mp"),
    (r"replicate|(^|_)(dp|ddp)(_|$)", "dp"),
)
"""Pattern of a group's description in lower case -> axis; the first that fits. They are those of
torch's DeviceMesh (mesh_dp, mesh_dp_shard), torchtitan, Megatron (TENSOR_MODEL_PARALLEL_GROUP) and
DeepSpeed. A group over two axes, as mesh_dp_shard_cp, has that of its collectives' purpose."""
_OWN = re.compile(r"(dp|mp|pp|sharding|sep)(\+(dp|mp|pp|sharding|sep))*")


@lru_cache(maxsize=1 << 10)
def axis_of_description(description: str) -> str | None:
    """Return the axis that the description of a process group names; None if it names none.

    >>> [axis_of_description(text) for text in ("mesh_dp", "TENSOR_MODEL_PARALLEL_GROUP", "default_pg")]
    ['dp', 'mp', None]
    """
    text = description.lower()
    if _OWN.fullmatch(text):
        return text
    return next((axis for pattern, axis in _AXES if re.search(pattern, text)), None)


def annotations_of(table: pl.DataFrame, rank_lists: Mapping[int, str]) -> pl.DataFrame:
    """Return the annotations of collectives: ``index``, bytes, group, dtype, peers and axis.

    ``index`` is that of ``table``. ``bytes`` is the size of this rank's input; of its output if
    there is no input. Unknown values are null.

    Args:
        table: from `KinetoColumns.table`.
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
        axis=table["description"]
        .map_elements(axis_of_description, pl.String)
        .cast(pl.Categorical()),
    )


def with_annotations(hosts: pl.DataFrame, annotations: pl.DataFrame, slack_ns: int) -> pl.DataFrame:
    """Return ``hosts`` with the annotations of each collective on its outermost event.

    Communication events inside that event become OperatorInner. The outermost event gets the sum of
    ``bytes``, and the first known group, dtype, peers and axis of all annotations inside it.
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
            pl.col("group", "dtype", "peers", "axis").drop_nulls().first(),
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


class _Collective(NamedTuple):
    """A collective's annotations; the columns of the same names in `ppprof.trace.schema.EVENTS`."""

    name: str
    """Name of the span that launched it; empty without such a span."""
    kernel: str
    """Name of the kernel; empty for a span."""
    bytes: int | None
    group: int | None
    dtype: str | None
    peers: str | None
    axis: str | None


def with_collectives(
    hosts: pl.DataFrame,
    launches: pl.DataFrame,
    devices: pl.DataFrame,
    rank: int,
    rule: CommunicationNames,
) -> tuple[pl.DataFrame, pl.DataFrame, Groups]:
    """Return host and device events with what their collectives moved among which ranks, and the groups of ranks.

    A span has what its annotation says: bytes, group, dtype, peers and axis. So has a kernel that
    communicates; without an annotation, it has that of the innermost span around its launch.

    Args:
        hosts: the host events, in their rows.
        launches: the launches, with ``event``, their row in the events table.
        devices: the device events, with ``event``.
        rank: the rank that recorded them.
        rule: decides which kernels communicate.

    Returns:
        ``hosts`` and ``devices`` with ``collective``, text to append to ``args``; null for other
        events.
    """
    is_annotated = pl.any_horizontal(pl.col("bytes", "group", "dtype", "peers").is_not_null())
    is_wait = pl.col("name").cast(pl.String).str.ends_with(WAIT)
    is_span = (pl.col("category") == "Communication") & is_annotated & ~is_wait
    chosen = hosts.select(is_span.fill_null(False)).to_series()
    spans = hosts.filter(chosen).select("event", "name", *_VALUES, kernel=pl.lit(""))
    owner = enclosing(hosts["parent"].fill_null(-1).to_numpy(), chosen.to_numpy())
    owner = np.where(chosen, np.arange(hosts.height), owner)
    above = pl.DataFrame(
        {"host": pl.int_range(hosts.height, dtype=pl.Int32, eager=True), "span": owner}
    )
    kernels = (
        devices.filter(is_kernel() & communicates(devices["name"], rule))
        .select("event", *_VALUES, launch="parent", kernel="name")
        .join(launches.select(launch="event", host="parent"), on="launch", how="left")
        .join(above, on="host", how="left")
        .join(spans.rename({"event": "span"}), on="span", how="left", suffix="_span")
    )
    is_own = pl.any_horizontal(pl.col("group", "dtype", "peers").is_not_null())
    kernels = kernels.select(
        *("event", "kernel", "name"),
        *(pl.when(is_own).then(key).otherwise(f"{key}_span").alias(key) for key in _VALUES),
    ).filter(is_annotated)
    groups = _groups(_rows(spans), rank)
    return _with_text(hosts, spans, groups), _with_text(devices, kernels, groups), groups


def _with_text(events: pl.DataFrame, annotated: pl.DataFrame, groups: Groups) -> pl.DataFrame:
    text = lru_cache(maxsize=1 << 12)(lambda collective: collective_args(collective, groups))
    texts = pl.Series("collective", list(map(text, _rows(annotated))), pl.String)
    return events.join(
        annotated.select("event", texts), on="event", how="left", maintain_order="left"
    )


def _rows(annotated: pl.DataFrame) -> Iterable[_Collective]:
    columns = annotated.select(
        pl.col("name", "kernel").cast(pl.String).fill_null(""),
        pl.col("bytes", "group"),
        pl.col("dtype", "peers", "axis").cast(pl.String),
    )
    return map(_Collective._make, columns.select(_Collective._fields).iter_rows())


def collective_args(collective: _Collective, groups: Groups) -> str:
    """Return the text to append to the ``args`` of a collective's span or kernel."""
    name = _operation(collective)
    scalar, num_elements = _elements(collective)
    members = _members(collective, groups)
    num_output = num_elements
    if name == "_allgather_base":
        num_output *= max(1, len(members))
    elif name == "_reduce_scatter_base":
        num_output //= max(1, len(members))
    args: dict[str, Any] = {"Collective name": name}
    args.update({"In msg nelems": num_elements, "Out msg nelems": num_output})
    if members:
        args["Group size"] = len(members)
    if scalar is not None:
        args["dtype"] = scalar
    if collective.group is not None:
        args["Process Group Name"] = str(collective.group)
    if collective.axis is not None:
        args["Process Group Description"] = collective.axis
    if members:
        args["Process Group Ranks"] = _ranks(members)
    transfer = _TRANSFER.search(collective.name)
    if transfer and _RANKS.fullmatch(collective.peers or ""):
        side = "Dst Rank" if transfer[1].lower() == "send" else "Src Rank"
        args[side] = int(str(collective.peers).partition(",")[0])
    elif _BATCH.match(collective.peers or ""):
        args["Transfers"] = collective.peers
    return "," + msgspec.json.encode(args).decode()[1:-1]


def _operation(collective: _Collective) -> str:
    """Return torch's name of the operation, else the name of the span or kernel."""
    for text in (collective.name, collective.kernel):
        for pattern, name in _OPERATIONS.items():
            if re.search(pattern, text.lower()):
                return name
    return collective.name or collective.kernel


def _elements(collective: _Collective) -> tuple[str | None, int]:
    """Return torch's name of the element type, and the number of elements.

    Bytes that are not a whole number of elements, or have no known type, are counted in elements of one
    byte. Without type and bytes, there is no name.
    """
    dtype, num_bytes = collective.dtype or "", collective.bytes
    scalar, size = _SCALARS.get(dtype, (dtype.capitalize() or None, 1))
    is_known = dtype in _SCALARS or dtype.startswith("float8_")
    if num_bytes is None:
        return (scalar if is_known else None), 0
    if not is_known or num_bytes % size:
        return "Byte", num_bytes
    return scalar, num_bytes // size


def _groups(collectives: Iterable[_Collective], rank: int) -> Groups:
    """Return the groups of collectives: all ranks that any of their collectives names.

    Transfers name the other side only, so the rank itself is added.
    """
    groups: dict[int, set[int]] = {}
    for collective in set(collectives):
        peers = _peers(collective)
        if collective.group is not None and peers:
            own = {rank} if _TRANSFER.search(collective.name) else set()
            groups.setdefault(collective.group, set()).update(peers, own)
    return {group: tuple(sorted(ranks)) for group, ranks in groups.items()}


def _peers(collective: _Collective) -> list[int]:
    peers = collective.peers or ""
    if _RANKS.fullmatch(peers):
        return [int(peer) for peer in peers.split(",")]
    return [int(peer) for peer in _BATCH.findall(peers)]


def _members(collective: _Collective, groups: Groups) -> tuple[int, ...]:
    if _TRANSFER.search(collective.name) or _BATCH.match(collective.peers or ""):
        return groups.get(-1 if collective.group is None else collective.group, ())
    return tuple(_peers(collective))


def _ranks(members: tuple[int, ...]) -> str:
    if len(members) <= _MOST_RANKS:
        return str(list(members))
    first = ", ".join(map(str, members[: _MOST_RANKS - 1]))
    return f"[{first}, ..., {members[-1]}]"
