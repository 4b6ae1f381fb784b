"""Replay the steps of a pipeline, with recorded or other times of its operations.

`ppprof.analysis.ranks.what_if` describes the replay.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.analysis.ranks.operations import CELL, WORKER, lower_median
from ppprof.arrays import Bool, Int64


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
            to: ``usual_ns``, ``balanced_ns`` or ``steady_ns``, see `operations_of`.

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
