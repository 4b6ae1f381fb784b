"""The critical path of a run's steps: the library behind ``ppprof path``."""

from __future__ import annotations

import logging
from collections.abc import Iterable

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
        InputError: the windows have no event, or no step that takes time.
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
    unaligned = {rank for rank, _, _ in parts}.difference(clocks)
    if len({rank for rank, _, _ in parts}) > 1 and unaligned:
        _log.warning(
            "%s: no clock offset is known for %s; what they wait for of other ranks may be wrong",
            run,
            format_ranges("rank", unaligned),
        )
    graph = job_graph(parts, clocks, run.topology, steps)
    if graph.steps.is_empty() and steps is None:
        raise InputError(f"{run.path}: none of its steps takes any time")
    if graph.steps.is_empty():
        existing = format_ranges(
            "step", {step for _, _, part in parts for step in part.steps["step"]}
        )
        raise UsageError(f"{run.path}: no step of {steps}; it has {existing}")
    if graph.num_against_time:
        _log.info(
            "%s: %d of %d dependencies lead back in time and are left out: buffered sends, or clocks "
            "that differ",
            run,
            graph.num_against_time,
            graph.num_against_time + len(graph.source),
        )
    return graph
