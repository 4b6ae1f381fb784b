"""The parts of a session: step times, windows, triggers, clocks, liveness.

`ppprof.capture.session.RecordingSession` calls each part, in a fixed order, after every step and
when it closes.
"""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ppprof.capture.recording.user_files import UserFiles, raised_at
from ppprof.capture.signals import ending_signal, ignoring_errors
from ppprof.capture.steps.processors import Processors
from ppprof.capture.steps.slow_lines import SlowLine, SlowLines
from ppprof.capture.steps.step_log import DeviceMemory, StepRecord

if TYPE_CHECKING:
    from ppprof.capture.postprocess import PostProcessor
    from ppprof.capture.ranks.triggers import Triggers
    from ppprof.capture.recording.windows import Windows
    from ppprof.capture.step_states import StepStates, Transition
    from ppprof.capture.steps.lasting_cost import LastingCost
    from ppprof.capture.steps.metrics import Metrics
    from ppprof.capture.steps.perf_summary import PerfSummary
    from ppprof.capture.steps.step_log import StepLog
    from ppprof.capture.steps.timer import StepCost
    from ppprof.capture.steps.visualdl_scalars import Loss, Scalars
    from ppprof.rundir.liveness import LivenessRegistry

log = logging.getLogger("ppprof")

_new = tuple.__new__  # of a named tuple's values: its own takes three times as long
_NO_MEMORY = DeviceMemory()
_RSS_NS = 10_000_000
"""How often the peak of memory is read: that takes 1 us."""
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


class FinishedStep(NamedTuple):
    """A step that has just ended."""

    step: int
    """Its number; that of the first step is `Schedule.first_step`."""
    batch_cost_ns: int | None
    """None while the device works on the step: `Part.on_cost` gets the cost later."""
    reader_cost_ns: int | None
    num_samples: int | None
    num_tokens: int | None
    num_micro_batches: int | None
    num_flops: int | None
    loss: Loss
    stall_ns: int
    """Part of ``batch_cost_ns`` in which the profiler held the training up on this rank."""
    excluded: bool
    """Whether the step includes a stall of the profiler, on this rank or on another rank."""
    window: int | None
    """Number of the window that the step was in; None outside windows, see `StepStates.open_window`."""
    next_window: int
    """Number of the window that is open after the step; without an open window, the next number."""
    device_timed: bool | None = None
    """Whether the step ended when the device had done its work; None without a device."""
    communication_ns: int | None = None
    """Time in calls of communication, and waiting for them; None if it is unknown."""
    paused_ns: int = 0
    """Time in `ProfilerSession.paused` since the step before; it is in no step."""
    paused_for: str | None = None
    """What the pauses were for; None without a pause that says it."""
    started_workers: int | None = None
    """Worker processes that Paddle's DataLoaders started in the step; None if that is unknown."""
    starting_ns: int | None = None
    """Time that this took, with that of stopping and resuming workers; None if it is unknown."""
    num_collections: int | None = None
    """Full garbage collections of Python in the step; None if that is unknown."""

    @property
    def is_usual(self) -> bool:
        """Whether the profiler does nothing in it."""
        return self.window is None and not (self.excluded or self.stall_ns)

    def costing(self, cost: StepCost) -> FinishedStep:
        """Return the step with the cost that has become known."""
        return self._replace(
            batch_cost_ns=cost.batch_cost_ns,
            device_timed=cost.device_timed,
            excluded=self.excluded or cost.excluded,
            paused_ns=cost.paused_ns,
        )


@dataclass(frozen=True)
class Ending:
    """How a session ends."""

    error: BaseException | None
    """The exception that ends the training; None if the training ends without one."""
    num_steps: int
    """Steps that have ended since `attach`."""
    step: int
    """Number of the step that has not ended."""
    is_in_window: bool
    """Whether a window of the job is open, on this rank or only on other ranks."""
    failures: Set[str]
    """``Part.task`` of each part that has failed so far."""

    @property
    def failed(self) -> bool:
        """Whether an exception ends the training."""
        return self.error is not None


