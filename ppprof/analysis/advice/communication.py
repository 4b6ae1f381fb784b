"""Rules about communication: what no computation hides, and ranks that wait at small collectives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from ppprof.analysis.advice.evidence import Evidence, mean_of
from ppprof.analysis.advice.finding import Fact, Finding, severity_of
from ppprof.analysis.profile.step_basis import RECORDED
from ppprof.analysis.ranks.rank_communication import DATA_PARALLEL

MANY_CALLS = 8
"""Collectives of one line a step from which one for all of them is worth the code."""

SMALL_BYTES = 256 << 10
"""Collectives of fewer bytes take about as long as those of few bytes.

All-reduces over gloo took 0.24 ms for 384 bytes and 0.27 ms for 36 KiB; broadcasts 0.09 ms for 4 bytes,
0.11 for 56 KiB, 0.36 for 448 KiB and 1.24 for 4 MiB (medians of two CPU jobs): 256 KiB add less than a call
takes by itself.
"""

SYNCHRONISING_BYTES = 1 << 10
"""Most bytes of a collective that may only wait: a loss, some metrics, a flag."""

LEAST_SYNCHRONISING = 0.03
"""Share of a step. Less that ranks win if they do not wait at small collectives is not reported."""

_ONE_RANK = 0.95
"""Share of the calls in which one rank comes last from which it always does."""

_EACH_STEP = 0.9
"""Least calls a step of a collective that comes in each step: a window may begin behind one."""

_ALL_REDUCE = re.compile("(?i)all_?reduce")
"""Collectives of which one over a buffer has the results of those over its parts."""

_GATHER = re.compile("(?i)all_?gather")

_MOST_UNMENDED = 3
"""A line without a remedy of its own is the first if no other line has this part of its time."""

_UNMENDED = ("dp", "dp-cpu", "own", "own-cpu", "values", "values-cpu", "overlap", "mp")
"""Remedies of communication that a job of several ranks cannot do without."""
_UNHIDDEN = ("dp-cpu", "own-cpu", "values-cpu")
"""Those of it that nothing hides."""

_LEAST_CALLED = 3
"""Least steps of a window with a call from which they may be called even."""

_HIDDEN = 0.02
"""Share of the time of a line's collectives that is hidden from which more of it may be."""

_AXES = ("dp", "mp", "sep", "sharding", "pp")


def exposed_communication(evidence: Evidence) -> list[Finding]:
    """Report communication that no computation hides, one finding per axis.

    The cost excludes the wait for late ranks and the excess of slow links. If the traces cannot
    separate the wait from the transfer, such as that of a single rank, the cost contains it, and the
    texts of the finding say so.
    """
    findings: list[Finding] = []
    for column in evidence.rank_means.columns:
        if column.startswith("exposed_"):
            findings += _exposed(evidence, column.removeprefix("exposed_").removesuffix("_ns"))
    return findings


