"""``ppprof memory``: who holds the memory, when it ran out or at the peak of a window."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from ppprof.cli.options import Checks, add_layout, add_output, add_paths, whole_number
from ppprof.cli.output import show
from ppprof.units import format_bytes, format_more, format_ranges, format_ratio

if TYPE_CHECKING:
    from ppprof.run.memory import MemoryUse, WindowPeak
    from ppprof.rundir.out_of_memory import OutOfMemory

EXAMPLES = {
    "ppprof memory profiler_log": "after a MemoryError, or for the last window",
    "ppprof memory profiler_log --rank 3 --row-limit 40": "the window of rank 3, 40 rows",
}

_LEAST_RATIO = 0.01
"""Share of the memory in tensors. A container with less, and no graphs, is in JSON only."""
_MOST_LINES = 5
SCHEMA_VERSION = 1
"""Version of the JSON document. It increases when older readers would misread the document."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Prints who held the memory when an allocation failed: parameters, gradients, optimizer "
        "states, local variables; and who holds it at the peak of a window, by phase, module, "
        "operator and line; and what would give some back."
    )
    add = parser.add_argument
    add_paths(parser, "run directory, or those of a run's nodes; or a trace")
    add("--rank", metavar="R", help="which rank; default: the first whose memory ran out")
    add("--window", metavar="W", help="which window; default: the last one")
    add("--row-limit", metavar="N", help="rows of each table; default: 10")
    add("--format", choices=("table", "json"), default="table", help="text, or the same as data")
    add_layout(parser, tables=False)
    add_output(parser)


def check(args: argparse.Namespace) -> None:
    """Check the options, or raise UsageError."""
    checks = Checks(args)
    checks.parse("rank", whole_number)
    checks.parse("window", whole_number)
    checks.parse("row_limit", partial(whole_number, least=1), 10)
    checks.layout()
    checks.output(args.paths)
    checks.done()


def run(args: argparse.Namespace) -> int:
    """Print who holds the memory; return 0."""
    from ppprof.cli.runs import open_run
    from ppprof.run.hang import log_unfinished
    from ppprof.run.memory import memory_of

    log_unfinished(args.paths, "memory")
    memory = memory_of(open_run(*args.paths), args.rank, args.window)
    text = "".join(_lines(memory, args.row_limit)).lstrip("\n")
    show(args, [_document(memory) if args.format == "json" else text])
    return 0


def _lines(memory: MemoryUse, limit: int) -> Iterator[str]:
    import polars as pl

    if memory.failed is not None:
        yield from _failure(memory.failures[memory.failed], limit)
    if len(memory.failures) > 1:
        yield f"\nThe memory of {format_ranges('rank', memory.failures)} ran out.\n"
    if memory.window is not None:
        yield from _window(memory.window, limit)
    elif memory.failed is not None:
        yield "\nActivations are not known without a window: start with -o Profiler.scheduler=[1,3].\n"
    if memory.remedies:
        yield "\nWhat would give memory back, each alone, at most:\n"
    for remedy in memory.remedies:
        yield f"  {format_bytes(remedy.bytes):>9}  {remedy.name}: {remedy.why}\n"
    of_window = [memory.window.rank] if memory.window is not None else memory.peaks["rank"][:1]
    rank = next(iter(of_window), None) if memory.failed is None else memory.failed
    rows = memory.peaks.filter(pl.col("rank") == rank).rows(named=True)
    if rows:
        is_of_device = rows[0]["total_bytes"] or rows[0]["reserved_bytes"]  # a size may be unknown
        whose = "" if is_of_device else ", resident memory of its process"
        yield f"\nPeak of rank {rank} so far{whose}, after its last steps:\n"
        yield "".join(
            f"  {format_bytes(row['peak_bytes']):>9}  step {row['step']}\n" for row in rows
        )


