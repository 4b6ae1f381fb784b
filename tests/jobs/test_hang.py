"""``ppprof hang`` names what was planted, while the job hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ppprof.errors import InputError
from ppprof.run.hang import Hang, find_hang
from tests.jobs.launching import ROOT, start, wait_for

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
            return len(seen[-1].waiting) >= 2 and seen[-1].idle_s > 3

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
        pytest.param("killed", "rank 1 (its process is gone: killed", marks=pytest.mark.jobs),
        ("stopped", "rank 1 (its process is stopped"),
        ("skipped", "they call from different lines"),
        pytest.param("other order", "in different orders", marks=pytest.mark.jobs),
        ("other operation", "rank 0: broadcast"),
        ("other size", "rank 1: all_reduce"),
        ("no send", "waits in recv"),
    ],
)
def test_the_planted_cause_is_named(hanging: Any, kind: str, says: str) -> None:
    hang = hanging(kind)
    assert says in hang.verdict()
    assert "hang_job.py:" in hang.verdict()
    if kind in ("sleeps", "loader blocks"):
        assert hang.causes == (1,)
        assert "in hang" in hang.stacks[1], "the watchdog has written where it is"
