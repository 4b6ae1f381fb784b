"""The parser of ``ppprof completion``."""

from __future__ import annotations

from typing import Any

from ppprof.cli.parsers import COMMANDS

SHELLS = ("bash", "zsh", "tcsh")
"""Supported shells."""


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "completion",
        help=COMMANDS["completion"],
        description=(
            "Prints a script for SHELL. In bash: ppprof completion bash > "
            "~/.local/share/bash-completion/completions/ppprof; in zsh: ppprof completion zsh > "
            "_ppprof in a directory of $fpath; in tcsh: ppprof completion tcsh > ~/.ppprof.tcsh, "
            "and source that in ~/.tcshrc. Print it again after an update."
        ),
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.set_defaults(command="completion", check=None)
