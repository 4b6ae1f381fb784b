"""`BaseRun`: the windows of a run, the choice of some, and their traces.

The modules of commands in this folder take it; `ppprof.run.run.Run` adds the commands.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from ppprof import rundir
from ppprof.choices import ReadOptions
from ppprof.errors import ConfigError, InputError, UsageError
from ppprof.messages import Message
from ppprof.run.traces import FileProgress, T, TraceReader, WindowResult
from ppprof.rundir.recordings import Recording, RunLocation, join_paths, no_trace
from ppprof.topology import AXES, RankSelector, Topology, own_axes
from ppprof.trace import Trace
from ppprof.units import format_ranges

if TYPE_CHECKING:
    from ppprof.config import ProfilerConfig
    from ppprof.rundir.clocks import Clocks

_COORDINATE = re.compile(r"([a-z]+)([0-9]{1,6})")
_log = logging.getLogger("ppprof")


class BaseRun:
    """A run: its windows, and what the capture wrote beside them.

    Only file names and the manifest have been read.

    Args:
        location: the run's files.
        progress: as in `ppprof.run.run.open`.
        reading: how to read the traces; None for the defaults.
    """

    def __init__(
        self,
        location: RunLocation,
        progress: FileProgress | None = None,
        reading: ReadOptions | None = None,
    ) -> None:
        self.paths = location.paths
        """The directories of the run, one for each node that wrote its own; or the trace file."""
        self.path = self.paths[0]
        """The first of ``paths``."""
        num_ranks = len({recording.rank for recording in location.recordings})
        job = rundir.job_context_of(location.manifest)._replace(num_ranks=num_ranks)
        self.reader = TraceReader(progress, job, reading)
        """Reads the windows."""
        self._location = location

    def __str__(self) -> str:
        """Return ``paths`` as text for messages, separated by commas."""
        return join_paths(self.paths)

    @cached_property
    def recordings(self) -> Sequence[Recording]:
        """Every window of every rank, sorted by rank, then window.

        A trace file is read for it: only its events say which ranks it holds.
        """
        recordings = self._location.recordings
        if len(recordings) == 1 and self.paths == recordings[0].files:
            return self.reader.ranks_in(recordings[0])
        return recordings

    @property
    def has_traces(self) -> bool:
        """Whether a trace is left of a window: without traces, windows have tables at most."""
        return any(recording.files for recording in self.recordings)

    @property
    def ranks(self) -> list[int]:
        """The recorded ranks, ascending."""
        return sorted({recording.rank for recording in self.recordings})

    def name_ranks(self, ranks: Iterable[int]) -> str:
        """Return ranks as text, ``ranks 0-7``; ``traces 0-1`` if nothing says that these are of one job."""
        is_numbered = any(recording.is_numbered for recording in self.recordings)
        return format_ranges("trace" if is_numbered else "rank", ranks)

    @property
    def expected_ranks(self) -> list[int]:
        """The ranks that the job was configured to record, and the recorded ranks, ascending."""
        return sorted(self._configured_ranks().union(self.ranks))

    def windows(self, rank: int | None = None) -> list[int]:
        """Return the numbers of a rank's windows, ascending; of all ranks' windows for None."""
        return sorted({recording.window for recording in self.select(rank)})

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """The manifest: what the capture wrote about the job, and ``nodes``: rank -> host name.

        Empty for traces that ppprof did not record.

        Raises:
            InputError: the manifest cannot be read, or a newer ppprof wrote it.
        """
        manifest = self._location.manifest
        if isinstance(manifest, InputError):
            raise manifest
        if not manifest:
            return {}
        nodes = {rank: node for path in self.paths for rank, node in rundir.nodes(path).items()}
        return {**manifest, "nodes": nodes}

    @cached_property
    def profiler(self) -> ProfilerConfig | None:
        """The ``Profiler`` block of the job; None without a valid one (an invalid one is logged)."""
        values = self.manifest.get("profiler")
        if not isinstance(values, Mapping):
            return None
        from ppprof.config import ProfilerConfig

        try:
            return ProfilerConfig.from_mapping(values)
        except ConfigError as error:
            _log.warning("%s", Message("ignored_block", path=self, error=error))
            return None

    @cached_property
    def topology(self) -> Topology | None:
        """The topology of the job; None if there is no manifest, or no valid topology in it."""
        return rundir.topology_of(self.manifest)

    @cached_property
    def stages(self) -> Mapping[int, int]:
        """Rank -> pipeline stage; empty if the job has one stage or an unknown topology."""
        topology = self.topology
        if topology is None or topology.degree("pp") == 1:
            return {}
        return {rank: topology.coordinate(rank)["pp"] for rank in range(topology.world_size)}

    def select(self, rank: int | None = None, window: int | None = None) -> list[Recording]:
        """Return the recordings of a rank and window, sorted by rank, then window; None: all.

        Raises:
            InputError: the run has no window at all.
            UsageError: no such rank or window; the message names the existing ones.
        """
        self._check_recordings()
        of_rank = [recording for recording in self.recordings if rank in (None, recording.rank)]
        if not of_rank:
            raise UsageError(f"{self}: no rank {rank}; it has {format_ranges('rank', self.ranks)}")
        selected = [recording for recording in of_rank if window in (None, recording.window)]
        if not selected:
            windows = format_ranges("window", (recording.window for recording in of_rank))
            suffix = "" if rank is None else f" of rank {rank}"
            raise UsageError(f"{self}: no window {window}{suffix}; it has {windows}")
        return selected

    def select_one(self, rank: int | None = None, window: int | None = None) -> Recording:
        """Return the recording of a rank and window; None if there is only one.

        Raises:
            InputError: the run has no window at all.
            UsageError: no such rank or window, or several; the message names the existing ones.
        """
        selected = self.select(rank, window)
        if len(selected) > 1:
            several = sorted({recording.rank for recording in selected})
            choice = (
                format_ranges("rank", several)
                if len(several) > 1
                else format_ranges("window", (recording.window for recording in selected))
            )
            raise UsageError(f"{self}: it has {choice}: choose one")
        return selected[0]

    def select_ranks(
        self, ranks: RankSelector | None = "all", window: int | None = None
    ) -> list[Recording]:
        """Return the recordings of several ranks, sorted by rank, then window.

        A warning names selected ranks that the job was configured to record but that have no trace.

        Args:
            ranks: ``"all"``, ``3``, ``"0,8-15"`` or, if the run has a manifest, coordinates such as
                ``{"pp": 0}``. None: the ranks in ``Profiler.print_ranks`` of the run's config; the
                other recorded ranks are named in the log. If the run has no config, or if none of
                ``print_ranks`` was recorded, None selects all ranks.
            window: the number of the window; None: all windows.

        Raises:
            InputError: the run has no window at all.
            UsageError: no such ranks or no such window; the message names the existing ones.
        """
        self._check_recordings()
        configured = self._configured_ranks()
        if ranks is None:
            missing = configured.difference(self.ranks)
            wanted = self._printed_ranks(window)
        else:
            wanted = self._selected_ranks(ranks)
            missing = (wanted & configured).difference(self.ranks)
        selected = [recording for recording in self.recordings if recording.rank in wanted]
        if not selected:
            raise UsageError(
                f"{self.path}: no {format_ranges('rank', wanted)}; "
                f"it has {format_ranges('rank', self.ranks)}"
            )
        if missing:
            _log.warning(
                "%s: no trace of %s; if other nodes wrote them, give their directories too",
                self,
                format_ranges("rank", missing),
            )
        windows = {recording.window for recording in selected}
        if window is not None and window not in windows:
            raise UsageError(
                f"{self.path}: no window {window}; it has {format_ranges('window', windows)}"
            )
        return [recording for recording in selected if window in (None, recording.window)]

    @cached_property
    def coordinates(self) -> pl.DataFrame:
        """The host and coordinates of each recorded rank.

        Columns of `ppprof.analysis.ranks.step_table.COORDINATES`, and further axes of the topology with
        a degree above 1, such as context. The host comes from the manifest. The
        coordinates come from the manifest's topology, or else from the names of the trace files.
        """
        return _coordinates(self)

    @cached_property
    def step_times(self) -> pl.DataFrame:
        """The times of the latest steps (about 11,000 for each rank), in windows or outside.

        One row per rank and step, sorted by rank, then step, with the columns of
        `ppprof.rundir.step_times.STEP_TIMES`. No rows for traces that ppprof did not record.

        Raises:
            InputError: a file of step times cannot be read.
        """
        from ppprof.rundir.step_times import STEP_TIMES, read_step_times

        directories = self.paths if rundir.has_manifest(self.path) else ()
        tables = [read_step_times(path) for path in directories]
        return pl.concat([pl.DataFrame(schema=STEP_TIMES), *tables]).sort("rank", "step")

    def step_times_of(self, ranks: RankSelector) -> pl.DataFrame:
        """Return ``step_times`` of some ranks of a run that has step times only.

        Raises:
            InputError: it has none.
            UsageError: the job has no such ranks.
        """
        times = self.step_times
        if times.is_empty():
            raise InputError(f"{self}: neither a trace in it nor step times")
        if ranks == "all":
            return times
        topology = self.topology or Topology.of(dp=int(times["rank"].to_numpy().max()) + 1)
        return times.filter(pl.col("rank").is_in(topology.select(ranks)))

    @cached_property
    def stalls(self) -> Mapping[tuple[int, int], Mapping[int, int]]:
        """Rank and window -> step -> for how many ns the profiler held the training up ahead of it."""
        times = self.step_times.filter(pl.col("stall_ns") > 0, pl.col("window").is_not_null())
        return {
            (rank, window): dict(rows.select("step", "stall_ns").iter_rows())
            for (rank, window), rows in times.group_by("rank", "window")
        }

    @cached_property
    def clocks(self) -> Clocks:
        """Rank -> its clock relative to the reference clock; ranks that were not measured lack."""
        from ppprof.rundir.clocks import read_clocks

        return {rank: clock for path in self.paths for rank, clock in read_clocks(path).items()}

    def trace(self, rank: int | None = None, window: int | None = None) -> Trace:
        """Return events, memory, kernels and memsets of one window, on its rank's own clock."""
        return self.reader.trace(self.select_one(rank, window))[1]

    def events(self, rank: int | None = None, window: int | None = None) -> pl.DataFrame:
        """Return the events of a rank and window as one table; None: of all of them.

        Returns:
            rank and window (int64), then the columns of `ppprof.trace.schema.EVENTS`. ``parent``
            and ``forward`` are row numbers within their own rank and window, from 0:
            ``pl.int_range(pl.len()).over("rank", "window")``.
        """
        return _concatenated(self, lambda trace: trace.events, rank, window)

    def memory(self, rank: int | None = None, window: int | None = None) -> pl.DataFrame:
        """Return allocations and frees of a rank and window as one table; None: of all of them.

        Returns:
            rank and window (int64), then the columns of `ppprof.trace.schema.MEMORY`. ``event`` is
            a row number within its own rank and window, as in `events`.
        """
        return _concatenated(self, lambda trace: trace.memory, rank, window)

    def map_windows(
        self,
        work: Callable[[Trace], T],
        recordings: Iterable[Recording] | None = None,
        executor: Executor | None = None,
    ) -> Iterator[WindowResult[T]]:
        """Yield the result of ``work`` for each window, in the order of ``recordings``.

        Args:
            work: turns a trace into a small value. An executor of other processes must be able to
                pickle ``work`` and the value.
            recordings: the windows; None: all windows of the run.
            executor: see `Run`.
        """
        windows = self.select() if recordings is None else recordings
        return self.reader.map_works(dict.fromkeys(windows, work), executor)

    def _selected_ranks(self, ranks: RankSelector) -> frozenset[int]:
        """Return the ranks that a selector selects, also ranks that were not recorded."""
        topology = self.topology
        if topology is None:
            if isinstance(ranks, Mapping):
                raise UsageError(f"{self.path}: {ranks}: coordinates need a manifest; it has none")
            topology = Topology.of(dp=max(self.ranks) + 1)
        try:
            wanted = frozenset(topology.select(ranks))
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}") from error
        return wanted.union(self.ranks) if ranks == "all" else wanted

    def _printed_ranks(self, window: int | None) -> frozenset[int]:
        """Return the recorded ranks in ``Profiler.print_ranks``, and name the others in the log.

        All recorded ranks without a valid config or topology, or if none of them is printed. Only
        ranks with the window count as recorded.
        """
        recorded = frozenset(recording.rank for recording in self.select(window=window))
        if self.profiler is None or self.topology is None:
            return recorded
        try:
            chosen = frozenset(self.topology.select(self.profiler.print_ranks))
        except UsageError:
            return recorded
        printed = recorded & chosen or recorded
        if others := recorded - printed:
            _log.info(
                "%s: not shown: %s; --rank R or --rank all shows them",
                self,
                format_ranges("rank", others),
            )
        return printed

    def _configured_ranks(self) -> frozenset[int]:
        """Return the ranks that the job was configured to record; empty without a manifest or a topology in it."""
        block = self.manifest.get("profiler")
        try:
            ranks = block["ranks"] if isinstance(block, Mapping) else "all"
            return self.topology.select(ranks) if self.topology else frozenset()
        except (KeyError, TypeError, UsageError):
            return frozenset()

    def _check_recordings(self) -> None:
        if not self.recordings:
            raise no_trace(self.paths)


