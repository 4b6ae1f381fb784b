"""What a training loop holds: one `RecordingSession.step` a step, and everything else happens in it."""

from __future__ import annotations

import atexit
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ppprof.capture.output import print_result
from ppprof.capture.ranks.clock_sync import described
from ppprof.capture.schedule import Schedule, State
from ppprof.capture.sigterm import SigtermGuard
from ppprof.capture.steps.perf_summary import PerfSummary
from ppprof.capture.steps.step_log import StepLog, StepRecord
from ppprof.capture.steps.timer import StepTimer
from ppprof.capture.steps.visualdl_scalars import Loss, Scalars
from ppprof.rundir.clocks import read_clocks

if TYPE_CHECKING:
    from ppprof.capture.postprocess import PostProcessor
    from ppprof.capture.ranks.clock_sync import ClockSync
    from ppprof.capture.ranks.triggers import Triggers
    from ppprof.capture.recording.windows import Windows
    from ppprof.rundir.liveness import LivenessRegistry

log = logging.getLogger("ppprof")

_FINISH_SECONDS = 60.0
"""How long `RecordingSession.close` waits for tables and traces, a gigabyte of which takes a few seconds:
their process outlives it, and a cluster should not be held for them."""

_END_SECONDS = 3.0
"""Given to a training that fails and gets SIGTERM while its window is saved: its exit code is that
of its failure, which a launcher passes on."""

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


class NoopSession:
    """The session of a profiler that is off: `step`, `paused` and `close` do nothing."""

    should_stop = False
    """Whether the training is to end now; never."""

    def step(
        self,
        num_samples: int | None = None,
        num_tokens: int | None = None,
        num_micro_batches: int | None = None,
        num_flops: int | None = None,
        loss: Loss = None,
    ) -> None:
        """Does nothing."""

    def paused(self) -> AbstractContextManager[None]:
        """Does nothing."""
        return nullcontext()

    def close(self) -> None:
        """Does nothing."""

    def __enter__(self) -> NoopSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


