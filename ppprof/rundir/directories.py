"""Claim a run directory, and find it again."""

from __future__ import annotations

import errno
import logging
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppprof.errors import InputError, Problem
from ppprof.paths import PathLike, is_remote, store_errors_as_oserror, to_path
from ppprof.rundir.manifest import MANIFEST, has_manifest, read_manifest, read_run_id

_RUN = r"run_([0-9]{3,6})"
_FIRST_RUN = "run_001"
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
        path: the log directory, or a run directory without later runs; for `first_run`, that alone.
        listing: a listing to look directories up in; None lists them anew.

    Raises:
        InputError: neither ``path`` nor a ``run_NNN`` in it has a manifest.
    """
    return runs_of(path, listing)[-1]


def runs_of(path: PathLike, listing: Listing | None = None) -> list[Path]:
    """Return the run directories in a log directory, oldest first: ``path`` itself, and each ``run_NNN``.

    Only directories with a manifest count.

    Args:
        path: the log directory, or a run directory without later runs; for `first_run`, that alone.
        listing: a listing to look directories up in; None lists them anew.

    Raises:
        InputError: neither ``path`` nor a ``run_NNN`` in it has a manifest.
    """
    first = first_run(path)
    if first is not None:
        return [first]
    runs = [run for _, run in _runs(path, listing) if has_manifest(run)]
    if not runs:
        raise InputError(f"{to_path(path)}: no run here: expected a directory with a {MANIFEST}")
    return runs


def first_run(path: PathLike) -> Path | None:
    """Return the log directory that ``path`` means by ``log/run_001``: its first run has no folder of its own.

    None for other paths, and if there is such a folder.
    """
    run = to_path(path)
    if run.name != _FIRST_RUN:
        return None
    with store_errors_as_oserror(run):
        return run.parent if not run.exists() and has_manifest(run.parent) else None


def name_of(run: Path) -> Path:
    """Return a path by which commands find a run: ``log/run_001`` of the first one of a log directory with others."""
    return run if newest(run) == run else run / _FIRST_RUN


def run_before(path: PathLike) -> Path | None:
    """Return a name of the run before the newest one in a log directory, such as ``log/run_001``; None without."""
    return next(map(name_of, runs_of(path)[-2:-1]), None)


def find(log: PathLike, run_id: str, listing: Listing | None = None) -> Path | None:
    """Return the run directory with this run id in a log directory; None if there is no such run.

    The run directory is ``log`` itself or a ``log/run_NNN``; the highest number wins.
    """
    listing = listing or Listing()
    runs = (run for _, run in reversed(_runs(first_run(log) or log, listing)))
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
