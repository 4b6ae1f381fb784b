"""The cost of a run's slow ranks (stragglers), as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from ppprof.report.text.summary import TableOptions
from ppprof.report.text.table import Column, Table

_NAMES = {
    "recorded": "as recorded",
    "nothing": "as replayed",
    "all": "everything",
    "steady": "each as it usually is",
    "balanced": "stages balanced",
    "slowest": "slowest workers",
    "kind": "every {kind}",
    "stage": "stage {stage}",
    "worker": "worker of stage {stage}",
    "link": "link",
    "step": "everything in step {step}",
}

_NOTE = """\
Source: Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025.
Worker: one stage of one replica, with all its mp ranks. Usual: the lower median of all workers and \
micro-batches in a step, forward and backward separately. For stages: the mean over stages, since \
other stages have to do the work that a slow stage gives away.
Step Time: replayed step time if the workers, stage or link of the row were as fast as usual; mean over steps.
Saved: the replayed step time minus Step Time.
Share: Saved, relative to the row "everything"; of a stage, relative to the row "stages balanced".
Each as it usually is: every worker as fast as in its own typical pass of the run. Saved is then the cost of \
variation between micro-batches: chance, or sequences of different length.
S: step time relative to the row "everything". For a single step, Saved is of that step.
Alone: step time if only this worker, stage, link or kind is slower than usual, relative to the row "everything" \
(S_w for workers, S_t for kinds; a stage relative to "stages balanced").
M_W: share of the 3% of workers that are slowest alone (at least one). Near 100%: these workers cause the delay.
M_S: share of the last stage. Near 100%: {stage_cause}.
"""

_STAGE_TOO_LARGE = "its part of the model is too large"
_STAGE_OR_WORKER = (
    "its part of the model is too large, or its machines are slow (ranks {ranks}); without another "
    "replica of the stage the replay cannot separate the two"
)
_SLOW_WORKER = (
    "its part of the model is too large. Here slow workers in it explain the delay at least as well "
    "(ranks {ranks}: M_W): look at them first"
)


def render_what_if(table: pl.DataFrame, options: TableOptions | None = None) -> str:
    """Return the table of `ppprof.analysis.ranks.what_if.what_if` as text; "" if it has no rows.

    Args:
        table: the table.
        options: time unit and row limit; None for the defaults.
    """
    if table.is_empty():
        return ""
    options = options or TableOptions()
    rows = table.rows(named=True)
    replayed = next(row for row in rows if row["fixed"] == "nothing")
    ideal = next(row for row in rows if row["fixed"] == "all")
    slowest = next(row for row in rows if row["fixed"] == "slowest")
    stages = sorted((row for row in rows if row["fixed"] == "stage"), key=lambda row: row["stage"])
    last = stages[-1] if stages else None
    of_last_stage = last["share"] if last else None
    preamble = (
        f"S {ideal['slowdown']:.2f}, M_W {_percent(slowest['share'])}, "
        f"M_S {_percent(of_last_stage)}",
        f"The replay differs from the recording by {_percent(replayed['error_ratio'])}, mean over steps",
    )
    shown, hidden = options.limited(rows, "rows")
    lines = [
        (
            _NAMES[row["fixed"]].format(**row),
            row["ranks"] or "-",
            options.time(row["step_ns"]),
            "-" if row["slowdown"] is None else options.time(_saved_ns(row)),
            _percent(row["share"]),
            "-" if row["alone_slowdown"] is None else f"{row['alone_slowdown']:.3f}",
        )
        for row in shown
    ]
    columns = (
        Column("If as fast as usual", 24),
        Column("Ranks", 16, grows=True),
        Column("Step Time", 12),
        Column("Saved", 12),
        Column("Share", 8),
        Column("Alone", 8),
    )
    title = "What-if Summary"
    note = _NOTE.format(stage_cause=_stage_cause(last, slowest))
    return options.layout.table(
        Table(title, columns, [*lines, *hidden], options.time_unit, preamble, note=note)
    )


def _stage_cause(last: Mapping[str, Any] | None, slowest: Mapping[str, Any]) -> str:
    """Return what a large share of the last stage means, given the slowest workers.

    Args:
        last: the row of the last stage; None with a single stage.
        slowest: the row of the slowest workers.
    """
    if last is None or last["share"] is None or slowest["share"] is None:
        return _STAGE_TOO_LARGE
    in_stage, slow = (set((row["ranks"] or "").split(",")) for row in (last, slowest))
    if in_stage <= slow:
        return _STAGE_OR_WORKER.format(**last)
    if slow < in_stage and slowest["share"] >= last["share"]:
        return _SLOW_WORKER.format(**slowest)
    return _STAGE_TOO_LARGE


def _saved_ns(row: Mapping[str, Any]) -> float:
    saved_ns: float = row["step_ns"] * (row["slowdown"] - 1)
    return saved_ns


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"
