"""Split the time of a window into communication and computation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.grouping import intervals_of, matching
from ppprof.analysis.profile.intervals import Intervals, difference_by_group
from ppprof.arrays import Int64
from ppprof.trace.communication_names import PADDLE_PATTERN, communicates
from ppprof.trace.schema import is_kernel

OPERATOR_CATEGORIES = ("Operator", "OperatorInner", "DygraphKernelLaunch", "StaticKernelLaunch")
"""Categories of host events during which a CPU computes. Newer versions of Paddle record
DygraphKernelLaunch and StaticKernelLaunch inside an Operator."""

_RESHAPES = "broadcast_(to|tensors)"


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
        names = tree.hosts["name"]
        collective = matching(names, "allreduce|broadcast|rpc") & ~matching(names, _RESHAPES)
        hosts = tree.hosts.filter(
            (pl.col("category") == "Communication")
            | (pl.col("category") == "Operator") & collective
        )
        rows = hosts["row"].to_numpy()
        if tree.devices.is_empty():
            nowhere = intervals_of(tree.devices)
            none = np.empty(0, np.int64)
            if not is_recorded:
                return cls(intervals_of(hosts), rows, nowhere, none, nowhere, "nothing")
            operators = _operator_intervals(tree.hosts, hosts)
            return cls(intervals_of(hosts), rows, nowhere, none, operators, "operators")
        below = tree.below(rows)
        below[rows] = True
        kernels = tree.devices.with_row_index("row").filter(
            is_kernel() & pl.col("host").is_not_null()
        )
        names = kernels["name"]
        is_named = matching(names, PADDLE_PATTERN) if as_paddle else communicates(names)
        named = is_named.to_numpy()
        launcher = kernels["host"].to_numpy()
        own = np.isin(launcher, rows)
        device = below[launcher] | named
        computation = ~own & ~named
        return cls(
            intervals_of(hosts),
            rows,
            intervals_of(kernels.filter(pl.Series(device))),
            kernels["row"].to_numpy()[device].astype(np.int64),
            intervals_of(kernels.filter(pl.Series(computation))),
            "kernels",
        )

    @property
    def both(self) -> Intervals:
        """The intervals of ``host`` and of ``device`` in one set; they may overlap."""
        start = np.concatenate((self.host[0], self.device[0]))
        return start, np.concatenate((self.host[1], self.device[1]))


def _operator_intervals(hosts: pl.DataFrame, communication: pl.DataFrame) -> Intervals:
    """Return the intervals in which a thread runs an operator and does not itself communicate.

        thread 1   Operator        ##########
                   Communication      ####
        thread 2   Communication          ######
        out                        ###    ###

    Intervals of different threads may overlap.

    Args:
        hosts: all host events; those of `OPERATOR_CATEGORIES` count as operators.
        communication: the host events that communicate.
    """
    operators = hosts.filter(pl.col("category").is_in(OPERATOR_CATEGORIES))
    return difference_by_group(
        intervals_of(operators),
        operators["thread"].to_numpy(),
        intervals_of(communication),
        communication["thread"].to_numpy(),
    )
