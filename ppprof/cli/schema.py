"""``ppprof schema``: the JSON Schema of what a command prints with ``--format json``."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from typing import Any

EXAMPLES = {
    "ppprof schema advise": "the keys of ppprof advise --format json, with their units",
}
DESCRIBED = (
    *("advise", "config", "diff", "doctor", "hang"),
    *("memory", "path", "predict", "ranks", "summary"),
)
"""The commands with ``--format json``; each has a module in ``ppprof/schemas``."""


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
    """Return the JSON Schema of a command of `DESCRIBED`, as text with a line for each property."""
    return f"{_text(import_module(f'ppprof.schemas.{name}').SCHEMA)}\n"


def _text(value: Any, margin: str = "\n") -> str:
    """Return JSON in which values without inner objects take one line.

    >>> print(_text({"required": ["step"], "properties": {"step": {"type": "integer"}}}))
    {
     "required": ["step"],
     "properties": {
      "step": {"type": "integer"}
     }
    }
    """
    is_object = isinstance(value, dict)
    inner = value.values() if is_object else value if isinstance(value, list) else ()
    if not any(isinstance(each, dict) for each in inner):
        return json.dumps(value, ensure_ascii=False)
    names = [f"{json.dumps(name)}: " for name in value] if is_object else [""] * len(value)
    start, end = "{}" if is_object else "[]"
    lines = [f"{margin} {name}{_text(each, margin + ' ')}" for name, each in zip(names, inner)]
    return f"{start}{','.join(lines)}{margin}{end}"
