"""Rules about the work of operators: slow products, rows that nothing uses, penalties, copies of views, fusible operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

from ppprof.analysis.advice.discarded_rows import LOSSES
from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import MAJOR_RATIO, Fact, Finding
from ppprof.analysis.advice.padding import GROUPED
from ppprof.analysis.advice.penalties import L2, NORM
from ppprof.analysis.efficiency.written_out import SLOW_ON_HOST

REACHABLE = 0.7
"""Share of the vendor's peak that large, aligned products reach on current devices."""

ALIGNED = 8
"""Tensor cores read 16 bytes at once: 8 elements of bf16 or fp16.

Source: NVIDIA, Matrix Multiplication Background User's Guide, section 4.1."""

_BLOCKS = (128, 64, ALIGNED)
"""Multiples to propose, the largest first that adds at most 1%: kernels compute such blocks."""

THIN = 64
"""A side of a product that is shorter leaves a part of each block empty."""

MANY = 16
"""Calls per step from which small products are worth a batch."""


LEAST_WIDE = 0.05
"""Share of a step from which operators on the vocabulary are reported."""
LEAST_STRIDED = LEAST_CASTS = 0.05
"""Share of a step from which copies of views are reported: each attention has some."""


class _Problem(NamedTuple):
    reason: str
    dim: int | None = None
    proposed: int | None = None


def slow_products(evidence: Evidence) -> list[Finding]:
    """Report matrix products whose shape or dtype keeps them below the device's peak.

    One finding per reason: ``unaligned`` (a side is no multiple of `ALIGNED`), ``float32`` (on a
    device that is twice as fast in bf16 or fp16), ``small`` (no kernel is as short as its least
    time, and there are many), ``thin`` (a side is shorter than `THIN`). The cost is the time above
    that at `REACHABLE` of the peak.
    """
    table = _products(evidence)
    by_reason: dict[str, list[tuple[_Problem, Mapping[str, Any], float]]] = {}
    for row in table.rows(named=True):
        problem = _problem_of(row)
        if problem is not None:
            least_ns = row["half_ns"] if problem.reason == "float32" else row["least_ns"]
            cost_ns = row["time_ns"] - least_ns / REACHABLE
            by_reason.setdefault(problem.reason, []).append((problem, row, cost_ns))
    findings = []
    for rows in by_reason.values():
        rows.sort(key=lambda each: -each[2])
        problem, first, _ = rows[0]
        facts: dict[str, Fact] = {
            name: first[name] for name in ("name", "shapes", "dtype", "time_ns", "roof_ratio")
        }
        facts.update(
            calls=first["calls"],
            dim=problem.dim,
            proposed_dim=problem.proposed,
            remedy=_remedy(evidence, problem),
            wording=problem.reason,
        )
        table = pl.DataFrame([row for _, row, _ in rows]).select(
            *("name", "shapes", "dtype", "calls", "time_ns", "roof_ratio")
        )
        cost_ns = sum(cost for *_, cost in rows)
        findings += evidence.time_finding("slow-product", cost_ns, "possible", facts, table)
    return findings


def _products(evidence: Evidence) -> pl.DataFrame:
    """Return the products with a known roof, per step of an average rank."""
    parts = [own.products for own in evidence.typical_indicators.values()]
    if not parts:
        return pl.DataFrame()
    key = ["name", "shapes", "dtype", "m", "n", "k", "bound"]
    sums = pl.col("calls", "time_ns", "least_ns", "half_ns").sum() / evidence.num_steps
    table = pl.concat(parts).drop_nulls("least_ns").group_by(key).agg(sums)
    table = table.with_columns(roof_ratio=pl.col("least_ns") / pl.col("time_ns"))
    table = table.filter(pl.col("roof_ratio") <= 1)  # above, the device's peak is not the known one
    discarded = evidence.names("discarded")["name"].implode()  # which has its own finding
    table = table.filter(~pl.format("{} {}", "name", "shapes").is_in(discarded))
    return table.sort("time_ns", *key, descending=[True, *[False] * len(key)], nulls_last=True)


