"""The timeline of a page: what stands in the packed chunks, compared with small drawn traces."""

from __future__ import annotations

import numpy as np
import pytest

import ppprof
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.report_data import timeline as module
from ppprof.analysis.report_data.signatures import signatures
from ppprof.analysis.report_data.timeline import timeline
from ppprof.trace import read
from tests.fixtures.drawn_timeline import drawn, events_of
from tests.fixtures.timeline import (
    CPU,
    EPOCH_NS,
    Shapes,
    Thread,
    alloc,
    free,
    kernel,
    launch,
    memcpy,
    span,
    write,
)
from tests.fixtures.unpacked import unpack
from tests.jobs.planted import COMMITTED


def profile_of(tmp_path, *threads):
    return Profile(read(write(tmp_path / "a.pb", *threads)))


def step_on_a_gpu():
    """
    ::

        main     ProfileStep#4  ##############################   0 to 30      row 0
                  Forward        ########                        1 to 9       row 1
                    linear        ######                         2 to 8       row 2
                      launch        #                            4 to 5       row 5
                  all_reduce               ###                   12 to 15     row 3
                    launch                  #                    13 to 14     row 6
        loader   read           #####                            0 to 5       row 4
        stream 7 gemm                ######                      6 to 12      row 7
        stream 9 nccl                      #####                 13 to 18     row 8
    """
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#4", 0, 30).around(
            span("Forward", "GPT", 1, 9).around(
                span("Operator", "linear", 2, 8, launch(4, 5, kernel("gemm", 6, 12)))
            ),
            span("Communication", "all_reduce", 12, 15).around(
                launch(13, 14, kernel("reduce", 13, 18, stream=9))
            ),
        ),
    )
    return main, Thread(2, "loader", (span("Operator", "read", 0, 5),))


def test_every_track_of_a_step(tmp_path):
    found, table = drawn(profile_of(tmp_path, *step_on_a_gpu()))
    tracks = {
        (track.name, track.thread, track.device, track.stream): [
            event for chunk in track.chunks for event in events_of(chunk, table, found)
        ]
        for track in found.tracks
    }
    assert tracks == {
        ("main", 1, None, None): [
            ("ProfileStep#4", "step", 0, 30, 0, 0, 4, None),
            ("GPT", "forward", 1, 8, 1, 1, 4, None),
            ("linear", "operator", 2, 6, 2, 2, 4, None),
            ("cudaLaunchKernel", "runtime", 4, 1, 3, 5, 4, 7),
            ("all_reduce", "communication", 12, 3, 1, 3, 4, None),
            ("cudaLaunchKernel", "runtime", 13, 1, 2, 6, 4, 8),
        ],
        ("loader", 2, None, None): [("read", "operator", 0, 5, 0, 4, 4, None)],
        ("", None, 0, 7): [("gemm", "kernel", 6, 6, 0, 7, 4, 5)],
        ("", None, 0, 9): [("reduce", "communication", 13, 5, 0, 8, 4, 6)],
    }
    assert [track.num_rows for track in found.tracks] == [4, 1, 1, 1]
    assert (found.num_events, found.num_left_out, found.left_out_below_ns) == (9, 0, 0)
    assert (found.base_ns, found.end_ns) == (EPOCH_NS, EPOCH_NS + 30)


def test_an_open_event_is_repeated_in_later_parts(tmp_path, monkeypatch):
    """
    ::

        a=============================     chunks of two:  a b | (a) c d | (a) e
          b==  c=====  d==  e===
    """
    monkeypatch.setattr(module, "CHUNK_EVENTS", 2)
    inner = [("b", 2, 5), ("c", 6, 12), ("d", 14, 17), ("e", 18, 22)]
    outer = span("UserDefined", "a", 0, 30).around(*(span("Operator", *event) for event in inner))
    found, table = drawn(profile_of(tmp_path, Thread(1, "main", (outer,))))
    (track,) = found.tracks
    names = [[event[0] for event in events_of(chunk, table, found)] for chunk in track.chunks]
    assert names == [["a", "b"], ["a", "c", "d"], ["a", "e"]]
    assert [(chunk.num, chunk.num_repeated) for chunk in track.chunks] == [(2, 0), (2, 1), (1, 1)]
    assert [(p.start_ns - EPOCH_NS, p.end_ns - EPOCH_NS) for p in track.chunks] == [
        (0, 30),
        (6, 30),
        (18, 30),
    ]
    assert [chunk.rows for chunk in track.chunks] == [
        (0, 1, -1, -1),
        (2, 3, -1, -1),
        (4, 4, -1, -1),
    ]


