"""One trace prepared for the summaries: its tree, steps, phases, communication and computation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.grouping import grouped, intervals_of
from ppprof.analysis.profile.intervals import (
    Intervals,
    covered,
    difference_by_group,
    joined,
    union,
)
from ppprof.analysis.profile.steps import (
    leave_out_incomplete_steps,
    pauses_in,
    split_calls,
    without_pauses,
)
from ppprof.analysis.profile.wholeness import without_lost_steps
from ppprof.arrays import Int64
from ppprof.choices import SummaryOptions
from ppprof.remote_names import is_call
from ppprof.trace.communication_names import PADDLE_PATTERN
from ppprof.trace.schema import Trace
from ppprof.trace.steps import step_number
from ppprof.trace.unrecorded_device import unrecorded_device

OPERATOR_CATEGORIES = ("Operator", "OperatorInner", "DygraphKernelLaunch", "StaticKernelLaunch")
"""Categories of host events during which a CPU computes. Newer versions of Paddle record
DygraphKernelLaunch and StaticKernelLaunch inside an Operator."""

_COLLECTIVE = re.compile("allreduce|broadcast(?!_(to|tensors))|(?<![a-z])rpc")  # no warpctc
_PADDLE_COLLECTIVE = re.compile("allreduce|broadcast|rpc")
_PADDLE = re.compile(PADDLE_PATTERN)


@dataclass(frozen=True)
class Communication:
    """The intervals in which a rank communicates and computes, as in Paddle's Distributed Summary.

    For a trace without device events, Paddle reports no computation. Here, the time in operators is
    then the computation, if the training ran on a CPU.
    """

    host: Intervals
    """Communication events, and operators whose name contains allreduce, broadcast or rpc, as in
    Paddle; but not broadcast_to and broadcast_tensors, which only change shapes."""
    host_rows: Int64
    """Rows of the events of ``host`` in ``tree.hosts``."""
    device: Intervals
    """Kernels launched by the events of ``host`` or by events below them, and all kernels whose
    names say that they communicate. Kernels count as in `EventArrays.is_counted`."""
    device_rows: Int64
    """Rows of the kernels of ``device`` in ``tree.devices``."""
    computation: Intervals
    """Kernels whose names do not say so and that no event of ``host`` launched directly. A
    kernel launched by an event below an event of ``host`` is therefore in both ``device`` and
    ``computation``. In a trace without device events: see `_operator_intervals`."""
    computed_by: str
    """The events of ``computation``: "kernels", "operators" in a trace of a CPU, or "nothing" in
    a trace that lacks the events of its device (`ppprof.trace.unrecorded_device`)."""

    @classmethod
    def from_tree(
        cls, tree: Tree, *, as_paddle: bool = False, is_recorded: bool = True
    ) -> Communication:
        """Return the communication and computation of the host events and kernels of ``tree``.

        Args:
            tree: the event tree.
            as_paddle: whether only the names count that Paddle's own tables count
                (`PADDLE_PATTERN`). If False, the names of all libraries count.
            is_recorded: False if the trace lacks the events of its device: its operators only
                launch, so they are no computation.
        """
        events = tree.events
        is_exact = as_paddle and events.has_devices  # Paddle makes no table of other traces
        rule = _PADDLE_COLLECTIVE if is_exact else _COLLECTIVE
        operators = events.host_rows("Operator")
        is_collective = events.names.take(operators).where(
            lambda name: bool(rule.search(name.lower()))
        )
        collectives = operators[is_collective]
        spans = events.host_rows("Communication") if is_exact else events.communication_spans
        rows = np.union1d(spans, collectives)
        host = events.intervals(rows)
        if not events.has_devices:
            none = np.empty(0, np.int64)
            nowhere = none, none
            if not is_recorded:
                return cls(host, rows, nowhere, none, nowhere, "nothing")
            return cls(host, rows, nowhere, none, _operator_intervals(tree, rows), "operators")
        below = np.append(tree.below(rows), False)  # the last one: launched outside of host events
        below[rows] = True
        device = tree.device_rows - events.first_device
        launcher, is_kernel = events.host_of_device[device], events.is_kernel[device]
        kernel = np.flatnonzero(is_kernel & events.is_counted[device])
        launcher, row = launcher[kernel], tree.device_rows[kernel]
        is_named = events.names.take(row).where(
            _is_named_as_paddle if as_paddle else events.communicates
        )
        own = np.zeros(len(below), bool)
        own[rows] = True
        communicating = below[launcher] | is_named
        computation = ~own[launcher] & ~is_named
        return cls(
            host,
            rows,
            events.intervals(row[communicating]),
            kernel[communicating],
            events.intervals(row[computation]),
            "kernels",
        )

    @property
    def both(self) -> Intervals:
        """The intervals of ``host`` and of ``device`` in one set; they may overlap."""
        start = np.concatenate((self.host[0], self.device[0]))
        return start, np.concatenate((self.host[1], self.device[1]))


def _is_named_as_paddle(kernel: str) -> bool:
    return bool(_PADDLE.search(kernel.lower()))


def _operator_intervals(tree: Tree, communication: Int64) -> Intervals:
    """Return the intervals in which a thread runs an operator and does not itself communicate.

        thread 1   Operator        ##########
                   Communication      ####
        thread 2   Communication          ######
        out                        ###    ###

    Intervals of different threads may overlap.
    """
    events, thread = tree.events, tree.events.thread
    operators = events.host_rows(*OPERATOR_CATEGORIES)
    return difference_by_group(
        events.intervals(operators),
        thread[operators],
        events.intervals(communication),
        thread[communication],
    )


T = TypeVar("T")

PHASES = ("Dataloader", "Forward", "Backward", "Optimization")
"""The phases of a step; Paddle's "model perspective"."""

