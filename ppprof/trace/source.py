"""Read the bytes of a trace file front to back, in blocks that end between two events.

Memory is bounded by a few blocks, whatever the size of the file. A file that unpacks to hundreds of
times its size is rejected, since no trace compresses that well.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

from ppprof.errors import TraceError
from ppprof.paths import reject_special_files, store_errors_as_oserror, to_path

BLOCK_BYTES = 4 << 20
"""Bytes per read, unless the caller asks for another number.

A block, and the values computed from it, must fit into the processor's cache.
"""
MAX_EVENT_BYTES = 64 << 20
"""A file is rejected if no event begins within this many bytes."""
MAX_COMPRESSION_RATIO = 250
"""Highest ratio by which gzip can shrink a trace (15 to 40 is usual, a bomb has 1000)."""

Progress = Callable[[int, int], object]
"""Called with the number of bytes read so far and the size of the file."""

_SEARCH_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"
_GZIP_BITS = 31  # zlib's code for a gzip header and checksum
_STEP_BYTES = 1 << 16  # unpacked at a time; at most this many are lost before a damage
_BOM = b"\xef\xbb\xbf"


MARGIN = 128
"""Bytes of a buffer before and after its block.

With them, an 8-byte word can be read at any byte of the block.
"""


class Block(NamedTuple):
    """A part of a file that ends between two events."""

    buffer: bytearray
    """Holds the block from byte `MARGIN` on."""
    length: int
    """Number of bytes in the block."""
    first: int
    """Offset of the block in the unpacked file."""
    is_last: bool
    """Whether the block ends the file, or the range of the file that is read."""

    @property
    def end(self) -> int:
        """Offset of the block's end in the unpacked file."""
        return self.first + self.length

    def text(self) -> bytes:
        """Return the bytes of the block."""
        return self.between(self.first, self.end)

    def between(self, first: int, end: int) -> bytes:
        """Return the bytes from offset ``first`` to ``end`` (excluded) of the unpacked file.

        Both offsets must be inside the block.
        """
        return bytes(self.buffer[MARGIN + first - self.first : MARGIN + end - self.first])


