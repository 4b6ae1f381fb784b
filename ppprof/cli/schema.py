"""``ppprof schema``: the JSON Schema of what a command prints with ``--format json``."""

from __future__ import annotations

import argparse
from importlib.resources import files

EXAMPLES = {
    "ppprof schema advise": "the keys of ppprof advise --format json, with their units",
}
DESCRIBED = (
    *("advise", "config", "diff", "doctor", "hang"),
    *("memory", "path", "predict", "ranks", "summary"),
)
"""The commands with ``--format json``; each has a file in ``ppprof/schemas``."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Prints the JSON Schema (draft 2020-12) of COMMAND --format json: every key with its type, "
        "unit and meaning. Later versions may add keys, so readers ignore keys that they do not know. If a "
        "key is removed or changes its meaning, schema_version increases."
    )
    parser.add_argument("name", metavar="COMMAND", choices=DESCRIBED, help=", ".join(DESCRIBED))


def check(args: argparse.Namespace) -> None:
    """Do nothing: argparse has checked the command."""


def run(args: argparse.Namespace) -> int:
    """Return 0; the schema is on stdout."""
    print(schema_text(args.name), end="")
    return 0


def schema_text(name: str) -> str:
    """Return the JSON Schema of a command of `DESCRIBED`, as text."""
    return files("ppprof").joinpath("schemas").joinpath(f"{name}.json").read_text("utf-8")
