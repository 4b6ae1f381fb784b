"""Tables of one window, and of one window across ranks: the library behind ``ppprof summary``."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ppprof.analysis.profile.profile import Profile, SummaryOptions
from ppprof.analysis.profile.steps import StepRange
from ppprof.analysis.summaries.across_ranks import (
    by_name,
    by_rank,
    check_across,
    comparable,
    rank_view,
)
from ppprof.analysis.summaries.views import VIEWS, schema_of, summarize
from ppprof.errors import InputError, PpprofError, UsageError
from ppprof.run.selection import select_one
from ppprof.rundir.recordings import Recording
from ppprof.rundir.summaries import not_a_document, read_document
from ppprof.units import format_ranges

if TYPE_CHECKING:
    from ppprof.run.run import Run

_log = logging.getLogger("ppprof")


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
    skipped: Mapping[str, int]
    """How much of the file was skipped: kind -> count."""
    tables: Mapping[str, pl.DataFrame]
    """By view, in the order of `ppprof.analysis.summaries.views.VIEWS`."""

    def identity(self) -> dict[str, Any]:
        """Return what identifies the window, for `ppprof.rundir.summaries.document`."""
        return {
            "rank": self.recording.rank,
            "coordinate": self.recording.coordinate,
            "window": self.recording.window,
            "steps": list(self.steps),
            "sorted_by": self.sorted_by,
            "lost": dict(self.skipped),
        }


@dataclass(frozen=True)
class AcrossRanks:
    """Some tables of one window across ranks, and what they were made from."""

    by: str
    """One of `ppprof.analysis.summaries.across_ranks.WAYS`."""
    window: int
    sorted_by: str
    """The sort key in force."""
    ranks: Sequence[WindowTables]
    """One for each rank, ascending; the comparable part of each table."""
    left_out: Sequence[int]
    """Ranks that should be there and are missing, or cannot be read."""
    tables: Mapping[str, pl.DataFrame]
    """By view, in the order of `ppprof.analysis.summaries.views.VIEWS`."""

    @property
    def steps(self) -> list[int]:
        """Numbers of the steps of any of the ranks, ascending."""
        return sorted({step for tables in self.ranks for step in tables.steps})

    def identity(self) -> dict[str, Any]:
        """Return what identifies the ranks, for `ppprof.rundir.summaries.document`."""
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


def window_tables(
    run: Run,
    views: Iterable[str],
    rank: int | None,
    window: int | None,
    steps: StepRange | None,
    options: SummaryOptions,
) -> WindowTables:
    """Return several tables of one window; see `ppprof.run.run.Run.summary`."""
    chosen = list(views)
    unknown = [view for view in chosen if view not in VIEWS]
    if unknown:
        raise UsageError(f"view {unknown[0]!r}: expected one of {', '.join(VIEWS)}")
    return _tables(run, select_one(run, rank, window), chosen, steps, options)


def across_ranks(
    run: Run,
    views: Iterable[str],
    by: str,
    window: int | None,
    ranks: Collection[int] | None,
    steps: StepRange | None,
    options: SummaryOptions,
) -> AcrossRanks:
    """Return views of several ranks, each as one table; memory holds one rank at a time.

    Ranks that should have recorded and did not, and ranks that cannot be read, are logged and left
    out. A warning says where ranks have different steps.

    Args:
        run: the run.
        views: some of `ppprof.analysis.summaries.across_ranks.ACROSS`.
        by: ``rank`` (a row for each name and rank) or ``name`` (a row for each name: minimum,
            median, maximum and spread over the ranks).
        window: which window; can be None where there is only one.
        ranks: only these; None: every rank.
        steps: only these; None: all.
        options: of ``sorted_by``, auto is gpu_total where any rank has device events, else cpu_total.
            With ``name`` it is also the number that is compared.

    Returns:
        Columns as `ppprof.analysis.summaries.across_ranks.by_rank` and `by_name` document them.

    Raises:
        UsageError: no such view, rank, window, steps or sort key; names those that exist.
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
    run: Run, ranks: Collection[int] | None, window: int | None
) -> tuple[int, list[Recording]]:
    """Return the number of the window, and its recordings by rank."""
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
    run: Run, recordings: Sequence[Recording], views: list[str], steps: StepRange | None
) -> tuple[list[WindowTables], dict[int, PpprofError]]:
    """Return the comparable part of each rank's tables, and the errors of unreadable ranks."""
    tables_of_ranks: list[WindowTables] = []
    errors: dict[int, PpprofError] = {}
    for recording in recordings:
        try:
            tables = _tables(run, recording, views, steps, SummaryOptions(), rank_view)
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


def _warn_of_unequal_steps(run: Run, tables_of_ranks: Sequence[WindowTables]) -> None:
    """Log a warning where totals of ranks cover different steps."""
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


def _tables(
    run: Run,
    recording: Recording,
    views: list[str],
    steps: StepRange | None,
    options: SummaryOptions,
    summarize_view: Callable[[Profile, str], pl.DataFrame] = summarize,
) -> WindowTables:
    """Return one window's tables, made from its trace, or as the capture saved them."""
    try:
        source, trace = run.reader.trace(recording)
    except InputError as error:
        if recording.saved is None:
            raise
        if recording.files:
            _log.warning("%s", error)
        tables = saved_tables(recording, recording.saved, views, steps, options)
        run.reader.report_skipped(tables.source, tables.skipped)
        return tables
    profile = run.reader.profile(recording, steps, options)
    if steps is not None and not profile.steps:
        existing = format_ranges("step", trace.events["step"].drop_nulls().unique().to_list())
        raise UsageError(f"{source}: no step of {steps}; it has {existing}")
    return tables_of_profile(profile, recording, source, views, summarize_view)


def tables_of_profile(
    profile: Profile,
    recording: Recording,
    source: Path,
    views: Collection[str],
    summarize_view: Callable[[Profile, str], pl.DataFrame] = summarize,
) -> WindowTables:
    """Return tables made from a profile, in the order of the views."""
    return WindowTables(
        recording,
        source,
        profile.steps,
        profile.sorted_by,
        profile.whole.skipped,
        {view: summarize_view(profile, view) for view in VIEWS if view in views},
    )


def read_tables(path: Path) -> tuple[dict[str, Any], dict[str, pl.DataFrame]]:
    """Return the identity and the nine tables in a file, with the dtypes that they had.

    Raises:
        InputError: missing, not such a file, or of a newer schema.
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

    Raises:
        InputError: not readable, or not the tables that were asked for.
    """
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
