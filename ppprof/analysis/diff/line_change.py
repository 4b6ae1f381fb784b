"""The line of the user's code that made the step of the experiment longer or shorter."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import polars as pl

from ppprof.analysis.diff.diff import Diff

_LEAST_OF_STEP = 0.01
_SHARE_OF_LARGEST = 0.5
"""Ranks whose own time changed by less than this share of the largest change are not those that made the change."""


class LineChange(NamedTuple):
    """What a line added to the step, or saved."""

    name: str
    """As in `Diff.lines`."""
    status: str
    """``both``, ``new`` or ``gone``."""
    delta_ns: float
    """Time per rank and step, below 0 if it became less: of the line, but not more than all lines
    together and the recorded steps changed."""
    rank: int | None
    """The rank of the experiment to which all of this applies; None for all ranks, or several."""


def line_change(diff: Diff) -> LineChange | None:
    """Return the line with the largest change in the direction of the step, at least 1% of a step.

    None unless the changes of the line and of all lines together are clear: code that has moved from
    one line to another makes no step longer. Nor if the verdict on the step time is the opposite: other steps than
    the sampled ones decide it. If the own time of ranks changed, only their lines count:
    the others wait for these ranks, in a line that did not change.
    """
    if diff.lines.is_empty():
        return None
    verdict = diff.change.verdict
    diff, rank = _of_changed_ranks(diff)
    runs = diff.baseline, diff.experiment
    step_ns = [run.steps["step_ns"].cast(pl.Float64).mean() for run in runs]
    together = (replace(run, lines=run.lines.with_columns(name=pl.lit(""))) for run in runs)
    whole = Diff(*together).lines.filter("is_clear")
    if whole.is_empty() or not isinstance(step_ns[0], float) or not isinstance(step_ns[1], float):
        return None
    nets_ns = [whole["delta_time_ns"].item(), step_ns[1] - step_ns[0]]
    sign = 1 if nets_ns[0] > 0 else -1
    if verdict == ("faster" if sign > 0 else "slower"):
        return None
    lines = diff.lines.filter("is_clear").filter(pl.col("delta_time_ns") * sign > 0)
    for name, status, delta_ns in lines.select("name", "status", "delta_time_ns").head(1).rows():
        least_ns = min(sign * time_ns for time_ns in (*nets_ns, delta_ns))
        if least_ns >= _LEAST_OF_STEP * step_ns[0]:
            return LineChange(name, status, sign * least_ns, rank)
    return None


def _of_changed_ranks(diff: Diff) -> tuple[Diff, int | None]:
    """Return the comparison of the ranks whose own time made the change, and their number if it is one.

    The whole comparison if the own time of no rank changed clearly, or that of all did.
    """
    ranks = diff.ranks.filter(pl.col("status") == "both")
    own_ns = pl.col("delta_own_ns")
    changed = ranks.filter("is_clear").filter(own_ns * pl.col("delta_step_ns") > 0)
    changed = changed.filter(own_ns.abs() >= _SHARE_OF_LARGEST * own_ns.abs().max())
    if changed.height in (0, ranks.height):
        return diff, None
    runs = [
        replace(run, **{name: getattr(run, name).filter(is_chosen) for name in ("steps", "lines")})
        for run, side in ((diff.baseline, "baseline"), (diff.experiment, "experiment"))
        for is_chosen in [pl.col("rank").is_in(changed[f"{side}_rank"].implode())]
    ]
    return Diff(*runs), changed["experiment_rank"].item() if changed.height == 1 else None
