"""One rank's part of the graph: what each thread and stream does, and what it waits for.

The nodes are the starts and ends of events; an edge leads from a node to one that cannot be earlier.
A thread is a chain of nodes: between two of them it is in the innermost event around. A stream is a
chain, too, and edges between chains are what one of them waits for::

    thread   |launch|   op   |synchronise   |        an edge between any two neighbours
    stream       `-->|kernel |  |kernel  |--^        launch -> kernel, kernel -> end of the call

`ppprof.analysis.path.graph` joins the parts of all ranks.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import EventArrays, Tree, filled
from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import covered_within, union
from ppprof.analysis.profile.module_tree import MAX_DEPTH, SEPARATOR, join_path
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.runtime_calls import BLOCKING, COPY, WAIT, is_of_kind
from ppprof.analysis.profile.steps import WHOLE_TRACE, with_step
from ppprof.analysis.ranks.collectives import placed_collectives
from ppprof.analysis.ranks.device_queue import LATENCY_NS
from ppprof.analysis.ranks.device_steps import steps_of_rank
from ppprof.arrays import Array, Bool, Int32, Int64
from ppprof.trace.labels import Labels
from ppprof.trace.operator_inputs import names_of_layers
from ppprof.trace.schema import Trace
from ppprof.trace.tree_arrays import subtree_sums

KINDS = (
    "host",
    "own code",
    "data loading",
    "communication",
    "runtime call",
    "kernel",
    "copy",
    "launch latency",
    "synchronisation",
    "device gap",
    "thread gap",
    "not recorded",
)
"""What the time between two nodes is:

- ``host``: a thread is in an operator or another span;
- ``own code``: a thread with steps is in a step, or between two steps, and in no span;
- ``data loading``: a thread is in a Dataloader;
- ``communication``: a collective or a transfer between ranks, from the arrival of its last rank on;
- ``runtime call``: a thread is in a call of a device's runtime;
- ``kernel``, ``copy``: a stream runs a kernel, or a copy or memset;
- ``launch latency``: from a launch to the start of its kernel;
- ``synchronisation``: from the end of a device event to the return of the call, or the start of the
  event of another stream, that waited for it;
- ``device gap``: a stream does nothing, and no launch or event explains it;
- ``thread gap``: a thread without steps is in no span;
- ``not recorded``: before the first event of a thread or stream."""

NOT_RECORDED = "not recorded"

_KIND = {kind: number for number, kind in enumerate(KINDS)}

LABELS: dict[str, pl.DataType] = {
    "kind": pl.Enum(KINDS),
    "name": pl.String(),
    "operator": pl.String(),
    "module": pl.String(),
    "line": pl.String(),
    "thread": pl.Int64(),
    "device": pl.Int64(),
    "stream": pl.Int64(),
}
"""Columns of a table of labels, of which each edge has one: the kind; the name of the innermost event;
the operator, modules (the outermost first, joined by
`ppprof.analysis.profile.module_tree.SEPARATOR`) and line around it, or around its launch; and the
thread, or the device and the stream, of the event. Null: none, or unknown."""

_LEAST_LATENCY = 0.02
"""The quantile of launch latencies that counts as the least that is possible."""


class RankGraph(NamedTuple):
    """N nodes and E edges of one rank's window. Small integers, so that processes can exchange them."""

    time_ns: Int64
    """Time of each node on the rank's own clock, shape (N,)."""
    source: Int32
    """Node from which each edge leads, shape (E,)."""
    target: Int32
    """Node to which it leads, shape (E,)."""
    least_ns: Int64
    """Least time that it takes if it does not bind, shape (E,)."""
    label: Int32
    """Row of each edge in ``labels``, shape (E,)."""
    labels: pl.DataFrame
    """Columns of `LABELS`."""
    steps: pl.DataFrame
    """The nodes that end a step: step and node, both int64; a step may have several. And begin_ns, the
    time at which it begins; begin_node, the node beside it, which it begins with in a replay; is_paused,
    whether the training was paused in it."""
    collectives: pl.DataFrame
    """Columns of `ppprof.analysis.ranks.collectives.COLLECTIVES`, and start_node and end_node."""
    has_steps: bool
    """False if the trace has no steps, so that all of it counts as step 0."""


