"""The step time if the slowest worker, stage or link were as fast as the median.

`passes` returns a small table of one rank's trace. `what_if` joins the tables of all ranks, replays
the steps, and replays them again with some times replaced by usual times. Source: Lin et al.,
"Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025
(arXiv:2505.05713), and its artifact, github.com/ByteDance-Seed/StragglerAnalysis:

- S = T / T_ideal: T is the replayed step time; T_ideal is the step time if every operation takes
  its usual time;
- S_w = T_w / T_ideal: T_w is the step time if all operations but those of one worker take their
  usual time;
- M_W = (T - T_W) / (T - T_ideal): T_W is the step time if the operations of the 3% of the workers
  (at least one) with the largest S_w take their usual time;
- M_S = (T - T_S) / (T - T_ideal): T_S is the step time if the operations of the last pipeline
  stage take their balanced time;
- S_t = T_t / T_ideal: T_t is the step time if all operations but those of kind t take their usual
  time;
- S of one step: like S, from that step alone.

The replay: a *worker* is one stage of one replica, with all its mp (and sep) ranks together, since
these ranks wait for each other in every layer. A pass begins once the previous pass of its worker
is done and its input has arrived::

    stage 0   F0 F1 ........B0 F2 B1          forward: input from the previous stage
    stage 1      F0 B0 F1 B1                  backward: input from the next stage

After the last pass of all workers comes the end of the step (sum of gradients over replicas,
optimizer), which all ranks enter together. Without a pipeline a worker has one operation per step:
its work until it meets the other replicas.

Two times replace a recorded one, and both are of one kind of operation in one step:

- usual: the lower median over all workers and micro-batches. One broken machine does not change it,
  and once repaired it is as fast as the others;
- balanced: the mean over each worker's micro-batches, the lower median of these over replicas,
  then the mean over stages (and chunks). The work of a slow stage has to be done by the other
  stages, so that no stage can get faster than the mean::

      stage     0   1   2   3        usual  10
      forward  10  10  10  20        balanced  12.5

Stages take the balanced time, and T_ideal of M_S is the step time if all operations do. Everything
else takes the usual time. In the paper one time serves both: the mean over all steps for
computation, the median for transfers. The time between two passes stays in the replay, at its
typical length.

For the artifact's three sample traces, T is within 0.3% of the recorded time in each step, and S_t
ranks the kinds of computation alike. S with usual times (median), with balanced times (mean) and in
the artifact, M_W and M_S are

=====  ======  ====  ===========  ====  ===========  =====  ===========
trace  median  mean  artifact: S  M_W   in artifact  M_S    in artifact
=====  ======  ====  ===========  ====  ===========  =====  ===========
AR     2.09    2.09  1.97         0.97  1.00         0.00   -0.00
ST     1.31    1.16  1.18         0.02  0.03         1.31   1.22
SE     1.51    1.57  1.54         0.02  0.03         0.68   0.69
=====  ======  ====  ===========  ====  ===========  =====  ===========
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import covered_within, difference, union
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.collectives import to_reference_clock, with_kernel_times
from ppprof.analysis.ranks.device_steps import steps_of_rank
from ppprof.analysis.ranks.rank_communication import UNKNOWN_AXIS, communication_events
from ppprof.arrays import Bool, Int64
from ppprof.topology import Topology
from ppprof.trace import Clock

PASSES: dict[str, pl.DataType] = {
    "rank": pl.Int64(),
    "step": pl.Int64(),
    "kind": pl.String(),
    "chunk": pl.Int64(),
    "micro_batch": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}
"""Columns of `passes`. The values of ``kind``:

- ``step``: the step itself;
- ``forward``, ``backward``: the pass of one micro-batch through one chunk (chunk is 0 if the stage
  has one chunk);
- ``own``, only in steps without passes: begins with the step and lasts as long as the step without
  the wait for other replicas.

