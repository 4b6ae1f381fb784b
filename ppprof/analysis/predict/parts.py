"""The times of the parts of a step: measured in runs, and what they are in another configuration.

A time is an array of three scenarios: the least, the most likely, and the most that it can be. NaN
stands for an unknown likely time, infinity for an unknown most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.diff.significance import student
from ppprof.analysis.predict.training_spec import TrainingSpec
from ppprof.analysis.ranks.cluster import Cluster
from ppprof.analysis.ranks.collectives import to_reference_clock
from ppprof.analysis.ranks.replay import Replay, ends_of_steps, operations_of, with_workers
from ppprof.arrays import Float64

PARTS = {
    "layer_forward": "forward pass of a block",
    "layer_backward": "backward pass of a block",
    "first_forward": "before the first block, forward",
    "first_backward": "before the first block, backward",
    "last_forward": "after the last block, forward",
    "last_backward": "after the last block, backward",
    "gap": "between two passes",
    "transfer": "transfer to another stage",
    "head": "start of the step, for each sample",
    "tail": "end of the step: optimizer, norm of the gradients",
    "mp": "all-reduces of a block's pass over mp",
    "replicas": "sum of the gradients over replicas",
}
"""Parts of a step, and what each is. head and tail belong to a step, all others to a micro-batch."""


class Part(NamedTuple):
    """The time of a part, and how it is known."""

    time: Float64
    """Nanoseconds, shape (3,): least, likely, most."""
    basis: str
    """``measured``, ``fitted`` (to two runs), ``modelled`` or ``unknown``."""

    @property
    def is_used(self) -> bool:
        """Whether the part takes any time."""
        return bool(self.time[2] != 0)


class Message(NamedTuple):
    """An all-reduce."""

    num_bytes: int
    """Of each rank."""
    ranks: int
    """Of its group."""
    time: float
    """Nanoseconds from the arrival of the last rank."""


@dataclass(frozen=True)
class Measured:
    """The parts of a recorded run."""

    spec: TrainingSpec
    times: Mapping[str, float]
    """Part -> nanoseconds: means over steps, replicas and micro-batches; of `PARTS`."""
    step_ns: float
    """The step, mean over steps."""
    error_ratio: float
    """Half of the 95% interval of the mean step, as a ratio of it; infinity from one step."""
    messages: Sequence[Message]
    """The all-reduces of the run by size, with their mean time."""


def measure(cluster: Cluster, spec: TrainingSpec) -> Measured | None:
    """Return the parts of a run's steps; None if no step can be replayed.

    Args:
        cluster: all ranks of the run.
        spec: its configuration, with several stages.
    """
    topology = cluster.topology
    tables = [
        to_reference_clock(table, cluster.clocks)
        for table in cluster.selected_passes
        if table.height
    ]
    if topology is None or not tables:
        return None
    rows = with_workers(pl.concat(tables), topology)
    operations = operations_of(rows, spec.pp)
    replay = Replay(operations)
    ends = ends_of_steps(rows).filter(pl.col("step").is_in(list(replay.whole_steps)))
    if ends.is_empty():
        return None
    means: dict[tuple[str, int, int | None], float] = {
        (kind, stage, chunk): time
        for kind, stage, chunk, time in operations.group_by("kind", "stage", "chunk")
        .agg(pl.col("dur_ns").mean())
        .rows()
    }
    times: dict[str, float] = {}
    in_chunk = spec.stage_layers() // spec.virtual
    first, last = (0, 0), (spec.pp - 1, spec.virtual - 1)
    for kind in ("forward", "backward"):
        passes = {key[1:]: time for key, time in means.items() if key[0] == kind}
        inner = [time for place, time in passes.items() if place not in (first, last)]
        # With two stages, the shorter one is taken for its blocks alone.
        block = (np.mean(inner) if inner else min(passes.values())) / in_chunk
        times[f"layer_{kind}"] = float(block)
        times[f"first_{kind}"] = float(passes[first] - in_chunk * block)
        times[f"last_{kind}"] = float(passes[last] - in_chunk * block)
    steps = cluster.steps

    def exposed(*axes: str) -> pl.Expr:
        names = [
            name
            for name in steps.columns
            if name.startswith("exposed_") and set(axes) & set(name[8:-3].split("+"))
        ]
        return pl.sum_horizontal(pl.lit(0), *(pl.col(name).fill_null(0) for name in names))

    def mean(values: pl.Series) -> float:
        return float(values.cast(pl.Float64).to_numpy().mean())

    # Stages have other gradients: those of the stage that the step ends with are in the tail. The replica
    # of it that comes last to their sum waits for no other one.
    stage_of = {rank: topology.coordinate(rank)["pp"] for rank in steps["rank"].unique()}
    sums = (
        steps.with_columns(
            tail_stage=pl.col("rank").replace_strict(stage_of, return_dtype=pl.Int64)
        )
        .join(ends, ["step", "tail_stage"])
        .group_by("step")
        .agg(replicas_ns=exposed("dp", "sharding").min())
    )
    mp_ns = steps.group_by("step").agg(mp_ns=_only_mp(steps).mean())["mp_ns"]
    num_passes = 2 * spec.stage_layers() * spec.micro_batches
    times["replicas"] = mean(sums["replicas_ns"]) if spec.replicas > 1 else 0.0
    times["mp"] = mean(mp_ns) / num_passes if spec.mp > 1 else 0.0
    times["gap"] = float(np.mean(replay.gap_ns[replay.follows])) if replay.follows.any() else 0.0
    transfers = replay.transfer_ns[replay.transfer_ns > 0]
    times["transfer"] = float(np.mean(transfers)) if len(transfers) else 0.0
    times["head"] = means["head", 0, None] / spec.samples
    times["tail"] = max(0.0, mean(ends["tail_ns"]) - times["replicas"])
    recorded = ends["recorded_ns"].to_numpy().astype(np.float64)
    step_ns, freedom = float(recorded.mean()), len(recorded) - 1
    error_ratio = np.inf
    if freedom:
        error_ratio = student(freedom) * float(recorded.std()) / freedom**0.5 / step_ns
    return Measured(spec, times, step_ns, error_ratio, _messages(cluster.arrivals))


def _only_mp(steps: pl.DataFrame) -> pl.Expr:
    name = "exposed_mp_ns"
    return pl.col(name).fill_null(0) if name in steps.columns else pl.lit(0)


def _messages(arrivals: pl.DataFrame) -> list[Message]:
    is_sum = pl.col("op").str.replace_all("_", "").str.starts_with("allreduce")
    rows = arrivals.filter(is_sum, pl.col("bytes") > 0, pl.col("transfer_ns") > 0)
    ranks = pl.col("members").str.count_matches(r"[,>]") + 1
    means = rows.group_by("bytes", ranks.alias("ranks")).agg(pl.col("transfer_ns").mean())
    return [Message(*row) for row in means.sort("bytes", "ranks").rows()]


def _on_link(num_bytes: float, num_ranks: int) -> float:
    """Return the bytes that a ring's link carries to add up ``num_bytes`` of each of its ranks."""
    return 2 * num_bytes * (num_ranks - 1) / num_ranks


