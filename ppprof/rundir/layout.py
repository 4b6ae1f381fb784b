"""File names in a run directory, and functions that find and create run directories."""

from __future__ import annotations

import errno
import logging
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from ppprof.choices import SUFFIXES
from ppprof.errors import InputError, Problem
from ppprof.paths import PathLike, is_remote, store_errors_as_oserror, to_path
from ppprof.rundir.manifest import MANIFEST, has_manifest, read_manifest, read_run_id
from ppprof.rundir.run_file import RunFile, matches

TRACE_SUFFIXES = {suffix[1:]: suffix for suffix in SUFFIXES}
"""File suffix of a trace, keyed by format as in ``Profiler.formats``."""

INCOMPLETE_MARKER = "not ended by step()"
"""Name of the UserDefined event in a raw capture that marks the ProfileStep around it as incomplete:
the training ended before ``step()`` did. See `ppprof.trace.steps`."""

CLOCK_MARKER = "clock set by "
"""Beginning of the name of the UserDefined event in a raw capture that marks a step in which the
wall clock was set; nanoseconds follow, below 0 if it was set back: ``clock set by -5000000 ns``. See
`ppprof.trace.clock_jumps`."""

# The number of digits is limited: names are untrusted, and code loops up to the highest rank.
# Only `_STEM` is compiled here: every command imports this module, and few need the others.
_STEM = re.compile(r"rank_([0-9]{5,6})_(\w+)_time_([0-9]{8}T[0-9]{6})_([0-9]{3,6})")
_SUMMARY = r"rank_([0-9]{5,6})_w([0-9]{1,6})\.json"
_LINES = r"rank_([0-9]{5,6})\.jsonl"
_RAW = r"rank_.+\.pb"
_CUT = r"\.writing_(rank_.+\.pb)\.[0-9a-f]{32}"
_RUN = r"run_([0-9]{3,6})"
_log = logging.getLogger("ppprof")
_MOST_RUNS = 999_999
_CLAIM_SECONDS = 10.0
"""How long to wait for the manifest of a run directory that another process has claimed."""


class Listing:
    """The entries and manifests of directories, each read once: in a store that costs a request.

    Entries that are created after the first call for a directory do not appear. Errors of a
    store's client are converted to OSError.
    """

    def __init__(self) -> None:
        self._entries: dict[Path, list[Path]] = {}
        self._links: dict[Path, list[str]] = {}
        self._manifests: dict[Path, Mapping[str, Any] | InputError] = {}

    def look_up(self, given: PathLike) -> tuple[Path, bool]:
        """Return an existing path, and whether it is a directory.

        Raises:
            OSError: it does not exist, or cannot be reached.
            InputError: no store is known for the URL.
        """
        path = to_path(given)
        with store_errors_as_oserror(path):
            is_directory = path.is_dir()
            if not is_directory:
                path.stat()
        return path, is_directory

    def entries(self, folder: PathLike, *, optional: bool = False) -> list[Path]:
        """Return the paths in ``folder``, sorted; empty if ``folder`` is not a directory.

        Args:
            folder: the directory.
            optional: whether a directory that cannot be listed counts as empty; a warning is
                logged then.

        Raises:
            OSError: the directory cannot be listed, and is not optional.
        """
        path = to_path(folder)
        if path not in self._entries:
            try:
                with store_errors_as_oserror(path):
                    self._entries[path] = self._listed(path)
            except (FileNotFoundError, NotADirectoryError):
                self._entries[path] = []
            except OSError as error:
                if not optional:
                    raise
                reason = error.strerror or error
                _log.warning("%s: cannot be listed (%s); its files are left out", path, reason)
                self._entries[path] = []
        return self._entries[path]

    def links(self, folder: PathLike) -> list[str]:
        """Return the sorted names of the symbolic links in ``folder``, which `entries` has listed."""
        return self._links.get(to_path(folder), [])

    def manifest(self, run: Path) -> Mapping[str, Any] | InputError:
        """Return the manifest of a run directory: the error if it cannot be read, empty without one."""
        if run not in self._manifests:
            try:
                self._manifests[run] = read_manifest(run) if has_manifest(run) else {}
            except InputError as error:
                self._manifests[run] = error
        return self._manifests[run]

    def run_id(self, run: Path) -> str | None:
        """Return the unique id of a run; None without a readable manifest that has a run id."""
        manifest = self.manifest(run)
        run_id = None if isinstance(manifest, InputError) else manifest.get("run_id")
        return run_id if isinstance(run_id, str) else None

    def _listed(self, folder: Path) -> list[Path]:
        if is_remote(folder):
            return sorted(folder.iterdir())
        with os.scandir(folder) as entries:
            listed = list(entries)
        self._links[folder] = sorted(entry.name for entry in listed if entry.is_symlink())
        return sorted(folder / entry.name for entry in listed)


