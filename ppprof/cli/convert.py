"""``ppprof convert``: a trace in another format, or mended in its own; or a run for other tools."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ppprof.choices import suffix_of
from ppprof.cli.options import Checks, add_selection, add_workers
from ppprof.cli.output import is_same, problem_of_output
from ppprof.cli.terminal import ProgressBar, log
from ppprof.errors import InputError, UsageError
from ppprof.paths import store_errors_as_oserror, to_path
from ppprof.units import format_omitted, format_ranges, format_skipped, format_unusable

if TYPE_CHECKING:
    from ppprof.rundir.python_stacks import PythonStacks
    from ppprof.trace import Trace

EXAMPLES = {
    "ppprof convert broken.json mended.json": "a trace that every viewer opens",
    "ppprof convert profiler_log kineto --to kineto": "one file a rank, for HTA and TraceLens",
    "ppprof convert profiler_log lines.json --to speedscope": "Python stacks, for speedscope.app",
    "ppprof convert capture.pb trace.json.gz": "Paddle's .pb as JSON, for ui.perfetto.dev",
}

_OF_STACKS = ("speedscope", "collapsed")
"""Values of ``--to`` for samples of Python stacks."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Reads the trace IN, of Paddle's or torch's profiler and broken or not, and writes it "
        "to OUT: Paddle's JSON, which VisualDL, Perfetto and chrome://tracing open, or "
        "Paddle's .pb. With --to kineto, IN may be a run, and OUT is a directory of "
        "torch.profiler's JSON, one file a rank, which HTA and TraceLens read. With --to "
        "speedscope or collapsed, OUT is a file with the samples of Python stacks in IN. "
        "VisualDL's Trace page needs the internet."
    )
    add = parser.add_argument
    add(
        "source",
        type=to_path,
        metavar="IN",
        help="trace file; with another --to than paddle, also a run",
    )
    add(
        "target",
        type=to_path,
        metavar="OUT",
        help="ends in .json, .json.gz or .pb; with --to kineto, a directory, or such a .json of one rank; "
        "with --to speedscope or collapsed, any name",
    )
    add(
        "--to",
        choices=("paddle", "kineto", *_OF_STACKS),
        default="paddle",
        help="whose format to write; collapsed: for flamegraph.pl; default: paddle",
    )
    add_selection(parser)
    add("--gzip", action="store_true", default=None, help="compress the files in the directory OUT")
    add_workers(parser)
    add("--force", action="store_true", help="replace OUT where it exists")


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    checks.selection()
    if args.to == "kineto":
        checks.workers()
        if args.target.name.endswith((".json", ".json.gz")):
            checks.no_effect(("gzip",), "on a file: the name OUT says whether it is compressed")
        checks.done()
        return
    if args.to in _OF_STACKS:
        checks.no_effect(("steps", "gzip", "workers"), "without --to kineto")
        checks.done()
        if problem := problem_of_output(args.target, [args.source], args.force, replaces=False):
            raise UsageError(f"{args.target}: {problem}")
        return
    checks.no_effect(("rank", "window", "steps", "gzip", "workers"), "without --to kineto")
    checks.done()
    _check_target(args)


def _check_target(args: argparse.Namespace) -> None:
    """Reject an OUT of an unknown format, and one that exists.

    Raises:
        UsageError: OUT cannot be written; the message has the reason.
    """
    suffix_of(args.target)
    try:
        with store_errors_as_oserror(args.target):
            exists = args.target.exists()
            if exists and not args.force:
                raise UsageError(f"{args.target}: exists; --force replaces it")
            if exists and is_same(args.target, args.source):
                raise UsageError(f"{args.target}: IN and OUT are one file; give OUT another name")
    except OSError as error:
        raise UsageError(f"{args.target}: {error.strerror or error}") from error


def run(args: argparse.Namespace) -> int:
    """Return 0 when OUT was written, even if parts of IN were skipped.

    Raises:
        InputError: IN has no event that can be written.
        UsageError: OUT cannot be written.
    """
    if args.to == "kineto":
        return _to_kineto(args)
    if args.to in _OF_STACKS:
        return _to_stacks(args)
    from ppprof.run.convert import has_events
    from ppprof.trace import read, write

    progress = ProgressBar.on_terminal()
    show = partial(progress, args.source) if progress else None
    trace = read(args.source, progress=show, reading=args.reading)
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


def _to_kineto(args: argparse.Namespace) -> int:
    from ppprof.cli.executors import processes
    from ppprof.cli.runs import open_run
    from ppprof.run.convert import kineto_paths, write_kineto_files

    run = open_run(args.source, reading=args.reading)
    paths = kineto_paths(run, args.target, args.rank, args.window, bool(args.gzip))
    sources = [file for recording in run.recordings for file in recording.every_file]
    _check_targets(args.target, paths.values(), sources, args.force)
    try:
        with processes(args.workers, len(run.recordings)) as executor:
            written = write_kineto_files(run, paths, args.steps, executor)
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


def _stacks_of(trace: Trace) -> PythonStacks | None:
    return trace.stacks


def _to_stacks(args: argparse.Namespace) -> int:
    from ppprof.cli.runs import open_run
    from ppprof.run.convert import STACK_FORMATS

    run = open_run(args.source, reading=args.reading)
    works = dict.fromkeys(run.select_ranks(args.rank, args.window), _stacks_of)
    windows = {
        f"rank {result.recording.rank}, window {result.recording.window}": result.value
        for result in run.reader.map_works(works)
        if result.value is not None and len(result.value.samples)
    }
    if not windows:
        raise InputError(
            f"{args.source}: no samples of Python stacks; expected a run that was recorded with "
            "Profiler.python_stacks"
        )
    try:
        args.target.write_text(STACK_FORMATS[args.to](windows), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{args.target}: {error.strerror or error}") from error
    num = sum(len(stacks.samples) for stacks in windows.values())
    log.info("%s: %d samples, %d bytes", args.target, num, args.target.stat().st_size)
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
