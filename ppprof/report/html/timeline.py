"""The data of the page's timeline: packed chunks as inert elements, and what the scripts need first.

The scripts in ``timeline/`` unpack a chunk when it comes into view. Times in the page are nanoseconds
since the start of the trace: the first event of all drawn ranks, on the reference clock.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import polars as pl

from ppprof.analysis.ranks.collectives import with_rank
from ppprof.analysis.ranks.step_table import own_time
from ppprof.analysis.report_data.report import Details, ReportData
from ppprof.analysis.report_data.signatures import KINDS
from ppprof.analysis.report_data.timeline import Timeline, Track, pack
from ppprof.remote_names import ends_of
from ppprof.report.html.sections import label


class Blobs:
    """The packed chunks of a page, as text of base64, numbered in the order in which they are added."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, blob: bytes) -> int:
        """Add a blob; return its number."""
        self.texts.append(base64.b64encode(blob).decode())
        return len(self.texts) - 1


def timeline_data(report: ReportData, blobs: Blobs) -> dict[str, Any] | None:
    """Return the input of the timeline's scripts, and add its packed chunks to ``blobs``.

    None if no event was recorded.
    """
    drawn = {rank: details for rank, details in report.details.items() if details.timeline.tracks}
    if not drawn:
        return None
    origin = report.origin_ns
    flows = _flows({rank: details.timeline for rank, details in drawn.items()})
    hosts = dict(report.cluster.steps.select("rank", "host").unique("rank").iter_rows())
    own = dict(
        report.cluster.steps.group_by("rank").agg(own_time(report.cluster.steps).mean()).iter_rows()
    )
    slow = set(report.cluster.slow_ranks.filter("is_slow")["rank"])
    return {
        "kinds": KINDS,
        "path": _path(report, drawn, blobs),
        "ranks": [
            {
                "rank": rank,
                "label": label(report, rank),
                "host": hosts.get(rank),
                "is_slow": rank in slow,
                "node": _node(rank, details),
                "own": own.get(rank),
                **_rank(report, rank, details, origin, blobs),
                "flows": blobs.add(flows[rank]),
            }
            for rank, details in sorted(drawn.items())
        ],
    }


_MOST_PIECES = 100_000
"""Most pieces of the critical path on a page: some 500 KB."""


def _path(report: ReportData, drawn: Mapping[int, Details], blobs: Blobs) -> int | None:
    """Add the critical path to ``blobs``, as far as it is on drawn ranks; None without one.

    Packed columns: start, sorted, and length of each piece; the position of its rank among the drawn
    ones; and 1 + the number of its track, 0 for a track that is not drawn.
    """
    if report.path is None:
        return None
    where = ["rank", "thread", "device", "stream"]
    rows = [
        (rank, track.thread, track.device, track.stream, position, number)
        for position, (rank, details) in enumerate(sorted(drawn.items()))
        for number, track in enumerate(details.timeline.tracks, 1)
        if not track.is_python
    ]
    # Own code, without a thread, is on the first track: that of the steps.
    rows += [
        (rank, None, None, None, position, 1) for rank, *_, position, number in rows if number == 1
    ]
    tracks = pl.DataFrame(
        rows, dict.fromkeys([*where, "position", "track"], pl.Int64), orient="row"
    )
    ranks = tracks.select("rank", rank_position="position").unique()
    pieces = (
        report.path.join(ranks, "rank")
        .join(tracks, where, "left", nulls_equal=True)
        .with_columns(pl.col("track").fill_null(0))
        .sort("begin_ns")
        .head(_MOST_PIECES)
    )
    start_ns = pieces["begin_ns"].to_numpy()
    columns = [start_ns - report.origin_ns, pieces["end_ns"].to_numpy() - start_ns]
    columns += [pieces[name].to_numpy() for name in ("rank_position", "track")]
    return blobs.add(pack(columns, [True, False, False, False])) if len(start_ns) else None


