"""The hooks of the Trainers, called as a Trainer calls them; the real ones: tests/jobs/test_trainers.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ppprof.integrations import callback
from ppprof.integrations.callback import TrainerHooks, _tokens_and_flops, flops_of_token


class RecordingSession:
    """Notes what it is asked to do, and is over after two steps."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    @property
    def should_stop(self) -> bool:
        return len(self.calls) >= 2

    def step(self, **counts: int) -> None:
        self.calls.append(counts)

    def __exit__(self, *_: object) -> None:
        self.calls.append("closed")


def test_a_step_counts_its_samples_and_the_last_window_ends_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = RecordingSession()
    monkeypatch.setattr(callback, "attach", lambda profiler, first_step: session)
    hooks = TrainerHooks({"enable": True})
    args: Any = SimpleNamespace(gradient_accumulation_steps=4, per_device_train_batch_size=2)
    control: Any = SimpleNamespace(
        should_training_stop=False, should_evaluate=False, should_save=False
    )
    hooks.on_train_begin(args, None, control)
    ends = []
    for _ in range(2):
        hooks.on_step_end(args, None, control)
        hooks.on_log(args, None, control, logs={"loss": 2.5})
        ends.append(control.should_training_stop)
    hooks.on_train_end(args, None, control)
    assert ends == [False, True]
    counts = {"num_samples": 8, "num_micro_batches": 4, "num_tokens": None, "num_flops": None}
    assert session.calls == [{**counts, "loss": None}, {**counts, "loss": 2.5}, "closed"]


def test_an_evaluation_logs_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    session = RecordingSession()
    monkeypatch.setattr(callback, "attach", lambda profiler, first_step: session)
    hooks = TrainerHooks({"enable": True})
    args: Any = SimpleNamespace(gradient_accumulation_steps=1, per_device_train_batch_size=1)
    control: Any = SimpleNamespace(should_evaluate=False, should_save=False)
    hooks.on_train_begin(args, None, control)
    hooks.on_log(args, None, control, logs={"loss": 2.5})
    hooks.on_log(args, None, control, logs={"eval_loss": 3.5})
    for _ in range(2):
        hooks.on_step_end(args, None, control)
    losses = [each["loss"] for each in session.calls if isinstance(each, dict)]
    assert losses == [2.5, None]


def test_evaluations_of_several_data_sets_are_no_step_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PaddleNLP calls them for ``eval_dataset={"a": ..., "b": ...}``, with a checkpoint after them."""
    pauses: list[str] = []

    @contextmanager
    def paused(what: str) -> Iterator[None]:
        pauses.append(what)
        yield
        pauses.append("resumed")

    session = SimpleNamespace(paused=paused, step=lambda **_: None, should_stop=False)
    monkeypatch.setattr(callback, "attach", lambda profiler, first_step: session)
    hooks = TrainerHooks({"enable": True})
    args: Any = SimpleNamespace(gradient_accumulation_steps=1, per_device_train_batch_size=1)
    control: Any = SimpleNamespace(should_evaluate=True, should_save=True)
    hooks.on_train_begin(args, None, control)
    hooks.on_step_end(args, None, control)
    for _ in ("a", "b"):
        for _ in range(3):
            hooks.on_prediction_step(args, None, control)
        hooks.on_evaluate(args, None, control)
    hooks.on_save(args, None, control)
    in_order = ["evaluation", "resumed", "checkpoint", "resumed"]
    assert pauses == 2 * in_order


class Ids:
    def __init__(self, *shape: int) -> None:
        self.shape = list(shape)


def test_tokens_are_those_of_the_steps_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed training loads two micro-batches that it has trained already, and then skips them."""
    session = RecordingSession()
    monkeypatch.setattr(callback, "attach", lambda profiler, first_step: session)
    hooks = TrainerHooks({"enable": True})
    args: Any = SimpleNamespace(gradient_accumulation_steps=2, per_device_train_batch_size=2)
    control: Any = SimpleNamespace(should_evaluate=False, should_save=False)
    hooks.on_train_begin(args, None, control)
    for length in (100, 100, 16, 24):
        hooks.on_load_data_end(args, None, control, inputs={"input_ids": Ids(2, length)})
        if length == 16:
            hooks.on_step_begin(args, None, control)
    hooks.on_step_end(args, None, control)
    hooks.on_load_data_end(args, None, control, inputs=[Ids(2, 16)])
    hooks.on_step_begin(args, None, control)
    hooks.on_step_end(args, None, control)
    assert [call["num_tokens"] for call in session.calls[:2]] == [80, None]  # type: ignore[index]


