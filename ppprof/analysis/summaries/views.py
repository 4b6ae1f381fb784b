"""Summaries of a window as tables: Paddle's nine, and those that Paddle does not have.

Rows, values and order of the nine equal those of ``paddle.profiler.Profiler.summary()`` (paddle 3.3,
profiler_statistic.py) for the same events. `ppprof.report.text.summary` prints them in Paddle's
layout. Times are int64 nanoseconds, averages float64, ratios float64 (1.0 is the whole).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from ppprof.analysis.efficiency.efficiency import EFFICIENCY, LAYERS, efficiency, layers
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import PYTHON, python_lines
from ppprof.analysis.summaries.copies import DEVICE_COPIES, device_copies
from ppprof.analysis.summaries.operators import (
    KERNELS,
    MEMORY,
    OPERATORS,
    SHAPES,
    SPANS,
    USER_SPANS,
    kernels,
    memory,
    memory_manipulation,
    operator_shapes,
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
from ppprof.choices import ALL_VIEWS
from ppprof.errors import UsageError

TABLES: Mapping[str, tuple[Callable[[Profile], pl.DataFrame], Mapping[str, pl.DataType]]] = {
    "device": (device, DEVICE),
    "overview": (overview, OVERVIEW),
    "model": (model, MODEL),
    "dist": (distributed, DISTRIBUTED),
    "op": (operators, OPERATORS),
    "kernel": (kernels, KERNELS),
    "memcpy": (memory_manipulation, SPANS),
    "udf": (user_defined, USER_SPANS),
    "mem": (memory, MEMORY),
    "copies": (device_copies, DEVICE_COPIES),
    "shape": (operator_shapes, SHAPES),
    "layer": (layers, LAYERS),
    "efficiency": (efficiency, EFFICIENCY),
    "python": (python_lines, PYTHON),
}
"""The function that computes each view of `ALL_VIEWS`, which documents the columns, and their dtypes."""


def schema_of(view: str, *, thread_sep: bool = False) -> Mapping[str, pl.DataType]:
    """Return the columns and dtypes of one view, as `summarize` returns them.

    >>> list(schema_of("udf", thread_sep=True))[:3]
    ['thread', 'name', 'calls']

    Args:
        view: one of `ALL_VIEWS`.
        thread_sep: whether user-defined spans are listed thread by thread: ``udf`` then has thread
            as its first column. ``op`` has the column thread in any case.
    """
    _, schema = TABLES[view]
    return {"thread": pl.Int64(), **schema} if thread_sep and view == "udf" else schema


def summarize(profile: Profile, view: str) -> pl.DataFrame:
    """Return one view of one trace; the table has no rows if the trace has no events for the view.

    Times and ratios of a GPU are null if the trace lacks the events of its device
    (`ppprof.trace.unrecorded_device`); 0, as in Paddle, if the training ran on a CPU.

    Raises:
        UsageError: ``view`` is not one of `ALL_VIEWS`.
    """
    if view not in ALL_VIEWS:
        raise UsageError(f"view {view!r}: expected one of {', '.join(ALL_VIEWS)}")
    compute, _ = TABLES[view]
    table = compute(profile)
    if profile.unrecorded_device:
        table = table.with_columns(
            pl.lit(None, dtype).alias(name)
            for name, dtype in table.schema.items()
            if name.startswith("gpu_")
        )
    return table
