"""The tree of the host events in Paddle's JSON, and the host event around each other event."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.arrays import Array, Int32, Int64
from ppprof.trace.fastpath.fixed_layout import MISSING
from ppprof.trace.nesting import (
    innermost,
    nest,
    nest_by_depth,
    nest_by_level,
    numbered_threads,
    runs_of_threads,
)
from ppprof.trace.tree_arrays import pre_order

Columns = dict[str, Array]

_UNSETTLED = -2
"""For an event whose host event does not follow from the order of the file."""


class HostTree:
    """The host events of all threads, and their tree.

    Args:
        table: columns in the order of the file. The tree keeps this dictionary and changes it: its
            rows are sorted by thread.
    """

    def __init__(self, table: Columns) -> None:
        order = _by_thread(table)
        if order is not None:
            reorder(table, order)
        depth = table.pop("depth", None)
        self._has_depths = depth is not None
        """Whether the file has the tree, as depths.

        In such a file, launches and memory events follow the host event that encloses them.
        """
        self._firsts = runs_of_threads(table["tid"], table["pid"])
        parent = np.full(len(table["position"]), -1, np.int32)
        for first, end in zip(self._firsts, np.append(self._firsts[1:], len(parent))):
            part = slice(first, end)
            start, dur, slack = (table[column][part] for column in ("start", "dur", "slack"))
            within = None if depth is None else nest_by_depth(depth[part])
            if within is None:
                self._has_depths = False
                within = _parents(start, dur, slack)
            np.add(within, first, out=parent[part], where=within >= 0)
        self._table = table
        self._order, self.depth = pre_order(parent)
        self._row, self._parent = _in_order(self._order, parent)
        position = table["position"]
        is_sorted = order is None or (position[1:] >= position[:-1]).all()
        self._by_position = (
            None if is_sorted else np.argsort(position, kind="stable").astype(np.int32)
        )

    def in_order(self, into: Columns) -> Columns:
        """Return the columns in the order of the events table.

        The tree must not be used afterwards, because its own columns are changed.

        Args:
            into: as in `reorder`; has the column parent.
        """
        table = self._table
        del table["position"], table["slack"]
        reorder(table, self._order, into)
        into["parent"][:] = self._parent
        table["depth"] = self.depth
        sequence, forward = table.pop("sequence", None), table.pop("forward", None)
        if sequence is not None and forward is not None:
            table["forward"] = _rows_of(forward, sequence)
        return table

    def around(self, inner: Columns) -> Int32:
        """Return the index of the host event around each row of ``inner``; -1 for none.

        Paddle writes a launch or a memory event behind its host event. So the last host event
        before the row in the file is the one around it, if the two have the same thread and their
        times agree; in a file with depths, times need not agree. Otherwise it is the innermost host
        event of the thread by time. A row before all host events of its thread in the file has no
        host event.

        Args:
            inner: N rows in the order of the file.

        Returns:
            Shape (N,); see `rows`.
        """
        if not len(self._row):
            return np.full(len(inner["start"]), -1, np.int32)
        owner = self._before(inner)
        others = np.flatnonzero(owner == _UNSETTLED)
        if len(others):
            rest = {key: values[others] for key, values in inner.items()}
            is_before = rest["position"] < self._first_of_thread(rest)
            spans = [
                (thread.astype(np.int64), table["start"], table["start"] + table["dur"])
                for table, thread in zip((self._table, rest), _threads(self._table, rest))
            ]
            owner[others] = np.where(is_before, -1, innermost(*spans))
        return owner

    def rows(self, owner: Int32) -> Int32:
        """Return the row in the events table of each host event that `around` returned."""
        rows: Int32 = np.append(self._row, np.int32(-1))[owner]
        return rows

    def starts_within(self, owner: Int32, inner: Columns) -> Int64:
        """Return the start of each row of ``inner``, within its host event if it is inexact.

        Args:
            owner: what `around` returned for ``inner``.
            inner: N rows.

        Returns:
            Nanoseconds, shape (N,).
        """
        host, start = self._table, inner["start"]
        if not len(host["position"]):
            return start
        first = host["start"][owner]
        latest = np.maximum(first + host["dur"][owner] - inner["dur"], first)
        is_inexact = (owner >= 0) & (inner["slack"] > 0)
        return np.where(is_inexact, np.clip(start, first, latest), start)

    def _before(self, inner: Columns) -> Int32:
        """Return the index of the last host event before each row of ``inner`` in the file.

        `_UNSETTLED` without one, or if it is of another thread or its time does not agree.
        """
        host, order = self._table, self._by_position
        positions = host["position"] if order is None else host["position"][order]
        previous = np.searchsorted(positions, inner["position"]) - 1
        owner = (previous if order is None else order[previous]).astype(np.int32)
        held = previous >= 0
        if not self._has_depths:
            late = inner["start"] - host["start"][owner]
            slack = inner["slack"] + host["slack"][owner]
            held &= (late >= -slack) & (late + inner["dur"] <= host["dur"][owner] + slack)
        threads = _threads(host, inner)
        held &= threads[0][owner] == threads[1]
        return np.where(held, owner, np.int32(_UNSETTLED))

    def _first_of_thread(self, inner: Columns) -> Int64:
        """Return the position of the first host event of each row's thread; 0 if it has none."""
        keys = ["tid", "pid"]
        firsts = pl.DataFrame({key: self._table[key][self._firsts] for key in [*keys, "position"]})
        wanted = pl.DataFrame({key: inner[key].astype(self._table[key].dtype) for key in keys})
        positions = wanted.join(firsts, on=keys, how="left", maintain_order="left")["position"]
        return positions.fill_null(0).to_numpy()


