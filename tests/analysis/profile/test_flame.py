"""The flame graph: frames of the user's code from the outermost on, operators innermost."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.profile.flame import flame
from ppprof.analysis.profile.profile import Profile
from ppprof.rundir.python_stacks import Frame, PythonStacks
from ppprof.trace import read
from tests.fixtures.timeline import EPOCH_NS, Thread, span, write

FRAMES = [
    Frame("m", "train.py", "main", 9, True),
    Frame("m", "train.py", "log", 4, True),
    Frame("json", "json/__init__.py", "dumps", 1, False),
]
STACKS = [[0], [2, 1, 0], [2]]
"""main; a package that log calls; a package alone."""
MAIN, LOG, OUTSIDE = "main (train.py:9)", "log (train.py:4)", "outside your code"


def graph(path: Path, rows: list[int]) -> pl.DataFrame:
    """The graph of a step of 40, with matmul from 10 to 20 and a sample of 1 at each ns."""
    operator = span("Operator", "matmul dygraph", 10, 20)
    step = span("ProfileStep", "ProfileStep#0", 0, 40).around(operator)
    table = [(1, EPOCH_NS + time, 1, row, 0) for time, row in enumerate(rows)]
    stacks = PythonStacks(1, FRAMES, STACKS, np.array(table, np.int64).reshape(-1, 5))
    trace = read(write(path / "a.pb", Thread(1, "main", (step,))))
    return flame(Profile(dataclasses.replace(trace, stacks=stacks)))


def test_operators_lie_in_the_line_that_was_running(tmp_path: Path) -> None:
    found = graph(tmp_path, [0] * 30 + [1] * 10)
    assert found.select("depth", "name", "samples", "time_ns", "self_ns").rows() == [
        (0, "", 40, 40.0, 0.0),
        (1, MAIN, 40, 40.0, 20.0),
        (2, "matmul", 10, 10.0, 10.0),
        (2, LOG, 10, 10.0, 10.0),
    ]


def test_without_samples_there_is_no_graph(tmp_path: Path) -> None:
    assert graph(tmp_path, []).is_empty()


@given(st.lists(st.integers(-1, 2), min_size=1, max_size=40))
def test_each_sample_is_counted_once_on_its_path(tmp_path_factory: object, rows: list[int]) -> None:
    """Counted one by one; parts add up to the whole."""
    found = graph(tmp_path_factory.mktemp("flame"), rows)  # type: ignore[attr-defined]
    counts: Counter[tuple[str, ...]] = Counter()
    for time, row in enumerate(rows):
        path = {0: (MAIN,), 1: (MAIN, LOG)}.get(row, (OUTSIDE,))
        counts[(*path, "matmul") if 10 <= time < 20 else path] += 1
    leaves: Counter[tuple[str, ...]] = Counter()
    path: list[str] = []
    for depth, name, time_ns, self_ns in found.select("depth", "name", "time_ns", "self_ns").rows():
        path = [*path[: max(0, depth - 1)], name] if depth else []
        share = self_ns * len(rows) / 40
        assert abs(share - round(share)) < 1e-6
        if round(share):
            leaves[tuple(path)] = round(share)
        assert self_ns <= time_ns + 1e-9
    assert leaves == counts
