"""`open` and `Run`: tables of a run directory, or of a trace of any kind.

Memory holds one window's events at a time. The larger methods of `Run` are in separate modules:
`ppprof.run.summary`, `ranks`, `merge`. Methods that tables of one trace do not need, such as those
that compare ranks, import the modules for it: all of them together take as long as reading a short
trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from ppprof.choices import ReadOptions, StepRange, SummaryOptions, check_pattern
from ppprof.errors import UsageError
from ppprof.run.base import BaseRun
from ppprof.run.summary import AcrossRanks, WindowTables, across_ranks, window_tables
from ppprof.run.traces import FileProgress
from ppprof.rundir.recordings import resolve
from ppprof.topology import RankSelector
from ppprof.trace.communication_names import communication_patterns
from ppprof.trace.formats import warn_of_cache

if TYPE_CHECKING:
    from ppprof.analysis.path.graph import Graph
    from ppprof.analysis.ranks.cluster import Cluster
    from ppprof.run.merge import Merged
    from ppprof.rundir.clocks import Clocks


def open(
    path: str | Path,
    *more: str | Path,
    cache: bool | None = None,
    progress: FileProgress | None = None,
    step_mark: str | None = None,
    names: str | Path | None = None,
) -> Run:
    """Open a run directory or a trace file.

        run = ppprof.open("profiler_log")
        run.ranks                                    # [0, 1]
        run.summary("model", rank=0)                 # a polars DataFrame
        run.events(rank=0).filter(category="Kernel")
        ppprof.open("node0/profiler_log", "node1/profiler_log").ranks  # nodes without a common disk

    If some files of the run are unreadable, the other files are used, and the logger ``ppprof``
    gets a warning for each unreadable file.

    Args:
        path: a log directory such as ``profiler_log`` (its newest run is opened), a run directory,
            a directory of traces that ``paddle.profiler`` or ``torch.profiler`` named, or one
            trace file of any format. A directory without any of these may contain the log
            directories of a job's nodes, one or two levels down.
        more: the run directories that other nodes wrote for the same run.
        cache: has no effect; 0.4 will reject it.
        progress: called while this process reads a long file: with its path, the number of bytes
            read so far, and its size in bytes. None: no calls.
        step_mark: a regular expression for the names of the spans that begin steps; None: the
            recorded steps or, without any, the marks of the data loader or the optimizer.
        names: a YAML file whose key ``communication`` names kernels that communicate, besides
            those of ``ppprof/trace/communication_names.yaml``; None: only these.

    Returns:
        A `Run`. Only file names and the manifest have been read so far. A run without a recorded
        window, such as with ``timer_only``, has step times only; methods that need a window raise
        InputError.

    Raises:
        InputError: a path does not exist, there is neither a run nor a trace, or the paths belong
            to several runs.
    """
    warn_of_cache(cache)
    reading = ReadOptions(
        None if step_mark is None else check_pattern(step_mark),
        () if names is None else communication_patterns(names),
    )
    return Run(resolve(path, *more), progress, reading)


def opened(run: Run | str | Path) -> Run:
    """Return a run; a path is opened as `open` does."""
    return run if isinstance(run, Run) else open(run)


class Run(BaseRun):
    """The run that `open` returns. Its methods mirror the commands.

    Arguments that have the same meaning in all methods:

    - ``rank``, ``window``: numbers; None: the only one, or all if the result can hold several.
    - ``ranks``: ``"all"``, ``3``, ``"0,8-15"`` or, if the run has a manifest, coordinates such as
      ``{"pp": 0}``.
    - ``steps``: only steps A to B-1, as ``"A:B"``, ``"A:"``, ``":B"`` or one number; None: all.
    - ``executor``: any of ``concurrent.futures``, which reads several windows at once; None: this
      process reads one after the other.

    UsageError is raised for a rank, window or step that the run does not have; the message names the
    existing ones. InputError is raised if the run has no window, or none that is readable; an
    unreadable window beside readable ones is logged and left out.
    """

    def summary(  # noqa: D417 (the class describes shared arguments)
        self,
        view: str,
        rank: int | None = None,
        window: int | None = None,
        *,
        steps: StepRange | str | int | None = None,
        sorted_by: str = "auto",
        thread_sep: bool = False,
        by: str | None = None,
    ) -> pl.DataFrame:
        """Return a table of one window, of one rank or across ranks.

        Args:
            view: one of `ppprof.choices.ALL_VIEWS`, such as op.
            rank, window, steps: see `Run`.
            sorted_by: the sort key, such as ``gpu_avg``: ``cpu_`` or ``gpu_``, and total, avg, max
                or min. ``auto`` is gpu_total if the trace has device events, else cpu_total.
            thread_sep: whether operators and spans of each thread have rows of their own, instead
                of one row for all threads; not together with ``by``.
            by: None: a table of one rank. ``rank`` or ``name``: of all ranks; see `across`.

        Returns:
            Columns as the function of that name in `ppprof.analysis.summaries` documents them;
            times in nanoseconds, ratios from 0 to 1. No rows if the trace has no such events.

        Raises:
            UsageError: no such view or sort key; the message names the existing ones.
        """
        if by is not None:
            if thread_sep:
                raise UsageError(f"thread_sep: threads are merged by {by}")
            ranks, options = None if rank is None else [rank], SummaryOptions(sorted_by)
            across = self.across([view], by, window, ranks=ranks, steps=steps, options=options)
            return across.tables[view]
        options = SummaryOptions(sorted_by, thread_sep)
        return self.tables([view], rank, window, steps=steps, options=options).tables[view]

    def tables(
        self,
        views: Iterable[str],
        rank: int | None = None,
        window: int | None = None,
        *,
        steps: StepRange | str | int | None = None,
        options: SummaryOptions | None = None,
    ) -> WindowTables:
        """Return several tables of one rank's window; ``views`` are ``view`` of `summary`."""
        recording = self.select_one(rank, window)
        return window_tables(
            self, recording, views, StepRange.of(steps), options or SummaryOptions()
        )

    def across(  # noqa: D417 (the class describes shared arguments)
        self,
        views: Iterable[str],
        by: str,
        window: int | None = None,
        *,
        ranks: Collection[int] | None = None,
        steps: StepRange | str | int | None = None,
        options: SummaryOptions | None = None,
    ) -> AcrossRanks:
        """Return several tables of one window, each with all ranks in it.

            run.across(["op"], "name").tables["op"]     # the largest difference between ranks first

        Args:
            views: some of model, dist, op, kernel, memcpy and udf.
            by: ``rank``: a row for each name and rank. ``name``: a row for each name, with minimum,
                median, maximum and spread over ranks.
            ranks: the ranks; None: all ranks.
            window, steps: see `Run`.
            options: the sort key; threads are always merged.
        """
        options = options or SummaryOptions()
        return across_ranks(self, views, by, window, ranks, StepRange.of(steps), options)

    def breakdown(  # noqa: D417 (the class describes shared arguments)
        self,
        by: str | Sequence[str] = ("rank", "step"),
        ranks: RankSelector = "all",
        window: int | None = None,
        *,
        steps: StepRange | str | int | None = None,
        executor: Executor | None = None,
    ) -> pl.DataFrame:
        """Return how the time of steps divides into parts, such as computation and bubble.

        Args:
            by: the columns to group steps by: some of rank, step, host, dp, pp, sharding, sep and
                mp. By default, each step of each rank has a row of its own.
            ranks, window, steps, executor: see `Run`.

        Returns:
            By default, one row per rank and step, with times in int64 nanoseconds, as
            `ppprof.analysis.ranks.step_table.join_ranks` documents them. Otherwise, one row per
            group, with mean times in float64 nanoseconds, as
            `ppprof.analysis.ranks.step_table.group_steps` documents them.

        Raises:
            UsageError: no such group; the message names the existing ones.
            InputError: the windows have no step.
        """
        from ppprof.analysis.ranks.step_table import group_steps

        groups = [by] if isinstance(by, str) else list(by)
        rows = self.cluster(ranks, window, steps=steps, executor=executor).steps
        return rows if groups == ["rank", "step"] else group_steps(rows, groups)

    def cluster(
        self,
        ranks: RankSelector = "all",
        window: int | None = None,
        *,
        steps: StepRange | str | int | None = None,
        executor: Executor | None = None,
    ) -> Cluster:
        """Return all ranks together: steps, collectives on one clock, slow ranks and links."""
        from ppprof.analysis.ranks.cluster import analyze_rank
        from ppprof.run.ranks import cluster_of

        results = self.map_windows(analyze_rank, self.select_ranks(ranks, window), executor)
        return cluster_of(self, results, StepRange.of(steps))

    def graph(  # noqa: D417 (the class describes shared arguments)
        self,
        ranks: RankSelector = "all",
        window: int | None = None,
        *,
        steps: StepRange | str | int | None = None,
        executor: Executor | None = None,
    ) -> Graph:
        """Return the work of all ranks as one graph: the critical path of each step.

            run.graph().on_path(["rank", "module"])     # where the step's time is, longest first

        Args:
            ranks, window, steps, executor: see `Run`.
        """
        from ppprof.analysis.path.rank_graph import rank_graph
        from ppprof.run.path import graph_of

        results = self.map_windows(rank_graph, self.select_ranks(ranks, window), executor)
        return graph_of(self, results, StepRange.of(steps))

    def what_if(  # noqa: D417 (the class describes shared arguments)
        self,
        *changes: str,
        ranks: RankSelector = "all",
        window: int | None = None,
        steps: StepRange | str | int | None = None,
        executor: Executor | None = None,
    ) -> pl.DataFrame:
        """Return the step time with some work faster, slower or gone.

            run.what_if("matmul: 0.7x", "overlap dp")

        Args:
            changes: as for ``ppprof path --what-if``: see `ppprof.analysis.path.change_language`.
            ranks, window, steps, executor: see `Run`.

        Returns:
            Columns as `ppprof.analysis.path.change_replay.what_if` documents them.

        Raises:
            UsageError: a change is invalid, or names nothing in the run.
        """
        from ppprof.analysis.path.change_language import parse_change
        from ppprof.analysis.path.change_replay import what_if

        parsed = [parse_change(change) for change in changes]
        graph = self.graph(ranks, window, steps=steps, executor=executor)
        return what_if(graph, parsed, self.stages)

    def merge(  # noqa: D417 (the class describes shared arguments)
        self,
        path: str | Path,
        *,
        ranks: RankSelector = "all",
        window: int | None = None,
        steps: StepRange | str | int | None = None,
        min_dur_ns: int = 0,
        clocks: Clocks | None = None,
    ) -> Merged:
        """Write ranks into one timeline on one clock, for Perfetto and chrome://tracing.

        A rank is a process of the timeline, named and sorted by its coordinates; see
        `ppprof.trace.merge`.

        Args:
            path: the file to write; compressed with gzip if its name ends in ``.gz``.
            ranks, window, steps: see `Run`.
            min_dur_ns: the shortest event to write, in nanoseconds. Steps, communication and
                pipeline spans are written whatever their length.
            clocks: the clocks to convert times with, keyed by rank. None: the clocks that the
                capture measured; for other ranks, clocks estimated from the collectives, which
                reads the traces first. A rank without a clock keeps its machine's clock, and a
                warning is logged.

        Raises:
            OSError: the file cannot be written.
        """
        from ppprof.run.merge import merge_ranks

        return merge_ranks(self, path, ranks, window, StepRange.of(steps), min_dur_ns, clocks)
