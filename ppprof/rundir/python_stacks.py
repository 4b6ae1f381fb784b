"""Samples of Python stacks in a window: a file of the run directory, ``stacks/`` and the trace's name.

The file is one line of JSON, then 5 little-endian int64 for each sample of a thread, for each read of
a tensor's values, for each full garbage collection, for each evaluation, and for each clearing of gradients::

    {"interval_ns": 4000000, "columns": 5, "reads": 0, "collections": 0, "evaluations": 0, "clears": 0,
     "frames": [["__main__", "train.py", "log", 41, true], ["paddle.tensor", "...", "numpy", 9, false]],
     "stacks": [[1, 0]],
     "threads": {"31": [800000000, 1000000, 1000000000]},
     "holders": [["losses, train.py (list)", [94017, 94081]]],
     "source": {"train.py": {"41": "    f.write(json.dumps(record))"}}}
    thread id | time_ns | weight_ns | row of the stack, or -1 | late_ns

A stack lists the rows of its frames, the innermost first. A sample at ``time_ns`` stands for
``weight_ns`` of time: as long as a sample was due, on average. It was due ``late_ns`` earlier, for the last
time. The last rows are no samples. ``reads`` of them are
calls that read the values of a tensor (``.item()``, ``.numpy()``, ``float()``, ``print``): the end of the
call, its duration, and the line that made it. Behind them, ``collections`` rows are those of Python's garbage
collector in the oldest generation, likewise: the line is where the thread was. The next ``evaluations`` rows, which
have no line, go from ``eval()`` to ``train()`` of a layer, or to the next ``eval()`` ahead of it. The last ``clears``
rows have no line either: gradients are cleared, one after the other. ``threads`` is `PythonStacks.threads`, ``holders`` is
`PythonStacks.holders`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ppprof.arrays import Int64
from ppprof.paths import PathLike, to_path
from ppprof.rundir.names import TraceName
from ppprof.rundir.run_file import RunFile
from ppprof.units import escape_cell

_MOST_BYTES, _MOST_TEXT_BYTES = 64 << 20, 16 << 20
"""Limits of the whole file, and of its line of JSON."""
_MOST_FRAMES, _MOST_STACKS, _MOST_DEPTH = 100_000, 100_000, 200
_MOST_TEXT = 300
"""Longest name or line of source; the rest is cut off."""
COLUMNS = 5
NOTED = ("reads", "collections", "evaluations", "clears")
"""Fields of `PythonStacks` whose rows are calls rather than samples, in the order of the file."""
_LARGEST_NS = 1 << 62


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """A line of a function on a stack."""

    module: str
    """Name of the module: ``__main__``."""
    file: str
    """Path of the file, relative to the working directory of the training if it lies below it."""
    function: str
    """Name of the function, such as ``Trainer.log``; ``<module>`` for the file's own code."""
    line: int
    """Number of the line; 0 if unknown."""
    is_own: bool
    """Whether it is the user's: neither of an installed package nor of Python, Paddle or ppprof."""

    @property
    def place(self) -> str:
        """The line as tables show it: ``train.py:41``."""
        return f"{self.file}:{self.line}"


class ThreadTime(msgspec.Struct, array_like=True, frozen=True):
    """What a thread did during a window, in ns. The rest of the time it slept or waited for a lock."""

    ran_ns: int
    """Time on a processor."""
    waited_ns: int
    """Time in which it could run and had no processor."""
    window_ns: int
    """Length of the window."""


class Holder(msgspec.Struct, array_like=True, frozen=True):
    """A container that held tensors when a window ended, or a tensor with a graph over all steps, and how Python reaches it."""

    name: str
    """``losses, train.py (list)``, ``history, fit() of train.py (dict)`` or ``Trainer.history (list)``."""
    addresses: list[int]
    """Where its latest tensors are in memory."""
    is_bounded: bool = False
    """Whether it drops the oldest once it is full: a deque with ``maxlen``."""
    has_graphs: bool = False
    """Whether its latest tensors have graphs of gradients, which may keep more memory in C++."""
    is_chain: bool = False
    """Whether it is no container, but a tensor with a graph of gradients over all steps of the window:
    ``total_loss, main() of train.py``. Then there are no addresses."""


