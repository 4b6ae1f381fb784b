"""Measure how long steps take, and how long they wait for data."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

_new = tuple.__new__  # of a named tuple's values: its own takes three times as long

_LEAST_REASON, _MOST_REASONS = 0.1, 4
"""Share of the pauses since a step from which a reason is named, and how many are."""


class StepTime(NamedTuple):
    """The times of one step, named as in Paddle's Perf Summary."""

    batch_cost_ns: int | None
    """Wall time from one `ProfilerSession.step` to the next; includes reading, excludes pauses. None
    while the device works on the step; see `StepTimer.take`."""
    reader_cost_ns: int | None
    """Time of the host between these calls that it spent waiting for Paddle's DataLoaders; None if no
    batch was read."""
    device_timed: bool | None = None
    """Whether the step ended when the device had done its work; None without a device."""
    paused_ns: int = 0
    """Time in pauses since the step before, on the clock of the batch cost; wrong while that is None."""
    paused_for: str | None = None
    """What most of that time was for, longest first: ``evaluation, checkpoint``; None if no pause has a name."""
    started_workers: int | None = None
    """Worker processes that Paddle's DataLoaders have started for the thread of the steps; None if that is unknown."""
    starting_ns: int | None = None
    """Time that starting these took, and stopping and resuming others; None if it is unknown."""
    num_collections: int | None = None
    """Full garbage collections of Python, in any thread; None if that is unknown."""


class StepCost(NamedTuple):
    """The batch cost of a step that has become known later than the step ended on the host."""

    batch_cost_ns: int
    """Time from the end of the step before to the end of this step, without pauses."""
    device_timed: bool
    """Whether the step ended when the device had done its work; False if it is not known when."""
    excluded: bool = False
    """Whether the end is not exact."""
    paused_ns: int = 0
    """Time in pauses since the end of the step before."""


