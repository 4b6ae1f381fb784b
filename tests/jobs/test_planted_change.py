"""A change that was planted is found, by name and size, and the rest is quiet: real trainings."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.report.diff import Shown, tables
from tests.jobs.launching import CONFIG, JOBS, overrides, run

MS = 1_000_000
SLEEP_MS = 40
pytestmark = [pytest.mark.paddle, pytest.mark.all]


def recorded(folder: Path, planted: str, *more: str) -> ppprof.Run:
    """Eight recorded steps of a tiny GPT with that planted in it."""
    settings = ["Profiler.enable=True", "Profiler.scheduler=[12, 20]", "Profiler.formats=[pb]",
             "Engine.max_steps=60", "Engine.eval_freq=-1", *more]  # fmt: skip
    folder.mkdir()
    program = (JOBS / "planted_job.py", planted, "-c", CONFIG, *overrides(*settings))
    run(folder, *program)
    return ppprof.open(folder / "profiler_log")


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("base") / "run", "nothing")


def own_changes(diff):
    """Modules by how much they changed themselves, the biggest first."""
    by = pl.col("delta_self_ns").abs()
    return diff.modules.filter(pl.col("depth") > 0).sort(by, descending=True).rows(named=True)


def test_a_slow_layer(baseline, tmp_path):
    slow = recorded(tmp_path / "run", f"layer:1:{SLEEP_MS / 1000}")
    diff = ppprof.diff(baseline, slow)
    first, second, *_ = own_changes(diff)
    assert (first["name"], first["is_clear"]) == ("Block", True)
    assert first["delta_self_ns"] == pytest.approx(SLEEP_MS * MS, rel=0.1)
    assert abs(second["delta_self_ns"]) < 0.5 * SLEEP_MS * MS
    blocks = diff.modules.filter(name="Block")["delta_self_ns"].to_list()
    assert blocks.index(max(blocks)) == 1
    assert diff.change.verdict == "slower"
    # No operator sleeps.
    shown = tables(diff, Shown(views=("op",), min_delta_ns=0.5 * SLEEP_MS * MS))
    assert shown["op"].is_empty()


def test_a_swapped_operator(baseline, tmp_path):
    diff = ppprof.diff(baseline, recorded(tmp_path / "run", "operator:relu"))
    changed = diff.operators.filter(pl.col("status") != "both")
    assert dict(changed.select("name", "status").rows()) == {
        "gelu": "gone", "Global_GeluGradNode": "gone",
        "relu": "new", "Global_ReluGradNode": "new",
    }  # fmt: skip
    assert set(changed.select(pl.col("delta_calls").abs()).to_series()) == {2}  # one a layer
    others = diff.operators.filter(status="both")
    assert set(others["delta_calls"]) == {0}
    assert "gelu" in tables(diff, Shown(views=("op",)))["op"]["name"]


def test_an_added_layer(baseline, tmp_path):
    diff = ppprof.diff(baseline, recorded(tmp_path / "run", "nothing", "Model.num_layers=3"))
    new = diff.modules.filter(status="new")
    assert new["name"].to_list()[0] == "Block"
    assert new["depth"].to_list().count(new["depth"][0]) == 1
    assert diff.modules.filter(status="gone").is_empty()
    assert diff.comparability.differences == ["Model.num_layers: 2 -> 3"]
    assert diff.operators.filter(name="matmul")["delta_calls"].item() > 0
    assert diff.change.ratio > 0


def test_workers_for_a_slow_dataset(tmp_path):
    """8 samples of 10 ms: without workers 80 ms a step, of which a thread of Paddle's hides some."""
    slow = "data:0:0.01"
    none = recorded(tmp_path / "none", slow, "Data.Train.loader.num_workers=0")
    two = recorded(tmp_path / "two", slow, "Data.Train.loader.num_workers=2")
    diff = ppprof.diff(none, two)
    first = own_changes(diff)[0]
    assert (first["name"], first["status"]) == ("Dataloader", "both")
    assert first["delta_self_ns"] < 0
    row = diff.overview.filter(metric="data_loading").row(0, named=True)
    assert row["baseline"] > 25 * MS
    assert row["delta"] < -0.3 * row["baseline"]
    assert diff.comparability.differences == ["Data.Train.loader.num_workers: 0 -> 2"]
    assert diff.change.verdict == "faster"


def test_the_same_again(baseline, tmp_path):
    # One pair in twenty may differ by chance; two in a row, one in four hundred.
    again = (recorded(tmp_path / name, "nothing") for name in ("once", "twice"))
    diffs = (ppprof.diff(baseline, run) for run in again)
    diff = next((diff for diff in diffs if diff.change.verdict == "no difference seen"), None)
    assert diff is not None
    assert diff.comparability.score == 1
    assert set(diff.operators["delta_calls"]) == {0}
    assert set(diff.modules["status"]) == {"both"}
