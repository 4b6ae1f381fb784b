"""The tables of ``benchmarks.predict``, from a recorded run in the place of trainings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import predict
from benchmarks.predict import DP, LOCAL, MICRO, MP, PP, Size, order_of, print_memory, print_steps
from tests.conftest import Cli
from tests.jobs.planted import COMMITTED

SETTINGS = {DP: 2, MP: 2, PP: 2, MICRO: 2, LOCAL: 8}


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Return the folder of a training: peaks of 1, 2... MiB, steps of 0.5, 0.6... s, 10% of them waits."""
    run = tmp_path / "00/profiler_log"
    shutil.copytree(COMMITTED / "eight_ranks", run)
    for rank in range(8):
        path = run / f"steps/rank_{rank:05}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line["host_peak_allocated_bytes"] = (rank + 1) << 20
            line["batch_cost_ns"] = 500_000_000 + rank * 100_000_000
            line["processor_wait_ns"] = line["batch_cost_ns"] // 10
            line["stall_ns"] = 0
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return tmp_path / "00"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n").split("|")]


def test_a_stage_has_the_peak_of_the_rank_with_most(
    trained: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = trained / "profiler_log"
    tables = json.loads(cli("predict", run, "--format", "json").out)["tables"]
    monkeypatch.setattr(predict, "MODELS", [(Size(64, 4, 2, 64, 256), SETTINGS)])
    print_memory([trained])
    _, _, *rows, summary = capsys.readouterr().out.splitlines()
    # dp 2 x pp 2 x mp 2: ranks 0, 1, 4 and 5 have stage 0.
    for row, stage, peak in zip(rows, tables["memory"], (6, 8)):
        predicted = stage["total_bytes"] / 2**20
        assert cells(row)[1:5] == [
            str(stage["stage"]),
            f"{peak:.2f}",
            f"{predicted:.2f}",
            f"{predicted / peak - 1:+.1%}",
        ]
    assert len(rows) == 2
    assert summary.endswith("of 2")


def test_a_step_is_predicted_from_its_base_and_measured_by_its_median(
    trained: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = trained / "profiler_log"
    out, err = cli("predict", run, "--format", "json")
    (recorded,) = json.loads(out)["tables"]["steps"]
    assert "for a processor" not in err
    monkeypatch.setattr(predict, "CHANGES", [SETTINGS])
    monkeypatch.setattr(predict, "BASES", [((0,), (0,))])
    monkeypatch.setattr(predict, "_STEPS", (4, 5))
    print_steps([trained])
    _, _, row, errors, inside, _ = capsys.readouterr().out.splitlines()
    likely = recorded["step_ns"] / 1e6
    assert cells(row)[0] == "0"
    assert cells(row)[2:5] == ["850", f"{likely:,.0f}", f"{likely / 850 - 1:+.1%}"]
    assert cells(row)[-1] == "10.0%"
    assert errors.startswith("median ")
    assert inside == f"measured step between least and most in {cells(row)[-2] == 'yes':d} of 1"


def test_only_pairs_that_differ_are_ordered() -> None:
    assert order_of([(100, 9), (110, 8), (130, 10), (200, 5)]) == (2, 5)