chunk and micro_batch are null for step and own."""

WHAT_IF: dict[str, pl.DataType] = {
    "fixed": pl.String(),
    "stage": pl.Int64(),
    "ranks": pl.String(),
    "kind": pl.String(),
    "step": pl.Int64(),
    "step_ns": pl.Float64(),
    "slowdown": pl.Float64(),
    "share": pl.Float64(),
    "alone_slowdown": pl.Float64(),
    "error_ratio": pl.Float64(),
}
"""Columns of the table that `what_if` returns; its docstring defines them."""

_SLOWEST = 0.03
"""The share of the workers that take their usual time in M_W."""

_BETWEEN_REPLICAS = ("dp", "sharding")


def passes(profile: Profile, rank: int = -1) -> pl.DataFrame:
    """Return one rank's steps and passes.

    In a trace with device events, a pass lasts from the start of its first kernel to the end of its
    last; without any kernel it is no pass.

    Args:
        profile: the rank's window.
        rank: the value of the column rank; -1 if unknown.

    Returns:
        Columns of `PASSES`, sorted by start. No rows if the window has no steps, or lacks the
        events of its device.
    """
    if profile.unrecorded_device:
        return pl.DataFrame(schema=PASSES)
    events = profile.trace.events.with_row_index("row").with_columns(
        pl.col("row").cast(pl.Int64), end_ns=pl.col("start_ns") + pl.col("dur_ns")
    )
    in_steps = events.drop_nulls("step")
    unknown = pl.lit(None, pl.Int64)
    steps = steps_of_rank(profile).select(
        *("step", "start_ns", "end_ns"), kind=pl.lit("step"), chunk=unknown, micro_batch=unknown
    )
    of_pipeline = pl.col("micro_batch").is_not_null()
    spans = in_steps.filter(of_pipeline & pl.col("category").is_in(["Forward", "Backward"]))
    passes = (
        with_kernel_times(spans, events)
        .drop_nulls("start_ns")
        .with_columns(
            pl.col("chunk").fill_null(0),
            kind=pl.col("category").cast(pl.String).str.to_lowercase(),
        )
    )
    without_passes = steps.filter(pl.col("step").is_in(passes["step"].implode()).not_())
    own = _own_work(profile, events, without_passes)
    tables = [
        table.select(rank=pl.lit(rank), **{name: pl.col(name) for name in list(PASSES)[1:]})
        for table in (steps, passes, own)
    ]
    return pl.concat(table.cast(PASSES) for table in tables).sort("start_ns", maintain_order=True)  # type: ignore[arg-type]


def _own_work(profile: Profile, events: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return ``steps`` of kind ``own``: shorter by the exposed communication between replicas.

    In a trace without device events, all communication between replicas counts as exposed. With
    device events, it is the kernels that count, also those that no span launched.
    Communication over an unknown axis counts as between replicas.

    ::

        computation      ######___###____
        dp all_reduce    ____#######_____     3 of 7 exposed
        own              #############___     16 - 3
    """
    if steps.is_empty():
        return steps
    between = pl.any_horizontal(
        pl.col("axis").cast(pl.String).str.split("+").list.contains(axis)
        for axis in _BETWEEN_REPLICAS
    )
    if profile.tree.devices.is_empty():
        spans = events.filter(pl.col("category") == "Communication")
        exposed = intervals_of(spans.filter(between.fill_null(value=True)))
    else:
        kernels = communication_events(profile, events["step"])
        kernels = kernels.filter(between | (pl.col("axis") == UNKNOWN_AXIS))
        exposed = difference(intervals_of(kernels), profile.communication.computation)
    start, end = (steps[side].to_numpy() for side in ("start_ns", "end_ns"))
    waited = covered_within(union(*exposed), start, end)
    return steps.with_columns(kind=pl.lit("own"), end_ns=pl.col("end_ns") - pl.Series(waited))


