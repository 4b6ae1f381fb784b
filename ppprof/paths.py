"""Where files are: on this machine, or in a store that fsspec reaches by a URL.

A path in a store is a ``upath.UPath``, which does what ``pathlib.Path`` does; credentials and
endpoints are found as each store's own tools find them, or in fsspec's configuration. Which stores
there are: https://filesystem-spec.readthedocs.io, each from a package of its own (s3fs, gcsfs...).
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Union, cast

from ppprof.errors import InputError, PpprofError

PathLike = Union[str, "os.PathLike[str]"]

_OURS = frozenset(["builtins", "numpy", "polars", "ppprof"])
"""Whose errors are no store's."""


def to_path(path: PathLike) -> Path:
    """``s3://bucket/run`` as a path in that store, any other as one on this machine.

    Raises:
        InputError: nothing reaches such a store; says what to install.
    """
    if not is_remote(path):
        return Path(path)
    try:
        from upath import UPath

        at = UPath(path)
        _ = at.fs  # the first to need the store's package
    except (ImportError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error
    return cast(Path, at)


def is_remote(path: PathLike) -> bool:
    """Whether it is a URL, or what `to_path` made of one.

    >>> is_remote("s3://bucket/run"), is_remote("runs/s3")
    (True, False)
    """
    return "://" in str(path)


def reject_special_files(path: Path) -> None:
    """Lets nothing pass that is there and no file: a pipe or a device may have no end.

    Raises:
        OSError: it is one.
    """
    if not is_remote(path):
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a directory has its own error
            raise OSError(errno.EINVAL, "neither a file nor a directory", str(path))


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """The bytes of a file that is held in memory whole.

    Raises:
        OSError: it cannot be read, is no file, or is larger.
    """
    reject_special_files(path)
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        expected = f"larger than the {most_bytes >> 20} MiB that such a file may have"
        raise OSError(errno.EFBIG, expected, str(path))
    return content


@contextmanager
def store_errors_as_oserror(path: PathLike) -> Iterator[None]:
    """Raises what a store's client has of its own (no credentials, no connection) as OSError."""
    try:
        yield
    except FileNotFoundError as error:
        if error.strerror or not is_remote(path):
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
    except (OSError, PpprofError):
        raise
    except Exception as error:
        if not is_remote(path) or type(error).__module__.partition(".")[0] in _OURS:
            raise
        raise OSError(" ".join(str(error).split()) or type(error).__name__) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Writes ``path`` under another name, then `publish`: readers see all of it or none.

    A store takes a file whole of itself.
    """
    if is_remote(path):
        with store_errors_as_oserror(path):
            path.write_bytes(data)
        return
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")  # others may write it at once
    try:
        hidden.write_bytes(data)
        publish(hidden, path)
    finally:
        remove_quietly(hidden)


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is complete and on disk, or not at all.

    Until then it has a hidden name; VisualDL takes any with "paddle_trace" in it for a trace. What
    goes to a store is written here and put there whole.
    """
    if is_remote(path):
        with tempfile.NamedTemporaryFile() as whole:
            yield cast("IO[bytes]", whole)
            whole.flush()
            with store_errors_as_oserror(path):
                path.fs.put_file(whole.name, path.path)  # type: ignore[attr-defined]
        return
    name = path.name.replace("paddle_trace", "")
    # Not to be guessed, and never one that is there: a link, perhaps, in a directory of others.
    hidden = path.with_name(f".writing_{name}.{uuid.uuid4().hex}")
    try:
        with hidden.open("xb") as file:
            yield file
        publish(hidden, path)
    finally:
        remove_quietly(hidden)


def remove_quietly(hidden: Path) -> None:
    """Remove a hidden file that was not published; never raises.

    An error here would mask the original one.
    """
    with suppress(OSError):
        hidden.unlink()


def publish(hidden: Path, path: Path) -> None:
    """Gives a complete file its name once the disk has it (fsync, rename)."""
    with hidden.open("rb+") as file:
        os.fsync(file.fileno())
    hidden.replace(path)
