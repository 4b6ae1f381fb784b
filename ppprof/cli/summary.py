"""``ppprof summary``: the tables of runs and of trace files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ppprof.choices import (
    ACROSS,
    ALL_VIEWS,
    VIEWS,
    WAYS,
    SummaryOptions,
    check_across,
    check_time_unit,
    sort_key,
)
from ppprof.cli.options import (
    Checks,
    add_format,
    add_layout,
    add_output,
    add_paths,
    add_reading,
    add_rows,
    add_selection,
    names_in,
)
from ppprof.cli.output import show
from ppprof.cli.terminal import log
from ppprof.errors import InputError, PpprofError

if TYPE_CHECKING:
    from ppprof.report.columns import Row
    from ppprof.report.text.summary import TableOptions
    from ppprof.run.run import Run
    from ppprof.run.summary import AcrossRanks, WindowTables
    from ppprof.rundir.recordings import Recording

EXAMPLES = {
    "ppprof summary profiler_log": "the tables that the run's config prints",
    "ppprof summary trace.json --views op,kernel --row-limit 5": "the 5 longest of each",
    "ppprof summary profiler_log --by name": "operators, the largest difference of ranks first",
}
DEFAULT_VIEWS = ("overview", "model", "op", "kernel")
"""Views of a trace without a config: those that the ``Profiler`` block enables by default."""

_VIEWS_CHANGED_BY = {
    "sorted_by": {"op", "kernel", "udf", "shape", "layer"},
    "thread_sep": {"op", "udf"},
    "time_unit": set(ALL_VIEWS) - {"device", "mem"},
    "op_detail": {"op"},
    "row_limit": set(ALL_VIEWS) - {"device", "overview", "model", "dist"},
}
"""The views that an option changes, keyed by its name, which is also its ``Profiler`` key."""

_SHAPE = "shape"
"""The value of ``--by`` that is short for ``--views shape``."""

_OF_ONE_RANK = ("thread_sep", "op_detail")
"""Options without effect if several ranks share a table."""

TABLE_OPTIONS = ("time_unit", "op_detail", "row_limit")
"""Options of ``--format table`` only: the other formats hold every row, in nanoseconds."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Prints the tables of each PATH: a run directory (profiler_log; the newest run in it), "
        "a directory of traces, or a trace file. Directories that the nodes of one job wrote "
        "are one run: give each as a PATH, or a directory above all of them. Options that are "
        "not given here come from the run's own Profiler block."
    )
    add = parser.add_argument
    switch = argparse.BooleanOptionalAction
    add_paths(parser, "run directory or trace file", "PATH")
    add("--views", metavar="V,...", help=f"all (Paddle's nine), or some of {', '.join(ALL_VIEWS)}")
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
    add_layout(parser)
    add_output(parser)
    add_reading(parser, workers=False)


def check(args: argparse.Namespace) -> None:
    """Check the options, and add ``settings``: the options of `_VIEWS_CHANGED_BY` that were given."""
    checks = Checks(args)
    given = [name for name in _VIEWS_CHANGED_BY if getattr(args, name) is not None]
    is_by_shape, is_without_views = args.by == _SHAPE, args.views is None
    if is_by_shape:
        args.by = None
    checks.parse("views", partial(_views, by=args.by))
    if is_by_shape:
        if not is_without_views:
            checks.problems.append("--by shape: is --views shape; give one of them")
        args.views = (_SHAPE,)
    checks.selection(rank_default=None)
    checks.parse("sorted_by", sort_key)
    checks.parse("time_unit", check_time_unit)
    checks.row_limit(None)
    args.settings = {name: getattr(args, name) for name in given}
    if args.format != "table":
        checks.no_effect(TABLE_OPTIONS, f"on {args.format}, which holds every row, in nanoseconds")
    if args.by:
        args.views = args.views or ("op",)
        checks.no_effect(_OF_ONE_RANK, "with --by: each operator is one row of a rank")
    if args.format == "csv" and (args.views is None or len(args.views) != 1):
        checks.problems.append("--format csv: one table: name it with --views")
    checks.layout()
    checks.output(args.paths)
    checks.done()


def _views(text: str, by: str | None) -> tuple[str, ...]:
    if text == "all":
        return ACROSS if by else VIEWS
    names = names_in(text, ALL_VIEWS, word="all")
    if by:
        check_across(names, by)
    return tuple(view for view in ALL_VIEWS if view in names)


def run(args: argparse.Namespace) -> int:
    """Print the tables; return 0 if any window was shown, else the highest exit code of errors."""
    failures: list[int] = []
    windows = _windows(args, failures)
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
        from ppprof.report.text.across_ranks import render_across
        from ppprof.report.text.summary import render_tables

        if "by" not in self.identity:
            return render_tables(self.rows, self.options)
        coordinates = {rank["rank"]: rank["coordinate"] for rank in self.identity["ranks"]}
        return render_across(self.rows, self.identity["by"], coordinates, self.options)