_TIMES = ("cpu_ns", "gpu_ns", "device_ns")


class Profile:
    """One trace prepared for the summaries. Results that several summaries share are computed once.

    Incomplete steps are left out, see `leave_out_incomplete_steps`, and lost steps, see
    `without_lost_steps`.

    Attributes:
        trace: the events of the rank's own process.
        whole: the events of ``trace``, and those recorded in the rank's remote calls.
        options: the options of the summaries.
    """

    def __init__(self, trace: Trace, options: SummaryOptions | None = None) -> None:
        self.whole = without_lost_steps(leave_out_incomplete_steps(trace))
        self.trace, self._remote = split_calls(self.whole)
        self.options = options or SummaryOptions()
        self.results: dict[str, Any] = {}
        """Results of functions that are computed `once`, keyed by the function's full name."""

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

    @cached_property
    def remote_calls(self) -> pl.DataFrame:
        """The remote calls that the rank made, from sending to result: rows of ``tree.hosts``."""
        hosts = self.tree.hosts
        is_rpc = self.trace.names.where(is_call)
        return hosts.filter(pl.Series(is_rpc[: hosts.height]))

    @cached_property
    def pauses(self) -> pl.DataFrame:
        """The pauses of the training that `ProfilerSession.paused` has recorded: rows of ``tree.hosts``."""
        return self.tree.hosts_at(np.flatnonzero(pauses_in(self.trace)))

    @cached_property
    def without_pauses(self) -> Profile:
        """The profile without what happened in `pauses`; this one if it has no pause."""
        trace = without_pauses(self.whole)
        return self if trace is self.whole else Profile(trace, self.options)

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
        rows = self.tree.rows_of_category("ProfileStep")
        numbers = map(step_number, self.trace.events["name"].gather(rows).to_list())
        return sorted(number for number in numbers if number is not None)

    @cached_property
    def step(self) -> pl.Series:
        """The step of each event of ``trace``, null outside of steps; 0 if the trace has no steps."""
        step = self.trace.events["step"]
        return step if self.steps else pl.Series("step", np.zeros(len(step), np.int64))

    @cached_property
    def total_ns(self) -> int:
        """The time in ns inside steps: the union of all ProfileStep events; 0 without steps."""
        return covered(*intervals_of(self.tree.of_category("ProfileStep")))

    @cached_property
    def whole_ns(self) -> int:
        """The time in ns that CPU ratios are shares of: inside steps, and of host events beside them.

        ::

            steps            #### ####
            operators   ==   ==== ====      whole_ns 10: the first one is in no step

        Paddle counts only steps, and records from the begin of one to the end of one; torch records
        whole functions. 0 without steps.
        """
        if not self._is_beside_counted:
            return self.total_ns
        hosts = self.tree.hosts
        beside = hosts.filter(self.step.gather(hosts["row"]).is_null())
        steps = intervals_of(self.tree.of_category("ProfileStep"))
        return covered(*union(*joined(steps, intervals_of(beside))))

    @property
    def _is_beside_counted(self) -> bool:
        return bool(self.total_ns) and self.trace.framework == "torch"

    @cached_property
    def beside_steps(self) -> pl.DataFrame:
        """The rows of ``tree.devices`` that count beside those of steps (`whole_ns`)."""
        events, rows = self.tree.events, self.tree.device_rows
        is_beside = (events.step < 0)[rows] & events.is_counted[rows - events.first_device]
        is_beside &= self._is_beside_counted
        return self.tree.devices.filter(pl.Series(is_beside, dtype=pl.Boolean))

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
    def disjoint_phases(self) -> pl.DataFrame:
        """The phases of `outermost`, and those of a closure, which an optimizer such as LBFGS calls.

        ::

            Optimization   ##############        cpu_ns: 6 of 14; in Paddle's Model Summary 14
              Forward       ##    ##
              Backward        ##    ##

        Rows of ``tree.hosts``, sorted by the column visit. The times of an Optimization, but not its
        start and end, are without the phases in it. Only an Optimization with a Backward is divided.
        """
        tree, events = self.tree, self.tree.events
        outer = self.outermost.filter(pl.col("category") != "ProfileStep")
        updates = outer.filter(pl.col("category") == "Optimization")["row"].to_numpy()
        others = events.host_rows("Dataloader", "Forward", "Backward")
        inner = others[(tree.below(updates) & ~tree.below(others))[others]]
        update = tree.innermost(updates)[inner]
        has_backward = update[np.isin(inner, events.host_rows("Backward"))]
        rows = np.union1d(outer["row"].to_numpy(), inner[np.isin(update, has_backward)])
        chosen = np.isin(np.arange(events.num_hosts), rows)
        above = tree.enclosing(chosen)
        times = {time: tree.own(time, chosen, above)[rows] for time in _TIMES}
        return tree.hosts_at(rows).with_columns(**times).sort("visit")

    @cached_property
    def phases(self) -> pl.DataFrame:
        """Calls and times of the events of `outermost`, grouped by category.

        Columns: category, then calls and the total, average, maximum and minimum CPU and GPU time,
        named as in `grouped`.
        """
        return grouped(self.outermost, ["category"])

    def phase(self, category: str) -> Mapping[str, Any] | None:
        """Return the row of `phases` with this category; None if `outermost` has no such event."""
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


def once(compute: Callable[[Profile], T]) -> Callable[[Profile], T]:
    """Decorate a function of a profile whose result is computed once for each profile."""
    name = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def computed(profile: Profile) -> T:
        if name not in profile.results:
            profile.results[name] = compute(profile)
        result: T = profile.results[name]
        return result

    return computed
