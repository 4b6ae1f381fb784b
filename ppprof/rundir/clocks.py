r"""The clocks of a job's ranks: what was measured of each against rank 0's, and times on one clock.

A rank asks rank 0 for its time, over and over, and keeps the fastest round trip: rank 0 looked at
its clock between question and answer, so half the round trip bounds the error (NTP, RFC 5905)::

    rank 3   ask --------------- answer        own clock at the middle: 1000
                 \           /                round trip 60, so the error is 30 at most
    rank 0          look: 1812                 offset 1812 - 1000 = 812

Readings before and after a window give the drift as well. They are a line each in
``clocks/rank_00003.jsonl`` of a run directory; `read_clocks` reads them back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ppprof.arrays import Int64
from ppprof.errors import InputError
from ppprof.paths import PathLike, read_bounded, store_errors_as_oserror
from ppprof.rundir import jsonl_files

_MOST_BYTES = 16 << 20  # of a rank's readings: one a window and some 100 bytes each
_FOREVER_NS = 2**62  # 146 years: sums of two stay in an int64


@dataclass(frozen=True)
class Reading:
    """One comparison of a rank's clock with the reference rank's."""

    at_ns: int
    """When, by the rank's own clock: wall time, as in its trace."""
    offset_ns: int
    """The reference clock minus the own one at that moment."""
    error_ns: int
    """The true offset is at most this far away."""


@dataclass(frozen=True)
class Clock:
    """One rank's clock against the reference rank's.

    >>> clock = Clock(3, (Reading(1_000, 800, 30), Reading(2_000, 802, 20)))
    >>> clock.to_reference(np.array([0, 1_000, 1_500, 2_000, 9_000])).tolist()
    [800, 1800, 2301, 2802, 9802]
    """

    rank: int
    readings: tuple[Reading, ...]
    """By time, one at least."""
    method: str = "exchange"
    """How they were made: ``exchange`` (round trips), ``collectives`` (matched ends), ``same``
    (the reference itself)."""

    @property
    def offset_ns(self) -> int:
        """Of the first reading."""
        return self.readings[0].offset_ns

    @property
    def drift_ppm(self) -> float | None:
        """How much faster the reference clock runs, in millionths; None from one reading."""
        first, last = self.readings[0], self.readings[-1]
        passed = last.at_ns - first.at_ns
        return (last.offset_ns - first.offset_ns) / passed * 1e6 if passed else None

    @property
    def drift_error_ppm(self) -> float | None:
        """The true drift is at most this far away; None from one reading."""
        first, last = self.readings[0], self.readings[-1]
        passed = last.at_ns - first.at_ns
        return (first.error_ns + last.error_ns) / passed * 1e6 if passed else None

    @property
    def error_ns(self) -> int:
        """The largest error of a reading: between readings, clocks are taken to drift evenly."""
        return max(reading.error_ns for reading in self.readings)

    def to_reference(self, times_ns: Int64) -> Int64:
        """Times of this rank's clock on the reference clock: int64, rounded once.

        Between two readings the offset is interpolated, outside the nearest one holds.
        """
        at = np.array([reading.at_ns for reading in self.readings])
        offset = np.array([reading.offset_ns for reading in self.readings])
        first = int(at[0])  # differences to it are small enough for float64
        shift = np.interp(times_ns - first, at - first, offset - offset[0])
        aligned: Int64 = times_ns + (np.rint(shift).astype(np.int64) + offset[0])
        return aligned


Clocks = Mapping[int, Clock]
"""By rank."""


def clocks_path(rank: int) -> str:
    """Path of a rank's readings inside the run directory.

    >>> clocks_path(3)
    'clocks/rank_00003.jsonl'
    """
    return f"clocks/rank_{rank:05d}.jsonl"


def line_of(reading: Reading) -> str:
    r"""A reading as its line of the file.

    >>> line_of(Reading(1, -2, 3))
    '{"at_ns": 1, "offset_ns": -2, "error_ns": 3}\n'
    """
    return json.dumps(asdict(reading)) + "\n"


def read_clocks(run: PathLike) -> dict[int, Clock]:
    """What a run directory tells of its ranks' clocks; empty where it tells nothing.

    A line that was cut off, or that is none of ours, is left out.

    Raises:
        InputError: a file is there and cannot be read.
    """
    clocks = {}
    for rank, path in jsonl_files(run, "clocks"):
        try:
            with store_errors_as_oserror(path):
                text = read_bounded(path, _MOST_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        readings = sorted(_readings(text.splitlines()), key=lambda reading: reading.at_ns)
        if readings:
            clocks[rank] = Clock(rank, tuple(readings))
    return clocks


def _readings(lines: Sequence[str]) -> Iterable[Reading]:
    for line in lines:
        try:
            found = json.loads(line)
            at, offset, error = (int(found[key]) for key in ("at_ns", "offset_ns", "error_ns"))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
        if abs(at) < _FOREVER_NS and abs(offset) < _FOREVER_NS and 0 <= error < _FOREVER_NS:
            yield Reading(at, offset, error)
