"""Trains the net of tests/fixtures/small_net.py with Paddle, three steps recorded."""

from __future__ import annotations

import paddle
from paddle import nn
from paddle.nn import functional as F

import ppprof
from tests.fixtures import small_net


def main() -> None:
    """Train."""
    net = small_net.make(nn, nn.Layer, nn.LayerList, F.gelu)
    optimizer = paddle.optimizer.AdamW(parameters=net.parameters())
    tokens = paddle.randint(0, small_net.WORDS, (4, 16))
    block = {"enable": True, "scheduler": [3, 6], "formats": ["json.gz"]}
    with ppprof.attach(block) as prof:
        for _ in range(7):
            logits = net(tokens).reshape([-1, small_net.WORDS])
            loss = F.cross_entropy(logits, tokens.reshape([-1]))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            prof.step(num_samples=4)


if __name__ == "__main__":
    main()
