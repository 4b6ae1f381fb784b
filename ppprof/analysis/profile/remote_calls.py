"""A trace taken apart: the rank's own events, and those of its remote calls."""

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
    """The events that ran in the rank's own process, and by call (`call_of`) those that did not.

    The calls themselves are the rank's own; what was recorded in them goes by its plain name. A
    trace without calls is returned as it is.
    """
    names = trace.events["name"].unique().cast(pl.String)
    calls = {name: call_of(name) for name in names.filter(names.str.starts_with("rpc#"))}
    if not any(calls.values()):
        return trace, {}
    call = trace.events["name"].cast(pl.String).replace_strict(calls, default=None)
    call_of_memory = call.gather(trace.memory["event"])

    def of(one: str | None) -> Trace:
        wanted = pl.Series([one], dtype=pl.String)
        keep = call.eq_missing(wanted).to_numpy().astype(np.bool_)
        return select_events(trace, keep, call_of_memory.eq_missing(wanted))

    def plain(one: str) -> Trace:
        part = of(one)
        name = pl.col("name").cast(pl.String).str.strip_prefix(f"{one}{REMOTE}")
        events = part.events.with_columns(name.cast(part.events.schema["name"]))
        return dataclasses.replace(part, events=events)

    return of(None), {one: plain(one) for one in call.unique(maintain_order=True).drop_nulls()}