def _node(rank: int, details: Details) -> str:
    """Return the name of a rank in remote calls: that in its own calls, else that of ppprof."""
    calls = details.remote_flows["name"]
    return ends_of(calls[0])[0] if len(calls) else f"worker{rank}"


def _rank(
    report: ReportData, rank: int, details: Details, origin: int, blobs: Blobs
) -> dict[str, Any]:
    drawn = details.timeline
    return {
        "to_reference": _to_reference(report, rank, drawn.base_ns, origin),
        "end": drawn.end_ns - drawn.base_ns,
        "num": drawn.num_events,
        "left_out": drawn.num_left_out,
        "left_out_below": drawn.left_out_below_ns,
        "elsewhere": drawn.num_elsewhere,
        "signatures": blobs.add(drawn.signatures),
        "memory": blobs.add(drawn.memory) if drawn.memory else None,
        "levels": _levels(details, drawn.base_ns),
        "tracks": [_track(track, drawn.base_ns, blobs) for track in drawn.tracks],
    }


def _track(track: Track, base_ns: int, blobs: Blobs) -> dict[str, Any]:
    return {
        "name": track.name,
        "thread": track.thread,
        "device": track.device,
        "stream": track.stream,
        "is_python": track.is_python,
        "rows": track.num_rows,
        "overview": blobs.add(track.overview),
        "parts": [
            [
                blobs.add(chunk.blob),
                *(chunk.start_ns - base_ns, chunk.end_ns - base_ns, chunk.num, chunk.num_repeated),
                *chunk.rows,
            ]
            for chunk in track.chunks
        ],
    }


def _to_reference(report: ReportData, rank: int, base_ns: int, origin: int) -> dict[str, Any]:
    """Return how a script converts times since ``base_ns`` to times since ``origin``.

    The script does as `ppprof.rundir.clocks.Clock.to_reference`: it adds ``shift`` and, interpolated
    between the times ``at``, the differences ``drift``.
    """
    clock = report.cluster.clocks.get(rank)
    if clock is None:
        return {"shift": base_ns - origin, "at": [0], "drift": [0]}
    first = clock.readings[0]
    return {
        "shift": base_ns + first.offset_ns - origin,
        "at": [reading.at_ns - base_ns for reading in clock.readings],
        "drift": [reading.offset_ns - first.offset_ns for reading in clock.readings],
    }


def _levels(details: Details, base_ns: int) -> list[dict[str, Any]]:
    """Return the memory curve of each place: times since ``base_ns`` and allocated bytes."""
    return [
        {
            "place": place,
            "at": (table["time_ns"] - base_ns).to_list(),
            "bytes": table["allocated_bytes"].to_list(),
        }
        for (place,), table in sorted(
            details.memory.levels.group_by("place", maintain_order=True),
            key=lambda group: str(group[0]),
        )
    ]


def _flows(timelines: Mapping[int, Timeline]) -> Mapping[int, bytes]:
    """Return, for each rank, its events of communication that another drawn rank recorded, too.

    Packed columns: row of the event; the number of the communication, which is the same on all
    ranks; and whether the event only starts a transfer that another event does. Sorted by row.
    """
    keys = ["members", "op", "step", "index"]
    tables = [
        with_rank(timeline.flows.with_columns(rank=pl.lit(-1, pl.Int64)), rank)
        for rank, timeline in timelines.items()
    ]
    ends = pl.concat(tables)
    numbers = ends.group_by(keys, maintain_order=True).agg(num=pl.col("rank").n_unique())
    numbers = numbers.filter(pl.col("num") > 1).with_row_index("flow")
    joined = ends.join(numbers, on=keys, nulls_equal=True).sort("row")
    return {
        rank: pack(
            [
                joined.filter(rank=rank)[name].cast(pl.Int64).to_numpy()
                for name in ("row", "flow", "is_post")
            ],
            [True, True, False],
        )
        for rank in timelines
    }
