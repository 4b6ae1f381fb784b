"""The ring of a rank's last communication operations."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ppprof.rundir import flight
from ppprof.rundir.flight import MOST_OPERATIONS, FlightRing, Group, Ring, Stacks, read_rings
from tests.jobs.launching import ROOT


def rings_of(run: Path) -> dict[int, Ring]:
    """Return the readable rings."""
    return read_rings(run)[0]


MEMBERS = {"group": 7, "ranks": [0, 3], "axis": "dp"}


def add(ring: FlightRing, sequence: int, step: int = 0) -> int:
    return ring.add(
        *(7, sequence, step, 1_000 + sequence, 4096, -1),
        *(
            ring.text("all_reduce"),
            ring.text("float32"),
            ring.text("train.py:41 step"),
            ring.text("backward"),
        ),
    )


def test_what_is_noted_is_read(tmp_path: Path) -> None:
    ring = FlightRing(tmp_path, 3)
    ring.text(MEMBERS)
    done, waits, inside = (add(ring, sequence) for sequence in (1, 2, 3))
    ring.returned(done, 2_000)
    ring.waited(done, 3_000)
    ring.returned(waits, 2_500)
    ring.waited(waits, -2_600)
    ring.step(5, 9_000)
    (read,) = rings_of(tmp_path).values()
    assert (read.rank, read.step, read.step_ns, read.unreadable) == (3, 5, 9_000, 0)
    assert read.groups == {7: Group((0, 3), "dp")}
    assert [each.is_pending for each in read.operations] == [False, True, True]
    assert [each.pending_since_ns for each in read.operations[1:]] == [2_600, 1_003]
    assert inside == 3
    (first, *_) = read.operations
    assert first[1:] == (
        *(7, 1, 0, 1_001, 2_000, 3_000, 4096, -1),
        *("all_reduce", "float32", "train.py:41 step", "backward"),
    )


def test_times_are_shifted_to_another_clock(tmp_path: Path) -> None:
    """A time below 0 is the negative of one, and 0 stands for no time."""
    ring = FlightRing(tmp_path, 3)
    failed, waits = add(ring, 1), add(ring, 2)
    ring.returned(failed, -2_000)
    ring.returned(waits, 2_500)
    ring.waited(waits, -2_600)
    for offsets_ns, shift_ns in (({3: -70}, -70), ({2: 9}, 0)):
        operations = read_rings(tmp_path, offsets_ns=offsets_ns)[0][3].operations
        assert [(each.called_ns, each.returned_ns, each.waited_ns) for each in operations] == [
            (1_001 + shift_ns, -2_000 - shift_ns, 0),
            (1_002 + shift_ns, 2_500 + shift_ns, -2_600 - shift_ns),
        ]


def test_the_last_operations_stay(tmp_path: Path) -> None:
    ring = FlightRing(tmp_path, 0)
    first = add(ring, 1)
    for sequence in range(2, 3 * MOST_OPERATIONS):
        add(ring, sequence)
    ring.returned(first, 1)  # its record is another operation's by now
    operations = rings_of(tmp_path)[0].operations
    expected = list(range(2 * MOST_OPERATIONS, 3 * MOST_OPERATIONS))
    assert [each.sequence for each in operations] == expected
    assert not any(each.returned_ns for each in operations)


@pytest.mark.parametrize("ranks", [range(10_000), range(3, 9_999, 8), (5,), (0, 1, 3), (7, 4)])
def test_a_group_of_any_size_is_kept(tmp_path: Path, ranks: Sequence[int]) -> None:
    ring = FlightRing(tmp_path, 0)
    for number in range(20):
        ring.group(number, ranks, "dp")
    assert ring.text("there is room for more") > 0
    groups = rings_of(tmp_path)[0].groups
    assert {number: (tuple(group.ranks), group.axis) for number, group in groups.items()} == (
        dict.fromkeys(range(20), (tuple(ranks), "dp"))
    )


def test_groups_of_a_damaged_file_take_bounded_memory(tmp_path: Path) -> None:
    ring = FlightRing(tmp_path, 0)
    for number in range(50):
        ring.group(number, range(900_000), None)
    assert len(rings_of(tmp_path)[0].groups) == 1


def test_texts_end_where_there_is_no_more_room(tmp_path: Path) -> None:
    ring = FlightRing(tmp_path, 0)
    numbers = [ring.text(f"a place with a long name {number:0999}") for number in range(100)]
    assert 0 < numbers[0] < numbers[50]
    assert numbers[-1] == 0
    assert rings_of(tmp_path)[0].groups == {}


def test_damaged_files_and_records_are_left_out(tmp_path: Path) -> None:
    ring = FlightRing(tmp_path, 0)
    for sequence in (1, 2, 3):
        add(ring, sequence)
    path = tmp_path / flight.ring_path(0)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, flight._FIRST + 2 * 64, 4711)  # one end of the second record
    path.write_bytes(data)
    (tmp_path / "flight/00001.ring").write_bytes(b"ppprof flight 1\nshort")
    (tmp_path / "flight/00002.ring").write_bytes(bytes(len(data)))
    rings = rings_of(tmp_path)
    assert [*rings] == [0]
    assert [each.sequence for each in rings[0].operations] == [1, 3]
    assert rings[0].unreadable == 1


@pytest.mark.parametrize("seed", range(20))
def test_any_content_is_read_without_an_error(tmp_path: Path, seed: int) -> None:
    FlightRing(tmp_path, 0).text(MEMBERS)
    path = tmp_path / flight.ring_path(0)
    chance, data = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(5_000):
        data[chance.randrange(16, len(data))] = chance.randrange(256)
    path.write_bytes(data)
    for ring in rings_of(tmp_path).values():
        assert len(ring.operations) + ring.unreadable <= MOST_OPERATIONS


@pytest.mark.parametrize("moment", range(5))
def test_a_killed_process_leaves_its_last_operations(tmp_path: Path, moment: int) -> None:
    command = [sys.executable, "-m", "tests.rundir.flight_program", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random(moment).uniform(0.01, 0.2))
        os.kill(process.pid, signal.SIGKILL)
    ring = rings_of(tmp_path)[0]
    sequences = [each.sequence for each in ring.operations]
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
    assert ring.step in (sequences[-1], sequences[-1] - 1)
    assert ring.unreadable <= 1
    assert len(sequences) >= min(MOST_OPERATIONS, ring.step) - 1


STACKS = """{reason}

