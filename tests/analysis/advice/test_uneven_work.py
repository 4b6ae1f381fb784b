"""Ranks that wait for each other in turn: what of it even work would save."""

from __future__ import annotations

from pathlib import Path

import pytest

import ppprof
from tests.fixtures.findings import US, with_work
from tests.fixtures.run_directories import run

TURNS = [300, 900] * 4
EVEN = [600] * 8


@pytest.mark.parametrize(
    ("ranks", "saved"),
    [
        ([with_work(*TURNS), with_work(*TURNS[::-1])], 300),
        # One rank has more in each step: it is slow, and no work is uneven.
        ([with_work(*EVEN), with_work(*[900] * 8)], 0),
        # Rank 1 has 100 more than rank 0 on average. Even steps of its work would save 900 - 650.
        ([with_work(*[200, 900] * 4), with_work(*[900, 400] * 4)], 250),
        # The work is even, and the times are not: noise, or another machine.
        ([with_work(*TURNS, flops=EVEN), with_work(*TURNS[::-1], flops=EVEN)], 0),
        # Times go with the FLOPs of the other rank.
        ([with_work(*TURNS, flops=TURNS[::-1]), with_work(*TURNS[::-1], flops=TURNS)], 0),
        # 1% more FLOPs are no reason for three times as long.
        (
            [
                with_work(*TURNS, flops=[1000, 1010] * 4),
                with_work(*TURNS[::-1], flops=[1010, 1000] * 4),
            ],
            0,
        ),
        # Both have more in the same step.
        ([with_work(*TURNS), with_work(*TURNS)], 0),
        ([with_work(*TURNS)], 0),
        ([with_work(*TURNS[:5]), with_work(*TURNS[1:6])], 0),  # too few steps
    ],
)
def test_what_even_work_would_save(ranks: list[object], saved: int, tmp_path: Path) -> None:
    found = ppprof.advise(run(tmp_path / "log", ranks))
    costs = [each.cost_ns for each in found if each.rule == "uneven-work"]
    assert costs == ([pytest.approx(saved * US)] if saved else [])
