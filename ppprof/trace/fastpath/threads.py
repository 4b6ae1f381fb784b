"""Work that is done in two threads at once, and how many a machine runs at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def num_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def at_once(one: Callable[[], T], other: Callable[[], U]) -> tuple[T, U]:
    """Return the results of two functions that run at the same time.

    That takes less time if both mostly call numpy, polars or the compiled core, which work without
    the interpreter's lock. If no thread can be started, one function runs after the other.

    Raises:
        BaseException: what a function raised.
    """
    import numpy as np  # only here: commands that read nothing count processors, too
    import polars as pl

    # polars imports numpy when it is first given an array. In two threads, one of them may fail:
    # polars' proxy of numpy takes numpy's own `_globals` for its.
    pl.Series(np.empty(0))
    results: list[U] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(other())
        except BaseException as error:  # raised again below
            errors.append(error)

    thread = threading.Thread(target=run, name="ppprof tables", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the limit of threads is reached
        return one(), other()
    try:
        result = one()
    finally:
        thread.join()
    if errors:
        raise errors.pop()  # no name keeps it, with all that its traceback holds
    return result, results[0]


def results_of(tasks: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Return the result of each task, by name; see `at_once`.

    The tasks begin in their order, each in the next free thread: begin with the longest ones.
    """
    waiting = iter(tasks.items())
    lock = threading.Lock()

    def work() -> dict[str, T]:
        results: dict[str, T] = {}
        while True:
            with lock:
                following = next(waiting, None)
            if following is None:
                return results
            name, task = following
            results[name] = task()

    one, other = at_once(work, work)
    return one | other
