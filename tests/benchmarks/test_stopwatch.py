"""``benchmarks.stopwatch``: what it counts, and the pages that it writes."""

from __future__ import annotations

from benchmarks.measurements import part_of
from benchmarks.stopwatch import BENCHMARK, TASKS


def rows(language: str) -> list[list[str]]:
    lines = [line for line in part_of(language, BENCHMARK).splitlines() if line.startswith("| ")]
    return [line[2:-2].split(" | ") for line in lines[2:]]


def test_both_pages_have_the_same_numbers_and_count_the_commands() -> None:
    english, chinese = map(rows, ("en", "zh"))
    assert [row[1:] for row in english] == [row[1:] for row in chinese]
    ways = [(ways, tools) for ways in TASKS.values() for tools in ("raw", "ppprof")]
    assert [row[2:4] for row in english] == [
        [str(len(ways[tools].commands)), "7" if tools == "raw" else "0"] for ways, tools in ways
    ]
