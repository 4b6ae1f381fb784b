"""The timeline of several ranks: whole documents, and the rules of the format."""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from ppprof.rundir.clocks import Clock, Reading
from ppprof.trace import read
from ppprof.trace.merge import COLOURS, Window, write_merged
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import EPOCH_NS, Thread, kernel, launch, memcpy, span, write
from tests.oracles.trace_event_format import check, load

EPOCH_US = Decimal("82005084966.791")
"""Of `EPOCH_NS` after the midnight before it: 22:46:45 UTC."""


def window(tmp_path: Path, rank: int, *threads: Thread, clock=None, number=0, name="dp0") -> Window:
    path = write(tmp_path / f"{rank}_{number}.pb", *threads)
    return Window(rank, number, name, read(path), clock)


def merged(tmp_path: Path, *windows: Window, **options) -> dict:
    ranks = options.pop("ranks", {window.rank for window in windows})
    write_merged(iter(windows), tmp_path / "merged.json", ranks=ranks, **options)
    return load(tmp_path / "merged.json")


def slices(document: dict) -> dict[str, tuple]:
    """Name -> rank, start and length in nanoseconds after `EPOCH_NS`."""
    return {
        event["name"]: (
            event["pid"] - 100_000,
            int((event["ts"] - EPOCH_US) * 1000),
            int(event["dur"] * 1000),
        )
        for event in document["traceEvents"]
        if event["ph"] == "X"
    }


def linked(document: dict) -> list[list[str]]:
    """Return the ends of each arrow by time; arrows with one end are left out."""
    return [
        [f"{phase} {end['name']} of {end['pid'] - 100_000}" for phase, end in arrow]
        for arrow in check(document).values()
        if len(arrow) > 1
    ]


def called(name: str, start: int, end: int, peers: str, group: int = 0, **facts: object):
    annotations = {
        "axis": "dp",
        "group": group,
        "bytes": 8,
        "dtype": "float32",
        "peers": peers,
        **facts,
    }
    inside = " ".join(f"{key}={value}" for key, value in annotations.items())
    return span("Communication", f"{name}[{inside}]", start, end)


def main(*inside, thread: int = 7) -> Thread:
    return Thread(thread, "MainThread", inside)


