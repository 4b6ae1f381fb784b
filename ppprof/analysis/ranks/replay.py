"""The operations of pipeline workers, and a replay of them with recorded or other times.

`ppprof.analysis.ranks.what_if` says what a worker is, and describes the replay.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.arrays import Bool, Int64
from ppprof.topology import Topology


class Replay:
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
        self.gap_ns, self.transfer_ns = self._table["gap_ns"], self._table["transfer_ns"]
        """The typical time before each operation, after the previous one and after its input."""
        self.follows: Bool = table["follows"].to_numpy()
        """Whether each operation comes after another one of its worker, but for the head."""
        steps, replicas = (np.unique(table[name].to_numpy()) for name in CELL)
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
        self.shared = self.finished(self.all, to="shared_ns")
        """The result of `finished` if the stages share their work equally, and all else stays."""

    def of_link(self, low: int, high: int) -> Bool:
        """Return whether each operation gets its input over the link between two stages."""
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
            to: ``usual_ns``, ``balanced_ns``, ``shared_ns`` or ``steady_ns``, see `operations_of`.

        Returns:
            Nanoseconds, shape (whole_steps, replicas); 0 for a replica that cannot be replayed in
            a step.
        """
        table, num = self._table, len(self.all)
        dur = table["dur_ns"] if fixed is None else np.where(fixed, table[to], table["dur_ns"])
        transfer_ns = table["transfer_ns"]
        if links is not None:
            transfer_ns = np.where(links, table["usual_transfer_ns"], transfer_ns)
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
    "shared_ns",
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
        *CELL, "kind", "micro_batch", needs_stage="stage", needs_chunk="chunk", input=row
    )
    is_same_worker = pl.all_horizontal(pl.col(key) == pl.col(key).shift() for key in WORKER)
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
    usual_transfer = lower_median(transfer).over("step")
    return table.with_columns(
        gap_ns=pl.when("follows").then(lower_median(gap).over("step")),
        transfer_ns=pl.when("receives").then(
            pl.coalesce(lower_median(transfer).over(link), usual_transfer)
        ),
        usual_transfer_ns=pl.when("receives").then(usual_transfer),
    ).with_columns(pl.col("gap_ns", "transfer_ns", "usual_transfer_ns").fill_null(0))


def _waves(previous: Int64, input_row: Int64) -> tuple[list[Int64], Int64]:
    """Return the rows in waves: the operations of a wave depend only on earlier waves.

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


CELL = ["step", "replica"]
WORKER = [*CELL, "stage"]


def with_workers(rows: pl.DataFrame, topology: Topology) -> pl.DataFrame:
    """Return ``rows`` with the replica and stage of each row's rank.

    In a pipeline, rows of kind ``own`` are removed.
    """
    ranks = rows["rank"].unique()
    replica = {rank: topology.replica(rank) for rank in ranks}
    stage = {rank: topology.coordinate(rank)["pp"] for rank in ranks}
    with_workers = rows.with_columns(
        replica=pl.col("rank").replace_strict(replica, return_dtype=pl.Int64),
        stage=pl.col("rank").replace_strict(stage, return_dtype=pl.Int64),
    )
    # In a pipeline, a stage's own work does not show when it waited for another stage.
    is_own = (pl.col("kind") == "own") & pl.lit(topology.degree("pp") > 1)
    return with_workers.filter(is_own.not_())


def members_of_workers(rows: pl.DataFrame) -> dict[tuple[int, int], list[int]]:
    """Return the ranks of each worker, ascending, keyed by (replica, stage)."""
    workers = rows.group_by("replica", "stage").agg(pl.col("rank").unique().sort())
    return {(replica, stage): ranks for replica, stage, ranks in workers.rows()}


def ends_of_steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Return step, recorded_ns, tail_ns and tail_stage of each step, in nanoseconds.

    recorded_ns is the length of the step, lower median over ranks. tail_ns is the time from a
    rank's last pass to its end of the step, the shortest of all ranks, since that rank does not
    wait; tail_stage is that rank's stage::

        rank 0   F0 ... B3 [ wait | sum gradients, optimizer ]
        rank 2   F0 ...... B3     [ sum gradients, optimizer ]    the shortest
    """
    is_step = pl.col("kind") == "step"
    by_rank = rows.group_by("step", "rank", "stage").agg(
        length=(pl.col("end_ns") - pl.col("start_ns")).filter(is_step).first(),
        tail=pl.col("end_ns").filter(is_step).first() - pl.col("end_ns").filter(~is_step).max(),
    )
    return by_rank.group_by("step").agg(
        recorded_ns=lower_median(pl.col("length")),
        tail_ns=pl.col("tail").min(),
        tail_stage=pl.col("stage").sort_by("tail", "stage", nulls_last=True).first(),
    )


def lower_median(values: pl.Expr) -> pl.Expr:
    """Return the lower median of ``values``, int64; nulls are ignored."""
    return values.quantile(0.5, "lower").cast(pl.Int64)


def operations_of(rows: pl.DataFrame, num_stages: int) -> pl.DataFrame:
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
        - shared_ns: dur_ns times balanced_ns over the same without the mean over stages: the
          operation varies as recorded, with the work of a mean stage;
        - steady_ns: lower median of dur_ns over the worker's operations of the kind in all steps;
        - needs_stage, needs_chunk: the stage and chunk whose pass of the same kind and micro-batch
          must be done first. needs_stage is null if the operation needs no such pass.
    """
    operations = (
        rows.filter(pl.col("kind") != "step")
        .group_by(*WORKER, "kind", "chunk", "micro_batch")
        .agg(
            first_rank=pl.col("rank").min(),
            dur_ns=(pl.col("end_ns") - pl.col("start_ns")).max(),
            end_ns=pl.col("end_ns").max(),
        )
        .with_columns(start_ns=pl.col("end_ns") - pl.col("dur_ns"))
    )
    is_step = pl.col("kind") == "step"
    heads = (
        rows.group_by(*WORKER, "rank")
        .agg(
            dur_ns=pl.col("start_ns").filter(~is_step).min()
            - pl.col("start_ns").filter(is_step).first(),
            end_ns=pl.col("start_ns").filter(~is_step).min(),
        )
        .group_by(WORKER)
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
            usual_ns=lower_median(pl.col("dur_ns")).over("step", "kind"),
            in_worker_ns=pl.col("dur_ns").mean().over(*WORKER, "kind", "chunk"),
            steady_ns=lower_median(pl.col("dur_ns")).over("replica", "stage", "kind"),
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
        .with_columns(
            shared_ns=pl.when(pl.col("in_stage_ns") > 0)
            .then((pl.col("dur_ns") * pl.col("balanced_ns") / pl.col("in_stage_ns")).round())
            .otherwise("balanced_ns")
            .cast(pl.Int64)
        )
        .sort(*WORKER, pl.col("kind") != "head", "start_ns", "end_ns")
    )
