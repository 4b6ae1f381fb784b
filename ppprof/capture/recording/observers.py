"""The bases of what observes the windows of a rank."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ppprof import rundir
from ppprof.capture.output import reason
from ppprof.capture.signals import pass_interruption
from ppprof.rundir.run_file import RunFile

log = logging.getLogger("ppprof")

T = TypeVar("T")


class WindowObserver:
    """What happens around a window besides Paddle's own recording.

    `ppprof.capture.recording.windows.Windows` says in which order its methods are called. A method that is not overridden does nothing.
    """

    def bind(self, end_window: Callable[[str], bool]) -> None:
        """Keep what ends the open window within a step, given the reason, in the thread of the steps.

        It returns False in another thread: nothing has happened.
        """

    def limit(self, num_steps: int | None) -> str:
        """Return the limit that one more step might exceed; "" if the step fits.

        Args:
            num_steps: steps of the open segment so far; None ahead of a window.
        """
        return ""

    def install(self) -> None:
        """Wrap functions of Paddle: a window is about to open."""

    def started(self) -> None:
        """Handle that Paddle's profiler has started to record a window, or its next segment."""

    def num_operators(self) -> int | None:
        """Return how many operators Python has called since `started`; None if it is not counted."""
        return None

    def step(self, num_steps: int) -> None:
        """Handle the end of a step in a window, which has so many steps now."""

    def uninstall(self) -> None:
        """Restore what `install` has wrapped: Paddle's profiler is about to stop."""

    def kept(self, name: rundir.TraceName, num_steps: int) -> None:
        """Handle that provisional steps are over, and stay in memory: `saved` or `dropped` follows."""

    def saved(self, name: rundir.TraceName, num_steps: int) -> None:
        """Handle that the raw capture of a window is written."""

    def dropped(self, name: rundir.TraceName) -> None:
        """Handle that a segment is not written, or that a held window is about to be deleted."""


class FileObserver(WindowObserver, Generic[T]):
    """Collects data in a window, and writes them to a file beside the raw capture.

    A failure costs the window this file only: the training may do anything, and the disk may be full.
    """

    what: str
    """The name of the data in messages."""

    def __init__(self) -> None:
        self._kept: dict[rundir.TraceName, T | None] = {}
        """The data of segments that are in memory; None if they could not be taken."""

    @abstractmethod
    def take(self) -> T | None:
        """Return the data since the last call, and forget them; None without any."""

    @abstractmethod
    def file(self, name: rundir.TraceName) -> RunFile:
        """Return the file for the data of a segment."""

    @abstractmethod
    def write(self, data: T, file: RunFile) -> None:
        """Write what `take` has returned."""

    def kept(self, name: rundir.TraceName, num_steps: int) -> None:
        """Take the data of a segment that stays in memory."""
        self._kept[name] = None
        with self._losing_data(name):
            self._kept[name] = self.take()

    def saved(self, name: rundir.TraceName, num_steps: int) -> None:
        """Write the data of a segment."""
        with self._losing_data(name):
            data = self._kept.pop(name) if name in self._kept else self.take()
            if data is not None:
                self.write(data, self.file(name))

    def dropped(self, name: rundir.TraceName) -> None:
        """Forget the data of a segment."""
        self._kept.pop(name, None)

    @contextmanager
    def _losing_data(self, name: rundir.TraceName) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            pass_interruption(error)
            log.warning(
                f"{self.file(name)}: {reason(error)}; window {name.window} has no {self.what}"
            )
