"""The last communication operations of each rank: a ring in a file that outlives the process.

::

    flight/00003.ring      header | 2,048 records of 64 bytes | texts | stacks of threads
    flight/stacks.request  asks the ranks for the stacks of their threads

A record is written in place, without a call of the system: what a process that is killed has
written into a mapped file is kept. A record's number stands at both ends: a record whose numbers
differ was being written. A text is a line of JSON, and counts once the header's length includes it.
Stacks are what Python's ``faulthandler`` appends: at a crash, of the watchdog, on request, or at a signal.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ppprof.rundir.run_file import RunFile, matches
from ppprof.topology import MOST_RANKS

MOST_OPERATIONS = 2048
"""Operations of a ring: each has one record."""
POINT_TO_POINT = frozenset(["send", "recv"])
"""Operations between two ranks; all others are of all ranks of a group."""
REDUCTION = "backward of DataParallel"
"""A backward in which C++ reduces gradients, all of its reductions as one operation."""

_MAGIC, _OLDER = b"ppprof flight 3\n", b"ppprof flight 2\n"
"""The older one, which does not say that an exception has ended a call, is read, too."""
_HEADER = struct.Struct("<16sIIQ")  # magic, bytes of texts, step, when the step began
_RECORDS = np.dtype(
    [
        *((name, "<u4") for name in ("number", "group", "sequence", "step")),
        *((name, "<i8") for name in ("called_ns", "returned_ns", "waited_ns", "size")),
        ("peer", "<i4"),
        *((name, "<u2") for name in ("name", "dtype", "place", "context")),
        ("check", "<u4"),
    ]
)
"""A record: 8 words of 8 bytes, which are written one by one."""
_FIRST = 64
_32_BITS, _64_BITS = (1 << 32) - 1, (1 << 64) - 1
_RETURNED, _WAITED = _FIRST // 8 + 3, _FIRST // 8 + 4
"""Where these times stand in the first record, in words of 8 bytes."""
_TEXTS = _FIRST + MOST_OPERATIONS * _RECORDS.itemsize
_TEXT_BYTES = 1 << 16
_GROUP_BYTES = 1 << 13
"""Room that only groups may take: a group may first be used after thousands of modules."""
_SIZE = _TEXTS + _TEXT_BYTES
_ENTRY = re.compile(r"(?P<rank>[0-9]{5,6})\.ring")
_UNKNOWN = "?"
_REQUEST = "flight/stacks.request"
_MOST_REQUEST_BYTES = 1 << 20
_MOST_STACK_BYTES = 1 << 20
_DUMP = re.compile(
    r"^(?=Timeout \(|Fatal Python error: |Requested |Ended by |Steps went on$)", re.MULTILINE
)
"""Where stacks begin: of the watchdog, of a crash, on request, as a signal ends the process; and where they are old."""
STEPS_WENT_ON = "Steps went on"
"""Behind stacks that do not say any more where the rank is."""
_CRASH, _ENDED = "Fatal Python error: ", "Ended by "
_THREAD = re.compile(r"^(?=(?:Current thread|Thread) 0x)|^Extension modules: .*\Z", re.MULTILINE)
"""Where the stack of a thread begins, and what follows the last one."""
_FRAME = re.compile(
    r'^  File "(?P<file>(?:.*/)?(?P<name>.*))", line (?P<line>\d+) in (?P<function>.*)$',
    re.MULTILINE,
)
_LIBRARY = re.compile(
    r"^<|/(?:site|dist)-packages/|/lib(?:64)?/python3\.\d+/|/ppprof/(?:capture|integrations)/"
)
_LOADER = "paddle/io/dataloader/dataloader_iter.py"
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U(000[0-9a-f]{5}))")
"""How ``faulthandler`` writes what is not ASCII."""
_MANY_THREADS = "\n...\n"
"""Where it leaves out the oldest threads, the main thread among them: behind 100 others."""
_OF_PPPROF = re.compile(r'/ppprof/capture/process\.py", line \d+ in run\n')
"""In a stack: the function that all threads of ppprof run."""


Key = tuple[int, str, int]
"""Group, "send", "recv" or "" for collectives, and the other rank or -1."""


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
    """When the call returned; 0 if it has not. The transfer may still go on. Below 0, the negative of when an
    exception ended the call, or the wait for it."""
    waited_ns: int
    """When waiting for it ended; below 0, the negative of when the rank began to wait, if it still does or an
    exception ended it; 0 if it has not waited, or if a device executes it: then a wait may end before the
    operation does."""
    size: int
    """Bytes of the tensors that it was given, on this rank."""
    peer: int
    """The other rank of a transfer; the root of a broadcast, reduce, gather or scatter as a global rank; else -1."""
    name: str
    """Such as ``all_reduce``."""
    dtype: str
    place: str
    """The user's line that called it: ``train.py:41 step``."""
    context: str
    """The phase and the module that called it: ``backward``, ``forward of blocks.0 (Block)``; "?" if
    unknown."""

    @property
    def is_pending(self) -> bool:
        """Whether the rank is in the call, or waits for it to end."""
        return not self.returned_ns or (self.waited_ns < 0 and not self.has_raised)

    @property
    def has_raised(self) -> bool:
        """Whether an exception ended the call, or the wait for it."""
        return self.returned_ns < 0

    @property
    def raised_after_ns(self) -> int:
        """For how long it took until an exception ended it; 0 if none did."""
        return -self.returned_ns - self.called_ns if self.has_raised else 0

    @property
    def key(self) -> Key:
        """What numbers it: operations of one key are the 1st, 2nd... by ``sequence``."""
        is_transfer = self.name in POINT_TO_POINT
        return self.group, self.name if is_transfer else "", self.peer if is_transfer else -1

    @property
    def way(self) -> tuple[object, ...]:
        """What it has in common with the same call in other steps."""
        return self.group, self.name, self.peer, self.place

    @property
    def pending_since_ns(self) -> int:
        """When the rank began to wait."""
        return -self.waited_ns if self.waited_ns < 0 else self.called_ns


