"""``ppprof merge``: all ranks in one timeline, on one clock."""

from __future__ import annotations

import argparse

from ppprof.cli.options import (
    Checks,
    add_output,
    add_paths,
    add_reading,
    add_renamed,
    add_selection,
    nanoseconds,
)
from ppprof.cli.output import problem_of_output
from ppprof.cli.terminal import log
from ppprof.errors import UsageError

EXAMPLES = {
    "ppprof merge profiler_log -o all.json.gz": "one timeline of all ranks, for ui.perfetto.dev",
    "ppprof merge profiler_log --rank dp=0 --steps 5:7 -o part.json": "some ranks and steps",
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Writes the ranks of RUN into one timeline, which https://ui.perfetto.dev and "
        "chrome://tracing open: a process for each rank, threads and streams under it, times "
        "on the clock of rank 0, arrows between the ranks of a collective."
    )
    add = parser.add_argument
    add_paths(
        parser,
        "run directory (the newest run in it), or those of a run's nodes; or one of traces",
    )
    add_selection(parser)
    add_renamed(parser, "--ranks", "--rank")
    add(
        "--min-dur",
        metavar="T",
        help="leave out shorter events (50us, 1ms), but no step, communication or pipeline span",
    )
    add_output(parser, "the timeline to write; ends in .json or .json.gz; required")
    add_reading(parser, workers=False)


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    checks.selection()
    checks.parse("min_dur", nanoseconds, 0)
    if args.output is None:
        checks.problems.append("-o: expected the timeline to write, -o merged.json.gz")
    elif not args.output.name.endswith((".json", ".json.gz")):
        checks.problems.append(f"-o {args.output}: expected a name that ends in .json or .json.gz")
    else:
        checks.output(args.paths)
    checks.done()


def run(args: argparse.Namespace) -> int:
    """Return 0 when FILE was written, even if some ranks could not be read."""
    from ppprof.cli.runs import open_run

    run = open_run(*args.paths, reading=args.reading)
    sources = [file for recording in run.recordings for file in recording.every_file]
    if problem := problem_of_output(args.output, sources, args.force):
        raise UsageError(f"-o {args.output}: {problem}")
    try:
        merged = run.merge(
            args.output,
            ranks=args.rank,
            window=args.window,
            steps=args.steps,
            min_dur_ns=args.min_dur,
        )
    except OSError as error:
        raise UsageError(f"-o {args.output}: {error.strerror or error}") from error
    log.info(
        "%s: %s, %d events, %d bytes",
        args.output,
        run.name_ranks(merged.ranks),
        merged.num_events,
        args.output.stat().st_size,
    )
    return 0
