"""Remote calls of a rank: when they ran on their workers, and what else is known of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import Intervals, together
from ppprof.analysis.profile.profile import Profile, once
from ppprof.analysis.ranks.device_steps import stepping_threads
from ppprof.remote_names import REMOTE, WAIT, ends_of
from ppprof.trace.insert_remote_calls import CALL_ATTRIBUTES
from ppprof.trace.labels import map_texts
from ppprof.trace.operator_inputs import attributes_of


@once
def remote_flows(profile: Profile) -> pl.DataFrame:
    """Return when each remote call was sent, began and ended on the worker, and came back.

    ::

        rank      sent                            received
        worker1         began =========== ended

    Returns:
        row (of ``tree.hosts``), name (of the call, ``rpc#f(w0 -> w1)``), worker, sent_ns, began_ns, ended_ns and
        received_ns, sorted by sent_ns, on the rank's own clock. began_ns and ended_ns are null for a
        call whose times on the worker are unknown. Then `CALL_ATTRIBUTES`: Int64, 0 if unknown; the last three are String,
        null if unknown.
    """
    calls = profile.remote_calls
    sent = calls.select(
        "row",
        "thread",
        pl.col("name").cast(pl.String),
        sent_ns="start_ns",
        received_ns="end_ns",
    ).with_columns(_attributes(profile.trace.events["attributes"].gather(calls["row"])))
    workers = {name: ends_of(name)[1] for name in sent["name"].unique()}
    hosts = profile.tree.hosts.clear() if calls.is_empty() else profile.whole_tree.hosts
    events = hosts.with_columns(pl.col("name").cast(pl.String))
    ran = events.filter(pl.col("name").str.contains(f"^rpc#[^#]*{REMOTE}[^#]*$")).select(
        "thread",
        name=pl.col("name").str.extract(f"^(rpc#.*){REMOTE}"),
        function=pl.col("name").str.extract(f"{REMOTE}(.*)$"),
        began_ns="start_ns",
        ended_ns="end_ns",
    )
    ran = ran.filter(
        pl.concat_str(pl.lit("rpc#"), "function", pl.lit("("))
        == pl.col("name").str.extract(r"^(rpc#[^(]*\()")
    )
    joined = sent.sort("sent_ns").join_asof(
        ran.sort("began_ns"),
        left_on="sent_ns",
        right_on="began_ns",
        by=["thread", "name"],
        strategy="forward",
        check_sortedness=False,
    )
    inside = pl.col("ended_ns") <= pl.col("received_ns")
    return joined.select(
        "row",
        "name",
        pl.col("name")
        .replace_strict(workers, return_dtype=pl.String, default=None)
        .alias("worker"),
        "sent_ns",
        began_ns=pl.when(inside).then("began_ns"),
        ended_ns=pl.when(inside).then("ended_ns"),
        received_ns="received_ns",
    ).with_columns(joined.select(CALL_ATTRIBUTES))


def wait_spans(profile: Profile) -> pl.DataFrame:
    """Return the spans in which a stepping thread waits for a call by rpc: rows of ``tree.hosts``."""
    hosts = profile.tree.hosts
    is_wait = profile.trace.names.where(lambda name: name.startswith(WAIT))[: hosts.height]
    threads = stepping_threads(profile).tolist()
    return hosts.filter(pl.Series(is_wait) & pl.col("thread").is_in(threads))


@once
def remote_waiting(profile: Profile) -> Intervals:
    """Return when a stepping thread may wait for remote calls, a union.

    In the spans of its waits for calls by rpc, and while a call of another carrier is under way.
    """
    flows = remote_flows(profile)
    if (
        flows.is_empty()
    ):  # lines that wait for calls which are not recorded are lines beside the training
        return together()
    flows = flows.filter(pl.col("carrier").is_null())
    others = flows["sent_ns"].to_numpy(), flows["received_ns"].to_numpy()
    return together(intervals_of(wait_spans(profile)), others)


def _attributes(texts: pl.Series) -> list[pl.Series]:
    """Return the columns of `CALL_ATTRIBUTES`."""

    def value_of(name: str, kind: type) -> Callable[[str], Any]:
        def read(text: str) -> Any:
            value = attributes_of(text).get(name)
            is_valid = 0 <= value < 2**62 if type(value) is int else bool(value)
            return value if type(value) is kind and is_valid else None

        return read

    numbers, texts_of = CALL_ATTRIBUTES[:-3], CALL_ATTRIBUTES[-3:]
    return [
        *(
            map_texts(texts, value_of(name, int), pl.Int64).fill_null(0).alias(name)
            for name in numbers
        ),
        *(map_texts(texts, value_of(name, str)).alias(name) for name in texts_of),
    ]
