"""``ppprof summary``: the nine tables of runs and of trace files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from ppprof.analysis.profile.profile import SummaryOptions
from ppprof.analysis.profile.steps import StepRange
from ppprof.analysis.summaries.across_ranks import ACROSS, WAYS, check_across
from ppprof.analysis.summaries.views import VIEWS
from ppprof.cli.options import (
    add_cache,
    add_output,
    add_part,
    opened,
    problems_of_output,
    whole_number,
    write_output,
)
from ppprof.cli.terminal import tell, tell_lost
from ppprof.errors import ConfigError, PpprofError, UsageError
from ppprof.report.data import document, dumps
from ppprof.report.markdown import markdown
from ppprof.report.text.across_ranks import render_across
from ppprof.report.text.summary import TableOptions, render_tables, title, window_title
from ppprof.run.run import Run
from ppprof.run.summary import AcrossRanks, WindowTables
from ppprof.rundir.recordings import Recording, group_by_run
from ppprof.units import format_ranges

if TYPE_CHECKING:
    from ppprof.config import ProfilerConfig

DEFAULT_VIEWS = ("overview", "model", "op", "kernel")
"""Of a trace without a config: what the ``Profiler`` block switches on by default."""

_CHANGES = {
    "sorted_by": {"op", "kernel", "udf"},
    "thread_sep": {"op", "udf"},
    "op_detail": {"op"},
    "row_limit": {"op", "kernel", "memcpy", "udf", "mem"},
    "time_unit": set(VIEWS) - {"device", "mem"},
}
"""Key of the ``Profiler`` block, option of the command -> the views that it changes."""

_RANK_BY_RANK = ("thread_sep", "op_detail")
"""Those that have no effect where ranks are put together."""

_LAYOUT = ("time_unit", "op_detail", "row_limit")
"""Those that only ``--format table`` knows: the other formats hold every row, in nanoseconds."""


def register(subparsers: Any) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "summary",
        help="print the tables of a run or of a trace file",
        description=(
            "Prints the tables of each PATH: a run directory (profiler_log; the newest run in it), "
            "a directory of traces, or a trace file. Directories that the nodes of one job left "
            "are one run, each as a PATH or all below one. What is not asked for here is as the "
            "run's own Profiler block has it."
        ),
    )
    add = parser.add_argument
    switch = argparse.BooleanOptionalAction
    add("paths", nargs="+", metavar="PATH", help="run directory or trace file")
    add("--views", metavar="V,...", help=f"all, or some of {','.join(VIEWS)}")
    add("--rank", metavar="R", help="a rank, or all; default: the run's print_ranks")
    add(
        "--by",
        choices=WAYS,
        help="all ranks in one table: a row an operator and rank, with Node ID; or a row an "
        "operator, with minimum, median, maximum and spread over the ranks",
    )
    add_part(parser)
    add("--sorted-by", metavar="KEY", help="auto, or cpu_ or gpu_ and total, avg, max or min")
    add("--thread-sep", action=switch, help="operators and spans thread by thread")
    add("--time-unit", metavar="UNIT", help="s, ms, us or ns")
    add("--op-detail", action=switch, help="below each operator what it called and launched")
    add("--row-limit", metavar="N", help="operators, kernels, spans of a table; or none")
    add(
        "--format",
        choices=tuple(_FORMATS),
        default="table",
        help="table: as Paddle prints them; json: a list of windows; csv: one view; md: Markdown",
    )
    add_output(parser)
    add_cache(parser)
    parser.set_defaults(run_command=summary)


def summary(args: argparse.Namespace) -> int:
    """0 when anything was shown, whatever could not be read beside it; else 3, or 2 for bad usage."""
    request = _Request.of(args)
    failed: list[int] = []
    chunks = _FORMATS[args.format](_windows(request, failed))
    shown = False
    if args.output is None:
        for chunk in chunks:
            print(chunk, end="", flush=True)  # at once: the next trace may be a long one
            shown = True
    elif text := "".join(chunks):
        shown = True
        write_output(args, text)
    return 0 if shown else max(failed)


@dataclass(frozen=True)
class _Request:
    """The command line, checked."""

    paths: Sequence[str]
    views: Sequence[str] | None
    """None: as the run's config, and so are rank and what ``settings`` leaves out."""
    rank: int | str | None
    by: str | None
    """One of `ppprof.analysis.summaries.across_ranks.WAYS`; None: a table a rank."""
    window: int | None
    steps: str | None
    settings: Mapping[str, Any]
    """Keys of `_CHANGES` that were given."""
    cache: bool

    @classmethod
    def of(cls, args: argparse.Namespace) -> _Request:
        """The command line of `register`.

        Raises:
            UsageError: with all that is wrong with it, one a line.
        """
        problems: list[str] = []

        def checked(name: str, check: Callable[[str], Any]) -> Any:
            value = getattr(args, name)
            try:
                return None if value is None else check(value)
            except UsageError as error:
                problems.append(f"{_flag(name)}: {error}")
                return None

        views = checked("views", lambda text: _views(text, args.by))
        rank = checked(
            "rank", lambda text: "all" if text == "all" else whole_number(text, 0, "all")
        )
        window = checked("window", whole_number)
        checked("steps", StepRange.parse)
        checked("sorted_by", SummaryOptions)
        checked("time_unit", TableOptions)
        settings = {name: getattr(args, name) for name in _CHANGES}
        settings = {name: value for name, value in settings.items() if value is not None}
        if args.row_limit is not None:
            settings["row_limit"] = checked(
                "row_limit", lambda text: None if text == "none" else whole_number(text, 1, "none")
            )
        if args.format != "table":
            problems += [
                f"{_flag(name)}: has no effect on {args.format}, "
                "which holds every row, in nanoseconds"
                for name in _LAYOUT
                if name in settings
            ]
        if args.by:
            views = views or ("op",)
            problems += [
                f"{_flag(name)}: has no effect with --by: each operator is one row of a rank"
                for name in _RANK_BY_RANK
                if name in settings
            ]
        if args.format == "csv" and (views is None or len(views) != 1):
            problems.append("--format csv: one table: name it with --views")
        problems += problems_of_output(args, args.paths)
        if problems:
            raise UsageError("\n".join(problems))
        cache = not args.no_cache
        return cls(args.paths, views, rank, args.by, window, args.steps, settings, cache)