def rank_graph(trace: Trace) -> RankGraph:
    """Return the graph of one rank's window.

    Host events inside a communication event, if no device does the communication, have no nodes: the
    event is one piece. The events that a thread or stream waits for are:

    - of a kernel: the event before it on its stream, its launch, and, if it was launched more than
      `LATENCY_NS` before and its stream is idle, the last event of another stream that ends before;
    - of a call that waits or copies: the last device event that ends within it and was launched before;
    - of a thread's outermost event: the thread with steps, wherever that is by then;
    - of a thread with steps, where it is in no span but the step, or in one that waits for
      communication (``irecv.wait``): a receive, collective or remote call of another thread that ends
      meanwhile.

    Of communication that no other thread does, the wait is the end.
    """
    profile = Profile(with_step(trace))
    tree = profile.whole_tree
    events = tree.events
    collectives = placed_collectives(profile)
    nodes = _Nodes(tree, _outside_of_communication(tree, collectives))
    edges = [
        _of_threads(nodes),
        *_of_streams(events, nodes),
        *_waiting_calls(events, nodes),
        _handed_over(nodes),
        _waited_in_steps(events, nodes, collectives),
    ]
    source, target, key, least_ns = (np.concatenate(parts) for parts in zip(*edges))
    label, labels = _labels(profile, tree, key)
    return RankGraph(
        nodes.time_ns,
        source.astype(np.int32),
        target.astype(np.int32),
        least_ns,
        label,
        labels,
        _step_ends(profile, events, nodes),
        _with_nodes(collectives, events, nodes),
        not (tree.of_category("ProfileStep")["name"] == WHOLE_TRACE).any(),
    )


def _outside_of_communication(tree: Tree, collectives: pl.DataFrame) -> Bool:
    """Return which host events and launches have nodes, shape (hosts and launches,)."""
    events = tree.events
    is_kept = np.ones(events.first_device, bool)
    if not events.has_devices:
        rows, start_ns = (collectives[name].to_numpy() for name in ("first_row", "start_ns"))
        rows = np.unique(rows[events.start_ns[rows] == start_ns])
        is_kept[: events.num_hosts] = ~tree.below(rows)
        above = events.parent[events.launches]
        is_kept[events.launches] = np.append(is_kept, True)[above]
    return is_kept


class _Nodes:
    """The nodes of a rank: first those of threads, thread by thread in order of time, then streams'."""

    def __init__(self, tree: Tree, is_kept: Bool) -> None:
        events = tree.events
        row, is_end = _in_order(tree, is_kept)
        self.row = row
        """Row of the event that starts or ends at each node of a thread."""
        self.is_end = is_end
        """Whether it ends there."""
        self.thread = events.thread[row]
        """Thread of each node of a thread."""
        self.num = num = len(row)
        """Number of nodes of threads."""
        self.is_first = np.append(True, self.thread[1:] != self.thread[:-1])[:num]
        """Whether each node of a thread is its first."""
        times = np.where(is_end, events.ends(row), events.start_ns[row])
        bounds = np.append(np.flatnonzero(self.is_first), num)
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
            np.maximum.accumulate(times[first:last], out=times[first:last])
        is_call = row >= events.num_hosts
        inside = np.where(is_end, events.parent[row], row)
        # When a call returns, its thread is where it was at the last node of a host event.
        last_host = np.maximum.accumulate(np.where(is_call, -1, np.arange(num)))
        is_same = (last_host >= 0) & (self.thread[last_host] == self.thread)
        around = np.where(is_same, inside[last_host], -1)
        self.owner: Int64 = np.where(is_call & is_end, around, inside)
        """Row of the innermost event in which the thread is after each node; -1: none."""
        self.start = np.full(events.events.height, -1)
        """Node at which each event starts; -1 for an event without nodes."""
        self.end = self.start.copy()
        """Node at which each event ends; -1 likewise."""
        self.start[row[~is_end]] = np.flatnonzero(~is_end)
        self.end[row[is_end]] = np.flatnonzero(is_end)
        num_devices = events.events.height - events.first_device
        self.start[events.devices] = num + 2 * np.arange(num_devices)
        self.end[events.devices] = self.start[events.devices] + 1
        of_devices = np.column_stack(events.intervals(events.devices)).ravel()
        self.time_ns = np.concatenate((times, of_devices))
        """Time of each node."""
        steps = events.host_rows("ProfileStep")
        is_stepping = np.isin(self.thread, np.unique(events.thread[steps]))
        of_steps = np.flatnonzero(is_stepping)
        self.of_steps: Int64 = of_steps[np.argsort(self.time_ns[of_steps], kind="stable")]
        """The nodes of threads with steps, in order of time."""
        self.is_stepping = is_stepping
        """Whether each node of a thread is of one with steps."""
        num_rows = events.events.height
        outside = np.where(is_stepping, _OWN_CODE, _THREAD_GAP) + 3 * num_rows
        self.key = np.where(self.owner >= 0, self.owner, outside)
        """Key of the label (see `_labels`) of what each thread does after each node."""


