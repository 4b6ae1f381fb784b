"""Step times on disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ppprof.capture.steps.step_log import StepLog, StepRecord
from tests.fixtures.run_files import run_file


def record(step: int) -> StepRecord:
    return StepRecord(
        step=step,
        batch_cost_ns=31_245_000,
        reader_cost_ns=None,
        num_samples=8,
        num_tokens=1024,
        num_micro_batches=2,
        num_flops=1_400_000_000,
        device_peak_bytes=None,
        host_peak_bytes=412_516_352,
        stall_ns=0,
        excluded=False,
        window=0,
    )


def test_lines_reach_the_disk_on_flush_and_after_ten_seconds(tmp_path: Path) -> None:
    path, now = tmp_path / "rank_00000.jsonl", [0]
    log = StepLog(run_file(path), clock=lambda: now[0])

    log.add(record(0))
    assert not path.exists()
    now[0] += 10_000_000_000
    log.add(record(1))
    assert len(path.read_text().splitlines()) == 2
    log.add(record(2))
    log.flush()

    lines = path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]
    assert lines[0] == (
        '{"step":0,"batch_cost_ns":31245000,"reader_cost_ns":null,"num_samples":8,'
        '"num_tokens":1024,"num_micro_batches":2,"num_flops":1400000000,'
        '"device_peak_bytes":null,"host_peak_bytes":412516352,'
        '"stall_ns":0,"excluded":false,"window":0,"device_timed":null,'
        '"device_peak_reserved_bytes":null,"device_total_bytes":null,'
        '"processor_wait_ns":null,"processors_busy_ratio":null,"processors_own_ratio":null,"communication_ns":null,'
        '"host_peak_allocated_bytes":null,"paused_ns":null,"paused_for":null,"started_workers":null,"starting_ns":null,"num_collections":null,"slow_line":null,"slow_inner_line":null,"slow_line_ns":null,"loss":null}'
    )


@pytest.mark.parametrize(
    ("loss", "written"), [(2.5, "2.5"), (1e-7, "1e-07"), (math.nan, '"nan"'), (-math.inf, '"-inf"')]
)
def test_a_loss_that_is_not_finite_is_a_text(tmp_path: Path, loss: float, written: str) -> None:
    path = tmp_path / "rank_00000.jsonl"
    log = StepLog(run_file(path))
    log.add(record(1)._replace(loss=loss))
    log.flush()
    assert path.read_text().endswith(f'"loss":{written}}}\n')
    json.loads(path.read_text(), parse_constant=pytest.fail)  # strict JSON


def test_what_a_pause_is_for_may_have_any_text(tmp_path: Path) -> None:
    """Words of Python in it stay, though others become those of JSON."""
    path, reasons = (
        tmp_path / "rank_00000.jsonl",
        [None, 'None: "nan":nan\0', None, "True \u8bc4\u4f30"],
    )
    log = StepLog(run_file(path))
    for step, reason in enumerate(reasons):
        log.add(record(step)._replace(paused_ns=step, paused_for=reason, loss=math.nan))
    log.flush()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["paused_ns"], line["paused_for"], line["loss"]) for line in lines] == [
        (step, reason, "nan") for step, reason in enumerate(reasons)
    ]


def test_truth_values_are_those_of_json(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.jsonl"
    log = StepLog(run_file(path))
    log.add(record(1)._replace(excluded=True, device_timed=False, num_samples=0))
    log.flush()
    line = json.loads(path.read_text())
    assert (line["excluded"], line["device_timed"]) == (True, False)
    assert (line["step"], line["num_samples"], type(line["num_samples"])) == (1, 0, int)


def test_a_disk_error_is_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StepLog(run_file(tmp_path / "gone" / "rank_00000.jsonl"))
    for step in range(3):
        log.add(record(step))
        log.flush()
    assert capsys.readouterr().err == (
        f"ppprof: {tmp_path}/gone/rank_00000.jsonl: No such file or directory; "
        "step times are no longer written\n"
    )
