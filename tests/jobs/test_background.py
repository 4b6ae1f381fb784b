"""Tables and traces are made beside the training, and a helper that dies takes nothing along."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from ppprof import rundir
from ppprof.cli import main

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.all]

from tests.jobs.background_job import WINDOW  # noqa: E402
from tests.jobs.launching import JOBS, output, start, workerlogs  # noqa: E402
from tests.jobs.remains import (  # noqa: E402
    check_files,
    processes,
    wait_until_all_have_ended,
)


def test_steps_go_on_while_tables_are_made(tmp_path: Path) -> None:
    """::

    rank 0   step 1 ... step 20 | save | step step step step step | close
    helper                             | tables ... trace |
                                       ^ raw file's time  ^ trace's time
    """
    job = start(tmp_path, JOBS / "background_job.py", processes=2)
    assert job.wait(240) == 0, output(tmp_path)
    wait_until_all_have_ended(tmp_path)
    log = tmp_path / "log"
    check_files(log)
    windows = rundir.raw_files(log)
    assert len(windows) == 2
    for name, raw in windows:
        saved, finished = raw.stat().st_mtime_ns, (log / name.trace("json")).stat().st_mtime_ns
        after = [int(line) for line in (tmp_path / f"{name.rank}.times").read_text().splitlines()]
        steps = [first for first, last in zip(after, after[1:]) if saved < first < last < finished]
        assert len(steps) >= 5, (name.rank, finished - saved)
        assert after[WINDOW[1] - 1] < finished  # the step that saved the window did not wait
        text = workerlogs(tmp_path)[name.rank]
        assert f"window 0, steps 1 to {WINDOW[1] - 1}" in text  # printed in the loop or at its end


def test_a_helper_that_is_killed_costs_a_warning_and_can_be_made_up_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = start(tmp_path, "-W", "ignore", "-m", "tests.jobs.fault_job", "ppprof", "helper_killed")
    deadline = time.monotonic() + 60
    while not (helpers := [pid for pid in processes(tmp_path) if is_helper(pid)]):
        assert job.poll() is None, output(tmp_path)
        assert time.monotonic() < deadline
    os.kill(helpers[0], signal.SIGKILL)
    assert job.wait(60) == 0
    wait_until_all_have_ended(tmp_path)
    log = tmp_path / "log"
    said = re.findall("^ppprof: .*", output(tmp_path), re.M)
    ((name, raw),) = rundir.raw_files(log)
    expected = rf"ppprof: \S+{raw.name}: no tables and traces were made \(it was killed, .*"
    assert len(said) == 1, said
    assert re.fullmatch(expected, said[0])
    assert not (log / name.trace("json")).exists()

    assert main(["finish", str(log)]) == 0
    assert "window 0, steps 1 to 5" in capsys.readouterr().out
    assert (log / name.trace("json")).exists()
    assert (log / name.summary).exists()
    check_files(log)


IN_THE_FOREGROUND = """
import ppprof
from tests.jobs import toy
step = toy.training()
with ppprof.attach({"enable": True, "scheduler": [1, 3], "background": False}) as prof:
    for number in range(5):
        step()
        prof.step()
        print("after", number, flush=True)
"""


def test_in_the_foreground_the_training_waits_for_its_tables(tmp_path: Path) -> None:
    job = start(tmp_path, "-W", "ignore", "-c", IN_THE_FOREGROUND)
    assert job.wait(120) == 0
    printed = output(tmp_path)
    lines = re.findall("^(?:rank 0 .*|after .|ppprof: .*)$", printed, re.M)
    tables = "rank 0 (dp0 pp0 sharding0 mp0), window 0, steps 1 to 2"
    assert lines == ["after 0", "after 1", tables, "after 2", "after 3", "after 4"]
    check_files(tmp_path / "profiler_log")


def is_helper(pid: int) -> bool:
    try:
        return b"\0finish\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