class Group(NamedTuple):
    """A group of ranks that communicate."""

    ranks: Sequence[int]
    """A range if they are at equal distances, else a tuple."""
    axis: str | None
    """None if it is not the group of an axis."""
    is_on_device: bool = False
    """Whether a device executes its operations, and the host may go on before they end."""


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
    """The newest ones, and those in which the rank waits; oldest first."""
    reached: Mapping[Key, int]
    """The greatest ``sequence`` of each key among all readable records."""
    is_full: bool
    """Whether older operations have been overwritten."""
    unreadable: int = 0
    """Records that were being written, or damaged."""

    def has_called(self, key: Key, sequence: int) -> bool | None:
        """Return whether the rank has called an operation; None if its records are overwritten."""
        reached = self.reached.get(key)
        if reached is not None:
            return reached >= sequence
        return None if self.is_full and key[0] in self.groups else False


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
        try:
            file.create(_HEADER.pack(_MAGIC, 0, 0, 0) + bytes(_SIZE - _HEADER.size))
        except FileExistsError:
            raise
        except OSError:  # leave the rest of the disk to the recordings
            with suppress(OSError):
                file.remove()
            raise
        with file.updating() as opened:
            self._ring = mmap.mmap(opened.fileno(), _SIZE)
        self._words = memoryview(self._ring).cast("Q")
        self.text(_UNKNOWN)

    @property
    def address(self) -> int:
        """Where the file is mapped, for as long as this object lives."""
        return np.frombuffer(self._ring, np.uint8).ctypes.data

    def text(self, value: object, room: int = _TEXT_BYTES - _GROUP_BYTES) -> int:
        """Return the number of a text or of another value of JSON; 0, unknown, once ``room`` is taken."""
        key = value if isinstance(value, str) else json.dumps(value)
        number = self._texts.get(key)
        if number is not None:
            return number
        line = json.dumps(value).encode() + b"\n"
        end = self._text_bytes + len(line)
        if end > room or len(self._texts) > 0xFFFF:
            return 0
        self._ring[_TEXTS + self._text_bytes : _TEXTS + end] = line
        self._text_bytes = end
        self._replace(len(_MAGIC), struct.pack("<I", end))
        self._texts[key] = len(self._texts)
        return self._texts[key]

    def group(
        self, group: int, ranks: Sequence[int], axis: str | None, is_on_device: bool = False
    ) -> None:
        """Note the ranks of a group. Ranks at equal distances take a line of equal length for any number."""
        step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        is_regular = step > 0 and list(ranks) == list(range(ranks[0], ranks[-1] + 1, step))
        members = {"range": [ranks[0], ranks[-1] + 1, step]} if is_regular else {"ranks": [*ranks]}
        device = {"device": True} if is_on_device else {}
        self.text({"group": group, "axis": axis, **members, **device}, _TEXT_BYTES)

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
        context: int,
    ) -> int:
        """Add an operation that is about to be called; return its number for `times`."""
        number = self._next
        self._next = number + 1
        words, first = self._words, _FIRST // 8 + number % MOST_OPERATIONS * 8
        low = number & _32_BITS
        # The second number first, the first one last: in between the record is one that is being written.
        words[first + 7] = low << 32 | context << 16 | place
        words[first + 1] = (step & _32_BITS) << 32 | sequence & _32_BITS
        words[first + 2] = called_ns
        words[first + 3] = words[first + 4] = 0
        words[first + 5] = size
        words[first + 6] = dtype << 48 | name << 32 | peer & _32_BITS
        words[first] = group << 32 | low
        return number

    def returned(self, number: int, ns: int) -> None:
        """Set when the call of an operation returned, or below 0 when an exception ended it or the wait for it.

        Nothing is set once the record has been overwritten.
        """
        if self._next - number <= MOST_OPERATIONS:
            self._words[_RETURNED + number % MOST_OPERATIONS * 8] = ns & _64_BITS

    def waited(self, number: int, ns: int) -> None:
        """Set the time of waiting for an operation, unless its record has been overwritten."""
        if self._next - number <= MOST_OPERATIONS:
            self._words[_WAITED + number % MOST_OPERATIONS * 8] = ns & _64_BITS

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


