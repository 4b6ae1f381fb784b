"""The parser of ``ppprof config``, and the checks of its options."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ppprof.cli.parsers import COMMANDS
from ppprof.cli.parsers.options import Checks, whole_number


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "config",
        help=COMMANDS["config"],
        description=(
            "Reads CFG with its _base_ chain and overrides, checks it, and prints what a training "
            "job would see. --world-size checks a cluster's config on a laptop."
        ),
    )
    parser.add_argument("config", metavar="CFG", help="a YAML file")
    parser.add_argument(
        "-o",
        "--override",
        action="append",
        default=[],
        metavar="K=V",
        help="set a key, such as Profiler.enable=True; may be given again",
    )
    parser.add_argument("--world-size", metavar="N", help="number of processes")
    parser.add_argument("--format", choices=("yaml", "json"), default="yaml", help="default: yaml")
    parser.set_defaults(command="config", check=check)


def check(args: argparse.Namespace) -> int | None:
    """Return the number of processes of ``--world-size``; None if it is missing."""
    checks = Checks(args)
    world_size = checks.parsed("world_size", partial(whole_number, least=1), None)
    checks.done()
    return world_size
