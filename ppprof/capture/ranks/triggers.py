"""Windows on demand: asked for through a file, or by a slow step, and agreed on across the ranks.

::

    step     40   41   42   43   44   45   46   47   48   49
    rank 0   asked |  decides: 45 to 48   r    R    R    R    R
    rank 1             hears of it        r    R    R    R    R
    rank 2                  hears of it   r    R    R    R    R

Rank 0 decides and the others hear of it by `mail`, all between two steps. The start is as many steps
ahead as ranks may be apart and mail may take; whoever hears of it later says so and joins, or says
that it missed the window. Cool-down and number of windows are rank 0's to mind, so they are the
job's.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppprof.capture.schedule import Schedule, State
from ppprof.capture.steps.slow_steps import RunningSteps
from ppprof.errors import UsageError
from ppprof.rundir import triggers
from ppprof.rundir.triggers import TriggerRequest, TriggerResponse
from ppprof.topology import RankSelector, Topology
from ppprof.units import format_ranges

if TYPE_CHECKING:
    from ppprof.capture.ranks.control_channel import ControlChannel
    from ppprof.config import TriggerConfig

log = logging.getLogger("ppprof")

_LOOK_SECONDS = 0.25
"""Between two looks for a file, which may be on a network."""
_AHEAD_STEPS = 2
"""How far ranks may be apart: a rank's host runs ahead of others that wait for a device."""
_AHEAD_SECONDS = 0.5
"""How long mail may take, with one or the other packet lost."""
_TIMED_STEPS = 5
"""Steps to be seen before anything is decided: the first ones take longer."""
_VERDICT_SECONDS = 2.0
"""How long a session that ends waits to hear whether a window is kept."""


@dataclass(frozen=True)
class Plan:
    """A window that the ranks have agreed on."""

    window: int
    start: int
    steps: int
    ranks: RankSelector
    """Of those that record."""
    is_trial: bool
    """Whether it is deleted where none of its steps is slow."""

    @property
    def end(self) -> int:
        """The step after its last one."""
        return self.start + self.steps

    def state(self, step: int) -> State:
        """The state of a step, as a schedule has it."""
        if self.start <= step < self.end:
            return State.LAST if step == self.end - 1 else State.RECORD
        return State.READY if step == self.start - 1 else State.CLOSED

    def __str__(self) -> str:
        return f"window {self.window}, {_steps(self.start, self.end)}"