def what_if(
    tables: Sequence[pl.DataFrame],
    topology: Topology,
    clocks: Mapping[int, Clock] | None = None,
) -> pl.DataFrame:
    """Return the step times with some operations as fast as the median.

    Only the transfer of an input needs a common clock: it is the time from the end of the sending
    pass to the start of a pass that waited for it. All other durations are read from one rank's
    clock. The typical transfer time of a link is the lower median in a step; clock errors larger
    than it hide it. A replica with a missing pass is left out of that step.

    Args:
        tables: the result of `passes` for each rank, on the rank's own clock.
        topology: the ranks' coordinates.
        clocks: each rank's clock, keyed by rank. Ranks without a clock keep their times.

    Returns:
        Columns of `WHAT_IF`. No rows if nothing can be replayed, such as a pipeline without
        recorded passes. ``fixed`` names the operations that take their usual time:

        - ``recorded``: none; ``step_ns`` is the recorded time (lower median over ranks);
        - ``nothing``: none; ``step_ns`` is the time of the replay, T;
        - ``all``: all; ``step_ns`` is T_ideal and ``slowdown`` is S;
        - ``steady``: none, but each operation takes the lower median of its kind on its own worker
          over all steps. This removes the variation between micro-batches (chance, or sequences of
          different length); workers that are always slow stay slow;
        - ``balanced``: all, but they take their balanced time: what can be gained by moving layers
          between stages. There is no such row with a single stage;
        - ``slowest``: the operations of the workers with the largest ``alone_slowdown``;
          ``share`` is M_W;
        - ``kind``: all operations of one kind: ``forward``, ``backward``, ``own``, ``head`` (the
          time before the first pass of stage 0) or ``transfer`` (of inputs);
        - ``stage``: the operations of one stage in all replicas, which take their balanced time;
          ``share`` of the last stage is M_S. There are no such rows with a single stage;
        - ``worker``: the operations of one worker;
        - ``link``: the transfers of inputs over one link, between two stages of one replica;
        - ``step``: all in one step; ``slowdown`` is the step's S.

        The other columns:

        - ``stage``: the stage, for stages and workers; else null;
        - ``ranks``: the ranks whose operations or transfers are fixed, comma-separated, else null;
        - ``kind``: the kind of operation, for kinds, else null;
        - ``step``: the step, for steps, else null;
        - ``step_ns``: the step time, mean over steps (for steps: of this step);
        - ``slowdown``: T over ``step_ns`` (for steps: T of this step); null for ``recorded``;
        - ``share``: the share of the possible gain, (T - step_ns) / (T - T_ideal); for stages and
          ``balanced``, T_ideal is the step time if all operations take their balanced time. It is
          below 0 or above 1 if usual times are longer than recorded times, and for a stage also
          because the others keep their time; null for ``recorded`` and steps, and if nothing can be
          gained;
        - ``alone_slowdown``: the step time if all but this kind, stage, worker or link take usual
          (for a stage: balanced) times, over T_ideal (for a worker: S_w, for a kind: S_t); null for
          other rows. It reveals two equally late
          workers, whose share is 0 each: with one worker fixed, the other is still late;
        - ``error_ratio``: the absolute difference between the replayed and the recorded time, mean
          over steps, over the mean recorded time; null unless ``fixed`` is ``nothing``.

        Kinds come before stages, stages before workers, workers before links, and links before
        steps. Steps are sorted by number, all others by share, the largest first.
    """
    aligned = [to_reference_clock(table, clocks or {}) for table in tables if table.height]
    rows = _with_workers(pl.concat(aligned) if aligned else pl.DataFrame(schema=PASSES), topology)
    replay = _Replay(_operations(rows, topology.degree("pp")))
    ends = _ends(rows).join(pl.DataFrame({"step": replay.whole_steps}), "step").sort("step")
    if ends.is_empty():
        return pl.DataFrame(schema=WHAT_IF)
    tail_ns, recorded_ns = ends["tail_ns"].to_numpy(), ends["recorded_ns"].to_numpy()

    def step_ns(finished: Int64) -> Int64:
        lengths: Int64 = finished.max(axis=1) + tail_ns
        return lengths

    def mean_ns(finished: Int64) -> float:
        return float(step_ns(finished).mean())

    members = _members(rows)
    base_ns, ideal_ns = step_ns(replay.finished()), step_ns(replay.ideal)
    base, ideal = float(base_ns.mean()), float(ideal_ns.mean())
    balanced = mean_ns(replay.balanced)
    error = float(np.abs(base_ns - recorded_ns).mean() / recorded_ns.mean())

    def replayed(fixed: str, time_ns: float, best_ns: float = ideal, **more: object) -> _Row:
        share = (base - time_ns) / (base - best_ns) if base > best_ns else None
        return {
            "fixed": fixed,
            "step_ns": time_ns,
            "slowdown": base / time_ns,
            "share": share,
            **more,
        }

    repairs = []
    for repair in _repairs(replay):
        best_ns = balanced if repair.fixed == "stage" else ideal
        repairs.append(
            replayed(
                repair.fixed,
                mean_ns(repair.one),
                best_ns,
                stage=repair.stages[0] if len(repair.stages) == 1 else None,
                ranks=_ranks(members, repair.replicas, repair.stages),
                kind=repair.kind,
                alone_slowdown=mean_ns(repair.others) / best_ns,
            )
        )
    repairs.sort(
        key=lambda row: (_ORDER.index(row["fixed"]), row["step_ns"], -row["alone_slowdown"])
    )
    workers = [row for row in repairs if row["fixed"] == "worker"]
    workers.sort(key=lambda row: -row["alone_slowdown"])
    num_slowest = math.ceil(_SLOWEST * len(workers))
    slowest = sorted(rank for row in workers[:num_slowest] for rank in row["ranks"])
    without = replay.finished(np.isin(replay.first_rank, slowest))
    all_ranks = _ranks(members, replay.replicas, replay.stages)
    cases: list[_Row] = [
        {"fixed": "recorded", "step_ns": float(recorded_ns.mean())},
        replayed("nothing", base, error_ratio=error),
        replayed("all", ideal, ranks=all_ranks),
        replayed("steady", mean_ns(replay.finished(replay.all, to="steady_ns"))),
        *(
            [replayed("balanced", balanced, balanced, ranks=all_ranks)]
            if len(replay.stages) > 1
            else []
        ),
        replayed("slowest", mean_ns(without), ranks=slowest),
        *repairs,
        *(
            {"fixed": "step", "step": step, "step_ns": best, "slowdown": time_ns / best}
            for step, time_ns, best in zip(
                replay.whole_steps.tolist(), base_ns.tolist(), ideal_ns.tolist()
            )
        ),
    ]
    for row in cases:
        row["ranks"] = ",".join(map(str, row.get("ranks", ()))) or None
    return pl.DataFrame(cases, WHAT_IF)


