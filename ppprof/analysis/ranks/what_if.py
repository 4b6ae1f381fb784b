"""What a step would take if the slowest worker, stage or link were as fast as the median.

`passes` makes of one rank's trace a small table; `what_if` joins those of all ranks, replays the
steps, and replays them again with some of the times replaced by the usual ones. Source: Lin et al.,
"Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025
(arXiv:2505.05713), and its artifact, github.com/ByteDance-Seed/StragglerAnalysis:

- S = T / T_ideal, T the replayed step time, T_ideal with every operation as long as the usual one
  of its kind;
- S_w = T_w / T_ideal, T_w with everything but one worker as ideal;
- M_W = (T - T_W) / (T - T_ideal), T_W with the 3% of the workers (one at least) as ideal that have
  the largest S_w;
- M_S, the same with the last pipeline stage as ideal.

What is replayed: a *worker* is a stage of a replica, its mp (and sep) ranks together, for they wait
for each other in every layer. A pass begins once the one before it on its worker is done and its
input is there::

    stage 0   F0 F1 ........B0 F2 B1          forward: from the stage before
    stage 1      F0 B0 F1 B1                  backward: from the stage behind

and behind the last pass of all of them comes the end of the step (gradients summed over replicas,
the optimizer), where everybody meets. Without a pipeline a worker has one operation a step: what it
does until it meets the other replicas.

Ours differs from theirs in that the usual time is the lower median (theirs: the mean, for
computation) of a kind in one step (theirs: in all), over all workers and micro-batches; and in that
what lies between two passes stays in the replay, as long as it typically is. Of the artifact's three
sample traces T is within 0.3% of the recorded time, step by step; S, M_W and M_S come out as

=====  ====  ===========  ======  ===========  ======  ===========
trace  S     in artifact  M_W     in artifact  M_S     in artifact
=====  ====  ===========  ======  ===========  ======  ===========
AR     2.09  1.97         0.97    1.00         0.00    -0.00
ST     1.31  1.18         0.02    0.03         1.00    1.22
SE     1.51  1.54         0.02    0.03         0.69    0.69
=====  ====  ===========  ======  ===========  ======  ===========
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import difference, overlap
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.collectives import to_reference_clock, with_kernel_times
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
"""What `passes` gives. ``kind``: ``step``, the step itself; ``forward`` and ``backward``, a
micro-batch's way through a chunk (0 where the stage is not divided); ``own``, of a step without
these: as much time, from its start, as the rank does not wait for other replicas. chunk and
micro_batch are null for step and own."""

WHAT_IF: dict[str, pl.DataType] = {
    "fixed": pl.String(),
    "stage": pl.Int64(),
    "ranks": pl.String(),
    "step_ns": pl.Float64(),
    "slowdown": pl.Float64(),
    "share": pl.Float64(),
    "alone_slowdown": pl.Float64(),
    "error_ratio": pl.Float64(),
}
"""What `what_if` gives; see there."""

_SLOWEST = 0.03
"""Of the workers: those that M_W is about."""

_BETWEEN_REPLICAS = ("dp", "sharding")


def passes(profile: Profile, rank: int = -1) -> pl.DataFrame:
    """One rank's steps and what it does in them, as `what_if` takes it.

    A pass that launched kernels is as long as these ran.

    Args:
        profile: its window.
        rank: what stands in the column; -1 for one that is to be told.

    Returns:
        Columns of `PASSES`, by start. No rows where there are no steps.
    """
    events = profile.trace.events.with_row_index("row").with_columns(
        pl.col("row").cast(pl.Int64), end_ns=pl.col("start_ns") + pl.col("dur_ns")
    )
    in_steps = events.drop_nulls("step")
    steps = in_steps.filter(pl.col("category") == "ProfileStep").with_columns(kind=pl.lit("step"))
    of_pipeline = pl.col("micro_batch").is_not_null()
    spans = in_steps.filter(of_pipeline & pl.col("category").is_in(["Forward", "Backward"]))
    found = with_kernel_times(spans, events).with_columns(
        pl.col("chunk").fill_null(0),
        kind=pl.col("category").cast(pl.String).str.to_lowercase(),
    )
    alone = steps.filter(pl.col("step").is_in(found["step"].implode()).not_())
    own = _without_other_replicas(profile, events, alone)
    tables = [
        table.select(rank=pl.lit(rank), **{name: pl.col(name) for name in list(PASSES)[1:]})
        for table in (steps, found, own)
    ]
    return pl.concat(table.cast(PASSES) for table in tables).sort("start_ns", maintain_order=True)  # type: ignore[arg-type]


def _without_other_replicas(
    profile: Profile, events: pl.DataFrame, steps: pl.DataFrame
) -> pl.DataFrame:
    """Steps, shortened by the communication between replicas that no computation hides.

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
    communication = with_kernel_times(
        events.filter((pl.col("category") == "Communication") & between.fill_null(value=True)),
        events,
    )
    exposed = intervals_of(communication)
    if events["device"].count():
        exposed = difference(exposed, profile.communication.computation)
    waited = [
        overlap((np.array([start]), np.array([end])), exposed)
        for start, end in steps.select("start_ns", "end_ns").rows()
    ]
    return steps.with_columns(
        kind=pl.lit("own"), end_ns=pl.col("end_ns") - pl.Series(waited, dtype=pl.Int64)
    )


