"""The rule about ranks that have unlike amounts of work in a step, now the one and now the other."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import Fact, Finding
from ppprof.analysis.ranks.step_table import own_time
from ppprof.analysis.ranks.unrecorded import roles_of_ranks
from ppprof.arrays import Float64

LEAST_CORRELATION = 0.7
"""Of the own times of ranks with their FLOPs, both without the means of steps and of ranks: half of the variance."""
LEAST_STEPS = 6
"""Fewer steps show no correlation."""


def uneven_work(evidence: Evidence) -> list[Finding]:
    """Report ranks that wait in turn, since their batches of a step are unlike.

    ::

        step   rank 0     rank 1     takes
        0      ######     ###        6
        1      ##         ######     6        means of the ranks: 4 and 4.5; even work would save 1.5

    The work of a rank in a step is its FLOPs, in the time that these take: the slope of own times over FLOPs. The
    cost is the mean over steps of the most work of a rank, minus the most of any rank's mean: that is the
    excess of a rank which has more in each step, and `ppprof.analysis.advice.waiting.slow_rank` reports it. It is at
    most the same difference of the own times. Of several roles, such as pipeline stages, the one with the largest counts.
    """
    own = evidence.steps
    if own.is_empty():
        return []
    parts = [
        indicators.steps.select("step", "forward_flops", rank=pl.lit(rank, pl.Int64))
        for rank, indicators in evidence.typical_indicators.items()
    ]
    roles = roles_of_ranks(evidence.topology, own["rank"].unique())
    times = (
        own.select("rank", "step", own_ns=own_time(own))
        .join(pl.concat(parts), ["rank", "step"])
        .with_columns(role=pl.col("rank").replace_strict(roles, default="", return_dtype=pl.String))
        .drop_nulls()
        .filter(pl.col("forward_flops") > 0)
    )
    found = [_of_role(evidence, role, each) for (role,), each in times.group_by("role")]
    return max(found, key=lambda each: each[0].cost_ns or 0.0 if each else 0.0, default=[])


def _of_role(evidence: Evidence, role: object, times: pl.DataFrame) -> list[Finding]:
    num_ranks = times["rank"].n_unique()
    times = times.filter(pl.len().over("step") == num_ranks).sort("step", "rank")
    num_steps = times["step"].n_unique()
    if num_ranks < 2 or num_steps < LEAST_STEPS:
        return []
    own_ns, flops = (
        times[name].cast(pl.Float64).to_numpy().reshape(num_steps, num_ranks)
        for name in ("own_ns", "forward_flops")
    )
    of_ranks, of_flops = _deviations(own_ns), _deviations(flops)
    spread = float(np.sqrt((of_ranks**2).sum() * (of_flops**2).sum()))
    together = float((of_ranks * of_flops).sum())
    if together < LEAST_CORRELATION * spread or not spread:
        return []
    slope = together / float((of_flops**2).sum())
    most = flops.argmax(axis=1)
    row = np.arange(num_steps)
    others_ns = (own_ns.sum(axis=1) - own_ns[row, most]) / (num_ranks - 1)
    rows = pl.DataFrame(
        {
            "step": times["step"].unique().sort(),
            "rank": times["rank"].unique().sort().gather(most),
            "time_ns": own_ns[row, most],
            "peers_ns": others_ns,
            "excess_ns": own_ns[row, most] - others_ns,
        }
    ).sort("excess_ns", "step", descending=[True, False])
    facts: dict[str, Fact] = {
        "ranks": num_ranks,
        "role": str(role),
        "times_flops": round(float((flops.max(axis=1) / flops.min(axis=1)).mean()), 2),
        "num_changes": int((np.diff(most) != 0).sum()),
        "num_steps": num_steps,
    }
    cost_ns = min(slope * _gain(flops), _gain(own_ns))
    return evidence.time_finding("uneven-work", cost_ns, "likely", facts, rows)


def _deviations(values: Float64) -> Float64:
    """Return the values without the means of steps, shape (steps, 1), and of ranks, shape (1, ranks)."""
    deviations: Float64 = values - values.mean(axis=1, keepdims=True)
    deviations -= deviations.mean(axis=0, keepdims=True)
    return deviations


def _gain(values: Float64) -> float:
    """Return the mean over steps of the largest value of a rank, minus the largest mean of a rank."""
    return float(values.max(axis=1).mean() - values.mean(axis=0).max())
