"""One rank's window as the timeline of a page: tracks of events, packed in chunks.

A track is a host thread or a stream of a device. Its events are sorted by start, parents before
children, and cut into chunks of `CHUNK_EVENTS`, which the page unpacks when they come into view. An
event that is still open where a chunk begins is repeated in it, so that each chunk can be drawn
alone::

    track   a================================      chunk 1: a b c d
              b=====  d====  | f===  g====         chunk 2: a (repeated) f g h
               c==           |  h=

What many events have in common (name, shapes, FLOPs, peers ...) stands once, in a table of
signatures. A thinned copy of the whole track shows windows that are too long for every event.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import Tree, filled
from ppprof.analysis.profile.profile import Communication, Profile
from ppprof.analysis.ranks.collectives import linked_rows
from ppprof.analysis.report_data.signatures import KINDS, Signatures, signatures, with_python
from ppprof.arrays import Array, Bool, Int64
from ppprof.remote_names import REMOTE
from ppprof.trace.nesting import nest
from ppprof.trace.schema import Trace
from ppprof.trace.tree_arrays import pre_order, subtree_sizes

CHUNK_EVENTS = 8192
"""Events of a chunk: a browser unpacks it in 2 ms."""

MOST_TRACKS = 200
"""Tracks of a rank: threads with steps, then streams, then other threads. A job has a few threads
and streams per device."""

MOST_ROWS = 60
"""Rows of a track; deeper events share the last one."""

_MOST_REPEATED = 1_000
"""Most events that a chunk repeats, outermost first."""

_STEPS_END = 1 << 53
"""Numbers of steps from here on are not exact in a script: their events are shown without a step."""

_ROUNDING_NS = 1_000
"""Events of a stream that overlap by less are neighbours: some traces hold whole microseconds."""


class Chunk(NamedTuple):
    """Some consecutive events of a track."""

    start_ns: int
    """Start of its first event that is not repeated, on the rank's own clock."""
    end_ns: int
    """Last end of its events."""
    num: int
    """Number of events, without repeated ones."""
    num_repeated: int
    """Number of repeated events, which stand first, outermost first."""
    rows: tuple[int, int, int, int]
    """Least and greatest row of its host and device events, then of its launches; -1 for none."""
    blob: bytes
    """Packed columns: start_ns (from the rank's `Timeline.base_ns`), dur_ns, signature, depth (not
    bounded by `MOST_ROWS` on a thread), rows (of host or device events, then of launches), step + 1 (0: none), size (events below a host
    event, itself excluded), has_link, and link of the events with one (same order as rows): the
    launch of a device event, the first device event of a launch, the forward of a host event."""


class Track(NamedTuple):
    """A host thread or a stream."""

    name: str
    """The thread's name, if it has one; empty for streams."""
    thread: int | None
    device: int | None
    stream: int | None
    is_python: bool
    """Whether it holds the calls of Python functions on the thread."""
    num_rows: int
    """Number of rows: the nesting depth, or events that run at the same time on a stream."""
    chunks: Sequence[Chunk]
    overview: bytes
    """Packed columns of `ppprof.analysis.report_data.timeline.thinned`: start_ns (from
    ``base_ns``), dur_ns, signature, row, num; sorted by start."""


class Timeline(NamedTuple):
    """The timeline of one rank's window."""

    base_ns: int
    """Start of the first event, on the rank's own clock; 0 without events."""
    end_ns: int
    """End of the last event, on the rank's own clock."""
    num_events: int
    """Number of events on the tracks."""
    num_left_out: int
    """Number of events left out, the shortest first, if there are too many."""
    num_elsewhere: int
    """Number of further events on tracks beyond `MOST_TRACKS`."""
    left_out_below_ns: int
    """Events shorter than this are left out; 0 if all stay."""
    tracks: Sequence[Track]
    signatures: bytes
    """Deflated JSON: `ppprof.analysis.report_data.signatures.Signatures.json`."""
    memory: bytes
    """Packed columns: row of the host event, allocated bytes, freed bytes, and current bytes after
    the last of these changes; empty without memory events."""
    flows: pl.DataFrame
    """The result of `ppprof.analysis.ranks.collectives.linked_rows`: communication that other ranks
    recorded, too. The own rank is -1."""


