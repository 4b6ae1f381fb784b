"""The longest stall of a training against the length of its window: ppprof and ``paddle.profiler``.

Each length is recorded in a process of its own, with shapes and allocations: the model of
`benchmarks.workload` for so many steps. The stall is the processor time of the longest call of ``step()``:
in Paddle's case the one that ends the window, without the export; in ppprof's the one that saves the
largest segment. ``--picture FILE.svg`` draws both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

LENGTHS = (100, 200, 400, 800, 1600)
_NAMES = {"paddle": "paddle.profiler", "ppprof": "ppprof"}
_COLORS = {"paddle": "#c0392b", "ppprof": "#2471a3"}
_WIDTH, _HEIGHT, _MARGIN = 640, 320, 56


def main(lengths: Sequence[int] = LENGTHS, repeats: int = 1) -> dict[str, list[float]]:
    """Measure; return the stall in seconds at each length, by who records."""
    return {
        way: [statistics.median(_measure(way, num) for _ in range(repeats)) for num in lengths]
        for way in _NAMES
    }


def _measure(way: str, num_steps: int) -> float:
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, way, str(num_steps)]
    with tempfile.TemporaryDirectory(
        ignore_cleanup_errors=True
    ) as scratch:  # of a helper that goes on
        child = subprocess.run([*command, scratch], capture_output=True, text=True, check=True)
    return float(child.stdout.split()[-1])


def record(way: str, num_steps: int, folder: str) -> float:
    """Record a window in this process; return the processor time of the longest ``step()``."""
    from benchmarks.workload import Workload

    workload = Workload()
    for _ in range(3):
        workload.step()
    if way == "paddle":
        from paddle.profiler import Profiler

        profiler = Profiler(
            scheduler=(1, 1 + num_steps),
            on_trace_ready=lambda _: None,
            record_shapes=True,
            profile_memory=True,
        )
        profiler.start()
        step: Callable[[], object] = profiler.step
    else:
        import ppprof

        block = {"enable": True, "scheduler": [1, 1 + num_steps], "profiler_log": folder}
        step = ppprof.attach(block).step
    longest = 0.0
    for _ in range(num_steps + 2):
        workload.step()
        begin = time.thread_time()
        step()
        longest = max(longest, time.thread_time() - begin)
    return longest


def picture(lengths: Sequence[int], stalls: dict[str, list[float]]) -> str:
    """Return an SVG with a line for each way."""
    most = max(max(values) for values in stalls.values())

    def place(num_steps: float, seconds: float) -> tuple[float, float]:
        x = _MARGIN + num_steps / lengths[-1] * (_WIDTH - 2 * _MARGIN)
        return round(x, 1), round(_HEIGHT - _MARGIN - seconds / most * (_HEIGHT - 2 * _MARGIN), 1)

    (left, bottom), (right, top) = place(0, 0), place(lengths[-1], most)
    style = 'font-family="sans-serif" font-size="13" fill="#555"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {style}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#999"/>',
        f'<text x="{right}" y="{bottom + 36}" text-anchor="end">steps in the window</text>',
        f'<text x="{left}" y="{top - 16}">longest stall, s</text>',
        f'<text x="{left - 8}" y="{top + 5}" text-anchor="end">{most:.1f}</text>',
        f'<text x="{left - 8}" y="{bottom + 5}" text-anchor="end">0</text>',
    ]
    for num in lengths[2:]:
        x, _ = place(num, 0)
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{num:,}</text>')
    for way, values in stalls.items():
        points = [place(num, seconds) for num, seconds in zip(lengths, values)]
        line = " ".join(f"{x},{y}" for x, y in points)
        color = _COLORS[way]
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        x, y = points[-2]
        parts.append(
            f'<text x="{x - 12}" y="{y - 10}" fill="{color}" text-anchor="end">{_NAMES[way]}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in _NAMES:
        print(record(sys.argv[1], int(sys.argv[2]), sys.argv[3]), flush=True)
        os._exit(0)  # without tables
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--picture", type=Path, metavar="FILE.svg")
        arguments = parser.parse_args()
        measured = main()
        print("steps in the window".ljust(24) + "".join(f"{num:>8,}" for num in LENGTHS))
        for name, values in measured.items():
            print(f"{_NAMES[name]:<24}" + "".join(f"{value:>8.2f}" for value in values))
        if arguments.picture is not None:
            arguments.picture.write_text(picture(LENGTHS, measured), encoding="utf-8")
