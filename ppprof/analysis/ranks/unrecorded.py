"""Which ranks are slow, from step times alone: without a window."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from ppprof.analysis.profile.step_basis import num_before
from ppprof.arrays import Float64
from ppprof.slow_ranks import SlowRanks
from ppprof.topology import Topology

RANKS = {
    "rank": pl.Int64,
    "role": pl.String,
    "num_steps": pl.Int64,
    "step_ns": pl.Float64,
    "communication_ns": pl.Float64,
    "reader_ns": pl.Float64,
    "own_ns": pl.Float64,
    "excess_ns": pl.Float64,
    "excess_low_ns": pl.Float64,
    "excess_high_ns": pl.Float64,
    "is_slow": pl.Boolean,
    "since_step": pl.Int64,
}
_FIRST_STEPS = 2
"""Steps at the start that are left out: they load libraries and compile."""
LEAST_STEPS = 6
"""With fewer steps, there is no 95% interval: the median lies outside of all n values in 1 of 2^(n-1) cases."""
LEAST_COMMUNICATION = 0.001
"""Share of a step, of the rank with most. With less, nothing says which ranks wait for others: paddle.DataParallel
communicates in C++, and ranks that wait inside of it look as busy as the one that they wait for."""
_FEW_RANKS = 8
"""Up to so many ranks, a rank is compared with the median of the others; of more, with that of all."""


def roles_of_ranks(topology: Topology | None, ranks: Iterable[int]) -> dict[int, str]:
    """Return the kind of work of each rank: ranks of one pipeline stage do the same.

    Ranks that the topology does not know may be stages of a pipeline, too, and have no peers. Without
    a pipeline, all ranks have the role "".
    """
    roles = {}
    for rank in ranks:
        if topology is None or rank >= topology.world_size:
            roles[rank] = f"rank {rank}"
        else:
            is_staged = topology.degree("pp") > 1
            roles[rank] = f"stage {topology.coordinate(rank)['pp']}" if is_staged else ""
    return roles


class Scores:
    """Which ranks are slow over several calls of `unrecorded_ranks`, each with later steps, as of a running job."""

    def __init__(self) -> None:
        self._roles: dict[int, str] = {}
        self._test = SlowRanks([])
        self._steps: list[int] = []

    def slow(
        self, roles: dict[int, str], steps: Sequence[int], own: Float64, step_ns: float
    ) -> dict[int, int]:
        """Add the steps that are later than those that were added; return since which step ranks are slow.

        Args:
            roles: the kind of work of each rank. All begins anew if other ranks are given than before.
            steps: the numbers of the steps, ascending.
            own: the own work of each rank in each step, shape (steps, ranks); NaN if unknown.
            step_ns: how long a step of the job takes.
        """
        if roles != self._roles:
            self._roles, self._test, self._steps = roles, SlowRanks([*roles.values()]), []
        for step, each in zip(steps, own):
            if not self._steps or step > self._steps[-1]:
                self._steps.append(step)
                self._test.add(each)
        ranks = [*roles]
        return {ranks[place]: self._steps[-num] for place, num in self._test.slow(step_ns)}

    def num_steps(self, since: int) -> int:
        """Return how many steps were added from a step on."""
        return len(self._steps) - bisect_left(self._steps, since)


def unrecorded_ranks(
    times: pl.DataFrame, roles: Mapping[int, str], scores: Scores | None = None
) -> pl.DataFrame:
    """Return how each rank spends its steps outside windows, and whether it is slower than its peers.

    ::

        own work     step 0 ... 39   step 40 ... 99
        ranks 0-2    100             100
        rank 3       100             120             slow since step 40, excess 20

    Args:
        times: the columns of `ppprof.rundir.step_times.STEP_TIMES`.
        roles: the kind of work of each rank; ranks of one role are compared.
        scores: those of earlier steps, of which the newest may be in ``times`` again; None without.

    Returns:
        Columns of `RANKS`, one row per rank, the largest excess first: num_steps; medians of the step, of its
        communication, of reading and of the rest, own_ns; excess_ns, the median by which own work exceeds that of the peers in a
        step, with its 95% interval (order statistics; null of fewer than `LEAST_STEPS` steps), null without peers, and
        of ranks that are not slow if nearly no communication is noted (`LEAST_COMMUNICATION`); is_slow and since_step as
        `ppprof.slow_ranks` defines them at the last step. The excess of a slow rank is that since then.
        Steps count that are neither in a window nor excluded, whose communication is known, and that were timed on the host: on a device that queues its work,
        the time in calls says little about waiting. No rows without such steps.
    """
    steps = steps_outside_windows(times)
    if steps.is_empty():
        return pl.DataFrame(schema=RANKS)
    medians = steps.group_by("rank").agg(
        pl.len().alias("num_steps"),
        pl.col("step_ns", "communication_ns", "reader_ns", "own_ns").median(),
    )
    ranks, own = own_by_step(steps)
    numbers = steps["step"].unique().sort().to_list()
    of_ranks = {rank: roles.get(rank, "") for rank in ranks}
    step_ns: float = steps["step_ns"].median() or 0.0  # type: ignore[assignment]
    if scores is None:
        slow = Scores().slow(of_ranks, numbers, own, step_ns)
    else:  # a rank may have no step that counts for a while, as in a window
        of_all = {**roles, **of_ranks}
        places = [[*of_all].index(rank) for rank in ranks]
        of_known = np.full((len(own), len(of_all)), np.nan)
        of_known[:, places] = own
        slow = scores.slow(of_all, numbers, of_known, step_ns)
    excess = _excess(own, [*of_ranks.values()])
    if not notes_communication(medians):
        excess[:, [place for place, rank in enumerate(ranks) if rank not in slow]] = np.nan
    rows = []
    for place, (rank, role) in enumerate(of_ranks.items()):
        since = slow.get(rank)
        first = 0 if since is None else bisect_left(numbers, since)
        middle, low, high = _median_with_interval(excess[first:, place])
        rows.append((rank, role, middle, low, high, rank in slow, since))
    names = ("rank", "role", *list(RANKS)[-5:])
    return (
        pl.DataFrame(rows, {name: RANKS[name] for name in names}, orient="row")
        .join(medians, "rank")
        .select(*RANKS)
        .cast(RANKS)  # type: ignore[arg-type]
        .sort("excess_ns", "rank", descending=[True, False], nulls_last=True)
    )


def notes_communication(table: pl.DataFrame) -> bool:
    """Return whether some of the ranks, with the medians ``communication_ns`` and ``step_ns``, wait for others."""
    ratio = table.select((pl.col("communication_ns") / pl.col("step_ns")).max()).item()
    return ratio is not None and ratio >= LEAST_COMMUNICATION


def steps_outside_windows(times: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of step times that count in `unrecorded_ranks`, with step_ns, reader_ns and own_ns."""
    steps = times.filter(
        pl.col("window").is_null()
        & ~pl.col("excluded").fill_null(False)
        & pl.col("communication_ns").is_not_null()
        & pl.col("device_timed").is_null()
        & (num_before(times) >= _FIRST_STEPS)
    ).with_columns(reader_ns=pl.col("reader_cost_ns").fill_null(0), step_ns=pl.col("batch_cost_ns"))
    own = pl.col("step_ns") - pl.col("communication_ns") - pl.col("reader_ns")
    return steps.with_columns(own_ns=pl.max_horizontal(own, 0))