def parts_of(runs: Sequence[Measured], spec: TrainingSpec) -> dict[str, Part]:
    """Return the parts of a configuration, for each of `PARTS`.

    Args:
        runs: one run, or two that differ in micro_batch_size; the first decides what is scaled.
        spec: the configuration.
    """
    base = runs[0]
    old = base.spec
    parts = {name: _of_micro_batch(runs, name, spec.micro_batch_size) for name in PARTS}
    for name in ("head", "tail", "replicas"):
        parts[name] = Part(np.full(3, base.times[name]), "measured")
    if spec.mp != old.mp:
        _split(parts, runs, spec)
    elif _num_sums(spec) != _num_sums(old):
        ratio = (2 + _num_sums(spec)) / (2 + _num_sums(old))
        parts["mp"] = _modelled(ratio * parts["mp"].time)
    if spec.recompute != old.recompute:
        forward, backward = parts["layer_forward"].time, parts["layer_backward"].time
        # The least of a difference has the most of what is taken away: the scenarios in reverse.
        time = backward + _again(spec, forward) - _again(old, forward)[::-1]
        is_known = {old.recompute, spec.recompute} == {"", "full"}
        part = _modelled(np.maximum(time, 0))
        parts["layer_backward"] = part if is_known else Part(part.time, "unknown")
    share = spec.most_parameters() / spec.sharding / (old.most_parameters() / old.sharding)
    if share != 1:
        parts["tail"] = Part(parts["tail"].time * share, "modelled")
    parts["replicas"] = _sum_over_replicas(base, spec)
    if spec.pp == 1:
        parts["transfer"] = Part(np.zeros(3), "measured")
    return parts


