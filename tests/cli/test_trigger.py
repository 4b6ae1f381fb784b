"""``ppprof trigger``: what it leaves, and when it refuses."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ppprof.capture.ranks.job import Job
from ppprof.cli import main
from ppprof.config import ProfilerConfig
from ppprof.rundir import claim, triggers, write_manifest, write_node_marker
from ppprof.rundir.liveness import LivenessRegistry
from ppprof.rundir.triggers import (
    TriggerResponse,
    append_response,
    consume_request,
    read_response,
    request_path,
    write_completion,
)
from ppprof.topology import Topology

GRID = Topology.of(dp=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppprof.cli.trigger._POLL_SECONDS", 0.01)
    monkeypatch.setattr("ppprof.cli.trigger._FINISH_SECONDS", 0.2)


def job(folder: Path, attached: tuple[int, ...] = (0, 1), **profiler: Any) -> Path:
    """A run directory that this process is in the session of, as these ranks."""
    run = claim(folder / "profiler_log")
    block = ProfilerConfig.from_mapping({"enable": True, "trigger": True, **profiler})
    manifest = Job(0, GRID, ("node7", "node8")).manifest({"profiler": block.to_mapping()})
    write_manifest(run, manifest)
    request_path(run).parent.mkdir()
    for rank in attached:
        LivenessRegistry(run, GRID, rank)
        write_node_marker(run, rank)
    return run


def test_a_request_is_left_and_said_what_of(tmp_path: Path, cli) -> None:
    run = job(tmp_path)
    assert (
        f"{run}: requested 2 steps on rank 1; rank 0 reads this"
        in cli("trigger", run, "--steps", "2", "--rank", "1").out
    )
    request = consume_request(run)
    assert request is not None
    assert (request.steps, request.ranks, request.problem) == (2, "1", None)
    assert [path.name for path in (run / "trigger").iterdir()] == []
    assert "requested 4 steps on ranks 0-1" in cli("trigger", run).out


def test_the_first_run_of_a_log_with_a_later_one_is_not_called_the_newest(
    tmp_path: Path, cli
) -> None:
    run = job(tmp_path)
    write_manifest(claim(run), {})
    out, err = cli("trigger", run / "run_001")
    assert out.startswith(f"{run}: requested")
    assert "newest" not in err


def test_a_second_request_does_not_replace_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = job(tmp_path)
    assert [main(["trigger", str(run)]) for _ in range(2)] == [0, 2]
    assert "another request waits for rank 0's next step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("made", "arguments", "code", "why"),
    [
        (
            {"trigger": None},
            [],
            2,
            "accepts no requests: Profiler.trigger is off; start it with -o",
        ),
        ({"trigger": {"file": False, "slow_step": 2}}, [], 2, "Profiler.trigger.file is False"),
        ({"timer_only": True}, [], 2, "records nothing: Profiler.timer_only is True"),
        ({}, ["--steps", "0"], 2, "'0': expected a whole number from 1"),
        ({}, ["--steps", "10001"], 2, "--steps: 10001: expected at most 10000"),
        ({}, ["--rank", "2"], 2, 'ranks "2": expected 0 to 1'),
        ({}, ["--timeout", "2"], 2, "--timeout: has no effect without --wait"),
        ({"ranks": 0}, ["--rank", "1"], 2, "--rank 1: the job records on rank 0 only"),
        ({"attached": ()}, [], 3, "the job has ended, or has not attached yet"),
        ({"attached": (1,)}, [], 3, "rank 0 writes on a disk of node7"),
    ],
)
def test_what_is_refused(
    tmp_path: Path,
    cli,
    made: dict[str, Any],
    arguments: list[str],
    code: int,
    why: str,
) -> None:
    run = job(tmp_path, **made)
    assert why in cli("trigger", run, *arguments, code=code).err
    assert not request_path(run).exists()


def test_a_job_whose_rank_0_was_killed_has_ended(tmp_path: Path, cli) -> None:
    run = job(tmp_path)
    (entry,) = (run / "alive").glob("00000.*")
    child = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(child, 0)
    entry.rename(entry.with_name(entry.name.replace(f".{os.getpid()}.", f".{child}.")))
    assert "the job has ended" in cli("trigger", run, code=3).err


def test_no_run(tmp_path: Path, cli) -> None:
    assert "no run here" in cli("trigger", tmp_path, code=3).err


@pytest.mark.parametrize("kind", ["pipe", "link", "odd"])
def test_waiting_for_an_answer_ends_in_time(tmp_path: Path, cli, kind: str) -> None:
    run = job(tmp_path)
    path = run / "trigger/answers.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    else:
        values = [None, [], {}, -1, "x", [[]], [None], 1 << 90]
        lines = [{"why": "x", "ranks": value, "start": value, "steps": 2} for value in values]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, [], 3, "[" * 9999]))
    assert (
        "no answer yet; the request stays"
        in cli("trigger", run, "--wait", "--timeout", "0.1", code=1).err
    )


def test_a_timeout_of_0_looks_once(tmp_path: Path, cli) -> None:
    run = job(tmp_path)
    err = cli("trigger", run, "--wait", "--timeout", "0", code=1).err
    assert "no answer yet; the request stays" in err


def test_an_answer_of_odd_values_is_none(tmp_path: Path) -> None:
    run = job(tmp_path)
    whole = {"why": "x", "request": "r", "window": 1, "start": 2, "steps": 3, "ranks": [0]}
    path = run / "trigger/answers.jsonl"
    for key in whole:
        for value in ([], {}, -1, 1.5, [[]], [None], [-1], True):
            path.write_text(f"{json.dumps({**whole, key: value})}\n")
            is_list = key == "ranks" and value == []
            assert (read_response(run, "r") is None) != is_list, (key, value)
    path.write_text(f"{json.dumps(whole)}\n")
    assert read_response(run, "r") == TriggerResponse(**whole)  # type: ignore[arg-type]


def answering(run: Path, answers: bool = True, files: bool = True, **answer: Any) -> None:
    """Rank 0's part, in a thread."""

    def rank_0() -> None:
        while (request := consume_request(run)) is None:
            time.sleep(0.005)
        if answers:
            append_response(run, TriggerResponse("asked for by request", request.id, **answer))
        if files:
            for rank in (0, 1):
                names = [run / f"rank_0000{rank}_json", run / f"summary/rank_0000{rank}_w3.json"]
                write_completion(run, rank, 3, names, "no json, which is large" if rank else None)
        else:
            for entry in (run / "alive").iterdir():
                entry.unlink()

    threading.Thread(target=rank_0, daemon=True).start()


