"""The windows of a rank that records: opened, closed and saved between two steps."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ppprof import rundir
from ppprof.capture.output import reason
from ppprof.capture.postprocess import PostProcessor
from ppprof.capture.recording.disk_budget import Budget
from ppprof.capture.schedule import State
from ppprof.topology import Topology
from ppprof.units import MEGABYTE

if TYPE_CHECKING:  # it imports Paddle, which this module does without
    from ppprof.capture.recording.recorder import Recorder

log = logging.getLogger("ppprof")


class Wrapper(Protocol):
    """Something that records more than Paddle does, by wrapping functions during a window."""

    def install(self) -> None:
        """Wrap them."""

    def uninstall(self) -> None:
        """Restore them."""


class Windows:
    """Turns the schedule's states into calls of the recorder, and windows into raw files."""

    def __init__(
        self,
        recorder: Recorder,
        finisher: PostProcessor,
        run: Path,
        rank: int,
        topology: Topology,
        budget: Budget | None = None,
        wrappers: Sequence[Wrapper] = (),
    ) -> None:
        self._recorder = recorder
        self._wrappers = wrappers
        self._finisher = finisher
        self._run = run
        self._rank = rank
        self._label = topology.label(rank)
        self._open: rundir.TraceName | None = None
        self._num_steps = 0
        self._budget = budget
        self._held: dict[int, rundir.TraceName] = {}
        self.holds = False
        """Whether a window that is saved from now on waits for `release` or `drop`."""
        self.num_dropped = 0
        self.saved: list[rundir.TraceName] = []
        """Names of the windows on disk, in order."""

    @property
    def calls(self) -> Path | None:
        """Where remote calls of the window that is open are kept; None while none is."""
        name = self._open
        return None if name is None else self._run / name.calls

    def fits(self, before: State, after: State, window: int) -> bool:
        """Whether there is room for a step in state ``after``; says so where there is none.

        Args:
            before: state of the step that ends.
            after: state of the step that begins.
            window: number of the window that it is in, or that comes next.

        Raises:
            OSError: the directory is gone.
        """
        if self._budget is None or after is State.CLOSED:
            return True
        if self._open is not None and before is not State.LAST:
            if not self._budget.is_close(self._num_steps + before.records):
                return True
            steps = self._num_steps + before.records
            what = f"ends after {steps} step{'s' * (steps != 1)} on this rank"
        elif not self._budget.is_spent:
            return True
        else:
            what = "is not recorded on this rank"
        megabytes = self._budget.max_bytes / MEGABYTE
        log.warning(
            f"rank {self._rank}: window {window} {what}: Profiler.max_trace_mb {megabytes:g}"
        )
        return False

    def turn(self, before: State, after: State, step: int, window: int) -> None:
        """What happens between a step in state ``before`` and the next one, number ``step``.

        Args:
            before: state of the step that ends; CLOSED ahead of the first one.
            after: state of the step that begins.
            step: its number.
            window: number of the window that it is in, or that comes next.

        Raises:
            RuntimeError: the window could not be saved.
        """
        self._recorder.end_step()
        self._num_steps += before.records
        if before is State.LAST:
            self._save()
        opens = after.records and self._open is None
        if before is not State.READY and (after is State.READY or opens):  # CUPTI takes it once
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

    def close(self, keep_empty: bool) -> None:
        """Saves a window that is still open and lets go of Paddle's profiler.

        Args:
            keep_empty: also a window in which no step has ended.

        Raises:
            RuntimeError: the window could not be saved.
        """
        self.holds = False  # there will be no verdict
        try:
            for window in list(self._held):
                self.release(window)
            if self._open is not None and (keep_empty or self._num_steps):
                self._recorder.end_step()
                self._save()
        finally:
            self._uninstall()
            self._recorder.close()

    def release(self, window: int, brief: bool = False) -> None:
        """Finishes a window that was held; ``brief`` where the process is about to end."""
        name = self._held.pop(window, None)
        if name is not None:
            self._finish(name, brief)

    def drop(self, window: int) -> None:
        """Deletes a window that was held.

        Raises:
            OSError: it cannot be deleted.
        """
        name = self._held.pop(window, None)
        if name is not None:
            self.num_dropped += 1
            if self._budget is not None:
                self._budget.dropped(name)
            shutil.rmtree(self._run / name.calls, ignore_errors=True)
            (self._run / name.raw).unlink()

    def rescue(self) -> None:
        """Saves a window that is still open as the process ends; in any thread.

        Paddle's profiler stays: the training may be inside an operator that uses it. The step that
        never ended gets no span: Paddle would put it on the thread that ends it, and VisualDL
        shows no phases where one of the steps is on another thread than the model.

        Raises:
            RuntimeError: the window could not be saved.
        """
        self.holds = False
        self._save(brief=True)
        for window in list(self._held):
            self.release(window, brief=True)

    def _save(self, brief: bool = False) -> None:
        name, self._open = self._open, None
        if name is not None:
            self._uninstall()
            raw = self._run / name.raw
            try:
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
        self._finisher.add(name.window, self._run / name.raw, brief)

    def _uninstall(self) -> None:
        for wrapper in self._wrappers:
            wrapper.uninstall()
