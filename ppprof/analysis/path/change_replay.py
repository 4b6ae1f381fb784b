"""The step time with some work faster, slower or gone: replays of the graph of all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from ppprof.analysis.diff.naming import normalized
from ppprof.analysis.diff.significance import student
from ppprof.analysis.path.change_language import Change, parse_change
from ppprof.analysis.path.graph import Graph
from ppprof.analysis.path.rank_graph import KINDS
from ppprof.analysis.profile.module_tree import SEPARATOR
from ppprof.analysis.profile.runtime_calls import COPY, LAUNCH, kind_of_call
from ppprof.arrays import Bool, Float64, Int32, Int64
from ppprof.errors import UsageError
from ppprof.trace.operator_inputs import operator_of_gradient

WHAT_IF: dict[str, pl.DataType] = {
    "change": pl.String(),
    "on_path_ns": pl.Float64(),
    "step_ns": pl.Float64(),
    "low_ns": pl.Float64(),
    "high_ns": pl.Float64(),
    "saved_ns": pl.Float64(),
    "saved_ratio": pl.Float64(),
}
"""Columns of `what_if`."""

_WORK = KINDS[: KINDS.index("launch latency")]
"""The kinds that a change of an operator, module, line or rank changes: the others are waits."""
_GRADIENT = re.compile(r"GradNode(Final)?$|(_grad|[bB]ackward\d*)\b")
_STEM = re.compile(r"^aten::|( compute| kernel launch|_?backward\d*|_grad)$")


def what_if(
    graph: Graph, changes: Sequence[Change], roles: Mapping[int, int] | None = None
) -> pl.DataFrame:
    """Return the step time with each change, and with all of them if there are several.

    A change multiplies the time of the edges that it names; then the graph is replayed. Edges that do
    not bind keep the least time that is known of them, so that what was hidden shows.

    Args:
        graph: the graph of all ranks.
        changes: the changes; a rank that is "as usual" is compared with the ranks of its role.
        roles: rank -> its role, such as its pipeline stage; None: all ranks have one role.

    Returns:
        Columns of `WHAT_IF`, one row per change, after a row "as recorded":

        - change: as the user wrote it;
        - on_path_ns: time on the critical path of what changes, mean over steps;
        - step_ns: step time in the replay, mean over steps;
        - low_ns, high_ns: 95% interval of that mean, from the spread of the steps; null for one step;
        - saved_ns: mean over steps of the time saved, below 0 if the change costs time;
        - saved_ratio: share of the recorded step time.

    Raises:
        UsageError: a change names nothing in the graph; the message has what exists. Or times would
            be beyond int64.

    Source: Student's t over the steps of the window.
    """
    recorded_ns = graph.step_ns()
    factors = [factors_of(graph, change, roles or {}, graph.steps) for change in changes]
    cases = [("as recorded", np.ones(graph.labels.height))]
    cases += [(change.text, factor) for change, factor in zip(changes, factors)]
    if len(changes) > 1:
        cases.append(("all of these", np.prod(factors, axis=0)))
    _, path, begin_ns, end_ns = graph.paths
    by_label = np.bincount(graph.label[path], end_ns - begin_ns, graph.labels.height)
    rows = []
    for text, factor in cases:
        try:
            step_ns = graph.step_ns(factor)
        except UsageError as error:
            raise UsageError(f"{text!r}: {error}") from error
        mean, low, high = _interval(step_ns)
        saved_ns = float((recorded_ns - step_ns).mean())
        on_path_ns = float(by_label[factor != 1].sum()) / len(recorded_ns)
        ratio = saved_ns / float(recorded_ns.mean())
        rows.append((text, on_path_ns, mean, low, high, saved_ns, ratio))
    return pl.DataFrame(rows, WHAT_IF, orient="row")


def _interval(step_ns: Int64) -> tuple[float, float | None, float | None]:
    """Return the mean of the steps, and its 95% interval, None for a single step."""
    mean, num = float(step_ns.mean()), len(step_ns)
    if num < 2:
        return mean, None, None
    half = student(num - 1) * float(step_ns.std(ddof=1)) / num**0.5
    return mean, max(0.0, mean - half), mean + half


def factors_of(
    graph: Graph, change: Change, roles: Mapping[int, object], steps: pl.DataFrame
) -> Float64:
    """Return what a change multiplies the time of each label by, shape (labels,).

    Args:
        graph: the graph of all ranks.
        change: the change.
        roles: rank -> its role: a rank's peers have its role.
        steps: the rows of ``graph.steps`` in which a rank is compared with its peers.

    Raises:
        UsageError: the change names nothing in the graph; the message has what exists.
    """
    labels = graph.labels
    is_work = pl.col("kind").is_in(_WORK)
    if change.target == "rank":
        chosen = (pl.col("rank") == int(change.name)) & is_work
        # What a rank waits for of its loader is another finding's, and another change.
        if change.factor is None:
            chosen &= pl.col("kind") != "data loading"
    elif change.target == "link":
        chosen = pl.any_horizontal(
            (pl.col(name) == change.name).fill_null(value=False) for name in ("link", "axis")
        )
    elif change.target == "launches":
        chosen = _launching(labels)
    elif change.target == "name":
        chosen = _named(labels, change.name, "operator", "name") & is_work
        if change.name in KINDS:
            chosen = pl.col("kind") == change.name
    else:
        column = "name" if change.target == "kernel" else change.target
        chosen = _named(labels, change.name, column) & is_work
        if change.target == "kernel":
            chosen &= pl.col("kind").is_in(["kernel", "copy", "communication"])
    mask = labels.select(chosen.fill_null(value=False)).to_series().to_numpy()
    if not mask.any():
        raise UsageError(f"{change.text!r}: {_existing(labels, change)}")
    if change.factor is None:
        return _as_usual(labels, graph.label_ns(steps), int(change.name), mask, roles)
    return np.where(mask, change.factor, 1.0)


def _named(labels: pl.DataFrame, name: str, *columns: str) -> pl.Expr:
    """Return whether a column holds a name: as it is, else without what frameworks add to it.

    An operator, in any spelling, stands for its gradients, too; the name of a gradient for it alone. A
    module holds the names of the modules around it, too.
    """
    texts = pl.concat([labels[column] for column in columns]).unique().drop_nulls().to_list()
    names = {text: text.split(SEPARATOR) for text in texts}
    equal = [text for text in texts if name in names[text]]
    if not equal:
        equal = [text for text in texts if name.lower() in map(_stem, names[text])]
    if "operator" in columns and not _GRADIENT.search(name):
        operators = labels["operator"].unique().drop_nulls()
        equal += [text for text in operators if _stem(text) == _stem(name)]
    return pl.any_horizontal(pl.col(column).is_in(equal) for column in columns)


def _stem(name: str) -> str:
    """Return the name of an operator without what frameworks add to it, in lower case.

    >>> _stem("matmul dygraph"), _stem("Global_MatmulGradNode"), _stem("pd_op.matmul_grad"), _stem("aten::mm")
    ('matmul', 'matmul', 'matmul', 'mm')
    >>> _stem("Local_LayerNormGradNode"), _stem("aten::native_layer_norm_backward"), _stem("global_gather dygraph")
    ('layer_norm', 'native_layer_norm', 'global_gather')
    """
    plain = normalized(name)
    stem = (operator_of_gradient(plain.removeprefix("Local_")) or plain).lower()
    while (shorter := _STEM.sub("", stem)) != stem:
        stem = shorter
    return stem


def _launching(labels: pl.DataFrame) -> pl.Expr:
    """Return what a CUDA graph does without: the launches, their latency, and the operators around."""
    calls = labels.filter(pl.col("kind") == "runtime call")["name"].unique().drop_nulls()
    launches = [name for name in calls if kind_of_call(name) in (LAUNCH, COPY)]
    launched = labels.filter(pl.col("kind") == "launch latency")
    operators = launched["operator"].drop_nulls().unique().to_list()
    return (
        (pl.col("kind") == "launch latency")
        | ((pl.col("kind") == "runtime call") & pl.col("name").is_in(launches))
        | ((pl.col("kind") == "host") & pl.col("operator").is_in(operators))
    )


def _as_usual(
    labels: pl.DataFrame, time_ns: Float64, rank: int, mask: Bool, roles: Mapping[int, object]
) -> Float64:
    """Return the factors that give a rank's labels the median time of its peers' equal labels.

    What most of its peers do not do at all takes no time.
    """
    same = ["kind", "name", "operator", "module", "line"]
    table = labels.select(*same, "rank").with_columns(
        time_ns=pl.Series(time_ns), row=pl.int_range(pl.len()), is_own=pl.Series(mask)
    )
    ranks = [one for one in table["rank"].unique().drop_nulls() if one != rank]
    peers = [one for one in ranks if roles.get(one) == roles.get(rank)]
    if not peers:
        raise UsageError(f"'rank {rank}: as usual': no other rank does the same work")
    totals = (
        table.filter(pl.col("rank").is_in(peers))
        .group_by(*same, "rank")
        .agg(pl.col("time_ns").sum())
    )
    missing = pl.lit(0, pl.Int64).repeat_by(len(peers) - pl.len())
    usual = totals.group_by(same).agg(
        usual_ns=pl.concat_list(pl.col("time_ns").implode(), missing).list.median()
    )
    own = table.filter("is_own")
    whole = own.group_by(same).agg(own_ns=pl.col("time_ns").sum())
    own = own.join(whole, same, "left", nulls_equal=True).join(
        usual, same, "left", nulls_equal=True
    )
    factors = np.ones(labels.height)
    usual_ns = pl.col("usual_ns").fill_null(0)
    factor = own.select(pl.when(pl.col("own_ns") > 0).then(usual_ns / pl.col("own_ns")))
    factors[own["row"].to_numpy()] = factor.to_series().fill_null(1.0).to_numpy()
    return factors


_MOST_NAMES = 8


def _existing(labels: pl.DataFrame, change: Change) -> str:
    """Return the end of a message about a target without labels: what there is."""
    if change.target == "launches":
        return "no launch was recorded"
    column = {"name": "operator", "kernel": "name"}.get(change.target, change.target)
    chosen = labels.filter(pl.col("kind") == "kernel") if change.target == "kernel" else labels
    names = chosen[column].cast(pl.String).str.split(SEPARATOR).explode()
    names = names.drop_nulls().unique().sort().to_list()
    if column == "link":
        names = labels["axis"].drop_nulls().unique().sort().to_list() + names
    shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    noun = {"name": "operator, kernel, span or kind"}.get(change.target, change.target)
    return f"no such {noun}; there are {shown}" if names else f"no {noun} was recorded"


class Replays:
    """The graph of all ranks, replayed with changes.

    Args:
        graph: the graph of all ranks.
        roles: rank -> its role, such as its pipeline stage.
        steps: window and step of the steps whose mean counts.
    """

    def __init__(self, graph: Graph, roles: Mapping[int, str], steps: pl.DataFrame) -> None:
        self._graph, self._roles = graph, roles
        numbered = graph.steps.with_row_index("row")
        self._steps = numbered.join(steps, ["window", "step"], "semi")
        self._factors: dict[str, Float64 | None] = {}
        self.step_ns = self._mean_ns(None)
        """Mean of the steps as recorded; 0 if the graph has none of them."""

    def can_replay(self, changes: Iterable[str]) -> bool:
        """Return whether the graph has what each of the changes names."""
        return all(self._factors_of(change) is not None for change in changes)

    def saved_ns(self, changes: Sequence[str], apart: pl.DataFrame | None = None) -> float:
        """Return what a step gets shorter with all of some changes that can be replayed.

        Args:
            changes: the changes, as of `parse_change`.
            apart: collectives in which ranks do not wait for each other: see `Graph.apart`; None: none.
        """
        factors = [self._factors_of(change) for change in dict.fromkeys(changes)]
        known = [each for each in factors if each is not None]
        product = np.prod(known, axis=0) if known else None
        source = None if apart is None else self._graph.apart(apart)
        return self.step_ns - self._mean_ns(product, source)

    def _factors_of(self, change: str) -> Float64 | None:
        if change not in self._factors:
            try:
                factors = factors_of(self._graph, parse_change(change), self._roles, self._steps)
            except UsageError:  # the graph lacks it
                factors = None
            self._factors[change] = factors
        return self._factors[change]

    def _mean_ns(self, factors: Float64 | None, source: Int32 | None = None) -> float:
        step_ns = self._graph.step_ns(factors, source)[self._steps["row"].to_numpy()]
        return float(step_ns.mean()) if len(step_ns) else 0.0
