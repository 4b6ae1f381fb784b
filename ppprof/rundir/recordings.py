"""Find the recordings at a path from file names alone. A recording is one window of one rank."""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ppprof import rundir
from ppprof.errors import InputError
from ppprof.messages import Message
from ppprof.paths import reject_special_files, store_errors_as_oserror
from ppprof.rundir import Listing
from ppprof.units import format_ranges

_log = logging.getLogger("ppprof")

_RAW = (".pb", ".pb.gz")
"""Suffixes of raw captures, and of those that a user has compressed."""

_BEST_FIRST = (*_RAW, ".json", ".json.gz")
"""Suffixes of traces in order of preference. A ``.pb`` is exact and fastest; a ``.gz`` must be
inflated."""

_FOLDERS = ("raw", "summary")
"""Folders of a run directory with recordings."""

_FOREIGN = (
    r"(?P<worker>[^.].*?)"
    r"(?:_time_(?P<time>[^.]+)|\.(?P<ns>\d+))?"
    r"(?:\.paddle_trace|\.pt\.trace|(?=\.pb(?:\.gz)?$))\.(?:pb|json)(?:\.gz)?"
)
"""Names of foreign traces: those that ppprof has not written. The handlers of ``paddle.profiler``
and ``torch.profiler`` write worker and time into the name. If a ``.pb``, ``.paddle_trace.json`` or
``.pt.trace.json`` has no time in its name, the whole name is the worker."""


_HEAD_BYTES = 1 << 18
"""torch writes ``distributedInfo`` before the events, after a few KB of device properties; with the
ranks of many process groups it may itself have many KB."""
_INFORMATION = rb'"distributedInfo"\s*:\s*\{[^{}]*?"%b"\s*:\s*([0-9]{1,6})\b'
_RUNS = re.compile("run|exp|job|trial", re.IGNORECASE)
"""Names of folders that are separate runs, although they differ in their numbers only."""
_NODE = re.compile("(?:node|host|machine|worker|pod)[-_]?([0-9]+)", re.IGNORECASE)
"""In the name of a folder: the number of a node."""
_IN_NAME = r"rank[_-]?([0-9]{1,6})(?![0-9])"

BY_CONTENT = "distributedInfo.rank in the files"
BY_NAME = "the rank in their names"
BY_ORDER = "the order of their names"


@dataclass(frozen=True)
class Recording:
    """One window of one rank, and its files."""

    rank: int
    """From the file name; of foreign traces in a directory, from `_foreign_ranks`. A single foreign
    file has rank 0."""
    window: int
    """From the file name. Foreign traces have no window in their names: in a directory, the traces
    of a worker are numbered in the order of their times. A single foreign file has window 0."""
    name: str
    """Name of the preferred trace. For foreign traces in a directory, name of the worker. Without a
    trace, name of the file with the tables."""
    coordinate: str | None
    """Such as ``dp0_pp0_sharding0_mp0``; None if the file name has no coordinate."""
    files: tuple[Path, ...]
    """Traces with the same events in different formats, the preferred format first. Empty if only
    the tables exist. Of a window in segments, those of the first segment."""
    saved: Path | None = None
    """The file with the window's tables as data; None if there is no such file."""
    is_in_shared_file: bool = False
    """Whether its files hold several ranks."""
    is_numbered: bool = False
    """Whether ``rank`` only numbers its traces: nothing says that they and others are of one job."""
    later: tuple[tuple[Path, ...], ...] = ()
    """Like ``files``, of each later segment of the window, in the order of recording."""

    @property
    def segments(self) -> tuple[tuple[Path, ...], ...]:
        """The files of each segment of the window; empty if only the tables exist."""
        return (self.files, *self.later) if self.files else ()

    @property
    def every_file(self) -> Iterator[Path]:
        """All traces of the window: of every segment, in every format."""
        return (path for files in self.segments for path in files)

    @property
    def what(self) -> str:
        """Text for a title, after the rank: ``dp0 pp0 sharding0 mp0``, or ``name`` without one."""
        return self.coordinate.replace("_", " ") if self.coordinate else self.name


class RunLocation(NamedTuple):
    """Where a run is: its directories and recordings, so that they need not be looked up again."""

    given: tuple[str, ...]
    """The paths that the caller gave."""
    paths: tuple[Path, ...]
    """The run directories of the run, one for each node without a shared disk; or the directory of
    foreign traces; or the trace files."""
    recordings: tuple[Recording, ...]
    """Every window of every rank, sorted by rank, then window. Empty for a run without a recorded
    window."""
    manifest: Mapping[str, Any] | InputError
    """The manifest in the first of ``paths``: the error if it cannot be read, empty without one."""


