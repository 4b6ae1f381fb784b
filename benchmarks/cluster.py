"""Time and memory of ``ppprof ranks`` against the number of ranks (`cluster_job`).

Cold processes from start to end; files are in the page cache. The output is
the median over rounds in which all commands run in turn, and the peak memory of all processes at
once, as in `trace_reading`. The largest run is read once, by the plain command alone.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.trace_reading import Measured, Reader, machine, measure, run

SIZES = (64, 256, 512)
LARGEST = 2048
_BYTES = (
    "import pathlib, sys; "
    "[len(path.read_bytes()) for path in sorted(pathlib.Path(sys.argv[1]).glob('raw/*.pb'))]"
)
_RANKS = ("-m", "ppprof", "ranks")
FLOOR, ALONE, PLAIN = "floor: the bytes read once", "ppprof ranks --workers 1", "ppprof ranks"
COMMANDS = (
    Reader(FLOOR, ("-c", _BYTES), suffix=""),
    Reader(ALONE, (*_RANKS, "--workers", "1"), suffix=""),
    Reader(PLAIN, _RANKS, suffix=""),
)

Results = Mapping[int, Mapping[str, Measured]]
"""Number of ranks -> name of the command -> its measurement."""


def table(results: Results) -> str:
    """Return a Markdown table of all measurements.

    Its columns: seconds, ms per rank, speed-up over one process, seconds in user mode, involuntary
    context switches, peak memory.
    """
    rows = [
        ["ranks", "", "seconds", "ms a rank", "speed-up", "user s", "switches", "peak MiB"],
        ["---:", "---", *["---:"] * 6],
    ]
    for num_ranks, measured in results.items():
        alone_s = measured[ALONE].median_s if ALONE in measured else None
        for name, result in measured.items():
            cells = [result.error, *["-"] * 5]
            if result.median_s is not None:
                cells = [
                    f"{result.median_s:.2f}",
                    f"{result.median_s / num_ranks * 1e3:.1f}",
                    f"{alone_s / result.median_s:.2f}" if alone_s else "-",
                    f"{statistics.median(result.user_s):.2f}",
                    f"{statistics.median(result.num_switches):,.0f}",
                    f"{result.peak_bytes / 2**20:,.0f}",
                ]
            rows.append([str(num_ranks), name, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--sizes", metavar="RANKS,...", default=",".join(map(str, SIZES)), help="64,256,512")
    add("--largest", metavar="RANKS", type=int, default=LARGEST, help="2048; 0: no largest run")
    add("--repeats", type=int, default=3, help="timed runs of each command (3)")
    add("--keep", type=Path, metavar="DIR", help="directory of the runs: write or reuse them")
    options = parser.parse_args(argv)
    print(machine(), end="\n\n")
    results: dict[int, Mapping[str, Measured]] = {}
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def run_of(num_ranks: int) -> Path:
            path = folder / f"{num_ranks}_ranks"
            if not path.exists():
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.cluster_job",
                    str(path),
                    str(num_ranks),
                ]
                subprocess.run(command, check=True)
            return path

        for num_ranks in map(int, options.sizes.split(",")):
            results[num_ranks] = measure(COMMANDS, {"": run_of(num_ranks)}, options.repeats)
        if options.largest:
            path = str(run_of(options.largest))
            once = run([sys.executable, *_RANKS, path], watched=True)
            results[options.largest] = {PLAIN: once}
    print(table(results))


if __name__ == "__main__":
    main()
