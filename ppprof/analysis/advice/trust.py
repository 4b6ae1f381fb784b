"""Rules about the reliability of the other numbers. Their findings cost no time."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import Fact, Finding
from ppprof.analysis.advice.launches import idle_costs
from ppprof.analysis.profile.step_basis import LEAST_STEPS
from ppprof.analysis.profile.steps import UNMARKED
from ppprof.analysis.profile.wholeness import FEW

WARM_UP_RATIO = 1.5
"""Limit of a first step's time over the median of the other steps. Compiling, autotuning and
growing memory pools make a first step several times as long; noise rarely does."""

LEAST_OTHERS = 2
"""Number of steps after the first step that are needed to know the usual time."""

OVERHEAD_MAJOR, OVERHEAD_MODERATE, OVERHEAD_MINOR = 0.50, 0.25, 0.10
"""Limits of the severities: the share that recording adds to a step. Some 10% is usual with memory
events (Paddle on CPU); the parts of a step, as shares of it, are then right within 10%. Above 50%,
many short operators look too expensive."""

MOST_OF_OPERATOR_NS, MOST_OF_STEP_NS = 100_000, 1_000_000
"""Most time that recording adds to an operator, and to a step: 1 to 30 us for an operator were measured, of Paddle 3.3.1 on
two cores, in trainings of 90 to 1,600 operators a step. Steps that take longer do other work."""
UNLIKE_MODERATE, UNLIKE_MAJOR = 1.25, 1.5
"""How many times as long other steps are."""
NUM_LATER = 10
"""Steps of the window that is proposed."""

LEAST_OUTLIVED = 0.05
"""Share of a step for which kernels run after the host has ended it. Below it, times that are cut at
the host's steps are right within 5%."""

DISTURBED_MODERATE = 0.50
"""Share of the processors' time that other processes took from which a disturbance is moderate."""
DISTURBED_MAJOR = 1 / 3
"""Share of a step for which its thread then waits for a processor, from which it is major: a step takes half as
long again as without (`OVERHEAD_MAJOR`)."""

FEW_STEPS = 3
"""With fewer steps, no straggler can be found (`ppprof.analysis.ranks.stragglers`)."""

_WITHOUT_EVENTS = {
    "npu": "npu",
    "intel_hpu": "intel_hpu",
    "custom_cpu": "custom_cpu",
    "gcu": "gcu",
    "supa": "other",
    "mps": "other",
}
"""Type of a device, in lower case, whose plugin adds no device events to a window, whatever is
configured -> its proposal. Source: runtime/ of each backend of PaddleCustomDevice: npu, intel_hpu and
custom_cpu have profiler hooks that add none, gcu, biren_gpu (supa) and mps have no hooks."""


def warm_ups(evidence: Evidence) -> pl.DataFrame:
    """Return the windows whose first step is much longer than their other steps.

    The first step must take at least `WARM_UP_RATIO` times the median of the others, and longer
    than each of them. Garbage collections do not count: Python may collect in any step.

    Returns:
        window, step (the first), first_ns, typical_ns and mean_ratio, the largest ratio first; and
        held_ns, the time in which a rank may have waited for the profiler to open another rank's window.
    """
    stalls = evidence.step_times.group_by("step").agg(
        held_ns=pl.col("stall_ns").max() - pl.col("stall_ns").min()
    )
    collections = [
        own.names.filter(what="collection")
        .group_by("step")
        .agg(collected_ns=pl.col("time_ns").sum())
        for own in evidence.indicators.values()
    ]
    collected = pl.concat(collections).group_by("step").agg(pl.col("collected_ns").max())
    first = pl.col("step_ns").first()
    others = pl.col("step_ns").slice(1)
    own_ns = pl.col("first_ns") - pl.col("collected_ns").fill_null(0)
    windows = evidence.step_lengths.group_by("window", maintain_order=True).agg(
        pl.col("step").first(),
        first_ns=first,
        typical_ns=others.median(),
        longest_ns=others.max(),
        mean_ratio=pl.col("step_ns").mean() / others.mean() - 1,
        num_others=pl.len() - 1,
    )
    return (
        windows.join(collected, "step", "left", maintain_order="left")
        .filter(
            (pl.col("num_others") >= LEAST_OTHERS)
            & (own_ns >= WARM_UP_RATIO * pl.col("typical_ns"))
            & (pl.col("first_ns") > pl.col("longest_ns"))
        )
        .sort("mean_ratio", descending=True)
        .join(stalls, "step", "left", maintain_order="left")
        .select(
            "window",
            "step",
            "first_ns",
            "typical_ns",
            "mean_ratio",
            pl.col("held_ns").fill_null(0),
        )
    )


