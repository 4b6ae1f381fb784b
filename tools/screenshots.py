"""Take all pictures of the pages again: ``python -m tools.screenshots``.

The pictures show committed runs: the page of `EIGHT_RANKS`, and VisualDL on `TWO_RANKS`. They
replace those in ``docs/``, or go to the folder that is named.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.oracles import visualdl_server
from tests.oracles.chromium import Opened, browser

ROOT = Path(__file__).parents[1]
EIGHT_RANKS = Path("tests/fixtures/runs/eight_ranks")
TWO_RANKS = Path("tests/fixtures/runs/slow_rank_of_two")

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


def main(folder: Path) -> None:
    """Write one PNG per picture."""
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        written = ["report", str(EIGHT_RANKS), "-o", str(page)]
        subprocess.run([sys.executable, "-m", "ppprof", *written], cwd=ROOT, check=True)
        report(page, folder)
        visualdl(unpacked(ROOT / TWO_RANKS, Path(scratch) / "visualdl"), folder)


def unpacked(run: Path, folder: Path) -> Path:
    """Write a run's traces into ``folder/profiler_log`` as VisualDL reads them: not compressed."""
    log = folder / "profiler_log"
    log.mkdir(parents=True)
    for path in run.glob("*.paddle_trace.json.gz"):
        (log / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    return folder


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
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "docs")
