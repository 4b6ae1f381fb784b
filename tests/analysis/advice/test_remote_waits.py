"""Why a rank waits for its remote calls: each reason from a table of calls, and what counts as a wait."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.analysis.advice.indicators import IndicatorBuilder
from ppprof.analysis.advice.remote_waits import REMOTE_WAITS, reason_of_waits
from ppprof.analysis.advice.waiting import remote_wait
from ppprof.analysis.profile.profile import Profile
from ppprof.remote_names import REMOTE
from ppprof.run.advise import collect_evidence_of_run
from ppprof.trace import read
from tests.fixtures.findings import US, op, thread
from tests.fixtures.timeline import Span, Thread, write

MS = 1_000_000
USER = "PythonUserDefined"


def table(
    *calls: tuple[int, str, int, int, int], num_bytes: int = 0, num_objects: int = 3
) -> pl.DataFrame:
    """Calls of f as REMOTE_WAITS: step, worker, sent and received in ms, and ms in which f runs; all is waited for."""
    rows = [
        {
            "step": step,
            "name": f"rpc#f(w0 -> {worker})",
            "function": "f",
            "worker": worker,
            "sent_ns": sent * MS,
            "received_ns": received * MS,
            "function_ns": runs * MS,
            "is_awaited": True,
            "waits_ns": (received - sent) * MS,
            "sending_ns": (received - sent - runs) * MS,
            "recording_ns": 0,
            "line": "train.py:7, step()",
            "function_line": "train.py:3, f()",
            "num_bytes": num_bytes,
            "num_objects": num_objects,
        }
        for step, worker, sent, received, runs in calls
    ]
    return pl.DataFrame(rows, REMOTE_WAITS)


def test_calls_to_two_workers_one_after_the_other_could_run_at_once() -> None:
    waits = table(
        (0, "w1", 0, 30, 29),
        (0, "w2", 31, 51, 19),
        (1, "w1", 100, 130, 29),
        (1, "w2", 131, 151, 19),
    )
    facts = reason_of_waits(waits, 2, 50 * MS)
    assert (facts["remedy"], facts["gain_ns"]) == ("config-in-turn", 20 * MS)
    assert (facts["call"], facts["others"]) == ("rpc#f(w0 -> w1)", "rpc#f(w0 -> w2)")


@pytest.mark.parametrize(
    "second",
    [
        pytest.param((0, "w1", 31, 51, 19), id="to the same worker"),
        pytest.param((0, "w2", 50, 70, 19), id="behind other work of the rank"),
        pytest.param((1, "w2", 31, 51, 19), id="in another step"),
    ],
)
def test_other_calls_gain_nothing_at_once(second: tuple[int, str, int, int, int]) -> None:
    facts = reason_of_waits(table((0, "w1", 0, 30, 29), second), 1, 50 * MS)
    assert facts["remedy"] == "config-function"


def test_a_worker_with_more_to_do_in_each_round_is_named() -> None:
    waits = table(
        *((step, "w1", 100 * step, 100 * step + 20, 19) for step in range(3)),
        *((step, "w2", 100 * step + 1, 100 * step + 80, 77) for step in range(3)),
    )
    facts = reason_of_waits(waits, 3, 80 * MS)
    assert (facts["remedy"], facts["worker"], facts["num_workers"]) == ("config-uneven", "w2", 2)
    assert facts["gain_ns"] == pytest.approx((77 - 48) * MS)
    assert facts["call"] == "rpc#f(w0 -> w2)"


def test_workers_of_which_each_is_the_longest_at_times_are_not_uneven() -> None:
    waits = table(
        (0, "w1", 0, 20, 19), (0, "w2", 1, 80, 77), (1, "w1", 100, 180, 77), (1, "w2", 101, 120, 18)
    )
    assert reason_of_waits(waits, 2, 80 * MS)["remedy"] == "config-function"


def test_waits_of_calls_at_once_add_up_to_the_wait() -> None:
    waits = table((0, "w1", 0, 80, 60), (0, "w2", 0, 80, 60))
    facts = reason_of_waits(waits, 1, 80 * MS)
    assert facts["function_ns"] + facts["sending_ns"] == pytest.approx(80 * MS)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("num_calls", "num_objects", "remedy"),
    [(1, 8, "config-sending"), (6, 8, "config-many"), (1, 100_000, "config-objects")],
)
def test_what_is_sent_is_the_reason_if_no_function_runs(
    num_calls: int, num_objects: int, remedy: str
) -> None:
    calls = [(0, "w1", 30 * number, 30 * number + 20, 1) for number in range(num_calls)]
    facts = reason_of_waits(
        table(*calls, num_bytes=5_000_000, num_objects=num_objects), 1, 20.0 * MS * num_calls
    )
    assert (facts["wording"], facts["remedy"]) == ("sending", remedy)
    assert facts["sent_bytes"] == 5_000_000 * num_calls


def test_a_function_that_runs_most_of_the_wait_is_named_with_its_line() -> None:
    facts = reason_of_waits(table((0, "w1", 0, 30, 28)), 1, 30 * MS)
    assert (facts["wording"], facts["remedy"]) == ("function", "config-function")
    assert (facts["line"], facts["function_line"]) == ("train.py:7, step()", "train.py:3, f()")


def test_calls_with_unknown_times_on_the_worker_have_no_reason() -> None:
    waits = table((0, "w1", 0, 30, 28)).with_columns(function_ns=pl.lit(None, pl.Int64))
    assert reason_of_waits(waits, 1, 30 * MS) == {}


def test_a_worker_that_is_the_longest_in_one_round_is_chance() -> None:
    waits = table((0, "w1", 0, 20, 19), (0, "w2", 1, 80, 77))
    assert reason_of_waits(waits, 1, 80 * MS)["remedy"] == "config-function"


def test_calls_that_are_not_waited_for_are_no_reason() -> None:
    """Uneven prefetches, far longer than the call that is waited for."""
    beside = table(
        *((step, "w1", 100 * step, 100 * step + 20, 19) for step in range(3)),
        *((step, "w2", 100 * step + 1, 100 * step + 80, 77) for step in range(3)),
        num_objects=10_000_000,
    ).with_columns(
        is_awaited=pl.lit(value=False), waits_ns=pl.lit(0, pl.Int64), sending_ns=pl.lit(0, pl.Int64)
    )
    waits = table(*((step, "w3", 100 * step + 80, 100 * step + 90, 9) for step in range(3)))
    facts = reason_of_waits(pl.concat([beside, waits]), 3, 10 * MS)
    assert (facts["call"], facts["remedy"]) == ("rpc#f(w0 -> w3)", "config-function")


def test_recordings_without_sizes_have_no_reason() -> None:
    """Of an earlier version, which does not say how long the recording took on the worker."""
    assert reason_of_waits(table((0, "w1", 0, 30, 3), num_objects=0), 1, 30 * MS) == {}


def waits_of(
    path: Path,
    waits: list[tuple[int, int, int]],
    calls: list[tuple[int, int]],
    carrier: str = "rpc",
) -> tuple[list[int], pl.DataFrame]:
    """The waits in us of each of six steps of 1000 us that compute for 200, and their calls.

    ``waits`` are spans: the thread (1 steps), begin and end; ``calls`` to w1 begin and end, f runs but for 10 at each end.
    """
    call, starts = "rpc#f(w0 -> w1)", [1000 * US * step for step in range(6)]

    def spans(start: int, thread: int) -> list[Span]:
        return [
            op(start, *when, "rpc.wait(w1)", category=USER)
            for each, *when in waits
            if each == thread
        ]

    def make(start: int) -> Iterator[Span]:
        yield op(start, 0, 200)
        yield from spans(start, 1)

    worker = Thread(
        9,
        "w1",
        tuple(
            op(
                start,
                *when,
                call,
                op(start, when[0] + 10, when[1] - 10, f"{call}{REMOTE}f", category=USER),
                category=USER,
            )
            for start in starts
            for when in calls
        ),
    )
    other = Thread(5, "prefetch", tuple(span for start in starts for span in spans(start, 5)))
    trace = read(write(path / "raw.pb", thread(make), worker, other))
    known = f'{{"before_ns":50000,"carrier":"{carrier}","num_objects":5}}'
    attributes = pl.when(pl.col("name").cast(pl.String) == call).then(pl.lit(known))
    events = trace.events.with_columns(attributes=attributes.cast(pl.Categorical))
    remote_ns, table = IndicatorBuilder(
        Profile(dataclasses.replace(trace, events=events))
    ).add_remote_waits()
    return (remote_ns // US).tolist(), table


def test_a_call_that_runs_beside_the_training_is_no_wait(tmp_path: Path) -> None:
    """An asynchronous call of 640 us: the rank waits 90 of them, and 10 for ppprof, which writes what came back."""
    waits, calls = waits_of(tmp_path, [(1, 750, 850)], [(200, 840)])
    assert waits == [90] * 6
    assert calls["waits_ns"].to_list() == [90 * US] * 6


def test_a_wait_of_another_thread_is_none_of_the_training(tmp_path: Path) -> None:
    waits, calls = waits_of(tmp_path, [(5, 250, 850)], [(200, 850)])
    assert (waits, calls["waits_ns"].sum()) == ([0] * 6, 0)


def test_a_call_of_a_pool_is_waited_for_while_it_is_under_way(tmp_path: Path) -> None:
    """Without the 40 us in which its worker begins the recording: from 220 to 260 of the 50 before f begins."""
    waits, _ = waits_of(tmp_path, [], [(250, 850)], carrier="")
    assert waits == [600 - 10] * 6  # f begins at 260: the call has no more than 10 before it


def test_waits_without_a_recorded_call_count(tmp_path: Path) -> None:
    """As beyond the most calls of a window."""
    waits, calls = waits_of(tmp_path, [(1, 300, 400), (1, 500, 700)], [(300, 400)])
    assert waits == [300 - 10] * 6
    assert calls["waits_ns"].to_list() == [90 * US] * 6


def test_waits_for_calls_none_of_which_is_recorded_are_left_to_the_lines(tmp_path: Path) -> None:
    """As of a worker without ppprof: `remote-wait` would be silent, and the line that waits is named."""
    waits, calls = waits_of(tmp_path, [(1, 300, 900)], [])
    assert (waits, calls.height) == ([0] * 6, 0)


@pytest.mark.parametrize(
    ("recorded_us", "sure"), [(100, ("major", "likely")), (900, ("minor", "possible"))]
)
def test_a_recording_that_takes_longer_than_the_wait_leaves_it_possible(
    recorded_us: int, sure: tuple[str, str], tmp_path: Path
) -> None:
    """The server may have been busy with what other processes record of their calls."""
    waits_of(tmp_path, [], [(300, 700)])
    evidence = collect_evidence_of_run(ppprof.open(tmp_path / "raw.pb"))
    ((rank, own),) = evidence.indicators.items()
    waits = own.remote_waits.with_columns(recording_ns=pl.lit(recorded_us * US, pl.Int64))
    indicators = {rank: own._replace(remote_waits=waits)}
    (finding,) = remote_wait(dataclasses.replace(evidence, indicators=indicators))
    assert finding.facts["remote_ns"] == 400 * US
    assert (finding.severity, finding.confidence) == sure
