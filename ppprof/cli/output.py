"""Print what a command found, or write it to the file of ``-o``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ppprof.cli.terminal import is_data
from ppprof.errors import UsageError
from ppprof.paths import write_atomically


def show(args: argparse.Namespace, chunks: Iterable[str]) -> bool:
    """Print text chunk by chunk, or write it to ``-o``'s file; return whether there was any text.

    Raises:
        UsageError: the file cannot be written.
    """
    if args.output is None:
        is_any = False
        for chunk in chunks:
            print(chunk, end="", flush=True)  # at once: the next trace may be a long one
            is_any = True
        return is_any
    text = "".join(chunks)
    if text:
        write_output(args, text)
    return bool(text)


def write_output(args: argparse.Namespace, text: str) -> None:
    """Write ``-o``'s file, whole or not at all.

    Control characters are escaped if the command has ``--format`` and writes neither CSV nor JSON.

    Raises:
        UsageError: the file cannot be written.
    """
    is_text = hasattr(args, "format") and not is_data(args)
    whole = args.layout.fit(text) if is_text else text
    try:  # bytes of a path that are not UTF-8 are surrogates in Python: write their escapes
        write_atomically(args.output, whole.encode(errors="backslashreplace"))
    except OSError as error:
        raise UsageError(f"-o {args.output}: {error.strerror or error}") from error
