"""What ``ppprof ranks`` prints: what each rank of a run spends its steps on, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from ppprof.analysis.ranks.clock_alignment import offsets_by_starts
from ppprof.analysis.ranks.cluster import Cluster
from ppprof.analysis.ranks.step_table import group_steps, slowest
from ppprof.cli.output import show
from ppprof.cli.parsers.ranks import Request
from ppprof.cli.terminal import log
from ppprof.report.markdown import markdown
from ppprof.report.text.ranks import (
    render_bandwidths,
    render_groups,
    render_queue,
    render_ranks,
    render_stragglers,
    render_what_if,
)
from ppprof.report.text.summary import TableOptions
from ppprof.run.run import Run
from ppprof.rundir.summaries import document, dumps, rows_of
from ppprof.units import format_ranges


def show_ranks(args: argparse.Namespace, run: Run, executor: Executor | None) -> None:
    """Read all ranks of a run, and print their times.

    Raises:
        PpprofError: no rank can be read, or what the arguments choose does not exist.
    """
    request: Request = args.request
    cluster = run.cluster(request.ranks, request.window, steps=request.steps, executor=executor)
    if args.what_if and cluster.what_if.is_empty():
        log.warning(
            "%s: nothing to replay: no manifest with the topology, or no steps that all ranks have",
            run,
        )
    show(args, [_FORMATS[args.format](_Result(run, args, cluster))])


class _Result:
    """A run's analysis, and its table of steps grouped as ``--by`` says."""

    def __init__(self, run: Run, args: argparse.Namespace, cluster: Cluster) -> None:
        self.run, self.cluster = run, cluster
        self.with_what_if: bool = args.what_if
        self.request: Request = args.request
        self.options = TableOptions(
            self.request.time_unit, row_limit=self.request.row_limit, layout=args.layout
        )
        self.steps = steps = cluster.steps
        is_ungrouped = set(self.request.by) == {"rank", "step"}
        self.table = (
            steps.sort(self.request.by) if is_ungrouped else group_steps(steps, self.request.by)
        )


def _text(result: _Result) -> str:
    request, options = result.request, result.options
    ranks = format_ranges("rank", result.steps["rank"].unique().to_list())
    steps = format_ranges("step", result.steps["step"].unique().to_list())
    parts = [
        f"{options.layout.paint(f'{result.run.path}: {ranks}, {steps}', 'title')}\n\n",
        render_ranks(result.table, request.by, options),
        _slowest(result),
    ]
    if queue := render_queue(result.cluster, options):
        parts.append(f"\n{queue}")
    if not result.cluster.arrivals.is_empty():
        parts.append(f"\n{render_groups(result.cluster, options, request.row_limit)}")
        bandwidths = render_bandwidths(result.cluster, options, request.row_limit)
        parts.append(f"\n{bandwidths}" if bandwidths else "")
        parts.append(render_stragglers(result.cluster, options))
    if result.with_what_if and (text := render_what_if(result.cluster.what_if, options)):
        parts.append(f"\n{text}")
    return "".join(parts)


def _slowest(result: _Result) -> str:
    """Return a line that counts, for each rank, the steps in which it had the most own work.

    Empty for a single rank, and if the ranks' own work is unknown.
    """
    steps = slowest(result.steps)
    if result.steps["rank"].n_unique() < 2 or steps.is_empty():
        return ""
    counts = steps["slowest_rank"].value_counts(sort=True)
    parts = [
        f"rank {rank} in {count}"
        for rank, count in counts.sort("count", "slowest_rank", descending=[True, False]).rows()
    ]
    return (
        "Most time of its own (in which it waits for no other rank), "
        f"of {steps.height} steps: {', '.join(parts)}\n"
    )


def _json(result: _Result) -> str:
    cluster = result.cluster
    tables = {
        "breakdown": result.table,
        "collectives": cluster.groups,
        "bandwidths": cluster.bandwidths,
        "slow_ranks": cluster.slow_ranks,
        "slow_groups": cluster.slow_groups,
        "queue": cluster.queue,
    }
    if result.with_what_if:
        tables["what_if"] = cluster.what_if
    by_starts = offsets_by_starts(cluster.collectives)
    identity = {
        "run": str(result.run.path),
        "by": list(result.request.by),
        "steps": sorted(result.steps["step"].unique()),
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
    return f"{dumps(document(rows_of(tables), **identity))}\n"


def _csv(result: _Result) -> str:
    return result.table.write_csv()


def _markdown(result: _Result) -> str:
    return f"{markdown(result.table.columns, result.table.rows(named=True))}\n"


_FORMATS: Mapping[str, Callable[[_Result], str]] = {
    "table": _text,
    "json": _json,
    "csv": _csv,
    "md": _markdown,
}
