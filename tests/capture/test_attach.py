"""What `attach` accepts as its block, and what it does without one."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

import ppprof
from ppprof.capture.session import RecordingSession
from ppprof.errors import ConfigError, UsageError
from ppprof.integrations.callback import CallbackSession

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.usefixtures("unfinished")]


def manifest(log: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((log / "manifest.json").read_text())
    return manifest


@pytest.mark.parametrize("way", ["mapping", "whole config", "OmegaConf", "its node", "path"])
def test_a_block_may_come_in_many_forms(tmp_path: Path, way: str) -> None:
    log = tmp_path / "log"
    block = {"enable": True, "scheduler": [3, 5], "profiler_log": str(log)}
    config = {"Global": {"seed": 7}, "Profiler": block}
    file = tmp_path / "profiler.yaml"
    file.write_text(yaml.safe_dump(config))
    argument, is_whole = {
        "mapping": (block, False),
        "whole config": (config, True),
        "OmegaConf": (OmegaConf.create(config), True),
        "its node": (OmegaConf.create(config).Profiler, False),
        "path": (file, True),
    }[way]
    ppprof.attach(argument).close()
    written = manifest(log)
    assert written["profiler"]["scheduler"] == [3, 5]
    assert (written["config"] or {}).get("Global") == ({"seed": 7} if is_whole else None)
    assert written["config_file"] == (str(file) if way == "path" else None)


def test_a_stated_config_has_precedence(tmp_path: Path) -> None:
    block = {"enable": True, "profiler_log": str(tmp_path / "log"), "timer_only": True}
    ppprof.attach({"Profiler": block}, config={"Global": {"seed": 1}}).close()
    assert manifest(tmp_path / "log")["config"] == {"Global": {"seed": 1}}


@pytest.mark.parametrize("way", ["argument", "whole config", "OmegaConf", "path", "callback"])
def test_peaks_of_the_config_count_unless_stated(tmp_path: Path, way: str) -> None:
    log = tmp_path / "log"
    block = {"enable": True, "profiler_log": str(log), "timer_only": True}
    config = {"Global": {"device_peak_flops": 3.5e14, "device_peak_gbps": 900}, "Profiler": block}
    file = tmp_path / "profiler.yaml"
    file.write_text(yaml.safe_dump(config))
    if way == "callback":
        callback = CallbackSession(file)
        callback.begin()
        callback.end()
    elif way == "argument":
        ppprof.attach(config, device_peak_flops=1e12).close()
    else:
        forms = {"whole config": config, "OmegaConf": OmegaConf.create(config), "path": file}
        ppprof.attach(forms[way]).close()
    written = manifest(log)
    assert written["device_peak_flops"] == (1e12 if way == "argument" else 3.5e14)
    assert written["device_peak_gbps"] == 900


def test_a_peak_of_the_config_that_is_no_number_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    block = {"enable": True, "profiler_log": str(tmp_path / "log"), "timer_only": True}
    ppprof.attach(block, config={"Global": {"device_peak_gbps": "fast"}}).close()
    message = (
        "Global.device_peak_gbps: 'fast': ignored; expected GB/s, a number above 0 such as 2039"
    )
    assert message in caplog.messages
    assert manifest(tmp_path / "log")["device_peak_gbps"] is None


def test_a_peak_that_yaml_takes_for_a_text_is_a_number(tmp_path: Path) -> None:
    """Only a number with a point is one for PyYAML."""
    block = {"enable": True, "profiler_log": str(tmp_path / "log"), "timer_only": True}
    ppprof.attach(block, config={"Global": {"device_peak_flops": "312e12"}}).close()
    assert manifest(tmp_path / "log")["device_peak_flops"] == 312e12


@pytest.mark.parametrize("nothing", [None, {}, {"Profiler": None}, {"Profiler": {"enable": False}}])
def test_without_enable_nothing_is_recorded(
    nothing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ppprof.attach(nothing) as prof:
        prof.step()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        (True, UsageError, r"attach\(True\): expected a Profiler block, a config with this block"),
        ([5, 8], UsageError, r"attach\(\[5, 8\]\): expected a Profiler block"),
        ({"Global": {}}, ConfigError, "Profiler: Global: unknown key"),
        ({"Profiler": False}, UsageError, "Profiler: False: expected a mapping"),
        ({1: 2}, UsageError, "expected a mapping of the block's keys"),
        ({"enabel": True}, ConfigError, 'enabel: unknown key; did you mean "enable"'),
        ("/no/such.yaml", ConfigError, "/no/such.yaml"),
    ],
)
def test_what_is_no_block_is_named(argument: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ppprof.attach(argument)


def test_without_paddle_the_log_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "paddle", None)
    with ppprof.attach({"enable": True, "profiler_log": str(tmp_path / "log")}) as prof:
        prof.step()
    logged = capfd.readouterr().err
    assert "PaddlePaddle is not installed in this environment: pip install paddlepaddle" in logged
    assert "nothing is recorded, the training goes on" in logged


@pytest.mark.filterwarnings("ignore:No ccache found:UserWarning")
@pytest.mark.parametrize(
    ("num_steps", "recorded", "message"),
    [
        # Once ahead of step 6 five steps have been alike, step 6 is the window's warm-up. Steps of 1 ms
        # have a window of 100.
        (120, range(7, 107), ""),
        (40, range(7, 40), ""),
        (9, range(7, 9), "after 9 steps, only steps 7 to 8 were recorded; "),
        (
            7,
            range(1, 6),
            "after 7 steps, before window 0, steps 7 to 106: steps 1 to 5 were recorded",
        ),
        (
            4,
            range(1, 4),
            "after 4 steps, before window 0, steps 20 to 29: steps 1 to 3 were recorded",
        ),
        (1, range(0), "after 1 step, before window 0, steps 20 to 29: nothing was recorded; "),
    ],
)
def test_without_arguments_a_window_opens_once_step_times_have_settled(
    num_steps: int,
    recorded: range,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    alike(monkeypatch)
    with ppprof.attach() as prof:
        for _ in range(num_steps):
            paddle.ones([1])
            prof.step()
    lines = (tmp_path / "profiler_log/steps/rank_00000.jsonl").read_text().splitlines()
    windows = [json.loads(line)["window"] for line in lines]
    provisional = range(1, min(6, num_steps))
    in_window = [step in provisional or step in recorded for step in range(num_steps)]
    assert windows == [0 if is_inside else None for is_inside in in_window]
    raws = list((tmp_path / "profiler_log/raw").glob("*.pb"))
    steps = {
        name for raw in raws for name in re.findall(rb"ProfileStep#([0-9]+)", raw.read_bytes())
    }
    # A step that has begun when the loop ends is marked as incomplete.
    assert {int(step) for step in steps} - {num_steps} == set(recorded)
    assert len(raws) == bool(recorded)
    assert len(list((tmp_path / "profiler_log/raw").glob("*.ops"))) == len(raws)
    logged = capfd.readouterr().err
    assert f"the training ended {message}" in logged if message else "ended after" not in logged
    assert ("ppprof run --steps FIRST:END" in logged) == bool(message)


def test_a_resumed_training_goes_on_with_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the step log and in the recording; the schedule counts from the first step after the resume."""
    monkeypatch.chdir(tmp_path)
    block = {"enable": True, "scheduler": [2, 4], "formats": ["pb"]}
    with ppprof.attach(block, first_step=700) as prof:
        for _ in range(6):
            paddle.ones([1])
            prof.step()
    run = ppprof.open("profiler_log")
    assert run.step_times["step"].to_list() == list(range(700, 706))
    assert run.cluster().steps["step"].to_list() == [702, 703]


