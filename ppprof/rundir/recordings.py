"""Which recordings, windows of ranks, a path holds, by the names of files alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppprof import rundir
from ppprof.errors import InputError
from ppprof.paths import store_errors_as_oserror, to_path

_BEST_FIRST = (".pb", ".json", ".json.gz")
"""A ``.pb`` is exact and the fastest to read; a ``.gz`` has to be inflated first."""

_FOREIGN = re.compile(
    r"(?P<worker>[^.].*?)"
    r"(?:_time_(?P<time>[^.]+)|\.(?P<ns>\d+))?"
    r"(?:\.paddle_trace|\.pt\.trace|(?=\.pb$))\.(?:pb|json|json\.gz)"
)
"""Trace files that ppprof did not name: ``paddle.profiler``'s and ``torch.profiler``'s handlers
write worker and time into the name; another ``.pb``, ``.paddle_trace.json`` or ``.pt.trace.json``
is a worker of its own."""


@dataclass(frozen=True)
class Recording:
    """One window of one rank, and the files that hold it."""

    rank: int
    """From the name; files whose names say none are numbered, by worker, in the order of names."""
    window: int
    """From the name; where it says none, by time within a worker."""
    name: str
    """Of the file or, in a directory of such files, of its worker."""
    coordinate: str | None
    """``dp0_pp0_sharding0_mp0``; None where the name does not say."""
    files: tuple[Path, ...]
    """Traces of the same events, the best first."""
    saved: Path | None = None
    """Its tables as data, where a capture has left them."""

    @property
    def what(self) -> str:
        """What stands beside the rank in a title."""
        return self.coordinate.replace("_", " ") if self.coordinate else self.name


def group_by_run(paths: Iterable[str | Path]) -> list[list[str | Path]]:
    """Paths for `open`: those that hold the same run together, every other one alone."""
    groups: dict[object, list[str | Path]] = {}
    for number, path in enumerate(paths):
        try:
            with store_errors_as_oserror(path):
                directories = _directories(to_path(path))
                run_ids = {rundir.read_run_id(directory) for directory in directories}
        except (InputError, OSError):  # which `open` tells
            run_ids = set()
        (run_id,) = run_ids if len(run_ids) == 1 else (None,)
        groups.setdefault(run_id or number, []).append(path)
    return list(groups.values())


def directories_of_run(paths: Sequence[Path]) -> list[Path]:
    """The directories that make up the run which the first path holds.

    Raises:
        InputError: they are not of one run.
    """
    found: dict[Path, Path] = {}  # by what they are, for one may be named twice
    run_id = None
    for path in paths:
        directories = _directories(path)
        same = rundir.find(path, run_id) if run_id else None  # it need not be the newest there
        for directory in [same] if same else directories:
            found.setdefault(directory.resolve(), directory)
        run_id = run_id or rundir.read_run_id(directories[0])
    if len(found) > 1:
        ids = {directory: rundir.read_run_id(directory) for directory in found.values()}
        if len(set(ids.values())) > 1 or run_id is None:
            raise InputError(f"{join_paths(ids)}: not of one run: name the directories of one")
    return list(found.values())


def _directories(path: Path) -> list[Path]:
    """The newest run of a directory; without one itself, for its traces, or the runs below it."""
    try:
        return [rundir.newest(path)]
    except InputError:  # no manifest: traces that somebody else named, or copied
        return [path] if scan([path]) else rundir.find_runs_below(path) or [path]


def join_paths(paths: Iterable[Path]) -> str:
    """Paths, for a message."""
    return ", ".join(map(str, paths))


def single_file(path: Path) -> Recording:
    """A file of its own; what its name does not say is 0."""
    name = rundir.TraceName.parse(path)
    if name is None:
        return Recording(0, 0, path.name, None, (path,))
    return Recording(name.rank, name.window, path.name, name.label, (path,))


def scan(directories: Sequence[Path]) -> list[Recording]:
    """What directories hold, by rank, then window; empty without a trace.

    Raises:
        InputError: a window is there twice.
    """
    named: dict[rundir.TraceName, list[Path]] = {}
    foreign: dict[str, dict[str, list[Path]]] = {}
    there = [path for at in directories for path in (*at.glob("*.*"), *at.glob("raw/*.pb"))]
    for path in sorted(there, key=_best_first):
        name = rundir.TraceName.parse(path)
        if name is not None:
            named.setdefault(name, []).append(path)
        elif path.parent in directories and (match := _FOREIGN.fullmatch(path.name)):
            windows = foreign.setdefault(match["worker"], {})
            windows.setdefault(match["time"] or match["ns"] or "", []).append(path)
    saved = {
        (rank, window): path
        for at in directories
        for rank, window, path in rundir.summary_files(at)
    }
    found: dict[tuple[int, int], Recording] = {}
    for name, paths in named.items():
        at = (name.rank, name.window)
        if at in found:
            raise InputError(
                f"{join_paths(directories)}: rank {name.rank}, window {name.window} is there twice, as "
                f"{found[at].files[0].name} and {paths[0].name}: put each run into a directory"
            )
        found[at] = Recording(*at, paths[0].name, name.label, tuple(paths), saved.get(at))
    for at in saved.keys() - found.keys():
        found[at] = Recording(*at, saved[at].name, None, (), saved[at])
    first = max((rank for rank, _ in found), default=-1) + 1
    for rank, worker in enumerate(sorted(foreign, key=_natural), first):
        for window, time in enumerate(sorted(foreign[worker], key=_natural)):
            files = tuple(foreign[worker][time])
            found[rank, window] = Recording(rank, window, worker, None, files)
    return [found[at] for at in sorted(found)]


def _best_first(path: Path) -> tuple[int, str]:
    order = [path.name.endswith(suffix) for suffix in _BEST_FIRST]
    return (order.index(True) if True in order else len(order), path.name)


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers in a name by their value: ``rank_2`` before ``rank_10``."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
