"""`open`: a run directory, or a trace of any kind, as tables.

The library behind ``ppprof summary``; nothing is read before it is asked for, and of the events of
several windows one at a time is held.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import polars as pl

from ppprof import rundir
from ppprof.analysis.profile import Options, Profile
from ppprof.analysis.steps import Steps, select_steps
from ppprof.analysis.summary import VIEWS, summarize
from ppprof.clocks import Clocks, read_clocks
from ppprof.errors import InputError, TraceError, UsageError
from ppprof.report.data import read_document
from ppprof.topology import RankSelector, Topology
from ppprof.trace import Trace, read
from ppprof.trace.merge import Window, write_merged

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

Progress = Callable[[Path, int, int], None]
"""Called with a file, its bytes that were read so far, and all of them."""


def open(
    path: str | Path,
    *,
    cache: bool = True,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> Run:
    """A run directory or a trace file, ready to be asked for its tables.

        run = ppprof.open("profiler_log")
        run.ranks                                    # [0, 1]
        run.summary("model", rank=0)                 # a polars DataFrame
        run.events(rank=0).filter(category="Kernel")

    Args:
        path: a run directory (``profiler_log``; the newest run in it), a directory of traces that
            ``paddle.profiler`` or ``torch.profiler`` named, or one trace file of any format.
        cache: parsed events may be kept beside a trace that is slow to parse.
        progress: called while a long file is read.
        tell: takes what could not be read while something else could; a warning by default.

    Returns:
        A `Run`. Only names have been read so far.

    Raises:
        InputError: no such path, or no trace in it.
    """
    at = Path(path)
    try:
        if at.is_dir():
            at = _newest(at)
            recordings = _recordings(at)
        else:
            at.stat()
            recordings = [_alone(at)]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if not recordings:
        raise InputError(
            f"{at}: no trace in it: expected a run directory with recorded windows, or files such "
            "as *.paddle_trace.json (.json.gz, .pb) or *.pt.trace.json"
        )
    return Run(at, recordings, cache, progress, tell or _warn)


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


@dataclass(frozen=True)
class WindowTables:
    """Some of the nine tables of one window, and what they were made from."""

    recording: Recording
    source: Path
    """The file that was read."""
    steps: Sequence[int]
    """Numbers of the steps, ascending."""
    sorted_by: str
    """The sort key in force."""
    lost: Mapping[str, int]
    """What of the file could not be used, kind -> how many."""
    tables: Mapping[str, pl.DataFrame]
    """By view, in the order of `ppprof.analysis.summary.VIEWS`."""

    def identity(self) -> dict[str, Any]:
        """What says which window this is, for `ppprof.report.data.document`."""
        return {
            "file": str(self.source),
            "rank": self.recording.rank,
            "coordinate": self.recording.coordinate,
            "window": self.recording.window,
            "steps": list(self.steps),
            "sorted_by": self.sorted_by,
            "lost": dict(self.lost),
        }


@dataclass(frozen=True)
class Merged:
    """What `Run.merge` wrote."""

    path: Path
    ranks: tuple[int, ...]
    """Those in it, ascending."""
    num_events: int
    """Arrows not counted."""


class Run:
    """What `open` returns. Its methods mirror ``ppprof summary``."""

    def __init__(
        self,
        path: Path,
        recordings: Sequence[Recording],
        cache: bool,
        progress: Progress | None,
        tell: Callable[[str], None],
    ) -> None:
        self.path = path
        """The file, or the directory of the run itself."""
        self.recordings = tuple(recordings)
        """Every window of every rank, by rank, then window."""
        self._cache = cache
        self._progress = progress
        self._tell = tell
        self._held: tuple[Recording, Path, Trace] | None = None
        self._made: tuple[Recording, Steps | None, Options, Profile] | None = None

    @property
    def ranks(self) -> list[int]:
        """The recorded ranks, ascending."""
        return sorted({recording.rank for recording in self.recordings})

    def windows(self, rank: int | None = None) -> list[int]:
        """The windows of a rank (None: of any), ascending."""
        return sorted({recording.window for recording in self.select(rank)})

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """What the capture wrote about the job; empty for files that no capture of ours left.

        Raises:
            InputError: it cannot be read, or a newer ppprof wrote it.
        """
        return rundir.read_manifest(self.path) if rundir.has_manifest(self.path) else {}

    def select(self, rank: int | None = None, window: int | None = None) -> list[Recording]:
        """The windows with this rank and this number; None: all.

        Raises:
            UsageError: there is none; says what there is.
        """
        of_rank = [at for at in self.recordings if rank in (None, at.rank)]
        if not of_rank:
            raise UsageError(f"{self.path}: no rank {rank}; it has {listed('rank', self.ranks)}")
        found = [at for at in of_rank if window in (None, at.window)]
        if not found:
            known = listed("window", (at.window for at in of_rank))
            of = "" if rank is None else f" of rank {rank}"
            raise UsageError(f"{self.path}: no window {window}{of}; it has {known}")
        return found

    def trace(self, rank: int | None = None, window: int | None = None) -> Trace:
        """One window as it was read: events, memory, kernels, what was lost.

        Rank and window can be left out where there is only one.

        Raises:
            UsageError: there is no such window, or more than one.
            InputError: it cannot be read.
        """
        return self._trace(self._one(rank, window))[1]

    def events(self, rank: int | None = None, window: int | None = None) -> pl.DataFrame:
        """The events of a rank and window; of all of them where none is named.

        Returns:
            rank and window (int64), then the columns of `ppprof.trace.schema.EVENTS`. ``parent``
            counts the rows of its own rank and window, from 0, which
            ``pl.int_range(pl.len()).over("rank", "window")`` numbers. What cannot be read is left
            out, and told.

        Raises:
            UsageError: there is no such window.
            InputError: none of them can be read.
        """
        return self._together(lambda trace: trace.events, rank, window)

    def memory(self, rank: int | None = None, window: int | None = None) -> pl.DataFrame:
        """Allocations and frees: as `events`, with the columns of `ppprof.trace.schema.MEMORY`."""
        return self._together(lambda trace: trace.memory, rank, window)

    def summary(
        self,
        view: str,
        rank: int | None = None,
        window: int | None = None,
        *,
        steps: str | int | None = None,
        sorted_by: str = "auto",
        thread_sep: bool = False,
    ) -> pl.DataFrame:
        """One of the nine tables of one window.

        Args:
            view: device, overview, model, dist, op, kernel, memcpy, udf or mem.
            rank: which rank; can be left out where there is only one.
            window: which window; the same.
            steps: only steps A to B-1, as ``"A:B"``, ``"A:"``, ``":B"`` or one number.
            sorted_by: ``cpu_`` or ``gpu_`` and total, avg, max or min; auto is gpu_total where
                there are device events, else cpu_total.
            thread_sep: operators and spans thread by thread.

        Returns:
            Columns as the function of that name in `ppprof.analysis` documents them; times in
            nanoseconds, ratios from 0 to 1. No rows where the trace has nothing for it.

        Raises:
            UsageError: no such view, window, steps or sort key; says what there is.
            InputError: the window cannot be read.
        """
        made = self.tables(
            [view], rank, window, steps=steps, sorted_by=sorted_by, thread_sep=thread_sep
        )
        return made.tables[view]

    def tables(
        self,
        views: Iterable[str],
        rank: int | None = None,
        window: int | None = None,
        *,
        steps: str | int | None = None,
        sorted_by: str = "auto",
        thread_sep: bool = False,
    ) -> WindowTables:
        """Several tables of one window, with what they were made from; see `summary`."""
        chosen = list(views)
        unknown = [view for view in chosen if view not in VIEWS]
        if unknown:
            raise UsageError(f"view {unknown[0]!r}: expected one of {', '.join(VIEWS)}")
        options = Options(sorted_by, thread_sep)
        wanted = None if steps is None else Steps.parse(steps)
        recording = self._one(rank, window)
        try:
            source, trace = self._trace(recording)
        except InputError as error:
            if recording.saved is None:
                raise
            if recording.files:
                self._tell(str(error))
            return _saved(recording, recording.saved, chosen, wanted, options)
        profile = self._profile(recording, trace, wanted, options)
        if wanted is not None and not profile.steps:
            known = listed("step", trace.events["step"].drop_nulls().unique().to_list())
            raise UsageError(f"{source}: no step of {wanted}; it has {known}")
        return WindowTables(
            recording,
            source,
            profile.steps,
            profile.sorted_by,
            trace.lost,
            {view: summarize(profile, view) for view in VIEWS if view in chosen},
        )

    def merge(
        self,
        path: str | Path,
        *,
        ranks: RankSelector = "all",
        steps: str | int | None = None,
        min_dur_ns: int = 0,
        clocks: Clocks | None = None,
    ) -> Merged:
        """Writes ranks into one timeline on one clock, for Perfetto and chrome://tracing.

        A rank is a process, named and sorted by its coordinates; see `ppprof.trace.merge`. One
        window is held at a time. What cannot be read is left out, and told.

        Args:
            path: the file; gzip where its name ends in ``.gz``.
            ranks: as ``Profiler.ranks``: all, ``"0,8-15"``, a rank, ranks, or coordinates.
            steps: only steps A to B-1, as ``"A:B"``, ``"A:"``, ``":B"`` or one number.
            min_dur_ns: leaves out shorter events, but no step, communication or pipeline span.
            clocks: of ranks, by rank; by default what the run's own files tell. A rank without one
                stays on its own clock, and that is told.

        Raises:
            UsageError: no such ranks or steps; says what there is.
            InputError: nothing can be read.
            OSError: the file cannot be written.
        """
        wanted = None if steps is None else Steps.parse(steps)
        chosen = self._ranks(ranks)
        clocks = read_clocks(self.path) if clocks is None else clocks
        written: dict[int, None] = {}
        errors: list[str] = []
        known: set[int] = set()

        def windows() -> Iterator[Window]:
            for recording in self.recordings:
                if recording.rank not in chosen:
                    continue
                try:
                    trace = self._trace(recording)[1]
                except InputError as error:
                    errors.append(f"rank {recording.rank} is left out: {error}")
                    continue
                known.update(trace.events["step"].drop_nulls().unique().to_list())
                if wanted is not None:
                    trace = select_steps(trace, wanted)
                    if trace.events.is_empty():
                        continue
                written[recording.rank] = None
                name, clock = self._process_name(recording), clocks.get(recording.rank)
                yield Window(recording.rank, recording.window, name, trace, clock)
                del trace
            if errors and not written and not known:
                raise InputError("\n".join(errors))
            if not written:
                raise UsageError(
                    f"{self.path}: no step of {wanted}; it has {listed('step', known)}"
                )

        num_events = write_merged(windows(), path, ranks=chosen, min_dur_ns=min_dur_ns)
        for message in errors:
            self._tell(message)
        unmeasured = [rank for rank in written if rank not in clocks and rank != 0]
        if unmeasured and len(written) > 1:
            self._tell(
                f"{self.path}: nothing tells the clocks of {listed('rank', unmeasured)}: their "
                "times are left as their machine's clock had them; against ranks of other "
                "machines they can be off by as much as the clocks are"
            )
        return Merged(Path(path), tuple(written), num_events)

    @cached_property
    def topology(self) -> Topology | None:
        """The grid of the job; None where the manifest does not tell it."""
        axes = self.manifest.get("axes")
        try:
            return Topology(tuple(axes["degrees"]), tuple(axes["order"])) if axes else None
        except (KeyError, TypeError, UsageError):
            return None

    def _ranks(self, selector: RankSelector) -> frozenset[int]:
        """The recorded ones among those selected; the others are told, if they were to record."""
        recorded = frozenset(self.ranks)
        grid = self.topology
        if grid is None:
            if isinstance(selector, Mapping):
                raise UsageError(f"{self.path}: nothing tells the coordinates of its ranks")
            grid = Topology.of(dp=max(recorded) + 1)
        selected = grid.select(selector)
        if not selected & recorded:
            raise UsageError(
                f"{self.path}: no {listed('rank', selected)}; it has {listed('rank', recorded)}"
            )
        profiler = self.manifest.get("profiler")
        try:
            to_record = grid.select(profiler["ranks"]) if profiler else recorded
        except (KeyError, TypeError, UsageError):
            to_record = recorded
        missing = (selected & to_record) - recorded
        if missing:
            self._tell(f"{self.path}: no trace of {listed('rank', missing)}")
        return selected & recorded

    def _process_name(self, recording: Recording) -> str:
        """``dp1 pp0 mp1 · host-b``: sep and sharding only where there are several of them."""
        grid, rank = self.topology, recording.rank
        if grid is None or rank >= grid.world_size:
            return recording.what
        coordinate = " ".join(
            f"{axis}{at}"
            for axis, at in grid.coordinate(rank).items()
            if axis in ("dp", "pp", "mp") or grid.degree(axis) > 1
        )
        known = self.manifest.get("ranks")
        hosts = [
            at["host"]
            for at in (known if isinstance(known, list) else ())
            if isinstance(at, Mapping) and at.get("rank") == rank and at.get("host")
        ]
        return " · ".join([coordinate, *map(str, hosts[:1])])

    def _one(self, rank: int | None, window: int | None) -> Recording:
        found = self.select(rank, window)
        if len(found) > 1:
            ranks = {at.rank for at in found}
            several = (
                listed("rank", ranks)
                if len(ranks) > 1
                else listed("window", (at.window for at in found))
            )
            raise UsageError(f"{self.path}: it has {several}: say which one")
        return found[0]

    def _trace(self, recording: Recording) -> tuple[Path, Trace]:
        if self._held is None or self._held[0] != recording:
            self._held = self._made = None  # before the next one is read: memory holds one trace
            self._held = (recording, *self._read(recording))
        return self._held[1:]

    def _read(self, recording: Recording) -> tuple[Path, Trace]:
        """From the best file that can be read; the others are told."""
        if not recording.files:
            raise InputError(f"{recording.saved}: only tables are left of this window, no trace")
        errors = []
        for file in recording.files:
            progress = partial(self._progress, file) if self._progress else None
            try:
                trace = read(file, progress=progress, cache=self._cache)
            except TraceError as error:
                errors.append(str(error))
                continue
            for message in errors:
                self._tell(message)
            return file, trace
        raise TraceError("\n".join(errors))

    def _profile(
        self, recording: Recording, trace: Trace, steps: Steps | None, options: Options
    ) -> Profile:
        if self._made is None or self._made[:3] != (recording, steps, options):
            profile = Profile(trace if steps is None else select_steps(trace, steps), options)
            self._made = (recording, steps, options, profile)
        return self._made[3]

    def _together(
        self, table: Callable[[Trace], pl.DataFrame], rank: int | None, window: int | None
    ) -> pl.DataFrame:
        parts, errors = [], []
        for recording in self.select(rank, window):
            try:
                _, trace = self._trace(recording)
            except InputError as error:
                errors.append(str(error))
                continue
            parts.append(
                table(trace).select(
                    pl.lit(recording.rank, pl.Int64).alias("rank"),
                    pl.lit(recording.window, pl.Int64).alias("window"),
                    pl.all(),
                )
            )
        if not parts:
            raise InputError("\n".join(errors))
        for message in errors:
            self._tell(message)
        return pl.concat(parts)


def _saved(
    recording: Recording, path: Path, views: list[str], steps: Steps | None, options: Options
) -> WindowTables:
    """The tables that a capture left; they are as they are.

    Raises:
        InputError: not readable, or other ones were asked for.
    """
    identity, tables = read_document(path)
    sorted_by = str(identity.get("sorted_by"))
    threads = [tables[view]["thread"] for view in ("op", "udf") if "thread" in tables[view].columns]
    thread_sep = any(thread.count() for thread in threads)
    if (
        steps is not None
        or options.sorted_by not in ("auto", sorted_by)
        or (options.thread_sep != thread_sep and any(len(thread) for thread in threads))
    ):
        raise InputError(
            f"{path}: no trace is left of this window, only its tables, which cannot be made "
            f"again: they hold all steps, sorted by {sorted_by}, "
            f"{'thread by thread' if thread_sep else 'threads merged'}"
        )
    return WindowTables(
        dataclasses.replace(recording, coordinate=identity.get("coordinate")),
        path,
        identity.get("steps") or [],
        sorted_by,
        identity.get("lost") or {},
        {view: table for view, table in tables.items() if view in views},
    )


def _newest(directory: Path) -> Path:
    try:
        return rundir.newest(directory)
    except InputError:  # no manifest: traces that somebody else named, or copied
        return directory


def _alone(path: Path) -> Recording:
    """A file of its own; what its name does not say is 0."""
    name = rundir.TraceName.parse(path)
    if name is None:
        return Recording(0, 0, path.name, None, (path,))
    return Recording(name.rank, name.window, path.name, name.label, (path,))


def _recordings(directory: Path) -> list[Recording]:
    """What a directory holds, by rank, then window."""
    named: dict[rundir.TraceName, list[Path]] = {}
    foreign: dict[str, dict[str, list[Path]]] = {}
    for path in sorted([*directory.glob("*.*"), *directory.glob("raw/*.pb")], key=_best_first):
        name = rundir.TraceName.parse(path)
        if name is not None:
            named.setdefault(name, []).append(path)
        elif path.parent == directory and (match := _FOREIGN.fullmatch(path.name)):
            windows = foreign.setdefault(match["worker"], {})
            windows.setdefault(match["time"] or match["ns"] or "", []).append(path)
    saved = {(rank, window): path for rank, window, path in rundir.summary_files(directory)}
    found: dict[tuple[int, int], Recording] = {}
    for name, paths in named.items():
        at = (name.rank, name.window)
        if at in found:
            raise InputError(
                f"{directory}: rank {name.rank}, window {name.window} is there twice, as "
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


def listed(what: str, numbers: Iterable[int]) -> str:
    """``rank 0``, ``windows 0-3, 7`` or ``no step``.

    >>> listed("rank", [3, 0, 1, 7]), listed("step", [4]), listed("step", [])
    ('ranks 0-1, 3, 7', 'step 4', 'no step')
    """
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    if not ranges:
        return f"no {what}"
    plural = "" if len(ranges) == 1 and ranges[0][0] == ranges[0][1] else "s"
    listed = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
    return f"{what}{plural} {listed}"


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
