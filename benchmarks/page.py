"""``ppprof report``: how long a page takes to make, how large it is, and how soon one can use it.

Of a GPU job with 1.1 million trace events in one rank (`gpu_job`, 320 MB of JSON) and of one with 64
ranks (`cluster_job`). Making: cold processes, files in the page cache, no kept events; the floor is
``ppprof ranks``, which reads the same and draws nothing. Using, in Chromium: from opening the file to
a heading that sorts when it is pressed, and what one step of zooming the timeline takes.
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
    """A trace of one rank."""
    json, pb = folder / f"{size_mb}.json", folder / f"{size_mb}.pb"
    if not json.exists():
        steps = str(max(1, size_mb // gpu_job.STEP_MB))
        subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu_job", str(json), str(pb), steps], check=True
        )
    return json


def ranks_of(folder: Path, num_ranks: int) -> Path:
    """A run of many ranks."""
    run = folder / f"{num_ranks}_ranks"
    if not run.exists():
        command = [sys.executable, "-m", "benchmarks.cluster_job", str(run), str(num_ranks)]
        subprocess.run(command, check=True)
    return run


def used(page: Path) -> tuple[float, float]:
    """Seconds from opening to a table that was sorted, and for one zoom of the timeline; medians."""
    opened, zoomed = [], []
    with browser() as started:
        for _ in range(3):
            begin = time.perf_counter()
            found = Opened(started, page)
            found.page.locator("#operators th button").first.click()
            opened.append(time.perf_counter() - begin)
            found.draw_all()
            zoomed.append(found.page.evaluate(_ZOOM, _ZOOMS))
            found.close()
    return statistics.median(opened), statistics.median(zoomed)


_ZOOM = """times => {
    const {lanes} = document.querySelector('figure[data-chart="timeline"]');
    const begin = performance.now();
    for (let i = 0; i < times; i++) { lanes.zoom(i % 2 ? 1.6 : 0.6); lanes.paintNow(); }
    return (performance.now() - begin) / times / 1e3;
}"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--size", type=int, default=320, metavar="MB", help="of the one trace (320)")
    add("--ranks", type=int, default=64, help="of the other run (64)")
    add("--repeats", type=int, default=3, help="timed runs of each command (3)")
    add("--keep", type=Path, metavar="DIR", help="make the runs there, or use those that are")
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
            for at, measured in measure(readers, {"": run}, options.repeats).items():
                cells = [
                    name,
                    at,
                    f"{measured.median_s:.2f}",
                    f"{measured.peak_bytes / 2**20:,.0f}",
                ]
                if at == "ppprof report" and EXECUTABLE:
                    opened, zoomed = used(page)
                    cells += [
                        f"{page.stat().st_size / 1e6:.1f}",
                        f"{opened:.2f}",
                        f"{zoomed * 1e3:.1f}",
                    ]
                print(f"| {' | '.join([*cells, *['-'] * (7 - len(cells))])} |")


if __name__ == "__main__":
    main()
