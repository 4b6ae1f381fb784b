"""Runs whose operators do other work, or the same work at another rate."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.analysis.diff.diff import _dims, work_change
from ppprof.run.diff import compare
from tests.fixtures.run_directories import run
from tests.fixtures.timeline import Shapes, Span, Thread, span

US = 1000


def product(start: int, end: int, *shapes: list[int], dtype: str = "float32") -> Span:
    inputs = {f"X{place}": [shape] for place, shape in enumerate(shapes)}
    dtypes = {name: [dtype] for name in inputs}
    name = "matmul dygraph" if len(shapes) == 2 else "gelu dygraph"
    return span("Operator", name, start, end).around(Shapes(inputs, dtypes))


def made(
    folder: Path,
    lengths: int | list[int],
    *,
    product_us: int = 100,
    step_us: int = 999,
    dtype: str = "float32",
) -> Path:
    """Return a run of 8 steps: a product of (length, 64) and (64, 256) in some dtype, and two gelu in float32."""
    spans = []
    for number in range(8):
        length = lengths if isinstance(lengths, int) else lengths[number]
        at = number * (step_us + 1) * US
        jitter = number % 2 * US
        inside = (
            product(at, at + product_us * US + jitter, [length, 64], [64, 256], dtype=dtype),
            product(at + 500 * US, at + 520 * US, [length, 256]),
            product(at + 600 * US, at + 620 * US, [length, 256]),
        )
        spans.append(span("ProfileStep", f"ProfileStep#{number}", at, at + step_us * US, *inside))
    return run(folder, [Thread(1, "main", tuple(spans))])


def test_another_length_is_named(tmp_path: Path, cli) -> None:
    paths = [made(tmp_path / "one", 1024), made(tmp_path / "other", 1152)]
    change = work_change(ppprof.diff(*map(ppprof.open, paths)))
    assert change.flops_ratio == pytest.approx(1152 / 1024 - 1)
    assert change.dims == (1024, 1152, 2)
    assert change.slower is None
    out = cli("diff", *paths).out
    assert "Work: 12.5% more FLOPs per step; 1024 became 1152 in the inputs of 2 operators\n" in out


@pytest.mark.parametrize(("dtype", "says"), [("bfloat16", True), ("float32", False)])
def test_another_dtype_of_the_products_is_named(
    dtype: str, says: bool, tmp_path: Path, cli
) -> None:
    paths = [made(tmp_path / "one", 1024), made(tmp_path / "other", 1024, dtype=dtype)]
    out = cli("diff", *paths).out
    assert ("Dtype: most FLOPs are computed in bfloat16, before in float32\n" in out) == says
    document = json.loads(cli("diff", *paths, "--format", "json").out)
    assert document["work"]["dtypes"] == ({"from": "float32", "to": dtype} if says else None)


def test_batches_padded_to_their_longest_sample_are_no_other_work(tmp_path: Path, cli) -> None:
    """Lengths differ from step to step in both runs, the mean by 10%."""
    paths = [
        made(tmp_path / "one", [880, 1010, 960, 930, 1120, 850, 1040, 900]),
        made(tmp_path / "other", [1070, 990, 1150, 1020, 940, 1190, 1080, 1010]),
    ]
    change = work_change(ppprof.diff(*map(ppprof.open, paths)))
    assert (change.flops_ratio, change.dims) == (None, None)
    assert "Work:" not in cli("diff", *paths).out
    longer = made(tmp_path / "longer", [1880, 2010, 1960, 1930, 2120, 1850, 2040, 1900])
    change = work_change(ppprof.diff(*map(ppprof.open, [paths[0], longer])))
    assert change.flops_ratio == pytest.approx(8000 / 7690)
    assert change.dims is None


def test_a_slower_operator_of_equal_work_is_named(tmp_path: Path, cli) -> None:
    paths = [
        made(tmp_path / "one", 1024, product_us=300),
        made(tmp_path / "other", 1024, product_us=393, step_us=1092),
    ]
    diff = ppprof.diff(*map(ppprof.open, paths))
    change = work_change(diff)
    assert change.flops_ratio == 0
    assert change.dims is None
    name = "matmul [1024,64] [64,256]"
    assert change.slower == (name, pytest.approx(93 / 300.5))
    row = diff.operator_shapes.row(0, named=True)
    assert (row["name"], row["status"]) == (name, "both")
    assert row["baseline_flops"] == row["experiment_flops"] == 2 * 1024 * 64 * 256
    assert row["delta_time_ns"] == pytest.approx(93 * US)
    document = json.loads(cli("diff", *paths, "--format", "json").out)
    assert document["work"]["slower"]["name"] == name
    out = cli("diff", *paths, "--views", "shape").out
    assert f"Efficiency: {name} is 30.9% slower at equal work\n" in out
    assert "Operator shapes" in out
    out = cli("diff", *paths, "--views", "shape", "--format", "md").out
    assert f"\n- Efficiency: {name} is 30.9% slower at equal work\n" in out


@pytest.mark.parametrize(("step_us", "product_us"), [(999, 393), (1500, 393), (1092, 207)])
def test_an_operator_that_does_not_explain_the_step_is_not_named(
    tmp_path: Path, step_us: int, product_us: int
) -> None:
    """The same program differs so from process to process: steps are equal, four times as much longer, or longer by something else."""
    paths = [
        made(tmp_path / "one", 1024, product_us=300),
        made(tmp_path / "other", 1024, product_us=product_us, step_us=step_us),
    ]
    assert work_change(ppprof.diff(*map(ppprof.open, paths))).slower is None


def test_equal_runs_have_equal_work(tmp_path: Path) -> None:
    paths = [made(tmp_path / "one", 1024), made(tmp_path / "other", 1024)]
    assert work_change(ppprof.diff(*map(ppprof.open, paths))) == (0, None, None, None)


def test_without_shapes_nothing_is_said(tmp_path: Path) -> None:
    plain = span("Operator", "matmul dygraph", 0, 9)
    thread = Thread(1, "main", (span("ProfileStep", "ProfileStep#0", 0, 10, plain),))
    runs = [run(tmp_path / name, [thread]) for name in ("one", "other")]
    assert work_change(ppprof.diff(*map(ppprof.open, runs))) == (None, None, None, None)


def test_digits_of_an_operators_name_are_no_sizes() -> None:
    tables = []
    for name in ("conv2d", "conv3d"):
        rows = [f"{name} [4,8]", f"pool{name[-2:]} [4,8]"]
        tables.append(pl.DataFrame({"name": rows}))
    gone, new = (
        table.with_columns(status=pl.lit(status)) for table, status in zip(tables, ("gone", "new"))
    )
    assert _dims(pl.concat([gone, new])) is None


def test_thousands_of_shapes_take_no_longer_than_hundreds() -> None:
    names = [f"matmul [{length},64] [64,256]" for length in range(20_000)]
    status = ["gone", "new"] * 10_000
    assert _dims(pl.DataFrame({"name": names, "status": status})) is None


def test_gradients_that_one_run_knows_are_no_more_work(tmp_path: Path) -> None:
    paths = [made(tmp_path / "one", 1024), made(tmp_path / "other", 1152)]
    diff = ppprof.diff(*map(ppprof.open, paths))
    knows = dataclasses.replace(diff.experiment, has_forward_links=True)
    assert work_change(compare(diff.baseline, diff.experiment)).flops_ratio is not None
    assert work_change(compare(diff.baseline, knows)).flops_ratio is None
