"""No English header stands in a Chinese page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import accumulate

import pytest

from ppprof.report.html.blocks import Words
from ppprof.report.html.change import change_section
from ppprof.report.html.links import Links
from ppprof.run.report import collect_report_data
from ppprof.run.run import open as open_run
from tests.fixtures.tiers import one_in
from tests.fixtures.timeline import Thread, span, write
from tests.jobs.planted import COMMITTED

TECHNICAL = {
    *("rank", "Rank", "pp", "CPU", "GPU", "kernel", "GB/s", "ms", "Node ID"),
    *("Paddle", "Tokens/s", "TFLOP/s", "FLOP/B"),
}
RUNS = sorted(path.name for path in COMMITTED.iterdir() if path.is_dir())


class Headings(HTMLParser):
    """The texts in headers of tables, headings and labels of figures."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: set[str] = set()
        self._open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag in ("th", "h2", "h3", "dt", "caption", "figcaption"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data):
        if self._open and data.strip():
            self.texts.add(data.strip())


def english_in(page):
    headings = Headings()
    headings.feed(page)
    assert len(headings.texts) > 20
    return {
        text
        for text in headings.texts
        if re.search("[A-Za-z]{2}", text) and not re.search("[\u4e00-\u9fff]", text)
    }


@pytest.mark.parametrize("name", one_in(8, RUNS))
def test_headers_of_a_chinese_page_are_chinese(name, tmp_path, cli):
    page = tmp_path / "page.html"
    cli("report", COMMITTED / name, "-o", page, "--language", "zh")
    assert english_in(page.read_text("utf-8")) - TECHNICAL == set()


def test_headers_of_a_chinese_comparison_are_chinese(tmp_path, cli):
    page = tmp_path / "page.html"
    runs = [str(COMMITTED / name) for name in ("nothing", "slow_layer")]
    options = ["--baseline", runs[0], "-o", str(page), "--language", "zh"]
    cli("report", runs[1], *options)
    assert english_in(page.read_text("utf-8")) - TECHNICAL == set()


def run_of(path, **lengths):
    """Steps of operators that take some microseconds each, keyed by operator."""
    steps = []
    for number in range(3):
        ends = list(accumulate(lengths.values(), initial=1000 * number))
        operators = [
            span("Operator", name, start * 1000, end * 1000)
            for name, start, end in zip(lengths, ends, ends[1:])
        ]
        mark = f"ProfileStep#{number}"
        whole = span("ProfileStep", mark, ends[0] * 1000, ends[-1] * 1000)
        steps.append(whole.around(*operators))
    return open_run(write(path, Thread(1, "main", tuple(steps))))


@pytest.mark.parametrize(
    ("language", "new", "gone"), [("en", "new", "gone"), ("zh", "新增", "消失")]
)
def test_only_operators_of_one_run_have_a_status(language, new, gone, tmp_path):
    """Its definition has the same words."""
    baseline = run_of(tmp_path / "base.pb", kept=100, removed=200)
    report = collect_report_data(
        run_of(tmp_path / "run.pb", kept=300, added=400), baseline=baseline
    )
    words = Words.in_language(language)
    _, blocks = change_section(report, words, Links(report))
    (table,) = (block for block in blocks if getattr(block, "key", "") == "change_operators")
    assert {row[0].text: (row[1].text, row[1].order or "") for row in table.rows} == {
        "added": (new, new),
        "kept": ("", ""),
        "removed": (gone, gone),
    }
    definition = words.texts["terms"]["status"][1]
    assert new in definition
    assert gone in definition
