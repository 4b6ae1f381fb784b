"""Graphs for tests: of drawn numbers, and of small traces."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import strategies as st

from ppprof.analysis.path.graph import JOB_LABELS, Graph, job_graph
from ppprof.analysis.path.rank_graph import rank_graph
from ppprof.trace import read
from tests.fixtures.timeline import write

ENDS = {
    **dict.fromkeys(("rank", "window", "step", "node", "begin_node", "begin_ns"), pl.Int64),
    "is_paused": pl.Boolean,
}


@st.composite
def edges(draw):
    """Times of nodes, and edges forward in time: (times, [(source, target, least), ...])."""
    times = sorted(draw(st.lists(st.integers(0, 40), min_size=2, max_size=14)))
    pairs = st.tuples(*[st.integers(0, len(times) - 1)] * 2, st.integers(0, 12))
    drawn = draw(st.lists(pairs, max_size=40))
    found = [(min(a, b), max(a, b), least) for a, b, least in drawn if a != b]
    # Each node follows an earlier one, as in the graph of a job.
    chain = [(draw(st.integers(0, node - 1)), node, 0) for node in range(1, len(times))]
    unique = {(source, target): least for source, target, least in [*found, *chain]}
    return times, [(*pair, least) for pair, least in unique.items()]


def graph_of(times, edges, labels=None):
    """The graph of one step from the first node to the last; edge number i has label i."""
    source, target, least = np.array(edges, np.int64).reshape(-1, 3).T
    if labels is None:
        labels = pl.DataFrame(
            {"kind": ["host"] * len(edges), "name": [str(number) for number in range(len(edges))]}
        )
    missing = {name: pl.lit(None, kind) for name, kind in JOB_LABELS.items() if name not in labels}
    labels = labels.with_columns(**missing).select(
        pl.col(name).cast(kind) for name, kind in JOB_LABELS.items()
    )
    last = len(times) - 1
    return Graph(
        np.array(times, np.int64),
        source.astype(np.int32),
        target.astype(np.int32),
        least,
        np.arange(len(edges), dtype=np.int32),
        np.append(-1, np.zeros(last, np.int64)),
        labels,
        pl.DataFrame([(0, 0, 0, last, 0, times[0], False)], ENDS, orient="row"),
    )


def slack_ns(graph):
    """By how much each edge could take longer without delaying the end of its window.

    Work that no end needs has to be over when the last event is.
    """
    until = [int(graph.time_ns.max(initial=0))] * len(graph.time_ns)
    for node in graph.steps.group_by("window").agg(pl.col("node").last())["node"]:
        until[node] = int(graph.time_ns[node])
    target = np.repeat(np.arange(len(until)), np.diff(graph.first)).tolist()
    source, weight_ns = graph.source.tolist(), graph.weight_ns.tolist()
    for edge in reversed(range(len(source))):  # those to later nodes first
        until[source[edge]] = min(until[source[edge]], until[target[edge]] - weight_ns[edge])
    return np.array(until)[target] - graph.time_ns[graph.source] - graph.weight_ns


def job(folder, *ranks, clocks=None, topology=None, windows=1):
    """The graph of a job: for each rank its threads, as `tests.fixtures.timeline` draws them.

    Several windows are the same one again, an hour later each.
    """
    graphs = [
        rank_graph(read(write(folder / f"{rank}.pb", *threads)))
        for rank, threads in enumerate(ranks)
    ]
    hour_ns = 3600 * 10**9
    parts = [
        (
            rank,
            window,
            graph._replace(
                time_ns=graph.time_ns + window * hour_ns,
                steps=graph.steps.with_columns(pl.col("begin_ns") + window * hour_ns),
            ),
        )
        for window in range(windows)
        for rank, graph in enumerate(graphs)
    ]
    return job_graph(parts, clocks, topology)
