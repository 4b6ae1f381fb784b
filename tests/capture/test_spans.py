from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import ppprof

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from tests.jobs import toy  # noqa: E402


def recorded(log: Path, times: int) -> ppprof.Run:
    """Two recorded steps, each with so many augmentations."""
    step = toy.training()
    block = {"enable": True, "scheduler": [1, 3], "profiler_log": str(log), "formats": ["pb"]}
    with ppprof.attach(block) as prof:
        for _ in range(4):
            for _ in range(times):
                with ppprof.span("augment"):
                    step()
            prof.step(num_samples=4)
    return ppprof.open(log)


def test_a_span_of_ones_own_is_in_tables_and_in_the_tree_of_modules(tmp_path: Path) -> None:
    once, twice = (recorded(tmp_path / str(times), times) for times in (1, 2))
    assert once.summary("udf").select("name", "calls").rows() == [("augment", 2)]
    tree = ppprof.diff(once, twice).modules.filter(name="augment")
    assert tree.select("depth", "status", "baseline_calls", "experiment_calls").rows() == [
        (1, "both", 1, 1),
        (1, "new", None, 1),
    ]
    inside = ppprof.diff(once, once).modules.filter(pl.col("depth") == 2)["name"].to_list()
    assert "Sequential" in inside
