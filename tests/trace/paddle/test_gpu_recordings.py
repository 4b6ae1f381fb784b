"""Recordings of a real GPU, an H100: tables as Paddle prints them, and times that the trainings measured themselves.

The folder's README says what they contain.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.run.run import Run

FOLDER = Path(__file__).parents[2] / "fixtures" / "paddle" / "h100"
STEPS = 3
NAMES = ["async", "bf16", "copies", "host", "loader", "reads", "static"]


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that unpacks a recording."""

    def unpack(name: str) -> Path:
        target = tmp_path / f"{name}.pb"
        target.write_bytes(lzma.decompress((FOLDER / f"{name}.pb.xz").read_bytes()))
        return target

    return unpack


def kernels(run: Run) -> pl.DataFrame:
    return run.events().filter(category="Kernel")


@pytest.mark.paddle
@pytest.mark.parametrize("name", NAMES)
def test_tables_equal_paddles(name: str, recorded: Callable[[str], Path]) -> None:
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    from tests.oracles import paddle_tables
    from tests.oracles.equal_tables import assert_equal

    path = recorded(name)
    theirs = paddle_tables.adopt(path)
    for settings in ({"sorted_by": "gpu_total"}, {"sorted_by": "cpu_total", "time_unit": "ns"}):
        assert_equal(ppprof.open(path).trace(), theirs.text(**settings), settings)


@pytest.mark.parametrize(("name", "step_ms"), [("async", 16.78), ("bf16", 7.23)])
def test_five_products_take_as_long_as_a_step_that_waits_for_them(
    name: str, step_ms: float, recorded: Callable[[str], Path]
) -> None:
    found = kernels(ppprof.open(recorded(name)))
    assert found.height == 5 * STEPS
    assert found["dur_ns"].sum() / STEPS / 1e6 == pytest.approx(step_ms, rel=0.06)


def test_copies_know_whether_their_memory_is_pinned(recorded: Callable[[str], Path]) -> None:
    run = ppprof.open(recorded("copies"))
    copies = run.events().filter(category="Memcpy")
    source = copies["attributes"].cast(pl.String).str.json_path_match("$.source")
    times = copies.group_by(source=source).agg(pl.len(), pl.col("dur_ns").mean()).sort("source")
    assert times["source"].to_list() == ["Pageable", "Pinned"]
    assert times["len"].to_list() == [STEPS, STEPS]
    pageable_ns, pinned_ns = times["dur_ns"]
    assert pageable_ns / 1e6 == pytest.approx(8.12, rel=0.06)
    assert pinned_ns / 1e6 == pytest.approx(1.49, rel=0.15)
    first = ppprof.advise(run)[0]
    assert first.rule == "pageable-copies"


def test_the_host_that_computes_is_what_the_device_waits_for(
    recorded: Callable[[str], Path],
) -> None:
    run = ppprof.open(recorded("host"))
    first = ppprof.advise(run)[0]
    assert first.rule == "host-bound"
    idle_ns = run.cluster().steps["host_bound_ns"].min()
    assert idle_ns >= 8e6
    assert kernels(run)["dur_ns"].sum() / STEPS / 1e6 < 0.98


@pytest.mark.parametrize("name", NAMES)
def test_each_kernel_begins_after_its_launch(name: str, recorded: Callable[[str], Path]) -> None:
    path = recorded(name)
    events = ppprof.open(path).events()
    launches = events.filter(category="CudaRuntime").select("correlation_id", launch="start_ns")
    found = kernels(ppprof.open(path)).join(launches, on="correlation_id")
    assert found.height == kernels(ppprof.open(path)).height > 0
    assert (found["start_ns"] >= found["launch"]).all()


def test_a_read_costs_its_copy_and_the_idle_time_after_it(recorded: Callable[[str], Path]) -> None:
    """Without the 20 reads, the products of a step take 0.34 ms."""
    first = ppprof.advise(ppprof.open(recorded("reads")))[0]
    assert first.rule == "blocking-copies"
    assert first.share > 0.8


def test_names_of_calls_have_no_version(recorded: Callable[[str], Path]) -> None:
    for finding in ppprof.advise(ppprof.open(recorded("reads"))):
        assert "_v3020" not in str(finding)
