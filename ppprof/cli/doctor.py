"""``ppprof doctor``: what this machine can record, and what is missing."""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ppprof.cli.options import Checks, add_layout, whole_number
from ppprof.cli.terminal import log, print_now
from ppprof.errors import UsageError
from ppprof.paths import is_remote

if TYPE_CHECKING:
    from ppprof.capture.doctor import Check
    from ppprof.report.text.layout import Layout

EXAMPLES = {
    "ppprof doctor": "a line for each check: ok, warning or PROBLEM, and what to do",
    "ppprof doctor --nproc 8 /data/log": "also 8 ranks that communicate, and this disk",
    "ppprof doctor --selftest": "does ppprof record this device rightly? One file for a bug report",
}
SCHEMA_VERSION = 1
"""Version of the JSON document. It increases when older readers would misread the document."""

_MOST_RANKS = 256
_WIDTH = 100
_MARKS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}
_MEANINGS = {"ok": "good", "warning": "warning", "problem": "bad"}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Checks Paddle, the device and its profiler, the run directory's disk and memory, in "
        "under 30 seconds. Child processes do what may crash or hang. Without --selftest, nothing "
        "stays on disk."
    )
    parser.epilog = (
        "Exit codes: 0 no problem, perhaps warnings; 1 a problem, which would lose a recording "
        "or end a training; 2 bad usage or config."
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
    add(
        "--selftest",
        action="store_true",
        help="also train small nets on the device, in 5 minutes, compare their recordings with what "
        "must hold, and write all into one file for a bug report: ppprof-selftest-TIME.zip",
    )
    add("--format", choices=("text", "json"), default="text", help="default: text")
    add_layout(parser, tables=False)


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    checks.parse("nproc", partial(whole_number, least=1), 1)
    if args.nproc > _MOST_RANKS:
        checks.problems.append(f"--nproc: {args.nproc}: expected at most {_MOST_RANKS}")
    if args.config is not None and args.profiler_log is not None:
        checks.problems.append("-c: has no effect beside PROFILER_LOG; give one of them")
    checks.layout()
    checks.done()


def run(args: argparse.Namespace) -> int:
    """Return 0 if there is no problem, else 1; the checks are on stdout."""
    log_dir = args.profiler_log or "profiler_log"
    if args.config is not None:
        from ppprof.config import load_profiler

        log_dir = load_profiler(args.config, needs_block=False).profiler.profiler_log
    if is_remote(log_dir):
        raise UsageError(f"{log_dir}: a training writes to a local directory; copy the run later")
    from ppprof.capture.doctor import PROBLEM, examine, measure_peaks, peak_checks

    log.info("checking this machine; this takes up to 30 seconds")
    found = examine(Path(log_dir), args.nproc)
    if args.measure:
        found += peak_checks(measure_peaks())
    if args.selftest:
        _selftest(found, args.layout)
    text = _as_json(found) if args.format == "json" else _as_text(found, args.layout)
    print_now(f"{text}\n")
    return int(any(check.status == PROBLEM for check in found))


def _selftest(found: list[Check], layout: Layout) -> None:
    """Add the checks of the self-test, and write the file for a bug report."""
    from ppprof.capture.children import temporary_folder
    from ppprof.selftest.report import archive, selftest

    log.info("training small nets on the device; this takes up to 5 minutes")
    window = next((check for check in found if check.name == "window"), None)
    file = Path(time.strftime("ppprof-selftest-%Y%m%dT%H%M%S.zip"))
    with temporary_folder() as folder:
        found += selftest(window, Path(folder))
        archive(file, Path(folder), found, _as_text(found, layout))
    log.info(f"attach {file} to a bug report; it holds the names of this host and of its folders")


def _as_json(found: Sequence[Check]) -> str:
    lines = list(map(asdict, found))
    document = {"schema_version": SCHEMA_VERSION, "checks": lines}
    return json.dumps(document, indent=2, ensure_ascii=False, default=str)


def _as_text(found: Sequence[Check], layout: Layout) -> str:
    """Return a line for each check, with its mark, name and reason; below it, what to do."""
    width = max(len(check.name) for check in found)
    columns = min(_WIDTH, layout.width or _WIDTH)
    lines = []
    for check in found:
        mark = f"{_MARKS[check.status]:<8}"
        head = f"{mark} {check.name:<{width}}  "
        first, *others = _wrapped(head, check.reason, columns)
        lines += [layout.paint(mark, _MEANINGS[check.status]) + first.removeprefix(mark), *others]
        if check.action:
            lines += _wrapped(f"{'Do: ':>{len(head)}}", check.action, columns)
    counts = {status: sum(check.status == status for check in found) for status in _MARKS}
    lines.append("")
    lines.append(
        f"{_count(counts['problem'], 'problem')}, {_count(counts['warning'], 'warning')}, "
        f"{counts['ok']} ok"
    )
    return "\n".join(lines)


def _wrapped(head: str, text: str, columns: int) -> list[str]:
    # Commands and paths stay whole, so that they can be copied.
    return textwrap.wrap(
        text,
        columns,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"
