"""Processes that scan one long file with numpy, a byte range each.

Threads (`threads`) would not help here, because numpy's short calls hold the interpreter's lock
most of the time. Each worker is a new interpreter, because a fork is not safe in a program with
threads. It imports numpy alone and is ready in less than a tenth of a second. If a worker fails,
this process scans the worker's range, which only costs time.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ppprof.arrays import Array
from ppprof.hardware import num_processors
from ppprof.paths import is_remote
from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.fixed_layout import Scanned, scan
from ppprof.trace.fastpath.layouts import DIALECTS
from ppprof.trace.fastpath.threads import RangeScan, ScanThreads
from ppprof.trace.source import BLOCK_BYTES, MAX_EVENT_BYTES, TraceStream

MIN_RANGE_BYTES = 32 << 20
"""The file must have this many bytes for each process or thread that scans it, with this one."""
HEAD_START_BYTES = 20 << 20
"""Bytes that this process scans while the workers start."""
_MOST_PROCESSES = 8  # or threads
_WORK = (
    "import sys; sys.path[:] = filter(None, sys.path); "  # never import from the current directory
    "from ppprof.trace.fastpath.workers import _work; _work()"
)


def split_positions(source: TraceStream, dialect: str, begun: RangeScan | None = None) -> list[int]:
    """Return the offsets at which the ranges of a file end, ascending.

    The first range begins at the stream's position, and the caller scans it; with the compiled core
    it is empty. `scan_ranges` scans the others. The last offset is the end of the file. There is one
    range if the file is in a store: some stores have one position for all readers of a file. A file
    packed with gzip cannot be divided: the only offset is ``sys.maxsize``.

    Args:
        source: the file, at its list of events.
        dialect: key in `DIALECTS` of the file's writer.
        begun: the scan of the range at the stream's position, if it has begun.
    """
    if source.is_packed:
        return [sys.maxsize]
    if is_remote(source.path):
        return [source.size]
    if core.library() is None:
        return [*_starts(source, dialect, HEAD_START_BYTES, num_processors()), source.size]
    if begun is None:
        return [source.position, *_starts(source, dialect, 0, num_processors()), source.size]
    bounds = [begun.first, begun.end]
    if begun.end < source.size:
        done = begun.end - source.position
        bounds += [*_starts(source, dialect, done, num_processors() - 1), source.size]
    return bounds


def _starts(source: TraceStream, dialect: str, head_start: int, most: int) -> list[int]:
    """Return where the ranges of a file but the first one begin, ascending.

    Args:
        source: the file, at its list of events.
        dialect: key in `DIALECTS` of the file's writer.
        head_start: bytes of the first range that are not counted when the rest is divided equally.
        most: most ranges.
    """
    first = source.position + head_start
    num = min(most, (source.size - source.position) // MIN_RANGE_BYTES, _MOST_PROCESSES)
    length = (source.size - first) // max(num, 1)
    starts = (next_start(source.path, dialect, first + number * length) for number in range(1, num))
    return sorted({start for start in starts if start is not None})


def scan_ranges(
    source: TraceStream, dialect: str, bounds: Sequence[int], begun: RangeScan | None = None
) -> ScanThreads | ScanWorkers:
    """Return threads if the compiled core is used, else processes.

    Args:
        source: the file.
        dialect: key in `DIALECTS` of the file's writer.
        bounds: from `split_positions`.
        begun: likewise.
    """
    if core.library():
        return ScanThreads(source, dialect, bounds, begun)
    return ScanWorkers(source.path, dialect, bounds)


class ScanWorkers:
    """Context manager for processes that each scan the range between two neighbouring bounds.

    At the end of the block, all processes are killed.

    Args:
        path: the file.
        dialect: key in `DIALECTS` of the file's writer.
        bounds: offsets from `split_positions`.
    """

    def __init__(self, path: str, dialect: str, bounds: Sequence[int]) -> None:
        self._path = path
        self._dialect = dialect
        self._bounds = list(zip(bounds, bounds[1:]))
        # The search path of this process, since -S skips the search for installed packages.
        parent = str(Path(__file__).parents[2])
        search = os.pathsep.join([parent, *filter(None, sys.path)])
        paths = {**os.environ, "PYTHONPATH": search, "OPENBLAS_NUM_THREADS": "1"}
        self._processes = []
        for first, end in self._bounds:
            command = [sys.executable or "", "-S", "-c", _WORK, path, dialect, str(first), str(end)]
            try:
                process = subprocess.Popen(
                    command,
                    env=paths,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError:  # the limit of processes is reached, or there is no interpreter
                break
            self._processes.append(process)

    def __enter__(self) -> ScanWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            if process.stdout:
                process.stdout.close()
            process.wait()

    def scanned(self) -> Iterator[Scanned]:
        """Yield the events of each range, in the order of the file.

        If the worker of a range failed, this process scans the range.
        """
        for number, (first, end) in enumerate(self._bounds):
            try:
                stdout = self._processes[number].stdout
                assert stdout is not None
                yield Scanned(*pickle.load(stdout))  # noqa: S301 - our own process wrote it
            except (IndexError, EOFError, OSError, pickle.UnpicklingError):
                with TraceStream(self._path, first=first) as source:
                    yield scan(source, DIALECTS[self._dialect], end)


def _work() -> None:
    """Scan a range and write the result to standard output: the program of a worker."""
    path, dialect, first, end = sys.argv[1:]
    with TraceStream(path, first=int(first)) as source:
        scanned = scan(source, DIALECTS[dialect], int(end))
    columns: defaultdict[str, defaultdict[tuple[str, ...], list[dict[str, Array]]]]
    columns = defaultdict(lambda: defaultdict(list))
    for kind, part in scanned.parts:
        columns[kind][tuple(part)].append(dict(part))
    parts = [
        (kind, {name: np.concatenate([part.pop(name) for part in same]) for name in names})
        for kind, by_names in columns.items()
        for names, same in by_names.items()
    ]
    result = (parts, scanned.texts, scanned.unmatched, scanned.num_flows)
    pickle.dump(result, sys.stdout.buffer, protocol=5)


def next_start(path: str, dialect: str, position: int) -> int | None:
    """Return the offset of the first event that begins at or after ``position``.

    None if the file ends first, or if no event begins in about `MAX_EVENT_BYTES` bytes.

    Args:
        path: the file.
        dialect: key in `DIALECTS` of the file's writer.
        position: offset in the file.
    """
    start = DIALECTS[dialect].start
    with TraceStream(path, first=position) as source:
        text = source.read(BLOCK_BYTES // 16)
        while start not in text and len(text) < MAX_EVENT_BYTES:
            more = source.read(BLOCK_BYTES)
            if not more:
                return None
            text += more
    offset = text.find(start)
    return None if offset < 0 else position + offset
