"""What a rank waits for in its remote calls, and why: the function, the way there and back, or their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

from ppprof.analysis.advice.finding import Fact
from ppprof.analysis.profile.intervals import (
    Intervals,
    covered_within,
    difference,
    together,
    union,
)
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import call_lines
from ppprof.analysis.profile.remote_flows import remote_flows, wait_spans
from ppprof.arrays import Int64
from ppprof.remote_names import WAIT

REMOTE_WAITS = {
    "step": pl.Int64,
    "name": pl.String,
    "function": pl.String,
    "worker": pl.String,
    "sent_ns": pl.Int64,
    "received_ns": pl.Int64,
    "function_ns": pl.Int64,
    "is_awaited": pl.Boolean,
    "waits_ns": pl.Int64,
    "sending_ns": pl.Int64,
    "recording_ns": pl.Int64,
    "line": pl.String,
    "function_line": pl.String,
    "num_bytes": pl.Int64,
    "num_objects": pl.Int64,
}
"""Columns of a table with one row per remote call of a rank in a step, by the time it was sent:

- ``name``: ``rpc#encode(worker0 -> worker1)``, with the ``function`` encode and the ``worker`` worker1;
- ``sent_ns``, ``received_ns``: on the rank's clock;
- ``function_ns``: how long the function ran; null if unknown;
- ``is_awaited``: whether the thread of the steps waits for it, if only for a moment; true if unknown, for other carriers than rpc;
- ``waits_ns``: how long the rank waits meanwhile, without what the recording takes on the worker;
- ``sending_ns``: how much of that no function of any call runs: arguments or results are on their way, or pickled;
- ``recording_ns``: how long the recording took on the worker, where it also held up what other processes had sent;
- ``line``, ``function_line``: the rank's line that calls, and the worker's line that has most of the function's
  time (`ppprof.analysis.profile.python_lines.line_name`); null if unknown;
