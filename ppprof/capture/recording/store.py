"""The windows of a rank once Paddle's profiler is closed: in memory, held or saved.

::

    provisional steps    in memory -> written in place of the window, or freed
    held window          written -> released once it is kept, or deleted
    any other window     written -> tables and traces are made
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ppprof import rundir
from ppprof.capture.postprocess import PostProcessor
from ppprof.rundir.run_file import RunFile
from ppprof.topology import Topology


@dataclass(frozen=True)
class InMemory:
    """A segment that is closed and not written."""

    name: rundir.TraceName
    steps: range
    events: Any
    """The result of `Recorder.take`."""


class ProvisionalSteps:
    """The provisional steps of a rank, from their end on: written only if no window is.

    They are recorded ahead of a window, and stay in memory until they are dropped or written::

        step             1  2  3  4  5      6      7     8
        state            p  p  p  -  r      R      R     R
        Paddle records   x  x  x            x      x     x
        in memory                 steps 1-3 .............     the window is over: they are freed

    Once step 6 has ended, they would not be written any more.
    """

    def __init__(self) -> None:
        self._kept: InMemory | None = None
        self._dropped: InMemory | None = None

    def __bool__(self) -> bool:
        """Return whether there are steps to write."""
        return self._kept is not None

    def keep(self, segment: InMemory) -> None:
        """Keep the steps until `take` or `drop`."""
        self._kept = segment

    def take(self) -> InMemory | None:
        """Return the steps to write them; None if no steps are kept."""
        segment, self._kept = self._kept, None
        return segment

    def drop(self) -> None:
        """Do not write the steps: a step of the window has ended.

        They are freed by `free`. That may take as long as a short step, so it must not happen within
        the window.
        """
        if self._kept is not None:
            self._dropped, self._kept = self._kept, None

    def free(self) -> rundir.TraceName | None:
        """Free dropped steps and return their name; None without any."""
        dropped, self._dropped = self._dropped, None
        return None if dropped is None else dropped.name

    def later_than(self, now: datetime) -> datetime:
        """Return when a window opens, to the second: later than the steps, whose files it must not share.

        Names of files have seconds, in which short steps end.
        """
        now = now.replace(microsecond=0)
        segment = self._kept or self._dropped
        if segment is None:
            return now
        return max(now, segment.name.started.replace(microsecond=0) + timedelta(seconds=1))


class WindowStore:
    """The files of a rank's windows in the run directory, and what became of each window."""

    def __init__(
        self, run: Path, rank: int, topology: Topology, post_processor: PostProcessor
    ) -> None:
        self.rank = rank
        self._run = run
        self._label = topology.label(rank)
        self._post_processor = post_processor
        self._held: dict[int, list[rundir.TraceName]] = {}
        self._segments: list[rundir.TraceName] = []
        """The saved segments of the window that is open."""
        self.provisional = ProvisionalSteps()
        self.holds = False
        """Whether windows are held when they are saved: they get their tables at `release`, or are
        deleted."""
        self.saved: list[rundir.TraceName] = []
        """Names of the first segments of saved windows that are not held, in the order of saving or
        release."""
        self.num_segments: dict[int, int] = {}
        """Number of a saved window -> number of its segments."""
        self.saved_steps: dict[int, range] = {}
        """Number of a saved window -> the steps that were recorded."""
        self.cut: set[int] = set()
        """Numbers of the windows that ended early, since the training created a profiler."""
        self.num_skipped = 0
        """Number of windows that were not recorded, since another profiler was open."""
        self.num_dropped = 0
        """Number of held windows that were deleted."""

    def new_name(self, window: int) -> rundir.TraceName:
        """Return the name of the files of a window that opens now."""
        started = self.provisional.later_than(datetime.now())
        return rundir.TraceName(self.rank, self._label, started, window)

    def raw(self, name: rundir.TraceName) -> RunFile:
        """Return the file for the raw capture of a window."""
        return RunFile(self._run, name.raw)

    def calls(self, name: rundir.TraceName) -> RunFile:
        """Return the folder for the remote calls that are made in a window."""
        return RunFile(self._run, name.calls)

    def delete_calls(self, name: rundir.TraceName) -> None:
        """Delete the remote calls of a window that is not written."""
        with suppress(OSError):
            self.calls(name).remove_folder()

    def add(self, name: rundir.TraceName, steps: range) -> None:
        """Note that the raw capture of a window, or of its next segment, is written."""
        self._segments.append(name)
        before = self.saved_steps.get(name.window, steps) if name.segment else steps
        self.saved_steps[name.window] = range(before.start, steps.stop)
        self.num_segments[name.window] = len(self._segments)

    def end_window(self, brief: bool = False) -> None:
        """Hold the window whose segments were added, or start to make its tables and traces.

        Do nothing without any.

        Args:
            brief: whether to return at once, since the process is about to end.
        """
        segments, self._segments = self._segments, []
        if segments and self.holds:
            self._held[segments[0].window] = segments
        elif segments:
            self._finish(segments, brief)

    def release(self, window: int) -> None:
        """Start to make tables and traces of a held window; do nothing if it is not held."""
        segments = self._held.pop(window, None)
        if segments is not None:
            self._finish(segments, brief=False)

    def release_all(self, brief: bool = False) -> None:
        """Release all held windows, in the order of saving.

        Args:
            brief: whether to return at once, since the process is about to end.
        """
        for window in list(self._held):
            self._finish(self._held.pop(window), brief)

    def drop(self, window: int) -> list[rundir.TraceName]:
        """Hold a window no longer, since it is to be deleted, and return its segments; [] if not held."""
        segments = self._held.pop(window, [])
        self.num_dropped += bool(segments)
        return segments

    def delete(self, name: rundir.TraceName) -> None:
        """Delete the files of a segment.

        Raises:
            OSError: the raw capture cannot be deleted.
        """
        self.delete_calls(name)
        for path in (name.operator_calls, name.stacks, name.raw):
            with suppress(FileNotFoundError):  # `ppprof finish` was faster
                RunFile(self._run, path).remove()

    def _finish(self, segments: list[rundir.TraceName], brief: bool) -> None:
        first = segments[0]
        self.saved.append(first)
        sizes = []
        for name in segments:
            with suppress(OSError):
                sizes.append((self._run / name.raw).stat().st_size)
        self._post_processor.add(first.window, self._run / first.raw, brief, sum(sizes))
