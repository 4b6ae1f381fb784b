"""The line of the user's code that calls each collective of a rank, from samples of the stack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.intervals import covered_within
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import sampled_steps, samples_by_line
from ppprof.analysis.ranks.collectives import placed_collectives
from ppprof.analysis.ranks.step_breakdown import computation_of
from ppprof.arrays import Bool, Int64

COLLECTIVE_LINES = {
    "op": pl.String,
    "step": pl.Int64,
    "index": pl.Int64,
    "start_ns": pl.Int64,
    "line": pl.String,
    "guess": pl.Int64,
    "inside": pl.String,
    "is_named": pl.Boolean,
    "backward": pl.Int64,
    "nodes": pl.Int64,
    "update": pl.Int64,
    "num_optimizers": pl.Int64,
    "exposed_ns": pl.Int64,
}
"""Columns of a table with one row per collective of one rank:

- ``op``, ``step``, ``index``, ``start_ns``: as in `ppprof.analysis.ranks.collectives.COLLECTIVES`;
- ``line``: the user's line that calls it (`ppprof.analysis.profile.python_lines.line_name`); null if
  unknown;
- ``guess``: how the line is known, from 0, the surest: see `collective_lines`; null if it is unknown;
- ``inside``: ``Backward``, ``Optimization`` or ``Forward``, the phase or layer around the call; "" outside.
  ``Forward``, too, for the calls of a sync_batch_norm and of its gradient, which need the results;
- ``is_named``: whether the call records its ranks, as all functions of ``paddle.distributed`` do, and the
  reducer of DataParallel does not;
- ``backward``: a number of the Backward around it; null outside;
- ``nodes``: a number of the gradients that this Backward computes: equal for those of micro-batches; null outside;
- ``update``: when the update of parameters that follows it begins, ns on the rank's clock; null behind the last one,
  and ahead of the first one if the window may begin in the middle of its micro-batches;
