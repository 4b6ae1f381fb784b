"""The session that is attached to this process, for code that the training calls elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ppprof.capture.recording.windows import Windows
    from ppprof.capture.session import RecordingSession
    from ppprof.rundir.run_file import RunFile


class Attached(NamedTuple):
    """A session of this process, which may be closed since."""

    session: RecordingSession
    windows: Windows | None
    """None if this rank does not record."""
    settings: Mapping[str, Any]
    """The ``Profiler`` block."""
    run: Path | None = None
    """The run directory; None if nothing is written."""


_latest: Attached | None = None


def remember(attached: Attached) -> None:
    """Make a session the latest one of this process."""
    global _latest
    _latest = attached


def is_attached() -> bool:
    """Return whether a session of this process is open."""
    return _latest is not None and _latest.session.is_active


def was_attached() -> bool:
    """Return whether this process has had a session."""
    return _latest is not None


def run_directory() -> Path | None:
    """Return the run directory of the latest session of this process; None without one."""
    return None if _latest is None else _latest.run


@dataclass(frozen=True)
class OpenWindow:
    """The window that this process records now."""

    rank: int
    calls: RunFile
    """The folder for the remote calls that are made in the window."""
    settings: Mapping[str, Any]
    """The ``Profiler`` block."""


def open_window() -> OpenWindow | None:
    """Return the window that the attached session records now.

    None without a session, after its end, in a forked child, and while this rank records no window.
    """
    attached = _recording()
    if attached is None or attached.windows is None:
        return None
    calls = attached.windows.calls
    return OpenWindow(attached.session.rank, calls, attached.settings) if calls else None


def open_calls_folder(path: str) -> RunFile | None:
    """Return the folder for remote calls with this path; None if it is of no segment of an open window.

    A segment's folder is open until the window ends: a call may return in a later segment, or while
    a segment is saved.
    """
    attached = _recording()
    folders = attached.windows.call_folders if attached and attached.windows else ()
    return next((folder for folder in folders if str(folder) == path), None)


def _recording() -> Attached | None:
    is_active = _latest is not None and _latest.session.is_active
    return _latest if is_active else None
