"""``ppprof config``: the resolved config, or every problem in it."""

from __future__ import annotations

import argparse
import json
import sys

import yaml

from ppprof.cli.terminal import columns_of, log
from ppprof.config import load_config


def run(args: argparse.Namespace) -> int:
    """Return 0; the config is on stdout, its warnings on stderr."""
    world_size: int | None = args.request
    loaded = load_config(args.config, args.override, world_size)
    for warning in loaded.warnings:
        log.warning("%s", warning)
    values = loaded.to_mapping()
    if args.format == "json":
        print(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        width = (columns_of(sys.stdout) or 100) - 20  # PyYAML breaks after the word that is too far
        print(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=width), end="")
    return 0
