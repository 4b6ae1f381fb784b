"""The events of a trace as numpy arrays, for analyses that ask many small questions of one trace.

A query of polars takes some 0.1 ms, however few rows it reads; the same on an array takes a tenth.
With hundreds of ranks, that is most of the time.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import polars as pl

from ppprof.analysis.profile.intervals import Intervals
from ppprof.arrays import Array, Bool, Int32, Int64
from ppprof.trace.labels import Labels
from ppprof.trace.schema import COPIES, Trace


class EventArrays:
    """N events of a trace: host events, then launches, then device events.

    Each array is made when it is first read, and kept.

    Args:
        trace: the trace.
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

    @cached_property
    def thread(self) -> Int64:
        """Thread of each host event and launch, shape (N,); -1 for device events."""
        return filled(self.events["thread"])

    @cached_property
    def is_kernel(self) -> Bool:
        """Whether each device event is a kernel or of an unknown kind, shape (device events,)."""
        return ~is_one_of(self.events["category"].slice(self.first_device), *COPIES)

    @cached_property
    def host_of_device(self) -> Int32:
        """Row of the host event around the launch of each device event, shape (device events,).

        -1 without a launch or a host event around it.
        """
        launch = np.maximum(self.parent[self.devices] - self.num_hosts, -1)
        hosts: Int32 = np.append(self.parent[self.launches], np.int32(-1))[launch]
        return hosts

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
        end_ns: Int64 = self.start_ns[rows] + self.events["dur_ns"].to_numpy()[rows]
        return end_ns

    def intervals(self, rows: Array | slice) -> Intervals:
        """Return start and end of some events, as a set of intervals."""
        return self.start_ns[rows], self.ends(rows)

    def host_rows(self, *categories: str) -> Int64:
        """Return the rows of the host events of some categories, ascending."""
        return np.flatnonzero(
            is_one_of(self.events["category"].slice(0, self.num_hosts), *categories)
        )


def is_one_of(column: pl.Series, *texts: str) -> Bool:
    """Return whether each row of a categorical column is one of ``texts``; False for null."""
    chosen = np.zeros(len(column), bool)
    for text in texts:
        is_equal = column == text
        chosen |= (
            is_equal.fill_null(value=False) if is_equal.null_count() else is_equal
        ).to_numpy()
    return chosen


def filled(column: pl.Series, for_null: int = -1) -> Array:
    """Return an integer column as an array, with a number in the place of null.

    It has the column's dtype; a column that is null in every row becomes int64.
    """
    if column.null_count() == len(column):
        return np.full(len(column), for_null)
    values: Array = (column.fill_null(for_null) if column.null_count() else column).to_numpy()
    return values
