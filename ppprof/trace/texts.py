"""Strings as numbers: a trace of a million events has a few hundred names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


class Texts:
    """Strings by number, in the order of first meeting."""

    def __init__(self) -> None:
        self._number: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._number)

    def numbers(self, texts: Iterable[bytes]) -> Int32:
        """The number of each text."""
        known = self._number
        return np.fromiter((known.setdefault(text, len(known)) for text in texts), np.int32)

    def between(self, raw: bytes, first: Int64, end: Int64) -> Int32:
        """The number of each ``raw[first:end]``."""
        known = self._number
        return np.array(
            [known.setdefault(raw[a:b], len(known)) for a, b in zip(first.tolist(), end.tolist())],
            np.int32,
        )

    def all(self) -> list[bytes]:
        """The strings by their number."""
        return list(self._number)
