"""The bytes of a trace file, front to back, cut where events begin.

Memory is bounded by a few blocks, whatever the size of the file. A file that unpacks to hundreds
of times its size is refused: no trace compresses that well.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

from ppprof.errors import TraceError
from ppprof.paths import reject_special_files, store_errors_as_oserror, to_path

BLOCK_BYTES = 4 << 20
"""Read at a time: a block and what is computed from it stay in the processor's cache."""
LONGEST_EVENT_BYTES = 64 << 20
"""Where no event begins in so many bytes there is no list of events."""
MOST_COMPRESSED = 250
"""Times that gzip makes a trace smaller at the most (15 to 40 is usual, a bomb has 1000)."""

Progress = Callable[[int, int], object]
"""Called with bytes done and bytes in all."""

_GZIP = b"\x1f\x8b"
_GZIP_BITS = 31  # zlib's word for gzip's header and checksum
_STEP_BYTES = 1 << 16  # unpacked at a time: so many at the most are lost before a damage
_BOM = b"\xef\xbb\xbf"


MARGIN = 128
"""Bytes in front of a block and behind it, so that a word may be read at any of its bytes."""


class Block(NamedTuple):
    """A part of a file."""

    buffer: bytearray
    """Holds it, from byte `MARGIN` on."""
    length: int
    """Its bytes."""
    first: int
    """Where in the unpacked file it begins."""
    is_last: bool
    """Whether nothing follows it."""

    @property
    def end(self) -> int:
        """Where in the unpacked file it ends."""
        return self.first + self.length

    def text(self) -> bytes:
        """Its bytes."""
        return self.between(self.first, self.end)

    def between(self, first: int, end: int) -> bytes:
        """Bytes of the file that lie in it."""
        return bytes(self.buffer[MARGIN + first - self.first : MARGIN + end - self.first])


class _Unpacked:
    """What is packed in a gzip file, as far as it can be unpacked.

    `gzip.GzipFile` gives nothing of what lies just before a damage.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._packed = b""
        self._unpack = zlib.decompressobj(_GZIP_BITS)

    def readinto(self, room: memoryview) -> int:
        """Fills some of the room; returns how many bytes, none at the end."""
        while True:
            text = self._unpack.decompress(self._packed, min(len(room), _STEP_BYTES))
            self._packed = self._unpack.unconsumed_tail
            if text:
                room[: len(text)] = text
                return len(text)
            if self._unpack.eof:  # another part may follow, or zeros that fill a tape's block
                self._packed = (self._unpack.unused_data or self._file.read(_STEP_BYTES)).lstrip(
                    b"\0"
                )
                if not self._packed:
                    return 0
                self._unpack = zlib.decompressobj(_GZIP_BITS)
            elif not self._packed:
                self._packed = self._file.read(_STEP_BYTES)
                if not self._packed:
                    raise EOFError("unexpected end of the compressed data")


class TraceStream:
    """An open trace file.

    Args:
        path: the file; gzip is told by its content.
        progress: called after every block.
        first: where in a file that is not packed to begin.

    Raises:
        TraceError: it cannot be opened or read.
    """

    def __init__(
        self, path: str | Path, progress: Progress | None = None, *, first: int = 0
    ) -> None:
        self.path = str(path)
        self.position = first
        """Bytes from the beginning of the unpacked file to what is read next."""
        self.damage: str | None = None
        """Why reading ended before the file did; None where it did not."""
        self.num_readers = 1
        """How many processes read as much of the file as this one, at the same pace."""
        self._progress = progress
        self._rest = b""
        self._unpacked: _Unpacked | None = None
        try:
            with store_errors_as_oserror(path):
                reject_special_files(to_path(path))
                self._file = to_path(path).open("rb", buffering=0)
            is_gzip = self._file.read(2) == _GZIP
            self.size = self._file.seek(0, 2)
            """Bytes of the file as it lies on disk."""
            self._file.seek(first)
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror or error}") from error
        if is_gzip:
            self._unpacked = _Unpacked(self._file)
        if not first and self.peek(len(_BOM)) == _BOM:
            self.read(len(_BOM))

    def __enter__(self) -> TraceStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def is_packed(self) -> bool:
        """Whether the file is compressed."""
        return self._unpacked is not None

    def read(self, num_bytes: int) -> bytes:
        """The next bytes; fewer only at the end, none after it."""
        buffer = bytearray(num_bytes)
        return bytes(buffer[: self._read_into(memoryview(buffer))])

    def peek(self, num_bytes: int) -> bytes:
        """The next bytes, which stay to be read."""
        text = self.read(num_bytes)
        self.unread(text)
        return text

    def unread(self, text: bytes) -> None:
        """Gives back bytes that were read last."""
        self._rest = text + self._rest
        self.position -= len(text)

    def between(self, first: int, end: int) -> bytes:
        """Bytes of a file that is not packed; reading goes on where it was."""
        here = self._file.tell()
        self._file.seek(first)
        text = self._file.read(end - first)
        self._file.seek(here)
        return text

    def blocks(
        self, cut: Callable[[bytearray, int, int], int], end: int | None = None
    ) -> Iterator[Block]:
        """Blocks that end where events begin; each is gone when the next one is asked for.

        Args:
            cut: where the last event begins in a part of a buffer, given its first and end byte;
                not above the first if none does behind it.
            end: where to stop, which must be where an event begins; else at the end of the file.
        """
        buffer = bytearray(BLOCK_BYTES + 2 * MARGIN)
        length = 0
        while True:
            if length > len(buffer) // 2:
                buffer = buffer[: MARGIN + length] + bytes(len(buffer))
            room = len(buffer) - 2 * MARGIN - length
            if end is not None:
                room = min(room, end - self.position)
            first = self.position - length
            got = self._read_into(memoryview(buffer)[MARGIN + length : MARGIN + length + room])
            length += got
            is_last = got < room or self.position == end
            at = length if is_last else cut(buffer, MARGIN, MARGIN + length) - MARGIN
            if at < 1 and not is_last:
                if length > LONGEST_EVENT_BYTES:
                    raise TraceError(
                        f"{self.path}: no event begins in the {length >> 20} MiB from byte {first} "
                        "on; expected a list of events"
                    )
                continue
            self.unread(bytes(buffer[MARGIN + at : MARGIN + length]))
            yield Block(buffer, at, first, is_last)
            if is_last:
                return
            length = 0

    def _read_into(self, room: memoryview) -> int:
        """Fills the room; returns how many bytes, fewer only at the end."""
        taken = self._rest[: len(room)]
        room[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        done = len(taken)
        file = self._unpacked or self._file
        while done < len(room) and not self.damage:
            try:
                num = file.readinto(room[done:])
            except (EOFError, zlib.error) as error:
                self.damage = f"damaged gzip: {error}"
                break
            except OSError as error:
                raise TraceError(f"{self.path}: {error.strerror or error}") from error
            if not num:
                break
            done += num
            self._refuse_bomb(done)
        self.position += done
        if self._progress:
            self._progress(min(self._file.tell() * self.num_readers, self.size), self.size)
        return done

    def _refuse_bomb(self, num_new: int) -> None:
        if self._unpacked and self.position + num_new > max(
            MOST_COMPRESSED * self._file.tell(), 16 << 20
        ):
            raise TraceError(
                f"{self.path}: unpacks to more than {MOST_COMPRESSED} times its size; no trace "
                "does, and reading it could fill the memory: it is refused"
            )
