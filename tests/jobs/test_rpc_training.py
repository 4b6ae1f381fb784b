"""``ppprof run`` of processes that only call each other's functions: the one that trains is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

import ppprof
from ppprof.trace import read
from ppprof.trace.steps import step_spans
from tests.jobs.launching import JOBS, run

pytestmark = [pytest.mark.paddle, pytest.mark.jobs]


def test_a_training_by_rpc_is_recorded_and_the_line_on_the_worker_named(tmp_path: Path) -> None:
    """The server's steps, in calls of the training, are not a training of its own."""
    done = run(tmp_path, "-m", "ppprof", "run", "--nproc", "2", JOBS / "rpc_training.py")
    log = done.stdout + done.stderr
    log += "".join(
        path.read_text("utf-8") for path in sorted((tmp_path / "log").glob("workerlog.*"))
    )
    assert "nothing is recorded" not in log
    assert "this process serves calls by rpc" in log
    (trace,) = (tmp_path / "profiler_log").glob("*.paddle_trace.json")
    assert step_spans(read(trace).events).height >= 5
    found = {
        finding.rule: finding for finding in ppprof.advise(ppprof.open(tmp_path / "profiler_log"))
    }
    facts = found["remote-wait"].facts
    assert (facts["num_calls"], facts["call"]) == (1, "rpc#train_upper(lower -> upper)")
    assert facts["wording"] == "function"
    assert "sum(range(1000))" in line(facts["function_line"])
    assert "rpc.rpc_sync" in line(facts["line"])


def line(place: object) -> str:
    """The text of the line of the job at ``rpc_training.py:25, train()``."""
    number = int(str(place).partition("rpc_training.py:")[2].partition(",")[0])
    return (JOBS / "rpc_training.py").read_text("utf-8").splitlines()[number - 1]
