"""``ppprof hang`` on rings that are damaged, and its answers to a request."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ppprof.rundir import claim, flight
from ppprof.rundir.flight import FlightRing, answer_line, open_stacks, requested_stacks
from tests.conftest import Cli

NOW = 10**18


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ranks 0 to 2 wait in a barrier, to which rank 3 does not come."""
    run = tmp_path / "profiler_log"
    run.mkdir()
    (run / "manifest.json").write_text("{}")
    for rank in range(4):
        ring = FlightRing(run, rank)
        ring.group(0, range(4), "dp")
        texts = [ring.text(text) for text in ("barrier", "?", "train.py:7 step", "optimizer")]
        for sequence in (1, 2)[: 1 if rank == 3 else 2]:
            number = ring.add(0, sequence, 0, NOW + sequence, 0, -1, *texts)
            if sequence == 1:
                ring.returned(number, NOW + 3)
                ring.waited(number, NOW + 4)
    return run


def ring_file(run: Path, rank: int) -> Path:
    return run / flight.ring_path(rank)


DAMAGES: dict[str, tuple[Callable[[bytes, random.Random], bytes], str]] = {
    "empty": (lambda data, chance: b"", "0 bytes; expected at least"),
    "truncated": (
        lambda data, chance: data[: chance.randrange(1, len(data))],
        "the file is truncated",
    ),
    "zeros": (lambda data, chance: bytes(len(data)), "only zeros; expected"),
    "random": (lambda data, chance: chance.randbytes(len(data)), "the file is damaged"),
    "older": (lambda data, chance: data.replace(b"flight 3", b"flight 1"), "another version"),
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_ring_is_named_and_the_others_are_read(
    run: Path, cli: Cli, kind: str, seed: int
) -> None:
    damage, says = DAMAGES[kind]
    path = ring_file(run, 1)
    path.write_bytes(damage(path.read_bytes(), random.Random(seed)))
    out, err = cli("hang", run)
    assert f"{path}: " in err
    assert says in err
    assert "rank 3 has not come to barrier" in out
    assert "so this is likely, not sure" in out


def test_without_a_readable_ring_the_first_one_is_named(run: Path, cli: Cli) -> None:
    for rank in range(4):
        ring_file(run, rank).write_bytes(b"x" * 10)
    _, err = cli("hang", run, code=3)
    assert f"{ring_file(run, 0)}: 10 bytes; expected at least 196,672" in err
    assert "and 3 more ranks" in err


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("00000.ring")])
def test_what_is_no_file_is_refused(run: Path, cli: Cli, make: Callable[[Path], None]) -> None:
    ring_file(run, 1).unlink()
    make(ring_file(run, 1))
    out, err = cli("hang", run)
    assert f"{ring_file(run, 1)}: " in err
    assert "rank 3 has not come to barrier" in out


@pytest.mark.parametrize("seed", range(10))
def test_damaged_records_are_counted_or_left_alone(run: Path, cli: Cli, seed: int) -> None:
    """Any bytes behind the magic: a verdict or a message, within memory and time, never a traceback."""
    chance = random.Random(seed)
    for rank in range(4):
        path = ring_file(run, rank)
        data = bytearray(path.read_bytes())
        start = chance.choice([16, flight._FIRST, flight._TEXTS])
        end = chance.randrange(start + 1, len(data))
        data[start:end] = chance.randbytes(end - start)
        path.write_bytes(data)
    for form in ("table", "json"):
        out, _ = cli("hang", run, "--format", form)
        assert out
    assert "verdict" in json.loads(out)


