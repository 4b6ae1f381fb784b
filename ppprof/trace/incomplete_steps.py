"""Steps that were recorded in part: the training ended, or failed, before ``step()`` ended them.

Paddle writes an event when it ends, under the name that it got when it began. So capture ends the
span of such a step with a marker inside, and the reader renames the span::

    as captured   ProfileStep#20 ........................ | marker
    as read       incomplete step (PythonUserDefined) ... | marker

Neither VisualDL nor any of our tables then takes it for a step.
"""

from __future__ import annotations

import polars as pl

from ppprof.rundir import INCOMPLETE_MARKER

INCOMPLETE_STEP = "incomplete step"
"""Name of the span of a step that ``step()`` did not end."""


def rename_incomplete_steps(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return host events with the ProfileSteps that hold a marker renamed.

    Args:
        hosts: reads name, category, start_ns and end_ns; name and category are categorical.
    """
    is_marker = (pl.col("name") == INCOMPLETE_MARKER) & (pl.col("category") == "UserDefined")
    marked_ns = hosts.filter(is_marker)["start_ns"].to_list()
    if not marked_ns:
        return hosts
    holds_marker = pl.any_horizontal(
        pl.lit(time_ns).is_between("start_ns", "end_ns") for time_ns in marked_ns
    )
    is_incomplete = (pl.col("category") == "ProfileStep") & holds_marker
    changes = {"name": INCOMPLETE_STEP, "category": "PythonUserDefined"}
    return hosts.with_columns(
        pl.when(is_incomplete)
        .then(pl.lit(value))
        .otherwise(pl.col(column).cast(pl.String))
        .cast(pl.Categorical())
        .alias(column)
        for column, value in changes.items()
    )


def incomplete_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Return start_ns and end_ns of each incomplete step, sorted; no rows without one.

    Args:
        events: columns of `ppprof.trace.schema.EVENTS`.
    """
    if not (events["name"] == INCOMPLETE_STEP).any():  # takes a tenth of the query
        return pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64})
    is_incomplete = (pl.col("category") == "PythonUserDefined") & pl.col("step").is_null()
    spans = events.select("name", "category", "step", "start_ns", "dur_ns")
    return (
        spans.filter(pl.col("name") == INCOMPLETE_STEP)  # rare, so the rest costs nothing
        .filter(is_incomplete)
        .select("start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
        .sort("start_ns")
    )


def incomplete_time_ns(events: pl.DataFrame) -> int:
    """Return the time in incomplete steps; 0 if no step of the trace is complete.

    Args:
        events: columns of `ppprof.trace.schema.EVENTS`.
    """
    if events["step"].null_count() == events.height:
        return 0
    return int(incomplete_steps(events).select(pl.col("end_ns") - pl.col("start_ns")).sum().item())