class StepTimer:
    """Splits time into steps, on a clock that stops in a pause.

    ::

        read     # # _ _ _ | # _ # _ _ # # # _ |
        paused   _ _ _ _ _ | _ _ _ _ # # # # _ |
                 batch 5   | batch 5             ticks
                 reader 2  | reader 2
                 paused 0  | paused 4

    The timer is also a hook of ``paddle.profiler.timer.benchmark()``, which Paddle's DataLoader
    iterators call around every batch. Only a hook is added to the benchmark, no event. With an event
    there, Paddle would compare the loaders' datasets at every batch, by ``!=``, which fails on numpy
    arrays and is slow on lists. And another profiler could pop the event.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._pauses = 0
        self._pause_start = 0
        self._paused_ns = self._paused_before_ns = 0
        self._paused_for: dict[str, int] = {}
        """What the pauses since the last step were for, and how long they took."""
        self._step_start = self._reader_start = 0
        self._reader_ns: int | None = None
        self._is_reading = False
        self._thread = threading.get_ident()
        self._benchmark: Any = None
        self._unwatch: Callable[[], None] | None = None
        """Ends the watching of workers."""
        self._started_workers = self._starting_ns = 0
        self._num_collections = 0
        """Full ones that no later step counts."""

    def start(self) -> None:
        """Begin the first step."""
        self._step_start = self._reader_start = self._now()

    def watch_readers(self) -> None:
        """Start to measure how long steps wait for Paddle's DataLoaders (the reader cost), for their workers to start, and for Python's garbage collections.

        Installs this timer as a hook of ``paddle.profiler.timer.benchmark()``. Without this call,
        steps have no reader cost.
        """
        from paddle.profiler.timer import benchmark

        from ppprof.capture.steps.loader_starts import watch_starts

        self._benchmark = benchmark()
        self._benchmark.hooks["ppprof"] = self
        self._unwatch = watch_starts(self._note_start, self._clock)
        self._num_collections = _num_collections()

    def close(self) -> None:
        """Remove this timer from the hooks of Paddle's benchmark, and watch no workers."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        if self._benchmark is not None:
            self._benchmark.hooks.pop("ppprof", None)
            self._benchmark = None

    def step(self) -> StepTime:
        """End the current step, begin the next step, and return the times of the ended step.

        From now on, reading counts only in the thread that calls `step`.
        """
        now = self._now()
        paused_ns = self._paused_ns - self._paused_before_ns
        reasons = self._reasons() if self._paused_for else None
        noted: tuple[int | None, int | None, int | None] = None, None, None
        if self._unwatch is not None:
            num = _num_collections()
            noted = self._started_workers, self._starting_ns, num - self._num_collections
            self._started_workers, self._starting_ns, self._num_collections = 0, 0, num
        values = (now - self._step_start, self._reader_ns, None, paused_ns, reasons, *noted)
        step = _new(StepTime, values)
        self._step_start, self._reader_ns = now, None
        self._paused_before_ns = self._paused_ns
        self._thread = threading.get_ident()
        return step

    def take(self) -> Iterator[StepCost]:
        """Yield the costs of steps for which `step` has returned none: not without a device."""
        return iter(())

    def stall(self, begins: bool) -> None:
        """Note that a stall of the profiler begins or ends."""

    def finish(self, *, waits: bool = True) -> None:
        """Make the costs of all steps known, for `take`."""

    @contextmanager
    def paused(self, what: str = "") -> Iterator[None]:
        """Return a context manager whose time counts neither as step time nor as reader cost.

        Pauses may be nested: then they are for what the outer one is.
        """
        num = _num_collections() if not self._pauses else 0
        if not self._pauses:
            self._pause_start = self._clock()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._num_collections += _num_collections() - num
                pause_ns = self._clock() - self._pause_start
                self._paused_ns += pause_ns
                self._paused_for[what] = self._paused_for.get(what, 0) + pause_ns

    def _reasons(self) -> str | None:
        reasons, self._paused_for = self._paused_for, {}
        least_ns = _LEAST_REASON * sum(reasons.values())
        large = [what for what, pause_ns in reasons.items() if what and pause_ns >= least_ns]
        return (
            ", ".join(sorted(large, key=reasons.__getitem__, reverse=True)[:_MOST_REASONS]) or None
        )

    def is_paused(self) -> bool:
        """Return whether a block of `paused` is open."""
        return self._pauses > 0

    def before_reader(self, benchmark: Any) -> None:
        """Start to measure reading; Paddle calls this before a DataLoader fetches a batch."""
        if self._delays_step():
            self._reader_start, self._is_reading = self._now(), True

    def after_reader(self, benchmark: Any) -> None:
        """Add the time since `before_reader`; Paddle calls this when a batch has been fetched."""
        if self._delays_step():
            self._reader_ns = (self._reader_ns or 0) + self._now() - self._reader_start
            self._is_reading = False

    def _note_start(self, num_workers: int, took_ns: int, ends_data: bool) -> None:
        if self._delays_step():
            if ends_data and self._is_reading:  # of a batch that there is not
                took_ns, self._is_reading = self._now() - self._reader_start, False
            self._started_workers += num_workers
            self._starting_ns += took_ns

    def begin(self, benchmark: Any) -> None:
        """Do nothing: Paddle's hook interface requires this method."""

    end = after_step = begin

    def _now(self) -> int:
        return (self._pause_start if self._pauses else self._clock()) - self._paused_ns

    def _delays_step(self) -> bool:
        # A thread that reads ahead does not delay the training.
        return not self._pauses and threading.get_ident() == self._thread


def _num_collections() -> int:
    """Return how many collections of the oldest generation there have been.

    A callback of the collector would know their time. But it would run Python in each collection, which may let other
    threads run (CPython 3.11 ends by that: `ppprof.capture.process`), and lose an interruption.
    """
    return int(gc.get_stats()[-1]["collections"])
