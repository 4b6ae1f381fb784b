"""What a run's stragglers cost, as text."""

from __future__ import annotations

import polars as pl

from ppprof.report.text.summary import TableOptions
from ppprof.report.text.table import Column, Table

_NAMES = {
    "recorded": "as recorded",
    "nothing": "as replayed",
    "all": "everything",
    "steady": "each as it usually is",
    "slowest": "slowest workers",
    "stage": "stage {stage}",
    "worker": "worker of stage {stage}",
    "link": "link",
}

_NOTE = """\
Source: Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025.
Worker: one stage of one replica, its mp ranks together. Usual: the lower median of all workers and \
micro-batches in a step, forwards and backwards apart.
Step Time: of the replay, with what the row names as fast as usual; mean over steps.
Saved: the replayed step time minus that.
Share: Saved, of what would be saved with everything as fast as usual.
Each as it usually is: every worker as fast as it is itself in a typical pass of the run. What \
this saves is what varies from one micro-batch to the next: chance, or sequences of different length.
S: how many times as long the step takes as with everything as fast as usual.
Alone: how many times as long the step takes if only this is not as fast as usual (of workers, S_w).
M_W: share of the 3% of the workers that are slowest alone (one at least). Near 100%: they are what is wrong.
M_S: share of the last stage. Near 100%: its part of the model is too large.
"""


def render_what_if(table: pl.DataFrame, layout: TableOptions | None = None) -> str:
    """What `ppprof.analysis.ranks.what_if.what_if` gave, as text; empty where it has no rows."""
    if table.is_empty():
        return ""
    layout = layout or TableOptions()
    rows = table.rows(named=True)
    replayed = next(row for row in rows if row["fixed"] == "nothing")
    ideal = next(row for row in rows if row["fixed"] == "all")
    slowest = next(row for row in rows if row["fixed"] == "slowest")
    last = table.filter(fixed="stage").sort("stage")["share"].to_list()[-1:]
    preamble = (
        f"S {ideal['slowdown']:.2f}, M_W {_percent(slowest['share'])}, "
        f"M_S {_percent(last[0] if last else None)}",
        f"The replay differs from what was recorded by {_percent(replayed['error_ratio'])}, "
        "step by step",
    )
    shown, hidden = layout.limited(rows, "rows")
    lines = [
        (
            _NAMES[row["fixed"]].format(**row),
            row["ranks"] or "-",
            layout.time(row["step_ns"]),
            "-" if row["slowdown"] is None else layout.time(replayed["step_ns"] - row["step_ns"]),
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
    return str(
        Table(
            "What-if Summary",
            columns,
            [*lines, *hidden],
            layout.time_unit,
            preamble=preamble,
            note=_NOTE,
        )
    )


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"
