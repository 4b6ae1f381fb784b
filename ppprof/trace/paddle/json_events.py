"""Build a trace from the columns of Paddle's JSON: estimate starts, and find parents."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from ppprof.arrays import Array, Bool, Int64
from ppprof.trace.annotations import ANNOTATION_KEYS, split_annotated_names
from ppprof.trace.fastpath.fixed_layout import INPUTS, MISSING, TEXTS
from ppprof.trace.nesting import nest, nest_by_depth, nest_by_level
from ppprof.trace.paddle.json_columns import COLUMNS, REALS, PaddleColumns
from ppprof.trace.paddle.timestamps import TimestampEstimator
from ppprof.trace.schema import EVENTS, KERNELS, MEMORY, MEMSETS, conform, nullable
from ppprof.trace.step_numbers import steps_of
from ppprof.trace.tree_arrays import pre_order

Columns = dict[str, Array]


def paddle_tables(
    columns: PaddleColumns,
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the tables `EVENTS`, `MEMORY`, `KERNELS` and `MEMSETS` of a file.

    ``columns`` is empty afterwards. Times are exact if ppprof wrote the file. In Paddle's files
    they are exact for most events and within a microsecond for the others; durations below 16 ms
    are always exact.
    """
    texts = pl.Series(
        [text.decode("utf-8", "replace") for text in columns.texts.all()], dtype=pl.Categorical()
    )
    host, launch, device, memory = (columns.table(kind) for kind in COLUMNS)
    timed = (host, launch, device)
    estimator = TimestampEstimator((table["ts"], table["begin"]) for table in timed)
    for table in timed:
        _resolve_times(table, None if columns.ts_is_exact else estimator)
    _resolve_instants(memory, is_exact=columns.ts_is_exact)

    hosts = _HostTree(host)
    owner, _ = hosts.enclosing(launch)
    launch["parent"] = owner
    _reorder(launch, np.lexsort((launch["position"], owner)))
    num_hosts, num_launches = len(hosts.depth), len(launch["position"])

    launcher = _launchers(launch, device)
    order = np.lexsort((device["position"], np.where(launcher < 0, num_launches, launcher)))
    device["parent"] = np.where(launcher < 0, MISSING, launcher + num_hosts)
    device["bytes"] = _unwrapped_bytes(device)
    _reorder(device, order)

    owner, memory["start"] = hosts.enclosing(memory)
    memory["event"] = owner
    # The enclosing events give the order within one tick of the clock.
    order = np.lexsort((memory["position"], owner, memory["start"], memory["pid"], memory["tid"]))
    _reorder(memory, order)

    kernels = _side_table(KERNELS, device, "grid_x", num_hosts + num_launches)
    memsets = _side_table(MEMSETS, device, "value", num_hosts + num_launches)
    return (
        _events(texts, hosts.in_order(), launch, device),
        _memory(texts, memory),
        kernels,
        memsets,
    )


def _resolve_times(table: Columns, estimator: TimestampEstimator | None) -> None:
    """Replace the columns ts, begin and finish by ``start`` and its possible error, ``slack``.

    Without an ``estimator``, ``ts`` is exact: it is the start, and the slack is 0.
    """
    ts, begin, finish = (table.pop(column) for column in ("ts", "begin", "finish"))
    if estimator is None:
        table["start"], table["slack"] = ts, np.zeros_like(ts)
    else:
        table["start"], table["slack"] = estimator.starts(ts, table["dur"], begin, finish)


def _rows_of(wanted: Int64, number: Int64) -> Int64:
    """Return the first row of ``number`` with each wanted number; `MISSING` if there is no row.

    The shape is that of ``wanted``.
    """
    rows = np.flatnonzero(number != MISSING)
    if not len(rows):
        return np.full(len(wanted), MISSING)
    rows = rows[np.argsort(number[rows], kind="stable")]
    row = rows[np.minimum(np.searchsorted(number[rows], wanted), len(rows) - 1)]
    return np.where((wanted != MISSING) & (number[row] == wanted), row, MISSING)


def _resolve_instants(memory: Columns, is_exact: bool) -> None:
    """Replace the column ts of memory events by ``start``, ``dur`` and ``slack``.

    The duration is 0. The slack is 999 if ``ts`` is cut to whole microseconds, 0 if it is exact.
    """
    memory["start"] = memory.pop("ts")
    memory["dur"] = np.zeros_like(memory["start"])
    memory["slack"] = np.full_like(memory["start"], 0 if is_exact else 999)


