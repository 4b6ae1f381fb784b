"""Merge windows of many ranks into one timeline, for Perfetto and chrome://tracing.

The format is Trace Event Format. A rank is a process; its host threads and streams are tracks of
the process. Times are on the reference clock (`ppprof.rundir.clocks`). Ranks are written one after
another, and no rank needs another rank's trace. So an arrow's id is made of values that every rank
of a group knows: the group's ranks, and the number of this communication among those of its kind
in this group and step. ::

    rank 0   [all_reduce──────]        s: the arrow starts at the begin of the group's lowest rank,
    rank 1         [all_reduce]        t: passes the ends of the others,
    rank 2      [all_reduce───]        f: and finishes at the end of the highest rank

Viewers read events by time, and drop an arrow that arrives before it starts. No arrow does, because
every rank begins a communication before any rank ends it. A send starts the arrow of its receive.

Times are microseconds since a midnight (UTC) at least one hour before the first event. Viewers hold
times as float64, which has no room for nanoseconds in microseconds since 1970.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ppprof.arrays import Int32, Int64
from ppprof.paths import to_path
from ppprof.rundir.clocks import Clock
from ppprof.trace.annotations import has_annotations
from ppprof.trace.json.lines import (
    LineParts,
    json_lines,
    microseconds,
    open_trace_file,
    optional_arg,
    with_annotation_args,
    with_json_text,
)
from ppprof.trace.lanes import lanes
from ppprof.trace.operator_inputs import input_args, with_json_callstack
from ppprof.trace.schema import Trace
from ppprof.trace.tree_arrays import levels

COLOURS = (
    "thread_state_running",
    "rail_response",
    "rail_animation",
    "yellow",
    "light_memory_dump",
    "rail_load",
    "rail_idle",
    "detailed_memory_dump",
    "background_memory_dump",
    "olive",
    "generic_work",
    "terrible",
)
"""Colour names of micro-batches 0, 1, 2 ..., repeated after the last.

chrome://tracing knows them (trace-viewer's color_scheme.html). Perfetto accepts no colours. It
derives one from a slice's name without digits, so the name of a pipeline span also gets a letter
for its micro-batch.
"""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FIRST_PROCESS = 100_000  # rank 5 is process 100005; to Perfetto, process 0 is the idle process
_TRACKS = (
    1_000  # per rank; track numbers are unique in the file: Perfetto names some by number alone
)
_DAY_NS, _HOUR_NS = 86_400_000_000_000, 3_600_000_000_000
_ROUNDING_NS = 1_000  # Paddle's own JSON has starts in whole microseconds
_ROWS = 1 << 15

_SENDS, _RECEIVES = ("send", "isend"), ("recv", "irecv.wait")
_RANK = re.compile(r"[0-9]{1,9}")
_IS_NO_COLLECTIVE = re.compile(r"\.wait$|send|recv", re.IGNORECASE)


@dataclass(frozen=True)
class Window:
    """One window of one rank, and how to show it."""

    rank: int
    window: int
    name: str
    """Text after ``rank 5`` in the name of the process, ``dp1 pp0 mp1 · host-b``; may be empty."""
    trace: Trace
    clock: Clock | None
    """The rank's clock; if None, the times of the trace are used unchanged."""


