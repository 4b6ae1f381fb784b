"""Kineto's host events as the trees of a Paddle trace: threads, categories, parents.

And the backward pass in them: its events, the thread that waits for it, the operators it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import polars as pl

from ppprof.arrays import Int32, Int64
from ppprof.trace.communication_names import TORCH_SPANS
from ppprof.trace.kineto.names import DDP, EVALUATE, MODULE, OPERATORS, STEP
from ppprof.trace.labels import Labels, numbered
from ppprof.trace.nesting import innermost, nest, numbered_threads, order_of_calls
from ppprof.trace.schema import nullable
from ppprof.trace.steps import steps_at
from ppprof.trace.tree_arrays import pre_order

INNER = pl.lit("OperatorInner", pl.Categorical())
"""The category of an operator that is counted as a part of another."""


def with_threads(*tables: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield each table with ``key``, a number for each thread of each process; see `numbered_threads`."""
    threads = ((table["thread"].to_numpy(), table["process"].to_numpy()) for table in tables)
    for table, key in zip(tables, numbered_threads(*threads)):
        yield table.with_columns(key=key.astype(np.int64))


def categorised(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return the events with ``category``, ``name`` as Paddle gives it, and ``node``.

    The category follows from ``cat`` and the recorded name. ``node`` is the name of the node that
    an event of the autograd engine evaluates; null for other events.
    """
    cats, names = (Labels.of(hosts[column]) for column in ("cat", "name"))
    pairs = cats.number.astype(np.int64) * len(names.texts) + names.number
    number, first = numbered(pairs, len(cats.texts) * len(names.texts))
    kinds = hosts.select("cat", "name")[first]
    cat, name = pl.col("cat"), pl.col("recorded")
    is_module = cat == "python_function"
    has_modules = kinds.select(is_module.any()).item()
    rules = {
        "ProfileStep": name.str.starts_with(STEP),
        "Forward": is_module | (name == DDP) & (not has_modules),
        "Communication": name.str.contains(TORCH_SPANS),
        # Before torch 1.10, these marks have the category of operators.
        "Optimization": name.str.starts_with("Optimizer.step#"),
        "Dataloader": name.str.starts_with("enumerate(DataLoader)#"),
        "Operator": cat.cast(pl.String).is_in(list(OPERATORS))
        & ~name.str.starts_with("Optimizer.zero_grad#"),
        "PythonUserDefined": pl.lit(True),
    }
    category = pl.coalesce(pl.when(rule).then(pl.lit(kind)) for kind, rule in rules.items())
    plain = name.str.replace(f"^{STEP}", "ProfileStep#").str.replace(
        rf"^{re.escape(MODULE)}(.*?)(_\d+)?$", "$1"
    )
    kinds = (
        kinds.with_columns(recorded=pl.col("name").cast(pl.String))
        .with_columns(category=category, plain=plain)
        .with_columns(
            node=pl.when(pl.col("plain").str.starts_with(EVALUATE)).then(
                pl.col("plain").str.strip_prefix(EVALUATE)
            )
        )
        .select(pl.col("category", "plain", "node").cast(pl.Categorical()))
        .rename({"plain": "name"})
    )
    return hosts.drop("cat", "name").with_columns(kinds[number])


def nested(hosts: pl.DataFrame, slack_ns: int) -> pl.DataFrame:
    """Return the host events in pre-order, with parent and depth.

    Duplicates (`_is_duplicate`) are left out. A node inside its own evaluate_function becomes
    OperatorInner.
    """
    hosts = in_order_of_calls(hosts)
    parent = nest_hosts(hosts, slack_ns)
    is_duplicate = _is_duplicate(hosts, parent)
    if is_duplicate.any():
        hosts = hosts.filter(~is_duplicate)
        parent = nest_hosts(hosts, slack_ns)
    _, depth = pre_order(parent)
    evaluated = hosts["node"].gather(nullable(parent))
    return hosts.with_columns(
        parent=nullable(parent),
        depth=pl.Series(depth),
        category=pl.when(pl.lit(evaluated) == pl.col("name")).then(INNER).otherwise("category"),
    )


def in_order_of_calls(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return the host events sorted by key, start, descending length and index."""
    order = order_of_calls(*_times(hosts))
    return hosts if order is None else hosts[order]


def _is_duplicate(hosts: pl.DataFrame, parent: Int32) -> pl.Series:
    """Return a mask of the operators that are the only child of an event with the same name.

    The dispatcher passes through several layers under one name. ``key_averages()`` also counts
    these layers as one call (``_remove_dup_nodes`` of torch/autograd/profiler_util.py).
    """
    num_children = np.bincount(parent[parent >= 0], minlength=len(parent))
    above = hosts["name"].gather(nullable(parent))
    is_same = ((hosts["name"] == above) & (hosts["category"] == "Operator")).fill_null(False)
    return is_same & pl.Series((parent >= 0) & (num_children[parent] == 1))


def slack_of(hosts: pl.DataFrame) -> int:
    """Return 1000 if all times are in whole microseconds, as until torch 2.3; else 0."""
    for rows in (hosts.head(1000), hosts):  # usually, the first ones decide
        if not all(rows.select((pl.col("start_ns", "dur_ns") % 1000 == 0).all()).row(0)):
            return 0
    return 1000


def with_parent(hosts: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Return ``table`` with ``parent``: the row in ``hosts`` of the innermost enclosing event.

    ``parent`` is null for events that began outside of all host events of their thread.

    Args:
        hosts: from `nested`.
        table: reads key and start_ns.
    """
    key, start = (table[column].to_numpy() for column in ("key", "start_ns"))
    parent = innermost(tuple(_times(hosts)), (key, start, start))
    return table.with_columns(parent=nullable(parent))


def nest_hosts(hosts: pl.DataFrame, slack_ns: int, holds: pl.Series | None = None) -> Int32:
    """Return the row of each event's parent, -1 for an outermost event; see `nest`."""
    return nest(
        *_times(hosts), holds=None if holds is None else holds.to_numpy(), slack_ns=slack_ns
    )


def _times(hosts: pl.DataFrame) -> Iterator[Int64]:
    return (hosts[column].to_numpy() for column in ("key", "start_ns", "end_ns"))


def backward_events(hosts: pl.DataFrame, slack_ns: int) -> pl.DataFrame:
    """Return a Backward event around each run of autograd nodes; Kineto records no such event.

    A run belongs to one thread. It ends when the thread with the steps begins another outermost
    event, since that thread waits for the backward pass to end. In a file without steps, a run ends
    when any thread begins another outermost event::

        thread with steps   aten::mm  mse_loss                    Optimizer.step
        thread of engine                        evaluate evaluate
                                                Backward---------
    """
    is_node = hosts["node"].is_not_null()
    outside = pl.Series(nest_hosts(hosts, slack_ns, holds=is_node) < 0)
    columns = ("key", "thread", "process", "start_ns", "end_ns")
    nodes = hosts.select(columns).filter(is_node & outside).sort("key", "start_ns")
    with_steps = hosts.filter(pl.col("category") == "ProfileStep")["key"].unique()
    others = hosts.select("key", "start_ns").filter(outside & ~is_node)
    if len(with_steps):
        others = others.filter(pl.col("key").is_in(with_steps.to_list()))
    gaps = nodes.select(start_ns=pl.col("end_ns").shift(1, fill_value=0), end_ns="start_ns")
    is_first = nodes["key"] != nodes["key"].shift(1, fill_value=-1)
    run = (is_first | (_num_within(others["start_ns"], gaps) > 0)).cum_sum().alias("run")
    return (
        nodes.group_by(run, maintain_order=True)
        .agg(pl.col("key", "thread", "process", "start_ns").first(), pl.col("end_ns").max())
        .drop("run")
        .with_columns(
            index=pl.lit(-1, pl.Int64),
            name=pl.lit("Backward", pl.Categorical()),
            category=pl.lit("Backward", pl.Categorical()),
            dur_ns=pl.col("end_ns") - pl.col("start_ns"),
        )
    )


def backward_calls(backward: pl.DataFrame, hosts: pl.DataFrame) -> pl.DataFrame:
    """Return the Backward events on a thread of the autograd engine, with the thread that waits.

    The waiting thread is the caller. It must be the only thread with steps. A Backward event is
    left out if the caller began or ended an event meanwhile that is not in a node, or if another
    backward pass ran meanwhile on a third thread.

    Returns:
        key, begin_ns and until_ns of the Backward event; caller_key and caller, the thread's id.
    """
    steps = hosts.filter(pl.col("category") == "ProfileStep")
    callers = steps.select(caller_key="key", caller="thread").unique()
    runs = backward.join(callers, how="cross").sort("start_ns")
    if callers.height != 1:
        runs = runs.clear()
    runs = runs.filter(pl.col("key") != pl.col("caller_key"))
    own = _outside_nodes(hosts, callers["caller_key"])
    return runs.filter(
        _num_within(own["start_ns"], runs) == 0,
        _num_within(own["end_ns"] - 1, runs) == 0,
        _num_within(runs["start_ns"], runs) <= 1,
        pl.col("start_ns") >= pl.col("end_ns").cum_max().shift(1, fill_value=0),
    ).select("key", "caller_key", "caller", begin_ns="start_ns", until_ns="end_ns")


def _outside_nodes(hosts: pl.DataFrame, keys: pl.Series) -> pl.DataFrame:
    """Return start_ns and end_ns of the events of some threads that are not in an autograd node."""
    own = hosts.filter(pl.col("key").is_in(keys.implode())).sort(
        "start_ns", "end_ns", descending=[False, True]
    )
    node_end = pl.when(pl.col("node").is_not_null()).then("end_ns").otherwise(0)
    return own.filter(pl.col("start_ns") >= node_end.cum_max()).select("start_ns", "end_ns")


def with_called(backward: pl.DataFrame, calls: pl.DataFrame, hosts: pl.DataFrame) -> pl.DataFrame:
    """Return the Backward events with one for each backward pass of a caller.

    The engine runs the nodes of the CPU on the calling thread, such as GraphRoot, meanwhile::

        caller    GraphRoot   AccumulateGrad         aten::add
        engine        MmBackward0   MmBackward0
        Backward  ---------------------------
    """
    if calls.is_empty():
        return backward
    caller_key, caller = calls.select("caller_key", "caller").row(0)
    begins = calls.select("key", start_ns="begin_ns", is_called=pl.lit(value=True))
    called = backward.join(begins, ["key", "start_ns"], "left", maintain_order="left")
    called = called.with_columns(pl.col("is_called").fill_null(value=False))
    own = called.filter(pl.col("is_called") | (pl.col("key") == caller_key)).sort("start_ns")
    gaps = own.select(
        start_ns=pl.col("end_ns").cum_max().shift(1, fill_value=0), end_ns="start_ns"
    ).with_columns(end_ns=pl.max_horizontal("start_ns", "end_ns"))
    others = _outside_nodes(hosts, calls["caller_key"].head(1))
    passes = (pl.lit(_num_within(others["start_ns"], gaps)) > 0).cum_sum().alias("pass")
    merged = (
        own.with_columns(passes)
        .group_by("pass", maintain_order=True)
        .agg(pl.exclude("end_ns").first(), pl.col("end_ns").max())
        .with_columns(
            key=pl.lit(caller_key, pl.Int64),
            thread=pl.lit(caller, pl.Int64),
            dur_ns=pl.col("end_ns") - pl.col("start_ns"),
        )
    )
    rest = called.filter(~pl.col("is_called") & (pl.col("key") != caller_key))
    return pl.concat([merged.select(backward.columns), rest.select(backward.columns)])


def with_caller(table: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return ``table`` with the rows in a called Backward moved to the thread of its caller.

    So the step contains all work of the backward pass, as in
    Paddle, whose backward pass runs on the calling thread. HTA's call graph also hangs the engine's
    stack below the caller's.

    Args:
        table: events; changes key and thread.
        calls: from `backward_calls`.
    """
    recorded, start = table["key"].to_numpy(), table["start_ns"].to_numpy()
    key, thread = recorded, table["thread"].to_numpy()
    for (engine,), runs in calls.group_by("key"):
        spans = runs.select(start_ns="begin_ns", end_ns="until_ns", step="caller_key")
        rows = np.flatnonzero(recorded == engine)
        rows = rows[steps_at(spans.sort("start_ns"), start[rows]) >= 0]
        if len(rows):
            key, thread = key.copy(), thread.copy()
            key[rows], thread[rows] = runs["caller_key"][0], runs["caller"][0]
    return table.with_columns(pl.Series("key", key), pl.Series("thread", thread))


def forwards(hosts: pl.DataFrame, numbered: pl.DataFrame) -> pl.Series:
    """Return the row of the operator that made each node of the backward pass; null if unknown.

    Each thread counts the nodes it makes. Until a node is made, all operators record its number. So
    the last operator with a number made that node::

        aten::linear 7                      evaluate_function: AddmmBackward0 8
          aten::t 7      makes node 7         AddmmBackward0 8
          aten::addmm 8  makes node 8       evaluate_function: TBackward0 7

    Nodes that sum up gradients (AccumulateGrad) have no number. A node names the thread that
    counted it, by a number that torch gives to threads and no other event holds. The thread with
    this number is taken to be the one that recorded the most sequence numbers of such nodes. If
    several threads recorded equally many, the operators are unknown.

    Args:
        hosts: N rows; reads index and start_ns.
        numbered: index, sequence, forward_thread (0 for events that are not nodes) and counter, the
            thread that counts the nodes made in the event.

    Returns:
        int64, shape (N,).

    Source: generateForwardBackwardLink in torch/csrc/profiler/collection.cpp.
    """
    numbered = (
        hosts.select("index", "start_ns", row=pl.int_range(pl.len()))
        .join(numbered, on="index", maintain_order="left")
        .drop_nulls("sequence")
    )
    is_node = (pl.col("forward_thread") > 0).fill_null(False)
    makers = (
        numbered.filter(~is_node)
        .sort("start_ns", maintain_order=True)
        .unique(["counter", "sequence"], keep="last")
        .select("counter", "sequence", forward="row", begun_ns="start_ns")
    )
    links = (
        numbered.filter(is_node)
        .select("forward_thread", "sequence", "row", "start_ns")
        .join(makers, on="sequence")
        .filter(pl.col("begun_ns") < pl.col("start_ns"))
    )
    counters = links.group_by("forward_thread", "counter").len()
    most = pl.col("len") == pl.col("len").max().over("forward_thread")
    counters = counters.filter(most).filter(pl.len().over("forward_thread") == 1)
    links = links.join(counters, on=["forward_thread", "counter"], how="semi")
    forward = np.full(hosts.height, -1, np.int32)
    forward[links["row"].to_numpy()] = links["forward"].to_numpy()
    return nullable(forward)


def _num_within(times: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """Return the number of times that lie in [start_ns, end_ns) of each span."""
    starts, ends = (spans[side].to_numpy() for side in ("start_ns", "end_ns"))
    ascending = times.sort().to_numpy()
    return pl.Series(np.searchsorted(ascending, ends) - np.searchsorted(ascending, starts))