def _failure(failure: OutOfMemory, limit: int) -> Iterator[str]:
    where = f"in {failure.module}, " if failure.module else ""
    yield (
        f"The memory of rank {failure.rank} ({failure.device}) ran out in step {failure.step}, "
        f"{where}at {failure.place or '?'}:\n  {failure.error}\n"
    )
    allocated = failure.allocated_bytes
    facts = [
        (failure.requested_bytes, "asked for"),
        (allocated, "in tensors"),
        (failure.reserved_bytes, "taken from the device"),
        (failure.total_bytes, "on the device"),
    ]
    yield "  " + "; ".join(f"{format_bytes(value)} {text}" for value, text in facts if value) + "\n"
    yield "\nWho held it then:\n"
    known = sum(failure.bytes_by_kind.values())
    rest = {} if allocated is None else {"activations and others": max(0, allocated - known)}
    for kind, num in {**failure.bytes_by_kind, **rest}.items():
        ratio = f"{format_ratio(num / allocated):>7}" if allocated else ""
        yield f"  {format_bytes(num):>9} {ratio}  {kind}\n"
    containers = [
        each
        for each in failure.containers
        if each.has_graphs or each.bytes >= _LEAST_RATIO * (allocated or 0)
    ]
    if containers:
        yield "\nContainers with tensors that neither layers nor optimizers have:\n"
    for each in containers[:limit]:
        ratio = f"{format_ratio(each.bytes / allocated):>7}" if allocated else ""
        graphs = "; their graphs may keep more" if each.has_graphs else ""
        yield f"  {format_bytes(each.bytes):>9} {ratio}  in {each.name}{graphs}\n"
    yield "\nLargest tensors:\n"
    for tensor in failure.largest[:limit]:
        shape = "x".join(map(str, tensor.shape))
        yield f"  {format_bytes(tensor.bytes):>9}  {tensor.kind} {tensor.name}, {tensor.dtype} {shape}\n"


def _window(window: WindowPeak, limit: int) -> Iterator[str]:
    held = window.held
    step = "outside steps" if held.step is None else f"step {held.step}"
    yield (
        f"\nPeak of {held.place} in window {window.window} of rank {window.rank}, {step}: "
        f"{format_bytes(held.allocated_bytes)}\n"
        f"  {format_bytes(max(0, held.before_bytes)):>9}  from before the window\n"
    )
    lines = held.lines
    if len(lines):
        yield "\nBy line:\n"
        for row in lines.head(_MOST_LINES).iter_rows(named=True):
            yield f"  {format_bytes(row['bytes']):>9}  {row['num']:,} x {row['line']}\n"
        elsewhere_bytes = int(held.table["bytes"].sum()) - int(
            lines["bytes"].head(_MOST_LINES).sum()
        )
        if elsewhere_bytes:
            yield f"  {format_bytes(elsewhere_bytes):>9}  elsewhere\n"
        yield "\nBy module and operator:\n"
    for row in held.table.head(limit).iter_rows(named=True):
        about = [row["phase"], row["module"], row["operator"], row["line"]]
        yield (
            f"  {format_bytes(row['bytes']):>9}  {row['num']:,} x "
            f"{', '.join(text for text in about if text) or 'outside modules and operators'}\n"
        )
    rest = held.table["bytes"].slice(limit)
    if len(rest):
        yield f"  {format_bytes(int(rest.sum())):>9}  in {format_more(len(rest), 'rows')} (--row-limit)\n"


def _document(memory: MemoryUse) -> str:
    """Return everything as JSON, in bytes."""
    window = memory.window
    document = {
        "schema_version": SCHEMA_VERSION,
        "failures": [asdict(memory.failures[rank]) for rank in sorted(memory.failures)],
        "peaks": memory.peaks.to_dicts(),
        "window": window
        and {
            "rank": window.rank,
            "window": window.window,
            **window.held._asdict(),
            "lines": window.held.lines.to_dicts(),
            "table": window.held.table.to_dicts(),
        },
        "remedies": [each._asdict() for each in memory.remedies],
    }
    return json.dumps(document, indent=1) + "\n"
