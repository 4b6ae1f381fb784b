"""``ppprof ranks``: what each rank of a run spends its steps on, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ppprof.analysis.profile.steps import StepRange
from ppprof.analysis.ranks.cluster import Cluster
from ppprof.analysis.ranks.matching import offsets_by_starts
from ppprof.analysis.ranks.step_table import GROUPS, group_steps, slowest
from ppprof.cli import executors
from ppprof.cli.options import Checks, add_cache, add_part, add_ranks, opened, whole_number
from ppprof.cli.terminal import tell
from ppprof.errors import UsageError
from ppprof.paths import to_path
from ppprof.report.data import document, dumps
from ppprof.report.markdown import markdown
from ppprof.report.text.ranks import render_groups, render_ranks, render_stragglers
from ppprof.report.text.summary import TableOptions
from ppprof.report.text.what_if import render_what_if
from ppprof.run.run import Run
from ppprof.topology import RankSelector, parse_selector
from ppprof.units import format_ranges


def register(subparsers: Any) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "ranks",
        help="print what each rank spends its steps on: computation, waiting, idling",
        description=(
            "Prints, for each rank of RUN or each group of ranks, what an average step consists of: "
            "computation, communication that nothing hides (axis by axis), pipeline bubble, data "
            "loading, idling for the host, and the rest. The parts add up to the step."
        ),
    )
    add = parser.add_argument
    add("path", metavar="RUN", help="run directory, or any directory of traces or trace file")
    add(
        "--by",
        default="rank",
        metavar="KEY,...",
        help=f"a row for each {', '.join(GROUPS[:-1])} or {GROUPS[-1]}, or combination (rank,step)",
    )
    add_ranks(parser)
    add_part(parser)
    add("--workers", metavar="N", help="read the traces in N processes; default: in this one")
    add(
        "--dask",
        metavar="ADDRESS",
        help="read them on the Dask cluster whose scheduler listens there, tcp://HOST:8786; its "
        "workers need ppprof, and the files under the same paths",
    )
    add(
        "--what-if",
        action="store_true",
        help="also the step time if slow workers, stages and links were as fast as usual",
    )
    add("--time-unit", metavar="UNIT", help="s, ms (as it is without), us or ns; of tables only")
    add(
        "--format",
        choices=tuple(_FORMATS),
        default="table",
        help="json, csv and md hold every column, in nanoseconds",
    )
    add_cache(parser)
    parser.set_defaults(run_command=ranks)


def ranks(args: argparse.Namespace) -> int:
    """0 when anything was shown, whatever could not be read beside it."""
    request = _Request.of(args)
    # A worker on another machine works in a directory of its own.
    path = args.path if request.dask is None else str(to_path(args.path).absolute())
    run = opened(path, cache=not args.no_cache)
    with request.executor() as executor:
        cluster = run.cluster(request.ranks, request.window, steps=args.steps, executor=executor)
    shown = _Shown(run, request, cluster)
    if request.what_if and cluster.what_if.is_empty():
        tell(
            f"{run}: nothing to replay: no manifest with the grid, or steps that ranks do not share"
        )
    print(_FORMATS[args.format](shown), end="")
    return 0


@dataclass(frozen=True)
class _Request:
    """The command line, checked."""

    by: Sequence[str]
    ranks: RankSelector
    window: int | None
    workers: int
    dask: str | None
    what_if: bool
    layout: TableOptions

    @classmethod
    def of(cls, args: argparse.Namespace) -> _Request:
        """The command line of `register`.

        Raises:
            UsageError: with all that is wrong with it, one a line.
        """
        checks = Checks()
        by = checks.of("--by", args.by, _groups, ())
        ranks = checks.of("--rank", args.rank, parse_selector, "all")
        window = checks.of("--window", args.window, whole_number, None)
        checks.of("--steps", args.steps, StepRange.parse, None)
        workers = checks.of("--workers", args.workers, partial(whole_number, least=1), 1)
        layout = checks.of("--time-unit", args.time_unit, TableOptions, TableOptions())
        if args.workers is not None and args.dask is not None:
            checks.problems.append("--workers, --dask: both say where to read; give one of them")
        if args.time_unit is not None and args.format != "table":
            checks.problems.append(
                f"--time-unit: has no effect on {args.format}, which is in nanoseconds"
            )
        checks.done()
        return cls(by, ranks, window, workers, args.dask, args.what_if, layout)

    def executor(self) -> AbstractContextManager[Executor | None]:
        """Where to read."""
        return executors.processes(self.workers) if self.dask is None else executors.dask(self.dask)


def _groups(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise UsageError(f"{', '.join(map(repr, unknown))}: expected some of {', '.join(GROUPS)}")
    return tuple(dict.fromkeys(names))


class _Shown:
    """What is printed."""

    def __init__(self, run: Run, request: _Request, cluster: Cluster) -> None:
        self.run, self.by, self.layout = run, request.by, request.layout
        self.cluster, self.what_if = cluster, request.what_if
        self.steps = steps = cluster.steps
        whole = set(request.by) == {"rank", "step"}
        self.table = steps.sort(request.by) if whole else group_steps(steps, request.by)


def _table(shown: _Shown) -> str:
    numbers = shown.steps["step"].unique().to_list()
    found = shown.steps["rank"].unique().to_list()
    heading = f"{shown.run.path}: {format_ranges('rank', found)}, {format_ranges('step', numbers)}"
    table = render_ranks(shown.table, shown.by, shown.layout)
    replayed = render_what_if(shown.cluster.what_if, shown.layout) if shown.what_if else ""
    replayed = f"\n{replayed}" if replayed else ""
    return f"{heading}\n\n{table}{_slowest(shown)}{_together(shown)}{replayed}"


def _together(shown: _Shown) -> str:
    """What the ranks did together; nothing where no two of them met."""
    if shown.cluster.arrivals.is_empty():
        return ""
    groups = render_groups(shown.cluster, shown.layout)
    return f"\n{groups}{render_stragglers(shown.cluster, shown.layout)}"


def _slowest(shown: _Shown) -> str:
    """Who has most to do itself, and in how many steps."""
    steps = slowest(shown.steps)
    if shown.steps["rank"].n_unique() < 2:
        return ""
    counts = steps["slowest_rank"].value_counts(sort=True)
    parts = [
        f"rank {rank} in {count}"
        for rank, count in counts.sort("count", "slowest_rank", descending=[True, False]).rows()
    ]
    return f"Most time of its own (in which it waits for no other rank), of {steps.height} steps: {', '.join(parts)}\n"


def _json(shown: _Shown) -> str:
    identity = {
        "run": str(shown.run.path),
        "by": list(shown.by),
        "steps": sorted(shown.steps["step"].unique()),
    }
    cluster = shown.cluster
    tables = {
        "breakdown": shown.table,
        "collectives": cluster.groups,
        "slow_ranks": cluster.slow_ranks,
        "slow_groups": cluster.slow_groups,
    }
    if shown.what_if:
        tables["what_if"] = cluster.what_if
    by_starts = offsets_by_starts(cluster.collectives)
    clocks = {
        str(rank): {
            "method": at.method,
            "offset_ns": at.offset_ns,
            "drift_ppm": at.drift_ppm,
            "error_ns": at.error_ns,
            "offset_by_starts_ns": by_starts.get(rank),
        }
        for rank, at in sorted(cluster.clocks.items())
    }
    return f"{dumps(document(tables, **identity, clocks=clocks))}\n"


def _csv(shown: _Shown) -> str:
    return shown.table.write_csv()


def _markdown(shown: _Shown) -> str:
    return f"{markdown(shown.table)}\n"


_FORMATS: Mapping[str, Callable[[_Shown], str]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
    "md": _markdown,
}
