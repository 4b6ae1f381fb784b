"""Rules about the host's time: devices that wait for it, the optimizer's launches, unexplained gaps.

Idle time of the devices counts for one rule only. Idle time after a blocking copy, in the optimizer
or between two tiny kernels is the cost of the rule for it; all other idle time is host-bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl

from ppprof.analysis.advice.beside import lines_beside
from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import LEAST_RATIO, Fact, Finding
from ppprof.analysis.advice.indicators import TINY_NS
from ppprof.analysis.advice.small_operators import LEAST_SMALL

LEAST_UPDATES = 16
"""Least number of parameter updates per step; with fewer, there is nothing to fuse."""

FUSED_UPDATES = 2
"""Number of updates per step of a fused optimizer: one for the parameters with weight decay, one
for the parameters without."""


_UPDATE = "Optimization Step"
"""Paddle's name of the event around an optimizer's step."""

LEAST_UNEXPLAINED = 0.05
"""Share of a step. Less time in one place is not worth a search."""
_FEW_SAMPLES = 3
"""Fewer samples say nothing about the lines of unexplained time."""
_MOST_LINES = 50
"""Longest stretch of lines that is named."""


def idle_costs(evidence: Evidence) -> Mapping[str, float]:
    """Return the time per step in which devices wait for the host, in nanoseconds, keyed by rule.

    A cost below `LEAST_RATIO` of a step counts as ``host-bound``, and its rule is missing.
    """
    parts = {
        "profiler-overhead": evidence.usual("idle_of_profiler_ns"),
        "allocation": evidence.usual("idle_in_calls_ns"),
        "blocking-copies": evidence.usual("idle_after_copies_ns"),
        "optimizer-unfused": _fusible(evidence, "idle_in_optimizer_ns"),
        "tiny-kernels": evidence.usual("idle_between_tiny_ns"),
        "remote-wait": evidence.usual("remote_ns"),
    }
    reported = {rule: ns for rule, ns in parts.items() if ns >= LEAST_RATIO * evidence.step_ns}
    return {**reported, "host-bound": evidence.usual("idle_ns") - sum(reported.values())}


def host_bound(evidence: Evidence) -> list[Finding]:
    """Report devices that are idle while the host does not wait: it does not launch fast enough."""
    cost_ns = idle_costs(evidence)["host-bound"]
    other_idle_ns = evidence.usual("idle_ns") - cost_ns
    ranks = evidence.indicator_means.select("rank", "idle_ns", "num_kernels")
    facts: dict[str, Fact] = {
        "idle_ns": evidence.usual("idle_ns"),
        "other_idle_ns": other_idle_ns if other_idle_ns >= 1 else None,
        "num_kernels": evidence.usual("num_kernels"),
        **_largest_gap(evidence),
        "remedy": evidence.remedy("Global"),
    }
    if facts["gap"] is not None:
        facts["remedy"] = f"{facts['remedy']}-gap"
    largest_first = ranks.sort("idle_ns", "rank", descending=[True, False])
    return evidence.time_finding("host-bound", cost_ns, "likely", facts, largest_first)


def tiny_kernels(evidence: Evidence) -> list[Finding]:
    """Report kernels that end before the next is launched; the cost is the idle time between."""
    cost_ns = idle_costs(evidence).get("tiny-kernels", 0.0)
    num, tiny = evidence.usual("num_kernels"), evidence.usual("num_tiny_kernels")
    facts = {
        "num_kernels": num,
        "num_tiny_kernels": tiny,
        "tiny_ratio": tiny / num if num else None,
        "tiny_ns": TINY_NS,
        "idle_ns": cost_ns,
        "fuse_attn_qkv": None if evidence.setting("Model.fuse_attn_qkv") else "False",
        "remedy": evidence.remedy("Global", "Model"),
    }
    return evidence.time_finding(
        "tiny-kernels", cost_ns, "likely", facts, evidence.names("kernel", "calls")
    )


def blocking_copies(evidence: Evidence) -> list[Finding]:
    """Report copies and other work that the host waits for.

    The cost is the devices' idle time afterwards, since the host launches nothing ahead while it waits,
    and the time of copies to memory of the host that is not pinned, as far as no kernel runs: reads.
    """
    idle_ns = idle_costs(evidence).get("blocking-copies", 0.0)
    reads_ns = evidence.usual("exposed_reads_ns")
    cost_ns = idle_ns + reads_ns
    copies = evidence.names("copy", "calls")
    facts = {
        "num_copies": evidence.usual("num_blocking_copies"),
        "copies_ns": evidence.usual("blocking_copies_ns"),
        "idle_ns": idle_ns,
        "reads_ns": reads_ns or None,
        "caller": copies["name"][0] if copies.height else None,
        "line": evidence.first_name("read"),
        "logging_freq": evidence.number("Engine.logging_freq"),
        "remedy": evidence.remedy("Engine"),
    }
    return evidence.time_finding("blocking-copies", cost_ns, "likely", facts, copies)


def allocation(evidence: Evidence) -> list[Finding]:
    """Report idle devices while the host allocates or frees their memory, or loads kernels."""
    cost_ns = idle_costs(evidence).get("allocation", 0.0)
    calls = evidence.names("call")
    facts: dict[str, Fact] = {
        "idle_ns": cost_ns,
        "num_calls": float(calls["calls"].sum()),
        "call": calls["name"][0] if calls.height else None,
    }
    return evidence.time_finding("allocation", cost_ns, "likely", facts, calls)


def pageable_copies(evidence: Evidence) -> list[Finding]:
    """Report copies to the device from memory that is not pinned; the cost is their time without a kernel."""
    cost_ns = evidence.usual("exposed_pageable_ns")
    copies = evidence.names("pageable")
    facts: dict[str, Fact] = {
        "num_copies": evidence.usual("num_pageable_copies"),
        "copies_ns": evidence.usual("pageable_copies_ns"),
        "exposed_ns": cost_ns,
        "copy": copies["name"][0] if copies.height else None,
    }
    return evidence.time_finding("pageable-copies", cost_ns, "likely", facts, copies)


def optimizer_unfused(evidence: Evidence) -> list[Finding]:
    """Report an optimizer with a separate update for each parameter.

    The cost is the time from the first to the last update without computation: with device events,
    the idle time of the devices; without, the time outside kernels. The share that `FUSED_UPDATES`
    updates still take is subtracted. Clipping is not an update.

        optimizer   norm norm norm  u##_u##_u##_      # kernels; the rest of the updates is saved
    """
    cost_ns = idle_costs(evidence).get("optimizer-unfused") or _fusible(
        evidence, "optimizer_overhead_ns"
    )
    facts = {
        "num_updates": evidence.usual("num_updates"),
        "optimizer_ns": evidence.usual("optimizer_ns"),
        "overhead_ns": cost_ns,
        "use_multi_tensor": str(evidence.setting("Optimizer.use_multi_tensor") or False),
        "line": evidence.first_name("update"),
        **_optimizer(evidence),
    }
    return evidence.time_finding(
        "optimizer-unfused", cost_ns, "likely", facts, evidence.names("optimizer")
    )


_OPTIMIZERS = (
    "Adam",
    "AdamW",
    "SGD",
    "Momentum",
    "Lamb",
    "Adagrad",
    "RMSProp",
    "Adadelta",
    "Adamax",
    "NAdam",
    "RAdam",
    "Rprop",
    "ASGD",
)


def _optimizer(evidence: Evidence) -> dict[str, Fact]:
    """Return the class of the optimizer, from its operators, and what to change, as facts.

    Source of the remedies: the signatures in paddle/optimizer of 2.6 and 3.3: ``use_multi_tensor`` is a
    parameter of Adam and Momentum.
    """
    operators = evidence.names("optimizer", "calls")["name"].str.to_lowercase()
    name = next(
        (
            name
            for operator in operators
            for name in _OPTIMIZERS
            if re.match(rf"(merged_|fused_)?{name.lower()}(_|\b)", operator)
        ),
        None,
    )
    facts: dict[str, Fact] = {"name": name, "version": evidence.paddle_version}
    if evidence.remedy("Optimizer") == "config":
        return {**facts, "remedy": "config"}
    kinds = {"Adam": "", "Momentum": "", "SGD": "-sgd", "AdamW": "-adamw"}
    return {**facts, "remedy": f"code{kinds.get(name or '', '-other')}"}


def _fusible(evidence: Evidence, column: str) -> float:
    updates = evidence.usual("num_updates")
    if updates < LEAST_UPDATES:
        return 0.0
    return evidence.usual(column) * (1 - FUSED_UPDATES / updates)


def _largest_gap(evidence: Evidence) -> dict[str, Fact]:
    """Return the place with the most unexplained host time, as facts: gap, and gap_ns a step.

    Each is null if there is no such place.
    """
    gaps = evidence.names("gap")
    if gaps.is_empty():
        return {"gap": None, "gap_ns": None}
    return {"gap": gaps["name"][0], "gap_ns": gaps["time_ns"][0]}


def unexplained(evidence: Evidence) -> list[Finding]:
    """Report one place with much host time that no event explains, in a trace without device events.

    With device events, such time is idle time of the device, and `host_bound` names the place. With
    enough samples of Python stacks, `ppprof.analysis.advice.beside` names the lines and their times.
    """
    if evidence.indicator_means["idle_ns"].count() or lines_beside(evidence).height:
        return []
    facts = _largest_gap(evidence)
    gap_ns = facts["gap_ns"]
    if not isinstance(gap_ns, float) or gap_ns < LEAST_UNEXPLAINED * evidence.step_ns:
        return []
    facts["lines"] = _lines_with_most(evidence)
    return evidence.time_finding("unexplained", gap_ns, "possible", facts, evidence.names("gap"))


def _lines_with_most(evidence: Evidence) -> str | None:
    """Return the first and last line of the function with most of the few samples beside the training; None without one.

    A longer stretch than `_MOST_LINES` may be two functions of one name.
    """
    number, function = r"^.+?:([0-9]+)", r"^.+?:[0-9]+(?:, ([^:]+\(\)))?(?::|$)"
    lines = evidence.names("beside")
    functions = (
        lines.group_by(
            file=pl.col("name").str.extract(r"^(.+?):[0-9]+"),
            function=pl.col("name").str.extract(function),
        )
        .agg(
            pl.col("calls", "time_ns").sum(),
            first=pl.col("name").str.extract(number).cast(pl.Int64).min(),
            last=pl.col("name").str.extract(number).cast(pl.Int64).max(),
        )
        .filter(
            (pl.col("time_ns") > lines["time_ns"].sum() / 2)
            & (pl.col("calls") * evidence.num_steps >= _FEW_SAMPLES)
            & (pl.col("last") - pl.col("first") <= _MOST_LINES)
        )
        .drop_nulls("file")
    )
    if functions.is_empty():
        return None
    file, first, last = functions.select("file", "first", "last").row(0)
    return f"{file}:{first}" + (f" to {last}" if last > first else "")


def many_small_operators(evidence: Evidence) -> list[Finding]:
    """Report the layer that spends most time on small operators, in a trace without device events.

    How much of its time one operator for all would save is unknown: the cost is the maximum.
    """
    layers = evidence.names("small")
    if evidence.indicator_means["idle_ns"].count() or layers.is_empty():
        return []
    first = layers.row(0, named=True)
    if first["time_ns"] < LEAST_SMALL * evidence.step_ns:
        return []
    facts: dict[str, Fact] = {
        "layer": first["name"],
        "layer_ns": first["time_ns"],
        "num_operators": first["calls"],
        "remedy": "code-optimizer" if first["name"].startswith(_UPDATE) else "code",
    }
    return evidence.time_finding(
        "many-small-operators", first["time_ns"], "possible", facts, layers
    )