_Row = dict[str, Any]
"""One row of `WHAT_IF`, without its nulls; ``ranks`` is a list."""


class _Repair(NamedTuple):
    """Some operations, and the results of `_Replay.finished` with these and with all others fixed."""

    fixed: str
    one: Int64
    others: Int64
    replicas: Sequence[int] = ()
    stages: Sequence[int] = ()
    kind: str | None = None


def _repairs(replay: _Replay) -> Iterator[_Repair]:
    """Yield each kind of operation, each stage, worker and link."""
    none = ~replay.all
    for kind in replay.kinds:
        mask = replay.kind == kind
        one, others = replay.finished(mask), replay.finished(~mask, replay.all)
        yield _Repair("kind", one, others, kind=kind)
    if replay.pairs:
        one, others = replay.finished(none, replay.all), replay.finished(replay.all, none)
        yield _Repair("kind", one, others, kind="transfer")
    for stage in replay.stages if len(replay.stages) > 1 else ():
        mask = replay.stage == stage
        one = replay.finished(mask, to="balanced_ns")
        others = replay.finished(~mask, replay.all, to="balanced_ns")
        yield _Repair("stage", one, others, replay.replicas, [stage])
    for stage in replay.stages:
        mask = replay.stage == stage
        one, others = replay.finished(mask), replay.finished(~mask, replay.all)
        yield from _by_replica(replay, _Repair("worker", one, others, stages=[stage]))
    for low, high in replay.pairs:
        mask = replay.of_link(low, high)
        one, others = replay.finished(links=mask), replay.finished(replay.all, ~mask)
        yield from _by_replica(replay, _Repair("link", one, others, stages=[low, high]))