class _GzipReader:
    """Reader that unpacks a gzip file up to the point where it is damaged.

    `gzip.GzipFile` is not used, because it does not return the bytes just before a damage.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._packed = b""
        self._unpack = zlib.decompressobj(_GZIP_BITS)

    def readinto(self, room: memoryview) -> int:
        """Fill the first part of ``room`` and return its number of bytes; 0 at the end of the file."""
        while not self._unpack.eof or self._begin_member():
            text = self._unpack.decompress(self._packed, min(len(room), _STEP_BYTES))
            is_end = self._unpack.eof
            self._packed = self._unpack.unused_data if is_end else self._unpack.unconsumed_tail
            if text:
                room[: len(text)] = text
                return len(text)
            if not self._packed and not is_end:
                self._packed = self._file.read(_STEP_BYTES)
                if not self._packed:
                    raise EOFError("unexpected end of the compressed data")
        return 0

    def _begin_member(self) -> bool:
        """Begin the next gzip member, which zero bytes may precede; False at the end of the file."""
        self._packed = self._packed.lstrip(b"\0")
        while not self._packed:
            text = self._file.read(_STEP_BYTES)
            if not text:
                return False
            self._packed = text.lstrip(b"\0")
        self._unpack = zlib.decompressobj(_GZIP_BITS)
        return True


class TraceStream:
    """An open trace file; a context manager that closes the file.

    Args:
        path: the file; gzip is detected by its content.
        progress: called after every read.
        first: offset at which to begin; must be 0 for a file that is packed with gzip.
        is_text: skip a byte order mark at the beginning of the file.

    Raises:
        TraceError: the file cannot be opened or read.
    """

    def __init__(
        self,
        path: str | Path,
        progress: Progress | None = None,
        *,
        first: int = 0,
        is_text: bool = True,
    ) -> None:
        self.path = str(path)
        self.position = first
        """Offset of the next byte in the unpacked file."""
        self.damage: str | None = None
        """Why reading ended early in a damaged gzip file; None if no damage was found."""
        self._progress = progress
        self._furthest = 0
        self._rest = b""
        self._unpacked: _GzipReader | None = None
        try:
            with store_errors_as_oserror(path):
                reject_special_files(to_path(path))
                self._file = to_path(path).open("rb", buffering=0)
            is_gzip = self._file.read(2) == _GZIP
            self.size = self._file.seek(0, 2)
            """Bytes of the file on disk."""
            self._file.seek(first)
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror or error}") from error
        if is_gzip:
            self._unpacked = _GzipReader(self._file)
        if is_text and not first and self.peek(len(_BOM)) == _BOM:
            self.read(len(_BOM))

    def __enter__(self) -> TraceStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def is_packed(self) -> bool:
        """Whether the file is packed with gzip."""
        return self._unpacked is not None

    @property
    def descriptor(self) -> int:
        """The system's number of the open file. Not for a file in a store."""
        return self._file.fileno()

    @property
    def identity(self) -> tuple[int, ...]:
        """Numbers that differ if this is another file, or its content has changed."""
        state = os.fstat(self._file.fileno())
        return *self.file_number, self.size, state.st_mtime_ns, state.st_ctime_ns

    @property
    def file_number(self) -> tuple[int, int]:
        """Numbers that differ if this is another file. Not for a file in a store."""
        state = os.fstat(self._file.fileno())
        return state.st_dev, state.st_ino

    def read(self, num_bytes: int) -> bytes:
        """Return the next ``num_bytes`` bytes: fewer at the end of the file, none after it.

        A damaged gzip file ends at the damage, which `damage` describes.
        """
        buffer = bytearray(num_bytes)
        return bytes(buffer[: self.read_into(memoryview(buffer))])

    def peek(self, num_bytes: int) -> bytes:
        """Return the next ``num_bytes`` bytes without consuming them."""
        text = self.read(num_bytes)
        self.unread(text)
        return text

    def unread(self, text: bytes) -> None:
        """Put back ``text``, the bytes that were read last, so that they are read again."""
        self._rest = text + self._rest
        self.position -= len(text)

    def between(self, first: int, end: int) -> bytes:
        """Return the bytes from offset ``first`` to ``end`` (excluded) of a file.

        ``position`` does not change. Only for a file that is not packed with gzip.
        """
        here = self._file.tell()
        self._file.seek(first)
        text = self._file.read(end - first)
        self._file.seek(here)
        return text

    def find(self, position: int, place: Callable[[bytes], int | None]) -> int | None:
        """Return an offset from ``position`` on; None without one, or if it is far away.

        Only for a file that is not packed with gzip.

        Args:
            position: offset in the file.
            place: returns the offset in a text that begins at ``position``; None without one. It
                is called with ever longer texts, up to `MAX_EVENT_BYTES`.
        """
        num_bytes = _SEARCH_BYTES
        while num_bytes <= MAX_EVENT_BYTES:
            text = self.between(position, position + num_bytes)
            found = place(text)
            if found is not None:
                return position + found
            if len(text) < num_bytes:
                return None
            num_bytes *= 8
        return None

    def skip_to(self, position: int) -> None:
        """Continue at offset ``position``. Only for a file that is not packed with gzip.

        The bytes up to there count as read: the progress is reported.
        """
        self._rest = b""
        self._file.seek(position)
        self.position = position
        self._report_progress()

    def blocks(
        self,
        cut: Callable[[bytearray, int, int], int],
        end: int | None = None,
        *,
        num_bytes: int | None = None,
    ) -> Iterator[Block]:
        """Yield blocks that end between two events; each block overwrites the one before it.

        Args:
            cut: returns the offset of the last event in a part of a buffer, given the part's first
                and end offset. A result not above the first offset means that no event begins
                behind it.
            end: offset at which to stop, where an event begins; None for the end of the file.
            num_bytes: length of a block, `BLOCK_BYTES` if None; a longer event gets a longer block.

        Raises:
            TraceError: no event begins in more than `MAX_EVENT_BYTES` bytes.
        """
        usual = (num_bytes or BLOCK_BYTES) + 2 * MARGIN
        buffer = bytearray(usual)
        length = 0
        while True:
            if length > len(buffer) // 2 - MARGIN:
                buffer = buffer[: MARGIN + length] + bytes(len(buffer))
            room = len(buffer) - 2 * MARGIN - length
            if end is not None:
                room = min(room, end - self.position)
            first = self.position - length
            num_read = self.read_into(memoryview(buffer)[MARGIN + length : MARGIN + length + room])
            length += num_read
            is_last = num_read < room or self.position == end
            kept = length if is_last else cut(buffer, MARGIN, MARGIN + length) - MARGIN
            if kept < 1 and not is_last:
                if length > MAX_EVENT_BYTES:
                    raise TraceError(
                        f"{self.path}: no event begins in the {length >> 20} MiB after byte "
                        f"{first}; expected a list of events"
                    )
                continue
            self.unread(bytes(buffer[MARGIN + kept : MARGIN + length]))
            yield Block(buffer, kept, first, is_last)
            if is_last:
                return
            length = 0
            # Where a block ends must follow from the text alone, not from the blocks before it.
            if len(buffer) > usual:
                buffer = bytearray(usual)

    def read_into(self, room: memoryview) -> int:
        """Fill ``room`` and return the number of bytes read, fewer only at the end of the file.

        A damaged gzip file ends at the damage. ``position`` advances, and the progress is reported.

        Raises:
            TraceError: the file cannot be read, or unpacks to far more than its size.
        """
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
        self._report_progress()
        return done

    def report(self, num_bytes: int) -> None:
        """Report the progress: ``num_bytes`` bytes of the file have been read."""
        if self._progress:
            self._furthest = max(self._furthest, num_bytes)
            self._progress(min(self._furthest, self.size), self.size)

    def _report_progress(self) -> None:
        if self._progress:
            self.report(self._file.tell())

    def _refuse_bomb(self, num_new: int) -> None:
        """Raise `TraceError` if a gzip file unpacks to far more bytes than were read from it.

        ``num_new`` bytes were unpacked after ``position``.
        """
        if self._unpacked and self.position + num_new > max(
            MAX_COMPRESSION_RATIO * self._file.tell(), 16 << 20
        ):
            raise TraceError(
                f"{self.path}: unpacks to more than {MAX_COMPRESSION_RATIO} times its size, which "
                "no trace does; rejected, because reading it could exhaust the memory"
            )
