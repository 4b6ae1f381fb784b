"""Real ``paddle.distributed.rpc`` between three processes, one of which cannot import ppprof.

The wheel paddlepaddle-gpu 2.6.2 has it, and needs no GPU for it. But the wheel's profiler refuses to
record without a driver. So rank 0 records by a stand-in that writes only steps, and of a call on a
worker the times are known. Operators on a worker are in tests/capture/recording/test_rpc.py.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import polars as pl
import pytest

from ppprof.remote_names import REMOTE
from ppprof.trace.raw_captures import read_window
from tests.jobs.launching import JOBS, environment
from tests.jobs.rpc_job import NAP_S

PYTHON = os.environ.get("PPPROF_RPC_PYTHON", "")

pytestmark = [
    pytest.mark.paddle,
    pytest.mark.all,
    pytest.mark.skipif(
        not PYTHON,
        reason="needs PPPROF_RPC_PYTHON, an interpreter with paddlepaddle-gpu 2.6.2 (make test-all)",
    ),
]


def test_calls_are_in_the_window_with_their_worker_and_results_are_their_own(
    tmp_path: Path,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    python = str(Path(PYTHON).absolute())
    commands = [
        [python, str(JOBS / "rpc_job.py"), str(rank), endpoint, "3", *["blocked"] * (rank == 2)]
        for rank in (0, 1, 2)
    ]
    running = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], outputs
    results = json.loads(outputs[0][0].splitlines()[-1])
    assert results == [[0.0, 2.0], [6.0], "worker1", [0.0, 2.0], [6.0], "worker2"] * 4
    warning = "worker2: cannot import ppprof: its calls are not recorded"
    assert outputs[0][1].count(warning) == 1

    (raw,) = (tmp_path / "log/raw").glob("*.pb")
    events = read_window(raw).events.with_columns(pl.col("name").cast(pl.String))
    calls = events.filter(
        pl.col("name").str.starts_with("rpc#") & ~pl.col("name").str.contains(REMOTE, literal=True)
    ).sort("start_ns")
    relu, name = "rpc#relu_of(worker0 -> worker1)", "rpc#worker_name(worker0 -> worker1)"
    assert calls["name"].to_list() == [relu, relu, name] * 2
    assert calls.filter(name=relu)["dur_ns"].min() >= NAP_S * 1e9
    assert calls.filter(name=name)["dur_ns"].max() < NAP_S * 1e9