def what_if(
    parts: Sequence[pl.DataFrame],
    topology: Topology,
    clocks: Mapping[int, Clock] | None = None,
) -> pl.DataFrame:
    """Step times if something were as fast as the median.

    Durations are each rank's own and need no common clock; only how long an input is under way
    does: the time from the end of the pass that sends to the start of a pass that has waited for
    it. Typical of a link is the lower median in a step; clocks that are off by more than that hide
    it. Replicas of which a pass is missing are left out.

    Args:
        parts: of each rank, what `passes` gave.
        topology: where the ranks stand.
        clocks: of ranks whose clock is known; the others' times stand as they are.

    Returns:
        Columns of `WHAT_IF`. ``fixed`` says what is as fast as the median:

        - ``recorded``: nothing, and the time is the recorded one (lower median over ranks);
        - ``nothing``: the replay, T; ``error_ratio`` (null in other rows) is how far it is from
          the recorded time, mean over steps of the absolute difference over the mean;
        - ``all``: T_ideal, and ``slowdown`` is S;
        - ``steady``: nothing, but each operation takes as long as it usually does on its own worker,
          over all steps: what varies from one micro-batch to the next (chance, or sequences of
          different length) is gone, and who is always slow stays so;
        - ``slowest``: the workers with the largest ``alone_slowdown``, and ``share`` is M_W;
        - ``stage``: one stage of all replicas, if there are several; the share of the last is M_S;
        - ``worker``, ``link``: one of them; of links, how long inputs are under way.

        ``ranks``, comma-separated, are those that are fixed; ``stage`` where they are of one stage.
        ``step_ns``: mean over steps. ``slowdown``: T over that time. ``share``: of what could be
        gained, (T - step_ns) / (T - T_ideal); above 1 or below 0 where fixed times are longer than
        the recorded ones; null where nothing could be gained. ``alone_slowdown``, of stages, workers
        and links: the time with everything but these as fast as the median, over T_ideal (of a
        worker S_w): two that are equally late have a share of 0 each, for the other one is still
        late, but this shows them. Stages, workers and links: by share, the largest first. No rows
        where nothing can be replayed, such as a pipeline whose passes nobody recorded.
    """
    known = [to_reference_clock(part, clocks or {}) for part in parts if part.height]
    rows = _placed(pl.concat(known) if known else pl.DataFrame(schema=PASSES), topology)
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
    base_ns = step_ns(replay.finished())
    base, ideal = float(base_ns.mean()), mean_ns(replay.finished(replay.all, replay.all))
    repairs = [
        (fixed, stages, _ranks(members, replicas, stages), mean_ns(one), mean_ns(others) / ideal)
        for fixed, replicas, stages, one, others in _repairs(replay)
    ]
    repairs.sort(key=lambda case: (_ORDER.index(case[0]), case[3], -case[4]))
    workers = [(alone, ranks) for fixed, _, ranks, _, alone in repairs if fixed == "worker"]
    workers.sort(key=lambda worker: -worker[0])
    num_slowest = math.ceil(_SLOWEST * len(workers))
    slowest = sorted(rank for _, ranks in workers[:num_slowest] for rank in ranks)
    without = replay.finished(np.isin(replay.first_rank, slowest))
    steady = replay.finished(replay.all, to="steady_ns")
    everybody = _ranks(members, replay.replicas, replay.stages)
    cases: list[tuple[str, Sequence[int], Sequence[int], float, float | None]] = [
        ("recorded", (), (), float(recorded_ns.mean()), None),
        ("nothing", (), (), base, None),
        ("all", (), everybody, ideal, None),
        ("steady", (), (), mean_ns(steady), None),
        ("slowest", (), slowest, mean_ns(without), None),
        *repairs,
    ]
    replayed = [time_ns if fixed != "recorded" else None for fixed, *_, time_ns, _ in cases]
    error = float(np.abs(base_ns - recorded_ns).mean() / recorded_ns.mean())
    return pl.DataFrame(
        {
            "fixed": [case[0] for case in cases],
            "stage": [case[1][0] if len(case[1]) == 1 else None for case in cases],
            "ranks": [",".join(map(str, case[2])) or None for case in cases],
            "step_ns": [case[3] for case in cases],
            "slowdown": [None if time_ns is None else base / time_ns for time_ns in replayed],
            "share": [
                None if time_ns is None or base <= ideal else (base - time_ns) / (base - ideal)
                for time_ns in replayed
            ],
            "alone_slowdown": [case[4] for case in cases],
            "error_ratio": [error if case[0] == "nothing" else None for case in cases],
        },
        WHAT_IF,
    )