@pytest.mark.parametrize("form", ["table", "json"])
def test_stacks_of_the_rank_that_does_not_come_are_asked_for(
    run: Path, cli: Cli, form: str
) -> None:
    requests: list[str] = []

    def answer() -> None:
        while not requests:
            time.sleep(0.05)
            request = requested_stacks(run, 3)
            assert not requested_stacks(run, 0)
            if request:
                fd = open_stacks(run, 3)
                os.write(
                    fd,
                    answer_line(request)
                    + b"Thread 0x1 (most recent call first):\n  in wait_here\n",
                )
                os.close(fd)
                requests.append(request)

    thread = threading.Thread(target=answer)
    thread.start()
    out, err = cli("hang", run, "--stacks", "--format", form)
    thread.join()
    assert "in wait_here" in (out if form == "table" else json.loads(out)["stacks"]["3"])
    assert err == ""
    assert requested_stacks(run, 3) == "", "the request is withdrawn"


def test_the_stacks_of_a_crash_are_shown_before_those_of_a_watchdog(run: Path, cli: Cli) -> None:
    fd = open_stacks(run, 3)
    for reason, place in (
        ("Timeout (0:00:05)!", "too_early"),
        ("Fatal Python error: Segmentation fault", "in_the_crash"),
        ("Timeout (0:00:05)!", "meanwhile"),
    ):
        os.write(fd, f"{reason}\nThread 0x1 (most recent call first):\n  in {place}\n".encode())
    os.close(fd)
    out, _ = cli("hang", run)
    assert "in in_the_crash" in out
    assert "too_early" not in out
    assert "meanwhile" not in out


def test_a_rank_that_does_not_answer_is_named(
    run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppprof.cli.hang._STACK_SECONDS", 0.5)
    _, err = cli("hang", run, "--stacks")
    assert "rank 3: no answer within" in err


@pytest.mark.parametrize("has_failed", [True, False])
def test_after_a_restart_the_run_that_hung_can_be_asked_about(
    run: Path, cli: Cli, has_failed: bool
) -> None:
    if has_failed:
        (run / "failed").mkdir()
        (run / "failed/00003.hang").touch()
    (run / "steps").mkdir()
    later = claim(run)
    (later / "manifest.json").write_text("{}")
    FlightRing(later, 0)
    out, err = cli("hang", run)
    assert out.startswith(f"{later}: rank 0")
    command = f"ppprof hang {run}/run_001"
    assert (command in err) == has_failed
    out, err = cli("hang", run / "run_001")
    assert out.startswith(f"{run}: ranks 0-3")
    assert command not in err


def test_a_rank_of_another_host_has_longer_to_answer(
    run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppprof.cli.hang._FAR_STACK_SECONDS", 0.7)
    (run / "alive").mkdir()
    (run / "alive/00003.4711.node7-4026531836").write_text("boot 1")
    _, err = cli("hang", run, "--stacks")
    assert "rank 3: no answer within 1 s: " in err
    assert "shows changes of other hosts later" in err


def test_of_overwritten_notes_the_command_says_perhaps(run: Path, cli: Cli) -> None:
    (run / "flight/00003.ring").unlink()
    ring = FlightRing(run, 3)
    ring.group(0, range(4), "dp")
    ring.group(1, (3,), None)
    for number in range(flight.MOST_OPERATIONS):
        ring.returned(ring.add(1, number + 1, 0, NOW, 8, -1, 0, 0, 0, 0), NOW + 1)
    shown = cli("hang", run)
    assert "later operations have overwritten what was noted of the group" in shown.out
    assert "waits for: perhaps rank 3" in shown.out
    waiting = json.loads(cli("hang", run, "--format", "json").out)["waiting"]
    assert {tuple(each["overwritten"]) for each in waiting} == {(3,)}


def test_a_wait_by_a_clock_that_is_ahead_is_not_below_0(run: Path, cli: Cli) -> None:
    ring_file(run, 0).unlink()
    ring = FlightRing(run, 0)
    ring.group(0, range(4), "dp")
    ring.add(0, 2, 0, time.time_ns() + 3600 * 10**9, 0, -1, ring.text("barrier"), 0, 0, 0)
    assert "rank 0 (step 0) for 0 s in barrier" in cli("hang", run).out
