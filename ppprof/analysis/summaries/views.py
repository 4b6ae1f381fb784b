"""The nine summaries of Paddle's profiler, as tables.

Rows, values and order equal those of ``paddle.profiler.Profiler.summary()`` (paddle 3.3,
profiler_statistic.py) for the same events; `ppprof.report.text.summary` prints them in Paddle's layout.
Every time is int64 nanoseconds, every ratio a float64 (1.0 is all of it), every average float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.memory import MEMORY, memory
from ppprof.analysis.summaries.operators import (
    KERNELS,
    OPERATORS,
    SPANS,
    kernels,
    memory_manipulation,
    operators,
    user_defined,
)
from ppprof.analysis.summaries.overview import (
    DEVICE,
    DISTRIBUTED,
    MODEL,
    OVERVIEW,
    device,
    distributed,
    model,
    overview,
)
from ppprof.errors import UsageError

VIEWS: Mapping[str, Callable[[Profile], pl.DataFrame]] = {
    "device": device,
    "overview": overview,
    "model": model,
    "dist": distributed,
    "op": operators,
    "kernel": kernels,
    "memcpy": memory_manipulation,
    "udf": user_defined,
    "mem": memory,
}
"""The views by the names that the config's ``summary`` block gives them, in Paddle's order."""

SCHEMAS: Mapping[str, Mapping[str, pl.DataType]] = {
    "device": DEVICE,
    "overview": OVERVIEW,
    "model": MODEL,
    "dist": DISTRIBUTED,
    "op": OPERATORS,
    "kernel": KERNELS,
    "memcpy": SPANS,
    "udf": SPANS,
    "mem": MEMORY,
}
"""Columns and dtypes of each view; the functions in `VIEWS` document what each column holds."""


def schema_of(view: str, *, thread_sep: bool = False) -> Mapping[str, pl.DataType]:
    """Return the columns and dtypes of one view, as `summarize` returns them.

    >>> list(schema_of("udf", thread_sep=True))[:3]
    ['thread', 'name', 'calls']

    Args:
        view: one of `VIEWS`.
        thread_sep: as in `ppprof.analysis.profile.profile.SummaryOptions`. ``udf`` then has a first
            column thread; ``op`` always has it.
    """
    schema = SCHEMAS[view]
    return {"thread": pl.Int64(), **schema} if thread_sep and view == "udf" else schema


def summarize(profile: Profile, view: str) -> pl.DataFrame:
    """One view of one trace; no rows where the trace has nothing for it.

    Raises:
        UsageError: there is no such view.
    """
    if view not in VIEWS:
        raise UsageError(f"view {view!r}: expected one of {', '.join(VIEWS)}")
    return VIEWS[view](profile)
