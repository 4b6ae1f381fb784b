"""The event tree: host events with their costs, launches and device events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ppprof.analysis.profile.event_arrays import EventArrays, filled
from ppprof.arrays import Int64
from ppprof.trace.schema import Trace, nullable
from ppprof.trace.tree_arrays import subtree_sizes, subtree_sums


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
    events: EventArrays
    """All events of the trace, in their own order."""
    launch_rows: Int64
    """The row of each of ``launches`` in ``events``."""
    device_rows: Int64
    """The row of each of ``devices`` in ``events``."""

    @classmethod
    def from_trace(cls, trace: Trace) -> Tree:
        """Return the event tree of ``trace``."""
        events = EventArrays(trace.events)
        # Slices copy nothing: host events come first, then launches, then device events.
        first_launch, first_device = events.num_hosts, events.first_device
        host_table = trace.events.slice(0, first_launch)
        launch_table = trace.events.slice(first_launch, first_device - first_launch)
        device_table = trace.events.slice(first_device)
        parent = events.parent[:first_launch]
        depth = host_table["depth"].to_numpy().astype(np.int64)
        size = subtree_sizes(parent, depth)
        visit = _visits(host_table["thread"].to_numpy(), depth, size)

        launch = np.maximum(events.parent[first_device:] - first_launch, -1)
        around_launch = events.parent[first_launch:first_device]
        around_device = events.host_of_device
        time_ns = device_table["dur_ns"].to_numpy()
        hosts = pl.DataFrame(
            {
                "row": np.arange(first_launch),
                **{name: host_table[name] for name in ("name", "category", "thread", "start_ns")},
                "end_ns": events.end_ns[:first_launch],
                **{"parent": host_table["parent"], "cpu_ns": host_table["dur_ns"], "visit": visit},
                "gpu_ns": _launched_ns(time_ns * events.is_kernel, around_device, size),
                "device_ns": _launched_ns(time_ns, around_device, size),
            }
        )
        launches = pl.DataFrame(
            {
                "row": np.arange(first_launch, first_device),
                **{name: launch_table[name] for name in ("name", "category", "thread", "start_ns")},
                "end_ns": events.end_ns[events.launches],
                "host": launch_table["parent"],
                "visit": np.append(visit, -1)[around_launch],
            }
        )
        devices = pl.DataFrame(
            {
                **{name: device_table[name] for name in ("name", "category", "device", "stream")},
                "start_ns": device_table["start_ns"],
                "end_ns": events.end_ns[events.devices],
                "gpu_ns": device_table["dur_ns"],
                "host": nullable(around_device),
                "thread": launch_table["thread"].gather(nullable(launch)),
                "visit": np.append(visit, -1)[around_device],
            }
        )
        launch_order, device_order = _order(launches), _order(devices)
        return cls(
            hosts,
            launches[launch_order],
            devices[device_order],
            size,
            events,
            first_launch + launch_order,
            first_device + device_order,
        )

    def of_category(self, *categories: str) -> pl.DataFrame:
        """Return the rows of ``hosts`` with one of ``categories``, sorted by visit."""
        rows = self.events.host_rows(*categories)
        return self.hosts[rows[np.argsort(self.hosts["visit"].to_numpy()[rows])]]

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


def _launched_ns(time_ns: Int64, host: Int64, size: Int64) -> Int64:
    """Return the summed time of the device events launched in each host event or below it.

    Args:
        time_ns: of each device event, shape (devices,).
        host: row of the host event that launched it, -1 for none, shape (devices,).
        size: the number of descendants of each host event, shape (hosts,).
    """
    own = np.zeros(len(size) + 1, np.int64)
    np.add.at(own, host, time_ns)  # the last one is of the device events without a host event
    return subtree_sums(own[:-1], size)


def _order(table: pl.DataFrame) -> Int64:
    """Return the rows sorted by thread, then visit; those without a thread come first."""
    thread = filled(table["thread"], np.iinfo(np.int64).min)
    return np.lexsort((table["visit"].to_numpy(), thread))
