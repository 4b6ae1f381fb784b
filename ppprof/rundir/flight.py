"""The last communication operations of each rank: a ring in a file that outlives the process.

::

    flight/00003.ring      header | 2,048 records of 64 bytes | texts

A record is written in place, without a call of the system: what a process that is killed has
written into a mapped file is kept. A record's number stands at both ends: a record whose numbers
differ was being written. A text is a line of JSON, and counts once the header's length includes it.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ppprof.rundir.run_file import RunFile, matches
from ppprof.topology import MOST_RANKS

MOST_OPERATIONS = 2048
"""Operations of a ring: each has one record."""
POINT_TO_POINT = frozenset(["send", "recv"])
"""Operations between two ranks; all others are of all ranks of a group."""

_MAGIC = b"ppprof flight 1\n"
_HEADER = struct.Struct("<16sIIQ")  # magic, bytes of texts, step, when the step began
_RECORD = struct.Struct("<IIIIqqqqiHHII")
_TIMES = struct.Struct("<qq")
_TIMES_AT = 24
"""Offset of the times of return and of waiting in a record."""
_FIRST = 64
_TEXTS = _FIRST + MOST_OPERATIONS * _RECORD.size
_TEXT_BYTES = 1 << 16
_SIZE = _TEXTS + _TEXT_BYTES
_ENTRY = re.compile(r"(?P<rank>[0-9]{5,6})\.ring")
_UNKNOWN = "?"


class Operation(NamedTuple):
    """A call of a communication operation on one rank."""

    number: int
    """Number among all operations of the rank, from 1."""
    group: int
    """Paddle's number of the group."""
    sequence: int
    """Number among the rank's collectives in the group, or among its transfers in one direction with
    ``peer`` in the group; from 1."""
    step: int
    called_ns: int
    """When it was called, on the rank's wall clock."""
    returned_ns: int
    """When the call returned; 0 if it has not. The transfer may still go on."""
    waited_ns: int
    """When waiting for it ended; below 0, the negative of when the rank began to wait, if it still does; 0
    if it has not waited."""
    size: int
    """Bytes of the tensors that it was given, on this rank."""
    peer: int
    """The other rank of a transfer; the root of a broadcast or reduce as a global rank; else -1."""
    name: str
    """Such as ``all_reduce``."""
    dtype: str
    place: str
    """The user's line that called it: ``train.py:41 step``."""

    @property
    def is_pending(self) -> bool:
        """Whether the rank is in the call, or waits for it to end."""
        return not self.returned_ns or self.waited_ns < 0

    @property
    def pending_since_ns(self) -> int:
        """When the rank began to wait."""
        return -self.waited_ns if self.waited_ns < 0 else self.called_ns


class Group(NamedTuple):
    """A group of ranks that communicate."""

    ranks: tuple[int, ...]
    axis: str | None
    """None if it is not the group of an axis."""


@dataclass(frozen=True)
class Ring:
    """What a rank's ring holds."""

    rank: int
    step: int
    """Steps that have ended."""
    step_ns: int
    """When the last one ended, or the recorder began, on the rank's wall clock."""
    groups: Mapping[int, Group]
    operations: tuple[Operation, ...]
    """Oldest first; at most `MOST_OPERATIONS`."""
    unreadable: int = 0
    """Records that were being written, or damaged."""