def test_events_at_the_same_time_on_a_stream_get_rows(tmp_path):
    """
    ::

        a =========        0 to 9 us     row 0
        b    =========     3 to 12       row 1
        c          =====   10 to 15      row 0
    """
    times = {"a": (0, 9_000), "b": (3_000, 12_000), "c": (10_000, 15_000)}
    kernels = [kernel(name, *time) for name, time in times.items()]
    main = Thread(1, "main").around(span("Operator", "op", 0, 9, launch(2, 3, *kernels)))
    found, table = drawn(profile_of(tmp_path, main))
    rows = {event[0]: event[4] for event in events_of(found.tracks[1].chunks[0], table, found)}
    assert rows == {"a": 0, "b": 1, "c": 0}
    assert found.tracks[1].num_rows == 2


def test_the_shortest_events_are_left_out_first(tmp_path):
    """Of 6 events there is room for 3: the step, and operators of 8 and 9 ns; the collective stays."""
    inner = [span("Operator", f"op{n}", 10 * n, 10 * n + n) for n in (3, 8, 9)]
    inner.append(span("Communication", "all_reduce", 95, 96))
    inner.append(span("Operator", "op2", 97, 99))
    main = Thread(1, "main").around(span("ProfileStep", "ProfileStep#0", 0, 100).around(*inner))
    found, table = drawn(profile_of(tmp_path, main), budget=3)
    names = [event[0] for event in events_of(found.tracks[0].chunks[0], table, found)]
    assert names == ["ProfileStep#0", "op8", "op9", "all_reduce"]
    assert (found.num_events, found.num_left_out, found.left_out_below_ns) == (4, 2, 4)
    assert sum(table["num"]) == 4


def test_of_too_many_tracks_those_of_steps_and_streams_are_drawn_first(tmp_path, monkeypatch):
    """The training's thread, both streams, and one of the two other threads."""
    monkeypatch.setattr(module, "MOST_TRACKS", 4)
    kernels = [kernel("k", 10 * n, 10 * n + 5, stream=n) for n in (4, 2)]
    main = Thread(5, "main").around(
        span("ProfileStep", "ProfileStep#0", 0, 100).around(
            span("Operator", "a", 1, 9, launch(2, 3, *kernels))
        )
    )
    others = [Thread(n, "b", (span("Operator", "c", 0, 5),)) for n in (1, 7)]
    found, _ = drawn(profile_of(tmp_path, main, *others))
    tracks = [(track.thread, track.stream) for track in found.tracks]
    assert tracks == [(5, None), (1, None), (None, 2), (None, 4)]
    assert (found.num_events, found.num_left_out, found.num_elsewhere) == (6, 0, 1)


def test_the_events_around_a_kept_event_are_kept(tmp_path):
    """There is room for the step; the collective stays, too, and so does the short span around it."""
    inner = span("UserDefined", "hook", 10, 13, span("Communication", "all_reduce", 11, 12))
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#0", 0, 100).around(inner, span("Operator", "a", 20, 23))
    )
    found, table = drawn(profile_of(tmp_path, main), budget=1)
    names = [event[0] for event in events_of(found.tracks[0].chunks[0], table, found)]
    assert names == ["ProfileStep#0", "hook", "all_reduce"]


def nested(num):
    """``num`` spans, each 2 ns shorter than the one around it, and an operator in the innermost."""
    inner = span("Operator", "leaf", num, num + 10)
    for level in reversed(range(num)):
        inner = span("UserDefined", f"d{level}", level, 2 * num + 10 - level, inner)
    return inner


