"""From a trace file to all nine tables: ppprof against other readers and against reading the bytes.

Every reader runs in its own process, timed from the start of the interpreter to its end, on the same
events (`gpu_job`). Files are in the page cache, and output is discarded. A first run of each warms
up, and its memory is sampled. Then all run in turn, in an order that changes every round. The output
is the median over the rounds. A reader whose first run exceeds `PATIENCE_S` runs only once. Peak
memory is the larger of the process's own (``ru_maxrss``) and the sum of PSS over all its processes,
sampled every 10 ms. Pages of a file that a reader maps count as its memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import gpu_job
from ppprof.trace.fastpath import core

SIZES_MB = (20, 100)
FULL_SIZES_MB = (20, 100, 320, 400, 1000)
PATIENCE_S = 30
_SUMMARY = ("-m", "ppprof", "summary", "--views", "all")


@dataclass(frozen=True)
class Reader:
    """Arguments of the Python interpreter; the file follows them."""

    name: str
    command: tuple[str, ...]
    suffix: str = ".json"
    largest_mb: int = max(FULL_SIZES_MB)

    @classmethod
    def peer(cls, name: str, function: str, **settings: Any) -> Reader:
        """Return a reader that runs one of `peers.READERS`."""
        return cls(name, ("-m", "benchmarks.peers", function), **settings)


PPPROF = "ppprof, .json"
FLOOR = "floor: the bytes read once"
READERS = (
    Reader(PPPROF, _SUMMARY),
    Reader("ppprof, .pb", _SUMMARY, suffix=".pb"),
    Reader.peer(FLOOR, "floor"),
    Reader.peer("Paddle's own tables, .pb", "paddle_summary", suffix=".pb"),
    Reader.peer("VisualDL's parser", "visualdl_parser"),
    Reader.peer("VisualDL, all its pages", "visualdl_pages"),
    Reader.peer("orjson.loads alone", "orjson_loads"),
    Reader.peer("orjson.loads alone, gc off", "orjson_loads_without_gc"),
    Reader.peer("msgspec alone, typed", "msgspec_decode"),
    Reader.peer("json.loads alone", "json_loads", largest_mb=20),
)
_OURS = ("ppprof", "floor")
"""Prefixes of the readers to measure again when peers come from a file."""
_STARTS = {
    "python": "pass",
    "ppprof": "import ppprof.cli, polars",
    "Paddle": "import paddle.profiler",
    "VisualDL": "import visualdl.component.profiler.profiler_data",
}


@dataclass
class Measured:
    """Measurements of one reader with one file."""

    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    error: str = ""
    """Why the reader failed; empty if it succeeded."""
    user_s: list[float] = field(default_factory=list)
    """Seconds of processors in user mode, of all processes, for each of ``seconds``."""
    num_switches: list[int] = field(default_factory=list)
    """How often a process had to leave its processor, likewise."""

    @property
    def median_s(self) -> float | None:
        """Median of all runs; None if the reader failed."""
        return statistics.median(self.seconds) if self.seconds else None


Results = dict[int, dict[str, Measured]]
"""Size in MB -> name of the reader -> its measurements."""


def measure(
    readers: Sequence[Reader], files: Mapping[str, Path], repeats: int
) -> dict[str, Measured]:
    """Measure readers on one trace; return measurements by name.

    Args:
        readers: the readers to measure.
        files: ``".json"`` and ``".pb"`` of the same events.
        repeats: number of timed runs of each.
    """
    commands = {
        reader.name: [sys.executable, *reader.command, str(files[reader.suffix])]
        for reader in readers
    }
    measured: dict[str, Measured] = {}
    for reader in readers:
        _print_progress(reader.name)
        first = run(commands[reader.name], watched=True)
        first.error = first.error.replace(f"{files[reader.suffix].parent}{os.sep}", "")
        measured[reader.name] = first
    add_rounds(
        measured, {name: partial(run, command) for name, command in commands.items()}, repeats
    )
    return measured


def add_rounds(
    measured: dict[str, Measured], runs: Mapping[str, Callable[[], Measured]], repeats: int
) -> None:
    """Run all readers in turn, in an order that changes every round, and add their measurements.

    Args:
        measured: the first run of each reader, which warms up: only its peak memory counts, unless
            the reader failed or took longer than `PATIENCE_S`. Such a reader is not run again.
        runs: runs a reader once, keyed by name.
        repeats: number of rounds.
    """
    fast = [
        name
        for name, first in measured.items()
        if not first.error and first.seconds[0] <= PATIENCE_S
    ]
    for name in fast:
        measured[name] = Measured(peak_bytes=measured[name].peak_bytes)
    for turn in range(repeats):
        _print_progress(f"round {turn + 1} of {repeats}")
        random.Random(turn).shuffle(fast)
        for name in fast:
            result = runs[name]()
            measured[name].seconds += result.seconds
            measured[name].user_s += result.user_s
            measured[name].num_switches += result.num_switches
            measured[name].peak_bytes = max(measured[name].peak_bytes, result.peak_bytes)
            measured[name].error = measured[name].error or result.error


def run(command: Sequence[str], *, watched: bool = False) -> Measured:
    """Run a process to its end; ``watched`` also samples the memory of its descendants.

    Until a new process has started, Linux counts the memory of its parent as its own. So no peak is
    below the memory of this process.
    """
    peak_bytes = 0
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        while watched and not os.waitid(
            os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            peak_bytes = max(peak_bytes, _tree_bytes(process.pid))
            time.sleep(0.01)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            lines = errors.read().decode("utf-8", "replace").strip().splitlines()
            return Measured(error=lines[-1] if lines else f"exit code {process.returncode}")
    return Measured(
        [seconds],
        max(peak_bytes, usage.ru_maxrss * 1024),
        user_s=[usage.ru_utime],
        num_switches=[usage.ru_nivcsw],
    )


def _tree_bytes(root: int) -> int:
    """Return the sum of PSS of a process and its descendants; 0 without descendants."""
    tree = list(_descendants(root))
    if len(tree) == 1:
        return 0  # ru_maxrss has the peak, without sampling
    total = 0
    for pid in tree:
        with contextlib.suppress(OSError, IndexError):  # the process has just ended
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(rollup.partition("\nPss:")[2].split(maxsplit=1)[0]) * 1024
    return total


def _descendants(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                yield from _descendants(int(child))


def size_table(size_mb: int, file: Path, measured: Mapping[str, Measured]) -> str:
    """Return a Markdown table: seconds, ratios to ppprof and to the floor, and peak memory."""
    size = file.stat().st_size
    ours, floor = (measured.get(name, Measured()).median_s for name in (PPPROF, FLOOR))
    rows = [
        ["reader", "seconds", "runs", "/ ppprof", "/ floor", "peak MiB", "peak / file"],
        ["---", *["---:"] * 6],
    ]
    for reader in READERS:
        if reader.name not in measured:
            continue
        result = measured[reader.name]
        if result.median_s is None:
            rows.append([reader.name, result.error.replace("|", "\\|"), *["-"] * 5])
            continue
        rows.append(
            [
                reader.name,
                _median_and_range(result.seconds),
                str(len(result.seconds)),
                _ratio(result.median_s, ours),
                _ratio(result.median_s, floor),
                f"{result.peak_bytes / 2**20:,.0f}",
                f"{result.peak_bytes / size:.2f}",
            ]
        )
    title = f"### {size_mb} MB ({size / 1e6:,.1f} MB of JSON, {num_events(file):,} trace events)"
    return f"{title}\n\n{_markdown(rows)}"


def scaling_table(results: Results, sizes: Mapping[int, int]) -> str:
    """Return a Markdown table: seconds per 100 MB and peak memory / file; constant if linear.

    Args:
        results: the measurements.
        sizes: size in MB -> exact bytes of its JSON.
    """
    head = [f"{size_mb} MB" for size_mb in results]
    rows = [["seconds for 100 MB; peak / file", *head], ["---", *["---:"] * len(head)]]
    for reader in READERS:
        cells = []
        for size_mb, measured in results.items():
            result = measured.get(reader.name, Measured())
            size = sizes[size_mb]
            cells.append(
                "-"
                if result.median_s is None
                else f"{result.median_s / size * 1e8:.2f}; {result.peak_bytes / size:.2f}"
            )
        if any(cell != "-" for cell in cells):
            rows.append([reader.name, *cells])
    return f"### Is it linear?\n\n{_markdown(rows)}"


def num_events(file: Path) -> int:
    """Count the objects in ``traceEvents`` by their ``ph`` keys, with flow arrows and track names.

    The empty object at the end of Paddle's list has no ``ph`` and is not counted.
    """
    key = b'"ph": "'
    total = 0
    tail = b""
    with file.open("rb") as stream:
        while piece := stream.read(1 << 16):  # small pieces: see `run` on memory
            piece = tail + piece
            total += piece.count(key)
            tail = piece[-len(key) + 1 :]
    return total


def start_table(repeats: int) -> str:
    """Return a Markdown table: seconds to import each reader's packages; all times include them."""
    rows = [["before the first byte is read", "seconds"], ["---", "---:"]]
    for name, statement in _STARTS.items():
        runs = [run([sys.executable, "-c", statement]) for _ in range(repeats + 1)][1:]
        seconds = [elapsed for result in runs for elapsed in result.seconds]
        rows.append([name, _median_and_range(seconds) if seconds else runs[0].error])
    return f"### Start-up, in every number below\n\n{_markdown(rows)}"


