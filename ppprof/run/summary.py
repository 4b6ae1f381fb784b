"""Tables of one window, and of one window across ranks: the library behind ``ppprof summary``."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.across_ranks import (
    by_name,
    by_rank,
    comparable,
    rank_view,
)
from ppprof.analysis.summaries.views import schema_of, summarize
from ppprof.choices import ALL_VIEWS, VIEWS, StepRange, SummaryOptions, check_across
from ppprof.errors import InputError, PpprofError, UsageError
from ppprof.run.base import BaseRun
from ppprof.rundir.recordings import Recording
from ppprof.rundir.summaries import not_a_document, read_document
from ppprof.units import format_ranges, format_unusable

_log = logging.getLogger("ppprof")


@dataclass(frozen=True)
class WindowTables:
    """Some tables of one rank's window, and the file and steps that they describe."""

    recording: Recording
    """The rank and the window."""
    source: Path
    """The file that was read."""
    steps: Sequence[int]
    """Numbers of the steps, ascending."""
    sorted_by: str
    """The sort key of the tables, such as ``gpu_total``; never ``auto``."""
    skipped: Mapping[str, int]
    """Kind -> number of parts of the file that were skipped because they are unreadable."""
    tables: Mapping[str, pl.DataFrame]
    """The tables, keyed by view, in the order of `ALL_VIEWS`."""

    def identity(self) -> dict[str, Any]:
        """Return the values that identify the tables in `ppprof.rundir.summaries.document`."""
        return {
            "file": str(self.source),
            "rank": self.recording.rank,
            "coordinate": self.recording.coordinate,
            "window": self.recording.window,
            "steps": list(self.steps),
            "sorted_by": self.sorted_by,
            "lost": dict(self.skipped),
        }


@dataclass(frozen=True)
class AcrossRanks:
    """Some tables of one window, each with several ranks in it, and the tables of each rank."""

    by: str
    """``rank`` for a row per name and rank, ``name`` for a row per name."""
    window: int
    """The number of the window."""
    sorted_by: str
    """The sort key of the tables, such as ``gpu_total``; never ``auto``."""
    ranks: Sequence[WindowTables]
    """The tables of each rank, ascending by rank, reduced to the rows and columns that
    `ppprof.analysis.summaries.across_ranks.comparable` returns."""
    left_out: Sequence[int]
    """Ranks that were selected, or configured to record, but are missing or unreadable."""
    tables: Mapping[str, pl.DataFrame]
    """The tables across ranks, keyed by view, in the order of
    `ppprof.choices.VIEWS`."""

    @property
    def steps(self) -> list[int]:
        """Numbers of the steps that at least one rank recorded, ascending."""
        return sorted({step for tables in self.ranks for step in tables.steps})

    def identity(self) -> dict[str, Any]:
        """Return the values that identify the tables in `ppprof.rundir.summaries.document`.

        The keys are by, window, sorted_by, ranks (for each rank an object with rank, coordinate,
        file, steps and lost) and left_out.
        """
        return {
            "by": self.by,
            "window": self.window,
            "sorted_by": self.sorted_by,
            "ranks": [
                {
                    "rank": tables.recording.rank,
                    "coordinate": tables.recording.coordinate,
                    "file": str(tables.source),
                    "steps": list(tables.steps),
                    "lost": dict(tables.skipped),
                }
                for tables in self.ranks
            ],
            "left_out": list(self.left_out),
        }


