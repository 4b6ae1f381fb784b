"""The parser of ``ppprof doctor``, and the checks of its options."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ppprof.cli.parsers import COMMANDS
from ppprof.cli.parsers.options import Checks, add_layout, whole_number

_MOST_RANKS = 256


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "doctor",
        help=COMMANDS["doctor"],
        description=(
            "Checks Paddle, the device and its profiler, the run directory's disk and memory, in "
            "under 30 seconds. Child processes do what may crash or hang. Nothing stays on disk."
        ),
        epilog=(
            "Exit codes: 0 no problem, perhaps warnings; 1 a problem, which would lose a recording "
            "or end a training; 2 bad usage or config."
        ),
    )
    add = parser.add_argument
    add(
        "profiler_log",
        metavar="PROFILER_LOG",
        nargs="?",
        help="directory that runs will be written to; default: profiler_log",
    )
    add("-c", "--config", metavar="CFG", help="take Profiler.profiler_log from this YAML file")
    add("--nproc", metavar="N", help="also launch N ranks that reduce 1 MiB")
    add(
        "--measure",
        action="store_true",
        help="also measure FLOP/s and GB/s of the device, in 15 seconds more on an idle one",
    )
    add("--format", choices=("text", "json"), default="text", help="default: text")
    add_layout(parser, tables=False)
    parser.set_defaults(command="doctor", check=check)


def check(args: argparse.Namespace) -> int:
    """Return the number of ranks of ``--nproc``; 1 if it is missing.

    Raises:
        UsageError: an option is invalid; the message has one line for each problem.
    """
    checks = Checks(args)
    nproc = checks.parsed("nproc", partial(whole_number, least=1), 1)
    if nproc > _MOST_RANKS:
        checks.problems.append(f"--nproc: {nproc}: expected at most {_MOST_RANKS}")
    if args.config is not None and args.profiler_log is not None:
        checks.problems.append("-c: has no effect beside PROFILER_LOG; give one of them")
    checks.layout()
    checks.done()
    return nproc
