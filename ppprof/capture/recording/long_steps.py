"""Limits of one step: a window may end between two steps only, and a step may last for hours.

Stopping Paddle's profiler compares each event with all earlier allocations of the step that lie between two
events. In a step of 20,000 operators that takes up to a second, in one of 100,000 a minute::

    operators of the step   0 ................... 10,000 ......... 50,000
    recorded                events and allocations | events only    | nothing: the window is saved

Without allocations the time is linear, and a window is saved at 200,000 operators of a step.

Operators are those that Python calls. Where they are not counted (``record_shapes: False``, programs of a
static graph or of ``to_static``), allocations end once the step has taken `_MOST_SECONDS` of the processor.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ppprof.capture.process import start_thread
from ppprof.capture.recording.observers import WindowObserver

if TYPE_CHECKING:
    from ppprof.capture.recording.operator_calls import OperatorCallRecorder

_MOST_WITH_ALLOCATIONS, _MOST_AFTER_ALLOCATIONS, _MOST_OPERATORS = 10_000, 50_000, 200_000
_MOST_SECONDS = 5.0
_LEAST_WAIT, _MOST_WAIT = 0.002, 0.025
"""Seconds between two looks at the number of operators. In the longer time, Python calls at most
`_MOST_WITH_ALLOCATIONS`."""


class LongSteps(WindowObserver):
    """Watches the open window from a thread, and applies the limits of a step.

    Args:
        operators: the calls of operators; None if they are not counted.
        end_allocations: called with the reason for recording no more allocations; returns whether they
            were recorded.
    """

    def __init__(
        self,
        operators: OperatorCallRecorder | None,
        end_allocations: Callable[[str], bool],
    ) -> None:
        self._operators = operators
        self._end_allocations = end_allocations
        self._over: threading.Event | None = None
        """Set when the window ends; None outside windows."""
        self._num_before = 0
        """Operators of the segment ahead of the step."""
        self._had_allocations = False
        """Whether the recording of allocations ended in the step."""
        self._before = 0.0
        """Processor time of the thread of the steps when the step began."""

    def bind(self, end_window: Callable[[str], bool]) -> None:
        """Keep what ends the window: a thread that has called an operator calls it."""
        self._end_window = end_window

    def started(self) -> None:
        """Watch a window; of its next segment, the first step."""
        self._begin_step()
        if self._over is None:
            over = self._over = threading.Event()
            clock = _clock_of_this_thread()
            start_thread(lambda: self._watch(over, clock), "long steps")

    def step(self, num_steps: int) -> None:
        """Count the operators of the step that begins."""
        self._begin_step()

    def _begin_step(self) -> None:
        self._had_allocations = False
        self._num_before, self._before = self._num_operators() or 0, time.thread_time()

    def uninstall(self) -> None:
        """End the thread."""
        over, self._over = self._over, None
        if over is not None:
            over.set()

    def _num_operators(self) -> int | None:
        return None if self._operators is None else self._operators.num_operators()

    def _watch(self, over: threading.Event, clock: int) -> None:
        """Apply the limits until the window is over."""
        wait, has_allocations = _MOST_WAIT, True
        while not over.wait(wait):
            num = self._num_operators()
            if num is None:
                seconds = time.clock_gettime(clock) - self._before
                share, what = seconds / _MOST_SECONDS, f"{seconds:.0f} s"
            else:
                num -= self._num_before
                share, what = num / _MOST_WITH_ALLOCATIONS, f"{num:,} operators"
            why = f"{what} without a call of step()"
            wait = (
                max(min(1 - share, 1) * _MOST_WAIT, _LEAST_WAIT) if has_allocations else _MOST_WAIT
            )
            if has_allocations and share > 1:
                has_allocations = False
                self._had_allocations |= self._end_allocations(why)
            most = _MOST_AFTER_ALLOCATIONS if self._had_allocations else _MOST_OPERATORS
            if self._operators is not None and num is not None and num > most:
                self._operators.call_at_next(partial(self._end, over, why))
                return

    def _end(self, over: threading.Event, why: str) -> bool:
        return over.is_set() or self._end_window(why)


def _clock_of_this_thread() -> int:
    """Return the clock of this thread's processor time; that of the process where threads have none."""
    if sys.platform == "linux":
        return time.pthread_getcpuclockid(threading.get_ident())
    return time.CLOCK_PROCESS_CPUTIME_ID
