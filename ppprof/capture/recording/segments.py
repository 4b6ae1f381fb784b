"""When a segment of a window ends: before saving it would hold the training up for long.

Stopping Paddle's profiler takes a time that grows with the square of the number of recorded events, if
memory is recorded: 0.2 s for 30,000 operators, 2 s for 100,000, minutes for a million. Paddle writes the
file while it keeps Python's lock, which takes as long again. So a window is cut into segments, between
two steps::

    step      0  1  2  3  4  5  6  7  8  9 ...
    segment   0  0  0  0  1  1  1  1  2  2 ...     4 steps: the largest power of two that is saved in 0.1 s

Each segment is a raw capture of its own: ``rank_..._000.pb``, ``rank_..._000_s00001.pb`` ... (see
`ppprof.rundir.names.TraceName`). The readers of a run join them: a `ppprof.rundir.recordings.Recording`
is still one window, with the files of its first segment and those of ``later`` ones.
`ppprof.trace.segments` joins their traces. ``ppprof finish`` makes the tables of the whole window, and a
trace of each segment, which VisualDL shows as spans.

The length is a power of two, and segments end at multiples of it, counted from the window's first
step: ranks that record alike end their segments at the same steps without a message between them, so
that no rank waits for another one that saves.
"""

from __future__ import annotations

import math

STALL_SECONDS = 0.1
"""How long the training may be held up between two segments. Twice as much takes a third more time in
all, since stopping is quadratic; half as much makes twice as many files. It is processor time of the
training's thread: shorter segments would not shorten the wait for a slow disk or for a processor."""
_FIRST_OPERATORS, _FIRST_STEPS, _FIRST_SECONDS = 10_000, 16, 20.0
"""The first segment ends once Python has called so many operators. Where calls are not counted, after so
many steps or seconds, whichever is first."""
_MOST_GROWTH = 4
"""How many times longer than the one before a segment may be."""
_MOST_OPERATORS = 1.5
"""A segment with so many times the operators that are saved in `STALL_SECONDS` ends after any step."""
_MOST_STEPS = 1 << 16


class SegmentLength:
    """The number of steps of a segment, learned from the segments before."""

    def __init__(self) -> None:
        self._steps: int | None = None
        """A power of two; None before the first segment."""
        self._operators: float = _FIRST_OPERATORS
        """Operators that are saved in `STALL_SECONDS`."""

    def is_reached(
        self, steps: int, window_steps: int, operators: int | None, seconds: float
    ) -> bool:
        """Return whether a segment should end now, between two steps.

        Args:
            steps: steps of the segment so far.
            window_steps: steps of the window so far.
            operators: operators that Python has called in the segment; None if they are not counted.
            seconds: for how long the segment has been recorded.
        """
        if operators is not None and operators > _MOST_OPERATORS * self._operators:
            return True
        if self._steps is not None:
            return window_steps % self._steps == 0
        if steps & (steps - 1):  # the same steps on all ranks, again
            return False
        if operators is not None:  # the next power of two would exceed it
            return 2 * operators > _FIRST_OPERATORS
        return steps >= _FIRST_STEPS or 2 * seconds > _FIRST_SECONDS

    def learn(self, steps: int, operators: int | None, stall_seconds: float) -> None:
        """Note the processor time that it took to save a segment and to begin the next one."""
        scale = STALL_SECONDS / max(stall_seconds, 1e-6)
        scale = min(scale, math.sqrt(scale), _MOST_GROWTH)  # the time may grow with the square
        most = min(steps * scale, _MOST_STEPS)
        self._steps = 1 << max(int(most).bit_length() - 1, 0)
        if operators:
            self._operators = operators * scale
