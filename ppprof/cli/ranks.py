"""``ppprof ranks``: what each rank of a run spends its steps on, side by side."""

from __future__ import annotations

import argparse
from concurrent.futures import Executor
from contextlib import AbstractContextManager

from ppprof.cli import executors
from ppprof.cli.importing import importing
from ppprof.cli.parsers.ranks import Request
from ppprof.cli.runs import log_newest, open_located
from ppprof.paths import to_path
from ppprof.run.run_files import RunFiles
from ppprof.rundir.recordings import resolve


def run(args: argparse.Namespace) -> int:
    """Print the times of the ranks; return 0, even if some ranks could not be read."""
    request: Request = args.request
    paths = args.paths
    if args.dask is not None:  # workers on other machines have other working directories
        paths = [str(to_path(path).absolute()) for path in paths]
    location = resolve(*paths)
    workers: AbstractContextManager[Executor | None] = (
        executors.processes(request.workers, RunFiles(location))
        if args.dask is None
        else executors.dask(args.dask)
    )
    with workers as executor:
        # This imports numpy and polars; the processes do so at the same time.
        run = open_located(location)
        log_newest(run, location)
        with importing():
            from ppprof.cli.ranks_output import show_ranks

        show_ranks(args, run, executor)
    return 0