def _views(text: str, by: str | None) -> tuple[str, ...]:
    if text == "all":
        return ACROSS if by else tuple(VIEWS)
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in VIEWS]
    if unknown:
        expected = f"all, or some of {', '.join(VIEWS)}"
        raise UsageError(f"{', '.join(map(repr, unknown))}: expected {expected}")
    if by:
        check_across(names, by)
    return tuple(view for view in VIEWS if view in names)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class _Window:
    """One window, of one rank or over ranks, ready to be written down."""

    path: str
    heading: str
    made: WindowTables | AcrossRanks
    layout: TableOptions

    def text(self) -> str:
        """Its tables as text."""
        if isinstance(self.made, WindowTables):
            return render_tables(self.made.tables, self.layout)
        coordinates = {of.recording.rank: of.recording.coordinate for of in self.made.ranks}
        return render_across(self.made.tables, self.made.by, coordinates, self.layout)

    def columns(self) -> Mapping[str, object]:
        """What stands before each row of CSV, which has no other place for it."""
        if isinstance(self.made, WindowTables):
            at = self.made.recording
            return {"path": self.path, "rank": at.rank, "window": at.window}
        return {"path": self.path, "window": self.made.window}


def _windows(request: _Request, failed: list[int]) -> Iterator[_Window]:
    """One after another; what cannot be shown is told, and its exit code put into ``failed``."""
    groups = group_by_run(request.paths)
    for paths in groups:
        path = ", ".join(map(str, paths))
        try:
            run = opened(*map(str, paths), cache=request.cache)
            block = _profiler_block(run)
            recordings = _recordings(request, run, block)
        except PpprofError as error:
            tell(error)
            failed.append(error.exit_code)
            continue
        views = request.views or (block.views() if block else DEFAULT_VIEWS)
        _tell_what_has_no_effect(request, views)
        settings = {name: getattr(block, name) for name in _CHANGES} if block else {}
        settings.update(request.settings)
        layout = TableOptions(**{name: settings.pop(name) for name in _LAYOUT if name in settings})
        for made in _made(request, run, recordings, views, settings, failed):
            heading = _heading(made)
            several = len(groups) > 1
            yield _Window(path, f"{path}: {heading}" if several else heading, made, layout)


