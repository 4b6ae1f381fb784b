"""What commands say beside their output, on stderr, so that output can be piped; and where to."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from ppprof.paths import is_remote, store_errors_as_oserror, to_path
from ppprof.units import escape_cell, escape_control_chars, format_skipped


class Progress:
    """A bar for each file that takes longer than a blink."""

    def __init__(self) -> None:
        self._bar: Any = None

    @classmethod
    def on_terminal(cls) -> Progress | None:
        """None where nobody looks on."""
        return cls() if sys.stderr.isatty() else None

    def __call__(self, path: Path, done: int, total: int) -> None:
        """Draws how far it is: bytes of a file that were read, and all of them."""
        if self._bar is None and done < total:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=escape_cell(path.name),
                total=total,
                unit="B",
                unit_scale=True,
                leave=False,
                delay=0.5,
            )
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
            if done >= total:
                self._bar.close()
                self._bar = None


class Terminal:
    """Shows what is written to a stream, and lets none of it move the cursor or ring the bell."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As a stream's."""
        self._stream.write(escape_control_chars(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's."""
        return getattr(self._stream, name)


def is_data(args: argparse.Namespace) -> bool:
    """Whether a command's output is for programs, which get every name as it is."""
    return getattr(args, "format", "") in ("csv", "json")


def tell(message: object) -> None:
    """One line, or several."""
    print(escape_control_chars(str(message)), file=sys.stderr)


def tell_lost(path: object, skipped: Mapping[str, int]) -> None:
    """One line on what of a file could not be used, if anything."""
    if skipped:
        tell(format_skipped(path, skipped))


def is_same(output: Path, source: Path) -> bool:
    """Whether they are one file."""
    if is_remote(output) or is_remote(source):
        return output == source
    return source.exists() and output.samefile(source)


def problem_of_output(output: Path, sources: Iterable[str | Path], force: bool) -> str | None:
    """What keeps a command from writing ``output``, made of what is in ``sources``; None: nothing."""
    try:
        with store_errors_as_oserror(output):
            return _problem_of(output, sources, force)
    except OSError as error:
        return error.strerror or str(error)


def _problem_of(output: Path, sources: Iterable[str | Path], force: bool) -> str | None:
    if output.is_dir():
        return "a directory; expected a file"
    if not is_remote(output) and not output.parent.is_dir():  # a store makes them itself
        return f"{output.parent} is no directory"
    if output.exists() and any(is_same(output, to_path(at)) for at in sources):
        return "is read here; write to another file"
    if output.exists() and not force:
        return "exists; --force replaces it"
    return None
