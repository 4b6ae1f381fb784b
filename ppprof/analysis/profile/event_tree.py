"""The event tree: host events with their costs, launches and device events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ppprof.arrays import Int64
from ppprof.trace.schema import Trace, is_kernel
from ppprof.trace.tree_arrays import enclosing, subtree_sizes, subtree_sums


@dataclass(frozen=True)
class Tree:
    """The host events, launches and device events of a trace, with the host event around each.

    Paddle walks each thread depth first, *last* child first, and ties in its tables keep the order
    of that walk. The column ``visit`` is an event's number in that walk: sorted by it, ties have
    the order that Paddle's tables have.
    """

    hosts: pl.DataFrame
    """One row per host event, in pre-order. Columns: row, name, category, thread, start_ns, end_ns,
    cpu_ns (its duration), parent (a row; null for none), visit, gpu_ns (sum of the kernels launched
    in the event or below it; overlapping kernels count twice) and device_ns (like gpu_ns, but with
    memory copies and sets)."""
    launches: pl.DataFrame
    """One row per runtime call. Columns: row, name, category, thread, start_ns, end_ns, host (the
    row of the host event around the call, else null) and visit (of that host event, else -1). In
    Paddle's order: sorted by thread, then visit."""
    devices: pl.DataFrame
    """One row per device event. Columns: name, category, device, stream, start_ns, end_ns, gpu_ns
    (its duration), and the thread, host and visit of its launch (without a launch, thread and host
    are null and visit is -1). Sorted by thread, then visit; events without a launch come first."""
    size: Int64
    """Number of descendants of each host event, shape (hosts,)."""

    @classmethod
    def from_trace(cls, trace: Trace) -> Tree:
        """Return the event tree of ``trace``."""
        # Slices copy nothing: host events come first, then launches, then device events.
        num_devices = trace.events["device"].count()
        num_hosts = trace.events["depth"].count()
        num_launches = trace.events.height - num_hosts - num_devices
        row = pl.int_range(pl.len()).alias("row")
        end_ns = (pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns")
        launches = trace.events.slice(num_hosts, num_launches).select(
            row + num_hosts, "name", "category", "thread", "start_ns", end_ns, host="parent"
        )
        device_events = trace.events.slice(num_hosts + num_launches)
        launch = device_events["parent"] - num_hosts
        devices = device_events.select(
            "name",
            "category",
            "device",
            "stream",
            "start_ns",
            end_ns,
            gpu_ns="dur_ns",
            thread=launches["thread"].gather(launch),
            host=launches["host"].gather(launch),
        )
        hosts = trace.events.slice(0, num_hosts).select(
            row, "name", "category", "thread", "start_ns", end_ns, "parent", cpu_ns="dur_ns"
        )
        depth = trace.events["depth"].slice(0, num_hosts).to_numpy().astype(np.int64)
        parent = hosts["parent"].fill_null(-1).to_numpy()
        size = subtree_sizes(parent, depth)
        visit = _visits(hosts["thread"].to_numpy(), depth, size)
        kernels = devices.filter(is_kernel())
        hosts = hosts.with_columns(
            visit=pl.Series(visit),
            gpu_ns=pl.Series(subtree_sums(_launched_ns(kernels, len(size)), size)),
            device_ns=pl.Series(subtree_sums(_launched_ns(devices, len(size)), size)),
        )
        return cls(hosts, _by_visit(launches, visit), _by_visit(devices, visit), size)

    def of_category(self, *categories: str) -> pl.DataFrame:
        """Return the rows of ``hosts`` with one of ``categories``, sorted by visit."""
        return self.hosts.filter(pl.col("category").is_in(categories)).sort("visit")

    def enclosing(self, chosen: npt.NDArray[np.bool_]) -> Int64:
        """Return, for each host event, the row of the nearest chosen event above it.

        Args:
            chosen: whether each host event is chosen, shape (hosts,).

        Returns:
            Shape (hosts,); -1 if no chosen event is above.
        """
        return enclosing(self.hosts["parent"].fill_null(-1).to_numpy(), chosen)

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


def _visits(thread: Int64, depth: Int64, size: Int64) -> Int64:
    """Return the number of each host event in Paddle's walk (see `Tree`), shape (hosts,).

    Paddle's walk of a thread is its post-order, reversed. Threads keep their order.
    """
    post = np.arange(len(size)) + size - depth
    change = np.flatnonzero(np.diff(thread)) + 1
    bounds = np.concatenate(([0], change, [len(thread)]))
    segment = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    first, last = bounds[:-1][segment], bounds[1:][segment]
    visits: Int64 = first + last - 1 - post
    return visits


def _launched_ns(devices: pl.DataFrame, num_hosts: int) -> Int64:
    """Return the summed time of the device events that each host event launched directly.

    Shape (num_hosts,).
    """
    own = np.zeros(num_hosts, np.int64)
    known = devices.drop_nulls("host")
    np.add.at(own, known["host"].to_numpy(), known["gpu_ns"].to_numpy())
    return own


def _by_visit(table: pl.DataFrame, visit: Int64) -> pl.DataFrame:
    """Return ``table`` with the column visit (of ``host``), sorted by thread and visit.

    A row without a host event has visit -1, so it comes first in its thread.
    """
    host = table["host"].fill_null(-1).to_numpy()
    numbers = np.append(visit, -1)[host] if len(host) else host
    thread = table["thread"].fill_null(np.iinfo(np.int64).min).to_numpy()
    order = np.lexsort((numbers, thread))
    return table.with_columns(visit=pl.Series(numbers, dtype=pl.Int64))[order]
