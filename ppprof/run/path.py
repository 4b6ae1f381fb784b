"""The critical path of a run's steps: the library behind ``ppprof path``."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from ppprof.analysis.path.graph import Graph, job_graph
from ppprof.analysis.path.rank_graph import RankGraph
from ppprof.analysis.ranks.clock_alignment import align_clocks
from ppprof.analysis.ranks.collectives import COLLECTIVES, with_rank
from ppprof.choices import StepRange
from ppprof.errors import InputError, UsageError
from ppprof.run.base import BaseRun
from ppprof.run.ranks import tables_by_rank, windows_with_steps
from ppprof.run.traces import WindowResult
from ppprof.units import format_ranges

_log = logging.getLogger("ppprof")


def graph_of(
    run: BaseRun, results: Iterable[WindowResult[RankGraph]], steps: StepRange | None = None
) -> Graph:
    """Return the graph of all ranks, from the graph of each window.

    Args:
        run: the run.
        results: the result of `ppprof.analysis.path.rank_graph.rank_graph` for each window.
        steps: only the paths of these steps; None: of all steps.

    Raises:
        UsageError: no such steps; the message names the existing ones.
        InputError: the windows have no event, or no step of all ranks that takes time.
    """
    used = windows_with_steps(
        list(results),
        lambda graph: graph.has_steps,
        lambda graph: graph.steps.is_empty(),
    )
    if not used:
        raise InputError(f"{run.path}: no event in any of its traces")
    parts = [(result.recording.rank, result.recording.window, result.value) for result in used]
    tables = [with_rank(part.collectives.select(*COLLECTIVES), rank) for rank, _, part in parts]
    hosts = dict(run.coordinates.select("rank", "host").iter_rows())
    clocks = align_clocks(tables_by_rank(tables), run.clocks, hosts)
    recorded: dict[int, set[int]] = {}
    for rank, _, part in parts:
        recorded.setdefault(rank, set()).update(part.steps["step"])
    _warn_of_gaps(run, recorded, recorded.keys() - clocks.keys())
    graph = job_graph(parts, clocks, run.topology, steps)
    if graph.steps.is_empty():
        shared = set.intersection(*recorded.values())
        if not shared:
            ranks = format_ranges("rank", recorded)
            raise InputError(
                f"{run.path}: no step was recorded by all of {ranks}: select fewer ranks"
            )
        if steps is None:
            raise InputError(f"{run.path}: none of its steps takes any time")
        raise UsageError(f"{run.path}: no step of {steps}; it has {format_ranges('step', shared)}")
    if graph.num_against_time:
        _log.info(
            "%s: %d of %d dependencies lead back in time and are left out: buffered sends, or clocks "
            "that differ",
            run,
            graph.num_against_time,
            graph.num_against_time + len(graph.source),
        )
    return graph


def _warn_of_gaps(run: BaseRun, recorded: dict[int, set[int]], unaligned: Collection[int]) -> None:
    """Log what the graph cannot show of ranks that wait for each other.

    Args:
        run: the run.
        recorded: rank -> its steps.
        unaligned: the ranks without a known clock offset.
    """
    if unaligned and len(recorded) > 1:
        _log.warning(
            "%s: no clock offset is known for %s; what they wait for of other ranks may be wrong",
            run,
            format_ranges("rank", unaligned),
        )
    world = range(run.topology.world_size if run.topology else 0)
    if missing := set(world).difference(recorded):
        _log.warning(
            "%s: without %s: what other ranks wait for there is unknown",
            run,
            format_ranges("rank", missing),
        )
    shared = set.intersection(*recorded.values())
    if partial := set.union(*recorded.values()) - shared:
        _log.warning(
            "%s: %s left out: not all of %s recorded them",
            run,
            format_ranges("step", partial),
            format_ranges("rank", recorded),
        )
