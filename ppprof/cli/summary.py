"""``ppprof summary``: the nine tables of runs and of trace files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from ppprof.analysis.profile.profile import SummaryOptions
from ppprof.analysis.summaries.views import ALL_VIEWS
from ppprof.choices.views import ACROSS
from ppprof.cli.output import show
from ppprof.cli.parsers.summary import TABLE_OPTIONS, Request
from ppprof.cli.runs import open_located
from ppprof.cli.terminal import log
from ppprof.errors import InputError, PpprofError
from ppprof.report.markdown import markdown
from ppprof.report.text.across_ranks import render_across
from ppprof.report.text.summary import (
    TableOptions,
    render_tables,
    title,
    window_title,
)
from ppprof.report.text.summary_notes import explain_empty
from ppprof.run.run import Run
from ppprof.run.summary import AcrossRanks, WindowTables
from ppprof.rundir.recordings import Recording, resolve_each
from ppprof.rundir.summaries import document, dumps
from ppprof.units import format_ranges

DEFAULT_VIEWS = ("overview", "model", "op", "kernel")
"""Views of a trace without a config: those that the ``Profiler`` block enables by default."""

_VIEWS_CHANGED_BY = {
    "sorted_by": {"op", "kernel", "udf", "shape"},
    "thread_sep": {"op", "udf"},
    "op_detail": {"op"},
    "row_limit": {"op", "kernel", "memcpy", "udf", "mem", "shape", "layer", "efficiency"},
    "time_unit": set(ALL_VIEWS) - {"device", "mem"},
}
"""The views that an option changes, keyed by its name, which is also its ``Profiler`` key."""


def run(args: argparse.Namespace) -> int:
    """Print the tables; return 0 if any window was shown, else the highest exit code of errors."""
    request: Request = args.request
    failures: list[int] = []
    windows = _windows(args, request, failures)
    is_shown = show(args, _FORMATS[args.format](windows))
    return 0 if is_shown else max(failures)


@dataclass(frozen=True)
class _Window:
    """The tables of one window, of one rank or of several ranks together, before rendering."""

    path: str
    """The paths that the user gave for the run, joined by commas."""
    heading: str
    """The title of the tables, with rank and window."""
    tables: WindowTables | AcrossRanks
    """The tables of one rank, or the tables that several ranks share."""
    options: TableOptions
    """How `text` renders the tables."""

    def text(self) -> str:
        """Return the window's tables as text."""
        if isinstance(self.tables, WindowTables):
            return render_tables(self.tables.tables, self.options)
        coordinates = {
            tables.recording.rank: tables.recording.coordinate for tables in self.tables.ranks
        }
        return render_across(self.tables.tables, self.tables.by, coordinates, self.options)

    def columns(self) -> Mapping[str, object]:
        """Return the values of the columns that precede each row of CSV: path, rank and window.

        Without rank if several ranks share the table.
        """
        if isinstance(self.tables, WindowTables):
            recording = self.tables.recording
            return {"path": self.path, "rank": recording.rank, "window": recording.window}
        return {"path": self.path, "window": self.tables.window}


def _windows(args: argparse.Namespace, request: Request, failures: list[int]) -> Iterator[_Window]:
    """Yield the tables of each window, of one rank or across ranks.

    Unreadable runs and windows are logged and skipped; their exit codes are added to ``failures``.
    """
    locations = resolve_each(args.paths)
    for paths, location in locations:
        path = ", ".join(paths)
        try:
            if isinstance(location, InputError):
                raise location
            run = open_located(args, location)
            recordings = _recordings(request, run)
            block = run.profiler
        except PpprofError as error:
            log.error("%s", error)
            failures.append(error.exit_code)
            continue
        views = request.views or (block.views() if block else DEFAULT_VIEWS)
        _warn_of_no_effect(request, views)
        settings = {name: getattr(block, name) for name in _VIEWS_CHANGED_BY} if block else {}
        settings.update(request.settings)
        options = TableOptions(
            **{name: settings.pop(name) for name in TABLE_OPTIONS if name in settings},
            layout=args.layout,
        )
        chosen = SummaryOptions(**settings)
        for tables in _tables(request, run, recordings, views, chosen, failures):
            heading = _heading(tables)
            several = len(locations) > 1
            yield _Window(path, f"{path}: {heading}" if several else heading, tables, options)


