"""Open, close and save the windows of a rank that records, between two steps."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ppprof import rundir
from ppprof.capture.output import reason
from ppprof.capture.postprocess import PostProcessor
from ppprof.capture.recording.disk_budget import DiskBudget
from ppprof.capture.schedule import State
from ppprof.topology import Topology
from ppprof.units import MEGABYTE

if TYPE_CHECKING:  # it imports Paddle, which this module does not need
    from ppprof.capture.recording.recorder import Recorder

log = logging.getLogger("ppprof")


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
    ) -> None:
        self._recorder = recorder
        self._wrappers = wrappers
        self._post_processor = post_processor
        self._run = run
        self._rank = rank
        self._label = topology.label(rank)
        self._open: rundir.TraceName | None = None
        self._num_steps = 0
        self._budget = budget
        self._held: dict[int, rundir.TraceName] = {}
        self.before_stop: Callable[[], None] = lambda: None
        """Called before a window of a device is saved: that waits for the device, perhaps for ever."""
        self.holds = False
        """Whether a window that is saved from now on is held: it gets no tables until `release`, or
        is deleted by `drop`."""
        self.num_dropped = 0
        """Number of windows that `drop` has deleted."""
        self.saved: list[rundir.TraceName] = []
        """Names of the saved windows that are not held, in the order of saving or release."""

    @property
    def calls(self) -> Path | None:
        """The folder for the remote calls of the open window; None without an open window."""
        name = self._open
        return None if name is None else self._run / name.calls

    def fits(self, before: State, after: State, window: int) -> bool:
        """Return whether there is disk space for the step that begins; log a warning if not.

        True without a limit, and for a CLOSED step. Call it before `advance`.

        Args:
            before: state of the step that ends.
            after: state of the step that begins.
            window: number of the window that the step is in, or of the next window.

        Raises:
            OSError: the directory is gone.
        """
        if self._budget is None or after is State.CLOSED:
            return True
        if self._open is not None and before is not State.LAST:
            if not self._budget.is_close(self._num_steps + before.records):
                return True
            steps = self._num_steps + before.records
            effect = f"ends after {steps} step{'s' * (steps != 1)} on this rank"
        elif not self._budget.is_spent:
            return True
        else:
            effect = "is not recorded on this rank"
        megabytes = self._budget.max_bytes / MEGABYTE
        log.warning(
            f"rank {self._rank}: window {window} {effect}: Profiler.max_trace_mb {megabytes:g}"
        )
        return False

    def advance(self, before: State, after: State, step: int, window: int) -> None:
        """Save a window that ends, open a window that begins, or continue the open window.

        Args:
            before: state of the step that ends; CLOSED ahead of the first step.
            after: state of the step that begins.
            step: number of the step that begins.
            window: number of the window that the step is in, or of the next window.

        Raises:
            RuntimeError: the window could not be saved.
        """
        self._recorder.end_step()
        self._num_steps += before.records
        if before is State.LAST:
            self._save()
        opens = after.records and self._open is None
        # Do not prepare twice: CUPTI accepts only one call.
        if before is not State.READY and (after is State.READY or opens):
            self._recorder.prepare()
        if opens:
            self._open = rundir.TraceName(self._rank, self._label, datetime.now(), window)
            self._num_steps = 0
            for wrapper in self._wrappers:
                wrapper.install()
            self._recorder.start()
            if self._budget is not None:
                self._budget.open()
        if after.records:
            self._recorder.begin_step(step)

    def close(self, keep_empty: bool, failed: bool = False) -> None:
        """Release all held windows, save an open window, and release Paddle's profiler.

        Args:
            keep_empty: whether to save an open window in which no step has ended.
            failed: whether an exception ends the training. Then a device that no longer answers is
                left alone, with its window: Paddle would wait for it for ever.

        Raises:
            RuntimeError: the window could not be saved.
        """
        self.holds = False  # no keep decision will arrive
        try:
            for window in list(self._held):
                self.release(window)
            if failed and not self._recorder.device_answers():
                self._recorder.abandon()
                if self._open is not None:
                    lost = f"window {self._open.window} is lost, steps recorded: {self._num_steps}"
                    raise RuntimeError(f"the device does not answer; {lost}")
            elif self._open is not None and (keep_empty or self._num_steps):
                self._recorder.end_step(is_complete=False)
                self._save()
        finally:
            self._open = None
            self._uninstall()
            self._recorder.close()

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
            shutil.rmtree(self._run / name.calls, ignore_errors=True)
            (self._run / name.raw).unlink()

    def rescue(self) -> None:
        """Save an open window and release all held windows, since the process is about to end.

        This may be called in any thread. Paddle's profiler is not released, since the training may
        be inside an operator that uses it. The span of the incomplete step is on the thread that
        calls this.

        Raises:
            RuntimeError: the window could not be saved.
        """
        self.holds = False
        self._recorder.end_step(is_complete=False)
        self._save(brief=True)
        for window in list(self._held):
            self.release(window, brief=True)

    def _save(self, brief: bool = False) -> None:
        name, self._open = self._open, None
        if name is not None:
            self._uninstall()
            raw = self._run / name.raw
            try:
                if self._recorder.on_device:
                    self.before_stop()
                self._recorder.stop(raw, brief)
            except Exception as error:
                lost = f"window {name.window} is lost, steps recorded: {self._num_steps}"
                raise RuntimeError(f"{raw}: {reason(error)}; {lost}") from error
            if self._budget is not None:
                self._budget.saved(name, self._num_steps)
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
