"""Why a rank waits for its remote calls: each reason from a table of calls, and what counts as a wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.analysis.advice.remote_waits import REMOTE_WAITS, reason_of_waits
from ppprof.remote_names import REMOTE
from tests.fixtures.findings import US, op, thread
from tests.fixtures.timeline import Span, Thread, write

MS = 1_000_000
USER = "PythonUserDefined"


def table(
    *calls: tuple[int, str, int, int, int], num_bytes: int = 0, num_objects: int = 0
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
            "waits_ns": (received - sent) * MS,
            "sending_ns": (received - sent - runs) * MS,
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


def test_a_call_that_runs_beside_the_training_is_no_wait(tmp_path: Path) -> None:
    """An asynchronous call of 700 us: the rank waits 100 of them, as the span says."""
    call = "rpc#f(w0 -> w1)"

    def make(start: int) -> Iterator[Span]:
        yield op(start, 0, 200)
        yield op(start, 750, 850, "rpc.wait(w1)", category=USER)

    calls = [
        op(
            1000 * US * step,
            200,
            900,
            call,
            op(1000 * US * step, 300, 850, f"{call}{REMOTE}f", category=USER),
            category=USER,
        )
        for step in range(6)
    ]
    trace = write(tmp_path / "raw.pb", thread(make), Thread(9, "w1", tuple(calls)))
    found = {each.rule: each for each in ppprof.advise(ppprof.open(trace))}
    assert found["remote-wait"].facts["remote_ns"] == 100 * US
    assert found["remote-wait"].facts["function_ns"] == 100 * US
