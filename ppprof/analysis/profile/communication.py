"""Split the time of a window into communication and computation."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.intervals import Intervals, difference_by_group
from ppprof.arrays import Int64
from ppprof.trace.communication_names import PADDLE_PATTERN, is_communication

OPERATOR_CATEGORIES = ("Operator", "OperatorInner", "DygraphKernelLaunch", "StaticKernelLaunch")
"""Categories of host events during which a CPU computes. Newer versions of Paddle record
DygraphKernelLaunch and StaticKernelLaunch inside an Operator."""

_COLLECTIVE = re.compile("allreduce|broadcast|rpc")
_RESHAPE = re.compile("broadcast_(to|tensors)")
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
    names say that they communicate. Kernels without a known launching event do not count."""
    device_rows: Int64
    """Rows of the kernels of ``device`` in ``tree.devices``."""
    computation: Intervals
    """Kernels whose names do not say so and that no event of ``host`` launched directly. A
    kernel launched by an event below an event of ``host`` is therefore in both ``device`` and
    ``computation``. In a trace without device events: see `_operator_intervals`."""
    computed_by: str
    """The events behind ``computation``: "kernels", "operators" in a trace of a CPU, or "nothing" in
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
        operators = events.host_rows("Operator")
        collectives = operators[events.names.take(operators).where(_is_collective)]
        rows = np.union1d(events.host_rows("Communication"), collectives)
        host = events.intervals(rows)
        if not events.has_devices:
            none = np.empty(0, np.int64)
            nowhere = none, none
            if not is_recorded:
                return cls(host, rows, nowhere, none, nowhere, "nothing")
            return cls(host, rows, nowhere, none, _operator_intervals(tree, rows), "operators")
        below = tree.below(rows)
        below[rows] = True
        device = tree.device_rows - events.first_device
        launcher, is_kernel = events.host_of_device[device], events.is_kernel[device]
        kernel = np.flatnonzero(is_kernel & (launcher >= 0))
        launcher, row = launcher[kernel], tree.device_rows[kernel]
        is_named = events.names.take(row).where(
            _is_named_as_paddle if as_paddle else is_communication
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


def _is_collective(operator: str) -> bool:
    lowered = operator.lower()
    return bool(_COLLECTIVE.search(lowered)) and not _RESHAPE.search(lowered)


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
