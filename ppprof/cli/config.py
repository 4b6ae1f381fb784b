"""``ppprof config``: the resolved config, or every problem in it."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial

from ppprof.cli.options import Checks, whole_number
from ppprof.cli.terminal import columns_of, log

EXAMPLES = {
    "ppprof config gpt.yaml": "the config with its _base_ files, or each problem with its line",
    "ppprof config gpt.yaml -o Profiler.enable=True --world-size 8": "as 8 processes get it",
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Reads CFG with its _base_ chain and overrides, checks it, and prints what a training "
        "job would see. --world-size checks a cluster's config on a laptop."
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


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    checks.parse("world_size", partial(whole_number, least=1))
    checks.done()


def run(args: argparse.Namespace) -> int:
    """Return 0; the config is on stdout, its warnings on stderr."""
    import yaml

    from ppprof.config import load_config
    from ppprof.rundir.manifest import plain

    loaded = load_config(args.config, args.override, args.world_size)
    for warning in loaded.warnings:
        log.warning("%s", warning)
    values = loaded.to_mapping()
    if args.format == "json":
        print(json.dumps(plain(values), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        width = (columns_of(sys.stdout) or 100) - 20  # PyYAML breaks after the word that is too far
        print(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=width), end="")
    return 0