def _made(
    request: _Request,
    run: Run,
    recordings: Sequence[Recording],
    views: Sequence[str],
    settings: Mapping[str, Any],
    failed: list[int],
) -> Iterator[WindowTables | AcrossRanks]:
    """Each recording's tables, or each window's over the ranks."""
    asked: list[Callable[[], WindowTables | AcrossRanks]]
    if request.by:
        ranks = [request.rank] if isinstance(request.rank, int) else None
        sorted_by = settings.get("sorted_by", "auto")
        asked = [
            partial(
                run.across,
                views,
                request.by,
                window,
                ranks=ranks,
                steps=request.steps,
                sorted_by=sorted_by,
            )
            for window in sorted({at.window for at in recordings})
        ]
    else:
        asked = [
            partial(run.tables, views, at.rank, at.window, steps=request.steps, **settings)
            for at in recordings
        ]
    for make in asked:
        try:
            made = make()
        except PpprofError as error:
            tell(error)
            failed.append(error.exit_code)
            continue
        if request.by == "name" and isinstance(made, AcrossRanks) and len(made.ranks) == 1:
            rank = made.ranks[0].recording.rank
            tell(f"{run.path}: window {made.window}: only rank {rank}: nothing to compare")
        for of in [made] if isinstance(made, WindowTables) else made.ranks:
            tell_lost(of.source, of.skipped)
        yield made


def _heading(made: WindowTables | AcrossRanks) -> str:
    if isinstance(made, WindowTables):
        return title(made.recording.rank, made.recording.what, made.recording.window, made.steps)
    ranks = format_ranges("rank", (of.recording.rank for of in made.ranks))
    return f"{ranks}, {window_title(made.window, made.steps)}"


def _profiler_block(run: Run) -> ProfilerConfig | None:
    """The run's config; None where there is none of ours."""
    values = run.manifest.get("profiler")
    if not isinstance(values, Mapping):
        return None
    from ppprof.config import ProfilerConfig

    try:
        return ProfilerConfig.from_mapping(values)
    except ConfigError as error:
        tell(f"{run}: its Profiler block is left aside:\n{error}")
        return None


def _recordings(request: _Request, run: Run, block: ProfilerConfig | None) -> Sequence[Recording]:
    """The windows to show: of the ranks that the run's config prints, where nothing else is said."""
    if isinstance(request.rank, int):
        return run.select(request.rank, request.window)
    found = run.select(window=request.window)
    if request.by or block is None:
        return found
    if run.topology is None:
        return found
    try:
        recorded = run.topology.select(block.ranks)
        printed = run.topology.select(block.print_ranks)
    except UsageError:
        return found
    if missing := recorded.difference(run.ranks):
        tell(
            f"{run}: nothing of {format_ranges('rank', missing)}: if other nodes have left them, name their "
            "directories too"
        )
    if request.rank == "all":
        return found
    shown = [at for at in found if at.rank in printed] or found
    others = {at.rank for at in found} - {at.rank for at in shown}
    if others:
        tell(
            f"{run}: not shown: {format_ranges('rank', others)}; --rank R or --rank all shows them"
        )
    return shown


def _tell_what_has_no_effect(request: _Request, views: Sequence[str]) -> None:
    for name in request.settings:
        changes = _CHANGES[name]
        if request.by == "name" and name == "sorted_by":
            changes = set(ACROSS) - {"dist"}  # it says what is compared
        if not changes.intersection(views):
            changed = ", ".join(view for view in VIEWS if view in changes)
            tell(f"{_flag(name)}: has no effect on {', '.join(views)}; it changes {changed}")


def _table(windows: Iterable[_Window]) -> Iterator[str]:
    for at in windows:
        yield f"{at.heading}\n\n{at.text()}{_nothing_for(at)}"


def _markdown(windows: Iterable[_Window]) -> Iterator[str]:
    for at in windows:
        parts = [
            f"### {view}\n\n{markdown(table)}\n\n"
            for view, table in at.made.tables.items()
            if not table.is_empty()
        ]
        yield f"## {at.heading}\n\n{''.join(parts)}{_nothing_for(at)}"


def _nothing_for(at: _Window) -> str:
    empty = [view for view, table in at.made.tables.items() if table.is_empty()]
    return f"Nothing recorded for: {', '.join(empty)}\n\n" if empty else ""


def _json(windows: Iterable[_Window]) -> Iterator[str]:
    documents = [document(at.made.tables, **at.made.identity()) for at in windows]
    if documents:
        yield f"{dumps(documents)}\n"


def _csv(windows: Iterable[_Window]) -> Iterator[str]:
    for number, at in enumerate(windows):
        (table,) = at.made.tables.values()
        yield table.select(
            *(pl.lit(value).alias(name) for name, value in at.columns().items()), pl.all()
        ).write_csv(include_header=number == 0)


_FORMATS: Mapping[str, Callable[[Iterable[_Window]], Iterator[str]]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
    "md": _markdown,
}
