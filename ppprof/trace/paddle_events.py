"""From the columns of Paddle's JSON to a trace: where things began, and what lies in what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ppprof.trace.clock import MISSING, Clock
from ppprof.trace.collectives import facts_of
from ppprof.trace.forest import pre_order
from ppprof.trace.nesting import nest, nest_by_depth, nest_by_level
from ppprof.trace.paddle_columns import PaddleColumns
from ppprof.trace.schema import EVENTS, KERNELS, MEMORY, MEMSETS, conform
from ppprof.trace.steps import steps_of

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Columns = dict[str, Array]

_CROSSING_NS = 1000  # by how much what lies inside may be past the end, its times being rounded


def paddle_tables(
    columns: PaddleColumns,
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Events, memory, kernels and memsets, as `ppprof.trace.schema` has them.

    Times are exact where the writer was ppprof's; Paddle's are within a microsecond, most of them
    exact, and lengths below 16 ms always are.
    """
    texts = pl.Series(
        [text.decode("utf-8", "replace") for text in columns.texts.all()], dtype=pl.Categorical()
    )
    host, launch, device = (columns.table(kind) for kind in ("host", "launch", "device"))
    clock = None if columns.ts_is_exact else Clock(host["ts"], host["begin"])
    for table in (host, launch, device):
        _settle(table, clock)

    host = _nested(host)
    by_at = np.argsort(host["at"], kind="stable")
    launch["parent"] = _owners(host, by_at, launch)
    launch = _ordered(launch, np.lexsort((launch["at"], launch["parent"])))
    num_host, num_launch = len(host["at"]), len(launch["at"])
    device["parent"] = _launchers(launch, device)
    order = np.lexsort((device["at"], np.where(device["parent"] < 0, num_launch, device["parent"])))
    device = _ordered(device, order)
    device["parent"] = np.where(device["parent"] < 0, MISSING, device["parent"] + num_host)
    device["bytes"] = _whole_bytes(device)

    memory = columns.table("memory")
    memory["start"] = memory["ts"]
    memory["slack"] = np.full(len(memory["ts"]), 0 if columns.ts_is_exact else 999)
    memory["dur"] = np.zeros_like(memory["ts"])
    owner = memory["event"] = _owners(host, by_at, memory)
    if len(host["at"]) and not columns.ts_is_exact:  # what is known of the owner narrows it down
        at = np.clip(memory["ts"], host["start"][owner], host["start"][owner] + host["dur"][owner])
        memory["start"] = np.where(owner >= 0, at, memory["ts"])
    # Of what one tick of the clock holds, the events around it tell the order.
    order = np.lexsort((memory["at"], owner, memory["start"], memory["pid"], memory["tid"]))
    memory = _ordered(memory, order)

    events = _events(texts, host, launch, device)
    first = num_host + num_launch
    is_kernel = device["grid_x"] != MISSING
    is_memset = device["value"] != MISSING
    return (
        events,
        _memory(texts, memory),
        _numbered(KERNELS, device, is_kernel, first),
        _numbered(MEMSETS, device, is_memset, first),
    )


def _settle(table: Columns, clock: Clock | None) -> None:
    """``start`` and ``slack``, how far it may be off, in place of the several times."""
    ts, begin, finish = (table.pop(column) for column in ("ts", "begin", "finish"))
    if clock is None:
        table["start"], table["slack"] = ts, np.zeros_like(ts)
    else:
        table["start"], table["slack"] = clock.starts(ts, table["dur"], begin, finish)


def _nested(host: Columns) -> Columns:
    """Host events in the order of the events table, with parent and depth."""
    is_sorted = (host["tid"][1:] == host["tid"][:-1]).all() and (
        host["pid"][1:] == host["pid"][:-1]
    ).all()
    if not is_sorted:
        host = _ordered(host, np.lexsort((host["at"], host["pid"], host["tid"])))
    told = host.pop("depth")
    new = np.flatnonzero((np.diff(host["tid"]) != 0) | (np.diff(host["pid"]) != 0)) + 1
    parent = np.empty(len(host["at"]), np.int64)
    for first, end in zip([0, *new.tolist()], [*new.tolist(), len(parent)]):
        part = slice(first, end)
        start, dur, slack = (host[column][part] for column in ("start", "dur", "slack"))
        within = _parents(told[part], start, dur, slack)
        parent[part] = np.where(within < 0, -1, within + first)
    order, depth = pre_order(parent)
    row = np.empty_like(order)
    row[order] = np.arange(len(order))
    above = parent[order]
    host = _ordered(host, order)
    host["parent"] = np.where(above < 0, MISSING, row[above])
    host["depth"] = depth
    return host


