"""Totals of torch traces by ppprof and by peers, against a count of the raw events.

::

    python -m benchmarks.truth TRACES...            # a table on the screen
    python -m benchmarks.truth TRACES... --write
    python -m benchmarks.truth TRACES... --hta PYTHON --tracelens PYTHON --write

TRACES are files or folders: any traces, your own too. PYTHON is an interpreter that has the peer
(`benchmarks.truth_peers`). ``--write`` keeps the table in ``truth_results/``, and writes what it says
into the page of measurements.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from benchmarks.measurements import write_part
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import with_step
from ppprof.analysis.ranks.step_breakdown import breakdown
from ppprof.errors import TraceError
from ppprof.trace import read

_PEERS = Path(__file__).with_name("truth_peers.py")
_PEER_SECONDS = 300
_COMMUNICATION = re.compile(
    "nccl|xccl|hcom|oneccl|shmem|deep_ep.*node|dpsk::ep::internode|userbuffers|multimem|cross_device"
    "|(one|two)_?shot|all_?reduce_?(fusion|kernel)",
    re.IGNORECASE,
)
_DEVICE = re.compile("GPU[0-9]+|Ascend Hardware")
"""Processes whose spans have no category and run on a device."""
_DERIVED = ["Backward"]
_TOLERANCE = 1e-4
REFUSED = "refused"
"""Cell of a file that ppprof names and does not read."""

RESULTS = Path(__file__).with_name("truth_results")
_TOOLS = {"hta": "HTA", "tracelens": "TraceLens"}


class Words(NamedTuple):
    """The texts of the results in one language."""

    own: str
    """Sentence about a table without peers."""
    peers: str
    """Sentence about a table with peers."""
    head: Sequence[str]
    """Of the table of tools."""


WORDS = {
    "en": Words(
        "Of {traces} files, ppprof equals the raw count in {objects} (objects), {kernels} (kernels and "
        "their summed duration, to the nanosecond), {computation} (Computation) and {overlap} "
        "(Overlap); it refuses {refused}.",
        "Of {traces} traces with kernels, ppprof equals the raw count in {kernels} (kernels and their "
        "summed duration, to the nanosecond). {communicating} of them have communication.",
        (
            "Tool",
            "Computation: equal",
            "within 1%",
            "further off",
            "fails",
            "Overlap: equal",
            "differs or missing",
            "fails",
        ),
    ),
    "zh": Words(
        "在 {traces} 个文件中，ppprof 与原始计数相等的有：对象 {objects} 个，kernel 个数及总时长（精确到纳秒）"
        "{kernels} 个，计算时间 {computation} 个，重叠 {overlap} 个；拒绝读取 {refused} 个。",
        "在 {traces} 个含有 kernel 的 trace 中，ppprof 的 kernel 个数及总时长（精确到纳秒）与原始计数相等的有 "
        "{kernels} 个。其中 {communicating} 个含有通信。",
        (
            "工具",
            "计算：相等",
            "相差 1% 以内",
            "相差更多",
            "失败",
            "重叠：相等",
            "不同或没有",
            "失败",
        ),
    ),
}


class Totals(NamedTuple):
    """Totals of one trace."""

    num_kernels: int | None
    kernel_ns: int | None
    """Sum of the kernels' durations."""
    computation_ns: float
    overlap: float | None
    """Share of the time of communication that computation hides; None without communication."""
    num_objects: int | None = None
    """Number of objects in the list of events."""


Interval = tuple[int, int]


def raw_totals(path: Path) -> Totals | None:
    """Return the totals of the events in the file; None for a file that is no JSON of a trace.

    Deliberately shares no code with ppprof.
    """
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    try:
        content = json.loads(data, parse_float=Decimal)
    except ValueError:
        return None
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        return None
    processes = {
        str(event.get("pid")): str(event["args"].get("name"))
        for event in events
        if event.get("name") == "process_name"
    }

    def is_kernel(event: Mapping[str, Any]) -> bool:
        if "cat" in event:
            return str(event["cat"]).lower() == "kernel"
        return bool(_DEVICE.fullmatch(processes.get(str(event.get("pid")), "")))

    kernels = [
        (str(event.get("name", "")), *_times_of(event))
        for event in events
        if event.get("ph") == "X" and is_kernel(event) and "dur" in event
    ]
    computation = _union((a, b) for name, a, b in kernels if not _COMMUNICATION.search(name))
    communication = _union((a, b) for name, a, b in kernels if _COMMUNICATION.search(name))
    everything = _union([*computation, *communication])
    hidden_ns = _length(computation) + _length(communication) - _length(everything)
    return Totals(
        len(kernels),
        sum(end - start for _, start, end in kernels),
        _length(computation),
        hidden_ns / _length(communication) if _length(communication) else None,
        len(events),
    )


