"""Axes that only Fleet knows, such as context, under their own names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ppprof
from ppprof.config import ProfilerConfig
from ppprof.errors import ConfigError, UsageError
from ppprof.topology import AXES, Topology
from tests.fixtures.findings import US, computing
from tests.fixtures.run_directories import run

TOPOLOGY = Topology.of([*AXES, "context"], mp=2, context=2)


def opened(folder: Path, *lengths: int) -> ppprof.Run:
    """Ranks 0 to 3, mp outside of context, which compute for so long."""
    return ppprof.open(run(folder, [computing(each) for each in lengths], topology=TOPOLOGY))


def test_steps_are_grouped_by_an_axis_of_its_own(tmp_path: Path) -> None:
    found = opened(tmp_path / "log", 500, 900, 500, 900)
    table = found.breakdown("context")
    assert table.select("context", "num_ranks", "computation_ns").rows() == [
        (0, 2, 500 * US),
        (1, 2, 900 * US),
    ]
    assert found.breakdown("rank")["context"].to_list() == [0, 1, 0, 1]
    with pytest.raises(UsageError, match=r"'tp': expected some of rank, step, .*, mp, context"):
        found.breakdown("tp")


def test_ranks_are_selected_by_an_axis_of_its_own(tmp_path: Path) -> None:
    found = opened(tmp_path / "log", 500, 900, 500, 900)
    recordings = found.select_ranks({"context": 1, "mp": "all"}, None)
    assert [recording.rank for recording in recordings] == [1, 3]
    assert ProfilerConfig.from_mapping({"ranks": {"context": 1}}).ranks == {"context": 1}
    with pytest.raises(ConfigError, match="expected all, a rank"):
        ProfilerConfig.from_mapping({"ranks": {"Context": 1}})


def test_ranks_of_two_runs_are_joined_by_it(tmp_path: Path) -> None:
    diff = ppprof.diff(
        opened(tmp_path / "one", 500, 500, 500, 500), opened(tmp_path / "other", 500, 500, 500, 900)
    )
    rows = diff.ranks.select(
        "baseline_rank", "experiment_rank", "coordinate", "delta_own_ns"
    ).rows()
    assert rows[0] == (3, 3, "mp1 context1", 400 * US)
    assert sorted(row[:2] for row in rows) == [(rank, rank) for rank in range(4)]


def test_the_command_takes_it(tmp_path: Path, cli: Any) -> None:
    found = opened(tmp_path / "log", 500, 900, 500, 900)
    lines = cli.quiet("ranks", found.path, "--by", "context", "--format", "csv").splitlines()
    assert lines[0].startswith("context,num_ranks,")
    assert [line[0] for line in lines[1:]] == ["0", "1"]
    assert "context" in cli("ranks", found.path, "--by", "rank").out
