"""Paths of files on this machine or in a store that fsspec opens by URL; atomic writes.

A path in a store is a ``upath.UPath``, which has the interface of ``pathlib.Path``. Each store's
own tools or fsspec's configuration provide credentials and endpoints. Each store needs its own
package (s3fs, gcsfs...): https://filesystem-spec.readthedocs.io lists them.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Union, cast

from ppprof.errors import InputError, PpprofError

PathLike = Union[str, "os.PathLike[str]"]

_OURS = frozenset(["builtins", "numpy", "polars", "ppprof"])
"""Packages whose errors do not come from a store's client; "builtins" are Python's own errors."""


def to_path(path: PathLike) -> Path:
    """Return a URL such as ``s3://bucket/run`` as a path in that store, other text as a local path.

    Raises:
        InputError: no store is known for the URL, or the store's package is not installed (the
            message names the package).
    """
    if not is_remote(path):
        return Path(path)
    try:
        from upath import UPath

        remote_path = UPath(path)
        _ = remote_path.fs  # imports the store's package
    except (ImportError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error
    return cast(Path, remote_path)


def is_remote(path: PathLike) -> bool:
    """Whether the path is a URL, or the result of `to_path` for a URL.

    >>> is_remote("s3://bucket/run"), is_remote("runs/s3")
    (True, False)
    """
    return "://" in str(path)


def reject_special_files(path: Path) -> None:
    """Reject pipes, sockets and devices: reading them may never end.

    Directories and paths in a store pass.

    Raises:
        OSError: the path is a pipe, socket or device, or it does not exist.
    """
    if not is_remote(path):
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a directory raises by itself
            raise OSError(errno.EINVAL, "neither a file nor a directory", str(path))


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Read a whole file into memory.

    Raises:
        OSError: the path is unreadable, is not a file, or has more than ``most_bytes`` bytes.
    """
    reject_special_files(path)
    with path.open("rb") as file:
        return read_all(file, path, most_bytes)


def read_all(file: IO[bytes], path: Path, most_bytes: int) -> bytes:
    """Read an open file from its position to its end.

    Args:
        file: the file.
        path: the file's path, for the message.
        most_bytes: how many bytes are allowed.

    Raises:
        OSError: the file is unreadable or has more bytes.
    """
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        message = f"larger than the {most_bytes / 2**20:g} MiB allowed for such a file"
        raise OSError(errno.EFBIG, message, str(path))
    return content


@contextmanager
def store_errors_as_oserror(path: PathLike) -> Iterator[None]:
    """Convert errors of a store's client to OSError, such as missing credentials or no connection.

    Other errors pass unchanged: errors at a local path, OSError, `PpprofError`, and errors of the
    packages in `_OURS`.

    Args:
        path: the path that the block reads or writes.
    """
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
    """Write a file under a hidden name, then rename it to ``path``: readers see no partial file.

    A path in a store is written directly, since a store's writes are atomic.

    Raises:
        OSError: the file cannot be written; ``path`` is unchanged.
    """
    if is_remote(path):
        with store_errors_as_oserror(path):
            path.write_bytes(data)
        return
    # A unique name: other processes may write the same path at the same time.
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        hidden.write_bytes(data)
        publish(hidden, path)
    finally:
        remove_quietly(hidden)


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that is renamed to ``path`` only when it is complete and on disk.

    Until then the file has a hidden name without "paddle_trace", since VisualDL takes any file
    with "paddle_trace" in its name for a trace. If the block raises, the hidden file is removed.
    A file for a store is written locally, and uploaded if the block does not raise.

    Raises:
        OSError: the file cannot be written or uploaded.
    """
    if is_remote(path):
        import tempfile  # only for stores: it imports random and hashlib, at every start

        with tempfile.NamedTemporaryFile() as local:
            yield cast("IO[bytes]", local)
            local.flush()
            with store_errors_as_oserror(path):
                path.fs.put_file(local.name, path.path)  # type: ignore[attr-defined]
        return
    name = path.name.replace("paddle_trace", "")
    # Unpredictable, and opened with "x": another user of the directory cannot plant a symlink.
    hidden = path.with_name(f".writing_{name}.{uuid.uuid4().hex}")
    try:
        with hidden.open("xb") as file:
            yield file
        publish(hidden, path)
    finally:
        remove_quietly(hidden)


def remove_quietly(hidden: Path) -> None:
    """Remove the hidden file of a write if it still exists; ignore every OSError.

    The caller may be handling another error, which an error here would mask.
    """
    with suppress(OSError):
        hidden.unlink()


def publish(hidden: Path, path: Path) -> None:
    """Flush the complete file ``hidden`` to disk, then rename it to ``path`` (fsync, rename)."""
    with hidden.open("rb+") as file:
        os.fsync(file.fileno())
    hidden.replace(path)