class _Header(msgspec.Struct):
    interval_ns: int
    frames: list[Frame]
    stacks: list[list[int]]
    source: dict[str, dict[str, str]]
    columns: int
    reads: int = 0
    collections: int = 0
    evaluations: int = 0
    clears: int = 0
    threads: dict[str, ThreadTime] = {}
    holders: list[Holder] = []


@dataclass(frozen=True)
class PythonStacks:
    """The samples of a window."""

    interval_ns: int
    """Mean time between two instants at which a sample was due."""
    frames: list[Frame]
    """The frames of all stacks, each once."""
    stacks: list[list[int]]
    """Rows of ``frames``, the innermost frame first."""
    samples: Int64
    """One row per sample of a thread, columns as in the file; sorted by thread, then time."""
    source: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """File -> line number -> text, of the lines around those with the most time."""
    reads: Int64 = field(default_factory=lambda: np.zeros((0, COLUMNS), np.int64))
    """One row per read of a tensor's values, columns as in the file; sorted likewise."""
    collections: Int64 = field(default_factory=lambda: np.zeros((0, COLUMNS), np.int64))
    """One row per full garbage collection, columns as in the file; sorted likewise."""
    evaluations: Int64 = field(default_factory=lambda: np.zeros((0, COLUMNS), np.int64))
    """One row per evaluation, columns as in the file; sorted likewise."""
    clears: Int64 = field(default_factory=lambda: np.zeros((0, COLUMNS), np.int64))
    """One row per clearing of gradients, columns as in the file; sorted likewise."""
    threads: Mapping[int, ThreadTime] = field(default_factory=dict)
    """What each sampled thread did, keyed by its id; empty where the system does not say it."""
    holders: Sequence[Holder] = ()
    """Containers with tensors when the window ended, if memory had grown in it, the largest first; then `Holder.is_chain`."""


def write_python_stacks(file: RunFile, stacks: PythonStacks) -> None:
    """Write the samples of a window.

    Raises:
        OSError: the file cannot be written.
    """
    file.write(encoded_stacks(stacks))


def encoded_stacks(stacks: PythonStacks) -> bytes:
    """Return the content of a file with these samples."""
    source = {
        path: {str(line): text for line, text in lines.items()}
        for path, lines in stacks.source.items()
    }
    threads = {str(thread): each for thread, each in stacks.threads.items()}
    parts = [stacks.samples, *(getattr(stacks, name) for name in NOTED)]
    header = _Header(
        *(stacks.interval_ns, stacks.frames, stacks.stacks, source, COLUMNS),
        reads=len(stacks.reads),
        collections=len(stacks.collections),
        evaluations=len(stacks.evaluations),
        clears=len(stacks.clears),
        threads=threads,
        holders=list(stacks.holders),
    )
    numbers = np.concatenate(parts).astype("<i8").tobytes()
    return b"\n".join([msgspec.json.encode(header), numbers])


