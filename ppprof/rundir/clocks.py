r"""Clock readings of a job's ranks, and conversion of times to the reference clock.

Each rank asks rank 0 repeatedly for the time of rank 0's clock, and keeps the answer with the
fastest round trip. Rank 0 reads its clock between request and response, so the error is at most
half the round trip (NTP, RFC 5905)::

    rank 3   request ------- response          own clock at the middle: 1000
                 \           /                round trip 60, so the error is at most 30
    rank 0         read: 1812                  offset 1812 - 1000 = 812

A reading before and a reading after a window also give the drift. Each reading is a line in
``clocks/rank_00003.jsonl`` of the run directory. `read_clocks` reads these files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import numpy as np

from ppprof.arrays import Int64
from ppprof.errors import InputError
from ppprof.paths import PathLike
from ppprof.rundir import jsonl_files

_MOST_BYTES = 16 << 20  # limit for a rank's file; a reading per window takes about 100 bytes
_FOREVER_NS = 2**62  # 146 years: the sum of two such times fits into an int64


@dataclass(frozen=True)
class Reading:
    """One comparison of a rank's clock with the reference clock."""

    at_ns: int
    """Time of the reading on the rank's own clock: wall time, as in the rank's trace."""
    offset_ns: int
    """The reference clock minus the rank's own clock at ``at_ns``."""
    error_ns: int
    """Bound of the error: the true offset is within ``offset_ns`` plus or minus ``error_ns``."""


@dataclass(frozen=True)
class Clock:
    """One rank's clock relative to the reference clock.

    >>> clock = Clock(3, (Reading(1_000, 800, 30), Reading(2_000, 802, 20)))
    >>> clock.to_reference(np.array([0, 1_000, 1_500, 2_000, 9_000])).tolist()
    [800, 1800, 2301, 2802, 9802]
    """

    MOST_DRIFT: ClassVar[float] = 1e-4
    """Upper bound on the drift between two clocks, as a ratio: 100 parts per million. The clocks of
    computers drift by some ten parts per million."""

    rank: int
    readings: tuple[Reading, ...]
    """Readings sorted by ``at_ns``; at least one."""
    method: str = "exchange"
    """Source of the readings: ``exchange`` (round trips), ``collectives`` (ends of the same
    collective on both ranks) or ``same`` (this clock is the reference clock)."""

    @property
    def offset_ns(self) -> int:
        """The reference clock minus the rank's own clock, in ns, at the first reading."""
        return self.readings[0].offset_ns

    @property
    def drift_ppm(self) -> float | None:
        """How much faster the reference clock runs than the rank's own clock, in ppm.

        Computed from the first and the last reading; None if both have the same time, as with a
        single reading.
        """
        first, last = self.readings[0], self.readings[-1]
        elapsed_ns = last.at_ns - first.at_ns
        return (last.offset_ns - first.offset_ns) / elapsed_ns * 1e6 if elapsed_ns else None

    @property
    def drift_error_ppm(self) -> float | None:
        """Bound of the error of `drift_ppm`, in ppm; None in the same cases as `drift_ppm`."""
        first, last = self.readings[0], self.readings[-1]
        elapsed_ns = last.at_ns - first.at_ns
        return (first.error_ns + last.error_ns) / elapsed_ns * 1e6 if elapsed_ns else None

    @property
    def error_ns(self) -> int:
        """Bound of the error of `to_reference`, in ns: the largest ``error_ns`` of all readings.

        Between two readings, the bound is valid only if the drift is constant.
        """
        return max(reading.error_ns for reading in self.readings)

    def reaching(self, first_ns: int, last_ns: int) -> Clock:
        """Return this clock with readings up to these times of its own, which nothing has compared.

        Beyond the readings, a known drift goes on, and an unknown one is at most `MOST_DRIFT`: the
        error grows with the distance from the nearest reading. The reference clock, all of whose
        readings are exact, has no error.

        >>> Clock(3, (Reading(0, 800, 30),)).reaching(0, 1_000_000).readings[-1]
        Reading(at_ns=1000000, offset_ns=800, error_ns=130)
        """
        drift_ppm, error_ppm = self.drift_ppm or 0.0, self.drift_error_ppm
        if error_ppm is None or error_ppm > self.MOST_DRIFT * 1e6:
            drift_ppm, error_ppm = 0.0, self.MOST_DRIFT * 1e6

        def moved(reading: Reading, time_ns: int) -> Reading:
            away_ns = time_ns - reading.at_ns
            return Reading(
                time_ns,
                reading.offset_ns + round(away_ns * drift_ppm / 1e6),
                reading.error_ns + round(abs(away_ns) * error_ppm / 1e6),
            )

        first, last = self.readings[0], self.readings[-1]
        is_reference = not any(each.offset_ns or each.error_ns for each in self.readings)
        if self.method == "same" or is_reference:
            return self
        before = [moved(first, first_ns)] if first_ns < first.at_ns else []
        after = [moved(last, last_ns)] if last_ns > last.at_ns else []
        return replace(self, readings=(*before, *self.readings, *after))

    def to_reference(self, times_ns: Int64) -> Int64:
        """Convert times of this rank's clock to the reference clock: add the offset to each time.

        Times are int64 nanoseconds. The offset is interpolated between two readings. A time before the first or after the last
        reading gets the offset of that reading.
        """
        own_ns = np.array([reading.at_ns for reading in self.readings])
        offset_ns = np.array([reading.offset_ns for reading in self.readings])
        first_ns = int(own_ns[0])  # differences from it are small enough for float64
        shift_ns = np.interp(times_ns - first_ns, own_ns - first_ns, offset_ns - offset_ns[0])
        aligned_ns: Int64 = times_ns + (np.rint(shift_ns).astype(np.int64) + offset_ns[0])
        return aligned_ns


Clocks = Mapping[int, Clock]
"""Clocks, keyed by rank."""


def clocks_path(rank: int) -> str:
    """Return the path of the file with a rank's readings, relative to the run directory.

    >>> clocks_path(3)
    'clocks/rank_00003.jsonl'
    """
    return f"clocks/rank_{rank:05d}.jsonl"


def line_of(reading: Reading) -> str:
    r"""Return a reading as a line of the file at `clocks_path`.

    >>> line_of(Reading(1, -2, 3))
    '{"at_ns": 1, "offset_ns": -2, "error_ns": 3}\n'
    """
    return json.dumps(asdict(reading)) + "\n"


def read_clocks(run: PathLike) -> dict[int, Clock]:
    """Return the clocks in a run directory, keyed by rank; empty if it has no readings.

    Truncated, foreign and implausible lines are skipped. A rank whose file has no valid line is
    missing.

    Raises:
        InputError: a file exists but is unreadable or too large.
    """
    clocks = {}
    for rank, file in jsonl_files(run, "clocks"):
        try:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise InputError(f"{file}: {error.strerror or error}") from error
        readings = sorted(_readings(text.splitlines()), key=lambda reading: reading.at_ns)
        if readings:
            clocks[rank] = Clock(rank, tuple(readings))
    return clocks


def _readings(lines: Sequence[str]) -> Iterable[Reading]:
    for line in lines:
        try:
            fields = json.loads(line)
            own, offset, error = (int(fields[key]) for key in ("at_ns", "offset_ns", "error_ns"))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
        if abs(own) < _FOREVER_NS and abs(offset) < _FOREVER_NS and 0 <= error < _FOREVER_NS:
            yield Reading(own, offset, error)
