"""``PpprofCallback`` in a real ``paddle.Model.fit``."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

import ppprof
from ppprof import rundir
from tests.jobs.launching import run
from tests.jobs.remains import arrived

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.all]

BEFORE = """
import sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np
import paddle
from ppprof.integrations.paddle_model import PpprofCallback

class Numbers(paddle.io.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        x = np.full([4], index / 20, dtype="float32")
        return x, x

class Slow(paddle.callbacks.Callback):
    def on_eval_batch_end(self, step, logs=None):
        time.sleep(0.8)

class Losses(paddle.callbacks.Callback):
    def on_train_batch_end(self, step, logs=None):
        print("loss", step, logs["loss"][0].hex())

paddle.seed(0)
net = paddle.nn.Linear(4, 4)
model = paddle.Model(net)
optimizer = paddle.optimizer.Adam(parameters=net.parameters())
model.prepare(optimizer, paddle.nn.MSELoss())
block = {"enable": True, "scheduler": [2, 5], "profiler_log": "log"}

def fit(callbacks, **more):
    model.fit(
        Numbers(), Numbers(), batch_size=4, epochs=2, verbose=0, shuffle=False,
        callbacks=[*callbacks, Losses()], **more,
    )

"""


def fits(folder: Path, program: str, code: int = 0) -> str:
    """Return stdout of a program that has `BEFORE` at its head."""
    return run(folder, "-c", BEFORE + textwrap.dedent(program), code=code).stdout


def steps(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (log / rundir.steps_path(0)).read_text().splitlines()]


def losses(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("loss")]


@pytest.mark.jobs
def test_batches_of_all_epochs_are_steps_and_losses_stay_the_same(tmp_path: Path) -> None:
    alone = fits(tmp_path, "fit([])")
    recorded = fits(tmp_path, "fit([PpprofCallback(block), Slow()], save_dir='saved')")
    assert losses(recorded) == losses(alone)
    assert len(losses(alone)) == 10
    lines = steps(tmp_path / "log")
    assert [line["step"] for line in lines] == list(range(10))
    assert {line["num_samples"] for line in lines} == {4}
    # Five batches of evaluation take 4 s after each epoch; no step has them.
    assert max(line["batch_cost_ns"] for line in lines[1:]) < 3_000_000_000
    assert {line["step"]: line["paused_for"] for line in lines if line["paused_for"]} == {
        5: "evaluation"
    }
    assert lines[5]["paused_ns"] > 4_000_000_000
    (summary,) = arrived(tmp_path, "log/summary/rank_00000_w0.json")
    tables = json.loads(summary.read_text())["tables"]
    rows = {row["name"]: row["calls"] for row in tables["model"]}
    assert (rows["ProfileStep"], rows["Forward"] >= 3, rows["Backward"]) == (3, True, 3)
    assert sorted(path.name for path in (tmp_path / "saved").glob("*.pdparams")) == [
        "0.pdparams",
        "1.pdparams",
        "final.pdparams",
    ]


def test_batches_that_wait_for_one_update_are_one_step(tmp_path: Path) -> None:
    fits(tmp_path, "fit([PpprofCallback(block)], accumulate_grad_batches=2)")
    lines = [(line["num_samples"], line["num_micro_batches"]) for line in steps(tmp_path / "log")]
    assert lines == [(8, 2), (8, 2), (4, 1)] * 2


@pytest.mark.parametrize(("num_iters", "updates"), [(3, [(8, 2)]), (5, [(8, 2), (8, 2), (4, 1)])])
def test_batches_without_an_update_at_the_end_are_no_step(
    num_iters: int, updates: list[tuple[int, int]], tmp_path: Path
) -> None:
    """The data has 5 batches: of them Paddle makes 3 updates, and of the first 3 it makes one."""
    program = f"""
    class Adam(paddle.optimizer.Adam):
        def minimize(self, loss):
            super().minimize(loss)
            print("update")

    model.prepare(Adam(parameters=net.parameters()), paddle.nn.MSELoss())
    fit([PpprofCallback(block)], accumulate_grad_batches=2, num_iters={num_iters})
    """
    assert fits(tmp_path, program).splitlines().count("update") == len(updates)
    lines = [(line["num_samples"], line["num_micro_batches"]) for line in steps(tmp_path / "log")]
    assert lines == updates


def test_stop_training_ends_fit_after_the_last_window(tmp_path: Path) -> None:
    output = fits(
        tmp_path, "fit([PpprofCallback({**block, 'stop_training': True})]); print('after')"
    )
    assert len(losses(output)) == 5
    assert output.splitlines()[-1] == "after"
    assert len(steps(tmp_path / "log")) == 5


FAILS = """
class Fails(paddle.callbacks.Callback):
    def on_train_batch_begin(self, step, logs=None):
        if step == 3:
            raise ValueError("not ours")

callback = PpprofCallback({**block, "scheduler": [1, 90]})
"""


@pytest.mark.jobs
def test_an_exception_ends_the_program_with_the_window_saved(tmp_path: Path) -> None:
    fits(tmp_path, FAILS + "fit([callback, Fails()])", code=1)
    assert len(ppprof.open(tmp_path / "log").recordings) == 1
    assert len(steps(tmp_path / "log")) == 3


def test_a_fit_after_one_that_raised_is_a_run_of_its_own(tmp_path: Path) -> None:
    program = """
    try:
        fit([callback, Fails()])
    except ValueError:
        fit([callback])
    """
    fits(tmp_path, FAILS + textwrap.dedent(program))
    assert len(steps(tmp_path / "log")) == 3
    assert len(steps(tmp_path / "log/run_002")) == 10


def test_with_the_callback_an_exception_saves_at_once(tmp_path: Path) -> None:
    program = """
    from pathlib import Path
    try:
        with callback:
            fit([callback, Fails()])
    except ValueError as error:
        print(error, len([*Path("log/raw").glob("*.pb")]))
    """
    assert fits(tmp_path, FAILS + textwrap.dedent(program)).splitlines()[-1] == "not ours 1"


def test_the_block_may_be_a_file_and_is_checked_at_once(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("Profiler:\n  enabel: True\n")
    program = """
    from ppprof.errors import ConfigError
    for block in ("bad.yaml", {"enabel": True}):
        try:
            PpprofCallback(block)
        except ConfigError as error:
            print(error)
    fit([PpprofCallback({"enable": False})])
    """
    said = [line for line in fits(tmp_path, program).splitlines() if "enabel" in line]
    assert said == [
        'bad.yaml:2: Profiler.enabel: unknown key; did you mean "enable"?',
        'Profiler: enabel: unknown key; did you mean "enable"?',
    ]
    assert not (tmp_path / "profiler_log").exists()
