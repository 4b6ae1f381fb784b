"""From a trace of torch's profiler to all nine tables: ppprof against its peers and one read of the bytes.

The trace repeats the recorded events of `tests/fixtures/kineto/gpu_ddp.json`, each time later and
with other correlation ids, and prints them with the format strings of libkineto (output_json.cpp).
`trace_reading` explains how the readers are measured; here, ppprof runs with both cores, and user
CPU seconds stand beside the wall clock. HTA needs an environment of its own, as `make test-all`
installs it: ``--hta .venv-peers/bin/python``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.trace_reading import Measured, add_rounds, machine, run
from ppprof.trace.fastpath import core

SIZE_MB = 40
FULL_SIZE_MB = 379
PPPROF = "ppprof"
_FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "kineto" / "gpu_ddp.json"
_SUMMARY = ("-m", "ppprof", "summary", "--views", "all")


def write_trace(path: Path, size_mb: int) -> int:
    """Write a trace of at least ``size_mb`` MB and return its number of events."""
    head = json.loads(_FIXTURE.read_bytes())
    events = [event for event in head.pop("traceEvents") if event.get("cat") != "Trace"]
    starts = [event["ts"] for event in events if "dur" in event]
    span_us = max(event["ts"] + event["dur"] for event in events if "dur" in event) - min(starts)
    num_events = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [')
        turn = 0
        while file.tell() < size_mb * 10**6:
            texts = list(_printed(events, turn, turn * (span_us + 1000)))
            file.write(("," if turn else "") + ",".join(texts))
            num_events += len(texts)
            turn += 1
        file.write('\n  ],\n  "traceName": "repeated.json"\n}')
    return num_events


def _printed(events: Sequence[Mapping[str, Any]], turn: int, later_us: float) -> Iterator[str]:
    """Yield each event as libkineto prints it, ``later_us`` later, with correlation ids of its own."""
    for event in events:
        ts = f"{event.get('ts', 0) + later_us:.3f}"
        if event["ph"] == "M" and turn:
            continue  # a file names each thread once
        if event["ph"] != "X":
            others = {key: value for key, value in event.items() if key not in ("ph", "ts")}
            yield f'\n  {{\n    "ph": "{event["ph"]}", "ts": {ts}, {json.dumps(others)[1:-1]}\n  }}'
            continue
        args = dict(event.get("args", {}))
        if "correlation" in args:
            args["correlation"] += turn * 10**6
        inner = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in args.items())
        own = ", ".join(
            f'"{key}": {json.dumps(event[key])}' for key in ("cat", "name", "pid", "tid")
        )
        yield (
            f'\n  {{\n    "ph": "X", {own},\n    "ts": {ts}, "dur": {event["dur"]:.3f}'
            + (f',\n    "args": {{\n      {inner}\n    }}' if args else "")
            + "\n  }"
        )


def commands(path: Path, hta: str | None) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the command of each reader, and variables of its environment."""

    def peer(name: str, python: str = sys.executable) -> tuple[list[str], dict[str, str]]:
        return [python, "-m", "benchmarks.peers", name, str(path)], {}

    ours = [sys.executable, *_SUMMARY, str(path)]
    readers = {
        PPPROF: (ours, {}),
        "ppprof, portable core": (ours, {core.VARIABLE: core.PYTHON}),
        "floor: the bytes read once": peer("floor"),
        "orjson.loads alone": peer("orjson_loads"),
        "orjson.loads alone, gc off": peer("orjson_loads_without_gc"),
    }
    if hta:
        readers["HTA, kernel and communication tables"] = peer("hta_breakdown", hta)
    return readers


def measure(path: Path, hta: str | None, repeats: int) -> dict[str, Measured]:
    """Run all readers in turn, in another order every round; return their measurements by name.

    A first run warms up. A reader that fails, or takes longer than 30 s, runs only once.
    """
    readers = commands(path, hta)
    measured: dict[str, Measured] = {}
    for name, (command, variables) in readers.items():
        print(f"  {name}", file=sys.stderr, flush=True)
        measured[name] = _run(command, variables)
    runs = {name: partial(_run, *reader) for name, reader in readers.items()}
    add_rounds(measured, runs, repeats)
    return measured


def _run(command: Sequence[str], variables: Mapping[str, str]) -> Measured:
    os.environ.update(variables)
    try:
        return run(command)
    finally:
        for variable in variables:
            del os.environ[variable]


def table(measured: Mapping[str, Measured], size: int) -> str:
    """Return a Markdown table; the ratios are of medians, ``size`` is the bytes of the file."""
    lines = [
        "| reader | seconds | / ppprof | user CPU s | / ppprof | peak MiB | peak / file |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    ours = measured[PPPROF]
    for name, result in measured.items():
        if result.error:
            lines.append(f"| {name} | {result.error} | - | - | - | - | - |")
            continue
        cells = []
        for own, base in ((result.seconds, ours.seconds), (result.user_s, ours.user_s)):
            seconds = statistics.median(own)
            ratio = f"{seconds / statistics.median(base):.2f}" if base else "-"
            cells += [f"{seconds:.2f}", ratio]
        cells += [f"{result.peak_bytes / 2**20:,.0f}", f"{result.peak_bytes / size:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all readers in turn and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help=f"a trace of {FULL_SIZE_MB} MB")
    parser.add_argument("--mb", type=int, help=f"size of the trace ({SIZE_MB})")
    parser.add_argument("--file", type=Path, help="read this trace instead")
    parser.add_argument(
        "--hta",
        metavar="PYTHON",
        default=os.environ.get("PPPROF_PEERS_PYTHON"),
        help="interpreter that has HTA ($PPPROF_PEERS_PYTHON)",
    )
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each reader (3)")
    options = parser.parse_args(argv)
    print(machine(), end="\n\n")
    if not options.hta:
        print("HTA is not measured: no --hta\n")
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder, "kineto.json")
        if not options.file:
            size_mb = options.mb or (FULL_SIZE_MB if options.full else SIZE_MB)
            num_events = write_trace(path, size_mb)
            print(f"{path.stat().st_size / 1e6:.0f} MB, {num_events:,} events\n", flush=True)
        print(table(measure(path, options.hta, options.repeats), path.stat().st_size))


if __name__ == "__main__":
    main()
