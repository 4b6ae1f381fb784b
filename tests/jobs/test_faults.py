"""One fault after another in a real training: without a profiler, with Paddle's, and with ppprof.

The training's losses, exit code and signals are to be those without a profiler, what could be saved
is to be there, every file whole or absent, and no process left. docs/reliability.md has the table.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.all]

from ppprof import rundir  # noqa: E402
from ppprof.trace import read  # noqa: E402
from tests.jobs.launching import command, covering, environment  # noqa: E402
from tests.jobs.remains import (  # noqa: E402
    check_files,
    left_by_paddle,
    wait_until_all_have_ended,
)

NOT_WAITING = r"rank 0: exiting before the tables in .* are written; if they do not appear, run: ppprof finish .*"
RAN_OUT = r"rank 0: the memory ran out; who held it: ppprof memory .*"
CUT = r"window 0 was cut short by the end of the training: it has 3 of 5 steps, the last of them 3"
LOST = r"rank 0: recording failed: .*\.pb: {}; window 0 is lost, steps recorded: 5; the training .*"
NO_RING = r"rank 0: .*{}; ppprof hang will not know this rank"
NO_STEP_TIMES = r".*/steps/rank_00000\.jsonl: {}; step times are no longer written"
UNCOUNTED = "making tables and traces|VisualDL's chart of steps|were not ended by step\\(\\)"
FULL, READ_ONLY = "No space left on device", "Read-only file system"


class Fault(NamedTuple):
    """What is expected of one."""

    raw: str
    """What Paddle's profiler leaves: a "whole" trace, one that is "cut", or "nothing"."""
    steps: Sequence[int] | None
    """Steps in the window that ppprof leaves; None without a window."""
    says: Sequence[str] = ()
    """What ppprof says, line by line."""
    disk: str = ""
    """Options of a disk of its own for ``log/``."""
    output: str = ""
    """Where stdout and stderr go."""


MISSED = range(1, 4)
ALL = range(1, 6)
FAULTS = {
    "exception": Fault("nothing", MISSED, [NOT_WAITING, CUT]),
    "sigint": Fault("nothing", MISSED, [NOT_WAITING, CUT]),
    "sigterm": Fault("nothing", MISSED, [NOT_WAITING]),
    "sigterm_while_saving": Fault("nothing", MISSED, [NOT_WAITING, CUT]),
    "sigterm_handled": Fault("nothing", MISSED, [CUT]),
    "sigkill": Fault("nothing", None),
    "out_of_memory": Fault("nothing", MISSED, [RAN_OUT, NOT_WAITING, CUT]),
    "exit": Fault("nothing", MISSED, [CUT]),
    "quit": Fault("nothing", None),
    "never_closed": Fault(
        "nothing", range(5, 8), [r"window 0 was cut short .* 3 of 55 steps, the last of them 7"]
    ),
    "directory_removed": Fault(
        "nothing",
        None,
        [LOST.format("No such file or directory"), NO_STEP_TIMES.format("No such file .*")],
    ),
    "read_only": Fault(
        "nothing", None, [rf"rank 0: log: .*{READ_ONLY}.*; nothing is recorded, .*"], "ro"
    ),
    "in_the_way": Fault(
        "nothing", None, ["rank 0: log: .*File exists.*; nothing is recorded, the training goes on"]
    ),
    "read_only_later": Fault(
        "nothing", None, [LOST.format(READ_ONLY), NO_STEP_TIMES.format(READ_ONLY)], "size=9m"
    ),
    "disk_full": Fault(
        "cut",
        None,
        [NO_RING.format(FULL), LOST.format(FULL), NO_STEP_TIMES.format(FULL)],
        "size=64k",
    ),
    "disk_too_small_for_the_trace": Fault(
        "cut",
        ALL,
        [
            r".*: No space left on device: the raw capture is kept; once there is space again, run: "
            r"ppprof finish \S+",
        ],
        "size=600k",
    ),
    "output_full": Fault("whole", ALL, output="/dev/full"),
    "never_reached": Fault(
        "nothing", None, [r"no window was recorded: the schedule is steps 50 to 59, and 8 steps .*"]
    ),
    "cut_short": Fault(
        "whole", range(5, 8), [r"window 0 was cut short .* 3 of 55 steps, the last of them 7"]
    ),
    "no_step": Fault(
        "whole",
        [],
        [
            "rank 0: every step is recorded, as Profiler.scheduler is not set, until .*",
            "step\\(\\) was never called: .*",
        ],
    ),
    "attach_twice": Fault(
        "nothing", ALL, ["attach\\(\\) was called while an earlier session is open: .*"]
    ),
    "workers": Fault("whole", ALL),
    "forked_child": Fault("whole", ALL),
    "handlers_before": Fault("whole", ALL),
    "handlers_after": Fault("whole", ALL),
}


class Outcome(NamedTuple):
    """What a job leaves."""

    code: int
    losses: str
    heard: str
    said: list[str]
    """Lines of ours on stderr without those that depend on the machine's speed (`UNCOUNTED`)."""
    log: Path