def resolve(path: str | Path, *more: str | Path) -> RunLocation:
    """Return the one run that all of the given paths belong to.

    Args:
        path: a run directory, a log directory (its newest run is used), a directory of traces, a
            directory above the run directories of several nodes, or a trace file.
        more: directories of the same run that other nodes wrote. In a log directory, the run with
            the same run id is used, which may not be the newest.

    Raises:
        InputError: a path does not exist or is unreadable, no path has a trace or a run, the paths
            belong to several runs, or a trace file is given together with directories.
    """
    listing = Listing()
    return _combined([_look(each, listing) for each in (path, *more)], listing)


def resolve_each(
    paths: Iterable[str | Path],
) -> list[tuple[tuple[str, ...], RunLocation | InputError]]:
    """Return the runs at the given paths, in the order of their first paths.

    Paths whose manifests have the same run id form one run. A path without a run id, such as a
    trace file, forms a run of its own.

    Returns:
        (paths, run) for each run. ``paths`` are the given paths that form the run, as text. ``run``
        is the InputError if these paths cannot be read: it is returned, not raised.
    """
    listing = Listing()
    groups: dict[object, list[_Lookup]] = {}
    errors: dict[object, InputError] = {}
    given: dict[object, list[str]] = {}
    for number, path in enumerate(paths):
        key: object = number
        try:
            lookup = _look(path, listing)
            run_ids = {listing.run_id(directory) for directory in lookup.directories}
            if len(run_ids) == 1:
                key = run_ids.pop() or number
            groups.setdefault(key, []).append(lookup)
        except InputError as error:
            errors[key] = error
        given.setdefault(key, []).append(str(path))
    results: list[tuple[tuple[str, ...], RunLocation | InputError]] = []
    for key, of_run in given.items():
        location: RunLocation | InputError
        try:
            location = errors.get(key) or _combined(groups[key], listing)
        except InputError as error:
            location = error
        results.append((tuple(of_run), location))
    return results


class _Lookup(NamedTuple):
    """The result of looking up one path: directories of a run, or a trace file."""

    given: str | Path
    path: Path
    directories: Sequence[Path]
    """The directories to read; empty for a file."""


def _look(given: str | Path, listing: Listing) -> _Lookup:
    try:
        first = rundir.first_run(given)
        if first is not None:
            return _Lookup(first, first, [first])
        path, is_directory = listing.look_up(given)
        return _Lookup(given, path, _directories(path, listing) if is_directory else ())
    except OSError as error:
        raise InputError(f"{error.filename or given}: {error.strerror or error}") from error


def _directories(path: Path, listing: Listing) -> list[Path]:
    """Return the directories to read for a given directory; the first case that applies counts.

    - ``path`` is a run directory or a log directory: its newest run (`ppprof.rundir.newest`).
    - ``path`` holds traces but no manifest, such as foreign or copied traces: ``path``.
    - Children or grandchildren of ``path`` are log directories, such as those of several nodes:
      the newest run of each.
    - Children or grandchildren of ``path`` hold foreign traces: all of these.
    - Otherwise: ``path``, in which no trace will be found.
    """
    try:
        return [rundir.newest(path, listing)]
    except InputError:  # no manifest: foreign or copied traces
        if any(_files([path], listing)):
            return [path]
        runs = rundir.find_runs_below(path, listing=listing)
        return runs or _folders_of_traces(path, listing) or [path]


def _folders_of_traces(path: Path, listing: Listing, levels: int = 2) -> list[Path]:
    """Return the folders below ``path`` that hold foreign traces, such as ``node0``, sorted."""
    folders = []
    for child in sorted(listing.entries(path), key=lambda entry: _natural(entry.name)):
        if child.is_dir() and not child.name.startswith("."):
            if any(_files([child], listing)):
                folders.append(child)
            elif levels > 1:
                folders += _folders_of_traces(child, listing, levels - 1)
    return folders


