"""An all-reduce between launched ranks, and its span in the trace."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ppprof.capture.children import environment, run, temporary_folder
from ppprof.capture.doctor import ranks_child
from ppprof.capture.doctor.checks import OK, PROBLEM, WARNING, Check

_MARGIN_SECONDS = 1.0


def all_reduce(nproc: int, timeout: float) -> dict[str, Any]:
    """Launch ranks that reduce 1 MiB, and return what they reported.

    Returns:
        ``ranks``: the report of each rank, by rank; None without a report. ``is_late``
        after a time-out. ``messages``: the end of the ranks' logs.
    """
    with temporary_folder() as folder:
        command = [sys.executable, "-m", "paddle.distributed.launch"]
        command += ["--nproc_per_node", str(nproc), "--log_dir", str(Path(folder, "log"))]
        command += [ranks_child.__file__, folder, str(timeout + _MARGIN_SECONDS)]
        ended = run(command, timeout, environment(keeps_flags=True), Path(folder))
        reports = [_report(Path(folder, f"rank_{rank}.json")) for rank in range(nproc)]
        logs = sorted(Path(folder, "log").glob("workerlog.*"))
        texts = [ended.stderr, *(path.read_text(errors="replace")[-4000:] for path in logs)]
    return {
        "ranks": reports,
        "exit_code": ended.exit_code,
        "is_late": ended.exit_code is None and ended.is_started,
        "messages": "\n".join(texts)[-8000:],
        "seconds": timeout,
    }


def _report(file: Path) -> dict[str, Any] | None:
    """Return the last line of a rank's report."""
    try:
        lines = file.read_text().splitlines()
        return dict(json.loads(lines[-1])) if lines else None
    except (OSError, ValueError):
        return None


def checks(nproc: int, found: dict[str, Any]) -> Iterator[Check]:
    """Return the check of the all-reduce.

    Args:
        nproc: number of ranks.
        found: the result of `all_reduce`.
    """
    name = "all-reduce"
    done = [report for report in found["ranks"] if report and "ns" in report]
    values = {key: found[key] for key in ("ranks", "exit_code", "messages")}
    log = "run the job's launcher with --log_dir and read workerlog.*; check the network interface"
    if len(done) < nproc:
        stages = {
            rank: (report or {}).get("stage", "starting")
            for rank, report in enumerate(found["ranks"])
            if not (report and "ns" in report)
        }
        where = ", ".join(f"rank {rank} is {stage}" for rank, stage in stages.items())
        if found["is_late"]:
            is_slow = all(stage in ("starting", "importing Paddle") for stage in stages.values())
            reason = f"no answer within {found['seconds']:.0f} s: {where}"
            action = "the machine is busy: run doctor again" if is_slow else log
            yield Check(name, WARNING if is_slow else PROBLEM, reason, action, values)
            return
        said = _error(found["messages"])
        reason = f"{nproc - len(done)} of {nproc} ranks failed{said and ': '}{said}"
        yield Check(name, PROBLEM, reason, log, values)
        return
    slowest = max(report["ns"] for report in done)
    missing = [rank for rank, report in enumerate(done) if not report["has_span"]]
    backend, device = done[0]["backend"], done[0]["device"]
    reason = f"1 MiB between {nproc} ranks in {slowest / 1e6:.2f} ms ({backend}, {device})"
    if not all(report["is_correct"] for report in done):
        yield Check(name, PROBLEM, f"{reason}; the sum is wrong", log, values)
    elif missing:
        reason += f"; its span is missing in the trace of ranks {', '.join(map(str, missing))}"
        yield Check(name, PROBLEM, reason, "report this, with the versions below", values)
    else:
        yield Check(name, OK, f"{reason}; its span is in every rank's trace", values=values)


def _error(text: str) -> str:
    """Return the last line that names an error."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"Error\b|error:", line)]
    return lines[-1][:200] if lines else ""
