"""Write a file of torch's profiler again, event by event, as ``ppprof convert --to kineto`` does.

Tables hold what they count; a copy also has the frames of Python, events of unknown kinds, counters
and all args. What is not valid JSON is mended, and events that cross on one track get another one,
since viewers drop them (`ppprof.trace.lanes`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl

from ppprof.trace.json.batches import decoded_batches
from ppprof.trace.json.lines import open_trace_file
from ppprof.trace.json.recovery import EventDecoder
from ppprof.trace.json.values import nanoseconds
from ppprof.trace.json_head import Keys, read_keys
from ppprof.trace.kineto.names import DEVICES
from ppprof.trace.lanes import track_name, with_tracks
from ppprof.trace.source import TraceStream

_Event = dict[str, msgspec.Raw]
"""Key -> JSON text of its value: no time loses digits."""
_ON_STREAMS = frozenset(json.dumps(cat) for cat in (*DEVICES, "gpu_user_annotation"))
_INTEGER_DIGITS = 18


class _Tracks(NamedTuple):
    """The tracks of the events that cross others on their own."""

    of_events: dict[int, int]
    """Number of an event on a stream, in the order of the file -> its new track."""
    of_places: dict[tuple[str, ...], int]
    """Process, track and time of such an event -> its new track; arrows end there."""
    names: dict[tuple[str, int], str]
    """Process and new track -> its name."""


def copy_kineto_file(source: Path, target: Path, rank: int, world_size: int) -> bool:
    """Write the events of a torch trace to another file; compressed if its name ends in ``.gz``.

    Args:
        source: a JSON file with the events of one rank.
        target: the file, which appears when it is complete.
        rank: the rank, for ``distributedInfo``.
        world_size: number of ranks of the job, likewise.

    Returns:
        Whether the file was written; False for a file that is not as torch writes it.

    Raises:
        OSError: the file cannot be written.
        TraceError: ``source`` cannot be read.
    """
    keys: Keys = {}
    streams: list[tuple[str, ...]] = []
    for event in _events(source, keys):
        if _text(event, "ph") in ('"B"', '"E"') or _text(event, "ts").startswith('"'):
            return False
        if _is_on_stream(event):
            streams.append(tuple(_text(event, key) for key in ("pid", "tid", "ts", "dur")))
    if not isinstance(keys.get("schemaVersion"), (int, float)):
        return False
    tracks = _tracks(streams)
    information = keys.pop("distributedInfo", None)
    place = {"rank": rank, "world_size": world_size}
    others = information if isinstance(information, dict) else {}
    # First, and with a blank behind each colon: HTA searches each line for '"rank": 3'.
    head = json.dumps({"distributedInfo": {**place, **others, **place}, **keys})
    with open_trace_file(target) as file:
        file.write(head[:-1].encode("utf-8", "replace") + b', "traceEvents": [\n')
        lines = _moved(_events(source, {}), tracks)
        for number, line in enumerate(lines):
            file.write(b",\n" + line if number else line)
        file.write(b"\n]}\n")
    return True


def _events(path: Path, keys: Keys) -> Iterator[_Event]:
    """Yield the events of a file; the keys beside them are added to ``keys`` once all are read."""
    with TraceStream(path) as source:
        keys.update(read_keys(source))
        decoder = EventDecoder(_Event, source.path, Counter())
        for _, events in decoded_batches(source, decoder, keys):
            yield from events


def _text(event: _Event, key: str) -> str:
    return bytes(event.get(key, b"")).decode("utf-8", "replace")


def _is_on_stream(event: _Event) -> bool:
    return _text(event, "ph") == '"X"' and _text(event, "cat") in _ON_STREAMS


def _tracks(streams: list[tuple[str, ...]]) -> _Tracks:
    """Return the new tracks of events; ``streams`` has their process, thread, start and duration."""
    columns = list(zip(*streams)) or [()] * 4
    process, thread = (pl.Series(column, dtype=pl.String) for column in columns[:2])
    table = pl.DataFrame(
        {
            "device": process.rank("dense").cast(pl.Int64),
            "stream": thread.str.slice(0, _INTEGER_DIGITS).cast(pl.Int64, strict=False),
            "start_ns": nanoseconds("start_ns", columns[2]).fill_null(0),
            "dur_ns": nanoseconds("dur_ns", columns[3]).fill_null(0).clip(0),
        }
    )
    placed = with_tracks(table).with_row_index("number").filter(pl.col("lane") > 0)
    tracks = _Tracks({}, {}, {})
    for number, stream, lane, track in placed.select("number", "stream", "lane", "track").rows():
        tracks.of_events[number] = track
        tracks.of_places[streams[number][:3]] = track
        tracks.names[streams[number][0], track] = track_name(stream or 0, lane)
    return tracks


def _moved(events: Iterator[_Event], tracks: _Tracks) -> Iterator[bytes]:
    """Yield the JSON text of each event, on its track, and of the names of new tracks."""
    number = 0
    for event in events:
        track = None
        if _is_on_stream(event):
            track = tracks.of_events.get(number)
            number += 1
        elif tracks.of_places and _text(event, "ph") in ('"s"', '"t"', '"f"'):
            track = tracks.of_places.get(tuple(_text(event, key) for key in ("pid", "tid", "ts")))
        if track is not None:
            event["tid"] = msgspec.Raw(str(track).encode())
        yield msgspec.json.encode(event)
    for (process, track), name in tracks.names.items():
        line = {"ph": "M", "name": "thread_name", "pid": msgspec.Raw(process.encode())}
        yield msgspec.json.encode({**line, "tid": track, "args": {"name": name}})