_DEVICE_GAP, _THREAD_GAP, _OWN_CODE = range(3)


def _in_order(tree: Tree, is_kept: Bool) -> tuple[Int64, Bool]:
    """Return the row of the event that starts or ends at each node of a thread, and whether it ends."""
    events = tree.events
    is_host = is_kept[: events.num_hosts]
    hosts = np.flatnonzero(is_host)
    num_inside = subtree_sums(is_host.astype(np.int64), tree.size)[hosts] - 1
    depth = events.events["depth"][: events.num_hosts].to_numpy()[hosts]
    # A walk through the trees enters and leaves each event once.
    enter = 2 * np.arange(len(hosts)) - depth
    leave = enter + 2 * num_inside + 1
    row, is_end = np.empty(2 * len(hosts), np.int64), np.zeros(2 * len(hosts), bool)
    row[enter] = row[leave] = hosts
    is_end[leave] = True
    calls = events.num_hosts + np.flatnonzero(is_kept[events.num_hosts :])
    if not len(calls):
        return row, is_end
    call_row, call_is_end = np.repeat(calls, 2), np.tile((False, True), len(calls))
    call_ns = np.column_stack(events.intervals(calls)).ravel()
    order = np.lexsort((call_ns, events.thread[call_row]))
    call_row, call_is_end, call_ns = call_row[order], call_is_end[order], call_ns[order]
    call_thread, host_thread = events.thread[call_row], events.thread[row]
    times = np.where(is_end, events.ends(row), events.start_ns[row])
    before = np.empty(len(order), np.int64)
    for thread in np.unique(call_thread).tolist():
        own = slice(*np.searchsorted(call_thread, (thread, thread + 1)).tolist())
        first, last = np.searchsorted(host_thread, (thread, thread + 1)).tolist()
        of_hosts = np.maximum.accumulate(times[first:last])
        sides = [np.searchsorted(of_hosts, call_ns[own], side) for side in ("right", "left")]
        place = np.where(call_is_end[own], sides[1], sides[0])
        before[own] = first + np.maximum.accumulate(place)
    return np.insert(row, before, call_row), np.insert(is_end, before, call_is_end)


_Edges = tuple[Array, Array, Int64, Int64]
"""Source, target, key of the label (see `_labels`) and least time of some edges."""


def _edges(source: Array, target: Array, key: Array | int, least_ns: Int64 | int = 0) -> _Edges:
    """Return edges; one key or time may stand for all of them."""
    shape = source.shape
    return source, target, np.broadcast_to(key, shape), np.broadcast_to(least_ns, shape)


def _of_threads(nodes: _Nodes) -> _Edges:
    """Return the edges between neighbours on threads."""
    target = np.flatnonzero(~nodes.is_first)
    return _edges(target - 1, target, nodes.key[target - 1])


