"""Makes the README's pictures of a report: ``python -m docs.screenshots PAGE.html docs``."""

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
"""File name -> parts of the page below one another, and its colours."""

_TALLEST = 1100


def main(page: Path, folder: Path) -> None:
    """Writes one PNG a picture."""
    with browser() as started:
        for name, (parts, scheme) in PICTURES.items():
            found = Opened(started, page, color_scheme=scheme)
            found.draw_all()
            found.page.evaluate(
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
            tall = found.page.evaluate("document.documentElement.scrollHeight")
            box = {"x": 0, "y": 0, "width": 1280, "height": min(tall, _TALLEST)}
            found.page.screenshot(path=folder / f"{name}.png", full_page=True, clip=box)
            found.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
