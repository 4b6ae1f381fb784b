"""From a trace file to all nine tables: ppprof against other readers and against reading the bytes.

Every reader is a process of its own, from the start of the interpreter to its end, on the same
events (`gpu_job`); files are in the page cache and output goes nowhere. A first run of each warms
it up and is watched for memory; then all run in turn, in an order that changes every round, and
what is printed is the median over the rounds. A reader whose first run takes longer than `PATIENCE_S`
has had its only one. Peak memory is that of the process (``ru_maxrss``) or of all its processes at
once (the sum of their PSS, looked at every 10 ms), whichever is higher; pages of a file that a reader
maps count as its memory.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import gpu_job

SIZES_MB = (20, 100)
FULL_SIZES_MB = (20, 100, 320, 400, 1000)
PATIENCE_S = 30
_SUMMARY = ("-m", "ppprof", "summary", "--views", "all")


@dataclass(frozen=True)
class Reader:
    """A command line for the interpreter, to which the file is added."""

    name: str
    command: tuple[str, ...]
    suffix: str = ".json"
    largest_mb: int = max(FULL_SIZES_MB)
    primed: bool = False
    """Whether a run ahead of all others prepares the file."""

    @classmethod
    def peer(cls, name: str, function: str, **settings: Any) -> Reader:
        """One of `peers.READERS`."""
        return cls(name, ("-m", "benchmarks.peers", function), **settings)


PPPROF = "ppprof, .json"
FLOOR = "floor: the bytes read once"
READERS = (
    Reader(PPPROF, (*_SUMMARY, "--no-cache")),
    Reader("ppprof, .json opened again", _SUMMARY, primed=True),
    Reader("ppprof, .pb", (*_SUMMARY, "--no-cache"), suffix=".pb"),
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
"""How the names begin that are measured anew beside the peers of a file."""
_STARTS = {
    "python": "pass",
    "ppprof": "import ppprof.cli, polars",
    "Paddle": "import paddle.profiler",
    "VisualDL": "import visualdl.component.profiler.profiler_data",
}


@dataclass
class Measured:
    """What came of one reader and one file."""

    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    error: str = ""
    """Why it failed; empty where it did not."""

    @property
    def median_s(self) -> float | None:
        """Of all runs; None where it failed."""
        return statistics.median(self.seconds) if self.seconds else None


Results = dict[int, dict[str, Measured]]
"""Size in MB -> name of the reader -> what was measured."""


def measure(
    readers: Sequence[Reader], files: Mapping[str, Path], repeats: int
) -> dict[str, Measured]:
    """Each reader's runs on one trace.

    Args:
        readers: who is measured.
        files: ``".json"`` and ``".pb"`` of the same events.
        repeats: runs of each that are timed.
    """
    commands = {
        reader.name: [sys.executable, *reader.command, str(files[reader.suffix])]
        for reader in readers
    }
    measured: dict[str, Measured] = {}
    for reader in readers:
        _say(reader.name)
        if reader.primed:
            run(commands[reader.name])
        first = run(commands[reader.name], watched=True)
        first.error = first.error.replace(f"{files[reader.suffix].parent}{os.sep}", "")
        measured[reader.name] = first
    patient = [
        name
        for name, first in measured.items()
        if not first.error and first.seconds[0] <= PATIENCE_S
    ]
    for name in patient:
        measured[name].seconds.clear()
    for turn in range(repeats):
        _say(f"round {turn + 1} of {repeats}")
        random.Random(turn).shuffle(patient)
        for name in patient:
            again = run(commands[name])
            measured[name].seconds += again.seconds
            measured[name].peak_bytes = max(measured[name].peak_bytes, again.peak_bytes)
    return measured


def run(command: Sequence[str], *, watched: bool = False) -> Measured:
    """One process from start to end; ``watched`` looks at the memory of all that it starts.

    Linux counts the memory of the process that starts another as the other's until it has started,
    so no peak is below that of this one.
    """
    peak_bytes = 0
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        while watched and not os.waitid(
            os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            peak_bytes = max(peak_bytes, _bytes_of_several(process.pid))
            time.sleep(0.01)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            lines = errors.read().decode("utf-8", "replace").strip().splitlines()
            return Measured(error=lines[-1] if lines else f"exit code {process.returncode}")
    return Measured([seconds], max(peak_bytes, usage.ru_maxrss * 1024))


def _bytes_of_several(root: int) -> int:
    """Sum of the PSS of a process and its descendants; 0 where it is alone."""
    tree = list(_descendants(root))
    if len(tree) == 1:
        return 0  # ru_maxrss will say, and costs it nothing
    total = 0
    for pid in tree:
        with contextlib.suppress(OSError, IndexError):  # it has just ended
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
    """Markdown: seconds, ratios to ppprof and to the floor, and peak memory of each reader."""
    size = file.stat().st_size
    ours, floor = (measured.get(name, Measured()).median_s for name in (PPPROF, FLOOR))
    rows = [
        ["reader", "seconds", "runs", "/ ppprof", "/ floor", "peak MiB", "peak / file"],
        ["---", *["---:"] * 6],
    ]
    for reader in READERS:
        if reader.name not in measured:
            continue
        of = measured[reader.name]
        if of.median_s is None:
            rows.append([reader.name, of.error.replace("|", "\\|"), *["-"] * 5])
            continue
        rows.append(
            [
                reader.name,
                _spread(of.seconds),
                str(len(of.seconds)),
                _ratio(of.median_s, ours),
                _ratio(of.median_s, floor),
                f"{of.peak_bytes / 2**20:,.0f}",
                f"{of.peak_bytes / size:.2f}",
            ]
        )
    title = f"### {size_mb} MB ({size / 1e6:,.1f} MB of JSON, {num_events(file):,} trace events)"
    return f"{title}\n\n{_markdown(rows)}"


def scaling_table(results: Results, sizes: Mapping[int, int]) -> str:
    """Markdown: seconds for 100 MB, and peak memory over the file's size; a line is flat if linear.

    Args:
        results: what was measured.
        sizes: size in MB -> exact bytes of its JSON.
    """
    head = [f"{size_mb} MB" for size_mb in results]
    rows = [["seconds for 100 MB; peak / file", *head], ["---", *["---:"] * len(head)]]
    for reader in READERS:
        cells = []
        for size_mb, measured in results.items():
            of = measured.get(reader.name, Measured())
            size = sizes[size_mb]
            cells.append(
                "-"
                if of.median_s is None
                else f"{of.median_s / size * 1e8:.2f}; {of.peak_bytes / size:.2f}"
            )
        if any(cell != "-" for cell in cells):
            rows.append([reader.name, *cells])
    return f"### Is it linear?\n\n{_markdown(rows)}"


def num_events(file: Path) -> int:
    """Objects in ``traceEvents``: each has one ``ph``, flow arrows and track names included.

    The empty object at the end of Paddle's list is not counted.
    """
    key = b'"ph": "'
    total = 0
    tail = b""
    with file.open("rb") as stream:
        while piece := stream.read(1 << 16):  # small: `run` says why
            piece = tail + piece
            total += piece.count(key)
            tail = piece[-len(key) + 1 :]
    return total


def start_table(repeats: int) -> str:
    """Markdown: the seconds until a process has imported what it needs, a part of all others."""
    rows = [["before the first byte is read", "seconds"], ["---", "---:"]]
    for name, statement in _STARTS.items():
        runs = [run([sys.executable, "-c", statement]) for _ in range(repeats + 1)][1:]
        seconds = [took for one in runs for took in one.seconds]
        rows.append([name, _spread(seconds) if seconds else runs[0].error])
    return f"### Start-up, in every number below\n\n{_markdown(rows)}"


def machine() -> str:
    """Markdown: what it was measured on, one line."""
    versions = [f"Python {platform.python_version()}"]
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


def _spread(seconds: Sequence[float]) -> str:
    middle = f"{statistics.median(seconds):.2f}"
    if len(seconds) == 1:
        return middle
    return f"{middle} ({min(seconds):.2f} to {max(seconds):.2f})"


def _ratio(over: float, under: float | None) -> str:
    return f"{over / under:.2f}" if under else "-"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)


def _load(path: Path) -> tuple[str, Results]:
    """The machine and the results of a file of `_save`."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["events"] != gpu_job.VERSION:
        raise ValueError(f"{path}: measured on other events; measure the peers again")
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
    """Measures and prints, a size after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--full", action="store_true", help=f"also {FULL_SIZES_MB[2:]} MB")
    add("--sizes", metavar="MB,...", help=f"these multiples of {gpu_job.STEP_MB} instead")
    add("--repeats", type=int, default=5, help="timed runs of each reader (5)")
    add("--keep", type=Path, metavar="DIR", help="make the traces there, or use those that are")
    add("--only", metavar="WORD", help="measure readers whose name starts with it")
    add("--save", type=Path, metavar="FILE", help="write what was measured as JSON")
    add("--peers-from", type=Path, metavar="FILE", help="take the others from one of --save")
    options = parser.parse_args(argv)
    sizes_mb = FULL_SIZES_MB if options.full else SIZES_MB
    if options.sizes:
        sizes_mb = tuple(int(size) for size in options.sizes.split(","))
    known: Results = {}
    begins = (options.only,) if options.only else ("",)
    print(machine(), end="\n\n")
    if options.peers_from:
        where, known = _load(options.peers_from)
        print(f"Readers that are not measured now were on: {where}\n")
        begins = (options.only,) if options.only else _OURS
    if begins == ("",):
        print(start_table(options.repeats))
    results: Results = {}
    sizes: dict[int, int] = {}
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        for size_mb in sizes_mb:
            _say(f"{size_mb} MB")
            files = {path.suffix: path for path in gpu_job.files(folder, size_mb)}
            sizes[size_mb] = files[".json"].stat().st_size
            readers = [
                reader
                for reader in READERS
                if reader.name.startswith(begins) and size_mb <= reader.largest_mb
            ]
            results[size_mb] = {
                **known.get(size_mb, {}),
                **measure(readers, files, options.repeats),
            }
            print(size_table(size_mb, files[".json"], results[size_mb]), flush=True)
            if options.save:
                _save(options.save, results)
        print(scaling_table(results, sizes))


if __name__ == "__main__":
    main()
