"""One span for several spans of a phase that follow each other in a step, for VisualDL.

VisualDL's chart of steps keeps only the last span of a phase in each step, such as the Forward of a
loss that is a Layer of its own, while its totals add all of them up. A span around them makes both
right::

    step       ############################
    Forward      FFFFFFFF FF                    as recorded: the chart shows 2 of 10
    Backward                 BBBBBB
    folded       FFFFFFFFFFF                    in the file, around the two; no reader of ours keeps it
"""

from __future__ import annotations

import polars as pl

PHASES = ("Dataloader", "Forward", "Backward", "Optimization")

_MOST_GAP_RATIO = 0.05
"""Most time between two spans, as a share of their own time. A folded span contains that time."""


def fold_phases(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return the folded spans of all steps.

    Spans are folded if they are directly in one step, no span of another phase lies between them,
    and little time passes between them.

    Args:
        hosts: host events, with event, the row of each.

    Returns:
        One row per folded span: the columns of ``hosts`` from the first span in it, with the dur_ns
        up to the end of the last, and num_spans (2 or more).
    """
    runs = _runs(hosts)
    several = runs.filter(pl.col("num_spans") > 1)
    return (
        hosts.join(several, left_on="event", right_on="first", how="inner", maintain_order="left")
        .with_columns(dur_ns=pl.col("until_ns") - pl.col("start_ns"))
        .drop("until_ns", "parent_step", "phase_right", strict=False)
    )


def _runs(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each run of spans of one phase: first, phase, parent_step, until_ns, num_spans."""
    steps = hosts.filter(pl.col("category") == "ProfileStep").select(parent="event")
    spans = (
        hosts.filter(pl.col("category").is_in(PHASES))
        .join(steps, on="parent", how="semi")
        .select("event", "parent", "start_ns", "dur_ns", phase=pl.col("category").cast(pl.String))
        .sort("parent", "start_ns", maintain_order=True)
    )
    end_ns = pl.col("start_ns") + pl.col("dur_ns")
    gap_ns = pl.col("start_ns") - end_ns.shift(1)
    own_ns = pl.col("dur_ns") + pl.col("dur_ns").shift(1)
    begins = (
        (pl.col("parent") != pl.col("parent").shift(1))
        | (pl.col("phase") != pl.col("phase").shift(1))
        | (gap_ns > _MOST_GAP_RATIO * own_ns)
    )
    run = begins.fill_null(value=True).cum_sum().alias("run")
    return (
        spans.with_columns(run, end_ns=end_ns)
        .group_by("run", maintain_order=True)
        .agg(
            first=pl.col("event").first(),
            phase=pl.col("phase").first(),
            parent_step=pl.col("parent").first(),
            until_ns=pl.col("end_ns").max(),
            num_spans=pl.len(),
        )
        .drop("run")
    )