def _exposed(evidence: Evidence, axis: str) -> list[Finding]:
    exposed, whole = f"exposed_{axis}_ns", f"communication_{axis}_ns"
    ranks = evidence.rank_means.filter(pl.col(whole) > 0).select("rank", exposed, whole)
    if ranks.is_empty() or evidence.typical is None:
        return []
    each_ns = mean_of(ranks, exposed)
    groups = evidence.typical.groups.filter(pl.col("axis") == axis)
    wording, transfer_ns = None, each_ns * _transfer_ratio(groups)
    is_pipeline = axis == "pp" and evidence.steps["rank"].n_unique() > 1
    if is_pipeline:
        # The wait for the other side is bubble, so transfers do not include it.
        wording, transfer_ns = "of-stages", each_ns
    elif groups.is_empty():
        wording, transfer_ns = "with-waiting", each_ns
    slow = evidence.typical.slow_groups.filter(pl.col("is_slow") & (pl.col("axis") == axis))
    slow_ns = float(slow["excess_ns"].max() or 0.0)  # type: ignore[arg-type]
    on_axis = {"ep": "experts"}.get(axis, axis)
    if on_axis not in _BLOCKS:
        on_axis = _kind_of(evidence.typical.arrivals, axis)
    rows = _lines_of_axis(evidence, axis, each_ns)
    facts: dict[str, Fact] = {
        "axis": axis,
        "line": evidence.first_name("communication line", axis),
        "exposed_ns": each_ns,
        "communication_ns": mean_of(ranks, whole),
        "transfer_ns": transfer_ns,
        "wait_ns": each_ns - transfer_ns,
        "wording": wording,
        "degree": evidence.degree(axis) if axis in _AXES else None,
        "remedy": f"{evidence.remedy(*_BLOCKS[on_axis])}-{on_axis}",
        "present": evidence.text(_KEYS[axis]) if axis in _KEYS else None,
        **dict.fromkeys(_OF_LINE),
        **_settings_of_sharding(evidence),
    }
    has_lines = groups.height == 1 or (on_axis == "dp" and not groups.is_empty())
    at_most = "major"
    if has_lines and not is_pipeline and rows.height:
        transfer_ns = float(rows["transfer_ns"].sum())
        facts |= {"transfer_ns": transfer_ns, "wait_ns": float(rows["wait_ns"].sum())}
        own, mended_ns = _of_first(evidence, rows, on_axis, str(facts["remedy"]))
        facts |= own
        at_most = severity_of(mended_ns / max(1.0, evidence.step_ns))
        shown = _shown(rows)
    elif groups.is_empty():
        shown = ranks.sort(exposed, "rank", descending=[True, False])
    else:
        num_steps = max(1, evidence.steps["step"].n_unique())
        calls = pl.col("calls") / num_steps
        shown = groups.select("members", "axis", calls, "wait_ns", "transfer_ns")
        shown = shown.drop("wait_ns") if is_pipeline else shown
    # How much of it can be hidden is unknown: this is the maximum.
    changes = [f"overlap {axis}"]
    return evidence.time_finding(
        *("exposed-communication", transfer_ns - slow_ns, "possible"),
        *(facts, shown),
        changes=changes,
        at_most=at_most,
    )


_OF_LINE = ("op", "line_ns", "num_calls", "call_bytes", "every", "num_reductions")
"""Facts of the first line; None without one."""


def _lines_of_axis(evidence: Evidence, axis: str, exposed_ns: float) -> pl.DataFrame:
    """Return the exposed communication over an axis by line and operation, the longest transfers first.

    Returns:
        line, op; inside, is_named and is_on_device of the calls with most of the time; calls (float64, a step of an average
        rank), mean_bytes (float64, of a call, null if unknown), most_bytes, every (int64: each so many steps
        have such calls; null for each step, or without an order), and wait_ns and transfer_ns (float64, a
        step, mean of the ranks), which add up to ``exposed_ns``.
    """
    calls = evidence.collective_calls.filter(pl.col("axis") == axis)
    typical = evidence.steps["step"].unique()
    every = _distances(calls, evidence.all_steps)
    calls = calls.filter(pl.col("step").is_in(typical.implode()))
    num = max(1, evidence.steps["rank"].n_unique()) * max(1, len(typical))
    weight = (pl.col("members").str.count_matches(r"[,>]") + 1) / num
    all_ns = pl.col("wait_ns") + pl.col("transfer_ns")
    took_ns = all_ns * pl.col("exposed_ratio")
    rows = (
        calls.sort(took_ns, descending=True, maintain_order=True)
        .group_by("line", "op", maintain_order=True)
        .agg(
            pl.col("inside", "is_named", "is_on_device").first(),
            hidden_ratio=1 - took_ns.sum() / pl.max_horizontal(all_ns.sum(), 1),
            calls=weight.sum(),
            most_bytes=pl.col("bytes").max(),
            mean_bytes=pl.col("bytes").mean(),
            wait_ns=(pl.col("wait_ns") * pl.col("exposed_ratio") * weight).sum(),
            transfer_ns=(pl.col("transfer_ns") * pl.col("exposed_ratio") * weight).sum(),
        )
    )
    rows = rows.with_columns(time_ns=pl.col("wait_ns") + pl.col("transfer_ns"))
    whole_ns = float(rows["time_ns"].sum())
    if whole_ns <= 0:
        return rows.clear()
    # Communication that not all ranks recorded, and that of two groups at once, is spread over all rows.
    scaled = pl.col("wait_ns", "transfer_ns", "time_ns") / whole_ns * exposed_ns
    every = every.drop("is_even")
    rows = rows.join(every, ["line", "op"], "left", nulls_equal=True).with_columns(scaled)
    by = ["transfer_ns", "time_ns", "line", "op"]
    return rows.sort(by, descending=[True, True, False, False])


