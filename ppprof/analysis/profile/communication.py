"""Which time is communication, which is computation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.grouping import intervals_of, matching
from ppprof.analysis.profile.intervals import Intervals, difference, union
from ppprof.arrays import Int64

OPERATOR_CATEGORIES = ("Operator", "OperatorInner", "DygraphKernelLaunch", "StaticKernelLaunch")
"""Host events during which a CPU computes; the last two are what newer Paddles record inside."""


@dataclass(frozen=True)
class Communication:
    """When a rank communicates and when it computes, as Paddle's Distributed Summary has it.

    Where nothing ran on a device, of which Paddle says that nothing was computed, operators stand
    for kernels.
    """

    host: Intervals
    """Communication events, and operators that are named after a collective."""
    host_rows: Int64
    """Which host events these are."""
    device: Intervals
    """Kernels launched below those, and kernels of NCCL (or XCCL) launched elsewhere."""
    device_rows: Int64
    """Which rows of ``tree.devices`` these are."""
    computation: Intervals
    """All other kernels launched by events that are not communication themselves; of a trace
    without device events what `_operating` finds."""
    computed_by: str
    """What ``computation`` is made of: "kernels" or "operators"."""

    @classmethod
    def of(cls, tree: Tree) -> Communication:
        """Sorts host events and kernels into the three."""
        named = matching(tree.hosts["name"], "allreduce|broadcast|rpc")
        hosts = tree.hosts.filter(
            (pl.col("category") == "Communication") | (pl.col("category") == "Operator") & named
        )
        rows = hosts["row"].to_numpy()
        if tree.devices.is_empty():
            nowhere = intervals_of(tree.devices)
            none = np.empty(0, np.int64)
            operating = _operating(tree.hosts, hosts)
            return cls(intervals_of(hosts), rows, nowhere, none, operating, "operators")
        below = tree.below(rows)
        below[rows] = True
        kernels = tree.devices.with_row_index("row").filter(
            (pl.col("category") == "Kernel") & pl.col("host").is_not_null()
        )
        is_nccl = matching(kernels["name"], "nccl|xccl").to_numpy()
        launcher = kernels["host"].to_numpy()
        own = np.isin(launcher, rows)
        device = below[launcher] | is_nccl
        computation = ~own & ~is_nccl
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
        """Communication on the host or on the device."""
        start = np.concatenate((self.host[0], self.device[0]))
        return start, np.concatenate((self.host[1], self.device[1]))


def _operating(hosts: pl.DataFrame, communication: pl.DataFrame) -> Intervals:
    """When a thread runs an operator and does not communicate meanwhile, thread by thread.

        thread 1   Operator        ##########
                   Communication      ####
        thread 2   Communication          ######
        out                        ###    ###

    Intervals of different threads may overlap.
    """
    operators = hosts.filter(pl.col("category").is_in(OPERATOR_CATEGORIES))
    parts = [
        difference(
            union(*intervals_of(operators.filter(pl.col("thread") == thread))),
            intervals_of(communication.filter(pl.col("thread") == thread)),
        )
        for thread in operators["thread"].unique()
    ]
    return (
        np.concatenate([start for start, _ in parts] or [np.empty(0, np.int64)]),
        np.concatenate([end for _, end in parts] or [np.empty(0, np.int64)]),
    )
