"""The hooks of the Trainers, called as a Trainer calls them; the real ones: tests/jobs/test_trainers.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ppprof.integrations import callback
from ppprof.integrations.callback import TrainerHooks


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
    monkeypatch.setattr(callback, "attach", lambda profiler: session)
    hooks = TrainerHooks({"enable": True})
    args: Any = SimpleNamespace(gradient_accumulation_steps=4, per_device_train_batch_size=2)
    control: Any = SimpleNamespace(
        should_training_stop=False, should_evaluate=False, should_save=False
    )
    hooks.on_train_begin(args, None, control)
    ends = []
    for _ in range(2):
        hooks.on_step_end(args, None, control)
        ends.append(control.should_training_stop)
    hooks.on_train_end(args, None, control)
    assert ends == [False, True]
    assert session.calls == [{"num_samples": 8, "num_micro_batches": 4}] * 2 + ["closed"]
