"""Remote calls inserted into a generated trace: their clock, track and order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from ppprof.rundir.remote_calls import RemoteCall, aligned, write_call
from ppprof.trace import Trace, read, read_window, write_paddle_json
from ppprof.trace.segments import join_segments
from tests.fixtures.run_files import run_file
from tests.fixtures.timeline import (
    EPOCH_NS,
    PROCESS_ID,
    Thread,
    alloc,
    kernel,
    launch,
    memcpy,
    span,
    write,
)

SKEW_NS = 800_000_000
"""The worker's clock is ahead by this."""

OWN = Thread(100, "MainThread").around(
    span("ProfileStep", "ProfileStep#3", 0, 1000).around(
        span("Operator", "relu", 10, 40, launch(12, 15, kernel("relu_kernel", 20, 60))),
    ),
)

F = "rpc#f(w0 -> w1)"
G = "rpc#g(w1 -> w2)"


def call(id: str, sent: int, began: int, ended: int, received: int, **other: object) -> RemoteCall:
    """Return a call that travels 20 ns in each direction."""
    ahead = EPOCH_NS + SKEW_NS
    made = RemoteCall(
        id=id,
        parent=None,
        name="f",
        caller="w0",
        worker="w1",
        process="host:7",
        thread=100,
        sent_ns=EPOCH_NS + sent,
        arrived_ns=ahead + sent + 20,
        began_ns=ahead + began,
        ended_ns=ahead + ended,
        left_ns=ahead + received - 20,
        received_ns=EPOCH_NS + received,
    )
    return replace(made, **other)  # type: ignore[arg-type]


def far(*inside: object, thread: int = 100) -> Thread:
    return Thread(thread, "there", inside)  # type: ignore[arg-type]


def window(tmp_path: Path, *calls: tuple[RemoteCall, tuple[Thread, ...]]) -> Path:
    raw = write(tmp_path / "window.pb", OWN, devices=[0])
    folder = tmp_path / "window.calls"
    for one, threads in calls:
        there = write(tmp_path / "there.pb", *threads, devices=[0]).read_bytes() if threads else b""
        write_call(run_file(folder), one, there)
    return raw


def rows(trace: Trace) -> list[tuple[object, ...]]:
    return (
        trace.events.with_columns(
            pl.col("start_ns") - EPOCH_NS, pl.col("name", "category").cast(pl.String)
        )
        .select(
            "name", "category", "start_ns", "dur_ns", "parent", "depth", "thread", "device", "step"
        )
        .rows()
    )


def track(trace: Trace, name: str) -> int:
    """Return the id of the only track with a name."""
    (id,) = (id for id, text in trace.extra_info.items() if text == name)
    return int(id)


def skewed(start: int) -> int:
    return start + SKEW_NS


