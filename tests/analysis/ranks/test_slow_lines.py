"""The line of the user's code in which a slow rank takes longer than its peers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from tests.fixtures.findings import BACKWARD, FORWARD, LOGS, US, computing, in_lines
from tests.fixtures.run_directories import run

LOG = "train.py:7, log(): file.write(json.dumps(weights))"


def recorded(folder: Path, *own: tuple[int, int]) -> Path:
    """Return a run of ranks with so many us in line 12 and in log(), which then wait for each other."""
    stacks = [
        in_lines((forward, FORWARD), (log, LOGS), (1000 - forward - log, BACKWARD))
        for forward, log in own
    ]
    threads = [computing(forward + log, peers="0,1,2") for forward, log in own]
    return run(folder, threads, stacks=stacks)


def test_a_slow_rank_has_the_line_with_most_of_its_excess(tmp_path: Path, cli) -> None:
    path = recorded(tmp_path / "log", (500, 50), (500, 300), (450, 50))
    assert ppprof.open(path).cluster().slow_lines.rows() == [(1, LOG, 250.0 * US)]
    text = cli("ranks", path).out
    assert f"more of its own than the 2 other ranks of the job; 0.25 more in {LOG}\n" in text


def test_without_samples_of_a_peer_no_line_is_named(tmp_path: Path) -> None:
    threads = [computing(500), computing(900)]
    path = run(tmp_path / "log", threads, stacks=[in_lines((1000, FORWARD))][:0])
    cluster = ppprof.open(path).cluster()
    assert cluster.slow_ranks["is_slow"].any()
    assert cluster.slow_lines.is_empty()


@given(st.integers(0, 8), st.integers(0, 8))
def test_the_line_has_half_of_the_excess_or_is_not_named(
    tmp_path_factory: pytest.TempPathFactory, forward: int, log: int
) -> None:
    """Two peers take 100 us in each of the two lines, the third rank takes 50 us more for each number."""
    own = (100 + 50 * forward, 100 + 50 * log)
    path = recorded(tmp_path_factory.mktemp("a") / "log", (100, 100), (100, 100), own)
    found = {name: ns for _, name, ns in ppprof.open(path).cluster().slow_lines.rows()}
    assert set(found) <= ({"train.py:12"} if forward >= log else set()) | (
        {LOG} if log >= forward else set()
    )
    assert all(ns == 50 * US * max(forward, log) for ns in found.values())
    assert len(found) == (forward + log > 1)  # 50 us are 5% of a step: not slow
