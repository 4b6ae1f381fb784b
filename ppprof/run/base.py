"""`BaseRun`: a run whose windows can be read; the command modules of this room take it.

`ppprof.run.run.Run` adds the commands.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from ppprof import rundir
from ppprof.choices import ReadOptions
from ppprof.errors import InputError
from ppprof.run.index import RunIndex
from ppprof.run.traces import Progress, T, TraceReader, WindowResult
from ppprof.rundir.recordings import Recording, RunLocation
from ppprof.topology import AXES
from ppprof.trace import Trace

if TYPE_CHECKING:
    from ppprof.rundir.clocks import Clocks

_COORDINATE = re.compile(r"([a-z]+)([0-9]{1,6})")
_log = logging.getLogger("ppprof")


class BaseRun(RunIndex):
    """A run: its windows, and what the capture wrote beside them.

    Args:
        location: the run's files.
        progress: as in `ppprof.run.run.open`.
        reading: how to read the traces; None for the defaults.
    """

    def __init__(
        self,
        location: RunLocation,
        progress: Progress | None = None,
        reading: ReadOptions | None = None,
    ) -> None:
        super().__init__(location)
        self.reader = TraceReader(progress, rundir.job_context_of(location.manifest), reading)
        """Reads the windows."""

    @cached_property
    def recordings(self) -> Sequence[Recording]:
        """Every window of every rank, sorted by rank, then window.

        A single file may hold several ranks: it is read for that, and kept for who asks for it.
        """
        if len(self._recordings) == 1 and self.paths == self._recordings[0].files:
            return self.reader.ranks_in(self._recordings[0])
        return self._recordings

    @cached_property
    def places(self) -> pl.DataFrame:
        """The host and coordinates of each recorded rank.

        Columns of `ppprof.analysis.ranks.step_table.COORDINATES`. The host comes from the manifest. The
        coordinates come from the manifest's topology, or else from the names of the trace files.
        """
        return _places(self)

    @cached_property
    def step_times(self) -> pl.DataFrame:
        """The times of the latest steps (about 16,000 for each rank), in windows or outside.

        One row per rank and step, sorted by rank, then step, with the columns of
        `ppprof.rundir.step_times.STEP_TIMES`. No rows for traces that ppprof did not record.

        Raises:
            InputError: a file of step times cannot be read.
        """
        from ppprof.rundir.step_times import STEP_TIMES, read_step_times

        directories = self.paths if rundir.has_manifest(self.path) else ()
        tables = [read_step_times(path) for path in directories]
        return pl.concat([pl.DataFrame(schema=STEP_TIMES), *tables]).sort("rank", "step")

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
        return self.reader.map_windows(work, windows, executor)


def _places(run: BaseRun) -> pl.DataFrame:
    from ppprof.analysis.ranks.step_table import COORDINATES

    entries = run.manifest.get("ranks")
    entries = entries if isinstance(entries, list) else []
    hosts = {
        entry["rank"]: entry.get("host")
        for entry in entries
        if isinstance(entry, Mapping) and isinstance(entry.get("rank"), int)
    }
    labels = {recording.rank: recording.coordinate for recording in run.recordings}
    rows = []
    for rank in run.ranks:
        if run.topology is not None and rank < run.topology.world_size:
            coordinate = run.topology.coordinate(rank)
        else:
            parts = _COORDINATE.findall(labels[rank] or "")
            coordinate = {axis: int(index) for axis, index in parts}
        coordinate = {axis: index for axis, index in coordinate.items() if axis in AXES}
        host = hosts.get(rank)
        rows.append({"rank": rank, "host": None if host is None else str(host), **coordinate})
    return pl.DataFrame(rows, COORDINATES)


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
