"""``python -m tests.capture.fault_program on|off FAULT``: a loop to which one fault happens.

As tests/jobs/fault_job.py, but without Paddle: `SmallRecorder` stands in for the recorder, so that a
fault costs a fraction of a second. Everything around the recorder is the real thing. Works in the
current folder, which then holds ``log/``, ``steps``, a line a step, and ``heard``, the signals that
the program's own handlers got.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

from ppprof import paths, rundir
from ppprof.capture.output import log_to_stderr
from ppprof.capture.parts import LivenessPart, RecordingPart, StepsPart
from ppprof.capture.postprocess import PostProcessor
from ppprof.capture.recording.windows import Windows
from ppprof.capture.results import Results, TablesPart
from ppprof.capture.schedule import Schedule
from ppprof.capture.session import NoopSession, ProfilerSession, RecordingSession
from ppprof.capture.steps.perf_summary import PerfSummary
from ppprof.capture.steps.step_log import StepLog
from ppprof.capture.window_clock import WindowClock
from ppprof.rundir.liveness import LivenessRegistry
from ppprof.topology import Topology

STEPS = 8
WINDOW = (1, 6)
HAPPENS_AT = 4
"""In the window of steps 1 to 5, which has then missed step 0 and holds steps 1 to 3."""
LOG = Path("log")
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
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

    def prepare(self) -> None:
        """Do nothing."""

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

    def stop(self, raw: Path, brief: bool = False) -> None:
        """Write what was recorded."""
        from tests.fixtures.timeline import Span, Thread, span, write

        if self._fault == "sigterm_while_saving":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
        if self._fault == "disk_full":
            raise OSError(28, "No space left on device")

        def recorded(step: int, start: int, end: int, is_complete: bool) -> Span:
            marker = span("UserDefined", rundir.INCOMPLETE_MARKER, end, end)
            inside = () if is_complete else (marker,)
            return span("ProfileStep", f"ProfileStep#{step}", start, end, *inside)

        steps = tuple(recorded(*step) for step in self._steps)
        with paths.atomic_writer(raw) as file:
            file.write(write(Path("small.pb"), Thread(31, "main", steps)).read_bytes())

    on_device = False

    def device_answers(self) -> bool:
        """Return True: there is no device."""
        return True

    def close(self) -> None:
        """Do nothing."""


def attach(fault: str) -> ProfilerSession:
    """Return a session as `ppprof.attach` makes it, on a disk, alone, without tables."""
    log_to_stderr()
    run = rundir.claim(LOG).absolute()
    topology = Topology.of(dp=1)
    post_processor = PostProcessor(run, 0, prints=True, command=[sys.executable, "-c", ""])
    recorder = SmallRecorder(fault)
    windows = Windows(recorder, post_processor, run, 0, topology)  # type: ignore[arg-type]
    clock, summary = WindowClock(Schedule.of(SCHEDULES.get(fault, WINDOW))), PerfSummary()
    liveness = LivenessPart(LivenessRegistry(run, topology, 0))
    results = Results(0, LOG, clock, summary, liveness=liveness, windows=windows)
    results.post_processor = post_processor
    recording = RecordingPart(clock, windows, post_processor)
    steps = StepsPart(summary, StepLog(run / rundir.steps_path(0)))
    parts = [liveness, recording, steps, TablesPart(post_processor), results]
    return RecordingSession(clock, parts, saves=True)


def heard(number: int, _: object) -> None:
    """Note a signal."""
    with Path("heard").open("a") as file:
        file.write(f"{signal.Signals(number).name}\n")


def ends_on_sigterm(number: int, _: object) -> None:
    """End the program in its own way."""
    heard(number, _)
    sys.exit(9)


def minds_its_signals() -> None:
    """Install handlers of the program's own."""
    for number in HANDLED:
        signal.signal(number, heard)


def happen(fault: str) -> None:
    """Let it happen."""
    if fault in ("exception", "sigterm_while_saving"):
        raise ValueError("loss is nan")
    if fault == "exit":
        sys.exit(7)
    if fault == "quit":
        os._exit(7)
    if fault in ("sigterm", "sigterm_handled", "sigint", "sigkill"):
        os.kill(os.getpid(), getattr(signal, fault.partition("_")[0].upper()))
        time.sleep(5)
    if fault == "directory_removed":
        shutil.rmtree(LOG, ignore_errors=True)
    if fault == "forked_child":
        child = os.fork()
        if not child:
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    if fault.startswith("handlers"):
        for number in HANDLED:
            os.kill(os.getpid(), number)


def train(prof: ProfilerSession, fault: str) -> None:
    """Run the loop."""
    with Path("steps").open("w") as steps:
        for number in range(STEPS):
            if number == HAPPENS_AT:
                happen(fault)
            steps.write(f"{number}\n")
            steps.flush()
            if fault != "no_step":
                prof.step()


def main(way: str, fault: str) -> None:
    """Attach, train, and, unless the fault is to forget it, close."""
    if fault == "handlers_before":
        minds_its_signals()
    if fault == "sigterm_handled":
        signal.signal(signal.SIGTERM, ends_on_sigterm)
    prof = attach(fault) if way == "on" else NoopSession()
    if fault == "handlers_after":
        minds_its_signals()
    if fault == "never_closed":
        train(prof, fault)
        return
    with prof:
        train(prof, fault)
    if fault.startswith("handlers"):
        assert {signal.getsignal(number) for number in HANDLED} == {heard}
    else:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


if __name__ == "__main__":
    main(*sys.argv[1:])