def _times_of(event: Mapping[str, Any]) -> Interval:
    args = event.get("args") or {}
    if "BeginNs" in args:  # rocprof's, whose times are rounded
        return int(args["BeginNs"]), int(args["EndNs"])
    return _ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])


def _ns(microseconds: Any) -> int:
    return round(Decimal(microseconds) * 1000)


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def _length(intervals: Sequence[Interval]) -> int:
    return sum(end - start for start, end in intervals)


def our_totals(path: Path) -> Totals:
    """Return the totals of ``ppprof ranks`` for a trace whose steps are taken as user's spans."""
    trace = read(path)
    is_step = pl.col("category") == "ProfileStep"
    category = pl.when(is_step).then(pl.lit("PythonUserDefined")).otherwise(pl.col("category"))
    events = trace.events.with_columns(
        category=category.cast(pl.Categorical), step=pl.lit(None, pl.Int64)
    )
    kernels = events.filter(pl.col("category") == "Kernel")
    parts = breakdown(Profile(with_step(dataclasses.replace(trace, events=events)))).parts
    times = dict(parts.group_by("part").agg(pl.col("time_ns").sum()).iter_rows())
    communication_ns = times.get("communication", 0)
    derived = [*_DERIVED, *(["ProfileStep"] if trace.has_derived_steps else [])]
    num_derived = trace.events.filter(pl.col("category").cast(str).is_in(derived)).height
    num_objects = trace.events.height - num_derived + trace.memory.height
    num_objects += sum(trace.ignored.values()) + sum(trace.skipped.values())
    return Totals(
        kernels.height,
        int(kernels["dur_ns"].sum()),
        times.get("computation", 0),
        times.get("hidden", 0) / communication_ns if communication_ns else None,
        num_objects,
    )


