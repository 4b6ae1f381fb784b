"""Names, claims and the manifest of a run directory."""

from __future__ import annotations

import json
import platform
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from pathlib import Path

import pytest

from ppprof import rundir
from ppprof.errors import InputError
from ppprof.rundir import TraceName, directories
from ppprof.rundir.recordings import resolve

NAME = TraceName(12, "dp1_pp0_sharding0_sep2_mp3", datetime(2026, 11, 20, 20, 15, 30), 7)


@pytest.mark.parametrize("fmt", rundir.TRACE_SUFFIXES)
def test_a_trace_name_says_what_it_was_made_from(fmt: str) -> None:
    assert TraceName.parse(f"some/run/{NAME.trace(fmt)}") == NAME
    assert TraceName.parse(NAME.raw) == NAME


@pytest.mark.parametrize(
    "path",
    [
        "host_apid_1_time_2026_11_20_20_15_30_123.paddle_trace.json",
        "rank_00000_dp0_time_20261399T201530_000.paddle_trace.json",
        "rank_00000_dp0_time_20261120T201530_000.paddle_trace.json.bak",
        ".rank_00000_dp0_time_20261120T201530_000.tmp",
        "manifest.json",
    ],
)
def test_other_files_have_no_trace_name(path: str) -> None:
    assert TraceName.parse(path) is None


def test_raw_files_come_by_rank_then_window(tmp_path: Path) -> None:
    run = rundir.claim(tmp_path)
    names = [
        TraceName(rank, "dp0", datetime(2026, 1, 1), window) for rank in (0, 1) for window in (0, 1)
    ]
    for name in reversed(names):
        (run / name.raw).touch()
    (run / "raw" / ".rank_00003_dp0_time_20260101T000000_000.tmp").touch()

    assert rundir.raw_files(run) == [(name, run / name.raw) for name in names]


def test_runs_of_one_log_directory_each_get_their_own(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "profiler_log"
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: rundir.claim(log), range(8)))

    assert sorted(runs) == [log, *(log / f"run_{n:03d}" for n in range(2, 9))]


def test_a_run_comes_above_all_earlier_ones(tmp_path: Path) -> None:
    """Else an earlier one would be taken for the newest."""
    assert rundir.claim(tmp_path, "run_003") == tmp_path / "run_003"
    assert rundir.claim(tmp_path) == tmp_path / "run_004"
    assert rundir.claim(tmp_path, "run_002") == tmp_path / "run_005"
    assert rundir.claim(tmp_path, "run_1000") == tmp_path / "run_1000"


def test_processes_of_one_run_get_one_directory(tmp_path: Path) -> None:
    rundir.write_manifest(rundir.claim(tmp_path), {"run_id": "earlier"})

    def join(run_id: str) -> Path:
        run = rundir.claim(tmp_path, run_id=run_id)
        if not rundir.has_manifest(run):
            rundir.write_manifest(run, {"run_id": run_id})
        return run

    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(join, ["a"] * 8))
    assert runs == [tmp_path / "run_002"] * 8
    assert join("b") == tmp_path / "run_003"


def test_a_claim_without_a_manifest_is_skipped_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "_CLAIM_SECONDS", 0.05)
    rundir.claim(tmp_path)
    assert rundir.claim(tmp_path, run_id="a") == tmp_path / "run_002"


def test_a_run_is_found_by_its_id(tmp_path: Path) -> None:
    assert rundir.find(tmp_path / "nowhere", "a") is None
    for run_id in ("a", "b", None):
        rundir.write_manifest(rundir.claim(tmp_path), {"run_id": run_id} if run_id else {})
    (rundir.claim(tmp_path) / "manifest.json").write_text("{")
    assert rundir.find(tmp_path, "a") == tmp_path
    assert rundir.find(tmp_path, "b") == tmp_path / "run_002"
    assert rundir.find(tmp_path, "c") is None
    assert [rundir.read_run_id(tmp_path / f"run_00{n}") for n in (2, 3, 4)] == ["b", None, None]


def test_the_runs_below_a_directory_are_the_newest_of_each_log(tmp_path: Path) -> None:
    for name in ("node0", "node1/log", "node1/log", "too/deep/for/us", "node2/other"):
        rundir.write_manifest(rundir.claim(tmp_path / name), {})
    (tmp_path / "node2/other/manifest.json").unlink()
    assert rundir.find_runs_below(tmp_path) == [tmp_path / "node0", tmp_path / "node1/log/run_002"]


def test_the_first_run_has_a_name_after_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    rundir.write_manifest(rundir.claim(log), {"run_id": "0"})
    assert directories.run_before(log) is None
    rundir.write_manifest(rundir.claim(log), {"run_id": "1"})
    assert directories.run_before(log) == log / "run_001"
    rundir.write_manifest(rundir.claim(log), {"run_id": "2"})
    first = log / "run_001"
    assert (rundir.newest(first), rundir.runs_of(first), rundir.first_run(first)) == (
        log,
        [log],
        log,
    )
    assert (rundir.newest(log), rundir.first_run(log), directories.run_before(log)) == (
        log / "run_003",
        None,
        log / "run_002",
    )
    assert resolve(first).paths == (log,)
    assert rundir.find(first, "1") == log / "run_002", "of another node it may be another number"
    first.mkdir()
    assert rundir.first_run(first) is None, "what lies there counts"


def test_ranks_leave_word_of_their_machine(tmp_path: Path) -> None:
    run = rundir.claim(tmp_path)
    assert rundir.nodes(run) == {}
    for rank in (3, 12):
        rundir.write_node_marker(run, rank)
    (run / "nodes" / "notes.txt").touch()
    assert rundir.nodes(run) == {3: platform.node(), 12: platform.node()}


def test_the_newest_run_is_the_highest_number_that_has_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run here"):
        rundir.newest(tmp_path)
    runs = [rundir.claim(tmp_path) for _ in range(3)]
    rundir.write_manifest(runs[0], {})
    assert rundir.newest(tmp_path) == tmp_path
    rundir.write_manifest(runs[1], {})
    assert rundir.newest(tmp_path) == tmp_path / "run_002"
    assert rundir.newest(runs[1]) == runs[1]


def test_a_manifest_holds_what_yaml_holds_and_stays_strict_json(tmp_path: Path) -> None:
    rundir.write_manifest(
        tmp_path, {"config": {"inf": float("inf"), "day": date(2026, 1, 2), "pair": (1, 2.5)}}
    )

    text = (tmp_path / "manifest.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert rundir.read_manifest(tmp_path)["config"] == {
        "inf": "inf",
        "day": "2026-01-02",
        "pair": [1, 2.5],
    }
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("{", "not a manifest"),
        ("[]", "no schema_version"),
        ('{"schema_version": 999}', "newer than this ppprof"),
    ],
)
def test_a_manifest_that_cannot_be_read_says_why(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=message):
        rundir.read_manifest(tmp_path)


def test_a_writable_place_is_no_problem_and_stays_as_it_was(tmp_path: Path) -> None:
    assert rundir.check_writable(tmp_path / "a" / "b") is None
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_way_is_a_problem_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    problem = rundir.check_writable(tmp_path / "log" / "run")
    assert str(problem) == (
        f"{tmp_path / 'log' / 'run'}: {tmp_path / 'log'} is a file; expected a directory"
    )


def test_a_read_only_place_is_a_problem() -> None:
    problem = rundir.check_writable("/proc/ppprof")  # read-only for root too
    assert problem is not None
    assert "cannot write" in problem.message