def warm_up(evidence: Evidence) -> list[Finding]:
    """Report `warm_ups`, always as minor: costs leave such a step out, so it is the cause of none.

    A first step that is long because the profiler opened another rank's window is no warm-up.
    """
    if evidence.steps.is_empty():
        return []
    own_ns = pl.col("first_ns") - pl.col("held_ns")
    odd = warm_ups(evidence).filter(own_ns >= WARM_UP_RATIO * pl.col("typical_ns")).drop("held_ns")
    if odd.is_empty():
        return []
    row = odd.row(0, named=True)
    facts = {
        "step": row["step"],
        "first_ns": row["first_ns"],
        "typical_ns": row["typical_ns"],
        "mean_ratio": row["mean_ratio"],
        "next_step": row["step"] + 1,
        "scheduler": evidence.text("Profiler.scheduler"),
        "remedy": evidence.remedy("Profiler"),
    }
    return evidence.warning("warm-up", "minor", facts, odd)


def unlike_steps(evidence: Evidence) -> list[Finding]:
    """Report that steps outside windows are so much longer, or so much shorter, that they do other work than recorded ones.

    Recording makes no step shorter, and longer by `MOST_OF_OPERATOR_NS` for each operator at most. Not where other
    processes disturb the job: these may do it; nor where most of the difference is waits for data: a window holds the training
    up when it opens, and a loader reads ahead meanwhile.
    """
    if evidence.recording is None or evidence.is_disturbed:
        return []
    change, _ = evidence.recording
    own_ns = pl.col("batch_cost_ns") - pl.col("reader_cost_ns").fill_null(0)
    times = evidence.sound_times.group_by("step").agg(
        pl.col("window", "batch_cost_ns").max(), own_ns=own_ns.max()
    )
    outside, inside = (
        times.filter(pl.col("window").is_null() == is_null) for is_null in (True, False)
    )
    (outside_ns, outside_own_ns), (inside_ns, inside_own_ns) = (
        [float(np.median(each[name].to_numpy())) for name in ("batch_cost_ns", "own_ns")]
        for each in (outside, inside)
    )
    num, most_ns = evidence.usual("num_operators"), _most_of_recording_ns(evidence)
    if change.low is None or change.high is None or not outside_ns or not inside_ns or not num:
        return []
    is_longer = change.low > 0 and inside_ns - outside_ns > most_ns
    is_shorter = change.high < 0 and outside_ns - inside_ns > MOST_OF_STEP_NS
    times_longer = max(inside_ns, outside_ns) / min(inside_ns, outside_ns)
    if not (is_longer or is_shorter) or times_longer < UNLIKE_MODERATE:
        return []
    is_of_data = (inside_own_ns - outside_own_ns) / (inside_ns - outside_ns) < 1 / 2
    if is_of_data:
        return []
    steps = outside["step"].unique().sort().to_numpy()
    longest = max(np.split(steps, np.flatnonzero(np.diff(steps) > 1) + 1), key=len)
    later = int(longest[max(0, len(longest) - NUM_LATER) // 2])
    facts: dict[str, Fact] = {
        "inside_ns": inside_ns,
        "outside_ns": outside_ns,
        "num_operators": round(num),
        "most_ns": most_ns,
        "later": later,
        "later_end": min(later + NUM_LATER, int(longest[-1]) + 1),
        "wording": "longer" if is_longer else None,
        "remedy": evidence.remedy("Profiler"),
    }
    rows = pl.DataFrame(
        {
            "steps": ["outside", "inside"],
            "num_steps": [outside.height, inside.height],
            "median_step_ns": [outside_ns, inside_ns],
        }
    )
    severity = "major" if times_longer >= UNLIKE_MAJOR else "moderate"
    return evidence.warning("unlike-steps", severity, facts, rows, confidence="likely")


def _most_of_recording_ns(evidence: Evidence) -> float:
    """Return the most time that recording adds to a step; infinite if its operators are unknown."""
    num = evidence.usual("num_operators")
    return MOST_OF_STEP_NS + num * MOST_OF_OPERATOR_NS if num else math.inf


def profiler_overhead(evidence: Evidence) -> list[Finding]:
    """Report the time that recording takes: as events of the profiler, and as longer steps."""
    return [*_profiler_events(evidence), *_longer_steps(evidence)]


def _profiler_events(evidence: Evidence) -> list[Finding]:
    """Report time in which the devices are idle while the profiler itself works."""
    cost_ns = idle_costs(evidence).get("profiler-overhead", 0.0)
    events = evidence.names("overhead")
    facts: dict[str, Fact] = {
        **{name: None for name in _OVERHEAD if name != "step_ns"},
        "idle_ns": cost_ns,
        "event": events["name"][0] if events.height else None,
        "wording": "events",
        "remedy": "events",
    }
    return evidence.time_finding("profiler-overhead", cost_ns, "sure", facts, events)


_OVERHEAD = (
    *("overhead_ratio", "low_ratio", "high_ratio", "inside_ns", "outside_ns"),
    *("profile_memory", "idle_ns", "event", "step_ns"),
)
"""The facts of profiler-overhead."""


def _longer_steps(evidence: Evidence) -> list[Finding]:
    """Report that steps in windows take clearly longer than steps outside: by `OVERHEAD_MINOR`, and not by chance.

    That recording is the cause is only possible where it explains less (`MOST_OF_OPERATOR_NS`): the machine may be slower then.
    """
    if evidence.recording is None:
        return []
    change, rows = evidence.recording
    if change.ratio is None or change.low is None or change.low <= 0:
        return []
    if change.ratio < OVERHEAD_MINOR or unlike_steps(evidence):
        return []
    severity = (
        "major"
        if change.ratio >= OVERHEAD_MAJOR
        else "moderate"
        if change.ratio >= OVERHEAD_MODERATE
        else "minor"
    )
    outside_ns, inside_ns = rows["mean_step_ns"]
    facts = {
        **dict.fromkeys(_OVERHEAD),
        "overhead_ratio": change.ratio,
        "low_ratio": change.low,
        "high_ratio": change.high,
        "inside_ns": inside_ns,
        "outside_ns": outside_ns,
        "profile_memory": None if evidence.setting("Profiler.profile_memory") is False else "True",
        "remedy": evidence.remedy("Profiler"),
    }
    is_explained = inside_ns - outside_ns <= _most_of_recording_ns(evidence)
    confidence = "sure" if is_explained else "possible"
    return evidence.warning("profiler-overhead", severity, facts, rows, confidence)


UNFINISHED = "unfinished"
"""Wording of `short_window` if the training failed in the first step that was recorded."""


def short_window(evidence: Evidence) -> list[Finding]:
    """Report that too few steps were recorded to separate a difference from chance."""
    num = evidence.step_lengths.height
    if evidence.steps.is_empty() or num >= LEAST_STEPS:
        return []
    facts: dict[str, Fact] = {
        "num_steps": num,
        "least_steps": LEAST_STEPS,
        "scheduler": evidence.text("Profiler.scheduler"),
        "remedy": evidence.remedy("Profiler"),
    }
    if UNMARKED in evidence.doubts and num == 1:
        kind = UNFINISHED if evidence.is_unfinished else UNMARKED
        facts |= {"wording": kind, "remedy": kind}
    severity = "moderate" if num < FEW_STEPS else "minor"
    return evidence.warning("short-window", severity, facts, evidence.step_lengths)


def busy_machine(evidence: Evidence) -> list[Finding]:
    """Report that other processes take the processors that the job needs."""
    load = evidence.load
    if load is None or not load.is_disturbed:
        return []
    severity = "moderate" if load.others_ratio >= DISTURBED_MODERATE else "minor"
    if severity == "moderate" and (load.wait_ratio or 0.0) >= DISTURBED_MAJOR:
        severity = "major"
    rows = pl.DataFrame([load], schema=list(load._fields), orient="row")
    return evidence.warning("busy-machine", severity, load._asdict(), rows)


def runs_ahead(evidence: Evidence) -> list[Finding]:
    """Note that kernels end after the host has ended the step that launched them, as they should."""
    outlived_ns = evidence.usual("outlived_ns")
    if not evidence.step_ns or outlived_ns < LEAST_OUTLIVED * evidence.step_ns:
        return []
    ratio = outlived_ns / evidence.step_ns
    facts: dict[str, Fact] = {
        "outlived_ns": outlived_ns,
        "step_ns": evidence.step_ns,
        "outlived_ratio": ratio,
    }
    ranks = evidence.indicator_means.select("rank", "outlived_ns")
    rows = ranks.sort("outlived_ns", "rank", descending=[True, False])
    return evidence.warning("runs-ahead", "note", facts, rows)


def no_device_events(evidence: Evidence) -> list[Finding]:
    """Report ranks whose traces lack the events of their device, so that no part of a step is known.

    The mean step is the one that was measured beside the trace; null without such a measurement. The
    proposal depends on the type of the device: settings of ppprof do not help if its plugin adds no
    events.
    """
    if evidence.steps.is_empty():
        return []
    rows = (
        evidence.steps.filter(pl.col("rest_ns").is_null())
        .group_by("rank")
        .agg(num_steps=pl.len().cast(pl.Int64), mean_step_ns=pl.col("step_ns").mean())
        .sort("rank")
    )
    if rows.is_empty():
        return []
    kinds = {evidence.unrecorded_kind(rank) for rank in rows["rank"]}
    kind = kinds.pop() if len(kinds) == 1 else ""
    remedy = evidence.remedy("Profiler")
    targets = evidence.text("Profiler.targets")
    facts: dict[str, Fact] = {"num_ranks": rows.height, "device": kind, "remedy": remedy}
    facts["targets"] = None if targets == "auto" else targets
    proposal = _WITHOUT_EVENTS.get(kind.lower())
    if proposal is not None:
        facts["remedy"] = f"{remedy}-{proposal}"
    if FEW in evidence.doubts:
        facts["wording"] = "lost"
        facts["remedy"] = "lost"
    return evidence.warning("no-device-events", "major", facts, rows)
