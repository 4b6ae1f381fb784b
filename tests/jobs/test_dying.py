"""Real ranks over gloo of which one dies: what is saved, who is named, how the job ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import polars as pl
import pytest

from ppprof import rundir

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.all]

from ppprof.trace import read  # noqa: E402
from tests.jobs.dying_job import HAPPENS_AFTER  # noqa: E402
from tests.jobs.launching import JOBS, output, start, wait_for, workerlogs  # noqa: E402
from tests.jobs.remains import (  # noqa: E402
    check_files,
    left_by_paddle,
    wait_until_all_have_ended,
)
from tests.oracles import visualdl_server  # noqa: E402

VICTIM = r"rank 1 \(dp1_pp0_sharding0_mp0"


def start_ranks(folder: Path, what: str, profiler: str = "on") -> subprocess.Popen[bytes]:
    """Start three ranks of dying_job.py."""
    return start(folder, JOBS / "dying_job.py", what, "log", profiler, processes=3)


def check_saved(folder: Path, ranks: list[int]) -> None:
    """Each of these ranks has one window with every step so far, finished, and its step times."""
    wait_until_all_have_ended(folder)
    log = folder / "log"
    check_files(log)
    assert rundir.raw_files(log) == []  # finished, by children that outlived the ranks
    traces = {rundir.TraceName.parse(path).rank: path for path in log.glob("*.paddle_trace.json")}
    assert sorted(traces) == ranks
    for rank, path in traces.items():
        events = read(path).events
        names = events.filter(pl.col("category") == "ProfileStep")["name"].cast(pl.String)
        done = [f"ProfileStep#{step}" for step in range(1, HAPPENS_AFTER)]
        assert names.to_list()[: len(done)] == done
        lines = (log / rundir.steps_path(rank)).read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines][:HAPPENS_AFTER] == [*range(5)]


@pytest.mark.parametrize(
    ("what", "named", "victim_saves"),
    [
        pytest.param(
            "kill", VICTIM + r", pid \d+\) is gone: killed, or it crashed", False, id="kill"
        ),
        pytest.param(
            "raise",
            VICTIM + r"\) failed: RuntimeError: boom, at .*dying_job.py:\d+ \w+;",
            True,
            id="raise",
        ),
        pytest.param(
            "exit",
            VICTIM + r"\) failed: SystemExit: 7, at .*dying_job.py:\d+ \w+;",
            True,
            id="exit",
        ),
        pytest.param("term", VICTIM + r"\) was ended by SIGTERM", True, id="term"),
    ],
)
def test_a_rank_that_dies_is_named_and_the_others_save(
    tmp_path: Path, what: str, named: str, victim_saves: bool
) -> None:
    folders = {profiler: tmp_path / profiler for profiler in ("on", "off", "raw")}
    jobs, seen = {}, ""
    for profiler, folder in folders.items():  # one after the other: gloo has no patience
        jobs[profiler] = start_ranks(folder, what, profiler)
        jobs[profiler].wait(120)
        seen = seen or output(folder)
    tmp_path = folders["on"]
    # Which code it is depends, without a profiler too, on whether rank 0 ends of gloo's error or of
    # the launcher's SIGTERM: 1 or 241, now one and now the other.
    assert jobs["on"].returncode != 0 != jobs["off"].returncode
    assert left_by_paddle(folders["raw"] / "log") == "nothing"
    logs = workerlogs(tmp_path)
    saying = [
        rank for rank, text in logs.items() if re.search(f"ppprof: rank {rank}: {named}", text)
    ]
    if what == "term":  # who is ended by the launcher's SIGTERM takes that of others for the same
        assert 1 not in saying
        assert "code -15" in seen
    else:
        assert saying == [0, 2], logs
        assert "which rank waited for which: ppprof hang log\n" in logs[2]
    check_saved(tmp_path, [0, 1, 2] if victim_saves else [0, 2])


@pytest.mark.visualdl
def test_a_job_that_is_interrupted_saves_every_rank(tmp_path: Path) -> None:
    pytest.importorskip("visualdl", reason="needs the visualdl wheel")
    job = start_ranks(tmp_path, "hang")
    wait_for(lambda: len(list(tmp_path.glob("*.ready"))) == 3, job)
    time.sleep(1)  # by then the two others wait for rank 1 in a collective
    job.send_signal(signal.SIGINT)
    job.wait(60)
    assert job.returncode == signal.SIGINT  # the launcher's word for it
    check_saved(tmp_path, [0, 1, 2])
    workers = {path.name.split("_time_")[0] for path in tmp_path.glob("log/*.paddle_trace.json")}
    with visualdl_server.serve(tmp_path / "log") as server:
        visualdl_server.check_run(server, tmp_path / "log", sorted(workers))
    said = "".join(workerlogs(tmp_path).values())
    assert "is gone" not in said
    assert ") failed: " not in said


ALONE = """
import os, signal, sys
import ppprof
from tests.jobs import toy
step = toy.training()
block = {{"enable": {enable}, "profiler_log": "log"}}
with ppprof.attach(block) as prof:
    for number in range(100_000):
        if number == 5:
            {happening}
        step()
        prof.step()
"""


@pytest.mark.parametrize(
    ("happening", "code"),
    [
        ("raise RuntimeError", 1),
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_exit_codes_are_those_without_ppprof(tmp_path: Path, happening: str, code: int) -> None:
    programs = [ALONE.format(enable=enable, happening=happening) for enable in (False, True)]
    jobs = [start(tmp_path, "-c", program) for program in programs]
    assert [job.wait(60) for job in jobs] == [code, code]
    wait_until_all_have_ended(tmp_path)
    (trace,) = tmp_path.glob("log/*.paddle_trace.json")
    assert read(trace).events["step"].max() >= 4
