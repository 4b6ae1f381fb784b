"""``ppprof hang`` names what was planted, while the job hangs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ppprof.errors import InputError
from ppprof.run.hang import Hang, ask_for_stacks, find_hang
from ppprof.rundir.flight import read_rings, read_stacks
from ppprof.rundir.step_times import read_step_times
from tests.jobs.launching import ROOT, run, start, wait_for, workerlogs

pytestmark = [pytest.mark.paddle, pytest.mark.all]


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Any]:
    """Starts a job, and returns what is known once two of its ranks have waited for 3 s."""
    jobs = []

    def hang(kind: str) -> Hang:
        job = start(tmp_path, ROOT / "tests/jobs/hang_job.py", kind, processes=3)
        jobs.append(job)
        seen: list[Hang] = []

        def waits() -> bool:
            try:
                seen.append(find_hang([tmp_path / "log"]))
            except InputError:  # not yet
                return False
            # Of two sizes, gloo may end the process of the rank with the smaller one at once.
            stands = len(seen[-1].waiting) >= 2 or seen[-1].mismatches
            return bool(stands) and (seen[-1].idle_s or 0) > 3

        wait_for(waits, seconds=60)
        return seen[-1]

    yield hang
    for job in jobs:
        job.kill()
        job.wait()
    for alive in (tmp_path / "log" / "alive").iterdir():
        with suppress(ProcessLookupError):
            os.kill(int(alive.name.split(".")[1]), signal.SIGKILL)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        pytest.param("sleeps", "rank 1 has not come to all_reduce", marks=pytest.mark.jobs),
        ("loader blocks", "rank 1 has not come to all_reduce"),
        ("loader blocks in its worker", "rank 1 has not come to all_reduce"),
        pytest.param("killed", "rank 1 (its process is gone: killed", marks=pytest.mark.jobs),
        ("stopped", "rank 1 (its process is stopped"),
        ("skipped", "they call from different lines"),
        pytest.param("other order", "in different orders", marks=pytest.mark.jobs),
        ("other operation", "rank 0: broadcast"),
        ("other order in a group", "rank 1: broadcast at"),
        ("mixed up", "they call from different lines"),
        ("other size", "(32 bytes)"),
        ("other dtype", "(float64, 128 bytes)"),
        ("no send", "waits in recv"),
        ("no recv", "rank 0 waits in send"),
        ("swallowed", "they call from different lines"),
        ("other root", "(root 2)"),
        ("crossed sends", "rank 1 called send"),
        (
            "uneven",
            "4 times in step 6, but 3 times in step 5, as with another number of micro-batches",
        ),
        ("waits for a file", "rank 1 has not come to all_reduce"),
        ("holds the lock", "rank 1 has not come to all_reduce"),
        ("a thread holds the lock", "rank 1 has not come to all_reduce"),
        ("crashes", "hang: Segmentation fault) has not come"),
        pytest.param(
            "late backward",
            "rank 1 has not come to backward of DataParallel",
            marks=pytest.mark.jobs,
        ),
        ("barrier for backward", "ranks 0, 2: backward of DataParallel at"),
        (
            "a head without gradient",
            "but it has ended on rank 1 alone, as where some parameters had no gradient",
        ),
    ],
)
def test_the_planted_cause_is_named(hanging: Any, kind: str, says: str) -> None:
    hang = hanging(kind)
    verdict, num_seen = re.subn(r" \(last seen at hang_job.py:\d+ \w+\)", "", hang.verdict())
    assert says in verdict
    assert "hang_job.py:" in verdict
    if says == "rank 1 has not come to all_reduce":
        assert num_seen == 1
        assert hang.causes == (1,)
        inside = {"loader blocks": "__getitem__", "loader blocks in its worker": "train"}
        assert f"in {inside.get(kind, 'hang')}" in hang.stacks[1], "the watchdog writes where it is"
    if kind == "crashes":
        assert hang.stacks[1].startswith("Fatal Python error: Segmentation fault")
        assert "in hang" in hang.stacks[1]


def test_stacks_are_written_on_request(hanging: Any, tmp_path: Path) -> None:
    hang = hanging("waits for a file")
    assert ask_for_stacks([tmp_path / "log"], hang.suspects, 12) == [1]
    assert any(each.startswith("Requested") for each in read_stacks(hang.run, 1))


def test_transfers_have_one_number_on_both_sides_where_ppprof_run_begins_by_itself(
    tmp_path: Path,
) -> None:
    """A stage that receives before it calls a layer."""
    job = ROOT / "tests/jobs/transfer_job.py"
    run(tmp_path, "-m", "ppprof", "run", "--nproc", "2", "--log_dir", "launch", job)
    rings, _ = read_rings(tmp_path / "profiler_log")
    sent, received = (
        [(each.step, each.sequence) for each in rings[rank].operations if each.name == name]
        for rank, name in enumerate(("send", "recv"))
    )
    assert sent == received
    assert len(sent) == 12


def test_a_job_that_hangs_ends_with_its_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, ROOT / "tests/jobs/hang_job.py", "ends", processes=3, code=75)
    assert "exit code 75 (Profiler.hang_exit_code)" in workerlogs(tmp_path)[0], done
    hang = find_hang([tmp_path / "log"])
    assert hang.causes == (1,)
    assert "in hang" in hang.stacks[1]
    assert len(read_step_times(hang.run)) == 3 * 6, "what was noted is saved first"