@dataclass
class FlightRing:
    """Writes a rank's ring.

    All blocks of the file are written first: with a mapped file, a disk that fills up later would end
    the process.

    Raises:
        OSError: the file cannot be written.
    """

    run: Path
    rank: int
    _next: int = 1
    _texts: dict[Any, int] = field(default_factory=dict)
    _text_bytes: int = 0

    def __post_init__(self) -> None:
        file = RunFile(self.run, ring_path(self.rank))
        file.create(_HEADER.pack(_MAGIC, 0, 0, 0) + bytes(_SIZE - _HEADER.size))
        with file.updating() as opened:
            self._ring = mmap.mmap(opened.fileno(), _SIZE)
        self.text(_UNKNOWN)

    def text(self, value: object) -> int:
        """Return the number of a text or of another value of JSON; 0, unknown, once there is no room."""
        key = value if isinstance(value, str) else json.dumps(value)
        number = self._texts.get(key)
        if number is not None:
            return number
        line = json.dumps(value).encode() + b"\n"
        end = self._text_bytes + len(line)
        if end > _TEXT_BYTES or len(self._texts) > 0xFFFF:
            return 0
        self._ring[_TEXTS + self._text_bytes : _TEXTS + end] = line
        self._text_bytes = end
        self._replace(len(_MAGIC), struct.pack("<I", end))
        self._texts[key] = len(self._texts)
        return self._texts[key]

    def group(self, group: int, ranks: Sequence[int], axis: str | None) -> None:
        """Note the ranks of a group. Ranks at equal distances take a line of equal length for any number."""
        step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        is_regular = step > 0 and list(ranks) == list(range(ranks[0], ranks[-1] + 1, step))
        members = {"range": [ranks[0], ranks[-1] + 1, step]} if is_regular else {"ranks": [*ranks]}
        self.text({"group": group, "axis": axis, **members})

    def add(
        self,
        group: int,
        sequence: int,
        step: int,
        called_ns: int,
        size: int,
        peer: int,
        name: int,
        dtype: int,
        place: int,
    ) -> int:
        """Add an operation that is about to be called; return its number for `times`."""
        number = self._next
        self._next = number + 1
        offset = _FIRST + (number % MOST_OPERATIONS) * 64
        _RECORD.pack_into(
            self._ring,
            offset,
            *(number & 0xFFFFFFFF, group, sequence & 0xFFFFFFFF, step & 0xFFFFFFFF),
            *(called_ns, 0, 0, size, peer, name, dtype, place, number & 0xFFFFFFFF),
        )
        return number

    def times(self, number: int, returned_ns: int, waited_ns: int) -> None:
        """Set the times of an operation, unless its record has been overwritten."""
        if self._next - number <= MOST_OPERATIONS:
            offset = _FIRST + (number % MOST_OPERATIONS) * 64 + _TIMES_AT
            self._replace(offset, _TIMES.pack(returned_ns, waited_ns))

    def step(self, step: int, now_ns: int) -> None:
        """Note how many steps have ended, and when the last one did."""
        self._replace(len(_MAGIC) + 4, struct.pack("<IQ", step & 0xFFFFFFFF, now_ns))

    def _replace(self, offset: int, packed: bytes) -> None:
        """Write over what is there; `struct.pack_into` would write zeros first, which a reader may see."""
        self._ring[offset : offset + len(packed)] = packed


def ring_path(rank: int) -> str:
    """Return the path of a rank's ring, relative to the run directory.

    >>> ring_path(3)
    'flight/00003.ring'
    """
    return f"flight/{rank:05d}.ring"


def stacks_path(rank: int) -> str:
    """Return the path of what a rank's watchdog writes: the stacks of all threads."""
    return f"flight/{rank:05d}.stacks"


def read_rings(run: Path) -> dict[int, Ring]:
    """Return the rings of a run directory, by rank; those that are damaged as a whole are left out.

    Raises:
        OSError: a file cannot be read.
    """
    rings = {}
    for entry in matches(run, "flight", _ENTRY):
        rank = int(entry["rank"])
        ring = _parse(rank, RunFile(run, ring_path(rank)).read(_SIZE))
        if ring is not None:
            rings[rank] = ring
    return rings


def _parse(rank: int, data: bytes) -> Ring | None:
    if len(data) != _SIZE or not data.startswith(_MAGIC):
        return None
    _, text_bytes, step, step_ns = _HEADER.unpack_from(data)
    texts: list[Any] = []
    for line in data[_TEXTS : _TEXTS + min(text_bytes, _TEXT_BYTES)].splitlines():
        try:
            texts.append(json.loads(line))
        except ValueError:
            texts.append(_UNKNOWN)
    groups: dict[int, Group] = {}
    num_left = MOST_RANKS  # a line can name a million ranks, and a damaged file has many lines
    for value in texts:
        if not isinstance(value, dict) or not isinstance(value.get("group"), int):
            continue
        ranks = _members(value)
        num_left -= len(ranks)
        if ranks and num_left >= 0:
            axis = value.get("axis")
            groups[value["group"]] = Group(tuple(ranks), axis if isinstance(axis, str) else None)
    operations, unreadable = [], 0

    def text(number: int) -> str:
        value = texts[number] if number < len(texts) else _UNKNOWN
        return value if isinstance(value, str) else _UNKNOWN

    for offset in range(_FIRST, _TEXTS, _RECORD.size):
        number, *values, name, dtype, place, check = _RECORD.unpack_from(data, offset)
        if number != check:
            unreadable += 1
        elif number:
            operations.append(
                Operation._make([number, *values, text(name), text(dtype), text(place)])
            )
    operations.sort()
    return Ring(rank, step, step_ns, groups, tuple(operations), unreadable)


def _members(group: Mapping[str, Any]) -> Sequence[int]:
    """Return the ranks of a group; none of a damaged one."""
    bounds: Any = group.get("range")
    ranks: Any = group.get("ranks")
    is_regular = isinstance(bounds, list) and [type(each) for each in bounds] == [int] * 3
    if is_regular and bounds[2] > 0 and 0 <= bounds[0] < bounds[1] <= MOST_RANKS:
        return range(*bounds)
    if isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
        return ranks
    return ()
