"""A session on a recorder without Paddle, for programs that a fault happens to."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from ppprof import rundir
from ppprof.capture.output import log_to_stderr
from ppprof.capture.parts import LivenessPart, RecordingPart, StepsPart
from ppprof.capture.postprocess import PostProcessor
from ppprof.capture.recording.store import WindowStore
from ppprof.capture.recording.windows import Windows
from ppprof.capture.results import Results, TablesPart
from ppprof.capture.schedule import Schedule
from ppprof.capture.session import ProfilerSession, RecordingSession
from ppprof.capture.step_states import StepStates
from ppprof.capture.steps.perf_summary import PerfSummary
from ppprof.capture.steps.step_log import StepLog
from ppprof.rundir.liveness import LivenessRegistry
from ppprof.rundir.run_file import RunFile
from ppprof.topology import Topology
from tests.capture.fault_program import LOG
from tests.fixtures.timeline import Span, Thread, span, write

WINDOW = (1, 6)
SCHEDULES = {
    "never_reached": (50, 60),
    "cut_short": (5, 60),
    "never_closed": (5, 60),
    "no_step": None,
}


class SmallRecorder:
    """Leaves a small ``.pb`` with the steps of a window, and fails as a fault asks."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._steps: list[tuple[int, int, int, bool]] = []
        self._step: tuple[int, int] | None = None

    def prepare(self, preempt: object = None, *, continues: bool = False) -> bool:
        """Do nothing, and find no other profiler."""
        return True

    def start(self) -> None:
        """Open a window."""
        self._steps.clear()

    def begin_step(self, step: int) -> None:
        """Open the span of a step."""
        self._step = step, time.monotonic_ns()

    def end_step(self, *, is_complete: bool = True) -> None:
        """Close it, if there is one."""
        if self._step is not None:
            self._steps.append((*self._step, time.monotonic_ns(), is_complete))
            self._step = None

    wait_seconds = 0.0

    def take(self, brief: bool = False) -> tuple[Span, ...]:
        """Return the spans of the steps."""
        if self._fault == "sigterm_while_saving":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
        if self._fault == "disk_full":
            raise OSError(28, "No space left on device")

        def recorded(step: int, start: int, end: int, is_complete: bool) -> Span:
            marker = span("UserDefined", rundir.INCOMPLETE_MARKER, end, end)
            inside = () if is_complete else (marker,)
            return span("ProfileStep", f"ProfileStep#{step}", start, end, *inside)

        return tuple(recorded(*step) for step in self._steps)

    def write(self, steps: tuple[Span, ...], raw: RunFile, brief: bool = False) -> None:
        """Write them."""
        raw.write(write(Path("small.pb"), Thread(31, "main", steps)).read_bytes())

    waits = False
    probe_seconds_left = 0.0

    def end_allocations(self, why: str) -> bool:
        """Return that no allocations are recorded."""
        return False

    def ends_by(self, error: BaseException) -> None:
        """Do nothing: there is no device."""

    def discard(self) -> None:
        """Drop an open window."""
        self._steps.clear()

    def close(self) -> None:
        """Do nothing."""


def attach(fault: str) -> ProfilerSession:
    """Return a session as `ppprof.attach` makes it, on a disk, alone, without tables."""
    log_to_stderr()
    run = rundir.claim(LOG).absolute()
    topology = Topology.of(dp=1)
    post_processor = PostProcessor(
        run, 0, prints=True, command=[sys.executable, "-m", "tests.capture.fake_helper", ""]
    )
    states, summary = StepStates(Schedule.of(SCHEDULES.get(fault, WINDOW))), PerfSummary()
    recorder = SmallRecorder(fault)
    store = WindowStore(run, 0, topology, post_processor)
    steps = StepsPart(summary, StepLog(RunFile(run, rundir.steps_path(0))))
    windows = Windows(recorder, store, before_waiting=steps.flush)  # type: ignore[arg-type]
    liveness = LivenessPart(LivenessRegistry(run, topology, 0))
    recording = RecordingPart(states, windows, post_processor)
    results = Results(
        *(0, LOG, states, summary),
        liveness=liveness,
        store=store,
        post_processor=post_processor,
    )
    parts = [liveness, recording, steps, TablesPart(post_processor), results]
    return RecordingSession(states, parts, saves=True)