def _by_replica(replay: _Replay, repair: _Repair) -> Iterator[_Repair]:
    """Yield ``repair``, of all replicas together, for each replica alone.

    Replicas do not meet before their last pass, so one replay serves all of them.
    """
    unchanged = replay.finished()
    for index, replica in enumerate(replay.replicas):
        one, others = unchanged.copy(), replay.ideal.copy()
        one[:, index], others[:, index] = repair.one[:, index], repair.others[:, index]
        yield repair._replace(one=one, others=others, replicas=[replica])


def _ranks(
    members: Mapping[tuple[int, int], Sequence[int]], replicas: Iterable[int], stages: Iterable[int]
) -> list[int]:
    """Return the ranks of the workers in these replicas and stages, ascending.

    Args:
        members: the result of `_members`.
        replicas: the replicas of the workers.
        stages: the stages of the workers.
    """
    workers = itertools.product(replicas, stages)
    return sorted(rank for worker in workers for rank in members.get(worker, ()))


_ORDER = ("kind", "stage", "worker", "link")

_CELL = ["step", "replica"]
_WORKER = [*_CELL, "stage"]


def _with_workers(rows: pl.DataFrame, topology: Topology) -> pl.DataFrame:
    """Return ``rows`` with the replica and stage of each row's rank.

    In a pipeline, rows of kind ``own`` are removed.
    """
    coordinates = {rank: topology.coordinate(rank) for rank in rows["rank"].unique()}
    replica = {
        rank: coordinate["dp"] * topology.degree("sharding") + coordinate["sharding"]
        for rank, coordinate in coordinates.items()
    }
    stage = {rank: coordinate["pp"] for rank, coordinate in coordinates.items()}
    with_workers = rows.with_columns(
        replica=pl.col("rank").replace_strict(replica, return_dtype=pl.Int64),
        stage=pl.col("rank").replace_strict(stage, return_dtype=pl.Int64),
    )
    # In a pipeline, a stage's own work does not show when it waited for another stage.
    is_own = (pl.col("kind") == "own") & pl.lit(topology.degree("pp") > 1)
    return with_workers.filter(is_own.not_())


def _members(rows: pl.DataFrame) -> dict[tuple[int, int], list[int]]:
    """Return the ranks of each worker, ascending, keyed by (replica, stage)."""
    workers = rows.group_by("replica", "stage").agg(pl.col("rank").unique().sort())
    return {(replica, stage): ranks for replica, stage, ranks in workers.rows()}


def _ends(rows: pl.DataFrame) -> pl.DataFrame:
    """Return step, recorded_ns and tail_ns of each step, in nanoseconds.

    recorded_ns is the length of the step, lower median over ranks. tail_ns is the time from a
    rank's last pass to its end of the step, the shortest of all ranks, since that rank does not
    wait::

        rank 0   F0 ... B3 [ wait | sum gradients, optimizer ]
        rank 2   F0 ...... B3     [ sum gradients, optimizer ]    the shortest
    """
    is_step = pl.col("kind") == "step"
    by_rank = rows.group_by("step", "rank").agg(
        length=(pl.col("end_ns") - pl.col("start_ns")).filter(is_step).first(),
        tail=pl.col("end_ns").filter(is_step).first() - pl.col("end_ns").filter(~is_step).max(),
    )
    return by_rank.group_by("step").agg(
        recorded_ns=_median(pl.col("length")), tail_ns=pl.col("tail").min()
    )


