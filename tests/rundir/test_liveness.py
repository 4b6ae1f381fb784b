"""Which ranks are named when a rank fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ppprof.rundir import liveness
from ppprof.rundir.liveness import LivenessRegistry
from ppprof.topology import Topology

GRID = Topology.of(dp=2, mp=4)
BOOM = RuntimeError("\n---\n boom  \non line 3")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def rosters(run: Path) -> list[LivenessRegistry]:
    """Return the registries of all ranks, as if each had a process of its own."""
    return [LivenessRegistry(run, GRID, rank) for rank in range(GRID.world_size)]


def killed(run: Path, rank: int, node: str | None = None) -> subprocess.Popen[bytes]:
    """A rank that died without a file; its parent has not waited for it yet."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    (run / "alive" / f"{rank:05d}.{process.pid}.{node or liveness._node()}").touch()
    while liveness._is_alive(process.pid):
        pass
    return process


def test_of_a_failure_the_cause_is_named_and_not_the_stack_of_c_plus_plus(tmp_path: Path) -> None:
    """Paddle puts it first with FLAGS_call_stack_level=2."""
    text = "\n---\nC++ Traceback:\n---\n0 f()\n\n---\nError Message Summary:\n---\nNotFoundError: boom\n"
    rosters(tmp_path)[5].mark_failed(ValueError(text))
    assert liveness.rank_states(tmp_path)[5].text == "failed: ValueError: NotFoundError: boom"


def test_the_line_that_raised_is_named(tmp_path: Path) -> None:
    rosters(tmp_path)[5].mark_failed(BOOM, place="train.py:41 step")
    assert liveness.rank_states(tmp_path)[5].text == (
        "failed: RuntimeError: boom, at train.py:41 step"
    )


def test_the_first_to_fail_is_named_by_the_others_and_only_that_one(tmp_path: Path) -> None:
    everybody = rosters(tmp_path)
    assert everybody[5].mark_failed(BOOM) == ""
    for rank in (0, 1, 7):
        assert everybody[rank].mark_failed(RuntimeError("reset")) == (
            "rank 5 (dp1_pp0_sharding0_mp1) failed: RuntimeError: boom"
        )
    assert (
        everybody[2].mark_failed(None)
        == "rank 5 (dp1_pp0_sharding0_mp1) failed: RuntimeError: boom"
    )
    assert [path.name for path in tmp_path.glob("failed/*")] == ["00005.txt"]


def test_a_process_that_may_not_be_inspected_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of another user, where /proc hides them."""
    LivenessRegistry(tmp_path, GRID, 3)
    monkeypatch.setattr(liveness, "_status", lambda pid: [])
    assert not liveness.rank_states(tmp_path)[3].is_gone


@pytest.mark.parametrize("reaped", [False, True])
def test_a_rank_without_a_process_was_killed(tmp_path: Path, reaped: bool) -> None:
    first = LivenessRegistry(tmp_path, GRID, 0)
    process = killed(tmp_path, 3)
    if reaped:
        process.wait()
    assert first.mark_failed(BOOM) == (
        f"rank 3 (dp0_pp0_sharding0_mp3, pid {process.pid}) is gone: killed, or it crashed"
    )
    assert not (tmp_path / "failed").exists()
    process.wait()


def test_only_failures_are_known_of_other_machines(tmp_path: Path) -> None:
    first, second = rosters(tmp_path)[:2]
    killed(tmp_path, 3, node="other.example.org-1").wait()
    assert first.mark_failed(BOOM) == ""
    assert second.mark_failed(None) == "rank 0 (dp0_pp0_sharding0_mp0) failed: RuntimeError: boom"


def test_ranks_that_ended_well_are_not_named(tmp_path: Path) -> None:
    first, second = rosters(tmp_path)[:2]
    first.mark_finished()
    assert second.mark_failed(BOOM) == ""


def test_a_sigterm_is_reported_only_by_ranks_that_got_none(tmp_path: Path) -> None:
    everybody = rosters(tmp_path)
    assert everybody[4].mark_failed(None) == ""
    assert everybody[6].mark_failed(None) == ""
    assert everybody[0].mark_failed(BOOM) == (
        "rank 4 (dp1_pp0_sharding0_mp0) was ended by SIGTERM, "
        "rank 6 (dp1_pp0_sharding0_mp2) was ended by SIGTERM"
    )


@pytest.mark.parametrize("signal", ["SIGHUP", "SIGQUIT", "SIGXCPU"])
def test_other_signals_are_reported_by_name(tmp_path: Path, signal: str) -> None:
    everybody = rosters(tmp_path)
    assert everybody[4].mark_failed(None, signal) == ""
    assert everybody[5].mark_failed(None) == ""
    named = f"rank 4 (dp1_pp0_sharding0_mp0) was ended by {signal}"
    assert everybody[0].mark_failed(BOOM).startswith(named)


def test_a_line_names_four_and_counts_the_rest(tmp_path: Path) -> None:
    everybody = rosters(tmp_path)
    for rank in range(1, 7):
        (tmp_path / "failed").mkdir(exist_ok=True)
        (tmp_path / f"failed/{rank:05d}.txt").write_text("MemoryError\n")
    said = everybody[0].mark_failed(BOOM)
    assert said.count("failed: MemoryError") == 4
    assert said.endswith(" and 2 more ranks")


def test_a_directory_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    first, second = rosters(run)[:2]
    (run / "alive").rename(tmp_path / "away")
    run.rmdir()
    assert first.mark_failed(BOOM) == ""
    second.mark_finished()


class Broken(Exception):
    """An exception whose text raises."""

    def __str__(self) -> str:
        raise KeyError("message")


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (Broken(), "Broken"),
        (ValueError("/data/\udcff.bin"), r"ValueError: /data/\udcff.bin"),
    ],
    ids=["without words", "with half a character"],
)
def test_an_exception_may_hold_anything(tmp_path: Path, error: Exception, named: str) -> None:
    first, second = rosters(tmp_path)[:2]
    assert first.mark_failed(error) == ""
    assert second.mark_failed(BOOM) == f"rank 0 (dp0_pp0_sharding0_mp0) failed: {named}"


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    first, second = rosters(tmp_path)[:2]
    (tmp_path / "failed").mkdir()
    for folder in ("alive", "failed"):
        for name in (".DS_Store", "00003", "Thumbs.db", ".nfs000000000123"):
            (tmp_path / folder / name).touch()
    assert first.mark_failed(BOOM) == ""
    (tmp_path / "failed/00000.txt").write_bytes(b"cut in a \xc3\n")
    assert second.mark_failed(BOOM) == "rank 0 (dp0_pp0_sharding0_mp0) failed: cut in a \ufffd"
