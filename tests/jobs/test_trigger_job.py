"""Windows on demand in real jobs: the same steps on all ranks, and nothing else kept."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ppprof import rundir

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.all]

from tests.jobs.launching import (  # noqa: E402
    CONFIGS,
    JOBS,
    TRAIN,
    output,
    overrides,
    run,
    start,
    wait_for,
    workerlogs,
)

CONFIG = CONFIGS / "pretrain_gpt_tiny_cpu_dp2_mp2_pp2.yaml"


class Job:
    """A job that runs until `stop`."""

    def __init__(self, folder: Path, num_ranks: int, block: dict[str, Any], *planted: int) -> None:
        self.folder = folder
        self.run = folder / "log"
        program = (JOBS / "trigger_job.py", self.run, json.dumps(block), *map(str, planted))
        self.process = start(folder, *program, processes=num_ranks)

    def stop(self) -> None:
        """Ends it, and checks that it ends well."""
        (self.folder / "stop").touch()
        assert self.process.wait(120) == 0, self.logs()

    def logs(self) -> str:
        """What all ranks say."""
        return "".join(workerlogs(self.folder).values())

    def wait_for(self, what: str) -> None:
        """Until a file is in the folder."""
        wait_for((self.folder / what).exists, self.process)

    @property
    def request(self) -> Path:
        """The file of a request, until rank 0 takes it in its next step."""
        return self.run / "trigger/request"

    def wait_until_taken(self) -> None:
        """Until no request waits for rank 0, or the job has ended."""
        wait_for(lambda: not self.request.exists() or self.process.poll() is not None)

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``ppprof trigger``, when the request before it was taken."""
        self.wait_until_taken()
        return run(self.folder, "-m", "ppprof", "trigger", self.run, *arguments, code=None)

    def windows(self) -> dict[int, dict[int, list[int]]]:
        """Steps by window and rank, of the tables."""
        found: dict[int, dict[int, list[int]]] = {}
        for rank, window, path in rundir.summary_files(self.run):
            found.setdefault(window, {})[rank] = json.loads(path.read_text())["steps"]
        return found

    def logged(self, rank: int) -> list[dict[str, Any]]:
        """Step times."""
        lines = (self.run / rundir.steps_path(rank)).read_text().splitlines()
        return [json.loads(line) for line in lines]


@contextmanager
def running(*args: Any) -> Iterator[Job]:
    job = Job(*args)
    try:
        yield job
    finally:
        job.process.kill()
        job.process.wait()


@pytest.mark.jobs
def test_a_request_opens_the_same_steps_on_all_ranks(tmp_path: Path) -> None:
    hook = [sys.executable, "-c", _NOTE, str(tmp_path / "notes")]
    block = {"trigger": True, "scheduler": [4, 6], "on_window_end": hook}
    with running(tmp_path, 2, block) as job:
        job.wait_for("ready")
        waited = job.ask("--steps", "3", "--wait")
        assert waited.returncode == 0, waited.stderr
        busy = job.ask("--steps", "9000")
        refused = job.ask("--wait")
        one = job.ask("--rank", "7")
        for _ in range(20):  # a step each: window 2 is recorded by then
            job.request.touch()
            job.wait_until_taken()
        job.stop()
        logs = job.logs()
        late = job.ask()

    files = [Path(line) for line in waited.stdout.splitlines()]
    assert {path.name.split("_time_")[0] for path in files} == {
        *(f"rank_0000{rank}_dp{rank}_pp0_sharding0_mp0" for rank in (0, 1)),
        *("rank_00000_w1.json", "rank_00001_w1.json"),
    }
    windows = job.windows()
    assert windows[0] == {0: [4, 5], 1: [4, 5]}
    assert windows[1][0] == windows[1][1]
    assert len(windows[1][0]) == 3
    assert (
        f"window 1: steps {windows[1][0][0]} to {windows[1][0][-1]} on ranks 0-1" in waited.stderr
    )
    for rank in (0, 1):
        logged = [line["step"] for line in job.logged(rank) if line["window"] == 1]
        assert logged == windows[1][0]
    assert "the plan arrived" not in logs
    assert "did not confirm" not in logs
    assert busy.returncode == 0
    assert "requested 9000 steps on ranks 0-1" in busy.stdout
    assert refused.returncode == 1
    assert "no window: already recording: window 2, steps" in refused.stderr
    assert logs.count("already recording: window 2, steps") == 1 + 20
    assert one.returncode == 2
    assert late.returncode == 3
    assert "the job has ended" in late.stderr
    notes = [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]
    assert sorted((note["rank"], note["window"]) for note in notes) == [
        (rank, window) for rank in "01" for window in "012"
    ]
    assert all(note["are_there"] for note in notes)
    for note in notes:  # the long window may be in several segments, a trace each
        assert len(note["files"]) == 2 or (note["window"] == "2" and len(note["files"]) > 2)


