"""Split a trace into the rank's own events and the events recorded in its remote calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import polars as pl

from ppprof.analysis.profile.steps import select_events
from ppprof.trace import REMOTE
from ppprof.trace.remote_calls import call_of
from ppprof.trace.schema import Trace

__all__ = ["REMOTE", "call_of", "split_calls"]


def split_calls(trace: Trace) -> tuple[Trace, Mapping[str, Trace]]:
    """Return the trace of the rank's own process, and the trace of each remote call.

    The span around a call is one of the rank's own events. Events recorded in a call lose the
    prefix that names the call.

    Returns:
        The rank's own trace, and the trace of each call, keyed by `call_of`:
        ``rpc#f(worker0 -> worker1)``. For a trace without remote calls: ``trace`` unchanged, and an
        empty mapping.
    """
    names = trace.events["name"].unique().cast(pl.String)
    calls = {name: call_of(name) for name in names.filter(names.str.starts_with("rpc#"))}
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
