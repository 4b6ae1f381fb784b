"""How long steps take, and how much of that is waiting for data."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple


class StepTime(NamedTuple):
    """One step, in the words of Paddle's Perf Summary."""

    batch_cost_ns: int
    """Wall time from one `Session.step` to the next, reading included."""
    reader_cost_ns: int | None
    """Part of it spent in Paddle's DataLoader; None where none was called."""


class StepTimer:
    """Cuts time into steps.

    Is also a hook of ``paddle.profiler.timer.benchmark()``, which Paddle's DataLoader iterators
    call around every batch. Like Paddle's own hook it stops while a loader of another dataset is
    read: an evaluation counts in no step. `watch_readers` begins that, `close` ends it.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._step_start = clock()
        self._reader_start = self._step_start
        self._reader_ns: int | None = None
        self._paused = False
        self._benchmark: Any = None
        self._event: Any = None

    def watch_readers(self) -> None:
        """Starts to count ``reader_cost``."""
        from paddle.profiler.timer import Event, benchmark

        self._benchmark, self._event = benchmark(), Event()
        self._benchmark.events.push(self._event)
        self._benchmark.current_event = self._event
        self._benchmark.hooks["ppprof"] = self

    def close(self) -> None:
        """Leaves Paddle's benchmark as it was found."""
        if self._benchmark is not None:
            self._benchmark.hooks.pop("ppprof", None)
            self._benchmark.events.items.remove(self._event)
            self._benchmark.current_event = self._benchmark.events.peek()
            self._benchmark = None

    def step(self) -> StepTime:
        """Ends a step and begins the next."""
        now = self._clock()
        ended = StepTime(now - self._step_start, self._reader_ns)
        self._step_start, self._reader_ns = now, None
        return ended

    def before_reader(self, benchmark: Any) -> None:
        """Called by Paddle before a DataLoader fetches a batch."""
        self._reader_start = self._clock()
        pauses = not self._event.need_record
        if self._paused and not pauses:
            self._step_start = self._reader_start  # back from an evaluation
        self._paused = pauses

    def after_reader(self, benchmark: Any) -> None:
        """Called by Paddle after a DataLoader has fetched a batch."""
        if not self._paused:
            self._reader_ns = (self._reader_ns or 0) + self._clock() - self._reader_start

    def begin(self, benchmark: Any) -> None:
        """A part of Paddle's hook interface that we have no use for."""

    end = after_step = begin