def read_python_stacks(file: RunFile) -> PythonStacks:
    """Read the samples of a window. Control characters of texts are escaped, long texts are cut.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    return decoded_stacks(file.read(_MOST_BYTES))


def decoded_stacks(content: bytes) -> PythonStacks:
    """Return the samples of a file with this content, as `read_python_stacks` does.

    Raises:
        ValueError: it is damaged.
    """
    text, _, numbers = content.partition(b"\n")
    if len(text) > _MOST_TEXT_BYTES:
        raise ValueError(f"a line of {len(text)} bytes")
    try:
        header = msgspec.json.decode(text, type=_Header)
    except msgspec.DecodeError as error:  # a ValueError in newer msgspec only
        raise ValueError(str(error)) from error
    if len(header.frames) > _MOST_FRAMES or len(header.stacks) > _MOST_STACKS:
        raise ValueError("more stacks than a window has time for")
    if header.columns != COLUMNS:
        raise ValueError(f"{header.columns} columns")
    rows: Int64 = np.frombuffer(numbers, "<i8").astype(np.int64).reshape(-1, COLUMNS)
    if len(rows):
        _check_range(rows[:, [1, 2, 4]], 0, _LARGEST_NS)
        _check_range(rows[:, 3], -1, len(header.stacks))
    nums = [getattr(header, name) for name in NOTED]
    ends = np.cumsum([len(rows) - sum(nums), *nums])
    if min(ends[0], *nums) < 0:
        raise ValueError(f"more {', '.join(NOTED)} than rows")
    parts = [_sorted(part) for part in np.split(rows, ends[:-1])]
    for stack in header.stacks:
        if len(stack) > _MOST_DEPTH or not all(0 <= row < len(header.frames) for row in stack):
            raise ValueError("a frame that does not exist")
    frames = [
        Frame(
            _visible(frame.module),
            _visible(frame.file),
            _visible(frame.function),
            frame.line,
            frame.is_own,
        )
        for frame in header.frames
    ]
    source = {
        _visible(path): {int(line): _visible(code) for line, code in lines.items()}
        for path, lines in header.source.items()
        if all(_NUMBER.fullmatch(line) for line in lines)
    }
    interval_ns = max(0, header.interval_ns)
    threads = {
        int(thread): each
        for thread, each in header.threads.items()
        if _NUMBER.fullmatch(thread) and min(each.ran_ns, each.waited_ns, each.window_ns - 1) >= 0
    }
    holders = [msgspec.structs.replace(each, name=_visible(each.name)) for each in header.holders]
    samples, reads, collections, evaluations, clears = parts
    return PythonStacks(
        *(interval_ns, frames, header.stacks, samples, source),
        *(reads, collections, evaluations, clears),
        threads=threads,
        holders=holders,
    )


def joined_stacks(parts: Sequence[PythonStacks]) -> PythonStacks:
    """Return the samples of one or more files as those of one, without times of threads."""
    frames: dict[Frame, int] = {}
    stacks: dict[tuple[int, ...], int] = {}
    rows: dict[str, list[Int64]] = {name: [] for name in ("samples", *NOTED)}
    for part in parts:
        frame_of = [frames.setdefault(frame, len(frames)) for frame in part.frames]
        keys = [tuple(frame_of[row] for row in stack) for stack in part.stacks]
        stack_of = np.array([*(stacks.setdefault(key, len(stacks)) for key in keys), -1], np.int64)
        for name, every in rows.items():
            own = getattr(part, name).copy()
            own[:, 3] = stack_of[own[:, 3]]
            every.append(own)
    samples, reads, collections, evaluations, clears = (
        _sorted(np.concatenate(every)) for every in rows.values()
    )
    interval_ns = sum(part.interval_ns for part in parts) // len(parts)
    source = joined_source([part.source for part in parts])
    return PythonStacks(
        *(interval_ns, list(frames), list(map(list, stacks)), samples, source),
        *(reads, collections, evaluations, clears),
        holders=[holder for part in parts for holder in part.holders],
    )


def joined_source(parts: Sequence[Mapping[str, Mapping[int, str]]]) -> dict[str, dict[int, str]]:
    """Return file -> line number -> text of all parts; of a line in several, that of the last one."""
    source: dict[str, dict[int, str]] = {}
    for part in parts:
        for file, lines in part.items():
            source.setdefault(file, {}).update(lines)
    return source


_NUMBER = re.compile(r"[0-9]{1,9}")


def _sorted(rows: Int64) -> Int64:
    """Return rows by thread, then time."""
    ordered: Int64 = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    return ordered


def _check_range(numbers: Int64, least: int, end: int) -> None:
    if not least <= numbers.min() <= numbers.max() < end:
        raise ValueError("a number that no sample has")


def _visible(text: str) -> str:
    return escape_cell(text[:_MOST_TEXT])


def stacks_of_trace(path: PathLike) -> RunFile | None:
    """Return the file with the stacks of a trace or raw capture; None for a name of other programs.

    >>> str(stacks_of_trace("log/raw/rank_00000_dp0_time_20261120T201530_000.pb"))
    'log/stacks/rank_00000_dp0_time_20261120T201530_000.stacks'
    """
    path = to_path(path)
    name = TraceName.parse(path)
    if name is None:
        return None
    run = path.parent.parent if path.parent.name == "raw" else path.parent
    return RunFile(run, name.stacks)