def test_a_call_and_the_events_in_it(tmp_path: Path) -> None:
    """::

    main         ProfileStep#3 ...............................................
                   relu
    w1                rpc#f ............
                        f ...........
                          Linear ...    (a Forward there)
                            gemm
    w1 thread 7             load
    stream                  relu_kernel; gemm_kernel on a device of its own
    """
    ahead = SKEW_NS
    there = (
        far(
            span("Forward", "Linear", ahead + 140, ahead + 180).around(
                span("Operator", "gemm", ahead + 150, ahead + 170).around(
                    launch(ahead + 151, ahead + 152).around(
                        kernel("gemm_kernel", ahead + 155, ahead + 165)
                    ),
                    alloc(ahead + 160, 512),
                ),
            ),
        ),
        far(span("UserDefined", "load", ahead + 145, ahead + 155), thread=7),
    )
    trace = read_window(window(tmp_path, (call("a", 100, 130, 190, 230), there)))
    inside = f"{F}#remote_op: "
    w1, load = track(trace, "w1"), track(trace, "w1 thread 7")
    own, gpu = (device["id"] for device in trace.devices)
    assert own == 0
    assert rows(trace) == [
        ("ProfileStep#3", "ProfileStep", 0, 1000, None, 0, 100, None, 3),
        ("relu", "Operator", 10, 30, 0, 1, 100, None, 3),
        (F, "PythonUserDefined", 100, 130, None, 0, w1, None, 3),
        (f"{inside}f", "PythonUserDefined", 130, 60, 2, 1, w1, None, 3),
        (f"{inside}Linear", "PythonUserDefined", 140, 40, 3, 2, w1, None, 3),
        (f"{inside}gemm", "Operator", 150, 20, 4, 3, w1, None, 3),
        (f"{inside}load", "UserDefined", 145, 10, None, 0, load, None, 3),
        ("cudaLaunchKernel", "CudaRuntime", 12, 3, 1, None, 100, None, 3),
        (f"{inside}cudaLaunchKernel", "CudaRuntime", 151, 1, 5, None, w1, None, 3),
        ("relu_kernel", "Kernel", 20, 40, 7, None, None, 0, 3),
        (f"{inside}gemm_kernel", "Kernel", 155, 10, 8, None, None, gpu, 3),
    ]
    assert set(trace.events["process"].drop_nulls()) == {PROCESS_ID}
    assert trace.events["correlation_id"].drop_nulls().to_list() == [1, 3, 1, 3]
    assert trace.extra_info["100"] == "MainThread"
    assert trace.kernels["event"].to_list() == [9, 10]
    memory = trace.memory.with_columns(
        pl.col("time_ns") - EPOCH_NS, pl.col("place").cast(pl.String)
    )
    assert memory.select("time_ns", "event", "thread", "place").rows() == [
        (160, 5, w1, "Place(gpu:0) of w1")
    ]
    assert trace.skipped == {}


def test_remote_calls_survive_in_json(tmp_path: Path) -> None:
    there = (far(span("Operator", "gemm", skewed(150), skewed(170), memcpy_launch())),)
    trace = read_window(window(tmp_path, (call("a", 100, 130, 190, 230), there)))
    write_paddle_json(trace, tmp_path / "window.json")
    again = read(tmp_path / "window.json")
    assert rows(again) == rows(trace)
    assert again.extra_info == trace.extra_info


def memcpy_launch():
    return launch(skewed(151), skewed(152), memcpy(skewed(155), skewed(165), 64))


def test_calls_that_overlap_get_tracks_of_their_own_and_others_share(tmp_path: Path) -> None:
    """::

    w1      a ......      c ...
    w1 (2)      b ......
    """
    trace = read_window(
        window(
            tmp_path,
            (call("a", 100, 130, 150, 200), ()),
            (call("b", 150, 210, 240, 300), ()),
            (call("c", 250, 280, 290, 350), ()),
        )
    )
    calls = trace.events.filter(pl.col("name").cast(pl.String) == F).sort("start_ns")
    first, second = track(trace, "w1"), track(trace, "w1 (2)")
    assert calls["thread"].to_list() == [first, second, first]


def test_a_worker_has_one_track_and_one_device_in_all_segments(tmp_path: Path) -> None:
    """::

    segment     0        1
    called      w1 w2    w2 w3 w1, and a thread of the rank has begun: 101
    """
    segments = []
    for number, workers in enumerate(([1, 2], [2, 3, 1])):
        folder = tmp_path / str(number)
        folder.mkdir()
        calls = []
        for worker in workers:
            at = 100 * len(calls)
            there = far(span("Operator", "gemm", skewed(at + 50), skewed(at + 70), memcpy_launch()))
            place = {"worker": f"w{worker}", "process": f"host:{worker}"}
            calls.append((call(f"{worker}", at, at + 30, at + 80, at + 99, **place), (there,)))
        raw = window(folder, *calls)
        write(raw, OWN, *[Thread(101, "later")] * number, devices=[0])
        segments.append(read_window(raw))
    joined = join_segments(segments)
    called = joined.events.with_columns(pl.col("name").cast(pl.String)).filter(
        pl.col("name").str.starts_with("rpc#")
    )
    worker = pl.col("name").str.extract(r"-> (w\d)\)")
    tracks = called.filter(pl.col("depth") == 0).select(worker, "thread").unique().sort("name")
    assert tracks.rows() == [(name, track(joined, name)) for name in ("w1", "w2", "w3")]
    assert joined.extra_info["101"] == "later"
    devices = called.drop_nulls("device").select(worker, "device").unique().sort("name")
    ids = {str(device["name"]): device["id"] for device in joined.devices}
    assert devices.rows() == [(f"w{n}", ids[f"Imaginary GPU 0 of w{n}"]) for n in (1, 2, 3)]


