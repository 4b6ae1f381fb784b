"""Join the events of gradients to the operators whose gradients they are.

::

    step 0  call      [linear] [relu]   [run_backward                             ]
            event      matmul   relu     Global_ReluGradNode  Global_MatmulGradNode
            nodes                        relu's               linear's                  as recorded
    step 1  call      [linear] [relu]   [run_backward ...                             the same order

The nodes are known for the first step of a window. In a later step, a call that computes gradients runs
the same nodes if the same functions have been called ahead of it, back to the first one that created a
node. Whether it does shows in its events: if one has another name than its node, nothing is joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.rundir.operator_calls import RUN_BACKWARD, Backward, Node, OperatorCalls
from ppprof.trace.operator_inputs import operator_of_gradient

_PREFIX = "Global_"
_MOST_TRIED = 8
"""How many calls with the same nodes to compare with."""

_LINKS = {"row": pl.Int64(), "call": pl.Int64(), "operator": pl.String(), "gradients": pl.Int64()}


def links_of_gradients(
    events: pl.DataFrame, operators: pl.DataFrame, recorded: OperatorCalls
) -> pl.DataFrame:
    """Return the operator of each gradient for which it is known.

    Args:
        events: reads category, name, thread, start_ns, dur_ns; see `ppprof.trace.schema.EVENTS`.
        operators: the operators that Python called: row (of ``events``), operator, call (row of the
            recorded calls).
        recorded: the calls.

    Returns:
        row (of the gradient), forward (row of the operator), gradients (how many it computes), int64.
    """
    nodes = pl.DataFrame(list(_nodes_of_events(events, recorded)), _LINKS, orient="row")
    forwards = operators.select(
        "call", operator=_plain(pl.col("operator")), forward=pl.col("row").cast(pl.Int64)
    ).filter(pl.len().over("call", "operator") == 1)
    nodes = nodes.with_columns(_plain(pl.col("operator")))
    links = nodes.join(forwards, on=["call", "operator"])
    # An operator has one gradient; if it seems to have two, one of them is another operator's.
    links = links.filter(pl.len().over("forward") == 1)
    return links.select("row", "forward", "gradients")


def _nodes_of_events(
    events: pl.DataFrame, recorded: OperatorCalls
) -> Iterator[tuple[int, int, str, int]]:
    """Yield the columns of `_LINKS` for each gradient whose node is known."""
    if not recorded.backwards:
        return
    thread = int(recorded.calls[recorded.backwards[0].call, 0])
    functions, backward = _functions(recorded)
    is_run = (functions == backward) & (recorded.calls[:, 0] == thread)
    runs = np.flatnonzero(is_run)
    gradients = _gradients(events, thread, recorded.calls, runs)
    samples = [sample for each in recorded.backwards if (sample := _Sample.of(each, functions))]
    by_names: dict[tuple[str, ...], list[_Sample]] = {}
    for sample in samples:
        by_names.setdefault(sample.names, []).append(sample)
    for number, run in enumerate(runs.tolist()):
        rows, names = gradients.get(run, ([], ()))
        alike = by_names.get(names, [])
        # Usually, each step has as many of them as the first one.
        usual = samples[number % len(samples)] if samples else None
        tried = [usual] if usual in alike else []
        for sample in (*tried, *alike[:_MOST_TRIED]):
            if sample is not None and sample.matches(functions, run):
                for row, node, call in zip(rows, sample.nodes, sample.calls):
                    operator = operator_of_gradient(node.name)
                    if call is not None and operator is not None:
                        yield row, run + call, operator, node.num_gradients
                break


def _functions(recorded: OperatorCalls) -> tuple[Int64, int]:
    """Return a number for the function of each call, and that of `RUN_BACKWARD`."""
    numbers: dict[str, int] = {RUN_BACKWARD: 0}
    of_signatures = [numbers.setdefault(each.name, len(numbers)) for each in recorded.signatures]
    return np.array([*of_signatures, -1])[recorded.calls[:, 3]], numbers[RUN_BACKWARD]


@dataclass(frozen=True, eq=False)
class _Sample:
    """A call that computes gradients, and whose nodes are known."""

    nodes: Sequence[Node]
    calls: Sequence[int | None]
    """The call that created each node, as a row relative to this one; None if unknown."""
    functions: Int64
    """From the first call that created a node to this one."""
    names: tuple[str, ...]
    """Of the events."""

    @classmethod
    def of(cls, backward: Backward, functions: Int64) -> _Sample | None:
        rows = [node.call for node in backward.nodes if 0 <= node.call < backward.call]
        if not rows:
            return None
        return cls(
            backward.nodes,
            [
                node.call - backward.call if 0 <= node.call < backward.call else None
                for node in backward.nodes
            ],
            functions[min(rows) : backward.call + 1],
            tuple(f"{_PREFIX}{node.name}" for node in backward.nodes),
        )

    def matches(self, functions: Int64, run: int) -> bool:
        """Return whether another call, whose events have the same names, runs the same nodes.

        Args:
            functions: those of all calls.
            run: row of the other call.
        """
        begin = run + 1 - len(self.functions)
        return begin >= 0 and np.array_equal(functions[begin : run + 1], self.functions)


def _gradients(
    events: pl.DataFrame, thread: int, calls: Int64, runs: Int64
) -> dict[int, tuple[list[int], tuple[str, ...]]]:
    """Return the rows and names of the gradients within each call that computes gradients, by its row.

    A gradient within a call within another one, as recomputation has it, belongs to the inner one.
    """
    name = pl.col("name").cast(pl.String)
    found = events.select("category", "name", "thread", "start_ns").with_row_index("row")
    is_gradient = (pl.col("category") == "Operator") & name.str.starts_with(_PREFIX)
    found = found.filter((pl.col("thread") == thread) & is_gradient)
    found = found.select("row", "start_ns", name=name).sort("start_ns", maintain_order=True)
    bounds = np.searchsorted(found["start_ns"].to_numpy(), calls[runs, 1:3])
    run_of = np.full(len(found), -1, np.int64)
    for run, (begin, end) in zip(runs, bounds):  # an inner one begins later
        run_of[begin:end] = run
    groups = found.with_columns(run=run_of).group_by("run").agg("row", "name")
    return {run: (rows, tuple(names)) for run, rows, names in groups.rows()}


def _plain(name: pl.Expr) -> pl.Expr:
    """Return a name as ``LayerNorm`` and ``layer_norm`` both have it."""
    return name.str.to_lowercase().str.replace_all("_", "", literal=True)