def _distances(calls: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return line, op and every of calls: the distance of their steps, if the recorded steps between have none.

    ::

        window 0   c . . c . . c        3; but in windows of one step each, the schedule has made the distance

    No row for lines that call in each step, at several distances, or in fewer than `_LEAST_CALLED` steps of a window.
    """
    recorded = steps.select("window", "step").unique().sort("window", "step")
    recorded = recorded.with_columns(place=pl.int_range(pl.len()).over("window"))
    by_window = ["line", "op", "window"]
    called = calls.select("line", "op", "step").unique().join(recorded, "step").sort("step")
    apart = pl.col("step").diff().over(by_window)
    called = called.with_columns(apart=apart, num=pl.len().over(by_window))
    called = called.with_columns(num_recorded=pl.col("place").diff().over(by_window))
    known = pl.col("apart").drop_nulls()
    is_even = (known.n_unique() == 1) & (pl.col("num").max() >= _LEAST_CALLED) & (known.first() > 1)
    is_even &= (pl.col("num_recorded").drop_nulls() == known).all()
    return called.group_by("line", "op").agg(is_even=is_even, every=known.first()).filter("is_even")


def _shown(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows as evidence, without columns that say nothing."""
    columns = ["line", "op", "calls", "every", "mean_bytes", "wait_ns", "transfer_ns"]
    shown = rows.select(columns)
    return shown.drop(
        name for name in ("line", "every", "mean_bytes") if shown[name].null_count() == shown.height
    )


def _of_first(
    evidence: Evidence, rows: pl.DataFrame, on_axis: str, remedy: str
) -> tuple[dict[str, Fact], float]:
    """Return the facts of the row with a remedy that transfers longest, and the transfers that remedies can win.

    The wait for late ranks is no part of either: it counts for them. Communication that a job of several ranks needs comes behind other lines, unless these take little.
    """
    is_known = on_axis in ("dp", "other", "mp") and remedy.startswith("code")
    of_torch = evidence.framework == "torch"
    kinds = [
        _remedy_of(evidence, row, rows, on_axis)
        if is_known and not of_torch and row["line"]
        else None
        for row in rows.iter_rows(named=True)
    ]
    least_ns = float(rows["transfer_ns"][0]) / _MOST_UNMENDED
    number = next(
        (
            number
            for number, (kind, transfer_ns) in enumerate(zip(kinds, rows["transfer_ns"]))
            if kind not in _UNMENDED and transfer_ns >= least_ns
        ),
        0,
    )
    mended_ns = sum(
        row["transfer_ns"] * _mended_ratio(evidence, row, kind)
        for row, kind in zip(rows.iter_rows(named=True), kinds)
    )
    first = rows.row(number, named=True)
    kind = kinds[number]
    facts: dict[str, Fact] = {} if kind is None else {"remedy": f"code-{kind}"}
    if first["line"] is None:
        return facts, mended_ns
    if kind == "dp-accumulate":
        facts["num_reductions"] = evidence.num_reductions[first["line"]]
    of_line: dict[str, Fact] = {
        "line": first["line"],
        "op": first["op"],
        "line_ns": first["time_ns"],
        "num_calls": first["calls"],
        "call_bytes": first["mean_bytes"],
        "every": first["every"],
        "wording": "reducer" if first["op"] == DATA_PARALLEL else "line",
    }
    return facts | of_line, mended_ns


def _mended_ratio(evidence: Evidence, row: Mapping[str, Any], kind: str | None) -> float:
    """Return the share of a line's transfers that its remedy can win, 0 to 1."""
    if kind == "dp-accumulate":
        num = evidence.num_reductions[row["line"]]
        return (num - 1) / num
    return 0.0 if kind in _UNHIDDEN else 1.0


def _remedy_of(
    evidence: Evidence, row: Mapping[str, Any], rows: pl.DataFrame, on_axis: str
) -> str | None:
    """Return what to do about the calls of a line: the end of a remedy's name; None for that of the axis."""
    op = row["op"].lower()
    if "object" in op:
        return "objects-broadcast" if "broadcast" in op else "objects"
    if on_axis == "mp":
        return _remedy_of_parts(row, rows)
    # Streams of a device compute while others communicate; a CPU does only if some of it is seen to be hidden.
    in_backward = row["inside"] == "Backward"
    overlaps = row["hidden_ratio"] >= _HIDDEN or (row["is_on_device"] and in_backward)
    where = "" if row["is_on_device"] else "-cpu"
    if not row["is_named"] and in_backward:
        num = evidence.num_reductions.get(row["line"], 0)
        # Without a known number, a CPU may reduce the gradients of one update several times, too.
        is_once = num == 1 and not overlaps
        return "dp-accumulate" if num > 1 else f"dp{where}" if is_once else "dp"
    if "broadcast" in op:
        return "replicas"
    # Alone, it may be the gradients of a small model.
    is_small = (row["most_bytes"] or 0) <= SYNCHRONISING_BYTES and rows.height > 1
    if "barrier" in op or (is_small and row["inside"] == ""):
        return "small"
    return _remedy_of_tensors(row, rows, "overlap" if overlaps else None)


def _remedy_of_parts(row: Mapping[str, Any], rows: pl.DataFrame) -> str:
    """Return what `_remedy_of` does, of ranks that each have a part of the layers.

    With a sequence in parts, each layer gathers it, and its sums are scattered.
    """
    is_gather = _GATHER.search(row["op"]) is not None
    is_inside = pl.col("inside").is_in(["Forward", "Backward"])
    scatters = rows.filter(is_inside, pl.col("op").str.contains("(?i)reduce_?scatter"))
    if is_gather and row["inside"] in ("Forward", "Backward") and scatters.is_empty():
        return "mp-gather"
    if row["inside"] != "" or (row["most_bytes"] or 0) <= SYNCHRONISING_BYTES:
        return "mp"
    return (
        "mp-outside" if is_gather else "mp-broadcast" if "broadcast" in row["op"].lower() else "mp"
    )


def _remedy_of_tensors(row: Mapping[str, Any], rows: pl.DataFrame, overlap: str | None) -> str:
    """Return what to do about the calls of a line that communicate tensors; ``overlap`` if they partly do."""
    where = "" if row["is_on_device"] else "-cpu"
    is_many = row["calls"] >= MANY_CALLS and (row["mean_bytes"] or 0) < SMALL_BYTES
    is_in_layers = _is_in_layers(row, rows)
    if is_in_layers and is_many:
        return "layers"
    if is_in_layers or "reduce" not in row["op"].lower() or row["mean_bytes"] is None:
        return overlap or f"values{where}"
    if is_many and _ALL_REDUCE.search(row["op"]):
        return "buffer"
    return overlap or f"own{where}"


def _is_in_layers(row: Mapping[str, Any], rows: pl.DataFrame) -> bool:
    """Return whether layers, or their gradients, need the results of a line; hooks reduce many gradients."""
    in_forward = rows.filter(pl.col("inside") == "Forward", pl.col("op") == row["op"])
    of_gradients = row["calls"] < MANY_CALLS or not in_forward.is_empty()
    return row["inside"] == "Forward" or (row["inside"] == "Backward" and of_gradients)


def _settings_of_sharding(evidence: Evidence) -> dict[str, Fact]:
    """Return the settings that can be better, as facts; None for those that are already so."""
    settings = evidence.setting("Distributed.sharding")
    known = settings if isinstance(settings, Mapping) else {}
    return {
        "reduce_overlap": None if known.get("reduce_overlap") is True else "False",
        "sharding_stage": 3 if known.get("sharding_stage") == 3 else None,
    }


def _kind_of(arrivals: pl.DataFrame, axis: str) -> str:
    """Return "experts" if most communication over an axis exchanges tokens, all to all; else "other"."""
    took = pl.col("wait_ns") + pl.col("transfer_ns")
    ops = arrivals.filter(pl.col("axis") == axis).group_by("op").agg(took.sum().alias("took_ns"))
    longest = ops.sort("took_ns", "op")["op"].tail(1).str.contains("(?i)all_?to_?all")
    return "experts" if longest.any() else "other"


_BLOCKS = {
    "dp": ("Global", "Engine", "Distributed"),
    "mp": ("Distributed",),
    "sharding": ("Distributed",),
    "sep": ("Distributed",),
    "pp": ("Model",),
    "experts": (),
    "other": (),
}
"""Axis -> blocks with the keys that its proposal names."""

_KEYS = {
    "mp": "Distributed.mp_degree",
    "dp": "Global.local_batch_size",
    "pp": "Model.virtual_pp_degree",
}


def _transfer_ratio(groups: pl.DataFrame) -> float:
    """Return the share of the transfer in the time that the members of groups spend in collectives.

    ::

        rank 0   [ wait | transfer ]       each rank counts, so large groups count more
        rank 1          [ transfer ]
    """
    size = pl.col("members").str.count_matches(r"[,>]") + 1
    transfer, wait = groups.select(
        (pl.col("transfer_ns") * size).sum(), (pl.col("wait_ns") * size).sum()
    ).row(0)
    return transfer / (transfer + wait) if transfer + wait else 1.0


def small_collectives(evidence: Evidence) -> list[Finding]:
    """Report small collectives of the user's code at which ranks wait that are late in turn.

    ::

        rank 0   ####==##____R        ranks with longer and shorter parts wait twice; without the
        rank 1   ##__==####==R        first of these collectives, they would arrive at R together

    The cost is the gain of a replay in which the ranks do not wait there, but in all later collectives.
    It is over all recorded steps: what makes ranks wait in turn makes steps long, too.

    The collectives are barriers, and those of at most `SYNCHRONISING_BYTES` of one size that a line outside
    layers, Backward and optimizer calls in each step, if gradients are reduced elsewhere.
    """
    replays = evidence.replays_of_all_steps
    calls = synchronising_calls(evidence)
    if replays is None or calls.is_empty():
        return []
    saved_ns = replays.saved_ns((), calls)
    if saved_ns < LEAST_SYNCHRONISING * replays.step_ns:
        return []
    num_steps = max(1, evidence.all_steps["step"].n_unique())
    # A rank is in some of the groups only.
    size = pl.col("members").str.count_matches(r"[,>]") + 1
    weight = size / (num_steps * max(1, evidence.all_steps["rank"].n_unique()))
    rows = (
        calls.group_by("line", "op")
        .agg(
            calls=weight.sum(),
            wait_ns=(pl.col("wait_ns") * weight).sum(),
            transfer_ns=(pl.col("transfer_ns") * weight).sum(),
        )
        .sort("wait_ns", "line", "op", descending=[True, False, False])
    )
    first = rows.row(0, named=True)
    of_line = calls.filter(line=first["line"], op=first["op"])
    waits = of_line.group_by("members").agg((pl.col("wait_ns") * size).sum())
    group = waits.sort("wait_ns", "members", descending=[True, False])["members"][0]
    of_group = of_line.filter(members=group)
    last_rank = of_group["last_rank"].mode().sort()[0]
    late_ratio = of_group.filter(last_rank=last_rank).height / of_group.height
    facts: dict[str, Fact] = {
        "line": first["line"],
        "op": first["op"],
        "num_calls": first["calls"],
        "wait_ns": first["wait_ns"],
        "late_rank": last_rank,
        "late_ratio": late_ratio,
        "group": group if waits.height > 1 else None,
        "wording": "one-rank" if late_ratio >= _ONE_RANK else None,
        "num_lines": rows.height if rows.height > 1 else None,
        "remedy": "code-barrier" if "barrier" in first["op"].lower() else "code",
    }
    step = (replays.step_ns, RECORDED)
    return evidence.time_finding("small-collectives", saved_ns, "possible", facts, rows, step)


def synchronising_calls(evidence: Evidence) -> pl.DataFrame:
    """Return the collectives of `small_collectives`: rows of `Evidence.collective_calls`."""
    calls = evidence.collective_calls
    num_steps = evidence.all_steps["step"].n_unique() if not calls.is_empty() else 0
    is_barrier = pl.col("op").str.to_lowercase().str.contains("barrier")
    is_small = (pl.col("bytes").max() <= SYNCHRONISING_BYTES) & (pl.col("bytes").n_unique() == 1)
    is_small &= pl.col("bytes").null_count() == 0
    by_line = ["line", "op"]
    of_group = pl.col("step").n_unique().over("line", "op", "members")
    chosen = (
        calls.filter("is_named", pl.col("members").str.contains(">").not_())
        .drop_nulls("line")
        .with_columns(num_steps=of_group)
        .group_by(by_line)
        .agg(
            is_outside=(pl.col("inside") == "").all(),
            is_barrier=is_barrier.all(),
            is_small=is_small,
            num=pl.col("num_steps").min(),
        )
        .filter("is_outside", pl.col("num") >= _EACH_STEP * num_steps)
        .filter(pl.col("is_barrier") | pl.col("is_small"))
    )
    others = calls.join(chosen, by_line, "anti", nulls_equal=True)
    is_large = pl.col("bytes") > SYNCHRONISING_BYTES
    reduces = is_large | (pl.col("is_named").not_() & (pl.col("inside") == "Backward"))
    has_others = others.filter(reduces)["step"].n_unique() >= _EACH_STEP * num_steps
    chosen = chosen.filter(pl.col("is_barrier") | pl.lit(has_others))
    return calls.join(chosen, by_line, "semi")
