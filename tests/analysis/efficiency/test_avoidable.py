"""Updates of an embedding's table in trainings that really run: of all rows, or of those that occur."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ppprof
from ppprof.analysis.efficiency.avoidable import unused_rows
from ppprof.analysis.profile.profile import Profile
from ppprof.trace.formats import read

ROWS, NUM_IDS = 100_000, 64
OPTIMIZERS: dict[str, tuple[Callable[..., Any], bool]] = {
    "adam": (lambda optimizer, **given: optimizer.Adam(**given), True),
    "lazy": (lambda optimizer, **given: optimizer.Adam(lazy_mode=True, **given), False),
    "momentum": (lambda optimizer, **given: optimizer.Momentum(**given), True),
    "nesterov": (
        lambda optimizer, **given: optimizer.Momentum(use_nesterov=True, **given),
        True,
    ),
    "rmsprop": (lambda optimizer, **given: optimizer.RMSProp(**given), True),
    "sgd": (lambda optimizer, **given: optimizer.SGD(**given), False),
    "adagrad": (lambda optimizer, **given: optimizer.Adagrad(**given), False),
}
"""Each optimizer, and whether it updates all rows by a sparse gradient, as the times of its updates with 60,000 and with
1,000,000 rows show (Paddle 3.3)."""


@pytest.mark.paddle
@pytest.mark.parametrize(("make", "in_all_rows"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_sparse_gradient_updates_all_rows_or_those_that_occur(
    make: Callable[..., Any], in_all_rows: bool, tmp_path: Path
) -> None:
    paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    table = paddle.nn.Embedding(ROWS, 16, sparse=True)
    head = paddle.nn.Linear(16, 1)
    given = {"learning_rate": 0.01, "parameters": [*table.parameters(), *head.parameters()]}
    optimizer = make(paddle.optimizer, **given)
    config = {"enable": True, "scheduler": [1, 4], "record_shapes": True}
    with ppprof.attach({**config, "profiler_log": str(tmp_path / "log")}) as prof:
        for _ in range(4):
            head(table(paddle.randint(0, ROWS, [NUM_IDS]))).mean().backward()
            optimizer.step()
            optimizer.clear_grad()
            prof.step()
    (file,) = (tmp_path / "log").glob("*.paddle_trace.json")
    rows = unused_rows(Profile(read(file)))
    found = rows.filter("is_sparse")
    assert found.height == (3 if in_all_rows else 0)
    assert rows["saved_ns"].sum() == found["saved_ns"].sum()  # nothing else passes over all rows
    for name, time_ns, saved_ns in found.select("name", "time_ns", "saved_ns").rows():
        assert name.endswith(f"_ [{ROWS},16]")
        assert saved_ns == pytest.approx(time_ns * (1 - NUM_IDS / ROWS), abs=1)
    remedies = [each.facts["remedy"] for each in ppprof.advise(file) if each.rule == "unused-rows"]
    assert remedies == (["code-lazy"] if in_all_rows else [])
