"""Work that grows step after step: a metric over all batches so far, a history that each step reads anew."""

from __future__ import annotations

from itertools import chain

import numpy as np
import polars as pl

from ppprof.analysis.efficiency.operator_work import num_elements
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_calls import python_calls
from ppprof.analysis.profile.python_lines import call_lines
from ppprof.trace.labels import map_texts
from ppprof.trace.operator_inputs import shapes_by_input

GROWING = {
    **{"name": pl.String, "line": pl.String, "elements": pl.Float64, "more_elements": pl.Float64},
    **{"time_ns": pl.Float64, "more_ns": pl.Float64},
}
"""Columns of `growing_operators`."""
LEAST_GROWING = 6
"""Fewer steps may grow by chance."""
LATER_STEPS = 1000
"""How far the growth is continued: steps behind the window."""
LEAST_LATER = 0.1
"""Share of a step that work has to have grown by until then."""
_EVEN = 0.5
"""The smallest growth of a step, as a share of the largest: batches may differ."""
_MOST_GROWS = 0.5
"""Share of the time of the operators outside optimizers from which all of the step grows, as with longer and longer samples."""


def growing_operators(profile: Profile) -> pl.DataFrame:
    """Return the operators whose inputs have more elements in each step than in the one before, by as many.

    ::

        step                     |0          |1               |2                    |3
        concat(seen), train.py:9   [64]        [64] [64]         [64] [64] [64]        ...
        elements                   64          128               192                   256

    Returns:
        One row per operator and line, the fastest growing first: name (``one_hot, train.py:26``), line (null without
        call stacks), elements (of all inputs in the last step), more_elements (a step), time_ns (mean over steps, of
        the device if the trace has device events) and more_ns (a step: the lower one of the slope of the times and of what the
        elements say). No rows with fewer than `LEAST_GROWING` steps, without a Backward, without shapes, or if most of the work grows.
    """
    tree, events = profile.tree, profile.tree.events
    if not len(events.host_rows("Backward")):
        return pl.DataFrame(schema=GROWING)
    phases = tree.innermost(events.host_rows("Optimization", "Forward", "Backward"))
    # The calls of a closure in an Optimization count: their innermost phase is another one.
    is_update = np.isin(phases, events.host_rows("Optimization"))
    is_counted = tree.is_outermost_operator & ~is_update
    step = events.step[: events.num_hosts][is_counted]
    num_steps = len(np.unique(step[step >= 0]))
    if num_steps < LEAST_GROWING:
        return pl.DataFrame(schema=GROWING)
    calls = python_calls(profile)
    calls = calls.filter(pl.Series(is_counted)[calls["row"]]).drop_nulls("step")
    calls = calls.with_columns(elements=map_texts(calls["shapes"], _elements, pl.Int64))
    calls = calls.drop_nulls("elements")
    of_step = calls.group_by("name", "callstack", "step").agg(pl.col("elements", "time_ns").sum())
    rows = []
    for (name, stack), own in of_step.sort("step").group_by(
        "name", "callstack", maintain_order=True
    ):
        more = np.diff(own["elements"].to_numpy())
        if own.height < num_steps or more.min() <= 0 or more.min() < _EVEN * more.max():
            continue
        times, elements = (
            own[column].to_numpy().astype(float) for column in ("time_ns", "elements")
        )
        mean_ns, more_elements = float(times.mean()), float(more.mean())
        slope_ns = round(float(np.polyfit(np.arange(len(times)), times, 1)[0]))
        more_ns = min(slope_ns, mean_ns * more_elements / float(elements.mean()))
        rows.append((name, stack, elements[-1], more_elements, mean_ns, max(0.0, more_ns)))
    schema = {"name": pl.String, "callstack": pl.String, **dict(list(GROWING.items())[2:])}
    table = pl.DataFrame(rows, schema, orient="row")
    if table["time_ns"].sum() * num_steps >= _MOST_GROWS * float(calls["time_ns"].sum()):
        return pl.DataFrame(schema=GROWING)
    lines = call_lines(profile, table["callstack"])
    line = pl.col("callstack").replace_strict(lines, default=None, return_dtype=pl.String)
    table = table.with_columns(
        line=line, name=pl.concat_str("name", line, separator=", ", ignore_nulls=True)
    )
    return table.select(*GROWING).cast(GROWING).sort("more_ns", "name", descending=[True, False])  # type: ignore[arg-type]


def _elements(text: str) -> int | None:
    """Return the number of elements of all inputs in a text of the column ``shapes``."""
    inputs = shapes_by_input(text)
    return None if inputs is None else num_elements([*chain.from_iterable(inputs.values())])
