"""The rules about lines of the user's code: beside the training, and in threads beside its own."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import Fact, Finding

LEAST_BESIDE = 0.05
"""Share of a step. Less time of one line is not worth a change."""
FEW_SAMPLES = 4
"""With fewer samples, the time of a line may be chance."""
_DISTURBED = 3
SURE_SAMPLES = 30
"""From this number on, the share of a line is known to some 10 points."""


def beside_training(evidence: Evidence) -> list[Finding]:
    """Report lines of the user's code that take time beside the training, one finding for each.

    Only in traces without device events: with them, such time costs what the device idles, which
    `ppprof.analysis.advice.launches.host_bound` reports.
    """
    lines = lines_beside(evidence)
    if evidence.indicator_means["idle_ns"].count() or lines.is_empty():
        return []
    findings: list[Finding] = []
    reads = dict(evidence.names("read", "calls").select("name", "calls").iter_rows())
    for row in lines.iter_rows(named=True):
        if row["time_ns"] < LEAST_BESIDE * evidence.step_ns:
            continue
        facts: dict[str, Fact] = {
            "num_reads": reads.get(row["name"]),
            "line": row["name"],
            "beside_ns": row["time_ns"],
            "samples": row["samples"],
        }
        confidence = "likely" if row["samples"] >= SURE_SAMPLES else "possible"
        findings += evidence.time_finding(
            "beside-training", row["time_ns"], confidence, facts, lines
        )
    return findings


def lines_beside(evidence: Evidence) -> pl.DataFrame:
    """Return the lines beside the training with at least `FEW_SAMPLES`: name, samples and time_ns.

    If other processes disturb the job, with several times as many: a thread that has no processor
    keeps the interpreter's lock, so that its time may count for the line in which it gives it away.
    """
    least = FEW_SAMPLES * (_DISTURBED if evidence.is_disturbed else 1)
    num = sum(own.steps.height for own in evidence.typical_indicators.values())
    lines = evidence.names("beside").select(
        "name", samples=(pl.col("calls") * num).round().cast(pl.Int64), time_ns="time_ns"
    )
    return lines.filter(pl.col("samples") >= least)


def interpreter_lock(evidence: Evidence) -> list[Finding]:
    """Report Python of another thread that keeps the thread of the steps from running.

    Only in traces without device events: with them, a thread may stand still to wait for the device.
    """
    lines = evidence.names("lock")
    if lines.is_empty() or evidence.indicator_means["idle_ns"].count():
        return []
    facts: dict[str, Fact] = {"line": lines["name"][0]}
    cost_ns = float(lines["time_ns"].to_numpy().sum())
    facts["held_ns"] = cost_ns
    of_readers_ns = float(evidence.names("reader")["time_ns"].to_numpy().sum())
    facts["remedy"] = "code-loading" if of_readers_ns > cost_ns / 2 else "code"
    return evidence.time_finding("interpreter-lock", cost_ns, "likely", facts, lines)
