"""A window of a real training, cut into segments and in one piece: the same tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import ppprof
from ppprof import rundir
from ppprof.choices import VIEWS
from ppprof.rundir.operator_calls import read_operator_calls
from ppprof.rundir.run_file import RunFile
from ppprof.trace import operator_inputs

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from ppprof.capture import postprocess  # noqa: E402
from ppprof.capture.recording import segments  # noqa: E402
from tests.capture.fake_helper import NO_TRACES  # noqa: E402
from tests.jobs import toy  # noqa: E402

STEPS = 12
_MEASURED = ("_ns", "ratio", "_share", "efficiency", "_per_s", "utilization", "peak_")
"""Parts of the names of columns that differ from run to run: peaks are those of the whole process."""


def wasteful_training() -> Callable[[], Any]:
    """One step of two networks that are trained in turn, with work that the first step of a window shows to be for nothing."""
    paddle.seed(0)
    nn = paddle.nn
    generator, judge = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizers = [paddle.optimizer.SGD(parameters=net.parameters()) for net in (generator, judge)]
    noise = paddle.ones([4, 8])

    def step() -> Any:
        sample = generator(noise)
        again = generator(noise)  # computed again
        optimizers[1].clear_grad()
        judge(sample.detach()).mean().backward()
        optimizers[1].step()
        optimizers[0].clear_grad()
        penalty = again.square().mean()
        loss = judge(sample).mean() + 0.0 * penalty  # its gradients of the judge are cleared
        loss.backward()
        optimizers[0].step()
        return loss

    return step


def record(
    log: Path,
    operators: int,
    monkeypatch: pytest.MonkeyPatch,
    training: Callable[[], Callable[[], Any]] = toy.training,
) -> tuple[Any, list[rundir.TraceName]]:
    """Record a training whose segments end after so many operators."""
    monkeypatch.setattr(postprocess, "_COMMAND", NO_TRACES)
    monkeypatch.setattr(segments, "_FIRST_OPERATORS", operators)
    monkeypatch.setattr(segments, "STALL_SECONDS", 0.001 if operators < 1000 else 1e6)
    step = training()
    step()
    block = {"enable": True, "scheduler": [2, 2 + STEPS], "python_stacks": False}
    with toy.own_memory_only(), ppprof.attach({**block, "profiler_log": str(log)}) as prof:
        for _ in range(STEPS + 3):
            step()
            prof.step()
    return ppprof.open(log), [name for name, _ in rundir.raw_files(log)]


def counted(table: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that do not depend on the machine's speed, with rows in one order."""
    kept = [name for name in table.columns if not any(part in name for part in _MEASURED)]
    plain = table.select(pl.col(kept)).with_columns(pl.col(pl.Categorical).cast(pl.String))
    return plain.sort(pl.all())


def shapes(run: Any) -> pl.DataFrame:
    """Return each event of a step with its step, parent, operator whose gradient it is, shapes, attributes and line, in any order."""
    events = run.events().with_columns(pl.col(pl.Categorical).cast(pl.String))
    names = events.select(of="name").with_row_index("row")
    joined = events
    for link in ("parent", "forward"):
        others = names.select(
            **{link: pl.col("row").cast(events[link].dtype), f"{link}_name": "of"}
        )
        joined = joined.join(others, on=link, how="left")
    columns = (
        *("name", "category", "step", "depth", "shapes", "dtypes", "parent_name"),
        *("forward_name", "attributes", "callstack"),
    )
    return joined.filter(pl.col("step").is_not_null()).select(columns).sort(pl.all())


def test_a_window_in_segments_has_the_tables_of_the_window_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, (_,) = record(tmp_path / "whole", 10**9, monkeypatch)
    cut, names = record(tmp_path / "cut", 100, monkeypatch)
    assert len(names) > 3
    assert [name.segment for name in names] == list(range(len(names)))
    assert_frame_equal(shapes(cut), shapes(whole))
    for view in VIEWS:
        expected, found = counted(whole.summary(view)), counted(cut.summary(view))
        assert_frame_equal(found, expected)
        assert (expected.height > 0) == (view not in ("kernel", "memcpy", "dist", "udf"))


def test_what_the_windows_first_step_shows_is_known_in_all_its_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that step is examined, which makes it slower."""
    whole, _ = record(tmp_path / "whole", 10**9, monkeypatch, wasteful_training)
    cut, names = record(tmp_path / "cut", 100, monkeypatch, wasteful_training)
    assert len(names) > 3
    expected = shapes(whole)
    assert_frame_equal(shapes(cut), expected)
    texts = "".join(expected["attributes"].drop_nulls())
    for name in (operator_inputs.REPEATED, operator_inputs.CLEARED, operator_inputs.MULTIPLIED):
        assert name in texts
    first = [
        read_operator_calls(RunFile(tmp_path / "cut", name.operator_calls)).calls[0].tolist()
        for name in names
    ]
    assert all(call == first[0] for call in first)
