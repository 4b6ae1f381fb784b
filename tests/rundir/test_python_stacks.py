"""The file of Python stacks: what is written is read, damaged files are refused, texts are made visible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ppprof.analysis.advice.indicators import concat_indicators
from ppprof.rundir.python_stacks import (
    Frame,
    Holder,
    PythonStacks,
    ThreadTime,
    joined_stacks,
    read_python_stacks,
    write_python_stacks,
)
from ppprof.rundir.run_file import RunFile

LOOP = Frame("__main__", "train.py", "<module>", 12, is_own=True)
NUMPY = Frame("paddle.tensor", "/lib/paddle/tensor.py", "numpy", 9, is_own=False)
SAMPLES = np.array([[7, 60, 10, 0, 0], [7, 50, 40, 1, 9], [5, 60, 10, -1, 2]], np.int64)
READS = np.array([[7, 90, 3, 0, 0], [7, 80, 3, -1, 0]], np.int64)
COLLECTIONS = np.array([[7, 120, 20, 0, 0], [6, 100, 9, -1, 0], [7, 99, 9, 1, 0]], np.int64)
EVALUATIONS = np.array([[7, 150, 5, -1, 0], [7, 140, 5, -1, 0]], np.int64)
CLEARS = np.array([[7, 170, 9, -1, 0], [7, 160, 9, -1, 0]], np.int64)
SOURCE = {"train.py": {11: "for step in range(9):", 12: "    log(step)"}}


def written(tmp_path: Path, stacks: PythonStacks | None = None) -> RunFile:
    file = RunFile(tmp_path, "stacks/a.stacks")
    stacks = stacks or PythonStacks(
        *(25, [LOOP, NUMPY], [[0], [1, 0]], SAMPLES, SOURCE, READS, COLLECTIONS, EVALUATIONS),
        clears=CLEARS,
        holders=[Holder("losses\n, train.py (deque)", [94017, 94081], is_bounded=True)],
    )
    write_python_stacks(file, stacks)
    return file


def test_stacks_are_read_as_they_were_written_sorted_by_thread_and_time(tmp_path: Path) -> None:
    stacks = read_python_stacks(written(tmp_path))
    assert (stacks.interval_ns, stacks.frames, stacks.stacks) == (25, [LOOP, NUMPY], [[0], [1, 0]])
    assert stacks.samples.tolist() == SAMPLES[[2, 1, 0]].tolist()
    assert stacks.reads.tolist() == READS[[1, 0]].tolist()
    assert stacks.collections.tolist() == COLLECTIONS[[1, 2, 0]].tolist()
    assert stacks.evaluations.tolist() == EVALUATIONS[[1, 0]].tolist()
    assert stacks.clears.tolist() == CLEARS[[1, 0]].tolist()
    assert stacks.source == SOURCE
    (holder,) = stacks.holders
    assert holder == Holder("losses\\n, train.py (deque)", [94017, 94081], is_bounded=True)
    assert LOOP.place == "train.py:12"


def test_times_of_threads_are_kept_and_impossible_ones_left_out(tmp_path: Path) -> None:
    threads = {7: ThreadTime(5, 1, 20), 8: ThreadTime(5, -1, 20), 9: ThreadTime(0, 0, 0)}
    stacks = PythonStacks(25, [LOOP], [[0], [0]], SAMPLES, threads=threads)
    assert read_python_stacks(written(tmp_path, stacks)).threads == {7: ThreadTime(5, 1, 20)}


def test_a_window_without_samples(tmp_path: Path) -> None:
    file = written(tmp_path, PythonStacks(0, [], [], np.zeros((0, 5), np.int64)))
    assert read_python_stacks(file).samples.shape == (0, 5)


def test_names_and_source_are_cut_and_their_control_characters_are_shown(tmp_path: Path) -> None:
    evil = Frame("m", "a\x1b[2J.py", "f\n", 1, is_own=True)
    source = {"a\x1b[2J.py": {1: "\x07" + "x" * 10_000}}
    file = written(tmp_path, PythonStacks(1, [evil], [[0]], SAMPLES[:1], source))
    stacks = read_python_stacks(file)
    assert stacks.frames == [Frame("m", "a\\x1b[2J.py", "f\\n", 1, is_own=True)]
    assert stacks.source == {"a\\x1b[2J.py": {1: "\\x07" + "x" * 299}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"{", b"["),
        (b"[[0],[1,0]]", b"[[0],[2]]"),
        (b"[[0],[1,0]]", b"[[0],[-1]]"),
        (b"[[0],[1,0]]", b"[[0]]"),
        (b'"train.py",', b"3,"),
        (b",12,true]", b",12]"),
        (b'"columns":5', b'"columns":0'),
        (b"\n", b"\n0"),
        (b"\n", b""),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    file = written(tmp_path)
    content = file.path.read_bytes()
    assert old in content
    file.path.write_bytes(content.replace(old, new, 1))
    with pytest.raises(ValueError, match=r".+"):
        read_python_stacks(file)


@pytest.mark.parametrize("column", [1, 2, 3, 4])
def test_numbers_that_no_sample_has_are_refused(tmp_path: Path, column: int) -> None:
    samples = SAMPLES.copy()
    samples[0, column] = -2
    file = written(tmp_path, PythonStacks(25, [LOOP], [[0], [0]], samples))
    with pytest.raises(ValueError, match="a number that no sample has"):
        read_python_stacks(file)


def test_segments_and_windows_keep_all_lines_of_a_file() -> None:
    """The second one has fewer lines of train.py: other lines took the time."""
    first = {"train.py": {7: "    log(step)", 8: "    step += 1"}, "data.py": {3: "pass"}}
    second = {"train.py": {41: "    save()"}}
    parts = [PythonStacks(1, [], [], SAMPLES[:0], source) for source in (first, second)]
    whole = {
        "train.py": {7: "    log(step)", 8: "    step += 1", 41: "    save()"},
        "data.py": {3: "pass"},
    }
    assert joined_stacks(parts).source == whole
    empty = concat_indicators(())
    windows = [empty._replace(source=source) for source in (first, second)]
    assert concat_indicators(windows).source == whole
