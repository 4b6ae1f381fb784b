"""The windows of a rank that records: opened, closed and saved between two steps."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from ppprof import rundir
from ppprof.capture.collectives import Collectives
from ppprof.capture.finisher import Finisher
from ppprof.capture.fleet import FleetSpans
from ppprof.capture.recorder import Recorder
from ppprof.capture.schedule import State
from ppprof.capture.talk import reason
from ppprof.topology import Topology


class Windows:
    """Turns the schedule's states into calls of the recorder, and windows into raw files."""

    def __init__(
        self, recorder: Recorder, finisher: Finisher, run: Path, rank: int, topology: Topology
    ) -> None:
        self._recorder = recorder
        self._wrappers = (Collectives(topology), FleetSpans())
        self._finisher = finisher
        self._run = run
        self._rank = rank
        self._label = topology.label(rank)
        self._open: rundir.TraceName | None = None
        self._num_steps = 0
        self.saved: list[rundir.TraceName] = []
        """Names of the windows on disk, in order."""

    @property
    def calls(self) -> Path | None:
        """Where remote calls of the window that is open are kept; None while none is."""
        name = self._open
        return None if name is None else self._run / name.calls

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
                wrapper.put_on()
            self._recorder.start()
        if after.records:
            self._recorder.begin_step(step)

    def close(self, keep_empty: bool) -> None:
        """Saves a window that is still open and lets go of Paddle's profiler.

        Args:
            keep_empty: also a window in which no step has ended.

        Raises:
            RuntimeError: the window could not be saved.
        """
        try:
            if self._open is not None and (keep_empty or self._num_steps):
                self._recorder.end_step()
                self._save()
        finally:
            self._take_off()
            self._recorder.close()

    def rescue(self) -> None:
        """Saves a window that is still open as the process ends; in any thread.

        Paddle's profiler stays: the training may be inside an operator that uses it. The step that
        never ended gets no span: Paddle would put it on the thread that ends it, and VisualDL
        shows no phases where one of the steps is on another thread than the model.

        Raises:
            RuntimeError: the window could not be saved.
        """
        self._save(brief=True)

    def _save(self, brief: bool = False) -> None:
        name, self._open = self._open, None
        if name is not None:
            self._take_off()
            raw = self._run / name.raw
            try:
                self._recorder.stop(raw, brief)
            except Exception as error:
                lost = f"window {name.window} is lost, steps recorded: {self._num_steps}"
                raise RuntimeError(f"{raw}: {reason(error)}; {lost}") from error
            self.saved.append(name)
            self._finisher.add(name.window, raw)

    def _take_off(self) -> None:
        for wrapper in self._wrappers:
            wrapper.take_off()