{crashed} 0x00007f05d2ffd6c0 (most recent call first):
  File "/home/user/loader.py", line 12 in read
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007f05d37fe6c0 (most recent call first):
  File "/env/lib/python3.11/site-packages/ppprof/capture/signals.py", line 194 in _watch
  File "/env/lib/python3.11/site-packages/ppprof/capture/process.py", line 170 in run
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007ffb03c27b80 (most recent call first):
  File "/env/lib/python3.11/site-packages/paddle/base/framework.py", line 727 in __impl__
  File "/home/user/train.py", line 55 in step
  File "/home/user/train.py", line 91 in <module>
  File "/home/ppprof/ppprof/integrations/script.py", line 146 in _run

Extension modules: yaml._yaml, numpy.random.mtrand (total: 2)"""


@pytest.mark.parametrize(
    ("reason", "crashed", "place", "is_of_the_end"),
    [
        ("Ended by SIGTERM 1796027241000000000", "Thread", "train.py:55 step", True),
        ("Timeout (0:05:00)!", "Thread", "train.py:55 step", False),
        ("Requested 33e07f9dfd35", "Thread", "train.py:55 step", False),
        ("Fatal Python error: Aborted", "Thread", "train.py:55 step", True),
        ("Fatal Python error: Aborted", "Current thread", "loader.py:12 read", True),
    ],
)
def test_stacks_begin_with_the_thread_that_counts(
    reason: str, crashed: str, place: str, is_of_the_end: bool
) -> None:
    stacks = Stacks(STACKS.format(reason=reason, crashed=crashed))
    assert (stacks.place, stacks.is_of_the_end) == (place, is_of_the_end)
    assert stacks.is_crash == reason.startswith("Fatal")
    own = [line for line in stacks.shown.splitlines() if "line" in line]
    assert f'{place.partition(":")[0]}"' in next(line for line in own if "/home/user/" in line)
    assert "signals.py" not in stacks.shown
    assert "Extension modules" not in stacks.shown
    assert len(own) == 6


def test_stacks_name_what_is_not_ascii_as_it_is_written() -> None:
    stacks = Stacks(
        STACKS.replace("train.py", r"\u8bad\u7ec3.py").format(reason="", crashed="Thread")
    )
    assert stacks.place == "训练.py:55 step"
    assert "训练.py" in stacks.shown


def test_stacks_of_more_than_100_threads_leave_out_the_main_thread() -> None:
    text = STACKS.partition("Thread 0x00007ffb")[0].format(reason="Timeout!", crashed="Thread")
    assert Stacks(text).place == ""
    assert Stacks(f"{text.rstrip()}\n...\n").place == ""
    assert Stacks(f"{STACKS.partition('Thread 0x00007f05d37')[0]}...\n").place == ""


def test_what_ended_a_rank_is_named_with_its_time() -> None:
    stacks = Stacks("Ended by SIGTERM 1796027241000000000\nThread 0x1 (most recent call first):\n")
    assert (stacks.end, stacks.ended_ns) == ("SIGTERM", 1796027241000000000)
    assert stacks.shown.splitlines()[0] == "Ended by SIGTERM"
    for text in ("", "Ended by SIGTERM", "Ended by SIGTERM 1e9", "Fatal Python error: Aborted 12"):
        assert Stacks(text).ended_ns == 0


def test_stacks_without_a_line_of_the_user_have_no_place() -> None:
    for text in ("", "Timeout (0:00:05)!\n", "Timeout!\n  <no Python frame>", "\0" * 100):
        assert Stacks(text).place == ""