class Triggers:
    """A rank's part in it, for the length of its session; none of its methods raises.

    Args:
        config: ``Profiler.trigger``.
        schedule: whose windows go first.
        rank: of this process.
        topology: of the job.
        recorded: ranks that record at all.
        run: the run directory.
        mail: to the other ranks.
        clock: seconds.
    """

    def __init__(
        self,
        config: TriggerConfig,
        schedule: Schedule,
        rank: int,
        topology: Topology,
        recorded: Collection[int],
        run: Path,
        mail: ControlChannel,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._slow = config.slow_step
        self._schedule = schedule
        self._rank = rank
        self._topology = topology
        self._recorded = frozenset(recorded)
        self._run = run
        self._mail = mail
        self._clock = clock
        self._looked = -math.inf
        self._steps = RunningSteps()
        self._plan: Plan | None = None
        self._members: frozenset[int] = frozenset()
        self._is_over = False
        self._pending_reason = ""
        """Of a slow step, in words; for rank 0 to decide."""
        self._asks_from = 0
        """The step from which a slow one is worth a word: one is enough for the job."""
        self._cool_until = 0
        self._trials: dict[int, tuple[int, bool]] = {}
        """Windows without a verdict: their end, and whether a step was slow; on rank 0."""
        self._awaited: set[int] = set()
        """Windows that this rank has to hear the verdict on."""
        self._num_kept = 0
        self._told_of_most = False
        self._announced: Plan | None = None
        self.first_free = 0
        """The lowest number that a window after this step may have, as far as this rank has heard."""
        self.keep_decisions: dict[int, bool] = {}
        """Whether windows on trial are kept, as soon as this rank hears; for the session to take."""
        if rank == 0 and config.file:
            with self._suppress_and_report():
                triggers.request_path(run).parent.mkdir(exist_ok=True)

    def state(self, step: int) -> State:
        """What triggered windows make of a step, on all ranks."""
        return State.CLOSED if self._plan is None else self._plan.state(step)

    @property
    def is_member(self) -> bool:
        """Whether this rank records the window that is agreed on."""
        return self._rank in self._members

    @property
    def is_provisional(self) -> bool:
        """Whether that window may yet be deleted."""
        return self._plan is not None and self._plan.is_trial

    def saw(self, step: int, took_ns: int, is_clean: bool) -> None:
        """Hears how long a step took.

        Args:
            step: its number.
            took_ns: without what the profiler itself took.
            is_clean: whether it is outside windows and apart from any stall of the profiler's.
        """
        try:  # as `_suppress_and_report`, which takes 2 us
            self._saw(step, took_ns, is_clean)
        except Exception as error:
            self._give_up(error)

    def turn(self, step: int, window: int) -> None:
        """Ahead of step number ``step``: reads mail and decides.

        Args:
            step: its number.
            window: number of the window that is open, or comes next.
        """
        plan = self._plan
        if plan is not None and step >= plan.end:
            self._plan = None
            self.first_free = plan.window + 1
        if self._is_over:
            return
        try:
            for message in self._mail.read():
                self._on_message(message, step)
            if self._rank == 0:
                self._coordinate(step, window)
        except Exception as error:
            self._give_up(error)

    def close(self, failed: bool) -> None:
        """Ends it; afterwards `keep_decisions` has what could still be heard.

        Args:
            failed: the training ends by an exception: other ranks are not waited for.
        """
        with self._suppress_and_report():
            plan, self._plan = self._plan, None
            if plan is not None:
                self._trials.pop(plan.window, None)
                self._awaited.discard(plan.window)  # cut off, which is no verdict
            if self._rank == 0:
                self._decide(math.inf)
                self._mail.close(0 if failed else _VERDICT_SECONDS)
                if self._config.file:
                    triggers.request_path(self._run).unlink(missing_ok=True)
                return
            deadline = self._clock() + (0 if failed else _VERDICT_SECONDS)
            while self._awaited and self._clock() < deadline:
                for message in self._mail.read():
                    self._on_message(message, None)
                time.sleep(0.01)
            self._mail.close()

    def _saw(self, step: int, took_ns: int, is_clean: bool) -> None:
        slow, plan = self._slow, self._plan
        is_slow = slow is not None and self._steps.is_slow(took_ns, slow.times)
        if is_clean:
            self._steps.add(took_ns)
        if not is_slow or slow is None:
            return
        times = took_ns / self._steps.median_ns
        if plan is not None and plan.start <= step < plan.end:
            if plan.is_trial:
                self._note_slow(plan.window)
        elif is_clean and plan is None and step >= self._asks_from:
            self._asks_from = step + 1 + slow.cool_down
            why = f"step {step} of rank {self._rank} took {took_ns / 1e6:.1f} ms, {times:.1f} times the median"
            if self._rank == 0:
                self._pending_reason = why
            else:
                self._mail.send({"kind": "ask", "why": why})

    def _note_slow(self, window: int) -> None:
        if self._rank == 0:
            self._trials[window] = (self._trials[window][0], True)
        else:
            self._mail.send({"kind": "slow", "window": window})

    def _on_message(self, message: Mapping[str, Any], step: int | None) -> None:
        kind = message["kind"]
        if kind == "plan" and step is not None:
            self._accept_plan(Plan(**message["plan"]), step)
        elif kind == "verdict":
            self._awaited.discard(message["window"])
            self.keep_decisions[message["window"]] = message["keep"]
        elif kind == "ask":
            self._pending_reason = self._pending_reason or message["why"]
        elif kind == "slow" and message["window"] in self._trials:
            self._note_slow(message["window"])

    def _accept_plan(self, plan: Plan, step: int) -> None:
        """From now on there is a window to come, or to join."""
        members = self._topology.select(plan.ranks) & self._recorded
        if self._slow is not None:
            self._asks_from = self._cool_until = plan.end + self._slow.cool_down
        if step >= plan.end:
            self.first_free = max(self.first_free, plan.window + 1)
            if self._rank in members:
                log.warning(f"rank {self._rank}: missed {plan}: heard of it ahead of step {step}")
            return
        if step > plan.start and self._rank in members:
            late = f"heard of it ahead of step {step}, and records from there"
            log.warning(f"rank {self._rank}: {plan}: {late}")
        self._plan, self._members = plan, members
        self.first_free = plan.window
        if plan.is_trial:
            self._awaited.add(plan.window)

    def _coordinate(self, step: int, window: int) -> None:
        self._decide(step)
        if self._announced is not None and step >= self._announced.start:
            plan, self._announced = self._announced, None
            late = self._mail.late()
            if late:
                log.warning(
                    f"rank 0: {plan} begins, and {format_ranges('rank', late)} did not confirm it"
                )
        if len(self._steps) < _TIMED_STEPS:
            return
        if self._config.file and self._clock() - self._looked >= _LOOK_SECONDS:
            self._looked = self._clock()
            request = triggers.consume_request(self._run)
            if request is not None:
                self._answer(request, step, window)
        if self._pending_reason:
            why, self._pending_reason = self._pending_reason, ""
            self._open_for_slow_step(why, step, window)

    def _answer(self, request: TriggerRequest, step: int, window: int) -> None:
        """Decides about a request, and leaves the answer."""
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
            self._leave(TriggerResponse(why, request.id, refused))
            return
        self._open(Plan(window, start, steps, ranks, is_trial=False), step, why)
        self._leave(TriggerResponse(why, request.id, None, window, start, steps, sorted(members)))

    def _open_for_slow_step(self, why: str, step: int, window: int) -> None:
        """Opens a window for a slow step, unless there was one just now."""
        slow, config = self._slow, self._config
        if slow is None or step < self._cool_until:
            return
        start = step + self._ahead()
        if self._busy(step, start + config.steps):
            return
        if self._num_kept + len(self._trials) >= slow.max_windows:
            if not self._told_of_most:
                self._told_of_most = True
                log.warning(
                    f"rank 0: {why}: no window, for there were max_windows {slow.max_windows}"
                )
            return
        trial = slow.keep == "slow"
        plan = Plan(window, start, config.steps, config.ranks, is_trial=trial)
        if trial:
            self._trials[window] = (plan.end, False)
        else:
            self._num_kept += 1
        self._open(plan, step, why)
        members = sorted(self._members)
        self._leave(TriggerResponse(why, "", None, window, start, config.steps, members))

    def _open(self, plan: Plan, step: int, why: str) -> None:
        self._mail.send({"kind": "plan", "plan": vars(plan)})
        self._accept_plan(plan, step)
        self._announced = plan
        who = format_ranges("rank", self._members)
        log.info(f"rank 0: {plan}, on {who}: {why}")

    def _decide(self, step: float) -> None:
        """Keeps or drops windows on trial whose last words have come in."""
        for window, (end, is_slow) in list(self._trials.items()):
            if (
                step <= end + _AHEAD_STEPS
            ):  # what another rank has seen in its last step may be on its way
                continue
            del self._trials[window]
            self._num_kept += is_slow
            self._mail.send({"kind": "verdict", "window": window, "keep": is_slow})
            self._awaited.discard(window)
            self.keep_decisions[window] = is_slow
            if not is_slow and self._slow is not None:
                times = f"{self._slow.times:g} times the median"
                log.info(f"rank 0: window {window} is deleted: none of its steps took {times}")

    def _ahead(self) -> int:
        """Steps from now to the start of a window that is decided on now."""
        if self._topology.world_size == 1:
            return 1  # for the tracers to warm up
        return _AHEAD_STEPS + math.ceil(_AHEAD_SECONDS * 1e9 / max(self._steps.short_ns, 1))

    def _busy(self, step: int, end: int) -> str | None:
        """What is in the way of a window until ``end``, from now on; None: nothing."""
        if self._plan is not None:
            return f"already recording: {self._plan}"
        if self._schedule.state(step).records:
            return f"already recording: the schedule is {self._schedule}"
        if any(self._schedule.state(at) is not State.CLOSED for at in range(step, end)):
            return f"already recording before step {end}: the schedule is {self._schedule}"
        return None

    def _leave(self, answer: TriggerResponse) -> None:
        if self._config.file:
            with suppress(OSError):  # whoever asked sees the window's files
                triggers.append_response(self._run, answer)

    @contextmanager
    def _suppress_and_report(self) -> Iterator[None]:
        """Failures end what was to come, not a window that is open."""
        try:
            yield
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if not self._is_over:
            self._is_over = True
            log.warning(f"rank {self._rank}: triggered windows failed: {error}; there will be none")


def _steps(start: int, end: int) -> str:
    return f"step {start}" if end == start + 1 else f"steps {start} to {end - 1}"
