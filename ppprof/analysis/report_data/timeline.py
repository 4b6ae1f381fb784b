"""One rank's window as lanes of spans, thinned out for drawing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.profile import PHASES, Profile
from ppprof.arrays import Int64

LANES = {
    "lane": pl.String,
    "category": pl.String,
    "name": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "num": pl.Int64,
    "busy_ns": pl.Int64,
}
"""Columns of `lanes`. ``lane``: *steps*, *phases*, *operators*, *communication* (on the host), or
*GPU 0 stream 7*, or *other streams*. ``category`` and ``name``: those of the longest event in the
span. ``num``: the number of events in the span. ``busy_ns``: the sum of their durations."""


MOST_STREAMS = 200
"""Streams with a lane of their own. A job has a few per device; a page cannot show thousands."""


def lanes(profile: Profile, budget: int) -> pl.DataFrame:
    """Return the lanes of the stepping thread and of the streams, thinned out for drawing.

    Neighbouring short events are merged into one span, about as wide as a pixel. Longer events
    stay::

        events   a=======  b c d   e==========     a lane with room for three
        drawn    a=======  bcd===  e==========     num 1, 3, 1

    Of more than `MOST_STREAMS` streams, those with the most work have a lane. The lane *other
    streams* then holds one span, whose name says how many streams it stands for.

    Args:
        profile: one rank's window.
        budget: approximate number of rows for all lanes together.

    Returns:
        Columns of `LANES`, sorted by lane (in the order that `LANES` gives) and start, on the
        rank's own clock.
    """
    all_lanes = list(_spans(profile))
    thinned_lanes, left = [pl.DataFrame(schema=LANES)], budget
    # Small lanes come first: the others get the unused rest of their share.
    for index, (name, spans) in enumerate(sorted(all_lanes, key=lambda lane: lane[1].height)):
        thinned = _thinned(spans, max(left // (len(all_lanes) - index), 1))
        left -= thinned.height
        thinned_lanes.append(thinned.select(pl.lit(name).alias("lane"), *list(LANES)[1:]))
    order = pl.Series([name for name, _ in all_lanes], dtype=pl.String)
    position = pl.col("lane").replace_strict(order, pl.int_range(len(order), eager=True))
    return pl.concat(thinned_lanes).sort(position, "start_ns", maintain_order=True)


def _spans(profile: Profile) -> Iterable[tuple[str, pl.DataFrame]]:
    """Yield each lane's name and disjoint events: category, name, start_ns, end_ns."""
    tree = profile.tree
    steps = tree.of_category("ProfileStep")
    threads = steps["thread"].unique() if steps.height else tree.hosts["thread"].mode().head(1)
    hosts = tree.hosts.filter(pl.col("thread").is_in(threads.implode()))
    columns = ["category", "name", "start_ns", "end_ns"]
    for lane, table in (
        ("steps", hosts.filter(pl.col("category") == "ProfileStep")),
        ("phases", _outermost(tree, hosts.filter(pl.col("category").is_in(PHASES)))),
        ("operators", _outermost(tree, hosts.filter(pl.col("category") == "Operator"))),
        (
            "communication",
            _outermost(tree, tree.hosts.filter(pl.col("category") == "Communication")),
        ),
    ):
        if table.height:
            yield (
                lane,
                table.select(pl.col(columns[:2]).cast(pl.String), *columns[2:]).sort("start_ns"),
            )
    communicates = np.zeros(tree.devices.height, bool)
    communicates[profile.communication.device_rows] = True
    devices = tree.devices.with_columns(
        name=pl.col("name").cast(pl.String),
        category=pl.when(pl.Series(communicates))
        .then(pl.lit("Communication"))
        .otherwise(pl.col("category").cast(pl.String)),
    )
    keys = ["device", "stream"]
    devices, others = _busiest_streams(devices, keys)
    for (device, stream), table in sorted(
        devices.group_by(keys), key=lambda group: tuple(number or 0 for number in group[0])
    ):
        yield f"GPU {device} stream {stream}", table.select(columns).sort("start_ns")
    if others.height:
        num_others = others.n_unique(keys)
        yield (
            "other streams",
            others.select(
                category=pl.lit("Kernel"),
                name=pl.lit(f"{num_others} streams with less work are not drawn"),
                start_ns=pl.col("start_ns").min(),
                end_ns=pl.col("end_ns").max(),
            ),
        )


def _busiest_streams(
    devices: pl.DataFrame, keys: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the events of the `MOST_STREAMS` streams with the most work, and all other events.

    Args:
        devices: device events; reads start_ns, end_ns and ``keys``.
        keys: the columns that identify a stream.
    """
    work = pl.col("end_ns") - pl.col("start_ns")
    streams = devices.group_by(keys, maintain_order=True).agg(work.sum().alias("work_ns"))
    if streams.height <= MOST_STREAMS:
        return devices, devices.clear()
    busiest = streams.sort("work_ns", descending=True, maintain_order=True).head(MOST_STREAMS)
    drawn = devices.join(busiest, on=keys, how="semi", nulls_equal=True, maintain_order="left")
    others = devices.join(busiest, on=keys, how="anti", nulls_equal=True, maintain_order="left")
    return drawn, others


def _outermost(tree: Tree, events: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of ``events`` that are not below another row of ``events`` in the tree."""
    rows = events["row"].to_numpy()
    return events.filter(~pl.Series(tree.below(rows)[rows]))


def _thinned(spans: pl.DataFrame, budget: int) -> pl.DataFrame:
    """Return at most about ``budget`` spans; see `lanes`."""
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    group, resolution = np.arange(1, len(start) + 1), 100
    while group[-1] > budget:
        group = _grouped(start, end, resolution)
        resolution += resolution // 2
    dur = pl.col("end_ns") - pl.col("start_ns")
    return (
        spans.with_columns(group=pl.Series(group))
        .group_by("group", maintain_order=True)
        .agg(
            pl.col("category", "name").get(dur.arg_max()),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            num=pl.len().cast(pl.Int64),
            busy_ns=dur.sum(),
        )
        .drop("group")
    )


def _grouped(start: Int64, end: Int64, resolution: int) -> Int64:
    """Return the group number of each event: neighbouring short events may share a group.

    Short events share a group if they begin in one piece of time and no long event is between them.
    An event that is not shorter than ``resolution`` is a group of its own.

    Args:
        start: ascending, shape (N,).
        end: shape (N,).
        resolution: the length of a piece of time, in nanoseconds.
    """
    is_short = end - start < resolution
    piece = start // resolution
    begins = np.ones(len(start), bool)
    begins[1:] = ~is_short[1:] | ~is_short[:-1] | (piece[1:] != piece[:-1])
    return np.cumsum(begins)
