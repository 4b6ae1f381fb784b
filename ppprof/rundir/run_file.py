"""The gate to the files of a run directory: all of them are opened, written and removed here.

Another user of the directory can plant files in it while a training runs. Opening a pipe may
never end, and a symbolic link leads elsewhere. So only regular files are opened, without waiting,
and links are refused: the file's own, and those of the folders between it and the run directory.
The path of the run directory itself may contain links.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, cast

from ppprof.paths import is_remote, read_all, store_errors_as_oserror

_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HIDDEN = ".writing_"
"""Beginning of the name of a file that is not complete. VisualDL takes any file with "paddle_trace"
in its name for a trace, so that text is left out."""
_MOST_NAMES = 100_000
"""Most names that `matches` returns: as many ranks as a job can have."""


@dataclass(frozen=True)
class RunFile:
    """A file of a run directory, whether or not it exists.

    All methods raise OSError with the file's path where the file is a symbolic link, a pipe, a
    socket, a device or a directory, or lies in a folder that is a link. A run directory in a store
    can only be read.
    """

    run: Path
    """The run directory."""
    name: str
    """Path relative to the run directory, such as ``steps/rank_00000.jsonl``."""

    def __post_init__(self) -> None:
        if any(part in ("", ".", "..") for part in self.name.split("/")):
            raise ValueError(f"{self.name}: not the path of a file in the run directory")

    def __str__(self) -> str:
        return str(self.path)

    @property
    def path(self) -> Path:
        """The file's path, for messages and for other programs."""
        return self.run / self.name

    def __truediv__(self, name: str) -> RunFile:
        """Return the file ``name`` in this folder."""
        return RunFile(self.run, f"{self.name}/{name}")

    def exists(self) -> bool:
        """Return whether there is a regular file."""
        if is_remote(self.run):
            return self.path.is_file()
        with suppress(OSError), self._folder() as (folder, name):
            return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        return False

    def open(self) -> BinaryIO:
        """Open the file for reading.

        Raises:
            OSError: it does not exist, is unreadable or is not a regular file.
        """
        if is_remote(self.run):
            with store_errors_as_oserror(self.path):
                return cast("BinaryIO", self.path.open("rb"))
        return cast("BinaryIO", os.fdopen(self._descriptor(os.O_RDONLY), "rb"))

    def read(self, most_bytes: int) -> bytes:
        """Return the file's content.

        Raises:
            OSError: as for `open`, or the file has more than ``most_bytes`` bytes.
        """
        with self.open() as file, store_errors_as_oserror(self.path):
            return read_all(file, self.path, most_bytes)

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Lock the file while the block runs; on a file system without locks, do without.

        Yields:
            Whether no other process has locked it.

        Raises:
            OSError: as for `open`.
        """
        try:
            # Network file systems grant a write lock only on a file that is open for writing.
            descriptor = self._descriptor(os.O_RDWR)
        except PermissionError:
            descriptor = self._descriptor(os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = True
            except BlockingIOError:
                is_ours = False
            except OSError:
                is_ours = True
            yield is_ours
        finally:
            os.close(descriptor)

    def read_end(self, most_bytes: int) -> tuple[bytes, bool]:
        """Return the last bytes of the file, and whether these are the whole file.

        Args:
            most_bytes: how many bytes to read at most.

        Raises:
            OSError: as for `open`.
        """
        with self.open() as file, store_errors_as_oserror(self.path):
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            return file.read(most_bytes), size <= most_bytes

    def read_on(self, offset: int, most_bytes: int) -> tuple[bytes, int]:
        """Return the whole lines from an offset on, and the offset behind them.

        Lines are left out from the beginning if they have more than ``most_bytes`` bytes together. A file
        that has become shorter is read from its beginning.

        Args:
            offset: 0, or what this method has returned.
            most_bytes: how many bytes to read at most.

        Raises:
            OSError: as for `open`.
        """
        with self.open() as file, store_errors_as_oserror(self.path):
            size = file.seek(0, os.SEEK_END)
            offset = offset if offset <= size else 0
            begin = max(offset, size - most_bytes)
            file.seek(begin)
            text = file.read(size - begin)
        first = text.find(b"\n") + 1 if begin > offset else 0
        end = text.rfind(b"\n") + 1
        return text[first:end], begin + end if end else offset

    def read_json(self, most_bytes: int) -> Any:
        """Return the value in a JSON file.

        Raises:
            OSError: as for `read`.
            ValueError: the content is not JSON, or is nested too deeply.
        """
        try:
            return json.loads(self.read(most_bytes))
        except RecursionError as error:
            raise ValueError("nested too deeply") from error

    def append(self, data: bytes) -> None:
        """Append to the file; create it, and its folder, if missing. A part may be written on errors.

        Raises:
            OSError: the file cannot be written.
        """
        with self.appending() as file:
            while data:
                data = data[file.write(data) :]

    @contextmanager
    def appending(self) -> Iterator[BinaryIO]:
        """Open the file for appending, unbuffered; create it, and its folder, if missing.

        Raises:
            OSError: the file cannot be opened.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with os.fdopen(self._descriptor(flags, creates=True), "ab", buffering=0) as file:
            yield cast("BinaryIO", file)

    @contextmanager
    def updating(self) -> Iterator[BinaryIO]:
        """Open the existing file to change it in place, as a mapped file is."""
        with os.fdopen(self._descriptor(os.O_RDWR), "r+b", buffering=0) as file:
            yield cast("BinaryIO", file)

    def create(self, data: bytes = b"") -> None:
        """Create the file, and its folder if missing.

        Raises:
            FileExistsError: something of that name exists, of whatever kind.
            OSError: the file cannot be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(self._descriptor(flags, creates=True), "wb") as file:
            file.write(data)

    def write(self, data: bytes, *, is_durable: bool = True) -> None:
        """Write the file as a whole or not at all; replace an existing one, of whatever kind.

        Args:
            data: the content.
            is_durable: as for `writing`.

        Raises:
            OSError: the file cannot be written; an existing one is unchanged.
        """
        with self.writing(is_durable=is_durable) as hidden:
            hidden.append(data)

    def write_new(self, data: bytes) -> None:
        """Write the file as a whole or not at all, unless something of that name exists.

        On a file system without hard links, an existing file is replaced.

        Raises:
            FileExistsError: something of that name exists, of whatever kind.
            OSError: the file cannot be written.
        """
        hidden = self._create_hidden(data)
        try:
            with self._folder() as (folder, name):
                source = hidden.name.rpartition("/")[2]
                try:
                    os.link(source, name, src_dir_fd=folder, dst_dir_fd=folder)
                except FileExistsError as error:
                    raise FileExistsError(error.errno, error.strerror, str(self)) from error
                except OSError:  # a file system without hard links
                    os.replace(source, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(OSError):
                hidden.remove()

    @contextmanager
    def writing(self, *, is_durable: bool = True) -> Iterator[RunFile]:
        """Create an empty file of a random hidden name; rename it to the file if the block succeeds.

        The hidden file is removed if the block raises. A process that is killed meanwhile leaves it
        behind; see `partial_files`.

        Args:
            is_durable: whether to flush it to disk first, so that it survives a crash of the machine. A
                training waits for that.

        Yields:
            The hidden file, to be written by its path.

        Raises:
            OSError: the file cannot be created, flushed to disk or renamed.
        """
        hidden = self._create_hidden()
        try:
            yield hidden
            if is_durable:
                with os.fdopen(hidden._descriptor(os.O_RDWR), "rb+") as file:
                    os.fsync(file.fileno())
            with self._folder() as (folder, name):
                source = hidden.name.rpartition("/")[2]
                os.replace(source, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(OSError):
                hidden.remove()

    def remove(self) -> None:
        """Remove the file; a link is removed itself.

        Raises:
            OSError: it does not exist or cannot be removed.
        """
        with self._folder() as (folder, name):
            os.unlink(name, dir_fd=folder)

    def remove_folder(self) -> None:
        """Remove the folder of this name and its files; a link is left alone.

        Raises:
            OSError: it does not exist, holds another folder, or cannot be removed.
        """
        with (self / "x")._folder() as (folder, _):
            for name in _listed(folder):
                os.unlink(name, dir_fd=folder)
        with self._folder() as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def _create_hidden(self, data: bytes = b"") -> RunFile:
        """Create a file of a random name in the same folder, for content that is not complete yet."""
        folder, slash, name = self.name.rpartition("/")
        visible = name.replace("paddle_trace", "")
        hidden = RunFile(self.run, f"{folder}{slash}{_HIDDEN}{visible}.{uuid.uuid4().hex}")
        try:
            hidden.create(data)
        except OSError as error:
            with suppress(OSError):
                hidden.remove()
            raise OSError(error.errno, error.strerror, str(self)) from error
        return hidden

    def _descriptor(self, flags: int, *, creates: bool = False) -> int:
        """Return a descriptor of the regular file."""
        with self._folder(creates=creates) as (folder, name):
            try:
                descriptor = os.open(name, flags | _FILE, 0o666, dir_fd=folder)
            except OSError as error:
                raise self._explained(error) from error
        status = os.fstat(descriptor)
        why = "" if stat.S_ISREG(status.st_mode) else "not a regular file"
        if not why and flags & (os.O_APPEND | os.O_RDWR) and status.st_nlink > 1:
            why = "a hard link: the file has another name"
        if why:
            os.close(descriptor)
            raise OSError(errno.EINVAL, why, str(self))
        return descriptor

    @contextmanager
    def _folder(self, *, creates: bool = False) -> Iterator[tuple[int, str]]:
        """Open the file's folder; yield its descriptor and the file's name in it."""
        *folders, name = self.name.split("/")
        try:
            descriptor = os.open(self.run, _FOLDER)
        except OSError as error:
            raise self._explained(error) from error
        try:
            for folder in folders:
                try:
                    if creates:
                        with suppress(FileExistsError):
                            os.mkdir(folder, dir_fd=descriptor)
                    inner = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
                except OSError as error:
                    raise self._explained(error, folder) from error
                os.close(descriptor)
                descriptor = inner
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _explained(self, error: OSError, folder: str | None = None) -> OSError:
        """Return the error with the file's path; say that a link is one."""
        is_link = error.errno == errno.ELOOP or (
            folder is not None and error.errno == errno.ENOTDIR
        )
        what = "a symbolic link, or not a folder" if folder else "a symbolic link"
        reason = f"{folder or self.name}: {what}" if is_link else error.strerror
        if error.errno == errno.ENXIO:  # a pipe without a reader, or a socket
            reason = "not a regular file"
        return OSError(error.errno, reason, str(self))


