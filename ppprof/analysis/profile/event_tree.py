"""The events of a trace as arrays, and as a tree: host events with their costs, launches, devices.

A query of polars takes some 0.1 ms, however few rows it reads; the same on an array takes a tenth.
With hundreds of ranks, that is most of the time.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import polars as pl

from ppprof.analysis.profile.intervals import Intervals
from ppprof.arrays import Array, Bool, Int32, Int64
from ppprof.trace.communication_names import PLACING, RESHARDING, CommunicationNames
from ppprof.trace.labels import Labels
from ppprof.trace.schema import COPIES, Trace, nullable
from ppprof.trace.tree_arrays import enclosing, subtree_sizes, subtree_sums


class EventArrays:
    """N events of a trace: host events, then launches, then device events.

    Each array is made when it is first read, and kept.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.events = events = trace.events
        """Columns of `ppprof.trace.schema.EVENTS`."""
        self.num_hosts = events["depth"].count()
        """Number of host events."""
        self.first_device = events.height - events["device"].count()
        """Row of the first device event."""

    @cached_property
    def start_ns(self) -> Int64:
        """Start of each event, shape (N,)."""
        return self.events["start_ns"].to_numpy()

    @cached_property
    def dur_ns(self) -> Int64:
        """Duration of each event, shape (N,)."""
        return self.events["dur_ns"].to_numpy()

    @cached_property
    def parent(self) -> Int32:
        """Row of the host event around each event, or of the launch of a device event; -1: none."""
        return filled(self.events["parent"])

    @cached_property
    def step(self) -> Int64:
        """Step of each event, shape (N,); -1 outside of steps."""
        return filled(self.events["step"])

    @property
    def names(self) -> Labels:
        """Names of the events."""
        return self._trace.names

    @property
    def categories(self) -> Labels:
        """Categories of the events."""
        return self._trace.categories

    @property
    def communicates(self) -> CommunicationNames:
        """The rule for the names of kernels that communicate."""
        return self._trace.communicates

    @cached_property
    def thread(self) -> Int64:
        """Thread of each host event and launch, shape (N,); -1 for device events."""
        return filled(self.events["thread"])

    @cached_property
    def is_kernel(self) -> Bool:
        """Whether each device event is a kernel or of an unknown kind, shape (device events,)."""
        return ~self.categories.take(self.devices).is_one_of(*COPIES)

    @cached_property
    def host_of_device(self) -> Int32:
        """Row of the host event around the launch of each device event, shape (device events,).

        -1 without a launch or a host event around it.
        """
        launch = np.maximum(self.parent[self.devices] - self.num_hosts, -1)
        hosts: Int32 = np.append(self.parent[self.launches], np.int32(-1))[launch]
        return hosts

    @cached_property
    def is_counted(self) -> Bool:
        """Whether each device event counts in tables of the whole window, shape (device events,).

        Paddle counts those launched in a host event. In traces of torch, the launch may be outside: of
        a graph that is replayed, for example.
        """
        if self._trace.framework == "torch":
            return self.parent[self.devices] >= 0
        return self.host_of_device >= 0

    @property
    def has_devices(self) -> bool:
        """Whether there are device events."""
        return self.first_device < self.events.height

    @property
    def launches(self) -> slice:
        """Rows of the launches."""
        return slice(self.num_hosts, self.first_device)

    @property
    def devices(self) -> slice:
        """Rows of the device events."""
        return slice(self.first_device, None)

    def ends(self, rows: Array | slice) -> Int64:
        """Return the end of some events."""
        end_ns: Int64 = self.start_ns[rows] + self.dur_ns[rows]
        return end_ns

    def intervals(self, rows: Array | slice) -> Intervals:
        """Return start and end of some events, as a set of intervals."""
        return self.start_ns[rows], self.ends(rows)

    def host_rows(self, *categories: str) -> Int64:
        """Return the rows of the host events of some categories, ascending."""
        of_hosts = self.categories.take(slice(0, self.num_hosts))
        return np.flatnonzero(of_hosts.is_one_of(*categories))

    @cached_property
    def communication_spans(self) -> Int64:
        """Rows of the host events that communicate, ascending.

        Paddle's Communication events, and its conversions between placements on the ranks, which it
        records as parts of the operators that need them (`RESHARDING`). Its events around conversions
        do not count (`PLACING`).
        """
        spans, parts = self.host_rows("Communication"), self.host_rows("OperatorInner")
        is_around = self.names.take(spans).where(lambda name: bool(PLACING.fullmatch(name)))
        is_moving = self.names.take(parts).where(lambda name: bool(RESHARDING.fullmatch(name)))
        return np.union1d(spans[~is_around], parts[is_moving])


