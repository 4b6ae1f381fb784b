"""Whether a command can write the file that the user names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ppprof.paths import is_remote, store_errors_as_oserror, to_path


def is_same(output: Path, source: Path) -> bool:
    """Return whether two paths are one file; False for a local ``source`` that does not exist."""
    if is_remote(output) or is_remote(source):
        return output == source
    return source.exists() and output.samefile(source)


def problem_of_output(output: Path, sources: Iterable[str | Path], force: bool) -> str | None:
    """Return why a command that reads ``sources`` cannot write ``output``; None if it can.

    It cannot write to a directory, into a missing directory, to one of ``sources``, or, unless
    ``force`` is True, to a file that exists.
    """
    try:
        with store_errors_as_oserror(output):
            return _problem_of(output, sources, force)
    except OSError as error:
        return error.strerror or str(error)


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
