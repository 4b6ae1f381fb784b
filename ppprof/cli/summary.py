"""``ppprof summary``: the nine tables of runs and of trace files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ppprof.choices.rows import SummaryOptions
from ppprof.choices.steps import StepRange
from ppprof.choices.views import ACROSS, ALL_VIEWS
from ppprof.cli.importing import importing
from ppprof.cli.output import show
from ppprof.cli.parsers.summary import TABLE_OPTIONS, Request
from ppprof.cli.runs import log_newest, open_located
from ppprof.cli.terminal import log
from ppprof.errors import InputError, PpprofError
from ppprof.report.markdown import markdown
from ppprof.report.text.across_ranks import render_across
from ppprof.report.text.summary import (
    Row,
    TableOptions,
    explain_empty,
    render_tables,
    title,
    window_title,
)
from ppprof.run.run_files import RunFiles
from ppprof.rundir.recordings import Recording, RunLocation, resolve_each
from ppprof.rundir.summaries import document, dumps, rows_of
from ppprof.units import format_ranges

if TYPE_CHECKING:
    from ppprof.run.run import Run

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


class _Window(NamedTuple):
    """The tables of one window, of one rank or of several ranks together, before rendering."""

    heading: str
    """The title of the tables, with rank and window."""
    rows: Mapping[str, Sequence[Row]]
    """View -> the rows of its table."""
    columns: Mapping[str, Sequence[str]]
    """View -> the names of its columns."""
    identity: Mapping[str, Any]
    """The other values of `ppprof.rundir.summaries.document`."""
    keys: Mapping[str, object]
    """The values of the columns that precede each row of CSV: path, window and, of a table of one
    rank, rank."""
    options: TableOptions
    """How `text` renders the tables."""

    def text(self) -> str:
        """Return the window's tables as text."""
        if "by" not in self.identity:
            return render_tables(self.rows, self.options)
        coordinates = {rank["rank"]: rank["coordinate"] for rank in self.identity["ranks"]}
        return render_across(self.rows, self.identity["by"], coordinates, self.options)


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
            run = RunFiles(location)
            log_newest(run, location)
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
        source = _Source(
            location,
            views,
            request.steps,
            SummaryOptions(**settings),
            options,
            f"{path}: " if len(locations) > 1 else "",
            path,
        )
        tasks: list[Callable[[], _Window]]
        if request.by:
            ranks = None  # all, and a warning of those that have no trace
            if request.ranks not in (None, "all"):
                ranks = sorted({recording.rank for recording in recordings})
            tasks = [
                partial(source.across, request.by, window, ranks)
                for window in sorted({recording.window for recording in recordings})
            ]
        else:
            tasks = [partial(source.of_one_rank, recording) for recording in recordings]
        for task in tasks:
            try:
                window = task()
            except PpprofError as error:
                log.error("%s", error)
                failures.append(error.exit_code)
                continue
            yield window


@dataclass(frozen=True)
class _Source:
    """The windows of one run."""

    location: RunLocation
    views: Sequence[str]
    steps: StepRange | None
    options: SummaryOptions
    table_options: TableOptions
    prefix: str
    """What precedes each heading."""
    path: str
    """The paths that the user gave for the run, joined by commas."""

    @cached_property
    def run(self) -> Run:
        """The run, opened when it is needed: it imports numpy and polars."""
        return open_located(self.location)

    def of_one_rank(self, recording: Recording) -> _Window:
        """Return the tables of one rank's window.

        Raises:
            PpprofError: they cannot be read.
        """
        with _scanned_ahead(recording):
            tables = self.run.tables(
                self.views, recording.rank, recording.window, steps=self.steps, options=self.options
            )
        return _Window(
            self.prefix
            + title(recording.rank, tables.recording.what, recording.window, tables.steps),
            rows_of(tables.tables),
            {view: table.columns for view, table in tables.tables.items()},
            {"file": str(tables.source), **tables.identity()},
            {"path": self.path, "rank": recording.rank, "window": recording.window},
            self.table_options,
        )

    def across(self, by: str, window: int, ranks: Sequence[int] | None) -> _Window:
        """Return the tables of one window across ranks.

        Raises:
            PpprofError: no rank can be read.
        """
        tables = self.run.across(
            self.views, by, window, ranks=ranks, steps=self.steps, options=self.options
        )
        if by == "name" and len(tables.ranks) == 1:
            log.warning(
                "%s: window %d: only rank %d: no other rank to compare with",
                self.run.path,
                window,
                tables.ranks[0].recording.rank,
            )
        several = format_ranges("rank", (part.recording.rank for part in tables.ranks))
        return _Window(
            f"{self.prefix}{several}, {window_title(window, tables.steps)}",
            rows_of(tables.tables),
            {view: table.columns for view, table in tables.tables.items()},
            tables.identity(),
            {"path": self.path, "window": window},
            self.table_options,
        )


def _scanned_ahead(recording: Recording) -> AbstractContextManager[None]:
    """Begin to read a file while `_Source.run` imports numpy and polars."""
    path = next(iter(recording.files), None)
    if path is None or path.suffix != ".json":
        return nullcontext()
    with importing():
        from ppprof.trace.fastpath.ahead import scanned_ahead  # only here: it imports numpy
        from ppprof.trace.json_head import new_scans

    return scanned_ahead(path, new_scans)


def _recordings(request: Request, run: RunFiles) -> Sequence[Recording]:
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
        yield f"{heading}\n\n{window.text()}{explain_empty(window.rows)}"


def _markdown(windows: Iterable[_Window]) -> Iterator[str]:
    for window in windows:
        parts = [
            f"### {view}\n\n{markdown(window.columns[view], rows)}\n\n"
            for view, rows in window.rows.items()
            if rows
        ]
        yield f"## {window.heading}\n\n{''.join(parts)}{explain_empty(window.rows)}"


def _json(windows: Iterable[_Window]) -> Iterator[str]:
    documents = [document(window.rows, **window.identity) for window in windows]
    if documents:
        yield f"{dumps(documents)}\n"


def _csv(windows: Iterable[_Window]) -> Iterator[str]:
    for number, window in enumerate(windows):
        ((view, rows),) = window.rows.items()
        lines: list[list[object]]
        lines = [] if number else [[*window.keys, *window.columns[view]]]
        lines += [[*window.keys.values(), *row.values()] for row in rows]
        yield "".join(f"{','.join(map(_csv_cell, line))}\n" for line in lines)


def _csv_cell(value: object) -> str:
    """Return a cell of CSV (RFC 4180): null is an empty cell, an empty text is quoted."""
    if value is None:
        return ""
    text = str(value)
    is_plain = text and not any(mark in text for mark in ',"\r\n')
    return text if is_plain else '"{}"'.format(text.replace('"', '""'))


_FORMATS: Mapping[str, Callable[[Iterable[_Window]], Iterator[str]]] = {
    "table": _text,
    "json": _json,
    "csv": _csv,
    "md": _markdown,
}
