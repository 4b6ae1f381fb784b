"""``python -m tests.capture.fault_program on|off FAULT``: a loop to which one fault happens.

As tests/jobs/fault_job.py, but without Paddle: `SmallRecorder` stands in for the recorder, so that a
fault costs a fraction of a second. Everything around the recorder is the real thing; off, nothing of
ppprof is imported. Works in the
current folder, which then holds ``log/``, ``steps``, a line a step, and ``heard``, the signals that
the program's own handlers got.
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
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from ppprof.capture.session import ProfilerSession

STEPS = 8
LOG = Path("log")
LEFT: list[IO[bytes]] = []
"""Files that the training opens after it has closed all descriptors."""
HAPPENS_AT = 4
"""In the window of steps 1 to 5, which has then missed step 0 and holds steps 1 to 3."""
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


ENDING_SIGNALS = (
    *("sigterm", "sigterm_handled", "sigint", "sigkill", "sighup", "sigquit", "sigxcpu"),
    "sigusr1",
)


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


def plant(fault: str) -> None:
    """Put files where another user of the run directory might."""
    if not LOG.exists():  # off
        return
    (LOG / "failed").mkdir()
    if fault == "planted_ranks":
        node = next((LOG / "alive").iterdir()).name.partition(".")[2].partition(".")[2]
        (LOG / f"alive/00001.{10**30}.{node}").touch()
        (LOG / f"alive/00099.{2**31 - 1}.{node}").touch()
    else:
        (LOG / "steps/rank_00000.jsonl").unlink(missing_ok=True)
        for name in ("steps/rank_00000.jsonl", "failed/00000.txt", "failed/00001.txt"):
            os.mkfifo(LOG / name)


def happen(fault: str) -> None:
    """Let it happen."""
    if fault in ("exception", "sigterm_while_saving"):
        raise ValueError("loss is nan")
    if fault.startswith("planted"):
        plant(fault)
    if fault in ("exit", "planted_ranks", "planted_pipes"):
        sys.exit(7)
    if fault == "quit":
        os._exit(7)
    if fault == "sighup_ignored":
        os.kill(os.getpid(), signal.SIGHUP)
    if fault in ENDING_SIGNALS:
        os.kill(os.getpid(), getattr(signal, fault.partition("_")[0].upper()))
        time.sleep(5)
    if fault == "directory_removed":
        shutil.rmtree(LOG, ignore_errors=True)
    if fault == "forked_child":
        child = os.fork()
        if not child:
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    if fault == "daemonised" and os.fork():
        os._exit(0)
    if fault == "descriptors_closed":
        os.closerange(3, 1000)
        time.sleep(0.02)  # ppprof looks at its descriptors every 10 ms
    if fault.startswith("handlers"):
        for number in HANDLED:
            os.kill(os.getpid(), number)


def reopened(steps: IO[str]) -> IO[str]:
    """Open the file again, and more files, so that every closed number is in use."""
    with contextlib.suppress(OSError):
        steps.close()
    for _ in range(420):
        LEFT.append(Path("theirs").open("ab", buffering=0))  # noqa: SIM115
    return Path("steps").open("a")


def train(prof: ProfilerSession | None, fault: str) -> None:
    """Run the loop."""
    steps = Path("steps").open("w")  # noqa: SIM115 (a fault closes its descriptor)
    for number in range(STEPS):
        if number == HAPPENS_AT:
            happen(fault)
            if fault == "descriptors_closed":
                steps = reopened(steps)
        steps.write(f"{number}\n")
        steps.flush()
        if prof is not None and fault != "no_step":
            prof.step()
    steps.close()


def main(way: str, fault: str) -> None:
    """Attach, train, and, unless the fault is to forget it, close."""
    if fault == "handlers_before":
        minds_its_signals()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if fault == "sighup_ignored":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if fault == "sigterm_handled":
        signal.signal(signal.SIGTERM, ends_on_sigterm)
    prof = None
    if way == "on":
        from tests.capture.small_session import attach

        prof = attach(fault)
    if fault == "handlers_after":
        minds_its_signals()
    if fault == "never_closed":
        train(prof, fault)
        return
    with prof or contextlib.nullcontext():
        train(prof, fault)
    for file in LEFT:
        file.write(b"whole ")  # fails if another has closed it
        file.close()
    if fault.startswith("handlers"):
        assert {signal.getsignal(number) for number in HANDLED} == {heard}
    else:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


if __name__ == "__main__":
    main(*sys.argv[1:])