class Part:
    """The methods that a session calls on its parts. A method that is not overridden does nothing.

    A method may raise any exception. The session then logs ``task`` with the error and calls
    `on_failure` of all its parts; an error in `rescue` is only logged.
    """

    task = "profiling"
    """The activity that has failed if a method raises, for the log: "recording failed: ..."."""
    has_data = False
    """Whether the part holds recorded data. If an exception or a signal ends the training, these
    parts are closed or rescued ahead of the others."""

    def on_step(self, step: FinishedStep) -> None:
        """Handle a step that has ended on the host."""

    def on_cost(self, cost: StepCost) -> None:
        """Handle the cost of the oldest step that `on_step` got without a cost."""

    def on_transition(self, transition: Transition) -> int:
        """Handle the change between two steps; return for how many ns this stalled the training."""
        return 0

    def stalls(self, transition: Transition) -> bool:
        """Return whether `on_transition` will stall the training, though no window opens or ends."""
        return False

    def on_failure(self) -> None:
        """End the recording, since this part or another part has failed; step times go on."""

    def close(self, ending: Ending) -> None:
        """Save all data of the part. A signal that arrives meanwhile is handled afterwards."""

    def wait(self, ending: Ending) -> None:
        """Wait for other processes and print results; called after `close` of all parts.

        A signal that arrives meanwhile ends the process, which is safe: all data are saved.
        """

    def on_signal(self) -> None:
        """Note what must be known at once: a signal is about to end the process; `rescue` follows."""

    def rescue(self) -> None:
        """Save the data recorded so far: a signal is about to end the process.

        Called in the thread of the `SignalGuard`, while the training's threads may still run.
        """


class LivenessPart(Part):
    """Marks this rank as finished or failed in the run directory."""

    task = "naming dead ranks"

    def __init__(self, registry: LivenessRegistry) -> None:
        self._registry = registry
        self.lost_ranks = ""
        """Names of the ranks that died or failed before this rank, and how each ended; "" if no such
        rank is known, and before this rank fails."""

    def close(self, ending: Ending) -> None:
        """Mark this rank as finished, or as failed if an exception ends the training."""
        if ending.error is None:
            self._registry.mark_finished()
        else:
            place = ""
            with suppress(Exception):  # the working directory may be gone
                place = raised_at(ending.error, UserFiles(Path.cwd()))
            self.lost_ranks = self._registry.mark_failed(ending.error, place=place)

    def rescue(self) -> None:
        """Mark this rank as ended by the signal that has arrived."""
        self.lost_ranks = self._registry.mark_failed(None, ending_signal() or "SIGTERM")


class TriggersPart(Part):
    """Opens windows on demand: at a request, after a slow step or for a slow rank.

    Args:
        saved_steps: the steps of each window that this rank has saved, by number.
        first_step: number of the training's first step.
    """

    task = "triggers"

    def __init__(
        self, triggers: Triggers, saved_steps: Mapping[int, range], first_step: int = 0
    ) -> None:
        self._triggers = triggers
        self._saved_steps = saved_steps
        self._working: deque[FinishedStep] = deque()
        """Steps without a cost, the oldest first."""
        triggers.advance(first_step, 0)

    def on_step(self, step: FinishedStep) -> None:
        """Report the step's time to `Triggers`; then exchange messages with the other ranks."""
        self._add(step)
        self._triggers.add_own(step.step, _own_ns(step))
        self._triggers.advance(step.step + 1, step.next_window)

    def on_cost(self, cost: StepCost) -> None:
        """Report the time of an earlier step to `Triggers`."""
        self._add(self._working.popleft().costing(cost))

    def _add(self, step: FinishedStep) -> None:
        if step.batch_cost_ns is None:
            self._working.append(step)
            return
        duration_ns = max(step.batch_cost_ns - step.stall_ns, 0)
        self._triggers.add_step(
            step.step,
            duration_ns,
            is_recorded=step.window is not None,
            is_excluded=step.excluded,
        )

    def close(self, ending: Ending) -> None:
        """Close the channel; wait up to 2 s for decisions on which windows to keep.

        Without waiting if an exception ends the training.
        """
        self._triggers.close(ending.failed)

    def wait(self, ending: Ending) -> None:
        """Log on rank 0 what is saved if the training ended before the end of the settled window."""
        plan = self._triggers.cut_short
        if plan is None:
            return
        saved = self._saved_steps.get(plan.window, range(0))
        least = self._triggers.least_steps
        if least is None or saved.start < plan.start or len(saved) < least:
            log.warning(f"rank 0: {plan.ending(ending.num_steps, saved)}")


