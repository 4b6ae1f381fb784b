"""``benchmarks.stopwatch``: both ways reach their answers (their seconds are not looked at)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.stopwatch import TASKS, measure

pytestmark = [pytest.mark.paddle, pytest.mark.all]
pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")


@pytest.mark.parametrize("question", TASKS)
def test_ppprof_prints_the_answer(question: str, tmp_path: Path) -> None:
    way = TASKS[question]["ppprof"]
    first, *rest = measure(way, tmp_path / "ppprof").answers
    if question == "changed":
        assert "slower" in first
        assert float(rest[0]) > 50  # of 60 planted
    else:
        words = {
            "slow": ("waiting for data", "forward(): time.sleep(0.06)"),
            "ranks": ("rank 5",),
        }
        assert [word for word in words[question] if word not in first] == []


@pytest.mark.visualdl
@pytest.mark.parametrize("question", TASKS)
def test_visualdl_has_two_pages_a_rank_and_no_comparison(question: str, tmp_path: Path) -> None:
    pytest.importorskip("visualdl", reason="needs visualdl")
    way = TASKS[question]["raw"]
    measured = measure(way, tmp_path / "raw")
    assert measured.num_pages == 2 * sum(way.runs.values())
    assert len(measured.answers) == (question == "slow")
