"""From the columns of Paddle's JSON to a trace: where things began, and what lies in what."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from ppprof.arrays import Array, Int64
from ppprof.trace.annotations import FACTS, with_facts
from ppprof.trace.fastpath.fixed_layout import TEXTS
from ppprof.trace.nesting import nest, nest_by_depth, nest_by_level
from ppprof.trace.paddle.json_columns import COLUMNS, REALS, PaddleColumns
from ppprof.trace.paddle.timestamps import MISSING, TimestampEstimator
from ppprof.trace.schema import EVENTS, KERNELS, MEMORY, MEMSETS, conform, nullable
from ppprof.trace.step_numbers import steps_of
from ppprof.trace.tree_arrays import pre_order

Columns = dict[str, Array]


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
    host, launch, device, memory = (columns.table(kind) for kind in COLUMNS)
    timed = (host, launch, device)
    clock = TimestampEstimator((table["ts"], table["begin"]) for table in timed)
    for table in timed:
        _settle(table, None if columns.ts_is_exact else clock)
    _settle_moments(memory, is_exact=columns.ts_is_exact)

    hosts = _Hosts(host)
    owner, _ = hosts.around(launch)
    launch["parent"] = owner
    _reorder(launch, np.lexsort((launch["at"], owner)))
    num_hosts, num_launches = len(hosts.depth), len(launch["at"])

    launcher = _launchers(launch, device)
    order = np.lexsort((device["at"], np.where(launcher < 0, num_launches, launcher)))
    device["parent"] = np.where(launcher < 0, MISSING, launcher + num_hosts)
    device["bytes"] = _whole_bytes(device)
    _reorder(device, order)

    owner, memory["start"] = hosts.around(memory)
    memory["event"] = owner
    # Of what one tick of the clock holds, the events around it tell the order.
    order = np.lexsort((memory["at"], owner, memory["start"], memory["pid"], memory["tid"]))
    _reorder(memory, order)

    kernels = _side_table(KERNELS, device, "grid_x", num_hosts + num_launches)
    memsets = _side_table(MEMSETS, device, "value", num_hosts + num_launches)
    return (
        _events(texts, hosts.in_order(), launch, device),
        _memory(texts, memory),
        kernels,
        memsets,
    )


def _settle(table: Columns, clock: TimestampEstimator | None) -> None:
    """``start`` and ``slack``, how far it may be off, in place of the several times."""
    ts, begin, finish = (table.pop(column) for column in ("ts", "begin", "finish"))
    if clock is None:
        table["start"], table["slack"] = ts, np.zeros_like(ts)
    else:
        table["start"], table["slack"] = clock.starts(ts, table["dur"], begin, finish)


def _rows_of(wanted: Int64, number: Int64) -> Int64:
    """The first row of each number that is wanted, `MISSING` where there is none; shapes (N,)."""
    rows = np.flatnonzero(number != MISSING)
    if not len(rows):
        return np.full(len(wanted), MISSING)
    rows = rows[np.argsort(number[rows], kind="stable")]
    at = np.minimum(np.searchsorted(number[rows], wanted), len(rows) - 1)
    return np.where((wanted != MISSING) & (number[rows[at]] == wanted), rows[at], MISSING)


def _settle_moments(memory: Columns, is_exact: bool) -> None:
    """The same of what has no length."""
    memory["start"] = memory.pop("ts")
    memory["dur"] = np.zeros_like(memory["start"])
    memory["slack"] = np.full_like(memory["start"], 0 if is_exact else 999)


class _Hosts:
    """The host events of all threads, and their tree.

    Args:
        table: columns in the order of the file; taken, and put in order thread by thread.
    """

    def __init__(self, table: Columns) -> None:
        same = (np.diff(table[key]) == 0 for key in ("tid", "pid"))
        if not all(neighbours.all() for neighbours in same):
            _reorder(table, np.lexsort((table["at"], table["pid"], table["tid"])))
        told = table.pop("depth", None)
        self._is_told = told is not None
        """Whether the file tells the tree, and so its order what happened in which host event."""
        changes = (np.diff(table["tid"]) != 0) | (np.diff(table["pid"]) != 0)
        self._firsts: Int64 = np.flatnonzero(np.append(len(table["at"]) > 0, changes))
        parent = np.empty(len(table["at"]), np.int64)
        for first, end in zip(self._firsts, np.append(self._firsts[1:], len(parent))):
            part = slice(first, end)
            start, dur, slack = (table[column][part] for column in ("start", "dur", "slack"))
            within = None if told is None else nest_by_depth(told[part])
            if within is None:
                self._is_told = False
                within = _parents(start, dur, slack)
            parent[part] = np.where(within < 0, -1, within + first)
        self._table = table
        self._order, self.depth = pre_order(parent)
        self._row = np.empty_like(self._order)
        self._row[self._order] = np.arange(len(self._order))
        above = parent[self._order]
        self._parent = np.where(above < 0, MISSING, self._row[above])
        at = table["at"]
        self._by_at = None if (at[1:] >= at[:-1]).all() else np.argsort(at, kind="stable")

    def in_order(self) -> Columns:
        """The columns in the order of the events table; they are not kept."""
        table = self._table
        del table["at"], table["slack"]
        _reorder(table, self._order)
        table["parent"], table["depth"] = self._parent, self.depth
        sequence, forward = table.pop("sequence", None), table.pop("forward", None)
        if sequence is not None and forward is not None:
            table["forward"] = _rows_of(forward, sequence)
        return table

    def around(self, inner: Columns) -> tuple[Int64, Int64]:
        """In which host event each row of ``inner`` happened, and when it can have begun there.

        Paddle writes it behind the host event; where that does not hold it, the innermost that
        does. What comes before all host events of its thread was in none.

        Returns:
            Row of the host event, -1 for none; start in nanoseconds, not outside of it.
        """
        host, start = self._table, inner["start"]
        if not len(host["at"]):
            return np.full(len(start), -1, np.int64), start
        at = host["at"] if self._by_at is None else host["at"][self._by_at]
        place = np.searchsorted(at, inner["at"]) - 1
        owner = place if self._by_at is None else self._by_at[place]
        end = start + inner["dur"]
        host_start, host_dur = host["start"][owner], host["dur"][owner]
        slack = inner["slack"] + host["slack"][owner]
        held = (start >= host_start - slack) & (end <= host_start + host_dur + slack)
        held = (held | self._is_told) & (place >= 0)
        for key in ("tid", "pid"):
            held &= host[key][owner] == inner[key]
        is_before = inner["at"] < self._first_of_thread(inner)
        odd = np.flatnonzero(~held & ~is_before)
        if len(odd):
            owner[odd] = self._innermost({key: values[odd] for key, values in inner.items()})
        owner = np.where(is_before, -1, owner)
        is_in = owner >= 0
        first = host["start"][owner]
        latest = np.maximum(first + host["dur"][owner] - inner["dur"], first)
        return (
            np.where(is_in, self._row[owner], -1),
            np.where(is_in & (inner["slack"] > 0), np.clip(start, first, latest), start),
        )

    def _first_of_thread(self, inner: Columns) -> Int64:
        """Where in the file the first host event of each one's thread begins; 0 where none does."""
        keys = ["tid", "pid"]
        firsts = pl.DataFrame({key: self._table[key][self._firsts] for key in [*keys, "at"]})
        wanted = pl.DataFrame({key: inner[key].astype(self._table[key].dtype) for key in keys})
        found = wanted.join(firsts, on=keys, how="left", maintain_order="left")["at"]
        return found.fill_null(0).to_numpy()

    def _innermost(self, inner: Columns) -> Int64:
        """By time alone."""
        host = self._table
        num_hosts = len(host["at"])
        process, thread = (np.concatenate((host[key], inner[key])) for key in ("pid", "tid"))
        _, process = np.unique(process, return_inverse=True)
        _, thread = np.unique(thread, return_inverse=True)
        start = np.concatenate((host["start"], inner["start"]))
        end = start + np.concatenate((host["dur"], inner["dur"]))
        key = thread * (process.max(initial=0) + 1) + process
        return nest(key, start, end, holds=np.arange(len(start)) < num_hosts)[num_hosts:]