def _tables(
    request: Request,
    run: Run,
    recordings: Sequence[Recording],
    views: Sequence[str],
    options: SummaryOptions,
    failures: list[int],
) -> Iterator[WindowTables | AcrossRanks]:
    """Yield the tables of each recording or, with ``--by``, of each window across ranks.

    Unreadable windows are logged and skipped; their exit codes are added to ``failures``.
    """
    tasks: list[Callable[[], WindowTables | AcrossRanks]]
    if request.by:
        ranks = None  # all, and a warning of those that have no trace
        if request.ranks not in (None, "all"):
            ranks = sorted({recording.rank for recording in recordings})
        tasks = [
            partial(
                run.across,
                views,
                request.by,
                window,
                ranks=ranks,
                steps=request.steps,
                options=options,
            )
            for window in sorted({recording.window for recording in recordings})
        ]
    else:
        tasks = [
            partial(
                run.tables,
                views,
                recording.rank,
                recording.window,
                steps=request.steps,
                options=options,
            )
            for recording in recordings
        ]
    for task in tasks:
        try:
            tables = task()
        except PpprofError as error:
            log.error("%s", error)
            failures.append(error.exit_code)
            continue
        if isinstance(tables, AcrossRanks) and tables.by == "name" and len(tables.ranks) == 1:
            rank = tables.ranks[0].recording.rank
            log.warning(
                "%s: window %d: only rank %d: no other rank to compare with",
                run.path,
                tables.window,
                rank,
            )
        yield tables


def _heading(tables: WindowTables | AcrossRanks) -> str:
    if isinstance(tables, WindowTables):
        recording = tables.recording
        return title(recording.rank, recording.what, recording.window, tables.steps)
    ranks = format_ranges("rank", (part.recording.rank for part in tables.ranks))
    return f"{ranks}, {window_title(tables.window, tables.steps)}"


def _recordings(request: Request, run: Run) -> Sequence[Recording]:
    """Return the windows of the selected ranks.

    Without ``--rank``, these are all ranks with ``--by``, else the ranks that the run's config
    prints.
    """
    if request.by and request.ranks is None:
        return run.select(window=request.window)
    return run.select_ranks(request.ranks, request.window)


def _warn_of_no_effect(request: Request, views: Sequence[str]) -> None:
    for name in request.settings:
        changes = _VIEWS_CHANGED_BY[name]
        if request.by:
            changes = changes & set(ACROSS)
        if request.by == "name" and name == "sorted_by":
            changes = set(ACROSS) - {"dist"}  # the number that is compared
        if not changes.intersection(views):
            log.warning(
                "--%s: has no effect on %s; it changes %s",
                name.replace("_", "-"),
                ", ".join(views),
                ", ".join(view for view in ALL_VIEWS if view in changes),
            )


def _text(windows: Iterable[_Window]) -> Iterator[str]:
    for window in windows:
        heading = window.options.layout.paint(window.heading, "title")
        yield f"{heading}\n\n{window.text()}{explain_empty(window.tables.tables)}"


def _markdown(windows: Iterable[_Window]) -> Iterator[str]:
    for window in windows:
        parts = [
            f"### {view}\n\n{markdown(table)}\n\n"
            for view, table in window.tables.tables.items()
            if not table.is_empty()
        ]
        yield f"## {window.heading}\n\n{''.join(parts)}{explain_empty(window.tables.tables)}"


def _json(windows: Iterable[_Window]) -> Iterator[str]:
    documents = []
    for window in windows:
        tables, identity = window.tables, window.tables.identity()
        if isinstance(tables, WindowTables):
            identity = {"file": str(tables.source), **identity}
        documents.append(document(tables.tables, **identity))
    if documents:
        yield f"{dumps(documents)}\n"


def _csv(windows: Iterable[_Window]) -> Iterator[str]:
    for number, window in enumerate(windows):
        (table,) = window.tables.tables.values()
        columns = (pl.lit(value).alias(name) for name, value in window.columns().items())
        yield table.select(*columns, pl.all()).write_csv(include_header=number == 0)


_FORMATS: Mapping[str, Callable[[Iterable[_Window]], Iterator[str]]] = {
    "table": _text,
    "json": _json,
    "csv": _csv,
    "md": _markdown,
}
