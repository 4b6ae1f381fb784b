"""``ppprof merge``: all ranks in one timeline, on one clock."""

from __future__ import annotations

import argparse
import re
from decimal import Decimal
from typing import Any

from ppprof.analysis.profile.steps import StepRange
from ppprof.cli.options import add_cache, opened
from ppprof.cli.terminal import problem_of_output, tell
from ppprof.errors import UsageError
from ppprof.paths import to_path
from ppprof.topology import parse_selector
from ppprof.units import format_ranges

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_DURATION = re.compile(r"(?P<number>\d{1,9}(\.\d{1,9})?)\s*(?P<unit>ns|us|ms|s)")


def register(subparsers: Any) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "merge",
        help="put all ranks into one timeline, on one clock",
        description=(
            "Writes the ranks of RUN into one timeline, which https://ui.perfetto.dev and "
            "chrome://tracing open: a process a rank, threads and streams under it, times on the "
            "clock of rank 0, arrows between the ranks of a collective."
        ),
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory (the newest run in it), or one of traces")
    add(
        "-o",
        "--output",
        type=to_path,
        metavar="FILE",
        required=True,
        help="ends in .json or .json.gz",
    )
    add("--ranks", metavar="R", default="all", help='all, "0,8-15", or coordinates: pp=0,dp=1')
    add("--steps", metavar="A:B", help="only steps A to B-1; A:, :B or one number as well")
    add(
        "--min-dur",
        metavar="T",
        default="0ns",
        help="leave out shorter events (50us, 1ms), but no step, communication or pipeline span",
    )
    add("--force", action="store_true", help="replace FILE where it exists")
    add_cache(parser)
    parser.set_defaults(run_command=merge)


def merge(args: argparse.Namespace) -> int:
    """0 when FILE was written, whatever could not be read beside what is in it."""
    problems: list[str] = []

    def checked(flag: str, check: Any, text: str) -> Any:
        try:
            return check(text)
        except UsageError as error:
            problems.append(f"{flag}: {error}")

    ranks = checked("--ranks", parse_selector, args.ranks)
    min_dur_ns = checked("--min-dur", nanoseconds, args.min_dur)
    if args.steps is not None:
        checked("--steps", StepRange.parse, args.steps)
    if not args.output.name.endswith((".json", ".json.gz")):
        problems.append(f"-o {args.output}: expected a name that ends in .json or .json.gz")
    elif problem := problem_of_output(args.output, [args.run], args.force):
        problems.append(f"-o {args.output}: {problem}")
    if problems:
        raise UsageError("\n".join(problems))
    run = opened(args.run, cache=not args.no_cache)
    sources = [file for recording in run.recordings for file in recording.files]
    if problem := problem_of_output(args.output, sources, args.force):
        raise UsageError(f"-o {args.output}: {problem}")
    try:
        made = run.merge(args.output, ranks=ranks, steps=args.steps, min_dur_ns=min_dur_ns)
    except OSError as error:
        raise UsageError(f"-o {args.output}: {error.strerror or error}") from error
    size = args.output.stat().st_size
    tell(
        f"{args.output}: {format_ranges('rank', made.ranks)}, {made.num_events} events, {size} bytes"
    )
    return 0


def nanoseconds(text: str) -> int:
    """A length of time with its unit.

    >>> nanoseconds("20us"), nanoseconds("0.5 ms")
    (20000, 500000)

    Raises:
        UsageError: none, or no unit.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r}: expected a length of time with its unit: 50us, 0.5ms, 1s")
    return int(Decimal(match["number"]) * _UNITS_NS[match["unit"]])
