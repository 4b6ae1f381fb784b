"""Open, close and save the windows of a rank that records, between two steps."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ppprof import rundir
from ppprof.capture.output import reason
from ppprof.capture.postprocess import PostProcessor
from ppprof.capture.recording.disk_budget import DiskBudget, UnboundedWindow
from ppprof.capture.recording.first_steps import FirstSteps, InMemory, delete_calls
from ppprof.capture.recording.window_arguments import take_calls, write_calls
from ppprof.capture.schedule import State
from ppprof.capture.signals import pass_interruption
from ppprof.capture.window_clock import ends_provisional_steps
from ppprof.rundir.run_file import RunFile
from ppprof.topology import Topology
from ppprof.units import MEGABYTE

if TYPE_CHECKING:  # it imports Paddle, which this module does not need
    from ppprof.capture.recording.operator_calls import OperatorCallRecorder
    from ppprof.capture.recording.recorder import Recorder

log = logging.getLogger("ppprof")


_AHEAD = "the recording of the first steps, ahead of"
_THEIRS = "the training has opened a profiler of its own"
_ONE = (
    "Paddle allows one profiler at a time; windows are recorded again once the training's "
    "paddle.profiler.Profiler is deleted (its stop() is not enough)"
)


_STEP_SECONDS = 30.0
"""How long a thread that creates a profiler of the training waits for the end of the step."""
_POLL_SECONDS = 0.05


class ProfilerInUseError(RuntimeError):
    """Paddle's C++ profiler belongs to the training now, or to another recorder."""


class Wrapper(Protocol):
    """Wraps functions during a window, to record spans that Paddle does not record."""

    def install(self) -> None:
        """Replace functions by wrappers, when a window opens."""

    def uninstall(self) -> None:
        """Restore the original functions, when the window closes."""