@pytest.mark.parametrize("first_step", [-1, 2.0, True, "7"])
def test_a_first_step_is_a_whole_number(first_step: Any) -> None:
    with pytest.raises(UsageError, match=r"first_step: .*: expected a whole number from 0"):
        ppprof.attach({"enable": True}, first_step=first_step)


def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all steps take as long."""
    from ppprof.capture.steps.timer import StepTime, StepTimer

    step: Callable[[StepTimer], StepTime] = StepTimer.step
    monkeypatch.setattr(StepTimer, "step", lambda timer: step(timer)._replace(batch_cost_ns=10**6))


@pytest.mark.parametrize(
    ("module", "effect"),
    [
        ("out_of_memory", "if its memory runs out, ppprof memory will not know what held it"),
        ("ranks.flight_recorder", "ppprof hang will not know this rank"),
    ],
)
def test_a_part_that_another_paddle_does_not_suit_is_left_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    messages: list[str],
    module: str,
    effect: str,
) -> None:
    monkeypatch.setitem(sys.modules, f"ppprof.capture.{module}", None)
    block = {"enable": True, "hang_after": 100, "profiler_log": str(tmp_path / "log")}
    with ppprof.attach(block) as prof:
        prof.step()
    (message,) = (each for each in messages if effect in each)
    assert re.fullmatch(rf"rank 0: .*{re.escape(module)}.*; {effect}", message)
    assert len((tmp_path / "log/steps/rank_00000.jsonl").read_text().splitlines()) == 1


def test_a_failure_to_attach_leaves_nothing_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: list[str]
) -> None:
    """What watches the steps would end a training that it sees none of."""
    from paddle.base import core
    from paddle.profiler.timer import benchmark

    def fails(*args: object, **kwargs: object) -> None:
        raise RuntimeError("can't start new thread")

    wait = core.task.wait
    monkeypatch.setattr(RecordingSession, "__init__", fails)
    block = {"enable": True, "hang_after": 1, "hang_exit_code": 75}
    with pytest.raises(RuntimeError, match="can't start"):  # the session without parts fails, too
        ppprof.attach({**block, "profiler_log": str(tmp_path / "log")})
    assert "cannot attach: can't start new thread" in messages[-1]
    assert "ppprof the flight recorder" not in [each.name for each in threading.enumerate()]
    assert core.task.wait is wait
    assert "ppprof" not in benchmark().hooks
