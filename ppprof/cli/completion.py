"""``ppprof completion``: a script for a shell to complete commands, options and files.

The script is static: the tab key starts no Python.
"""

from __future__ import annotations

import argparse
from typing import Any

EXAMPLES = {
    'eval "$(ppprof completion bash)"': "the tab key completes commands, options and files",
}
SHELLS = ("bash", "zsh", "tcsh")
"""Supported shells."""

_FILES = {
    "PATH",
    "RUN",
    "BASE",
    "FILE",
    "IN",
    "OUT",
    "CFG",
    "BASELINE",
    "EXPERIMENT",
    "PROFILER_LOG",
}
"""Metavars of arguments that are a file or a directory."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Prints a script for SHELL. In bash: ppprof completion bash > "
        "~/.local/share/bash-completion/completions/ppprof; in zsh: ppprof completion zsh > "
        "_ppprof in a directory of $fpath; in tcsh: ppprof completion tcsh > ~/.ppprof.tcsh, "
        "and source that in ~/.tcshrc. Print it again after an update."
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def check(args: argparse.Namespace) -> None:
    """Do nothing: argparse has checked the shell."""


def run(args: argparse.Namespace) -> int:
    """Return 0; the script is on stdout."""
    import shtab

    from ppprof.cli import command_parser

    parser = command_parser()
    _prepare(parser, shtab.FILE)
    print(shtab.complete(parser, args.shell))
    return 0


def _prepare(parser: argparse.ArgumentParser, files: Any) -> None:
    """Mark the arguments that are files, and give the commands short descriptions.

    argparse has no public way to walk a parser; shtab uses the same private one.
    """
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                action.choices[choice.dest].description = choice.help
            for subparser in action.choices.values():
                _prepare(subparser, files)
        elif action.metavar in _FILES:
            action.complete = files  # type: ignore[attr-defined]
