"""Overhead of ppprof per step: against ``paddle.profiler`` in a window, else against no profiler.

All contestants train the same model in turn, in an order that changes every round. A ratio compares
the median steps of two contestants in the same round. The output is the median over the rounds, with
quartiles. "nothing / nothing" is the same loop twice, which shows the noise. A second ratio compares
the processor time of the training thread, which other load on the machine disturbs less.
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
from ppprof.capture.recording.collectives import Collectives, _Spanned
from ppprof.rundir.triggers import request_path
from ppprof.topology import Topology

_FAR = 10**6
"""First step of a window that is never reached."""

_RATIOS = [
    ("in a window: ppprof / paddle.profiler", "ppprof", "paddle"),
    ("in a window: ppprof without both / paddle.profiler", "ppprof without both", "paddle"),
    ("in a window: ppprof with shapes / without", "ppprof", "ppprof without shapes"),
    ("in a window: ppprof with stacks / without", "ppprof", "ppprof without stacks"),
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
"""Steps before the timed ones: windows open in them, a requested window in the seventh."""


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
    """Train inside a requested window that is longer than the timed steps."""
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
    "ppprof without shapes": lambda: _ppprof(record_shapes=False),
    "ppprof without stacks": lambda: _ppprof(python_stacks=False),
    "ppprof without both": lambda: _ppprof(record_shapes=False, python_stacks=False),
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


_IDLE_HELPER = """
import os, sys
status = int(sys.argv[sys.argv.index("--serve") + 1])
for line in sys.stdin:
    os.write(status, line.strip().encode() + b" 0 0 0\\n")
"""


def main(rounds: int = 24, steps: int = 24) -> list[tuple[str, str]]:
    """Measure; return rows of (name, value)."""
    # No postprocessing while the next contestant runs.
    postprocess._COMMAND = (sys.executable, "-c", _IDLE_HELPER)
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
    wall_ms, busy_ms = (statistics.median(times) * 1e3 for times in zip(*medians["nothing"]))
    title = f"a step without any profiler, of {rounds} rounds of {steps}"
    rows = [(title, f"{wall_ms:.2f} ms, {busy_ms:.2f} of the processor")]
    for title, over, under in _RATIOS:
        ratios = []
        for clock in (0, 1):
            pairs = zip(medians[over], medians[under])
            quartiles = statistics.quantiles([a[clock] / b[clock] for a, b in pairs], n=4)
            ratios.append("{1:.3f} ({0:.3f} to {2:.3f})".format(*quartiles))
        rows.append((title, f"{ratios[0]}, processor {ratios[1]}"))
    idle = _step_call_us(workload, scheduler=[_FAR, _FAR + 1])
    rows.append(("one call of step() outside a window", f"{idle:.1f} us"))
    armed = _step_call_us(workload, trigger={"slow_step": 10**6})
    rows.append(("the same, a trigger armed", f"{armed:.1f} us"))
    rows.append(("the span of a collective", f"{_collective_us():.1f} us"))
    rows.append(("reading an empty control channel, on other ranks", f"{_read_us():.1f} us"))
    return rows


def _step_call_us(workload: Workload, steps: int = 200, **block: Any) -> float:
    """Return the median time of a call behind a step: calls in a row find all in the processor's caches."""
    calls_us = []
    with _quiet(), _ppprof(**block) as end_step:
        for _ in range(steps):
            workload.step()
            start = time.perf_counter()
            end_step()
            calls_us.append((time.perf_counter() - start) * 1e6)
    return statistics.median(calls_us)


def _collective_us(calls: int = 2000, times: int = 30) -> float:
    """Return the processor time of a collective's span: the minimum of several measurements."""

    def all_reduce(tensor: Any, op: int = 0, group: Any = None, sync_op: bool = True) -> None:
        pass

    class Group:
        id, ranks = 1, (0, 1)

    wrapped = _Spanned("all_reduce", all_reduce, Collectives(Topology.of(dp=2))._call)
    tensor, group, costs_us = paddle.ones([128, 128]), Group(), []
    for _ in range(times):
        start = time.thread_time()
        for _ in range(calls):
            wrapped(tensor, group=group)
        middle = time.thread_time()
        for _ in range(calls):
            all_reduce(tensor, group=group)
        costs_us.append((2 * middle - start - time.thread_time()) / calls * 1e6)
    return min(costs_us)


class _Store(dict[str, Any]):
    """The methods of a job's store that the control channel uses."""

    set = dict.__setitem__

    def add(self, key: str, number: int) -> int:
        """Add to a counter and return it."""
        self[key] = self.get(key, 0) + number
        return int(self[key])


def _read_us(reads: int = 5000) -> float:
    """Return the processor time of a read from a connected channel without messages."""
    store = _Store()
    coordinator = CoordinatorChannel("127.0.0.1", 2, store, "")
    worker = WorkerChannel(1, store, "")
    while coordinator.unconfirmed() or not worker._is_welcome:
        worker.read()
        coordinator.read()
        if not coordinator.unconfirmed():
            time.sleep(0.01)
    start = time.thread_time()
    for _ in range(reads):
        worker.read()
    elapsed_s = time.thread_time() - start
    worker.close()
    coordinator.close()
    return elapsed_s / reads * 1e6


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _median_step(
    workload: Workload, contestant: Callable[[], Any], steps: int
) -> tuple[float, float]:
    """Return the median step in seconds and in seconds of processor time, after a warm-up."""
    gc.collect()
    wall, busy = [], []
    with contestant() as end_step:
        for _ in range(steps + _AHEAD):
            start, start_busy = time.perf_counter(), time.thread_time()
            workload.step()
            end_step()
            busy.append(time.thread_time() - start_busy)
            wall.append(time.perf_counter() - start)
    return statistics.median(wall[_AHEAD:]), statistics.median(busy[_AHEAD:])


if __name__ == "__main__":
    for title, value in main():
        print(f"{title:<50}{value:>70}")
