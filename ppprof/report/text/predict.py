"""Predicted steps of configurations, as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from ppprof.analysis.predict.prediction import Row
from ppprof.report.columns import Column
from ppprof.report.text.summary import TableOptions

_NOTE = """\
Likely: the step with the recorded times of its parts; - if it is not known. Least, Most: the range of the
parts that are not known, widened by Error (predicted against measured, of the recorded configuration) and the
95% interval of the recorded steps, by 7% at least; - for Most: without a bound. Bubble: idle time of an average stage in the
pipeline. Memory: modelled, of the rank with most. Basis: of the least certain part."""

_STEPS = (
    Column("configuration", header="Configuration", width=24, grows=True),
    Column("ranks", "number", text="text", header="Ranks"),
    Column("measured_ns", "ms", header="Measured"),
    Column("step_ns", "ms", header="Likely"),
    Column("low_ns", "ms", header="Least"),
    Column("high_ns", "ms", header="Most"),
    Column("error_ratio", "ratio", header="Error", text="per mille"),
    Column("bubble_ratio", "ratio", header="Bubble", text="per mille"),
    Column("exposed_ns", "ms", header="Exposed"),
    Column("memory_bytes", "bytes", header="Memory"),
    Column("basis", header="Basis"),
)
_TITLES: Mapping[str, tuple[str, Sequence[Column]]] = {
    "steps": ("Step", _STEPS),
    "search": (
        "Best Configurations",
        tuple(each for each in _STEPS if each.header not in ("Measured", "Error")),
    ),
    "history": ("Configurations of Paddle's Auto-Tuner", _STEPS),
    "parts": (
        "Parts",
        (
            Column("part", header="Part", width=24, grows=True),
            Column("likely_ns", "ms", header="Likely"),
            Column("low_ns", "ms", header="Least"),
            Column("high_ns", "ms", header="Most"),
            Column("basis", header="Basis"),
        ),
    ),
    "memory": (
        "Memory of a Rank (modelled)",
        (
            Column("stage", "number", text="text", header="Stage"),
            Column("state_bytes", "bytes", header="Weights, Gradients, Moments"),
            Column("activation_bytes", "bytes", header="Activations, Temporary"),
            Column("total_bytes", "bytes", header="Peak"),
            Column("moment", header="When"),
        ),
    ),
}


def render_predictions(tables: Mapping[str, Sequence[Row]], options: TableOptions) -> str:
    """Return the tables of `ppprof.run.predict` as text."""
    parts = []
    for name, rows in tables.items():
        title, columns = _TITLES[name]
        unit = None if name == "memory" else options.time_unit
        note = "" if name in ("parts", "memory") else _NOTE
        if name == "history":
            note = f"{_errors(rows)}\n{note}"
        if rows:
            table = options.table(title, columns, rows, unit=unit, note=note)
            parts.append(options.layout.table(table))
    return "".join(parts)


def _errors(rows: Sequence[Row]) -> str:
    """Return how far the predictions of rows are from the measured steps, as a sentence."""
    errors = [abs(row["error_ratio"]) for row in rows if row["error_ratio"] is not None]
    measured = [row for row in rows if row["measured_ns"] is not None]
    num_in = sum(
        row["low_ns"] <= row["measured_ns"] <= (row["high_ns"] or math.inf) for row in measured
    )
    text = f"Between Least and Most: {num_in} of {len(measured)} measured steps."
    if not errors:
        return text
    return f"Error: {statistics.median(errors):.1%} (median), {max(errors):.1%} (most). {text}"
