"""The event tree: host events with their costs, launches and device events."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_arrays import EventArrays, filled
from ppprof.arrays import Array, Int64
from ppprof.trace.schema import Trace, nullable
from ppprof.trace.tree_arrays import enclosing, subtree_sizes, subtree_sums

if TYPE_CHECKING:
    import numpy.typing as npt


class Tree:
    """The host events, launches and device events of a trace, with the host event around each.

    Paddle walks each thread depth first, *last* child first, and ties in its tables keep the order
    of that walk. The column ``visit`` is an event's number in that walk: sorted by it, ties have
    the order that Paddle's tables have.

    Each table is made when it is first read, and kept.

    Args:
        trace: the trace.
    """

    def __init__(self, trace: Trace) -> None:
        self.events = EventArrays(trace)
        """All events of the trace, in their own order."""

    @cached_property
    def hosts(self) -> pl.DataFrame:
        """One row per host event, in pre-order.

        Columns: row, name, category, thread, start_ns, end_ns, cpu_ns (its duration), parent (a row;
        null for none), visit, gpu_ns (sum of the kernels launched in the event or below it;
        overlapping kernels count twice) and device_ns (like gpu_ns, but with memory copies and
        sets).
        """
        events = self.events
        table = events.events.slice(0, events.num_hosts)
        start_ns, end_ns = events.intervals(events.devices)
        columns = {
            "row": np.arange(events.num_hosts),
            **{name: table[name] for name in ("name", "category", "thread", "start_ns")},
            "end_ns": events.end_ns[: events.num_hosts],
            **{"parent": table["parent"], "cpu_ns": table["dur_ns"], "visit": self.visit},
            "gpu_ns": self._launched_ns((end_ns - start_ns) * events.is_kernel),
            "device_ns": self.device_ns,
        }
        return pl.DataFrame(columns)

    @cached_property
    def launches(self) -> pl.DataFrame:
        """One row per runtime call.

        Columns: row, name, category, thread, start_ns, end_ns, host (the row of the host event
        around the call, else null) and visit (of that host event, else -1). In Paddle's order:
        sorted by thread, then visit.
        """
        events = self.events
        first, end = events.num_hosts, events.first_device
        table = events.events.slice(first, end - first)
        visit = np.append(self.visit, -1)[events.parent[events.launches]]
        columns = {
            "row": np.arange(first, end),
            **{name: table[name] for name in ("name", "category", "thread", "start_ns")},
            **{"end_ns": events.end_ns[events.launches], "host": table["parent"]},
            "visit": visit,
        }
        return pl.DataFrame(columns)[_order(table["thread"], visit)]

    @cached_property
    def devices(self) -> pl.DataFrame:
        """One row per device event.

        Columns: name, category, device, stream, start_ns, end_ns, gpu_ns (its duration), and the
        thread, host and visit of its launch (without a launch, thread and host are null and visit
        is -1). Sorted by thread, then visit; events without a launch come first.
        """
        events = self.events
        table = events.events.slice(events.first_device)
        columns = {
            **{name: table[name] for name in ("name", "category", "device", "stream")},
            **{"start_ns": table["start_ns"], "end_ns": events.end_ns[events.devices]},
            **{"gpu_ns": table["dur_ns"], "host": nullable(events.host_of_device)},
            "thread": self._thread_of_devices,
            "visit": np.append(self.visit, -1)[events.host_of_device],
        }
        return pl.DataFrame(columns)[self.device_rows - events.first_device]

    @cached_property
    def device_rows(self) -> Int64:
        """The row of each of ``devices`` in ``events``."""
        visit = np.append(self.visit, -1)[self.events.host_of_device]
        return self.events.first_device + _order(self._thread_of_devices, visit)

    @cached_property
    def device_ns(self) -> Int64:
        """The column device_ns of ``hosts``."""
        start_ns, end_ns = self.events.intervals(self.events.devices)
        return self._launched_ns(end_ns - start_ns)

    @cached_property
    def size(self) -> Int64:
        """Number of descendants of each host event, shape (hosts,)."""
        return subtree_sizes(self.events.parent[: self.events.num_hosts], self._of_hosts("depth"))

    @cached_property
    def visit(self) -> Int64:
        """The column visit of ``hosts``."""
        thread, depth = (self._of_hosts(column) for column in ("thread", "depth"))
        return _visits(thread, depth, self.size)

    def _of_hosts(self, column: str) -> Array:
        """Return a column of the events, of the host events only; it has no null there."""
        return self.events.events[column].slice(0, self.events.num_hosts).to_numpy()

    @property
    def _thread_of_devices(self) -> pl.Series:
        events = self.events
        launch = np.maximum(events.parent[events.devices] - events.num_hosts, -1)
        return events.events["thread"].slice(events.num_hosts).gather(nullable(launch))

    def _launched_ns(self, time_ns: Int64) -> Int64:
        """Return the summed time of the device events launched in each host event or below it.

        Args:
            time_ns: of each device event, shape (devices,).
        """
        own = np.zeros(len(self.size) + 1, np.int64)
        np.add.at(own, self.events.host_of_device, time_ns)  # the last one: without a host event
        return subtree_sums(own[:-1], self.size)

    def of_category(self, *categories: str) -> pl.DataFrame:
        """Return the rows of ``hosts`` with one of ``categories``, sorted by visit."""
        return self.hosts[self.rows_of_category(*categories)]

    def rows_of_category(self, *categories: str) -> Int64:
        """Return the rows of the host events with one of ``categories``, sorted by visit."""
        rows = self.events.host_rows(*categories)
        return rows[np.argsort(self.visit[rows])]

    def enclosing(self, chosen: npt.NDArray[np.bool_]) -> Int64:
        """Return, for each host event, the row of the nearest chosen event above it.

        Args:
            chosen: whether each host event is chosen, shape (hosts,).

        Returns:
            Shape (hosts,); -1 if no chosen event is above.
        """
        return enclosing(self.events.parent[: self.events.num_hosts], chosen)

    def innermost(self, rows: Int64) -> Int64:
        """Return, for each host event, the innermost of ``rows`` that is the event or is above it.

        Args:
            rows: rows of ``hosts``.

        Returns:
            Shape (hosts,); -1 if none of ``rows`` is.
        """
        chosen = np.zeros(len(self.size), bool)
        chosen[rows] = True
        return np.where(chosen, np.arange(len(chosen)), self.enclosing(chosen))

    def own(self, column: str | Int64, chosen: npt.NDArray[np.bool_], above: Int64) -> Int64:
        """Return the time of each chosen host event without the nearest chosen events below it.

        Args:
            column: ``cpu_ns``, ``gpu_ns`` or ``device_ns`` of ``hosts``, or another number of each
                host event that includes the events below it, shape (hosts,).
            chosen: whether each host event is chosen, shape (hosts,).
            above: the result of ``enclosing(chosen)``.

        Returns:
            Nanoseconds, int64, shape (hosts,). Events that are not chosen keep their whole time.
        """
        time_ns = self.hosts[column].to_numpy() if isinstance(column, str) else column
        own: Int64 = time_ns.copy()
        inner = np.flatnonzero(chosen & (above >= 0))
        np.subtract.at(own, above[inner], time_ns[inner])
        return own

    def below(self, rows: Int64) -> npt.NDArray[np.bool_]:
        """Return whether each host event lies below one of ``rows``, shape (hosts,).

        An event does not lie below itself.
        """
        ends = np.zeros(len(self.size) + 1, np.int64)
        ends[rows + 1] = rows + self.size[rows] + 1
        return np.arange(len(self.size)) < np.maximum.accumulate(ends)[:-1]


def _visits(thread: Int64, depth: Array, size: Int64) -> Int64:
    """Return the number of each host event in Paddle's walk (see `Tree`), shape (hosts,).

    Paddle's walk of a thread is its post-order, reversed. Threads keep their order.
    """
    visits = np.arange(len(size))
    visits += size
    visits -= depth  # the post-order
    change = np.flatnonzero(thread[1:] != thread[:-1]) + 1
    for first, last in zip([0, *change], [*change, len(thread)]):
        of_thread = visits[first:last]
        np.subtract(first + last - 1, of_thread, out=of_thread)
    return visits


def _order(thread: pl.Series, visit: Int64) -> Int64:
    """Return the rows sorted by thread, then visit; those without a thread come first."""
    return np.lexsort((visit, filled(thread, np.iinfo(np.int64).min)))
