"""Work per event does not grow with the number of threads, devices, steps or levels.

Times would depend on the machine. So these tests count the calls that select rows of a table or
merge intervals: a trace that is four times as long must need no more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from ppprof.analysis.profile import intervals
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.passes import passes
from ppprof.analysis.summaries.views import summarize
from ppprof.trace import read
from tests.fixtures.timeline import Thread, kernel, launch, span, write


def threads(count: int) -> list[Thread]:
    return [
        Thread(number, f"t{number}").around(span("Operator", "add", number, number + 5))
        for number in range(1, count + 1)
    ]


def devices(count: int) -> list[Thread]:
    launches = (
        span("Operator", "add", 10 * number, 10 * number + 9).around(
            launch(10 * number + 1, 10 * number + 2).around(
                kernel("k", 10 * number + 3, 10 * number + 8, device=number)
            )
        )
        for number in range(count)
    )
    return [Thread(1, "main").around(*launches)]


def steps(count: int) -> list[Thread]:
    spans = (
        span("ProfileStep", f"ProfileStep#{number}", 10 * number, 10 * number + 10).around(
            span("Communication", "all_reduce", 10 * number + 1, 10 * number + 4)
        )
        for number in range(count)
    )
    return [Thread(1, "main").around(*spans)]


@pytest.fixture
def counted(monkeypatch) -> Counter[str]:
    """Calls of each function, by name."""
    counts: Counter[str] = Counter()

    def count(owner: object, name: str) -> None:
        function = getattr(owner, name)

        def counting(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    count(pl.DataFrame, "filter")
    count(intervals, "union")
    return counts


@pytest.mark.parametrize(
    ("shape", "work"),
    [
        (threads, lambda profile: summarize(profile, "overview")),
        (threads, lambda profile: summarize(profile, "dist")),
        (devices, lambda profile: summarize(profile, "overview")),
        (devices, lambda profile: summarize(profile, "device")),
        (steps, lambda profile: passes(profile)),
    ],
    ids=[
        *("overview of threads", "dist of threads", "overview of devices", "device of devices"),
        "passes of steps",
    ],
)
def test_four_times_as_many_need_no_more_calls(
    tmp_path, counted, shape: Callable[[int], list[Thread]], work: Callable[[Profile], object]
):
    num_calls = []
    for count in (40, 160):  # a few groups are handled one after another
        profile = Profile(read(write(tmp_path / f"{count}.pb", *shape(count))))
        counted.clear()
        work(profile)
        num_calls.append(dict(counted))
    assert num_calls[0] == num_calls[1]
    assert num_calls[0]


def test_the_tree_is_climbed_in_doubling_steps(tmp_path, monkeypatch):
    """The nearest chosen event is found past any number of others."""
    depth = 64
    nested = span("Operator", "leaf", depth, depth + 1)
    for level in reversed(range(depth)):
        nested = span("Operator", f"{level}", level, 2 * depth + 2 - level).around(nested)
    tree = Profile(read(write(tmp_path / "a.pb", Thread(1, "main").around(nested)))).tree
    num_compared = []
    array_equal = np.array_equal
    monkeypatch.setattr(
        np, "array_equal", lambda *both: (num_compared.append(1), array_equal(*both))[1]
    )
    chosen = np.zeros(depth + 1, bool)
    chosen[0] = True
    assert tree.enclosing(chosen).tolist() == [-1] + [0] * depth
    assert len(num_compared) == 7  # 2, 4, 8, ... 64 levels, and once more without a change