def _parents(told: Int64, start: Int64, dur: Int64, slack: Int64) -> Int64:
    """The parents in one thread, by the best that there is: told depths, order, times."""
    if len(told) and (told >= 0).all():
        parent = nest_by_depth(told)
        if parent is not None:
            return parent
    parent = nest_by_level(start, start + dur, slack)
    if parent is not None:
        return parent
    return nest(np.zeros_like(start), start, start + dur, slack_ns=int(slack.max(initial=0)))


def _owners(host: Columns, by_at: Int64, inner: Columns) -> Int64:
    """The row of the host event in which each row of ``inner`` happened, -1 for none.

    Paddle writes it behind the host event; where that does not hold it, the innermost that does.
    What comes before all host events of its thread was in none.
    """
    if not len(by_at):
        return np.full(len(inner["at"]), -1, np.int64)
    place = np.searchsorted(host["at"][by_at], inner["at"]) - 1
    owner = by_at[place]
    start, end = inner["start"], inner["start"] + inner["dur"]
    slack = inner["slack"] + host["slack"][owner]
    is_before = inner["at"] < _first_of_thread(host, inner)
    held = (
        (place >= 0) & (host["tid"][owner] == inner["tid"]) & (host["pid"][owner] == inner["pid"])
    )
    held &= start >= host["start"][owner] - slack
    held &= end <= host["start"][owner] + host["dur"][owner] + slack
    owner[is_before] = -1
    odd = np.flatnonzero(~held & ~is_before)
    if len(odd):
        threads = np.concatenate((host["tid"], inner["tid"][odd]))
        starts = np.concatenate((host["start"], start[odd]))
        ends = np.concatenate((host["start"] + host["dur"], end[odd]))
        holds = np.arange(len(threads)) < len(by_at)
        owner[odd] = nest(threads, starts, ends, holds=holds)[len(by_at) :]
    return owner


def _first_of_thread(host: Columns, inner: Columns) -> Int64:
    """Where in the file the first host event of each one's thread begins; 0 where there is none."""
    firsts = pl.DataFrame({name: host[name] for name in ("tid", "pid", "at")})
    firsts = firsts.group_by("tid", "pid").min()
    wanted = pl.DataFrame({name: inner[name] for name in ("tid", "pid")})
    found = wanted.join(firsts, on=["tid", "pid"], how="left", maintain_order="left")["at"]
    return found.fill_null(0).to_numpy()


def _launchers(launch: Columns, device: Columns) -> Int64:
    """The row among the launches of what started each device event, -1 for none.

    A launch with its correlation id; of several the last before it in the file.
    """
    launches = pl.DataFrame(
        {"id": launch["correlation_id"], "at": launch["at"], "row": np.arange(len(launch["at"]))}
    ).sort("at")
    wanted = pl.DataFrame({"id": device["correlation_id"], "at": device["at"]})
    before = wanted.join_asof(launches, on="at", by="id", check_sortedness=False)["row"]
    if before.null_count():
        any_of_it = wanted.join(
            launches.unique("id", keep="first"), on="id", how="left", maintain_order="left"
        )["row"]
        before = before.fill_null(any_of_it)
    return before.fill_null(-1).to_numpy()


def _whole_bytes(device: Columns) -> Int64:
    """Bytes of device events; those that Paddle cut to 32 bits, from the bandwidth beside them.

    That is printed with three decimals of GB/s, so it tells how many times 2**32 are missing.
    """
    num_bytes, dur, bandwidth = device["bytes"], device["dur"], device.pop("bandwidth")
    told = np.where(np.isfinite(bandwidth), bandwidth, 0) * dur
    wraps = np.clip(np.rint((told - num_bytes) / 2**32), 0, 2**20)
    is_told = (np.abs(told - num_bytes - wraps * 2**32) <= 0.001 * dur + 1) & (wraps > 0)
    is_below = (num_bytes < 0) & (num_bytes >= -(2**31))
    wraps = np.where(is_told, wraps, is_below).astype(np.int64)
    return np.where(num_bytes == MISSING, MISSING, num_bytes + (wraps << 32))


