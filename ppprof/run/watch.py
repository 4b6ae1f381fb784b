"""What a running job does now: the library behind ``ppprof watch``.

Only the run directory is read, a part of it with each look, so that a look at 1,024 ranks costs some ms.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

import polars as pl

from ppprof.analysis.ranks.unrecorded import Scores, roles_of_ranks, unrecorded_ranks
from ppprof.errors import InputError
from ppprof.paths import PathLike, to_path
from ppprof.rundir import job_context_of, newest, read_manifest, topology_of
from ppprof.rundir.follow import Follower, Step
from ppprof.rundir.liveness import rank_states
from ppprof.topology import Topology
from ppprof.units import format_ranges, format_ratio, format_time

SLOW_RATIOS = (0.05, 0.1, 0.2)
"""Shares of a step from which a rank's extra work is shown by the next level."""
_LEAST_STALL_S = 30.0
_STALL_STEPS = 10
"""A job stands still if no step has ended for 30 s and for as long as this many steps take."""
_FIRST_STEP_S = 300.0
"""Likewise, while it is not known how long a step takes: the first one loads libraries and compiles."""
_STATE_S = 10.0
"""How often processes and slow ranks are looked at, the latter less often with many ranks: a rank writes its
steps as often."""
_FULL = 0.95
"""Share of a device's memory from which it is called nearly full."""
_MOST_SHOWN, _MOST_READ = 20, 50
"""Latest steps that times and shares are of, among so many."""
_LONG_NS = 60_000_000_000
"""A rank that has written no step for so long is not waited for."""


@dataclass(frozen=True)
class Rank:
    """What is known of a rank."""

    num_ended: int = 0
    """Steps that have ended."""
    excess_ratio: float | None = None
    """Its own work beyond that of its peers, as a share of a step; None if that is unknown."""
    gone: str = ""
    """How it ended, or that it is stopped; "" if it runs."""
    is_behind: bool = False
    """Whether the job stands still, and the rank has ended fewer steps than another one."""


@dataclass(frozen=True)
class View:
    """A running job at one moment. None: unknown."""

    run: Path
    topology: Topology | None
    ranks: Mapping[int, Rank]
    """By rank, those that have written something or are known to have ended."""
    has_ended: bool
    """Whether no rank has an open session."""
    idle_s: float
    """Seconds since a step ended on any rank."""
    is_stalled: bool
    """Whether that is too long."""
    num_ended: int
    """Steps that have ended, of the rank that has ended most."""
    step_ns: float | None
    """Median of the latest steps; steps that the profiler has delayed do not count here and below."""
    range_ns: tuple[int, int] | None
    """The shortest and the longest of them on any rank."""
    tokens_per_s: float | None
    """Of all replicas."""
    samples_per_s: float | None
    mfu: float | None
    """Model FLOPs utilization, mean over the ranks: 0 to 1."""
    loss: tuple[int, float] | None
    """The latest step with a loss, and the mean loss of the ranks that know it."""
    communication_ratio: float | None
    """Share of a step in which hosts wait in communication, mean over the ranks."""
    reader_ratio: float | None
    """Likewise, for data."""
    device_bytes: tuple[int, int | None, int] | None
    """The highest peak, the size of that device's memory, and the rank."""
    host_bytes: tuple[int, int] | None
    """The highest peak of a process, and its rank."""
    findings: tuple[str, ...]
    """What needs a look, the most urgent first."""


