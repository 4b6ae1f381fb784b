"""Which time is communication, and which of it computation hides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ppprof.analysis.grouping import intervals_of, matching
from ppprof.analysis.intervals import Intervals
from ppprof.analysis.tree import Tree


@dataclass(frozen=True)
class Communication:
    """When a rank communicates and computes, as Paddle's Distributed Summary tells them apart."""

    host: Intervals
    """Communication events, and operators that are named after a collective."""
    device: Intervals
    """Kernels launched below those, and kernels of NCCL (or XCCL) launched elsewhere."""
    computation: Intervals
    """All other kernels launched by events that are not communication themselves."""

    @classmethod
    def of(cls, tree: Tree) -> Communication:
        """Sorts host events and kernels into the three."""
        named = matching(tree.hosts["name"], "allreduce|broadcast|rpc")
        hosts = tree.hosts.filter(
            (pl.col("category") == "Communication") | (pl.col("category") == "Operator") & named
        )
        rows = hosts["row"].to_numpy()
        below = tree.below(rows)
        below[rows] = True
        kernels = tree.devices.filter(
            (pl.col("category") == "Kernel") & pl.col("host").is_not_null()
        )
        is_nccl = matching(kernels["name"], "nccl|xccl").to_numpy()
        launcher = kernels["host"].to_numpy()
        own = np.isin(launcher, rows)
        device = below[launcher] | is_nccl
        computation = ~own & ~is_nccl
        return cls(
            intervals_of(hosts),
            intervals_of(kernels.filter(pl.Series(device))),
            intervals_of(kernels.filter(pl.Series(computation))),
        )

    @property
    def both(self) -> Intervals:
        """Communication on the host or on the device."""
        start = np.concatenate((self.host[0], self.device[0]))
        return start, np.concatenate((self.host[1], self.device[1]))