def _parents(start: Int64, dur: Int64, slack: Int64) -> Int64:
    """The parents in one thread, by the order of the file; by time alone where that is nobody's."""
    parent = nest_by_level(start, start + dur, slack)
    if parent is not None:
        return parent
    return nest(np.zeros_like(start), start, start + dur, slack_ns=int(slack.max(initial=0)))


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

    That is a float32 of GB/s with three decimals: it tells how many times 2**32 are missing.
    """
    num_bytes, dur, bandwidth = (_column(device, name) for name in ("bytes", "dur", "bandwidth"))
    told = np.where(np.isfinite(bandwidth), bandwidth, 0) * dur
    wraps = np.clip(np.rint((told - num_bytes) / 2**32), 0, 2**20)
    is_told = np.abs(told - num_bytes - wraps * 2**32) <= 0.001 * dur + 1e-6 * told + 1
    is_told &= wraps > 0
    is_below = (num_bytes < 0) & (num_bytes >= -(2**31))
    wraps = np.where(is_told, wraps, is_below).astype(np.int64)
    whole: Int64 = np.where(num_bytes == MISSING, MISSING, num_bytes + (wraps << 32))
    return whole


def _events(texts: pl.Series, host: Columns, launch: Columns, device: Columns) -> pl.DataFrame:
    host_table = _table(
        texts,
        host,
        {
            **{"name": "name", "cat": "category", "start": "start_ns", "dur": "dur_ns"},
            **{"parent": "parent", "depth": "depth", "pid": "process", "tid": "thread"},
            "forward": "forward",
            **{key: key for key in FACTS},
        },
    )
    launch["parent"] = _missing_below_0(launch["parent"])
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
            conform(with_facts(host_table), EVENTS),
            conform(launch_table, EVENTS),
            conform(device_table, EVENTS),
        ]
    )
    return events.with_columns(
        step=steps_of(events.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns")))
    )


def _memory(texts: pl.Series, memory: Columns) -> pl.DataFrame:
    memory["event"] = _missing_below_0(memory["event"])
    same = ("event", "place", "bytes", "current_allocated", "current_reserved")
    table = _table(
        texts,
        memory,
        {
            **{"start": "time_ns", "cat": "kind", "pid": "process", "tid": "thread"},
            **{name: name for name in (*same, "peak_allocated", "peak_reserved")},
        },
    )
    return conform(
        table.with_columns(addr=pl.Series(memory["addr"].astype(np.int64).view(np.uint64))), MEMORY
    )


def _side_table(
    schema: Mapping[str, tuple[pl.DataType, str]], device: Columns, present: str, first: int
) -> pl.DataFrame:
    """A side table of the device events that have ``present``; ``event`` counts from ``first``."""
    rows = np.flatnonzero(_column(device, present) != MISSING)
    columns = {name: _nullable(_column(device, name)[rows]) for name in schema if name != "event"}
    return conform(pl.DataFrame({"event": first + rows, **columns}), schema)


def _table(texts: pl.Series, columns: Columns, names: Mapping[str, str]) -> pl.DataFrame:
    """The columns under their new names; they are taken, so that no two copies are held."""
    table = {}
    for old, new in names.items():
        if old not in columns:
            continue
        values = columns.pop(old)
        if old in TEXTS:
            series = texts.gather(nullable(values) if (values < 0).any() else pl.Series(values))
        else:
            series = _nullable(values)
        table[new] = series
    return pl.DataFrame(table)


def _column(table: Columns, name: str) -> Array:
    """A column; where the table has none, nothing but `MISSING` (NaN for a real number)."""
    if name in table:
        return table[name]
    return np.full(len(table["at"]), np.nan if name in REALS else MISSING)


def _nullable(values: Array) -> pl.Series:
    series = pl.Series(values)
    if values.dtype == np.float64:
        return series.fill_nan(None)
    if values.dtype != np.int64:  # too narrow for what stands for nothing
        return series
    is_missing = values == MISSING
    return series.set(pl.Series(is_missing), None) if is_missing.any() else series


def _missing_below_0(rows: Int64) -> Int64:
    return np.where(rows < 0, MISSING, rows)


def _reorder(table: Columns, order: Int64) -> None:
    """Puts the rows into this order, column by column, so that one at a time is held twice."""
    for column in table:
        table[column] = table[column][order]
