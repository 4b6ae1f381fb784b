"""``ppprof report``: time to write a page, its size, and its speed in a browser.

Measured with a GPU job of 1.1 million events in one rank (`gpu_job`, 25 steps as Paddle's
protobuf), one of 320 MB of Paddle's JSON, and one of 64 ranks (`cluster_job`). Writing: cold
processes, files in the page cache; the floor is ``ppprof ranks``, which reads
the same and draws nothing. In Chromium, without a GPU: the time from opening the file until a table
is sorted by a click, and until the timeline is drawn; then the frames per second of the timeline
while it zooms in on a microsecond-scale view, pans there, zooms out again and pans far out, 60
frames each: over all frames, and of the slowest of these motions.
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
from typing import NamedTuple

from benchmarks import gpu_job
from benchmarks.trace_reading import Reader, machine, measure
from tests.fixtures.timeline import write
from tests.oracles.chromium import EXECUTABLE, Opened, browser

_STEPS = 25
"""Steps of a job with 1.1 million events: rows of the events table."""

_FRAMES = 60


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


def events_of(folder: Path) -> Path:
    """Return a trace of 1.1 million events in one rank; write it if it is missing."""
    pb = folder / f"{_STEPS}_steps.pb"
    if not pb.exists():
        write(pb, *gpu_job.threads(_STEPS), devices=(0,))
    return pb


class Browsing(NamedTuple):
    """A page in Chromium; medians of three openings."""

    sorted_s: float
    """From opening to a table that is sorted by a click."""
    timeline_s: float
    """From opening to a drawn timeline."""
    frames_per_s: float
    slowest_frames_per_s: float


def measure_in_browser(page: Path) -> Browsing:
    """Return how fast a page opens, and its timeline's frames per second."""
    openings = []
    with browser() as chromium:
        for _ in range(3):
            begin = time.perf_counter()
            opened = Opened(chromium, page)
            opened.page.locator("#operators th button").first.click()
            sorted_s = time.perf_counter() - begin
            opened.page.locator('figure[data-chart="timeline"]').scroll_into_view_if_needed()
            opened.page.wait_for_function(f"() => {_TIMELINE}?.isReady")
            timeline_s = time.perf_counter() - begin
            frame_s = opened.page.evaluate(_MOVE, _FRAMES)
            rates = [len(times) / sum(times) for times in frame_s]
            overall = sum(map(len, frame_s)) / sum(map(sum, frame_s))
            openings.append(Browsing(sorted_s, timeline_s, overall, min(rates)))
            opened.close()
    return Browsing(*(statistics.median(values) for values in zip(*openings)))


_TIMELINE = """document.querySelector('figure[data-chart="timeline"]').timeline"""

_MOVE = f"""async frames => {{
    const timeline = {_TIMELINE};
    const frame = () => new Promise(requestAnimationFrame);
    const middle = 0.43 * timeline.store.end;
    const motions = [
        () => timeline.zoom(0.85, middle), () => timeline.pan(0.04 * (timeline.to - timeline.from)),
        () => timeline.zoom(1 / 0.85, middle),
        at => timeline.look((0.1 + 0.002 * at) * timeline.store.end, (0.8 + 0.002 * at) * timeline.store.end),
    ];
    const seconds = [];
    for (const move of motions) {{
        const times = [];
        let before = await frame();
        for (let at = 0; at < frames; at++) {{
            move(at);
            const now = await frame();
            times.push((now - before) / 1e3);
            before = now;
        }}
        seconds.push(times);
    }}
    return seconds;
}}"""


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
    print(
        "| | command | seconds | peak MiB | page MB | usable after s | timeline after s "
        "| frames/s | slowest frames/s |"
    )
    print("| --- | --- |" + " ---: |" * 7)
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        page = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "page.html"
        for name, run in (
            ("1.1 M events", events_of(folder)),
            (f"{options.size} MB", run_of(folder, options.size)),
            (f"{options.ranks} ranks", ranks_of(folder, options.ranks)),
        ):
            readers = (
                Reader("ppprof ranks", ("-m", "ppprof", "ranks"), ""),
                Reader(
                    "ppprof report",
                    ("-m", "ppprof", "report", "--force", "-o", str(page)),
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
                    browsing = measure_in_browser(page)
                    cells += [
                        f"{page.stat().st_size / 1e6:.1f}",
                        *(f"{seconds:.2f}" for seconds in browsing[:2]),
                        *(f"{rate:.0f}" for rate in browsing[2:]),
                    ]
                print(f"| {' | '.join([*cells, *['-'] * (9 - len(cells))])} |", flush=True)


if __name__ == "__main__":
    main()
