"""``ppprof hang``: which rank a job waits for, and in which communication operation."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ppprof.cli.options import Checks, add_layout, add_output
from ppprof.cli.output import show
from ppprof.messages import Counted
from ppprof.units import format_ranges

if TYPE_CHECKING:
    from ppprof.run.hang import Hang
    from ppprof.rundir.flight import Operation

EXAMPLES = {
    "ppprof hang profiler_log": "while the job hangs, or after it was killed",
    "ppprof hang profiler_log --format json": "the same as data",
}
_MOST_WAITING = 16
_QUIET_S = 10.0
"""A shorter time without any operation is no hang: ranks compute in between."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Compares the last communication operations that each rank of RUN has noted, and names the "
        "ranks that the others wait for: the first operation of a group that not all have called, or "
        "that differs; sends without their receives; ranks that wait for one another. It reads files "
        "only, so it works while the job hangs, and after its processes are gone."
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="RUN",
        help="run directory (profiler_log; the newest run in it); of each node, if nodes have own disks",
    )
    add("--format", choices=("table", "json"), default="table", help="text, or the same as data")
    add_layout(parser, tables=False)
    add_output(parser)


def check(args: argparse.Namespace) -> None:
    """Check the options, or raise UsageError."""
    checks = Checks(args)
    checks.layout()
    checks.output(args.paths)
    checks.done()


def run(args: argparse.Namespace) -> int:
    """Print what the ranks wait for; return 0."""
    from ppprof.run.hang import find_hang

    hang = find_hang(args.paths)
    show(args, [_document(hang)] if args.format == "json" else _lines(hang))
    return 0


def _lines(hang: Hang) -> Iterator[str]:
    """Yield the verdict, who waits, and where the ranks are that do not come."""
    idle = f"{hang.idle_s:.0f} s" if hang.idle_s < 7200 else f"{hang.idle_s / 3600:.1f} h"
    yield f"{hang.run}: {format_ranges('rank', hang.ranks)}; no rank has communicated for {idle}\n"
    if hang.idle_s < _QUIET_S:
        yield "The job may well be running: ask again in a minute, and compare.\n"
    yield f"\nVerdict: {hang.verdict()}.\n"
    if hang.on_devices and hang.waiting:
        yield "No host waits in a call: the operations below went to devices, so this is likely, not sure.\n"
    if hang.waiting:
        yield "\nWho waits:\n"
    for waiting in hang.waiting[:_MOST_WAITING]:
        call = waiting.operation
        since = (hang.now_ns - call.pending_since_ns) / 1e9
        missing = (
            format_ranges("rank", waiting.missing)
            if waiting.missing
            else "no rank: all have called"
        )
        size = f", {call.size:,} bytes {call.dtype}" if call.size else ""
        yield (
            f"  rank {waiting.rank} (step {hang.steps[waiting.rank]}) for {since:.0f} s in {call.name} "
            f"number {call.sequence} of {waiting.group.axis or 'a'} group "
            f"{format_ranges('rank', waiting.group.ranks)}{size}, at {call.place}; waits for: {missing}\n"
        )
    if len(hang.waiting) > _MOST_WAITING:
        yield f"  and {Counted(len(hang.waiting) - _MOST_WAITING):more rank|more ranks}\n"
    for rank in hang.causes:
        stacks = hang.stacks.get(rank)
        if stacks:
            yield f"\nRank {rank}, stacks of its threads (Profiler.hang_after):\n{stacks}\n"
    here = [rank for rank in hang.causes if rank in hang.states and hang.states[rank].pid]
    for rank in here:
        yield f"\nWhere rank {rank} is now: py-spy dump --pid {hang.states[rank].pid}\n"


def _document(hang: Hang) -> str:
    """Return everything as JSON."""

    def call(operation: Operation) -> dict[str, object]:
        return {**operation._asdict(), "is_pending": operation.is_pending}

    document = {
        "run": str(hang.run),
        "verdict": hang.verdict(),
        "idle_s": hang.idle_s,
        "on_devices": hang.on_devices,
        "ranks": [
            {
                "rank": rank,
                "step": hang.steps[rank],
                "state": hang.states[rank].text if rank in hang.states else None,
                "last": call(hang.last[rank]) if rank in hang.last else None,
            }
            for rank in hang.ranks
        ],
        "causes": hang.causes,
        "absent": hang.absent,
        "circle": hang.circle,
        "waiting": [
            {
                "rank": each.rank,
                "group": each.group._asdict(),
                "missing": each.missing,
                "operation": call(each.operation),
            }
            for each in hang.waiting
        ],
        "mismatches": [
            {
                "group": each.group._asdict(),
                "sequence": each.sequence,
                "differs": each.differs,
                "calls": {str(rank): call(each.calls[rank]) for rank in sorted(each.calls)},
            }
            for each in hang.mismatches
        ],
    }
    return json.dumps(document, indent=1) + "\n"