def write_merged(
    windows: Iterable[Window],
    path: str | Path,
    *,
    ranks: Collection[int],
    min_dur_ns: int = 0,
) -> int:
    """Write windows into one timeline, each before the next one is requested from ``windows``.

    The file appears when it is complete. It is compressed with gzip if its name ends in ``.gz``.
    Allocations and launch configurations of kernels are left out.

    Args:
        windows: ordered by rank.
        path: the file.
        ranks: all ranks of the timeline; arrows connect only these ranks.
        min_dur_ns: shorter events are left out, except steps, communication and pipeline spans.

    Returns:
        The number of events, without arrows.

    Raises:
        OSError: the file cannot be written.
    """
    expected = frozenset(ranks)
    num_events = 0
    midnight_ns: int | None = None
    tracks: dict[int, _Tracks] = {}
    with open_trace_file(to_path(path)) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        for window in windows:
            events = _on_reference_clock(window)
            first = events["start_ns"].min()
            if midnight_ns is None and isinstance(first, int):
                # One hour earlier, so that no rank whose clock is behind has a negative time.
                midnight_ns = (first - _HOUR_NS) // _DAY_NS * _DAY_NS
            file.write(b",\n" if tracks else b"\n")
            if window.rank not in tracks:
                tracks = {window.rank: _Tracks(window)}
            events = events.with_columns(tid=tracks[window.rank].track_ids(window.trace, events))
            events = _with_arrows(window, events.filter(_is_kept(min_dur_ns)), expected)
            num_events += events.height
            for rows in events.iter_slices(_ROWS):
                json_lines(
                    _with_texts(rows), *_parts(window.rank, midnight_ns or 0)
                ).to_frame().write_csv(
                    file, include_header=False, quote_style="never", line_terminator=",\n"
                )
            # A comma follows every line above.
            file.write(",\n".join(tracks[window.rank].metadata()).encode("utf-8", "replace"))
            del window, events  # else this trace would stay in memory beside the next one
        origin = {"clock": "of rank 0", "origin_unix_ns": str(midnight_ns or 0)}
        file.write(f'\n],"otherData":{json.dumps(origin)}}}\n'.encode())
    return num_events


class _Tracks:
    """The tracks of one rank, its threads and streams, numbered in the order of appearance."""

    def __init__(self, window: Window) -> None:
        self._rank = window.rank
        self._process = _FIRST_PROCESS + window.rank
        self._name = f"rank {window.rank} · {window.name}" if window.name else f"rank {window.rank}"
        self._clock = _clock_label(window.clock, window.rank)
        self._tids: dict[tuple[int | None, int | None, int | None, int], int] = {}
        self._names: dict[int, str] = {}

    def track_ids(self, trace: Trace, events: pl.DataFrame) -> pl.Series:
        """Return the number of each event's track, int64; new tracks are added.

        The names of threads come from the ``extra_info`` of ``trace``.
        """
        columns = ("device", "stream", "thread", "lane")
        tracks = events.select(columns).unique().sort(columns, nulls_last=False)
        for key in tracks.iter_rows():
            if key not in self._tids:
                tid = self._process * _TRACKS + len(self._tids) + 1
                self._tids[key] = tid
                device, stream, thread, lane = key
                label = trace.extra_info.get(str(thread), "")
                name = f"{label} (thread {thread})" if label else f"thread {thread}"
                if device is not None:
                    name = f"device {device}, stream {stream}"
                self._names[tid] = f"{name} ({lane + 1})" if lane else name
        numbered = pl.DataFrame(
            [(*key, tid) for key, tid in self._tids.items()],
            {**dict.fromkeys(columns, pl.Int64), "tid": pl.Int64},
            orient="row",
        )
        joined = events.select(columns).join(
            numbered, on=columns, how="left", nulls_equal=True, maintain_order="left"
        )
        return joined["tid"]

    def metadata(self) -> Iterator[str]:
        """Yield the events that give name and order of the process and of its tracks."""
        first = self._process * _TRACKS + 1  # an existing track, or viewers would add one
        yield self._line("process_name", first, name=self._name)
        # The order of ranks is also that of coordinates: the outermost axis changes slowest.
        yield self._line("process_sort_index", first, sort_index=self._rank)
        if self._clock:
            yield self._line("process_labels", first, labels=self._clock)
        for tid, name in self._names.items():
            yield self._line("thread_name", tid, name=name)
            yield self._line("thread_sort_index", tid, sort_index=tid)

    def _line(self, kind: str, tid: int, **args: Any) -> str:
        event = {"name": kind, "ph": "M", "pid": self._process, "tid": tid, "args": args}
        return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


def _clock_label(clock: Clock | None, rank: int) -> str:
    """Return the text that chrome://tracing shows after a process's name; "" for rank 0, whose clock is the reference."""
    if clock is not None:
        return f"clock within {clock.error_ns / 1000:g} us of rank 0's ({clock.method})"
    return "its own clock" if rank else ""


