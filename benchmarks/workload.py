"""The model of the benchmarks: a small Transformer; a step of it records about 1,100 events."""

from __future__ import annotations

import paddle
from paddle import nn


class Workload:
    """A model, its optimizer and one batch; `step` trains on it."""

    def __init__(self, num_layers: int = 3, width: int = 32) -> None:
        paddle.seed(1)
        layers = [
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0) for _ in range(num_layers)
        ]
        self._model = nn.Sequential(nn.Embedding(100, width), *layers, nn.Linear(width, 100))
        self._optimizer = paddle.optimizer.AdamW(parameters=self._model.parameters())
        self._tokens = paddle.randint(0, 100, [4, 16])

    def step(self) -> None:
        """Run one training step."""
        logits = self._model(self._tokens).reshape([-1, 100])
        nn.functional.cross_entropy(logits, self._tokens.reshape([-1])).backward()
        self._optimizer.step()
        self._optimizer.clear_grad()