def _problem_of(row: Mapping[str, Any]) -> _Problem | None:
    """Return what keeps a product below the peak; None if it is close, or if nothing shows."""
    m, n, k = (row[side] for side in "mnk")
    time_ns, least_ns, half_ns = (row[f"{name}_ns"] for name in ("time", "least", "half"))
    is_far = least_ns < REACHABLE * time_ns
    unaligned = [side for side in (n, k, m) if side % ALIGNED and side > ALIGNED]
    if row["dtype"] == "float32" and half_ns is not None and 0 < 2 * half_ns <= least_ns:
        return _Problem("float32")  # without tensor cores, whose blocks need aligned sides
    if is_far and unaligned:
        return _Problem("unaligned", unaligned[0], _aligned(unaligned[0]))
    if is_far and row["bound"] == "launch":
        return _Problem("small") if row["calls"] >= MANY else None
    if is_far and min(m, n, k) < THIN:
        return _Problem("thin", min(m, n, k))
    return None


def _aligned(side: int) -> int:
    """Return a slightly longer side that is a multiple of one of `_BLOCKS`.

    >>> _aligned(50257), _aligned(1001)
    (50304, 1008)
    """
    longer = [-(-side // block) * block for block in _BLOCKS]
    return next((size for size in longer if size <= 1.01 * side), longer[-1])


def _remedy(evidence: Evidence, problem: _Problem) -> str:
    """Return the key of the proposal."""
    if problem.reason == "unaligned":
        vocabulary = evidence.number("Model.vocab_size")
        is_vocabulary = vocabulary is not None and problem.dim is not None
        if is_vocabulary and problem.dim in (
            vocabulary,
            vocabulary // evidence.degree("mp"),  # type: ignore[operator]
        ):
            return "config-vocabulary"
        return "unaligned"
    if problem.reason == "thin" and evidence.degree("mp") > 1:
        return "thin-mp" if evidence.remedy("Distributed") == "config" else "thin"
    if problem.reason == "float32" and evidence.remedy("Engine") == "config":
        return "config-float32"
    return problem.reason


def wide_vocabulary(evidence: Evidence) -> list[Finding]:
    """Report operators that pass over the whole vocabulary, such as the loss.

    The cost is half of their time: twice as many ranks would share the vocabulary, or logits of half
    the bytes would be read.
    """
    operators = evidence.names("vocabulary")
    time_ns = float(operators["time_ns"].sum())
    if operators.is_empty() or time_ns < LEAST_WIDE * evidence.step_ns:
        return []
    mp, ranks = evidence.degree("mp"), evidence.topology.world_size if evidence.topology else 1
    facts: dict[str, Fact] = {
        "name": operators["name"][0],
        "name_ns": operators["time_ns"][0],
        "vocabulary_ns": time_ns,
        "mp_degree": mp if mp < ranks else None,
        "ranks": ranks,
        "remedy": evidence.remedy("Distributed"),
    }
    return evidence.time_finding("wide-vocabulary", time_ns / 2, "possible", facts, operators)


def unused_rows(evidence: Evidence) -> list[Finding]:
    """Report operators on all rows of an embedding's table, of which a step uses few.

    The cost is the part of their time that belongs to the other rows. A rank updates the rows that it
    looks up, and those of all ranks whose gradients are added to its own. Paddle's sharding refuses the
    sparse gradients that are proposed.
    """
    more_ranks = evidence.degree("dp") * evidence.degree("sep") - 1
    used_ns = pl.col("used_ns").fill_null(0)
    operators = (
        evidence.names("table")
        .join(evidence.names("used").select("name", used_ns="time_ns"), "name", "left")
        .with_columns(pl.col("time_ns") - more_ranks * used_ns)
        .filter(pl.col("time_ns") > 0)
        .sort("time_ns", "name", descending=[True, False])
        .drop("used_ns")
    )
    if operators.is_empty() or evidence.degree("sharding") > 1:
        return []
    is_one_hot = any(name.startswith("one_hot") for name in operators["name"])
    is_sparse = operators["name"][0] in evidence.names("table", subject="sparse")["name"]
    saved_ns = float(operators["time_ns"].sum())
    facts: dict[str, Fact] = {
        "name": operators["name"][0],
        "name_ns": operators["time_ns"][0],
        "line": evidence.first_name("lookup"),
        "remedy": "code-lazy" if is_sparse else "code-one-hot" if is_one_hot else "code",
    }
    return evidence.time_finding("unused-rows", saved_ns, "possible", facts, operators)


def discarded_rows(evidence: Evidence) -> list[Finding]:
    """Report products with rows that the next operator leaves out; the cost is the time of these rows.

    The product is the one with the most time in such rows; the cost is that of all.
    """
    products = evidence.names("discarded by")
    if products.is_empty():
        return []
    name = products["name"][0]
    rows, kept = (
        float(evidence.names(f"discarded {kind}").filter(name=name)["calls"].sum())
        for kind in ("rows", "kept")
    )
    facts: dict[str, Fact] = {
        "name": name,
        "line": evidence.first_name("discarded line", name),
        "taken_line": evidence.first_name("discarded taker", name),
        "rows": round(rows),
        "kept": max(1, round(kept)),
    }
    if evidence.first_name("discarded for", name) in LOSSES:
        facts |= {"wording": "labels", "remedy": f"{evidence.remedy()}-labels"}
    cost_ns = float(products["time_ns"].sum())
    operators = evidence.names("discarded")
    return evidence.time_finding("discarded-rows", cost_ns, "possible", facts, operators)


def padded_batches(evidence: Evidence) -> list[Finding]:
    """Report operators that compute for padding; the cost is what batches made in another way would save.

    Of two remedies for different batches, the one that saves more.
    """
    remedies = evidence.names("padded by")
    if remedies.is_empty():
        return []
    remedy = str(remedies["name"][0])
    line = evidence.first_name("padded line", remedy)
    if line is None:
        return []
    counts = [  # a row for each step of a rank that looks words up: of a pipeline, the ranks of one stage do
        evidence.named(evidence.typical_indicators, f"padded {kind}").filter(
            name=line, subject=remedy
        )["calls"]
        for kind in ("numbers", "words", "kept")
    ]
    numbers, words, kept = (round(float(each.to_numpy().mean())) for each in counts)
    facts: dict[str, Fact] = {
        "line": line,
        "numbers": numbers,
        "words": words,
        "kept": kept,
        "wording": remedy if remedy == GROUPED else None,
        "remedy": f"code-{remedy}" if remedy == GROUPED else "code",
    }
    operators = evidence.names("padded", subject=remedy)
    cost_ns = float(operators["time_ns"].sum())
    return evidence.time_finding("padded-batches", cost_ns, "possible", facts, operators)


def penalty_in_loss(evidence: Evidence) -> list[Finding]:
    """Report penalties on parameters in the loss; the cost is the time of their operators and gradients.

    An optimizer adds the gradients of squares and of absolute values in the update, and none of norms. Of
    several forms, only the one with the most time is reported: the optimizer takes one, and the others stay.
    """
    forms = evidence.names("penalty form")
    if forms.is_empty():
        return []
    form = str(forms["name"][0])
    operators = evidence.names("penalty", subject=form)
    is_of_some = form != NORM and form in evidence.names("penalty of some")["name"]
    remedy = "code" if form == L2 else f"code-{form}"
    facts: dict[str, Fact] = {
        "name": operators["name"][0],
        "name_ns": operators["time_ns"][0],
        "line": evidence.first_name("penalty line", form),
        "penalties": round(float(forms["calls"][0])),
        "remedy": f"{remedy}-some" if is_of_some else remedy,
    }
    confidence = "possible" if form == NORM else "likely"
    cost_ns = float(operators["time_ns"].sum())
    return evidence.time_finding("penalty-in-loss", cost_ns, confidence, facts, operators)


def wider_dtype(evidence: Evidence) -> list[Finding]:
    """Report operators in a wider dtype than the model's products; the cost is the share of its bytes.

    With half of the bytes to move, an operator takes half of its time at best.
    """
    parts = [own.wide for own in evidence.typical_indicators.values()]
    if not parts:
        return []
    rows = (
        pl.concat(parts)
        .group_by("name", "dtype", "usual")
        .agg(pl.col("calls", "time_ns", "saved_ns").sum() / evidence.num_steps)
        .sort("time_ns", "name", descending=[True, False])
    )
    if rows.is_empty():
        return []
    first = rows.row(0, named=True)
    facts: dict[str, Fact] = {
        "line": first["name"],
        "dtype": first["dtype"],
        "usual": first["usual"],
        "wide_ns": float(rows["time_ns"].sum()),
        "line_ns": first["time_ns"],
        "calls": first["calls"],
        "remedy": "code" if first["dtype"] == "float64" else "code-amp",
    }
    shown = rows.select("name", "dtype", "calls", "time_ns")
    saved_ns = float(rows["saved_ns"].sum())
    return evidence.time_finding("wider-dtype", saved_ns, "possible", facts, shown)


def strided_inputs(evidence: Evidence) -> list[Finding]:
    """Report copies of views, which operators make ahead of their kernels; the cost is their time.

    Each attention has some, often in a layer of the framework: on a device, a finding is no more than minor. On a
    host, the kernels that copy views are slow, and Paddle can do without views: it is moderate if it would be major.
    """
    copies = evidence.names("strided")
    cost_ns = float(copies["time_ns"].sum())
    if copies.is_empty() or cost_ns < LEAST_STRIDED * evidence.step_ns:
        return []
    is_on_host = not evidence.indicator_means["idle_ns"].count()
    can_do_without = is_on_host and evidence.framework != "torch"
    facts: dict[str, Fact] = {
        "name": copies["name"][0],
        "name_ns": copies["time_ns"][0],
        "copies_ns": cost_ns,
        "calls": float(copies["calls"].sum()),
        "line": evidence.first_name("strided line"),
        "remedy": "code-host" if can_do_without else "code",
    }
    found = evidence.time_finding("strided-inputs", cost_ns, "possible", facts, copies)
    is_large = can_do_without and cost_ns >= MAJOR_RATIO * evidence.step_ns
    return [
        dataclasses.replace(each, severity="moderate" if is_large else "minor") for each in found
    ]


def casts(evidence: Evidence) -> list[Finding]:
    """Report casts between dtypes; the cost is their time and that of their gradients."""
    rows = evidence.names("cast")
    cost_ns = float(rows["time_ns"].sum())
    if rows.is_empty() or cost_ns < LEAST_CASTS * evidence.step_ns:
        return []
    facts: dict[str, Fact] = {
        "name": rows["name"][0],
        "name_ns": rows["time_ns"][0],
        "casts_ns": cost_ns,
        "calls": float(rows.filter(~pl.col("name").str.starts_with("cast_grad"))["calls"].sum()),
        "line": evidence.first_name("cast line"),
        "remedy": evidence.remedy("Engine"),
    }
    return evidence.time_finding("casts", cost_ns, "possible", facts, rows)


LEAST_WRITTEN = 0.03
"""Share of a step. What is written out and saves less is not reported."""


def written_out(evidence: Evidence) -> list[Finding]:
    """Report operators of Paddle that the training writes out in several, such as a norm; the cost is what one saves."""
    rows = evidence.names("written")
    saved_ns = float(rows["time_ns"].sum())
    if rows.is_empty() or saved_ns < LEAST_WRITTEN * evidence.step_ns:
        return []
    parts = evidence.names("written parts").select("name", parts_ns="time_ns")
    rows = rows.join(parts, "name", "left", maintain_order="left").select(
        "name", "calls", time_ns="parts_ns", saved_ns="time_ns"
    )
    name = str(rows["name"][0])
    kind = name.partition(" ")[0]
    lines = evidence.names("written line", subject=kind)
    facts: dict[str, Fact] = {
        "name": name,
        "calls": rows["calls"][0],
        "parts_ns": float(rows["time_ns"].sum()),
        "saved_ns": saved_ns,
        "line": evidence.first_name("written line", kind),
        "line_ns": None if lines.is_empty() else float(lines["time_ns"][0]),
        "num_others": rows.height - 1 or None,
        "wording": "slow" if kind in SLOW_ON_HOST else None,
        "remedy": f"code-{kind.replace('_', '-')}",
    }
    return evidence.time_finding("written-out", saved_ns, "possible", facts, rows)


def fusible(evidence: Evidence) -> list[Finding]:
    """Report operators in a row that pass over the same elements, each from memory and back.

    The cost is the time of the bytes that one of them writes and the next reads.
    """
    chains = evidence.names("chain")
    cost_ns = float(chains["time_ns"].sum())
    facts: dict[str, Fact] = {
        "chain": chains["name"][0] if chains.height else None,
        "chain_saved_ns": chains["time_ns"][0] if chains.height else None,
        "remedy": "code",
    }
    return evidence.time_finding("fusible", cost_ns, "possible", facts, chains)
