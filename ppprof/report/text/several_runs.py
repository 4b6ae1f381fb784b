"""Several runs of two programs as text: a picture of both groups, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ppprof.analysis.diff.several_runs import RunsChange, RunTime
from ppprof.messages import Counted

_COLUMNS = 60
_MARKS = ".o8#"
"""Marks of a column by the number of its runs; the last: 3 and more."""


def several_runs_text(
    baseline: Mapping[str, RunTime],
    experiment: Mapping[str, RunTime],
    changes: Sequence[RunsChange],
    waits: str,
) -> str:
    """Return the runs of both sides, keyed by path, a picture of their means, and the verdict.

    Args:
        baseline: the runs of the baseline.
        experiment: the runs of the experiment.
        changes: the changes of the mean, the median and the 10% quantile of adjusted steps.
        waits: what is said of the wait for a processor; empty without a difference.
    """
    sides = {"baseline": baseline, "experiment": experiment}
    width = max(len(path) for side in sides.values() for path in side)
    lines = [
        f"{'':10}  {'Run':{width}}  {'Steps':>6} {'Mean':>9} {'Median':>9} {'Quiet':>9} {'Wall':>9} "
        f"{'Wait':>6}"
    ]
    for name, side in sides.items():
        for path, time in side.items():
            wait = "-" if time.wait_ratio is None else f"{time.wait_ratio:.1%}"
            times = " ".join(
                f"{ns / 1e6:9.2f}"
                for ns in (time.mean_ns, time.median_ns, time.quiet_ns, time.wall_ns)
            )
            lines.append(f"{name:10}  {path:{width}}  {time.num_steps:6} {times} {wait:>6}")
    means = [[time.mean_ns for time in side.values()] for side in sides.values()]
    low, high = min(map(min, means)), max(map(max, means))
    lines += [
        "",
        f"Mean step of each run, {low / 1e6:.2f} to {high / 1e6:.2f} ms (o one run, 8 two, # more):",
    ]
    lines += [f"{name:10}  {_picture(times, low, high)}" for name, times in zip(sides, means)]
    what = ("Step time", "Median step", "Quiet steps (10% quantile)")
    lines += ["", *(f"{name}: {change}" for name, change in zip(what, changes))]
    lines += [f"Note: {waits}"] if waits else []
    every = [time for side in sides.values() for time in side.values()]
    if any(time.num_left_out for time in every):
        lines.append(
            f"Note: compared are the {Counted(every[0].num_steps):step|steps} that all runs have; "
            f"one has {Counted(max(time.num_left_out for time in every)):other step|other steps}."
        )
    is_known = all(time.wait_ratio is not None for time in every)
    unknown = "with the wait for a processor, which is unknown in at least one run"
    wait = "without the wait for a processor" if is_known else unknown
    lines.append(f"Mean, median, quiet: {wait}. Times in ms.")
    return "\n".join(lines) + "\n"


def _picture(times: Iterable[float], low: float, high: float) -> str:
    """Return a line with a mark at each time.

    >>> _picture([1.0, 1.0, 2.0], 1.0, 2.0).strip(".")
    '8..........................................................o'
    """
    counts = [0] * _COLUMNS
    for time in times:
        counts[round((_COLUMNS - 1) * (time - low) / (high - low)) if high > low else 0] += 1
    return "".join(_MARKS[min(count, len(_MARKS) - 1)] for count in counts)
