"""The line of the user's code that made the step of the experiment longer or shorter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from ppprof.analysis.diff.changes import SURE
from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.run_costs import RunCosts
from ppprof.analysis.diff.significance import BETWEEN_RUNS

_LEAST_OF_STEP = 0.01
_LEAST_WITHOUT_VERDICT = 3 * BETWEEN_RUNS
"""Share of a step; equal runs differ by less (three standard deviations)."""
_SHARE_OF_LARGEST = 0.5
"""Ranks whose own time changed by less than this share of the largest change are not those that made the change."""
_SURE = 2.0
"""Standard errors by which a change is below that."""
_LIKELY = 3.0
"""Standard errors of a change that is clear where the verdict on the step time is: one of some ten lines has it by
chance in 3% of equal runs, which have no verdict."""
_LEAST_OF_CHANGE = 1 / 3
"""Share of the change of the step that such a line has at least: the line of less is not the cause."""


_FILE = r"^(.+?):[0-9]+"
_FUNCTION = rf"{_FILE}, ([^:]+\(\)).*$"
"""What the name of a line begins with, and the name if it has a function."""


class LineChange(NamedTuple):
    """What a line added to the step, or saved."""

    name: str
    """As in `Diff.lines`; ``train.py, log()`` for the lines of a function together."""
    status: str
    """``both``, ``new`` or ``gone``."""
    delta_ns: float
    """Time per rank and step, below 0 if it became less: of the line, but not more than all lines
    together and the recorded steps changed."""
    rank: int | None
    """The rank of the experiment to which all of this applies; None for all ranks, or several."""


def line_change(diff: Diff) -> LineChange | None:
    """Return the line with the largest change in the direction of the step, at least 1% of a step.

    If no line has, the function: the lines of a loop have few samples each.

    None unless the changes of the line and of all lines together are clear (with a verdict on the step time, likely):
    code that has moved from one line to another makes no step longer. Nor if the verdict on the step time is the opposite, or that there is no
    difference; without a verdict, what equal runs differ by is too little, and what exceeds the interval of the
    steps outside the window is no change of the run. If the own time of ranks changed, only their lines count:
    the others wait for these ranks, in a line that did not change.
    """
    if diff.lines.is_empty():
        return None
    verdict = diff.change.verdict
    if verdict == "no difference seen":
        return None
    diff, rank = _of_changed_ranks(diff)
    runs = diff.baseline, diff.experiment
    step_ns = [run.steps["step_ns"].cast(pl.Float64).mean() for run in runs]
    together = (replace(run, lines=run.lines.with_columns(name=pl.lit(""))) for run in runs)
    is_sure = verdict in ("slower", "faster")
    whole = _changed(Diff(*together), is_sure, 0)
    if whole.is_empty() or not isinstance(step_ns[0], float) or not isinstance(step_ns[1], float):
        return None
    nets_ns = [whole["delta_time_ns"].item(), step_ns[1] - step_ns[0]]
    sign = 1 if nets_ns[0] > 0 else -1
    if verdict == ("faster" if sign > 0 else "slower"):
        return None
    most = diff.change.high if sign > 0 else diff.change.low
    if not is_sure and most is not None and sign * nets_ns[1] > sign * most * step_ns[0]:
        return None
    least_ns = (_LEAST_OF_STEP if is_sure else _LEAST_WITHOUT_VERDICT) * step_ns[0]
    likely_ns = _LEAST_OF_CHANGE * min(map(abs, nets_ns))
    for each in (diff, Diff(*_by_functions(runs))):
        change = _largest(_changed(each, is_sure, likely_ns), nets_ns, least_ns, rank)
        if change is not None:
            return change
    return None


def _changed(diff: Diff, is_sure: bool, likely_ns: float) -> pl.DataFrame:
    """Return the lines that changed clearly; with a verdict on the step, likely, and by ``likely_ns`` or more."""
    delta_ns, sure = pl.col("delta_time_ns").abs(), pl.lit(is_sure and diff.sure_from <= SURE)
    is_likely = sure & (delta_ns >= _LIKELY * pl.col("noise_time_ns")) & (delta_ns >= likely_ns)
    return diff.lines.filter(pl.col("is_clear") | is_likely)


def _by_functions(runs: Sequence[RunCosts]) -> Iterator[RunCosts]:
    """Yield copies whose lines are functions: ``train.py, log()``; ``log()`` if the runs share no file.

    Lines of no function stay.
    """
    files = [set(run.lines["name"].str.extract(_FILE, 1).drop_nulls()) for run in runs]
    name = "${1}, ${2}" if set.intersection(*files) else "${2}"
    for run in runs:
        function = pl.col("name").str.replace(_FUNCTION, name)
        yield replace(run, lines=run.lines.with_columns(name=function))


def _largest(
    lines: pl.DataFrame, nets_ns: Sequence[float], least_ns: float, rank: int | None
) -> LineChange | None:
    """Return the first line whose change is at least as long as ``least_ns``; None without one.

    Args:
        lines: those that changed clearly, the largest change first.
        nets_ns: changes that no line's can exceed, of one sign.
        least_ns: the least change, above 0.
        rank: `LineChange.rank`.
    """
    sign = 1 if nets_ns[0] > 0 else -1
    for name, status, delta_ns in lines.select("name", "status", "delta_time_ns").rows():
        change_ns = min(sign * time_ns for time_ns in (*nets_ns, delta_ns))
        if change_ns >= least_ns and not _is_edited(lines, status, sign):
            return LineChange(name, status, sign * change_ns, rank)
    return None


def _is_edited(lines: pl.DataFrame, status: str, sign: int) -> bool:
    """Return whether lines of one run alone may be edited lines of the other: what these take is no change.

    Of all that only one run has, the other one has half as much or more.
    """
    if status == "both":
        return False
    alone = lines.filter(pl.col("status") != "both")["delta_time_ns"] * sign
    more_ns, less_ns = alone.filter(alone > 0).sum(), -alone.filter(alone < 0).sum()
    return bool(less_ns >= more_ns / 2)


def _of_changed_ranks(diff: Diff) -> tuple[Diff, int | None]:
    """Return the comparison of the ranks whose own time made the change, and their number if it is one.

    The whole comparison if the own time of no rank changed clearly, that of all did, or that of others may have.
    """
    ranks = diff.ranks.filter(pl.col("status") == "both")
    own_ns = pl.col("delta_own_ns")
    changed = ranks.filter("is_clear").filter(own_ns * pl.col("delta_step_ns") > 0)
    least_ns = _SHARE_OF_LARGEST * (changed["delta_own_ns"].abs().max() or 0.0)  # type: ignore[operator]
    changed = changed.filter(own_ns.abs() >= least_ns)
    others = ranks.join(changed, "experiment_rank", "anti")
    most_ns = own_ns.abs() + _SURE * pl.col("noise_own_ns").fill_null(0)
    if changed.height in (0, ranks.height) or others.filter(most_ns >= least_ns).height:
        return diff, None
    runs = [
        replace(run, **{name: getattr(run, name).filter(is_chosen) for name in ("steps", "lines")})
        for run, side in ((diff.baseline, "baseline"), (diff.experiment, "experiment"))
        for is_chosen in [pl.col("rank").is_in(changed[f"{side}_rank"].implode())]
    ]
    return Diff(*runs), changed["experiment_rank"].item() if changed.height == 1 else None
