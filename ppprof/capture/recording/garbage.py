"""Record Python's full garbage collections as spans: all threads stand still in one, the training's, too."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from ppprof.capture.recording.observers import WindowObserver
from ppprof.capture.recording.recorder import span
from ppprof.rundir import GARBAGE_COLLECTION

_FULL = 2
"""The oldest generation. The younger ones are collected many times a step, in microseconds."""


class GarbageCollections(WindowObserver):
    """A span around each full collection in a window, on the thread that collects.

    Args:
        report: called with the begin of each of them, and the frame of Python in which it ran; None in
            a thread of C++ without one.
    """

    def __init__(self, report: Callable[[int, FrameType | None], None]) -> None:
        self._report = report
        self._span: Any = None
        self._begin_ns = 0

    def started(self) -> None:
        """Let Python say when it collects."""
        if self._note not in gc.callbacks:  # of a window's next segment, it is there
            gc.callbacks.append(self._note)

    def uninstall(self) -> None:
        """Let it say so no longer."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        """Begin or end the span. Python collects once at a time, and nothing while it calls this."""
        if info["generation"] < _FULL:
            return
        if phase == "start":
            self._begin_ns = time.time_ns()
            self._span = span(GARBAGE_COLLECTION, "PythonUserDefined")
        elif self._span is not None:
            self._span.end()
            self._span = None
            self._report(self._begin_ns, sys._getframe().f_back)
