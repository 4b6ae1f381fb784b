"""``ppprof ranks``: what each rank of a run spends its steps on, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from ppprof import rundir
from ppprof.choices import GROUPS
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
from ppprof.cli.terminal import log
from ppprof.errors import UsageError
from ppprof.paths import to_path
from ppprof.topology import is_own_axis
from ppprof.units import escape_cell, format_ranges

if TYPE_CHECKING:
    import polars as pl

    from ppprof.analysis.ranks.cluster import Cluster
    from ppprof.run.run import Run

EXAMPLES = {
    "ppprof ranks profiler_log": "step parts of each rank, collectives, slow ranks and links",
    "ppprof ranks profiler_log --by pp --what-if": "by stage; what slow ranks and stages cost",
}

_MOST_RANGES = 20
"""Ranges of steps in the first line."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Prints, for each rank of RUN or each group of ranks, what an average step consists of: "
        "computation, communication that nothing hides (axis by axis), pipeline bubble, data "
        "loading, idling for the host, and the rest. The parts add up to the step."
    )
    add = parser.add_argument
    add_paths(parser)
    add(
        "--by",
        default="rank",
        metavar="KEY,...",
        help=f"a row for each {', '.join(GROUPS[:-1])} or {GROUPS[-1]}, or combination (rank,step)",
    )
    add_selection(parser)
    add(
        "--dask",
        metavar="ADDRESS",
        help="read traces on the Dask cluster with this scheduler, tcp://HOST:8786; its workers "
        "need ppprof, and the files under the same paths",
    )
    add(
        "--what-if",
        action="store_true",
        help="also the step time if slow workers, stages and links were as fast as usual",
    )
    add("--time-unit", metavar="UNIT", help="s, ms, us or ns, of tables; default: ms")
    add_rows(parser, "groups and sizes", "20")
    add_format(parser, "json, csv and md hold every column, in nanoseconds")
    add_layout(parser)
    add_output(parser)
    add_reading(parser)


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    checks.parse("by", partial(names_in, known=GROUPS, also=is_own_axis), ())
    checks.selection()
    checks.workers()
    checks.table_options(20)
    if args.workers is not None and args.dask is not None:
        checks.problems.append("--workers, --dask: both say where to read; give one of them")
    checks.layout()
    checks.output(args.paths)
    checks.done()


def run(args: argparse.Namespace) -> int:
    """Print the times of the ranks; return 0, even if some ranks could not be read."""
    from ppprof.cli import executors
    from ppprof.cli.runs import log_newest, open_located
    from ppprof.rundir.recordings import resolve

    paths = args.paths
    if args.dask is not None:  # workers on other machines have other working directories
        paths = [str(to_path(path).absolute()) for path in paths]
    location = resolve(*paths)
    workers: AbstractContextManager[Executor | None] = (
        executors.processes(args.workers, len(location.recordings))
        if args.dask is None
        else executors.dask(args.dask)
    )
    with workers as executor:
        # This imports numpy and polars; the processes do so at the same time.
        run = open_located(location, args.reading)
        log_newest(run, location)
        if not run.has_traces and rundir.has_manifest(run.path):
            show(args, [_without_window(args, run)])
            return 0
        cluster = run.cluster(args.rank, args.window, steps=args.steps, executor=executor)
        if args.what_if and cluster.what_if.is_empty():
            log.warning(
                "%s: nothing to replay: no manifest with the topology, or no steps that all ranks have",
                run,
            )
        show(args, [_text_of(args, run, cluster)])
    return 0


def _without_window(args: argparse.Namespace, run: Run) -> str:
    """Return what step times say about the ranks of a run without a window."""
    import polars as pl

    from ppprof.report.text.summary import TableOptions
    from ppprof.report.text.unrecorded import render_unrecorded
    from ppprof.run.ranks import links_without_window, ranks_without_window, roles_without_window
    from ppprof.rundir.summaries import document, dumps, rows_of
    from ppprof.topology import Topology

    given = [f"--window {args.window}"] * (args.window is not None)
    given += [f"--by {','.join(args.by)}"] * (list(args.by) != ["rank"])
    given += ["--what-if"] * args.what_if
    if given:
        raise UsageError(f"{run}: {', '.join(given)}: the run has step times only, no window")
    table = ranks_without_window(run, args.steps)
    links = links_without_window(run, args.steps)
    roles = roles_without_window(run)
    selected: Collection[int] = roles
    if args.rank != "all":  # ranks are compared with all peers, also with those that are not shown
        selected = (run.topology or Topology.of(dp=max(roles) + 1)).select(args.rank)
        members = pl.col("members").str.split(",").cast(pl.List(pl.Int64))
        links = links.filter(members.list.set_intersection(sorted(selected)).list.len() > 0)
    chosen = table.filter(pl.col("rank").is_in(list(selected)))
    if args.format == "json":
        tables = {"ranks": chosen, "slow_groups": links}
        return f"{dumps(document(rows_of(tables), run=str(run.path)))}\n"
    if args.format != "table":
        return csv_or_markdown(chosen, args.format)
    options = TableOptions(args.time_unit, row_limit=args.row_limit)
    return render_unrecorded(str(run), table, links, roles, options, selected)


