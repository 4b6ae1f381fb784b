"""Windows on demand: a request file, a slow step or a slow rank opens them, and all ranks agree on them.

::

    step     40        41   42   43   44   45   46   47   48   49
    rank 0   request | plans 45 to 48      r    R    R    R    R
    rank 1             gets the plan       r    R    R    R    R
    rank 2                  gets the plan  r    R    R    R    R

Rank 0 decides between two steps and sends its plan through the `control_channel`. The window starts
some steps later: as many as ranks may be apart, and as many as messages may take. A rank that gets
the plan after the start logs that and joins; after the end, it logs that it missed the window.
Rank 0 alone counts the cool-down and the windows, so their limits hold for the whole job.

All ranks know one window from the start: that for settled step times, at step 20, with the provisional
steps ahead of it (see `ppprof.capture.schedule`). A plan moves it up if step times settle before, unless its steps are so
short that a message takes until then.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppprof.arrays import Float64
from ppprof.capture.ranks.own_times import PATIENCE, OwnTimes, rank_is_slow
from ppprof.capture.schedule import Plan, Schedule, State, latest_plan, why_no_room
from ppprof.capture.signals import pass_interruption
from ppprof.capture.steps.running_steps import RunningSteps
from ppprof.errors import UsageError
from ppprof.rundir import triggers
from ppprof.rundir.triggers import TriggerRequest, TriggerResponse
from ppprof.topology import Topology
from ppprof.units import format_ranges

if TYPE_CHECKING:
    from ppprof.capture.ranks.control_channel import ControlChannel
    from ppprof.config import TriggerConfig

log = logging.getLogger("ppprof")

_POLL_SECONDS = 0.25
"""Time between two checks for a request file, which may be on a network file system."""
_AHEAD_STEPS = 2
"""How many steps ranks may be apart: one rank's host runs ahead while others wait for a device."""
_AHEAD_SECONDS = 0.5
"""How long messages may take, including some lost packets."""
_TIMED_STEPS = 5
"""Steps to be timed before a window is opened, since the first steps take longer."""
_WINDOW_NS = 1_000_000_000
_LEAST_STEPS, _MOST_STEPS = 10, 100
"""With ``settled: auto``, the window has so many steps that they take a second, within these bounds:
samples of Python stacks need some time."""
_MOST_WINDOWS = 5
"""Most windows of a run to open because of slow ranks."""
_MOST_PEERS = 8
"""Most ranks of such a window: the slow one and others with the same work."""
_COOL_STEPS = 200
"""Steps from one such window to the next, at least."""
_DECISION_SECONDS = 2.0
"""How long a session that ends waits for the decision whether a window is kept."""


@dataclass
class _Suspect:
    """A rank that has become slow, in the window that was opened for it."""

    rank: int
    ranks: list[int]
    """The rank and its peers."""
    own_ns: list[Float64] = field(default_factory=list)
    """The own times of all ranks in the window's steps."""


@dataclass
class _HeldWindow:
    """A window that may be deleted once it is recorded."""

    end: int
    """Number of the step after the window."""
    suspect: _Suspect | None = None
    """None if it was opened for a slow step."""
    is_slow: bool = False
    """Whether a step of the window was slow."""


