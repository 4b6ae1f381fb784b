"""Chromium, without a network: what a page does there, beside what it should."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXECUTABLE = os.environ.get("CHROMIUM") or shutil.which("chromium")
SKIPPED = "needs Chromium: Debian's package chromium, or its path in CHROMIUM"

_QUIET = (
    "--no-sandbox",  # of a root that has no user namespaces; the pages are our own
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def browser() -> Iterator[Any]:
    """Playwright's browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=EXECUTABLE, args=list(_QUIET))
        yield started
        started.close()


class Opened:
    """A page that was opened from a file, with all that it asked for and complained of."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        size = {"width": 1280, "height": 900}
        self.context = browser.new_context(**{"offline": True, "viewport": size, **options})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")

    def draw_all(self) -> None:
        """Scrolls by every chart, until each is drawn."""
        for figure in self.page.query_selector_all("figure.chart"):
            figure.scroll_into_view_if_needed()
            self.page.wait_for_function("figure => figure.dataset.drawn === 'yes'", arg=figure)
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def colours(self) -> dict[str, int]:
        """How many colours the canvas of each chart with a canvas shows, by chart."""
        counted: dict[str, int] = self.page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll("figure.chart:has(canvas)")].map(figure => {
                const seen = new Set();
                for (const canvas of figure.querySelectorAll("canvas")) {
                    const {width, height} = canvas;
                    const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
                    for (let i = 0; i < data.length; i += 4)
                        if (data[i + 3] === 255) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
                }
                return [figure.dataset.chart, seen.size];
            }))"""
        )
        return counted

    def close(self) -> None:
        """Ends it."""
        self.context.close()
