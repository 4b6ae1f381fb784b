"""Time from the last recorded step to the printed tables: ppprof against Paddle.

Paddle: ``stop()``, ``export("json")`` and ``summary()``, all in the training loop. ppprof:
``stop()`` and the ``.pb`` in the loop. Then a new process reads the ``.pb``, computes and prints all
nine tables, and writes the tables as data and the JSON trace. Both use the same recorded window. The
output is the median of several rounds.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from paddle.profiler import Profiler

from benchmarks.workload import Workload
from ppprof.config import ProfilerConfig
from ppprof.rundir import claim, write_manifest
from ppprof.trace import read_paddle_pb

_STEM = "rank_00000_dp0_pp0_sharding0_mp0_time_20261120T000000_000"


def main(num_steps: int = 200, repeats: int = 5) -> list[tuple[str, str]]:
    """Measure; return rows of (name, value)."""
    workload = Workload()
    for _ in range(3):
        workload.step()
    profiler = Profiler(
        on_trace_ready=lambda _: None, record_shapes=True, profile_memory=True, timer_only=False
    )
    profiler.start()
    for _ in range(num_steps):
        workload.step()
        profiler.step()
    stop_s = _seconds(profiler.stop)
    theirs: dict[str, list[float]] = {"json": [], "summary": []}
    ours: dict[str, list[float]] = {"pb": [], "tables": [], "JSON trace": []}
    peaks_mib: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        num_events = pb_bytes = 0
        for turn in range(repeats):
            export = Path(scratch, f"{turn}.json")
            theirs["json"].append(_seconds(profiler.export, str(export), "json"))
            theirs["summary"].append(_seconds(profiler.summary))
            run = claim(Path(scratch, f"run{turn}"))
            raw = run / "raw" / f"{_STEM}.pb"
            config = ProfilerConfig.from_mapping({"enable": True, "detailed": True})
            write_manifest(run, {"profiler": config.to_mapping()})
            ours["pb"].append(_seconds(profiler.export, str(raw), "pb"))
            pb_bytes = raw.stat().st_size
            trace = read_paddle_pb(raw)
            num_events = trace.events.height + trace.memory.height
            finished = _finish(run)
            peaks_mib.append(finished.pop("memory"))
            for part, seconds in finished.items():
                ours[part].append(seconds)
    their_s, our_s = _total(theirs), _total(ours)
    loop_s = stop_s + statistics.median(ours["pb"])
    tables_s = loop_s + statistics.median(ours["tables"])
    parts = [("stop, the same for both", stop_s)]
    parts += [
        (f"{name}: {part}", statistics.median(times))
        for name, measured in (("Paddle", theirs), ("ppprof", ours))
        for part, times in measured.items()
    ]
    ratios = [
        ("until the tables are there: ppprof / Paddle", tables_s / (stop_s + their_s)),
        ("the same, stop counted for ppprof alone", tables_s / their_s),
        (
            "until the JSON trace is there too: ppprof / Paddle",
            (stop_s + our_s) / (stop_s + their_s),
        ),
        ("stall in the loop: ppprof / Paddle", loop_s / (stop_s + their_s)),
    ]
    return [
        ("events in the window (host, device, memory)", f"{num_events:,}"),
        *((title, f"{seconds:.2f} s") for title, seconds in parts),
        *((title, f"{ratio:.2f}") for title, ratio in ratios),
        ("peak memory of ppprof's process", f"{max(peaks_mib):.0f} MiB"),
        ("size of the .pb that it reads", f"{pb_bytes / 2**20:.0f} MiB"),
    ]


def _finish(run: Path) -> dict[str, float]:
    """Return seconds until a new process has printed the tables, then until its end; its memory."""
    command = [sys.executable, "-m", "ppprof", "finish", str(run)]
    printed = peak_mib = 0.0
    with tempfile.TemporaryFile() as out:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out)
        while process.poll() is None:
            if not printed and os.fstat(out.fileno()).st_size:
                printed = time.perf_counter()  # all tables are one write
            with contextlib.suppress(OSError, AttributeError):  # the process has just ended
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = re.search(r"VmHWM:\s+(\d+) kB", status)
                peak_mib = max(peak_mib, int(peak[1]) / 1024 if peak else 0)
            time.sleep(0.002)
        end = time.perf_counter()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return {"tables": printed - start, "JSON trace": end - printed, "memory": peak_mib}


def _total(times: dict[str, list[float]]) -> float:
    return sum(statistics.median(values) for values in times.values())


def _seconds(action: Callable[..., object], *arguments: object) -> float:
    """Return the seconds that ``action`` takes; its output is discarded."""
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        action(*arguments)
    return time.perf_counter() - start


if __name__ == "__main__":
    for title, value in main():
        print(f"{title:<55}{value:>12}")
