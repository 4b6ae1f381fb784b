"""Time by line of Python: whole tables from small samples, and sums that add up."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import ELSEWHERE, lines_by_step, python_lines
from ppprof.rundir.python_stacks import Frame, PythonStacks
from ppprof.trace import Trace, read
from tests.fixtures.timeline import EPOCH_NS, Thread, span, write

MAIN = Frame("__main__", "train.py", "main", 12, is_own=True)
LOOP = Frame("__main__", "train.py", "main", 14, is_own=True)
LOG = Frame("__main__", "train.py", "log", 41, is_own=True)
JSON = Frame("json", "/lib/json/__init__.py", "dumps", 9, is_own=False)
READ = Frame("data", "data.py", "read", 3, is_own=True)
FRAMES = [MAIN, LOOP, LOG, JSON, READ]
STACKS = [[3, 2, 0], [0], [1], [3], [2, 2, 0], [4]]
"""json in log() in main(), main(), its other line, only json, log() in log(), another thread's."""


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two steps of thread 31: 0 to 100, and 150 to 250."""
    path = tmp_path_factory.mktemp("steps") / "a.pb"
    each = [
        span("ProfileStep", f"ProfileStep#{n}", 150 * n, 150 * n + 100).around(
            span("Operator", "relu", 150 * n + 10, 150 * n + 20)
        )
        for n in (0, 1)
    ]
    return read(write(path, Thread(31, "main", tuple(each))))


def with_samples(trace: Trace, *samples: tuple[int, int, int, int]) -> Profile:
    rows = np.array([(*sample, 0) for sample in samples], np.int64).reshape(-1, 5)
    rows[:, 1] += EPOCH_NS
    source = {"train.py": {41: "    json.dumps(record)"}}
    return Profile(
        dataclasses.replace(trace, stacks=PythonStacks(10, FRAMES, STACKS, rows, source))
    )


@pytest.mark.parametrize("module", ["paddle.io.dataloader.fetcher", "threading"])
def test_time_that_waits_for_data_is_that_of_the_line_that_reads_it(
    module: str, tmp_path: Path
) -> None:
    """Another thread reads all the time, of which the training waits for 10 to 60 in data.py."""
    loads = span("Dataloader", "_DataLoaderIterSingleProcess", 10, 60)
    step = span("ProfileStep", "ProfileStep#0", 0, 100).around(loads)
    trace = read(write(tmp_path / "a.pb", Thread(31, "main", (step,))))
    frames = [*FRAMES, Frame(module, "/lib/fetcher.py", "fetch", 5, is_own=False)]
    samples = [(31, 5 + 10 * number, 10, 1, 0) for number in range(10)]
    samples += [(32, 5 + 10 * number, 10, 6, 0) for number in range(10)]
    rows = np.array(samples, np.int64)
    rows[:, 1] += EPOCH_NS
    stacks = PythonStacks(10, frames, [*STACKS, [4, 5]], rows, {})
    found = lines_by_step(Profile(dataclasses.replace(trace, stacks=stacks)))
    times = {name: time_ns for name, _, time_ns in found.rows()}
    reads = {"train.py:12, main()": 50, "data.py:3, read()": 50}
    assert times == (reads if module.startswith("paddle.io") else {"train.py:12, main()": 100})


def test_lines_and_functions_of_an_average_step(steps: Trace) -> None:
    """
    ::

        time       0      30    60      90 | 110 |   150     170    200
        thread 31    json    main   loop     not a step    json    no own frame
        thread 32                   read
    """
    profile = with_samples(
        steps,
        *((31, 30, 40, 0), (31, 60, 20, 1), (31, 90, 20, 2), (31, 110, 99, 1)),
        *((31, 170, 60, 0), (31, 200, 60, 3), (32, 90, 50, 5), (32, 95, 50, 3)),
    )
    table = python_lines(profile)
    columns = ["thread", "kind", "file", "line", "function", "samples", "self_ratio", "total_ratio"]
    assert table.select(columns).with_columns(pl.col("^.*_ratio$").round(9)).rows() == [
        ("steps", "line", "train.py", 41, "log", 10, 0.5, 0.5),
        ("steps", "line", "train.py", 12, "main", 12, 0.1, 0.6),
        ("steps", "line", "train.py", 14, "main", 2, 0.1, 0.1),
        ("steps", "function", "train.py", None, "log", 10, 0.5, 0.5),
        ("steps", "function", "", None, ELSEWHERE, 6, 0.3, 0.3),
        ("steps", "function", "train.py", None, "main", 14, 0.2, 0.7),
        ("others", "line", "data.py", 3, "read", 1, 0.25, 0.25),
        ("others", "function", "data.py", None, "read", 1, 0.25, 0.25),
    ]
    assert table["self_ns"].to_list() == pytest.approx((table["self_ratio"] * 100).to_list())
    assert table["source"].to_list()[:2] == ["json.dumps(record)", None]


def test_a_function_that_calls_itself_counts_once(steps: Trace) -> None:
    table = python_lines(with_samples(steps, (31, 30, 40, 4)))
    assert table.select("line", "function", "samples", "self_ratio", "total_ratio").rows() == [
        (41, "log", 4, 1.0, 1.0),
        (12, "main", 4, 0.0, 1.0),
        (None, "log", 4, 1.0, 1.0),
        (None, "main", 4, 0.0, 1.0),
    ]


@pytest.mark.parametrize("samples", [(), ((31, 120, 5, 0),), ((32, 20, 5, 5),)])
def test_without_samples_in_steps_there_is_no_row(
    steps: Trace, samples: tuple[tuple[int, int, int, int], ...]
) -> None:
    assert python_lines(with_samples(steps, *samples)).is_empty()
    assert python_lines(Profile(steps)).is_empty()


sample = st.tuples(
    st.sampled_from((31, 32)),
    st.integers(0, 260),
    st.integers(1, 50),
    st.integers(-1, len(STACKS) - 1),
)


def test_workers_have_no_share_of_the_steps_and_their_samples_count_once(steps: Trace) -> None:
    """Four workers, each sampled every 20 ns, in a window that is sampled every 5: 400% of a step."""
    workers = [(32, ns, 20, 0) for ns in range(0, 100, 20) for _ in range(4)]
    table = python_lines(
        with_samples(steps, *workers, *((31, ns, 5, 0) for ns in range(0, 100, 5)))
    )
    others = table.filter(thread="others", kind="line")
    assert others["samples"].to_list() == [20] * others.height
    assert others["total_ratio"].to_list() == [4.0] * others.height
    assert others["low_ratio"].null_count() == others["high_ratio"].null_count() == others.height
    assert table.filter(thread="steps")["low_ratio"].null_count() == 0


@given(samples=st.lists(sample, min_size=1, max_size=40))
def test_the_parts_add_up_to_the_whole(steps: Trace, samples: list[tuple[int, ...]]) -> None:
    table = python_lines(with_samples(steps, *samples)).filter(thread="steps")  # type: ignore[arg-type]
    weight: dict[str, int] = {}
    whole = 0
    for thread, time_ns, weight_ns, row in samples:
        if thread == 31 and (0 <= time_ns < 100 or 150 <= time_ns < 250):
            whole += weight_ns
            own = [FRAMES[frame] for frame in (STACKS[row] if row >= 0 else [])]
            name = next((frame.function for frame in own if frame.is_own), ELSEWHERE)
            weight[name] = weight.get(name, 0) + weight_ns
    functions = table.filter(kind="function")
    expected = {name: weight_ns / whole for name, weight_ns in weight.items()} if whole else {}
    shares = dict(
        functions.filter(pl.col("self_ratio") > 0).select("function", "self_ratio").rows()
    )
    assert shares == pytest.approx(expected)
    lines = table.filter(kind="line")
    outside = functions.filter(function=ELSEWHERE)
    assert lines["self_ns"].sum() + outside["self_ns"].sum() == pytest.approx(100 * bool(whole))
    for row in table.iter_rows(named=True):
        assert 0 <= row["self_ratio"] <= row["total_ratio"] <= 1 + 1e-9
        assert row["low_ratio"] <= row["total_ratio"] + 1e-9
        assert row["high_ratio"] >= row["total_ratio"] - 1e-9


def test_the_stacks_beside_a_trace_are_read_with_it(tmp_path: Path) -> None:
    from ppprof.rundir.python_stacks import write_python_stacks
    from ppprof.rundir.run_file import RunFile

    stem = "rank_00000_dp0_pp0_sharding0_mp0_time_20261125T101010_000"
    samples = np.array([(31, 30, 40, 0, 0)], np.int64)
    stacks = PythonStacks(10, FRAMES, STACKS, samples)
    write_python_stacks(RunFile(tmp_path, f"stacks/{stem}.stacks"), stacks)
    (tmp_path / "raw").mkdir()
    step = span("ProfileStep", "ProfileStep#0", 0, 100)
    raw = write(tmp_path / "raw" / f"{stem}.pb", Thread(31, "main", (step,)))
    found = read(raw).stacks
    assert found is not None
    assert found.frames == FRAMES
    (tmp_path / "stacks" / f"{stem}.stacks").write_bytes(b"{")
    damaged = read(raw)
    assert (damaged.stacks, damaged.skipped) == (None, {"files of Python stacks": 1})


def test_samples_of_a_pause_are_none_of_the_step(tmp_path: Path) -> None:
    """A step from 0 to 100 with a pause from 40 to 80: its 60 ns have 3 samples, two of them of log()."""
    pause = span("PythonUserDefined", "paused: evaluation", 40, 80)
    step = span("ProfileStep", "ProfileStep#0", 0, 100).around(pause)
    trace = read(write(tmp_path / "a.pb", Thread(31, "main", (step,))))
    at_times = ((10, 0), (30, 0), (50, 1), (60, 1), (70, 1), (90, 2))
    profile = with_samples(trace, *((31, time, 20, stack) for time, stack in at_times))
    lines = python_lines(profile).filter(kind="line")
    assert lines.select("line", "self_ns").sort("line").rows() == [
        (12, 0.0),
        (14, 20.0),
        (41, 40.0),
    ]
