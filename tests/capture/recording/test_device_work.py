"""Asking a device for its work: of a GPU by its driver, and a last bound where streams are unknown."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from ppprof.capture.recording.device_work import DeviceWork  # noqa: E402

HOLDS_THE_LOCK = """
import ctypes
from ppprof.capture.recording import recorder
recorder._STOP_SECONDS = 1
with recorder._deadline(ValueError("the training fails")):
    pass
with recorder._deadline(ValueError("the training fails")):
    ctypes.PyDLL(None).sleep({seconds})
print("went on")
"""


class Driver:
    """A driver whose work ends when `over` is set."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.current: list[Any] = []

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.current.append((threading.get_ident(), context))
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        return 0

    def cuCtxSynchronize(self) -> int:
        self.over.wait(60)
        return 0


def test_a_gpu_is_asked_by_its_driver_in_a_thread() -> None:
    work, driver = DeviceWork(), Driver()
    work._context._driver = driver
    assert not work.is_done(0.05)
    driver.over.set()
    assert work.is_done(60)
    assert all(context is work._context._context for _, context in driver.current)
    assert threading.get_ident() not in dict(driver.current)


def test_in_an_exit_hook_of_python_3_12_its_streams_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No thread can start there."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    work = DeviceWork(lambda: [Task(3)])
    work._context._driver = Driver()
    monkeypatch.setattr(threading, "Thread", refuse)
    monkeypatch.setattr(f"{DeviceWork.__module__}._marks", list)  # a CPU has no streams
    assert work.is_done(5)


class Task:
    """A collective that ends when it was asked often enough."""

    def __init__(self, asked: int) -> None:
        self.left = asked

    def is_completed(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize(("asked", "is_done"), [(0, True), (3, True), (10**9, False)])
def test_communication_counts_on_devices_without_such_a_driver(
    monkeypatch: pytest.MonkeyPatch, asked: int, is_done: bool
) -> None:
    monkeypatch.setattr("ppprof.capture.recording.device_work._marks", lambda: [])
    assert DeviceWork(lambda: [Task(0), Task(asked)]).is_done(60 if is_done else 0.1) is is_done


@pytest.mark.parametrize(("seconds", "code", "printed"), [(0, 0, "went on\n"), (20, 1, "")])
def test_a_last_bound_ends_the_process_as_the_exception_does(
    seconds: int, code: int, printed: str
) -> None:
    program = [sys.executable, "-c", HOLDS_THE_LOCK.format(seconds=seconds)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, printed), done.stderr