def _coordinates(run: BaseRun) -> pl.DataFrame:
    from ppprof.analysis.ranks.step_table import COORDINATES

    entries = run.manifest.get("ranks")
    entries = entries if isinstance(entries, list) else []
    hosts = {
        entry["rank"]: entry.get("host")
        for entry in entries
        if isinstance(entry, Mapping) and isinstance(entry.get("rank"), int)
    }
    names = {*hosts.values()}
    labels = {recording.rank: recording.coordinate for recording in run.recordings}
    rows = []
    for rank in run.ranks:
        if run.topology is not None and rank < run.topology.world_size:
            coordinate = run.topology.coordinate(rank)
        else:
            parts = _COORDINATE.findall(labels[rank] or "")
            coordinate = {axis: int(index) for axis, index in parts if axis in AXES}
        # A launcher that names no endpoints leaves one host for all: each rank has noted its own.
        host = run.manifest["nodes"].get(rank) if len(names) == 1 else None
        host = host or hosts.get(rank)
        rows.append({"rank": rank, "host": None if host is None else str(host), **coordinate})
    own = own_axes(run.topology) if run.topology is not None else ()
    return pl.DataFrame(rows, {**COORDINATES, **dict.fromkeys(own, pl.Int64)})


def _concatenated(
    run: BaseRun, table: Callable[[Trace], pl.DataFrame], rank: int | None, window: int | None
) -> pl.DataFrame:
    parts, errors = [], []
    for recording in run.select(rank, window):
        try:
            trace = run.reader.trace(recording)[1]
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
        _log.warning("%s", message)
    return pl.concat(parts)