def _of_streams(events: EventArrays, nodes: _Nodes) -> list[_Edges]:
    """Return the edges of device events, and to them."""
    row = np.arange(events.first_device, events.events.height)
    if not len(row):
        return []
    num_rows = events.events.height
    table = events.events[["device", "stream"]].slice(events.first_device)
    device, stream = (filled(table[name], -(2**63)) for name in ("device", "stream"))
    begin, over = events.intervals(row)
    order = np.lexsort((begin, stream, device))
    same = (device[order][1:] == device[order][:-1]) & (stream[order][1:] == stream[order][:-1])
    former, latter = order[:-1][same], order[1:][same]
    # Events of one stream overlap in some recordings.
    has_ended = over[former] <= begin[latter]
    before = np.where(has_ended, nodes.end[row[former]], nodes.start[row[former]])
    gap = 3 * num_rows + _DEVICE_GAP
    idle_since = np.full(len(row), -(2**63))
    idle_since[latter] = np.where(has_ended, over[former], begin[former])
    launch = events.parent[row]
    launched = np.flatnonzero((launch >= 0) & (nodes.start[launch] >= 0))
    since = events.start_ns[launch[launched]]
    delay_ns = begin[launched] - since
    known = delay_ns[delay_ns >= 0]
    least_ns = int(np.quantile(known, _LEAST_LATENCY, method="lower")) if len(known) else 0
    # The last end on the device before each queued event, if that is on another stream.
    queued = launched[delay_ns > LATENCY_NS]
    place = np.unique(device, return_inverse=True)[1] * (over.max() - begin.min() + 1)
    ended, begun = (place + (times_ns - begin.min()) for times_ns in (over, begin))
    by_end = np.argsort(ended, kind="stable")
    waits_for = by_end[np.searchsorted(ended[by_end], begun[queued], "right") - 1]
    is_later = over[waits_for] > np.maximum(idle_since[queued], events.start_ns[launch[queued]])
    is_later &= (over[waits_for] <= begin[queued]) & (device[waits_for] == device[queued])
    is_later &= stream[waits_for] != stream[queued]
    waiting, waits_for = queued[is_later], waits_for[is_later]
    return [
        _edges(nodes.start[row], nodes.end[row], row),
        _edges(before, nodes.start[row[latter]], gap),
        _edges(
            nodes.start[launch[launched]],
            nodes.start[row[launched]],
            num_rows + row[launched],
            least_ns,
        ),
        _edges(nodes.end[row[waits_for]], nodes.start[row[waiting]], 2 * num_rows + row[waiting]),
    ]


def _waiting_calls(events: EventArrays, nodes: _Nodes) -> list[_Edges]:
    """Return the edges from device events to the ends of the calls that wait for them."""
    num_rows = events.events.height
    row = np.arange(events.first_device, num_rows)
    if not len(row):
        return []
    launch = events.parent[row]
    over = events.ends(row)
    names = events.names.take(events.launches)
    # A copy from or to memory that is not pinned has ended when its call returns.
    is_copy = np.append(is_of_kind(names, COPY), False)[np.maximum(launch - events.num_hosts, -1)]
    copied = np.flatnonzero(is_copy & (launch >= 0) & (over <= events.ends(launch)))
    copied = copied[events.categories.take(row[copied]).is_one_of("Memcpy")]
    calls = events.num_hosts + np.flatnonzero(is_of_kind(names, WAIT, BLOCKING))
    begin, until = events.intervals(calls)
    by_end = np.argsort(over, kind="stable")
    ends, launched_ns = (
        over[by_end],
        np.where(launch >= 0, events.start_ns[launch], -(2**63))[by_end],
    )
    own = launch[by_end]
    last = np.searchsorted(ends, until, "right") - 1
    while True:  # one turn for each event of another thread that a call does not wait for
        is_inside = (last >= 0) & (ends[last] > begin)
        is_other = is_inside & (launched_ns[last] > begin) & (own[last] != calls)
        if not is_other.any():
            break
        last = last - is_other
    waited = row[by_end[last[is_inside]]]
    calls = calls[is_inside]
    source = np.concatenate((nodes.end[waited], nodes.end[row[copied]]))
    calls = np.concatenate((calls, launch[copied]))
    has_node = nodes.end[calls] >= 0
    calls = calls[has_node]
    return [_edges(source[has_node], nodes.end[calls], 2 * num_rows + calls)]


def _handed_over(nodes: _Nodes) -> _Edges:
    """Return an edge to each outermost event of a thread without steps, from a thread with steps."""
    is_outside = np.append(-1, nodes.owner)[: nodes.num] < 0
    is_outermost = (nodes.is_first | is_outside) & ~nodes.is_end & ~nodes.is_stepping
    target = np.flatnonzero(is_outermost)
    position = _position(nodes, nodes.time_ns[target], "right")
    target, position = target[position >= 0], position[position >= 0]
    source = nodes.of_steps[position]
    return _edges(source, target, nodes.key[source])


def _position(nodes: _Nodes, time_ns: Int64, side: Literal["left", "right"]) -> Int64:
    """Return the position in ``of_steps`` of the last node before each time, or at it; -1: none."""
    position: Int64 = np.searchsorted(nodes.time_ns[nodes.of_steps], time_ns, side) - 1
    return position


