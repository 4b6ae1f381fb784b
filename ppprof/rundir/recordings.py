"""Find the recordings (one window of one rank each) in a path, from file names alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppprof import rundir
from ppprof.errors import InputError
from ppprof.paths import store_errors_as_oserror, to_path
from ppprof.rundir import Listing

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


@dataclass(frozen=True)
class RunLocation:
    """The place of a run: looked up once, then handed on."""

    given: tuple[str, ...]
    """The paths that the caller gave."""
    paths: tuple[Path, ...]
    """The directories of the run, or the trace file."""
    recordings: tuple[Recording, ...]
    """Every window of every rank, by rank, then window."""


def resolve(path: str | Path, *more: str | Path) -> RunLocation:
    """Return the run at some paths.

    Args:
        path: a run directory, a log directory (its newest run), a directory of traces, a directory
            above the run directories of several nodes, or a trace file.
        more: directories of the same run that other nodes wrote.

    Raises:
        InputError: no such path, no trace and no run there, or several runs.
    """
    listing = Listing()
    return _combined([_look(each, listing) for each in (path, *more)], listing)


def resolve_each(
    paths: Iterable[str | Path],
) -> list[tuple[tuple[str, ...], RunLocation | InputError]]:
    """Return the runs at some paths: paths of the same run together, each other path alone.

    Returns:
        The paths that were given for each run, and the run or the error of these paths.
    """
    listing = Listing()
    groups: dict[object, list[_Place | InputError]] = {}
    given: dict[object, list[str]] = {}
    for number, path in enumerate(paths):
        key: object = number
        place: _Place | InputError
        try:
            place = _look(path, listing)
            run_ids = {rundir.read_run_id(directory) for directory in place.directories}
            if len(run_ids) == 1:
                key = run_ids.pop() or number
        except InputError as error:
            place = error
        groups.setdefault(key, []).append(place)
        given.setdefault(key, []).append(str(path))
    results: list[tuple[tuple[str, ...], RunLocation | InputError]] = []
    for key, places in groups.items():
        errors = [place for place in places if isinstance(place, InputError)]
        try:
            location: RunLocation | InputError = (
                errors[0]
                if errors
                else _combined([place for place in places if isinstance(place, _Place)], listing)
            )
        except InputError as error:
            location = error
        results.append((tuple(given[key]), location))
    return results


@dataclass(frozen=True)
class _Place:
    """What one path leads to: directories of a run, or a trace file."""

    given: str | Path
    directories: list[Path]
    file: Path | None = None


def _look(given: str | Path, listing: Listing) -> _Place:
    path = to_path(given)
    try:
        with store_errors_as_oserror(given):
            if not path.is_dir():
                path.stat()
                return _Place(given, [], path)
            return _Place(given, _directories(path, listing))
    except OSError as error:
        raise InputError(f"{error.filename or given}: {error.strerror or error}") from error


def _directories(path: Path, listing: Listing) -> list[Path]:
    """Return the newest run in a directory; else the directory if it has traces; else runs below."""
    try:
        return [rundir.newest(path, listing)]
    except InputError:  # no manifest: foreign or copied traces
        if scan([path], listing):
            return [path]
        return rundir.find_runs_below(path, listing=listing) or [path]


def _combined(places: Sequence[_Place], listing: Listing) -> RunLocation:
    """Return the one run that places lead to: that of the first.

    Raises:
        InputError: the places belong to different runs, or have no trace.
    """
    given = tuple(str(place.given) for place in places)
    if len(places) == 1 and places[0].file is not None:
        path = places[0].file
        return RunLocation(given, (path,), (single_file(path),))
    try:
        with store_errors_as_oserror(places[0].given):
            paths = _directories_of_run(places, listing)
            recordings = scan(paths, listing)
    except OSError as error:
        raise InputError(f"{error.filename or given[0]}: {error.strerror or error}") from error
    if not recordings and not any(rundir.has_manifest(path) for path in paths):
        raise no_trace(paths)
    return RunLocation(given, tuple(paths), tuple(recordings))


def _directories_of_run(places: Sequence[_Place], listing: Listing) -> list[Path]:
    unique: dict[Path, Path] = {}  # by resolved path: a directory may be given twice
    run_id = None
    for place in places:
        if place.file is not None:
            raise InputError(f"{place.given}: Not a directory")
        path = to_path(place.given)
        # The same run is not always the newest one of another node.
        same_run = rundir.find(path, run_id, listing) if run_id else None
        directories = [same_run] if same_run else place.directories
        for directory in directories:
            unique.setdefault(directory.resolve(), directory)
        run_id = run_id or rundir.read_run_id(directories[0])
    if len(unique) > 1:
        ids = {directory: rundir.read_run_id(directory) for directory in unique.values()}
        if len(set(ids.values())) > 1 or run_id is None:
            raise InputError(f"{join_paths(ids)}: different runs; expected directories of one run")
    return list(unique.values())


def no_trace(paths: Iterable[Path]) -> InputError:
    """Return the error for paths without a trace."""
    return InputError(
        f"{join_paths(paths)}: no trace in it: expected a run directory with recorded windows, or "
        "files such as *.paddle_trace.json (.json.gz, .pb) or *.pt.trace.json"
    )


def join_paths(paths: Iterable[Path]) -> str:
    """Join paths for a message."""
    return ", ".join(map(str, paths))


def single_file(path: Path) -> Recording:
    """Return the recording of a single file; rank and window are 0 unless its name has them."""
    name = rundir.TraceName.parse(path)
    if name is None:
        return Recording(0, 0, path.name, None, (path,))
    return Recording(name.rank, name.window, path.name, name.label, (path,))


def scan(directories: Sequence[Path], listing: Listing | None = None) -> list[Recording]:
    """Return the recordings in directories, sorted by rank, then window.

    Tables that were saved without their trace count as a recording without trace files.

    Raises:
        InputError: two traces claim the same rank and window.
    """
    own: dict[rundir.TraceName, list[Path]] = {}
    foreign: dict[str, dict[str, list[Path]]] = {}
    listing = listing or Listing()
    files = [
        path
        for run in directories
        for path in (*listing.entries(run), *listing.entries(run / "raw"))
        if path.parent in directories or path.name.endswith(".pb")
    ]
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
        for rank, window, path in rundir.summary_files(run, listing)
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
