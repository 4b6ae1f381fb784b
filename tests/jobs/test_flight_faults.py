"""What the flight recorder of a job leaves, and what it costs the training where it cannot write."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.paddle, pytest.mark.all]

from ppprof.rundir.flight import MOST_OPERATIONS, read_rings  # noqa: E402
from ppprof.rundir.step_times import read_step_times  # noqa: E402
from tests.jobs.launching import JOBS, command, environment, run, workerlogs  # noqa: E402


@pytest.mark.parametrize(
    ("moments", "core"),
    [pytest.param(10, "", marks=pytest.mark.jobs), (200, ""), (200, "python")],
)
def test_a_ring_is_readable_after_sigkill_at_any_moment(
    tmp_path: Path, moments: int, core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPPROF_CORE", core)
    num_pairs = moments // 2
    run(tmp_path, JOBS / "killed_job.py", str(num_pairs), timeout=1200)
    for pair in range(num_pairs):
        rings, problems = read_rings(tmp_path / str(pair))
        assert (sorted(rings), problems) == ([0, 1], {})
        for rank, ring in rings.items():
            num_begun = (tmp_path / f"{pair}.{rank}").stat().st_size
            sequences = [each.sequence for each in ring.operations]
            last = max(sequences, default=0)
            first = max(1, last - MOST_OPERATIONS + 1 + ring.unreadable)
            assert sequences == list(range(first, last + 1)), (pair, rank)
            assert last in (num_begun - 1, num_begun), (pair, rank)
            assert ring.step in (num_begun - 1, num_begun), (pair, rank)
            assert ring.unreadable <= 1, "at most the record that was being written"


MOUNTS = {
    "full": "mount -t tmpfs -o size=160k tmpfs log",
    "full later": "mount -t tmpfs -o size=1m tmpfs log",
    "read-only": "mount -t tmpfs -o ro tmpfs log",
    "read-only flight": "mkdir log/flight && mount -t tmpfs -o ro tmpfs log/flight",
    "file limit": "",
    "removed": "",
}
NO_RING = "ppprof hang will not know this rank"


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=pytest.mark.jobs) if name == "full" else name for name in MOUNTS],
)
def test_what_the_recorder_cannot_write_costs_the_recorder_alone(
    tmp_path: Path, fault: str
) -> None:
    if MOUNTS[fault] and os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    for way in ("nothing", "ppprof"):
        folder = tmp_path / way
        (folder / "log").mkdir(parents=True)
        job = shlex.join(command(JOBS / "flight_fault_job.py", way, fault, processes=2))
        script = f"{MOUNTS[fault] or 'true'} || exit 99; {job}; code=$?; cp -a log kept; exit $code"
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script] if MOUNTS[fault] else ["sh", "-c", script],
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, (done.stdout, done.stderr, workerlogs(folder))
    for rank in range(2):
        losses = (tmp_path / f"ppprof/losses.{rank}").read_text()
        assert losses == (tmp_path / f"nothing/losses.{rank}").read_text()
        assert losses.count("\n") == 12
    said = workerlogs(tmp_path / "ppprof")
    kept = tmp_path / "ppprof/kept"
    if fault in ("full", "file limit", "read-only flight"):
        assert all(text.count(NO_RING) == 1 for text in said.values()), said
        assert read_rings(kept) == ({}, {})
        assert read_step_times(kept)["step"].to_list() == [*range(12)] * 2, "the rest is recorded"
    elif fault == "full later":
        rings, problems = read_rings(kept)
        assert problems == {}
        assert [(ring.step, ring.operations[-1].sequence) for ring in rings.values()] == [
            (12, 12)
        ] * 2
    else:
        assert not any("Traceback" in text for text in said.values()), said
