"""``ppprof trigger``: open a window in a running job."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppprof.choices import MOST_TRIGGERED_STEPS
from ppprof.cli.options import Checks, add_run, whole_number
from ppprof.cli.terminal import log
from ppprof.errors import InputError, UsageError
from ppprof.paths import is_remote
from ppprof.rundir import first_run, newest, nodes, read_manifest, topology_of
from ppprof.rundir.liveness import live_ranks
from ppprof.rundir.triggers import (
    TriggerResponse,
    read_completion,
    read_response,
    write_request,
)
from ppprof.units import format_ranges

if TYPE_CHECKING:
    from ppprof.config import ProfilerConfig

EXAMPLES = {
    "ppprof trigger profiler_log": "the running job records a window",
    "ppprof trigger profiler_log --steps 5 --rank 0 --wait": "5 steps of rank 0; the files",
}
_POLL_SECONDS = 0.2
_FINISH_SECONDS = 120.0
"""How long the files of a window may take once the job has ended."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Asks the job that writes RUN to record a few steps, from a step that all ranks agree "
        "on: at least 2 steps and half a second ahead, or a step with one process. Without "
        "--wait it prints what will happen and returns."
    )
    parser.epilog = (
        "Exit codes: 0 requested, or with --wait recorded; 1 with --wait: the job refused, or "
        "took longer; 2 bad usage; 3 no such run, or it has ended."
    )
    add_run(parser, "run directory of rank 0's node")
    parser.add_argument(
        "--steps", metavar="N", help="steps of the window; default: Profiler.trigger.steps"
    )
    parser.add_argument(
        "--rank",
        metavar="R",
        help='which ranks record: 0, "0,8-15" or all; default: Profiler.trigger.ranks',
    )
    parser.add_argument(
        "--wait", action="store_true", help="wait for the window's files and print their names"
    )
    parser.add_argument("--timeout", metavar="SECONDS", help="how long to wait; default: for ever")


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    if is_remote(args.run):
        raise UsageError(f"{args.run}: a job reads requests from the directory that it writes")
    if args.timeout is not None and not args.wait:
        raise UsageError("--timeout: has no effect without --wait")
    checks = Checks(args)
    checks.parse("steps", partial(whole_number, least=1))
    checks.parse("timeout", _seconds, math.inf)
    if args.steps is not None and args.steps > MOST_TRIGGERED_STEPS:
        checks.problems.append(f"--steps: {args.steps}: expected at most {MOST_TRIGGERED_STEPS}")
    checks.done()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise UsageError(f"{text!r}: expected a number of seconds")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Return 0 when requested, or with ``--wait`` recorded; 1 when refused or not in time."""
    run = Path(newest(args.run))
    if run != Path(args.run) and first_run(args.run) is None:
        log.info("%s: the newest run is %s", args.run, run)
    request_id, what = request_window(run, args.steps, args.rank)
    if not args.wait:
        print(
            f"{run}: requested {what}; rank 0 reads this within a quarter of a second and one "
            f"step, and writes which steps to its stderr and to {run}/trigger/answers.jsonl"
        )
        return 0
    log.info("%s: requested %s; waiting for rank 0", run, what)
    return _wait(run, request_id, time.monotonic() + args.timeout)


def request_window(run: Path, steps: int | None, ranks: str | None) -> tuple[str, str]:
    """Ask the job that writes a run directory for a window.

    Args:
        run: the run directory of rank 0's node.
        steps: number of steps; None for ``Profiler.trigger.steps``.
        ranks: which ranks record; None for ``Profiler.trigger.ranks``.

    Returns:
        The id of the request, and what it asks for: ``5 steps on ranks 0-3``.

    Raises:
        UsageError: the job accepts no requests, records no such rank, or another request is pending.
        InputError: the job has ended, or writes elsewhere.
    """
    manifest = read_manifest(run)
    profiler = _profiler(run, manifest)
    members = _members(ranks, profiler, manifest)
    _check_alive(run, manifest)
    try:
        request_id = write_request(run, steps, ranks)
    except OSError as error:
        raise UsageError(f"{run}: cannot write a request: {error.strerror or error}") from error
    assert profiler.trigger is not None
    wanted = steps or profiler.trigger.steps
    return request_id, f"{wanted} step{'s' * (wanted != 1)} on {format_ranges('rank', members)}"


def _profiler(run: Path, manifest: Mapping[str, Any]) -> ProfilerConfig:
    block = manifest.get("profiler")
    if not isinstance(block, Mapping):
        raise InputError(f"{run}/manifest.json: no profiler block; expected one of a ppprof run")
    from ppprof.config import ProfilerConfig  # only here: it imports yaml

    profiler = ProfilerConfig.from_mapping(block)
    if profiler.trigger is None or not profiler.trigger.file:
        setting = "trigger is off" if profiler.trigger is None else "trigger.file is False"
        raise UsageError(
            f"{run}: this job accepts no requests: Profiler.{setting}; "
            "start it with -o Profiler.trigger=True"
        )
    if profiler.timer_only:
        raise UsageError(f"{run}: this job records nothing: Profiler.timer_only is True")
    return profiler


def _members(rank: str | None, profiler: ProfilerConfig, manifest: Mapping[str, Any]) -> set[int]:
    """Return the ranks that will record."""
    topology = topology_of(manifest)
    if topology is None:
        raise InputError("manifest.json: no axes; expected those of a ppprof run")
    assert profiler.trigger is not None
    recorded = topology.select(profiler.ranks)
    members = topology.select(profiler.trigger.ranks if rank is None else rank) & recorded
    if not members:
        raise UsageError(
            f"--rank {rank}: the job records on {format_ranges('rank', recorded)} only"
        )
    return set(members)


def _check_alive(run: Path, manifest: Mapping[str, Any]) -> None:
    """Check that rank 0 will read a request here.

    Raises:
        InputError: it will not.
    """
    ranks = live_ranks(run)
    if 0 in ranks:
        return
    if not ranks or 0 in nodes(run):
        raise InputError(f"{run}: the job has ended, or has not attached yet: rank 0 is not in it")
    entries = manifest.get("ranks")
    first = entries[0] if isinstance(entries, list) and entries else None
    host = first.get("host", "?") if isinstance(first, Mapping) else "another machine"
    raise InputError(f"{run}: rank 0 writes on a disk of {host}: run ppprof trigger there")


def _wait(run: Path, request: str, deadline: float) -> int:
    """Wait for the files and print their names; return the exit code."""
    answer = _answer(run, request, deadline)
    if answer is None:
        log.warning("%s: no answer yet; the request stays", run)
        return 1
    if answer.refused or answer.window is None or answer.start is None or answer.steps is None:
        log.warning("%s: no window: %s", run, answer.refused)
        return 1
    ranks = answer.ranks or []
    last = answer.start + answer.steps - 1
    log.info(
        "window %d: steps %d to %d on %s; waiting for its files",
        answer.window,
        answer.start,
        last,
        format_ranges("rank", ranks),
    )
    missing = set(ranks) & nodes(run).keys()
    if missing != set(ranks):
        elsewhere = format_ranges("rank", set(ranks) - missing)
        log.info("not waiting for files of %s, which are on other disks", elsewhere)
    return _wait_for_files(run, answer.window, missing, deadline)


def _wait_for_files(run: Path, window: int, missing: set[int], deadline: float) -> int:
    """Print the files of a window, rank by rank, as they appear; return the exit code."""
    ended: float | None = None
    while True:
        for rank in sorted(missing):
            completion = read_completion(run, rank, window)
            if completion is not None:
                files, skipped = completion
                missing.discard(rank)
                print(*files, sep="\n", flush=True)
                if skipped:
                    log.warning("rank %d: %s", rank, skipped)
        if not missing:
            return 0
        now, ranks = time.monotonic(), format_ranges("rank", missing)
        if now >= deadline:
            log.warning("%s: no files of %s yet; the window goes on", run, ranks)
            return 1
        if ended is None and 0 not in live_ranks(run):
            ended = now
        if ended is not None and now > ended + _FINISH_SECONDS:
            raise InputError(
                f"{run}: the job has ended and left no files of {ranks}; "
                f"if raw ones are there: ppprof finish {run}"
            )
        time.sleep(_POLL_SECONDS)


def _answer(run: Path, request: str, deadline: float) -> TriggerResponse | None:
    while True:
        is_alive = 0 in live_ranks(run)  # first: it answers before it ends
        answer = read_response(run, request)
        if answer is not None:
            return answer
        if not is_alive:
            raise InputError(f"{run}: the job ended without reading the request")
        if time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_SECONDS)
