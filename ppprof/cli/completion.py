"""``ppprof completion``: a script that lets a shell complete commands, options and files.

The script is static: a press of the tab key starts no Python.
"""

from __future__ import annotations

import argparse
from typing import Any

SHELLS = ("bash", "zsh", "tcsh")
"""Those that there is a script for."""

_FILES = {"PATH", "RUN", "BASE", "FILE", "IN", "OUT", "CFG", "BASELINE", "EXPERIMENT"}
"""Metavars of what names a file or a directory."""


def register(subparsers: Any) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "completion",
        help="print a script that lets your shell complete what you type",
        description=(
            "Prints a script for SHELL. In bash: ppprof completion bash > "
            "~/.local/share/bash-completion/completions/ppprof; in zsh: ppprof completion zsh > "
            "_ppprof in a directory of $fpath; in tcsh: ppprof completion tcsh > ~/.ppprof.tcsh, "
            "and source that in ~/.tcshrc. To be printed again after an update."
        ),
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.set_defaults(run_command=completion)


def completion(args: argparse.Namespace) -> int:
    """0 and the script on stdout."""
    import shtab

    from ppprof.cli import COMMANDS, parser_of

    parser = parser_of(COMMANDS)
    _prepare(parser, shtab.FILE)
    print(shtab.complete(parser, args.shell))
    return 0


def _prepare(parser: argparse.ArgumentParser, files: Any) -> None:
    """Says which arguments are files, and has short words for the commands.

    argparse has no public way to walk a parser; shtab takes the same one.
    """
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                action.choices[listed.dest].description = listed.help
            for of_command in action.choices.values():
                _prepare(of_command, files)
        elif action.metavar in _FILES:
            action.complete = files  # type: ignore[attr-defined]
