"""Kineto's host events as the trees of a Paddle trace: threads, categories, parents."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import polars as pl

from ppprof.arrays import Int32, Int64
from ppprof.trace.communication_names import TORCH_SPANS
from ppprof.trace.kineto.terms import DDP, EVALUATE, MODULE, OPERATORS, STEP
from ppprof.trace.labels import Labels, numbered
from ppprof.trace.nesting import nest, order_of_calls
from ppprof.trace.schema import nullable
from ppprof.trace.tree_arrays import pre_order

_MAX_CLIMB = 100
"""Most levels of host events to climb from one to the next; more would take too long."""
_DEEP = -2
"""In place of a row: it is more levels away."""
INNER = pl.lit("OperatorInner", pl.Categorical())
"""The category of an operator that is counted as a part of another."""


def with_threads(*tables: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield each table with ``key``, a number for each thread of each process.

    The numbers ascend by thread id, then by process id. They are the same in all tables.
    """
    runs = [_runs_of_threads(table) for table in tables]
    threads = pl.concat([heads for heads, _ in runs]).unique()
    keys = threads.sort("thread", "process").with_row_index("key").cast({"key": pl.Int64})
    for table, (heads, lengths) in zip(tables, runs):
        key = heads.join(keys, on=["thread", "process"], maintain_order="left")["key"]
        yield table.with_columns(key=np.repeat(key.to_numpy(), lengths))


def _runs_of_threads(table: pl.DataFrame) -> tuple[pl.DataFrame, Int64]:
    """Return thread and process of each run of rows of one thread, and the lengths of the runs.

    The file lists many events of one thread after another.
    """
    thread, process = (table[column].to_numpy() for column in ("thread", "process"))
    is_next = (thread[1:] != thread[:-1]) | (process[1:] != process[:-1])
    first = np.flatnonzero(np.append(table.height > 0, is_next))
    return table.select("thread", "process")[first], np.diff(np.append(first, table.height))


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
        "Operator": cat.cast(pl.String).is_in(list(OPERATORS)),
        "Optimization": name.str.starts_with("Optimizer.step#"),
        "Dataloader": name.str.starts_with("enumerate(DataLoader)#"),
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
    thread, start = hosts["key"].to_numpy(), hosts["start_ns"].to_numpy()
    end = start + hosts["dur_ns"].to_numpy()
    above = hosts["parent"].fill_null(-1).to_numpy()
    keys, times = table["key"].to_numpy(), table["start_ns"].to_numpy()
    parent = _climbed(thread, start, end, above, keys, times)
    rows = np.flatnonzero(parent == _DEEP)
    if len(rows):
        parent[rows] = _enclosing(hosts, end, table[rows])
    return table.with_columns(parent=nullable(parent))


def _climbed(
    thread: Int64, start: Int64, end: Int64, above: Int32, keys: Int64, times: Int64
) -> Int32:
    """Return the row of the innermost enclosing event, -1 for none; `_DEEP` after `_MAX_CLIMB`."""
    parent = np.full(len(times), -1, np.int32)
    for key in np.unique(keys).tolist():
        rows = np.flatnonzero(keys == key)
        first, last = np.searchsorted(thread, (key, key + 1))
        before = np.searchsorted(start[first:last], times[rows], side="right") - 1
        parent[rows] = np.where(before >= 0, first + before, -1)
    # The last host event that began before may have ended. Its parents end later.
    rows = np.flatnonzero(parent >= 0)
    for _ in range(_MAX_CLIMB):
        rows = rows[end[parent[rows]] <= times[rows]]
        parent[rows] = above[parent[rows]]
        rows = rows[parent[rows] >= 0]
    parent[rows[end[parent[rows]] <= times[rows]]] = _DEEP
    return parent


def _enclosing(hosts: pl.DataFrame, end: Int64, table: pl.DataFrame) -> Int32:
    """Return the row of the innermost enclosing event as `with_parent`, for any depth; -1 if none."""
    thread, start = (
        np.concatenate((hosts[column].to_numpy(), table[column].to_numpy()))
        for column in ("key", "start_ns")
    )
    ends = np.concatenate((end, table["start_ns"].to_numpy()))
    parent = nest(thread, start, ends, holds=np.arange(len(start)) < hosts.height)
    return parent[hosts.height :]


def nest_hosts(hosts: pl.DataFrame, slack_ns: int, holds: pl.Series | None = None) -> Int32:
    """Return the row of each event's parent, -1 for an outermost event; see `nest`."""
    return nest(
        *_times(hosts), holds=None if holds is None else holds.to_numpy(), slack_ns=slack_ns
    )


def _times(hosts: pl.DataFrame) -> Iterator[Int64]:
    return (hosts[column].to_numpy() for column in ("key", "start_ns", "end_ns"))
