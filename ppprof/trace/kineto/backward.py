"""The backward pass in a Kineto trace: its events, the thread that waits for it, its operators."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.trace.kineto.host_tree import nest_hosts
from ppprof.trace.schema import nullable
from ppprof.trace.step_numbers import steps_at


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
    left out if the caller began or ended an event meanwhile, or if another backward pass ran
    meanwhile.

    Returns:
        key, begin_ns and until_ns of the Backward event; caller_key and caller, the thread's id.
    """
    steps = hosts.filter(pl.col("category") == "ProfileStep")
    callers = steps.select(caller_key="key", caller="thread").unique()
    runs = backward.join(callers, how="cross").sort("start_ns")
    if callers.height != 1:
        runs = runs.clear()
    # If there is one, an event of its thread; else, there are no runs.
    is_own = hosts["key"] == (callers["caller_key"][0] if callers.height else -1)
    own = hosts.select("start_ns", "end_ns").filter(is_own)
    return runs.filter(
        pl.col("key") != pl.col("caller_key"),
        _num_within(own["start_ns"], runs) == 0,
        _num_within(own["end_ns"] - 1, runs) == 0,
        _num_within(runs["start_ns"], runs) <= 1,
        pl.col("start_ns") >= pl.col("end_ns").cum_max().shift(1, fill_value=0),
    ).select("key", "caller_key", "caller", begin_ns="start_ns", until_ns="end_ns")


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
