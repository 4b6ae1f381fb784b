"""The session of a script, from its first optimizer to its end; in real scripts: tests/jobs."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from ppprof.config import ProfilerConfig
from ppprof.integrations import script
from ppprof.integrations.callback import TrainerHooks

pytestmark = pytest.mark.paddle


class RecordingSession:
    """Notes what it is asked to do, and is over after two steps."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    @property
    def should_stop(self) -> bool:
        return len(self.calls) >= 2

    def step(self, **counts: object) -> None:
        self.calls.append(counts.get("num_tokens", "step"))

    def __exit__(self, kind: object, error: object, _: object) -> None:
        self.calls.append(f"closed {error!r}")


class StepRange:
    """Optimizers that step when a test says so."""

    num_optimizers = 2
    has_served = begins_in_step = False

    def __init__(self, begin, step, number, at_creation) -> None:
        self.begin, self.step, self.is_closed = begin, step, False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> RecordingSession:
    made = RecordingSession()
    monkeypatch.delenv("PADDLE_TRAINERS_NUM", raising=False)
    monkeypatch.setattr(script, "OptimizerSteps", StepRange)
    monkeypatch.setattr(script, "attach", lambda profiler, config, first_step: made)
    return made


@pytest.fixture
def watched(session: RecordingSession) -> Iterator[script._ScriptSession]:
    watched = script._ScriptSession(ProfilerConfig.from_mapping({"enable": True}), {}, 1)
    yield watched
    atexit.unregister(watched.close)


def test_each_step_is_one_and_after_the_last_window_the_script_ends(session, watched):
    assert watched._steps.begin()
    watched._steps.step()
    with pytest.raises(SystemExit) as ended:
        watched._steps.step()
    assert ended.value.code == 0
    watched.exit_code = ended.value.code
    watched.close()
    assert watched._steps.is_closed
    assert session.calls == ["step", "step", "closed None"]


def test_a_thread_that_trains_says_that_it_ends_alone(session, watched, caplog):
    """Python ends a thread without a message, and the main thread may wait for what it computes."""
    watched._steps.begin()
    watched._steps.step()
    caplog.set_level("INFO", logger="ppprof")
    with ThreadPoolExecutor(1, "learner") as threads, pytest.raises(SystemExit):
        threads.submit(watched._steps.step).result()
    assert caplog.messages == [
        "stop_training: the last window has closed, so learner_0, the thread that trains, ends here; "
        "the script ends when its main thread does"
    ]


def test_an_error_of_the_script_is_the_sessions_too(session, watched, monkeypatch):
    watched._steps.begin()
    monkeypatch.setattr(sys, "last_value", ValueError("loss is nan"), raising=False)
    watched.close()
    watched.exit_code = 7
    watched.close()
    assert session.calls == ["closed ValueError('loss is nan')", "closed SystemExit(7)"]


@pytest.mark.parametrize(
    ("by_rpc", "page"), [(False, "page.html"), (True, "rank_1_page.html")], ids=["ranks", "rpc"]
)
def test_a_later_run_of_several_ranks_has_its_page_where_it_is_wanted(
    by_rpc, page, monkeypatch, session, watched, tmp_path
):
    """Processes that work by rpc alone may each write one, so their pages have other names."""
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    monkeypatch.setattr(script, "is_initialized", lambda: not by_rpc)
    monkeypatch.setattr(script, "is_alone", lambda: by_rpc)
    monkeypatch.setattr(StepRange, "begins_in_step", True)
    commands = []
    monkeypatch.setattr(script.subprocess, "run", lambda command, **_: commands.append(command))
    assert watched._steps.begin()
    watched._run = watched._log / "run_002"
    watched._write_page(str(tmp_path / "page.html"))
    assert [Path(command[command.index("-o") + 1]).name for command in commands] == [page]


def test_of_several_ranks_none_begins_before_the_job_is_initialised(monkeypatch, session, watched):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    assert not watched._steps.begin()
    watched.close()
    assert session.calls == []


@pytest.mark.parametrize(
    ("num", "stepped"),
    [(0, "no optimizer stepped"), (1, "1 optimizer stepped"), (2, "2 optimizers stepped")],
)
def test_a_script_whose_optimizer_never_steps_is_a_warning(session, watched, caplog, num, stepped):
    watched._steps.begin()
    watched._steps.num_optimizers = num
    watched.close()
    assert f"no training step was detected: {stepped} in this process" in caplog.text


