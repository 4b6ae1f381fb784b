"""Take the README's pictures of a report page: ``python -m tools.screenshots PAGE.html docs``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.oracles.chromium import Opened, browser

PICTURES: dict[str, tuple[Sequence[str], str]] = {
    "report": (("header", "#headline", "#findings", "#steps"), "light"),
    "report_ranks": (("#ranks", "#pipeline"), "light"),
    "report_timeline": (("#modules", "#timeline"), "dark"),
}
"""File name -> parts of the page, top to bottom, and the color scheme."""

_MAX_HEIGHT = 1100


def main(page: Path, folder: Path) -> None:
    """Write one PNG per picture."""
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
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
