"""Take the README's pictures: ``python -m tools.screenshots PAGE.html FOLDER docs``.

PAGE.html is the page of a run of 8 ranks; FOLDER holds ``profiler_log/``, a run of 2 ranks that a
VisualDL server shows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.oracles import visualdl_server
from tests.oracles.chromium import Opened, browser

PICTURES: dict[str, tuple[Sequence[str], str]] = {
    "report": (("header", "#headline", "#findings", "#steps"), "light"),
    "report_ranks": (("#ranks", "#pipeline"), "light"),
    "report_timeline": (("#modules", "#timeline"), "dark"),
}
"""File name -> parts of the page, top to bottom, and the color scheme."""

_MAX_HEIGHT = 1100
_VISUALDL_BOX = {"x": 0, "y": 0, "width": 1500, "height": 1400}
"""The part of VisualDL's overview down to its chart of steps."""
_VISUALDL_MS = 8000
"""Time in which VisualDL's page draws its charts."""


def main(page: Path, folder_of_log: Path, folder: Path) -> None:
    """Write one PNG per picture."""
    report(page, folder)
    visualdl(folder_of_log, folder)


def visualdl(folder_of_log: Path, folder: Path) -> None:
    """Write ``visualdl.png``: VisualDL's overview of the run in ``profiler_log/``."""
    with visualdl_server.serve(folder_of_log) as server, browser() as started:
        server.run_of(folder_of_log / "profiler_log", 2)
        size = {"width": _VISUALDL_BOX["width"], "height": _VISUALDL_BOX["height"]}
        page = started.new_context(viewport=size).new_page()
        page.goto(server.url("profiler"))
        page.wait_for_timeout(_VISUALDL_MS)
        page.evaluate(  # the run is named by its whole path
            """path => {
                const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
                while (texts.nextNode()) texts.currentNode.data =
                    texts.currentNode.data.replace(path, "");
            }""",
            f"{folder_of_log}/",
        )
        page.screenshot(path=folder / "visualdl.png", full_page=True, clip=_VISUALDL_BOX)


def report(page: Path, folder: Path) -> None:
    """Write the pictures of a report's page."""
    with browser() as started:
        for name, (parts, scheme) in PICTURES.items():
            opened = Opened(started, page, color_scheme=scheme)
            opened.draw_all()
            opened.page.evaluate(
                """parts => {
                    const kept = parts.map(part => document.querySelector(part)).filter(at => at);
                    const all = document.querySelectorAll("header, nav, main > *, footer");
                    for (const at of all) if (!kept.includes(at)) at.hidden = true;
                    for (const at of document.querySelectorAll("#ranks .table")) at.hidden = true;
                    document.querySelector("nav").style.display = "none";
                    scrollTo(0, 0);
                }""",
                list(parts),
            )
            height = opened.page.evaluate("document.documentElement.scrollHeight")
            box = {"x": 0, "y": 0, "width": 1280, "height": min(height, _MAX_HEIGHT)}
            opened.page.screenshot(path=folder / f"{name}.png", full_page=True, clip=box)
            opened.close()


if __name__ == "__main__":
    main(*(Path(argument).resolve() for argument in sys.argv[1:4]))
