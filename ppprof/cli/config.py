"""``ppprof config``: the resolved config, or every problem in it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

import yaml

from ppprof.config import Config, load_config


def register(subparsers: Any) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "config",
        help="print the resolved config, or every problem in it",
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
    parser.add_argument("--world-size", type=int, metavar="N", help="number of processes")
    parser.add_argument("--format", choices=("yaml", "json"), default="yaml")
    parser.set_defaults(run_command=config)


def config(args: argparse.Namespace) -> int:
    """0 and the config on stdout; its warnings on stderr."""
    loaded = load_config(args.config, args.override, args.world_size)
    for warning in loaded.warnings:
        print(warning, file=sys.stderr)
    values = _effective(loaded)
    if args.format == "json":
        print(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        print(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end="")
    return 0


def _effective(loaded: Config) -> dict[str, Any]:
    """The resolved values with defaults and derived numbers filled in."""
    typed = {
        item.name: getattr(loaded, item.name)
        for item in dataclasses.fields(loaded)
        if dataclasses.is_dataclass(getattr(loaded, item.name)) and item.name != "topology"
    }
    values = {name: dataclasses.asdict(block) for name, block in typed.items()}
    values["Profiler"] = loaded.Profiler.to_mapping()
    filled: dict[str, Any] = _filled(loaded.resolved, values)
    return filled


def _filled(given: Any, typed: Any) -> Any:
    """``typed`` over ``given``: keys of others stay, ours are as the program reads them."""
    if isinstance(typed, dict):
        given = given if isinstance(given, dict) else {}
        merged = {key: _filled(given.get(key), value) for key, value in typed.items()}
        return {**merged, **{key: value for key, value in given.items() if key not in typed}}
    return list(typed) if isinstance(typed, tuple) else typed
