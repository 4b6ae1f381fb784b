"""docs/tutorial.md as a newcomer follows it: its commands, in order, in an empty directory."""

from __future__ import annotations

import re

import pytest

from tools import doc_trainings

pytestmark = [pytest.mark.paddle, pytest.mark.all]


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What each step's commands print, by the step."""
    names = ("script", "before", "profile", "advise", "after", "line", "faster")
    outputs = doc_trainings.remade("docs/tutorial.md").outputs
    assert len(outputs) == len(names)
    return dict(zip(names, outputs))


def number(pattern: str, text: str) -> float:
    match = re.search(pattern, text, re.M)
    assert match, (pattern, text)
    return float(match[1])


def test_the_script_waits_for_data(printed: dict[str, str]) -> None:
    assert number(r"^Reader Ratio: ([\d.]+)%", printed["before"]) > 25
    _, _, parts = printed["profile"].partition("the largest parts of this step")
    assert parts.splitlines()[1].startswith("Dataloader ")


def test_the_advice_is_about_the_input(printed: dict[str, str]) -> None:
    output = printed["advise"]
    assert re.search(r"^1\. .* \[input-bound\]$", output, re.M), output
    assert "num_workers of paddle.io.DataLoader" in output


@pytest.mark.parametrize("name", ["after", "faster"])
def test_each_change_makes_it_faster(printed: dict[str, str], name: str) -> None:
    verdict = r"^Step time: faster: -.* \(95% interval -\S+% to -\S+%\)"
    assert re.search(verdict, printed[name], re.M), printed[name]


def test_the_line_of_python_is_named(printed: dict[str, str]) -> None:
    """With its share of the step; it is line 17 of the script."""
    assert re.search(r"pass in my_train\.py:17, brighter\(\): return paddle", printed["line"])
    table = printed["line"].partition("Python Lines")[2]
    assert re.search(r"^my_train\.py:17 .* return paddle", table, re.M)