def _own_ns(step: FinishedStep) -> int | None:
    """Return how long this rank worked itself in a step; None on a device, whose work no host sees."""
    is_known = not step.excluded and step.device_timed is None
    if not is_known or step.communication_ns is None or step.batch_cost_ns is None:
        return None
    return max(step.batch_cost_ns - step.communication_ns - (step.reader_cost_ns or 0), 0)


class RecordingPart(Part):
    """Records windows on this rank and prints the tables of its windows."""

    task = "recording"
    has_data = True

    def __init__(
        self,
        states: StepStates,
        windows: Windows | None,
        post_processor: PostProcessor,
        triggers: Triggers | None = None,
    ) -> None:
        self._states = states
        self._windows = windows
        self._post_processor = post_processor
        self._triggers = triggers

    def stalls(self, transition: Transition) -> bool:
        """Return whether a segment is about to be saved, or a postponed window to be opened."""
        windows = self._windows
        if windows is None:
            return False
        return windows.ends_segment(transition) or windows.opens_late(transition)

    def on_transition(self, transition: Transition) -> int:
        """Print finished tables; then open, save, keep or delete windows."""
        has_finished_window = self._post_processor.has_finished_window
        is_quiet = not (transition.excluded or transition.after.records or has_finished_window)
        if is_quiet and (self._triggers is None or not self._triggers.keep_decisions):
            return 0
        start = time.perf_counter_ns()
        holds_up = transition.excluded
        if has_finished_window:
            holds_up = True
            self._post_processor.poll()
        windows = self._windows
        if windows is not None and (holds_up or transition.after.records):
            if not windows.admit(transition):
                transition = self._states.cut(transition)
                holds_up = True
            if not windows.advance(transition):
                self._states.cut(transition)
        self._apply_keep_decisions()
        return time.perf_counter_ns() - start if holds_up else 0

    def on_failure(self) -> None:
        """Save an open window if a step has ended in it, and record nothing from now on."""
        windows, self._windows = self._windows, None
        if windows is not None:
            windows.close(keep_empty=False)

    def close(self, ending: Ending) -> None:
        """Save an open window, and stop recording.

        A window in which no step has ended is saved only if an exception ends the training or if
        the schedule records every step.
        """
        self._apply_keep_decisions()
        windows, self._windows = self._windows, None
        if windows is not None:
            keep_empty = ending.failed or self._states.schedule.record is None
            windows.close(keep_empty, ending.error)

    def rescue(self) -> None:
        """Save an open window. Paddle's profiler is not released: the training may be using it."""
        if self._windows is not None:
            self._windows.rescue()

    def _apply_keep_decisions(self) -> None:
        """Keep or delete each held window that rank 0 has decided on."""
        if self._triggers is None or not self._triggers.keep_decisions:
            return
        decisions, self._triggers.keep_decisions = self._triggers.keep_decisions, {}
        windows = self._windows
        if windows is not None:
            for window, is_kept in decisions.items():
                windows.settle(window, is_kept)


