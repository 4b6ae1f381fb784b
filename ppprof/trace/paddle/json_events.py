"""Build a trace from the columns of Paddle's JSON: estimate starts, and find parents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import polars as pl

from ppprof.arrays import Array, Int64
from ppprof.trace.annotations import split_annotated_names
from ppprof.trace.consistency import ENDLESS_NS, UNSOUND
from ppprof.trace.fastpath.fixed_layout import MISSING, TEXTS
from ppprof.trace.paddle.json_columns import REALS, PaddleColumns
from ppprof.trace.paddle.json_tree import Columns, HostTree, reorder
from ppprof.trace.schema import EVENTS, KERNELS, MEMORY, MEMSETS, conform, nullable, with_pieces
from ppprof.trace.steps import steps_of

_ROWS = ("event", "forward", "parent")
"""Columns of row numbers; -1 for none."""
_RECORDED = {
    **{"category": "cat", "kind": "cat", "process": "pid", "thread": "tid"},
    "time_ns": "start",
}
"""Column of `EVENTS` or `MEMORY` -> its name in `PaddleColumns`, where it is another one."""
_WHOLE = {
    "start": ("start_ns", np.int64),
    "dur": ("dur_ns", np.int64),
    "parent": ("parent", np.int32),
}
"""Column of `PaddleColumns` -> its name in `EVENTS`, and the dtype, of those columns that analyses read as whole
arrays: hosts, launches and devices share one array, so that no copy is needed."""

_FOREVER_NS = 2**62
_CHUNK = 1 << 14  # events at a time: their temporaries stay in the processor's cache
_FLOAT32_EXACT_NS = 16_384_000  # up to here the spacing of float32 microseconds is below 1 ns


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
    host, launch, device, memory = map(columns.table, ("host", "launch", "device", "memory"))
    timed = (host, launch, device)
    estimator = None
    if not columns.ts_is_exact:
        estimator = TimestampEstimator((table["ts"], table["begin"]) for table in timed)
    for table in timed:
        _resolve_times(table, estimator)
    _resolve_instants(memory, is_exact=columns.ts_is_exact)
    for table in (*timed, memory):
        _cut_times(table, columns.skipped)

    hosts = HostTree(host)
    num_hosts, num_launches = len(hosts.depth), len(launch["position"])
    first_device = num_hosts + num_launches
    num_events = first_device + len(device["position"])
    whole = {name: np.empty(num_events, dtype) for name, (_, dtype) in _WHOLE.items()}
    of_hosts, of_launches, of_devices = (
        {name: values[rows] for name, values in whole.items()}
        for rows in (
            slice(num_hosts),
            slice(num_hosts, first_device),
            slice(first_device, None),
        )
    )

    launch["parent"] = hosts.rows(hosts.around(launch))
    reorder(launch, np.argsort(launch["parent"], kind="stable"), of_launches)

    launcher = _launchers(launch, device)
    order = np.argsort(np.where(launcher < 0, num_launches, launcher), kind="stable")
    device["parent"] = np.where(launcher < 0, -1, launcher + num_hosts).astype(np.int32)
    device["bytes"] = _unwrapped_bytes(device)
    reorder(device, order, of_devices)

    owner = hosts.around(memory)
    memory["start"], memory["event"] = hosts.starts_within(owner, memory), hosts.rows(owner)
    # The enclosing events give the order within one tick of the clock.
    reorder(memory, np.lexsort([memory[key] for key in ("event", "start", "pid", "tid")]))

    memory["addr"] = memory["addr"].astype(np.int64).view(np.uint64)
    host_events = conform(
        split_annotated_names(_table(texts, hosts.in_order(of_hosts), EVENTS)), EVENTS
    )
    kernels = _side_table(KERNELS, device, "grid_x", first_device)
    memsets = _side_table(MEMSETS, device, "value", first_device)
    memory_events, *others = (
        conform(_table(texts, columns, schema), schema)
        for columns, schema in ((memory, MEMORY), (launch, EVENTS), (device, EVENTS))
    )
    events = with_pieces(
        pl.concat([host_events, *others]),
        *(_series(name, values).alias(_WHOLE[name][0]) for name, values in whole.items()),
    )
    return with_pieces(events, steps_of(events).alias("step")), memory_events, kernels, memsets


def _resolve_times(table: Columns, estimator: TimestampEstimator | None) -> None:
    """Replace the columns ts, begin and finish by ``start`` and its possible error, ``slack``.

    Without an ``estimator``, ``ts`` is exact: it is the start, and the slack is 0.
    """
    ts, begin, finish = (table.pop(column) for column in ("ts", "begin", "finish"))
    if estimator is None:
        table["start"], table["slack"] = ts, np.zeros_like(ts)
    else:
        table["start"], table["slack"] = estimator.starts(ts, table["dur"], begin, finish)


def _resolve_instants(memory: Columns, is_exact: bool) -> None:
    """Replace the column ts of memory events by ``start``, ``dur`` and ``slack``.

    The duration is 0. The slack is 999 if ``ts`` is cut to whole microseconds, 0 if it is exact.
    """
    memory["start"] = memory.pop("ts")
    memory["dur"] = np.zeros_like(memory["start"])
    memory["slack"] = np.full_like(memory["start"], 0 if is_exact else 999)


def _cut_times(table: Columns, skipped: Counter[str]) -> None:
    """Cut times to their range, and count those that were out of it: a start plus a duration fits."""
    for column, first in (("start", -ENDLESS_NS), ("dur", 0)):
        values = table[column]
        if values.min(initial=0) < first or values.max(initial=0) >= ENDLESS_NS:
            table[column] = np.clip(values, first, ENDLESS_NS - 1)
            skipped[UNSOUND] += int((table[column] != values).sum())


def _launchers(launch: Columns, device: Columns) -> Int64:
    """Return the row in ``launch`` of each device event's launch, -1 for none.

    The launch has the same correlation id. If several launches have it, the last one before the
    device event in the file counts; if there is no such launch, the first one after it.
    """
    wanted, num_launches = device["correlation_id"], len(launch["position"])
    ids = launch["correlation_id"]
    order = np.arange(num_launches)
    if (ids[1:] <= ids[:-1]).any():
        order = np.lexsort((launch["position"], ids))
        ids = ids[order]
    ids = np.append(ids, MISSING)
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


def _side_table(
    schema: Mapping[str, tuple[pl.DataType, str]], device: Columns, present: str, first: int
) -> pl.DataFrame:
    """Return the table `KERNELS` or `MEMSETS`, from the device events with a value of ``present``."""
    rows = np.flatnonzero(_column(device, present) != MISSING)
    columns = {
        name: _series(name, _column(device, name)[rows]) for name in schema if name != "event"
    }
    return conform(pl.DataFrame({"event": first + rows, **columns}), schema)


def _table(
    texts: pl.Series, columns: Columns, schema: Mapping[str, tuple[pl.DataType, str]]
) -> pl.DataFrame:
    """Return the columns of ``schema`` that there are; empties ``columns``, so that no copy is held."""
    table = {}
    for name in schema:
        recorded = _RECORDED.get(name, name)
        if recorded in columns:
            values = columns.pop(recorded)
            is_text = recorded in TEXTS
            table[name] = texts.gather(nullable(values)) if is_text else _series(recorded, values)
    return pl.DataFrame(table)


def _column(table: Columns, name: str) -> Array:
    """Return a column; if the table lacks it, `MISSING` in every row (NaN for a real number)."""
    if name in table:
        return table[name]
    return np.full(len(table["position"]), np.nan if name in REALS else MISSING)


def _series(name: str, values: Array) -> pl.Series:
    """Return a column of numbers, with null in the place of `MISSING`, NaN, or a row -1."""
    if name in _ROWS:
        return nullable(values)
    series = pl.Series(values)
    if values.dtype == np.float64:
        return series.fill_nan(None)
    if values.dtype != np.int64:  # too narrow to hold MISSING
        return series
    is_missing = values == MISSING
    return series.set(pl.Series(is_missing), None) if is_missing.any() else series


class TimestampEstimator:
    """Estimates the zero of ``start_time`` from the events, and the start of each event from that.

    Paddle's JSON records the start of an event three times, each time inexactly. ``ts`` is cut to
    whole microseconds. ``start_time`` and ``end_time`` are microseconds since the first event, kept
    as float32, which is exact for 16 ms and 2 us wrong after 20 s. Their ranges overlap, and the
    true start lies in all of them::

        ts           [=========================)        1 us
        start_time         [=====]                      as wide as the spacing of float32 there
        end_time - dur        [=====]
        together              [==]

    Args:
        times: pairs of ``ts`` in nanoseconds and ``start_time``, or `MISSING`; each of shape (N,).
    """

    def __init__(self, times: Iterable[tuple[Int64, Int64]]) -> None:
        first, last = -_FOREVER_NS, _FOREVER_NS
        for ts_ns, begin_ns in times:
            exact = (begin_ns > -_FLOAT32_EXACT_NS) & (begin_ns < _FLOAT32_EXACT_NS)
            if exact.any():
                zero = ts_ns[exact] - begin_ns[exact]
                first, last = max(first, int(zero.max())), min(last, int(zero.min()) + 999)
        self.zero_ns = (first + last) // 2 if -_FOREVER_NS < first <= last else None
        """The time at which ``start_time`` is 0.

        None if the events contradict each other, or if no event has an exact ``start_time``.
        """

    def starts(
        self, ts_ns: Int64, dur_ns: Int64, begin_ns: Int64, finish_ns: Int64
    ) -> tuple[Int64, Int64]:
        """Return the best estimate of each event's start, and the largest error that it may have.

        Both are in nanoseconds; all shapes are (N,). If ``zero_ns`` is unknown, only ``ts`` is
        used. The results may be in the memory of ``ts_ns`` and ``begin_ns``.

        Args:
            ts_ns: ``ts``; overwritten.
            dur_ns: duration of each event.
            begin_ns: ``start_time``, or `MISSING`; overwritten.
            finish_ns: ``end_time``, or `MISSING`.
        """
        if self.zero_ns is None:
            return ts_ns + 499, np.full_like(ts_ns, 500)
        columns = (ts_ns, dur_ns, begin_ns, finish_ns)
        for first in range(0, len(ts_ns), _CHUNK):
            rows = slice(first, first + _CHUNK)
            ts_ns[rows], begin_ns[rows] = _starts(self.zero_ns, *(side[rows] for side in columns))
        return ts_ns, begin_ns


def _starts(
    zero_ns: int, ts_ns: Int64, dur_ns: Int64, begin_ns: Int64, finish_ns: Int64
) -> tuple[Int64, Int64]:
    """Return what `TimestampEstimator.starts` does."""
    low, high = ts_ns, ts_ns + 999
    for relative, offset in ((begin_ns, 0), (finish_ns, dur_ns)):
        start = zero_ns + relative - offset
        slack = _slack(relative)
        # If the times contradict each other, stay within the range so far.
        earliest = np.clip(start - slack, low, high)
        latest = np.clip(start + slack, earliest, high)
        is_missing = np.flatnonzero(relative == MISSING)
        earliest[is_missing], latest[is_missing] = low[is_missing], high[is_missing]
        low, high = earliest, latest
    return (low + high) >> 1, (high - low + 1) >> 1


def _slack(relative_ns: Int64) -> Int64:
    """Return the possible error, in ns, of float32 microseconds that were rounded twice; 0 below 16 ms."""
    distance = np.abs(relative_ns)
    microseconds = distance.astype(np.float32) / np.float32(1000)
    slack = np.ceil(np.spacing(microseconds).astype(np.float64) * 1000)
    slack[distance < _FLOAT32_EXACT_NS] = 0
    whole: Int64 = slack.astype(np.int64)
    return whole
