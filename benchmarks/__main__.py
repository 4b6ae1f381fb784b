"""Run every benchmark, one after another, each in its own process."""

from __future__ import annotations

import subprocess
import sys

for name in (
    "start",
    "capture_overhead",
    "flight_recorder",
    "window_start",
    "window_end",
    "window_length",
    "trace_reading",
    "kineto_reading",
    "cluster",
    "comparing",
    "page",
    "stopwatch",
):
    print(f"\n== {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
