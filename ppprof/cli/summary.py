"""``ppprof summary``: the nine tables of runs and of trace files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from ppprof.analysis.profile.profile import SummaryOptions
from ppprof.analysis.summaries.views import ALL_VIEWS, VIEWS
from ppprof.choices.steps import StepRange
from ppprof.choices.views import ACROSS, WAYS, check_across
from ppprof.cli import COMMANDS
from ppprof.cli.options import (
    Checks,
    add_format,
    add_output,
    add_reading,
    add_rows,
    add_selection,
    open_located,
    show,
)
from ppprof.cli.terminal import log
from ppprof.errors import InputError, PpprofError, UsageError
from ppprof.report.markdown import markdown
from ppprof.report.text.across_ranks import render_across
from ppprof.report.text.summary import (
    TableOptions,
    explain_empty,
    render_tables,
    title,
    window_title,
)
from ppprof.run.run import Run
from ppprof.run.summary import AcrossRanks, WindowTables
from ppprof.rundir.recordings import Recording, resolve_each
from ppprof.rundir.summaries import document, dumps
from ppprof.topology import RankSelector
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

_SHAPE = "shape"
"""The value of ``--by`` that is short for ``--views shape``."""

_OF_ONE_RANK = ("thread_sep", "op_detail")
"""Options without effect if several ranks share a table."""

_TABLE_OPTIONS = ("time_unit", "op_detail", "row_limit")
"""Options of ``--format table`` only: the other formats hold every row, in nanoseconds."""


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "summary",
        help=COMMANDS["summary"],
        description=(
            "Prints the tables of each PATH: a run directory (profiler_log; the newest run in it), "
            "a directory of traces, or a trace file. Directories that the nodes of one job wrote "
            "are one run: give each as a PATH, or a directory above all of them. Options that are "
            "not given here come from the run's own Profiler block."
        ),
    )
    add = parser.add_argument
    switch = argparse.BooleanOptionalAction
    add("paths", nargs="+", metavar="PATH", help="run directory or trace file")
    add("--views", metavar="V,...", help=f"all (Paddle's nine), or some of {','.join(ALL_VIEWS)}")
    add(
        "--by",
        choices=(*WAYS, _SHAPE),
        help="rank, name: all ranks in one table, a row for each operator and rank, with Node ID; or "
        "a row for each operator, with minimum, median, maximum and spread over the ranks. shape: a "
        "row for each operator and shapes of its inputs",
    )
    add_selection(parser, "the run's print_ranks")
    add(
        "--sorted-by",
        metavar="KEY",
        help="auto, or cpu_ or gpu_ and total, avg, max or min (GPUTotal works too)",
    )
    add("--thread-sep", action=switch, help="operators and spans by thread")
    add("--time-unit", metavar="UNIT", help="s, ms, us or ns")
    add("--op-detail", action=switch, help="below each operator its calls and launches")
    add_rows(parser, "operators, kernels, spans", "as the run's config has it")
    add_format(
        parser, "table: as Paddle prints them; json: a list of windows; csv: one view; md: Markdown"
    )
    add_output(parser)
    add_reading(parser, workers=False)
    parser.set_defaults(run_command=summary)


def summary(args: argparse.Namespace) -> int:
    """Print the tables; return 0 if any window was shown, else the highest exit code of errors."""
    request = _Request.of(args)
    failures: list[int] = []
    windows = _windows(args, request, failures)
    is_shown = show(args, _FORMATS[args.format](windows))
    return 0 if is_shown else max(failures)


@dataclass(frozen=True)
class _Request:
    """The parsed and checked options of the command."""

    views: Sequence[str] | None
    """The views to show; None for the views of the run's config."""
    ranks: RankSelector | None
    """The ranks to show; None for all ranks with ``by``, else for the ranks that the run's config
    prints."""
    by: str | None
    """One of `ppprof.analysis.summaries.across_ranks.WAYS`; None for a table for each rank."""
    window: int | None
    """The window to show; None for all windows."""
    steps: StepRange | None
    """The steps to show; None for all steps."""
    settings: Mapping[str, Any]
    """Values of the options in `_VIEWS_CHANGED_BY` that the user gave, keyed by option. The run's
    config has the others."""

    @classmethod
    def of(cls, args: argparse.Namespace) -> _Request:
        """Return the options that the parser of `register` has parsed, checked.

        Raises:
            UsageError: an option is invalid; the message has one line for each problem.
        """
        checks = Checks(args)
        by = None if args.by == _SHAPE else args.by
        views = checks.parsed("views", partial(_views, by=by), None)
        if args.by == _SHAPE:
            if args.views is not None:
                checks.problems.append("--by shape: is --views shape; give one of them")
            views = (_SHAPE,)
        ranks, window, steps = checks.ranks(None), checks.window(), checks.steps()
        settings = {
            "sorted_by": checks.parsed("sorted_by", _sort_key, None),
            "thread_sep": args.thread_sep,
            "time_unit": checks.parsed("time_unit", _time_unit, None),
            "op_detail": args.op_detail,
            "row_limit": checks.row_limit(None),
        }
        given = {name: value for name, value in settings.items() if getattr(args, name) is not None}
        if args.format != "table":
            checks.no_effect(
                _TABLE_OPTIONS, f"on {args.format}, which holds every row, in nanoseconds"
            )
        if by:
            views = views or ("op",)
            checks.no_effect(_OF_ONE_RANK, "with --by: each operator is one row of a rank")
        if args.format == "csv" and (views is None or len(views) != 1):
            checks.problems.append("--format csv: one table: name it with --views")
        checks.output(args.paths)
        checks.done()
        return cls(views, ranks, by, window, steps, given)


def _sort_key(text: str) -> str:
    return SummaryOptions(text).sorted_by


def _time_unit(text: str) -> str:
    return TableOptions(text).time_unit


def _views(text: str, by: str | None) -> tuple[str, ...]:
    if text == "all":
        return ACROSS if by else tuple(VIEWS)
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in ALL_VIEWS]
    if unknown:
        expected = f"all, or some of {', '.join(ALL_VIEWS)}"
        raise UsageError(f"{', '.join(map(repr, unknown))}: expected {expected}")
    if by:
        check_across(names, by)
    return tuple(view for view in ALL_VIEWS if view in names)


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


def _windows(args: argparse.Namespace, request: _Request, failures: list[int]) -> Iterator[_Window]:
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
            **{name: settings.pop(name) for name in _TABLE_OPTIONS if name in settings}
        )
        chosen = SummaryOptions(**settings)
        for tables in _tables(request, run, recordings, views, chosen, failures):
            heading = _heading(tables)
            several = len(locations) > 1
            yield _Window(path, f"{path}: {heading}" if several else heading, tables, options)


def _tables(
    request: _Request,
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


def _recordings(request: _Request, run: Run) -> Sequence[Recording]:
    """Return the windows of the selected ranks.

    Without ``--rank``, these are all ranks with ``--by``, else the ranks that the run's config
    prints.
    """
    if request.by and request.ranks is None:
        return run.select(window=request.window)
    return run.select_ranks(request.ranks, request.window)


def _warn_of_no_effect(request: _Request, views: Sequence[str]) -> None:
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
        yield f"{window.heading}\n\n{window.text()}{explain_empty(window.tables.tables)}"


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
