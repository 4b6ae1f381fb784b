"""``benchmarks.truth``: what it counts, and the parts that it writes into pages."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from benchmarks import truth
from benchmarks.measurements import part_of
from tests.fixtures.torch_traces import training, write_events


def committed_rows(name: str) -> list[list[str]]:
    with (truth.RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


@pytest.mark.parametrize("language", truth.WORDS)
def test_a_page_says_what_the_table_with_peers_says(language: str) -> None:
    section = truth.peers_section(
        committed_rows("peers"), ["HTA", "TraceLens"], truth.WORDS[language]
    )
    assert part_of(language, "benchmarks.truth, peers") == section


@pytest.mark.parametrize("language", truth.WORDS)
def test_a_page_says_what_the_table_without_peers_says(language: str) -> None:
    cells = committed_rows("raw_count")
    assert len(cells) > 20
    section = truth.own_section(cells, truth.WORDS[language])
    assert part_of(language, "benchmarks.truth, raw_count") == section


def test_traces_are_counted_for_each_tool_by_how_far_it_is_off() -> None:
    cells = [
        ["a", "1", "=", "1.000", "=", "+0.50%", "-", "-", "-"],
        ["b", "1", "=", "1.000", "=", "-1.50%", "50.00%", "=", "none"],
        ["c", "1", "2, 3 ns", "1.000", "=", "fails", "50.00%", "+0.20", "fails"],
    ]
    *_, ours, peer = truth.peers_section(cells, ["HTA"], truth.WORDS["en"]).splitlines()
    assert ours == "| ppprof | 3 | 0 | 0 | 0 | 1 | 1 | 0 |"
    assert peer == "| HTA | 0 | 1 | 1 | 1 | 0 | 1 | 1 |"


def test_any_folder_of_traces_is_counted_file_by_file(tmp_path: Path) -> None:
    trace = training(num_steps=2, num_kernels=3)
    trace.span("python_function", "train.py(1): f", 100, 50)
    trace.launch(
        13_500, "ncclDevKernel_AllReduce", 13_540, 700, stream=9
    )  # inside the fifth kernel
    write_events(tmp_path / "a.json", trace.events)
    (tmp_path / "b.json").write_text(json.dumps([{"ph": "b", "ts": 1}, {"ph": "e", "ts": 2}]))
    (tmp_path / "c.json").write_text('{"a": 1}')
    num_kernels, num = len(trace.kernels()), len(trace.events)
    rows = list(truth.own_rows(truth.files_of([tmp_path])))
    computation = f"{(num_kernels - 1) * 0.9:.3f}"
    assert rows == [
        ["a.json", f"{num}", "=", f"{num_kernels}", "=", computation, "=", "100.00%", "="],
        ["b.json", "2", truth.REFUSED, *["-"] * 6],
    ]
    assert "it refuses 1." in truth.own_section(rows, truth.WORDS["en"])
