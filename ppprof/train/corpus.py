"""Real text as bytes: found, and written once as one file that can be memory-mapped.

A token is a byte, so 256 tokens are the whole vocabulary and nothing needs to be downloaded: the
default text is the source of the Python standard library that runs this.
"""

from __future__ import annotations

import glob
import hashlib
import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ppprof.train.errors import DataError

NUM_TOKENS = 256
"""Distinct bytes."""

_SEPARATOR = b"\x00"  # between files: no text holds it
_NOT_LIBRARY = frozenset(["test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"])


def find_files(source: str | None) -> list[Path]:
    """The files of a dataset, in a stable order.

    Args:
        source: a file, a directory (every file below it), a glob, or None for the Python standard
            library's source.

    Raises:
        DataError: nothing there.
    """
    if source is None:
        library = Path(sysconfig.get_paths()["stdlib"])
        found = [
            path for path in library.rglob("*.py")
            if not _NOT_LIBRARY.intersection(path.relative_to(library).parts)
        ]  # fmt: skip
    elif Path(source).is_dir():
        found = list(Path(source).rglob("*"))
    else:
        found = [Path(path) for path in glob.glob(source, recursive=True)]  # noqa: PTH207 - absolute patterns
    files = sorted(path for path in found if path.is_file() and path.stat().st_size)
    if not files:
        what = "the Python standard library" if source is None else source
        raise DataError(f"{what}: no text there; expected a file, a directory or a glob with some")
    return files


def token_file(files: Sequence[Path], cache: Path | None = None) -> Path:
    """All bytes of ``files`` in one file, made on first use and again when a file changes.

    Several processes may make it at once: each writes its own and renames it.
    """
    signature = hashlib.sha256()
    for path in files:
        stat = path.stat()
        signature.update(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    folder = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ppprof")
    target = folder / f"tokens_{signature.hexdigest()[:16]}.u8"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        hidden = target.with_suffix(f".{os.getpid()}")
        with hidden.open("wb") as file:
            for path in files:
                file.write(path.read_bytes() + _SEPARATOR)
        hidden.replace(target)
    return target
