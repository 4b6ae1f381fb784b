"""The event tree with the cost of each host event, ready to be grouped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ppprof.arrays import Int64
from ppprof.trace.schema import Trace
from ppprof.trace.tree_arrays import subtree_sizes, subtree_sums


@dataclass(frozen=True)
class Tree:
    """Host events and device events of a trace, joined.

    Paddle walks each thread depth first, *last* child first, and ties in its tables keep the order of
    that walk. ``visit`` numbers it, so that ties here come in the same order.
    """

    hosts: pl.DataFrame
    """One row per host event, in pre-order: row, name, category, thread, start_ns, end_ns, cpu_ns,
    parent, visit, gpu_ns (kernels below it, summed; overlap counts twice) and device_ns (the
    same with copies and sets)."""
    launches: pl.DataFrame
    """One row per runtime call: row, name, category, thread, start_ns, end_ns, host (null at a
    thread's root), visit of the host (-1 at a root). In Paddle's order: thread by thread."""
    devices: pl.DataFrame
    """One row per device event: name, category, device, stream, start_ns, end_ns, gpu_ns, and its
    launch's thread, host and visit. In the order of the launches."""
    size: Int64
    """Number of descendants of each host event, shape (hosts,)."""

    @classmethod
    def from_trace(cls, trace: Trace) -> Tree:
        """Return the tree of a trace."""
        # Slices copy nothing: host events come first, then launches, then device events.
        num_devices = trace.events["device"].count()
        num_hosts = trace.events["depth"].count()
        num_launches = trace.events.height - num_hosts - num_devices
        row = pl.int_range(pl.len()).alias("row")
        end_ns = (pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns")
        launches = trace.events.slice(num_hosts, num_launches).select(
            row + num_hosts, "name", "category", "thread", "start_ns", end_ns, host="parent"
        )
        devices = (
            trace.events.slice(num_hosts + num_launches)
            .select(
                "name",
                "category",
                "device",
                "stream",
                "start_ns",
                end_ns,
                "parent",
                gpu_ns="dur_ns",
            )
            .join(
                launches.select("host", parent="row", thread="thread"),
                on="parent",
                how="left",
                maintain_order="left",
            )
            .drop("parent")
        )
        hosts = trace.events.slice(0, num_hosts).select(
            row, "name", "category", "thread", "start_ns", end_ns, "parent", cpu_ns="dur_ns"
        )
        depth = trace.events["depth"].slice(0, num_hosts).to_numpy().astype(np.int64)
        parent = hosts["parent"].fill_null(-1).to_numpy()
        size = subtree_sizes(parent, depth)
        visit = _visits(hosts["thread"].to_numpy(), depth, size)
        kernels = devices.filter(pl.col("category") == "Kernel")
        hosts = hosts.with_columns(
            visit=pl.Series(visit),
            gpu_ns=pl.Series(subtree_sums(_launched_ns(kernels, len(size)), size)),
            device_ns=pl.Series(subtree_sums(_launched_ns(devices, len(size)), size)),
        )
        return cls(hosts, _by_visit(launches, visit), _by_visit(devices, visit), size)

    def of_category(self, *categories: str) -> pl.DataFrame:
        """Return host events of these categories, by visit."""
        return self.hosts.filter(pl.col("category").is_in(categories)).sort("visit")

    def enclosing(self, chosen: npt.NDArray[np.bool_]) -> Int64:
        """Return the nearest chosen host event above each, -1 for none, shape (hosts,)."""
        parent = self.hosts["parent"].fill_null(-1).to_numpy()
        above: Int64 = parent.copy()
        climbing = np.flatnonzero((above >= 0) & ~chosen[above])
        while len(climbing):
            higher = parent[above[climbing]]
            above[climbing] = higher
            climbing = climbing[(higher >= 0) & ~chosen[higher]]
        return above

    def innermost(self, rows: Int64) -> Int64:
        """Return the innermost of ``rows`` that contains or is each host event; -1 for none."""
        chosen = np.zeros(len(self.size), bool)
        chosen[rows] = True
        return np.where(chosen, np.arange(len(chosen)), self.enclosing(chosen))

    def own(self, column: str, chosen: npt.NDArray[np.bool_], above: Int64) -> Int64:
        """Return a time of chosen host events without that of the next chosen ones below them.

        Args:
            column: ``cpu_ns``, ``gpu_ns`` or ``device_ns`` of `hosts`.
            chosen: shape (hosts,); other events keep their whole time.
            above: `enclosing` of ``chosen``.

        Returns:
            Shape (hosts,).
        """
        time_ns = self.hosts[column].to_numpy()
        own: Int64 = time_ns.copy()
        inner = np.flatnonzero(chosen & (above >= 0))
        np.subtract.at(own, above[inner], time_ns[inner])
        return own

    def below(self, rows: Int64) -> npt.NDArray[np.bool_]:
        """Return whether each host event lies below one of ``rows``, itself excluded, shape (hosts,)."""
        ends = np.zeros(len(self.size) + 1, np.int64)
        ends[rows + 1] = rows + self.size[rows] + 1
        return np.arange(len(self.size)) < np.maximum.accumulate(ends)[:-1]


def _visits(thread: Int64, depth: Int64, size: Int64) -> Int64:
    """Return the number of each host event in Paddle's walk.

    Depth first with the last child first is reversed post-order. Threads keep their order.
    """
    post = np.arange(len(size)) + size - depth
    change = np.flatnonzero(np.diff(thread)) + 1
    bounds = np.concatenate(([0], change, [len(thread)]))
    segment = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    first, last = bounds[:-1][segment], bounds[1:][segment]
    visits: Int64 = first + last - 1 - post
    return visits


def _launched_ns(devices: pl.DataFrame, num_hosts: int) -> Int64:
    """Return the device time that each host event launched itself, shape (num_hosts,)."""
    own = np.zeros(num_hosts, np.int64)
    known = devices.drop_nulls("host")
    np.add.at(own, known["host"].to_numpy(), known["gpu_ns"].to_numpy())
    return own


def _by_visit(table: pl.DataFrame, visit: Int64) -> pl.DataFrame:
    """Return the table with visit, by thread and visit; a thread's root comes first."""
    host = table["host"].fill_null(-1).to_numpy()
    numbers = np.append(visit, -1)[host] if len(host) else host
    thread = table["thread"].fill_null(np.iinfo(np.int64).min).to_numpy()
    order = np.lexsort((numbers, thread))
    return table.with_columns(visit=pl.Series(numbers, dtype=pl.Int64))[order]