- ``num_bytes``, ``num_objects``: of arguments and result, about; 0 if unknown."""

UNKNOWN: Mapping[str, Fact] = dict.fromkeys(
    (
        *("function", "line", "function_line", "sending_ns", "function_ns", "sent_bytes"),
        *("num_objects", "num_function_calls", "num_workers", "others"),
        *("gain_ns", "longest_ns", "mean_ns"),
    )
)
"""The facts of `reason_of_waits`, if it knows nothing."""
_MOSTLY = 0.5
"""Share of the wait from which one thing is its reason."""
_LEAST_GAIN = 0.2
"""Share of the wait that another order of the calls must save."""
_IDLE = 0.8
"""Share of the time of a call in which the rank waits, if it does nothing else meanwhile."""
_AT_ONCE = 0.1
"""Longest time between two calls, as a share of both, if the second is sent as soon as the first has returned."""
_MANY_CALLS = 4
"""Least number of calls of a function a step that could be one."""
_LEAST_ROUNDS = 3
"""Fewest rounds in which one worker is the longest, if that is no chance."""
_OBJECT_NS = 100
"""What a number in a list costs, about: to make it, to pickle it, to unpickle it and to make it an element of an array."""


def remote_waits(
    profile: Profile, idle: Intervals, step_at: Callable[[Int64], pl.Series]
) -> tuple[Intervals, pl.DataFrame]:
    """Return when a rank waits for remote calls, and the columns of `REMOTE_WAITS`.

    ::

        call       sent [args]     began ======== ended       [result] received
        recording             #####                    ##                            no wait of the training's own

    Args:
        profile: one rank's window.
        idle: when calls are under way, and the rank does nothing.
        step_at: returns the step in which each time lies.
    """
    flows = remote_flows(profile)
    if flows.is_empty():
        return idle, pl.DataFrame(schema=REMOTE_WAITS)
    sent, received, before, after = (
        flows[name].to_numpy() for name in ("sent_ns", "received_ns", "before_ns", "after_ns")
    )
    began = flows["began_ns"].fill_null(flows["sent_ns"]).to_numpy()
    ended = flows["ended_ns"].fill_null(flows["received_ns"]).to_numpy()
    out = sent, np.maximum(sent, began - before)
    back = np.minimum(received, ended + after), received
    since, until, is_awaited = _waited(profile, flows)
    # Behind the return, what the worker has recorded is written. What is waited for without a call is a call
    # that is not recorded.
    busy = difference(union(sent, received), together(out, (began, ended), back))
    waiting = difference(idle, together(busy, (received, np.maximum(received, until))))
    sending = difference(waiting, union(began, ended))
    stacks = {name: call_lines(profile, flows[name]) for name in ("line", "function_line")}
    table = flows.with_columns(
        step_at(sent).alias("step"),
        function=pl.col("name").str.extract(r"^rpc#([^(]*)\("),
        function_ns=pl.col("ended_ns") - pl.col("began_ns"),
        is_awaited=is_awaited,
        recording_ns=pl.col("before_ns") + pl.col("after_ns"),
        waits_ns=pl.Series(covered_within(waiting, since, received)),
        sending_ns=pl.Series(covered_within(sending, since, received)),
        **{
            name: pl.col(name).replace_strict(names, default=None, return_dtype=pl.String)
            for name, names in stacks.items()
        },
    )
    return waiting, table.drop_nulls("step").select(
        pl.col(name).cast(dtype) for name, dtype in REMOTE_WAITS.items()
    )


def _waited(profile: Profile, flows: pl.DataFrame) -> tuple[Int64, Int64, pl.Series]:
    """Return since when, and until when, the rank waits for each call, and whether it does.

    For one by rpc in the span in which it came back; not at all if it came back in none, as to another thread.
    """
    spans = wait_spans(profile).select(
        worker=pl.col("name").cast(pl.String).str.slice(len(WAIT)).str.strip_suffix(")"),
        start_ns="start_ns",
        end_ns="end_ns",
    )
    around = flows.sort("received_ns").join_asof(
        spans.sort("start_ns"),
        left_on="received_ns",
        right_on="start_ns",
        by="worker",
        check_sortedness=False,
    )
    is_waited = (pl.col("end_ns") >= pl.col("received_ns")).fill_null(value=False)
    since = (
        pl.when(pl.col("carrier").is_null())
        .then("sent_ns")
        .when(is_waited)
        .then(pl.max_horizontal("start_ns", "sent_ns"))
        .otherwise("received_ns")
    )
    until = pl.when(is_waited).then("end_ns").otherwise("received_ns")
    is_awaited = is_waited | pl.col("carrier").is_null()
    of_row = around.select("row", since=since, until=until, is_awaited=is_awaited)
    waited = flows.select("row").join(of_row, "row", "left", maintain_order="left")
    return waited["since"].to_numpy(), waited["until"].to_numpy(), waited["is_awaited"]


def reason_of_waits(waits: pl.DataFrame, num_steps: int, wait_ns: float) -> dict[str, Fact]:
    """Return facts about the waits of a rank, per step, with ``wording`` and ``remedy`` if there is a reason.

    Args:
        waits: columns of `REMOTE_WAITS`.
        num_steps: steps of the rank, 1 or more.
        wait_ns: how long the rank waits in a step for all its calls, above 0.
    """
    calls_ns, sending_ns = (float(waits[name].sum()) for name in ("waits_ns", "sending_ns"))
    is_unknown = waits["function_ns"].null_count() or not waits["num_objects"].sum()
    if not calls_ns or is_unknown:  # the latter as in run directories of 0.2
        return {}
    waits = waits.filter("is_awaited")  # not those that run beside the training
    longest = _longest(waits, "name")
    sending_ns *= wait_ns / calls_ns  # calls that are under way at once have their waits in common
    num_objects = float(waits["num_objects"].sum()) / num_steps
    facts: dict[str, Fact] = {
        "call": longest["name"][0],
        "function": longest["function"][0],
        "worker": longest["worker"][0],
        "line": _first(_longest(waits, "line"), "line"),
        "sending_ns": sending_ns,
        "function_ns": wait_ns - sending_ns,
        "sent_bytes": float(waits["num_bytes"].sum()) / num_steps,
        "num_objects": num_objects,
        "function_line": _first(_longest(longest, "function_line"), "function_line"),
    }
    is_sending = sending_ns >= _MOSTLY * wait_ns
    facts["wording"] = "sending" if is_sending else "function"
    for remedy, gains in (("in-turn", _in_turn(waits)), ("uneven", _uneven(waits))):
        gain_ns = float(gains.get("gain_ns") or 0) / num_steps
        if gain_ns >= _LEAST_GAIN * wait_ns:
            gain_ns = min(gain_ns, wait_ns)
            of_call = waits.filter(pl.col("name") == gains["call"])
            facts["function_line"] = _first(_longest(of_call, "function_line"), "function_line")
            return {**facts, **gains, "gain_ns": gain_ns, "remedy": f"config-{remedy}"}
    if num_objects * _OBJECT_NS >= _LEAST_GAIN * wait_ns and sending_ns >= _LEAST_GAIN * wait_ns:
        return {**facts, "remedy": "config-objects"}
    num_calls = longest.height / num_steps
    if is_sending and num_calls >= _MANY_CALLS:
        return {**facts, "num_function_calls": num_calls, "remedy": "config-many"}
    return {**facts, "remedy": "config-sending" if is_sending else "config-function"}


def _first(rows: pl.DataFrame, column: str) -> str | None:
    """Return the first value of a column; None without rows."""
    return None if rows.is_empty() else str(rows[column][0])


def _longest(waits: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return the rows with the value of a column that has most of the waits; none if all values are null."""
    known = waits.drop_nulls(column)
    if known.is_empty():
        return known
    sums = known.group_by(column).agg(pl.col("waits_ns").sum())
    first = sums.sort("waits_ns", column, descending=[True, False])[column][0]
    return known.filter(pl.col(column) == first)


