"""Several processes that scan one long file, a stretch each.

A process and not a thread, as numpy's short calls leave no room for a second thread; a new
interpreter and not a fork, which is not safe in a program that has threads. It needs numpy alone,
and is ready in less than a tenth of a second. One that fails costs time only: its stretch is
scanned here.
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
from ppprof.trace.fastpath.fixed_layout import Scanned, scan
from ppprof.trace.fastpath.layouts import DIALECTS
from ppprof.trace.source import BLOCK_BYTES, LONGEST_EVENT_BYTES, TraceStream

STRETCH_BYTES = 32 << 20
"""A shorter stretch is not worth a process."""
HEAD_START_BYTES = 20 << 20
"""What is scanned here while the other processes start."""
_MOST_PROCESSES = 8
_WORK = (
    "import sys; sys.path[:] = filter(None, sys.path); "  # not what lies in the user's directory
    "from ppprof.trace.fastpath.workers import _work; _work()"
)


def stretches(source: TraceStream, dialect: str) -> list[int]:
    """Where to divide what is left of a file: ascending positions, its end the last of them."""
    if source.is_packed:
        return [sys.maxsize]
    num = min(_num_processors(), (source.size - source.position) // STRETCH_BYTES, _MOST_PROCESSES)
    length = (source.size - source.position - HEAD_START_BYTES) // max(num, 1)
    first = source.position + HEAD_START_BYTES
    starts = (
        _next_start(source.path, DIALECTS[dialect].start, first + at * length)
        for at in range(1, num)
    )
    return [*sorted({start for start in starts if start is not None}), source.size]


class ScanWorkers:
    """Processes that scan the stretches between the bounds; to be used as a context."""

    def __init__(self, path: str, dialect: str, bounds: Sequence[int]) -> None:
        self._path = path
        self._dialect = dialect
        self._bounds = list(zip(bounds, bounds[1:]))
        # Where this process found its packages; without site's search for what is installed.
        parent = str(Path(__file__).parents[2])
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join([parent, *filter(None, sys.path)])}
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
            except OSError:  # no more processes allowed, or no interpreter to be found
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
        """What each found, in the order of the file."""
        for number, (first, end) in enumerate(self._bounds):
            try:
                stdout = self._processes[number].stdout
                assert stdout is not None
                yield Scanned(*pickle.load(stdout))  # noqa: S301 - our own process wrote it
            except (IndexError, EOFError, OSError, pickle.UnpicklingError):
                with TraceStream(self._path, first=first) as source:
                    yield scan(source, DIALECTS[self._dialect], end)


def _work() -> None:
    """What a helper does: scans, and writes what it found to its standard output."""
    path, dialect, first, end = sys.argv[1:]
    with TraceStream(path, first=int(first)) as source:
        found = scan(source, DIALECTS[dialect], int(end))
    columns: defaultdict[str, defaultdict[tuple[str, ...], list[dict[str, Array]]]]
    columns = defaultdict(lambda: defaultdict(list))
    for kind, part in found.parts:
        columns[kind][tuple(part)].append(dict(part))
    parts = [
        (kind, {name: np.concatenate([part.pop(name) for part in same]) for name in names})
        for kind, by_names in columns.items()
        for names, same in by_names.items()
    ]
    pickle.dump((parts, found.texts, found.odd), sys.stdout.buffer, protocol=5)


def _next_start(path: str, start: bytes, position: int) -> int | None:
    """Where the next event begins; None where none does soon."""
    with TraceStream(path, first=position) as source:
        text = source.read(BLOCK_BYTES // 16)
        while start not in text and len(text) < LONGEST_EVENT_BYTES:
            more = source.read(BLOCK_BYTES)
            if not more:
                return None
            text += more
    at = text.find(start)
    return None if at < 0 else position + at


def _num_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
