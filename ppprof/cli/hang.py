"""``ppprof hang``: which rank a job waits for, and in which communication operation."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ppprof.cli.options import Checks, add_layout, add_output, add_paths
from ppprof.cli.output import show
from ppprof.cli.terminal import log
from ppprof.messages import Counted
from ppprof.units import format_ranges

if TYPE_CHECKING:
    from ppprof.run.hang import Hang, Waiting
    from ppprof.rundir.flight import Group, Operation

EXAMPLES = {
    "ppprof hang profiler_log": "while the job hangs, or after it was killed",
    "ppprof hang profiler_log --stacks": "and the Python stacks of the ranks that others wait for",
    "ppprof hang profiler_log --format json": "the same as data",
}
SCHEMA_VERSION = 1
"""Version of the JSON document. It increases when older readers would misread the document."""

_MOST_WAITING = 16
_STACK_SECONDS = 12.0
"""How long ranks may take to answer: they look for a request every 5 seconds."""
_FAR_STACK_SECONDS = 75.0
"""Likewise, of ranks on other hosts: NFS may show them a new file a minute late."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Compares the last communication operations that each rank of RUN has noted, and names the "
        "ranks that the others wait for: the first operation of a group that not all have called, or "
        "that differs; sends without their receives; ranks that wait for one another. It reads files "
        "only, so it works while the job hangs, and after its processes are gone. --stacks also "
        "writes a request into RUN."
    )
    add_paths(parser, "run directory (the newest run in it); of each node, if nodes have own disks")
    add = parser.add_argument
    add(
        "--stacks",
        action="store_true",
        help="ask the ranks that the others wait for, at most 8, for the stacks of their threads; they "
        "answer once no step of theirs has ended for 5 seconds",
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
    from ppprof.run.hang import MOST_STACKS, ask_for_stacks, find_hang, log_unfinished

    log_unfinished(args.paths, "hang")
    hang = find_hang(args.paths)
    if args.stacks:
        asked = [rank for rank in hang.suspects[:MOST_STACKS] if hang.may_answer(rank)]
        is_far = any(hang.states[rank].is_unseen for rank in asked if rank in hang.states)
        seconds = _FAR_STACK_SECONDS if is_far else _STACK_SECONDS
        silent = set(asked) - set(ask_for_stacks(args.paths, asked, seconds) if asked else ())
        if not asked:
            log.warning(
                "%s: no process runs that could answer", format_ranges("rank", hang.suspects)
            )
        if silent:
            log.warning(
                "%s: no answer within %.0f s: the process is gone or stopped, C++ code holds the "
                "interpreter's lock (py-spy dump, or Profiler.hang_after), it has no ring here, %s",
                format_ranges("rank", silent),
                seconds,
                "steps end, or the file system shows changes of other hosts later"
                if is_far
                else "or steps end",
            )
        hang = find_hang(args.paths)
    for problem in [hang.problems[rank] for rank in sorted(hang.problems)][:_MOST_WAITING]:
        log.warning("%s", problem)
    for rank, num in sorted(hang.damaged.items())[:_MOST_WAITING]:
        log.warning(
            "rank %d: %d of 2,048 operations are unreadable: the ring is damaged", rank, num
        )
    show(args, [_document(hang)] if args.format == "json" else _lines(hang))
    return 0


def _lines(hang: Hang) -> Iterator[str]:
    """Yield the verdict, who waits, and where the ranks are that do not come."""
    from ppprof.run.hang import QUIET_NS, in_context
    from ppprof.rundir.flight import Stacks

    idle = ""
    if hang.idle_s is not None:
        length = f"{hang.idle_s:.0f} s" if hang.idle_s < 7200 else f"{hang.idle_s / 3600:.1f} h"
        idle = f"; no rank has communicated for {length}"
    yield f"{hang.run}: {format_ranges('rank', hang.ranks)}{idle}\n"
    may_run = any(map(hang.may_answer, hang.ranks)) and not hang.has_ended
    if hang.idle_s is not None and hang.idle_s * 1e9 < QUIET_NS and may_run:
        yield "The job may well be running: ask again in a minute, and compare.\n"
    if hang.is_early:
        yield "It was ended soon after the first rank began to wait: it may not have hung.\n"
    yield f"\nVerdict: {hang.verdict()}.\n"
    yield _doubt(hang)
    if hang.waiting:
        yield "\nWho waits:\n"
    for waiting in hang.waiting[:_MOST_WAITING]:
        call = waiting.operation
        since = max(0, hang.now_ns - call.pending_since_ns) / 1e9
        size = f", {call.size:,} bytes {call.dtype}" if call.size else ""
        yield (
            f"  rank {waiting.rank} (step {hang.steps[waiting.rank]}) for {since:.0f} s in {call.name} "
            f"number {call.sequence} of {waiting.group.axis or 'a'} group "
            f"{format_ranges('rank', waiting.group.ranks)}{size}, at {call.place}{in_context(call)}; "
            f"waits for: {_waits_for(waiting, hang)}\n"
        )
    if len(hang.waiting) > _MOST_WAITING:
        yield f"  and {Counted(len(hang.waiting) - _MOST_WAITING):more rank|more ranks}\n"
    for rank, stacks in hang.stacks.items():
        if stacks:
            shown = Stacks(stacks).shown
            yield f"\nRank {rank}, stacks of its threads, the last ones that it wrote:\n{shown}\n"
    here = [rank for rank in hang.causes if rank in hang.states and hang.states[rank].pid]
    for rank in here:
        yield f"\nWhere rank {rank} is now: py-spy dump --pid {hang.states[rank].pid}\n"


def _doubt(hang: Hang) -> str:
    """Return why the verdict is not sure, as a line; "" if it is, or says so itself."""
    reasons = {
        "Operations below went to devices, and no host waits in them": hang.on_devices
        and hang.waiting,
        "Some notes of ranks are unreadable (see above)": hang.problems or hang.damaged,
        "Later operations have overwritten some notes": hang.is_overwritten,
        "Which process ended first is not known": hang.gone_waiting,
    }
    why = next((reason for reason, holds in reasons.items() if holds), "")
    return f"{why}, so this is likely, not sure.\n" if why else ""


def _waits_for(waiting: Waiting, hang: Hang) -> str:
    known = [format_ranges("rank", waiting.missing)] if waiting.missing else []
    if waiting.overwritten:
        known.append(f"perhaps {format_ranges('rank', waiting.overwritten)}")
    if not known and any(each.holds(waiting) for each in hang.mismatches):
        return "no rank: all have called, but not the same"
    return ", ".join(known) or "no rank: all have called"


def _document(hang: Hang) -> str:
    """Return everything as JSON; ``group`` is a number in ``groups``: 10,000 ranks may have one of 10,000."""
    from ppprof.rundir.flight import Stacks

    def call(operation: Operation) -> dict[str, object]:
        return {**operation._asdict(), "is_pending": operation.is_pending}

    groups: dict[Group, int] = {}

    def group(value: Group) -> int:
        return groups.setdefault(value, len(groups))

    document: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "run": str(hang.run),
        "verdict": hang.verdict(),
        "idle_s": hang.idle_s,
        "on_devices": hang.on_devices,
        "is_sure": hang.is_sure,
        "unreadable": {str(rank): text for rank, text in sorted(hang.problems.items())},
        "ranks": [
            {
                "rank": rank,
                "step": hang.steps[rank],
                "state": hang.states[rank].text if rank in hang.states else None,
                "pid": hang.states[rank].pid if rank in hang.states else None,
                "last": call(hang.last[rank]) if rank in hang.last else None,
                "seen_at": Stacks(hang.stacks.get(rank, "")).place or None,
            }
            for rank in hang.ranks
        ],
        "stacks": {str(rank): stacks for rank, stacks in hang.stacks.items() if stacks},
        "causes": hang.causes,
        "absent": hang.absent,
        "circle": hang.circle,
        "waiting": [
            {
                "rank": each.rank,
                "group": group(each.group),
                "missing": each.missing,
                "overwritten": each.overwritten,
                "operation": call(each.operation),
            }
            for each in hang.waiting
        ],
        "departures": [
            {
                "rank": each.rank,
                "step": each.called.step,
                "called": call(each.called),
                "usual_step": each.usual_step,
                "expected": call(each.expected) if each.expected else None,
                "num_now": each.num_now,
                "num_usual": each.num_usual,
            }
            for each in hang.departures
        ],
        "uneven": hang.uneven
        and {
            "group": group(hang.uneven.group),
            "step": hang.uneven.step,
            "counts": {str(rank): num for rank, num in hang.uneven.counts.items()},
            "call": hang.uneven.call,
        },
        "mismatches": [
            {
                "group": group(each.group),
                "sequence": each.sequence,
                "differs": each.differs,
                "calls": {str(rank): call(each.calls[rank]) for rank in sorted(each.calls)},
            }
            for each in hang.mismatches
        ],
    }
    document["groups"] = [{"ranks": [*each.ranks], "axis": each.axis} for each in groups]
    return json.dumps(document, indent=1) + "\n"
