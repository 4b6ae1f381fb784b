"""Names in a run directory, and which directory is whose."""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ppprof.errors import InputError, Problem
from ppprof.paths import PathLike, to_path
from ppprof.rundir.manifest import MANIFEST, has_manifest, read_run_id

TRACE_SUFFIXES = {"json": ".json", "json.gz": ".json.gz", "pb": ".pb"}
"""File suffix of each entry of ``Profiler.formats``."""

# Numbers have an end: a name is anybody's, and ranks up to the highest are counted out.
_STEM = re.compile(r"rank_([0-9]{5,6})_(\w+)_time_([0-9]{8}T[0-9]{6})_([0-9]{3,6})")
_SUMMARY = re.compile(r"rank_([0-9]{5,6})_w([0-9]{1,6})\.json")
_LINES = re.compile(r"rank_([0-9]{5,6})\.jsonl")
_RUN = re.compile(r"run_([0-9]{3,6})")
_CLAIM_SECONDS = 10.0
"""How long a directory is taken to be somebody's who claimed it and has yet to say which run's."""


@dataclass(frozen=True)
class TraceName:
    """Which rank and which window a trace file holds: what its name says.

    >>> name = TraceName(0, "dp0_pp0_sharding0_mp0", datetime(2026, 11, 20, 20, 15, 30), 0)
    >>> name.stem
    'rank_00000_dp0_pp0_sharding0_mp0_time_20261120T201530_000'
    >>> TraceName.parse(name.trace("json.gz")) == name
    True
    """

    rank: int
    label: str
    """The rank's coordinate as `ppprof.topology.Topology.label` writes it."""
    started: datetime
    """When the window opened: local time of that rank, to the second."""
    window: int
    """0 for the first window of a run."""

    @property
    def stem(self) -> str:
        """The name without a suffix; what stands before ``_time_`` is VisualDL's worker."""
        stamp = f"{self.started:%Y%m%dT%H%M%S}"
        return f"rank_{self.rank:05d}_{self.label}_time_{stamp}_{self.window:03d}"

    def trace(self, fmt: str) -> str:
        """File name of the trace in one of the formats of `TRACE_SUFFIXES`."""
        return f"{self.stem}.paddle_trace{TRACE_SUFFIXES[fmt]}"

    @property
    def raw(self) -> str:
        """Path of Paddle's own ``.pb`` inside the run directory."""
        return f"raw/{self.stem}.pb"

    @property
    def calls(self) -> str:
        """Path of the window's remote calls (`ppprof.rundir.remote_calls`) inside the run directory."""
        return f"raw/{self.stem}.calls"

    @property
    def summary(self) -> str:
        """Path of the window's tables, as data, inside the run directory."""
        return f"summary/rank_{self.rank:05d}_w{self.window}.json"

    @classmethod
    def parse(cls, path: PathLike) -> TraceName | None:
        """The name behind a raw file or a trace in any format; None for any other file."""
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
    """Path of a rank's step times inside the run directory.

    >>> steps_path(3)
    'steps/rank_00003.jsonl'
    """
    return f"steps/rank_{rank:05d}.jsonl"


def scalars_path(rank: int, *, is_first: bool) -> str:
    """Path of a rank's scalars for VisualDL inside the run directory.

    VisualDL shows one log a directory: the first rank's stands where the traces are.

    >>> scalars_path(0, is_first=True)
    'vdlrecords.rank_00000.log'
    >>> scalars_path(1, is_first=False)
    'scalars/rank_00001/vdlrecords.rank_00001.log'
    """
    name = f"vdlrecords.rank_{rank:05d}.log"
    return name if is_first else f"scalars/rank_{rank:05d}/{name}"


def jsonl_files(run: PathLike, folder: str) -> list[tuple[int, Path]]:
    """Rank and path of what is in ``steps`` or ``clocks``: lines that each rank has left."""
    found = ((_LINES.fullmatch(path.name), path) for path in to_path(run).glob(f"{folder}/*.jsonl"))
    return sorted((int(match[1]), path) for match, path in found if match)


def raw_files(run: PathLike) -> list[tuple[TraceName, Path]]:
    """Windows that were saved and not yet finished, by rank, then window."""
    named = ((TraceName.parse(path), path) for path in to_path(run).glob("raw/*.pb"))
    found = [(name, path) for name, path in named if name is not None]
    return sorted(found, key=lambda item: (item[0].rank, item[0].window, item[0].started))