def _in_turn(waits: pl.DataFrame) -> dict[str, Fact]:
    """Return what is saved if calls to several workers run at once that are sent one after the other.

    ::

        worker1    ========                          worker1    ========
        worker2             ======      saves 6      worker2    ======
    """
    dur_ns = pl.col("received_ns") - pl.col("sent_ns")
    rows = waits.sort("step", "sent_ns").with_columns(dur_ns=dur_ns)
    rows = rows.filter(pl.col("waits_ns") >= _IDLE * pl.col("dur_ns"))
    gap_ns = pl.col("sent_ns") - pl.col("received_ns").shift(1)
    both_ns = pl.col("dur_ns") + pl.col("dur_ns").shift(1)
    follows = (gap_ns >= 0) & (gap_ns <= _AT_ONCE * both_ns) & (pl.col("step").diff() == 0)
    rows = rows.with_columns(chain=follows.fill_null(value=False).not_().cum_sum())
    of_workers = rows.group_by("chain", "worker").agg(pl.col("waits_ns").sum())
    gains = of_workers.group_by("chain").agg(
        gain_ns=pl.col("waits_ns").sum() - pl.col("waits_ns").max()
    )
    gains = gains.filter(pl.col("gain_ns") > 0)
    if gains.is_empty():
        return {}
    chained = rows.filter(pl.col("chain").is_in(gains["chain"].implode()))
    sums = chained.group_by("name").agg(pl.col("waits_ns").sum())
    names = sums.sort("waits_ns", "name", descending=[True, False])["name"].to_list()
    gain_ns = float(gains["gain_ns"].sum())
    return {"gain_ns": gain_ns, "others": ", ".join(names[1:3]), "call": names[0]}


def _uneven(waits: pl.DataFrame) -> dict[str, Fact]:
    """Return what is saved if workers that run one function at the same time had the same share of it.

    The worker that is the longest must be the same one in all rounds: else it is chance, or the machine.
    """
    rows = waits.sort("step", "function", "sent_ns")
    latest = pl.col("received_ns").cum_max().shift(1).over("step", "function")
    begins = (pl.col("sent_ns") >= latest).fill_null(value=True)
    rows = rows.with_columns(round=begins.cum_sum())
    of_workers = rows.group_by("function", "round", "worker").agg(pl.col("function_ns").sum())
    rounds = of_workers.group_by("function", "round").agg(
        num_workers=pl.len(),
        mean_ns=pl.col("function_ns").mean(),
        longest_ns=pl.col("function_ns").max(),
        worker=pl.col("worker").sort_by("function_ns").last(),
    )
    rounds = rounds.filter(pl.col("num_workers") > 1)
    if (
        rounds.height < _LEAST_ROUNDS
        or rounds["worker"].n_unique() > 1
        or rounds["function"].n_unique() > 1
    ):
        return {}
    worker = rounds["worker"][0]
    means = rounds.select(pl.col("longest_ns", "mean_ns").mean()).row(0, named=True)
    return {
        "gain_ns": float((rounds["longest_ns"] - rounds["mean_ns"]).sum()),
        "worker": worker,
        "call": rows.filter(worker=worker, function=rounds["function"][0])["name"][0],
        "num_workers": rounds["num_workers"].to_numpy().max().item(),
        "function": rounds["function"][0],
        **means,
    }