def filled(column: pl.Series, for_null: int = -1) -> Array:
    """Return an integer column as an array, with a number in the place of null.

    It has the column's dtype; a column that is null in every row becomes int64.
    """
    if column.null_count() == len(column):
        return np.full(len(column), for_null)
    values: Array = (column.fill_null(for_null) if column.null_count() else column).to_numpy()
    return values


_HOST_COLUMNS = (
    *("row", "name", "category", "thread", "start_ns", "end_ns", "parent", "cpu_ns", "visit"),
    *("gpu_ns", "device_ns"),
)


class Tree:
    """The host events, launches and device events of a trace, with the host event around each.

    Paddle walks each thread depth first, *last* child first, and ties in its tables keep the order
    of that walk. The column ``visit`` is an event's number in that walk: sorted by it, ties have
    the order that Paddle's tables have.

    Each table is made when it is first read, and kept.
    """

    def __init__(self, trace: Trace) -> None:
        self.events = EventArrays(trace)
        """All events of the trace, in their own order."""

    @cached_property
    def hosts(self) -> pl.DataFrame:
        """One row per host event, in pre-order.

        `hosts_at` returns some of these rows, and takes memory for these only.

        Columns: row, name, category, thread, start_ns, end_ns, cpu_ns (its duration), parent (a row;
        null for none), visit, gpu_ns (sum of the kernels launched in the event or below it;
        overlapping kernels count twice) and device_ns (like gpu_ns, but with memory copies and
        sets).
        """
        return self.hosts_at(slice(0, self.events.num_hosts))

    def hosts_with(self, *columns: str) -> pl.DataFrame:
        """Return ``hosts`` with more columns of the events."""
        events = self.events
        return self.hosts.with_columns(events.events.select(columns).slice(0, events.num_hosts))

    def hosts_at(self, rows: Array | slice, *columns: str) -> pl.DataFrame:
        """Return the rows of ``hosts`` with some row numbers, in the order of ``rows``."""
        return pl.DataFrame({name: self._column(name, rows) for name in columns or _HOST_COLUMNS})

    def _column(self, name: str, rows: Array | slice) -> Array | pl.Series:
        """Return a column of ``hosts`` in some rows."""
        if name == "row":
            return np.arange(self.events.num_hosts, dtype=np.int32)[rows]
        if name == "end_ns":
            return self.events.ends(rows)
        if name in ("visit", "gpu_ns", "device_ns"):
            values: Array = getattr(self, name)
            return values[rows]
        column = self.events.events["dur_ns" if name == "cpu_ns" else name]
        # The rows are chunks of host events and of others; polars joins chunks to take rows of them.
        return column.head(self.events.num_hosts)[rows]

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
        visit = np.append(self.visit, np.int32(-1))[events.parent[events.launches]]
        columns = {
            "row": np.arange(first, end, dtype=np.int32),
            **{name: table[name] for name in ("name", "category", "thread", "start_ns")},
            **{"end_ns": events.ends(events.launches), "host": table["parent"]},
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
            **{"start_ns": table["start_ns"], "end_ns": events.ends(events.devices)},
            **{"gpu_ns": table["dur_ns"], "host": nullable(events.host_of_device)},
            "thread": self._thread_of_devices,
            "visit": np.append(self.visit, np.int32(-1))[events.host_of_device],
        }
        return pl.DataFrame(columns)[self.device_rows - events.first_device]

    @cached_property
    def device_rows(self) -> Int64:
        """The row of each of ``devices`` in ``events``."""
        visit = np.append(self.visit, np.int32(-1))[self.events.host_of_device]
        return self.events.first_device + _order(self._thread_of_devices, visit)

    @cached_property
    def counted_devices(self) -> pl.DataFrame:
        """The rows of ``devices`` that count in tables of the whole window (`EventArrays.is_counted`)."""
        is_counted = self.events.is_counted[self.device_rows - self.events.first_device]
        return self.devices.filter(pl.Series(is_counted))

    @cached_property
    def gpu_ns(self) -> Int64:
        """The column gpu_ns of ``hosts``."""
        return self._launched_ns(self._dur_of_devices * self.events.is_kernel)

    @cached_property
    def device_ns(self) -> Int64:
        """The column device_ns of ``hosts``."""
        return self._launched_ns(self._dur_of_devices)

    @property
    def _dur_of_devices(self) -> Int64:
        return self.events.events["dur_ns"].slice(self.events.first_device).to_numpy()

    @property
    def time_column(self) -> str:
        """The column of ``hosts`` with the time of work: ``device_ns``, or ``cpu_ns`` without device events."""
        return "device_ns" if self.events.has_devices else "cpu_ns"

    @cached_property
    def size(self) -> Int32:
        """Number of descendants of each host event, shape (hosts,)."""
        return subtree_sizes(self.events.parent[: self.events.num_hosts], self._of_hosts("depth"))

    @cached_property
    def visit(self) -> Int32:
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
        """Return the summed time of the device events launched in each host event or below it."""
        own = np.zeros(len(self.size) + 1, np.int64)
        np.add.at(own, self.events.host_of_device, time_ns)  # the last one: without a host event
        return subtree_sums(own[:-1], self.size)

    def of_category(self, *categories: str) -> pl.DataFrame:
        """Return the rows of ``hosts`` with one of ``categories``, sorted by visit."""
        return self.hosts_at(self.rows_of_category(*categories))

    def rows_of_category(self, *categories: str) -> Int64:
        """Return the rows of the host events with one of ``categories``, sorted by visit."""
        rows = self.events.host_rows(*categories)
        return rows[np.argsort(self.visit[rows])]

    def enclosing(self, chosen: Bool) -> Int32:
        """Return, for each host event, the row of the nearest chosen event above it.

        Returns:
            Shape (hosts,); -1 if no chosen event is above.
        """
        return enclosing(self.events.parent[: self.events.num_hosts], chosen)

    @cached_property
    def is_outermost_operator(self) -> Bool:
        """Whether each host event is an Operator that no other Operator contains, shape (hosts,)."""
        rows = self.events.host_rows("Operator")
        chosen = np.zeros(len(self.size), bool)
        chosen[rows] = True
        return chosen & ~self.below(rows)

    @cached_property
    def is_recomputed(self) -> Bool:
        """Whether each host event computes activations again: a layer in a Backward, or an operator of a function.

        ::

            node            ################     GradNodePyLayer_RecomputeFunction, of recompute(function, x)
              matmul         ###                 recomputed, too, without a layer
              backward           ##########
                node              ##  ##         a gradient

        Returns:
            Shape (hosts,).
        """
        is_operator, is_layer = np.zeros((2, len(self.size)), bool)
        is_operator[self.events.host_rows("Operator")] = True
        is_layer[self.events.host_rows("Forward")] = True
        is_call, is_node = (
            self.events.names.where(contains)[: len(self.size)]
            for contains in (_is_call, _is_recomputing_node)
        )
        around = self.enclosing(is_operator)
        is_of_function = is_operator & is_call & (around >= 0) & is_node[around]
        is_inside = self.below(self.events.host_rows("Backward"))
        recomputed: Bool = is_inside & (is_layer | is_of_function)
        return recomputed

    def innermost(self, rows: Array) -> Int32:
        """Return, for each host event, the innermost of ``rows`` that is the event or is above it.

        Returns:
            Shape (hosts,); -1 if none of ``rows`` is.
        """
        chosen = np.zeros(len(self.size), bool)
        chosen[rows] = True
        return np.where(chosen, np.arange(len(chosen), dtype=np.int32), self.enclosing(chosen))

    def own(self, column: str | Int64, chosen: Bool, above: Int32) -> Int64:
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

    def below(self, rows: Int64) -> Bool:
        """Return whether each host event lies below one of ``rows``, shape (hosts,).

        An event does not lie below itself.
        """
        ends = np.zeros(len(self.size) + 1, np.int64)
        ends[rows + 1] = rows + self.size[rows] + 1
        return np.arange(len(self.size)) < np.maximum.accumulate(ends)[:-1]


def _is_call(name: str) -> bool:
    """Return whether a name is that of an operator that Python calls."""
    return name.endswith(" dygraph")


def _is_recomputing_node(name: str) -> bool:
    """Return whether a name is that of Fleet's node of gradients that first computes activations again."""
    return name.endswith("RecomputeFunction")


def _visits(thread: Int64, depth: Int32, size: Int32) -> Int32:
    """Return the number of each host event in Paddle's walk (see `Tree`), shape (hosts,).

    Paddle's walk of a thread is its post-order, reversed. Threads keep their order.
    """
    visits = np.arange(len(size), dtype=np.int32)
    visits += size
    visits -= depth  # the post-order
    change = np.flatnonzero(thread[1:] != thread[:-1]) + 1
    for first, last in zip([0, *change], [*change, len(thread)]):
        of_thread = visits[first:last]
        np.subtract(first + last - 1, of_thread, out=of_thread)
    return visits


def _order(thread: pl.Series, visit: Int32) -> Int64:
    """Return the rows sorted by thread, then visit; those without a thread come first."""
    return np.lexsort((visit, filled(thread, np.iinfo(np.int64).min)))