class _HostTree:
    """The host events of all threads, and their tree.

    Args:
        table: columns in the order of the file. The tree keeps this dictionary and changes it: its
            rows are sorted by thread.
    """

    def __init__(self, table: Columns) -> None:
        if _changes(table).any():
            _reorder(table, np.lexsort((table["position"], table["pid"], table["tid"])))
        depth = table.pop("depth", None)
        self._has_depths = depth is not None
        """Whether the file has the tree, as depths.

        In such a file, launches and memory events follow the host event that encloses them.
        """
        self._firsts: Int64 = np.flatnonzero(np.append(len(table["position"]) > 0, _changes(table)))
        parent = np.empty(len(table["position"]), np.int64)
        for first, end in zip(self._firsts, np.append(self._firsts[1:], len(parent))):
            part = slice(first, end)
            start, dur, slack = (table[column][part] for column in ("start", "dur", "slack"))
            within = None if depth is None else nest_by_depth(depth[part])
            if within is None:
                self._has_depths = False
                within = _parents(start, dur, slack)
            parent[part] = np.where(within < 0, -1, within + first)
        self._table = table
        self._order, self.depth = pre_order(parent)
        self._row = np.empty_like(self._order)
        self._row[self._order] = np.arange(len(self._order))
        above = parent[self._order]
        self._parent = np.where(above < 0, MISSING, self._row[above])
        position = table["position"]
        is_sorted = (position[1:] >= position[:-1]).all()
        self._by_position = None if is_sorted else np.argsort(position, kind="stable")

    def in_order(self) -> Columns:
        """Return the columns in the order of the events table.

        The tree must not be used afterwards, because its own columns are changed.
        """
        table = self._table
        del table["position"], table["slack"]
        _reorder(table, self._order)
        table["parent"], table["depth"] = self._parent, self.depth
        sequence, forward = table.pop("sequence", None), table.pop("forward", None)
        if sequence is not None and forward is not None:
            table["forward"] = _rows_of(forward, sequence)
        return table

    def enclosing(self, inner: Columns) -> tuple[Int64, Int64]:
        """Return the host event around each row of ``inner``, and a start of the row within it.

        Paddle writes a launch or a memory event behind its host event. So the last host event
        before the row in the file is the one around it, if the two have the same thread and their
        times agree; in a file with depths, times need not agree. Otherwise it is the innermost host
        event of the thread by time. A row before all host events of its thread in the file has no
        host event.

        Returns:
            Row of the host event in the events table, -1 for none. Start in nanoseconds; an inexact
            start is clipped to the time of the host event.
        """
        host, start = self._table, inner["start"]
        if not len(host["position"]):
            return np.full(len(start), -1, np.int64), start
        order = self._by_position
        positions = host["position"] if order is None else host["position"][order]
        previous = np.searchsorted(positions, inner["position"]) - 1
        owner = previous if order is None else order[previous]
        end = start + inner["dur"]
        host_start, host_dur = host["start"][owner], host["dur"][owner]
        slack = inner["slack"] + host["slack"][owner]
        held = (start >= host_start - slack) & (end <= host_start + host_dur + slack)
        held = (held | self._has_depths) & (previous >= 0)
        for key in ("tid", "pid"):
            held &= host[key][owner] == inner[key]
        others = np.flatnonzero(~held)
        if len(others):
            rest = {key: values[others] for key, values in inner.items()}
            is_before = rest["position"] < self._first_of_thread(rest)
            owner[others] = np.where(is_before, -1, self._innermost(rest))
        is_in = owner >= 0
        first = host["start"][owner]
        latest = np.maximum(first + host["dur"][owner] - inner["dur"], first)
        return (
            np.where(is_in, self._row[owner], -1),
            np.where(is_in & (inner["slack"] > 0), np.clip(start, first, latest), start),
        )

    def _first_of_thread(self, inner: Columns) -> Int64:
        """Return the position of the first host event of each row's thread; 0 if it has none."""
        keys = ["tid", "pid"]
        firsts = pl.DataFrame({key: self._table[key][self._firsts] for key in [*keys, "position"]})
        wanted = pl.DataFrame({key: inner[key].astype(self._table[key].dtype) for key in keys})
        positions = wanted.join(firsts, on=keys, how="left", maintain_order="left")["position"]
        return positions.fill_null(0).to_numpy()

    def _innermost(self, inner: Columns) -> Int64:
        """Return the index of the innermost host event around each row, by time; -1 for none."""
        host = self._table
        num_hosts = len(host["position"])
        process, thread = (np.concatenate((host[key], inner[key])) for key in ("pid", "tid"))
        _, process = np.unique(process, return_inverse=True)
        _, thread = np.unique(thread, return_inverse=True)
        start = np.concatenate((host["start"], inner["start"]))
        end = start + np.concatenate((host["dur"], inner["dur"]))
        key = thread * (process.max(initial=0) + 1) + process
        return nest(key, start, end, holds=np.arange(len(start)) < num_hosts)[num_hosts:]


