"""``benchmarks.stopwatch``: what it counts, and the pages that it writes."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import stopwatch
from benchmarks.stopwatch import TASKS

DOCS = Path(__file__).parents[2] / "docs"


def rows(name: str) -> list[list[str]]:
    _, _, result = (DOCS / name).read_text("utf-8").partition(stopwatch.MARKER)
    lines = [line for line in result.splitlines() if line.startswith("| ")]
    return [line[2:-2].split(" | ") for line in lines[2:]]


def test_both_pages_have_the_same_numbers_and_the_commands_of_the_script() -> None:
    english, chinese = map(rows, stopwatch.PAGES)
    assert [row[1:] for row in english] == [row[1:] for row in chinese]
    ways = [(ways, tools) for ways in TASKS.values() for tools in ("raw", "ppprof")]
    assert [row[2:4] for row in english] == [
        [str(len(ways[tools].commands)), "7" if tools == "raw" else "0"] for ways, tools in ways
    ]
    for name in stopwatch.PAGES:
        page = (DOCS / name).read_text("utf-8")
        commands = re.findall(r"^(\S.*)  # [\d.]+ s$", page, re.MULTILINE)
        assert commands == [command for ways, tools in ways for command in ways[tools].commands]