@dataclass
class Watch:
    """Follows a job.

    Args:
        path: the run directory, or the one that its newest run is in.
        clock: the monotonic time, in seconds.

    Raises:
        InputError: there is no manifest.
    """

    path: PathLike
    clock: Callable[[], float] = time.monotonic
    run: Path = field(init=False)
    """The run directory that is read: a later one of the same log directory once no step of it ends."""

    def __post_init__(self) -> None:
        self._follow(newest(to_path(self.path)))

    def _follow(self, run: Path) -> None:
        self.run = run
        self._manifest = read_manifest(self.run)
        self._topology = topology_of(self._manifest)
        first_step = self._manifest.get("first_step")
        self._first_step = first_step if isinstance(first_step, int) else 0
        self._peak_flops = job_context_of(self._manifest).peak_flops
        self._follower = Follower(self.run, self.clock)
        self._next_states_s = self._next_scores_s = -math.inf
        self._gone: dict[int, str] = {}
        self._has_ended = False
        self._excess: dict[int, float] = {}
        self._scores, self._num_scored = Scores(), 0
        self._slow: tuple[str, ...] = ()
        self._is_read = self._is_stalled = False
        self._replicas: dict[int, int | None] = {}
        self._latest: dict[int, _Latest] = {}

    def look(self) -> View:
        """Read on, up to 128 ranks, and return the job as it is now.

        The first look reads all ranks.
        """
        if self.clock() >= self._next_states_s and (self._has_ended or self._is_stalled):
            later = newest(to_path(self.path))  # where a scheduler has started the job again
            if later != self.run:
                self._follow(later)
        is_first = not self._is_read
        while True:
            self._is_read |= self._follower.look()
            if self._is_read or not is_first:
                break
        now_s = self.clock()
        if now_s >= self._next_states_s:
            self._next_states_s = now_s + _STATE_S
            self._look_at_processes()
        if now_s >= self._next_scores_s:
            self._next_scores_s = now_s + _STATE_S * (1 + len(self._follower.ranks) // 256)
            self._look_for_slow_ranks()
        return self._view()

    def _look_at_processes(self) -> None:
        try:
            states = rank_states(self.run)
        except OSError as error:
            raise InputError(f"{self.run}: {error.strerror or error}") from error
        self._gone = {rank: each.text for rank, each in states.items()}
        # A rank of another machine has no pid here, and no text while its entry is there.
        self._has_ended = all(each.text and each.pid is None for each in states.values())

    def _look_for_slow_ranks(self) -> None:
        ranks, values = self._follower.ranks, attrgetter(*_STEP_COLUMNS)
        num_known = _num_known([each.steps for each in ranks.values() if each.steps])
        begin = min(self._num_scored, num_known - _MOST_READ)
        rows = [
            (rank, step.step - (progress.first_step or 0), *values(step))
            for rank, progress in ranks.items()
            for step in progress.steps
            if begin <= step.step < num_known
        ]
        self._num_scored = num_known
        table = unrecorded_ranks(
            pl.DataFrame(
                rows, {"rank": pl.Int64, "num_before": pl.Int64, **_STEP_COLUMNS}, orient="row"
            ),
            roles_of_ranks(self._topology, ranks),
            self._scores,
        )
        if table.is_empty():
            return
        self._excess = {
            rank: excess / step if step else 0.0
            for rank, excess, step in table.select("rank", "excess_ns", "step_ns").iter_rows()
            if excess is not None
        }
        slow = table.filter("is_slow").select("rank", "excess_ns", "step_ns", "since_step")
        self._slow = tuple(
            f"{self._name(rank)} is slow: {format_time(excess)} more work of its own than its peers, "
            f"{format_ratio(excess / step)} of a step, in "
            f"{self._scores.num_steps(since)} steps"
            for rank, excess, step, since in slow.iter_rows()
            if excess is not None
        )

    def _view(self) -> View:
        ranks = self._follower.ranks
        for rank, progress in ranks.items():
            known = self._latest.get(rank)
            if progress.steps and (known is None or known.last is not progress.steps[-1]):
                steps = list(progress.steps)[-_MOST_READ:]
                self._latest[rank] = _latest(steps, progress.first_step or 0)
        latest = self._latest
        lengths = [each.step_ns for each in latest.values() if each.step_ns]
        step_ns = median(lengths) if lengths else None
        ranges = [each.range_ns for each in latest.values() if each.range_ns]
        num_ended = max((each.num_ended for each in ranks.values()), default=0)
        now_s = self.clock()
        idle_s = min((now_s - (each.changed_s or now_s) for each in ranks.values()), default=0.0)
        # Each step may be in a window, as without a schedule.
        usual_ns = step_ns or median([each.every_step_ns for each in latest.values()] or [0])
        limit_s = max(_LEAST_STALL_S, _STALL_STEPS * usual_ns / 1e9)
        if not latest and num_ended <= self._first_step + 1:  # the second one may compile, too
            limit_s = _FIRST_STEP_S
        self._is_stalled = is_stalled = bool(ranks) and not self._has_ended and idle_s > limit_s
        gone = {rank: text for rank, text in self._gone.items() if text}
        states = {}
        for rank in sorted({*ranks, *gone}):  # a rank may fail before it has written anything
            ended = ranks[rank].num_ended if rank in ranks else 0
            is_behind = is_stalled and ended < num_ended
            states[rank] = Rank(ended, self._excess.get(rank), gone.get(rank, ""), is_behind)
        flops = _mean([each.flops_per_s for each in latest.values()])
        devices = [
            (each.last.device_peak_bytes, each.last.device_total_bytes, rank)
            for rank, each in latest.items()
            if each.last.device_peak_bytes is not None
        ]
        hosts = [
            (each.last.host_peak_bytes, rank)
            for rank, each in latest.items()
            if each.last.host_peak_bytes is not None
        ]
        view = View(
            self.run,
            self._topology,
            states,
            self._has_ended,
            idle_s,
            is_stalled,
            num_ended,
            step_ns,
            (min(each[0] for each in ranges), max(each[1] for each in ranges)) if ranges else None,
            self._of_all({rank: each.tokens_per_s for rank, each in latest.items()}),
            self._of_all({rank: each.samples_per_s for rank, each in latest.items()}),
            flops / self._peak_flops if flops is not None and self._peak_flops else None,
            _latest_loss([each.loss for each in ranks.values() if each.loss is not None]),
            _mean([each.communication_ratio for each in latest.values()]),
            _mean([each.reader_ratio for each in latest.values()]),
            max(devices, key=lambda each: each[0]) if devices else None,
            max(hosts) if hosts else None,
            (),
        )
        return replace(view, findings=tuple(self._findings(view)))

    def _findings(self, view: View) -> Iterator[str]:
        by_text: dict[str, list[int]] = {}
        for rank, each in view.ranks.items():
            if each.gone:
                by_text.setdefault(each.gone, []).append(rank)
        for text, ranks in by_text.items():
            yield f"{self._names(ranks)}: {text}"
        if view.loss is not None and not math.isfinite(view.loss[1]):
            yield f"the loss is {view.loss[1]} at step {view.loss[0]:,}"
        if view.is_stalled:
            behind = [rank for rank, each in view.ranks.items() if each.is_behind]
            steps = f"; {self._names(behind)} behind" if behind else ""
            yield f"no step for {view.idle_s:.0f} s{steps}, unless it evaluates or saves: ppprof hang {self.path}"
        if not view.has_ended:
            yield from self._slow
        if view.device_bytes is not None:
            peak, total, rank = view.device_bytes
            if total and peak > _FULL * total:
                yield f"{self._name(rank)} has used {format_ratio(peak / total)} of its device's memory: ppprof memory {self.path}"

    def _of_all(self, rates: Mapping[int, float | None]) -> float | None:
        """Return the sum over the replicas; None if the rate of one is unknown."""
        topology = self._topology
        if topology is None:
            return None
        by_replica = {self._replica(rank): rate for rank, rate in rates.items() if rate is not None}
        by_replica.pop(None, None)
        return sum(by_replica.values()) if len(by_replica) == topology.replicas else None

    def _replica(self, rank: int) -> int | None:
        """Return the replica of a rank; None of one that the job does not have."""
        topology = self._topology
        if rank not in self._replicas and topology is not None:
            is_known = rank < topology.world_size
            self._replicas[rank] = topology.replica(rank) if is_known else None
        return self._replicas.get(rank)

    def _names(self, ranks: Sequence[int]) -> str:
        return self._name(ranks[0]) if len(ranks) == 1 else format_ranges("rank", ranks)

    def _name(self, rank: int) -> str:
        topology = self._topology
        is_known = topology is not None and rank < topology.world_size
        return f"rank {rank} ({topology.label(rank)})" if topology and is_known else f"rank {rank}"


_STEP_COLUMNS = {
    "step": pl.Int64,
    "batch_cost_ns": pl.Int64,
    "reader_cost_ns": pl.Int64,
    "excluded": pl.Boolean,
    "window": pl.Int64,
    "device_timed": pl.Boolean,
    "communication_ns": pl.Int64,
}


class _Latest(NamedTuple):
    """The latest steps of a rank in numbers; None: unknown."""

    last: Step
    every_step_ns: float
    """Median of all steps."""
    step_ns: float | None = None
    range_ns: tuple[int, int] | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    flops_per_s: float | None = None
    communication_ratio: float | None = None
    reader_ratio: float | None = None


def _num_known(steps: Sequence[Sequence[Step]]) -> int:
    """Return up to which step all ranks have written theirs, but for ranks that have written none for long.

    A rank writes its steps every 10 seconds, each at another time.
    """
    newest = max(steps, key=lambda each: each[-1].step, default=())
    limit, behind_ns = 0, 0
    for num, step in enumerate(reversed(newest)):
        if num > _MOST_READ and behind_ns > _LONG_NS:
            break
        limit, behind_ns = step.step, behind_ns + step.batch_cost_ns
    return min((each[-1].step + 1 for each in steps if each[-1].step >= limit), default=0)


def _latest(every: Sequence[Step], first_step: int) -> _Latest:
    """Return the numbers of the steps that the profiler has not delayed, as `ppprof.capture.steps.metrics` does."""
    clean = [
        step
        for step in every
        if not step.excluded and step.window is None and step.step > first_step
    ][-_MOST_SHOWN:]
    every_step_ns = median(step.batch_cost_ns for step in every)
    if not clean:
        return _Latest(every[-1], every_step_ns)
    costs = [step.batch_cost_ns for step in clean]

    def share(times: Iterable[int | None]) -> float | None:
        known = [value for value in times if value is not None]
        return sum(known) / sum(costs) if len(known) == len(costs) and any(costs) else None

    def per_second(sizes: Iterable[int | None]) -> float | None:
        per_ns = share(sizes)
        return None if per_ns is None else per_ns * 1e9

    return _Latest(
        every[-1],
        every_step_ns,
        median(costs),
        (min(costs), max(costs)),
        per_second(step.num_tokens for step in clean),
        per_second(step.num_samples for step in clean),
        per_second(step.num_flops for step in clean),
        share(step.communication_ns for step in clean),
        # A step without a batch waits for none; without any batch, the loader is not Paddle's.
        share(step.reader_cost_ns or 0 for step in clean)
        if any(step.reader_cost_ns is not None for step in clean)
        else None,
    )


def _latest_loss(losses: Sequence[tuple[int, float]]) -> tuple[int, float] | None:
    if not losses:
        return None
    latest = max(step for step, _ in losses)
    values = [loss for step, loss in losses if step == latest]
    return latest, sum(values) / len(values)  # fmean raises an error for inf and -inf


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
