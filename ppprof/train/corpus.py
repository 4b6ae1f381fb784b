"""Find text files and write their bytes to a single file that can be memory-mapped.

Each byte is a token, so the vocabulary has 256 tokens and no vocabulary is downloaded. The default
text is the source of the running Python's standard library.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ppprof.errors import UsageError
from ppprof.paths import atomic_writer

NUM_TOKENS = 256
"""Number of byte values."""

_SEPARATOR = b"\x00"  # between files; text does not contain it
_NOT_LIBRARY = frozenset(["test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"])


class DataError(UsageError):
    """Missing text, or too little text to train on."""


def find_files(source: str | None) -> list[Path]:
    """Return the files of a dataset, sorted by path; empty files are skipped.

    Args:
        source: a file, a directory (with all files below it), a glob, or None for the source of
            Python's standard library.

    Raises:
        DataError: there is no file, all files are empty, or the file system reports an error.
    """
    name = "the Python standard library" if source is None else source
    try:
        paths = _library_files() if source is None else _matching_files(source)
        files = sorted(path for path in paths if path.is_file() and path.stat().st_size)
    except OSError as error:
        raise DataError(f"{name}: {error}") from error
    if not files:
        raise DataError(f"{name}: no text found; expected a file, a directory or a glob with text")
    return files


def _library_files() -> list[Path]:
    files = []
    for folder, folders, names in os.walk(sysconfig.get_paths()["stdlib"]):
        # Do not enter these: site-packages alone has most of the files.
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return [path for path in files if os.access(path, os.R_OK)]


def _matching_files(source: str) -> list[Path]:
    if Path(source).is_dir():
        return list(Path(source).rglob("*"))
    return [Path(path) for path in glob.glob(source, recursive=True)]  # noqa: PTH207 - absolute patterns


def token_file(files: Sequence[Path], cache: Path | None = None) -> Path:
    """Return the path of a file with the bytes of all ``files``, each followed by a zero byte.

    The file is written on first use, and under another name when one of ``files`` has changed.
    Several processes may call this at once: each writes its own file and renames it.

    Args:
        files: the files to join, in this order.
        cache: directory for the result; None means ``ppprof`` in ``XDG_CACHE_HOME`` or
            ``~/.cache``.

    Raises:
        DataError: a file is unreadable, or the cache is not writable.
    """
    signature = hashlib.sha256()
    try:
        for path in files:
            stat = path.stat()
            signature.update(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
        folder = (
            cache or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "ppprof").expanduser()
        )
        target = folder / f"tokens_{signature.hexdigest()[:16]}.u8"
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_writer(target) as tokens:
                for path in files:
                    with path.open("rb") as text:
                        shutil.copyfileobj(text, tokens)
                    tokens.write(_SEPARATOR)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        raise DataError(
            f"cannot join the text to one file: {error}; set XDG_CACHE_HOME to change its directory"
        ) from error
    return target
