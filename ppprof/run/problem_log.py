"""Log what is wrong with the files of a run, each problem once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from ppprof.messages import Message
from ppprof.units import format_skipped

_log = logging.getLogger("ppprof")


class ProblemLog:
    """Logs problems with files, and notes on them, once for each file."""

    def __init__(self) -> None:
        self._reported: set[Path] = set()
        self._is_device_reported = False

    def report(
        self,
        path: Path,
        skipped: Mapping[str, int],
        errors: Iterable[str] = (),
        notes: Iterable[str] = (),
        unrecorded_device: str | None = None,
    ) -> None:
        """Log the problems with a file, and notes on it; do nothing if they are logged already.

        That a trace lacks the events of its device is logged once for all files of the run.

        Args:
            path: the file that was read.
            skipped: kind -> number of parts of the file that were skipped.
            errors: errors of unreadable files of the same window that are preferred to ``path``.
            notes: the result of `ppprof.run.traces.notes_on`.
            unrecorded_device: the result of `ppprof.trace.unrecorded_device`; None if unknown.
        """
        if path in self._reported:
            return
        self._reported.add(path)
        warn_each(errors)
        if skipped:
            _log.warning("%s", format_skipped(path, skipped))
        warn_each(notes)
        if unrecorded_device and not self._is_device_reported:
            self._is_device_reported = True
            _log.warning("%s", Message("unrecorded", path=path, device=unrecorded_device))


def warn_each(messages: Iterable[str]) -> None:
    """Log each message as a warning."""
    for message in messages:
        _log.warning("%s", message)
