"""The base of what observes the windows of a rank."""

from __future__ import annotations

from ppprof import rundir


class WindowObserver:
    """What happens around a window besides Paddle's own recording.

    `ppprof.capture.recording.windows.Windows` says in which order its methods are called. A method that is not overridden does nothing.
    """

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
