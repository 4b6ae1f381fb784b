"""The parser of ``ppprof trigger``, and the checks of its options."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from ppprof.choices.steps import MOST_TRIGGERED_STEPS
from ppprof.cli.parsers import COMMANDS
from ppprof.cli.parsers.options import Checks, whole_number
from ppprof.errors import UsageError
from ppprof.paths import is_remote


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "trigger",
        help=COMMANDS["trigger"],
        description=(
            "Asks the job that writes RUN to record a few steps, from a step that all ranks agree "
            "on: at least 2 steps and half a second ahead. Without --wait it prints what will "
            "happen and returns."
        ),
        epilog=(
            "Exit codes: 0 requested, or with --wait recorded; 1 with --wait: the job refused, or "
            "took longer; 2 bad usage; 3 no such run, or it has ended."
        ),
    )
    parser.add_argument("run", metavar="RUN", help="run directory (profiler_log) of rank 0's node")
    parser.add_argument(
        "--steps", metavar="N", help="steps of the window; default: Profiler.trigger.steps"
    )
    parser.add_argument(
        "--rank",
        metavar="R",
        help='which ranks record: 0, "0,8-15" or all; default: Profiler.trigger.ranks',
    )
    parser.add_argument(
        "--wait", action="store_true", help="wait for the window's files and print their names"
    )
    parser.add_argument("--timeout", metavar="SECONDS", help="how long to wait; default: for ever")
    parser.set_defaults(command="trigger", check=check)


@dataclass(frozen=True)
class Request:
    """The checked options of the command."""

    steps: int | None
    """Steps of the window; None for those of ``Profiler.trigger.steps``."""
    timeout_s: float
    """Seconds to wait for the window's files; infinite without ``--timeout``."""


def check(args: argparse.Namespace) -> Request:
    """Return the options, checked.

    Raises:
        UsageError: an option is invalid; the message has one line for each problem.
    """
    if is_remote(args.run):
        raise UsageError(f"{args.run}: a job reads requests from the directory that it writes")
    if args.timeout is not None and not args.wait:
        raise UsageError("--timeout: has no effect without --wait")
    checks = Checks(args)
    steps = checks.parsed("steps", partial(whole_number, least=1), None)
    timeout_s = checks.parsed("timeout", _seconds, math.inf)
    if steps is not None and steps > MOST_TRIGGERED_STEPS:
        checks.problems.append(f"--steps: {steps}: expected at most {MOST_TRIGGERED_STEPS}")
    checks.done()
    return Request(steps, timeout_s)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise UsageError(f"{text!r}: expected a number of seconds")
    return seconds or math.inf
