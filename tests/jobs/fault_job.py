"""``python -m tests.jobs.fault_job nothing|raw|with|ppprof FAULT``: a training to which one fault happens.

Trains in the working directory, which then holds ``losses``, one line a step, ``heard``, the signals
that the training's own handlers got, and ``log/``. ``nothing`` trains without a profiler and ``raw``
with Paddle's, by its three calls, as FleetX does; ``with`` leaves the last one to a ``with``.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import paddle
from paddle.io import DataLoader, Dataset

import ppprof
from ppprof.capture.recording.windows import Windows
from tests.capture.fault_program import (
    HANDLED,
    HAPPENS_AT,
    LOG,
    STEPS,
    ends_on_sigterm,
    heard,
    minds_its_signals,
)
from tests.capture.small_session import SCHEDULES, WINDOW
from tests.jobs import toy


class Raw:
    """Paddle's profiler under the names of a session."""

    def __init__(self, schedule: tuple[int, int] | None) -> None:
        self._profiler = paddle.profiler.Profiler(
            scheduler=schedule,
            on_trace_ready=paddle.profiler.export_chrome_tracing(str(LOG)),
            record_shapes=True,
            profile_memory=True,
        )
        self._profiler.start()

    def step(self) -> None:
        self._profiler.step()

    def close(self) -> None:
        self._profiler.stop()


class Numbers(Dataset):  # type: ignore[misc]
    """What the workers of a DataLoader read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> np.ndarray:
        return np.float32([index])


def attach(way: str, fault: str) -> Any:
    """The profiler of the job, if it has one."""
    schedule = SCHEDULES.get(fault, WINDOW)
    if way in ("raw", "with"):
        return Raw(schedule)
    block = {"enable": True, "scheduler": schedule, "profiler_log": str(LOG)}
    if fault == "read_only_later":
        block["flight_recorder"] = (
            False  # a file that is open for writing keeps it from being remounted
        )
    return ppprof.attach(block if way == "ppprof" else None)


def fail() -> None:
    """An error in the training's code."""
    raise ValueError("loss is nan")


def run_out_of_memory() -> None:
    """An allocation that the machine refuses, and memory that stays short."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    paddle.zeros([1 << 30])


def read_with_workers() -> None:
    """A DataLoader whose workers are forked inside the window, and end in it."""
    assert len(list(DataLoader(Numbers(), batch_size=1, num_workers=2))) == 8


def fork_and_fail() -> None:
    """A child of the training that ends with an error of its own, by way of Python's exit."""
    child = os.fork()
    if not child:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def fill_the_disk() -> None:
    """To the last byte."""
    with contextlib.suppress(OSError), (LOG / "ballast").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass


def await_read_only() -> None:
    """The one who runs this job is to make the directory so when it sees ``go``."""
    Path("go").touch()
    with contextlib.suppress(OSError):
        while True:
            (LOG / "probe").touch()
            time.sleep(0.01)


def send(number: int) -> Callable[[], None]:
    """Sends a signal to this process, and gives it time to act."""

    def happen() -> None:
        os.kill(os.getpid(), number)
        time.sleep(3)

    return happen


def send_all() -> None:
    """Every signal that the training minds."""
    for number in HANDLED:
        os.kill(os.getpid(), number)
        time.sleep(0.2)


HAPPENINGS: dict[str, Callable[[], None]] = {
    "exception": fail,
    "sigterm": send(signal.SIGTERM),
    "sigint": send(signal.SIGINT),
    "sigterm_while_saving": fail,
    "sigterm_handled": send(signal.SIGTERM),
    "sigkill": send(signal.SIGKILL),
    "out_of_memory": run_out_of_memory,
    "exit": lambda: sys.exit(7),
    "quit": lambda: os._exit(7),
    "directory_removed": lambda: shutil.rmtree(LOG, ignore_errors=True),
    "read_only_later": await_read_only,
    "disk_full": fill_the_disk,
    "workers": read_with_workers,
    "forked_child": fork_and_fail,
    "handlers_before": send_all,
    "handlers_after": send_all,
    "attach_twice": lambda: None,
}


def train(prof: Any, fault: str) -> None:
    """The loop."""
    step = toy.training()
    with Path("losses").open("w") as losses:
        for number in range(STEPS):
            if number == HAPPENS_AT:
                HAPPENINGS.get(fault, lambda: None)()
            losses.write(f"{float(step())!r}\n")
            losses.flush()
            if prof is not None and fault != "no_step":
                prof.step()


def main(way: str, fault: str) -> None:
    """Attaches, trains, and, unless the fault is to forget it, closes."""
    if fault == "handlers_before":
        minds_its_signals()
    if fault == "sigterm_handled":
        signal.signal(signal.SIGTERM, ends_on_sigterm)
    if fault == "in_the_way":
        LOG.write_text("a file")
    if fault == "sigterm_while_saving" and way == "ppprof":
        save = Windows.close

        def saves_slowly(self: Windows, keep_empty: bool, failed: bool = False) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
            save(self, keep_empty, failed)

        Windows.close = saves_slowly  # type: ignore[method-assign]
    prof = attach(way, fault) if way != "nothing" else None
    if fault == "handlers_after":
        minds_its_signals()
    if fault == "attach_twice" and way != "nothing":
        again = attach(way, fault)
        again.step()
    if way == "with":
        with contextlib.closing(prof):
            train(prof, fault)
        return
    if fault == "sigterm_while_saving" and way == "ppprof":
        with prof:
            train(prof, fault)
    train(prof, fault)
    if prof is not None and fault != "never_closed":
        prof.close()
    if fault.startswith("handlers"):
        assert {signal.getsignal(number) for number in HANDLED} == {heard}
    elif fault != "never_closed":
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


if __name__ == "__main__":
    main(*sys.argv[1:])