def _on_reference_clock(window: Window) -> pl.DataFrame:
    """Return the window's events with times on the reference clock, without crossing events.

    The column ``event`` holds the row of each event in the trace, ``lane`` its lane of its track.
    """
    events = window.trace.events.with_columns(event=pl.int_range(pl.len(), dtype=pl.Int32))
    start = events["start_ns"].to_numpy()
    end = start + events["dur_ns"].to_numpy()
    if window.clock is not None:
        start, end = window.clock.to_reference(start), window.clock.to_reference(end)
    is_device = pl.col("device").is_not_null()
    track = events.select(pl.struct("device", "stream", "thread").rank("dense"))
    around = events.select(pl.when(is_device.not_()).then("parent").fill_null(-1))
    start, end = _without_crossings(
        around.to_series().to_numpy(), track.to_series().cast(pl.Int64).to_numpy(), start, end
    )
    lane = lanes(track.to_series().cast(pl.Int64).to_numpy(), start, end)
    return events.with_columns(
        start_ns=pl.Series(start), dur_ns=pl.Series(end - start), lane=pl.Series(lane)
    )


def _without_crossings(
    parent: Int32, track: Int64, start: Int64, end: Int64
) -> tuple[Int64, Int64]:
    """Return times with which events do not cross; Paddle's rounding can cause crossings.

    ::

        parent  |----------|                    |----------|
        a          |--|             becomes        |-|
        b            |-------|                       |-----|

    Viewers lose or misplace events that cross. A child is cut to the time of its parent. Of two
    neighbours that overlap by at most the rounding (1 us), the first one ends earlier; events with
    longer overlaps get different lanes.

    Returns:
        start and end, shape (N,).
    """
    start, end = start.copy(), end.copy()
    for nodes in levels(parent):
        above = parent[nodes]
        if (above >= 0).all():
            start[nodes] = np.clip(start[nodes], start[above], end[above])
            end[nodes] = np.clip(end[nodes], start[nodes], end[above])
        group = np.where(above >= 0, above, -1 - track[nodes])
        order = nodes[np.lexsort((end[nodes], start[nodes], group))]
        group = np.sort(group)
        over = end[order[:-1]] - start[order[1:]]
        cut = (group[:-1] == group[1:]) & (over > 0) & (over <= _ROUNDING_NS)
        end[order[:-1][cut]] = start[order[1:][cut]]
    return start, end


def _is_kept(min_dur_ns: int) -> pl.Expr:
    return (
        (pl.col("dur_ns") >= min_dur_ns)
        | (pl.col("category") == "ProfileStep").fill_null(value=False)
        | has_annotations()
    )


def _with_arrows(window: Window, events: pl.DataFrame, ranks: frozenset[int]) -> pl.DataFrame:
    """Return the events with the id and the phase of the arrow ends at them.

    The columns are ``communication``, ``communication_phase``, ``launch`` and ``launch_phase``. The
    id is null for an event without an arrow of the kind.
    """
    ends = list(_communication(window, events, ranks))
    columns = {"event": pl.Int32, "communication": pl.String, "communication_phase": pl.String}
    number = f"{window.rank}{window.window:03d}"  # followed by a row's 8 digits: fits 64 bits
    launched = events.filter(pl.col("device").is_not_null())["parent"].drop_nulls().unique()
    is_launch = pl.col("device").is_null() & pl.col("event").is_in(launched.implode())
    is_launched = pl.col("device").is_not_null() & pl.col("parent").is_in(events["event"].implode())
    row = pl.when(is_launch).then("event").when(is_launched).then("parent").cast(pl.String)
    return events.join(
        pl.DataFrame(ends, columns, orient="row"), on="event", how="left", maintain_order="left"
    ).with_columns(
        launch=pl.concat_str(pl.lit(number), row.str.zfill(8)),
        launch_phase=pl.when(is_launch).then(pl.lit("s")).otherwise(pl.lit("f")),
    )


