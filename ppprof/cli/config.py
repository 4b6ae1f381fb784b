"""``ppprof config``: the resolved config, or every problem in it."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

import yaml

from ppprof.cli import COMMANDS
from ppprof.cli.options import Checks, whole_number
from ppprof.cli.terminal import log
from ppprof.config import load_config


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
    parser.set_defaults(run_command=config)


def config(args: argparse.Namespace) -> int:
    """Return 0; the config is on stdout, its warnings on stderr."""
    checks = Checks(args)
    world_size = checks.parsed("world_size", partial(whole_number, least=1), None)
    checks.done()
    loaded = load_config(args.config, args.override, world_size)
    for warning in loaded.warnings:
        log.warning("%s", warning)
    values = loaded.to_mapping()
    if args.format == "json":
        print(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        print(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end="")
    return 0