def _median(values: pl.Expr) -> pl.Expr:
    """Return the lower median of ``values``, int64; nulls are ignored."""
    return values.quantile(0.5, "lower").cast(pl.Int64)


def _operations(rows: pl.DataFrame, num_stages: int) -> pl.DataFrame:
    """Return the operations of each worker, sorted by worker and time.

    Besides the passes (or ``own``), the workers of stage 0 have an operation of kind ``head``: the
    time from the start of the step to their first pass.

    Returns:
        - step, replica, stage, kind, chunk, micro_batch;
        - first_rank: the lowest rank of the worker;
        - dur_ns: the longest duration among the worker's ranks (of a head: the shortest);
        - end_ns: the latest end among these ranks (of a head: the earliest);
        - start_ns: end_ns - dur_ns;
        - usual_ns: lower median of dur_ns over all operations of the kind in the step;
        - balanced_ns: mean of dur_ns over the worker's operations of the kind and chunk in the
          step, lower median of these over replicas, then the mean over stages and chunks, rounded;
        - steady_ns: lower median of dur_ns over the worker's operations of the kind in all steps;
        - needs_stage, needs_chunk: the stage and chunk whose pass of the same kind and micro-batch
          must be done first. needs_stage is null if the operation needs no such pass.
    """
    operations = (
        rows.filter(pl.col("kind") != "step")
        .group_by(*_WORKER, "kind", "chunk", "micro_batch")
        .agg(
            first_rank=pl.col("rank").min(),
            dur_ns=(pl.col("end_ns") - pl.col("start_ns")).max(),
            end_ns=pl.col("end_ns").max(),
        )
        .with_columns(start_ns=pl.col("end_ns") - pl.col("dur_ns"))
    )
    is_step = pl.col("kind") == "step"
    heads = (
        rows.group_by(*_WORKER, "rank")
        .agg(
            dur_ns=pl.col("start_ns").filter(~is_step).min()
            - pl.col("start_ns").filter(is_step).first(),
            end_ns=pl.col("start_ns").filter(~is_step).min(),
        )
        .group_by(_WORKER)
        .agg(pl.col("rank").min().alias("first_rank"), pl.col("dur_ns", "end_ns").min())
        .filter(pl.col("stage") == 0)
        .drop_nulls()
        .with_columns(kind=pl.lit("head"), start_ns=pl.col("end_ns") - pl.col("dur_ns"))
    )
    last = num_stages - 1
    stage, chunk = pl.col("stage"), pl.col("chunk")
    is_forward, is_backward = pl.col("kind") == "forward", pl.col("kind") == "backward"
    forward, backward = is_forward & (stage > 0), is_backward & (stage < last)
    wraps_forward = is_forward & (chunk > 0)
    wraps_backward = is_backward & (chunk < chunk.max())
    return (
        pl.concat([operations, heads], how="diagonal")
        .with_columns(
            usual_ns=_median(pl.col("dur_ns")).over("step", "kind"),
            in_worker_ns=pl.col("dur_ns").mean().over(*_WORKER, "kind", "chunk"),
            steady_ns=_median(pl.col("dur_ns")).over("replica", "stage", "kind"),
            needs_stage=pl.when(forward)
            .then(stage - 1)
            .when(backward)
            .then(stage + 1)
            .when(wraps_forward & pl.lit(last > 0))
            .then(last)
            .when(wraps_backward & pl.lit(last > 0))
            .then(0),
            needs_chunk=pl.when(forward | backward)
            .then(chunk)
            .when(wraps_forward)
            .then(chunk - 1)
            .otherwise(chunk + 1),
        )
        .with_columns(
            in_stage_ns=pl.col("in_worker_ns")
            .quantile(0.5, "lower")
            .over("step", "kind", "stage", "chunk")
        )
        .with_columns(
            balanced_ns=pl.col("in_stage_ns").mean().round().cast(pl.Int64).over("step", "kind")
        )
        .sort(*_WORKER, pl.col("kind") != "head", "start_ns", "end_ns")
    )


