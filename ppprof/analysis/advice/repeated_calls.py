"""Layers and functions that compute again what the same step has computed before, such as an encoder for each loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
import polars as pl

from ppprof.analysis.advice.own_lines import (
    repeated_events,
    starts_beside,
    starts_without_gradients,
)
from ppprof.analysis.advice.repeated_gradients import repeated_gradients
from ppprof.analysis.profile.profile import Profile, once
from ppprof.analysis.profile.python_lines import line_name
from ppprof.analysis.ranks.device_steps import stepping_threads
from ppprof.arrays import Bool
from ppprof.trace import Frame
from ppprof.trace.event_lines import frame_of_call
from ppprof.trace.operator_inputs import LAYER, REPEATED, attributes_of


class RepeatedCalls(NamedTuple):
    """The repeated calls of layers, and of operators by functions, in a window."""

    calls: pl.DataFrame
    """One row per call of a layer, or of an operator: step; layer, its path or class, null for an operator; name, the
    layer with the line that calls it, or the function with the line that calls the function; caller, the line
    that calls the function of a layer's line, null if unknown and for operators; earlier, the line of the step's first
    such call, or the caller of an equal line, null if both are equal; is_unused, whether no gradient of the call is
    computed ahead of a Backward; and time_ns: of the call and of the gradients of
    its operators, device time if the trace has device events."""
    is_inside: Bool
    """Whether each host event is one of these calls, below one, or a gradient of an operator in one."""


@once
def repeated_calls(profile: Profile) -> RepeatedCalls:
    """Return the calls of layers, and of operators in functions, that compute again what the step has computed before.

    ::

        layers     encoder       head a  encoder       head b    Backward
        inner      linear gelu           linear gelu             head b  encoder  head a  encoder
        time_ns                          ############                    #######

        layers     block 0          block 1
        function    bias()           bias()
        operators   arange pow add   arange pow add  matmul
        time_ns                      ###### ### ###

    Of repeated calls in one another, the outermost one counts, and gradients that a second Backward computes
    again count for `repeated_gradients`. Calls beside the training are left out.
    """
    tree = profile.tree
    hosts = tree.hosts_with("step", "forward", "attributes")
    names = _names(profile, hosts)
    is_call = np.zeros(hosts.height, bool)
    is_call[names["row"].to_numpy()] = True
    is_beside = starts_beside(profile).copy()
    marked = repeated_events(profile)["row"].to_numpy()
    has_none = starts_without_gradients(profile)
    # Masks have none, and neither has a model that a metric calls.
    is_beside[marked] &= ~has_none[marked]
    is_beside |= ~np.isin(hosts["thread"].to_numpy(), stepping_threads(profile))
    is_call &= ~is_beside
    is_call &= ~tree.below(np.flatnonzero(is_call))
    call_of = np.where(is_call, np.arange(hosts.height), tree.enclosing(is_call))
    nodes = hosts.filter(pl.col("category") == "Operator").drop_nulls("forward")
    again = repeated_gradients(profile)["row"]
    nodes = nodes.filter(~pl.col("row").is_in(again.implode()))
    nodes = nodes.select("row", *_TIMES, call=pl.Series(call_of[nodes["forward"].to_numpy()]))
    nodes = nodes.filter(pl.col("call") >= 0)
    is_inside = call_of >= 0
    is_inside[nodes["row"].to_numpy()] = True
    time_ns = tree.time_column
    calls = hosts.with_columns(is_unused=pl.Series(has_none)).filter(pl.Series(is_call))
    calls = calls.select("row", "step", "is_unused", time_ns)
    backwards = nodes.group_by(row="call").agg(backward_ns=pl.col(time_ns).sum())
    calls = calls.join(backwards.cast({"row": calls["row"].dtype}), "row", "left")
    calls = calls.join(names, "row", maintain_order="left").drop_nulls("step")
    table = calls.select(
        *("step", "layer", "name", "caller", "earlier", "is_unused"),
        time_ns=pl.col(time_ns) + pl.col("backward_ns").fill_null(0),
    )
    return RepeatedCalls(table, is_inside)


_TIMES = ("cpu_ns", "device_ns")


def _names(profile: Profile, hosts: pl.DataFrame) -> pl.DataFrame:
    """Return row, layer, name, caller and earlier (`RepeatedCalls.calls`) of the events of repeated calls."""
    text = hosts["attributes"].cast(pl.String)
    calls = hosts.filter(text.str.contains(f'"{REPEATED}":', literal=True))
    calls = calls.select("row", pl.col("category", "name", "attributes").cast(pl.String))
    kinds = {kind: _name(profile, *kind) for kind in set(calls.drop("row").iter_rows())}
    rows = [(row, *name) for row, *kind in calls.iter_rows() if (name := kinds[tuple(kind)])]
    schema = dict.fromkeys(_NAMES, pl.String)
    table = pl.DataFrame(rows, {"row": pl.Int64, **schema}, orient="row")
    return table.cast({"row": hosts["row"].dtype})


_NAMES = ("layer", "name", "caller", "earlier")


def _name(profile: Profile, category: str, kind: str, attributes: str) -> _Names | None:
    """Return layer, name, caller and earlier of an event with these attributes; None if its lines are unknown."""
    known = attributes_of(attributes)
    frames = [frame_of_call(stack) for stack in known.get(REPEATED) or ()]
    if len(frames) != len(_LINES):
        return None
    lines = [line_name(profile.trace.stacks, frame) if frame else None for frame in frames]
    if category != "Forward":
        return _name_of_function(frames, lines)
    line, caller, *earlier = lines
    layer = str(known.get(LAYER) or kind)
    before = next((each for each, now in zip(earlier, (line, caller)) if each != now), None)
    return layer, f"{layer} ({line})" if line else layer, caller, before


_Names = tuple[Optional[str], str, Optional[str], Optional[str]]
_LINES = ("line", "caller", "line of the earlier call", "caller of the earlier call")


def _name_of_function(frames: Sequence[Frame | None], lines: Sequence[str | None]) -> _Names | None:
    """Return what `_name` does, of an operator: the earlier function has its name if it is another one."""
    function, earlier = (
        f"{frame.function.rpartition('<locals>.')[2]}()" if frame else None for frame in frames[::2]
    )
    caller, before = lines[1::2]
    if function is None or caller is None:
        return None
    if earlier not in (None, function):
        before = f"{earlier} ({before})" if before else lines[2]
    return None, f"{function} ({caller})", None, None if before == caller else before
