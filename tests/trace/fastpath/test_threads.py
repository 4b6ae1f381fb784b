"""Work that is done in two threads."""

from __future__ import annotations

import threading

import pytest

from ppprof.trace.fastpath.threads import at_once


def test_both_functions_run_at_the_same_time():
    both = threading.Barrier(2, timeout=30)

    def name() -> str:
        both.wait()
        return threading.current_thread().name

    here, there = at_once(name, name)
    assert here == threading.current_thread().name != there


@pytest.mark.parametrize("number", [0, 1])
def test_what_a_function_raises_is_raised_after_both_have_ended(number):
    ended = []

    def fail() -> None:
        ended.append("failed")
        raise MemoryError("too many events")

    functions = [lambda: ended.append("done")] * 2
    functions[number] = fail
    with pytest.raises(MemoryError, match="too many events"):
        at_once(*functions)
    assert sorted(ended) == ["done", "failed"]


def test_without_threads_one_runs_after_the_other(monkeypatch):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert at_once(lambda: 1, lambda: 2) == (1, 2)
