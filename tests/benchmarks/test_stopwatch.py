"""``benchmarks.stopwatch``: what it counts, and the pages that it writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import stopwatch
from benchmarks.stopwatch import ALONE, PROFILED, TASKS, Measured

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


def test_added_lines_are_those_of_the_profiler() -> None:
    alone, profiled = (
        (stopwatch.JOB / name).read_text("utf-8").splitlines() for name in (ALONE, PROFILED)
    )
    added = [line for line in profiled if re.search("profiler|Profiler", line)]
    added = [line for line in added if line not in alone]
    assert stopwatch.added_lines(PROFILED) == len(added) == 7
    assert stopwatch.added_lines(ALONE) == 0


def test_a_way_counts_commands_seconds_and_tables(tmp_path: Path) -> None:
    commands = ("echo '-----Model Summary-----'; echo 'Neck 3 4'", "sleep 0.2; echo ====Perf====")
    way = stopwatch.Way(commands, (r"^Neck (\d)", "^=+(Perf)"))
    measured = stopwatch.measure(way, tmp_path / "way")
    assert len(measured.seconds) == 2
    assert measured.seconds[1] >= 0.2
    assert (measured.answers, measured.num_tables, measured.num_pages) == (["3", "Perf"], 1, 0)


def test_an_answer_that_no_command_prints_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no command printed 'Neck' but:\nother words"):
        stopwatch.measure(stopwatch.Way(("echo other words",), ("Neck",)), tmp_path / "way")


def test_the_section_has_sums_and_answers() -> None:
    ways = {
        "alone": Measured([2.0]),
        "raw": Measured([3.0, 0.2, 4.0], ["42.55"], 5, 2, ["Operator", "Overview"]),
        "ppprof": Measured([3.4, 1.0], ["step 76.6 ms"], 4),
    }
    section = stopwatch.result_section({"slow": ways}, stopwatch.PAGES["stopwatch.md"])
    question = "A script that knows nothing: what is slow?"
    assert section.splitlines()[2:4] == [
        f"| {question} | paddle.profiler + VisualDL | 3 | 7 | 7 | 2 | 5 | 2 |",
        f"| {question} | ppprof | 2 | 0 | 4 | 2 | 4 | 0 |",
    ]
    assert (
        "ppprof run train.py data neck  # 3.4 s\nppprof advise profiler_log  # 1.0 s\n" in section
    )
    assert "`Dataloader` 42.55." in section
    assert section.endswith("ppprof prints: `step 76.6 ms`\n")
