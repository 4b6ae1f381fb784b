"""Open the runs that a command reads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ppprof.choices import ReadOptions
from ppprof.cli.terminal import ProgressBar, log
from ppprof.messages import Message
from ppprof.paths import is_remote, to_path
from ppprof.rundir.recordings import RunLocation, resolve

if TYPE_CHECKING:
    from ppprof.run.run import Run

NAMES_OF_RUNS = "a log directory is its newest run, and LOG/run_001 its first one"
"""How two runs of one log directory are named, for messages about a run that is named twice."""


def open_run(*paths: str, reading: ReadOptions | None = None) -> Run:
    """Open the one run at the given paths; log its directory if that is not one of the paths.

    A log directory may hold several runs: its newest run is opened.

    Args:
        paths: as for `ppprof.rundir.recordings.resolve`: a run directory, the run directories of
            several nodes of one job, a directory of traces, or a trace file.
        reading: how to read the traces; None for the defaults.

    Raises:
        InputError: the paths have no run and no trace, are unreadable, or belong to several runs.
    """
    location = resolve(*paths)
    run = open_located(location, reading)
    log_newest(run, location)
    return run


def open_located(location: RunLocation, reading: ReadOptions | None = None) -> Run:
    """Open a run whose files are known; ``reading`` as in `open_run`."""
    from ppprof.run.run import Run  # only here: it imports numpy and polars

    return Run(location, ProgressBar.on_terminal(), reading)


def log_newest(run: Run, location: RunLocation) -> None:
    """Log the directory of a run if that is not one of the paths that the user gave."""
    if location.manifest and run.paths != tuple(map(to_path, location.given)):
        log.info("%s", Message("newest", given=", ".join(location.given), path=run))


def is_any_same(*runs: Run) -> bool:
    """Return whether two of the runs are one, which may have several names."""
    places = [
        {str(path) if is_remote(path) else os.path.realpath(path) for path in run.paths}
        for run in runs
    ]
    return len(set[str]().union(*places)) < sum(map(len, places))