def _repairs(
    replay: _Replay,
) -> Iterator[tuple[str, Sequence[int], Sequence[int], Int64, Int64]]:
    """Stages, workers and links, each repaired, and each the only one that is not.

    Returns:
        What it is, its replicas, its stages; what `_Replay.finished` says with it as fast as usual,
        and with everything but it as fast as usual.
    """
    masks: list[tuple[str, Sequence[int], Bool]] = [
        *(("worker", [stage], replay.stage == stage) for stage in replay.stages),
        *(("link", pair, replay.of_link(*pair)) for pair in replay.pairs),
    ]
    as_it_was, ideal = replay.finished(), replay.finished(replay.all, replay.all)
    for fixed, stages, mask in masks:
        if fixed == "worker":
            one = replay.finished(mask)
            others = replay.finished(~mask, replay.all)
            if len(replay.stages) > 1:
                yield "stage", replay.replicas, stages, one, others
        else:
            one = replay.finished(links=mask)
            others = replay.finished(replay.all, ~mask)
        # Replicas do not meet before their last pass: what repairs all of them repairs each.
        for at, replica in enumerate(replay.replicas):
            found = as_it_was.copy(), ideal.copy()
            found[0][:, at], found[1][:, at] = one[:, at], others[:, at]
            yield (fixed, [replica], stages, *found)


def _ranks(
    members: Mapping[tuple[int, int], Sequence[int]], replicas: Iterable[int], stages: Iterable[int]
) -> list[int]:
    """The ranks of these workers, ascending."""
    at = itertools.product(replicas, stages)
    return sorted(rank for worker in at for rank in members.get(worker, ()))


_ORDER = ("stage", "worker", "link")

_CELL = ["step", "replica"]
_WORKER = [*_CELL, "stage"]


