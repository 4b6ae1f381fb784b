"""A change that was planted is found, by name and size, and the rest is quiet: real trainings."""

from __future__ import annotations

import itertools

import polars as pl
import pytest

import ppprof
from ppprof.report.diff_rows import RowSelection, select_rows
from tests.jobs.planted import SLEEP_MS

MS = 1_000_000


def own_changes(diff):
    """Modules by how much they changed themselves, the biggest first."""
    by = pl.col("delta_self_ns").abs()
    return diff.modules.filter(pl.col("depth") > 0).sort(by, descending=True).rows(named=True)


def test_a_slow_layer(planted_run):
    diff = ppprof.diff(planted_run("nothing"), planted_run("slow_layer"))
    first, second, *_ = own_changes(diff)
    assert (first["name"], first["is_clear"]) == ("Block", True)
    assert first["delta_self_ns"] == pytest.approx(SLEEP_MS * MS, rel=0.1)
    assert abs(second["delta_self_ns"]) < 0.5 * SLEEP_MS * MS
    blocks = diff.modules.filter(name="Block")["delta_self_ns"].to_list()
    assert blocks.index(max(blocks)) == 1
    assert diff.change.verdict == "slower"
    # No operator sleeps.
    shown = select_rows(diff, RowSelection(views=("op",), min_delta_ns=0.5 * SLEEP_MS * MS))
    assert shown["op"].is_empty()


def test_a_swapped_operator(planted_run):
    diff = ppprof.diff(planted_run("nothing"), planted_run("other_operator"))
    changed = diff.operators.filter(pl.col("status") != "both")
    assert dict(changed.select("name", "status").rows()) == {
        "gelu": "gone", "Global_GeluGradNode": "gone",
        "relu": "new", "Global_ReluGradNode": "new",
    }  # fmt: skip
    assert set(changed.select(pl.col("delta_calls").abs()).to_series()) == {2}  # one a layer
    others = diff.operators.filter(status="both")
    assert set(others["delta_calls"]) == {0}
    assert "gelu" in select_rows(diff, RowSelection(views=("op",)))["op"]["name"]


def test_an_added_layer(planted_run):
    diff = ppprof.diff(planted_run("nothing"), planted_run("added_layer"))
    new = diff.modules.filter(status="new")
    assert new["name"].to_list()[0] == "Block"
    assert new["depth"].to_list().count(new["depth"][0]) == 1
    assert diff.modules.filter(status="gone").is_empty()
    assert diff.comparability.differences == ["Model.num_layers: 2 -> 3"]
    assert diff.operators.filter(name="matmul")["delta_calls"].item() > 0
    assert diff.change.ratio > 0


def test_workers_for_a_slow_dataset(planted_run):
    """8 samples a step, of 20 ms each: without workers 160 ms, of which a thread of Paddle's hides some.

    The committed runs have 10 ms a sample, which a machine that computes for longer hides.
    """
    names = ("dataset_without_workers", "dataset_with_workers")
    diff = ppprof.diff(*map(planted_run, names))
    first = own_changes(diff)[0]
    assert (first["name"], first["status"]) == ("Dataloader", "both")
    assert first["delta_self_ns"] < 0
    row = diff.overview.filter(metric="data_loading").row(0, named=True)
    assert row["baseline"] > 25 * MS
    assert row["delta"] < -0.3 * row["baseline"]
    assert diff.comparability.differences == ["Data.Train.loader.num_workers: 0 -> 2"]
    assert diff.change.verdict == "faster"


def test_the_same_again(planted_run):
    # One pair in twenty may differ by chance; and the machine may be busier during one of the runs.
    runs = map(planted_run, ("nothing", "nothing_again", "nothing_once_more"))
    diffs = (ppprof.diff(*pair) for pair in itertools.combinations(runs, 2))
    diff = next((diff for diff in diffs if diff.change.verdict not in ("faster", "slower")), None)
    assert diff is not None
    assert diff.comparability.score == 1
    assert set(diff.operators["delta_calls"]) == {0}
    assert set(diff.modules["status"]) == {"both"}