def _text_of(args: argparse.Namespace, run: Run, cluster: Cluster) -> str:
    if args.format == "json":
        from ppprof.rundir.summaries import dumps

        return f"{dumps(ranks_document(run, cluster, args.by, args.what_if))}\n"
    table = _breakdown(cluster, args.by)
    if args.format != "table":
        return csv_or_markdown(table, args.format)
    return _tables(args, run, cluster, table)


def _tables(args: argparse.Namespace, run: Run, cluster: Cluster, table: pl.DataFrame) -> str:
    from ppprof.report.text.ranks import (
        render_bandwidths,
        render_groups,
        render_queue,
        render_ranks,
        render_stragglers,
        render_what_if,
    )
    from ppprof.report.text.summary import TableOptions

    options = TableOptions(args.time_unit, row_limit=args.row_limit, layout=args.layout)
    ranks = run.name_ranks(cluster.steps["rank"].unique().to_list())
    steps = _step_ranges(cluster.steps["step"].unique().sort().to_list())
    parts = [
        f"{options.layout.paint(f'{escape_cell(str(run))}: {ranks}, {steps}', 'title')}\n\n",
        render_ranks(table, args.by, options),
        _slowest(cluster.steps),
    ]
    if queue := render_queue(cluster, options):
        parts.append(f"\n{queue}")
    if not cluster.arrivals.is_empty():
        parts.append(f"\n{render_groups(cluster, options)}")
        bandwidths = render_bandwidths(cluster, options)
        parts.append(f"\n{bandwidths}" if bandwidths else "")
    parts.append(render_stragglers(cluster, options))
    if args.what_if and (text := render_what_if(cluster.what_if, options)):
        parts.append(f"\n{text}")
    return "".join(parts)


def _step_ranges(steps: list[int]) -> str:
    """Return the numbers of steps as text; of a sample with many gaps, how many there are.

    >>> _step_ranges([0, 1, 2, 5]), _step_ranges([*range(0, 100, 2)])
    ('steps 0-2, 5', '50 of steps 0-98')
    """
    text = format_ranges("step", steps)
    if text.count(",") < _MOST_RANGES:
        return text
    return f"{len(steps):,} of steps {steps[0]}-{steps[-1]}"


def _slowest(steps: pl.DataFrame) -> str:
    """Return a line that counts the steps in which each rank had the most own work; "" if that is unknown."""
    from ppprof.analysis.ranks.step_table import slowest

    slow = slowest(steps)
    if slow.is_empty():
        return ""
    counts = slow["slowest_rank"].value_counts(sort=True)
    parts = [
        f"rank {rank} in {count}"
        for rank, count in counts.sort("count", "slowest_rank", descending=[True, False]).rows()
    ]
    return (
        "Most time of its own (in which it waits for no other rank), "
        f"of {slow.height} steps: {', '.join(parts)}\n"
    )


def _breakdown(cluster: Cluster, by: Sequence[str]) -> pl.DataFrame:
    """Return the parts of steps, a row for each group of ``by``."""
    from ppprof.analysis.ranks.step_table import group_steps

    is_ungrouped = set(by) == {"rank", "step"}
    return cluster.steps.sort(by) if is_ungrouped else group_steps(cluster.steps, by)


def ranks_document(
    run: Run, cluster: Cluster, by: Sequence[str], with_what_if: bool
) -> dict[str, Any]:
    """Return what ``--format json`` prints, as values; ``ppprof schema ranks`` describes it."""
    from ppprof.analysis.ranks.clock_alignment import offsets_by_starts
    from ppprof.rundir.summaries import document, rows_of

    tables = {
        "breakdown": _breakdown(cluster, by),
        "collectives": cluster.groups,
        "bandwidths": cluster.bandwidths,
        "slow_ranks": cluster.slow_ranks,
        "slow_lines": cluster.slow_lines,
        "slow_groups": cluster.slow_groups,
        "queue": cluster.queue,
    }
    if with_what_if:
        tables["what_if"] = cluster.what_if
    by_starts = offsets_by_starts(cluster.collectives)
    identity = {
        "run": str(run.path),
        "by": list(by),
        "steps": sorted(cluster.steps["step"].unique()),
        "clocks": {
            str(rank): {
                "method": clock.method,
                "offset_ns": clock.offset_ns,
                "drift_ppm": clock.drift_ppm,
                "error_ns": clock.error_ns,
                "offset_by_starts_ns": by_starts.get(rank),
            }
            for rank, clock in sorted(cluster.clocks.items())
        },
    }
    return document(rows_of(tables), **identity)
