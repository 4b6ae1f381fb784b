"""The step time if the slowest worker, stage or link were as fast as the median.

`passes` returns a small table of one rank's trace. `what_if` joins those of all ranks, replays the
steps, and replays them again with some times replaced by the usual ones. Source: Lin et al.,
"Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025
(arXiv:2505.05713), and its artifact, github.com/ByteDance-Seed/StragglerAnalysis:

- S = T / T_ideal: T is the replayed step time, T_ideal that with the usual time for every operation;
- S_w = T_w / T_ideal: T_w has the usual time for everything but one worker;
- M_W = (T - T_W) / (T - T_ideal): T_W has the usual time for the 3% of the workers (at least one)
  with the largest S_w;
- M_S: the same with the usual time for the last pipeline stage.

The replay: a *worker* is one stage of one replica. It is all its mp (and sep) ranks together, since
these wait for each other in every layer. A pass begins once the previous pass of its worker is done
and its input has arrived::

    stage 0   F0 F1 ........B0 F2 B1          forward: input from the previous stage
    stage 1      F0 B0 F1 B1                  backward: input from the next stage

After the last pass of all workers comes the end of the step (sum of gradients over replicas,
optimizer), which all ranks enter together. Without a pipeline a worker has one operation per step:
its work until it meets the other replicas.

Two things differ from the paper. The usual time is the lower median (there: the mean, for
computation) of a kind in one step (there: in all steps), over all workers and micro-batches. And the
time between two passes stays in the replay, at its typical length. For the artifact's three sample
traces, T is within 0.3% of the recorded time, step by step; S, M_W and M_S are

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
"""Columns of `passes`. ``kind`` is ``step``, the step itself; ``forward`` or ``backward``, one
micro-batch in one chunk (0 if the stage has one chunk); or ``own``, in steps without passes: the step's
time without the wait for other replicas, from its start. chunk and micro_batch are null for step and
own."""

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
"""Columns of `what_if`; see there."""

_SLOWEST = 0.03
"""The share of the workers in M_W."""

_BETWEEN_REPLICAS = ("dp", "sharding")


def passes(profile: Profile, rank: int = -1) -> pl.DataFrame:
    """Return one rank's steps and passes.

    A pass that launched kernels lasts from the first kernel's start to the last one's end.

    Args:
        profile: the rank's window.
        rank: the value of the column rank; -1 if unknown.

    Returns:
        Columns of `PASSES`, by start. No rows if there are no steps.
    """
    events = profile.trace.events.with_row_index("row").with_columns(
        pl.col("row").cast(pl.Int64), end_ns=pl.col("start_ns") + pl.col("dur_ns")
    )
    in_steps = events.drop_nulls("step")
    steps = in_steps.filter(pl.col("category") == "ProfileStep").with_columns(kind=pl.lit("step"))
    of_pipeline = pl.col("micro_batch").is_not_null()
    spans = in_steps.filter(of_pipeline & pl.col("category").is_in(["Forward", "Backward"]))
    passes = with_kernel_times(spans, events).with_columns(
        pl.col("chunk").fill_null(0),
        kind=pl.col("category").cast(pl.String).str.to_lowercase(),
    )
    without_passes = steps.filter(pl.col("step").is_in(passes["step"].implode()).not_())
    own = _own_work(profile, events, without_passes)
    tables = [
        table.select(rank=pl.lit(rank), **{name: pl.col(name) for name in list(PASSES)[1:]})
        for table in (steps, passes, own)
    ]
    return pl.concat(table.cast(PASSES) for table in tables).sort("start_ns", maintain_order=True)  # type: ignore[arg-type]


def _own_work(profile: Profile, events: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return steps without the exposed communication between replicas.

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
    tables: Sequence[pl.DataFrame],
    topology: Topology,
    clocks: Mapping[int, Clock] | None = None,
) -> pl.DataFrame:
    """Return the step times with some operations as fast as the median.

    Durations are each rank's own and need no common clock. Only the transfer of an input does: the
    time from the end of the sending pass to the start of a pass that waited for it. The typical time
    of a link is the lower median in a step; larger clock errors hide it. Replicas with a missing pass
    are left out.

    Args:
        tables: `passes` of each rank.
        topology: the ranks' coordinates.
        clocks: by rank; ranks without a clock keep their times.

    Returns:
        Columns of `WHAT_IF`. ``fixed`` says what takes its usual time:

        - ``recorded``: nothing; the time is the recorded one (lower median over ranks);
        - ``nothing``: the replay, T; ``error_ratio`` (null in other rows) is its distance from the
          recorded time: mean over steps of the absolute difference, over the mean;
        - ``all``: T_ideal; ``slowdown`` is S;
        - ``steady``: nothing, but each operation takes its own worker's usual time over all steps.
          This removes the variation between micro-batches (chance, or sequences of different
          length); workers that are always slow stay slow;
        - ``slowest``: the workers with the largest ``alone_slowdown``; ``share`` is M_W;
        - ``stage``: one stage of all replicas, if there are several stages; the share of the last
          is M_S;
        - ``worker``, ``link``: one of them; for links, the time inputs are under way.

        ``ranks``, comma-separated, are the fixed ones; ``stage`` is set if they are of one stage.
        ``step_ns``: mean over steps. ``slowdown``: T over that time. ``share``: of the possible
        gain, (T - step_ns) / (T - T_ideal); above 1 or below 0 if fixed times are longer than the
        recorded ones; null if nothing can be gained. ``alone_slowdown``, for stages, workers and
        links: the time with everything but these fixed, over T_ideal (for a worker S_w). It shows
        two equally late workers, which have a share of 0 each: with one fixed, the other is still
        late. Stages, workers and links are sorted by share, the largest first. No rows if nothing
        can be replayed, such as a pipeline without recorded passes.
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
    all_ranks = _ranks(members, replay.replicas, replay.stages)
    cases: list[tuple[str, Sequence[int], Sequence[int], float, float | None]] = [
        ("recorded", (), (), float(recorded_ns.mean()), None),
        ("nothing", (), (), base, None),
        ("all", (), all_ranks, ideal, None),
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
    """Yield each stage, worker and link with its replayed times, fixed and as the only one not fixed.

    Yields:
        Its kind, replicas and stages; `_Replay.finished` with it fixed, and with everything else
        fixed.
    """
    masks: list[tuple[str, Sequence[int], Bool]] = [
        *(("worker", [stage], replay.stage == stage) for stage in replay.stages),
        *(("link", pair, replay.of_link(*pair)) for pair in replay.pairs),
    ]
    unchanged, ideal = replay.finished(), replay.finished(replay.all, replay.all)
    for fixed, stages, mask in masks:
        if fixed == "worker":
            one = replay.finished(mask)
            others = replay.finished(~mask, replay.all)
            if len(replay.stages) > 1:
                yield "stage", replay.replicas, stages, one, others
        else:
            one = replay.finished(links=mask)
            others = replay.finished(replay.all, ~mask)
        # Replicas do not meet before their last pass, so one replay serves all of them.
        for index, replica in enumerate(replay.replicas):
            one_fixed, others_fixed = unchanged.copy(), ideal.copy()
            one_fixed[:, index], others_fixed[:, index] = one[:, index], others[:, index]
            yield (fixed, [replica], stages, one_fixed, others_fixed)


def _ranks(
    members: Mapping[tuple[int, int], Sequence[int]], replicas: Iterable[int], stages: Iterable[int]
) -> list[int]:
    """Return the ranks of these workers, ascending."""
    workers = itertools.product(replicas, stages)
    return sorted(rank for worker in workers for rank in members.get(worker, ()))


_ORDER = ("stage", "worker", "link")

_CELL = ["step", "replica"]
_WORKER = [*_CELL, "stage"]


def _with_workers(rows: pl.DataFrame, topology: Topology) -> pl.DataFrame:
    """Return ``rows`` with each rank's replica and stage."""
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
    """Return the ranks of each worker, by replica and stage."""
    workers = rows.group_by("replica", "stage").agg(pl.col("rank").unique().sort())
    return {(replica, stage): ranks for replica, stage, ranks in workers.rows()}


def _ends(rows: pl.DataFrame) -> pl.DataFrame:
    """Return recorded_ns and tail_ns of each step. The tail follows the last pass of all ranks.

    ::

        rank 0   F0 ... B3 [ wait | sum gradients, optimizer ]
        rank 2   F0 ...... B3     [ sum gradients, optimizer ]    the shortest: it does not wait
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
    """Return the lower median, without nulls."""
    return values.quantile(0.5, "lower").cast(pl.Int64)


def _operations(rows: pl.DataFrame, num_stages: int) -> pl.DataFrame:
    """Return each worker's operations, in their order.

    Returns:
        step, replica, stage, kind, chunk, micro_batch, first_rank (of the worker), dur_ns (the
        longest of its ranks'), start_ns, end_ns, usual_ns (lower median of the kind over all workers
        in the step), steady_ns (lower median of its worker over all steps); and needs_stage,
        needs_chunk: the stage and chunk whose pass of the same kind must be done first, null for
        none. A ``head``, from the start of the step, precedes the first pass of stage 0.
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
    """The operations of all steps and replicas, with their dependencies.

    ::

        previous on its worker   ####
        input                    #######
        operation                    gap|######      or   transfer|######, whichever is later
    """

    def __init__(self, operations: pl.DataFrame) -> None:
        table = _with_delays(_linked(operations))
        self.all = np.full(table.height, True)
        """Every operation."""
        self.stages: list[int] = table["stage"].unique().sort().to_list()
        self.stage = table["stage"].to_numpy()
        """The stage of each operation."""
        self.first_rank = table["first_rank"].to_numpy()
        """The first rank of each operation's worker."""
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
        """Steps in which some replica can be replayed."""
        self.replicas: list[int] = replicas[self._shown[1].ravel()].tolist()
        """Replicas that can be replayed in some step."""

    def of_link(self, low: int, high: int) -> Bool:
        """Whether each operation gets its input over the link between two stages."""
        is_between: Bool = (self._low == low) & (self._high == high)
        return is_between

    def finished(
        self, fixed: Bool | None = None, links: Bool | None = None, to: str = "usual_ns"
    ) -> Int64:
        """Return the end of each replica's last pass, from the start of the step.

        Args:
            fixed: operations that take the time ``to``; none by default.
            links: operations whose input takes the usual transfer time; none by default.
            to: ``usual_ns`` or ``steady_ns``, see `_operations`.

        Returns:
            Shape (whole_steps, replicas); 0 for a replica that cannot be replayed in a step.
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
    "steady_ns",
    "gap_ns",
    "transfer_ns",
    "usual_transfer_ns",
)


def _linked(operations: pl.DataFrame) -> pl.DataFrame:
    """Return operations with the row of the ``previous`` one of the worker and of the ``input``.

    Two virtual rows follow the last one. The first is done from the start and stands for "not
    needed"; the second is never done and stands for "needed but missing".
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
    """Return operations with the typical delays between them.

    Returns:
        ``table`` with gap_ns (between two operations of a worker, per step), transfer_ns (from an
        input's end to the pass that waited for it, per link and step) and usual_transfer_ns (over
        all links in the step); 0 if unknown.
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
    """Return the rows in waves. Each wave depends only on earlier waves.

    Returns:
        The waves, and the rows that can never be done.
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