def open_stacks(run: Path, rank: int) -> int:
    """Return a descriptor that appends stacks to a rank's ring.

    Raises:
        OSError: the file cannot be opened.
    """
    with RunFile(run, ring_path(rank)).appending() as opened:
        return os.dup(opened.fileno())


def read_stacks(run: Path, rank: int) -> list[str]:
    """Return the stacks that a rank has written, each with its reason in the first line; oldest first.

    Empty without any, and if the file cannot be read.
    """
    with suppress(OSError), RunFile(run, ring_path(rank)).open() as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(_SIZE, size - _MOST_STACK_BYTES))
        text = file.read(_MOST_STACK_BYTES).decode("utf-8", "replace")
        return [each.strip() for each in _DUMP.split(text)[1:]]
    return []


class Stacks:
    """What a rank has written of its threads at one time, in the words of ``faulthandler``."""

    def __init__(self, text: str) -> None:
        text = _ESCAPE.sub(lambda escape: chr(int(escape[1] or escape[2] or escape[3], 16)), text)
        reason, *threads = _THREAD.split(text)
        self._reason = reason.strip()
        # In the text the newest thread comes first, so the main thread last; after a crash, the one that crashed counts.
        self._threads = [each.strip() for each in reversed(threads) if each.strip()]
        self._is_cut = _MANY_THREADS in f"{text}\n"
        if self.is_crash:
            self._threads.sort(key=lambda each: not each.startswith("Current"))

    @property
    def is_crash(self) -> bool:
        """Whether the process crashed."""
        return self._reason.startswith(_CRASH)

    @property
    def is_of_the_end(self) -> bool:
        """Whether the process has ended since."""
        return self.is_crash or self._reason.startswith(_ENDED)

    @property
    def end(self) -> str:
        """What ended the process: a signal's name or, in words, what crashed."""
        if self.is_crash:
            return self._reason.partition("\n")[0].removeprefix(_CRASH)
        return self._reason.removeprefix(_ENDED).partition(" ")[0]

    @property
    def ended_ns(self) -> int:
        """When a signal ended the process, on the rank's wall clock; 0 if none did, or if that is unknown."""
        when = self._reason.removeprefix(_ENDED).partition(" ")[2]
        return int(when) if re.fullmatch("[0-9]{1,19}", when) else 0

    @property
    def place(self) -> str:
        """Where the main thread was, or the one that crashed: the innermost line outside libraries, ``train.py:53 save``.

        "" if that is unknown.
        """
        first = self._threads[0] if self._threads else ""
        is_known = first.startswith("Current") or not self._is_cut
        frames = _FRAME.finditer(first if is_known else "")
        own = [each for each in frames if not _LIBRARY.search(each["file"])]
        return next((f"{each['name']}:{each['line']} {each['function']}" for each in own), "")

    @property
    def waits_for_ended_loader(self) -> bool:
        """Whether the main thread waits for a batch of Paddle's DataLoader whose own thread has ended.

        An exception of the dataset ends it, but not the wait for it (Paddle 3.3, num_workers=0). A thread that is in
        its loop itself waits until another DataLoader's batches are taken.
        """
        first = _FRAME.search(self._threads[0]) if self._threads and not self._is_cut else None
        if first is None or not first["file"].endswith(_LOADER) or first["function"] != "__next__":
            return False
        callers = (frame for each in self._threads for frame in [*_FRAME.finditer(each)][1:])
        return not any(
            frame["function"] == "_thread_loop" and frame["file"].endswith(_LOADER)
            for frame in callers
        )

    @property
    def shown(self) -> str:
        """The text with the main thread ahead of the others, and without those of ppprof."""
        own = [each for each in self._threads if not _OF_PPPROF.search(each)]
        reason = "" if self._reason.startswith("Requested ") else self._reason
        if self.ended_ns:
            reason = f"{_ENDED}{self.end}"
        return "\n\n".join(filter(None, [reason, *own]))