def _events(texts: pl.Series, host: Columns, launch: Columns, device: Columns) -> pl.DataFrame:
    host_table = _table(
        texts,
        host,
        {
            **{"name": "name", "cat": "category", "start": "start_ns", "dur": "dur_ns"},
            **{"parent": "parent", "depth": "depth", "pid": "process", "tid": "thread"},
            **{"bytes": "bytes", "group": "group", "peers": "peers"},
        },
    )
    launch["parent"] = np.where(launch["parent"] < 0, MISSING, launch["parent"])
    launch_table = _table(
        texts,
        launch,
        {
            **{"name": "name", "cat": "category", "start": "start_ns", "dur": "dur_ns"},
            **{"parent": "parent", "pid": "process", "tid": "thread"},
            "correlation_id": "correlation_id",
        },
    )
    device_table = _table(
        texts,
        device,
        {
            **{"name": "name", "cat": "category", "start": "start_ns", "dur": "dur_ns"},
            **{"parent": "parent", "device": "device", "context": "context", "stream": "stream"},
            **{"correlation_id": "correlation_id", "bytes": "bytes"},
        },
    )
    events = pl.concat(
        [
            conform(_with_collectives(host_table), EVENTS),
            conform(launch_table, EVENTS),
            conform(device_table, EVENTS),
        ]
    )
    return events.with_columns(
        step=steps_of(events.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns")))
    )


def _with_collectives(host_table: pl.DataFrame) -> pl.DataFrame:
    """Takes the facts out of the names of collectives, as far as nobody told them otherwise."""
    names = host_table.filter(pl.col("category") == "Communication")["name"].unique().to_list()
    facts = facts_of(names)
    if facts.is_empty():
        return host_table
    return (
        host_table.join(
            facts.with_columns(pl.col("name").cast(host_table["name"].dtype)),
            on="name",
            how="left",
            maintain_order="left",
            suffix="_told",
        )
        .with_columns(
            name=pl.coalesce(pl.col("plain").cast(host_table["name"].dtype), "name"),
            **{key: pl.coalesce(key, f"{key}_told") for key in ("group", "bytes", "peers")},
        )
        .drop("plain", "group_told", "bytes_told", "peers_told")
    )


def _memory(texts: pl.Series, memory: Columns) -> pl.DataFrame:
    memory["event"] = np.where(memory["event"] < 0, MISSING, memory["event"])
    same = ("event", "place", "bytes", "current_allocated", "current_reserved")
    table = _table(
        texts,
        memory,
        {
            **{"start": "time_ns", "cat": "kind", "pid": "process", "tid": "thread"},
            **{name: name for name in (*same, "peak_allocated", "peak_reserved")},
        },
    )
    return conform(table.with_columns(addr=pl.Series(memory["addr"].view(np.uint64))), MEMORY)


def _numbered(
    schema: Mapping[str, tuple[pl.DataType, str]], device: Columns, rows: Array, first: int
) -> pl.DataFrame:
    """A side table of the device events: those of these rows, ``event`` being theirs."""
    columns = {name: _nullable(device[name][rows]) for name in schema if name != "event"}
    return conform(
        pl.DataFrame({"event": first + np.flatnonzero(rows), **columns}),
        schema,
    )


def _table(texts: pl.Series, columns: Columns, names: Mapping[str, str]) -> pl.DataFrame:
    """The columns under their new names; they are taken, so that no two copies are held."""
    table = {}
    for old, new in names.items():
        values = columns.pop(old)
        if old in ("name", "cat", "place", "peers"):
            series = texts.gather(pl.Series(np.maximum(values, 0)))
            if (values < 0).any():
                series = series.set(pl.Series(values) < 0, None)
        else:
            series = _nullable(values)
        table[new] = series
    return pl.DataFrame(table)


def _nullable(values: Array) -> pl.Series:
    series = pl.Series(values)
    if values.dtype.kind == "f":
        return series.fill_nan(None)
    missing = series == MISSING
    return series.set(missing, None) if missing.any() else series


def _ordered(table: Columns, order: Int64) -> Columns:
    return {column: values[order] for column, values in table.items()}
