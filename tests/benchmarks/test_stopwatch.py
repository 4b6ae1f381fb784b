"""``benchmarks.stopwatch``: the pages count its commands."""

from __future__ import annotations

import re

import pytest

from benchmarks.measurements import DOCS, LANGUAGES
from benchmarks.stopwatch import TASKS, added_lines


@pytest.mark.parametrize("page", LANGUAGES.values())
def test_both_pages_count_the_commands_and_added_lines(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8").partition("benchmarks.stopwatch")[2]
    counted = re.findall(r"^- \D*(\d) \D*(\d) \D*(\d+) \D*(\d) \D*$", text, re.M)
    ranks = {"slow": 1, "changed": 2, "ranks": 8}
    assert counted == [
        (
            str(len(ways["raw"].commands)),
            str(added_lines(ways["raw"].script)),
            str(2 * ranks[question]),
            str(len(ways["ppprof"].commands)),
        )
        for question, ways in TASKS.items()
    ]
