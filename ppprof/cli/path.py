"""``ppprof path``: what the length of a step depends on, and what a change would win."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ppprof.analysis.path.change_language import parse_change
from ppprof.choices import PATH_GROUPS
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
from ppprof.cli.output import csv_or_markdown, show
from ppprof.units import escape_cell, format_ranges

if TYPE_CHECKING:
    import polars as pl

    from ppprof.analysis.path.graph import Graph
    from ppprof.run.run import Run

EXAMPLES = {
    "ppprof path profiler_log": "what is on the critical path of a step: kinds, ranks, links, modules",
    "ppprof path profiler_log --by rank,module": "module by module, on each rank",
    'ppprof path profiler_log --what-if "matmul: 0.7x" --what-if "overlap dp"': "the step with changes",
}
_DATA_GROUPS = ("kind", "rank", "link", "module", "operator")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Prints the critical path of an average step of RUN: from the end of the step back through "
        "threads, streams and ranks, always to what was waited for last. It is as long as the step; "
        "work beside it is hidden. With --what-if, replays the steps with changes."
    )
    add = parser.add_argument
    add_paths(parser)
    add(
        "--by",
        metavar="KEY,...",
        help=f"one table with a row for each {', '.join(PATH_GROUPS[:-1])} or {PATH_GROUPS[-1]}, or "
        "combination (rank,module)",
    )
    add(
        "--what-if",
        action="append",
        metavar="CHANGE",
        help="'matmul: 0.7x' (of its time), 'module blocks.3: 0.5x', 'line train.py:41: 0', "
        "'link mp: 2x', 'rank 5: as usual', 'data loading: 0', 'overlap dp', 'num_workers: enough', "
        "'kernel launches: graph'; again for further changes",
    )
    add_selection(parser)
    add("--time-unit", metavar="UNIT", help="s, ms, us or ns, of tables; default: ms")
    add_rows(parser, "groups", "10")
    add_format(parser, "json, csv and md hold every row, in nanoseconds")
    add_layout(parser)
    add_output(parser)
    add_reading(parser)


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    checks.parse("by", partial(names_in, known=PATH_GROUPS))
    args.what_if = [
        checks.parsed("--what-if", text, parse_change, None) for text in args.what_if or ()
    ]
    checks.selection()
    checks.workers()
    checks.table_options(10)
    if args.what_if and args.format in ("csv", "md"):
        checks.no_effect(["by"], f"on {args.format} with --what-if, which is the table then")
    checks.layout()
    checks.output(args.paths)
    checks.done()


def run(args: argparse.Namespace) -> int:
    """Print the critical path; return 0, even if some ranks could not be read."""
    from ppprof.analysis.path.change_replay import what_if
    from ppprof.cli import executors
    from ppprof.cli.runs import log_newest, open_located
    from ppprof.rundir.recordings import resolve

    location = resolve(*args.paths)
    with executors.processes(args.workers, len(location.recordings)) as executor:
        run = open_located(location, args.reading)
        log_newest(run, location)
        graph = run.graph(args.rank, args.window, steps=args.steps, executor=executor)
        changes = what_if(graph, args.what_if, run.stages) if args.what_if else None
        show(args, [_text_of(args, run, graph, changes)])
    return 0


def _text_of(args: argparse.Namespace, run: Run, graph: Graph, changes: pl.DataFrame | None) -> str:
    from ppprof.rundir.summaries import dumps

    if args.format == "table":
        return _tables(args, run, graph, changes)
    if args.format == "json":
        return f"{dumps(path_document(run, graph, args.by, changes))}\n"
    table = graph.on_path(args.by or _DATA_GROUPS)
    return csv_or_markdown(table if changes is None else changes, args.format)


def path_document(
    run: Run, graph: Graph, by: Sequence[str] | None, changes: pl.DataFrame | None
) -> dict[str, Any]:
    """Return what ``--format json`` prints, as values; ``ppprof schema path`` describes it."""
    from ppprof.rundir.summaries import document, rows_of

    tables = {"path": graph.on_path(by or _DATA_GROUPS), "steps": graph.steps.drop("node")}
    if changes is not None:
        tables["what_if"] = changes
    return document(rows_of(tables), run=str(run.path))


def _tables(args: argparse.Namespace, run: Run, graph: Graph, changes: pl.DataFrame | None) -> str:
    from ppprof.report.text.path import render_changes, render_path, shown_groups
    from ppprof.report.text.summary import TableOptions

    options = TableOptions(args.time_unit, row_limit=args.row_limit, layout=args.layout)
    ranks = format_ranges("rank", graph.labels["rank"].drop_nulls().unique().to_list())
    steps = format_ranges("step", graph.steps["step"].unique().sort().to_list())
    parts = [
        options.layout.paint(f"{escape_cell(str(run.path))}: {ranks}, {steps}", "title") + "\n"
    ]
    if changes is None or args.by:
        groups = [args.by] if args.by else shown_groups(graph)
        parts += [render_path(graph, by, options, is_last=by is groups[-1]) for by in groups]
    if changes is not None:
        parts.append(render_changes(changes, options))
    return "\n".join(parts)