@dataclass(frozen=True)
class TraceName:
    """The name of a trace file or raw capture: rank, coordinate, start time and window.

    >>> name = TraceName(0, "dp0_pp0_sharding0_mp0", datetime(2026, 11, 20, 20, 15, 30), 0)
    >>> name.stem
    'rank_00000_dp0_pp0_sharding0_mp0_time_20261120T201530_000'
    >>> TraceName.parse(name.trace("json.gz")) == name
    True
    """

    rank: int
    label: str
    """The rank's coordinate: ``dp0_pp0_sharding0_mp0`` (see `ppprof.topology.Topology.label`)."""
    started: datetime
    """Time at which the window opened: local time of the rank's machine, to the second."""
    window: int
    """Number of the window in the run, from 0."""

    @property
    def stem(self) -> str:
        """The file name without suffix. VisualDL shows the part before ``_time_`` as the worker."""
        stamp = f"{self.started:%Y%m%dT%H%M%S}"
        return f"rank_{self.rank:05d}_{self.label}_time_{stamp}_{self.window:03d}"

    def trace(self, fmt: str) -> str:
        """Return the file name of the trace in the format ``fmt``, a key of `TRACE_SUFFIXES`."""
        return f"{self.stem}.paddle_trace{TRACE_SUFFIXES[fmt]}"

    @property
    def raw(self) -> str:
        """Path of the raw capture, relative to the run directory."""
        return f"raw/{self.stem}.pb"

    @property
    def calls(self) -> str:
        """Path of the folder with the window's remote calls, relative to the run directory.

        `ppprof.rundir.remote_calls` reads and writes the folder.
        """
        return f"raw/{self.stem}.calls"

    @property
    def operator_calls(self) -> str:
        """Path of the file with the arguments of operators, relative to the run directory.

        `ppprof.rundir.operator_calls` reads and writes the file.
        """
        return f"raw/{self.stem}.ops"

    @property
    def summary(self) -> str:
        """Path of the JSON file with the window's tables, relative to the run directory.

        The path depends only on the rank and the window: ``summary/rank_00000_w0.json``.
        """
        return f"summary/rank_{self.rank:05d}_w{self.window}.json"

    @classmethod
    def parse(cls, path: PathLike) -> TraceName | None:
        """Parse the name of a raw capture or of a trace in any format; None for any other name.

        The folder of ``path`` does not matter.
        """
        stem, _, suffix = to_path(path).name.partition(".")
        match = _STEM.fullmatch(stem)
        if match is None or suffix not in _SUFFIXES:
            return None
        rank, label, stamp, window = match.groups()
        try:
            started = datetime.strptime(stamp, "%Y%m%dT%H%M%S")
        except ValueError:
            return None
        return cls(int(rank), label, started, int(window))


_SUFFIXES = frozenset(["pb", *(f"paddle_trace{suffix}" for suffix in TRACE_SUFFIXES.values())])


def steps_path(rank: int) -> str:
    """Return the path of a rank's step times, relative to the run directory.

    >>> steps_path(3)
    'steps/rank_00003.jsonl'
    """
    return f"steps/rank_{rank:05d}.jsonl"


def scalars_path(rank: int, *, is_first: bool) -> str:
    """Return the path of a rank's VisualDL scalars, relative to the run directory.

    VisualDL shows one log per directory, so only one log can lie beside the traces.

    Args:
        rank: the rank that writes the scalars.
        is_first: whether ``rank`` is the lowest rank that prints tables. Only this rank's log lies
            beside the traces.

    >>> scalars_path(0, is_first=True)
    'vdlrecords.rank_00000.log'
    >>> scalars_path(1, is_first=False)
    'scalars/rank_00001/vdlrecords.rank_00001.log'
    """
    name = f"vdlrecords.rank_{rank:05d}.log"
    return name if is_first else f"scalars/rank_{rank:05d}/{name}"


