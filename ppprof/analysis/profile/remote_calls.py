"""Split a trace into the rank's own events and the events recorded in its remote calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ppprof.analysis.profile.steps import select_events
from ppprof.remote_names import REMOTE, call_of, ends_of
from ppprof.trace.schema import Trace

if TYPE_CHECKING:
    from ppprof.analysis.profile.profile import Profile


def split_calls(trace: Trace) -> tuple[Trace, Mapping[str, Trace]]:
    """Return the trace of the rank's own process, and the trace of each remote call.

    The span around a call is one of the rank's own events. Events recorded in a call lose the
    prefix that names the call.

    Returns:
        The rank's own trace, and the trace of each call, keyed by `call_of`:
        ``rpc#f(worker0 -> worker1)``. For a trace without remote calls: ``trace`` unchanged, and an
        empty mapping.
    """
    calls = {name: call_of(name) for name in trace.names.texts if name.startswith("rpc#")}
    if not any(calls.values()):
        return trace, {}
    call = trace.events["name"].cast(pl.String).replace_strict(calls, default=None)
    call_of_memory = call.gather(trace.memory["event"])

    def events_of(chosen: str | None) -> Trace:
        wanted = pl.Series([chosen], dtype=pl.String)
        keep = call.eq_missing(wanted).to_numpy().astype(np.bool_)
        return select_events(trace, keep, call_of_memory.eq_missing(wanted))

    def with_plain_names(chosen: str) -> Trace:
        part = events_of(chosen)
        name = pl.col("name").cast(pl.String).str.strip_prefix(f"{chosen}{REMOTE}")
        events = part.events.with_columns(name.cast(part.events.schema["name"]))
        return dataclasses.replace(part, events=events)

    distinct = call.unique(maintain_order=True).drop_nulls()
    return events_of(None), {chosen: with_plain_names(chosen) for chosen in distinct}


def remote_calls(profile: Profile) -> pl.DataFrame:
    """Return the remote calls that the rank made: rows of ``profile.tree.hosts``.

    Each lasts from the sending of the call to the arrival of its result.
    """
    hosts = profile.tree.hosts
    is_call = profile.trace.names.where(lambda name: name.startswith("rpc#"))
    return hosts.filter(pl.Series(is_call[: hosts.height]))


def remote_flows(profile: Profile) -> pl.DataFrame:
    """Return when each remote call was sent, began and ended on the worker, and came back.

    ::

        rank      sent                            received
        worker1         began =========== ended

    Returns:
        name (of the call, ``rpc#f(w0 -> w1)``), worker, sent_ns, began_ns, ended_ns and received_ns,
        sorted by sent_ns, on the rank's own clock. began_ns and ended_ns are null for a call whose
        times on the worker are unknown.
    """
    sent = remote_calls(profile).select(
        "thread",
        pl.col("name").cast(pl.String),
        sent_ns="start_ns",
        received_ns="end_ns",
    )
    workers = {name: ends_of(name)[1] for name in sent["name"].unique()}
    events = profile.whole_tree.hosts.with_columns(pl.col("name").cast(pl.String))
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
        "name",
        pl.col("name")
        .replace_strict(workers, return_dtype=pl.String, default=None)
        .alias("worker"),
        "sent_ns",
        began_ns=pl.when(inside).then("began_ns"),
        ended_ns=pl.when(inside).then("ended_ns"),
        received_ns="received_ns",
    )
