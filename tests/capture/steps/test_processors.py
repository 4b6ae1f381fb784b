"""The use of the processors, from a folder like /proc and from the real one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ppprof.capture.steps import processors
from ppprof.capture.steps.processors import Processors

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class FakeProc:
    """A folder like /proc, and the time at which it is read."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now_ns = folder, 0
        monkeypatch.setattr(processors.time, "monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr(processors.time, "process_time", lambda: 0.0)
        self.write("self/task/1/children", "")
        self.write("thread-self/children", "")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")

    def advance(self, ms: int, waited_ns: int, ticks: str) -> None:
        """Let time pass. Ticks: user, nice, system, idle, iowait, irq, softirq, steal, guest (in user)."""
        self.now_ns += ms * 1_000_000
        self.write("thread-self/schedstat", f"5 {waited_ns} 1\n")
        self.write("stat", f"cpu  {ticks} 7 7\ncpu0 1 1\n")


def test_wait_of_each_step_and_shares_twice_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = FakeProc(tmp_path, monkeypatch)
    monkeypatch.setattr(
        processors.time, "thread_time_ns", lambda: 0
    )  # of readings, on a busy machine
    proc.advance(100, 1000, "0 0 0 0 0 0 0 0")
    processor_use = Processors(tmp_path)
    proc.advance(100, 3000, "9 0 0 1 0 0 0 0")
    assert processor_use.step() == (2000, None, None)
    proc.advance(1, 9000, "9 0 0 1 0 0 0 0")
    assert processor_use.step() == (None, None, None)  # the step is too short
    proc.write("self/task/1/children", "70 71")
    proc.write("70/stat", "70 (a) b) S 1 " + "0 " * 9 + "10 5 3 2 0 0")
    proc.write("70/task/70/children", "72")
    proc.write("72/stat", "72 (worker) R 70 " + "0 " * 9 + "20 0 0 0 0 0")  # 71 has just ended
    proc.advance(399, 9000, "30 10 5 40 10 2 2 1")
    assert processor_use.step() == (6000, 0.5, 0.4)
    processor_use.close()


def test_a_reading_that_waits_for_a_processor_is_not_followed_by_a_long_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a loaded machine, a reading of 1 ms of processor time may take 200 ms."""
    proc = FakeProc(tmp_path, monkeypatch)
    monkeypatch.setattr(processors.time, "thread_time_ns", lambda: 0)
    proc.advance(100, 0, "0 0 0 0 0 0 0 0")
    processor_use = Processors(tmp_path)
    text = processor_use._text

    def late(path: str | Path) -> str:
        proc.now_ns += 50_000_000
        return text(path)

    monkeypatch.setattr(processor_use, "_text", late)
    for ticks in ("60 0 0 60 0 0 0 0", "120 0 0 120 0 0 0 0"):
        proc.advance(600, 0, ticks)
        assert processor_use.step() == (0, 0.5, 0.0)
    processor_use.close()


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    processor_use = Processors(tmp_path / "missing")
    time.sleep(0.003)
    assert processor_use.step() == (None, None, None)


def test_a_system_that_does_not_name_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of a DataLoader would count as other processes."""
    proc = FakeProc(tmp_path, monkeypatch)
    (tmp_path / "thread-self/children").unlink()
    proc.advance(100, 1000, "0 0 0 0 0 0 0 0")
    processor_use = Processors(tmp_path)
    proc.advance(600, 9000, "50 0 0 50 0 0 0 0")
    assert processor_use.step() == (8000, None, None)
    processor_use.close()


def test_another_thread_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = FakeProc(tmp_path, monkeypatch)
    proc.advance(100, 1000, "0 0 0 0 0 0 0 0")
    processor_use, found = Processors(tmp_path), []
    proc.advance(100, 9000, "0 0 0 0 0 0 0 0")
    thread = threading.Thread(target=lambda: found.append(processor_use.step()))
    thread.start()
    thread.join()
    assert found == [(None, None, None)]  # the two threads' waits have nothing in common
    processor_use.close()


@pytest.mark.skipif(not Path("/proc/thread-self/children").exists(), reason="needs Linux")
def test_a_process_and_its_child_are_what_the_kernel_accounts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processors, "_COST", 0)  # this process may have many threads to read
    code = "import time\nwhile time.process_time() < 0.3: pass\ninput()"
    processor_use, began = Processors(), time.monotonic()
    own = time.process_time()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        while _seconds(child.pid) < 0.3 or time.monotonic() - began < 0.7:
            time.sleep(0.01)
        wait_ns, busy, share = processor_use.step()
        whole = (time.monotonic() - began) * (os.cpu_count() or 1)
        used = time.process_time() - own + _seconds(child.pid)
        assert child.stdin is not None
        child.stdin.write(b"\n")
    processor_use.close()
    assert wait_ns is not None
    assert busy is not None
    assert share is not None
    assert share == pytest.approx(used / whole, abs=4 * TICK_S / whole + 0.02)
    assert share <= busy <= 1


def _seconds(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2)  # the clock of a process's CPU time, to the ns


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="needs Linux")
def test_a_thread_that_runs_python_does_not_get_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each step may wait for its switch interval, or for what it computes in C with the lock."""
    monkeypatch.setattr(processors, "_LEAST_STEP_NS", 0)
    monkeypatch.setattr(processors, "_LEAST_NS", 1 << 60)
    processor_use, interval = Processors(), sys.getswitchinterval()
    processor_use.step()  # opens the file
    turns, begins, ends = [0], threading.Event(), threading.Event()

    def run() -> None:
        begins.wait()
        while not ends.is_set():
            turns[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    sys.setswitchinterval(5)  # it cannot take the lock from this thread, which has to give it away
    try:
        begins.set()
        waits = []
        while not turns[0] and len(waits) < 20_000:
            waits.append(processor_use.step()[0])
        assert turns == [0]
    finally:
        sys.setswitchinterval(interval)
        ends.set()
        thread.join()
        processor_use.close()
    assert None not in waits