def across_ranks(
    run: BaseRun,
    views: Iterable[str],
    by: str,
    window: int | None,
    ranks: Collection[int] | None,
    steps: StepRange | None,
    options: SummaryOptions,
) -> AcrossRanks:
    """Return several tables of one window, each with several ranks; reads one rank at a time.

    Unreadable ranks, and ranks that were configured to record but did not, are logged and left
    out. If the ranks recorded different steps, a warning lists them.

    Args:
        run: the run.
        views: some of `ppprof.analysis.summaries.across_ranks.ACROSS`.
        by: ``rank`` (a row for each name and rank) or ``name`` (a row for each name: minimum,
            median, maximum and spread over the ranks).
        window: the number of the window; None if there is only one.
        ranks: only these ranks; None: every rank.
        steps: only these steps; None: all steps.
        options: only ``sorted_by`` is used. If it is ``auto``, it is gpu_total if any rank has
            device events, else cpu_total. With ``by="name"``, it is also the value that is
            compared.

    Returns:
        Tables with the columns that `ppprof.analysis.summaries.across_ranks.by_rank` or ``by_name``
        of the same module documents.

    Raises:
        UsageError: no such view, rank, window, steps or sort key; the message names the existing
            ones.
        InputError: no rank can be read.
    """
    chosen = list(views)
    check_across(chosen, by)
    number, recordings = _recordings_of_window(run, ranks, window)
    tables_of_ranks, unreadable = _comparable_tables(run, recordings, chosen, steps)
    missing = set(run.expected_ranks if ranks is None else ranks)
    missing -= {recording.rank for recording in recordings}
    if missing:
        _log.warning(
            "%s: window %d: no %s; left out", run.path, number, format_ranges("rank", missing)
        )
    _warn_of_unequal_steps(run, tables_of_ranks)
    sorted_by = options.sorted_by
    if sorted_by == "auto":
        is_on_device = any(tables.sorted_by.startswith("gpu") for tables in tables_of_ranks)
        sorted_by = "gpu_total" if is_on_device else "cpu_total"
    coordinates = {tables.recording.rank: tables.recording.coordinate for tables in tables_of_ranks}
    join = by_rank if by == "rank" else by_name
    joined = {
        view: join(
            view,
            {tables.recording.rank: tables.tables[view] for tables in tables_of_ranks},
            coordinates,
            sorted_by,
        )
        for view in VIEWS
        if view in chosen
    }
    left_out = sorted(missing | set(unreadable))
    return AcrossRanks(by, number, sorted_by, tables_of_ranks, left_out, joined)


def _recordings_of_window(
    run: BaseRun, ranks: Collection[int] | None, window: int | None
) -> tuple[int, list[Recording]]:
    """Return the number of the window, and its recordings of the ranks (None: all), sorted by rank."""
    chosen = [None] if ranks is None else sorted(ranks)
    recordings = [recording for rank in chosen for recording in run.select(rank)]
    windows = sorted({recording.window for recording in recordings})
    if window is None and len(windows) > 1:
        raise UsageError(f"{run.path}: it has {format_ranges('window', windows)}: choose one")
    number = windows[0] if window is None else window
    if number not in windows:
        run.select(chosen[0], number)  # raises an error that names the windows
    return number, [recording for recording in recordings if recording.window == number]


def _comparable_tables(
    run: BaseRun, recordings: Sequence[Recording], views: list[str], steps: StepRange | None
) -> tuple[list[WindowTables], dict[int, PpprofError]]:
    """Return each rank's tables, and the errors of unreadable ranks, keyed by rank.

    The tables are reduced to the rows and columns that `comparable` returns.

    Raises:
        PpprofError: no rank can be read; its type is that of the error with the highest exit code.
    """
    tables_of_ranks: list[WindowTables] = []
    errors: dict[int, PpprofError] = {}
    for recording in recordings:
        try:
            tables = window_tables(run, recording, views, steps, SummaryOptions(), rank_view)
        except PpprofError as error:
            errors[recording.rank] = error
            continue
        parts = {view: comparable(view, table) for view, table in tables.tables.items()}
        tables_of_ranks.append(dataclasses.replace(tables, tables=parts))
    if not tables_of_ranks:
        worst = max(errors.values(), key=lambda error: error.exit_code)
        raise type(worst)("\n".join(map(str, errors.values())))
    for message in errors.values():
        _log.warning("%s", message)
    return tables_of_ranks, errors


def _warn_of_unequal_steps(run: BaseRun, tables_of_ranks: Sequence[WindowTables]) -> None:
    """Log a warning if the tables of the ranks cover different steps."""
    ranks_by_steps: dict[tuple[int, ...], list[int]] = {}
    for tables in tables_of_ranks:
        ranks_by_steps.setdefault(tuple(tables.steps), []).append(tables.recording.rank)
    if len(ranks_by_steps) > 1:
        differences = "; ".join(
            f"{format_ranges('rank', ranks)}: {format_ranges('step', steps)}"
            for steps, ranks in ranks_by_steps.items()
        )
        _log.warning(
            "%s: window %d: totals cover different steps: %s; choose steps that all ranks have",
            run.path,
            tables_of_ranks[0].recording.window,
            differences,
        )


