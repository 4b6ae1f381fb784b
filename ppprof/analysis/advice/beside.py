"""The rules about lines of the user's code: beside the training, and in threads beside its own."""

from __future__ import annotations

import dataclasses

import polars as pl

from ppprof.analysis.advice.evidence import Evidence, mean_of, without_slow
from ppprof.analysis.advice.finding import Fact, Finding
from ppprof.analysis.advice.own_lines import LEAST_BESIDE
from ppprof.analysis.profile.step_basis import NOT_RECORDED
from ppprof.trace import GARBAGE_COLLECTION

FEW_SAMPLES = 4
"""With fewer samples, the time of a line may be chance."""
_DISTURBED = 3
_MOST_FUNCTIONS = 2
LONGER_TURNS = 25
"""How many times as long a thread may keep Python's lock outside windows: 5 ms, and 0.2 ms in them
(`ppprof.capture.recording.python_stacks`)."""
SURE_SAMPLES = 30
"""From this number on, the share of a line is known to some 10 points."""


def beside_training(evidence: Evidence) -> list[Finding]:
    """Report statements of the training that take time beside it, one finding for each.

    A finding names the line with most of its statement's time. Only in traces without device events:
    with them, such time costs what the device idles, which `ppprof.analysis.advice.launches.host_bound`
    reports.
    """
    lines = lines_beside(evidence)
    if evidence.indicator_means["idle_ns"].count():
        return []
    findings: list[Finding] = []
    reads, compiling = evidence.names("read", "calls"), evidence.names("compiling")
    # Of a line that several statements call, it is unknown how many reads are whose.
    shared = lines.filter(lines["name"].is_duplicated())
    for (statement,), own in lines.group_by("statement", maintain_order=True):
        time_ns, samples = float(own["time_ns"].sum()), int(own["samples"].sum())
        if time_ns < LEAST_BESIDE * evidence.step_ns:
            continue
        line = own["name"][0]
        of_lines = reads.join(own, "name", "semi")
        is_known = of_lines.join(shared, "name", "semi").is_empty()
        is_whole = line == statement  # the line with all that it calls, the other lines among it
        is_alone = own.height == 1 or is_whole
        is_shared = line in shared["name"] or (is_whole and own.height > 1)
        facts: dict[str, Fact] = {
            "num_reads": _sum_or_none(of_lines["calls"]) if is_known else None,
            "line": line,
            "line_ns": None if is_alone else own["time_ns"][0],
            "statement": None if is_alone else str(statement),
            "caller": str(statement)
            if own.height == 1 and line in shared["name"] and not is_whole
            else None,
            "beside_ns": time_ns,
            "samples": samples,
            **_functions(evidence, line, own["time_ns"][0], is_shared=is_shared),
        }
        compiled_ns = float(compiling.join(own, "name", "semi")["time_ns"].sum())
        if compiled_ns > time_ns / 2:
            facts["remedy"] = "code-compile"
        confidence = "likely" if samples >= SURE_SAMPLES else "possible"
        findings += evidence.time_finding(
            "beside-training", time_ns, confidence, facts, own.drop("statement")
        )
    return findings


def _functions(
    evidence: Evidence, line: str, line_ns: float, *, is_shared: bool
) -> dict[str, Fact]:
    """Return as facts the functions that most of a line's time is in; None if it is in the line's own, or shared."""
    functions = evidence.names("beside in function", subject=line)
    if is_shared or functions["time_ns"].sum() < line_ns / 2:
        functions = functions.clear()
    facts: dict[str, Fact] = {}
    for number in range(1, _MOST_FUNCTIONS + 1):
        row = functions.slice(number - 1, 1)
        facts[f"function_{number}"] = next(iter(row["name"]), None)
        facts[f"function_{number}_ns"] = next(iter(row["time_ns"]), None)
    return facts


def without_gradients(evidence: Evidence) -> list[Finding]:
    """Report statements whose layers compute without gradients ahead of a Backward, one finding for each.

    Whether the training needs the result is unknown: a finding is no more than minor. As
    `beside_training`, without device events only.
    """
    if evidence.indicator_means["idle_ns"].count():
        return []
    findings: list[Finding] = []
    samples = (pl.col("calls") * evidence.num_steps).round().cast(pl.Int64)
    lines = evidence.names("without gradients").select("name", "time_ns", samples=samples)
    lines = lines.filter(pl.col("samples") >= _least_samples(evidence))
    for line, time_ns, samples in lines.select("name", "time_ns", "samples").iter_rows():
        if time_ns >= LEAST_BESIDE * evidence.step_ns:
            functions = evidence.names("without gradients in function", subject=line)
            largest = functions.filter(pl.col("time_ns") >= time_ns / 2)
            function = largest["name"][0] if largest.height else None
            facts = {"line": line, "function": function, "without_ns": time_ns, "samples": samples}
            rows = lines.filter(pl.col("name") == line)
            found = evidence.time_finding("without-gradients", time_ns, "possible", facts, rows)
            findings += [dataclasses.replace(each, severity="minor") for each in found]
    return findings


