"""Faults at random moments of a long window: what is left is what was promised."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.all]

import ppprof  # noqa: E402
from ppprof import rundir  # noqa: E402
from ppprof.trace import read  # noqa: E402
from tests.jobs.launching import command, covering, environment, run, wait_for  # noqa: E402
from tests.jobs.remains import check_files  # noqa: E402

JOB = "tests.jobs.long_window_job"
STEPS = 400
ATTEMPTS = ("first", "second", "third")
SIGNAL_SECONDS = 2.0


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The losses of the training without a profiler."""
    folder = tmp_path_factory.mktemp("nothing")
    run(folder, "-m", JOB, "nothing", str(STEPS))
    return (folder / "losses").read_text().splitlines()


def start(folder: Path, *arguments: str, disk: str = "") -> subprocess.Popen[bytes]:
    words = command("-W", "ignore", "-m", JOB, "ppprof", *arguments)
    if disk:  # of the job alone
        (folder / "log").mkdir()
        script = f"mount -t tmpfs -o size={disk} tmpfs log || exit 99; {shlex.join(words)}; code=$?"
        words = ["unshare", "-m", "sh", "-c", f"{script}; cp -a log kept; exit $code"]
    with (folder / "err").open("wb") as err:
        return subprocess.Popen(
            words, cwd=folder, env=environment(folder), stdout=subprocess.DEVNULL, stderr=err
        )


def recorded(log: Path) -> tuple[list[int], list[int]]:
    """Return the steps that ended in the window, and how many each segment has."""
    check_files(log)
    segments = []
    for _, path in rundir.raw_files(log):
        steps = read(path).events.filter(category="ProfileStep")["step"]
        segments.append(sorted(set(steps.drop_nulls().to_list())))
    return [step for each in segments for step in each], [len(each) for each in segments]


def strike(folder: Path, number: int) -> tuple[int, float]:
    """Send a signal at a random moment after some segments; return the exit code and the seconds."""
    job = start(folder, "1000000")
    wait_for(lambda: len(list((folder / "log/raw").glob("*.pb"))) >= 4, job)
    time.sleep(random.uniform(0, 1))
    begin = time.monotonic()
    job.send_signal(number)
    code = job.wait(60)
    return code, time.monotonic() - begin


def steps_run(folder: Path, losses: list[str]) -> int:
    """Return how many steps have run; their losses are those without a profiler."""
    found = (folder / "losses").read_text().splitlines()
    common = min(len(found), len(losses))
    assert found[:common] == losses[:common]
    return len(found)


def check_tables(log: Path, num_steps: int) -> None:
    """The tables of the window count so many steps."""
    model = ppprof.open(log).summary("model")
    assert model.filter(name="ProfileStep")["calls"].to_list() == [num_steps]


@pytest.mark.parametrize("attempt", [covering(name, "first") for name in ATTEMPTS])
def test_sigterm_loses_nothing_and_does_not_wait(
    tmp_path: Path, losses: list[str], attempt: str
) -> None:
    code, seconds = strike(tmp_path, signal.SIGTERM)
    assert code == -signal.SIGTERM
    assert seconds < SIGNAL_SECONDS
    steps, _ = recorded(tmp_path / "log")
    assert steps == list(range(len(steps)))
    # The loss of a step is written just before the step ends.
    assert 0 <= steps_run(tmp_path, losses) - len(steps) <= 1
    check_tables(tmp_path / "log", len(steps))


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_sigkill_loses_the_open_segment_only(
    tmp_path: Path, losses: list[str], attempt: str
) -> None:
    code, _ = strike(tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    for partial in (tmp_path / "log").glob("*/.writing_*"):  # `ppprof finish` removes them
        partial.unlink()
    steps, lengths = recorded(tmp_path / "log")
    assert steps == list(range(len(steps)))
    assert 0 <= steps_run(tmp_path, losses) - len(steps) <= 4 * max(lengths) + 1
    check_tables(tmp_path / "log", len(steps))


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_an_exception_keeps_its_exit_code_and_the_window(
    tmp_path: Path, losses: list[str], attempt: str
) -> None:
    fails_at = random.randrange(STEPS)
    job = start(tmp_path, str(STEPS), str(fails_at))
    assert job.wait(120) == 1
    assert (tmp_path / "err").read_text().rstrip().endswith("ValueError: loss is nan")
    assert steps_run(tmp_path, losses) == fails_at + 1
    steps, _ = recorded(tmp_path / "log")
    assert steps == list(range(fails_at + 1))
    check_tables(tmp_path / "log", fails_at + 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a disk")
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_disk_that_fills_keeps_earlier_segments_and_the_training(
    tmp_path: Path, losses: list[str], attempt: str
) -> None:
    size = random.randrange(1_000_000, 4_000_000)
    job = start(tmp_path, str(STEPS), disk=str(size))
    assert job.wait(240) == 0, (tmp_path / "err").read_text()
    assert steps_run(tmp_path, losses) == STEPS
    steps, _ = recorded(tmp_path / "kept")
    assert steps == list(range(len(steps)))
    assert 0 < len(steps) < STEPS, size
    said = (tmp_path / "err").read_text()
    assert "No space left on device; the last " in said
    assert "are lost, earlier ones are saved" in said
