"""Rules about memory: devices that are nearly full or fragmented, recomputation despite room, and gradients that are unused, 0, or computed again."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import Fact, Finding
from ppprof.analysis.advice.indicators import MEMORY
from ppprof.analysis.advice.repeated_gradients import UNKNOWN

NEAR_RATIO = 0.90
"""Share of a device's memory. A device that holds more is nearly full: a longer sequence may end
the job (Paddle's own pool stops at 92% by default, ``FLAGS_fraction_of_gpu_memory_to_use``)."""

FULL_RATIO = 0.97
"""Share of a device's memory from which the finding is moderate: the free rest is smaller than the
variation of the CUDA context and NCCL's buffers."""

FRAGMENTED_RATIO = 0.20
"""Share of the reserved memory. If a smaller part lies outside tensors at the peak, it is not
reported."""

FRAGMENTED_BYTES = 1 << 30
"""If fewer bytes of the reserved memory lie outside tensors at the peak, they are not reported."""

FILLED_RATIO = 0.75
"""Share of a device's memory. If less is reserved, fragmentation does no harm."""

ROOM_RATIO = 0.5
"""Share of a device's memory. If the peak is below it, activations probably fit without
recomputation."""


_STAGE = "Distributed.sharding.sharding_stage"


def memory_limit(evidence: Evidence) -> list[Finding]:
    """Report devices that are nearly full: from `NEAR_RATIO` of their memory on."""
    full = _fullest_first(evidence).filter(pl.col("held_ratio") >= NEAR_RATIO)
    if full.is_empty():
        return []
    first = full.row(0, named=True)
    severity = "moderate" if first["held_ratio"] >= FULL_RATIO else "minor"
    size, stage = (evidence.number(key) for key in ("Global.micro_batch_size", _STAGE))
    can_shard = evidence.degree("dp") * evidence.degree("sharding") > 1 and stage != 3
    facts = {
        "rank": first["rank"],
        "peak_bytes": first["peak_reserved_bytes"],
        "total_bytes": first["total_bytes"],
        "held_ratio": first["held_ratio"],
        "use_recompute": None if evidence.setting("Model.use_recompute") else "False",
        "micro_batch_size": None if size == 1 else size,
        "sharding_stage": (stage or "1") if can_shard else None,
        "remedy": evidence.remedy("Model", "Global", "Distributed"),
    }
    rows = full.select("rank", "place", "peak_reserved_bytes", "total_bytes", "held_ratio")
    return evidence.warning("memory-limit", severity, facts, rows)


def memory_fragmented(evidence: Evidence) -> list[Finding]:
    """Report devices that fill up with reserved memory outside tensors.

    The conditions are `FILLED_RATIO`, `FRAGMENTED_BYTES` and `FRAGMENTED_RATIO`.
    """
    unused = pl.col("unused_bytes")
    fragmented = (
        _held(evidence)
        .filter(
            (pl.col("held_ratio") >= FILLED_RATIO)
            & (unused >= FRAGMENTED_BYTES)
            & (unused >= FRAGMENTED_RATIO * pl.col("peak_reserved_bytes"))
        )
        .sort("unused_bytes", descending=True, maintain_order=True)
    )
    if fragmented.is_empty():
        return []
    first = fragmented.row(0, named=True)
    facts = {
        "rank": first["rank"],
        "unused_bytes": first["unused_bytes"],
        "peak_reserved_bytes": first["peak_reserved_bytes"],
        "peak_allocated_bytes": first["peak_allocated_bytes"],
        "unused_ratio": first["unused_bytes"] / first["peak_reserved_bytes"],
    }
    columns = ("rank", "place", "peak_allocated_bytes", "peak_reserved_bytes", "unused_bytes")
    return evidence.warning("memory-fragmented", "minor", facts, fragmented.select(columns))


def recompute(evidence: Evidence) -> list[Finding]:
    """Report recomputed activations, unless the fullest device has too little memory to keep them.

    If no device's memory is known, as on a CPU, whether they fit is unknown, and the texts say so.
    """
    devices = _fullest_first(evidence)
    cost_ns = evidence.usual("recompute_ns")
    layers = evidence.names("recomputed")
    facts: dict[str, Fact] = {
        "recompute_ns": cost_ns,
        "layer": evidence.first_name("recomputed"),
        "line": evidence.first_name("of_layer"),
        "layer_ns": None if layers.is_empty() else layers["time_ns"][0],
        "granularity": evidence.setting("Model.recompute_granularity") or "full",
        "remedy": evidence.remedy("Model"),
        "wording": "unknown-memory",
    }
    if not devices.is_empty():
        held = devices.row(0, named=True)
        if held["peak_reserved_bytes"] >= ROOM_RATIO * held["total_bytes"]:
            return []
        facts |= {
            "peak_bytes": held["peak_reserved_bytes"],
            "total_bytes": held["total_bytes"],
            "room_bytes": held["total_bytes"] - held["peak_reserved_bytes"],
            "wording": None,
        }
    rows = evidence.indicator_means.select("rank", "recompute_ns").sort(
        "recompute_ns", "rank", descending=[True, False]
    )
    rows = layers if layers.height else rows.filter(pl.col("recompute_ns") > 0)
    return evidence.time_finding("recompute", cost_ns, "possible", facts, rows)


def repeated_call(evidence: Evidence) -> list[Finding]:
    """Report layers and functions that compute again what the step has computed.

    The cost is the time of the layers, and of the functions' repeated operators, with their gradients.
    """
    names = evidence.names("repeated")
    if names.is_empty():
        return []
    cost_ns, name = float(names["time_ns"].sum()), str(names["name"][0])
    layers, functions = (evidence.names(f"repeated {kind}") for kind in ("layer", "function"))
    of_layers, of_functions = (
        dict(each.select("name", "calls").rows()) for each in (layers, functions)
    )
    num = of_functions.get(name)
    is_function = num is not None
    if num is None:
        num = sum(calls for layer, calls in of_layers.items() if _is_of(name, layer))
    facts: dict[str, Fact] = {
        "again_ns": cost_ns,
        "layer": name,
        "num_again": max(1, round(num)),
        "caller": evidence.first_name("caller", name),
        "earlier": evidence.first_name("earlier", name),
        "num_others": len(of_layers) + len(of_functions) - 1 or None,
        **({"wording": "function", "remedy": "code-function"} if is_function else {}),
    }
    unused = dict(evidence.names("repeated unused").select("name", "calls").rows())
    if not is_function and unused.get(name) == dict(names.select("name", "calls").rows())[name]:
        facts |= {"wording": "unused", "remedy": "code-unused"}
    return evidence.time_finding("repeated-call", cost_ns, "likely", facts, names)


def _is_of(name: str, layer: str) -> bool:
    """Return whether a name is that of a layer, maybe with its line."""
    return name == layer or name.startswith(f"{layer} (")


def unused_gradients(evidence: Evidence) -> list[Finding]:
    """Report gradients of layers whose parameters no optimizer updates with them; the cost is their time.

    Gradients that trained layers need, and that pass through such a layer, do not count: of a product, its share
    of gradients for parameters does.
    """
    layers = evidence.names("unneeded")
    if layers.is_empty():
        return []
    cost_ns, layer = float(layers["time_ns"].sum()), layers["name"][0]
    is_passing, is_cleared = (
        layer in evidence.names(f"unneeded {kind}")["name"] for kind in ("passing", "cleared")
    )
    facts: dict[str, Fact] = {
        "unused_ns": cost_ns,
        "layer": layer,
        "caller": evidence.first_name("caller", layer) if is_cleared else None,
        "num_others": layers.height - 1 or None,
        "remedy": f"code{'-cleared' * is_cleared}{'-passing' * is_passing}",
        **({"wording": "cleared"} if is_cleared else {}),
    }
    return evidence.time_finding("unused-gradients", cost_ns, "possible", facts, layers)


def zero_gradients(evidence: Evidence) -> list[Finding]:
    """Report gradients that are 0, since a tensor is multiplied by the number 0; the cost is their time.

    The operators that only the product needs are a fact without a cost: the training may show their result. With
    several data-parallel ranks, the product may be there so that all parameters have gradients.
    """
    lines = evidence.names("zero")
    if lines.is_empty():
        return []
    cost_ns, line = float(lines["time_ns"].sum()), str(lines["name"][0])
    facts: dict[str, Fact] = {
        "zero_ns": cost_ns,
        "line": line,
        "term": evidence.first_name("zero term", line),
        "num_others": lines.height - 1 or None,
        "term_ns": float(evidence.names("zero operators")["time_ns"].sum()) or None,
    }
    is_parallel = evidence.degree("dp") > 1
    confidence = "possible" if is_parallel else "likely"
    return evidence.time_finding("zero-gradients", cost_ns, confidence, facts, lines)


def gradients_again(evidence: Evidence) -> list[Finding]:
    """Report gradients that a second Backward of the same graph computes again."""
    names = evidence.names("again")
    if names.is_empty():
        return []
    cost_ns, line = float(names["time_ns"].sum()), names["name"][0]
    facts: dict[str, Fact] = {
        "again_ns": cost_ns,
        "line": None if line == UNKNOWN else line,
        "num_nodes": round(float(names["calls"].sum())),
    }
    return evidence.time_finding("gradients-again", cost_ns, "likely", facts, names)


LEAST_GROWTH_BYTES = 64 << 10
"""Memory that grows by less in a step takes more than ten thousand steps to 1 GiB."""

_LEAST_GROWN_STEPS = 5
_MOSTLY_GROWS = 0.8
"""Share of a window's steps that keep memory. Fewer, at its end, may wait for the garbage collector: a
loader's batches can be in reference cycles, which it frees every few dozen steps."""


_LEAST_REGULAR = 3
"""Steps at an even distance that keep tensors in one container."""


class _Growth(NamedTuple):
    """Memory of a rank that grows."""

    each_bytes: float
    """In an average step, from the first one that keeps some on."""
    since: int
    num_steps: int
    kept: pl.DataFrame
    """Columns of `ppprof.analysis.advice.memory_growth.KEPT`, of what grows."""
    holder: str | None
    period: int | None
    """Every how many steps it grows; None for each step."""
    has_graphs: bool = False
    """Whether the tensors in the container keep graphs of gradients."""


def growing_memory(evidence: Evidence) -> list[Finding]:
    """Report memory that grows step after step: what steps allocate and the window never frees.

    Of the rank that keeps most. Memory that only a part of the steps keeps does not count, unless one container
    has it at even distances::

        kept by step   8 8 8 8 8 8 8        grows by 8
                       0 0 0 0 8 8 8        was freed before, and may be freed again
                       0 8 0 8 0 8 0        in one list: grows by 4
                       1 9 1 9 1 9 1        losses with their graphs in one list, of 4 bytes each: grows by 4
    """
    of_ranks = {rank: _growth(own.kept) for rank, own in sorted(evidence.indicators.items())}
    growing = [(each.each_bytes, -rank, each) for rank, each in of_ranks.items() if each]
    if not growing:
        return []
    _, rank, best = max(growing, key=lambda each: each[:2])
    sums = best.kept.group_by("name").agg(pl.col("num", "bytes").sum() / best.num_steps)
    rows = (
        sums.filter(pl.col("bytes") > 0)
        .sort("bytes", "name", descending=[True, False])
        .select("name", calls="num", kept_bytes=pl.col("bytes").round().cast(pl.Int64))
    )
    # With a container, its tensors are what grows, and a chain may keep little.
    chains = evidence.indicators[-rank].kept["chain"].drop_nulls()
    chain = None if best.holder or chains.is_empty() else str(chains[0])
    remedy = "code-graphs" if best.has_graphs else "code-chain" if chain else "code"
    facts: dict[str, Fact] = {
        "rank": -rank,
        "growth_bytes": round(best.each_bytes),
        "since": best.since,
        "num_steps": best.num_steps,
        "line": rows["name"][0],
        "line_bytes": rows["kept_bytes"][0],
        "holder": best.holder,
        "period": best.period,
        "chain": chain,
        "remedy": remedy,
    }
    return evidence.warning("growing-memory", "moderate", facts, rows)


def _growth(kept: pl.DataFrame) -> _Growth | None:
    """Return how the memory of a rank grows, from what its steps keep; None if it does not."""
    steps = kept.group_by("step").agg(pl.col("bytes").sum()).sort("step")
    growing = steps.filter(pl.col("bytes") >= LEAST_GROWTH_BYTES)
    if growing.is_empty():
        return None
    if growing.height < max(_LEAST_GROWN_STEPS, _MOSTLY_GROWS * steps.height):
        return _regular_growth(kept)
    since = int(growing["step"][0])
    later, kept = (each.filter(pl.col("step") >= since) for each in (steps, kept))
    each = float(later["bytes"].median() or 0)  # type: ignore[arg-type]
    return _Growth(each, since, later.height, kept, _holder(kept, later.height), None)


def _regular_growth(kept: pl.DataFrame) -> _Growth | None:
    """Return the largest growth of a container that has tensors of every second, third... step of each window; None without one."""
    held, found = kept.drop_nulls("holder").filter(pl.col("bytes") > 0), []
    steps = kept.select("step").unique().sort("step")
    steps = steps.with_columns(window=(pl.col("step").diff() > 1).fill_null(value=False).cum_sum())
    for (holder,), own in held.group_by("holder"):
        marked = steps.with_columns(has=pl.col("step").is_in(own["step"].implode()))
        regular = marked.filter("has")
        distances = regular.select(pl.col("step").diff().over("window")).to_series()
        distances = distances.drop_nulls().unique()
        period = int(distances[0]) if len(distances) == 1 else 1
        num = period * regular.height
        left = (1 - period * pl.col("has").cast(pl.Int64)).sum().over("window")
        covers = marked.select((left < period).all()).item()
        if regular.height >= _LEAST_REGULAR and period > 1 and covers:
            grown = _with_graphs(kept, regular["step"]) if own["has_graphs"].all() else None
            rows = own if grown is None else grown
            each, since = float(rows["bytes"].sum()) / num, int(regular["step"][0])
            found.append(_Growth(each, since, num, rows, str(holder), period, grown is not None))
    best = max(found, key=lambda growth: (growth.each_bytes, growth.holder), default=None)
    return best if best and best.each_bytes >= LEAST_GROWTH_BYTES else None


def _with_graphs(kept: pl.DataFrame, regular: pl.Series) -> pl.DataFrame | None:
    """Return what some steps keep, less the mean of the others; None unless each keeps more than any other, by half of the most or more."""
    kept = kept.with_columns(is_regular=pl.col("step").is_in(regular.implode()))
    sums = kept.group_by("step", "is_regular").agg(pl.col("bytes").sum())
    own, others = sums.filter("is_regular"), sums.filter(~pl.col("is_regular"))
    if own["bytes"].min() - others["bytes"].max() < own["bytes"].max() / 2:  # type: ignore[operator]
        return None
    share = pl.when("is_regular").then(1.0).otherwise(-own.height / others.height)
    return kept.select("step", "name", pl.col("num", "bytes") * share)


def _holder(kept: pl.DataFrame, num_steps: int) -> str | None:
    """Return the container that has tensors of most steps, and half of the bytes or graphs that may keep them; None without one."""
    held = kept.drop_nulls("holder").group_by("holder")
    sums = held.agg(pl.col("step").n_unique(), pl.col("bytes").sum(), pl.col("has_graphs").any())
    sums = sums.filter(
        (pl.col("step") >= _MOSTLY_GROWS * num_steps)
        & (pl.col("has_graphs") | (pl.col("bytes") >= kept["bytes"].sum() / 2))
    )
    return sums.sort("bytes", "step", "holder", descending=[True, True, False])["holder"].first()  # type: ignore[return-value]


def _fullest_first(evidence: Evidence) -> pl.DataFrame:
    return _held(evidence).sort("held_ratio", descending=True, maintain_order=True)


def _held(evidence: Evidence) -> pl.DataFrame:
    """Return the memory of each rank's devices; a device of unknown size has no row.

    Returns:
        One row per rank and device: rank; the columns of
        `ppprof.analysis.advice.indicators.MEMORY`, with peak_reserved_bytes at least
        peak_allocated_bytes; held_ratio, peak_reserved_bytes over total_bytes; and unused_bytes,
        peak_reserved_bytes - peak_allocated_bytes.

        The sizes and peaks are those of the trace. For ranks without them, they are those of the
        step times, and place is ``device``.
    """
    logged = (
        evidence.step_times.group_by("rank", maintain_order=True)
        .agg(
            peak_allocated_bytes=pl.col("device_peak_bytes").max(),
            peak_reserved_bytes=pl.col("device_peak_reserved_bytes").max(),
            total_bytes=pl.col("device_total_bytes").max(),
        )
        .select("rank", pl.lit("device").alias("place"), *list(MEMORY)[1:])
    )
    recorded = pl.concat(
        [
            logged.clear(),
            *(
                own.memory.select(pl.lit(rank, pl.Int64).alias("rank"), pl.all())
                for rank, own in sorted(evidence.indicators.items())
            ),
        ]
    )
    known, others = (
        table.drop_nulls().filter(pl.col("total_bytes") > 0) for table in (recorded, logged)
    )
    known = pl.concat([known, others.join(known, "rank", how="anti")])
    reserved = pl.max_horizontal("peak_reserved_bytes", "peak_allocated_bytes")
    return known.with_columns(peak_reserved_bytes=reserved).with_columns(
        held_ratio=pl.col("peak_reserved_bytes") / pl.col("total_bytes"),
        unused_bytes=pl.col("peak_reserved_bytes") - pl.col("peak_allocated_bytes"),
    )
