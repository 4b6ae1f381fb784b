"""Whether other processes of a machine disturb a job: the step times of such a job are no evidence."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

LEAST_OTHERS = 0.10
"""Share of all processors' time of other processes. Below it, they delay a job by less than runs of
one config differ (`ppprof.analysis.advice.finding.MODERATE_RATIO`)."""
FULL = 0.90
"""Busy share of the processors from which a process that starts to run often finds no idle one."""
LEAST_WAIT = 0.05
"""Share of the steps in which their thread waits for a processor, if the processors are not full: the
processes may have fewer of them than the machine."""


class MachineLoad(NamedTuple):
    """The load of a machine in some steps of a rank: means over the time of the steps."""

    others_ratio: float
    """Share of all processors' time that processes outside the job took, 0 to 1."""
    busy_ratio: float
    """Share of all processors' time in which they were busy, 0 to 1."""
    wait_ratio: float | None
    """Share of the steps in which their thread waited for a processor, 0 to 1; None if unknown."""

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes take so much that the times of the steps depend on them."""
        is_short = self.busy_ratio >= FULL or (self.wait_ratio or 0.0) >= LEAST_WAIT
        return self.others_ratio >= LEAST_OTHERS and is_short


def machine_load(times: pl.DataFrame) -> MachineLoad | None:
    """Return the load of the most disturbed rank's machine; None if it is unknown for all ranks.

    Args:
        times: the steps: rank, batch_cost_ns, processor_wait_ns, processors_busy_ratio and
            others_ratio of `ppprof.rundir.step_times.STEP_TIMES`.
    """
    known = times.drop_nulls("others_ratio").filter(pl.col("batch_cost_ns") > 0)
    time_ns = pl.col("batch_cost_ns")
    ratios = [
        (pl.col(name) * time_ns).sum() / time_ns.sum()
        for name in ("others_ratio", "processors_busy_ratio")
    ]
    wait = pl.col("processor_wait_ns")
    waited = pl.when(wait.count() > 0).then((wait.sum() / time_ns.sum()).clip(0, 1))
    ranks = known.group_by("rank").agg(*ratios, waited).sort("others_ratio", "rank")
    loads = [MachineLoad(*row[1:]) for row in ranks.iter_rows()]
    return max(loads, key=lambda load: (load.is_disturbed, load.others_ratio), default=None)
