"""A real CPU capture, with the tables that Paddle prints from the live result.

Run as ``python -m tests.oracles.capture_cpu DIR`` in a process of its own: only one profiler can
exist in a process. Leaves ``capture.pb``, Paddle's ``capture.json`` and ``tables.json``, a list of
[settings, text]. The first holds the newer event types, which Paddle cannot load again: that is why
its tables are taken live.
"""

from __future__ import annotations

import json
import sys
import threading
from itertools import product
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.base import core
from paddle.profiler import Profiler, RecordEvent

from tests.oracles import paddle_tables

SETTINGS = [
    {"sorted_by": by, "time_unit": unit, "op_detail": detail, "thread_sep": not detail}
    for by, unit, detail in product(
        paddle_tables.SORTED_BY, paddle_tables.TIME_UNITS, (True, False)
    )
]


class _Tokens(paddle.io.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> np.ndarray:
        return np.arange(at, at + 16, dtype="int64") % 50


class _Net(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        return self.head(self.block(self.embedding(tokens)))


def capture(directory: Path) -> None:
    """Three steps of a small network, a second thread and hand-made spans beside it."""
    paddle.seed(0)
    net = _Net()
    optimizer = paddle.optimizer.AdamW(parameters=net.parameters())
    loader = paddle.io.DataLoader(_Tokens(), batch_size=4, num_workers=0)
    profiler = Profiler(
        scheduler=(1, 4),
        on_trace_ready=lambda p: [
            p.export(str(directory / f"capture.{form}"), form) for form in ("pb", "json")
        ],
        profile_memory=True,
    )
    profiler.start()
    for tokens, _ in zip(loader, range(5)):
        logits = net(tokens)  # in no span of ours: VisualDL wants Forward directly under the step
        with RecordEvent("mine"):
            loss = nn.functional.cross_entropy(logits, tokens)
        with RecordEvent('quoted "memcpy" \\'):
            loss.item()
        loss.backward()
        # The public RecordEvent refuses this type.
        core._RecordEvent("all_reduce", core.TracerEventType.Communication).end()
        optimizer.step()
        optimizer.clear_grad()
        other = threading.Thread(target=lambda: paddle.ones([8]) + 1)
        other.start()
        other.join()
        profiler.step()
    result = profiler.profiler_result
    tables = paddle_tables.live(result)
    pairs = [(settings, tables.text(**settings)) for settings in SETTINGS]
    (directory / "tables.json").write_text(json.dumps(pairs), encoding="utf-8")
    profiler.stop()


if __name__ == "__main__":
    capture(Path(sys.argv[1]))