def make_folder(run: Path, folder: str) -> None:
    """Create a folder of a run directory, if it is missing.

    Raises:
        OSError: it cannot be created, or is a link.
    """
    with RunFile(run, f"{folder}/x")._folder(creates=True):
        pass


def has_folder(run: Path, folder: str) -> bool:
    """Return whether a run directory has such a folder; False for a link."""
    with suppress(OSError), RunFile(run, f"{folder}/x")._folder():
        return True
    return False


def matches(run: Path, folder: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the matches of the names in a folder of a run directory, sorted by name.

    At most 100,000; names that do not match as a whole do not count. Empty if the folder is missing,
    unreadable or a link.

    Args:
        run: the run directory.
        folder: path relative to the run directory; "" for the run directory itself.
        pattern: what a name must match.
    """
    if is_remote(run):
        with suppress(OSError), store_errors_as_oserror(run / folder):
            return _sorted(pattern.fullmatch(path.name) for path in (run / folder).iterdir())
        return []
    with suppress(OSError), RunFile(run, f"{folder}/x" if folder else "x")._folder() as (fd, _):
        return _sorted(map(pattern.fullmatch, _listed(fd)))
    return []


def _sorted(found: Iterable[re.Match[str] | None]) -> list[re.Match[str]]:
    return sorted(islice(filter(None, found), _MOST_NAMES), key=itemgetter(0))


def _listed(folder: int) -> Iterator[str]:
    """Yield the names in a folder that is open as a descriptor."""
    # A descriptor of O_PATH cannot be listed.
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(readable) as entries:
            yield from (entry.name for entry in entries)
    finally:
        os.close(readable)
