"""The page of a run as a notebook shows it, in Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

import ppprof
from tests.oracles.chromium import Opened, browser
from tests.report.runs_and_pages import in_browser

RUNS = Path(__file__).parents[1] / "fixtures/runs"
pytestmark = in_browser


@pytest.mark.jobs
def test_links_of_the_page_work_in_a_cell(tmp_path: Path) -> None:
    page = ppprof.write_report(ppprof.open(RUNS / "slow_dataset"))
    assert page is not None
    document = tmp_path / "cell.html"
    document.write_text(f"<html data-ready=yes><body>{page._repr_html_()}", encoding="utf-8")
    with browser() as started:
        opened = Opened(started, document)
        frame = opened.page.frames[1]
        link = frame.locator("a[href^='#t=']").first
        link.click()
        assert frame.url == f"about:srcdoc{link.get_attribute('href')}"
        assert not opened.complaints
        assert opened.requests == [document.as_uri()]