class DevicePart(Part):
    """Warns once if the training computes on another device than that of `attach`.

    Args:
        ask: returns the device that Paddle computes on, such as ``gpu:0``.
    """

    task = "naming the device"

    def __init__(self, ask: Callable[[], str]) -> None:
        self._ask = ask
        self._device = ask()
        self._num_begun = 0

    def on_transition(self, transition: Transition) -> int:
        """Compare the devices after the first step."""
        self._num_begun += 1
        if self._num_begun == 2:
            self._compare()
        return 0

    def _compare(self) -> None:
        device = self._ask()
        if device == self._device:
            return
        what = "step times, memory and windows"
        if device.partition(":")[0] == self._device.partition(":")[0]:
            what = "the memory of steps and the device in the manifest"
        log.warning(
            f"the training computes on {device}, but attach() was called on {self._device}: "
            f"{what} are those of {self._device}; call attach() after paddle.set_device()"
        )


class StepsPart(Part):
    """Counts and logs every step, recorded or not.

    Args:
        log: the file of step times; None to write no step times.
        scalars: the VisualDL log; None to write no scalars. Without ``log`` it has no effect.
        device_memory: returns the memory of the device now; None without a device.
        lasting_cost: compares steps before and after the first window; None without a device.
        allocated_bytes: returns the peak memory of tensors on the host so far; None if unknown.
        metrics: the numbers for machines; None to publish none. Without ``log`` it has no effect.
        slow_lines: finds the lines of slow steps; None to look for none. Without ``log`` it has no effect.
    """

    task = "timing a step"
    has_data = True

    def __init__(
        self,
        summary: PerfSummary,
        log: StepLog | None = None,
        scalars: Scalars | None = None,
        device_memory: Callable[[], DeviceMemory] | None = None,
        lasting_cost: LastingCost | None = None,
        allocated_bytes: Callable[[], int | None] = lambda: None,
        metrics: Metrics | None = None,
        slow_lines: SlowLines | None = None,
    ) -> None:
        self._slow_lines = slow_lines
        self._summary = summary
        self._metrics = metrics
        self._allocated_bytes = allocated_bytes
        self._log = log
        self._scalars = scalars
        self._device_memory = device_memory
        self._lasting_cost = lasting_cost
        self._processors = Processors()
        self._rss_bytes = 0
        self._next_rss_ns = 0
        self._working: deque[tuple[FinishedStep, StepRecord | None]] = deque()
        """Steps without a cost, the oldest first; without a record if no step times are written."""

    def on_step(self, step: FinishedStep) -> None:
        """Add the step to the Perf Summary, to the step log and to the scalars.

        A step without a cost is added by `on_cost`, with the memory and the loss of now.
        """
        record = self._record(step) if self._log is not None else None
        try:
            if record is not None and step.loss is not None:
                record = record._replace(loss=self._number(step.loss))
        finally:  # a signal handler of the training may raise in a callable
            if step.batch_cost_ns is None:
                self._working.append((step, record))
            else:
                self._add(step, record)

    def on_cost(self, cost: StepCost) -> None:
        """Add an earlier step to the Perf Summary, to the step log and to the scalars."""
        step, record = self._working.popleft()
        step = step.costing(cost)
        if record is not None:
            record = record._replace(
                batch_cost_ns=cost.batch_cost_ns,
                device_timed=cost.device_timed,
                excluded=step.excluded,
                stall_ns=min(step.stall_ns, cost.batch_cost_ns),
                paused_ns=cost.paused_ns,
            )
            record = self._with_line_of_device(step, record, cost.batch_cost_ns)
        self._add(step, record)

    def _host_peak_bytes(self) -> int:
        """Return the peak resident memory so far, of at most `_RSS_NS` ago."""
        now = time.monotonic_ns()
        if now >= self._next_rss_ns:
            self._next_rss_ns = now + _RSS_NS
            self._rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
        return self._rss_bytes

    def _record(self, step: FinishedStep) -> StepRecord:
        memory = self._device_memory() if self._device_memory is not None else _NO_MEMORY
        values = (
            step.step,
            step.batch_cost_ns or 0,
            step.reader_cost_ns,
            step.num_samples,
            step.num_tokens,
            step.num_micro_batches,
            step.num_flops,
            memory.peak_bytes,
            self._host_peak_bytes(),
            step.stall_ns,
            step.excluded,
            step.window,
            step.device_timed,
            memory.peak_reserved_bytes,
            memory.total_bytes,
            *self._processors.step(),
            step.communication_ns,
            self._allocated_bytes(),
            step.paused_ns,
            step.paused_for,
            step.started_workers,
            step.starting_ns,
            step.num_collections,
            *self._slow_line(step),
            None,
        )
        return _new(StepRecord, values)

    def _slow_line(self, step: FinishedStep) -> tuple[str | None, str | None, int | None]:
        if self._slow_lines is None:
            return None, None, None
        communication_ns = step.communication_ns or 0
        step_ns = None if step.device_timed else step.batch_cost_ns
        with ignoring_errors():  # no step time is worth less without it
            found = self._slow_lines.step(
                step_ns, is_usual=step.is_usual, communication_ns=communication_ns
            )
            if step.device_timed and step.batch_cost_ns is not None and step.is_usual:
                # The training has waited for the device, and its time is known at once.
                found = self._slow_lines.done(found, step.batch_cost_ns, communication_ns)
            return found
        return None, None, None

    def _with_line_of_device(
        self, step: FinishedStep, record: StepRecord, step_ns: int
    ) -> StepRecord:
        found = SlowLine(record.slow_line, record.slow_inner_line, record.slow_line_ns)
        if self._slow_lines is not None and step.is_usual:
            with ignoring_errors():
                found = self._slow_lines.done(found, step_ns, step.communication_ns or 0)
        return record._replace(
            slow_line=found.line, slow_inner_line=found.inner_line, slow_line_ns=found.line_ns
        )

    def _number(self, loss: Loss) -> float | None:
        """Return the loss if it is a number, such as numpy's; scalars read others, too."""
        if isinstance(loss, Real):
            return float(loss)
        return None if self._scalars is None else self._scalars.read(loss)

    def _add(self, step: FinishedStep, record: StepRecord | None) -> None:
        assert step.batch_cost_ns is not None
        self._summary.add(
            step.batch_cost_ns,
            step.reader_cost_ns,
            step.num_samples,
            step.excluded,
            num_tokens=step.num_tokens,
            num_flops=step.num_flops,
        )
        if self._lasting_cost is not None:
            self._warn(
                self._lasting_cost.add(step.batch_cost_ns, step.window, is_excluded=step.excluded)
            )
        if self._log is None or record is None:
            return
        self._log.add(record)
        if self._scalars is not None:
            self._scalars.add(record)
        if self._metrics is not None:
            self._metrics.add(record)

    def on_transition(self, transition: Transition) -> int:
        """Write all steps to disk if a window has ended."""
        if transition.ends_window:
            self.flush()
        return 0

    def close(self, ending: Ending) -> None:
        """Write all steps to disk, and end the publishing of metrics."""
        self.flush()
        if self._lasting_cost is not None:
            self._warn(self._lasting_cost.compare())
        self._processors.close()
        if self._slow_lines is not None:
            self._slow_lines.close()
        if self._metrics is not None:
            self._metrics.close(waits=not ending.failed)

    def _warn(self, what: str) -> None:
        if what:
            log.warning(what)
            self._lasting_cost = None

    def rescue(self) -> None:
        """Write all steps to disk, and remove the metrics, the same as `close`, without waiting."""
        self.flush()
        if self._slow_lines is not None:
            self._slow_lines.close(waits=False)
        if self._metrics is not None:
            self._metrics.close(waits=False)

    def flush(self) -> None:
        """Write all steps to disk."""
        if self._log is not None:
            self._log.flush()
        if self._scalars is not None:
            self._scalars.flush()