class Triggers:
    """Opens windows on demand on one rank, together with the other ranks, during the rank's session.

    No method raises. The first failure is logged, and no window is opened from then on.
    """

    def __init__(
        self,
        config: TriggerConfig,
        schedule: Schedule,
        rank: int,
        topology: Topology,
        recorded: Collection[int],
        run: Path,
        channel: ControlChannel,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._slow = config.slow_step
        self._schedule = schedule
        self._rank = rank
        self._topology = topology
        self._recorded = frozenset(recorded)
        self._run = run
        self._channel = channel
        self._clock = clock
        self._last_poll = -math.inf
        self._unrecorded = RunningSteps()
        """Steps outside windows: a step is slow by comparison with these."""
        self._pace = self._unrecorded
        """Steps that show how fast steps pass, and whether their times have settled; provisional steps
        count as well, if there are any."""
        self._plan: Plan | None = None
        self._ended: deque[Plan] = deque()
        """The plans whose windows have ended shortly before, the newest first. Times of their steps may
        arrive afterwards, from a device or from other ranks."""
        self._members: frozenset[int] = frozenset()
        self._has_failed = False
        self.cut_short: Plan | None = None
        """The window before or within which the training ended, once that has been logged; else None."""
        self._settled_plan: Plan | None = None
        """The window for settled step times: at its latest steps until rank 0 moves it up."""
        self._can_move_up = False
        """On rank 0, whether step times may still settle before that window."""
        self.least_steps: int | None = None
        """A settled window with so many steps is complete; None: with as many as were planned."""
        self._step = 0
        self._pending_reason = ""
        """On rank 0, the slow step for which a window should open; "" without such a step."""
        self._report_from = 0
        """First step that is reported if it is slow; earlier steps are too soon after a slow step or
        a window."""
        self._cool_until = 0
        self._undecided: dict[int, _HeldWindow] = {}
        """On rank 0, the held windows without a decision, keyed by number."""
        self._has_decided = False
        """Whether rank 0's last message is a decision."""
        self._awaited: set[int] = set()
        """Numbers of the windows whose keep decision this rank waits for."""
        self._num_for_steps = 0
        """Windows for slow steps that are not deleted."""
        self._num_for_ranks = 0
        """Windows for slow ranks, deleted ones as well."""
        self._own = OwnTimes(rank, topology) if config.slow_rank else None
        self._ranks_cool_until = 0
        """On rank 0, the first step at which a window may open for slow ranks again."""
        self._known_until: dict[int, int] = {}
        """On rank 0, until which step no window opens for a rank: it was slow shortly before."""
        self._logged_slow: set[int] = set()
        """On rank 0, the slow ranks without a window that were logged."""
        self._has_warned_of_limit = False
        self._has_warned_of_request = False
        self._announced: Plan | None = None
        self.first_free = 0
        """The lowest number that the next window may have, as far as this rank knows."""
        self.keep_decisions: dict[int, bool] = {}
        """Whether each decided held window is kept, keyed by the window's number. The session
        removes the decisions that it applies."""
        with self._suppress_and_report():
            if rank == 0 and config.file:
                triggers.accept_requests(run)
            if config.settled == "auto":
                self.least_steps = _LEAST_STEPS
                self._plan_without_message(_LEAST_STEPS)
            elif config.settled is not None:
                self._plan_without_message(config.settled)

    def state(self, step: int) -> State:
        """Return the job's state at a step in the agreed window; CLOSED without an agreed window."""
        return State.CLOSED if self._plan is None else self._plan.state(step)

    @property
    def is_member(self) -> bool:
        """Whether this rank records the agreed window."""
        return self._rank in self._members

    @property
    def is_held(self) -> bool:
        """Whether the agreed window is deleted unless one of its steps is slow."""
        return self._plan is not None and self._plan.is_held

    def add_step(
        self, step: int, duration_ns: int, *, is_recorded: bool, is_excluded: bool
    ) -> None:
        """Add the duration of a step, and report the step if it is slow.

        Args:
            step: number of the step.
            duration_ns: duration of the step, without the stalls of this rank's profiler.
            is_recorded: whether the step is in a window, or provisional.
            is_excluded: whether the step includes a stall of any rank. Only steps that are neither
                recorded nor excluded count in the median.
        """
        try:  # not `_suppress_and_report`, which takes 2 us
            self._check_duration(step, duration_ns, is_recorded, is_excluded)
        except Exception as error:
            self._give_up(error)

    def add_own(self, step: int, own_ns: int | None) -> None:
        """Add how long this rank worked itself in a step; None if that is unknown."""
        if self._own is None or self._has_failed:
            return
        try:
            plan = self._plan_at(step)
            is_wanted = plan is not None and plan.is_held and self.is_member
            message = self._own.add(step, own_ns, self._pace.median_ns, is_wanted=is_wanted)
            if message is not None and self._rank == 0:
                self._own.take(message)
            elif message is not None:
                self._channel.send(message)
        except Exception as error:
            self._give_up(error)

    def advance(self, step: int, window: int) -> None:
        """Read messages ahead of a step; on rank 0, also decide on requests and slow steps.

        Args:
            step: number of the step that begins.
            window: number of the window that is open; without an open window, the next number.
        """
        plan, self._step = self._plan, step
        if plan is not None and step >= plan.end:
            self._plan = None
            self._ended.appendleft(plan)
            self.first_free = plan.window + 1
        while self._ended and step > self._ended[-1].end + 2 * PATIENCE:
            self._ended.pop()
        if self._has_failed:
            return
        try:
            for message in self._channel.read():
                self._on_message(message, step)
            if self._rank == 0:
                self._coordinate(step, window)
        except Exception as error:
            self._give_up(error)

    def close(self, failed: bool) -> None:
        """Wait up to 2 s for decisions, or on rank 0 until they are confirmed, then close the channel.

        Rank 0 decides on all held windows and deletes the request file; the other ranks wait
        for its decisions. Decisions that arrived in time are in ``keep_decisions``. A window that
        is still open gets no decision and is kept.

        Args:
            failed: whether an exception ends the training; if so, do not wait.
        """
        with self._suppress_and_report():
            plan, self._plan = self._plan, None
            if self._rank == 0 and plan is not None and plan is self._settled_plan and not failed:
                self.cut_short = plan
            if plan is not None:
                self._undecided.pop(plan.window, None)
                self._awaited.discard(plan.window)  # it is cut off, and kept
            if self._rank == 0:
                self._decide(math.inf)
                # Of other messages, none matters any more: the window that they announce does not open.
                waits = self._has_decided and not failed
                self._channel.close(_DECISION_SECONDS if waits else 0)
                if self._config.file:
                    triggers.remove_request(self._run)
                return
            deadline = self._clock() + (0 if failed else _DECISION_SECONDS)
            while self._awaited and self._clock() < deadline:
                for message in self._channel.read():
                    self._on_message(message, None)
                time.sleep(0.01)
            self._channel.close()

    def _check_duration(
        self, step: int, duration_ns: int, is_recorded: bool, is_excluded: bool
    ) -> None:
        slow = self._slow
        is_slow = slow is not None and self._unrecorded.is_slow(duration_ns, slow.times)
        is_provisional = is_recorded and self.state(step) is State.PROVISIONAL
        if not is_excluded and (is_provisional or not is_recorded):
            if not is_provisional:
                self._unrecorded.add(duration_ns)
            if self._pace is not self._unrecorded:
                self._pace.add(duration_ns)
        if not is_slow or slow is None:
            return
        times = duration_ns / self._unrecorded.median_ns
        plan = self._plan_at(step)
        if plan is not None:
            if plan.is_held and plan.state(step) is not State.READY:
                self._note_slow(plan.window)
        elif not (is_recorded or is_excluded) and self._plan is None and step >= self._report_from:
            self._report_from = step + 1 + slow.cool_down
            duration = f"took {duration_ns / 1e6:.1f} ms, {times:.1f} times the median"
            why = f"step {step} of rank {self._rank} {duration}"
            if self._rank == 0:
                self._pending_reason = why
            else:
                self._channel.send({"kind": "ask", "why": why})

    def _plan_at(self, step: int) -> Plan | None:
        """Return the plan of the window that a step belongs to, or precedes; None without one."""
        for plan in (self._plan, *self._ended):
            if plan is not None and plan.state(step) is not State.CLOSED:
                return plan
        return None

    def _note_slow(self, window: int) -> None:
        if self._rank != 0:
            self._channel.send({"kind": "slow", "window": window})
        elif window in self._undecided:
            self._undecided[window].is_slow = True

    def _on_message(self, message: Mapping[str, Any], step: int | None) -> None:
        kind = message["kind"]
        if kind == "plan" and step is not None:
            self._accept_plan(Plan(**message["plan"]), step)
        elif kind == "verdict":
            self._awaited.discard(message["window"])
            self.keep_decisions[message["window"]] = message["keep"]
        elif kind == "ask":
            self._pending_reason = self._pending_reason or message["why"]
        elif kind == "slow":
            self._note_slow(message["window"])
        elif kind == "own" and self._own is not None:
            self._own.take(message)

    def _accept_plan(self, plan: Plan, step: int) -> None:
        """Take over a plan: wait for its window, join it late, or, if this rank records it, log that it was missed."""
        members = self._topology.select(plan.ranks) & self._recorded
        if self._slow is not None:
            self._report_from = self._cool_until = plan.end + self._slow.cool_down
        if step >= plan.end:
            self.first_free = max(self.first_free, plan.window + 1)
            if self._rank in members:
                log.warning(
                    f"rank {self._rank}: missed {plan}: the plan arrived ahead of step {step}"
                )
            return
        if step > plan.start and self._rank in members:
            late = f"the plan arrived late, this rank records from step {step} on"
            log.warning(f"rank {self._rank}: {plan}: {late}")
        self._plan, self._members = plan, members
        self.first_free = plan.window
        if plan.is_held:
            self._awaited.add(plan.window)

    def _coordinate(self, step: int, window: int) -> None:
        if self._own is not None:
            self._look_for_slow_ranks(self._own, step, window)
        self._decide(step)
        if self._announced is not None and step >= self._announced.start:
            plan, self._announced = self._announced, None
            missing = self._channel.unconfirmed()
            if missing:
                ranks = format_ranges("rank", missing)
                log.warning(f"rank 0: {plan} begins, but {ranks} did not confirm it")
        if len(self._pace) < _TIMED_STEPS:
            return
        if self._config.file and self._clock() - self._last_poll >= _POLL_SECONDS:
            self._last_poll = self._clock()
            request = self._consume_request()
            if request is not None:
                self._answer(request, step, window)
        if self._can_move_up and self._settled_plan is not None:
            self._move_up_once_settled(self._settled_plan, step, window)
        if self._pending_reason:
            why, self._pending_reason = self._pending_reason, ""
            self._open_for_slow_step(why, step, window)

    def _plan_without_message(self, steps: int) -> None:
        self._plan = self._settled_plan = plan = latest_plan(
            steps, self._config.ranks, self._schedule
        )
        if plan is not None:
            self._members = self._topology.select(plan.ranks) & self._recorded
            self._can_move_up = self._rank == 0
            if plan.num_provisional:
                # Recording makes provisional steps longer, by about as much each: whether they are alike
                # does not change. And the steps that pass while a message is on its way are provisional
                # as well.
                self._pace = RunningSteps()
        elif self._rank == 0:
            why = f"the schedule is {self._schedule}"
            log.warning(f"rank 0: no window for settled step times: {why}")

    def _move_up_once_settled(self, latest: Plan, step: int, window: int) -> None:
        """Move the window for settled step times up to the first step that all ranks can begin at."""
        start = step + self._ahead()
        if step >= latest.start - 1:
            self._can_move_up = False
            if start <= latest.start:  # on one rank
                num_steps = self._num_steps(latest, step, start)
                self._plan = self._settled_plan = latest = replace(latest, steps=num_steps)
            self._log_opening(latest, f"step {step} is reached")
            return
        if not self._pace.has_settled or start >= latest.start:
            return
        if why_no_room(self._schedule, step, start + latest.steps) or self._channel.unconfirmed():
            return  # so early, some ranks may not have found rank 0 yet
        self._can_move_up = False
        num_steps = self._num_steps(latest, step, start)
        self._settled_plan = plan = replace(latest, window=window, start=start, steps=num_steps)
        self._open(plan, step, "step times have settled")

    def _num_steps(self, latest: Plan, step: int, start: int) -> int:
        """Return how many steps the settled window has if it begins at ``start``."""
        if self.least_steps is None:
            return latest.steps
        num_steps = math.ceil(_WINDOW_NS / max(1, self._pace.median_ns))
        num_steps = min(max(num_steps, _LEAST_STEPS), _MOST_STEPS)
        return latest.steps if why_no_room(self._schedule, step, start + num_steps) else num_steps

    def _consume_request(self) -> TriggerRequest | None:
        """Return the pending request; None without one, or if it cannot be deleted (logged once)."""
        try:
            return triggers.consume_request(self._run)
        except OSError as error:
            if not self._has_warned_of_request:
                self._has_warned_of_request = True
                path = triggers.request_path(self._run)
                log.warning(
                    f"rank 0: {path}: {error.strerror or error}; expected a file that this process "
                    "may delete; no request is accepted until it is removed"
                )
        return None

    def _answer(self, request: TriggerRequest, step: int, window: int) -> None:
        """Open a window for a request, or refuse it with a warning; write the response to a file."""
        steps = request.steps or self._config.steps
        ranks = self._config.ranks if request.ranks is None else request.ranks
        refused, members = request.problem, frozenset[int]()
        try:
            members = self._topology.select(ranks) & self._recorded
        except (UsageError, TypeError, ValueError) as error:
            refused = refused or f"ranks {ranks!r}: {error}"
        start = step + self._ahead()
        if not refused and not members:
            refused = f"ranks {ranks!r}: none of them records"
        refused = refused or self._busy(step, start + steps)
        why = "asked for by request"
        if refused:
            log.warning(f"rank 0: no window, {why}: {refused}")
            self._respond(TriggerResponse(why, request.id, refused))
            return
        plan = Plan(window, start, steps, ranks, is_held=False)
        self._open_on_demand(plan, step, why, request.id)

    def _open_for_slow_step(self, why: str, step: int, window: int) -> None:
        """Open a window for a slow step, unless a rule forbids it.

        No window opens in the cool-down after the last window, while another window is planned,
        open or scheduled, or once ``max_windows`` is reached; only the last case is logged, once.
        """
        slow, config = self._slow, self._config
        if slow is None or step < self._cool_until:
            return
        start = step + self._ahead()
        if self._busy(step, start + config.steps):
            return
        if self._num_for_steps >= slow.max_windows:
            if not self._has_warned_of_limit:
                self._has_warned_of_limit = True
                limit = f"max_windows {slow.max_windows} is reached"
                log.warning(f"rank 0: {why}: no window, since {limit}")
            return
        plan = Plan(window, start, config.steps, config.ranks, slow.keep == "slow")
        self._num_for_steps += 1
        self._open_on_demand(plan, step, why)

    def _look_for_slow_ranks(self, own: OwnTimes, step: int, window: int) -> None:
        """Compare the ranks' own times; open a window on a rank that has become slow, and on its peers.

        The window is for all ranks that are slow by then or become slow in the cool-down: they may have one cause,
        such as their host. They get another one only after they were not slow for as long. Slow
        ranks without a window are logged, once each.
        """
        has_new = False
        for number, times in own.ready(step):
            plan = self._plan_at(number)
            if plan is not None:
                held = self._undecided.get(plan.window)
                if held is not None and held.suspect is not None:
                    held.suspect.own_ns.append(times)
            elif self._schedule.state(number) is State.CLOSED:
                own.compare(times)
                has_new = True
        if not has_new:
            return
        slow = own.slow(self._pace.median_ns)
        new = {rank for rank in slow if step >= self._known_until.get(rank, 0)}
        if not new or self._open_for_slow_ranks(own, slow, new, step, window):
            new = set()
        self._known_until.update(dict.fromkeys(slow.keys() - new, step + _COOL_STEPS))

    def _open_for_slow_ranks(
        self, own: OwnTimes, slow: Mapping[int, int], new: set[int], step: int, window: int
    ) -> bool:
        """Open a window for new slow ranks; return False if it is to be tried again."""
        rank = min(new, key=lambda each: (each not in self._recorded, each))
        others = f", {format_ranges('rank', new - {rank})} too" if len(new) > 1 else ""
        why = f"rank {rank} has worked longer than its peers for {slow[rank]} steps{others}"
        start, steps = step + self._ahead(), self._config.steps
        is_cooling = step < self._ranks_cool_until
        if rank not in self._recorded:
            refused: str | None = f"rank {rank} does not record"
        elif self._num_for_ranks >= _MOST_WINDOWS:
            refused = f"{_MOST_WINDOWS} windows were opened for slow ranks"
        elif is_cooling:
            refused = f"one was opened less than {_COOL_STEPS} steps ago"
        else:
            refused = self._busy(step, start + steps)
        if refused:
            if not new <= self._logged_slow:
                self._logged_slow |= new
                log.warning(f"rank 0: {why}: no window, since {refused}")
            return is_cooling
        self._num_for_ranks += 1
        self._ranks_cool_until = step + _COOL_STEPS
        ranks = own.peers(rank, self._recorded - slow.keys(), _MOST_PEERS)
        plan = Plan(window, start, steps, ranks, is_held=True)
        self._open_on_demand(plan, step, why, suspect=_Suspect(rank, ranks))
        return True

    def _open_on_demand(
        self,
        plan: Plan,
        step: int,
        why: str,
        request_id: str = "",
        suspect: _Suspect | None = None,
    ) -> None:
        if plan.is_held:
            self._undecided[plan.window] = _HeldWindow(plan.end, suspect)
        self._open(plan, step, why)
        members = sorted(self._members)
        window = plan.window, plan.start, plan.steps
        self._respond(TriggerResponse(why, request_id, None, *window, members))

    def _open(self, plan: Plan, step: int, why: str) -> None:
        self._channel.send({"kind": "plan", "plan": vars(plan)})
        self._has_decided = False
        self._accept_plan(plan, step)
        self._announced = plan
        self._log_opening(plan, why)

    def _log_opening(self, plan: Plan, why: str) -> None:
        log.info(f"rank 0: {plan}, on {format_ranges('rank', self._members)}: {why}")

    def _decide(self, step: float) -> None:
        """Decide on held windows, and send the decisions to the other ranks.

        A window is kept if any rank reported a slow step in it, or if the rank for which it was opened was slow
        in it. A decision is made when the reports of all ranks must have arrived.
        """
        for window, held in list(self._undecided.items()):
            suspect, is_slow = held.suspect, held.is_slow
            if step < held.end + (_AHEAD_STEPS + 1 if suspect is None else PATIENCE):
                continue  # another rank's report may still arrive
            del self._undecided[window]
            cause = ""
            if suspect is not None:
                is_slow = is_slow or rank_is_slow(suspect.rank, suspect.ranks, suspect.own_ns)
                cause = f"rank {suspect.rank} did not work longer than its peers in it"
            elif self._slow is not None:
                cause = f"no step took more than {self._slow.times:g} times the median"
                self._num_for_steps -= not is_slow
            self._channel.send({"kind": "verdict", "window": window, "keep": is_slow})
            self._has_decided = True
            self._awaited.discard(window)
            self.keep_decisions[window] = is_slow
            if not is_slow:
                log.info(f"rank 0: window {window} is deleted: {cause}")

    def _ahead(self) -> int:
        """Return how many steps from now a window can start if it is decided on now."""
        if self._topology.world_size == 1:
            return 1  # for the tracers to warm up
        return _AHEAD_STEPS + math.ceil(_AHEAD_SECONDS * 1e9 / max(self._pace.short_ns, 1))

    def _busy(self, step: int, end: int) -> str | None:
        """Return why steps ``step`` to ``end - 1`` cannot hold another window; None if they can."""
        if self._plan is not None:
            return f"already recording: {self._plan}"
        return why_no_room(self._schedule, step, end)

    def _respond(self, response: TriggerResponse) -> None:
        if self._config.file:
            with suppress(OSError):  # the window's own files show the decision too
                triggers.append_response(self._run, response)

    @contextmanager
    def _suppress_and_report(self) -> Iterator[None]:
        """After a failure, log it and open no window from then on; an open window goes on."""
        try:
            yield
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        pass_interruption(error)
        if not self._has_failed:
            self._has_failed = True
            log.warning(
                f"rank {self._rank}: windows on demand failed: {error}; none is opened from now on"
            )
