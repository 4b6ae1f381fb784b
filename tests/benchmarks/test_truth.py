"""``benchmarks.truth``: both pages have the table that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import truth
from tests.fixtures.torch_traces import training, write_events

DOCS = Path(__file__).parents[2] / "docs"


def committed_rows() -> list[list[str]]:
    _, _, result = (DOCS / "truth.md").read_text("utf-8").partition(truth.MARKER)
    lines = [line for line in result.splitlines() if line.startswith("| ")]
    return [line[2:-2].split(" | ") for line in lines[2:]]


@pytest.mark.parametrize("name", truth.PAGES)
def test_a_page_has_the_table_of_the_same_rows(name: str) -> None:
    _, _, result = (DOCS / name).read_text("utf-8").partition(truth.MARKER)
    section = truth.result_section(committed_rows(), ["HTA", "TraceLens"], truth.PAGES[name])
    assert result == f"\n{section}"


@pytest.mark.parametrize("name", truth.PAGES)
def test_a_page_has_the_table_without_peers(name: str) -> None:
    def section_of(page: str) -> str:
        _, _, rest = (DOCS / page).read_text("utf-8").partition(truth.OWN_MARKER)
        return rest.partition(truth.OWN_END)[0]

    lines = [line for line in section_of("truth.md").splitlines() if line.startswith("| ")]
    cells = [line[2:-2].split(" | ") for line in lines[2:]]
    assert len(cells) > 20
    assert section_of(name) == f"\n{truth.own_section(cells, truth.PAGES[name])}\n"


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
    assert "it refuses 1." in truth.own_section(rows, truth.PAGES["truth.md"])
