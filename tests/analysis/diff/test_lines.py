"""Lines of the user's code in two runs: what takes longer, though its number has changed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof.analysis.diff.diff import Diff
from ppprof.rundir.python_stacks import Frame, PythonStacks
from tests.fixtures.findings import BACKWARD, FORWARD, LOGS, STACKS, UPDATE, US, in_lines, training
from tests.fixtures.run_directories import run


def compared(folder: Path, *stacks: PythonStacks | None) -> Diff:
    """Return the comparison of two runs with these samples; None for a run without samples."""
    runs = [
        run(folder / str(number), [training(900)], stacks=[] if each is None else [each])
        for number, each in enumerate(stacks)
    ]
    return ppprof.diff(*map(ppprof.open, runs))


def times(diff: Diff) -> dict[str, tuple[int, int]]:
    """Return the microseconds per step of each line in both runs."""
    columns = [pl.col(f"{side}_time_ns") / US for side in ("baseline", "experiment")]
    return {name: both for name, *both in diff.lines.select("name", *columns).iter_rows()}


def moved(stacks: PythonStacks, by: int) -> PythonStacks:
    """Return the samples of a program into whose first line lines have been inserted."""
    frames = [Frame(f.module, f.file, f.function, f.line + by, f.is_own) for f in stacks.frames]
    source = {f: {n + by: text for n, text in lines.items()} for f, lines in stacks.source.items()}
    return dataclasses.replace(stacks, frames=frames, source=source)


SOURCE = {
    "train.py": {
        **{7: "    save(record)", 12: "    loss = net(batch)", 13: "    loss.backward()"},
        **{14: "    optimizer.step()", 15: "    log(step)"},
    }
}


def lines(*lengths: tuple[int, int], **options: int) -> PythonStacks:
    return dataclasses.replace(in_lines(*lengths, **options), source=SOURCE)


def test_a_line_is_the_same_if_its_text_is(tmp_path: Path, cli) -> None:
    before = lines((700, FORWARD), (200, BACKWARD), (100, LOGS))
    after = moved(lines((500, FORWARD), (200, BACKWARD), (250, LOGS), (50, UPDATE)), 2)
    diff = compared(tmp_path, before, after)
    assert times(diff) == {
        "train.py:12 -> 14: loss = net(batch)": [700, 500],
        "train.py:7 -> 9, log(): save(record)": [100, 250],
        "train.py:16: optimizer.step()": [0, 50],
        "train.py:13 -> 15: loss.backward()": [200, 200],
    }
    out = cli("diff", *(tmp_path / side for side in "01")).out
    (row,) = [line.split()[-5:] for line in out.splitlines() if line.startswith("train.py:7")]
    assert row == ["0.10", "0.25", "+0.15", "+150.00", "0.00"]
    assert "loss.backward()" not in out  # unchanged


def test_the_line_that_makes_the_step_longer_is_named_above_the_tables(tmp_path: Path, cli) -> None:
    before = lines((700, FORWARD), (300, len(STACKS)))  # outside the user's code
    before = dataclasses.replace(before, stacks=[*STACKS, [5]])
    compared(tmp_path, before, lines((700, FORWARD), (300, LOGS)))
    out = cli("diff", *(tmp_path / side for side in "01")).out
    assert "Line: 300 us a step more in train.py:7, log(): save(record) (new)\n" in out


def test_without_the_source_of_a_run_numbers_are_compared(tmp_path: Path) -> None:
    before = dataclasses.replace(lines((900, FORWARD), (100, LOGS)), source={})
    diff = compared(tmp_path, before, lines((800, FORWARD), (200, LOGS)))
    assert times(diff) == {"train.py:7, log()": [100, 200], "train.py:12": [900, 800]}


def test_a_run_without_samples_has_no_new_lines(tmp_path: Path) -> None:
    diff = compared(tmp_path, None, lines((1000, FORWARD)))
    assert diff.lines.is_empty()


def test_a_line_that_few_samples_found_is_no_change(tmp_path: Path, cli) -> None:
    after = lines((1000, FORWARD), every=250)
    samples = after.samples.copy()
    samples[5, 3] = LOGS  # 250 of 6000 us, by chance
    compared(tmp_path, lines((1000, FORWARD)), dataclasses.replace(after, samples=samples))
    out = cli("diff", *(tmp_path / side for side in "01"), "--views", "line").out
    assert "log()" not in out


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), min_size=2, max_size=2))
def test_lines_of_each_run_add_up_to_its_step(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, int]]
) -> None:
    stacks, raw = [], []
    for first, second in map(sorted, cuts):
        lengths = {FORWARD: first, UPDATE: second - first, LOGS: 20 - second}
        stacks.append(lines(*((50 * num, line) for line, num in lengths.items() if num)))
        raw.append({line: 50 * num for line, num in lengths.items()})
    found = times(compared(tmp_path_factory.mktemp("a"), *stacks))
    names = {FORWARD: "train.py:12: loss", UPDATE: "train.py:14: opt", LOGS: "train.py:7, log()"}
    for line, name in names.items():
        both = next((value for key, value in found.items() if key.startswith(name)), [0, 0])
        assert both == pytest.approx([each[line] for each in raw])
    assert [sum(side) for side in zip(*found.values())] == pytest.approx([1000, 1000])
