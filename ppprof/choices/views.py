"""Choose tables: the names of the views of a run, and of those of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from ppprof.errors import UsageError

VIEWS = ("device", "overview", "model", "dist", "op", "kernel", "memcpy", "udf", "mem")
"""Paddle's nine summary tables, in printing order."""

ALL_VIEWS = (*VIEWS, "shape", "layer", "efficiency")
"""`VIEWS`, and the views that Paddle does not have."""

ACROSS = ("model", "dist", "op", "kernel", "memcpy", "udf")
"""The views whose rows are names that ranks share, in the order of `VIEWS`."""

WAYS = ("rank", "name")
"""The ways to join the tables of several ranks: one row per name and rank, or one row per name. See
`ppprof.analysis.summaries.across_ranks`."""

DIFF_VIEWS = ("overview", "rank", "op", "kernel", "dist", "runtime", "shape", "module")
"""The tables of a comparison, in the order in which they are shown."""


def check_across(views: Sequence[str], by: str) -> None:
    """Reject views that cannot be compared across ranks.

    Raises:
        UsageError: one of ``views`` is not in `ACROSS`, or ``by`` is not in `WAYS`.
    """
    if by not in WAYS:
        raise UsageError(f"by {by!r}: expected {' or '.join(WAYS)}")
    others = [view for view in views if view not in ACROSS]
    if others:
        raise UsageError(
            f"{', '.join(map(repr, others))}: expected some of {', '.join(ACROSS)}, "
            "whose rows are names that ranks share"
        )