def _combined(lookups: Sequence[_Lookup], listing: Listing) -> RunLocation:
    """Return the one run that all lookups belong to."""
    given = tuple(str(lookup.given) for lookup in lookups)
    if not any(lookup.directories for lookup in lookups):
        files = tuple(lookup.path for lookup in lookups)
        return RunLocation(given, files, tuple(_recordings_of_files(files)), {})
    try:
        paths = _directories_of_run(lookups, listing)
        recordings = scan(paths, listing)
    except OSError as error:
        raise InputError(f"{error.filename or given[0]}: {error.strerror or error}") from error
    if not recordings and not any(rundir.has_manifest(path) for path in paths):
        raise no_trace(paths)
    manifest = listing.manifest(paths[0])
    return RunLocation(given, tuple(paths), tuple(recordings), manifest)


def _directories_of_run(lookups: Sequence[_Lookup], listing: Listing) -> list[Path]:
    unique: dict[Path, Path] = {}  # by resolved path: a directory may be given twice
    run_id = None
    for lookup in lookups:
        if not lookup.directories:
            raise InputError(f"{lookup.given}: Not a directory")
        # The same run is not always the newest one of another node.
        same_run = rundir.find(lookup.path, run_id, listing) if run_id else None
        directories: Sequence[Path] = [same_run] if same_run else lookup.directories
        for directory in directories:
            unique.setdefault(directory.resolve(), directory)
        run_id = run_id or listing.run_id(directories[0])
    if any(listing.manifest(directory) for directory in unique.values()):
        ids = {directory: listing.run_id(directory) for directory in unique.values()}
        if len(unique) > 1 and (len(set(ids.values())) > 1 or run_id is None):
            raise InputError(f"{join_paths(ids)}: different runs; expected directories of one run")
    return list(unique.values())


def no_trace(paths: Iterable[Path]) -> InputError:
    """Return the error that reports ``paths`` as directories without a trace."""
    return InputError(
        f"{join_paths(paths)}: no trace in it: expected a run directory with recorded windows, or "
        "files such as *.paddle_trace.json (.json.gz, .pb) or *.pt.trace.json"
    )


def join_paths(paths: Iterable[Path]) -> str:
    """Return the paths as text for a message, separated by commas."""
    return ", ".join(map(str, paths))


def single_file(path: Path) -> Recording:
    """Return the recording of one trace file; rank and window are 0 if the name has none."""
    name = rundir.TraceName.parse(path)
    if name is None:
        return Recording(0, 0, path.name, None, (path,))
    return Recording(name.rank, name.window, path.name, name.label, (path,))


def _recordings_of_files(paths: Sequence[Path]) -> list[Recording]:
    """Return the recordings of trace files, one for each window: the ranks of one run."""
    if len(paths) == 1:
        return [single_file(paths[0])]
    own: dict[rundir.TraceName, list[Path]] = {}
    foreign: list[Path] = []
    for path in dict.fromkeys(paths):
        name = rundir.TraceName.parse(path)
        if name is None:
            foreign.append(path)
        elif name in own:
            raise _given_twice(name, own[name][0], path)
        else:
            own[name] = [path]
    recordings = _of_windows(own, {})
    first = max((rank for rank, _ in recordings), default=-1) + 1
    by_order = {
        str(path): path
        for path in sorted(foreign, key=lambda p: (_natural(p.name), _natural(str(p))))
    }
    ranks, is_numbered = _ranks_of(by_order, first, paths)
    for worker, rank in ranks.items():
        path = by_order[worker]
        window = sum(each == rank for each, _ in recordings)
        recording = Recording(rank, window, path.name, None, (path,), is_numbered=is_numbered)
        recordings[rank, window] = recording
    return [recordings[key] for key in sorted(recordings)]


def _of_windows(
    own: Mapping[rundir.TraceName, list[Path]], saved: Mapping[tuple[int, int], Path]
) -> dict[tuple[int, int], Recording]:
    """Return the recordings of ppprof's own traces, by rank and window, with all their segments."""
    recordings: dict[tuple[int, int], Recording] = {}
    firsts: dict[tuple[int, int], rundir.TraceName] = {}
    for name in sorted(own, key=lambda each: (*each.of_window, each.segment)):
        key, paths = (name.rank, name.window), tuple(own[name])
        if key not in recordings:
            firsts[key] = name
            recordings[key] = Recording(*key, paths[0].name, name.label, paths, saved.get(key))
        elif name.of_window != firsts[key].of_window:
            raise _given_twice(name, recordings[key].files[0], paths[0])
        else:
            later = (*recordings[key].later, paths)
            recordings[key] = replace(recordings[key], later=later)
    return recordings


def _given_twice(name: rundir.TraceName, first: Path, second: Path) -> InputError:
    return InputError(
        f"{first}, {second}: both are of rank {name.rank}, window {name.window}; expected files of "
        "different ranks, or a directory for each run"
    )


