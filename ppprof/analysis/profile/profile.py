"""One trace prepared for the summaries: its tree, steps, phases and communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import polars as pl

from ppprof.analysis.profile.communication import Communication
from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.grouping import grouped, intervals_of
from ppprof.analysis.profile.intervals import covered
from ppprof.analysis.profile.remote_calls import split_calls
from ppprof.analysis.profile.steps import leave_out_incomplete_steps
from ppprof.choices import SummaryOptions
from ppprof.trace.schema import Trace
from ppprof.trace.unrecorded_device import unrecorded_device

T = TypeVar("T")

PHASES = ("Dataloader", "Forward", "Backward", "Optimization")
"""The phases of a step; Paddle's "model perspective"."""


class Profile:
    """One trace prepared for the summaries. Results that several summaries share are computed once.

    Incomplete steps are left out; see `leave_out_incomplete_steps`.

    Attributes:
        trace: the events of the rank's own process.
        whole: the events of ``trace``, and those recorded in the rank's remote calls.
        options: the options of the summaries.
    """

    def __init__(self, trace: Trace, options: SummaryOptions | None = None) -> None:
        self.whole = leave_out_incomplete_steps(trace)
        self.trace, self._remote = split_calls(self.whole)
        self.options = options or SummaryOptions()
        self._results: dict[Callable[[Profile], Any], Any] = {}

    def once(self, compute: Callable[[Profile], T]) -> T:
        """Return the result of a function for this profile, which is computed once."""
        if compute not in self._results:
            self._results[compute] = compute(self)
        result: T = self._results[compute]
        return result

    @cached_property
    def tree(self) -> Tree:
        """The event tree of ``trace``: without the events recorded in remote calls."""
        return Tree(self.trace)

    @cached_property
    def whole_tree(self) -> Tree:
        """The event tree of ``whole``: with the events recorded in remote calls."""
        return Tree(self.whole) if self._remote else self.tree

    @cached_property
    def remote(self) -> Mapping[str, Profile]:
        """The profile of the events recorded in each remote call, keyed by call.

        A key is a chain of calls as `ppprof.remote_names.call_of` returns it, such as
        ``rpc#f(worker0 -> worker1)``. Empty if the trace has no remote calls.
        """
        return {call: Profile(trace, self.options) for call, trace in self._remote.items()}

    @property
    def unrecorded_device(self) -> str:
        """The device that the trace lacks the events of, such as ``gpu:0``; "" if it lacks none.

        Host events are then launches, and no time of them is the device's.
        """
        return unrecorded_device(self.whole)

    @cached_property
    def sorted_by(self) -> str:
        """The sort key: one of `SORT_KEYS`, also if the options say ``auto``."""
        if self.options.sorted_by != "auto":
            return self.options.sorted_by
        return "cpu_total" if self.tree.devices.is_empty() else "gpu_total"

    @cached_property
    def steps(self) -> list[int]:
        """Numbers of the recorded steps, ascending, one for each ProfileStep; some may be equal."""
        names = self.tree.of_category("ProfileStep")["name"].cast(pl.String)
        return sorted(
            names.str.extract(r"#(\d+)$").cast(pl.Int64, strict=False).drop_nulls().to_list()
        )

    @cached_property
    def total_ns(self) -> int:
        """The time in ns inside steps: the union of all ProfileStep events; 0 without steps.

        The CPU ratios of the tables are shares of this time.
        """
        return covered(*intervals_of(self.tree.of_category("ProfileStep")))

    @cached_property
    def outermost(self) -> pl.DataFrame:
        """The steps and the phases that are not inside a phase: rows of ``tree.hosts``.

        Sorted by the column visit, which keeps the order of Paddle's tables (`Tree`).
        """
        tree = self.tree
        phases, steps = tree.events.host_rows(*PHASES), tree.events.host_rows("ProfileStep")
        rows = np.union1d(phases, steps)
        return tree.hosts_at(rows[~tree.below(phases)[rows]]).sort("visit")

    @cached_property
    def phases(self) -> pl.DataFrame:
        """Calls and times of the events of `outermost`, grouped by category.

        Columns: category, then calls and the total, average, maximum and minimum CPU and GPU time,
        named as in `grouped`.
        """
        return grouped(self.outermost, ["category"])

    def phase(self, category: str) -> Mapping[str, Any] | None:
        """Return the row of `phases` with this category; None if `outermost` has no such event.

        Args:
            category: one of `PHASES`, or ``ProfileStep``.
        """
        row = self.phases.filter(pl.col("category") == category)
        return row.row(0, named=True) if row.height else None

    @cached_property
    def communication(self) -> Communication:
        """The intervals in which the rank communicates and computes."""
        return Communication.from_tree(self.tree, is_recorded=not self.unrecorded_device)

    @cached_property
    def paddle_communication(self) -> Communication:
        """The same by Paddle's rule, for the tables that equal Paddle's.

        Paddle knows the kernels of NCCL and XCCL only.
        """
        return Communication.from_tree(
            self.tree, as_paddle=True, is_recorded=not self.unrecorded_device
        )