def test_a_whole_document(tmp_path):
    """Rank 1's clock is 1000 ns behind.

    ::

        rank 0   ProfileStep#3 0────────────────────────────────900
                   forward 100─300   relu 310─390  all_reduce 400─600
        stream 7                      relu_kernel 350─500
        rank 1 (its clock: -1000)  all_reduce 450────610
    """
    first = main(
        span("ProfileStep", "ProfileStep#3", 0, 900).around(
            span("Forward", "forward[stage=0 micro_batch=1 phase=steady]", 100, 300),
            span("Operator", 'relu "x"', 310, 390).around(
                launch(320, 330, kernel("relu_kernel", 350, 500))
            ),
            called("all_reduce", 400, 600, "0,1"),
        )
    )
    second = main(
        span("ProfileStep", "ProfileStep#3", -1000, -100, called("all_reduce", -550, -390, "0,1"))
    )
    behind = Clock(1, (Reading(EPOCH_NS, 1000, 10),))
    document = merged(
        tmp_path,
        window(tmp_path, 0, first, name="dp0 · host-a"),
        window(tmp_path, 1, second, name="dp1 · host-b", clock=behind),
    )

    def metadata(rank: int, name: str, *tracks: str, clock: str = "") -> list[dict]:
        first = (100_000 + rank) * 1000 + 1
        process = {"ph": "M", "pid": 100_000 + rank}
        lines = [
            {"name": "process_name", "tid": first, "args": {"name": name}, **process},
            {
                "name": "process_sort_index",
                "tid": first,
                "args": {"sort_index": rank},
                **process,
            },
        ]
        if clock:
            labels = {"labels": clock}
            lines.append({"name": "process_labels", "tid": first, "args": labels, **process})
        for number, track in enumerate(tracks, first):
            lines += [
                {"name": "thread_name", "tid": number, "args": {"name": track}, **process},
                {
                    "name": "thread_sort_index",
                    "tid": number,
                    "args": {"sort_index": number},
                    **process,
                },
            ]
        return lines

    def event(rank: int, track: int, name: str, cat: str, start: int, dur: int, more=(), **args):
        return {
            "name": name,
            "cat": cat,
            "ph": "X",
            "pid": 100_000 + rank,
            "tid": (100_000 + rank) * 1000 + track,
            "ts": EPOCH_US + Decimal(start) / 1000,
            "dur": Decimal(dur) / 1000,
            **dict(more),
            "args": {"rank": rank, "step": 3, **args},
        }

    def arrow(rank: int, track: int, name: str, phase: str, at: int, **more):
        return {
            "name": name,
            "cat": name,
            "id": more.pop("id"),
            "ph": phase,
            "pid": 100_000 + rank,
            "tid": (100_000 + rank) * 1000 + track,
            "ts": EPOCH_US + Decimal(at) / 1000,
            **more,
        }

    (link,) = {
        event["id"] for event in document["traceEvents"] if event.get("cat") == "communication"
    } - {"X"}
    forward = {"stage": 0, "micro_batch": 1, "phase": "steady"}
    facts = {"axis": "dp", "group": 0, "bytes": 8, "dtype": "float32", "peers": "0,1"}
    on_stream = {"device": 0, "stream": 7}
    launched = "0000" + "00000004"  # rank 0, window 000, row 4: behind the four host events
    assert document == {
        "displayTimeUnit": "ms",
        "traceEvents": [
            event(0, 1, "ProfileStep#3", "ProfileStep", 0, 900),
            event(0, 1, "forward 1 (b)", "Forward", 100, 200, {"cname": COLOURS[1]}, **forward),
            event(0, 1, 'relu "x"', "Operator", 310, 80),
            event(0, 1, "all_reduce", "Communication", 400, 200, **facts),
            arrow(0, 1, "communication", "s", 400, id=link),
            event(0, 1, "cudaLaunchKernel", "CudaRuntime", 320, 10, **{"correlation id": 1}),
            arrow(0, 1, "launch", "s", 320, id=launched),
            event(0, 2, "relu_kernel", "Kernel", 350, 150, **on_stream, **{"correlation id": 1}),
            arrow(0, 2, "launch", "f", 350, id=launched, bp="e"),
            *metadata(0, "rank 0 · dp0 · host-a", "MainThread (thread 7)", "device 0, stream 7"),
            event(1, 1, "ProfileStep#3", "ProfileStep", 0, 900),
            event(1, 1, "all_reduce", "Communication", 450, 160, **facts),
            arrow(1, 1, "communication", "f", 609, id=link, bp="e"),
            *metadata(
                1,
                "rank 1 · dp1 · host-b",
                "MainThread (thread 7)",
                clock="clock within 0.01 us of rank 0's (exchange)",
            ),
        ],
        "otherData": {"clock": "of rank 0", "origin_unix_ns": str(EPOCH_NS - int(EPOCH_US * 1000))},
    }
    assert linked(document) == [
        ["s cudaLaunchKernel of 0", "f relu_kernel of 0"],
        ["s all_reduce of 0", "f all_reduce of 1"],
    ]
    assert int(document["otherData"]["origin_unix_ns"]) % 86_400_000_000_000 == 0


@pytest.mark.parametrize("number", [0, 3])
def test_a_gpu_job_follows_the_format(tmp_path, number):
    windows = [
        window(tmp_path, rank, *gpu_traces.training(skew=rank), number=number) for rank in range(3)
    ]
    document = merged(tmp_path, *windows)
    by_phase: dict[str, list[str]] = {"s": [], "f": []}
    for arrow in check(document).values():
        for phase, end in arrow:  # not in this order: the job has kernels that start too early
            by_phase[phase].append(end["name"])
    on_device = [e["name"] for e in document["traceEvents"] if "device" in _track(document, e)]
    assert sorted(by_phase["f"]) == sorted(on_device)
    assert all(name.startswith("cuda") for name in by_phase["s"])
    assert len(by_phase["s"]) < len(on_device) == 213  # some launch two


def _track(document: dict, event: dict) -> str:
    """Return the name of a slice's track; empty for other events."""
    names = {
        e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"
    }
    return names[event["tid"]] if event["ph"] == "X" else ""


