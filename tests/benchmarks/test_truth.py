"""``benchmarks.truth``: both pages have the table that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import truth

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