def machine() -> str:
    """Return a line about the machine and the versions of packages."""
    versions = [f"Python {platform.python_version()}", f"core {core.describe()}"]
    for name in ("polars", "numpy", "msgspec", "orjson", "paddlepaddle", "visualdl"):
        with contextlib.suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = cpuinfo.partition("model name\t: ")[2].partition("\n")[0] or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} x {model}, {memory:.0f} GiB, load average {os.getloadavg()[0]:.1f}; "
        + ", ".join(versions)
    )


def _median_and_range(seconds: Sequence[float]) -> str:
    median = f"{statistics.median(seconds):.2f}"
    if len(seconds) == 1:
        return median
    return f"{median} ({min(seconds):.2f} to {max(seconds):.2f})"


def _ratio(over: float, under: float | None) -> str:
    return f"{over / under:.2f}" if under else "-"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _print_progress(message: str) -> None:
    print(f"  {message}", file=sys.stderr, flush=True)


def _load(path: Path) -> tuple[str, Results]:
    """Load the machine and the results from a file of `_save`."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["events"] != gpu_job.VERSION:
        raise ValueError(f"{path}: measured with other events; measure the peers again")
    results = {
        int(size_mb): {name: Measured(**values) for name, values in measured.items()}
        for size_mb, measured in content["results"].items()
    }
    return content["machine"], results


def _save(path: Path, results: Results) -> None:
    content = {
        "machine": machine(),
        "events": gpu_job.VERSION,
        "results": {
            size_mb: {name: asdict(values) for name, values in measured.items()}
            for size_mb, measured in results.items()
        },
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print, one size after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--full", action="store_true", help=f"also {FULL_SIZES_MB[2:]} MB")
    add("--sizes", metavar="MB,...", help=f"these multiples of {gpu_job.STEP_MB} instead")
    add("--repeats", type=int, default=5, help="timed runs of each reader (5)")
    add("--keep", type=Path, metavar="DIR", help="directory of the traces: write or reuse them")
    add("--only", metavar="WORD", help="measure only readers whose name starts with it")
    add("--save", type=Path, metavar="FILE", help="write the measurements as JSON")
    add("--peers-from", type=Path, metavar="FILE", help="take the peers from a file of --save")
    options = parser.parse_args(argv)
    sizes_mb = FULL_SIZES_MB if options.full else SIZES_MB
    if options.sizes:
        sizes_mb = tuple(int(size) for size in options.sizes.split(","))
    loaded: Results = {}
    prefixes = (options.only,) if options.only else ("",)
    print(machine(), end="\n\n")
    if options.peers_from:
        where, loaded = _load(options.peers_from)
        print(f"Readers that are not measured now were measured on: {where}\n")
        prefixes = (options.only,) if options.only else _OURS
    if prefixes == ("",):
        print(start_table(options.repeats))
    results: Results = {}
    sizes: dict[int, int] = {}
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        for size_mb in sizes_mb:
            _print_progress(f"{size_mb} MB")
            files = {path.suffix: path for path in gpu_job.files(folder, size_mb)}
            sizes[size_mb] = files[".json"].stat().st_size
            readers = [
                reader
                for reader in READERS
                if reader.name.startswith(prefixes) and size_mb <= reader.largest_mb
            ]
            results[size_mb] = {
                **loaded.get(size_mb, {}),
                **measure(readers, files, options.repeats),
            }
            print(size_table(size_mb, files[".json"], results[size_mb]), flush=True)
            if options.save:
                _save(options.save, results)
        print(scaling_table(results, sizes))


if __name__ == "__main__":
    main()
