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
_SURE = 3.0
"""Student's t of a correlation that is no chance: 0.83 in six steps of two ranks."""
_MOST_PER_FLOP = 2.0
"""Longest time of a further FLOP, in mean times of one: of attention, not all work is known."""


def uneven_work(evidence: Evidence) -> list[Finding]:
    """Report ranks that wait in turn, since their batches of a step are unlike.

    ::

        step   rank 0     rank 1     takes
        0      ######     ###        6
        1      ##         ######     6        means of the ranks: 4 and 4.5; even work would save 1.5

    The work of a rank in a step is its FLOPs, in the time that these take: the slope of own times, without data
    loading, over FLOPs. The cost is the mean over steps of the most work of a rank, minus the largest mean of a rank: what
    one rank has more in each step is reported by `ppprof.analysis.advice.waiting.slow_rank`. The cost is at
    most the same difference of the own times, and what ranks wait in a step beyond the one that waits least: they
    may meet in some steps only. Of several roles, such as pipeline stages, the one with the largest cost counts.
    """
    own = evidence.steps
    if own.is_empty() or not evidence.typical_indicators:
        return []
    parts = [
        indicators.steps.select("step", "forward_flops", rank=pl.lit(rank, pl.Int64))
        for rank, indicators in evidence.typical_indicators.items()
    ]
    roles = roles_of_ranks(evidence.topology, own["rank"].unique())
    waits_ns = pl.col("step_ns") - own_time(own)
    loading_ns = pl.col("data_loading_ns").fill_null(0)
    times = (
        own.select("rank", "step", own_ns=own_time(own) - loading_ns, waits_ns=waits_ns)
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
    own_ns, waits_ns, flops = (
        times[name].cast(pl.Float64).to_numpy().reshape(num_steps, num_ranks)
        for name in ("own_ns", "waits_ns", "forward_flops")
    )
    of_ranks, of_flops = _deviations(own_ns), _deviations(flops)
    spread = float(np.sqrt((of_ranks**2).sum() * (of_flops**2).sum()))
    together = float((of_ranks * of_flops).sum())
    correlation = together / spread if spread else 0.0
    freedom = num_steps * (num_ranks - 1) - 2
    is_chance = correlation**2 * freedom < _SURE**2 * (1 - correlation**2)
    if correlation < LEAST_CORRELATION or is_chance:
        return []
    slope = together / float((of_flops**2).sum())
    slope = min(slope, _MOST_PER_FLOP * float(own_ns.mean() / flops.mean()))
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
    beyond_ns = float((waits_ns.mean(axis=1) - waits_ns.min(axis=1)).mean())
    cost_ns = min(slope * _gain(flops), _gain(own_ns), beyond_ns)
    return evidence.time_finding("uneven-work", cost_ns, "likely", facts, rows)


def _deviations(values: Float64) -> Float64:
    """Return the values without the means of steps, shape (steps, 1), and of ranks, shape (1, ranks)."""
    deviations: Float64 = values - values.mean(axis=1, keepdims=True)
    deviations -= deviations.mean(axis=0, keepdims=True)
    return deviations


def _gain(values: Float64) -> float:
    """Return the mean over steps of the largest value of a rank, minus the largest mean of a rank."""
    return float(values.max(axis=1).mean() - values.mean(axis=0).max())
