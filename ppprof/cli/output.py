"""Print what a command found, or write it to the file of ``-o``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ppprof.cli.terminal import is_data, print_now
from ppprof.errors import UsageError
from ppprof.paths import is_remote, store_errors_as_oserror, to_path, write_atomically

if TYPE_CHECKING:
    import polars as pl


_DEVICES = Path("/dev")
"""Where ``stdout`` links to a file if the shell redirects it to one."""


def csv_or_markdown(table: pl.DataFrame, format: str) -> str:
    """Return a table as text in a ``--format``: ``csv`` or ``md``."""
    from ppprof.report.markdown import markdown

    if format == "csv":
        return table.write_csv()
    return f"{markdown(table.columns, table.rows(named=True))}\n"


def show(args: argparse.Namespace, chunks: Iterable[str]) -> bool:
    """Print text chunk by chunk, or write it to ``-o``'s file; return whether there was any text.

    Raises:
        UsageError: the file cannot be written.
    """
    if args.output is None:
        is_any = False
        for chunk in chunks:
            is_any = True
            if not print_now(chunk):  # at once: the next trace may be a long one
                break
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


def is_same(output: Path, source: Path) -> bool:
    """Return whether two paths are one file; False for a local ``source`` that does not exist."""
    if is_remote(output) or is_remote(source):
        return output == source
    return source.exists() and output.samefile(source)


def problem_of_output(
    output: Path, sources: Iterable[str | Path], force: bool, *, replaces: bool = True
) -> str | None:
    """Return why a command that reads ``sources`` cannot write ``output``; None if it can.

    It cannot write to a directory, into a missing directory, to one of ``sources``, or, unless ``force``
    is True, to a file that exists. One that ``replaces`` the file cannot write to a pipe or a device, either.
    """
    try:
        with store_errors_as_oserror(output):
            if replaces and _is_special(output):
                return "a pipe or a device; expected a file"
            return _problem_of(output, sources, force)
    except OSError as error:
        return error.strerror or str(error)


def _is_special(output: Path) -> bool:
    """Return whether a path is of a pipe or a device; that of a file that stdout goes to is, too."""
    exists = output.exists() and not output.is_dir()
    return output.parent == _DEVICES or (exists and not output.is_file())


def _problem_of(output: Path, sources: Iterable[str | Path], force: bool) -> str | None:
    if output.is_dir():
        return "a directory; expected a file"
    if not is_remote(output) and not output.parent.is_dir():  # a store creates them itself
        return f"{output.parent} is not a directory"
    if output.exists() and any(is_same(output, to_path(source)) for source in sources):
        return "this command reads it; write to another file"
    if output.exists() and not force:
        return "exists; --force replaces it"
    return None
