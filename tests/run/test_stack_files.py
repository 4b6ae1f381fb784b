"""Samples of Python stacks in formats of other tools."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ppprof.run.convert import collapsed, speedscope
from ppprof.rundir.python_stacks import Frame, PythonStacks
from tests.fixtures.findings import logging, training
from tests.fixtures.run_directories import run

MAIN = Frame("__main__", "a.py", "main", 3, is_own=True)
LOG = Frame("__main__", "a.py", "log", 9, is_own=True)
SAMPLES = np.array(
    [(7, 100, 4000, 0, 0), (7, 200, 2000, 1, 0), (7, 300, 1000, 0, 0), (8, 300, 500, -1, 0)]
)
WINDOWS = {"rank 0, window 1": PythonStacks(9, [LOG, MAIN], [[0, 1], [1]], SAMPLES)}


def test_collapsed_stacks() -> None:
    assert collapsed(WINDOWS).splitlines() == [
        "rank 0, window 1;thread 7;main (a.py:3) 2",
        "rank 0, window 1;thread 7;main (a.py:3);log (a.py:9) 5",
        "rank 0, window 1;thread 8 0",
    ]


def test_speedscope() -> None:
    document = json.loads(speedscope(WINDOWS))
    assert document["shared"]["frames"] == [
        {"name": "log", "file": "a.py", "line": 9},
        {"name": "main", "file": "a.py", "line": 3},
    ]
    assert [
        (each["name"], each["samples"], each["weights"], each["endValue"])
        for each in document["profiles"]
    ] == [
        ("rank 0, window 1, thread 7", [[1, 0], [1], [1, 0]], [4000, 2000, 1000], 7000),
        ("rank 0, window 1, thread 8", [[]], [500], 500),
    ]
    assert {each["unit"] for each in document["profiles"]} == {"nanoseconds"}


@pytest.mark.parametrize("to", ["speedscope", "collapsed"])
def test_convert_writes_the_samples_of_a_run(to, tmp_path, cli) -> None:
    folder = run(tmp_path / "log", [training(450)], stacks=[logging()])
    target = tmp_path / "out"
    _, err = cli("convert", folder, target, "--to", to)
    assert "120 samples" in err
    assert "log" in target.read_text(encoding="utf-8")
    _, err = cli("convert", folder, target, "--to", to, code=2)
    assert "--force" in err


def test_a_run_without_samples_is_an_error(tmp_path, cli) -> None:
    folder = run(tmp_path / "log", [training(450)])
    _, err = cli("convert", folder, tmp_path / "out", "--to", "collapsed", code=3)
    assert "no samples of Python stacks" in err


def test_an_unreadable_rank_is_a_warning_and_the_others_are_written(tmp_path, cli) -> None:
    folder = run(tmp_path / "log", [training(450)] * 3, stacks=[logging()] * 3)
    raws = sorted((folder / "raw").glob("*.pb"))
    target = tmp_path / "out"
    raws[1].write_bytes(b"")
    _, err = cli("convert", folder, target, "--to", "collapsed")
    warning, written = err.splitlines()
    assert str(raws[1]) in warning
    assert "240 samples" in written
    windows = {line.partition(";")[0] for line in target.read_text(encoding="utf-8").splitlines()}
    assert windows == {"rank 0, window 0", "rank 2, window 0"}
    for raw in raws:
        raw.write_bytes(b"")
    _, err = cli("convert", folder, tmp_path / "none", "--to", "collapsed", code=3)
    assert all(str(raw) in err for raw in raws)
    assert not (tmp_path / "none").exists()
