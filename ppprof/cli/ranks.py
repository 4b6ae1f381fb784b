"""``ppprof ranks``: what each rank of a run spends its steps on, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ppprof.analysis.ranks.clock_alignment import offsets_by_starts
from ppprof.analysis.ranks.cluster import Cluster
from ppprof.analysis.ranks.step_table import group_steps, slowest
from ppprof.choices.rows import GROUPS
from ppprof.choices.steps import StepRange
from ppprof.cli import COMMANDS, executors
from ppprof.cli.options import (
    Checks,
    add_format,
    add_output,
    add_reading,
    add_rows,
    add_selection,
    open_run,
    show,
)
from ppprof.cli.terminal import log
from ppprof.errors import UsageError
from ppprof.paths import to_path
from ppprof.report.markdown import markdown
from ppprof.report.text.ranks import (
    render_bandwidths,
    render_groups,
    render_queue,
    render_ranks,
    render_stragglers,
)
from ppprof.report.text.summary import TableOptions
from ppprof.report.text.what_if import render_what_if
from ppprof.run.run import Run
from ppprof.rundir.summaries import document, dumps
from ppprof.topology import RankSelector
from ppprof.units import format_ranges


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "ranks",
        help=COMMANDS["ranks"],
        description=(
            "Prints, for each rank of RUN or each group of ranks, what an average step consists of: "
            "computation, communication that nothing hides (axis by axis), pipeline bubble, data "
            "loading, idling for the host, and the rest. The parts add up to the step."
        ),
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="RUN",
        help="run directory, or those of a run's nodes; or a directory of traces, or a trace file",
    )
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
    add_output(parser)
    add_reading(parser)
    parser.set_defaults(run_command=ranks)


def ranks(args: argparse.Namespace) -> int:
    """Print the times of the ranks; return 0, even if some ranks could not be read."""
    request = _Request.of(args)
    paths = args.paths
    if request.dask is not None:  # workers on other machines have other working directories
        paths = [str(to_path(path).absolute()) for path in paths]
    run = open_run(args, *paths)
    with request.executor() as executor:
        cluster = run.cluster(request.ranks, request.window, steps=request.steps, executor=executor)
    result = _Result(run, request, cluster)
    if request.what_if and cluster.what_if.is_empty():
        log.warning(
            "%s: nothing to replay: no manifest with the topology, or no steps that all ranks have",
            run,
        )
    show(args, [_FORMATS[args.format](result)])
    return 0


@dataclass(frozen=True)
class _Request:
    """The parsed and checked options of the command."""

    by: Sequence[str]
    """The columns of ``--by``, some of `GROUPS`."""
    ranks: RankSelector
    window: int | None
    """The window to read; None for all windows."""
    steps: StepRange | None
    """The steps to read; None for all steps."""
    workers: int
    dask: str | None
    """Address of the Dask scheduler; None to read on this machine."""
    what_if: bool
    options: TableOptions
    row_limit: int | None
    """Most rows of a table of groups; None for no limit."""

    @classmethod
    def of(cls, args: argparse.Namespace) -> _Request:
        """Return the options that the parser of `register` has parsed, checked.

        Raises:
            UsageError: an option is invalid; the message has one line for each problem.
        """
        checks = Checks(args)
        request = cls(
            checks.parsed("by", _groups, ()),
            checks.ranks("all"),
            checks.window(),
            checks.steps(),
            checks.workers(),
            args.dask,
            args.what_if,
            checks.parsed("time_unit", TableOptions, TableOptions()),
            checks.row_limit(20),
        )
        if args.workers is not None and args.dask is not None:
            checks.problems.append("--workers, --dask: both say where to read; give one of them")
        if args.format != "table":
            checks.no_effect(
                ["time_unit", "row_limit"],
                f"on {args.format}, which holds every row, in nanoseconds",
            )
        checks.output(args.paths)
        checks.done()
        return request

    def executor(self) -> AbstractContextManager[Executor | None]:
        """Return a context manager for the executor that reads traces; None is this process."""
        return executors.processes(self.workers) if self.dask is None else executors.dask(self.dask)


def _groups(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise UsageError(f"{', '.join(map(repr, unknown))}: expected some of {', '.join(GROUPS)}")
    return tuple(dict.fromkeys(names))


class _Result:
    """A run's analysis, and its table of steps grouped as ``--by`` says."""

    def __init__(self, run: Run, request: _Request, cluster: Cluster) -> None:
        self.run, self.request, self.cluster = run, request, cluster
        self.steps = steps = cluster.steps
        is_ungrouped = set(request.by) == {"rank", "step"}
        self.table = steps.sort(request.by) if is_ungrouped else group_steps(steps, request.by)


def _text(result: _Result) -> str:
    request, options = result.request, result.request.options
    ranks = format_ranges("rank", result.steps["rank"].unique().to_list())
    steps = format_ranges("step", result.steps["step"].unique().to_list())
    parts = [
        f"{result.run.path}: {ranks}, {steps}\n\n",
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
    if request.what_if and (text := render_what_if(result.cluster.what_if, options)):
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
    if result.request.what_if:
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
    return f"{dumps(document(tables, **identity))}\n"


def _csv(result: _Result) -> str:
    return result.table.write_csv()


def _markdown(result: _Result) -> str:
    return f"{markdown(result.table)}\n"


_FORMATS: Mapping[str, Callable[[_Result], str]] = {
    "table": _text,
    "json": _json,
    "csv": _csv,
    "md": _markdown,
}