def jsonl_files(run: PathLike, folder: str) -> list[tuple[int, RunFile]]:
    """Return (rank, file) of each ``rank_*.jsonl`` in a folder of a run directory, sorted by rank.

    Args:
        run: the run directory.
        folder: ``steps`` or ``clocks``.
    """
    directory = to_path(run)
    found = matches(directory, folder, re.compile(_LINES))
    files = [(int(match[1]), RunFile(directory, f"{folder}/{match[0]}")) for match in found]
    return sorted(files, key=itemgetter(0))


def raw_files(run: PathLike) -> list[tuple[TraceName, Path]]:
    """Return (name, path) of each raw capture, sorted by rank, window, start time."""
    directory = to_path(run)
    paths = [directory / "raw" / match[0] for match in matches(directory, "raw", re.compile(_RAW))]
    parsed = ((TraceName.parse(path), path) for path in paths)
    files = [(name, path) for name, path in parsed if name is not None]
    return sorted(files, key=lambda file: (file[0].rank, file[0].window, file[0].started))


def trace_bytes(run: PathLike, rank: int) -> int:
    """Return the bytes that a rank's traces and raw captures take in a run directory.

    Remote calls (`TraceName.calls`) do not count.
    """
    raw = (f"raw/rank_{rank:05d}_*.{suffix}" for suffix in ("pb", "ops"))
    patterns = (f"rank_{rank:05d}_*.paddle_trace.*", *raw)
    total = 0
    for path in (path for pattern in patterns for path in to_path(run).glob(pattern)):
        with suppress(FileNotFoundError):  # deleted meanwhile
            total += path.lstat().st_size
    return total


def summary_files(
    run: PathLike, entries: Sequence[Path] | None = None
) -> list[tuple[int, int, Path]]:
    """Return (rank, window, path) of each JSON file with tables, sorted by rank, then window.

    `TraceName.summary` is the path of such a file.

    Args:
        run: the run directory.
        entries: the paths in its folder ``summary/``; None lists them.
    """
    if entries is None:
        entries = Listing().entries(to_path(run) / "summary", optional=True)
    found = ((re.fullmatch(_SUMMARY, path.name), path) for path in entries)
    return sorted((int(match[1]), int(match[2]), path) for match, path in found if match)


def check_writable(path: PathLike) -> Problem | None:
    """Return why ``path`` cannot become a run directory; None if it can.

    Creates and deletes a temporary file in ``path`` or, if ``path`` does not exist, in its nearest
    existing parent. Permission bits alone are unreliable for read-only mounts and network file
    systems.
    """
    run = Path(path)
    existing = run
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return Problem(str(run), "", f"{existing} is a file; expected a directory")
    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return Problem(str(run), "", f"cannot write: {error.strerror or error}")


def claim(log: PathLike, name: str = "", run_id: str | None = None) -> Path:
    """Create and return a run directory: ``log`` itself if free, else the next ``log/run_NNN``.

    The next number is one above the highest claimed number. A run directory is claimed if it has a
    folder ``steps/``. A process claims a run directory by creating ``steps/``, since that succeeds
    for only one of several concurrent processes.

    Args:
        log: the log directory.
        name: the lowest name to use, such as ``run_003``. Any other text, such as "", means ``log``
            itself.
        run_id: id of the run if several processes of it claim a run directory on this disk at the
            same time. One process creates the run directory and must write the manifest at once.
            The other processes wait up to 10 s for the manifest and get the same run directory.
            None always creates a new run directory.

    Raises:
        OSError: ``log`` is not a directory, permission is missing, or the disk is full.
    """
    taken = [number for number, run in _runs(log) if _is_folder(run / "steps")]
    number = max([_run_number(name), *taken])
    while True:
        run = Path(log) if number == 1 else Path(log) / f"run_{number:03d}"
        if number > _MOST_RUNS:
            raise OSError(errno.ENOSPC, f"more than {_MOST_RUNS} runs", str(log))
        if number > 1 and os.path.lexists(run) and (run.is_symlink() or not run.is_dir()):
            number += 1  # what lies there is not ours
            continue
        run.mkdir(parents=True, exist_ok=True)
        try:
            (run / "steps").mkdir()
        except FileExistsError:
            if run_id is not None and _belongs_to(run, run_id):
                return run
            number += 1
        except PermissionError:
            if number == 1:
                raise
            number += 1  # another user's
        else:
            for folder in ("raw", "summary"):
                (run / folder).mkdir(exist_ok=True)
            return run


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # in a folder of another user
        return False