_NOTE = """
import json, os, pathlib, sys
note = {"rank": os.environ["PPPROF_RANK"], "window": os.environ["PPPROF_WINDOW"], "files": sys.argv[2:]}
note["are_there"] = all(pathlib.Path(path).is_file() for path in sys.argv[2:])
with open(sys.argv[1], "a") as file:
    print(json.dumps(note), file=file)
"""


def test_a_slow_step_of_any_rank_opens_a_window_and_only_slow_ones_stay(tmp_path: Path) -> None:
    slow = {"times": 6, "cool_down": 1000}
    block = {"trigger": {"file": False, "slow_step": slow, "steps": 3}}
    with running(tmp_path, 2, block, 30, 1) as job:
        deadline = time.monotonic() + 120
        while "is deleted" not in job.logs() and time.monotonic() < deadline:
            time.sleep(0.2)
        job.stop()
    assert "step 30 of rank" in job.logs()
    assert "window 0 is deleted: no step took more than 6 times the median" in job.logs()
    assert "what was recorded was not slow, and deleted" in job.logs()
    assert job.windows() == {}
    assert list(job.run.glob("raw/*")) == []
    assert not (job.run / "trigger").exists()


def test_slow_windows_stay_until_there_are_enough(tmp_path: Path) -> None:
    slow = {"times": 6, "cool_down": 5, "max_windows": 2}
    block = {"trigger": {"slow_step": slow, "steps": 4}, "formats": ["pb"]}
    with running(tmp_path, 2, block, 30, 1, 4) as job:
        job.wait_for("ready")
        deadline = time.monotonic() + 120
        while "max_windows 2 is reached" not in job.logs() and time.monotonic() < deadline:
            time.sleep(0.2)
        job.stop()
    windows = job.windows()
    assert list(windows) == [0, 1], job.logs()
    assert all(ranks[0] == ranks[1] for ranks in windows.values())
    assert windows[1][0][0] > windows[0][0][-1] + 5
    assert job.logs().count("max_windows 2 is reached") == 1


def test_a_stage_of_a_pipeline_is_asked_for_while_fleet_trains(tmp_path: Path) -> None:
    """``tools/train.py`` as dp2 x pp2; the ranks that are not asked log the same window."""
    blocks = {
        "Profiler": {"enable": True, "scheduler": None, "trigger": True},
        "Distributed": {"mp_degree": 1},
        "Engine": {"max_steps": 100_000, "eval_freq": -1},
    }
    settings = [
        f"{block}.{key}={value}" for block, keys in blocks.items() for key, value in keys.items()
    ]
    program = (TRAIN, "-c", CONFIG, *overrides(*settings))
    log = tmp_path / "profiler_log"
    process = start(tmp_path, *program, processes=4)
    try:
        wait_for(lambda: "step 5/" in output(tmp_path), process, 200)
        words = ("trigger", log, "--rank", "0,1", "--wait", "--timeout", "150")
        asked = run(tmp_path, "-m", "ppprof", *words, code=None)
    finally:
        process.terminate()
        process.wait(60)
    assert asked.returncode == 0, asked.stderr + output(tmp_path)
    found = {
        rank: json.loads(path.read_text())["steps"] for rank, _, path in rundir.summary_files(log)
    }
    assert list(found) == [0, 1]
    assert found[0] == found[1]
    assert len(found[0]) == 4
    assert all(Path(line).is_file() for line in asked.stdout.splitlines())


