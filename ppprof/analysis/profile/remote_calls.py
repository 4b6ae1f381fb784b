"""Split a trace into the rank's own events and those of its remote calls."""

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
    """Return the events of the rank's own process, and those of each remote call.

    The calls themselves are the rank's own. Events recorded in a call get their plain name. A trace
    without calls is returned unchanged.

    Returns:
        The rank's own trace, and one trace per call (`call_of`).
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
