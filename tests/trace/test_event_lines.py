"""Lines of the user's code: by call stacks where these are known, by samples elsewhere."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from ppprof.rundir.python_stacks import Frame, PythonStacks
from ppprof.trace import read
from ppprof.trace.event_lines import frame_of_call, with_lines
from tests.fixtures.timeline import EPOCH_NS, Shapes, Thread, span, write

FRAMES = [Frame("m", "a.py", "f", 3, True), Frame("m", "b.py", "g", 7, True)]
FRAMES.append(Frame("json", "json/__init__.py", "dumps", 1, False))
STACKS = [[0], [2, 1], [2]]
"""Line 3 of a.py; a package that line 7 of b.py calls; a package that no line of the user's calls."""


def samples(*rows: tuple[int, int], thread: int = 1) -> PythonStacks:
    """Samples of one ns each, at a time and with a row of STACKS."""
    table = [(thread, EPOCH_NS + time, 1, row, 0) for time, row in rows]
    return PythonStacks(1, FRAMES, STACKS, np.array(table, np.int64).reshape(-1, 5))


def lines(path: Path, thread: Thread, stacks: PythonStacks | None) -> list[tuple[object, ...]]:
    trace = with_lines(dataclasses.replace(read(write(path / "a.pb", thread)), stacks=stacks))
    columns = pl.col("name", "line").cast(pl.String)
    return trace.events.select(columns, "line_is_sampled").rows()


def test_call_stacks_come_first_and_inner_events_have_them_too(tmp_path: Path) -> None:
    inner = span("OperatorInner", "relu compute", 12, 18)
    call = Shapes({}, callstack='File "c.py", line 9, in h')
    operator = span("Operator", "relu dygraph", 10, 20, call, inner)
    thread = Thread(1, "main", (span("Forward", "Net", 0, 40).around(operator),))
    found = lines(tmp_path, thread, samples(*((time, 0) for time in range(40))))
    assert found == [
        ("Net", "a.py:3", True),
        ("relu dygraph", "c.py:9", False),
        ("relu compute", "c.py:9", False),
    ]
    assert lines(tmp_path, thread, None) == [("Net", None, None), *found[1:]]


def test_a_project_in_a_folder_of_packages_is_the_users() -> None:
    stack = (
        'File "/me/python-packages/train.py", line 3, in f, File "/x/dist-packages/b.py", line 9'
    )
    frame = frame_of_call(stack)
    assert frame is not None
    assert frame.place == "/me/python-packages/train.py:3"


def test_too_few_samples_and_other_threads_name_no_line(tmp_path: Path) -> None:
    thread = Thread(1, "main", (span("Forward", "Net", 0, 40),))
    assert lines(tmp_path, thread, samples((1, 0), (2, 0))) == [("Net", None, None)]
    others = samples(*((time, 0) for time in range(40)), thread=2)
    assert lines(tmp_path, thread, others) == [("Net", None, None)]
    foreign = samples(*((time, 2) for time in range(40)))
    assert lines(tmp_path, thread, foreign) == [("Net", None, None)]


@given(st.lists(st.integers(-1, 2), min_size=30, max_size=30), st.integers(1, 28))
def test_a_sampled_line_has_at_least_half_of_the_samples(
    tmp_path_factory: object, stacks: list[int], end: int
) -> None:
    """Counted one by one."""
    folder = tmp_path_factory.mktemp("lines")  # type: ignore[attr-defined]
    thread = Thread(1, "main", (span("Forward", "Net", 0, end),))
    ((_, found, _),) = lines(folder, thread, samples(*enumerate(stacks)))
    counts: dict[str | None, int] = defaultdict(int)
    for row in stacks[: end + 1]:
        counts[{0: "a.py:3", 1: "b.py:7"}.get(row)] += 1
    own = {line: num for line, num in counts.items() if line}
    possible = {line for line, num in own.items() if 2 * num >= end + 1 and end + 1 >= 3}
    assert found in possible or (found is None and not possible)
