"""Open the runs that a command reads."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ppprof.cli.importing import importing
from ppprof.cli.terminal import Progress, log
from ppprof.paths import to_path
from ppprof.run.problem_log import ProblemLog
from ppprof.run.run_files import RunFiles
from ppprof.rundir.recordings import RunLocation, resolve

if TYPE_CHECKING:
    from ppprof.run.run import Run


def open_run(args: argparse.Namespace, *paths: str) -> Run:
    """Open the one run at the given paths; log its directory if that is not one of the paths.

    A log directory may hold several runs: its newest run is opened.

    Args:
        args: the command's arguments; reads ``no_cache``.
        paths: as for `ppprof.rundir.recordings.resolve`: a run directory, the run directories of
            several nodes of one job, a directory of traces, or a trace file.

    Raises:
        InputError: the paths have no run and no trace, are unreadable, or belong to several runs.
    """
    location = resolve(*paths)
    run = open_located(args, location)
    log_newest(run, location)
    return run


def open_located(
    args: argparse.Namespace, location: RunLocation, problems: ProblemLog | None = None
) -> Run:
    """Open a run whose files are known; ``problems`` is the log of its files, None for a new one."""
    with importing():
        from ppprof.run.run import open_location  # only here: it imports numpy and polars

    progress = Progress.on_terminal()
    return open_location(location, cache=not args.no_cache, progress=progress, problems=problems)


def log_newest(run: RunFiles, location: RunLocation) -> None:
    """Log the directory of a run if that is not one of the paths that the user gave."""
    if run.paths != tuple(map(to_path, location.given)):
        log.info("%s: the newest run is %s", ", ".join(location.given), run)