def _changes(table: Columns) -> Bool:
    """Return whether each row but the first is of another thread than the row before it."""
    changes: Bool = table["tid"][1:] != table["tid"][:-1]
    changes |= table["pid"][1:] != table["pid"][:-1]
    return changes


def _parents(start: Int64, dur: Int64, slack: Int64) -> Int64:
    """Return the parents of the events of one thread, -1 for an outermost event.

    They follow from the order of the file if it is Paddle's, and from times otherwise.
    """
    parent = nest_by_level(start, start + dur, slack)
    if parent is not None:
        return parent
    return nest(np.zeros_like(start), start, start + dur, slack_ns=int(slack.max(initial=0)))


def _launchers(launch: Columns, device: Columns) -> Int64:
    """Return the row in ``launch`` of each device event's launch, -1 for none.

    The launch has the same correlation id. If several launches have it, the last one before the
    device event in the file counts; if there is no such launch, the first one after it.
    """
    wanted, num_launches = device["correlation_id"], len(launch["position"])
    order = np.lexsort((launch["position"], launch["correlation_id"]))
    ids = np.append(launch["correlation_id"][order], MISSING)
    chosen = first = np.searchsorted(ids[:-1], wanted)
    if (ids[1:-1] == ids[:-2]).any():
        positions = launch["position"][order]
        key = np.cumsum(np.append(False, ids[1:] != ids[:-1])) * (num_launches + 1)
        sorted_positions = np.sort(positions)
        keys = key[:-1] + np.searchsorted(sorted_positions, positions)
        num_before = np.searchsorted(sorted_positions, device["position"], side="right")
        chosen = np.maximum(first, np.searchsorted(keys, key[first] + num_before) - 1)
    launcher: Int64 = np.where(ids[first] == wanted, np.append(order, -1)[chosen], -1)
    return launcher


def _unwrapped_bytes(device: Columns) -> Int64:
    """Return the bytes of device events; values that Paddle cut to 32 bits are restored.

    The bandwidth of the event, a float32 of GB/s with three decimals, shows how many times 2**32
    are missing. If it shows nothing, a negative 32-bit value gets 2**32 once.
    """
    num_bytes, dur, bandwidth = (_column(device, name) for name in ("bytes", "dur", "bandwidth"))
    estimate = np.where(np.isfinite(bandwidth), bandwidth, 0) * dur
    wraps = np.clip(np.rint((estimate - num_bytes) / 2**32), 0, 2**20)
    error = np.abs(estimate - num_bytes - wraps * 2**32)
    is_wrapped = (error <= 0.001 * dur + 1e-6 * estimate + 1) & (wraps > 0)
    is_negative = (num_bytes < 0) & (num_bytes >= -(2**31))
    wraps = np.where(is_wrapped, wraps, is_negative).astype(np.int64)
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
            **{key: key for key in (*ANNOTATION_KEYS, *INPUTS)},
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
            conform(split_annotated_names(host_table), EVENTS),
            conform(launch_table, EVENTS),
            conform(device_table, EVENTS),
        ]
    )
    return events.with_columns(step=steps_of(events))


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
    """Return the table `KERNELS` or `MEMSETS`, from the device events with a value of ``present``.

    Args:
        schema: `KERNELS` or `MEMSETS`.
        device: the columns of all device events.
        present: a column that only events of this table have.
        first: row of the first device event in the events table.
    """
    rows = np.flatnonzero(_column(device, present) != MISSING)
    columns = {name: _nullable(_column(device, name)[rows]) for name in schema if name != "event"}
    return conform(pl.DataFrame({"event": first + rows, **columns}), schema)


def _table(texts: pl.Series, columns: Columns, names: Mapping[str, str]) -> pl.DataFrame:
    """Return a table of the columns under new names; columns that are missing are left out.

    Each column is removed from ``columns`` when it is converted, so that no copy is held.

    Args:
        texts: the strings into which text columns hold indices.
        columns: old name -> values.
        names: old name -> new name.
    """
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
    """Return a column; if the table lacks it, `MISSING` in every row (NaN for a real number)."""
    if name in table:
        return table[name]
    return np.full(len(table["position"]), np.nan if name in REALS else MISSING)


def _nullable(values: Array) -> pl.Series:
    series = pl.Series(values)
    if values.dtype == np.float64:
        return series.fill_nan(None)
    if values.dtype != np.int64:  # too narrow to hold MISSING
        return series
    is_missing = values == MISSING
    return series.set(pl.Series(is_missing), None) if is_missing.any() else series


def _missing_below_0(rows: Int64) -> Int64:
    return np.where(rows < 0, MISSING, rows)


def _reorder(table: Columns, order: Int64) -> None:
    """Sort the rows of ``table`` in place: row i becomes the former row ``order[i]``.

    Columns are replaced one by one, so that only one column is held twice.
    """
    for column in table:
        table[column] = table[column][order]
