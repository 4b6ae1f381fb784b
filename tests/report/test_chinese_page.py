"""No English header stands in a Chinese page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tests.fixtures.tiers import one_in
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