- ``num_optimizers``: how many optimizers step one after another in that update; null without one;
- ``exposed_ns``: its time without that of computation."""

_LEAST_SHARE = 0.1
"""Least share of the samples in collectives of a kind that its line has: others are of neighbours."""

_KIND = ("op", "inside", "bytes")
"""What collectives of one line have in common, but for loops over tensors of several sizes."""
_LOOP = ("op", "inside")
"""What those of such a loop have in common."""
_LEAST_SIZES = 3
"""Least number of sizes of a loop over tensors."""


def collective_lines(profile: Profile) -> pl.DataFrame:
    """Return the lines that call the collectives of a window: columns of `COLLECTIVE_LINES`.

    Samples are in the longer calls only. So a call has the line of most samples in it (guess 0); without
    any, that of calls that come as the same one of a step in others (1); else that of its kind, if all
    samples in calls of the kind are in one line (2); and that of a loop over tensors of other sizes (3)::

        step 1   [a......] [b]   [b.......]          samples 65 in a, 70 in b
        step 2   [a] [b.....] [b]                    a has line 65, b line 70
    """
    placed = placed_collectives(profile)
    if placed.is_empty():
        return pl.DataFrame(schema=COLLECTIVE_LINES)
    tree, events = profile.whole_tree, profile.whole_tree.events
    row = placed["first_row"].to_numpy()
    is_device = row >= events.first_device
    host = row.copy()
    host[is_device] = events.host_of_device[row[is_device] - events.first_device]
    inside = np.full(len(row), "", dtype="<U12")
    backward = np.append(tree.innermost(events.host_rows("Backward")), -1)[host]
    for phase in ("Forward", "Optimization"):
        inside[np.append(tree.innermost(events.host_rows(phase)), -1)[host] >= 0] = phase
    inside[backward >= 0] = "Backward"
    inside[_is_in_sync_batch_norm(tree, host)] = "Forward"
    start_ns, end_ns = (placed[name].to_numpy() for name in ("start_ns", "end_ns"))
    hidden_ns = covered_within(computation_of(profile), start_ns, end_ns)
    calls = placed.select(
        *("op", "step", "index", "start_ns", "bytes"),
        inside=pl.Series(inside, dtype=pl.String),
        is_named=pl.col("members").is_not_null(),
        backward=pl.Series(backward, dtype=pl.Int64),
        nodes=pl.Series(_nodes(tree)[backward], dtype=pl.Int64),
        exposed_ns=pl.col("end_ns") - pl.col("start_ns") - pl.Series(hidden_ns, dtype=pl.Int64),
    ).with_columns(pl.when(pl.col("backward") >= 0).then(name) for name in ("nodes", "backward"))
    calls = calls.with_columns(_updates(profile, calls))
    known = host >= 0
    begin_ns = np.where(is_device & known, events.start_ns[host], start_ns)
    until_ns = np.where(is_device & known, events.ends(host), end_ns)
    calls = calls.with_columns(_lines(calls, _votes(profile, begin_ns, until_ns, known)))
    return calls.select(pl.col(name).cast(dtype) for name, dtype in COLLECTIVE_LINES.items())


def _is_in_sync_batch_norm(tree: Tree, host: Int64) -> Bool:
    """Return whether each of some host events is below a synchronized batch norm, or its gradient; -1 is not."""
    operators = tree.events.host_rows("Operator")
    names = tree.events.names.take(operators)
    is_norm = names.where(lambda name: "syncbatchnorm" in name.lower().replace("_", ""))
    norms = tree.innermost(operators[is_norm])
    return np.append(norms, -1)[host] >= 0


def _nodes(tree: Tree) -> Int64:
    """Return a number of the gradients that each host event computes, shape (hosts + 1,), the last one 0.

    Backwards with the same nodes in the same order have the same number.
    """
    events = tree.events
    operators = events.host_rows("Operator")
    names = events.names.take(operators)
    is_node = names.where(lambda name: "gradnode" in name.lower())
    around = tree.innermost(events.host_rows("Backward"))[operators[is_node]]
    kinds: dict[tuple[int, ...], int] = {}
    numbers = np.zeros(events.num_hosts + 1, np.int64)
    rows = pl.DataFrame(
        {
            "backward": around.astype(np.int64),
            "start_ns": events.start_ns[operators[is_node]],
            "name": names.number[is_node].astype(np.int64),
        }
    ).filter(pl.col("backward") >= 0)
    for backward, nodes in rows.sort("start_ns").group_by("backward").agg("name").iter_rows():
        numbers[backward] = kinds.setdefault(tuple(nodes), len(kinds) + 1)
    return numbers


def _updates(profile: Profile, calls: pl.DataFrame) -> list[pl.Series]:
    """Return the columns update and num_optimizers of each call: optimizers in a row update together."""
    phases = profile.outermost.filter(pl.col("category").is_in(["Backward", "Optimization"]))
    phases = phases.with_columns(step=profile.step.gather(phases["row"])).sort("start_ns")
    is_optimizer = (phases["category"] == "Optimization").to_numpy()
    is_first = is_optimizer & ~np.append(False, is_optimizer)[:-1]
    begins_ns = phases["start_ns"].to_numpy()[is_first]
    number = np.searchsorted(begins_ns, calls["start_ns"].to_numpy())
    num_optimizers = np.bincount(np.cumsum(is_first)[is_optimizer] - 1, minlength=len(begins_ns))
    updates = pl.DataFrame(
        {
            "number": np.arange(len(begins_ns)),
            "update": begins_ns,
            "num_optimizers": num_optimizers,
        },
        dict.fromkeys(("number", "update", "num_optimizers"), pl.Int64),
    )
    # Some steps are only micro-batches, so the window may begin in the middle of an update.
    reducing = calls.filter(pl.col("inside") == "Backward")["step"]
    if not reducing.is_in(phases["step"].filter(pl.Series(is_first)).implode()).all():
        updates = updates.slice(1)
    numbers = pl.DataFrame({"number": pl.Series(number, dtype=pl.Int64)})
    joined = numbers.join(updates, "number", "left", maintain_order="left")
    return joined.select("update", "num_optimizers").get_columns()


def reductions_of_lines(tables: Iterable[pl.DataFrame]) -> dict[str, int]:
    """Return line -> how many of its Backwards reduce the same gradients for each update of parameters.

    ::

        Backward       B r  B r  B r  U       3: r is a reduction of DataParallel
        two models     G r  D r  U U          unknown: no_sync() would lose the gradients of one

    Args:
        tables: columns of `COLLECTIVE_LINES`, of each rank.

    Returns:
        The number that more than half of a line's updates have. Lines without one are left out, and those
        that may train several models: Backwards of an update have other lines, compute other gradients, reduce
        another number of buffers, or are not more than the optimizers.
    """
    counts = [pl.DataFrame(schema={"line": pl.String, "num": pl.Int64, "is_one": pl.Boolean})]
    num, num_optimizers = pl.len().cast(pl.Int64), pl.col("num_optimizers").first()
    is_alike = [pl.col(name).n_unique() == 1 for name in ("line", "nodes", "num")]
    for table in tables:
        reducing = table.filter(pl.col("inside") == "Backward", ~pl.col("is_named"))
        backwards = (
            reducing.drop_nulls("update")
            .group_by("update", "backward")
            .agg(
                pl.col("line").drop_nulls().mode().sort().first(),
                pl.col("nodes", "num_optimizers").first(),
                num=pl.len(),
            )
        )
        updates = backwards.group_by("update").agg(
            lines=pl.col("line").unique(),
            num=num,
            is_one=pl.all_horizontal(is_alike) & ((num == 1) | (num > num_optimizers)),
        )
        counts.append(updates.explode("lines").select("num", "is_one", line="lines"))
    of_lines = pl.concat(each.select("line", "num", "is_one") for each in counts)
    of_lines = of_lines.drop_nulls("line").with_columns(all=pl.len().over("line"))
    of_lines = of_lines.filter(pl.col("is_one").all().over("line"))
    most = of_lines.group_by("line", "num").agg(pl.col("all").first(), same=pl.len())
    most = most.filter(2 * pl.col("same") > pl.col("all"))
    return dict(most.select("line", "num").iter_rows())


def _votes(profile: Profile, begin_ns: Int64, until_ns: Int64, known: Bool) -> pl.DataFrame:
    """Return the samples in calls: row of the call, name of the line and dur_ns."""
    sampled = sampled_steps(profile)
    rows = np.flatnonzero(known)
    if sampled is None or not len(rows):
        return pl.DataFrame(schema={"row": pl.Int64, "name": pl.String, "dur_ns": pl.Int64})
    samples = samples_by_line(sampled).filter("is_step")
    rows = rows[np.argsort(begin_ns[rows], kind="stable")]
    time_ns = samples["time_ns"].to_numpy()
    place = np.searchsorted(begin_ns[rows], time_ns, "right") - 1
    row = rows[np.maximum(place, 0)]
    is_in = (place >= 0) & (time_ns < until_ns[row])
    votes = samples.select("name", "dur_ns", row=pl.Series(row, dtype=pl.Int64))
    return votes.filter(pl.Series(is_in))


def _lines(calls: pl.DataFrame, votes: pl.DataFrame) -> list[pl.Series]:
    """Return the columns line and guess of each call, by the samples in calls."""
    calls = calls.with_columns(pl.col("bytes").fill_null(-1)).with_row_index("row")
    calls = calls.with_columns(pl.col("row").cast(pl.Int64))
    votes = votes.join(calls, "row")
    share = pl.col("dur_ns").sum().over(*_KIND, "name") / pl.col("dur_ns").sum().over(_KIND)
    votes = votes.filter(share >= _LEAST_SHARE)
    of_one = votes.filter(pl.col("name").n_unique().over(_KIND) == 1)
    loops = calls.filter(pl.col("bytes").n_unique().over(_LOOP) >= _LEAST_SIZES)
    of_loop = votes.filter(pl.col("name").n_unique().over(_LOOP) == 1).join(loops, "row", "semi")
    guesses = [
        _most(calls, votes, ["row"]),
        _most(calls, votes, [*_KIND, "index"]),
        _most(calls, of_one, _KIND),
        _most(calls, of_loop, _LOOP),
    ]
    table = pl.DataFrame({str(number): guess for number, guess in enumerate(guesses)})
    surest = [pl.when(pl.col(name).is_not_null()).then(int(name)) for name in table.columns]
    return table.select(
        line=pl.coalesce(table.columns), guess=pl.coalesce(surest).cast(pl.Int64)
    ).get_columns()


def _most(calls: pl.DataFrame, votes: pl.DataFrame, key: Sequence[str]) -> pl.Series:
    """Return the line with most samples in calls of an equal key, of each call; null without samples."""
    totals = votes.group_by(*key, "name").agg(pl.col("dur_ns").sum())
    first = totals.sort("dur_ns", "name", descending=[True, False])
    first = first.unique(list(key), keep="first", maintain_order=True)
    return calls.join(first, list(key), "left", maintain_order="left")["name"]