def trace_bytes(run: PathLike, rank: int) -> int:
    """What a rank's traces take in a run directory, raw ones included."""
    named = (f"rank_{rank:05d}_*.paddle_trace.*", f"raw/rank_{rank:05d}_*.pb")
    return sum(path.stat().st_size for name in named for path in to_path(run).glob(name))


def summary_files(run: PathLike) -> list[tuple[int, int, Path]]:
    """Rank, window and path of the tables that were left as data (`TraceName.summary`)."""
    found = ((_SUMMARY.fullmatch(path.name), path) for path in to_path(run).glob("summary/*.json"))
    return sorted((int(match[1]), int(match[2]), path) for match, path in found if match)


def check_writable(path: PathLike) -> Problem | None:
    """What keeps ``path`` from becoming a run directory, or None; creates nothing that stays.

    The nearest parent that exists is asked, by making a file in it: permission bits say little
    about read-only mounts and network file systems.
    """
    wanted = Path(path)
    existing = wanted
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return Problem(str(wanted), "", f"{existing} is a file; expected a directory")
    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return Problem(str(wanted), "", f"cannot write: {error.strerror or error}")


def claim(log: PathLike, name: str = "", run_id: str | None = None) -> Path:
    """Makes a run's directory: ``log`` itself, or a ``log/run_NNN`` above those that are taken.

    Making ``steps/`` is the claim: it fails for all but one of several that try at once.

    Args:
        log: the log directory.
        name: the lowest name to take, such as ``run_003``; any other is that of ``log`` itself.
        run_id: of a run that others may claim a directory of this disk for at the same time: the
            first one does, and all of them get that one. Its manifest is to follow at once.

    Raises:
        OSError: not a directory, no permission, disk full.
    """
    taken = [number for number, run in _runs(log) if (run / "steps").is_dir()]
    number = max([_number(name), *taken])
    while True:
        run = Path(log) if number == 1 else Path(log) / f"run_{number:03d}"
        run.mkdir(parents=True, exist_ok=True)
        try:
            (run / "steps").mkdir()
        except FileExistsError:
            if run_id is not None and _turns_out_to_be(run, run_id):
                return run
            number += 1
        else:
            for folder in ("raw", "summary"):
                (run / folder).mkdir(exist_ok=True)
            return run


def _turns_out_to_be(run: Path, run_id: str) -> bool:
    deadline = time.monotonic() + _CLAIM_SECONDS
    while not has_manifest(run) and time.monotonic() < deadline:
        time.sleep(0.01)
    return read_run_id(run) == run_id


def _runs(log: PathLike) -> list[tuple[int, Path]]:
    """Where a log directory has or had a run, ascending: itself, then every ``run_NNN``."""
    at = to_path(log)
    children = (
        [child for child in at.iterdir() if _RUN.fullmatch(child.name)] if at.is_dir() else []
    )
    return [(1, at), *sorted((_number(child.name), child) for child in children)]


def _number(name: str) -> int:
    match = _RUN.fullmatch(name)
    return int(match[1]) if match else 1


def reject_symlinks(run: Path) -> None:
    """Lets no run pass whose folders are links: what is written there would be somewhere else.

    Raises:
        InputError: one of them is.
    """
    for folder in ("raw", "summary"):
        if (run / folder).is_symlink():
            raise InputError(f"{run / folder}: a link; expected a folder of the run")


def newest(path: PathLike) -> Path:
    """The newest run under a log directory: the highest ``run_NNN``, else ``path`` itself.

    Raises:
        InputError: no manifest there, so no run.
    """
    runs = [run for _, run in _runs(path) if has_manifest(run)]
    if not runs:
        raise InputError(f"{to_path(path)}: no run here: expected a directory with a {MANIFEST}")
    return runs[-1]


def find(log: PathLike, run_id: str) -> Path | None:
    """The directory under ``log`` of the run with this id; None where there is none."""
    return next((run for _, run in reversed(_runs(log)) if read_run_id(run) == run_id), None)


def find_runs_below(path: PathLike, levels: int = 2) -> list[Path]:
    """The newest run of each log directory below ``path``: ``node0``, or ``node0/profiler_log``."""
    found: list[Path] = []
    for child in sorted(child for child in to_path(path).iterdir() if child.is_dir()):
        try:
            found.append(newest(child))
        except InputError:
            found += find_runs_below(child, levels - 1) if levels > 1 else []
    return found


def partial_files(run: Path, name: TraceName) -> list[Path]:
    """What was made of a window and never published: half a file, if nobody is writing it."""
    summary = Path(name.summary)
    return [
        *run.glob(f".writing_{name.stem}.*"),
        *run.glob(f"{summary.parent}/.{summary.name}.*.tmp"),
    ]
