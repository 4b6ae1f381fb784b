"""From a trace of torch's profiler to all nine tables: ppprof against its peers and one read of the bytes.

The trace repeats the recorded events of `tests/fixtures/kineto/gpu_ddp.json`, each time later and
with other correlation ids, and prints them with the format strings of libkineto (output_json.cpp).
`trace_reading` explains how the readers are measured; here, ppprof runs with both cores, and user
CPU seconds stand beside the wall clock. HTA needs an environment of its own: ``--hta PYTHON``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.trace_reading import machine, run

SIZE_MB = 379
_FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "kineto" / "gpu_ddp.json"
_SUMMARY = ("-m", "ppprof", "summary", "--views", "all", "--no-cache")


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
            texts = _printed(events, turn, turn * (span_us + 1000))
            file.write(("," if turn else "") + ",".join(texts))
            num_events += len(events)
            turn += 1
        file.write('\n  ],\n  "traceName": "repeated.json"\n}')
    return num_events


def _printed(events: Sequence[Mapping[str, Any]], turn: int, later_us: float) -> Iterator[str]:
    """Yield each event as libkineto prints it, ``later_us`` later, with correlation ids of its own."""
    for event in events:
        ts = f"{event.get('ts', 0) + later_us:.3f}"
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
    found = {
        "ppprof": (ours, {}),
        "ppprof, portable core": (ours, {"PPPROF_CORE": "python"}),
        "floor: the bytes read once": peer("floor"),
        "orjson.loads alone": peer("orjson_loads"),
        "orjson.loads alone, gc off": peer("orjson_loads_without_gc"),
    }
    if hta:
        found["HTA, kernel and communication tables"] = peer("hta_breakdown", hta)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all readers in turn and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=SIZE_MB, help=f"size of the trace ({SIZE_MB})")
    parser.add_argument("--file", type=Path, help="read this trace instead")
    parser.add_argument("--hta", metavar="PYTHON", help="interpreter that has HTA")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each reader (3)")
    options = parser.parse_args(argv)
    print(machine(), end="\n\n")
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder, "kineto.json")
        if not options.file:
            num_events = write_trace(path, options.mb)
            print(f"{path.stat().st_size / 1e6:.0f} MB, {num_events:,} events\n")
        size = path.stat().st_size
        readers = commands(path, options.hta)
        seconds: dict[str, list[float]] = {name: [] for name in readers}
        user: dict[str, list[float]] = {name: [] for name in readers}
        peaks = dict.fromkeys(readers, 0)
        errors: dict[str, str] = {}
        for _ in range(options.repeats):
            for name, (command, variables) in readers.items():
                os.environ.update(variables)
                before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
                result = run(command)
                after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
                for variable in variables:
                    del os.environ[variable]
                if result.error:
                    errors[name] = result.error
                    continue
                seconds[name] += result.seconds
                user[name].append(after - before)
                peaks[name] = max(peaks[name], result.peak_bytes)
    print("| reader | seconds | user CPU s | / ppprof (CPU) | peak MiB | peak / file |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    ours = statistics.median(user["ppprof"])
    for name in readers:
        if not seconds[name]:
            print(f"| {name} | {errors[name]} | - | - | - | - |")
            continue
        cpu = statistics.median(user[name])
        print(
            f"| {name} | {statistics.median(seconds[name]):.2f} | {cpu:.2f} | {cpu / ours:.2f} "
            f"| {peaks[name] / 2**20:,.0f} | {peaks[name] / size:.2f} |"
        )


if __name__ == "__main__":
    main()