def start(folder: Path, way: str, name: str, fault: Fault) -> subprocess.Popen[bytes]:
    """A job of fault_job.py, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    words = command("-W", "ignore", "-m", "tests.jobs.fault_job", way, name)
    if fault.disk:
        (folder / "log").mkdir()
        # Of the job alone, and gone with it: what it holds is copied as the job ends.
        script = (
            f"mount -t tmpfs -o {fault.disk} tmpfs log || exit 99; "
            "(until [ -e go ] || [ -e kept ]; do sleep 0.05; done; mount -o remount,ro log) & "
            f"{shlex.join(words)}; code=$?; cp -a log kept; exit $code"
        )
        words = ["unshare", "-m", "sh", "-c", script]
    with (
        Path(fault.output or folder / "out").open("wb") as out,
        Path(fault.output or folder / "err").open("wb") as err,
    ):
        # What cannot be printed stays in the buffer: `environment` drops PYTHONUNBUFFERED.
        return subprocess.Popen(words, cwd=folder, env=environment(folder), stdout=out, stderr=err)


def end(folder: Path, job: subprocess.Popen[bytes]) -> Outcome:
    """Waits for a job and whatever it has started."""
    code = job.wait(120)
    wait_until_all_have_ended(folder)
    log = folder / "kept"
    return Outcome(
        code,
        _text(folder / "losses"),
        _text(folder / "heard"),
        [
            line[len("ppprof: ") :]
            for line in _text(folder / "err").splitlines()
            if line.startswith("ppprof: ") and not re.search(UNCOUNTED, line)
        ],
        log if log.exists() else folder / "log",
    )


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def steps_left(log: Path) -> list[int] | None:
    """Steps of the window in a run directory, finished or raw."""
    found = [*log.glob("*.paddle_trace.json"), *log.glob("raw/*.pb")]
    if not found:
        return None
    (file,) = found
    events = read(file).events.filter(pl.col("category") == "ProfileStep")
    names = events["name"].cast(pl.String)
    return sorted(int(name.partition("#")[2]) for name in names)


COVERING = ("exception", "sigterm", "sigkill", "disk_full", "never_closed")


@pytest.mark.parametrize("name", [covering(name, *COVERING) for name in FAULTS])
def test_a_fault_is_the_same_with_ppprof_and_costs_what_it_must(tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    check_disk(fault)
    jobs = {way: start(tmp_path / way, way, name, fault) for way in ("nothing", "ppprof")}
    nothing, ours = (end(tmp_path / way, job) for way, job in jobs.items())

    assert (ours.code, ours.losses, ours.heard) == (nothing.code, nothing.losses, nothing.heard)
    assert len(ours.said) == len(fault.says), ours.said
    for line, expected in zip(ours.said, fault.says):
        assert re.fullmatch(expected, line), line
    check_files(ours.log)
    steps = steps_left(ours.log)
    # A step that a fault cuts is in the window if the training could still end it.
    assert steps is None if fault.steps is None else steps is not None, steps
    if steps is not None and fault.steps is not None:
        assert steps[: len(fault.steps)] == list(fault.steps)
        assert len(steps) <= len(fault.steps) + 1


@pytest.mark.parametrize("name", FAULTS)
def test_what_paddles_own_profiler_leaves(tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    check_disk(fault)
    job = start(tmp_path / "raw", "raw", name, fault)
    assert left_by_paddle(end(tmp_path / "raw", job).log) == fault.raw


def check_disk(fault: Fault) -> None:
    """Skip where a small disk cannot be mounted."""
    if fault.disk and os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")


@pytest.mark.parametrize("name", ["exception", "sigint", "exit", "out_of_memory"])
def test_a_with_around_paddles_profiler_saves_where_python_unwinds(
    tmp_path: Path, name: str
) -> None:
    job = start(tmp_path / "with", "with", name, FAULTS[name])
    assert left_by_paddle(end(tmp_path / "with", job).log) == "whole"


def test_two_jobs_into_one_directory_each_get_their_own(tmp_path: Path) -> None:
    fault = Fault("whole", ALL)
    for way in ("first", "second", "nothing"):
        (tmp_path / way).mkdir()
    (tmp_path / "log").mkdir()
    for way in ("first", "second"):
        (tmp_path / way / "log").symlink_to(tmp_path / "log")
    jobs = {
        way: start(tmp_path / way, "nothing" if way == "nothing" else "ppprof", "two_jobs", fault)
        for way in ("first", "second", "nothing")
    }
    first, second, nothing = (end(tmp_path / way, job) for way, job in jobs.items())
    assert [first[:3], second[:3]] == [nothing[:3]] * 2
    (line,) = first.said + second.said
    assert line == "log holds an earlier run; this run is written to log/run_002"
    check_files(tmp_path / "log")
    runs = [tmp_path / "log", tmp_path / "log/run_002"]
    assert [steps_left(run) for run in runs] == [list(ALL)] * 2
    assert len({rundir.read_run_id(run) for run in runs}) == 2


def test_two_jobs_with_paddles_profiler_mix_their_files(tmp_path: Path) -> None:
    fault = Fault("whole", ALL)
    (tmp_path / "log").mkdir()
    jobs = {}
    for way in ("first", "second"):
        (tmp_path / way).mkdir()
        (tmp_path / way / "log").symlink_to(tmp_path / "log")
        jobs[way] = start(tmp_path / way, "raw", "two_jobs", fault)
    assert [end(tmp_path / way, job).code for way, job in jobs.items()] == [0, 0]
    assert len(list((tmp_path / "log").iterdir())) == 2
    assert left_by_paddle(tmp_path / "log") == "whole"