def _belongs_to(run: Path, run_id: str) -> bool:
    """Wait for the manifest of a run directory that another process claimed; check its run id.

    Return True if the manifest has ``run_id``. Return False if it has another run id or is
    unreadable, or if no manifest appears within 10 s.
    """
    deadline = time.monotonic() + _CLAIM_SECONDS
    while not has_manifest(run) and time.monotonic() < deadline:
        time.sleep(0.01)
    return read_run_id(run) == run_id


def _runs(log: PathLike, listing: Listing | None = None) -> list[tuple[int, Path]]:
    """Return (number, path) of the possible run directories of a log directory, ascending.

    ``log`` itself is number 1, whether or not it holds a run; ``log/run_NNN`` is number NNN.
    """
    listing = listing or Listing()
    children = [child for child in listing.entries(log) if re.fullmatch(_RUN, child.name)]
    links = listing.links(log)
    later = [(_run_number(child.name), child) for child in children if child.name not in links]
    return [(1, to_path(log)), *sorted(later)]


def _run_number(name: str) -> int:
    match = re.fullmatch(_RUN, name)
    return int(match[1]) if match else 1


def reject_symlinks(run: Path) -> None:
    """Reject a run whose ``raw/`` or ``summary/`` is a symlink: writes would land outside the run.

    Raises:
        InputError: ``raw/`` or ``summary/`` is a symlink.
    """
    for folder in ("raw", "summary"):
        if (run / folder).is_symlink():
            raise InputError(f"{run / folder}: a symlink; expected a folder of the run")


def newest(path: PathLike, listing: Listing | None = None) -> Path:
    """Return the newest run directory in a log directory: the highest ``run_NNN``, else ``path``.

    Only directories with a manifest count.

    Args:
        path: the log directory, or a run directory without later runs.
        listing: a listing to look directories up in; None lists them anew.

    Raises:
        InputError: neither ``path`` nor a ``run_NNN`` in it has a manifest.
    """
    runs = [run for _, run in _runs(path, listing) if has_manifest(run)]
    if not runs:
        raise InputError(f"{to_path(path)}: no run here: expected a directory with a {MANIFEST}")
    return runs[-1]


def find(log: PathLike, run_id: str, listing: Listing | None = None) -> Path | None:
    """Return the run directory with this run id in a log directory; None if there is no such run.

    The run directory is ``log`` itself or a ``log/run_NNN``; the highest number wins.
    """
    listing = listing or Listing()
    runs = (run for _, run in reversed(_runs(log, listing)))
    return next((run for run in runs if listing.run_id(run) == run_id), None)


def find_runs_below(path: PathLike, levels: int = 2, listing: Listing | None = None) -> list[Path]:
    """Return the newest run directory of each log directory below ``path``; empty without any.

    Args:
        path: a directory above log directories, such as those of several nodes.
        levels: 1 looks only at the children of ``path``, such as ``node0``. 2 also looks one level
            below each child that holds no run, such as ``node0/profiler_log``.
        listing: a listing to look directories up in; None lists them anew.
    """
    listing = listing or Listing()
    runs: list[Path] = []
    for child in listing.entries(path):
        if not child.is_dir():
            continue
        try:
            runs.append(newest(child, listing))
        except InputError:
            runs += find_runs_below(child, levels - 1, listing) if levels > 1 else []
    return runs


def cut_captures(run: Path) -> list[tuple[TraceName, RunFile]]:
    """Return (name, file) of each raw capture that is not complete, sorted by file name.

    Either a rank is still writing it, or the rank was killed meanwhile.
    """
    parsed = (
        (TraceName.parse(match[1]), match[0]) for match in matches(run, "raw", re.compile(_CUT))
    )
    return [(name, RunFile(run, f"raw/{file}")) for name, file in parsed if name is not None]


def partial_files(run: Path, name: TraceName) -> list[RunFile]:
    """Return the temporary files of a window's unfinished traces, tables and note for ``--wait``.

    Either a process is still writing these files, or a killed process has left them behind.

    Args:
        run: the run directory.
        name: the name of the window's trace.
    """
    traces = matches(run, "", re.compile(rf"\.writing_{name.stem}\..*"))
    pattern = re.compile(rf"\.writing_rank_{name.rank:05d}_w{name.window}\.json\..*")
    others = {folder: matches(run, folder, pattern) for folder in ("summary", "trigger")}
    paths = [f"{folder}/{match[0]}" for folder, partial in others.items() for match in partial]
    return [RunFile(run, path) for path in [*(match[0] for match in traces), *paths]]
