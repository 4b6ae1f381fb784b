"""The bytes of a trace file, front to back, cut where events begin.

Memory is bounded by a few blocks, whatever the size of the file. A file that unpacks to hundreds
of times its size is refused: no trace compresses that well.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, cast

from ppprof.errors import TraceError

BLOCK_BYTES = 4 << 20
"""Read at a time: a block and what is computed from it stay in the processor's cache."""
LONGEST_EVENT_BYTES = 64 << 20
"""Where no event begins in so many bytes there is no list of events."""
MOST_COMPRESSED = 250
"""Times that gzip makes a trace smaller at the most (15 to 40 is usual, a bomb has 1000)."""

Progress = Callable[[int, int], object]
"""Called with bytes done and bytes in all."""

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


class Source:
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
        self._progress = progress
        self._rest = b""
        self._unpacked: IO[bytes] | None = None
        try:
            self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - see __exit__
            is_gzip = self._file.read(2) == _GZIP
            self.size = self._file.seek(0, 2)
            """Bytes of the file as it lies on disk."""
            self._file.seek(first)
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror or error}") from error
        if is_gzip:
            self._unpacked = cast("IO[bytes]", gzip.GzipFile(fileobj=self._file, mode="rb"))
        if not first and self.peek(len(_BOM)) == _BOM:
            self.read(len(_BOM))

    def __enter__(self) -> Source:
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
        text, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
        if len(text) < num_bytes:
            more = self._read(num_bytes - len(text))
            text = text + more if text else more
        self.position += len(text)
        return text

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
        self, cut: Callable[[bytes], int], end: int | None = None
    ) -> Iterator[tuple[int, bytes, bool]]:
        """Blocks that end where events begin: position, block, whether it is the last one.

        Args:
            cut: where in a text the last event begins; below 1 if none does after its beginning.
            end: where to stop, which must be where an event begins; else at the end.
        """
        carry = b""
        while True:
            missing = max(BLOCK_BYTES - len(carry), BLOCK_BYTES // 2)
            if end is not None:
                missing = min(missing, end - self.position)
            text = self.read(missing)
            block = carry + text if carry else text
            is_last = len(text) < missing or self.position == end
            at = len(block) if is_last else cut(block)
            first = self.position - len(block)
            if at < 1 and not is_last:
                if len(block) > LONGEST_EVENT_BYTES:
                    raise TraceError(
                        f"{self.path}: no event begins in {len(block) >> 20} MiB from byte "
                        f"{first} on; expected a list of events"
                    )
                carry = block
                continue
            carry = block[at:]
            yield first, block[:at] if carry else block, is_last
            if is_last:
                return

    def _read(self, num_bytes: int) -> bytes:
        file = self._unpacked or self._file
        parts: list[bytes] = []
        missing = num_bytes
        while missing and not self.damage:
            try:
                part = file.read(missing)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                self.damage = f"damaged gzip: {error}"
                break
            except OSError as error:
                raise TraceError(f"{self.path}: {error.strerror or error}") from error
            if not part:
                break
            parts.append(part)
            missing -= len(part)
            self._refuse_bomb(num_bytes - missing)
        if self._progress:
            self._progress(self._file.tell(), self.size)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _refuse_bomb(self, num_new: int) -> None:
        done = self._file.tell()
        num_bytes = self.position + len(self._rest) + num_new
        if self._unpacked and num_bytes > max(MOST_COMPRESSED * done, 16 << 20):
            raise TraceError(
                f"{self.path}: unpacks to more than {MOST_COMPRESSED} times its size; no trace "
                "does, and reading it could fill the memory: it is refused"
            )