class _Replay:
    """The operations of all steps and replicas, with their dependencies, ready to be replayed.

    ::

        previous on its worker   ####
        input                    #######
        operation                    gap|######      or   transfer|######, whichever is later
    """

    def __init__(self, operations: pl.DataFrame) -> None:
        table = _with_delays(_linked(operations))
        self.all = np.full(table.height, True)
        """A mask that selects every operation."""
        self.stages: list[int] = table["stage"].unique().sort().to_list()
        self.stage = table["stage"].to_numpy()
        """The stage of each operation."""
        self.first_rank = table["first_rank"].to_numpy()
        """The lowest rank of each operation's worker."""
        self.kind = table["kind"].to_numpy()
        """The kind of each operation."""
        self.kinds: list[str] = table["kind"].unique().sort().to_list()
        self._low, self._high = table["low"].to_numpy(), table["high"].to_numpy()
        self.pairs: list[tuple[int, int]] = (
            table.filter("receives").select("low", "high").unique().sort("low", "high").rows()
        )
        """Pairs of stages with a link between them."""
        self._table = {name: table[name].to_numpy() for name in _REPLAYED}
        steps, replicas = (np.unique(table[name].to_numpy()) for name in _CELL)
        self._cell = (
            np.searchsorted(steps, table["step"].to_numpy()),
            np.searchsorted(replicas, table["replica"].to_numpy()),
        )
        self._waves, stuck = _waves(self._table["previous"], self._table["input"])
        self._is_whole = np.zeros((len(steps), len(replicas)), bool)
        self._is_whole[self._cell] = True
        self._is_whole[self._cell[0][stuck], self._cell[1][stuck]] = False
        self._shown = np.ix_(self._is_whole.any(axis=1), self._is_whole.any(axis=0))
        self.whole_steps: Int64 = steps[self._shown[0].ravel()]
        """The steps in which at least one replica can be replayed."""
        self.replicas: list[int] = replicas[self._shown[1].ravel()].tolist()
        """The replicas that can be replayed in at least one step."""
        self.ideal = self.finished(self.all, self.all)
        """The result of `finished` if all operations and transfers take their usual time."""
        self.balanced = self.finished(self.all, self.all, to="balanced_ns")
        """Like ``ideal``, with the balanced times of all operations."""

    def of_link(self, low: int, high: int) -> Bool:
        """Return whether each operation gets its input over the link between two stages.

        Args:
            low: the lower stage of the link.
            high: the higher stage of the link.
        """
        is_between: Bool = (self._low == low) & (self._high == high)
        return is_between

    def finished(
        self, fixed: Bool | None = None, links: Bool | None = None, to: str = "usual_ns"
    ) -> Int64:
        """Return the time from the start of a step to the end of each replica's last pass.

        Args:
            fixed: whether each operation takes the time ``to``; None: no operation does.
            links: whether the input of each operation takes the usual transfer time; None: no
                input does.
            to: ``usual_ns``, ``balanced_ns`` or ``steady_ns``, see `_operations`.

        Returns:
            Nanoseconds, shape (whole_steps, replicas); 0 for a replica that cannot be replayed in
            a step.
        """
        table, none, num = self._table, ~self.all, len(self.all)
        dur = np.where(none if fixed is None else fixed, table[to], table["dur_ns"])
        transfer_ns = np.where(
            none if links is None else links, table["usual_transfer_ns"], table["transfer_ns"]
        )
        end = np.zeros(num + 2, np.int64)
        for wave in self._waves:
            previous = end[table["previous"][wave]] + table["gap_ns"][wave]
            arrival = end[table["input"][wave]] + transfer_ns[wave]
            end[wave] = np.maximum(previous, arrival) + dur[wave]
        done = np.zeros(self._is_whole.shape, np.int64)
        np.maximum.at(done, self._cell, end[:num])
        whole: Int64 = np.where(self._is_whole, done, 0)[self._shown]
        return whole