def test_unusual_names_are_escaped(tmp_path):
    names = [*gpu_traces.ODD_NAMES, "line\nbreak", "end\\"]
    inside = (
        span("UserDefined", name, 10 * number, 10 * number + 5) for number, name in enumerate(names)
    )
    document = merged(tmp_path, window(tmp_path, 0, main(*inside), name='host "a"\n'))
    check(document)
    visible = [name.replace("\t", "\\t").replace("\n", "\\n") for name in names]
    assert list(slices(document)) == visible


def test_clock_drift_is_corrected(tmp_path):
    """100 ns at the first reading, 200 at the second, 1000 ns later: half way it is 150."""
    drifting = Clock(1, (Reading(EPOCH_NS, 100, 5), Reading(EPOCH_NS + 1000, 200, 5)))
    events = main(span("Operator", "a", 0, 1000, span("Operator", "b", 500, 1000)))
    document = merged(tmp_path, window(tmp_path, 1, events, clock=drifting))
    assert slices(document) == {"a": (1, 100, 1100), "b": (1, 650, 550)}


def test_the_clock_may_put_a_rank_before_midnight(tmp_path):
    """Rank 1's clock is half an hour ahead of rank 0's, which starts just after midnight."""
    midnight = EPOCH_NS - int(EPOCH_US * 1000)
    half_an_hour = 1_800_000_000_000
    early = Clock(0, (Reading(0, midnight - EPOCH_NS, 0),))
    earlier = Clock(1, (Reading(0, midnight - EPOCH_NS - half_an_hour, 0),))
    events = main(span("Operator", "a", 0, 10))
    document = merged(
        tmp_path,
        *(window(tmp_path, rank, events, clock=by) for rank, by in enumerate((early, earlier))),
    )
    check(document)
    times = [event["ts"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert times == [Decimal(86_400_000_000), Decimal(86_400_000_000 - 1_800_000_000)]


def test_collectives_are_linked_by_group_step_and_count(tmp_path):
    """Two groups over the same ranks, and rank 1 recorded nothing of step 1."""

    def steps(rank: int) -> Thread:
        return main(
            *(
                span("ProfileStep", f"ProfileStep#{step}", 1000 * step, 1000 * step + 900).around(
                    called("all_reduce", 1000 * step + 100, 1000 * step + 200 + rank, "0,1,2"),
                    called("all_reduce", 1000 * step + 300, 1000 * step + 400 + rank, "0,1,2", 5),
                    called("all_reduce", 1000 * step + 500, 1000 * step + 600 + rank, "0,1,2"),
                    called("broadcast", 1000 * step + 700, 1000 * step + 800 + rank, "0,2"),
                )
                for step in range(1 + (rank == 1), 3)
            )
        )

    document = merged(tmp_path, *(window(tmp_path, rank, steps(rank)) for rank in range(3)))
    check(document)
    ends: dict[str, list] = {}
    for event, line in zip(document["traceEvents"], document["traceEvents"][1:]):
        if line["ph"] in "stf":
            start = int((event["ts"] - EPOCH_US) * 1000)
            ends.setdefault(line["id"], []).append((event["pid"] - 100_000, start, line["ph"]))
    three = [[(0, time, "s"), (1, time, "t"), (2, time, "f")] for time in (2100, 2300, 2500)]
    two = [[(0, time, "s"), (2, time, "f")] for time in (1100, 1300, 1500, 1700, 2700)]
    assert sorted(ends.values(), key=lambda arrow: arrow[0][1]) == sorted(
        three + two, key=lambda arrow: arrow[0][1]
    )


def test_windows_do_not_mix(tmp_path):
    events = [
        main(called("all_reduce", start, start + 100 + rank, "0,1"))
        for rank in range(2)
        for start in (0, 5000)
    ]
    windows = [
        window(tmp_path, rank, events[2 * rank + number], number=number)
        for rank in range(2)
        for number in range(2)
    ]
    document = merged(tmp_path, *windows)
    assert linked(document) == [["s all_reduce of 0", "f all_reduce of 1"]] * 2


def test_a_send_starts_the_arrow_of_its_receive(tmp_path):
    """From the higher rank to the lower too; a posted receive is complete where it was waited for.

    ::

        rank 0   send──── irecv                  irecv.wait─
        rank 1     recv───────    isend─ isend.wait─
    """
    posted = "op={} axis=pp group=4 peers={}".format
    first = main(
        called("send", 0, 100, "1"),
        called("irecv", 110, 120, "1", 4),
        span("Communication", f"wait[{posted('irecv', 1)}]", 300, 400),
    )
    second = main(
        called("recv", 20, 130, "0"),
        called("isend", 200, 210, "0", 4),
        span("Communication", f"wait[{posted('isend', 0)}]", 250, 290),
    )
    document = merged(tmp_path, window(tmp_path, 0, first), window(tmp_path, 1, second))
    assert linked(document) == [
        ["s send of 0", "f recv of 1"],
        ["s isend of 1", "f irecv.wait of 0"],
    ]


@pytest.mark.parametrize(
    ("ranks", "ends"),
    [
        ({1, 2, 3}, ["s all_reduce of 1", "t all_reduce of 2", "f all_reduce of 3"]),
        ({0, 2}, ["s all_reduce of 0", "f all_reduce of 2"]),
    ],
)
def test_an_arrow_connects_only_ranks_of_the_timeline(ranks, ends, tmp_path):
    windows = (
        window(tmp_path, rank, main(called("all_reduce", 0, 100 + rank, "0,1,2,3")))
        for rank in sorted(ranks)
    )
    assert linked(merged(tmp_path, *windows)) == [ends]


def test_a_single_rank_has_no_arrows(tmp_path):
    events = main(
        called("all_reduce", 0, 10, "0,1"),
        called("send", 20, 30, "1"),
        called("barrier", 40, 50, ""),
    )
    assert check(merged(tmp_path, window(tmp_path, 0, events))) == {}


def test_peers_that_are_not_ranks_are_ignored(tmp_path):
    """A file may say anything; Python refuses numbers of more than 4300 digits."""
    peers = f"0,,{'9' * 5000},1"
    windows = (window(tmp_path, rank, main(called("barrier", 0, 9, peers))) for rank in (0, 1))
    assert linked(merged(tmp_path, *windows)) == [["s barrier of 0", "f barrier of 1"]]


def test_a_collective_of_no_length_is_bound(tmp_path):
    windows = (window(tmp_path, rank, main(called("all_reduce", 5, 5, "0,1"))) for rank in (0, 1))
    assert linked(merged(tmp_path, *windows)) == [["s all_reduce of 0", "f all_reduce of 1"]]


def test_every_micro_batch_has_a_colour(tmp_path):
    """Perfetto colours by name without digits: 0 and 12 differ there, though not in chrome's."""
    spans = (
        span(category, f"{category.lower()}[stage=1 micro_batch={number}]", start, start + 5)
        for number in range(13)
        for category, start in (("Forward", 20 * number), ("Backward", 20 * number + 10))
    )
    document = merged(tmp_path, window(tmp_path, 0, main(*spans)))
    colours = {
        (event["args"]["micro_batch"], re.sub(r"( )?\d+", "", event["name"])): event["cname"]
        for event in document["traceEvents"]
        if event["ph"] == "X"
    }
    assert len({name for _, name in colours}) == 26
    assert len(set(COLOURS)) == len(COLOURS) == 12
    assert list(colours.values()) == [
        COLOURS[number % 12] for number in range(13) for _ in ("forward", "backward")
    ]


def test_short_events_are_left_out_except_steps_and_communication(tmp_path):
    events = main(
        span("ProfileStep", "ProfileStep#1", 0, 40).around(
            span("Operator", "long", 0, 30, span("Operator", "short", 1, 20)),
            called("all_reduce", 30, 31, "0,1"),
            span("Forward", "forward[stage=0 micro_batch=0]", 32, 33),
            span("Operator", "relu", 34, 38, launch(34, 35, kernel("relu_kernel", 36, 90))),
            span("Operator", "copy", 38, 39, launch(38, 39, memcpy(95, 96, 64, kind="DtoH"))),
        )
    )
    document = merged(tmp_path, window(tmp_path, 0, events), ranks={0, 1}, min_dur_ns=30)
    assert list(slices(document)) == [
        "ProfileStep#1",
        "long",
        "all_reduce",
        "forward 0 (a)",
        "relu_kernel",
    ]
    assert [arrow[0][0] for arrow in check(document).values()] == [
        "s"
    ]  # none from a launch that was left out


def test_crossings_caused_by_rounding_are_removed(tmp_path):
    """Paddle's own JSON: starts in whole microseconds, lengths exact.

    ::

        outer  |0──────────────────────5.9|
        a        |1────────3.7|
        b                   |3────────────6.2|     .7 over the start of b, .3 over the end of outer
    """
    head = {"schemaVersion": "1.0.2", "displayTimeUnit": "ms", "span_index": "0"}
    times = [("outer", 0, 5.9), ("a", 1, 2.7), ("b", 3, 3.2)]
    lines = [
        {
            "name": name,
            "pid": 1,
            "tid": "5(C++)",
            "ts": 1_700_000_000_000_000 + start,
            "dur": dur,
            "ph": "X",
            "cat": "Operator",
            "args": {"depth": int(name != "outer")},
        }
        for name, start, dur in times
    ]
    path = tmp_path / "paddle.json"
    path.write_text(json.dumps({**head, "traceEvents": lines, "ExtraInfo": {}}))
    trace = read(path)
    assert trace.events["parent"].to_list() == [None, 0, 0]
    document = merged(tmp_path, Window(0, 0, "", trace, None))
    check(document)
    lengths = {name: dur for name, (_, _, dur) in slices(document).items()}
    assert lengths == {"outer": 5900, "a": 2000, "b": 2900}


def test_threads_and_streams_keep_their_tracks_over_windows(tmp_path):
    one, two = main(span("Operator", "a", 0, 10)), main(span("Operator", "b", 0, 10), thread=3)
    document = merged(
        tmp_path,
        window(tmp_path, 4, one),
        window(tmp_path, 4, two, main(span("Operator", "c", 20, 30)), number=1),
    )
    check(document)
    tracks = {e["name"]: e["tid"] for e in document["traceEvents"] if e["ph"] == "X"}
    assert tracks == {"a": 100_004_001, "b": 100_004_002, "c": 100_004_001}


def test_gzip_by_suffix(tmp_path):
    events = main(span("Operator", "a", 0, 10))
    for name in ("a.json", "a.json.gz"):
        write_merged([window(tmp_path, 0, events)], tmp_path / name, ranks={0})
    plain, packed = ((tmp_path / name).read_bytes() for name in ("a.json", "a.json.gz"))
    assert gzip.decompress(packed) == plain


def test_an_empty_trace_is_a_process(tmp_path):
    document = merged(
        tmp_path,
        window(tmp_path, 0, main()),
        window(tmp_path, 1, main(span("Operator", "a", 0, 10))),
    )
    check(document)
    assert slices(document) == {"a": (1, 0, 10)}
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert names == ["rank 0 · dp0", "rank 1 · dp0"]


def test_one_trace_is_held_at_a_time(tmp_path):
    """When the next window is requested, the previous one has been released."""
    import gc
    import weakref

    held: list[weakref.ref] = []

    def windows():
        for rank in range(3):
            gc.collect()
            assert [ref() for ref in held] == [None] * rank
            at = window(tmp_path, rank, *gpu_traces.training(num_steps=1))
            held.append(weakref.ref(at.trace))
            yield at
            del at

    write_merged(windows(), tmp_path / "merged.json", ranks=range(3))
    assert len(held) == 3


def test_a_failed_write_leaves_no_file(tmp_path):
    def windows():
        yield window(tmp_path, 0, main(span("Operator", "a", 0, 10)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_merged(windows(), tmp_path / "merged.json", ranks={0})
    assert [path.name for path in tmp_path.iterdir()] == ["0_0.pb"]


def test_readings_apply_to_the_nanosecond():
    """The clock's own arithmetic is that of whole numbers, above 2**53."""
    clock = Clock(1, (Reading(EPOCH_NS, -812_345_678, 5),))
    times = np.array([EPOCH_NS, EPOCH_NS + 1])
    assert clock.to_reference(times).tolist() == [EPOCH_NS - 812_345_678, EPOCH_NS - 812_345_677]
