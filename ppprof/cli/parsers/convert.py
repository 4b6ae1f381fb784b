"""The parser of ``ppprof convert``, and the checks of its options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from ppprof.choices.formats import suffix_of
from ppprof.choices.steps import StepRange
from ppprof.cli.parsers import COMMANDS
from ppprof.cli.parsers.options import Checks, add_selection, add_workers
from ppprof.cli.parsers.outputs import is_same
from ppprof.errors import UsageError
from ppprof.paths import store_errors_as_oserror, to_path
from ppprof.topology import RankSelector


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "convert",
        help=COMMANDS["convert"],
        description=(
            "Reads the trace IN, of Paddle's or torch's profiler and broken or not, and writes it "
            "to OUT: Paddle's JSON, which VisualDL, Perfetto and chrome://tracing open, or "
            "Paddle's .pb. With --to kineto, IN may be a run, and OUT is a directory of "
            "torch.profiler's JSON, one file a rank, which HTA and TraceLens read. "
            "VisualDL's Trace page needs the internet."
        ),
    )
    add = parser.add_argument
    add("source", type=to_path, metavar="IN", help="trace file; with --to kineto, also a run")
    add(
        "target",
        type=to_path,
        metavar="OUT",
        help="ends in .json, .json.gz or .pb; with --to kineto, a directory, or such a .json of one rank",
    )
    add(
        "--to",
        choices=("paddle", "kineto"),
        default="paddle",
        help="whose format to write; default: paddle",
    )
    add_selection(parser)
    add("--gzip", action="store_true", default=None, help="compress the files in the directory OUT")
    add_workers(parser)
    add("--force", action="store_true", help="replace OUT where it exists")
    parser.set_defaults(command="convert", check=check)


@dataclass(frozen=True)
class KinetoRequest:
    """The checked options of ``--to kineto``."""

    ranks: RankSelector
    window: int | None
    """The window to write; None for all windows."""
    steps: StepRange | None
    """The steps to write; None for all steps."""
    gzip: bool
    """Whether the files in a directory are compressed."""
    workers: int | None
    """The number of processes; None for the default."""


def check(args: argparse.Namespace) -> KinetoRequest | None:
    """Return the options of ``--to kineto``, checked; None for one trace in Paddle's formats.

    Raises:
        UsageError: an option is invalid, or OUT cannot be written; the message has the reason.
    """
    checks = Checks(args)
    if args.to == "kineto":
        ranks, window, steps = checks.ranks("all"), checks.window(), checks.steps()
        workers = checks.workers()
        if args.target.name.endswith((".json", ".json.gz")):
            checks.no_effect(("gzip",), "on a file: the name OUT says whether it is compressed")
        checks.done()
        return KinetoRequest(ranks, window, steps, bool(args.gzip), workers)
    checks.no_effect(("rank", "window", "steps", "gzip", "workers"), "without --to kineto")
    checks.done()
    _check_target(args)
    return None


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