def _ranks_of(
    workers: Mapping[str, Path], first: int, paths: Sequence[Path]
) -> tuple[Mapping[str, int], bool]:
    """Return the ranks of `_foreign_ranks`, and whether they only number the workers; log their source.

    Raises:
        InputError: the workers are not of one job: they differ in its number of ranks, or lie in
            several directories, and nothing says which rank they are of.
    """
    ranks, source = _foreign_ranks(workers, first)
    if len(ranks) < 2:
        return ranks, False
    given = join_paths(paths)
    sizes = {_in_file(path, b"world_size") for path in workers.values()} - {None}
    if len(sizes) > 1:
        stated = " and ".join(map(str, sorted(size for size in sizes if size is not None)))
        raise InputError(
            f"{given}: traces of different jobs, of {stated} ranks (distributedInfo.world_size); "
            "expected those of one job; compare two with `ppprof diff`"
        )
    numbers = set(ranks.values())
    if source != BY_ORDER:
        _log.info("%s: %s, from %s", given, format_ranges("rank", numbers), source)
    elif len(paths) > 1 and not set(paths) & set(workers.values()):
        raise InputError(
            f"{given}: different runs, or nodes of one whose traces do not say their ranks; "
            "expected directories of one run, with distributedInfo.rank or the rank in each name"
        )
    else:
        traces = format_ranges("trace", numbers)
        _log.warning("%s", Message("unrelated", paths=given, traces=traces))
    return ranks, source == BY_ORDER


def scan(directories: Sequence[Path], listing: Listing | None = None) -> list[Recording]:
    """Return the recordings in directories of one run, sorted by rank, then window.

    Raw captures in ``raw/`` are included. Tables without a trace of their window count as a
    recording whose ``files`` are empty.

    Args:
        directories: run directories or directories of traces.
        listing: a listing to look directories up in; None lists them anew.

    Raises:
        InputError: two traces with different names claim the same rank and window.
    """
    listing = listing or Listing()
    own, foreign, saved = _files(directories, listing)
    recordings = _of_windows(own, saved)
    for key in saved.keys() - recordings.keys():
        recordings[key] = Recording(*key, saved[key].name, None, (), saved[key])
    first = max((rank for rank, _ in recordings), default=-1) + 1
    by_order = sorted(foreign, key=_natural)
    newest = {worker: foreign[worker][max(foreign[worker])][0] for worker in by_order}
    ranks, is_numbered = _ranks_of(newest, first, directories)
    for worker, rank in ranks.items():
        for time in sorted(foreign[worker], key=_natural):
            window = sum(each == rank for each, _ in recordings)
            traces = tuple(foreign[worker][time])
            recording = Recording(rank, window, worker, None, traces, is_numbered=is_numbered)
            recordings[rank, window] = recording
    return [recordings[key] for key in sorted(recordings)]


class _Files(NamedTuple):
    """The files of recordings in directories of one run."""

    own: Mapping[rundir.TraceName, list[Path]]
    """Traces and raw captures that ppprof wrote, the preferred one of a segment first."""
    foreign: Mapping[str, Mapping[str, list[Path]]]
    """Worker -> time in the file name -> traces. Of several directories, a worker's name begins with
    that of its directory."""
    saved: Mapping[tuple[int, int], Path]
    """(rank, window) -> tables as data."""


def _files(directories: Sequence[Path], listing: Listing) -> _Files:
    own: dict[rundir.TraceName, list[Path]] = {}
    foreign: dict[str, dict[str, list[Path]]] = {}
    files = [
        path
        for run in directories
        for path in (*_entries(run, "", listing), *_entries(run, "raw", listing))
        if path.parent in directories or path.name.endswith(_RAW)
    ]
    for path in sorted(files, key=_best_first):
        name = rundir.TraceName.parse(path)
        if name is not None:
            own.setdefault(name, []).append(path)
        elif path.parent in directories and (match := re.fullmatch(_FOREIGN, path.name)):
            windows = foreign.setdefault(_worker(path, match["worker"], directories), {})
            windows.setdefault(match["time"] or match["ns"] or "", []).append(path)
    saved = {
        (rank, window): path
        for run in directories
        for rank, window, path in rundir.summary_files(run, _entries(run, "summary", listing))
    }
    if not own and not foreign and not saved and not any(map(rundir.has_manifest, directories)):
        foreign = {
            _worker(path, path.name, directories): {"": [path]}
            for path in files
            if _looks_like_trace(path)
        }
    return _Files(own, foreign, saved)