def _again(spec: TrainingSpec, forward: Float64) -> Float64:
    """Return the time to compute a block's forward pass again: of a part of it, any time up to the whole."""
    if spec.recompute in ("", "full"):
        return forward if spec.recompute else np.zeros(3)
    return np.array([0, np.nan, forward[2]])


def _of_micro_batch(runs: Sequence[Measured], name: str, size: int) -> Part:
    """Return a part at another micro-batch size: fixed + a time for each sample.

    ::

        time         two runs: the line       one run: between all fixed and none fixed
        |      .x                                  .
        |  .x                                 x - - -
        +--1---2-- size                       1    2
    """
    known: dict[int, list[float]] = {}
    for run in runs:
        known.setdefault(run.spec.micro_batch_size, []).append(run.times[name])
    times = {each: float(np.mean(values)) for each, values in known.items()}
    if not any(times.values()):
        return Part(np.zeros(3), "measured")
    if size in times:
        return Part(np.full(3, times[size]), "measured")
    if len(times) == 1:
        ((of_size, time),) = times.items()
        low, high = sorted((time, time * size / of_size))
        return Part(np.array([low, np.nan, high]), "unknown")
    (small, short), (large, long) = sorted(times.items())
    slope = max(0.0, (long - short) / (large - small))
    return Part(np.full(3, max(short + slope * (size - small), min(short, 0.0))), "fitted")


def _split(parts: dict[str, Part], runs: Sequence[Measured], spec: TrainingSpec) -> None:
    """Change the parts for another mp_degree: between a perfect split of the work, and the same work.

    If two runs separate the fixed cost, which is in no sum over mp, likely is a split of the rest.

    A block sums hidden states over mp twice in its forward pass. So do the embedding and the loss, which
    also sums three values a token.
    """
    base, old = runs[0], runs[0].spec
    counts = {
        "layer_forward": 2,
        "layer_backward": _num_sums(old),
        "first_forward": 1,
        "last_backward": 1,
    }
    num_sums = (2 + _num_sums(old)) / 2
    own = parts["mp"].time / num_sums
    own_fixed = _of_micro_batch(runs, "mp", 0).time[1] / num_sums
    tokens = spec.length * spec.micro_batch_size
    sums = value = np.zeros(3)
    if spec.mp > 1 and old.mp > 1:
        # By the bytes on a link, or by the number of messages of a ring.
        share = _on_link(1, spec.mp) / _on_link(1, old.mp)
        sums = own * sorted((1, share, (spec.mp - 1) / (old.mp - 1)))
    elif spec.mp > 1:
        calls = 2 if spec.sequence_parallel else 1  # a gather and a scatter instead of a sum
        sums = calls * _message(base, spec.value_bytes * tokens * spec.hidden, spec.mp)
        value = _message(base, 4 * tokens, spec.mp)
    for name in PARTS:
        if name.partition("_")[0] not in ("layer", "first", "last"):
            continue
        count = counts.get(name, 0)
        work = np.maximum(parts[name].time - count * own[::-1], 0)
        split = work * old.mp / spec.mp
        low, high = np.fmin(work, split)[0], np.fmax(work, split)[2]
        fixed = _of_micro_batch(runs, name, 0).time[1] - count * own_fixed
        likely = work[1] + (work[1] - np.clip(fixed, 0, work[1])) * (old.mp / spec.mp - 1)
        time = np.array([low, likely, high]) + (count * sums if count else 0)
        basis = "modelled" if np.isfinite(likely) else "unknown"
        parts[name] = Part(time + (3 * value if name == "last_forward" else 0), basis)
    mean_count = (2 + _num_sums(spec)) / 2
    parts["mp"] = Part(mean_count * sums, "measured" if spec.mp == 1 else _basis(sums))