def request_stacks(run: Path, ranks: Collection[int]) -> str:
    """Ask ranks for the stacks of their threads; return the id that their answers repeat.

    Raises:
        OSError: the request cannot be written.
    """
    request = uuid.uuid4().hex[:12]
    RunFile(run, _REQUEST).write(json.dumps({"id": request, "ranks": sorted(ranks)}).encode())
    return request


def withdraw_request(run: Path) -> None:
    """Remove the request of `request_stacks`, if it is still there."""
    with suppress(OSError):
        RunFile(run, _REQUEST).remove()


def requested_stacks(run: Path, rank: int) -> str:
    """Return the id of a request for a rank's stacks; "" without one."""
    try:
        request = RunFile(run, _REQUEST).read_json(_MOST_REQUEST_BYTES)
        if rank in request["ranks"]:
            return str(request["id"])[:64]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return ""


def answer_line(request: str) -> bytes:
    """Return the line ahead of the stacks that a request asked for."""
    return f"Requested {request}\n".encode()


def ending_line(signal: str, now_ns: int) -> bytes:
    """Return the line ahead of the stacks that are written as a signal ends the process, on the rank's wall clock."""
    return f"{_ENDED}{signal} {now_ns}\n".encode()


def read_rings(
    run: Path, most: int = MOST_OPERATIONS, offsets_ns: Mapping[int, int] = MappingProxyType({})
) -> tuple[dict[int, Ring], dict[int, str]]:
    """Return the rings of a run directory by rank, and what is wrong with those that are unreadable.

    Args:
        run: the run directory.
        most: how many operations of each ring to return, beside those in which the rank waits.
        offsets_ns: what to add to the times of a rank's operations, which are of its wall clock; nothing
            for ranks without.

    Returns:
        The rings; and for each rank with an unreadable one a message with its path.

    Raises:
        OSError: the directory cannot be read.
    """
    rings, problems = {}, {}
    for rank in ranks_with_rings(run):
        file = RunFile(run, ring_path(rank))
        try:
            with file.open() as opened:
                data = opened.read(_SIZE)
            rings[rank] = _parse(rank, data, most, offsets_ns.get(rank, 0))
        except OSError as error:
            problems[rank] = f"{file}: {error.strerror or error}"
        except ValueError as error:
            problems[rank] = f"{file}: {error}"
    return rings, problems


def read_progress(run: Path, rank: int) -> tuple[int, int | None]:
    """Return how many steps of a rank have ended, and when the last one did, on the rank's wall clock.

    (0, None) if its ring is damaged.

    Raises:
        OSError: it has no ring, or that is unreadable.
    """
    with RunFile(run, ring_path(rank)).open() as opened:
        head = opened.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith((_MAGIC, _OLDER)):
        return 0, None
    _, _, step, step_ns = _HEADER.unpack(head)
    return step, step_ns


def ranks_with_rings(run: Path) -> list[int]:
    """Return the ranks that have a ring, readable or not."""
    return [int(entry["rank"]) for entry in matches(run, "flight", _ENTRY)]


