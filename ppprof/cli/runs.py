"""Open the runs that a command reads."""

from __future__ import annotations

import argparse

from ppprof.cli.terminal import Progress, log
from ppprof.paths import to_path
from ppprof.run.run import Run, open_location
from ppprof.rundir.recordings import RunLocation, resolve


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
    return open_located(args, resolve(*paths))


def open_located(args: argparse.Namespace, location: RunLocation) -> Run:
    """Open a run whose files are known; log its directory if that is not one of the given paths."""
    run = open_location(location, cache=not args.no_cache, progress=Progress.on_terminal())
    if run.paths != tuple(map(to_path, location.given)):
        log.info("%s: the newest run is %s", ", ".join(location.given), run)
    return run
