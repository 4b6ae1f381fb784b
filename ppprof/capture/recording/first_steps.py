"""The provisional steps of a rank: recorded, but written only if no window is.

They are recorded ahead of a window, and stay in memory until they are dropped or written::

    step             1  2  3  4  5      6      7     8
    state            p  p  p  -  r      R      R     R
    Paddle records   x  x  x            x      x     x
    in memory                 steps 1-3 .............     the window is over: they are freed

Once step 6 has ended, they would not be written any more.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppprof import rundir
from ppprof.rundir.run_file import RunFile

if TYPE_CHECKING:
    from ppprof.rundir.operator_calls import OperatorCalls


@dataclass(frozen=True)
class InMemory:
    """A recording that is over and not written."""

    name: rundir.TraceName
    steps: range
    events: Any
    """The result of `Recorder.take`."""
    operator_calls: OperatorCalls | None


class FirstSteps:
    """The provisional steps from their end on.

    Args:
        run: the run directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._kept: InMemory | None = None
        self._dropped: InMemory | None = None

    def __bool__(self) -> bool:
        """Return whether there are steps to write."""
        return self._kept is not None

    def keep(self, recording: InMemory) -> None:
        """Keep the steps until `take` or `drop`."""
        self._kept = recording

    def take(self) -> InMemory | None:
        """Return the steps to write them; None if no steps are kept."""
        recording, self._kept = self._kept, None
        return recording

    def drop(self) -> None:
        """Do not write the steps: a step of the window has ended.

        They are freed by `free`. That may take as long as a short step, so it must not happen within
        the window.
        """
        if self._kept is not None:
            self._dropped, self._kept = self._kept, None

    def free(self) -> None:
        """Free dropped steps, and delete the remote calls that they made."""
        dropped, self._dropped = self._dropped, None
        if dropped is not None:
            delete_calls(self._run, dropped.name)

    def later_than(self, now: datetime) -> datetime:
        """Return when a window opens, to the second: later than the steps, whose files it must not share.

        Names of files have seconds, in which short steps end.
        """
        now = now.replace(microsecond=0)
        recording = self._kept or self._dropped
        if recording is None:
            return now
        return max(now, recording.name.started.replace(microsecond=0) + timedelta(seconds=1))


def delete_calls(run: Path, name: rundir.TraceName | None) -> None:
    """Delete the remote calls of a recording that is not written; do nothing without a recording."""
    if name is not None:
        with suppress(OSError):
            RunFile(run, name.calls).remove_folder()
