from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from ppprof.capture.steps.step_log import StepLog, StepRecord
from ppprof.rundir import step_times
from ppprof.rundir.step_times import STEP_TIMES, read_step_times
from tests.fixtures.run_files import run_file


def record(step, **other):
    fields = {
        "batch_cost_ns": 10 + step,
        "reader_cost_ns": 1,
        "num_samples": 8,
        "num_tokens": 64,
        "num_micro_batches": 1,
        "num_flops": None,
        "device_peak_bytes": None,
        "host_peak_bytes": 4096,
        "stall_ns": 0,
        "excluded": False,
        "window": None,
    }
    return StepRecord(step=step, **{**fields, **other})


def left(folder: Path, rank: int, *records: StepRecord) -> Path:
    """As a capture leaves them."""
    path = folder / f"steps/rank_{rank:05}.jsonl"
    path.parent.mkdir(exist_ok=True)
    log = StepLog(run_file(path))
    for each in records:
        log.add(each)
    log.flush()
    return path


def test_what_a_capture_leaves_is_read_back(tmp_path):
    left(tmp_path, 1, record(0, window=0), record(1, excluded=True))
    left(tmp_path, 0, record(0, paused_ns=7, paused_for="evaluation"))
    table = read_step_times(tmp_path)
    assert table.schema == STEP_TIMES
    assert table.row(0, named=True).items() >= {"paused_ns": 7, "paused_for": "evaluation"}.items()
    columns = ["rank", "step", "batch_cost_ns", "excluded", "window", "host_peak_bytes"]
    assert table.select(columns).rows() == [
        (0, 0, 10, False, None, 4096),
        (1, 0, 10, False, 0, 4096),
        (1, 1, 11, True, None, 4096),
    ]


def test_no_steps(tmp_path):
    assert read_step_times(tmp_path).schema == STEP_TIMES
    left(tmp_path, 0)
    (tmp_path / "steps/rank_00000.jsonl").touch()
    (tmp_path / "steps/rank_x.jsonl").write_text("{}\n")
    assert read_step_times(tmp_path).is_empty()


@pytest.mark.parametrize("broken", [b'{"step":2,"batch', b"{}", b"\x00\x00\n", b"[1]\n", b"{no}\n"])
def test_lines_that_are_cut_off_or_broken_are_left_out(tmp_path, broken):
    path = left(tmp_path, 0, record(0), record(1))
    with path.open("ab") as file:
        file.write(broken)
    assert read_step_times(tmp_path)["step"].to_list() == [0, 1]


def test_values_that_nothing_measured_are_unknown(tmp_path):
    left(tmp_path, 0, record(0), record(1, num_samples=2**62, num_tokens=-1), record(2))
    left(tmp_path, 1, record(0), record(1, batch_cost_ns=2**62), record(2, batch_cost_ns=-1))
    table = read_step_times(tmp_path).select("rank", "step", "num_samples", "num_tokens")
    assert table.rows() == [(0, 0, 8, 64), (0, 1, None, None), (0, 2, 8, 64), (1, 0, 8, 64)]


def test_of_a_long_run_the_last_steps(tmp_path, monkeypatch):
    path = left(tmp_path, 0, *map(record, range(100)))
    line = len(json.dumps(record(50)._asdict(), separators=(",", ":"))) + 1
    monkeypatch.setattr(step_times, "_MOST_BYTES", 10 * line)
    assert path.stat().st_size > 99 * line - 200
    steps = read_step_times(tmp_path)["step"].to_list()
    assert steps[-1] == 99
    assert 8 <= len(steps) <= 10


def test_steps_of_a_resumed_training_are_counted_from_its_first_one(tmp_path, monkeypatch):
    path = left(tmp_path, 0, *(record(step) for step in range(700, 720)))
    assert read_step_times(tmp_path)["num_before"].to_list() == list(range(20))
    size = path.stat().st_size
    monkeypatch.setattr(step_times, "_MOST_BYTES", size // 2)  # the first steps are not read
    times = read_step_times(tmp_path)
    assert 0 < times.height < 20
    assert times["num_before"].to_list() == times["step"].to_list()


def test_what_other_processes_took_of_a_hosts_processors(tmp_path):
    """Busy minus the ranks of the host; a reading holds for the steps since the last one."""
    (tmp_path / "nodes").mkdir()
    for rank, host in enumerate(["a", "a", "b", "c", "c"]):
        (tmp_path / f"nodes/{rank:05}.{host}").touch()
    for rank, busy, own in ((0, 0.9, 0.3), (1, 0.8, 0.4), (2, 0.5, 0.5), (3, 0.7, 0.2)):
        last = record(1, processors_busy_ratio=busy, processors_own_ratio=own)
        left(tmp_path, rank, record(0), last, record(2))
    left(tmp_path, 4, record(0), record(1))
    others = read_step_times(tmp_path).filter(pl.col("step") < 2)
    expected = {0: 0.2, 1: 0.1, 2: 0.0, 3: None, 4: None}  # rank 4 did not read them
    for rank, ratio in expected.items():
        found = others.filter(rank=rank)["others_ratio"].to_list()
        assert found == [pytest.approx(ratio)] * 2
    assert read_step_times(tmp_path).filter(step=2)["others_ratio"].null_count() == 4