def test_what_a_signal_handler_raises_meanwhile_reaches_the_script(monkeypatch, watched):
    def attach(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(5)

    class Preempted(Exception):
        pass

    def handle(*_: object) -> None:
        raise Preempted

    monkeypatch.setattr(script, "attach", attach)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(Preempted):
            watched._steps.begin()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_script_that_records_itself_and_steps_no_optimizer_is_no_warning(
    monkeypatch, session, watched, caplog
):
    monkeypatch.setattr(script, "was_attached", lambda: True)
    watched.close()
    assert caplog.text == ""


def test_a_block_that_is_off_watches_nothing(session):
    watched = script._ScriptSession(ProfilerConfig.from_mapping({"enable": False}), {}, 1)
    watched.close()
    assert session.calls == []


def test_the_help_says_what_each_option_takes(capsys):
    with pytest.raises(SystemExit) as ended:
        script._parser().parse_args(["--help"])
    assert ended.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    for text in (  # Python 3.13 writes the names before them in another way
        "CFG YAML with the block",
        "K=V set a key, such as Profiler.enable=True; repeatable",
        'TEXT options as in PaddleClas, PaddleOCR and PaddleDetection: "batch_range=[50, 60]; ..."',
        "N with several optimizers, a training step ends with the N-th that steps (default: 1)",
    ):
        assert text in printed


def test_a_session_of_the_script_replaces_this_one(session, watched, monkeypatch):
    monkeypatch.setattr(script, "is_attached", lambda: True)
    block = ProfilerConfig.from_mapping({"enable": True})
    yielding = script._ScriptSession(block, {}, 1, yields=True)
    assert yielding._steps.begin()
    yielding._steps.step()
    yielding.close()
    assert session.calls == []
    assert watched._steps.begin()
    watched._steps.step()
    assert session.calls == ["step"]


def test_a_session_of_the_script_ends_it_under_bench(session, monkeypatch, caplog):
    monkeypatch.setattr(script, "is_attached", lambda: True)
    monkeypatch.setenv("PPPROF_BENCH", "1")
    block = ProfilerConfig.from_mapping({"enable": True})
    yielding = script._ScriptSession(block, {}, 1, yields=True)
    with pytest.raises(SystemExit) as ended:
        yielding._steps.begin()
    assert ended.value.code == 2
    yielding.close()
    assert "the script calls ppprof.attach() itself" in caplog.messages[-1]
    assert "-o Profiler.enable=False" in caplog.messages[-1]
    assert session.calls == []


class Trainer:
    """A Trainer that resumes after its step 4, and trains one step of 24 tokens."""

    def __init__(self, *callbacks: object) -> None:
        self.callback_handler = SimpleNamespace(callbacks=list(callbacks))

    def add_callback(self, callback: object) -> None:
        self.callback_handler.callbacks.append(callback)

    def train(self) -> None:
        args = SimpleNamespace(gradient_accumulation_steps=1, per_device_train_batch_size=2)
        control = SimpleNamespace(should_evaluate=False, should_save=False)
        state = SimpleNamespace(global_step=4)
        inputs = {"input_ids": np.zeros((2, 12))}
        for callback in self.callback_handler.callbacks:
            callback.on_train_begin(args, state, control)
            callback.on_load_data_end(args, state, control, inputs=inputs)
            callback.on_step_begin(args, state, control)
            callback.on_step_end(args, state, control)
            callback.on_train_end(args, state, control)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> type[Trainer]:
    """The class in its package, imported when a watched script begins."""
    made = type("Trainer", (Trainer,), {"train": Trainer.train})
    name = "ppprof.integrations.paddlenlp"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(PpprofCallback=TrainerHooks))
    monkeypatch.setitem(sys.modules, "paddlenlp.trainer.trainer", SimpleNamespace(Trainer=made))
    return made


def test_hooks_of_a_trainer_end_its_steps(monkeypatch, session, trainer, caplog):
    first_steps = []

    def attach(profiler: object, config: object, first_step: int) -> RecordingSession:
        first_steps.append(first_step)
        return session

    monkeypatch.setattr(script, "attach", attach)
    watched = script._ScriptSession(ProfilerConfig.from_mapping({"enable": True}), {}, 1)
    for _ in range(2):
        trainer().train()
    watched.close()
    assert watched._steps.is_closed
    assert first_steps == [4, 4]
    assert session.calls[:4] == [24, "closed None"] * 2
    assert caplog.text == ""


def test_a_trainer_with_its_own_hooks_and_one_that_trains_already_get_no_others(
    session, trainer, caplog
):
    caplog.set_level("INFO", "ppprof")
    watched = script._ScriptSession(ProfilerConfig.from_mapping({"enable": True}), {}, 1)
    trainer(TrainerHooks({"enable": False})).train()
    watched._steps.begin()
    watched._steps.step()
    trainer().train()
    watched.close()
    assert session.calls == ["step", "closed None"]
    assert "the Trainer's hooks are left out, since an optimizer has stepped" in caplog.text


def test_hooks_take_over_a_session_that_began_before_the_training(
    monkeypatch, session, trainer, caplog
):
    """A layer was called, as by an evaluation, once there was an optimizer: no step has ended."""
    caplog.set_level("INFO", "ppprof")
    first_steps = []

    def attach(profiler: object, config: object, first_step: int) -> RecordingSession:
        first_steps.append(first_step)
        return session

    monkeypatch.setattr(script, "attach", attach)
    watched = script._ScriptSession(ProfilerConfig.from_mapping({"enable": True}), {}, 1)
    watched._steps.begin()
    trainer().train()
    assert session.calls == [24, "closed None"]
    assert "step 4 of the Trainer is step 0 here" in caplog.text
    trainer().train()
    watched.close()
    assert first_steps == [0, 4]
    assert watched._steps.is_closed


def test_a_session_of_the_script_gets_no_hooks(monkeypatch, session, trainer):
    watched = script._ScriptSession(
        ProfilerConfig.from_mapping({"enable": True}), {}, 1, yields=True
    )
    monkeypatch.setattr(script, "is_attached", lambda: True)
    watched._steps.begin()
    trainer().train()
    watched.close()
    assert session.calls == []


@pytest.mark.parametrize("lacks", ["add_callback", "train"])
def test_a_trainer_of_another_version_trains_and_its_optimizer_ends_the_steps(
    monkeypatch, session, trainer, lacks
):
    if lacks == "train":
        trainer.train = None
    else:
        monkeypatch.delattr(Trainer, lacks)
    watched = script._ScriptSession(ProfilerConfig.from_mapping({"enable": True}), {}, 1)
    if lacks == "add_callback":
        trainer().train()
    assert not watched._steps.is_closed
    watched._steps.begin()
    watched._steps.step()
    watched.close()
    assert session.calls == ["step", "closed None"]
