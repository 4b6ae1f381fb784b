"""Find the recordings (one window of one rank each) in a path, from file names alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppprof import rundir
from ppprof.errors import InputError
from ppprof.paths import store_errors_as_oserror, to_path

_BEST_FIRST = (".pb", ".json", ".json.gz")
"""Suffixes in order of preference. A ``.pb`` is exact and fastest; a ``.gz`` must be inflated."""

_FOREIGN = re.compile(
    r"(?P<worker>[^.].*?)"
    r"(?:_time_(?P<time>[^.]+)|\.(?P<ns>\d+))?"
    r"(?:\.paddle_trace|\.pt\.trace|(?=\.pb$))\.(?:pb|json|json\.gz)"
)
"""Names of trace files not written by ppprof. The handlers of ``paddle.profiler`` and
``torch.profiler`` write worker and time into the name. Any other ``.pb``, ``.paddle_trace.json``
or ``.pt.trace.json`` counts as a separate worker."""


@dataclass(frozen=True)
class Recording:
    """One window of one rank, and its files."""

    rank: int
    """From the file name. Without a rank in it, workers are numbered in the order of their names."""
    window: int
    """From the file name. Without a window in it, windows of a worker are numbered by time."""
    name: str
    """Name of the file or, in a directory of foreign files, of the worker."""
    coordinate: str | None
    """``dp0_pp0_sharding0_mp0``; None if the name has no coordinate."""
    files: tuple[Path, ...]
    """Traces of the same events, the preferred one first."""
    saved: Path | None = None
    """The window's tables as data, if the capture wrote them."""

    @property
    def what(self) -> str:
        """Text that follows the rank in a title."""
        return self.coordinate.replace("_", " ") if self.coordinate else self.name


def group_by_run(paths: Iterable[str | Path]) -> list[list[str | Path]]:
    """Group paths for `open`: paths of the same run go together, each other path is a group."""
    groups: dict[object, list[str | Path]] = {}
    for number, path in enumerate(paths):
        try:
            with store_errors_as_oserror(path):
                directories = _directories(to_path(path))
                run_ids = {rundir.read_run_id(directory) for directory in directories}
        except (InputError, OSError):  # `open` reports it
            run_ids = set()
        (run_id,) = run_ids if len(run_ids) == 1 else (None,)
        groups.setdefault(run_id or number, []).append(path)
    return list(groups.values())


def directories_of_run(paths: Sequence[Path]) -> list[Path]:
    """Return the directories of one run: that of the first path.

    Raises:
        InputError: the paths belong to different runs.
    """
    unique: dict[Path, Path] = {}  # by resolved path: a directory may be given twice
    run_id = None
    for path in paths:
        directories = _directories(path)
        same_run = rundir.find(path, run_id) if run_id else None  # not always the newest run there
        for directory in [same_run] if same_run else directories:
            unique.setdefault(directory.resolve(), directory)
        run_id = run_id or rundir.read_run_id(directories[0])
    if len(unique) > 1:
        ids = {directory: rundir.read_run_id(directory) for directory in unique.values()}
        if len(set(ids.values())) > 1 or run_id is None:
            raise InputError(f"{join_paths(ids)}: different runs; expected directories of one run")
    return list(unique.values())


def _directories(path: Path) -> list[Path]:
    """Return the newest run in a directory; else the directory if it has traces; else runs below."""
    try:
        return [rundir.newest(path)]
    except InputError:  # no manifest: foreign or copied traces
        return [path] if scan([path]) else rundir.find_runs_below(path) or [path]


def join_paths(paths: Iterable[Path]) -> str:
    """Join paths for a message."""
    return ", ".join(map(str, paths))


def single_file(path: Path) -> Recording:
    """Return the recording of a single file; rank and window are 0 unless its name has them."""
    name = rundir.TraceName.parse(path)
    if name is None:
        return Recording(0, 0, path.name, None, (path,))
    return Recording(name.rank, name.window, path.name, name.label, (path,))


def scan(directories: Sequence[Path]) -> list[Recording]:
    """Return the recordings in directories, sorted by rank, then window; empty without traces.

    Raises:
        InputError: two traces claim the same rank and window.
    """
    own: dict[rundir.TraceName, list[Path]] = {}
    foreign: dict[str, dict[str, list[Path]]] = {}
    files = [path for run in directories for path in (*run.glob("*.*"), *run.glob("raw/*.pb"))]
    for path in sorted(files, key=_best_first):
        name = rundir.TraceName.parse(path)
        if name is not None:
            own.setdefault(name, []).append(path)
        elif path.parent in directories and (match := _FOREIGN.fullmatch(path.name)):
            windows = foreign.setdefault(match["worker"], {})
            windows.setdefault(match["time"] or match["ns"] or "", []).append(path)
    saved = {
        (rank, window): path
        for run in directories
        for rank, window, path in rundir.summary_files(run)
    }
    recordings: dict[tuple[int, int], Recording] = {}
    for name, paths in own.items():
        key = (name.rank, name.window)
        if key in recordings:
            raise InputError(
                f"{join_paths(directories)}: rank {name.rank}, window {name.window} exists twice, as "
                f"{recordings[key].files[0].name} and {paths[0].name}; "
                "expected a directory for each run"
            )
        recordings[key] = Recording(*key, paths[0].name, name.label, tuple(paths), saved.get(key))
    for key in saved.keys() - recordings.keys():
        recordings[key] = Recording(*key, saved[key].name, None, (), saved[key])
    first = max((rank for rank, _ in recordings), default=-1) + 1
    for rank, worker in enumerate(sorted(foreign, key=_natural), first):
        for window, time in enumerate(sorted(foreign[worker], key=_natural)):
            traces = tuple(foreign[worker][time])
            recordings[rank, window] = Recording(rank, window, worker, None, traces)
    return [recordings[key] for key in sorted(recordings)]


def _best_first(path: Path) -> tuple[int, str]:
    order = [path.name.endswith(suffix) for suffix in _BEST_FIRST]
    return (order.index(True) if True in order else len(order), path.name)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers by value: ``rank_2`` before ``rank_10``."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
