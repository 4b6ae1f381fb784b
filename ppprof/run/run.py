"""`open`: a run directory, or a trace of any kind, as tables.

The library behind ``ppprof summary``; nothing is read before it is asked for, and of the events of
several windows one at a time is held.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import polars as pl

from ppprof import rundir
from ppprof.analysis.profile.profile import Profile, SummaryOptions
from ppprof.analysis.profile.steps import StepRange, select_steps
from ppprof.analysis.ranks.clock_alignment import align_clocks
from ppprof.analysis.ranks.cluster import Cluster, RankAnalysis, analyze_rank
from ppprof.analysis.ranks.collectives import collectives, with_rank
from ppprof.analysis.ranks.step_table import PLACES, group_steps, join_ranks, with_window
from ppprof.analysis.summaries.across_ranks import (
    by_name,
    by_rank,
    check_across,
    comparable,
    rank_view,
)
from ppprof.analysis.summaries.views import VIEWS, summarize
from ppprof.errors import InputError, PpprofError, UsageError
from ppprof.paths import store_errors_as_oserror, to_path
from ppprof.run.summary import AcrossRanks, WindowTables, saved_tables
from ppprof.run.traces import (
    Progress,
    T,
    WindowResult,
    map_windows,
    process_window,
    read_first_readable,
)
from ppprof.rundir.clocks import Clock, Clocks, Reading, read_clocks
from ppprof.rundir.recordings import Recording, directories_of_run, join_paths, scan, single_file
from ppprof.rundir.step_times import STEP_TIMES, read_step_times
from ppprof.topology import AXES, RankSelector, Topology
from ppprof.trace import Trace
from ppprof.trace.merge import Window, write_merged
from ppprof.units import format_ranges, format_skipped

_COORDINATE = re.compile(r"([a-z]+)([0-9]{1,6})")


def open(
    path: str | Path,
    *more: str | Path,
    cache: bool = True,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> Run:
    """A run directory or a trace file, ready to be asked for its tables.

        run = ppprof.open("profiler_log")
        run.ranks                                    # [0, 1]
        run.summary("model", rank=0)                 # a polars DataFrame
        run.events(rank=0).filter(category="Kernel")
        ppprof.open("node0/profiler_log", "node1/profiler_log").ranks  # nodes without a common disk

    Args:
        path: a run directory (``profiler_log``; the newest run in it), a directory of traces that
            ``paddle.profiler`` or ``torch.profiler`` named, or one trace file of any format. A
            directory that holds nothing of this itself may hold the run directories of a job's
            nodes, one or two levels below.
        more: the run directories that other nodes left of the same run.
        cache: parsed events may be kept beside a trace that is slow to parse.
        progress: called while a long file is read.
        tell: takes what could not be read while something else could; a warning by default.

    Returns:
        A `Run`. Only names have been read so far. One that has recorded nothing, such as with
        ``timer_only``, has step times alone, and its other methods raise InputError.

    Raises:
        InputError: no such path, no run and no trace in it, or several that are not of one run.
    """
    at = to_path(path)
    try:
        with store_errors_as_oserror(path):
            if more or at.is_dir():
                paths = directories_of_run([at, *map(to_path, more)])
                recordings = scan(paths)
            else:
                at.stat()
                paths, recordings = [at], [single_file(at)]
    except OSError as error:
        raise InputError(f"{error.filename or path}: {error.strerror or error}") from error
    if not recordings and not any(rundir.has_manifest(path) for path in paths):
        raise InputError(_no_trace(paths))
    return Run(paths, recordings, cache, progress, tell or _warn)


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
        paths: Sequence[Path],
        recordings: Sequence[Recording],
        cache: bool,
        progress: Progress | None,
        tell: Callable[[str], None],
    ) -> None:
        self.paths = tuple(paths)
        """The directories of the run itself, one of each node that left its own; or the file."""
        self.path = self.paths[0]
        """The first of them."""
        self.recordings = tuple(recordings)
        """Every window of every rank, by rank, then window."""
        self._cache = cache
        self._progress = progress
        self.tell = tell
        """Takes what could not be read while something else could."""
        self._held: tuple[Recording, Path, Trace] | None = None
        self._made: tuple[Recording, StepRange | None, SummaryOptions, Profile] | None = None

    def __str__(self) -> str:
        """Where it is, for messages."""
        return join_paths(self.paths)

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

        Beside it ``nodes``: host name by rank, of the ranks that have left it.

        Raises:
            InputError: it cannot be read, or a newer ppprof wrote it.
        """
        if not rundir.has_manifest(self.path):
            return {}
        nodes = {rank: node for path in self.paths for rank, node in rundir.nodes(path).items()}
        return {**rundir.read_manifest(self.path), "nodes": nodes}

    def select(self, rank: int | None = None, window: int | None = None) -> list[Recording]:
        """The windows with this rank and this number; None: all.

        Raises:
            UsageError: there is none; says what there is.
        """
        self._check_recordings()
        of_rank = [at for at in self.recordings if rank in (None, at.rank)]
        if not of_rank:
            raise UsageError(f"{self}: no rank {rank}; it has {format_ranges('rank', self.ranks)}")
        found = [at for at in of_rank if window in (None, at.window)]
        if not found:
            known = format_ranges("window", (at.window for at in of_rank))
            of = "" if rank is None else f" of rank {rank}"
            raise UsageError(f"{self}: no window {window}{of}; it has {known}")
        return found

    def _check_recordings(self) -> None:
        if not self.recordings:
            raise InputError(_no_trace(self.paths))

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
            and ``forward`` count the rows of their own rank and window, from 0, which
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
        by: str | None = None,
    ) -> pl.DataFrame:
        """One of the nine tables of one window, of one rank or over ranks.

        Args:
            view: device, overview, model, dist, op, kernel, memcpy, udf or mem.
            rank: which rank; can be left out where there is only one.
            window: which window; the same.
            steps: only steps A to B-1, as ``"A:B"``, ``"A:"``, ``":B"`` or one number.
            sorted_by: ``cpu_`` or ``gpu_`` and total, avg, max or min; auto is gpu_total where
                there are device events, else cpu_total.
            thread_sep: operators and spans thread by thread; not together with ``by``.
            by: ``rank`` or ``name``: of all ranks in one table; see `across`.

        Returns:
            Columns as the function of that name in `ppprof.analysis` documents them; times in
            nanoseconds, ratios from 0 to 1. No rows where the trace has nothing for it.

        Raises:
            UsageError: no such view, window, steps or sort key; says what there is.
            InputError: the window cannot be read.
        """
        if by is not None:
            if thread_sep:
                raise UsageError(f"thread_sep: threads are merged by {by}")
            ranks = None if rank is None else [rank]
            over = self.across([view], by, window, ranks=ranks, steps=steps, sorted_by=sorted_by)
            return over.tables[view]
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
        options = SummaryOptions(sorted_by, thread_sep)
        wanted = None if steps is None else StepRange.parse(steps)
        return self._tables(self._one(rank, window), chosen, wanted, options)

    def across(
        self,
        views: Iterable[str],
        by: str,
        window: int | None = None,
        *,
        ranks: Collection[int] | None = None,
        steps: str | int | None = None,
        sorted_by: str = "auto",
    ) -> AcrossRanks:
        """Several ranks' views in one table each, a rank after the other in memory.

            run.across(["op"], "name").tables["op"]     # what differs most between ranks on top

        Args:
            views: some of `ppprof.analysis.summaries.across_ranks.ACROSS`.
            by: ``rank`` (a row a name and rank) or ``name`` (a row a name: minimum, median,
                maximum and spread over the ranks).
            window: which window; can be left out where there is only one.
            ranks: only these; None: every rank.
            steps: as `summary` has it.
            sorted_by: as `summary` has it; auto is gpu_total where any rank has device events.
                Of ``name``, which number is compared.

        Returns:
            Columns as `ppprof.analysis.summaries.across_ranks.by_rank` and `by_name` document them. A rank that
            should have recorded and did not, or that cannot be read, is left out, and told; so is
            it when ranks have different steps.

        Raises:
            UsageError: no such view, rank, window, steps or sort key; says what there is.
            InputError: no rank can be read.
        """
        chosen = list(views)
        check_across(chosen, by)
        SummaryOptions(sorted_by)
        wanted = None if steps is None else StepRange.parse(steps)
        at_window, recordings = self._of_window(ranks, window)
        made, errors = self._comparable(recordings, chosen, wanted)
        present = {at.rank for at in recordings}
        absent = set(self.expected_ranks if ranks is None else ranks) - present
        if absent:
            self.tell(
                f"{self.path}: window {at_window}: no {format_ranges('rank', absent)}; left out"
            )
        self._tell_unequal_steps(made)
        if sorted_by == "auto":
            on_device = any(of.sorted_by.startswith("gpu") for of in made)
            sorted_by = "gpu_total" if on_device else "cpu_total"
        coordinates = {of.recording.rank: of.recording.coordinate for of in made}
        join = by_rank if by == "rank" else by_name
        tables = {
            view: join(
                view, {of.recording.rank: of.tables[view] for of in made}, coordinates, sorted_by
            )
            for view in VIEWS
            if view in chosen
        }
        left_out = sorted(absent | set(errors))
        return AcrossRanks(by, at_window, sorted_by, made, left_out, tables)

    @property
    def expected_ranks(self) -> list[int]:
        """The ranks that the job was told to record, and those that did, ascending."""
        return sorted(self._to_record().union(self.ranks))

    def _of_window(
        self, ranks: Collection[int] | None, window: int | None
    ) -> tuple[int, list[Recording]]:
        """Which window, and the recordings of it, by rank."""
        each = [None] if ranks is None else sorted(ranks)
        found = [at for rank in each for at in self.select(rank)]
        windows = sorted({at.window for at in found})
        if window is None and len(windows) > 1:
            raise UsageError(
                f"{self.path}: it has {format_ranges('window', windows)}: say which one"
            )
        at_window = windows[0] if window is None else window
        if at_window not in windows:
            self.select(each[0], at_window)  # raises: says what there is
        return at_window, [at for at in found if at.window == at_window]

    def _comparable(
        self, recordings: Sequence[Recording], views: list[str], steps: StepRange | None
    ) -> tuple[list[WindowTables], dict[int, PpprofError]]:
        """What can be held against other ranks; what cannot be read is told, by rank."""
        made: list[WindowTables] = []
        errors: dict[int, PpprofError] = {}
        for recording in recordings:
            try:
                of = self._tables(recording, views, steps, SummaryOptions(), rank_view)
            except PpprofError as error:
                errors[recording.rank] = error
                continue
            tables = {view: comparable(view, table) for view, table in of.tables.items()}
            made.append(dataclasses.replace(of, tables=tables))
        if not made:
            worst = max(errors.values(), key=lambda error: error.exit_code)
            raise type(worst)("\n".join(map(str, errors.values())))
        for broken in errors.values():
            self.tell(str(broken))
        return made, errors

    def _tell_unequal_steps(self, made: Sequence[WindowTables]) -> None:
        """Totals over different steps differ for that alone."""
        of_steps: dict[tuple[int, ...], list[int]] = {}
        for of in made:
            of_steps.setdefault(tuple(of.steps), []).append(of.recording.rank)
        if len(of_steps) > 1:
            each = "; ".join(
                f"{format_ranges('rank', ranks)}: {format_ranges('step', steps)}"
                for steps, ranks in of_steps.items()
            )
            self.tell(
                f"{self.path}: window {made[0].recording.window}: totals over different steps: "
                f"{each}; choose steps that all have"
            )

    def _tables(
        self,
        recording: Recording,
        chosen: list[str],
        wanted: StepRange | None,
        options: SummaryOptions,
        make: Callable[[Profile, str], pl.DataFrame] = summarize,
    ) -> WindowTables:
        """One window's tables, each by ``make``, or as a capture has left them."""
        try:
            source, trace = self._trace(recording)
        except InputError as error:
            if recording.saved is None:
                raise
            if recording.files:
                self.tell(str(error))
            return saved_tables(recording, recording.saved, chosen, wanted, options)
        profile = self._profile(recording, trace, wanted, options)
        if wanted is not None and not profile.steps:
            known = format_ranges("step", trace.events["step"].drop_nulls().unique().to_list())
            raise UsageError(f"{source}: no step of {wanted}; it has {known}")
        return WindowTables(
            recording,
            source,
            profile.steps,
            profile.sorted_by,
            trace.skipped,
            {view: make(profile, view) for view in VIEWS if view in chosen},
        )

    def each(
        self,
        work: Callable[[Trace], T],
        recordings: Iterable[Recording] | None = None,
        executor: Executor | None = None,
    ) -> Iterator[WindowResult[T]]:
        """What ``work`` makes of the trace of each window; in the order of the windows.

        Args:
            work: a trace to something small; with an executor that is other processes', both can
                be pickled.
            recordings: which windows; None: all.
            executor: where to work on several at once; None: here, one trace in memory at a time.

        Raises:
            InputError: none of them can be read. One that cannot, or whose process died of it, is
                left out, and told.
        """
        self._check_recordings()
        chosen = self.recordings if recordings is None else tuple(recordings)
        self._held = self._made = None  # memory holds one trace
        if executor is None:
            read_here = partial(
                process_window, work=work, cache=self._cache, progress=self._progress
            )
            results: Iterable[WindowResult[T] | str] = map(read_here, chosen)
        else:
            there = partial(process_window, work=work, cache=self._cache)
            results = map_windows(executor, there, chosen)
        errors = []
        found = False
        for result in results:
            if isinstance(result, str):
                errors.append(result)
                continue
            for message in (*errors, *result.errors):
                self.tell(message)
            errors, found = [], True
            yield result
        if not found:
            raise InputError("\n".join(errors))
        for message in errors:
            self.tell(message)

    @cached_property
    def topology(self) -> Topology | None:
        """The grid of the job; None where no manifest tells it."""
        try:
            axes = self.manifest["axes"]
            return Topology(tuple(axes["degrees"]), tuple(axes["order"]))
        except (KeyError, TypeError, UsageError):
            return None

    @cached_property
    def places(self) -> pl.DataFrame:
        """Where each recorded rank is: columns of `ppprof.analysis.ranks.PLACES`.

        From the manifest; a coordinate that is not there, from the file's name.
        """
        format_ranges = self.manifest.get("ranks")
        told = (
            [at for at in format_ranges if isinstance(at, Mapping)]
            if isinstance(format_ranges, list)
            else []
        )
        hosts = {at["rank"]: at.get("host") for at in told if isinstance(at.get("rank"), int)}
        rows = []
        for rank in self.ranks:
            if self.topology is not None and rank < self.topology.world_size:
                coordinate = self.topology.coordinate(rank)
            else:
                label = next(at.coordinate for at in self.recordings if at.rank == rank) or ""
                coordinate = {
                    axis: int(at) for axis, at in _COORDINATE.findall(label) if axis in AXES
                }
            host = hosts.get(rank)
            rows.append({"rank": rank, "host": None if host is None else str(host), **coordinate})
        return pl.DataFrame(rows, PLACES)

    def select_ranks(
        self, ranks: RankSelector = "all", window: int | None = None
    ) -> list[Recording]:
        """The windows of these ranks; a rank that was to be recorded and is not there is told.

        Args:
            ranks: ``"all"``, ``3``, ``"0,8-15"`` or, where the run has a manifest, coordinates such
                as ``{"pp": 0}``.
            window: only this one.

        Raises:
            UsageError: no such ranks or no such window; says what there is.
        """
        self._check_recordings()
        topology = self.topology
        if topology is None:
            if isinstance(ranks, Mapping):
                raise UsageError(f"{self.path}: {ranks}: no manifest says where its ranks are")
            topology = Topology.of(dp=max(self.ranks) + 1)
        wanted = (
            topology.select(ranks) if ranks != "all" else {*topology.select("all"), *self.ranks}
        )
        found = [at for at in self.recordings if at.rank in wanted]
        if not found:
            raise UsageError(
                f"{self.path}: no {format_ranges('rank', wanted)}; it has {format_ranges('rank', self.ranks)}"
            )
        missing = (wanted & self._to_record()) - set(self.ranks)
        if missing:
            self.tell(f"{self.path}: nothing is there of {format_ranges('rank', missing)}")
        known = {at.window for at in found}
        if window is not None and window not in known:
            raise UsageError(
                f"{self.path}: no window {window}; it has {format_ranges('window', known)}"
            )
        return [at for at in found if window in (None, at.window)]

    def _to_record(self) -> frozenset[int]:
        """The ranks that were to leave traces; none where no manifest says so."""
        block = self.manifest.get("profiler")
        try:
            ranks = block["ranks"] if isinstance(block, Mapping) else "all"
            return self.topology.select(ranks) if self.topology else frozenset()
        except (KeyError, TypeError, UsageError):
            return frozenset()

    def breakdown(
        self,
        by: str | Sequence[str] = ("rank", "step"),
        ranks: RankSelector = "all",
        window: int | None = None,
        *,
        steps: str | int | None = None,
        executor: Executor | None = None,
    ) -> pl.DataFrame:
        """What each rank spends each step on: parts that add up to the step.

        Args:
            by: some of rank, step, host, dp, pp, sharding, sep and mp: means of such groups.
            ranks: which ranks; see `select_ranks`.
            window: only this one.
            steps: only steps A to B-1, as ``"A:B"``, ``"A:"``, ``":B"`` or one number.
            executor: where to read several ranks at once, any of ``concurrent.futures``'s kind.

        Returns:
            By rank and step int64 nanoseconds as `ppprof.analysis.ranks.join_ranks` has them, else
            float64 means as of `ppprof.analysis.ranks.group_steps`.

        Raises:
            UsageError: no such group, ranks, window or steps; says what there is.
            InputError: none of them can be read.
        """
        groups = [by] if isinstance(by, str) else list(by)
        rows = self.cluster(ranks, window, steps=steps, executor=executor).steps
        return rows if groups == ["rank", "step"] else group_steps(rows, groups)

    def cluster(
        self,
        ranks: RankSelector = "all",
        window: int | None = None,
        *,
        steps: str | int | None = None,
        executor: Executor | None = None,
    ) -> Cluster:
        """All ranks together: their steps, their collectives on one clock, and who is slow.

        Args:
            ranks: which ranks; see `select_ranks`.
            window: only this one.
            steps: only steps A to B-1, as ``"A:B"``, ``"A:"``, ``":B"`` or one number.
            executor: where to read several ranks at once, any of ``concurrent.futures``'s kind.

        Raises:
            UsageError: no such ranks, window or steps; says what there is.
            InputError: none of them can be read.
        """
        wanted = None if steps is None else StepRange.parse(steps)
        made = self.each(analyze_rank, self.select_ranks(ranks, window), executor)
        return self.cluster_of(made, wanted)

    def cluster_of(
        self, examined: Iterable[WindowResult[RankAnalysis]], wanted: StepRange | None = None
    ) -> Cluster:
        """All ranks together, of what each was found to be; see `cluster`.

        Args:
            examined: `ppprof.analysis.ranks.cluster.analyze_rank` of some windows.
            wanted: only these steps.

        Raises:
            UsageError: no such steps; says what there is.
            InputError: there is no step in them.
        """
        parts, bubbles, met, passed = [], [], [], []
        for at in examined:
            if at.skipped:
                self.tell(format_skipped(at.source, at.skipped))
            if at.value.breakdown.parts.is_empty():
                self.tell(f"{at.source}: no step in it; left out")
            rank, number = at.recording.rank, at.recording.window
            parts.append((rank, number, at.value.breakdown.parts))
            bubbles.append(with_window(at.value.breakdown.bubbles, rank, number))
            met.append(with_rank(at.value.collectives, rank))
            passed.append(at.value.passes.with_columns(rank=pl.lit(rank, pl.Int64)))
        rows = join_ranks(parts, self.places)
        if rows.is_empty():
            raise InputError(f"{self.path}: no step in any of its traces")
        if wanted is not None:
            known = format_ranges("step", rows["step"])
            rows = rows.filter(wanted.contains(pl.col("step")))
            if rows.is_empty():
                raise UsageError(f"{self.path}: no step of {wanted}; it has {known}")
        of_ranks = (_by_rank(bubbles), _by_rank(met), _by_rank(passed))
        return Cluster(rows, *of_ranks, self.clocks, self.topology)

    @cached_property
    def step_times(self) -> pl.DataFrame:
        """The latest steps of all ranks, recorded or not: `ppprof.rundir.step_times.read_step_times`.

        No rows for files that no capture of ours left.

        Raises:
            InputError: a file of them cannot be read.
        """
        directories = self.paths if rundir.has_manifest(self.path) else ()
        found = [read_step_times(path) for path in directories]
        return pl.concat([pl.DataFrame(schema=STEP_TIMES), *found]).sort("rank", "step")

    @cached_property
    def clocks(self) -> Clocks:
        """The clocks of ranks as the capture compared them; empty where it did not."""
        return {rank: at for path in self.paths for rank, at in read_clocks(path).items()}

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
            ranks: which ranks; see `select_ranks`.
            steps: only steps A to B-1, as ``"A:B"``, ``"A:"``, ``":B"`` or one number.
            min_dur_ns: leaves out shorter events, but no step, communication or pipeline span.
            clocks: of ranks, by rank; by default what the run's own files tell, and for ranks of
                which they tell nothing, what their collectives do, in a first pass over the traces.
                A rank without a clock stays on its own, and that is told.

        Raises:
            UsageError: no such ranks or steps; says what there is.
            InputError: nothing can be read.
            OSError: the file cannot be written.
        """
        wanted = None if steps is None else StepRange.parse(steps)
        chosen = self.select_ranks(ranks)
        if clocks is None:
            clocks = self._clocks_of(chosen)
        written: dict[int, None] = {}
        errors: list[str] = []
        known: set[int] = set()

        def windows(clocks: Clocks) -> Iterator[Window]:
            for recording in chosen:
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
                    f"{self}: no step of {wanted}; it has {format_ranges('step', known)}"
                )

        there = {recording.rank for recording in chosen if recording.files}
        num_events = write_merged(windows(clocks), path, ranks=there, min_dur_ns=min_dur_ns)
        for message in errors:
            self.tell(message)
        unmeasured = [rank for rank in written if rank not in clocks and rank != 0]
        if unmeasured and len(written) > 1:
            self.tell(
                f"{self}: nothing tells the clocks of {format_ranges('rank', unmeasured)}: their times "
                "are left as their machine's clock had them; against ranks of other machines they "
                "can be off by as much as the clocks are"
            )
        return Merged(to_path(path), tuple(written), num_events)

    def _clocks_of(self, chosen: Sequence[Recording]) -> Clocks:
        """Clocks as they were measured, else as collectives bound them (`align_clocks`)."""
        reference = {0: Clock(0, (Reading(0, 0, 0),), "same")}
        measured = {**reference, **self.clocks} if self.clocks else {}
        ranks = {at.rank for at in chosen}
        if len(ranks) < 2 or ranks <= set(measured):
            return measured
        met = []
        for at in chosen:
            with suppress(InputError):  # told where it is written
                met.append(collectives(self._trace(at)[1], at.rank))
        clocks = align_clocks(_by_rank(met), measured) if met else measured
        bound = {r: at.error_ns for r, at in clocks.items() if at.method == "collectives"}
        if bound:
            self.tell(
                f"{self}: nobody measured the clocks of {format_ranges('rank', bound)}: what they did "
                f"together bounds them to {max(bound.values()) / 1e6:.3f} ms"
            )
        return clocks if len(clocks) > 1 else measured

    def _process_name(self, recording: Recording) -> str:
        """``dp1 pp0 mp1 · host-b``: sep and sharding only where there are several of them."""
        topology, rank = self.topology, recording.rank
        if topology is None or rank >= topology.world_size:
            return recording.what
        coordinate = " ".join(
            f"{axis}{at}"
            for axis, at in topology.coordinate(rank).items()
            if axis in ("dp", "pp", "mp") or topology.degree(axis) > 1
        )
        host = self.manifest["nodes"].get(rank) or self._hosts.get(rank)
        return f"{coordinate} · {host}" if host else coordinate

    @cached_property
    def _hosts(self) -> Mapping[int, str | None]:
        return dict(self.places.select("rank", "host").iter_rows())

    def _one(self, rank: int | None, window: int | None) -> Recording:
        found = self.select(rank, window)
        if len(found) > 1:
            ranks = {at.rank for at in found}
            several = (
                format_ranges("rank", ranks)
                if len(ranks) > 1
                else format_ranges("window", (at.window for at in found))
            )
            raise UsageError(f"{self}: it has {several}: say which one")
        return found[0]

    def _trace(self, recording: Recording) -> tuple[Path, Trace]:
        if self._held is None or self._held[0] != recording:
            self._held = self._made = None  # before the next one is read: memory holds one trace
            self._held = (recording, *self._read(recording))
        return self._held[1:]

    def _read(self, recording: Recording) -> tuple[Path, Trace]:
        """From the best file that can be read; the others are told."""
        file, trace, errors = read_first_readable(recording, self._cache, self._progress)
        for message in errors:
            self.tell(message)
        return file, trace

    def _profile(
        self, recording: Recording, trace: Trace, steps: StepRange | None, options: SummaryOptions
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
            self.tell(message)
        return pl.concat(parts)


def _no_trace(paths: Iterable[Path]) -> str:
    return (
        f"{join_paths(paths)}: no trace in it: expected a run directory with recorded windows, or "
        "files such as *.paddle_trace.json (.json.gz, .pb) or *.pt.trace.json"
    )


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def _by_rank(tables: Iterable[pl.DataFrame]) -> list[pl.DataFrame]:
    """One table a rank: its windows one behind the other."""
    join_paths = pl.concat(tables)
    return [table for _, table in join_paths.group_by("rank", maintain_order=True)]
