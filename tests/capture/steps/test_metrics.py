"""The file for Prometheus, read by Prometheus' own parser."""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ppprof.capture.attach import _metrics
from ppprof.capture.parts import StepsPart
from ppprof.capture.steps.metrics import MetricsFile, remove_ended
from ppprof.capture.steps.perf_summary import PerfSummary
from ppprof.config import ProfilerConfig
from ppprof.rundir import metrics_path
from ppprof.rundir.liveness import LivenessRegistry
from ppprof.rundir.run_file import RunFile
from ppprof.topology import Topology
from tests.fixtures.metrics import SECOND, record, values


def test_the_values_are_of_the_latest_steps_outside_windows(tmp_path: Path) -> None:
    run = tmp_path / 'a "run"'
    run.mkdir()
    now = [0]
    metrics = MetricsFile(
        RunFile(run, "metrics/rank_00003.prom"), run.name, 3, 1e9, clock=lambda: now[0]
    )
    path = run / "metrics/rank_00003.prom"
    for step in range(30):
        cost_ns = SECOND if step < 10 else 2 * SECOND
        sizes = {"num_tokens": 1000, "num_samples": None, "num_flops": 10**9}
        waits = {"reader_cost_ns": SECOND // 4, "communication_ns": SECOND // 2}
        metrics.add(record(step, batch_cost_ns=cost_ns, loss=0.5 * step, **sizes, **waits))
    metrics.add(record(30, window=0, batch_cost_ns=90 * SECOND))
    assert not path.exists()
    now[0] = 10 * SECOND
    latest = {"batch_cost_ns": 90 * SECOND, "device_peak_bytes": 5, "loss": math.nan}
    metrics.add(record(31, excluded=True, **latest))
    found = values(path)
    assert math.isnan(found.pop("ppprof_loss"))
    assert found == {
        "ppprof_steps_total": 32,
        "ppprof_step_seconds": 2,
        "ppprof_reader_seconds": 0.25,
        "ppprof_communication_seconds": 0.5,
        "ppprof_tokens_per_second": 500,
        "ppprof_mfu_ratio": 0.5,
        "ppprof_device_peak_bytes": 5,
        "ppprof_loss_is_finite": 0,
        "ppprof_host_peak_bytes": 7,
    }
    metrics.close(waits=True)
    assert not path.exists()


@pytest.mark.parametrize("first_step", [0, 500])
def test_the_first_step_is_in_no_rate(tmp_path: Path, first_step: int) -> None:
    """A minute of compilation, then 10 steps of 1 s with 2,000 tokens."""
    file = RunFile(tmp_path, "metrics/rank_00000.prom")
    metrics = MetricsFile(file, "log", 0, 1e9)
    sizes = {"num_tokens": 2000, "num_samples": 2, "num_flops": 10**8}
    first = {"batch_cost_ns": 60 * SECOND, "reader_cost_ns": 50 * SECOND}
    metrics.add(record(first_step, **{**sizes, **first}))
    assert metrics.numbers() == {"steps_total": first_step + 1, "host_peak_bytes": 7}
    for step in range(first_step + 1, first_step + 11):
        metrics.add(record(step, reader_cost_ns=SECOND // 4, **sizes))
    assert metrics.numbers() == {
        "steps_total": first_step + 11,
        "step_seconds": 1,
        "reader_seconds": 0.25,
        "samples_per_second": 2,
        "tokens_per_second": 2000,
        "mfu_ratio": 0.1,
        "host_peak_bytes": 7,
    }


def test_a_failure_is_said_once_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "metrics").write_text("no folder", encoding="utf-8")
    now = [0]
    metrics = MetricsFile(
        RunFile(tmp_path, "metrics/rank_00000.prom"), "log", 0, None, clock=lambda: now[0]
    )
    for step in range(3):
        now[0] += 10 * SECOND
        metrics.add(record(step))
    metrics.close(waits=True)
    assert caplog.text.count("Profiler.export has ended") == 1


def test_a_signal_leaves_no_values_of_a_job_that_has_ended(tmp_path: Path) -> None:
    now = [0]
    metrics = MetricsFile(
        RunFile(tmp_path, "metrics/rank_00000.prom"), "log", 0, None, clock=lambda: now[0]
    )
    now[0] = 10 * SECOND
    metrics.add(record(0))
    path = tmp_path / "metrics/rank_00000.prom"
    assert path.exists()
    StepsPart(PerfSummary(), metrics=metrics).rescue()
    assert not path.exists()


@pytest.mark.parametrize(
    ("log", "run", "expected"),
    [
        (".", ".", "metrics/rank_00000.prom"),
        ("run_002", "run_002", "run_002/metrics/rank_00000.prom"),
        ("run_002", "run_002/run_002", "run_002/metrics/run_002_rank_00000.prom"),
        ("log", "log/run_003", "log/metrics/run_003_rank_00000.prom"),
    ],
)
def test_all_runs_of_a_log_directory_have_one_folder_in_it(
    log: str, run: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    profiler = ProfilerConfig(export="prometheus", profiler_log=log)
    directory = Path(run).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    metrics = _metrics(profiler, SimpleNamespace(rank=0), directory, None)
    metrics.publish()
    assert (tmp_path / expected).exists()


def test_an_attach_removes_the_files_of_ended_ranks_only(tmp_path: Path) -> None:
    """Of run 1, ranks 0 and 1 run and rank 2 was killed; all of run 2 was killed."""
    runs = [tmp_path, tmp_path / "run_002", tmp_path / "run_003"]
    for run, ranks in zip(runs, (3, 2, 0)):
        run.mkdir(exist_ok=True)
        for rank in range(ranks):
            LivenessRegistry(run, Topology.of(dp=3), rank)
            name = metrics_path(rank, "" if run == tmp_path else run.name)
            RunFile(tmp_path, name).write(b"")
    killed = [*runs[0].glob("alive/00002.*"), *runs[1].glob("alive/*")]
    for entry in killed:
        entry.rename(entry.with_name(entry.name.replace(f".{os.getpid()}.", ".9999999999.")))
    (tmp_path / "metrics/of_another_tool.prom").touch()
    profiler = ProfilerConfig(export="prometheus", profiler_log=str(tmp_path))
    left = []
    for rank in (1, 0):  # rank 1 removes the files of its number, rank 0 all
        _metrics(profiler, SimpleNamespace(rank=rank), runs[2], None)
        left.append(sorted(path.name for path in (tmp_path / "metrics").iterdir()))
    live = ["of_another_tool.prom", "rank_00000.prom", "rank_00001.prom"]
    assert left[1] == live
    assert left[0] == [*live, "rank_00002.prom", "run_002_rank_00000.prom"]


def test_a_file_that_is_not_written_any_more_is_of_a_rank_that_has_ended(tmp_path: Path) -> None:
    """A process of another container may have been killed there: it counts as live for ever."""
    eleven_minutes_ago = time.time() - 660
    for rank in range(3):
        LivenessRegistry(tmp_path, Topology.of(dp=3), rank)
        RunFile(tmp_path, metrics_path(rank)).write(b"")
        if rank != 2:
            os.utime(tmp_path / metrics_path(rank), (eleven_minutes_ago, eleven_minutes_ago))
    for rank in (0, 2):
        (entry,) = tmp_path.glob(f"alive/0000{rank}.*")
        entry.rename(entry.with_name(re.sub(r"-[0-9]+$", "-1", entry.name)))
    remove_ended(tmp_path, 0)
    left = sorted(path.name for path in (tmp_path / "metrics").iterdir())
    assert left == ["rank_00001.prom", "rank_00002.prom"]  # 1 runs here, and 2 wrote just now