def test_waiting_prints_the_files(tmp_path: Path, cli) -> None:
    run = job(tmp_path)
    answering(run, window=3, start=70, steps=4, ranks=[0, 1])
    out, err = cli("trigger", run, "--wait")
    assert sorted(out.splitlines()) == sorted(
        str(run / name)
        for rank in (0, 1)
        for name in (f"rank_0000{rank}_json", f"summary/rank_0000{rank}_w3.json")
    )
    assert "window 3: steps 70 to 73 on ranks 0-1; waiting for its files" in err
    assert "rank 1: no json, which is large" in err


def test_ranks_of_other_disks_are_not_waited_for(tmp_path: Path, cli) -> None:
    run = job(tmp_path, attached=(0,))
    answering(run, window=3, start=70, steps=4, ranks=[0, 1])
    out, err = cli("trigger", run, "--wait")
    assert len(out.splitlines()) == 2
    assert "not waiting for files of rank 1, which are on other disks" in err


def test_waiting_says_when_there_will_be_none(tmp_path: Path, cli) -> None:
    run = job(tmp_path)
    answering(run, refused="already recording")
    assert "no window: already recording" in cli("trigger", run, "--wait", code=1).err
    assert (
        "no answer yet; the request stays"
        in cli("trigger", run, "--wait", "--timeout", "0.1", code=1).err
    )
    consume_request(run)
    answering(run, answers=False, files=False)
    assert "the job ended without reading the request" in cli("trigger", run, "--wait", code=3).err


def test_waiting_for_a_job_that_ends(tmp_path: Path, cli) -> None:
    run = job(tmp_path)
    answering(run, files=False, window=3, start=70, steps=4, ranks=[0, 1])
    assert f"left no files of ranks 0-1; if raw ones are there: ppprof finish {run}" in (
        cli("trigger", run, "--wait", code=3).err
    )


def test_answers_that_are_cut_off_are_none(tmp_path: Path) -> None:
    run = job(tmp_path)
    append_response(run, TriggerResponse("asked", "a", window=1))
    with (run / "trigger/answers.jsonl").open("a") as file:
        file.write(json.dumps({"why": "asked"})[:-4])
    assert triggers.read_response(run, "b") is None
    assert triggers.read_response(run, "a") == TriggerResponse("asked", "a", window=1)


@pytest.mark.parametrize("kind", ["loop", "long"])
def test_a_path_that_cannot_be_reached_is_a_sentence(tmp_path: Path, cli, kind: str) -> None:
    path = tmp_path / ("loop" if kind == "loop" else "x" * 300)
    if kind == "loop":
        path.symlink_to(path)
    (line,) = cli("trigger", path, code=3).err.splitlines()
    assert line.startswith(f"{path}: ")
