"""The communication of one rank: each kernel or host event of it, with its axis.

`communication_of` returns arrays, `communication_events` the same as a table.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import EventArrays, Tree, filled
from ppprof.analysis.profile.intervals import Intervals, joined
from ppprof.analysis.profile.profile import Profile, once
from ppprof.arrays import Array, Bool, Int64
from ppprof.trace.labels import Labels
from ppprof.trace.schema import nullable

GROUP_SPAN = "coalesced"
"""Name of the span around a group of communication calls that are launched together at its end."""

UNKNOWN_AXIS = "?"
"""The axis of communication whose group is unknown."""

_AXES = ("mp", "sep", "sharding", "dp", "pp")


class RankCommunication(NamedTuple):
    """N kernels or host events of communication."""

    name: Labels
    """Operation, such as ``all_reduce``."""
    axis: Labels
    """Axis, such as ``dp`` or ``pp+mp``; `UNKNOWN_AXIS` if it is unknown."""
    span: Array
    """Row of the Communication event around the launch, or of the host event itself if it is one, shape
    (N,); -1: none."""
    host: Array
    """Row of the host event, or of the host event that launched the kernel, shape (N,); -1: unknown."""
    step: Int64
    """Step in which a host event began or a kernel was launched, shape (N,); -1 if it is unknown."""
    intervals: Intervals
    """Start and end of each."""
    row: Array
    """Row of each kernel or host event; of an all-reduce without an event, that of ``host``. Shape (N,)."""

    def times(self, chosen: Bool | Int64) -> Intervals:
        """Return the intervals of the chosen rows: a mask or row numbers."""
        start, end = self.intervals
        return start[chosen], end[chosen]


def axis_position(axis: str) -> tuple[bool, int, str]:
    """Return a sort key for an axis: first the axes of `_AXES`, then combined axes, then `UNKNOWN_AXIS`.

    >>> sorted(["?", "dp", "pp+mp", "mp"], key=axis_position)
    ['mp', 'dp', 'pp+mp', '?']
    """
    return axis == UNKNOWN_AXIS, (*_AXES, axis).index(axis), axis


def communication_events(profile: Profile) -> pl.DataFrame:
    """Return the result of `communication_of` as a table.

    Returns:
        name, axis, step (null if unknown), start_ns, end_ns.
    """
    communication = communication_of(profile)
    start, end = communication.intervals
    return pl.DataFrame(
        {
            "name": communication.name.column(),
            "axis": communication.axis.column(),
            "step": profile.step.gather(nullable(communication.host)),
            "start_ns": start,
            "end_ns": end,
        }
    )


@once
def communication_of(profile: Profile) -> RankCommunication:
    """Return the communication of a window: kernels, or host events without device events.

    The host events are Communication events. Operators named after a collective count only in a
    trace without any Communication event, because an operator such as
    ``Global_GradNodePyLayer_mp_allreduce`` may do nothing. The all-reduces of `hidden_reductions`
    count, too.

    Name and axis are those of the innermost Communication event around the launch; without one, the
    row's own name, and for a kernel the axis of `_axes_of_kernels`, else `UNKNOWN_AXIS`. No rows if
    the trace lacks the events of its device.
    """
    tree, events = profile.tree, profile.tree.events
    spans = events.communication_spans
    launcher: Array
    span: Array
    if not events.has_devices:
        row = spans if len(spans) else profile.communication.host_rows
        row = launcher = row[:0] if profile.unrecorded_device else row
        span = row if len(spans) else np.full(len(row), -1)
        axis, _ = _axes_of_spans(events, spans, span)
    else:
        device = _communicating_devices(profile)
        row = tree.device_rows[device]
        launcher = events.host_of_device[row - events.first_device]
        span = np.append(tree.innermost(spans), -1)[launcher]
        axis, has_group = _axes_of_spans(events, spans, span)
        # A group that is known and not of an axis has none, whatever else runs on its stream.
        axis = axis.with_text(UNKNOWN_AXIS, (axis.number < 0) & has_group)
        axis = _axes_of_kernels(profile, row, axis)
    axis = axis.with_text(UNKNOWN_AXIS, axis.number < 0)
    # A group of calls has no operation: the kernel has.
    name = events.names.number
    has_operation = (span >= 0) & ~events.names.take(span).where(GROUP_SPAN.__eq__)
    own = Labels(
        np.where(has_operation & (name[span] >= 0), name[span], name[row]), events.names.texts
    )
    step = np.append(events.step[: events.num_hosts], -1)[launcher]
    rows = RankCommunication(own, axis, span, launcher, step, events.intervals(row), row)
    return _with_hidden_reductions(profile, rows)


def _communicating_devices(profile: Profile) -> Int64:
    """Return the rows of ``tree.devices`` that communicate, ascending.

    Besides those of `Communication`, these are kernels without a recorded launch that are named
    after communication.
    """
    tree, events = profile.tree, profile.tree.events
    device = tree.device_rows - events.first_device
    is_chosen = (events.host_of_device < 0)[device] & events.is_kernel[device]
    unseen = np.flatnonzero(is_chosen)
    is_chosen[unseen] = events.names.take(tree.device_rows[unseen]).where(events.communicates)
    is_chosen[profile.communication.device_rows] = True
    return np.flatnonzero(is_chosen)


def _axes_of_spans(events: EventArrays, spans: Int64, span: Int64) -> tuple[Labels, Bool]:
    """Return the axis of the span around each row, null without, and whether its group is known."""
    table = events.events[["axis", "group"]][spans]
    axis = Labels.of(table["axis"])
    has_group = table["group"].is_not_null().to_numpy()
    position = np.where(span < 0, len(spans), np.searchsorted(spans, span))
    number = np.append(axis.number, -1)[position]
    return Labels(number, axis.texts), np.append(has_group, False)[position]


_NO_GROUP = np.iinfo(np.int64).min


def _axes_of_kernels(profile: Profile, row: Int64, axis: Labels) -> Labels:
    """Return the axis of each kernel of communication; null if it is not known.

    Kernels that C++ launches, such as those of DataParallel's reducer, lie in no span. Two things
    give their axis: each process group of Paddle has its own stream, so a stream on which all
    kernels communicate, and all known ones over one axis, is of that axis; and in a job with a
    single axis, every group is of that axis.

        stream 20   all_reduce(dp)  ?  all_reduce(dp)      ? is dp
        stream 7    gemm  recv(pp)  ?                      ? is not known

    Source: ProcessGroupNCCL::CreateNCCLEnvCache, paddle/fluid/distributed/collective.
    """
    events = profile.tree.events
    stream = _streams(events)
    own_stream = stream[row - events.first_device]
    num_streams = int(stream.max(initial=-1)) + 1
    num_kernels = np.bincount(stream[events.is_kernel], minlength=num_streams)
    num_communicating = np.bincount(own_stream, minlength=num_streams)
    axes_of_stream = defaultdict(set)
    for of_stream, of_axis in set(zip(own_stream.tolist(), axis.number.tolist())):
        if of_axis >= 0:
            axes_of_stream[of_stream].add(of_axis)
    only_axis = np.full(num_streams, -1)
    for of_stream, axes in axes_of_stream.items():
        if len(axes) == 1 and num_communicating[of_stream] == num_kernels[of_stream]:
            only_axis[of_stream] = axes.pop()
    number = np.where(axis.number < 0, only_axis[own_stream], axis.number)
    axis = Labels(number, axis.texts)
    of_job = profile.trace.only_axis
    return axis if of_job is None else axis.with_text(of_job, number < 0)


def _streams(events: EventArrays) -> Int64:
    """Return a number for the device and stream of each device event, from 0."""
    numbers = []
    for column in ("device", "stream"):
        values = filled(events.events[column].slice(events.first_device), _NO_GROUP)
        numbers.append(np.unique(values, return_inverse=True)[1])
    device, stream = numbers
    streams: Int64 = device * (int(stream.max(initial=0)) + 1) + stream
    return streams


def _with_hidden_reductions(profile: Profile, rows: RankCommunication) -> RankCommunication:
    """Return communication with the all-reduces of `hidden_reductions` at its end."""
    node, intervals = hidden_reductions(profile.tree)
    if not len(node):
        return rows
    is_hidden = np.arange(len(rows.step) + len(node)) >= len(rows.step)

    def extended(labels: Labels, text: str) -> Labels:
        number = np.append(labels.number, np.full(len(node), -1))
        return Labels(number, labels.texts).with_text(text, is_hidden)

    return RankCommunication(
        extended(rows.name, DATA_PARALLEL),
        extended(rows.axis, DATA_PARALLEL_AXIS),
        np.append(rows.span, np.full(len(node), -1)),
        np.append(rows.host, node),
        np.append(rows.step, profile.tree.events.step[node]),
        joined(rows.intervals, intervals),
        np.append(rows.row, node),
    )


DATA_PARALLEL = "DataParallel"
"""Name of these all-reduces."""
DATA_PARALLEL_AXIS = "dp"
"""Their axis."""

_NODE = re.compile(r"(^|_)gradnodeaccumulation\Z")
"""In lower case."""
_DIVISION = re.compile(r"^scale (kernel launch|compute)\Z")
"""The kernel that divides, in Paddle 3 and in Paddle 2."""


def hidden_reductions(tree: Tree) -> tuple[Array, Intervals]:
    """Return the gradient all-reduces of ``paddle.DataParallel``, which record no event on a CPU.

    Its reducer runs in C++, as a hook of the last gradient of each group of parameters. It copies
    the group into one tensor, divides that by the number of ranks, and reduces it over gloo::

        Global_GradNodeAccumulation      ############################
          empty kernel launch             #
          scale kernel launch                ##
        (the all-reduce, no event)             #####################

    Only the reducer divides inside such a node without an operator around the division. If several
    groups are ready, one node reduces them one after another. The times include the wait for the
    slowest rank, and the copies back into the gradients.

    Returns:
        The row of the node in ``tree.hosts`` for each all-reduce, ascending, and their intervals.
        Each begins where a division ends and ends where the next event of the node begins, or the
        node ends. All arrays are empty for a trace with device events, in which the all-reduces are
        kernels.

    Source: EagerReducer::FusedAllReduceSchedule, paddle/fluid/distributed/collective/reducer.cc.
    """
    events, none = tree.events, np.empty(0, np.int64)
    if events.has_devices:
        return none, (none, none)
    operators = events.host_rows("Operator")
    is_node = np.zeros(events.num_hosts + 1, bool)  # the last one stands for "no parent"
    is_node[operators[events.names.take(operators).where(_matches(_NODE))]] = True
    parent = events.parent[: events.num_hosts]
    inside = np.flatnonzero(is_node[parent])
    inside = inside[np.lexsort((events.start_ns[inside], parent[inside]))]
    node = parent[inside]
    start_ns, until_ns = events.ends(inside), events.ends(node)
    is_followed = np.flatnonzero(node[1:] == node[:-1])
    next_ns = events.start_ns[inside[is_followed + 1]]
    until_ns[is_followed] = np.minimum(next_ns, until_ns[is_followed])
    is_division = events.names.take(inside).where(_matches(_DIVISION))
    chosen = is_division & (start_ns < until_ns)
    return node[chosen], (start_ns[chosen], until_ns[chosen])


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda name: pattern.search(name.lower()) is not None
