"""Names of the files in a run directory, and the files that have them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter
from pathlib import Path

from ppprof.choices import SUFFIXES
from ppprof.paths import PathLike, to_path
from ppprof.rundir.directories import Listing
from ppprof.rundir.run_file import RunFile, matches

TRACE_SUFFIXES = {suffix[1:]: suffix for suffix in SUFFIXES}
"""File suffix of a trace, keyed by format as in ``Profiler.formats``."""

PAUSE_SPAN = "paused"
"""Name of the PythonUserDefined event around a pause in a step, ``ProfilerSession.paused``; what the training
does in it may follow: ``paused: evaluation``."""

GARBAGE_COLLECTION = "Python garbage collection"
"""Name of the PythonUserDefined events in which Python looks for garbage: `ppprof.capture.recording.python_stacks`."""

INCOMPLETE_MARKER = "not ended by step()"
"""Name of the UserDefined event in a raw capture that marks the ProfileStep around it as incomplete:
the training ended before ``step()`` did. See `ppprof.trace.steps`."""

CLOCK_MARKER = "clock set by "
"""Beginning of the name of the UserDefined event in a raw capture that marks a step in which the
wall clock was set; nanoseconds follow, below 0 if it was set back: ``clock set by -5000000 ns``. See
`ppprof.trace.clock_jumps`."""

DEVICE_CLOCK_MARKER = "device clock ahead by "
"""Beginning of the name of the UserDefined event in a raw capture that says how far the probe found the
device's clock ahead of the host's, least and most: ``device clock ahead by -5000 to 20000 ns``. Only where
the two disagree. See `ppprof.trace.device_clock`."""

ALLOCATIONS_MARKER = "allocations recorded up to here"
"""Name of the UserDefined event in a raw capture that marks a step in which, or ahead of which, capture
has ended the recording of allocations. See `ppprof.capture.recording.long_steps`."""

# The number of digits is limited: names are untrusted, and code loops up to the highest rank.
# Only `_STEM` is compiled here: every command imports this module, and few need the others.
_STEM = re.compile(
    r"rank_([0-9]{5,6})_(\w+)_time_([0-9]{8}T[0-9]{6})_([0-9]{3,6})(?:_s([0-9]{5,6}))?"
)
_SUMMARY = r"rank_([0-9]{5,6})_w([0-9]{1,6})\.json"
_LINES = r"rank_([0-9]{5,6})\.jsonl"
_RAW = r"rank_.+\.pb"
_CUT = r"\.writing_(rank_.+\.pb)\.[0-9a-f]{32}"


@dataclass(frozen=True)
class TraceName:
    """The name of a trace file or raw capture: rank, coordinate, start time, window and segment.

    A long window is recorded in segments, one after the other (`ppprof.capture.recording.segments`).
    Each has files of its own, whose names differ in ``_s00001``, ``_s00002`` ... only; the first
    segment has no such ending, so a window of one segment has the name that it always had.

    >>> name = TraceName(0, "dp0_pp0_sharding0_mp0", datetime(2026, 11, 20, 20, 15, 30), 0)
    >>> name.stem
    'rank_00000_dp0_pp0_sharding0_mp0_time_20261120T201530_000'
    >>> TraceName.parse(name.trace("json.gz")) == name
    True
    >>> from dataclasses import replace
    >>> replace(name, segment=12).raw
    'raw/rank_00000_dp0_pp0_sharding0_mp0_time_20261120T201530_000_s00012.pb'
    """

    rank: int
    label: str
    """The rank's coordinate: ``dp0_pp0_sharding0_mp0`` (see `ppprof.topology.Topology.label`)."""
    started: datetime
    """Time at which the window opened: local time of the rank's machine, to the second."""
    window: int
    """Number of the window in the run, from 0."""
    segment: int = 0
    """Number of the segment in the window, from 0."""

    @property
    def stem(self) -> str:
        """The file name without suffix. VisualDL shows the part before ``_time_`` as the worker."""
        stamp = f"{self.started:%Y%m%dT%H%M%S}"
        segment = f"_s{self.segment:05d}" if self.segment else ""
        return f"rank_{self.rank:05d}_{self.label}_time_{stamp}_{self.window:03d}{segment}"

    def trace(self, fmt: str) -> str:
        """Return the file name of the trace in the format ``fmt``, a key of `TRACE_SUFFIXES`."""
        return f"{self.stem}.paddle_trace{TRACE_SUFFIXES[fmt]}"

    @property
    def of_window(self) -> tuple[int, int, datetime, str]:
        """Rank, window, start time and coordinate, which all segments of a window share."""
        return self.rank, self.window, self.started, self.label

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
    def stacks(self) -> str:
        """Path of the file with samples of Python stacks, relative to the run directory.

        `ppprof.rundir.python_stacks` reads and writes the file.
        """
        return f"stacks/{self.stem}.stacks"

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
        rank, label, stamp, window, segment = match.groups()
        try:
            started = datetime.strptime(stamp, "%Y%m%dT%H%M%S")
        except ValueError:
            return None
        return cls(int(rank), label, started, int(window), int(segment or 0))