def reorder(table: Columns, order: Array, into: Columns | None = None) -> None:
    """Sort the rows of ``table`` in place: row i becomes the former row ``order[i]``.

    Columns are replaced one by one, so that only one column is held twice.

    Args:
        table: columns.
        order: the row numbers, each once.
        into: column -> array to write the column into, which is removed from ``table``.
    """
    for column in [*table]:
        values = table.pop(column)
        if into is None or column not in into:
            table[column] = values[order]
        elif values.dtype == into[column].dtype:
            np.take(values, order, out=into[column], mode="clip")  # "raise" would copy
        else:
            into[column][:] = values[order]


def _by_thread(table: Columns) -> Int64 | None:
    """Return the rows sorted by thread, each thread's in their order; None if they are sorted."""
    first = runs_of_threads(table["tid"], table["pid"])
    length = np.diff(np.append(first, len(table["position"])))
    by_thread = np.lexsort((first, table["pid"][first], table["tid"][first]))
    if (np.diff(by_thread) >= 0).all():
        return None
    first, length = first[by_thread], length[by_thread]
    order: Int64 = np.repeat(first - np.cumsum(length) + length, length)
    order += np.arange(len(order))
    return order


def _threads(*tables: Columns) -> list[Int32]:
    """Return the number of each row's thread, for each of ``tables``; see `numbered_threads`."""
    return numbered_threads(*((table["tid"], table["pid"]) for table in tables))


def _parents(start: Int64, dur: Int64, slack: Int64) -> Int32:
    """Return the parents of one thread's events, -1 for none: by Paddle's order in the file, else by times."""
    parent = nest_by_level(start, start + dur, slack)
    if parent is not None:
        return parent
    return nest(np.zeros_like(start), start, start + dur, slack_ns=int(slack.max(initial=0)))


def _in_order(order: Int32, parent: Int32) -> tuple[Int32, Int32]:
    """Return the place of each node in ``order``, and the place of its parent there, -1 for a root."""
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    outer = parent[order]
    return place, np.where(outer < 0, np.int32(-1), place[outer])


def _rows_of(wanted: Int64, number: Int64) -> Int32:
    """Return the first row of ``number`` with each wanted number, -1 without one, in the shape of ``wanted``."""
    rows = np.flatnonzero(number != MISSING)
    if not len(rows):
        return np.full(len(wanted), -1, np.int32)
    rows = rows[np.argsort(number[rows], kind="stable")]
    row = rows[np.minimum(np.searchsorted(number[rows], wanted), len(rows) - 1)]
    is_known = (wanted != MISSING) & (number[row] == wanted)
    return np.where(is_known, row, -1).astype(np.int32)