_REPLAYED = (
    "previous",
    "input",
    "dur_ns",
    "usual_ns",
    "balanced_ns",
    "steady_ns",
    "gap_ns",
    "transfer_ns",
    "usual_transfer_ns",
)


def _linked(operations: pl.DataFrame) -> pl.DataFrame:
    """Return ``operations`` with the columns previous, input, low and high.

    previous is the row of the worker's previous operation, and input the row of the pass that must
    be done first. Two row numbers after the last row have a meaning: N stands for "not needed"
    (done from the start), N + 1 for "needed but missing" (never done). low and high are the two
    stages of the link over which the input comes; both are the own stage if no input is needed.
    """
    num = operations.height
    row = pl.int_range(pl.len(), dtype=pl.Int64)
    makers = operations.select(
        *_CELL, "kind", "micro_batch", needs_stage="stage", needs_chunk="chunk", input=row
    )
    is_same_worker = pl.all_horizontal(pl.col(key) == pl.col(key).shift() for key in _WORKER)
    other = pl.col("needs_stage")
    return operations.join(makers, makers.columns[:-1], "left", maintain_order="left").with_columns(
        previous=pl.when(is_same_worker).then(row - 1).otherwise(num),
        input=pl.when(other.is_null()).then(num).otherwise(pl.col("input").fill_null(num + 1)),
        low=pl.min_horizontal("stage", pl.coalesce(other, "stage")),
        high=pl.max_horizontal("stage", pl.coalesce(other, "stage")),
    )


def _with_delays(table: pl.DataFrame) -> pl.DataFrame:
    """Return ``table`` with the typical delays between operations.

    Returns:
        ``table`` with receives (whether an operation has an input) and three lower medians, 0 if
        unknown: gap_ns, the time between two operations of a worker, in the step; transfer_ns, the
        time from the end of an input to the pass that waited for it, of the link in the step (of
        all links if no pass of the link waited); usual_transfer_ns, the transfer time of all links
        in the step.
    """
    num = table.height
    end = np.append(table["end_ns"].to_numpy(), [0, 0])
    start, previous, input_row = (
        table[name].to_numpy() for name in ("start_ns", "previous", "input")
    )
    kind = np.append(table["kind"].to_numpy(), ["head", "head"])
    table = table.with_columns(
        delay=(start - np.maximum(end[previous], end[input_row])).clip(0),
        follows=kind[previous] != "head",
        receives=input_row < num,
        has_waited=(input_row < num) & (end[input_row] > end[previous]),
    )
    gap = pl.when(pl.col("follows") & ~pl.col("has_waited")).then("delay")
    transfer = pl.when("has_waited").then("delay")
    link = ["step", "replica", "low", "high"]
    usual_transfer = _median(transfer).over("step")
    return table.with_columns(
        gap_ns=pl.when("follows").then(_median(gap).over("step")),
        transfer_ns=pl.when("receives").then(
            pl.coalesce(_median(transfer).over(link), usual_transfer)
        ),
        usual_transfer_ns=pl.when("receives").then(usual_transfer),
    ).with_columns(pl.col("gap_ns", "transfer_ns", "usual_transfer_ns").fill_null(0))


def _waves(previous: Int64, input_row: Int64) -> tuple[list[Int64], Int64]:
    """Return the rows in waves: the operations of a wave depend only on earlier waves.

    Args:
        previous: see `_linked`, shape (N,).
        input_row: the column input of `_linked`, shape (N,).

    Returns:
        The rows of each wave, and the rows that can never be done: they need a missing operation,
        or each other.
    """
    num = len(previous)
    done = np.zeros(num + 2, bool)
    done[num] = True
    waiting, waves = np.arange(num), []
    while len(waiting):
        is_ready = done[previous[waiting]] & done[input_row[waiting]]
        if not is_ready.any():
            break
        waves.append(waiting[is_ready])
        done[waiting[is_ready]] = True
        waiting = waiting[~is_ready]
    return waves, waiting