def _windows(args: argparse.Namespace, failures: list[int]) -> Iterator[_Window]:
    """Yield the tables of each window, of one rank or across ranks, each read when it is asked for.

    Unreadable runs and windows are logged and skipped; their exit codes are added to ``failures``.
    """
    from ppprof.cli.runs import log_newest, open_located
    from ppprof.report.text.summary import TableOptions
    from ppprof.rundir.recordings import resolve_each
    from ppprof.rundir.summaries import rows_of

    locations = resolve_each(args.paths)
    for paths, location in locations:
        path = ", ".join(paths)
        with _skipping(failures):
            if isinstance(location, InputError):
                raise location
            run = open_located(location, args.reading)
            log_newest(run, location)
            recordings, block = _recordings(args, run), run.profiler
            views = args.views or (block.views() if block else DEFAULT_VIEWS)
            _warn_of_no_effect(args, views)
            left = {} if args.views else _views_left(run, recordings, views)
            settings = {name: getattr(block, name) for name in _VIEWS_CHANGED_BY} if block else {}
            settings.update(args.settings)
            shown = {name: settings.pop(name) for name in TABLE_OPTIONS if name in settings}
            options = TableOptions(**shown, layout=args.layout)
            chosen: dict[str, Any] = {"steps": args.steps, "options": SummaryOptions(**settings)}
            keys: list[dict[str, Any]]
            keys = [{"rank": each.rank, "window": each.window} for each in recordings]
            if args.by:
                if args.rank not in (
                    None,
                    "all",
                ):  # else all, and a warning of those without a trace
                    chosen["ranks"] = sorted({key["rank"] for key in keys})
                keys = [{"window": window} for window in sorted({key["window"] for key in keys})]
            for key in keys:
                with _skipping(failures):
                    tables: AcrossRanks | WindowTables
                    if args.by:
                        tables = run.across(views, args.by, **key, **chosen)
                    else:
                        own_views = left.get((key["rank"], key["window"]), views)
                        tables = run.tables(own_views, **key, **chosen)
                    heading = _heading(run, tables)
                    yield _Window(
                        f"{path}: {heading}" if len(locations) > 1 else heading,
                        rows_of(tables.tables),
                        {view: table.columns for view, table in tables.tables.items()},
                        tables.identity(),
                        {"path": path, **key},
                        options,
                    )


@contextmanager
def _skipping(failures: list[int]) -> Iterator[None]:
    """Log what cannot be read, and add its exit code to ``failures``."""
    try:
        yield
    except PpprofError as error:
        log.error("%s", error)
        failures.append(error.exit_code)


def _heading(run: Run, tables: AcrossRanks | WindowTables) -> str:
    """Return the title of tables; a warning says that one rank has no other to compare with."""
    from ppprof.report.text.summary import title, window_title
    from ppprof.run.summary import WindowTables

    if isinstance(tables, WindowTables):
        rank, window = tables.recording.rank, tables.recording.window
        return title(rank, tables.recording.what, window, tables.steps)
    ranks = [part.recording.rank for part in tables.ranks]
    if tables.by == "name" and len(ranks) == 1:
        log.warning(
            "%s: window %d: only rank %d: no other rank to compare with",
            run.path,
            tables.window,
            ranks[0],
        )
    return f"{run.name_ranks(ranks)}, {window_title(tables.window, tables.steps)}"


def _recordings(args: argparse.Namespace, run: Run) -> Sequence[Recording]:
    """Return the windows of the selected ranks.

    Without ``--rank``, these are all ranks with ``--by``, else the ranks that the run's config
    prints.
    """
    if args.by and args.rank is None:
        return run.select(window=args.window)
    return run.select_ranks(args.rank, args.window)


def _views_left(
    run: Run, recordings: Sequence[Recording], views: Sequence[str]
) -> dict[tuple[int, int], Sequence[str]]:
    """Return the config's views by rank and window: without a trace, those whose tables were saved.

    The other views of windows without a trace are logged.
    """
    saved = [view for view in views if view in VIEWS]
    lost = [view for view in views if view not in VIEWS]
    if lost and not all(recording.files for recording in recordings):
        log.warning("%s: only tables are left, no trace: no %s", run, ", ".join(lost))
    return {(each.rank, each.window): views if each.files else saved for each in recordings}


def _warn_of_no_effect(args: argparse.Namespace, views: Sequence[str]) -> None:
    for name in args.settings:
        changes = _VIEWS_CHANGED_BY[name]
        if args.by:
            changes = changes & set(ACROSS)
        if args.by == "name" and name == "sorted_by":
            changes = set(ACROSS) - {"dist"}  # the number that is compared
        if not changes.intersection(views):
            log.warning(
                "--%s: has no effect on %s; it changes %s",
                name.replace("_", "-"),
                ", ".join(views),
                ", ".join(view for view in ALL_VIEWS if view in changes),
            )


def _text(windows: Iterable[_Window]) -> Iterator[str]:
    from ppprof.report.text.summary import explain_empty

    for window in windows:
        heading = window.options.layout.paint(window.heading, "title")
        yield f"{heading}\n\n{window.text()}{explain_empty(window.rows)}"


def _markdown(windows: Iterable[_Window]) -> Iterator[str]:
    from ppprof.report.markdown import markdown
    from ppprof.report.text.summary import explain_empty

    for window in windows:
        parts = [
            f"### {view}\n\n{markdown(window.columns[view], rows)}\n\n"
            for view, rows in window.rows.items()
            if rows
        ]
        yield f"## {window.heading}\n\n{''.join(parts)}{explain_empty(window.rows)}"


def _json(windows: Iterable[_Window]) -> Iterator[str]:
    from ppprof.rundir.summaries import document, dumps

    documents = [document(window.rows, **window.identity) for window in windows]
    if documents:
        yield f"{dumps(documents)}\n"


def _csv(windows: Iterable[_Window]) -> Iterator[str]:
    from ppprof.analysis.summaries.views import schema_of

    for number, window in enumerate(windows):
        ((view, rows),) = window.rows.items()
        is_of_rank = "by" not in window.identity
        # Windows with and without thread_sep share one header.
        columns = [*(schema_of(view, thread_sep=True) if is_of_rank else window.columns[view])]
        lines: list[list[object]]
        lines = [] if number else [[*window.keys, *columns]]
        lines += [[*window.keys.values(), *map(row.get, columns)] for row in rows]
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