class Windows:
    """Calls the recorder as the states of steps require, and writes a raw capture for each window.

    Args:
        recorder: drives Paddle's profiler.
        post_processor: makes tables and traces of saved windows.
        run: the run directory.
        rank: this process's rank.
        topology: the job's topology.
        budget: limit of disk space; None for no limit.
        wrappers: record additional spans in windows.
        operators: records the arguments of operators in windows; None to record none.
        unbounded: measures the window if it has no end; None if it has one.
    """

    def __init__(
        self,
        recorder: Recorder,
        post_processor: PostProcessor,
        run: Path,
        rank: int,
        topology: Topology,
        budget: DiskBudget | None = None,
        wrappers: Sequence[Wrapper] = (),
        operators: OperatorCallRecorder | None = None,
        unbounded: UnboundedWindow | None = None,
    ) -> None:
        self._recorder = recorder
        recorder.give_way = self.give_way
        self._lock = threading.RLock()  # between the training and `give_way`
        self._thread = threading.get_ident()
        self._is_set_up = self._gave_way = False
        self._asked: threading.Event | None = None
        """Set when Paddle's profiler is released; None if no other thread waits for that."""
        self._wrappers = [*wrappers, *([operators] if operators is not None else [])]
        self._operators = operators
        self._post_processor = post_processor
        self._run = run
        self._rank = rank
        self._label = topology.label(rank)
        self._open: rundir.TraceName | None = None
        self._first_step = self._num_steps = 0
        self._budget = budget
        self._unbounded = unbounded
        self._held: dict[int, rundir.TraceName] = {}
        self._is_provisional = False
        """Whether the open window is that of the provisional steps."""
        self._first_steps = FirstSteps(run)
        self.before_stop: Callable[[], None] = lambda: None
        """Called before a window of a device is saved: that waits for the device, perhaps for ever."""
        self.holds = False
        """Whether a window that is saved from now on is held: it gets no tables until `release`, or
        is deleted by `drop`."""
        self.num_dropped = 0
        """Number of windows that `drop` has deleted."""
        self.num_skipped = 0
        """Number of windows that were not recorded, since another profiler was open."""
        self.cut: set[int] = set()
        """Numbers of the windows that ended early, since the training created a profiler."""
        self.saved: list[rundir.TraceName] = []
        """Names of the saved windows that are not held, in the order of saving or release."""
        self.saved_steps: dict[int, range] = {}
        """Number of a saved window -> the steps that were recorded."""

    @property
    def calls(self) -> RunFile | None:
        """The folder for the remote calls of the open window; None without an open window."""
        name = self._open
        return None if name is None else RunFile(self._run, name.calls)

    def fits(self, before: State, after: State, window: int) -> bool:
        """Return whether the step that begins can be recorded; log a warning if not.

        False if the training has taken Paddle's profiler from the window, or if there is no disk
        space for the step. True for a CLOSED step. Call it before `advance`.

        Args:
            before: state of the step that ends.
            after: state of the step that begins.
            window: number of the window that the step is in, or of the next window.

        Raises:
            OSError: the directory is gone.
        """
        is_over = before is State.LAST or ends_provisional_steps(before, after)
        if self._asked is not None and not is_over:
            self._cut_window(is_complete=True)
        gave_way, self._gave_way = self._gave_way, False
        if gave_way and not is_over:
            return False
        if self._budget is None or after is State.CLOSED:
            return True
        if self._open is not None and not is_over:
            if not self._budget.is_close(self._num_steps + before.records):
                return True
            steps = self._num_steps + before.records
            effect = f"ends after {steps} step{'s' * (steps != 1)} on this rank"
        elif not self._budget.is_spent:
            return True
        else:
            effect = "is not recorded on this rank"
        what = f"{_AHEAD} " * (after is State.PROVISIONAL) + f"window {window}"
        megabytes = self._budget.max_bytes / MEGABYTE
        log.warning(f"rank {self._rank}: {what} {effect}: Profiler.max_trace_mb {megabytes:g}")
        return False

    def advance(self, before: State, after: State, step: int, window: int) -> bool:
        """Save a window that ends (keep it in memory: `FirstSteps`), open or continue a window.

        Args:
            before: state of the step that ends; CLOSED ahead of the first step.
            after: state of the step that begins.
            step: number of the step that begins.
            window: number of the window that the step is in, or of the next window.

        Returns:
            False if the window cannot be recorded, because the training's own profiler is open. The
            first such window is logged.

        Raises:
            RuntimeError: the window could not be saved.
        """
        with self._lock:
            self._thread = threading.get_ident()
            self._end_step(before)
            if before is State.LAST:
                self._save()
                self._first_steps.free()
                self._answer()
            elif ends_provisional_steps(before, after):
                self._keep_in_memory()
                self._answer()
            opens = after.records and self._open is None
            # Do not prepare twice: CUPTI accepts only one call.
            if before is not State.READY and (after is State.READY or opens):
                try:
                    self._recorder.prepare()
                except ProfilerInUseError as error:
                    if not self.num_skipped:
                        log.warning(
                            f"rank {self._rank}: window {window} is not recorded: {error}; {_ONE}"
                        )
                    self.num_skipped += 1
                    return False
                self._is_set_up = True
            if opens:
                started = self._first_steps.later_than(datetime.now())
                self._open = rundir.TraceName(self._rank, self._label, started, window)
                self._is_provisional = after is State.PROVISIONAL
                self._first_step, self._num_steps = step, 0
                for wrapper in self._wrappers:
                    wrapper.install()
                self._recorder.start()
                if self._budget is not None:
                    self._budget.open()
            if after.records:
                self._recorder.begin_step(step)
            return True

    def _end_step(self, before: State) -> None:
        self._recorder.end_step()
        if self._operators is not None:
            self._operators.end_step()
        self._num_steps += before.records
        if self._num_steps and self._open is not None and not self._is_provisional:
            self._first_steps.drop()
        if self._unbounded is not None:
            self._unbounded.measure(self._num_steps)

    def give_way(self) -> None:
        """Save an open window and release Paddle's profiler: the training creates one of its own.

        Called in the thread that creates it, at any time. A window that cannot be saved is logged.
        Another thread than that of the steps waits until the current step ends: Paddle's
        profiler must not be stopped while the training is in an operator, which corrupts memory in
        C++. It does not wait if the thread of the steps waits for another thread, such as this one,
        and for 30 s at most.
        """
        if threading.get_ident() != self._thread:
            with self._lock:
                if not self._is_set_up:
                    return
                asked = self._asked = self._asked or threading.Event()
            deadline = time.monotonic() + _STEP_SECONDS
            while not asked.wait(_POLL_SECONDS):
                if _waits_for_threads(self._thread) or time.monotonic() >= deadline:
                    break
            else:
                return
        self._cut_window(is_complete=False)

    def _cut_window(self, *, is_complete: bool) -> None:
        """Save an open window, cancel a prepared one, and release Paddle's profiler.

        Args:
            is_complete: whether the training has ended the current step by ``step()``.
        """
        with self._lock:
            name = self._open
            try:
                if name is not None:
                    self._recorder.end_step(is_complete=is_complete)
                    self._num_steps += is_complete
                    effect = f"window {name.window} was cut short"
                    if self._is_provisional:
                        self._keep_in_memory()
                        effect = f"{_AHEAD} window {name.window} was cut short"
                    elif self._first_steps and not self._num_steps:
                        self._abandon()
                        effect = f"window {name.window} is not recorded"
                    else:
                        self.cut.add(name.window)
                        self._save()
                    log.warning(
                        f"rank {self._rank}: {effect}: {_THEIRS}; "
                        f"steps recorded: {self._num_steps}; {_ONE}"
                    )
                elif self._is_set_up:
                    self.num_skipped += 1
                    log.warning(
                        f"rank {self._rank}: the next window is not recorded: {_THEIRS}; {_ONE}"
                    )
            except Exception as error:
                pass_interruption(error)
                log.warning(f"rank {self._rank}: {reason(error)}; {_ONE}")
            finally:
                self._gave_way = self._gave_way or self._is_set_up
                try:
                    self._recorder.discard()
                finally:
                    self._answer()

    def _answer(self) -> None:
        """Notify the threads that wait for Paddle's profiler that it is released."""
        self._is_set_up = False
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.set()

    def close(self, keep_empty: bool, failed: bool = False) -> None:
        """Release all held windows, save an open window, and release Paddle's profiler.

        If provisional steps are in memory, they are saved in place of the open window, in which no
        step has ended.

        Args:
            keep_empty: whether to save an open window in which no step has ended.
            failed: whether an exception ends the training. Then a device that no longer answers is
                left alone, with its window: Paddle would wait for it for ever.

        Raises:
            RuntimeError: the window could not be saved.
        """
        self.holds = False  # no keep decision will arrive
        with self._lock:
            try:
                for window in list(self._held):
                    self.release(window)
                is_saved = self._save_provisional_steps()
                if failed and not self._recorder.device_answers():
                    self._recorder.abandon()
                    if self._open is not None and not is_saved:
                        lost = f"steps recorded: {self._num_steps}"
                        raise RuntimeError(
                            f"the device does not answer; window {self._open.window} is lost, {lost}"
                        )
                elif self._open is not None and not is_saved and (keep_empty or self._num_steps):
                    self._recorder.end_step(is_complete=False)
                    self._save()
            finally:
                self._abandon()
                self._first_steps.free()
                self._recorder.close()
                self._answer()

    def release(self, window: int, brief: bool = False) -> None:
        """Start to make tables and traces of a held window; do nothing if it is not held.

        Args:
            window: number of the window.
            brief: whether to return at once, since the process is about to end.
        """
        name = self._held.pop(window, None)
        if name is not None:
            self._finish(name, brief)

    def drop(self, window: int) -> None:
        """Delete a held window's raw capture and remote calls; do nothing if it is not held.

        Raises:
            OSError: the raw capture cannot be deleted.
        """
        name = self._held.pop(window, None)
        if name is not None:
            self.num_dropped += 1
            if self._budget is not None:
                self._budget.dropped(name)
            with suppress(OSError):
                RunFile(self._run, name.calls).remove_folder()
            for path in (name.operator_calls, name.raw):
                with suppress(FileNotFoundError):  # `ppprof finish` was faster
                    RunFile(self._run, path).remove()

    def rescue(self) -> None:
        """Save an open window and release all held windows, since the process is about to end.

        This may be called in any thread. Paddle's profiler is not released, since the training may
        be inside an operator that uses it. The span of the incomplete step is on the thread that
        calls this.

        Raises:
            RuntimeError: the window could not be saved.
        """
        self.holds = False
        with self._lock:
            if not self._save_provisional_steps(brief=True):
                self._recorder.end_step(is_complete=False)
                self._save(brief=True)
            delete_calls(self._run, self._open)
            for window in list(self._held):
                self.release(window, brief=True)
            self._first_steps.free()

    def _abandon(self) -> None:
        """Do not save the open window, if there is one."""
        name, self._open = self._open, None
        self._uninstall()
        delete_calls(self._run, name)

    def _keep_in_memory(self) -> None:
        """Close the window of the provisional steps; do nothing if it is closed already.

        Raises:
            RuntimeError: Paddle's profiler could not be stopped.
        """
        name, self._open = self._open, None
        if name is None:
            return
        if self._budget is not None:
            self._budget.measure(self._num_steps)
        with _losing(self._run, name, self._num_steps):
            self._before_stop()
            events = self._recorder.take()
        calls = take_calls(self._operators, self._run, name)
        if self._num_steps:
            steps = range(self._first_step, self._first_step + self._num_steps)
            self._first_steps.keep(InMemory(name, steps, events, calls))
        else:
            delete_calls(self._run, name)

    def _save_provisional_steps(self, brief: bool = False) -> bool:
        """Save the provisional steps that are in memory; return whether there are any.

        Raises:
            RuntimeError: they could not be saved.
        """
        recording = self._first_steps.take()
        if recording is None:
            return False
        name = recording.name
        with _losing(self._run, name, len(recording.steps)):
            self._recorder.write(recording.events, RunFile(self._run, name.raw), brief)
        write_calls(recording.operator_calls, self._run, name)
        self._saved(name, recording.steps, brief)
        return True

    def _save(self, brief: bool = False) -> None:
        name, self._open = self._open, None
        if name is not None:
            with _losing(self._run, name, self._num_steps):
                self._before_stop()
                self._recorder.stop(RunFile(self._run, name.raw), brief)
            write_calls(take_calls(self._operators, self._run, name), self._run, name)
            steps = range(self._first_step, self._first_step + self._num_steps)
            self._saved(name, steps, brief)

    def _before_stop(self) -> None:
        self._uninstall()
        if self._recorder.on_device:
            self.before_stop()

    def _saved(self, name: rundir.TraceName, steps: range, brief: bool) -> None:
        with _losing(self._run, name, len(steps)):
            if self._budget is not None:
                self._budget.saved(name, len(steps))
        self.saved_steps[name.window] = steps
        if self.holds:
            self._held[name.window] = name
        else:
            self._finish(name, brief)

    def _finish(self, name: rundir.TraceName, brief: bool) -> None:
        self.saved.append(name)
        self._post_processor.add(name.window, self._run / name.raw, brief)

    def _uninstall(self) -> None:
        for wrapper in self._wrappers:
            wrapper.uninstall()


@contextmanager
def _losing(run: Path, name: rundir.TraceName, num_steps: int) -> Iterator[None]:
    """Name the window that is lost, and its steps, in the error that is raised."""
    try:
        yield
    except Exception as error:
        lost = f"window {name.window} is lost, steps recorded: {num_steps}"
        raise RuntimeError(f"{RunFile(run, name.raw)}: {reason(error)}; {lost}") from error


def _waits_for_threads(thread: int) -> bool:
    """Return whether a thread waits in Python's `threading`, and so is in no operator of Paddle."""
    frame = sys._current_frames().get(thread)
    return frame is None or frame.f_code.co_filename == threading.__file__