def lines_beside(evidence: Evidence) -> pl.DataFrame:
    """Return the lines beside the training: statement, name, samples, time_ns; of statements with `FEW_SAMPLES` at least.

    The largest first. If other processes disturb the job, with several times as many samples: a thread
    that has no processor keeps the interpreter's lock, so that its time may count for the line in which it
    gives it away.
    """
    lines = evidence.named(evidence.typical_indicators, "beside by statement")
    found = lines.group_by("name", statement="subject").agg(
        samples=pl.col("calls").sum(), time_ns=pl.col("time_ns").sum() / evidence.num_steps
    )
    found = found.filter(pl.col("samples").sum().over("statement") >= _least_samples(evidence))
    found = found.sort("time_ns", "name", "statement", descending=[True, False, False])
    return found.select("statement", "name", "samples", "time_ns")


def _least_samples(evidence: Evidence) -> int:
    return FEW_SAMPLES * (_DISTURBED if evidence.is_disturbed else 1)


def _sum_or_none(numbers: pl.Series) -> float | None:
    return float(numbers.sum()) if len(numbers) else None


def garbage_collection(evidence: Evidence) -> list[Finding]:
    """Report Python's full garbage collections.

    Only in traces without device events: with them, such time costs what the device idles.
    """
    lines = evidence.names("collection")
    if lines.is_empty() or evidence.indicator_means["idle_ns"].count():
        return []
    time_ns, calls = (float(lines[name].sum()) for name in ("time_ns", "calls"))
    is_of_line = lines["time_ns"][0] >= time_ns / 2 and lines["name"][0] != GARBAGE_COLLECTION
    facts: dict[str, Fact] = {
        "collected_ns": time_ns,
        "num_collections": calls,
        "line": lines["name"][0] if is_of_line else None,
    }
    return evidence.time_finding("garbage-collection", time_ns, "sure", facts, lines)


def interpreter_lock(evidence: Evidence) -> list[Finding]:
    """Report Python of another thread that keeps the thread of the steps from running, in windows and outside.

    Only in traces without device events: with them, a thread may stand still to wait for the device.
    """
    lines = evidence.names("lock")
    if lines.is_empty() or evidence.indicator_means["idle_ns"].count():
        return []
    cost_ns = float(lines["time_ns"].to_numpy().sum())
    of_readers_ns = float(evidence.names("reader")["time_ns"].to_numpy().sum())
    remedy = "code-loading" if of_readers_ns > cost_ns / 2 else "code"
    gain = _gain_of_turns(evidence, cost_ns)
    gain_ns = gain and gain[0]
    step = gain and (gain[1], NOT_RECORDED)
    cost_ns += gain_ns or 0.0
    facts: dict[str, Fact] = {
        **{"line": lines["name"][0], "held_ns": cost_ns, "gain_ns": gain_ns, "remedy": remedy}
    }
    return evidence.time_finding("interpreter-lock", cost_ns, "likely", facts, lines, step)


def _gain_of_turns(evidence: Evidence, cost_ns: float) -> tuple[float, float] | None:
    """Return how much longer typical steps outside windows take, and these steps, if steps surely do.

    Those ahead of the windows and those behind them, as steps may become shorter in a training; at most
    `LONGER_TURNS` times the cost in windows.
    """
    if evidence.is_disturbed or evidence.recording is None:
        return None
    recorded = evidence.step_times.drop_nulls("window")["step"]
    outside, step = evidence.unrecorded, pl.col("step")
    sides = [outside.filter(step < recorded.min()), outside.filter(step > recorded.max())]
    high = evidence.recording[0].high
    typical = (mean_of(without_slow(side), "step_ns") for side in sides if side.height)
    typical_ns = min(typical, default=0.0)
    if high is None or high > -LEAST_BESIDE or typical_ns < evidence.step_ns:
        return None
    return min(typical_ns - evidence.step_ns, LONGER_TURNS * cost_ns), typical_ns
