"""docs/tutorial.md as a newcomer follows it: its commands, in order, in an empty directory."""

from __future__ import annotations

import re

import pytest

from tools import doc_trainings

pytestmark = [pytest.mark.paddle, pytest.mark.all]


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What each step's command prints, by the step."""
    names = ("threads", "before", "profile", "advise", "after", "diff")
    outputs = doc_trainings.remade("docs/tutorial.md").outputs
    assert len(outputs) == len(names)
    return dict(zip(names, outputs))


def number(pattern: str, text: str) -> float:
    match = re.search(pattern, text, re.M)
    assert match, (pattern, text)
    return float(match[1])


IPS = r"^\| +ips +\| +([\d.]+) "


def test_the_baseline_has_ips_and_waits_for_data(printed: dict[str, str]) -> None:
    output = printed["before"]
    assert number(IPS, output) > 0
    assert number(r"^Reader Ratio: ([\d.]+)%", output) > 25


def test_the_recording_has_data_loading_first(printed: dict[str, str]) -> None:
    output = printed["profile"]
    _, _, table = output.partition("Model Summary")
    ratios = re.findall(r"^  (\w+) +\d+ .*? / ([\d.]+)  ", table, re.M)[:4]
    phases = {name: float(ratio) for name, ratio in ratios}
    assert phases.keys() == {"Dataloader", "Forward", "Backward", "Optimization"}
    assert max(phases, key=phases.__getitem__) == "Dataloader"


def test_the_advice_is_about_the_input(printed: dict[str, str]) -> None:
    output = printed["advise"]
    assert re.search(r"^1\. .* \[input-bound\]$", output, re.M), output
    assert "Data.Train.loader.num_workers" in output


def test_workers_make_it_faster(printed: dict[str, str]) -> None:
    output = printed["diff"]
    assert re.search(r"^Step time: faster: -.* \(95% interval -\S+% to -\S+%\)", output, re.M), (
        output
    )
    assert "Data.Train.loader.num_workers: 0 -> 4" in output
    assert number(IPS, printed["after"]) > number(IPS, printed["before"])