def _communication(
    window: Window, events: pl.DataFrame, ranks: frozenset[int]
) -> Iterator[tuple[int, str, str]]:
    """Yield row, arrow id and phase of each event that links this rank to others in the timeline.

    The arrow of a posted receive ends at its wait, ``irecv.wait``. Several sends and receives in
    one kernel are not linked, since the trace does not show which partner each one has.
    """
    counted: Counter[tuple[Any, ...]] = Counter()
    linked = events.filter(pl.col("peers").is_not_null()).sort("start_ns")
    for row, name, group, step, text in linked.select(
        "event", pl.col("name").cast(pl.String), "group", "step", "peers"
    ).iter_rows():
        peers = sorted({int(peer) for peer in text.split(",") if _RANK.fullmatch(peer)} & ranks)
        if name in _SENDS or name in _RECEIVES:
            if len(peers) != 1:
                continue
            is_send = name in _SENDS
            between = (window.rank, *peers) if is_send else (*peers, window.rank)
            key: tuple[Any, ...] = ("send", group, between, step)
            phase = "s" if is_send else "f"
        elif window.rank in peers and len(peers) > 1 and not _IS_NO_COLLECTIVE.search(name):
            key = (name, group, text, step)
            phase = {peers[0]: "s", peers[-1]: "f"}.get(window.rank, "t")
        else:
            continue
        counted[key] += 1
        identity = repr((window.window, counted[key], *key)).encode("utf-8", "replace")
        yield row, blake2b(identity, digest_size=8).hexdigest(), phase


def _with_texts(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events with the columns ``text``, ``annotations``, ``letter`` and ``colour``.

    ``text`` is the escaped name, ``annotations`` the text of annotations in ``args``. ``letter``
    and ``colour`` stand for the micro-batch; they are null for an event without one.
    """
    numbers = events["micro_batch"].drop_nulls().unique().to_list()
    columns = {"micro_batch": pl.Int64, "letter": pl.String, "colour": pl.String}
    of_micro_batch = [
        (number, _LETTERS[number % len(_LETTERS)], COLOURS[number % len(COLOURS)])
        for number in numbers
    ]
    return with_json_callstack(with_annotation_args(with_json_text(events, "name"))).join(
        pl.DataFrame(of_micro_batch, columns, orient="row"),
        on="micro_batch",
        how="left",
        maintain_order="left",
    )


def _parts(rank: int, origin_ns: int) -> LineParts:
    """Return the parts of an event's line and of the lines of its arrow ends.

    An arrow end binds to the innermost event at its time. Its line directly follows the event's
    line, so that it binds to this event.
    """
    start = pl.col("start_ns") - origin_ns
    last = pl.max_horizontal(start, start + pl.col("dur_ns") - 1)
    is_start = pl.col("communication_phase") == "s"
    place = f',"pid":{_FIRST_PROCESS + rank},"tid":'
    micro_batch = pl.concat_str(
        pl.lit(" "), pl.col("micro_batch").cast(pl.String), pl.lit(" ("), "letter", pl.lit(")")
    )
    colour = pl.concat_str(pl.lit(',"cname":"'), "colour", pl.lit('"'))
    return [
        *('{"name":"', pl.col("text"), micro_batch.fill_null("")),
        *('","cat":"', pl.col("category"), f'","ph":"X"{place}', pl.col("tid")),
        *(',"ts":', microseconds(start), ',"dur":', microseconds("dur_ns"), colour.fill_null("")),
        *(f',"args":{{"rank":{rank}', optional_arg("step", pl.col("step"))),
        pl.coalesce("annotations", optional_arg("bytes", pl.col("bytes"))),
        *(optional_arg(key, pl.col(key)) for key in ("device", "stream")),
        optional_arg("correlation id", pl.col("correlation_id")),
        input_args(),
        "}}",
        _arrow("communication", place, pl.when(is_start).then(start).otherwise(last)),
        _arrow("launch", place, start),
    ]


def _arrow(kind: str, place: str, time: pl.Expr) -> pl.Expr:
    """Return an expression of the line of an arrow end; empty for an event without one."""
    phase = pl.col(f"{kind}_phase")
    return pl.concat_str(
        *(pl.lit(f',\n{{"name":"{kind}","cat":"{kind}","id":"'), kind),
        *(pl.lit('","ph":"'), phase, pl.lit(f'"{place}'), pl.col("tid").cast(pl.String)),
        *(pl.lit(',"ts":'), microseconds(time)),
        pl.when(phase == "f").then(pl.lit(',"bp":"e"}')).otherwise(pl.lit("}")),
    ).fill_null("")