@pytest.mark.parametrize("name", ["sep_parallel_degree", "context_parallel_size"])
def test_tokens_are_unknown_if_each_rank_has_a_part_of_a_sample(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    session = RecordingSession()
    monkeypatch.setattr(callback, "attach", lambda profiler, first_step: session)
    hooks = TrainerHooks({"enable": True})
    control: Any = SimpleNamespace(should_evaluate=False, should_save=False)
    for degree in (2, -1):
        args: Any = SimpleNamespace(
            gradient_accumulation_steps=1, per_device_train_batch_size=2, **{name: degree}
        )
        hooks.on_train_begin(args, None, control)
        hooks.on_load_data_end(args, None, control, inputs={"input_ids": Ids(2, 12)})
        hooks.on_step_end(args, None, control)
    assert [call["num_tokens"] for call in session.calls if call != "closed"] == [None, 24]  # type: ignore[index]


@pytest.mark.paddle
def test_flops_are_those_of_the_reference_model() -> None:
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    from paddle import nn

    hidden, inner, words, blocks, length = 16, 40, 64, 3, 8

    class SelfAttention(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    class Decoder(nn.Layer):
        config = SimpleNamespace(hidden_size=hidden)

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(words, hidden)
            self.attentions = nn.LayerList([SelfAttention() for _ in range(blocks)])
            self.up = nn.LayerList([nn.Linear(hidden, inner) for _ in range(blocks)])
            self.down = nn.LayerList([nn.Linear(inner, hidden) for _ in range(blocks)])
            self.head = nn.Linear(hidden, words)

    from ppprof.config import ModelConfig
    from ppprof.train.model import rank_flops

    sizes = ModelConfig(hidden_size=hidden, ffn_hidden_size=inner, vocab_size=words)
    model = Decoder()
    true = rank_flops(sizes, 1, length, num_blocks=blocks, has_logits=True)
    assert flops_of_token(model, length) == true
    inputs = {"input_ids": Ids(2, length)}
    for name in ("tensor_parallel_degree", "tensor_model_parallel_size"):
        counts = _tokens_and_flops(SimpleNamespace(**{name: 2}), model, inputs, {})
        attentions = 3 * 4 * length * hidden * blocks  # their heads are split over two ranks
        assert counts == (2 * length, 2 * length * (true - attentions // 2))
    model.up[0].weight.stop_gradient = True
    assert flops_of_token(model, length) == 0
    assert flops_of_token(nn.Linear(2, 2), length) == 0  # no config: sizes are unknown


SPLIT = """
import paddle
import paddle.distributed as dist
from types import SimpleNamespace
from paddle import nn
from ppprof.integrations.callback import _tokens_and_flops

def shards(tensor, mesh, split):
    places = [dist.Shard(split[axis]) if axis in split else dist.Replicate() for axis in AXES]
    return dist.shard_tensor(tensor, mesh, places)

class Attention(nn.Layer):
    def __init__(self, mesh):
        super().__init__()
        self.qkv = nn.Linear(16, 48, bias_attr=False)
        self.qkv.weight = shards(self.qkv.weight, mesh, {"mp": 1, "dp": 0})  # sharding stage 3 over dp

AXES = ["dp", "mp"]
here, there = (
    dist.ProcessMesh([[rank, rank + 1], [rank + 2, rank + 3]], dim_names=AXES) for rank in (0, 4)
)
model = nn.Sequential(*map(Attention, (here, here, there)))
model.config = SimpleNamespace(hidden_size=16)
ids = shards(paddle.ones([4, 8], "int64"), here, {"dp": 0})
args = SimpleNamespace(tensor_parallel_degree=2)
print(*_tokens_and_flops(args, model, {"input_ids": ids}, {}))
"""


def test_a_rank_of_a_semi_automatic_training_counts_what_it_computes() -> None:
    """Its tensors have the shapes of the whole job: half of the samples, of two of three layers, half of each."""
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    printed = subprocess.run([sys.executable, "-c", SPLIT], check=True, capture_output=True).stdout
    num_tokens = 4 // 2 * 8
    of_token = 3 * 2 * (2 * 16 * 48 // 2 + 4 * 8 * 16 // 2)
    assert printed.split() == [b"%d" % num_tokens, b"%d" % (num_tokens * of_token)]