class RecordingSession(NoopSession):
    """The session of a profiler that is on.

    Its own failures end the recording with a line on stderr; they never reach the training, and
    exceptions of the training pass through it unchanged.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        rank: int = 0,
        run: Path | None = None,
        shown: Path | None = None,
        roster: LivenessRegistry | None = None,
        clock: ClockSync | None = None,
        windows: Windows | None = None,
        finisher: PostProcessor | None = None,
        triggers: Triggers | None = None,
        steps: StepLog | None = None,
        scalars: Scalars | None = None,
        timer: StepTimer | None = None,
        device_peak_bytes: Callable[[], int] | None = None,
        device_peak_flops: float | None = None,
        stop_training: bool = False,
        timer_only: bool = False,
        prints: bool = True,
        viewed: str | None = "json",
    ) -> None:
        self._schedule = schedule
        self._rank = rank
        self._run = run
        self._shown = shown or run
        self._roster = roster
        self._clock = clock
        self._windows = windows
        self._finisher = finisher
        self._triggers = triggers
        self._steps = steps
        self._scalars = scalars
        self._timer = timer or StepTimer()
        self._device_peak_bytes = device_peak_bytes
        self._stop_training = stop_training
        self._timer_only = timer_only
        self._prints = prints
        self._viewed = viewed
        self._summary = PerfSummary(device_peak_flops)
        self._step = 0
        self._window = 0
        self._stall_ns = 0
        self._excluded = False
        self._closed = self._ends_itself = False
        self._failed: set[str] = set()
        self._pid = os.getpid()
        self._lock = threading.RLock()  # between the training and a SIGTERM
        self._guard = SigtermGuard.install(self._save_on_sigterm) if run is not None else None
        atexit.register(self._at_exit)
        self._state = self._own_state = State.CLOSED
        self._is_cut = False
        self._advance(State.CLOSED)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def calls(self) -> Path | None:
        """Where remote calls of the window that is open are kept; None while none is.

        A forked child has no part in its parent's window.
        """
        windows = self._windows
        is_own = os.getpid() == self._pid and not self._closed
        return windows.calls if windows is not None and is_own else None

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._rank

    @property
    def should_stop(self) -> bool:  # type: ignore[override]
        """Whether the last window has closed and ``stop_training`` asks to end then.

        The schedule alone decides, so all ranks say the same after the same step.
        """
        return self._stop_training and self._schedule.is_over(self._step)

    def step(
        self,
        num_samples: int | None = None,
        num_tokens: int | None = None,
        num_micro_batches: int | None = None,
        num_flops: int | None = None,
        loss: Loss = None,
    ) -> None:
        """Ends a step: to be called after each optimizer step. Never raises.

        Between the last step of a window and the next step, the window is saved.

        Args:
            num_samples: samples of the step, for ips in samples/s.
            num_tokens: tokens of the step, for tokens/s. Both are those of this rank's
                data-parallel replica, the same on ranks that differ in mp or pp only.
            num_micro_batches: forward and backward passes that the step is made of.
            num_flops: model FLOPs of the step on this rank alone, for MFU: its share where mp and
                pp split the model, and without those of recomputation.
            loss: for ``visualdl_scalars``: a number, at the steps where the loop has read it anyway,
                to log it. Also a tensor on the CPU, or a callable that gives either, which is
                called only where scalars are written. A tensor on a device is not read, since that
                would wait for the device at every step.
        """
        if os.getpid() != self._pid:  # a forked child has no part in this
            return
        with self._lock:
            if self._closed:
                return
            before = self._state
            with self._suppress_and_report("timing a step"):
                self._record_step(
                    before,
                    num_samples=num_samples,
                    num_tokens=num_tokens,
                    num_micro_batches=num_micro_batches,
                    num_flops=num_flops,
                    loss=loss,
                )
            self._step += 1
            self._advance(before)

    def paused(self) -> AbstractContextManager[None]:
        """What is inside counts in no step's time, nor as reading: an evaluation, a checkpoint.

        Ranks that wait for one that pauses, in a collective, count that: all should pause.
        """
        return self._timer.paused()

    def close(self) -> None:
        """Saves an open window, waits for the tables and prints them. Never raises."""
        self._close(None)

    def __enter__(self) -> RecordingSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(error)

    def _record_step(self, state: State, loss: Loss, **given: int | None) -> None:
        took = self._timer.step()
        if self._triggers is not None:
            is_clean = not self._excluded and state is State.CLOSED
            took_ns = took.batch_cost_ns - self._stall_ns
            self._triggers.saw(self._step, took_ns, is_clean)
        # A numpy or Paddle scalar is a number too.
        counts = {name: None if count is None else int(count) for name, count in given.items()}
        self._summary.add(
            took.batch_cost_ns,
            took.reader_cost_ns,
            counts["num_samples"],
            self._excluded,
            num_tokens=counts["num_tokens"],
            num_flops=counts["num_flops"],
        )
        if self._steps is None:
            return
        record = StepRecord(
            step=self._step,
            batch_cost_ns=took.batch_cost_ns,
            reader_cost_ns=took.reader_cost_ns,
            **counts,
            device_peak_bytes=self._device_peak_bytes() if self._device_peak_bytes else None,
            host_peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT,
            stall_ns=self._stall_ns,
            excluded=self._excluded,
            window=self._window if state.records and not self._timer_only else None,
        )
        self._steps.add(record)
        if self._scalars is not None:
            self._scalars.add(record, loss)

    def _advance(self, before: State) -> None:
        """From a step in state ``before`` to the step that comes now."""
        self._window += before is State.LAST
        own_before, triggers = self._own_state, self._triggers
        if triggers is not None:
            triggers.turn(self._step, self._window)
            self._window = max(self._window, triggers.first_free)
        self._state = after = self._schedule.state(self._step)
        own_after, is_provisional = after, False
        if triggers is not None and after is State.CLOSED:
            self._state = after = triggers.state(self._step)
            own_after = after if triggers.is_member else State.CLOSED
            is_provisional = triggers.is_provisional
        # Other ranks' stalls hold up this rank too, recording or not: its next step is not clean.
        self._excluded = not self._timer_only and (
            before is State.LAST or after is State.READY or after.records > before.records
        )
        self._stall_ns = 0
        start = time.perf_counter_ns()
        if self._finisher is not None and self._finisher.has_finished_child:
            self._excluded = True
            with self._suppress_and_report("printing tables"):
                self._finisher.poll()
        if self._windows is not None and (self._excluded or after.records):
            with self._suppress_and_report("recording"):
                self._turn_windows(self._windows, own_before, own_after, before is State.LAST)
                self._windows.holds = is_provisional
        if triggers is not None and triggers.keep_decisions:
            with self._suppress_and_report("dropping a window"):
                self._apply_keep_decisions(triggers)
        if self._clock is not None:
            self._clock.turn(before, self._step)
        if self._excluded and self._finisher is not None:
            self._stall_ns = time.perf_counter_ns() - start
        if before is State.LAST:
            with self._suppress_and_report("step times"):
                self._flush_steps()

    def _turn_windows(
        self, windows: Windows, before: State, after: State, is_next_window: bool
    ) -> None:
        """The part of this rank alone, which may be in no window or leave it before the others."""
        if is_next_window or not after.records:
            self._is_cut = False
        if self._is_cut:
            after = State.CLOSED
        elif not windows.fits(before, after, self._window):
            self._is_cut, self._excluded = True, True
            before = State.LAST if before.records else before
            after = State.CLOSED
        self._own_state = after
        windows.turn(before, after, self._step, self._window)

    def _apply_keep_decisions(self, triggers: Triggers) -> None:
        """Keeps or deletes windows that were recorded to see whether they are slow."""
        keep_decisions, triggers.keep_decisions = triggers.keep_decisions, {}
        windows = self._windows
        for window, is_kept in keep_decisions.items():
            if windows is not None:
                (windows.release if is_kept else windows.drop)(window)

    def _flush_steps(self) -> None:
        if self._steps is not None:
            self._steps.flush()
        if self._scalars is not None:
            self._scalars.flush()

    def _close(self, error: BaseException | None) -> None:
        if os.getpid() != self._pid:  # a forked child has no part in this
            return
        failed = error is not None
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._ends_itself = failed
            atexit.unregister(self._at_exit)
            lost = ""
            if self._roster is not None:
                if error is None or (isinstance(error, SystemExit) and not error.code):
                    self._roster.mark_finished()
                else:
                    lost = self._roster.mark_failed(error)
            windows = self._windows
            if self._triggers is not None:
                self._triggers.close(failed)
                with self._suppress_and_report("dropping a window"):
                    self._apply_keep_decisions(self._triggers)
            if windows is not None:
                with self._suppress_and_report("saving a window"):
                    self._windows = None
                    windows.close(keep_empty=failed or self._schedule.record is None)
            with self._suppress_and_report("step times"):
                self._timer.close()
                self._flush_steps()
            self._tell_lost(lost, windows)
            if self._guard is not None:
                self._guard.uninstall()
        if self._clock is not None:
            with self._suppress_and_report("comparing clocks"):
                self._clock.close(compare=self._state.records, failed=failed)
        if self._finisher is not None:
            with self._suppress_and_report("tables and traces"):
                # Other ranks hang until a failing one has ended: it does not wait for tables.
                self._finisher.wait(0 if failed else _FINISH_SECONDS)
        if self._prints:
            with self._suppress_and_report("printing"):
                self._tell_missing(failed, windows)
                self._print_results(windows)

    def _save_on_sigterm(self) -> None:
        """Saves what there is, as SIGTERM is about to end the process; in the guard's thread."""
        self._lock.acquire()  # for good: whatever the training does now, it waits for the end
        if self._closed:
            self._lock.release()
            if self._ends_itself:  # by an exception; without us it would have ended before this
                time.sleep(_END_SECONDS)
            return
        self._closed = True
        lost = self._roster.mark_failed(None) if self._roster is not None else ""
        try:
            if self._windows is not None:
                self._windows.rescue()
        except Exception as error:  # not `_suppress_and_report`, which lets go of the profiler
            log.warning(
                f"rank {self._rank}: saving a window failed: {str(error) or type(error).__name__}"
            )
        self._flush_steps()
        self._tell_lost(lost, self._windows)
        if self._finisher is not None:
            self._finisher.leave()

    def _tell_lost(self, lost: str, windows: Windows | None) -> None:
        if lost:
            saved = len(windows.saved) if windows is not None else 0
            words = f"{saved} window{'s' * (saved != 1)} and the step times of this rank"
            log.warning(f"rank {self._rank}: {lost}; {words} are saved in {self._shown}")

    def _at_exit(self) -> None:
        self._close(getattr(sys, "last_value", None))  # set when an exception ends the program

    def _tell_missing(self, failed: bool, windows: Windows | None) -> None:
        """What of its schedule the training has not come to; its own failure explains itself."""
        wanted, found = self._schedule.record, self._schedule.num_recorded(self._step)
        saved = [name.window for name in windows.saved] if windows is not None and found else []
        if not self._step and not failed:
            log.warning("step() was never called: nothing is known of any step")
        elif wanted is not None and self._window in saved:
            steps = f"{found} of {wanted} steps, the last of them {self._step - 1}"
            log.warning(
                f"window {self._window} was cut short by the end of the training: it has {steps}"
            )

    def _print_results(self, windows: Windows | None) -> None:
        if self._timer_only or self._summary.has_table:
            print_result(f"{self._summary.text()}\n")
        if self._clock is not None and self._run is not None:
            line = described(read_clocks(self._run))
            if line is not None:
                print_result(f"{line}\n")
        if self._timer_only or windows is None or self._shown is None:
            return
        if not windows.saved:
            if not self._failed:  # else that is why
                steps = f"{self._step} steps were seen"
                why = f"the schedule is {self._schedule}, and {steps}"
                if self._triggers is not None:
                    why += (
                        "; what was recorded was not slow, and deleted"
                        if windows.num_dropped
                        else "; no window was asked for on this rank"
                    )
                log.warning(f"no window was recorded: {why}")
            return
        if self._viewed is None:
            log.warning(f"{self._shown}: no viewer opens pb alone; add json to Profiler.formats")
            return
        traces = [str(self._shown / name.trace(self._viewed)) for name in windows.saved]
        if self._viewed == "json":  # it does not look into gzip
            print_result(f"VisualDL: visualdl --logdir {self._shown}\n")
        print_result(f"chrome://tracing or https://ui.perfetto.dev: {' '.join(traces)}\n")

    @contextmanager
    def _suppress_and_report(self, doing: str) -> Iterator[None]:
        """The one place where failures of ours end: told, with the recording over."""
        try:
            yield
        except Exception as error:
            windows, self._windows = self._windows, None
            if doing not in self._failed:  # once: a step that fails, fails every time
                self._failed.add(doing)
                why = str(error) or type(error).__name__
                log.warning(
                    f"rank {self._rank}: {doing} failed: {why}; the training goes on without"
                )
            if windows is not None:
                with self._suppress_and_report("ending the recording"):
                    windows.close(keep_empty=False)
