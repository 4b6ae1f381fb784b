"""What ppprof adds to a step: in a window against raw ``paddle.profiler``, else against nothing.

All contestants train the same model in turn, in an order that changes every round; a ratio is of
two contestants' median steps in the same round, and what is printed is the median over the rounds
with its quartiles. "nothing / nothing" is the same loop twice: the noise. Behind it the same of the
processor time that the training thread took, which others on the machine disturb less.
"""

from __future__ import annotations

import contextlib
import gc
import io
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paddle

import ppprof
from benchmarks.workload import Workload
from ppprof.capture import postprocess
from ppprof.capture.ranks.control_channel import CoordinatorChannel, WorkerChannel
from ppprof.rundir.triggers import request_path

_FAR = 10**6
"""A window that is never reached."""

_RATIOS = [
    ("in a window: ppprof / paddle.profiler", "ppprof", "paddle"),
    ("in a window: paddle.profiler / nothing", "paddle", "nothing"),
    ("off (enable: False): ppprof / nothing", "ppprof off", "nothing"),
    ("attached and idle: ppprof / nothing", "ppprof outside", "nothing"),
    ("attached and idle: paddle.profiler / nothing", "paddle outside", "nothing"),
    ("attached, a trigger armed: ppprof / nothing", "ppprof armed", "nothing"),
    ("timer_only: ppprof / nothing", "ppprof timer", "nothing"),
    ("triggered, in the window: ppprof / nothing", "ppprof triggered", "nothing"),
    ("recording, in a window: ppprof / nothing", "ppprof", "nothing"),
    ("nothing / nothing", "nothing again", "nothing"),
]

_AHEAD = 10
"""Steps before those that are timed: windows open in them, one that is asked for in the seventh."""


@contextlib.contextmanager
def _nothing() -> Iterator[Callable[[], object]]:
    yield lambda: None


@contextlib.contextmanager
def _ppprof(**block: Any) -> Iterator[Callable[[], object]]:
    with tempfile.TemporaryDirectory() as log:
        block = {"enable": True, "profiler_log": log, **block}
        with ppprof.attach(block) as prof:
            yield prof.step


@contextlib.contextmanager
def _triggered() -> Iterator[Callable[[], object]]:
    """In a window that was asked for, and is longer than what is timed."""
    with tempfile.TemporaryDirectory() as log:
        block = {"enable": True, "profiler_log": log, "trigger": {"steps": 10_000}}
        with ppprof.attach(block) as prof:
            request_path(Path(log)).touch()
            yield prof.step
            assert not request_path(Path(log)).exists()


@contextlib.contextmanager
def _paddle(scheduler: tuple[int, int] | None) -> Iterator[Callable[[], object]]:
    profiler = paddle.profiler.Profiler(
        scheduler=scheduler,
        on_trace_ready=lambda _: None,
        record_shapes=True,
        profile_memory=True,
    )
    with profiler:
        yield profiler.step


_CONTESTANTS: dict[str, Callable[[], Any]] = {
    "ppprof": _ppprof,
    "paddle": lambda: _paddle(None),
    "ppprof outside": lambda: _ppprof(scheduler=[_FAR, _FAR + 1]),
    "paddle outside": lambda: _paddle((_FAR, _FAR + 1)),
    "ppprof armed": lambda: _ppprof(trigger={"slow_step": 1000}),
    "ppprof triggered": _triggered,
    "ppprof timer": lambda: _ppprof(timer_only=True),
    "ppprof off": lambda: _ppprof(enable=False),
    "nothing": _nothing,
    "nothing again": _nothing,
}


def main(rounds: int = 24, steps: int = 24) -> list[tuple[str, str]]:
    """Measured ratios as (what, how much) rows."""
    postprocess._COMMAND = (
        sys.executable,
        "-c",
        "",
    )  # tables are not made beside the next contestant
    workload = Workload()
    for _ in range(50):
        workload.step()
    names = list(_CONTESTANTS)
    medians: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(rounds):
        random.Random(turn).shuffle(names)
        for name in names:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                medians[name].append(_median_step(workload, _CONTESTANTS[name], steps))
    wall_ms, busy_ms = (statistics.median(of) * 1e3 for of in zip(*medians["nothing"]))
    title = f"a step without any profiler, of {rounds} rounds of {steps}"
    rows = [(title, f"{wall_ms:.2f} ms, {busy_ms:.2f} of the processor")]
    for what, over, under in _RATIOS:
        ratios = []
        for clock in (0, 1):
            pairs = zip(medians[over], medians[under])
            of = statistics.quantiles([a[clock] / b[clock] for a, b in pairs], n=4)
            ratios.append("{1:.3f} ({0:.3f} to {2:.3f})".format(*of))
        rows.append((what, f"{ratios[0]}, processor {ratios[1]}"))
    idle = _step_call_us(scheduler=[_FAR, _FAR + 1])
    rows.append(("one call of step() outside a window", f"{idle:.1f} us"))
    armed = _step_call_us(trigger={"slow_step": 10**6})
    rows.append(("the same, a trigger armed", f"{armed:.1f} us"))
    rows.append(("a look for rank 0's mail, of the other ranks", f"{_look_us():.1f} us"))
    return rows


def _step_call_us(calls: int = 400, times: int = 30, **block: Any) -> float:
    """Processor time of a call, the least of several times."""
    took = []
    with _quiet(), _ppprof(**block) as end_step:
        for _ in range(times):
            start = time.thread_time()
            for _ in range(calls):
                end_step()
            took.append((time.thread_time() - start) / calls * 1e6)
    return min(took)


class _Store(dict[str, Any]):
    """As much of a job's store as mail needs."""

    set = dict.__setitem__

    def add(self, key: str, number: int) -> int:
        """A counter."""
        self[key] = self.get(key, 0) + number
        return int(self[key])


def _look_us(looks: int = 5000) -> float:
    """Where there is none, and rank 0 is known."""
    store = _Store()
    hub = CoordinatorChannel("127.0.0.1", 2, store, "")
    spoke = WorkerChannel(1, store, "")
    while hub.unconfirmed() or not spoke._is_welcome:
        spoke.read()
        hub.read()
        if not hub.unconfirmed():
            time.sleep(0.01)
    start = time.thread_time()
    for _ in range(looks):
        spoke.read()
    took = time.thread_time() - start
    spoke.close()
    hub.close()
    return took / looks * 1e6


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _median_step(
    workload: Workload, contestant: Callable[[], Any], steps: int
) -> tuple[float, float]:
    """Seconds, and seconds of the processor; some steps go ahead, for a window opens in them."""
    gc.collect()
    took, busy = [], []
    with contestant() as end_step:
        for _ in range(steps + _AHEAD):
            start, start_busy = time.perf_counter(), time.thread_time()
            workload.step()
            end_step()
            busy.append(time.thread_time() - start_busy)
            took.append(time.perf_counter() - start)
    return statistics.median(took[_AHEAD:]), statistics.median(busy[_AHEAD:])


if __name__ == "__main__":
    for what, how_much in main():
        print(f"{what:<50}{how_much:>70}")