_SUFFIXES = frozenset(
    ["pb", "pb.gz", *(f"paddle_trace{suffix}" for suffix in (*TRACE_SUFFIXES.values(), ".pb.gz"))]
)
"""Suffixes of traces and raw captures, which a user may have compressed."""


def steps_path(rank: int) -> str:
    """Return the path of a rank's step times, relative to the run directory.

    >>> steps_path(3)
    'steps/rank_00003.jsonl'
    """
    return f"steps/rank_{rank:05d}.jsonl"


def metrics_path(rank: int, later_run: str = "") -> str:
    """Return the path of a rank's metrics for Prometheus, relative to the log directory.

    Args:
        rank: the rank.
        later_run: name of the run directory in the log directory; "" if that is the run directory.

    >>> metrics_path(3), metrics_path(3, "run_002")
    ('metrics/rank_00003.prom', 'metrics/run_002_rank_00003.prom')
    """
    return f"metrics/{later_run}{'_' * bool(later_run)}rank_{rank:05d}.prom"


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
    """Return (name, path) of each raw capture, sorted by rank, window, start time, segment."""
    directory = to_path(run)
    paths = [directory / "raw" / match[0] for match in matches(directory, "raw", re.compile(_RAW))]
    parsed = ((TraceName.parse(path), path) for path in paths)
    files = [(name, path) for name, path in parsed if name is not None]
    return sorted(files, key=lambda file: (*file[0].of_window, file[0].segment))


def trace_bytes(run: PathLike, rank: int) -> int:
    """Return the bytes that a rank's traces, raw captures and stacks take in a run directory.

    Remote calls (`TraceName.calls`) do not count.
    """
    raw = (f"raw/rank_{rank:05d}_*.{suffix}" for suffix in ("pb", "ops"))
    patterns = (f"rank_{rank:05d}_*.paddle_trace.*", f"stacks/rank_{rank:05d}_*.stacks", *raw)
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


def cut_captures(run: Path) -> list[tuple[TraceName, RunFile]]:
    """Return (name, file) of each raw capture that is not complete, sorted by file name.

    Either a rank is still writing it, or the rank was killed meanwhile.
    """
    parsed = (
        (TraceName.parse(match[1]), match[0]) for match in matches(run, "raw", re.compile(_CUT))
    )
    return [(name, RunFile(run, f"raw/{file}")) for name, file in parsed if name is not None]


def partial_files(run: Path, name: TraceName) -> list[RunFile]:
    """Return the temporary files of a window's unfinished traces, shapes, stacks, tables and note for ``--wait``.

    Either a process is still writing these files, or a killed process has left them behind.

    Args:
        run: the run directory.
        name: the name of the window's trace, or of that of any of its segments.
    """
    of_window = rf"\.writing_{replace(name, segment=0).stem}(_s[0-9]+)?\."
    of_tables = rf"\.writing_rank_{name.rank:05d}_w{name.window}\.json\..*"
    patterns = {
        "": rf"{of_window}.*",
        "raw": rf"{of_window}ops\..*",
        "stacks": rf"{of_window}stacks\..*",
        "summary": of_tables,
        "trigger": of_tables,
    }
    return [
        RunFile(run, f"{folder}/{match[0]}" if folder else match[0])
        for folder, pattern in patterns.items()
        for match in matches(run, folder, re.compile(pattern))
    ]