def test_deep_events_share_a_row_and_keep_their_depth(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_EVENTS", 100)
    found, table = drawn(profile_of(tmp_path, Thread(1, "main", (nested(299),))))
    (track,) = found.tracks
    assert track.num_rows == 60
    depths = [[event[4] for event in events_of(chunk, table, found)] for chunk in track.chunks]
    assert depths == [list(range(100)), list(range(200)), list(range(300))]
    assert max(unpack(track.overview)[3]) == 59


def test_a_long_event_is_repeated_behind_short_ones_of_its_row(tmp_path, monkeypatch):
    """
    ::

        a =====================      a, b and c share the only row; chunks: a b | (a) c
        b    ===
        c            ===
    """
    monkeypatch.setattr(module, "CHUNK_EVENTS", 2)
    monkeypatch.setattr(module, "MOST_ROWS", 1)
    times = {"a": (0, 90_000), "b": (10_000, 20_000), "c": (50_000, 60_000)}
    kernels = [kernel(name, *time) for name, time in times.items()]
    main = Thread(1, "main").around(span("Operator", "op", 0, 9, launch(2, 3, *kernels)))
    found, table = drawn(profile_of(tmp_path, main))
    chunks = found.tracks[1].chunks
    names = [[event[0] for event in events_of(chunk, table, found)] for chunk in chunks]
    assert names == [["a", "b"], ["a", "c"]]


def test_a_number_of_a_step_that_a_script_cannot_hold_is_left_out(tmp_path):
    steps = [
        span("ProfileStep", f"ProfileStep#{number}", 10 * n, 10 * n + 9)
        for n, number in enumerate((2**53 - 1, 2**53, 2**63 - 1))
    ]
    found, table = drawn(profile_of(tmp_path, Thread(1, "main", tuple(steps))))
    events = events_of(found.tracks[0].chunks[0], table, found)
    assert [event[6] for event in events] == [2**53 - 1, -1, -1]


def test_signatures_hold_what_the_page_shows_of_an_event(tmp_path):
    """Of a product: 2 x 512 x 512 x 1024 FLOPs, 2 bytes for each element of inputs and result."""
    shapes = Shapes(
        {"X0": [[512, 512]], "X1": [[512, 1024]]}, {"X0": ["bfloat16"], "X1": ["bfloat16"]}
    )
    product = span("Operator", "matmul", 0, 9).around(
        shapes, launch(2, 3, kernel("gemm", 4, 9), memcpy(10, 12, 4096))
    )
    profile = profile_of(tmp_path, Thread(1, "main", (product,)))
    none = np.zeros(profile.whole.events.height, bool)
    found = signatures(profile.whole, none)
    rows = {row["name"]: row for row in found.table.rows(named=True)}
    assert (rows["matmul"]["shapes"], rows["matmul"]["dtypes"]) == (
        "[512,512] [512,1024]",
        "bfloat16",
    )
    assert rows["matmul"]["flops"] == 2 * 512 * 512 * 1024
    assert rows["matmul"]["moved_bytes"] == 2 * (512 * 512 + 512 * 1024 + 512 * 1024)
    assert (rows["gemm"]["grid_x"], rows["gemm"]["block_x"], rows["gemm"]["registers"]) == (
        80,
        256,
        40,
    )
    assert (rows["MEMCPY_HtoD"]["bytes"], rows["MEMCPY_HtoD"]["grid_x"]) == (4096, None)
    assert {name: row["place"] for name, row in rows.items()} == {
        **{"matmul": 0, "cudaLaunchKernel": 1, "gemm": 2, "MEMCPY_HtoD": 2}
    }


def test_characters_that_reorder_a_text_are_written_out(tmp_path):
    main = Thread(1, "main", (span("Operator", "a\u202eb\x1b[31m", 0, 5),))
    assert drawn(profile_of(tmp_path, main))[1]["name"] == ["a\\u202eb\\x1b[31m"]


def test_memory_belongs_to_the_innermost_event(tmp_path):
    inner = span("OperatorInner", "compute", 4, 8, alloc(5, 50), alloc(6, 20), free(7, 50))
    main = Thread(1, "main").around(
        span("Operator", "linear", 2, 10).around(alloc(3, 100), inner), alloc(60, 10, CPU)
    )
    found, _ = drawn(profile_of(tmp_path, main))
    assert [column.tolist() for column in unpack(found.memory)] == [
        *([0, 1], [100, 70], [0, 50], [100, 120])
    ]


def test_communication_with_other_ranks_has_its_row():
    """Every row is a span of the same operation whose recorded peers are the members."""
    profile = Profile(ppprof.open(COMMITTED / "eight_ranks").trace(rank=0))
    found = timeline(profile, 100_000, 1000)
    events = profile.whole.events
    assert found.flows.height > 100
    for row, op, members in found.flows.select("row", "op", "members").iter_rows():
        name, peers = events["name"][row], events["peers"][row]
        if op == "send":
            sends = name in ("send", "isend")
            assert members == (f"-1>{peers}" if sends else f"{peers}>-1")
        else:
            assert (op, members) == (name, peers)


def test_an_operator_of_a_remote_call_is_an_operator(tmp_path):
    """Paddle counts operators with "rpc" in their names as communication."""
    call = "rpc#f(w0 -> w1)"
    inside = [
        span("Operator", f"{call}#remote_op: relu", 2, 8),
        span("Operator", "rpc_sync", 9, 10),
    ]
    profile = profile_of(
        tmp_path, Thread(1, "main", (span("PythonUserDefined", call, 1, 20, *inside),))
    )
    found, table = drawn(profile)
    events = [event[:2] for event in events_of(found.tracks[0].chunks[0], table, found)]
    assert events == [
        (call, "span"),
        (f"{call}#remote_op: relu", "operator"),
        ("rpc_sync", "communication"),
    ]


@pytest.mark.parametrize("threads", [(), (Thread(1, "main", ()),)])
def test_nothing_recorded_is_no_track(tmp_path, threads):
    found, _ = drawn(profile_of(tmp_path, *threads))
    assert (found.tracks, found.num_events, found.base_ns) == ([], 0, 0)


def test_a_child_that_begins_before_its_parent_stays_its_child(tmp_path):
    """Paddle rounds times; the tree says which event is the parent."""
    profile = profile_of(
        tmp_path,
        Thread(1, "main").around(span("Operator", "a", 10, 20, span("Operator", "b", 9, 15))),
    )
    found, table = drawn(profile)
    events = [(e[0], e[4]) for e in events_of(found.tracks[0].chunks[0], table, found)]
    parents = profile.whole.events["parent"].to_list()
    assert parents == [None, 0]
    assert events == [("a", 0), ("b", 1)]
