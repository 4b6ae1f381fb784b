"""One fault after another around the recorder: what is saved and logged, and how the program ends.

The same with Paddle's recorder, and with a training instead of a loop: tests/jobs/test_faults.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from ppprof import rundir
from ppprof.trace import read
from tests.jobs.launching import environment

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")

CUT = r"window 0 was cut short by the end of the training: it has 3 of 5 steps, the last of them 3"
NO_STEP_TIMES = r".*/steps/rank_00000\.jsonl: {}; step times are no longer written"
LOST = r"rank 0: recording failed: .*\.pb: {}; window 0 is lost, steps recorded: 5; the training .*"

FORKED = (
    r"rank 0: process \d+ was forked from process \d+, which called ppprof\.attach\(\): nothing is "
    r"recorded here, .*; to record it, call attach\(\) in this process, after os\.fork\(\) or .*"
)


class Expected(NamedTuple):
    """What a fault leaves."""

    steps: Sequence[int] | None
    """Steps of the window on disk; None without one."""
    says: Sequence[str] = ()
    """Lines on stderr, as regular expressions."""


MISSED, ALL = range(1, 4), range(1, 6)
FAULTS = {
    "nothing": Expected(ALL),
    "exception": Expected(MISSED, [CUT]),
    "sigint": Expected(MISSED, [CUT]),
    "sigterm": Expected(MISSED),
    "sigterm_while_saving": Expected(MISSED, [CUT]),
    "sigterm_handled": Expected(MISSED, [CUT]),
    "sighup": Expected(MISSED),
    "sigquit": Expected(MISSED),
    "sigxcpu": Expected(MISSED),
    "sighup_ignored": Expected(ALL),
    "sigusr1": Expected(None),
    "sigkill": Expected(None),
    "exit": Expected(MISSED, [CUT]),
    "planted_ranks": Expected(
        MISSED,
        [
            rf"rank 0: rank 99 \(not a rank of this job, pid {2**31 - 1}\) is gone: .*; 1 window and "
            "the step times of this rank are saved in log",
            CUT,
        ],
    ),
    "planted_pipes": Expected(
        MISSED,
        [
            NO_STEP_TIMES.format("not a regular file"),
            r"rank 0: rank 0 \(.*\) failed: , rank 1 \(not a rank of this job\) failed: ; 1 window .*",
            CUT,
        ],
    ),
    "quit": Expected(None),
    "never_closed": Expected(
        range(5, 8), [r"window 0 was cut short .* 3 of 55 steps, the last of them 7"]
    ),
    "directory_removed": Expected(
        None, [LOST.format("No such file or directory"), NO_STEP_TIMES.format("No such file .*")]
    ),
    "disk_full": Expected(None, [LOST.format("No space left on device")]),
    "never_reached": Expected(
        None, [r"no window was recorded: the schedule is steps 50 to 59, and 8 steps .*"]
    ),
    "cut_short": Expected(
        range(5, 8), [r"window 0 was cut short .* 3 of 55 steps, the last of them 7"]
    ),
    "no_step": Expected([], ["step\\(\\) was never called: .*"]),
    "forked_child": Expected(ALL),
    "daemonised": Expected(None, [FORKED]),
    "descriptors_closed": Expected(ALL, ["the training has closed file descriptors of ppprof, .*"]),
    "handlers_before": Expected(ALL),
    "handlers_after": Expected(ALL),
}


LONG = {"nothing", "cut_short", "never_reached", "no_step", "handlers_before", "handlers_after"}
"""Faults of `make test-all`. In the quick tiers, other tests end a session in these ways."""


def ended(folder: Path, way: str, fault: str) -> tuple[int, str, str, list[str]]:
    """Return exit code, steps, signals heard, and lines of ours on stderr."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.capture.fault_program", way, fault],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    files = (folder / name for name in ("steps", "heard", "theirs"))
    steps, heard, theirs = (file.read_text() if file.exists() else "" for file in files)
    said = re.findall("^ppprof: (.*)", done.stderr, re.M)
    heard += theirs
    return done.returncode, steps, heard, [line for line in said if "exiting before" not in line]


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=pytest.mark.all if fault in LONG else ()) for fault in FAULTS],
)
def test_a_fault_ends_as_without_ppprof_and_what_can_be_saved_is(
    tmp_path: Path, fault: str
) -> None:
    expected = FAULTS[fault]
    *without, _ = ended(tmp_path / "off", "off", fault)
    *outcome, said = ended(tmp_path / "on", "on", fault)
    assert outcome == without
    assert len(said) == len(expected.says), said
    for line, pattern in zip(said, expected.says):
        assert re.fullmatch(pattern, line), line
    log = tmp_path / "on/log"
    assert not [file for file in log.rglob("*") if file.name.startswith(".")]
    found = [path for _, path in rundir.raw_files(log)] if log.exists() else []
    if expected.steps is None:
        assert found == []
        return
    (raw,) = found
    events = read(raw).events.sort("start_ns")
    spans = events.filter(pl.col("category") != "UserDefined")["name"].cast(pl.String).to_list()
    steps = [f"ProfileStep#{step}" for step in expected.steps]
    is_cut = expected.steps != ALL
    assert spans == [*steps, *["incomplete step"][:is_cut]]
