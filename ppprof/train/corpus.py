"""Real text as bytes: found, and written once as one file that can be memory-mapped.

A token is a byte, so 256 tokens are the whole vocabulary and nothing needs to be downloaded: the
default text is the source of the Python standard library that runs this.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import shutil
import sysconfig
import uuid
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ppprof.train.errors import DataError

NUM_TOKENS = 256
"""Distinct bytes."""

_SHARD_BYTES = 384 << 10
_SEPARATOR = b"\x00"  # between files: no text holds it
_NOT_LIBRARY = frozenset(["test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"])


def find_files(source: str | None) -> list[Path]:
    """The files of a dataset, in a stable order.

    Args:
        source: a file, a directory (every file below it), a glob, or None for the Python standard
            library's source.

    Raises:
        DataError: nothing there, or nothing that may be read.
    """
    what = "the Python standard library" if source is None else source
    try:
        found = _library() if source is None else _below(source)
        files = sorted(path for path in found if path.is_file() and path.stat().st_size)
    except OSError as error:
        raise DataError(f"{what}: {error}") from error
    if not files:
        raise DataError(f"{what}: no text there; expected a file, a directory or a glob with some")
    return files


def _library() -> list[Path]:
    library = Path(sysconfig.get_paths()["stdlib"])
    return [
        path
        for path in library.rglob("*.py")
        if not _NOT_LIBRARY.intersection(path.relative_to(library).parts)
        and os.access(path, os.R_OK)
    ]


def _below(source: str) -> list[Path]:
    if Path(source).is_dir():
        return list(Path(source).rglob("*"))
    return [Path(path) for path in glob.glob(source, recursive=True)]  # noqa: PTH207 - absolute patterns


def token_file(files: Sequence[Path], cache: Path | None = None) -> Path:
    """All bytes of ``files`` in one file, made on first use and again when a file changes.

    Several processes may make it at once: each writes its own and renames it.

    Args:
        files: what to read, in this order.
        cache: where to keep it; None for ``ppprof`` in the user's cache directory.

    Raises:
        DataError: a file cannot be read, or the cache cannot be written.
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
            _write(files, target)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        raise DataError(
            f"cannot make one file of the text: {error} (XDG_CACHE_HOME says where it goes)"
        ) from error
    return target


def packed_file(tokens: Path) -> Path:
    """The same text in shards, each compressed: a zip file beside it, made on first use.

    Args:
        tokens: what `token_file` gave.

    Raises:
        DataError: it cannot be written.
    """
    target = tokens.with_suffix(".zip")
    if target.exists():
        return target
    hidden = tokens.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with zipfile.ZipFile(hidden, "x", zipfile.ZIP_BZIP2) as packed, tokens.open("rb") as text:
            for number in itertools.count():
                shard = text.read(_SHARD_BYTES)
                if not shard:
                    break
                packed.writestr(f"{number:05d}.txt", shard)
        hidden.replace(target)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise DataError(f"cannot pack the text: {error}") from error
    return target


def _write(files: Sequence[Path], target: Path) -> None:
    # Not a tempfile, which only its owner may read: users may share a cache.
    hidden = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with hidden.open("xb") as tokens:
            for path in files:
                with path.open("rb") as text:
                    shutil.copyfileobj(text, tokens)
                tokens.write(_SEPARATOR)
        hidden.replace(target)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