def _parse(rank: int, data: bytes, most: int, offset_ns: int) -> Ring:
    if len(data) < _SIZE:
        raise ValueError(f"{len(data):,} bytes; expected at least {_SIZE:,}: the file is truncated")
    if not data.startswith((_MAGIC, _OLDER)):
        is_empty = not data.strip(b"\0")
        is_other = data.startswith(_MAGIC[:-2])
        what = "only zeros" if is_empty else f"begins with {data[: len(_MAGIC)]!r}"
        why = "another version of ppprof wrote it" if is_other else "the file is damaged"
        raise ValueError(f"{what}; expected {_MAGIC!r}: {why}")
    _, text_bytes, step, step_ns = _HEADER.unpack_from(data)
    texts = list(_texts(data[_TEXTS : _TEXTS + min(text_bytes, _TEXT_BYTES)]))
    records = np.frombuffer(data, _RECORDS, MOST_OPERATIONS, _FIRST)
    slots = np.flatnonzero((records["number"] != 0) | (records["check"] != 0))
    used = records[slots]
    is_whole = (used["number"] == used["check"]) & (used["number"] % MOST_OPERATIONS == slots)
    is_whole &= (used["called_ns"] > 0) & (used["size"] >= 0)
    whole = used[is_whole]
    whole = whole[np.argsort(whole["number"], kind="stable")]
    if data.startswith(
        _OLDER
    ):  # a rank that has called another operation since has left it by an exception
        since_ns = np.where(whole["waited_ns"] < 0, -whole["waited_ns"], whole["called_ns"])
        is_pending = (whole["returned_ns"] == 0) | (whole["waited_ns"] < 0)
        is_left = is_pending & (since_ns < whole["called_ns"].max(initial=0))
        whole["returned_ns"][is_left] = -since_ns[is_left]
    for times in (whole[name] for name in ("called_ns", "returned_ns", "waited_ns")):
        times += np.sign(times) * offset_ns
    returned_ns = whole["returned_ns"]
    is_kept = (returned_ns == 0) | (whole["waited_ns"] < 0) & (returned_ns > 0)
    is_kept[-most:] = True

    def text(number: int) -> str:
        value = texts[number] if number < len(texts) else _UNKNOWN
        return value if isinstance(value, str) else _UNKNOWN

    operations = tuple(
        Operation._make([*values, text(name), text(dtype), text(place), text(context)])
        for *values, name, dtype, place, context, _ in whole[is_kept].tolist()
    )
    return Ring(
        *(rank, step, step_ns, _groups(texts), operations, _reached(whole, text)),
        is_full=len(whole) >= MOST_OPERATIONS - 1,
        unreadable=len(used) - len(whole),
    )


def _reached(records: np.ndarray[Any, Any], text: Callable[[int], str]) -> dict[Key, int]:
    """Return the greatest sequence of each key."""
    names = [text(number) for number in range(int(records["name"].max(initial=0)) + 1)]
    is_transfer = np.array([name in POINT_TO_POINT for name in names])[records["name"]]
    name = np.where(is_transfer, records["name"], 0).astype(np.int64)
    peer = np.where(is_transfer, records["peer"], -1)
    keys = np.stack([records["group"].astype(np.int64), name, peer, is_transfer], axis=1)
    order = np.lexsort((records["sequence"], *keys.T))
    keys, sequences = keys[order], records["sequence"][order]
    is_last = np.append((keys[1:] != keys[:-1]).any(axis=1), True)[: len(keys)]
    return {
        (group, names[name] if transfers else "", peer): sequence
        for (group, name, peer, transfers), sequence in zip(
            keys[is_last].tolist(), sequences[is_last].tolist()
        )
    }


def _texts(data: bytes) -> Iterator[Any]:
    for line in data.splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            yield _UNKNOWN


def _groups(texts: Sequence[Any]) -> dict[int, Group]:
    groups: dict[int, Group] = {}
    num_left = MOST_RANKS  # a line can name a million ranks, and a damaged file has many lines
    for value in texts:
        if not isinstance(value, dict) or not isinstance(value.get("group"), int):
            continue
        ranks = _members(value)
        num_left -= len(ranks)
        if ranks and num_left >= 0:
            axis = value.get("axis")
            known_axis = axis if isinstance(axis, str) else None
            groups[value["group"]] = Group(ranks, known_axis, value.get("device") is True)
    return groups


def _members(group: Mapping[str, Any]) -> Sequence[int]:
    """Return the ranks of a group; none of a damaged one."""
    bounds: Any = group.get("range")
    ranks: Any = group.get("ranks")
    is_regular = isinstance(bounds, list) and [type(each) for each in bounds] == [int] * 3
    if is_regular and bounds[2] > 0 and 0 <= bounds[0] < bounds[1] <= MOST_RANKS:
        return range(*bounds)
    if isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
        return tuple(ranks)
    return ()
