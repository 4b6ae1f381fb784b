"""Calls of layers that compute again what an earlier call of the same step has computed, such as of an encoder by each loss."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.advice.own_lines import starts_beside
from ppprof.analysis.advice.repeated_gradients import repeated_gradients
from ppprof.analysis.profile.profile import Profile, once
from ppprof.analysis.profile.python_lines import line_name
from ppprof.arrays import Bool
from ppprof.trace.event_lines import frame_of_call
from ppprof.trace.operator_inputs import LAYER, REPEATED, attributes_of


class RepeatedCalls(NamedTuple):
    """The repeated calls of layers in a window."""

    calls: pl.DataFrame
    """One row per call: step; layer, its path or class; name, the layer with the line that calls it; caller, the line
    that calls the function of that line, null if unknown; earlier, the line of the step's first such call, or the
    caller of an equal line, null if both are equal; and time_ns: of the call and of the gradients of its operators,
    device time if the trace has device events."""
    is_inside: Bool
    """Whether each host event is one of these calls, below one, or a gradient of an operator below one."""


@once
def repeated_calls(profile: Profile) -> RepeatedCalls:
    """Return the calls of layers that compute again what an earlier call of the step has computed.

    ::

        layers     encoder       head a  encoder       head b    Backward
        inner      linear gelu           linear gelu             head b  encoder  head a  encoder
        time_ns                          ############                    #######

    Of repeated calls in one another, the outermost one counts, and gradients that a second Backward computes
    again count for `repeated_gradients`. Calls beside the training are left out.
    """
    tree, events = profile.tree, profile.trace.events
    hosts = tree.hosts.with_columns(
        events.select("step", "forward", "attributes").slice(0, tree.hosts.height)
    )
    names = _names(profile, hosts.filter(pl.col("category") == "Forward"))
    is_call = np.zeros(hosts.height, bool)
    is_call[names["row"].to_numpy()] = True
    is_call &= ~(tree.below(np.flatnonzero(is_call)) | starts_beside(profile))
    call_of = np.where(is_call, np.arange(hosts.height), tree.enclosing(is_call))
    nodes = hosts.filter(pl.col("category") == "Operator").drop_nulls("forward")
    again = repeated_gradients(profile)["row"]
    nodes = nodes.filter(~pl.col("row").is_in(again.implode()))
    nodes = nodes.select("row", *_TIMES, call=pl.Series(call_of[nodes["forward"].to_numpy()]))
    nodes = nodes.filter(pl.col("call") >= 0)
    is_inside = call_of >= 0
    is_inside[nodes["row"].to_numpy()] = True
    time_ns = "cpu_ns" if tree.devices.is_empty() else "device_ns"
    calls = hosts.filter(pl.Series(is_call)).select("row", "step", time_ns)
    backwards = nodes.group_by(row="call").agg(backward_ns=pl.col(time_ns).sum())
    calls = calls.join(backwards.cast({"row": calls["row"].dtype}), "row", "left")
    calls = calls.join(names, "row", maintain_order="left").drop_nulls("step")
    table = calls.select(
        *("step", "layer", "name", "caller", "earlier"),
        time_ns=pl.col(time_ns) + pl.col("backward_ns").fill_null(0),
    )
    return RepeatedCalls(table, is_inside)


_TIMES = ("cpu_ns", "device_ns")


def _names(profile: Profile, forwards: pl.DataFrame) -> pl.DataFrame:
    """Return row, layer, name, caller and earlier (`RepeatedCalls.calls`) of the Forward events of repeated calls."""
    text = forwards["attributes"].cast(pl.String)
    forwards = forwards.filter(text.str.contains(f'"{REPEATED}":', literal=True))
    key = [forwards[column].cast(pl.String) for column in ("name", "attributes")]
    rows = []
    for row, kind, text in zip(forwards["row"].to_list(), *(each.to_list() for each in key)):
        known = attributes_of(text)
        frames = [frame_of_call(stack) for stack in known.get(REPEATED) or ()]
        if len(frames) == len(_LINES):
            line, caller, *earlier = (
                line_name(profile.trace.stacks, frame) if frame else None for frame in frames
            )
            layer = str(known.get(LAYER) or kind)
            before = next((each for each, now in zip(earlier, (line, caller)) if each != now), None)
            rows.append((row, layer, f"{layer} ({line})" if line else layer, caller, before))
    schema = dict.fromkeys(_NAMES, pl.String)
    table = pl.DataFrame(rows, {"row": pl.Int64, **schema}, orient="row")
    return table.cast({"row": forwards["row"].dtype})


_LINES = ("line", "caller", "line of the earlier call", "caller of the earlier call")
_NAMES = ("layer", "name", "caller", "earlier")
