"""``ppprof convert``: a trace in another format, or mended in its own; or a run for other tools."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from ppprof.cli import executors
from ppprof.cli.parsers.convert import KinetoRequest
from ppprof.cli.parsers.outputs import problem_of_output
from ppprof.cli.runs import open_run
from ppprof.cli.terminal import Progress, log
from ppprof.errors import InputError, UsageError
from ppprof.run.convert import has_events, kineto_paths, write_kineto_files
from ppprof.trace import read, write
from ppprof.units import format_omitted, format_ranges, format_skipped, format_unusable


def run(args: argparse.Namespace) -> int:
    """Return 0 when OUT was written, even if parts of IN were skipped.

    Raises:
        InputError: IN has no event that can be written.
        UsageError: OUT cannot be written.
    """
    if args.request is not None:
        return _to_kineto(args, args.request)
    progress = Progress.on_terminal()
    trace = read(args.source, progress=partial(progress, args.source) if progress else None)
    if not has_events(trace):
        raise InputError(format_unusable(args.source, trace.skipped))
    if trace.skipped:
        log.warning("%s", format_skipped(args.source, trace.skipped))
    try:
        if omitted := write(trace, args.target):
            log.warning("%s", format_omitted(args.target, omitted))
    except OSError as error:
        raise UsageError(f"{args.target}: {error.strerror or error}") from error
    size = args.target.stat().st_size
    log.info("%s: %d events, %d bytes", args.target, trace.events.height, size)
    return 0


def _to_kineto(args: argparse.Namespace, request: KinetoRequest) -> int:
    run = open_run(args.source)
    paths = kineto_paths(run, args.target, request.ranks, request.window, request.gzip)
    sources = [file for recording in run.recordings for file in recording.files]
    _check_targets(args.target, paths.values(), sources, args.force)
    try:
        with executors.processes(request.workers, run) as executor:
            written = write_kineto_files(run, paths, request.steps, executor)
    except OSError as error:
        raise UsageError(f"{args.target}: {error.strerror or error}") from error
    log.info(
        "%s: %s, %d events, %d bytes",
        args.target,
        format_ranges("rank", written.ranks),
        written.num_events,
        sum(path.stat().st_size for path in written.paths),
    )
    return 0


def _check_targets(
    target: Path, paths: Iterable[Path], sources: Iterable[Path], force: bool
) -> None:
    """Reject files that cannot be written, and warn of other traces in their directories.

    Raises:
        UsageError: the message has one line for each problem.
    """
    written = set(paths)
    problems = [
        f"{path}: {problem}"
        for path in sorted(written)
        if path == target or path.parent.is_dir()  # directories in OUT are made
        if (problem := problem_of_output(path, sources, force))
    ]
    if problems:
        raise UsageError("\n".join(problems))
    for directory in sorted({path.parent for path in written if path != target}):
        others = [*directory.glob("*.json"), *directory.glob("*.json.gz")]
        if names := sorted(other.name for other in set(others) - written):
            log.warning(
                "%s: also has %s; HTA takes all traces in a directory for ranks of one job",
                directory,
                ", ".join(names),
            )