def test_pipes_and_links_in_the_run_directory_do_not_stop_a_job(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not of the run")
    with running(tmp_path, 2, {"trigger": True, "scheduler": [4, 6]}) as job:
        job.wait_for("ready")
        (job.run / "failed").mkdir()
        for name in ("trigger/request", "steps/rank_00001.jsonl", "failed/00001.txt"):
            (job.run / name).unlink(missing_ok=True)
            os.mkfifo(job.run / name)
        (job.run / "trigger/answers.jsonl").symlink_to(outside)
        job.wait_until_taken()
        assert job.ask("--steps", "3", "--wait", "--timeout", "2").returncode != 0  # no answer
        job.stop()
        logs = job.logs()
    assert "no window, asked for by request: not a regular file" in logs
    assert "steps/rank_00001.jsonl: not a regular file; step times are no longer written" in logs
    assert outside.read_text() == "not of the run"
    assert job.windows()[1].keys() == {0, 1}


def test_a_rank_that_becomes_slow_is_recorded_with_its_peers(tmp_path: Path) -> None:
    block = {"trigger": {"slow_rank": True, "file": False}, "formats": ["json"]}
    with running(tmp_path, 3, block, 60, 1, 1, 30) as job:  # 30 ms longer in each step from 60 on
        wait_for(lambda: "has worked longer than its peers" in job.logs(), job.process)
        recorded = "rank_*_time_*_000*"  # a raw capture, or already a trace
        wait_for(
            lambda: len({path.name[:10] for path in job.run.rglob(recorded)}) == 3, job.process
        )
        job.stop()
        run(tmp_path, "-m", "ppprof", "finish", job.run)
    assert "rank 1 has worked longer than its peers for " in job.logs()
    steps = job.windows()[0]
    assert steps[0] == steps[1] == steps[2]
    assert steps[1][0] > 60


def test_a_terminal_follows_a_running_training(tmp_path: Path) -> None:
    """A terminal of 80 x 24; its keys open a window, and make the page of it."""
    with running(tmp_path, 2, {"trigger": {"steps": 2}, "formats": ["json"]}) as job:
        job.wait_for("ready")
        wait_for(lambda: len([*job.run.glob("steps/*.jsonl")]) == 2, job.process)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        watch = subprocess.Popen(
            [sys.executable, "-m", "ppprof", "watch", str(job.run)],
            **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        )
        os.close(theirs)
        written = b""

        def read_until(pattern: bytes) -> re.Match[bytes]:
            nonlocal written
            deadline = time.monotonic() + 240
            while not (found := re.search(pattern, written)):
                assert time.monotonic() < deadline, written
                if select.select([ours], [], [], 1)[0]:
                    written += os.read(ours, 1 << 16)
            return found

        found = read_until(rb"loss (\d+)(?:\.\d+)? at step ([\d,]+)")
        assert float(found[1]) == float(found[2].replace(b",", b""))  # the job's loss is its step
        assert re.search(rb"2 ranks.*step \d.*running.*waits: communication", written, re.DOTALL)
        os.write(ours, b"w")
        read_until(rb"window 0(: steps \d+ to \d+; waiting for| is ready)")
        job.stop()  # its steps would slow the making of the trace down
        read_until(rb"window 0 is ready: p opens its page")
        os.write(ours, b"p")
        page = read_until(rb"window 0: (/\S+report.html)")[1].decode()
        os.write(ours, b"q")
        read_until(rb"\x1b\[\?1049l")
        assert watch.wait(20) == 0
        os.close(ours)
        assert "window 0" in Path(page).read_text(encoding="utf-8")
        screens = written.partition(b"\x1b[?1049l")[0].replace(b"\x1b[H", b"\n")
        text = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", screens.decode())
        assert max(map(len, text.splitlines())) <= 80