def _waited_in_steps(events: EventArrays, nodes: _Nodes, collectives: pl.DataFrame) -> _Edges:
    """Return the edges from what another thread received to the thread with steps that waited for it.

    That is a receive, a collective, or the result of a remote call.
    """
    hosts = np.arange(events.num_hosts)
    is_call = events.names.take(hosts).where(lambda name: name.startswith("rpc#"))
    received = [hosts[is_call & (events.parent[hosts] < 0)]]
    if not events.has_devices:
        is_sent = pl.col("members").str.starts_with("-1>").fill_null(value=False)
        received.append(collectives.filter(~is_sent)["last_row"].to_numpy())
    ends = nodes.end[np.concatenate(received)]
    ends = ends[ends >= 0]
    ends = ends[~nodes.is_stepping[ends]]
    position = _position(nodes, nodes.time_ns[ends], "left")
    is_inside = (position >= 0) & (position < len(nodes.of_steps) - 1)
    ends, position = ends[is_inside], position[is_inside]
    before, after = nodes.of_steps[position], nodes.of_steps[position + 1]
    may_wait = np.zeros(events.events.height + 1, bool)
    may_wait[events.host_rows("ProfileStep")] = True
    may_wait[_waits(events)] = True
    may_wait[-1] = True
    waited = may_wait[nodes.owner[before]] & (nodes.thread[before] == nodes.thread[after])
    return _edges(ends[waited], after[waited], nodes.key[before[waited]])


def _waits(events: EventArrays) -> Int64:
    """Return the rows of the spans that wait for communication: ``irecv.wait``."""
    spans = events.host_rows("Communication")
    return spans[events.names.take(spans).where(lambda name: name.endswith(_WAIT))]


_WAIT = ".wait"


def _waited_for(events: EventArrays, call: Int64) -> Int64:
    """Return the row of the span that waits for each call of communication; without one, the call's own.

    Calls and waits of equal arguments belong together in their order, if there are as many of them::

        irecv[peers=1]  irecv[peers=2]   irecv.wait[peers=2]  irecv.wait[peers=1]
    """
    wait = _waits(events)
    equal = ["name", "axis", "group", "bytes", "dtype", "peers"]
    calls, waits = (
        events.events[equal][rows]
        .with_columns(
            pl.col("name").cast(pl.String).str.strip_suffix(_WAIT),
            row=pl.Series(rows, dtype=pl.Int64),
            start_ns=pl.Series(events.start_ns[rows]),
        )
        .sort("start_ns")
        .with_columns(index=pl.int_range(pl.len()).over(equal), num=pl.len().over(equal))
        for rows in (np.unique(call), wait)
    )
    found = calls.join(waits, [*equal, "index", "num"], nulls_equal=True).select("row", "row_right")
    last = np.arange(events.num_hosts)
    last[found["row"].to_numpy()] = found["row_right"].to_numpy()
    return last[call]


def _labels(profile: Profile, tree: Tree, key: Int64) -> tuple[Int32, pl.DataFrame]:
    """Return the label of each key, and the labels.

    A key below the number N of events is the row of an event. N plus a row is the latency of that
    device event's launch, 2 N plus a row is the synchronisation of that call or device event, and
    3 N plus 0, 1 or 2 is a gap of a device, a gap of a thread, or own code.
    """
    events, num_rows = tree.events, tree.events.events.height
    is_used = np.zeros(3 * num_rows + 3, bool)
    is_used[key] = True
    used = np.flatnonzero(is_used)
    row, variant = used % max(num_rows, 1), used // max(num_rows, 1)
    is_general = used >= 3 * num_rows
    row = np.where(is_general, 0, row) if num_rows else used * 0
    of_event = np.append(_kinds(tree), -1)[row]
    general = np.array([_KIND[kind] for kind in ("device gap", "thread gap", "own code")])
    kind = np.where(variant == 1, _KIND["launch latency"], of_event)
    kind = np.where(variant == 2, _KIND["synchronisation"], kind)
    kind = np.where(is_general, general[np.where(is_general, used - 3 * num_rows, 0)], kind)
    host = _hosts(events)[row] if num_rows else row
    columns = {"name": _names(events, row, kind), **_surroundings(tree, host)}
    numbers = [np.where(is_general, -1, labels.number) for labels in columns.values()]
    lanes = events.events[["thread", "device", "stream"]][row]
    is_known = pl.Series(~is_general)
    lanes = lanes.with_columns(pl.when(is_known).then(pl.all().cast(pl.Int64)))
    code = kind.astype(np.uint64)
    for number in (
        *numbers,
        *map(filled, lanes),
    ):  # a hash: the columns do not fit into an integer
        code = code * np.uint64(0x9E3779B97F4A7C15) + (number + 1).astype(np.uint64)
        code ^= code >> np.uint64(29)
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    label = np.zeros(len(is_used), np.int32)
    label[used] = inverse
    table = pl.DataFrame(
        {
            "kind": pl.Series([KINDS[number] for number in kind[first]], dtype=LABELS["kind"]),
            **{
                name: Labels(number[first], labels.texts).column()
                for (name, labels), number in zip(columns.items(), numbers)
            },
            **lanes[first].to_dict(),
        }
    )
    return label[key], table


