"""Calls of Python functions as a track of the page's timeline."""

from __future__ import annotations

import json

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.report_data.signatures import KINDS
from ppprof.analysis.report_data.timeline import python_frames
from ppprof.trace import read
from tests.fixtures.drawn_timeline import drawn, events_of
from tests.fixtures.timeline import EPOCH_NS

MS = 1_000_000


def torchs(path, frames, *, last=100):
    """A trace of torch: an operator at 10 to ``last`` ms on thread 7, and these frames."""

    def event(cat, name, tid, start, end):
        times = {"ts": EPOCH_NS / 1000 + start * 1000, "dur": (end - start) * 1000}
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "args": {}, **times}

    events = [event("cpu_op", "aten::mm", 7, 10, last)]
    events += [event("python_function", *frame) for frame in frames]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return read(path)


FRAMES = [
    ("train.py(1): <module>", 7, 0, 120),
    ("train.py(5): step", 7, 10, 60),
    ("model.py(9): forward", 7, 12, 40),
    ("model.py(9): forward", 7, 41, 59),
    ("train.py(30): log", 7, 105, 110),
    ("queue.py(2): get", 8, 20, 30),
]
"""::

    thread 7   operator       ==================
               <module>    .......................     cut to 10 to 100
                 step          ............
                   forward      ..... ....
                 log                               ..  after the last event
    thread 8   get                ....                 a thread without events
"""


def test_frames_nest_within_the_time_of_events(tmp_path):
    frames = python_frames(torchs(tmp_path / "a.json", FRAMES))
    times = ((frames.start_ns - EPOCH_NS) // MS).tolist(), (frames.dur_ns // MS).tolist()
    rows = zip(frames.names, *times, frames.depth.tolist(), frames.size.tolist())
    assert list(rows) == [
        ("train.py(1): <module>", 10, 90, 0, 3),
        ("train.py(5): step", 10, 50, 1, 2),
        ("model.py(9): forward", 12, 28, 2, 0),
        ("model.py(9): forward", 41, 18, 2, 0),
    ]


def test_frames_are_a_track_behind_their_thread(tmp_path):
    profile = Profile(torchs(tmp_path / "a.json", FRAMES))
    found, table = drawn(profile)
    host, python = found.tracks
    assert (host.thread, host.is_python, host.num_rows) == (7, False, 1)
    assert (python.thread, python.is_python, python.num_rows) == (7, True, 3)
    assert (found.num_events, found.num_left_out) == (5, 0)
    events = events_of(python.chunks[0], table, found)
    assert [(name, kind, depth, row) for name, kind, _, _, depth, row, *_ in events] == [
        ("train.py(1): <module>", "python", 0, 1),
        ("train.py(5): step", "python", 1, 2),
        ("model.py(9): forward", "python", 2, 3),
        ("model.py(9): forward", "python", 2, 4),
    ]
    assert KINDS[-1] == "python"


def test_of_too_many_frames_the_shortest_are_left_out(tmp_path):
    found, table = drawn(Profile(torchs(tmp_path / "a.json", FRAMES)), budget=4)
    assert (found.num_events, found.num_left_out) == (4, 1)
    assert [event[3] // MS for event in events_of(found.tracks[1].chunks[0], table, found)] == [
        *(90, 50, 28)
    ]


def test_a_trace_without_frames_has_no_such_track(tmp_path):
    found, _ = drawn(Profile(torchs(tmp_path / "a.json", [])))
    assert [track.is_python for track in found.tracks] == [False]
