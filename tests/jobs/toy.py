"""A small training, and what a raw capture of it holds."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Callable

import paddle
from paddle import nn

from tests.fixtures import paddle_proto


def training(width: int = 16, layers: int = 1) -> Callable[[], paddle.Tensor]:
    """One optimizer step of a transformer, to be called again and again; returns the loss."""
    paddle.seed(0)
    blocks = [nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0) for _ in range(layers)]
    net = nn.Sequential(nn.Embedding(50, width), *blocks, nn.Linear(width, 50))
    optimizer = paddle.optimizer.AdamW(parameters=net.parameters())
    tokens = paddle.arange(64).reshape([4, 16]) % 50

    def step() -> paddle.Tensor:
        loss = nn.functional.cross_entropy(net(tokens).reshape([-1, 50]), tokens.reshape([-1]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return loss

    return step


@contextmanager
def own_memory_only() -> Iterator[None]:
    """Within it, tensors that earlier tests left in reference cycles are not freed.

    Python's collector would free them at any time, in a recorded window too.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def recorded(path: Path) -> Counter[tuple[str, str]]:
    """How often a raw file has each (type, name) of host event and each type of memory event."""
    trees = paddle_proto.message_class("NodeTreesProto")()
    trees.ParseFromString(path.read_bytes())
    types = {number: name for name, number in paddle_proto.EVENT_TYPES.items()}
    memory_types = {number: name for name, number in paddle_proto.MEMORY_TYPES.items()}
    found: Counter[tuple[str, str]] = Counter()
    for tree in trees.thread_trees:
        for node in tree.host_nodes:
            found[types[node.host_trace_event.type], node.host_trace_event.name] += 1
            for memory in node.mem_nodes:
                found["memory", memory_types[memory.mem_event.type]] += 1
            found["op info", ""] += len(node.op_supplement_nodes)
    return found
