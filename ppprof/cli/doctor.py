"""``ppprof doctor``: what this machine can record, and what is missing."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppprof.cli import COMMANDS
from ppprof.cli.options import Checks, whole_number
from ppprof.cli.terminal import log
from ppprof.config import load_config
from ppprof.errors import UsageError
from ppprof.paths import is_remote

if TYPE_CHECKING:
    from ppprof.capture.doctor import Check

_WIDTH = 100
_MOST_RANKS = 256
_MARKS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "doctor",
        help=COMMANDS["doctor"],
        description=(
            "Checks Paddle, the device and its profiler, the run directory's disk and memory, in "
            "under 30 seconds. Child processes do what may crash or hang. Nothing stays on disk."
        ),
        epilog=(
            "Exit codes: 0 no problem, perhaps warnings; 1 a problem, which would lose a recording "
            "or end a training; 2 bad usage or config."
        ),
    )
    add = parser.add_argument
    add(
        "profiler_log",
        metavar="PROFILER_LOG",
        nargs="?",
        help="directory that runs will be written to; default: profiler_log",
    )
    add("-c", "--config", metavar="CFG", help="take Profiler.profiler_log from this YAML file")
    add("--nproc", metavar="N", help="also launch N ranks that reduce 1 MiB")
    add(
        "--measure",
        action="store_true",
        help="also measure FLOP/s and GB/s of the device, in 15 seconds more on an idle one",
    )
    add("--format", choices=("text", "json"), default="text", help="default: text")
    parser.set_defaults(run_command=doctor)


def doctor(args: argparse.Namespace) -> int:
    """Return 0 if there is no problem, else 1; the checks are on stdout."""
    checks = Checks(args)
    nproc = checks.parsed("nproc", partial(whole_number, least=1), 1)
    if nproc > _MOST_RANKS:
        checks.problems.append(f"--nproc: {nproc}: expected at most {_MOST_RANKS}")
    if args.config is not None and args.profiler_log is not None:
        checks.problems.append("-c: has no effect beside PROFILER_LOG; give one of them")
    checks.done()
    log_dir = args.profiler_log or "profiler_log"
    if args.config is not None:
        log_dir = load_config(args.config).Profiler.profiler_log
    if is_remote(log_dir):
        raise UsageError(f"{log_dir}: a training writes to a local directory; copy the run later")
    from ppprof.capture.doctor import PROBLEM, examine, peaks

    log.info("checking this machine; this takes up to 30 seconds")
    found = examine(Path(log_dir), nproc)
    if args.measure:
        found += peaks.checks(peaks.measure())
    print(_as_json(found) if args.format == "json" else _as_text(found))
    return int(any(check.status == PROBLEM for check in found))


def _as_json(found: Sequence[Check]) -> str:
    lines = [
        {
            "name": check.name,
            "status": check.status,
            "reason": check.reason,
            "action": check.action,
            "values": check.values,
        }
        for check in found
    ]
    return json.dumps({"checks": lines}, indent=2, ensure_ascii=False, default=str)


def _as_text(found: Sequence[Check]) -> str:
    """Return a line for each check, with its mark, name and reason; below it, what to do."""
    width = max(len(check.name) for check in found)
    lines = []
    for check in found:
        head = f"{_MARKS[check.status]:<8} {check.name:<{width}}  "
        lines += _wrapped(head, check.reason)
        if check.action:
            lines += _wrapped(f"{'Do: ':>{len(head)}}", check.action)
    counts = {status: sum(check.status == status for check in found) for status in _MARKS}
    lines.append("")
    lines.append(
        f"{_count(counts['problem'], 'problem')}, {_count(counts['warning'], 'warning')}, "
        f"{counts['ok']} ok"
    )
    return "\n".join(lines)


def _wrapped(head: str, text: str) -> list[str]:
    # Commands and paths stay whole, so that they can be copied.
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"
