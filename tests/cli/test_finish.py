"""``ppprof finish``: what a killed run left raw becomes what its config asked for."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ppprof.capture.postprocess import Finished, Helper
from ppprof.cli import main
from ppprof.config import ProfilerConfig
from ppprof.run import finish as run_finish
from ppprof.rundir import TraceName, claim, write_manifest
from ppprof.rundir.liveness import LivenessRegistry
from ppprof.rundir.remote_calls import RemoteCall, write_call
from ppprof.topology import Topology
from ppprof.trace import read
from tests.fixtures import gpu_traces
from tests.fixtures.run_files import run_file
from tests.fixtures.timeline import EPOCH_NS, Thread, kernel, launch, span, write


def killed_run(folder: Path, ranks: int = 2, **profiler: Any) -> Path:
    """A run directory with one raw window a rank and nothing made of it."""
    run = claim(folder / "profiler_log")
    config = ProfilerConfig.from_mapping({"enable": True, **profiler})
    write_manifest(run, {"profiler": config.to_mapping()})
    for rank in range(ranks):
        write(run / name(rank).raw, *gpu_traces.training())
    return run


def name(rank: int) -> TraceName:
    return TraceName(rank, f"dp{rank}_pp0_sharding0_mp0", datetime(2026, 11, 20, 20, 15, 30), 0)


def test_of_several_runs_the_newest_is_finished(tmp_path: Path, cli) -> None:
    killed_run(tmp_path, ranks=1)
    log = tmp_path / "profiler_log"
    cli("finish", log)
    later = killed_run(tmp_path, ranks=1)
    assert later == log / "run_002"
    printed = cli("finish", log)
    assert f"{later}" in printed.err
    assert (later / name(0).summary).exists()
    assert not (later / name(0).raw).exists()


def test_all_unfinished_runs_of_a_log_directory_are_finished(tmp_path: Path, cli) -> None:
    """The first run keeps its raw capture, the second was killed, the third is finished."""
    first = killed_run(tmp_path, ranks=1, formats=["json", "pb"])
    cli("finish", first)
    second, third = killed_run(tmp_path, ranks=1), killed_run(tmp_path, ranks=1)
    cli("finish", third)
    assert [(run / name(0).raw).exists() for run in (first, second, third)] == [True, True, False]
    printed = cli("finish", first)
    assert printed.err == f"{second}: looking for raw captures\n"
    assert printed.out.count("Overview Summary") == 1
    assert (second / name(0).summary).exists()
    assert not (second / name(0).raw).exists()
    assert cli("finish", first).err == (
        f"{third}: looking for raw captures\n"
        f"{third}: nothing left to finish; tables as data: {third}/summary\n"
    )


def test_a_running_job_beside_a_killed_one_is_left_alone(tmp_path: Path, cli) -> None:
    """It finishes its windows itself, and may drop one that it holds."""
    killed, running = killed_run(tmp_path, ranks=1), killed_run(tmp_path, ranks=1)
    LivenessRegistry(running, Topology.of(dp=1), 0)
    for _ in range(2):
        assert f"{running}: left to its job, which still runs\n" in cli("finish", killed).err
        assert [(run / name(0).summary).exists() for run in (killed, running)] == [True, False]
    cli("finish", running)
    assert (running / name(0).summary).exists()


@pytest.mark.parametrize(("silent_s", "is_finished"), [(0, False), (700, True)])
def test_a_silent_job_of_another_machine_has_ended(
    tmp_path: Path, cli, silent_s: int, is_finished: bool
) -> None:
    killed, later = killed_run(tmp_path, ranks=1), killed_run(tmp_path, ranks=0)
    LivenessRegistry(killed, Topology.of(dp=1), 0)
    (entry,) = killed.glob("alive/*")
    entry.rename(entry.with_name(re.sub(r"-[0-9]+$", "-1", entry.name)))
    steps = killed / "steps/rank_00000.jsonl"
    steps.touch()
    os.utime(steps, (time.time() - silent_s,) * 2)
    cli("finish", killed)
    assert (killed / name(0).summary).exists() == is_finished
    assert not list(later.glob("summary/*.json"))


def test_a_finished_run_of_another_version_is_no_error(tmp_path: Path, cli) -> None:
    first, second = killed_run(tmp_path, ranks=0), killed_run(tmp_path, ranks=1)
    manifest = first / "manifest.json"
    text = json.loads(manifest.read_text())
    text["profiler"]["of_another_version"] = True
    manifest.write_text(json.dumps(text))
    cli("finish", first)
    assert (second / name(0).summary).exists()


def test_a_trace_that_is_missing_is_written_again(tmp_path: Path, cli) -> None:
    """A rank was killed between its tables and its trace."""
    first = killed_run(tmp_path, ranks=1, formats=["json", "pb"])
    cli("finish", first)
    killed_run(tmp_path, ranks=0)
    (first / name(0).trace("json")).unlink()
    cli("finish", first)
    assert (first / name(0).trace("json")).exists()


def test_an_unreadable_run_does_not_keep_others_from_being_finished(tmp_path: Path, cli) -> None:
    first = killed_run(tmp_path, ranks=1)
    (first / name(0).raw).write_bytes(b"\x0f" * 64)
    second = killed_run(tmp_path, ranks=1)
    assert f"{first / name(0).raw}: " in cli("finish", first).err
    assert (second / name(0).summary).exists()
    assert f"{first / name(0).raw}: " in cli("finish", first, code=3).err


def test_every_rank_gets_what_the_config_asks_for(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path, formats=["json", "json.gz"], summary={"op": False})
    printed = cli("finish", run).out
    assert printed.count("Overview Summary") == 2
    assert printed.count("Operator Summary") == 0
    for rank in (0, 1):
        assert f"rank {rank} (dp{rank} pp0 sharding0 mp0), window 0, steps 5 to 7" in printed
        plain = (run / name(rank).trace("json")).read_bytes()
        assert gzip.decompress((run / name(rank).trace("json.gz")).read_bytes()) == plain
        summary = json.loads((run / name(rank).summary).read_text())
        assert summary["steps"] == [5, 6, 7]
        assert next(row["name"] for row in summary["tables"]["model"]) == "ProfileStep"
        assert set(summary["tables"]) == {
            *("device", "overview", "model", "dist", "op", "kernel", "memcpy", "udf", "mem")
        }
    assert list(run.glob("raw/*")) == []
    assert not [path for path in run.rglob("*") if path.name.startswith(".")]


def test_a_table_that_was_asked_for_and_is_empty_says_why(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path, ranks=1, summary={"mem": True, "kernel": True}, profile_memory=False)
    raw = run / name(0).raw
    write(raw, Thread(1, "main").around(span("ProfileStep", "ProfileStep#1", 0, 900)))
    printed = cli("finish", run).out.splitlines()
    assert "kernel: no kernels of a device in this trace" in printed
    memory = "mem: no memory events in this trace; Profiler.profile_memory: True records them"
    assert memory in printed


def test_pb_is_kept_when_asked_for_and_one_rank_can_be_chosen(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path, formats=["pb"])
    cli("finish", run, "--rank", "1")
    assert sorted(path.name for path in run.glob("summary/*")) == ["rank_00001_w0.json"]
    assert len(list(run.glob("raw/*.pb"))) == 2
    assert list(run.glob("*.json")) == [run / "manifest.json"]


def test_a_broken_capture_costs_itself(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path)
    raw = run / name(0).raw
    raw.write_bytes(raw.read_bytes()[:-7])
    seen = cli("finish", run)
    assert f"{raw}: byte " in seen.err
    assert "the file is truncated or is not a Paddle .pb trace" in seen.err
    assert "rank 1 (" in seen.out
    assert raw.exists()


def test_nothing_usable_is_exit_code_3(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path, ranks=1)
    (run / name(0).raw).write_bytes(b"\x0f" * 64)
    (line,) = cli("finish", run, code=3).err.splitlines()
    assert line.startswith(f"{run / name(0).raw}: ")
    assert "elsewhere" in cli("finish", str(tmp_path / "elsewhere"), code=3).err


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some.json"),
        OSError("No space left on device (os error 28)"),  # of polars
    ],
)
def test_a_full_disk_is_one_line_with_one_remedy(
    tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """However many windows wait; their raw captures are whole."""
    run = killed_run(tmp_path)
    raws = {path: path.read_bytes() for path in (run / "raw").iterdir()}

    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(run_finish, "write_paddle_json", full)
    assert cli("finish", run, code=3).err == (
        f"{run}: No space left on device: the raw capture is kept; once there "
        f"is space again, run: ppprof finish {run}\n"
    )
    assert len(raws) > 1
    assert {path: path.read_bytes() for path in raws} == raws


def test_what_cannot_be_written_is_said(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path, ranks=1)
    (run / "summary").rmdir()
    (run / "summary").write_text("in the way")
    seen = cli("finish", run, code=3)
    assert "summary/rank_00000_w0.json" in seen.err
    assert seen.err.endswith(
        f"the raw capture is kept; once it can be written again, run: ppprof finish {run}\n"
    )
    assert "rank 0 (dp0" in seen.out
    assert (run / name(0).raw).exists()


def test_a_manifest_of_something_else(tmp_path: Path, cli) -> None:
    (tmp_path / "manifest.json").write_text('{"schema_version": 1}')
    assert "no profiler block; expected one of a ppprof run" in cli("finish", tmp_path, code=3).err


def test_nothing_left_to_do_is_done(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path, ranks=0)
    seen = cli("finish", run)
    assert (seen.out, seen.err) == (
        "",
        f"{run}: nothing left to finish; tables as data: {run}/summary\n",
    )


def test_what_could_not_be_read_is_not_removed(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path, ranks=1)
    raw = run / name(0).raw
    raw.write_bytes(b"")
    assert f"{raw}: contains no event; the file is kept" in cli("finish", run).err
    assert raw.exists()


def test_what_a_window_lacks_is_said_as_it_is_saved(tmp_path: Path, cli) -> None:
    """45 of 100 kernels are lost, in steps 2 to 6 of 10, and one in step 0 claims an hour."""
    run = claim(tmp_path / "profiler_log")
    config = ProfilerConfig.from_mapping({"enable": True, "formats": ["json"]})
    write_manifest(run, {"profiler": config.to_mapping()})
    hour_ns = 3_600_000_000_000
    steps = []
    for step in range(10):
        inside = []
        for number in range(10):
            at = step * 10_000 + number * 900
            end = at + 800 + (hour_ns if (step, number) == (0, 4) else 0)
            is_lost = 2 <= step <= 6 and number > 0
            inside.append(launch(at + 1, at + 2, *([] if is_lost else [kernel("k", at + 5, end)])))
        steps.append(
            span(
                "ProfileStep", f"ProfileStep#{step}", step * 10_000, step * 10_000 + 9_900, *inside
            )
        )
    write(run / name(0).raw, Thread(1, "main", tuple(steps)))
    messages = cli("finish", run).err
    assert "45 of 100 launches have no device event" in messages
    assert "left out of all tables and averages: steps 2-6 (5 of 10)" in messages
    assert "where work runs in order: 1 (k)" in messages
    summary = json.loads((run / name(0).summary).read_text())
    assert summary["steps"] == [0, 1, 7, 8, 9]
    (row,) = summary["tables"]["kernel"]
    assert (row["calls"], row["gpu_max_ns"]) == (50, 900)
    written = read(run / name(0).trace("json"))
    assert written.events.filter(category="Kernel")["dur_ns"].max() == hour_ns + 795


def test_remote_calls_are_finished_with_their_window(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path, ranks=1)
    raw = (run / name(0).raw).read_bytes()
    at_ns = [EPOCH_NS + ns for ns in (100, 200, 300, 900, 1_000, 1_100)]
    call = RemoteCall("a", None, "f", "w0", "w1", "host:7", gpu_traces.MAIN, *at_ns)
    write_call(run_file(run / name(0).calls), call, raw)
    (run / name(0).calls / "b.json").write_text("{")
    seen = cli("finish", run)
    assert "-rpc#f(w0 -> w1)-" in seen.out
    assert "partly read: skipped 1 remote call" in seen.err
    assert (run / name(0).calls).is_dir()

    (run / name(0).calls / "b.json").unlink()
    assert cli("finish", run).err == ""
    assert list(run.glob("raw/*")) == []
    summary = json.loads((run / name(0).summary).read_text())
    assert {row["node"] for row in summary["tables"]["op"]} == {"w0", "w1"}


def test_what_a_killed_one_left_half_written_is_removed(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path, ranks=1)
    halves = [
        run / f".writing_{name(0).stem}..json.4711",
        run / f"summary/.writing_{Path(name(0).summary).name}.0123",
    ]
    for half in halves:
        half.write_text("{")
    cli("finish", run)
    assert not [half for half in halves if half.exists()]


def test_a_save_that_was_cut_is_named_and_removed(tmp_path: Path, cli) -> None:
    """The training was killed meanwhile; of another rank, it may still be going on."""
    run = killed_run(tmp_path, ranks=1)
    raw = run / name(0).raw
    halves = [raw.with_name(f".writing_{raw.name}.{'0' * 32}") for raw in (raw, run / name(1).raw)]
    for half in halves:
        half.write_bytes(b"half")
    raw.unlink()
    LivenessRegistry(run, Topology.of(dp=2), 1)  # this process is rank 1
    err = cli("finish", run).err
    lost = "removed: rank 0, window 0 is lost: its process ended while it was saved"
    assert f"{halves[0]}: {lost}\n" in err
    assert f"{halves[1]}: rank 1, window 0 is being saved, or its process was killed" in err
    assert [half.exists() for half in halves] == [False, True]


def test_a_capture_that_another_process_is_at_is_left_to_it(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path)
    raw = run / name(0).raw
    half = run / f".writing_{name(0).stem}..json.4711"
    half.touch()
    with raw.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert cli("finish", run).err == (f"{raw}: skipped: another process is finishing it\n")
    assert raw.exists()
    assert half.exists()
    assert (run / name(1).summary).exists()
    cli("finish", run)
    assert (run / name(0).summary).exists()


@pytest.mark.parametrize(
    ("waits_for", "number"),
    [
        pytest.param("Path(sys.argv[2], 'fifo').open()", signal.SIGALRM, id="waiting"),
        pytest.param("spin()", signal.SIGPROF, id="computing", marks=pytest.mark.all),
    ],
)
def test_a_limit_of_time_ends_it_and_leaves_the_capture(
    tmp_path: Path, waits_for: str, number: int
) -> None:
    run = killed_run(tmp_path, ranks=1)
    os.mkfifo(run / "fifo")
    program = f"""
