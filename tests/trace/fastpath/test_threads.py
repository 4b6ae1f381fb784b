"""Work that is done in two threads."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import weakref
from functools import partial

import pytest

from ppprof.trace.fastpath.threads import at_once, results_of


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


def test_two_threads_may_be_the_first_that_give_numbers_to_polars():
    """As on a slow machine, where polars takes long to import numpy."""
    program = """
import importlib, time
import_module = importlib.import_module
def slowly(name, *package):
    time.sleep(0.5 if name == "numpy" else 0)
    return import_module(name, *package)
importlib.import_module = slowly
import polars as pl, numpy as np
from ppprof.trace.fastpath.threads import at_once
one, other = at_once(*[lambda: pl.Series(np.arange(3))] * 2)
print(one.to_list(), other.to_list())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[0, 1, 2] [0, 1, 2]\n", done.stderr


def test_without_threads_one_runs_after_the_other(monkeypatch):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert at_once(lambda: 1, lambda: 2) == (1, 2)


def test_the_next_task_begins_in_the_next_free_thread():
    done = threading.Event()
    began = []

    def long() -> str:
        assert done.wait(30)  # the other thread does all other tasks
        return threading.current_thread().name

    def short(number: int) -> str:
        began.append(number)
        if number == 4:
            done.set()
        return threading.current_thread().name

    tasks = {"long": long, **{f"{number}": partial(short, number) for number in range(5)}}
    names = results_of(tasks)
    assert set(names) == set(tasks)
    assert began == [0, 1, 2, 3, 4]
    assert len({names[str(number)] for number in range(5)}) == 1
    assert names["long"] != names["0"]


def test_what_a_task_raises_is_raised():
    with pytest.raises(KeyError, match="one"):
        results_of({"fails": lambda: {}["one"], "works": lambda: 1})
    assert results_of({}) == {}


def test_an_error_keeps_nothing_in_memory():
    class Result:
        pass

    kept = []

    def fail() -> None:
        result = Result()
        kept.append(weakref.ref(result))
        raise ValueError(id(result))

    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            at_once(lambda: 1, fail)
        assert kept[0]() is None
    finally:
        gc.enable()
