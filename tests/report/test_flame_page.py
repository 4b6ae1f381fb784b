"""The flame graph in a browser: boxes, search, enlarging, and the way to the timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ppprof
from tests.fixtures.findings import logging, training
from tests.fixtures.run_directories import run
from tests.oracles.chromium import Opened
from tests.report.runs_and_pages import in_browser

pytestmark = in_browser


def test_a_box_is_found_enlarged_and_shown_in_the_timeline(tmp_path: Path, chromium: Any) -> None:
    """55% of each step are in log(), all of which json.dumps has."""
    folder = run(tmp_path / "log", [training(450)], stacks=[logging()])
    page = tmp_path / "page.html"
    ppprof.write_report(ppprof.open(folder), page)
    opened = Opened(chromium, page)
    opened.draw_all()
    figure = opened.page.query_selector("figure[data-chart=flame]")
    assert figure.query_selector_all(".module.found") == []
    figure.query_selector("input").fill("log (")
    marked = [box.inner_text() for box in figure.query_selector_all(".module.found")]
    assert marked == ["log (train.py:7)"]
    figure.query_selector(".module.found").click()
    chosen = figure.query_selector(".chosen").inner_text()
    assert "(55.0%)" in chosen
    assert "log (train.py:7)" in chosen
    opened.page.wait_for_function("() => location.hash.startsWith('#t=')")
    assert opened.complaints == []
    opened.close()


def test_a_comparison_has_the_graphs_of_both_runs_as_one(tmp_path: Path, chromium: Any) -> None:
    """log() takes 450 of each step more, and the line that calls it 450 less."""
    base = run(tmp_path / "base", [training(450)], stacks=[logging(550)])
    folder = run(tmp_path / "log", [training(450)], stacks=[logging()])
    page = tmp_path / "page.html"
    ppprof.write_report(ppprof.open(folder), page, baseline=ppprof.open(base))
    opened = Opened(chromium, page)
    opened.draw_all()
    figure = opened.page.query_selector("figure[data-chart=change_flame]")
    figure.query_selector("input").fill("log (")
    (box,) = figure.query_selector_all(".module.found")
    assert box.inner_text().startswith("▲ log (train.py:7) +450")
    assert "slower" in box.get_attribute("class")
    box.click()
    chosen = figure.query_selector(".chosen").inner_text()
    assert "100" in chosen
    assert "550" in chosen
    assert opened.complaints == []
    opened.close()


def test_a_run_without_samples_has_no_flame_graph(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ppprof.write_report(ppprof.open(run(tmp_path / "log", [training(450)])), page)
    assert 'data-chart="flame"' not in page.read_text(encoding="utf-8")