import sys
from pathlib import Path
from ppprof.cli import finish, main
import ppprof.run.finish

def spin():
    while True: pass

finish._WALL_TIME_FACTOR = {1 if number == signal.SIGALRM else 60}
ppprof.run.finish.read_window = lambda raw: {waits_for}
main(sys.argv[1:])
"""
    command = [sys.executable, "-c", program, "finish", str(run), "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == -number, done.stderr
    assert (run / name(0).raw).exists()


def finished_by_helper(run: Path, *options: str) -> Finished:
    """Return what a capture's helper reports for window 0 of rank 0."""
    command = [sys.executable, "-m", "ppprof", "finish", str(run), "--rank", "0", *options]
    helper = Helper(command, 0)
    assert helper.add(0)
    deadline = time.monotonic() + 60
    while not (finished := helper.poll()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    helper.close()
    return finished[0]


def test_a_helper_says_what_advise_finds_in_the_window(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path, ranks=1, formats=["pb"])
    silent = finished_by_helper(run)
    assert (silent.failure, silent.err, silent.verdict) == ("", "", "")
    finished = finished_by_helper(run, "--verdict")
    assert finished.failure == ""
    assert finished.out == silent.out
    assert finished.out.startswith("rank 0 (")

    findings = json.loads(cli("advise", run, "--format", "json").out)["findings"]
    costs = [
        f"{row['share']:.0%}" for row in findings if row["severity"] != "minor" and row["share"]
    ]
    assert costs
    assert re.findall(r"(\d+%) ", finished.verdict) == costs[:3]
    step_ns = next(row["facts"]["step_ns"] for row in findings if "step_ns" in row["facts"])
    assert finished.verdict.startswith(f"rank 0, window 0: recorded step {step_ns / 1e6:.3g} ms: ")


def test_a_window_without_a_verdict_is_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = killed_run(tmp_path, ranks=1, formats=["pb"])
    write(run / name(0).raw)  # no event
    finished = finished_by_helper(run, "--verdict")
    assert (finished.failure, finished.verdict) == ("", "")
    assert "rank 0, window 0: no verdict: " in finished.err


def test_a_limit_is_at_least_a_second(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path, ranks=1)
    assert (
        cli("finish", run, "--seconds", "0", code=2).err
        == "--seconds: '0': expected a whole number from 1\n"
    )
    cli("finish", run, "--seconds", "99")
    assert signal.alarm(0) == 0
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


NOTE = """
import os, sys
with open(sys.argv[1], "a") as file:
    print(os.environ["PPPROF_RANK"], os.environ["PPPROF_WINDOW"], *sys.argv[2:], file=file)
print("copied")
"""


def test_a_command_runs_once_a_window_with_its_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = killed_run(tmp_path, formats=["json"])
    command = shlex.join([sys.executable, "-c", NOTE, str(tmp_path / "notes")])
    assert main(["finish", str(run), "--then", command]) == 0
    assert (tmp_path / "notes").read_text().splitlines() == [
        f"{rank} 0 {run / name(rank).trace('json')} {run / name(rank).summary}" for rank in (0, 1)
    ]
    out, err = capfd.readouterr()
    assert "copied" not in out
    assert err.count("copied") == 2


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("false", "rank 0, window 0: on_window_end false: exit code 1"),
        ("no-such-command", "on_window_end no-such-command: No such file or directory"),
    ],
)
def test_a_command_that_fails_is_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str, why: str
) -> None:
    run = killed_run(tmp_path, ranks=1)
    assert main(["finish", str(run), "--then", command]) == 0
    err = capfd.readouterr().err
    assert why in err
    assert "ppprof: " not in err  # the process that captures adds it to each line
    assert (run / name(0).trace("json")).exists()


def test_a_command_that_takes_too_long_is_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_finish, "_COMMAND_SECONDS", 0.2)
    run = killed_run(tmp_path, ranks=1)
    assert main(["finish", str(run), "--then", "sh -c 'sleep 60'"]) == 0
    assert "on_window_end sh -c 'sleep 60': ended after 0 s" in capfd.readouterr().err


def test_the_manifests_command_is_not_run(tmp_path: Path, cli) -> None:
    run = killed_run(tmp_path, on_window_end=["touch", str(tmp_path / "ran")])
    cli("finish", run)
    assert not (tmp_path / "ran").exists()


def test_a_trace_that_is_too_large_is_not_written_and_the_raw_one_stays(
    tmp_path: Path, cli
) -> None:
    run = killed_run(tmp_path, ranks=1, max_trace_mb=0.003, formats=["json"])
    err = cli("finish", run).err
    assert f"{run / name(0).raw}: kept: no json, which would take more than " in err
    assert "what is left of Profiler.max_trace_mb 0.003; ppprof convert writes it elsewhere" in err
    assert list(run.glob("*.paddle_trace.json")) == []
    assert [path.name for path in run.glob("*") if path.name.startswith(".")] == []
    assert (run / name(0).summary).exists()
    cli("summary", run)
