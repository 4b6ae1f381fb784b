"""Links from findings and rows to the timeline, and the texts at the top of the page."""

from __future__ import annotations

import dataclasses
import re
from importlib.resources import files
from unittest.mock import Mock

import pytest

from ppprof.analysis.diff.significance import Change
from ppprof.analysis.report_data.report import ReportData
from ppprof.report.html.blocks import Words, change
from ppprof.report.html.change import verdict_text
from ppprof.report.html.links import Links, link, link_of_finding
from ppprof.report.html.sections import head, key_figures
from ppprof.run.report import collect_report_data
from ppprof.run.run import open as open_run
from tests.jobs.planted import COMMITTED


def words(language="en"):
    return Words.in_language(language)


@pytest.fixture(scope="module")
def slow_rank() -> ReportData:
    return collect_report_data(open_run(COMMITTED / "slow_rank_and_link"))


@pytest.fixture(scope="module")
def slow_layer() -> ReportData:
    baseline = open_run(COMMITTED / "nothing")
    return collect_report_data(open_run(COMMITTED / "slow_layer"), baseline=baseline)


def test_a_link_has_invisible_characters_written_out():
    """As the timeline has them in its names: otherwise it would not find the event."""
    assert link(0, 0, 2000, 0, "a\u202eb").endswith("&find=a%5Cu202eb")


def test_the_finding_of_a_slow_rank_leads_to_that_rank(slow_rank):
    links = Links(slow_rank)
    found = {finding.rule: link_of_finding(finding, links) for finding in slow_rank.findings}
    rank = next(row.facts["rank"] for row in slow_rank.findings if row.rule == "slow-rank")
    assert found["slow-rank"].endswith(f"&rank={rank}")
    assert "&find=" not in found["slow-rank"]  # it would dim what fills the step


def test_the_finding_of_a_slow_layer_leads_to_the_gap_in_it(slow_layer):
    """The link contains an event of the layer that sleeps for 40 ms, and some time around it."""
    (finding,) = (one for one in slow_layer.findings if one.rule == "unexplained")
    start, end = map(float, re.findall(r"[\d.]+", link_of_finding(finding, Links(slow_layer)))[:2])
    events = open_run(COMMITTED / "slow_layer").events()
    middle = events["start_ns"].min() + (start + end) / 2 * 1e9
    steps = events.filter(category="ProfileStep")
    begins = steps["start_ns"]
    assert ((begins <= middle) & (begins + steps["dur_ns"] >= middle)).sum() == 1
    assert 0.04 < end - start < 0.1


def test_a_comparison_is_headed_by_its_verdict(slow_layer):
    top = head(slow_layer, words(), Links(slow_layer))
    assert top["title"][0].startswith("Step time: slower, +")
    assert top["second"][0].startswith("Unexplained host time in GPT/Block: ")
    assert top["second"][1].startswith("#t=")
    identity = dict(top["identity"])
    assert identity["Paddle"] == "3.3.1"
    assert identity["Date"] == "2026-11-22 01:10 +0000"
    assert identity["Model"].startswith("GPT (num_layers 2, hidden_size 64")


def test_the_top_names_the_config_file(slow_layer):
    manifest = {**slow_layer.manifest, "config_file": "configs/gpt.yaml"}
    report = dataclasses.replace(slow_layer, manifest=manifest)
    identity = dict(head(report, words(), Links(report))["identity"])
    assert identity["Config file"] == "configs/gpt.yaml"


def test_key_figures_say_what_was_recorded_and_leave_out_zeros(slow_layer):
    basis, _, bar, tiles = key_figures(slow_layer, words(), Links(slow_layer))
    assert "10 steps outside the window" in basis.text
    details = {tile.term: tile.detail for tile in tiles.tiles}
    assert details["cpu_utilization"] == "recorded"
    assert "gpu_utilization" not in details
    shown = {share.term: share.ratio for share in bar.shares}
    assert "bubble" not in shown
    assert sum(shown.values()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("value", "is_clear", "text", "mark"),
    [
        (0.25, True, "▲ +25.0%", "worse"),
        (-0.25, True, "▼ -25.0%", "better"),
        (0.25, False, "+25.0%", "same"),
        (0.25, None, "+25.0%", "same"),
        (0.0, True, "0.0%", "same"),
    ],
)
def test_only_a_clear_change_has_an_arrow_and_a_colour(value, is_clear, text, mark):
    cell = change(value, "ratio", is_clear=is_clear)
    assert (cell.text, cell.mark) == (text, mark)


def test_a_verdict_without_an_interval_has_its_reason_in_both_languages():
    one, other = (open_run(COMMITTED / name) for name in ("nothing", "eight_ranks"))
    diff = collect_report_data(other, baseline=one).diff
    assert diff is not None
    assert "3 steps are too few: 5 of either run give an interval" in verdict_text(diff, words())
    assert "3 步太少" in verdict_text(diff, words("zh"))


def test_a_verdict_names_steps_that_grow_in_both_languages():
    diff = Mock(change=Change(0.1, 0.08, 0.12, 40, 40, 0.01, growth_ns=(7.5e6, None)))
    assert verdict_text(diff, words()) == (
        "slower, +10.0% (95% interval +8.0% to +12.0%); at equal step numbers: the steps of the baseline "
        "change by +7.5 ms a step"
    )
    assert verdict_text(diff, words("zh")).endswith("基线：步时间每步变化 +7.5 ms")


def test_chinese_is_set_with_spaces():
    text = files("ppprof.report").joinpath("texts/zh.yaml").read_text("utf-8")
    texts = [line.partition(": ")[2] for line in text.splitlines() if not line.startswith("#")]
    for line in texts:
        # A placeholder of a number or name, and Latin letters, stand apart from Chinese.
        plain = re.sub(r"\{(basis|verdict|reason|severity\w*|title|role|part|clocks)\}", "，", line)
        assert not re.search(r"[\u4e00-\u9fff][A-Za-z0-9{]|[A-Za-z0-9}%][\u4e00-\u9fff]", plain), (
            line
        )