def timeline(profile: Profile, budget: int, overview_budget: int) -> Timeline:
    """Return the timeline of a window.

    Args:
        profile: one rank's window.
        budget: most events. If there are more, the shortest are left out, but no steps, phases,
            communication, and events around these.
        overview_budget: approximate number of spans in all overviews together.
    """
    trace = profile.whole
    communicating = _communicating(profile)
    table = signatures(trace, communicating)
    frames = python_frames(trace)
    if len(frames.names):
        table = with_python(table, frames.names)
    events = _columns(profile.whole_tree, table.of_event, frames)
    kept, below_ns = _kept(events, table, budget)
    base_ns = int(events.start.min()) if len(events.start) else 0
    orders = list(_orders(trace, events, kept, frames))
    on_tracks = np.concatenate([order for _, order, _ in orders]) if orders else kept.nonzero()[0]
    tracks = [
        _track(
            trace,
            events,
            *track,
            base_ns,
            max(500, overview_budget * len(track[1]) // len(on_tracks)),
        )
        for track in orders
    ]
    num_of = np.bincount(table.of_event[on_tracks], minlength=table.table.height)
    return Timeline(
        base_ns,
        int((events.start + events.dur).max()) if len(events.start) else 0,
        len(on_tracks),
        int((~kept).sum()),
        int(kept.sum()) - len(on_tracks),
        below_ns,
        tracks,
        pack_text(table.json(num_of)),
        _memory(trace),
        linked_rows(trace),
    )


class _Columns(NamedTuple):
    """The events of a trace as arrays of one length; rows are its indices."""

    start: Int64
    dur: Int64
    depth: Int64
    """Of a launch: below its host event. -1 for device events, whose rows follow from overlaps."""
    signature: Int64
    step: Int64
    """-1 outside steps."""
    size: Int64
    link: Int64
    """-1 for none."""
    parent: Int64
    """-1 for none."""
    is_launch: Bool


def _columns(tree: Tree, signature: Int64, frames: PythonFrames) -> _Columns:
    """Return the columns of the events, and behind them those of frames."""
    events, launches, devices = tree.events, tree.events.launches, tree.events.devices
    hosts = slice(0, events.num_hosts)
    parent = events.parent
    depth = filled(events.events["depth"]).astype(np.int64)
    depth[launches] = np.append(depth, -1)[parent[launches]] + 1
    link = np.full(len(parent), -1, np.int64)
    link[hosts] = filled(events.events["forward"])[hosts]
    link[devices] = parent[devices]
    first_first = np.arange(events.first_device, len(parent))[::-1]
    launchers = parent[first_first]  # of several device events of a launch, the first one stays
    link[launchers[launchers >= 0]] = first_first[launchers >= 0]
    is_launch = np.zeros(len(parent), bool)
    is_launch[launches] = True
    none = np.full(len(frames.names), -1)
    size = np.zeros(len(parent), np.int64)
    size[hosts] = tree.size
    return _Columns(
        np.append(events.start_ns, frames.start_ns),
        np.append(events.dur_ns, frames.dur_ns),
        np.append(depth, frames.depth),
        signature,
        np.append(np.where(events.step < _STEPS_END, events.step, -1), none),
        np.append(size, frames.size),
        np.append(link, none),
        np.append(parent, none),
        np.append(is_launch, none == 0),
    )


def _communicating(profile: Profile) -> Bool:
    """Return whether each event is communication, shape (events,)."""
    tree, events = profile.whole_tree, profile.whole_tree.events
    communication = (
        profile.communication
        if tree is profile.tree
        else Communication.from_tree(tree, is_recorded=not profile.unrecorded_device)
    )
    rows = communication.host_rows
    # The prefix "rpc#" of operators of remote calls is no sign of communication.
    is_remote = events.names.take(rows).where(lambda name: REMOTE in name)
    rows = rows[~(is_remote & events.categories.take(rows).is_one_of("Operator"))]
    result = np.zeros(len(events.parent), bool)
    result[rows] = True
    below = np.append(tree.below(rows) | result[: events.num_hosts], False)
    is_named = events.names.take(events.devices).where(events.communicates)
    result[events.devices] = (is_named | below[events.host_of_device]) & events.is_kernel
    return result


def _kept(events: _Columns, table: Signatures, budget: int) -> tuple[Bool, int]:
    """Return whether each event is kept, and the length below which events are left out."""
    if len(events.start) <= budget:
        return np.ones(len(events.start), bool), 0
    always = np.isin(table.kind, [KINDS.index(kind) for kind in _ALWAYS])[table.of_event]
    longest_out = len(events.dur) - budget - 1
    least = int(np.partition(events.dur, longest_out)[longest_out]) + 1
    kept = always | (events.dur >= least)
    rows = np.flatnonzero(kept)
    while len(rows):  # what is around a kept event, which the page finds by depth
        above = events.parent[rows]
        rows = np.unique(above[(above >= 0) & ~kept[above]])
        kept[rows] = True
    return kept, least


_ALWAYS = ("step", "forward", "backward", "optimization", "dataloader", "communication")


class _Key(NamedTuple):
    thread: int | None
    device: int | None
    stream: int | None
    is_python: bool = False


def _orders(
    trace: Trace, events: _Columns, kept: Bool, frames: PythonFrames
) -> Iterator[tuple[_Key, Int64, Int64]]:
    """Yield each track with its rows of events, sorted, and their depths; see `MOST_TRACKS`.

    Threads, those with steps first, each followed by the Python frames of the thread; then streams.
    """
    num_events = trace.events.height
    is_stream = pl.col("device").is_not_null()
    keys = trace.events.select("thread", "device", "stream", "category").with_columns(
        row=pl.int_range(pl.len()), is_step=pl.col("category") == "ProfileStep"
    )
    tracks = (
        keys.filter(pl.Series(kept[:num_events]))
        .group_by("thread", "device", "stream", maintain_order=True)
        .agg("row", pl.col("is_step").any())
        .sort(~(is_stream | pl.col("is_step")), is_stream, "device", "stream", "thread")
        .head(MOST_TRACKS)
        .sort(is_stream, ~pl.col("is_step"), maintain_order=True)
    )
    for thread, device, stream, rows in tracks.select(
        "thread", "device", "stream", "row"
    ).iter_rows():
        order = _nested if device is None else _side_by_side
        yield _Key(thread, device, stream), *order(events, np.array(rows))
        if device is None and thread is not None:
            own = num_events + np.flatnonzero((frames.thread == thread) & kept[num_events:])
            if len(own):
                yield _Key(thread, None, None, is_python=True), *_nested(events, own)


def _track(
    trace: Trace,
    events: _Columns,
    key: _Key,
    order: Int64,
    depth: Int64,
    base_ns: int,
    budget: int,
) -> Track:
    row = np.minimum(depth, MOST_ROWS - 1)
    return Track(
        trace.extra_info.get(str(key.thread), "") if key.device is None else "",
        *key,
        int(row.max()) + 1,
        list(_chunks(events, order, depth, base_ns)),
        _overview(events, order, row, base_ns, budget),
    )


def _nested(events: _Columns, rows: Int64) -> tuple[Int64, Int64]:
    """Return a thread's events sorted by start, parents before children, and their depths.

    Host events keep their order (pre-order) even if rounding lets one begin before its parent.
    """
    is_launch = events.is_launch[rows]
    hosts, launches = rows[~is_launch], rows[is_launch]
    key = np.append(np.maximum.accumulate(events.start[hosts]), events.start[launches])
    order = np.append(hosts, launches)[np.argsort(key, kind="stable")]
    return order, events.depth[order]


def _side_by_side(events: _Columns, rows: Int64) -> tuple[Int64, Int64]:
    """Return a stream's events sorted by start, and a row for each, so that none overlap in it."""
    order = rows[np.argsort(events.start[rows], kind="stable")]
    start = events.start[order]
    end = start + events.dur[order]
    depth = np.zeros(len(order), np.int64)
    latest = np.maximum.accumulate(end)
    if (latest[:-1] <= start[1:] + _ROUNDING_NS).all():
        return order, depth
    free: list[int] = []  # per row, when its last event ends
    for index, (begin, finish) in enumerate(zip(start.tolist(), end.tolist())):
        row = next((n for n, until in enumerate(free) if until <= begin + _ROUNDING_NS), len(free))
        row = min(row, MOST_ROWS - 1)
        free[row : row + 1] = [finish]
        depth[index] = row
    return order, depth


def _chunks(events: _Columns, order: Int64, depth: Int64, base_ns: int) -> Iterator[Chunk]:
    start = events.start[order]
    end = start + events.dur[order]
    for first in range(0, len(order), CHUNK_EVENTS):
        last = min(first + CHUNK_EVENTS, len(order))
        repeated = np.flatnonzero(end[:first] > start[first])[:_MOST_REPEATED]
        chosen = np.concatenate((repeated, np.arange(first, last)))
        rows = order[chosen]
        is_launch = events.is_launch[rows]
        by_place = np.concatenate((rows[~is_launch], rows[is_launch]))
        link = events.link[by_place]
        own = order[first:last]
        yield Chunk(
            int(start[first]),
            int(end[chosen].max()),
            last - first,
            len(repeated),
            (*_extent(own[~events.is_launch[own]]), *_extent(own[events.is_launch[own]])),
            pack(
                [
                    *(start[chosen] - base_ns, events.dur[rows]),
                    *(events.signature[rows], depth[chosen], by_place, events.step[rows] + 1),
                    *(events.size[rows], (link >= 0).astype(np.int64), link[link >= 0]),
                ],
                [True, False, False, False, True, True, False, False, True],
            ),
        )


def _extent(rows: Int64) -> tuple[int, int]:
    return (int(rows.min()), int(rows.max())) if len(rows) else (-1, -1)


def _overview(events: _Columns, order: Int64, row: Int64, base_ns: int, budget: int) -> bytes:
    spans = thinned(events.start[order], events.dur[order], row, budget)
    signature = events.signature[order][spans.longest]
    columns = [spans.start - base_ns, spans.dur, signature, spans.depth, spans.num]
    return pack(columns, [True, *[False] * 4])


def _memory(trace: Trace) -> bytes:
    is_change = pl.col("kind").cast(pl.String).is_in(["Allocate", "Free"])
    changes = trace.memory.filter(is_change & pl.col("event").is_not_null())
    table = (
        changes.sort("time_ns", maintain_order=True)
        .group_by("event")
        .agg(
            allocated=pl.col("bytes").filter(pl.col("bytes") > 0).sum(),
            freed=-pl.col("bytes").filter(pl.col("bytes") < 0).sum(),
            current=pl.col("current_allocated").last().fill_null(0).clip(0),
        )
        .sort("event")
    )
    if table.is_empty():
        return b""
    return pack([column.to_numpy() for column in table], [True, False, False, True])


class PythonFrames(NamedTuple):
    """Calls of Python functions, sorted by thread and start, callers before the called; N calls."""

    names: pl.Series
    """File, first line and name of each function."""
    thread: Int64
    start_ns: Int64
    dur_ns: Int64
    depth: Int64
    """0 for a call whose caller is not recorded."""
    size: Int64
    """Number of calls below each call."""


def python_frames(trace: Trace) -> PythonFrames:
    """Return the frames of the threads with events, cut to the time from the first event to the last.

    ::

        events         ===  ==== ==
        frames     main ...............        cut at both sides
                         step ..   log         log begins after the last event: left out
    """
    events, frames = trace.events, trace.frames
    if events.is_empty() or frames.is_empty():
        frames = frames.clear()
    start = events["start_ns"].to_numpy()
    end = start + events["dur_ns"].to_numpy()
    first, last = (int(start.min()), int(end.max())) if len(start) else (0, 0)
    cut = (
        frames.with_columns(end_ns=(pl.col("start_ns") + pl.col("dur_ns")).clip(upper_bound=last))
        .with_columns(pl.col("start_ns").clip(lower_bound=first))
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .filter(pl.col("thread").is_in(events["thread"].drop_nulls().unique().implode()))
        .sort("thread", "start_ns", "end_ns", descending=[False, False, True])
    )
    thread, start, end = (cut[name].to_numpy() for name in ("thread", "start_ns", "end_ns"))
    parent = nest(thread, start, end)
    depth = pre_order(parent)[1]
    return PythonFrames(
        cut["name"].cast(pl.String),
        thread,
        start.astype(np.int64),
        end - start,
        depth.astype(np.int64),
        subtree_sizes(parent, depth).astype(np.int64),
    )


_PIECES = 8192
"""Pieces of time that a window is cut into at first: more than a screen has pixels."""


class Spans(NamedTuple):
    """Spans that each stand for one or more events, sorted by start; arrays of one length."""

    start: Int64
    dur: Int64
    """To the last end of its events."""
    depth: Int64
    longest: Int64
    """Index of its longest event."""
    num: Int64
    """Number of its events."""


def thinned(start: Int64, dur: Int64, depth: Int64, budget: int) -> Spans:
    """Return events as at most about ``budget`` spans.

    Neighbouring short events of a row become one span. Longer events stay::

        events   a=======  b c d   e==========     a row with room for three
        drawn    a=======  bcd===  e==========     num 1, 3, 1

    Args:
        start: ns, sorted within each row, shape (N,).
        dur: ns, shape (N,).
        depth: the row of each event, shape (N,).
        budget: the number of spans.
    """
    order = np.argsort(depth, kind="stable")
    start, dur, row = start[order], dur[order], depth[order]
    end = start + dur
    first = np.arange(len(start))
    whole = int(end.max() - start.min()) if len(start) else 0
    resolution = max(1, whole // _PIECES)
    while len(first) > budget:
        first = np.flatnonzero(_begins(start, dur, row, resolution))
        resolution += resolution // 2 + 1
        if resolution > 2 * whole:
            break
    if not len(first):
        return Spans(*[np.empty(0, np.int64)] * 5)
    num = np.diff(first, append=len(start))
    group = np.repeat(np.arange(len(first)), num)
    maximal = np.flatnonzero(dur == np.maximum.reduceat(dur, first)[group])
    longest = maximal[np.diff(group[maximal], prepend=-1) > 0]
    spans = Spans(
        start[first],
        np.maximum.reduceat(end, first) - start[first],
        row[first],
        order[longest],
        num,
    )
    by_start = np.lexsort((spans.depth, spans.start))
    return Spans(*(column[by_start] for column in spans))


def _begins(start: Int64, dur: Int64, row: Int64, resolution: int) -> Bool:
    """Return whether each event begins a span, shape (N,).

    Short events share a span if they begin in one piece of time of one row and no long event is
    between them. An event that is not shorter than ``resolution`` has a span of its own.
    """
    is_short = dur < resolution
    piece = start // resolution
    begins = np.ones(len(start), bool)
    begins[1:] = ~is_short[1:] | ~is_short[:-1] | (piece[1:] != piece[:-1]) | (row[1:] != row[:-1])
    return begins


_LEVEL = 6


def pack(columns: Sequence[Int64], deltas: Sequence[bool]) -> bytes:
    """Return columns as one blob.

    Args:
        columns: int64, each of any length; below 2**55, and from 0 on where it is not a delta.
        deltas: for each column, whether to store differences.
    """
    return zlib.compress(b"".join(map(_column, columns, deltas)), _LEVEL)


def pack_text(text: str) -> bytes:
    """Return a text, deflated."""
    return zlib.compress(text.encode("utf-8", "replace"), _LEVEL)


def _column(values: Int64, is_delta: bool) -> bytes:
    if is_delta:
        steps = np.diff(values, prepend=0)
        values = (steps << 1) ^ (steps >> 63)
    largest = int(values.max()) if len(values) else 0
    width = (largest.bit_length() + 7) // 8
    octets: Array = values.astype("<i8").view(np.uint8).reshape(-1, 8)
    header = bytes((width, is_delta)) + len(values).to_bytes(4, "little")
    planes: bytes = octets[:, :width].T.tobytes()
    return header + planes