def _placed(rows: pl.DataFrame, topology: Topology) -> pl.DataFrame:
    """``rows`` with the replica and the stage that each rank belongs to."""
    at = {rank: topology.coordinate(rank) for rank in rows["rank"].unique()}
    replica = {
        rank: where["dp"] * topology.degree("sharding") + where["sharding"]
        for rank, where in at.items()
    }
    stage = {rank: where["pp"] for rank, where in at.items()}
    told = rows.with_columns(
        replica=pl.col("rank").replace_strict(replica, return_dtype=pl.Int64),
        stage=pl.col("rank").replace_strict(stage, return_dtype=pl.Int64),
    )
    # What a stage does by itself says nothing of when it had to wait for another one.
    is_own = (pl.col("kind") == "own") & pl.lit(topology.degree("pp") > 1)
    return told.filter(is_own.not_())


def _members(rows: pl.DataFrame) -> dict[tuple[int, int], list[int]]:
    """The ranks of each worker, by replica and stage."""
    found = rows.group_by("replica", "stage").agg(pl.col("rank").unique().sort())
    return {(replica, stage): ranks for replica, stage, ranks in found.rows()}


def _ends(rows: pl.DataFrame) -> pl.DataFrame:
    """Of each step: recorded_ns, and tail_ns, how long it goes on after everybody's last pass.

    ::

        rank 0   F0 ... B3 [ wait | sum gradients, optimizer ]
        rank 2   F0 ...... B3     [ sum gradients, optimizer ]    the shortest: it waits for nobody
    """
    is_step = pl.col("kind") == "step"
    of_rank = rows.group_by("step", "rank").agg(
        length=(pl.col("end_ns") - pl.col("start_ns")).filter(is_step).first(),
        tail=pl.col("end_ns").filter(is_step).first() - pl.col("end_ns").filter(~is_step).max(),
    )
    return of_rank.group_by("step").agg(
        recorded_ns=_median(pl.col("length")), tail_ns=pl.col("tail").min()
    )


def _median(values: pl.Expr) -> pl.Expr:
    """The lower median of those that are not null."""
    return values.quantile(0.5, "lower").cast(pl.Int64)


