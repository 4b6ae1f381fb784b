"""What a rank writes when its memory runs out, against a count of the tensors by hand."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

import ppprof
from ppprof.rundir.out_of_memory import read_out_of_memory

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

HUGE = 1 << 44


class Block(paddle.nn.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(32, 32)
        self.norm = paddle.nn.LayerNorm(32)
        self.register_buffer("mask", paddle.ones([64]))
        self.grows = False

    def forward(self, x: Any) -> Any:
        hidden = self.linear(x)
        if self.grows:
            paddle.ones([HUGE])
        return self.norm(hidden)


def train(run: Path, fails: bool = True) -> None:
    gc.collect()  # models of other tests
    net = paddle.nn.Sequential(Block(), Block())
    net.head = net[0].linear.weight  # tied: it counts once
    adam = paddle.optimizer.Adam(parameters=net.parameters())
    with ppprof.attach({"enable": True, "scheduler": [50, 51], "profiler_log": str(run)}) as prof:
        for step in range(4):
            batch = paddle.ones([8, 32])
            net[1].grows = fails and step == 3
            net(batch).sum().backward()
            adam.step()
            prof.step()


def test_what_is_held_is_counted_by_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(MemoryError):
        train(tmp_path / "log")
    assert "the memory ran out; who held it: ppprof memory" in caplog.text
    found, problems = read_out_of_memory(tmp_path / "log")
    assert problems == []
    (rank,) = found.values()
    weights = 2 * (32 * 32 + 32 + 32 + 32) * 4  # weight, bias, scale and shift of float32
    assert rank.bytes_by_kind["parameter"] == weights
    assert rank.bytes_by_kind["gradient"] == weights  # not cleared
    # Two moments of each parameter, and two numbers for their powers.
    assert rank.bytes_by_kind["optimizer state"] == 2 * weights + 8 * 2 * 4
    assert rank.bytes_by_kind["buffer"] == 2 * 64 * 4
    assert rank.bytes_by_kind["local variable"] >= 2 * 8 * 32 * 4  # batch, hidden and x
    assert rank.requested_bytes == HUGE * 4
    assert (rank.rank, rank.step, rank.module) == (0, 3, "1 (Block)")
    assert "test_out_of_memory.py:" in rank.place
    assert rank.place.endswith(" forward")
    assert "ResourceExhausted" in rank.error
    assert rank.allocated_bytes is not None
    assert sum(rank.bytes_by_kind.values()) <= rank.allocated_bytes
    names = {tensor.name for tensor in rank.largest}
    assert "Sequential.head" in names, "the first name of a tied weight"
    assert any(name.startswith("Sequential.1.linear.weight: moment1") for name in names)


def test_other_endings_write_nothing(tmp_path: Path) -> None:
    train(tmp_path / "log", fails=False)
    assert read_out_of_memory(tmp_path / "log") == ({}, [])