def _worker(path: Path, name: str, directories: Sequence[Path]) -> str:
    return name if len(directories) == 1 else f"{path.parent}/{name}"


def _entries(run: Path, folder: str, listing: Listing) -> list[Path]:
    """Return the paths in a folder of a directory; in a run directory, leave links out and log them."""
    path = run / folder
    listing.entries(run)
    if folder in listing.links(run) and rundir.has_manifest(run):
        _log_links(run, [folder])
        return []
    entries = listing.entries(path, optional=bool(folder))
    links = [name for name in listing.links(path) if name not in _FOLDERS]
    if not links or not rundir.has_manifest(run):
        return entries
    _log_links(path, links)
    return [entry for entry in entries if entry.name not in links]


def _log_links(folder: Path, links: Sequence[str]) -> None:
    names = " and ".join([links[0], *([f"{len(links) - 1} more"] if len(links) > 1 else [])])
    expected = "expected the run's own files; to read files elsewhere, name them"
    _log.warning("%s: skipped symbolic links: %s; %s", folder, names, expected)


def _best_first(path: Path) -> tuple[int, str]:
    order = [path.name.endswith(suffix) for suffix in _BEST_FIRST]
    return (order.index(True) if True in order else len(order), path.name)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers by value: ``rank_2`` before ``rank_10``."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def _foreign_ranks(workers: Mapping[str, Path], first: int) -> tuple[dict[str, int], str]:
    """Return the rank of each worker, from ``first`` on, and where the ranks come from.

    The first of these that gives every worker of a directory a rank of its own: ``distributedInfo.rank``,
    which torch writes into a trace; ``rank`` and a number in the worker's name; the order of the
    workers. Directories that differ in their numbers only, such as ``iteration_10`` and
    ``iteration_20``, may hold the same ranks: they are windows of one run.
    """
    sources: Mapping[str, Callable[[str], int | None]] = {
        BY_CONTENT: lambda worker: _in_file(workers[worker], b"rank"),
        BY_NAME: lambda worker: _rank_in_name(workers[worker].name),
    }
    folders = {path.parent for path in workers.values()}
    kinds = {re.sub("[0-9]+", "", str(folder)) for folder in folders}
    are_windows = len(kinds) == 1 and not any(_RUNS.search(folder.name) for folder in folders)
    nodes = {match[1] for folder in folders if (match := _NODE.search(folder.name))}
    are_windows = are_windows and len(nodes) < 2
    for source, rank_of in sources.items():
        ranks: dict[str, int] = {}
        taken: set[tuple[Path | None, int]] = set()
        for worker, path in workers.items():
            rank = rank_of(worker)
            place = path.parent if are_windows and len(folders) > 1 else None
            if rank is None or rank < first or (place, rank) in taken:
                break
            ranks[worker] = rank
            taken.add((place, rank))
        else:
            return ranks, source
    return {worker: rank for rank, worker in enumerate(workers, first)}, BY_ORDER


def _rank_in_name(worker: str) -> int | None:
    match = re.search(_IN_NAME, worker, re.IGNORECASE)
    return int(match[1]) if match else None


def _in_file(path: Path, key: bytes) -> int | None:
    """Return a number of ``distributedInfo`` in a JSON trace; None without it, or if it is unreadable."""
    match = re.search(_INFORMATION % key, _head(path))
    return int(match[1]) if match else None


def _looks_like_trace(path: Path) -> bool:
    """Return whether a file of any name holds a trace, from its first bytes or its suffix.

    Events in no object, only in a list, are those of Ascend's ``trace_view.json``.
    """
    head = _head(path)
    is_list_of_events = head.lstrip().startswith(b"[") and b'"ph"' in head
    return path.name.endswith(_RAW) or b'"traceEvents"' in head or is_list_of_events


def _head(path: Path) -> bytes:
    """Return the first bytes of a JSON file, unpacked; empty if it is unreadable or no JSON."""
    if not path.name.endswith((".json", ".json.gz")):
        return b""
    try:
        with store_errors_as_oserror(path):
            reject_special_files(path)
            with path.open("rb") as file:
                if path.name.endswith(".gz"):
                    import gzip  # only for these: every command imports this module

                    with gzip.open(file) as unpacked:
                        return unpacked.read(_HEAD_BYTES)
                return file.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""