def _operations(rows: pl.DataFrame, num_stages: int) -> pl.DataFrame:
    """What each worker does in a step, in its order.

    Returns:
        step, replica, stage, kind, chunk, micro_batch, first_rank (of the worker), dur_ns (the
        longest of its ranks'), start_ns, end_ns, usual_ns (lower median of the kind, of all workers
        in the step), steady_ns (of its worker in all steps); and needs_stage, needs_chunk: where
        the same kind of pass has to be done first, null for none. Before the first pass of stage 0
        stands a ``head``: from the beginning of the step to there.
    """
    worked = (
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
        pl.concat([worked, heads], how="diagonal")
        .with_columns(
            usual_ns=_median(pl.col("dur_ns")).over("step", "kind"),
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
        .sort(*_WORKER, pl.col("kind") != "head", "start_ns", "end_ns")
    )


class _Replay:
    """The operations of all steps and replicas, and what each has to wait for.

    ::

        previous on its worker   ####
        input                    #######
        operation                    gap|######      or   under way|######, whichever is later
    """

    def __init__(self, operations: pl.DataFrame) -> None:
        table = _with_delays(_linked(operations))
        self.all = np.full(table.height, True)
        """Every operation."""
        self.stages: list[int] = table["stage"].unique().sort().to_list()
        self.stage = table["stage"].to_numpy()
        """Of each operation; as is first_rank."""
        self.first_rank = table["first_rank"].to_numpy()
        self._low, self._high = table["low"].to_numpy(), table["high"].to_numpy()
        self.pairs: list[tuple[int, int]] = (
            table.filter("receives").select("low", "high").unique().sort("low", "high").rows()
        )
        """Stages between which there is a link."""
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
        """Those of which a replica can be replayed."""
        self.replicas: list[int] = replicas[self._shown[1].ravel()].tolist()
        """Those that can be replayed in some step."""

    def of_link(self, low: int, high: int) -> Bool:
        """Which operations get their input over the link between two stages."""
        between: Bool = (self._low == low) & (self._high == high)
        return between

    def finished(
        self, fixed: Bool | None = None, links: Bool | None = None, to: str = "usual_ns"
    ) -> Int64:
        """When the replicas are done with their last pass, from the beginning of the step.

        Args:
            fixed: which operations take as long as ``to`` says; none by default.
            links: which operations' inputs are under way as long as usual.
            to: ``usual_ns`` or ``steady_ns``, see `_operations`.

        Returns:
            Shape (whole_steps, replicas); 0 for a replica that cannot be replayed in a step.
        """
        of, none, num = self._table, ~self.all, len(self.all)
        dur = np.where(none if fixed is None else fixed, of[to], of["dur_ns"])
        way = np.where(none if links is None else links, of["usual_way_ns"], of["way_ns"])
        end = np.zeros(num + 2, np.int64)
        for wave in self._waves:
            previous = end[of["previous"][wave]] + of["gap_ns"][wave]
            end[wave] = np.maximum(previous, end[of["input"][wave]] + way[wave]) + dur[wave]
        done = np.zeros(self._is_whole.shape, np.int64)
        np.maximum.at(done, self._cell, end[:num])
        whole: Int64 = np.where(self._is_whole, done, 0)[self._shown]
        return whole


_REPLAYED = (
    "previous",
    "input",
    "dur_ns",
    "usual_ns",
    "steady_ns",
    "gap_ns",
    "way_ns",
    "usual_way_ns",
)


def _linked(operations: pl.DataFrame) -> pl.DataFrame:
    """``operations`` with the row of the ``previous`` one on its worker and of its ``input``.

    Behind the last row two are thought: the first of them is done from the beginning, and stands
    for what is not needed; the second never is, and stands for what is needed and missing.
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
    """What lies between the operations: how long it typically takes.

    Returns:
        ``table`` with gap_ns (between two on a worker, of the step), way_ns (from an input's end
        to the pass that waited for it, of the link) and usual_way_ns (of all links in the step); 0
        where nothing tells.
    """
    num = table.height
    end = np.append(table["end_ns"].to_numpy(), [0, 0])
    start, previous, given = (table[name].to_numpy() for name in ("start_ns", "previous", "input"))
    kind = np.append(table["kind"].to_numpy(), ["head", "head"])
    table = table.with_columns(
        delay=(start - np.maximum(end[previous], end[given])).clip(0),
        follows=kind[previous] != "head",
        receives=given < num,
        has_waited=(given < num) & (end[given] > end[previous]),
    )
    gap = pl.when(pl.col("follows") & ~pl.col("has_waited")).then("delay")
    way = pl.when("has_waited").then("delay")
    link = ["step", "replica", "low", "high"]
    usual_way = _median(way).over("step")
    return table.with_columns(
        gap_ns=pl.when("follows").then(_median(gap).over("step")),
        way_ns=pl.when("receives").then(pl.coalesce(_median(way).over(link), usual_way)),
        usual_way_ns=pl.when("receives").then(usual_way),
    ).with_columns(pl.col("gap_ns", "way_ns", "usual_way_ns").fill_null(0))


def _waves(previous: Int64, given: Int64) -> tuple[list[Int64], Int64]:
    """Rows by what they wait for: each wave only for rows of those before it.

    Returns:
        The waves, and the rows that never can be done.
    """
    num = len(previous)
    done = np.zeros(num + 2, bool)
    done[num] = True
    waiting, waves = np.arange(num), []
    while len(waiting):
        can = done[previous[waiting]] & done[given[waiting]]
        if not can.any():
            break
        waves.append(waiting[can])
        done[waiting[can]] = True
        waiting = waiting[~can]
    return waves, waiting
