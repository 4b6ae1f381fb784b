"""Seconds until a command line that needs no data has ended, and what a training pays to import ppprof.

Every command line runs in its own process, timed from the start of the interpreter to its end, with
compiled modules and files in the page cache. The floor is an interpreter that does nothing; a peer
imports polars, which every command that reads a trace needs. A first run of each warms up. Then all
run in turn, in an order that changes every round. The fastest run is the number to compare: whatever
else the machine does only makes a start slower.

A training has imported Paddle before ppprof, so Paddle's time does not count.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks.trace_reading import machine

FLOOR = "floor: python -c pass"
STARTS: Mapping[str, Sequence[str]] = {
    FLOOR: ("-c", "pass"),
    "peer: python -c 'import numpy'": ("-c", "import numpy"),
    "peer: python -c 'import polars'": ("-c", "import polars"),
    "ppprof --help": ("-m", "ppprof", "--help"),
    "ppprof --version": ("-m", "ppprof", "--version"),
    "ppprof summary --help": ("-m", "ppprof", "summary", "--help"),
    "ppprof completion bash": ("-m", "ppprof", "completion", "bash"),
    "usage error: ppprof --nosuch": ("-m", "ppprof", "--nosuch"),
    "usage error: ppprof summary RUN --views x": ("-m", "ppprof", "summary", "run", "--views", "x"),
    "no such run: ppprof summary RUN": ("-m", "ppprof", "summary", "no/such/run"),
}
"""Arguments of the interpreter, keyed by what they measure."""

_TRAINING = (
    "import sys, time, paddle\n"
    "start = time.perf_counter()\n"
    "import ppprof; ppprof.attach\n"
    "print(time.perf_counter() - start, 'polars' in sys.modules)"
)


def _seconds(arguments: Sequence[str]) -> float:
    """Return the seconds that an interpreter runs; a usage error ends it with exit code 2."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - start


def starts(repeats: int) -> dict[str, list[float]]:
    """Return the seconds of all runs of `STARTS`, keyed by name."""
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    names = list(STARTS)
    for turn in range(repeats + 1):
        random.Random(turn).shuffle(names)
        for name in names:
            elapsed = _seconds(STARTS[name])
            if turn:  # the first round warms up
                seconds[name].append(elapsed)
    return seconds


def start_table(seconds: Mapping[str, Sequence[float]]) -> str:
    """Return a Markdown table: the fastest and the median run of each start, in ms."""
    floor = min(seconds[FLOOR])
    rows = [["from start to end", "fastest, ms", "median, ms", "/ floor"], ["---", *["---:"] * 3]]
    for name, times in seconds.items():
        fastest = min(times)
        cells = [f"{fastest * 1e3:.0f}", f"{statistics.median(times) * 1e3:.0f}"]
        rows.append([name, *cells, f"{fastest / floor:.1f}"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def training_line(repeats: int) -> str:
    """Return a line about the time that ``ppprof.attach`` takes to import after Paddle."""
    if importlib.util.find_spec("paddle") is None:
        return "import ppprof; ppprof.attach after import paddle: not measured, no Paddle\n"
    times, has_polars = [], False
    for _ in range(repeats + 1):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _TRAINING],
            capture_output=True,
            check=True,
            text=True,
        )
        seconds, polars = done.stdout.split()[-2:]
        times.append(float(seconds))
        has_polars |= polars == "True"
    return (
        f"import ppprof; ppprof.attach after import paddle: fastest {min(times[1:]) * 1e3:.0f} ms, "
        f"median {statistics.median(times[1:]) * 1e3:.0f} ms; "
        f"polars {'was' if has_polars else 'was not'} imported\n"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10, help="timed runs of each start (10)")
    options = parser.parse_args(argv)
    print(machine(), end="\n\n")
    print(start_table(starts(options.repeats)))
    print(training_line(min(options.repeats, 5)), end="")


if __name__ == "__main__":
    main()