def _kinds(tree: Tree) -> Int64:
    """Return the kind of each event, a position in `KINDS`."""
    events = tree.events
    kind = np.full(events.events.height, _KIND["host"])
    loaders = events.host_rows("Dataloader")
    kind[: events.num_hosts][tree.below(loaders)] = _KIND["data loading"]
    kind[loaders] = _KIND["data loading"]
    kind[events.host_rows("ProfileStep")] = _KIND["own code"]
    kind[events.communication_spans] = _KIND["communication"]
    kind[events.launches] = _KIND["runtime call"]
    kind[events.devices] = np.where(events.is_kernel, _KIND["kernel"], _KIND["copy"])
    device = np.arange(events.first_device, len(kind))
    kind[device[events.names.take(device).where(events.communicates)]] = _KIND["communication"]
    return kind


def _hosts(events: EventArrays) -> Int64:
    """Return the host event around each event, or around its launch; -1 for none."""
    hosts = np.arange(events.events.height)
    hosts[events.launches] = events.parent[events.launches]
    hosts[events.devices] = events.host_of_device
    return hosts


def _names(events: EventArrays, row: Int64, kind: Int64) -> Labels:
    """Return the names of some events; null for own code, which is in the step and in no event of it."""
    names = events.names.take(row)
    return Labels(np.where(kind == _KIND["own code"], -1, names.number), names.texts)


def _surroundings(tree: Tree, host: Int64) -> dict[str, Labels]:
    """Return the operator, module and line of some host events, -1 for none."""
    events = tree.events
    operator = np.append(tree.innermost(events.host_rows("Operator")), -1)[host]
    operators = Labels(
        np.where(operator >= 0, events.names.number[operator], -1), events.names.texts
    )
    module = np.append(modules_around(tree), -1)[host]
    lines = Labels.of(events.events["line"])
    has_line = lines.number[: events.num_hosts] >= 0
    line = np.append(tree.innermost(np.flatnonzero(has_line)), -1)[host]
    of_line = Labels(np.where(line >= 0, lines.number[line], -1), lines.texts)
    return {"operator": operators, "module": _modules(tree).take(module), "line": of_line}


def _modules(tree: Tree) -> Labels:
    """Return the names of the modules and phases around each module or phase, and its own, shape (hosts + 1,).

    The last one is that of none.
    """
    events = tree.events
    rows = events.host_rows(*_MODULES)
    above = np.append(tree.innermost(rows), -1)[events.parent[rows]]
    table = events.events[["name", "category", "attributes"]][rows]
    layer = names_of_layers(table["attributes"])
    own = pl.when(pl.col("category") == "Forward").then(
        pl.coalesce(layer, pl.col("name").cast(pl.String))
    )
    names = table.select(own.otherwise(pl.col("category").cast(pl.String))).to_series()
    paths: dict[int, str] = {}  # in pre-order, a module follows those around it
    for row, outer, name in zip(rows.tolist(), above.tolist(), names):
        around = paths.get(outer, "")
        is_deep = around.count(SEPARATOR) >= MAX_DEPTH
        paths[row] = around if is_deep else join_path(around, name)
    number = np.full(events.num_hosts + 1, -1)
    labels = Labels.of(pl.Series([*paths.values()], dtype=pl.Categorical))
    number[rows] = labels.number
    return Labels(number, labels.texts)