def _num_sums(spec: TrainingSpec) -> int:
    """Return how often a block's backward pass sums over mp: for each product that takes hidden states.

    What it computes again, it sums again, as in the forward pass: after the attention and the MLP.
    """
    again = {"full": 2, "full_attn": 1}.get(spec.recompute, 0)
    return (2 if spec.fused_qkv else 4) + again


def _sum_over_replicas(base: Measured, spec: TrainingSpec) -> Part:
    old, ranks = base.spec, spec.replicas
    size = spec.value_bytes * spec.most_parameters()
    is_same_kind = (old.sharding > 1, old.sharding > 1 and old.sharding_stage) == (
        spec.sharding > 1,
        spec.sharding > 1 and spec.sharding_stage,
    )
    if ranks == 1:
        return Part(np.zeros(3), "measured")
    if old.replicas > 1 and is_same_kind:
        # By the bytes on a link, or by the number of messages: of a ring, and with sharding of tensors.
        share = _on_link(size, ranks) / _on_link(
            old.value_bytes * old.most_parameters(), old.replicas
        )
        messages = (ranks - 1) / (old.replicas - 1)
        if spec.sharding > 1:
            messages *= len(_most_tensors(spec)) / len(_most_tensors(old))
        time = base.times["replicas"] * np.array(
            [min(share, messages), share, max(share, messages)]
        )
        is_same = share == messages == 1 and (old.dp, old.sharding) == (spec.dp, spec.sharding)
        return Part(time, "measured" if is_same else "modelled")
    if spec.sharding > 1 and spec.sharding_stage > 1:
        return Part(np.array([0.0, np.nan, np.inf]), "unknown")
    if spec.sharding == 1:
        time = _message(base, size, ranks)
        return Part(time, _basis(time))
    # Sharding stage 1 reduces and broadcasts each tensor.
    times = [2 * _message(base, spec.value_bytes * each, ranks) for each in _most_tensors(spec)]
    time = np.sum(times, axis=0)
    return Part(time, _basis(time))


def _most_tensors(spec: TrainingSpec) -> list[int]:
    """Return the sizes of the parameters of the rank with most."""
    return max((spec.tensors(stage) for stage in range(spec.pp)), key=sum)


def _modelled(time: Float64) -> Part:
    """Return a part of a model; it is unknown if its likely time is."""
    return Part(time, "modelled" if np.isfinite(time[1]) else "unknown")


def _basis(time: Float64) -> str:
    return "modelled" if np.isfinite(time[2]) else "unknown"


def _message(base: Measured, num_bytes: int, ranks: int) -> Float64:
    """Return the time of an all-reduce that the run lacks.

    It is in no less than the share of any recorded one that has its part of the bytes and ranks. It is
    in no more than any recorded one that is repeated until it has carried all bytes to all ranks.
    Likely is a line through the smallest and the largest, by the bytes on a link::

        time |            .x
             |      ?.
             |  x
             +------------------ bytes on a link
    """
    if not base.messages:
        return np.array([0.0, np.nan, np.inf])
    bounds = [
        (
            each.time * min(1, num_bytes / each.num_bytes) * min(1, (ranks - 1) / (each.ranks - 1)),
            each.time * ceil(num_bytes / each.num_bytes) * max(1, (ranks - 1) / (each.ranks - 1)),
        )
        for each in base.messages
    ]
    low, high = min(bounds)[0], min(high for _, high in bounds)
    by_link = sorted((_on_link(each.num_bytes, each.ranks), each.time) for each in base.messages)
    (small, short), (large, long) = by_link[0], by_link[-1]
    slope = max(0.0, (long - short) / (large - small)) if large > small else 0.0
    likely = short + slope * (_on_link(num_bytes, ranks) - small)
    return np.array([low, np.clip(likely, low, high), high])
