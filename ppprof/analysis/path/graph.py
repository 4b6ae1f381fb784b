"""The work of all ranks as one graph on one clock: the critical path of each step, replays.

The latest of a node's predecessors binds: the edge from it takes all the time between the two. Other
edges take the least time that is known. So a replay without a change gives every node its recorded
time, and the edges that bind, back from the end of a step, are as long as the step::

    rank 0   forward====all_reduce|=====        path: forward of rank 1, the transfer, the rest of
    rank 1   forward=========all_r|====         rank 0
                             ^ all have arrived

The ranks of a collective, and the two of a transfer, arrive at one node. An edge leads from it to the
end of each, but not to one that lies before, such as that of a buffered send.

Source: Yang and Miller, "Critical path analysis for the execution of parallel and distributed
programs", ICDCS 1988; Holistic Trace Analysis (github.com/facebookresearch/HolisticTraceAnalysis) has
the same kinds of edges for one rank, with gaps that weigh nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import polars as pl

from ppprof.analysis.path.rank_graph import LABELS, NOT_RECORDED, RankGraph
from ppprof.analysis.profile.module_tree import SEPARATOR
from ppprof.analysis.ranks.collectives import (
    COLLECTIVES,
    KEYS,
    match_collectives,
    with_members,
    with_rank,
)
from ppprof.arrays import Array, Float64, Int32, Int64
from ppprof.choices import StepRange
from ppprof.errors import UsageError
from ppprof.topology import Topology
from ppprof.trace import Clock
from ppprof.trace.fastpath import core

JOB_LABELS: dict[str, pl.DataType] = {
    **LABELS,
    "rank": pl.Int64(),
    "link": pl.String(),
    "axis": pl.String(),
}
"""Columns of the labels of a job's edges: those of `LABELS`; the rank, null between ranks; and the
members and the axis of communication whose ranks all recorded it."""

_NODES_OF_MEETING = ("meeting", "start_node", "end_node")

MEETINGS: dict[str, pl.DataType] = {
    "window": pl.Int64(),
    **{name: COLLECTIVES[name] for name in (*KEYS, "rank")},
    **dict.fromkeys(_NODES_OF_MEETING, pl.Int64()),
}
"""Columns of the collectives that all of their ranks recorded: the window, the keys of
`ppprof.analysis.ranks.collectives.KEYS`, the rank, and three nodes: ``meeting``, at which the last rank
has arrived, and those at which the collective starts and ends on this rank."""

_MOST_NS = 2**62
"""Most time that all edges together may take: times are int64."""
_MOST_TURNS = 64
"""Most events in a row, at one instant and on several threads or streams, that are put in order."""

Part = tuple[int, int, RankGraph]
"""Rank, window, and the graph of it."""


class Graph:
    """N nodes and E edges, sorted so that each edge leads to a later node.

    Args:
        time_ns: time of each node, shape (N,).
        source: node from which each edge leads, shape (E,).
        target: node to which it leads, shape (E,).
        least_ns: least time that an edge takes if it does not bind, shape (E,).
        label: row of each edge in ``labels``, shape (E,).
        root: the node from which an edge is added to each node that no other edge leads to, shape
            (N,); -1 for a root itself. Its number is lower than the node's, and it is not later.
        labels: columns of `JOB_LABELS`; the last row is the label of the added edges.
        ends: the nodes that end steps: rank, window, step, node, begin_ns, the time at which the step
            begins on the rank, and begin_node, the node with which it moves in a replay.
        of_steps: the steps whose paths are asked for; None: all steps.
        meetings: the collectives whose ranks meet at a node: columns of `MEETINGS`; None: none.
    """

    def __init__(
        self,
        time_ns: Int64,
        source: Int32,
        target: Int32,
        least_ns: Int64,
        label: Int32,
        root: Array,
        labels: pl.DataFrame,
        ends: pl.DataFrame,
        of_steps: StepRange | None = None,
        meetings: pl.DataFrame | None = None,
    ) -> None:
        order = _order(time_ns, source, target)
        position = np.empty(len(order), np.int32)
        position[order] = np.arange(len(order), dtype=np.int32)
        source, target = position[source], position[target]
        is_forward = source < target
        self.num_against_time = int((~is_forward).sum())
        """Number of edges that were left out, because they lead back in time: clocks differ."""
        is_reached = np.zeros(len(order), bool)
        is_reached[target[is_forward]] = True
        unreached = np.flatnonzero(~is_reached[position] & (root >= 0))
        source = np.append(source, position[root[unreached]])
        target = np.append(target, position[unreached])
        least_ns = np.append(least_ns, np.zeros(len(unreached), np.int64))
        label = np.append(label, np.full(len(unreached), labels.height - 1, np.int32))
        is_forward = np.append(is_forward, np.ones(len(unreached), bool))
        chosen = np.argsort(target.astype(np.int64) << 32 | source)
        chosen = chosen[is_forward[chosen]] if self.num_against_time else chosen
        self.time_ns: Int64 = time_ns[order]
        """Recorded time of each node, shape (N,)."""
        self.source: Int32 = source[chosen]
        """Node from which each edge leads, shape (E,); the edges to a node lie together."""
        target = target[chosen]
        self.first: Int64 = np.searchsorted(target, np.arange(len(order) + 1))
        """First edge to each node, and the number of edges: shape (N + 1,)."""
        self.label: Int32 = label[chosen]
        """Row of each edge in ``labels``, shape (E,)."""
        self.labels = labels
        """Columns of `JOB_LABELS`."""
        # The last edge to a node comes from the latest source.
        binding = (self.first[1:] - 1).astype(np.int32)
        binding[self.first[1:] == self.first[:-1]] = -1
        self.binding: Int32 = binding
        """The edge that binds each node, shape (N,); -1 for a node without an edge to it."""
        span_ns = self.time_ns[target] - self.time_ns[self.source]
        self.weight_ns: Int64 = np.minimum(least_ns[chosen], span_ns)
        """Time that each edge takes, shape (E,)."""
        binds = binding[binding >= 0]
        self.weight_ns[binds] = span_ns[binds]
        self._of_steps = of_steps or StepRange()
        self._ends = ends.with_columns(
            pl.Series(name, position[ends[name].to_numpy()]) for name in ("node", "begin_node")
        )
        met = pl.DataFrame(schema=MEETINGS) if meetings is None else meetings
        self.meetings = met.with_columns(
            pl.Series(name, position[met[name].to_numpy()]) for name in _NODES_OF_MEETING
        )
        """Columns of `MEETINGS`, one row per collective and rank."""

    @cached_property
    def steps(self) -> pl.DataFrame:
        """The steps that all ranks recorded, sorted by window, then step.

        Those in which the training was paused, as for an evaluation, are left out, unless all were.
        A step ends when its last rank has ended it, and begins where the step before it ends; the
        first of a window, when its last rank has begun it.

        Returns:
            window, step, begin_ns, end_ns, and node: the node that ends the step.
        """
        steps = self._ended(self.time_ns)
        is_whole = pl.col("num_ranks") == self._ends["rank"].n_unique()
        before = pl.col("end_ns").shift().over("window")
        follows = pl.col("step") - pl.col("step").shift().over("window") == 1
        steps = steps.with_columns(begin_ns=pl.when(follows).then(before).otherwise("begin_ns"))
        is_chosen = self._of_steps.contains(pl.col("step"))
        takes_time = pl.col("end_ns") > pl.col("begin_ns")
        steps = steps.filter(is_whole, is_chosen, takes_time)
        unpaused = steps.filter(~pl.col("is_paused"))
        return (steps if unpaused.is_empty() else unpaused).drop("num_ranks", "is_paused")

    def _ended(self, time_ns: Int64) -> pl.DataFrame:
        """Return the steps of any rank for other times of the nodes, with the begin on the last rank."""
        nodes, begins = (self._ends[name].to_numpy() for name in ("node", "begin_node"))
        moved_ns = pl.Series(time_ns[begins] - self.time_ns[begins])
        return (
            self._ends.with_columns(pl.col("begin_ns") + moved_ns, end_ns=pl.Series(time_ns[nodes]))
            .sort("end_ns", "node")
            .group_by("window", "step")
            .agg(
                pl.col("begin_ns").max(),
                pl.col("end_ns", "node").last(),
                pl.col("is_paused").any(),
                num_ranks=pl.col("rank").n_unique(),
            )
            .sort("window", "step")
        )

    def replayed(self, weight_ns: Int64 | None = None, source: Int32 | None = None) -> Int64:
        """Return the time of each node if the edges take other times, shape (N,).

        Args:
            weight_ns: time that each edge takes, shape (E,); None: ``weight_ns`` of the graph, which
                gives the recorded times.
            source: node from which each edge leads, shape (E,); None: ``source`` of the graph.
        """
        weight_ns = self.weight_ns if weight_ns is None else weight_ns
        time_ns: Int64 = self.time_ns.copy()
        arguments = (self.first, self.source if source is None else source, weight_ns, time_ns)
        if core.call("earliest", len(time_ns), *arguments) is None:
            _earliest(*arguments)
        return time_ns

    def apart(self, collectives: pl.DataFrame) -> Int32:
        """Return the source of each edge, shape (E,), if ranks do not wait in some collectives.

        The transfer of such a collective begins on each rank when that rank arrives::

            rank 0   ####[ wait | transfer ]##        ####[ transfer ]##
            rank 1   ##########[ transfer ]##         ##########[ transfer ]##

        Args:
            collectives: the collectives: rows of ``meetings`` with these ``KEYS``.
        """
        met = self.meetings.join(collectives, KEYS, "semi")
        meeting, start, end = (met[name].to_numpy().astype(np.int64) for name in _NODES_OF_MEETING)
        target = np.repeat(np.arange(len(self.time_ns)), np.diff(self.first))
        key = target << 32 | self.source
        wanted = end << 32 | meeting
        edge = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
        # An edge against the clocks' order was left out.
        exists = (key[edge] == wanted) & (start < end) if len(key) else np.zeros(len(edge), bool)
        source: Int32 = self.source.copy()
        source[edge[exists]] = start[exists]
        return source

    def step_ns(self, factors: Float64 | None = None, source: Int32 | None = None) -> Int64:
        """Return the length of each step of ``steps`` in a replay.

        Args:
            factors: what the time of each label's edges is multiplied by, shape (labels,); None: 1.
            source: node from which each edge leads, shape (E,), as of `apart`; None: ``source``.

        Raises:
            UsageError: times would be beyond int64.
        """
        weight_ns = None
        if factors is not None:
            changed_ns = np.rint(self.weight_ns * factors[self.label])
            if (factors > 1).any() and changed_ns.sum() > _MOST_NS:
                raise UsageError("the steps would take many years: expected smaller factors")
            weight_ns = changed_ns.astype(np.int64)
        ended = self._ended(self.replayed(weight_ns, source)).select(
            "window", "step", "begin_ns", "end_ns"
        )
        before = ended.select("window", pl.col("step") + 1, last_ns="end_ns")
        steps = self.steps.select("window", "step")
        for table in (ended, before):
            steps = steps.join(table, ["window", "step"], "left", maintain_order="left")
        length = pl.col("end_ns") - pl.coalesce("last_ns", "begin_ns")
        step_ns: Int64 = steps.select(length).to_series().to_numpy()
        return step_ns

    def label_ns(self, steps: pl.DataFrame) -> Float64:
        """Return the time of the edges of each label that end in some of ``steps``, shape (labels,)."""
        bounds = steps.select("begin_ns", "end_ns").sort("end_ns")
        target_ns = np.repeat(self.time_ns, np.diff(self.first))
        # The first step that ends then or later.
        row = np.searchsorted(bounds["end_ns"].to_numpy(), target_ns)
        begin_ns = np.append(bounds["begin_ns"].to_numpy(), self.time_ns.max(initial=0))[row]
        weight_ns = np.where(target_ns > begin_ns, self.weight_ns, 0)
        return np.bincount(self.label, weight_ns, self.labels.height).astype(np.float64)

    @cached_property
    def paths(self) -> tuple[Int64, Int32, Int64, Int64]:
        """The critical path of each step, from its end back to its begin.

        Returns:
            For each edge of all paths: the row in ``steps``, the edge, and the times between which it
            is on the path. The edges of a step follow each other without a gap, and together they are
            as long as the step.
        """
        buffer = np.empty(len(self.time_ns), np.int32)
        rows, paths = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for row, (node, begin) in enumerate(self.steps.select("node", "begin_ns").rows()):
            arguments = (node, begin, self.binding, self.source, self.time_ns)
            num = core.call("path", *arguments, buffer)
            path = _path(*arguments) if num is None else buffer[:num].copy()
            rows.append(np.full(len(path), row))
            paths.append(path)
        of_step, edge = np.concatenate(rows), np.concatenate(paths)
        first_ns = self.steps["begin_ns"].to_numpy()[of_step]
        target = np.searchsorted(self.first, edge, "right") - 1
        begin_ns: Int64 = np.maximum(self.time_ns[self.source[edge]], first_ns)
        return of_step, edge, begin_ns, self.time_ns[target]

    def pieces(self) -> pl.DataFrame:
        """Return where the critical path is, piece by piece.

        Own code is on its rank. Communication between ranks, and gaps, are where the path goes on.

        Returns:
            begin_ns, end_ns, rank, thread, device, stream, sorted by begin_ns; the pieces of a step
            follow each other without a gap.
        """
        of_step, edge, begin_ns, end_ns = self.paths
        where = ["rank", "thread", "device", "stream"]
        is_known = pl.any_horizontal(pl.col("thread", "device").is_not_null())
        is_known |= (pl.col("kind") == "own code") & pl.col("rank").is_not_null()
        labels = self.labels.select(
            place=pl.when(is_known).then(pl.struct(where)),
        )
        # From the end of each step to its begin: what comes before is where the path goes on.
        place = labels["place"].gather(self.label[edge])
        table = pl.DataFrame(
            {"step": of_step, "begin_ns": begin_ns, "end_ns": end_ns, "place": place}
        )
        filled = pl.col("place").forward_fill().backward_fill().over("step")
        pieces = table.with_columns(filled).filter(pl.col("end_ns") > pl.col("begin_ns"))
        moves = (pl.col("place") != pl.col("place").shift()) | (
            pl.col("step") != pl.col("step").shift()
        )
        return (
            pieces.with_columns(piece=moves.fill_null(value=True).cum_sum())
            .group_by("piece", maintain_order=True)
            .agg(pl.col("begin_ns").min(), pl.col("end_ns").max(), pl.col("place").first())
            .drop("piece")
            .unnest("place")
            .sort("begin_ns")
        )

    def on_path(self, by: str | Sequence[str] = "kind") -> pl.DataFrame:
        """Return what lies on the critical path of an average step.

        Args:
            by: some of `ppprof.choices.PATH_GROUPS`.

        Returns:
            One row per group, the longest first: the groups, strings or integers (an unknown name,
            operator, module or line is the kind in brackets; an unknown rank, link or axis is null);
            time_ns, mean over steps; and ratio, its share of the step. All rows together are the step.
        """
        groups = [by] if isinstance(by, str) else list(by)
        row, path, begin_ns, end_ns = self.paths
        num_labels = max(1, self.labels.height)
        # One sum for each step and label: paths are much longer than there are labels.
        summed_ns = np.bincount(row * num_labels + self.label[path], end_ns - begin_ns)
        key = np.flatnonzero(summed_ns)
        time_ns = summed_ns[key].astype(np.int64)
        table = self._named(groups)[key % num_labels].with_columns(
            step=self.steps["step"].gather(key // num_labels), time_ns=pl.Series(time_ns)
        )
        whole_ns = max(1, int(time_ns.sum()))
        num_steps = max(1, self.steps.height)
        order = ["time_ns", *groups]
        rows: pl.DataFrame = (
            table.group_by(groups)
            .agg(pl.col("time_ns").sum())
            .with_columns(pl.col("time_ns") / num_steps, ratio=pl.col("time_ns") / whole_ns)
            .sort(order, descending=[True, *[False] * len(groups)], nulls_last=True)
        )
        return rows

    def _named(self, groups: Sequence[str]) -> pl.DataFrame:
        """Return the labels with the innermost module, and with a text for the names that are null."""
        innermost = pl.col("module").str.split(SEPARATOR).list.last()
        kind = pl.concat_str(pl.lit("("), pl.col("kind").cast(pl.String), pl.lit(")"))
        named = [name for name in ("name", "operator", "module", "line") if name in groups]
        labels = self.labels.with_columns(innermost) if "module" in groups else self.labels
        return labels.with_columns(pl.coalesce(name, kind) for name in named)


def job_graph(
    parts: Sequence[Part],
    clocks: Mapping[int, Clock] | None = None,
    topology: Topology | None = None,
    steps: StepRange | None = None,
) -> Graph:
    """Return the graph of all ranks.

    Args:
        parts: the graph of each rank and window; at least one.
        clocks: each rank's clock, keyed by rank. Ranks without a clock keep their times.
        topology: the ranks' coordinates; None if unknown.
        steps: the steps whose paths are asked for; None: all steps.
    """
    windows = sorted({window for _, window, _ in parts})
    times, edges, labels, ends = [], [], [pl.DataFrame(schema=JOB_LABELS)], []
    calls: dict[int, list[pl.DataFrame]] = {window: [] for window in windows}
    num_nodes, num_labels = len(windows), 0  # each window begins at a node, and these are the first
    for rank, window, part in parts:
        clock = (clocks or {}).get(rank)
        to_reference = clock.to_reference if clock is not None else np.asarray
        times.append(to_reference(part.time_ns))
        edges.append(
            (
                part.source + np.int32(num_nodes),
                part.target + np.int32(num_nodes),
                part.least_ns,
                part.label + np.int32(num_labels),
            )
        )
        labels.append(part.labels.with_columns(rank=pl.lit(rank, pl.Int64)))
        begin_ns = pl.Series(to_reference(part.steps["begin_ns"].to_numpy()))
        ends.append(
            part.steps.with_columns(
                rank=pl.lit(rank, pl.Int64),
                window=pl.lit(window, pl.Int64),
                begin_ns=begin_ns,
                node=pl.col("node") + num_nodes,
                begin_node=pl.col("begin_node") + num_nodes,
            )
        )
        placed = part.collectives.with_columns(pl.col("start_node", "end_node") + num_nodes)
        calls[window].append(with_rank(placed, rank))
        num_nodes += len(part.time_ns)
        num_labels += part.labels.height
    root = np.repeat([windows.index(window) for _, window, _ in parts], list(map(len, times)))
    root_ns = np.full(len(windows), 2**63 - 1)
    np.minimum.at(root_ns, root, np.concatenate(times))
    time_ns = np.concatenate((root_ns, *times))
    arrived_ns, to_meetings, meeting_labels, meetings = _meetings(
        calls.values(), time_ns, topology, num_labels
    )
    edges.append(to_meetings)
    not_recorded = pl.select(kind=pl.lit(NOT_RECORDED, LABELS["kind"]))
    source, target, least_ns, label = (np.concatenate(columns) for columns in zip(*edges))
    no_root = np.full(len(windows), -1)
    return Graph(
        np.concatenate((time_ns, arrived_ns)),
        source.astype(np.int32),
        target.astype(np.int32),
        least_ns,
        label.astype(np.int32),
        # Ranks arrive at a meeting, so an edge leads to it.
        np.concatenate((no_root, root, np.full(len(arrived_ns), -1))),
        pl.concat([*labels, meeting_labels, not_recorded], how="diagonal"),
        pl.concat(ends),
        steps,
        meetings,
    )


_Edges = tuple[Array, Array, Int64, Array]
"""Source, target, least time and label of some edges."""


def _meetings(
    windows: Iterable[Sequence[pl.DataFrame]],
    time_ns: Int64,
    topology: Topology | None,
    first_label: int,
) -> tuple[Int64, _Edges, pl.DataFrame, pl.DataFrame]:
    """Return the nodes at which all ranks of a collective have arrived, and the edges of these nodes.

    Args:
        windows: for each window, the collectives of its ranks: steps of two may have equal numbers.
        time_ns: the time of each node so far.
        topology: the ranks' coordinates; None if unknown.
        first_label: the number of the first label.

    Returns:
        The time of each node, numbered after those of ``time_ns``; the edges from each rank's start and
        to its end; their labels, numbered from ``first_label``; and columns of `MEETINGS`.
    """
    # The nodes' times are on one clock already.
    matched = pl.concat(
        match_collectives([with_members(pl.concat(calls), topology)], {}).with_columns(
            window=pl.lit(window)
        )
        for window, calls in enumerate(windows)
    )
    start, end = (matched[name].to_numpy() for name in ("start_node", "end_node"))
    is_first = matched.select(
        pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift()) for key in ("window", *KEYS))
    ).to_series()
    first = np.flatnonzero(is_first.to_numpy())
    meeting = np.cumsum(is_first.to_numpy()) - 1
    arrived_ns = np.maximum.reduceat(time_ns[start], first) if len(first) else time_ns[:0]
    group = matched.select("members", "axis", "op")
    labels = group.unique(maintain_order=True)
    numbered = labels.with_columns(label=first_label + pl.int_range(pl.len()))
    label = group.join(numbered, group.columns, maintain_order="left")["label"].to_numpy()
    node = len(time_ns) + meeting
    edges = (
        np.concatenate((start, node)),
        np.concatenate((node, end)),
        np.zeros(2 * len(node), np.int64),
        np.concatenate((label, label)),
    )
    table = labels.select(
        kind=pl.lit("communication", LABELS["kind"]),
        name="op",
        operator="op",
        link="members",
        axis="axis",
    )
    met = matched.with_columns(meeting=pl.Series(node)).select(*MEETINGS)
    return arrived_ns, edges, table, met


def _order(time_ns: Int64, source: Array, target: Array) -> Int64:
    """Return the nodes in order of time, and at one instant in the order of their edges."""
    order = np.argsort(time_ns, kind="stable")
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    at_once = np.flatnonzero(time_ns[source] == time_ns[target])
    before, after = source[at_once], target[at_once]
    is_wrong = position[before] >= position[after]
    if not is_wrong.any():
        return order
    level = np.zeros(len(order), np.int64)
    for _ in range(_MOST_TURNS):
        least = level[before] + is_wrong
        if (level[after] >= least).all():
            break
        np.maximum.at(level, after, least)
    by_level: Int64 = order[np.lexsort((level[order], time_ns[order]))]
    return by_level


def _earliest(first: Int64, source: Int32, weight_ns: Int64, time_ns: Int64) -> None:
    """Do what ``ppprof_earliest`` of graph.c does."""
    bounds, sources, weights = first.tolist(), source.tolist(), weight_ns.tolist()
    times = time_ns.tolist()
    for node, (begin, end) in enumerate(zip(bounds[:-1], bounds[1:])):
        if begin < end:
            times[node] = max(times[sources[edge]] + weights[edge] for edge in range(begin, end))
    time_ns[:] = times


def _path(node: int, begin_ns: int, binding: Int32, source: Int32, time_ns: Int64) -> Int32:
    """Do what ``ppprof_path`` of graph.c does."""
    path = []
    while time_ns[node] > begin_ns and binding[node] >= 0:
        path.append(int(binding[node]))
        node = int(source[binding[node]])
    return np.array(path, np.int32)