def peer_totals(peer: str, python: str, path: Path) -> Totals | str:
    """Return the totals of a peer, or the error with which it ends."""
    command = [python, str(_PEERS), peer, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PEER_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer in {_PEER_SECONDS} s"
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return f"exit code {done.returncode}"
    if "error" in found:
        return str(found["error"])
    return Totals(None, None, found["computation_ns"], found["overlap"])


def rows(paths: Iterable[tuple[str, Path]], peers: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the table's cells, one row per trace with kernels; report failures on stderr."""
    for name_of_trace, path in paths:
        raw = raw_totals(path)
        if raw is None or not raw.num_kernels:
            continue
        others: list[Totals | str] = [our_totals(path)]
        others += [peer_totals(peer, python, path) for peer, python in peers.items()]
        for name, other in zip(("ppprof", *peers), others):
            if isinstance(other, str):
                print(f"{path}: {name}: {other}", file=sys.stderr)
        ours = others[0]
        assert isinstance(ours, Totals)
        is_exact = (ours.num_kernels, ours.kernel_ns) == (raw.num_kernels, raw.kernel_ns)
        yield [
            name_of_trace,
            f"{raw.num_kernels:,}",
            "=" if is_exact else f"{ours.num_kernels:,}, {ours.kernel_ns:,} ns",
            f"{raw.computation_ns / 1e6:.3f}",
            *(_difference(raw.computation_ns, other) for other in others),
            "-" if raw.overlap is None else f"{raw.overlap:.2%}",
            *(_points(raw.overlap, other) for other in others),
        ]


def own_rows(paths: Iterable[tuple[str, Path]]) -> Iterator[list[str]]:
    """Yield the cells of the table without peers, one row per file with a list of events."""
    for name, path in paths:
        raw = raw_totals(path)
        if raw is None:
            continue
        try:
            ours = our_totals(path)
        except TraceError as error:
            print(error, file=sys.stderr)
            yield [name, f"{raw.num_objects:,}", REFUSED, *["-"] * 6]
            continue
        kernels = (raw.num_kernels, raw.kernel_ns)
        yield [
            name,
            f"{raw.num_objects:,}",
            "=" if ours.num_objects == raw.num_objects else f"{ours.num_objects:,}",
            f"{raw.num_kernels:,}",
            "=" if kernels == ours[:2] else f"{ours.num_kernels:,}, {ours.kernel_ns:,} ns",
            f"{raw.computation_ns / 1e6:.3f}" if raw.num_kernels else "-",
            _difference(raw.computation_ns, ours) if raw.num_kernels else "-",
            "-" if raw.overlap is None else f"{raw.overlap:.2%}",
            _points(raw.overlap, ours) if raw.num_kernels else "-",
        ]


def own_section(cells: Sequence[Sequence[str]], words: Words) -> str:
    """Return a sentence about a table of `own_rows`, in the page's language."""
    columns = {"objects": 2, "kernels": 4, "computation": 6, "overlap": 8}
    read_cells = [row for row in cells if row[2] != REFUSED]
    equal = {
        name: sum(row[column] in ("=", "-") for row in read_cells)
        for name, column in columns.items()
    }
    num_refused = len(cells) - len(read_cells)
    return words.own.format(traces=len(cells), refused=num_refused, **equal) + "\n"


def _difference(raw_ns: float, other: Totals | str) -> str:
    if isinstance(other, str):
        return "fails"
    difference = (other.computation_ns - raw_ns) / raw_ns if raw_ns else other.computation_ns
    return "=" if abs(difference) < _TOLERANCE else f"{difference:+.2%}"


def _points(raw: float | None, other: Totals | str) -> str:
    if isinstance(other, str):
        return "fails"
    if raw is None or other.overlap is None:
        return (
            "-" if raw == other.overlap else "none" if raw is not None else f"{other.overlap:.2%}"
        )
    difference = 100 * (other.overlap - raw)
    return "=" if abs(difference) < 100 * _TOLERANCE else f"{difference:+.2f}"


def files_of(arguments: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield name and path of the files, and of those in the folders that may be traces."""
    for argument in arguments:
        if argument.is_dir():
            for path in sorted([*argument.rglob("*.json.gz"), *argument.rglob("*.json")]):
                yield str(path.relative_to(argument)), path
        else:
            yield argument.name, argument


def peers_section(cells: Sequence[Sequence[str]], peers: Sequence[str], words: Words) -> str:
    """Return a sentence about a table of `rows`, and a row for each tool.

    Args:
        cells: from ``rows``.
        peers: titles of the peers, in the order of their columns.
        words: texts in the page's language.
    """
    tools = ["ppprof", *peers]
    overlap = 4 + len(tools)
    communicating = [row for row in cells if row[overlap] != "-"]
    lines = [[*words.head], ["---", *["---:"] * (len(words.head) - 1)]]
    for column, tool in enumerate(tools, 1):
        times = Counter(_kind(row[3 + column]) for row in cells)
        shares = Counter(_kind(row[overlap + column]) for row in communicating)
        counts = [times[kind] for kind in ("=", "near", "far", "fails")]
        counts += [shares["="], shares["near"] + shares["far"], shares["fails"]]
        lines.append([tool, *map(str, counts)])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    kernels = sum(row[2] == "=" for row in cells)
    summary = words.peers.format(
        traces=len(cells), kernels=kernels, communicating=len(communicating)
    )
    return f"{summary}\n\n{table}"


def _kind(cell: str) -> str:
    if cell in ("=", "fails"):
        return cell
    return "near" if cell.endswith("%") and abs(float(cell[:-1])) <= 1 else "far"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--hta", metavar="PYTHON")
    parser.add_argument("--tracelens", metavar="PYTHON")
    parser.add_argument("--write", action="store_true", help="into truth_results/ and docs/")
    args = parser.parse_args()
    peers = {name: path for name in _TOOLS if (path := getattr(args, name))}
    tools = ["ppprof", *(_TOOLS[peer] for peer in peers)]
    files = files_of(args.traces)
    cells = list(rows(files, peers) if peers else own_rows(files))
    head = ["Trace", *([] if peers else ["Objects", "in ppprof"]), "Kernels", "in ppprof"]
    head += ["Computation (ms)", *tools, "Overlap", *tools]
    table = [head, *cells]
    parts = {
        language: peers_section(cells, tools[1:], words) if peers else own_section(cells, words)
        for language, words in WORDS.items()
    }
    if not args.write:
        print(*(" | ".join(row) for row in table), parts["en"], sep="\n")
        return
    name = "peers" if peers else "raw_count"
    with (RESULTS / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table)
    for language, part in parts.items():
        write_part(language, f"benchmarks.truth, {name}", part)


if __name__ == "__main__":
    main()