def test_a_call_in_a_call_goes_over_both_clocks(tmp_path: Path) -> None:
    inner_skew = -5_000_000
    outer = call("outer", 100, 130, 390, 430)
    inner = call(
        "inner",
        *(0, 0, 0, 0),
        parent="outer",
        name="g",
        caller="w1",
        worker="w2",
        process="host:8",
        sent_ns=EPOCH_NS + SKEW_NS + 200,
        received_ns=EPOCH_NS + SKEW_NS + 300,
        arrived_ns=EPOCH_NS + inner_skew + 210,
        left_ns=EPOCH_NS + inner_skew + 290,
        began_ns=EPOCH_NS + inner_skew + 220,
        ended_ns=EPOCH_NS + inner_skew + 280,
    )
    there = (far(span("Operator", "relu", inner_skew + 230, inner_skew + 270)),)
    found = rows(read_window(window(tmp_path, (outer, ()), (inner, there))))
    chain = f"{F}#remote_op: {G}"
    assert [row[:4] for row in found if str(row[0]).startswith(chain)] == [
        (chain, "PythonUserDefined", 200, 100),
        (f"{chain}#remote_op: g", "PythonUserDefined", 220, 60),
        (f"{chain}#remote_op: relu", "Operator", 230, 40),
    ]


def test_a_broken_call_costs_only_itself(tmp_path: Path) -> None:
    raw = window(tmp_path, (call("good", 100, 130, 190, 230), (far(),)))
    folder = tmp_path / "window.calls"
    good = json.loads((folder / "good.json").read_text())
    write_call(run_file(folder), call("no-events", 300, 330, 340, 400), b"\x0f" * 64)
    write_call(run_file(folder), call("orphan", 300, 330, 340, 400, parent="gone"), b"")
    (folder / "cut.json").write_text('{"id": "cut"')
    (folder / "elsewhere.json").write_text(json.dumps({**good, "id": "../window"}))
    (folder / "huge.json").write_text(json.dumps({**good, "id": "huge", "sent_ns": 2**80}))
    (folder / "odd.json").write_text(json.dumps({**good, "id": "odd", "worker": 3}))
    (folder / "list.json").write_text("[1]")
    trace = read_window(raw)
    names = trace.events["name"].cast(pl.String)
    assert names.to_list().count(F) == 2
    assert dict(trace.skipped) == {"remote calls": 6, "recordings of remote calls": 1}


@pytest.mark.parametrize("out", [0, 15, 5_000])
@pytest.mark.parametrize("back", [0, 15, 5_000])
def test_the_true_offset_is_within_the_error(out: int, back: int) -> None:
    sent, ran = 1_000, 50
    one = call(
        "a",
        *(0, 0, 0, 0),
        sent_ns=sent,
        arrived_ns=sent + out - 300,
        left_ns=sent + out + ran - 300,
        received_ns=sent + out + ran + back,
    )
    reading = one.reading
    assert abs(reading.offset_ns - 300) <= reading.error_ns
    assert reading.error_ns == -(-(out + back) // 2)
    assert aligned([one]) == {"a": reading}
