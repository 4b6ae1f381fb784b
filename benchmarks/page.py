"""``ppprof report``: time to write a page, its size, and its speed in a browser.

Measured with a GPU job of 1.1 million trace events in one rank (`gpu_job`, 320 MB of JSON) and one
of 64 ranks (`cluster_job`). Writing: cold processes, files in the page cache, the event cache off;
the floor is ``ppprof ranks``, which reads the same and draws nothing. In Chromium: the time from
opening the file until a table is sorted by a click, and the time of one zoom step in the timeline.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import gpu_job
from benchmarks.trace_reading import Reader, machine, measure
from tests.oracles.chromium import EXECUTABLE, Opened, browser

_ZOOMS = 20


def run_of(folder: Path, size_mb: int) -> Path:
    """Return a trace of one rank; write it if it is missing."""
    json, pb = folder / f"{size_mb}.json", folder / f"{size_mb}.pb"
    if not json.exists():
        steps = str(max(1, size_mb // gpu_job.STEP_MB))
        subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu_job", str(json), str(pb), steps], check=True
        )
    return json


def ranks_of(folder: Path, num_ranks: int) -> Path:
    """Return a run of many ranks; write it if it is missing."""
    run = folder / f"{num_ranks}_ranks"
    if not run.exists():
        command = [sys.executable, "-m", "benchmarks.cluster_job", str(run), str(num_ranks)]
        subprocess.run(command, check=True)
    return run


def measure_in_browser(page: Path) -> tuple[float, float]:
    """Return seconds from opening to a sorted table, and for one zoom of the timeline; medians."""
    opening_s, zoom_s = [], []
    with browser() as chromium:
        for _ in range(3):
            begin = time.perf_counter()
            opened = Opened(chromium, page)
            opened.page.locator("#operators th button").first.click()
            opening_s.append(time.perf_counter() - begin)
            opened.draw_all()
            zoom_s.append(opened.page.evaluate(_ZOOM, _ZOOMS))
            opened.close()
    return statistics.median(opening_s), statistics.median(zoom_s)


_ZOOM = """times => {
    const {lanes} = document.querySelector('figure[data-chart="timeline"]');
    const begin = performance.now();
    for (let i = 0; i < times; i++) { lanes.zoom(i % 2 ? 1.6 : 0.6); lanes.paintNow(); }
    return (performance.now() - begin) / times / 1e3;
}"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--size", type=int, default=320, metavar="MB", help="size of the trace of one rank (320)")
    add("--ranks", type=int, default=64, help="number of ranks of the other run (64)")
    add("--repeats", type=int, default=3, help="timed runs of each command (3)")
    add("--keep", type=Path, metavar="DIR", help="directory of the runs: write or reuse them")
    options = parser.parse_args(argv)
    print(machine(), end="\n\n")
    print("| | command | seconds | peak MiB | page MB | usable after s | one zoom ms |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        page = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "page.html"
        for name, run in (
            (f"{options.size} MB", run_of(folder, options.size)),
            (f"{options.ranks} ranks", ranks_of(folder, options.ranks)),
        ):
            readers = (
                Reader("ppprof ranks", ("-m", "ppprof", "ranks", "--no-cache"), ""),
                Reader(
                    "ppprof report",
                    ("-m", "ppprof", "report", "--no-cache", "--force", "-o", str(page)),
                    "",
                ),
            )
            for command, measured in measure(readers, {"": run}, options.repeats).items():
                cells = [
                    name,
                    command,
                    f"{measured.median_s:.2f}",
                    f"{measured.peak_bytes / 2**20:,.0f}",
                ]
                if command == "ppprof report" and EXECUTABLE:
                    opening_s, zoom_s = measure_in_browser(page)
                    cells += [
                        f"{page.stat().st_size / 1e6:.1f}",
                        f"{opening_s:.2f}",
                        f"{zoom_s * 1e3:.1f}",
                    ]
                print(f"| {' | '.join([*cells, *['-'] * (7 - len(cells))])} |")


if __name__ == "__main__":
    main()