_MODULES = ("Forward", "Backward", "Optimization")


def modules_around(tree: Tree) -> Int32:
    """Return the row of the innermost module or phase around each host event, shape (hosts,); -1: none.

    Modules are Forward events, phases are Backward and Optimization. A gradient, and what is in it,
    are in the module of the operator whose gradient it is.
    """
    events = tree.events
    around: Int32 = tree.innermost(events.host_rows(*_MODULES))
    forward = filled(events.events["forward"].slice(0, events.num_hosts))
    gradients = np.flatnonzero((forward >= 0) & (forward < events.num_hosts))
    if len(gradients):
        gradient = tree.innermost(gradients)
        is_inside = (gradient >= 0) & (gradient > around)  # in pre-order, what is inside is later
        around = np.where(is_inside, around[forward[gradient]], around)
    return around


def _step_ends(profile: Profile, events: EventArrays, nodes: _Nodes) -> pl.DataFrame:
    """Return the columns of ``steps`` of a `RankGraph`.

    A step ends with its ProfileStep and with the last event of each stream: in a replay, another one may
    be last. It begins beside the start of its ProfileStep or of its first device event, whichever is nearer.
    """
    hosts = events.host_rows("ProfileStep")
    devices = np.arange(events.first_device, events.events.height)
    devices = devices[events.step[devices] >= 0]
    devices = devices[np.argsort(events.ends(devices), kind="stable")]
    rows = np.concatenate((hosts, devices))
    spans = pl.DataFrame(
        {
            "step": events.step[rows],
            "is_host": rows < events.num_hosts,
            "first_node": nodes.start[rows],
            "node": nodes.end[rows],
            "start_ns": events.start_ns[rows],
        },
        schema_overrides={"step": pl.Int64},
    )
    lanes = events.events[["device", "stream"]][rows]
    spans = pl.concat([spans, lanes], how="horizontal").filter(pl.col("node") >= 0)
    steps = steps_of_rank(profile)
    pauses = union(*intervals_of(profile.pauses))
    paused_ns = covered_within(pauses, *(steps[name].to_numpy() for name in ("start_ns", "end_ns")))
    begins = (
        steps.with_columns(paused_ns=pl.Series(paused_ns))
        .group_by("step")
        .agg(begin_ns=pl.col("start_ns").min(), is_paused=(pl.col("paused_ns") > 0).any())
    )
    distance = (pl.col("start_ns") - pl.col("begin_ns")).abs()
    begins = (
        spans.group_by("step", "is_host")
        .agg(pl.col("first_node", "start_ns").sort_by("start_ns").first())
        .join(begins, "step")
        .group_by("step")
        .agg(
            pl.col("begin_ns", "is_paused").first(),
            begin_node=pl.col("first_node").sort_by(distance, "first_node").first(),
        )
    )
    ends = spans.group_by("step", "is_host", "device", "stream").agg(pl.col("node").last())
    ends = ends.join(begins, "step")
    columns = ("step", "node", "begin_node", "begin_ns", "is_paused")
    return ends.sort("step", "node").select(columns)


def _with_nodes(collectives: pl.DataFrame, events: EventArrays, nodes: _Nodes) -> pl.DataFrame:
    """Return the collectives with the nodes at which they start and end; those without are left out."""
    first, last = (collectives[name].to_numpy() for name in ("first_row", "last_row"))
    if not events.has_devices:
        last = _waited_for(events, last)
    start, end = nodes.start[first], nodes.end[last]
    times = [collectives[name].to_numpy() for name in ("start_ns", "end_ns")]
    # Communication without an event of its own lies between two nodes of its thread.
    for row in np.flatnonzero((events.start_ns[first] != times[0]) & (start >= 0)).tolist():
        thread = events.thread[first[row]]
        low, high = (np.searchsorted(nodes.thread, thread, side) for side in ("left", "right"))
        own_ns = nodes.time_ns[low:high]
        start[row] = low + max(np.searchsorted(own_ns, times[0][row], "right") - 1, 0)
        end[row] = min(low + np.searchsorted(own_ns, times[1][row]), high - 1)
    placed = collectives.drop("first_row", "last_row")
    placed = placed.with_columns(start_node=pl.Series(start), end_node=pl.Series(end))
    return placed.filter((pl.col("start_node") >= 0) & (pl.col("end_node") >= 0))