def window_tables(
    run: BaseRun,
    recording: Recording,
    views: Iterable[str],
    steps: StepRange | None,
    options: SummaryOptions,
    summarize_view: Callable[[Profile, str], pl.DataFrame] = summarize,
) -> WindowTables:
    """Return several tables of one rank's window, from its trace or as the capture saved them.

    Args:
        run: the run.
        recording: the rank and the window.
        views: the tables, as in `ppprof.run.run.Run.summary`.
        steps: only these steps; None: all.
        options: the options of the tables.
        summarize_view: makes one table from a profile and the name of a view.

    Raises:
        UsageError: no such view or steps; the message names the existing ones.
        InputError: nothing can be read, or the saved tables have other steps or options.
    """
    chosen = list(views)
    unknown = [view for view in chosen if view not in ALL_VIEWS]
    if unknown:
        raise UsageError(f"view {unknown[0]!r}: expected one of {', '.join(ALL_VIEWS)}")
    try:
        source, trace = run.reader.trace(recording)
    except InputError as error:
        if recording.saved is None:
            raise
        if recording.files:
            _log.warning("%s", error)
        tables = saved_tables(recording, recording.saved, chosen, steps, options)
        run.reader.problems.report(tables.source, tables.skipped)
        return tables
    if not any(table.height for table in (trace.events, trace.memory, trace.frames)):
        raise InputError(format_unusable(source, trace.skipped))
    profile = run.reader.profile(recording, steps, options)
    if steps is not None and not profile.steps:
        recorded = trace.events["step"].drop_nulls().unique().to_list()
        message = f"no step of {steps}; it has "
        message += format_ranges("step", {*recorded}.difference(trace.lost_steps))
        if trace.lost_steps:
            lost = format_ranges("step", trace.lost_steps)
            message += f"; left out since device events are missing: {lost}"
        raise UsageError(f"{source}: {message}")
    return tables_of_profile(profile, recording, source, chosen, summarize_view)


def tables_of_profile(
    profile: Profile,
    recording: Recording,
    source: Path,
    views: Collection[str],
    summarize_view: Callable[[Profile, str], pl.DataFrame] = summarize,
) -> WindowTables:
    """Return the tables of a profile, in the order of `ppprof.choices.ALL_VIEWS`.

    Args:
        profile: the profile of a window.
        recording: the rank and the window.
        source: the file that the profile was read from.
        views: the tables.
        summarize_view: makes one table from a profile and the name of a view.
    """
    return WindowTables(
        recording,
        source,
        profile.steps,
        profile.sorted_by,
        profile.whole.skipped,
        {view: summarize_view(profile, view) for view in ALL_VIEWS if view in views},
    )


def read_tables(path: Path) -> tuple[dict[str, Any], dict[str, pl.DataFrame]]:
    """Return the identity and the nine tables in a file that a capture saved.

    The identity is that of `WindowTables.identity`, without its file. The tables have the dtypes of `summarize`.

    Raises:
        InputError: the file is missing or unreadable, has no such tables, or has a newer schema.
    """
    identity, rows = read_document(path)
    try:
        thread_sep = any("thread" in row for row in rows["udf"])
        tables = {
            view: pl.DataFrame(rows[view], schema_of(view, thread_sep=thread_sep), orient="row")
            for view in VIEWS
        }
    except (LookupError, ValueError, TypeError, AttributeError, pl.exceptions.PolarsError) as error:
        raise not_a_document(path, error) from error
    return identity, tables


def saved_tables(
    recording: Recording,
    path: Path,
    views: Collection[str],
    steps: StepRange | None,
    options: SummaryOptions,
) -> WindowTables:
    """Return tables that a capture saved.

    Args:
        recording: the rank and the window.
        path: the file with the tables.
        views: the tables to return.
        steps: must be None, because the saved tables hold all steps.
        options: must agree with the saved tables; the sort key may be ``auto``.

    Raises:
        InputError: the file is unreadable, its tables have other steps or options, or a view is not
            among them.
    """
    if not set(views) <= set(VIEWS):
        missing = ", ".join(view for view in views if view not in VIEWS)
        raise InputError(f"{path}: only tables are left of this window, no trace: no {missing}")
    identity, tables = read_tables(path)
    sorted_by = str(identity.get("sorted_by"))
    threads = [tables[view]["thread"] for view in ("op", "udf") if "thread" in tables[view].columns]
    thread_sep = any(thread.count() for thread in threads)
    if (
        steps is not None
        or options.sorted_by not in ("auto", sorted_by)
        or (options.thread_sep != thread_sep and any(len(thread) for thread in threads))
    ):
        raise InputError(
            f"{path}: only tables are left of this window, no trace; they cannot be made again: "
            f"they hold all steps, sorted by {sorted_by}, "
            f"{'by thread' if thread_sep else 'threads merged'}"
        )
    return WindowTables(
        dataclasses.replace(recording, coordinate=identity.get("coordinate")),
        path,
        identity.get("steps") or [],
        sorted_by,
        identity.get("lost") or {},
        {view: table for view, table in tables.items() if view in views},
    )
