"""Events in no known layout among matching ones: only the reading time differs."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ppprof.trace import Trace, json_reader, read
from ppprof.trace.fastpath import ranges
from ppprof.trace.fastpath.native import scanner
from tests.fixtures.paddle_json import memcpy, operator, paddle, shapes
from tests.fixtures.same_traces import assert_same
from tests.fixtures.tiers import one_in

PIECE = operator("odd")
NESTED = ',\n      "of": [{"name": "a", "ts": 1}, {"name": "b"}], "more": {"args": [[], {}]}'


def replaced(old: str, new: str) -> str:
    assert old in PIECE
    return PIECE.replace(old, new)


ODD = {
    "a blank": replaced('"ph": "X"', '"ph":  "X"'),
    "another key": operator("odd", more=',\n      "more": 1'),
    "lists and objects": operator("odd", more=NESTED),
    "the same key again": replaced('"dur": 1.000,', '"dur": 7.000, "dur": 2.000,'),
    "another type": replaced('"name": "odd[1.000 us]"', '"name": ["odd"]'),
    "numbers as text": replaced('"pid": 4', '"pid": "4"').replace("1000000", '"1000000"'),
    "an exponent": replaced('"dur": 1.000', '"dur": 2e3'),
    "an int of 30 digits": replaced('"pid": 4', f'"pid": {"9" * 30}'),
    "a time of 18 digits": replaced("1000000", "9" * 18),
    "a negative time": replaced("1000000", "-1000000"),
    "a duration of 19 digits": replaced('"dur": 1.000', f'"dur": {"9" * 16}.000'),
    "a negative duration": replaced('"dur": 1.000', '"dur": -1.000'),
    "a time of 30 digits": replaced("1000000", "9" * 30),
    "a time of 300 digits": replaced("1000000", "9" * 300),
    "a correlation of 19 digits": operator("odd", more=f', "correlation id": {2**63 - 1}'),
    "a correlation of 20 digits": operator("odd", more=f', "correlation id": {2**64}'),
    "no args": PIECE[: PIECE.index(',\n    "args"')] + "\n  },\n  ",
    "null args": PIECE[: PIECE.index('{\n      "start_time')] + "null\n  },\n  ",
    "no thread": replaced('"7(C++)"', "null"),
    "a thread that is a number": replaced('"7(C++)"', "7"),
    "no number": memcpy(64, "inf"),
    "no JSON": replaced('"dur": 1.000', '"dur": 1.000 1'),
    "quotes in a name": replaced("odd", 'o"d"d'),
    "empty": "\n  {\n  },\n  ",
    "blanks": "\n" * 20,
    "a counter": replaced('"ph": "X"', '"ph": "C"'),
    "a long name": operator("o" * 3000),
    "a long name that is odd": operator("o" * 3000, more=',\n      "more": 1'),
    "a long stack": operator("odd", more=shapes("s" * 9000)),
    "a stack beyond what is looked through": operator("odd", more=shapes("s" * 70_000)),
}


def text_of(kinds: list[str]) -> str:
    """Return events of these kinds in sequence, each in its own microsecond."""
    pieces = []
    for number, kind in enumerate(kinds, 1):
        piece = ODD.get(kind) or operator(kind)
        pieces.append(
            piece.replace('"ts": 1000000,', f'"ts": {1_000_000 + 3 * number},')
            .replace('"0.000 us"', f'"{3 * number}.000 us"')
            .replace('"1.000 us"', f'"{3 * number + 1}.000 us"')
        )
    return paddle(*pieces)


def general(path: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Return the trace that decoding the whole file gives."""
    with monkeypatch.context() as patch:
        patch.setattr(json_reader, "dialect_of", lambda text: None)
        return read(path)


def divide(patch: pytest.MonkeyPatch) -> None:
    """Divide files of some kilobytes as if they were long."""
    patch.setattr(ranges, "RANGE_BYTES", 3000)
    patch.setattr(scanner, "num_processors", lambda: 3)


@example(["no number", "lists and objects"], False)
@example(["no JSON", "sound", "lists and objects", "sound"], False)
@example(["no JSON", "lists and objects"] * 20, False)
@given(
    st.lists(st.one_of(st.just("sound"), st.sampled_from(list(ODD))), max_size=60), st.booleans()
)
def test_unmatched_events_give_the_same_trace_as_decoding(
    tmp_path, each_core, monkeypatch, kinds, is_divided
):
    path = tmp_path / "trace.json"
    path.write_text(text_of(["sound", *kinds]), encoding="utf-8")
    with monkeypatch.context() as patch:
        if is_divided:
            divide(patch)
            patch.setattr(threading.Thread, "start", _no_thread)  # then its range is scanned here
        found = read(path)
    assert_same(found, general(path, monkeypatch))
    assert found.extra_info == {"7": "Main"}


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("kind", one_in(6, ODD))
def test_each_unmatched_event_with_several_readers(tmp_path, each_core, monkeypatch, kind):
    path = tmp_path / "trace.json"
    path.write_text(text_of(["sound", *["sound", kind] * 30]), encoding="utf-8")
    with monkeypatch.context() as patch:
        divide(patch)
        found = read(path)
    assert_same(found, general(path, monkeypatch))
    assert found.events.height >= 31


def cpu_seconds(path: Path) -> float:
    """Return the shortest of three times, since other work on the machine only adds to it."""

    def once() -> float:
        began = time.process_time()
        read(path)
        return time.process_time() - began

    return min(once() for _ in range(3))


@pytest.mark.all
@pytest.mark.parametrize("is_divided", [False, True])
def test_scattered_unmatched_events_cost_no_more_than_consecutive_ones(
    tmp_path, monkeypatch, is_divided
):
    if is_divided:
        divide(monkeypatch)
        monkeypatch.setattr(threading.Thread, "start", _no_thread)
    alternating = itertools.cycle(("sound", "a blank"))
    paths = tmp_path / "alternating.json", tmp_path / "in_a_row.json"
    paths[0].write_text(text_of(list(itertools.islice(alternating, 2000))), encoding="utf-8")
    paths[1].write_text(text_of(["sound"] * 1000 + ["a blank"] * 1000), encoding="utf-8")
    one_by_one, in_a_row = map(cpu_seconds, paths)
    assert one_by_one < 5 * in_a_row


LONG = 1 << 21


@pytest.mark.all
@pytest.mark.parametrize(
    "long",
    [operator("x" * LONG), operator("x", more=shapes("y" * LONG))],
    ids=["a name", "a call stack"],
)
def test_one_long_text_costs_no_more_than_short_ones(tmp_path, long):
    paths = tmp_path / "long.json", tmp_path / "short.json"
    paths[0].write_text(paddle(operator("one"), long, operator("two")), encoding="utf-8")
    paths[1].write_text(paddle(operator("one"), *[operator("x" * 80)] * (LONG // 300)), "utf-8")
    long_one, short_ones = map(cpu_seconds, paths)
    assert long_one < 5 * short_ones
