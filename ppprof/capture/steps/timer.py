"""How long steps take, and how much of that is waiting for data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class StepTime(NamedTuple):
    """One step, in the words of Paddle's Perf Summary."""

    batch_cost_ns: int
    """Wall time from one `RecordingSession.step` to the next, reading included, pauses left out."""
    reader_cost_ns: int | None
    """Part of it spent waiting for Paddle's DataLoaders, all of them; None where none was read."""


class StepTimer:
    """Cuts time into steps, on a clock that stands still in a pause.

    ::

        read     # # _ _ _ | # _ # _ _ # # # _ |
        paused   _ _ _ _ _ | _ _ _ _ # # # # _ |
                 batch 5   | batch 5             ticks
                 reader 2  | reader 2

    Is also a hook of ``paddle.profiler.timer.benchmark()``, which Paddle's DataLoader iterators
    call around every batch. The hook is all that is added there: with an event of ours on the
    benchmark, Paddle would compare the loaders' datasets at every batch (by ``!=``, which numpy
    arrays refuse and lists take their time for), and another profiler could pop it.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._pauses = 0
        self._pause_start = 0
        self._paused_ns = 0
        self._step_start = self._reader_start = clock()
        self._reader_ns: int | None = None
        self._thread = threading.get_ident()
        self._benchmark: Any = None

    def watch_readers(self) -> None:
        """Starts to count ``reader_cost``."""
        from paddle.profiler.timer import benchmark

        self._benchmark = benchmark()
        self._benchmark.hooks["ppprof"] = self

    def close(self) -> None:
        """Leaves Paddle's benchmark as it was found."""
        if self._benchmark is not None:
            self._benchmark.hooks.pop("ppprof", None)
            self._benchmark = None

    def step(self) -> StepTime:
        """Ends a step and begins the next."""
        now = self._now()
        ended = StepTime(now - self._step_start, self._reader_ns)
        self._step_start, self._reader_ns = now, None
        self._thread = threading.get_ident()
        return ended

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside is no step's and no reader's; may be nested."""
        if not self._pauses:
            self._pause_start = self._clock()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._paused_ns += self._clock() - self._pause_start

    def before_reader(self, benchmark: Any) -> None:
        """Called by Paddle before a DataLoader fetches a batch."""
        if self._holds_up_the_step():
            self._reader_start = self._now()

    def after_reader(self, benchmark: Any) -> None:
        """Called by Paddle after a DataLoader has fetched a batch."""
        if self._holds_up_the_step():
            self._reader_ns = (self._reader_ns or 0) + self._now() - self._reader_start

    def begin(self, benchmark: Any) -> None:
        """A part of Paddle's hook interface that we have no use for."""

    end = after_step = begin

    def _now(self) -> int:
        return (self._pause_start if self._pauses else self._clock()) - self._paused_ns

    def _holds_up_the_step(self) -> bool:
        # A thread that reads ahead does so beside the training, not instead of it.
        return not self._pauses and threading.get_ident() == self._thread
