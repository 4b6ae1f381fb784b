"""The step time if the slowest worker, stage or link were as fast as the median.

`ppprof.analysis.ranks.passes.passes` returns a small table of one rank's trace. `what_if` joins the
tables of all ranks, replays the steps, and replays them again with some times replaced by usual
times. Source: Lin et al., "Understanding Stragglers in Large Model Training Using What-if
Analysis", OSDI 2025 (arXiv:2505.05713), and its artifact,
github.com/ByteDance-Seed/StragglerAnalysis:

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

from ppprof.analysis.ranks.collectives import to_reference_clock
from ppprof.analysis.ranks.passes import PASSES
from ppprof.analysis.ranks.replay import (
    Replay,
    ends_of_steps,
    members_of_workers,
    operations_of,
    with_workers,
)
from ppprof.arrays import Int64
from ppprof.topology import Topology
from ppprof.trace import Clock

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
        tables: the result of `ppprof.analysis.ranks.passes.passes` for each rank, on the rank's own clock.
        topology: the ranks' coordinates.
        clocks: each rank's clock, keyed by rank. Ranks without a clock keep their times.

    Returns:
        Columns of `WHAT_IF`. No rows if nothing can be replayed, such as a pipeline without
        recorded passes, or if the usual times of a step are 0. ``fixed`` names the operations that
        take their usual time:

        - ``recorded``: none; ``step_ns`` is the recorded time (lower median over ranks);
        - ``nothing``: none; ``step_ns`` is the time of the replay, T;
        - ``all``: all; ``step_ns`` is T_ideal and ``slowdown`` is S;
        - ``steady``: none, but each operation takes the lower median of its kind on its own worker
          over all steps. This removes the variation between micro-batches (chance, or sequences of
          different length); workers that are always slow stay slow;
        - ``balanced``: none, but the stages share the work: each operation takes its recorded time
          times that of a mean stage over that of its own (balanced times of each stage). Unlike
          T_ideal of M_S, chance and slow machines stay, so this is what moving layers between stages
          can gain. There is no such row with a single stage;
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
        - ``share``: the share of the possible gain, (T - step_ns) / (T - T_ideal); for stages,
          T_ideal is the step time if all operations take their balanced time. It is
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
    rows = with_workers(pl.concat(aligned) if aligned else pl.DataFrame(schema=PASSES), topology)
    replay = Replay(operations_of(rows, topology.degree("pp")))
    ends = ends_of_steps(rows).join(pl.DataFrame({"step": replay.whole_steps}), "step").sort("step")
    tail_ns, recorded_ns = ends["tail_ns"].to_numpy(), ends["recorded_ns"].to_numpy()

    def step_ns(finished: Int64) -> Int64:
        lengths: Int64 = finished.max(axis=1) + tail_ns
        return lengths

    def mean_ns(finished: Int64) -> float:
        return float(step_ns(finished).mean())

    if ends.is_empty() or not step_ns(replay.ideal).all():
        return pl.DataFrame(schema=WHAT_IF)
    members = members_of_workers(rows)
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
            [replayed("balanced", mean_ns(replay.shared), ranks=all_ranks)]
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
    """Some operations, and the results of `Replay.finished` with these and with all others fixed."""

    fixed: str
    one: Int64
    others: Int64
    replicas: Sequence[int] = ()
    stages: Sequence[int] = ()
    kind: str | None = None


def _repairs(replay: Replay) -> Iterator[_Repair]:
    """Yield each kind of operation, each stage, worker and link."""
    no_operation = ~replay.all
    for kind in replay.kinds:
        mask = replay.kind == kind
        one, others = replay.finished(mask), replay.finished(~mask, replay.all)
        yield _Repair("kind", one, others, kind=kind)
    if replay.pairs:
        one = replay.finished(no_operation, replay.all)
        others = replay.finished(replay.all, no_operation)
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


def _by_replica(replay: Replay, repair: _Repair) -> Iterator[_Repair]:
    """Yield the part of ``repair`` that is of one replica, for each replica.

    No other replay is needed: replicas do not wait for each other before their last pass, so a repair
    in one of them changes only when that one has finished.
    """
    unchanged = replay.finished()
    for index, replica in enumerate(replay.replicas):
        one, others = unchanged.copy(), replay.ideal.copy()
        one[:, index], others[:, index] = repair.one[:, index], repair.others[:, index]
        yield repair._replace(one=one, others=others, replicas=[replica])


def _ranks(
    members: Mapping[tuple[int, int], Sequence[int]], replicas: Iterable[int], stages: Iterable[int]
) -> list[int]:
    """Return the ranks of the workers in these replicas and stages, ascending."""
    workers = itertools.product(replicas, stages)
    return sorted(rank for worker in workers for rank in members.get(worker, ()))


_ORDER = ("kind", "stage", "worker", "link")