def own_by_step(steps: pl.DataFrame) -> tuple[list[int], Float64]:
    """Return the ranks, and the own work of each in each step, shape (steps, ranks); NaN if unknown.

    ::

                 computes   communicates (waits)
        rank 0   # # # #    . . . . . .            both steps take 10; own 4 and 7
        rank 1   # # # # # # #    . . .
    """
    ranks, column = np.unique(steps["rank"].to_numpy(), return_inverse=True)
    numbers, row = np.unique(steps["step"].to_numpy(), return_inverse=True)
    own = np.full((len(numbers), len(ranks)), np.nan)
    own[row, column] = steps["own_ns"].to_numpy()
    return ranks.tolist(), own


def _excess(own: Float64, roles: list[str]) -> Float64:
    """Return own work minus the median of the peers in the same step; NaN without peers."""
    excess = np.full_like(own, np.nan)
    for role in set(roles):
        family = [place for place, each in enumerate(roles) if each == role]
        if len(family) < 2:
            continue
        if len(family) > _FEW_RANKS:
            in_order = np.sort(own[:, family], axis=1)  # NaN last
            # Of two middle ones the lower: half of the ranks may be slow, such as those of a host.
            middle = (np.isfinite(in_order).sum(axis=1, keepdims=True) - 1) // 2
            excess[:, family] = own[:, family] - np.take_along_axis(in_order, middle, axis=1)
            continue
        for place in family:
            peers = [each for each in family if each != place]
            excess[:, place] = own[:, place] - _median(own[:, peers])
    return excess


def _median(own: Float64) -> Float64:
    """Return the median of each row; NaN where nothing is known."""
    middle = np.full(len(own), np.nan)
    is_known = np.isfinite(own).any(axis=1)
    middle[is_known] = np.nanmedian(own[is_known], axis=1)
    return middle


def _median_with_interval(values: Float64) -> tuple[float | None, float | None, float | None]:
    """Return the median and its 95% interval: the values so many places from the middle that fewer are rare.

    The interval of fewer than `LEAST_STEPS` values is None. Source: the binomial distribution's normal approximation, 1.96 standard errors of sqrt(n) / 2 places.
    """
    known = np.sort(values[np.isfinite(values)])
    if not len(known):
        return None, None, None
    if len(known) < LEAST_STEPS:
        return float(np.median(known)), None, None
    reach, middle = 0.98 * len(known) ** 0.5, (len(known) - 1) / 2
    low, high = max(int(middle - reach), 0), min(int(np.ceil(middle + reach)), len(known) - 1)
    return float(np.median(known)), float(known[low]), float(known[high])
