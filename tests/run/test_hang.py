"""Which rank a job waits for, from rings that are written here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ppprof.cli.schema import schema_text
from ppprof.errors import InputError
from ppprof.run.hang import Hang, find_hang
from ppprof.rundir import write_manifest
from ppprof.rundir.clocks import Reading, clocks_path, line_of
from ppprof.rundir.flight import MOST_OPERATIONS, FlightRing, ending_line, open_stacks, ring_path
from ppprof.rundir.liveness import LivenessRegistry
from ppprof.topology import Topology
from tests.conftest import Cli
from tests.fixtures.json_schemas import validate

GROUPS = {0: (0, 1, 2, 3), 1: (0, 1), 2: (2, 3), 3: (0, 1)}
"""Group -> its ranks."""


class Job:
    """Writes what ranks have done: each call is (group, operation) or (group, "send" or "recv", peer)."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._now = 10**18
        (run / "manifest.json").write_text("{}")

    def rank(
        self,
        rank: int,
        *calls: Any,
        waits: int = 0,
        raises: bool = False,
        on_device: bool = False,
    ) -> None:
        """Write a ring; it ``waits`` in so many of the last calls; ``raises``: an exception ended the last one."""
        ring = FlightRing(self.run, rank)
        for group, ranks in GROUPS.items():
            ring.group(group, ranks, None, on_device)
        numbers: dict[Any, int] = {}
        for place, (group, name, *more) in enumerate(calls):
            self._now += 1_000
            is_transfer = name in ("send", "recv")
            key = (group, name, *more) if is_transfer else group
            numbers[key] = numbers.get(key, 0) + 1
            size = 8 if is_transfer or not more else more[0]
            number = ring.add(
                *(group, numbers[key], 0, self._now, size, more[0] if is_transfer else -1),
                *(
                    ring.text(name),
                    ring.text(more[1] if more[1:] else "float32"),
                    ring.text(f"train.py:{place + 1} step"),
                    0,
                ),
            )
            is_last = place == len(calls) - 1
            if raises and is_last:
                ring.returned(number, -self._now - 1)
            elif place < len(calls) - waits:
                ring.returned(number, self._now + 1)
                ring.waited(number, 0 if on_device else self._now + 2)

    def hang(self) -> Hang:
        return find_hang([self.run])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_rank_that_does_not_come(job: Job) -> None:
    for rank in (0, 1, 3):
        job.rank(rank, (0, "all_reduce"), (0, "all_gather"), waits=True)
    job.rank(2, (0, "all_reduce"))
    hang = job.hang()
    assert (hang.causes, hang.circle, hang.absent) == ((2,), (), ())
    assert hang.verdict().startswith(
        "rank 2 has not come to all_gather of the group of ranks 0-3, where ranks 0-1, 3 wait; it "
        "last called all_reduce at train.py:1 step, "
    )


def of_steps(ring: FlightRing, numbers: Sequence[int], waits: bool) -> None:
    """Call so many all_reduces in each step, all at one line, and one more in the last step, which has not ended."""
    ring.group(0, (0, 1), None)
    sequence = 0
    for step, num in enumerate([*numbers, 1]):
        for _ in range(num):
            sequence += 1
            texts = (ring.text("all_reduce"), ring.text("float32"), ring.text("train.py:1 step"))
            number = ring.add(0, sequence, step, 10**18 + sequence, 8, -1, *texts, 0)
            if step < len(numbers) or not waits:
                ring.returned(number, 10**18 + sequence + 1)
    ring.step(len(numbers), 10**18 + 5000)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        (
            [3, 3, 3, 2, 3],
            "; already in step 3 the ranks of the group of ranks 0-1 did not call as many collectives as each other "
            "(rank 1: 2, rank 0: 3), above all all_reduce at train.py:1 step",
        ),
        (
            [3, 3, 3, 3, 3, 0],
            "; already in step 5 the ranks of the group of ranks 0-1 did not call as many collectives as each other "
            "(rank 1: 0, rank 0: 1), above all all_reduce at train.py:1 step",
        ),
        ([3, 3, 3, 2, 4], ""),
        ([3, 3, 3, 3, 3], ""),
        ([2, 3, 3, 3, 3], ""),
    ],
)
def test_the_step_from_which_on_ranks_are_shifted(
    job: Job, cli: Cli, numbers: list[int], text: str
) -> None:
    """One line calls all, so that only the numbers differ; in a first step they may differ anyway."""
    of_steps(FlightRing(job.run, 0), [3, 3, 3, 3, 3], waits=True)
    of_steps(FlightRing(job.run, 1), numbers, waits=False)
    verdict = job.hang().verdict()
    assert ("already in step" in verdict) == bool(text)
    assert text in verdict
    document = json.loads(cli("hang", job.run, "--format", "json").out)
    validate(document, json.loads(schema_text("hang")))
    assert (document["uneven"] is not None) == bool(text)


REDUCTION = "backward of DataParallel"


def test_a_backward_of_data_parallel_and_a_barrier_are_different_operations(job: Job) -> None:
    job.rank(0, (0, REDUCTION), (0, REDUCTION), waits=True)
    job.rank(1, (0, REDUCTION), (0, "barrier"), waits=True)
    assert (
        job.hang()
        .verdict()
        .startswith(
            "the ranks of the group of ranks 0-3 call different operations as number 2: rank 0: "
            "backward of DataParallel at train.py:2 step; rank 1: barrier at train.py:2 step"
        )
    )


@pytest.mark.parametrize("name", [REDUCTION, "all_reduce"])
def test_a_backward_that_ends_on_one_rank_alone_left_gradients_out(job: Job, name: str) -> None:
    for rank in (0, 2, 3):
        job.rank(rank, (0, name), (0, name), waits=True)
    job.rank(1, (0, name), (0, name))
    verdict = job.hang().verdict()
    assert ("it has ended on rank 1 alone, as where some parameters" in verdict) == (
        name == REDUCTION
    )
    assert ("look at the network" in verdict) == (name != REDUCTION)


def test_a_rank_in_a_backward_that_others_wait_for_elsewhere_computes_in_it(job: Job) -> None:
    """A hook of the backward reduces; rank 1 stands before it."""
    for rank in (0, 2, 3):
        job.rank(rank, (0, REDUCTION), (0, "all_reduce"), waits=2)
    job.rank(1, (0, REDUCTION), waits=True)
    assert job.hang().verdict().startswith("rank 1 has not come to all_reduce of the group")


def test_a_rank_that_has_left_a_backward_may_have_called_more(job: Job) -> None:
    for rank in (0, 2, 3):
        job.rank(rank, (0, REDUCTION), waits=True)
    job.rank(1, (0, REDUCTION), (0, "barrier"), waits=True)
    assert "but it has ended on rank 1 alone" in job.hang().verdict()


def test_where_a_device_reduces_a_host_that_left_a_backward_says_nothing(job: Job) -> None:
    for rank in (0, 2, 3):
        job.rank(rank, (0, REDUCTION), waits=True, on_device=True)
    job.rank(1, (0, REDUCTION), on_device=True)
    assert "look at the network and at the devices" in job.hang().verdict()


def test_a_backward_that_raised_did_not_wait(job: Job) -> None:
    job.rank(0, (0, "all_reduce"))
    job.rank(1, (0, "all_reduce"), (0, REDUCTION), raises=True)
    LivenessRegistry(job.run, Topology.of(), 1).mark_failed(MemoryError("full"))
    hang = job.hang()
    assert hang.waiting == ()
    assert "rank 1: failed: MemoryError: full" in hang.verdict()


def test_a_long_backward_that_raised_waited_for_the_rank_that_did_not_come(job: Job) -> None:
    """Gloo's time was up."""
    job.rank(0)
    ring = FlightRing(job.run, 1)
    ring.group(0, GROUPS[0], None)
    texts = (ring.text(REDUCTION), ring.text("float32"), ring.text("train.py:1 step"))
    number = ring.add(0, 1, 0, 10**18, 8, -1, *texts, 0)
    ring.returned(number, -(10**18 + 30 * 10**9))
    LivenessRegistry(job.run, Topology.of(), 1).mark_failed(RuntimeError("TIMEOUT"))
    for rank in (2, 3):
        job.rank(rank, (0, REDUCTION), waits=True)
    verdict = job.hang().verdict()
    assert verdict.startswith("rank 0 (its session has ended")
    assert "has not come to backward of DataParallel" in verdict


def test_of_another_host_a_crash_is_believed(job: Job) -> None:
    for rank in (0, 1, 3):
        job.rank(rank, (0, "all_reduce"), (0, "barrier"), waits=True)
    job.rank(2, (0, "all_reduce"))
    (job.run / "alive").mkdir()
    (job.run / "alive/00002.4711.node7-4026531836").write_text("boot 1")
    fd = open_stacks(job.run, 2)
    os.write(
        fd, b"Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n"
    )
    os.write(fd, b'  File "/home/user/train.py", line 7 in prepare\n')
    os.close(fd)
    hang = job.hang()
    assert hang.verdict().startswith("rank 2 (crashed at train.py:7 prepare: Segmentation fault)")
    assert not hang.may_answer(2)


IN_LOADER = (
    "Thread 0x1 (most recent call first):\n"
    '  File "/usr/lib/python3/dist-packages/paddle/io/dataloader/dataloader_iter.py", line 307 in {}\n'
    '  File "/home/user/train.py", line 10 in main\n'
)
READS = (
    "Thread 0x2 (most recent call first):\n"
    '  File "/home/user/data.py", line 3 in __getitem__\n'
    '  File "/usr/lib/python3/dist-packages/paddle/io/dataloader/dataloader_iter.py", line 233 in {}\n\n'
)


QUEUED = f"{READS.partition('  File')[0]}  File{READS.rpartition('  File')[2]}".format(
    "_thread_loop"
)
"""A thread that has read what its queue holds."""


@pytest.mark.parametrize(
    ("text", "has_ended"),
    [
        (IN_LOADER.format("__next__"), True),
        (READS.format("_thread_loop") + IN_LOADER.format("__next__"), False),  # it reads on
        (QUEUED + IN_LOADER.format("__next__"), True),  # of the training's own DataLoader
        (IN_LOADER.format("__init__"), False),
        (IN_LOADER.format("__next__").replace("paddle", "other"), False),
        (f"{IN_LOADER.format('__next__').rstrip()}\n...\n", False),  # threads are left out
    ],
)
def test_a_job_of_one_rank_waits_for_none_but_for_its_loader(
    job: Job, text: str, has_ended: bool
) -> None:
    write_manifest(job.run, {"world_size": 1})
    job.rank(0)
    LivenessRegistry(job.run, Topology.of(), 0)
    alone = "the job has one rank, which waits for no other: "
    assert job.hang().verdict() == f"{alone}--stacks shows where it is"
    fd = open_stacks(job.run, 0)
    os.write(fd, f"Requested 0123456789ab\n\n{text}".encode())
    os.close(fd)
    verdict = job.hang().verdict()
    assert verdict.startswith(alone)
    assert ("a DataLoader whose thread has ended" in verdict) == has_ended
    kill(job.run, 0)
    fd = open_stacks(job.run, 0)
    os.write(fd, ending_line("SIGTERM", 10**18) + f"\n{text}".encode())
    os.close(fd)
    verdict = job.hang().verdict()
    assert ("a DataLoader whose thread has ended" in verdict) == has_ended
    assert "SIGTERM" in verdict


def test_a_rank_that_caught_an_exception_of_a_backward_is_not_waited_for(job: Job) -> None:
    """It went on to an all_reduce."""
    for rank in (0, 2, 3):
        job.rank(rank, (0, REDUCTION), waits=True)
    ring = FlightRing(job.run, 1)
    ring.group(0, GROUPS[0], None)
    for sequence, name in enumerate((REDUCTION, "all_reduce"), 1):
        number = ring.add(
            *(0, sequence, 0, 10**18 + sequence, 8, -1, ring.text(name), ring.text("float32")),
            *(ring.text("train.py:1 step"), 0),
        )
        if name == REDUCTION:
            ring.returned(number, -(10**18) - 10)
    LivenessRegistry(job.run, Topology.of(), 1)
    verdict = job.hang().verdict()
    assert "have called backward of DataParallel" in verdict
    assert "an exception ended it on rank 1" in verdict


@pytest.mark.parametrize(("seconds", "is_early"), [(3, True), (40, False)])
def test_a_job_that_was_ended_soon_may_not_have_hung(
    job: Job, seconds: int, is_early: bool
) -> None:
    for rank in (0, 1, 2, 3):
        job.rank(rank, (0, REDUCTION), waits=True)
        fd = open_stacks(job.run, rank)
        os.write(fd, ending_line("SIGTERM", 10**18 + seconds * 10**9))
        os.close(fd)
        (job.run / "failed").mkdir(exist_ok=True)
        (job.run / f"failed/{rank:05d}.sigterm").touch()
    hang = job.hang()
    assert hang.is_early == is_early
    assert hang.is_sure != is_early
    assert "--stacks" not in hang.verdict(), "no process could answer"


def test_the_crash_of_a_forked_process_is_not_the_ranks(job: Job) -> None:
    for rank in (0, 1, 3):
        job.rank(rank, (0, "all_reduce"), (0, "barrier"), waits=True)
    job.rank(2, (0, "all_reduce"))
    LivenessRegistry(job.run, Topology.of(), 2)
    fd = open_stacks(job.run, 2)
    os.write(
        fd, b"Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n"
    )
    os.write(fd, b'  File "/home/user/train.py", line 7 in prepare\n')
    assert "crash" not in job.hang().verdict()
    os.write(fd, b"Requested 4c770a0ed15f\nThread 0x1 (most recent call first):\n")
    os.write(fd, b'  File "/home/user/train.py", line 9 in wait\n')
    text = "rank 2 (last seen at train.py:9 wait) has not come"
    assert job.hang().verdict().startswith(text)
    os.write(fd, b"Steps went on\n")
    os.close(fd)
    assert job.hang().verdict().startswith("rank 2 has not come")


def test_what_ended_a_rank_by_itself_has_the_name_of_its_key(job: Job) -> None:
    job.rank(0, (0, "all_reduce"), waits=True)
    job.rank(1)
    fd = open_stacks(job.run, 1)
    os.write(fd, ending_line("HANG", 10**18 + 10**12))
    os.close(fd)
    assert "rank 1 (ran when Profiler.hang_exit_code ended the process)" in job.hang().verdict()


def test_ranks_that_ended_in_one_way_are_named_together_with_their_last_lines(job: Job) -> None:
    job.rank(0, (0, "all_reduce"), (0, "barrier"), waits=True)
    for rank, reason in ((1, "SIGTERM"), (2, "SIGTERM"), (3, "")):
        job.rank(rank, (0, "all_reduce"))
        fd = open_stacks(job.run, rank)
        text = (
            ending_line(reason, 10**18 + 10**11).decode()
            if reason
            else "Fatal Python error: Aborted\n\n"
        )
        text += (
            "Thread 0x1 (most recent call first):\n"
            '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap\n\n'
            "Thread 0x2 (most recent call first):\n"
            '  File "/env/lib/python3.11/site-packages/paddle/io/reader.py", line 7 in __next__\n'
            f'  File "/home/user/train.py", line {53 if reason else 71} in save\n'
            '  File "/home/user/train.py", line 90 in <module>\n'
        )
        os.write(fd, f"Requested 0123456789ab\n\n{text}".encode())
        os.close(fd)
    hang = job.hang()
    assert hang.causes == (1, 2, 3)
    ended = re.sub(r", \d+ s ago", "", hang.verdict())
    assert ended == (
        "ranks 1-2 (at train.py:53 save when SIGTERM ended the process) have not come to barrier of the group of ranks 0-3, "
        "where rank 0 waits; they last called all_reduce at train.py:1 step; "
        "rank 3 (crashed at train.py:71 save: Aborted) has not come to barrier of the group of ranks 0-3, "
        "where rank 0 waits; it last called all_reduce at train.py:1 step"
    )


def test_the_first_of_a_chain_is_the_cause(job: Job) -> None:
    """Rank 3 waits for 2, which waits in another group for 0, which computes."""
    job.rank(0, (1, "all_reduce"))
    job.rank(1, (1, "all_reduce"), (1, "all_reduce"), waits=True)
    job.rank(2, (0, "barrier"), waits=True)
    job.rank(3, (2, "all_reduce"), waits=True)
    hang = job.hang()
    assert hang.causes == (0,)
    assert {each.rank: each.missing for each in hang.waiting} == {1: (0,), 2: (0, 1, 3), 3: (2,)}


def test_two_groups_in_another_order_are_a_circle(job: Job) -> None:
    job.rank(0, (1, "all_reduce"), waits=True)
    job.rank(1, (3, "all_reduce"), waits=True)
    hang = job.hang()
    assert set(hang.circle) == {0, 1}
    assert hang.verdict() == (
        "the ranks wait for one another, as they call operations in different orders: rank 0 waits in all_reduce at "
        "train.py:1 step (group 1) for rank 1, rank 1 waits in all_reduce at train.py:1 step (group 3) for rank 0"
    )


def test_a_crossed_pair_of_receives_is_a_circle(job: Job) -> None:
    job.rank(0, (1, "recv", 1), waits=True)
    job.rank(1, (1, "recv", 0), waits=True)
    assert set(job.hang().circle) == {0, 1}


def test_a_send_that_never_comes(job: Job) -> None:
    job.rank(0, (1, "send", 1), (1, "send", 1))
    job.rank(1, (1, "recv", 0), (1, "recv", 0), (1, "recv", 0), waits=True)
    hang = job.hang()
    assert hang.causes == (0,)
    assert re.match(r"rank 0 has not come to recv of .*, where rank 1 waits", hang.verdict())


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ((0, "broadcast"), ("name",)),
        ((0, "all_reduce", 16), ("size",)),
        ((0, "all_reduce", 8, "bfloat16"), ("dtype",)),
    ],
)
def test_other_operations_of_equal_number(job: Job, other: Any, differs: tuple[str, ...]) -> None:
    for rank in (0, 1, 2):
        job.rank(rank, (0, "all_reduce"), (0, "all_reduce"), waits=True)
    job.rank(3, (0, "all_reduce"), other, waits=True)
    hang = job.hang()
    (mismatch,) = hang.mismatches
    assert (mismatch.sequence, mismatch.differs) == (2, differs)
    assert "as number 2: ranks 0-2: all_reduce at train.py:2 step" in hang.verdict()


def test_a_skipped_collective_shows_in_the_lines(job: Job) -> None:
    job.rank(0, (1, "all_reduce"), (1, "all_reduce"), (1, "all_reduce"), (1, "barrier"))
    job.rank(1, (1, "all_reduce"), (3, "barrier"), (1, "all_reduce"), (1, "barrier"), waits=True)
    assert job.hang().verdict().endswith("from number 2 on they call from different lines")


def test_calls_that_are_mixed_up_and_end_are_named_if_the_lines_go_on_to_differ(job: Job) -> None:
    """Rank 1 calls two in another order, and then one more, of another size, which gloo lets end."""
    job.rank(0, *[(1, "all_reduce")] * 4, (1, "barrier"))
    ring = FlightRing(job.run, 1)
    ring.group(1, GROUPS[1], None)
    for number, (line, size) in enumerate(((1, 8), (3, 8), (2, 8), (9, 16)), 1):
        place = ring.text(f"train.py:{line} step")
        texts = (ring.text("all_reduce"), ring.text("float32"), place, 0)
        ring.returned(ring.add(1, number, 0, 10**18 + number, size, -1, *texts), 10**18 + number)
    hang = job.hang()
    assert hang.mismatches[0].sequence == 4
    assert hang.verdict().endswith("from number 2 on they call from different lines")


def steps_of_a_pipeline(dtypes: Sequence[str], last: int) -> list[Any]:
    """Calls of steps that end with a sum over all ranks; stages call it with types of their own."""
    calls: list[Any] = []
    for dtype in dtypes:
        calls += [(1, "all_reduce"), (0, "all_reduce", 8, dtype)]
    return calls[:last]


def test_lines_that_always_differ_are_no_cause_where_a_ring_begins(job: Job) -> None:
    """Of numbers 1 and 2, only rank 0 has the first: what came before is overwritten on rank 1."""
    for rank, dtype, line in ((0, "float16", 3), (1, "bfloat16", 9)):
        ring = FlightRing(job.run, rank)
        ring.group(1, GROUPS[1], None)
        for sequence in range(1 + rank, 6):
            texts = (
                ring.text("all_reduce"),
                ring.text(dtype),
                ring.text(f"train.py:{line} step"),
                0,
            )
            number = ring.add(1, sequence, 0, 10**18 + sequence, 8, 0, *texts)
            ring.returned(number, 10**18 + sequence)
    assert job.hang().mismatches == ()


@pytest.mark.parametrize(("first", "says"), [(1, "from number 1 on"), (2, "")])
def test_where_a_ring_begins_is_not_where_lines_begin_to_differ(
    job: Job, first: int, says: str
) -> None:
    """The ranks call from lines of their own from the first number on; number 4 is of another size."""
    for rank in (0, 1):
        ring = FlightRing(job.run, rank)
        ring.group(1, GROUPS[1], None)
        for sequence in range(first, 5):
            place = ring.text(f"train.py:{rank} step")
            texts = (ring.text("all_reduce"), ring.text("float32"), place, 0)
            size = 8 << rank if sequence == 4 else 8
            number = ring.add(1, sequence, 0, 10**18 + sequence, size, -1, *texts)
            if sequence < 4:
                ring.returned(number, 10**18 + sequence)
    (mismatch,) = job.hang().mismatches
    assert mismatch.sequence == 4
    assert ("they call from different lines" in job.hang().verdict()) == bool(says)
    assert says in job.hang().verdict()


@pytest.mark.parametrize("stopped_at", [4, 5])
def test_calls_that_differ_in_each_step_are_no_cause(job: Job, stopped_at: int) -> None:
    """Stages name the dtype of a sum differently; rank 0 sleeps in the third step."""
    job.rank(0, *steps_of_a_pipeline(["float16"] * 3, stopped_at))
    job.rank(1, *steps_of_a_pipeline(["float16"] * 3, 5), waits=stopped_at == 4)
    for rank in (2, 3):
        calls = [(0, "all_reduce", 8, "bfloat16")] * 3
        job.rank(rank, *calls, waits=True)
    hang = job.hang()
    assert hang.mismatches == ()
    assert 0 in hang.causes
    assert re.match(r"(rank 0 has|ranks 0-1 have) not come to ", hang.verdict())


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ((1, "broadcast", 2, "bfloat16"), (1, "broadcast", 2, "float16")),
        ((1, "all_gather", 2, "bfloat16"), (1, "all_gather", 2, "float16")),
        ((1, "alltoall", 2, "bfloat16"), (1, "alltoall", 2, "float16")),
        ((1, "send", 1, "bfloat16"), (1, "recv", 0, "float16")),
    ],
)
def test_equal_bytes_of_another_type_are_no_cause_where_they_are_only_moved(
    job: Job, sent: Any, received: Any
) -> None:
    """As of the loss of Fleet's pipeline in bfloat16, on GPUs, in the first step; rank 0 sleeps after it."""
    job.rank(0, sent, on_device=True)
    job.rank(1, received, (1, "all_reduce"), on_device=True)
    hang = job.hang()
    assert (hang.mismatches, hang.causes) == ((), (0,))
    assert hang.verdict().startswith("rank 0 has not come to all_reduce")


def test_other_bytes_of_another_type_do_not_fit(job: Job) -> None:
    """As of a loss in float64, which the other stages take for float16."""
    job.rank(0, (1, "broadcast", 8, "float64"), waits=True)
    job.rank(1, (1, "broadcast", 2, "float16"), waits=True)
    assert "rank 0: broadcast at train.py:1 step (float64, 8 bytes)" in job.hang().verdict()


def test_a_send_and_its_receive_of_another_size(job: Job) -> None:
    """The last micro-batch is smaller."""
    job.rank(0, (0, "send", 1), waits=True)
    ring = FlightRing(job.run, 1)
    ring.group(0, GROUPS[0], None)
    texts = (ring.text("recv"), ring.text("float32"), ring.text("train.py:9 step"), 0)
    ring.add(0, 1, 0, 10**18, 4, 0, *texts)
    hang = job.hang()
    assert hang.verdict() == (
        "ranks 0-1 do not agree in transfer number 1: rank 0: send at train.py:1 step (8 bytes); "
        "rank 1: recv at train.py:9 step (4 bytes)"
    )


def test_a_transfer_that_does_not_end_is_of_two_ranks(job: Job) -> None:
    job.rank(0, (0, "send", 1), waits=True)
    job.rank(1, (0, "recv", 0), waits=True)
    assert job.hang().verdict() == (
        "ranks 0-1 have both called the transfer of send at train.py:1 step, and it does not end: look at "
        "the network and at the devices"
    )


def test_sizes_of_an_exchange_may_differ(job: Job) -> None:
    job.rank(0, (1, "alltoall", 16))
    job.rank(1, (1, "alltoall", 32))
    assert job.hang().mismatches == ()


def test_of_a_rank_without_a_ring_nothing_is_sure(job: Job) -> None:
    """As of a node with a disk of its own, whose directory was not named."""
    job.rank(0, (1, "all_reduce"), waits=True)
    hang = job.hang()
    assert (hang.causes, hang.absent, hang.is_sure) == ((), (1,), False)
    assert hang.verdict().startswith("it is unknown whether rank 1 has come to all_reduce")


def kill(run: Path, rank: int) -> None:
    """Let the rank have an open session in a process that is gone."""
    child = subprocess.Popen(["true"])
    child.wait()
    registry = LivenessRegistry(run, Topology.of(), rank)
    path = registry._entry.path
    path.rename(path.with_name(path.name.replace(f".{os.getpid()}.", f".{child.pid}.")))


@pytest.fixture
def stopped(job: Job) -> Iterator[int]:
    """Rank 1 has an open session in a process that is stopped; and rank 0 in one that runs."""
    LivenessRegistry(job.run, Topology.of(), 0)
    child = subprocess.Popen(["sleep", "100"])
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    path = LivenessRegistry(job.run, Topology.of(), 1)._entry.path
    path.write_text("")
    path.rename(path.with_name(path.name.replace(f".{os.getpid()}.", f".{child.pid}.")))
    yield 1
    child.kill()
    child.wait()


def test_a_stopped_rank_is_named_where_all_wait(job: Job, stopped: int) -> None:
    for rank in (0, stopped):
        job.rank(rank, (1, "all_reduce"), waits=True)
    assert job.hang().verdict() == (
        "all ranks of the group of ranks 0-1 have called all_reduce at train.py:1 step, but rank 1: its "
        "process is stopped, as by SIGSTOP or a debugger"
    )


def test_a_stopped_rank_is_named_where_none_waits(job: Job, stopped: int) -> None:
    for rank in (0, stopped):
        job.rank(rank)
    assert job.hang().verdict() == (
        "unknown: no rank has called a communication operation from Python (paddle.DataParallel "
        "communicates in C++); rank 1: its process is stopped, as by SIGSTOP or a debugger"
    )


def test_failed_and_killed_ranks_are_named_where_none_waits(job: Job) -> None:
    """All ranks have ended: rank 0 by an exception; nothing says which of the others was killed first."""
    for rank in range(4):
        job.rank(rank, (0, "all_reduce"))
    LivenessRegistry(job.run, Topology.of(), 0).mark_failed(RuntimeError("boom"))
    for rank in (1, 2, 3):
        kill(job.run, rank)
    assert job.hang().verdict() == (
        "no rank waits in a communication operation that Python called; rank 0: failed: RuntimeError: "
        "boom; rank 1: its process is gone: killed, or it crashed; and 2 more ranks"
    )


def test_a_rank_that_was_killed_while_it_waited_is_the_cause(job: Job) -> None:
    """Rank 0, which it waited for, computes; and later comes to the call."""
    job.rank(1, (1, "all_reduce"), waits=True)
    kill(job.run, 1)
    job.rank(0)
    LivenessRegistry(job.run, Topology.of(), 0)
    for calls in ((), ((1, "all_reduce"),)):
        (job.run / ring_path(0)).unlink()
        job.rank(0, *calls, waits=True)
        hang = job.hang()
        assert (hang.causes, hang.is_sure) == ((1,), True)
        assert hang.verdict().startswith(
            "rank 1: its process is gone: killed, or it crashed; it last called all_reduce at train.py:1"
        )


def test_afterwards_it_is_not_known_who_was_killed_first(job: Job) -> None:
    """Rank 0 has no entry: it ended its session, or a signal ended it once rank 1 was gone."""
    job.rank(0)
    job.rank(1, (1, "all_reduce"), waits=True)
    kill(job.run, 1)
    hang = job.hang()
    assert (hang.causes, hang.is_sure) == ((0,), False)
    assert hang.verdict() == (
        "rank 0 (its session has ended) has not come to all_reduce of the group of ranks 0-1, where rank 1 "
        "waits (rank 1: its process is gone: killed, or it crashed); it has noted no operation"
    )


def test_a_rank_that_failed_in_what_all_have_called_is_named(job: Job) -> None:
    for rank in (0, 1):
        job.rank(rank, (1, "all_reduce"), waits=True)
    LivenessRegistry(job.run, Topology.of(), 1).mark_failed(RuntimeError("boom"))
    LivenessRegistry(job.run, Topology.of(), 0)
    assert (
        job.hang()
        .verdict()
        .endswith(
            "have called all_reduce at train.py:1 step, but rank 1: failed: RuntimeError: boom"
        )
    )


def test_a_rank_whose_training_has_ended_is_said_to_have(job: Job) -> None:
    """As with batches that are not dealt out evenly."""
    job.rank(0, (1, "all_reduce"))
    job.rank(1, (1, "all_reduce"), (1, "all_reduce"), waits=True)
    LivenessRegistry(job.run, Topology.of(), 1)
    hang = job.hang()
    assert (hang.causes, hang.is_sure) == ((0,), True)
    assert hang.verdict().startswith("rank 0 (its session has ended) has not come to all_reduce")


def test_an_operation_that_all_have_called(job: Job) -> None:
    for rank in (0, 1):
        job.rank(rank, (1, "all_reduce"), waits=True)
    assert "and it does not end: look at the network" in job.hang().verdict()


def test_operations_on_devices_have_no_host_that_waits(job: Job) -> None:
    job.rank(0, (1, "all_reduce"), (1, "all_reduce"), on_device=True)
    job.rank(1, (1, "all_reduce"), on_device=True)
    hang = job.hang()
    assert (hang.on_devices, hang.causes) == (True, (1,))


def test_behind_a_host_that_waits_a_device_may_wait_for_another_rank(job: Job) -> None:
    """Rank 2 has not come; the device of rank 1 waits for it, and rank 0 for rank 1, in a barrier."""
    job.rank(0, (1, "barrier"), waits=True)
    job.rank(1, (0, "all_reduce"), on_device=True)
    job.rank(2)
    job.rank(3, (0, "all_reduce"), on_device=True)
    hang = job.hang()
    assert (hang.on_devices, hang.causes) == (True, (2,))


def test_a_host_that_does_not_wait_is_the_cause_whatever_its_device_waits_for(job: Job) -> None:
    """Rank 1 sleeps, and has launched what rank 0 will call behind the barrier."""
    job.rank(0, (1, "barrier"), waits=True)
    job.rank(1, (3, "all_reduce"), on_device=True)
    hang = job.hang()
    assert (hang.on_devices, hang.causes, hang.circle) == (False, (1,), ())


def test_a_healthy_job_has_no_cause(job: Job) -> None:
    for rank in range(4):
        job.rank(rank, (0, "all_reduce"), (0, "barrier"))
    hang = job.hang()
    assert (hang.waiting, hang.causes, hang.mismatches) == ((), (), ())
    assert "the sessions of all ranks have ended without an error" in hang.verdict()


def test_a_failed_job_has_not_ended_in_peace(job: Job) -> None:
    job.rank(0, (0, "all_reduce"))
    LivenessRegistry(job.run, Topology.of(), 0).mark_failed(RuntimeError("boom"))
    assert not job.hang().has_ended


def test_a_running_job_has_no_cause(job: Job) -> None:
    job.rank(0, (0, "all_reduce"))
    LivenessRegistry(job.run, Topology.of(), 0)
    assert job.hang().verdict() == "no rank waits in a communication operation that Python called"


def test_a_job_that_communicates_in_c_plus_plus_is_unknown(job: Job) -> None:
    job.rank(0)
    LivenessRegistry(job.run, Topology.of(), 0)
    hang = job.hang()
    assert hang.idle_s is None
    assert hang.verdict().startswith("unknown: no rank has called a communication operation")


def test_of_overwritten_operations_nothing_is_sure(job: Job) -> None:
    """Rank 1 has called so much in one group that its calls of another group are gone."""
    job.rank(0, (1, "all_reduce"), waits=True)
    job.rank(1, (1, "all_reduce"), *[(3, "barrier")] * MOST_OPERATIONS)
    hang = job.hang()
    assert (hang.causes, hang.absent, hang.is_sure) == ((), (1,), False)
    assert hang.verdict() == (
        "it is unknown whether rank 1 has come to all_reduce of the group of ranks 0-1, where rank 0 "
        "waits: later operations have overwritten what was noted of the group"
    )


def test_ranks_that_wait_elsewhere_and_have_overwritten_their_notes_are_in_a_circle(
    job: Job,
) -> None:
    """Rank 0 calls an operation of a group that was used long ago, alone; rank 1 waits for it in another group."""
    job.rank(0, (1, "all_reduce"), (1, "broadcast"), waits=True)
    job.rank(1, (1, "all_reduce"), *[(3, "barrier")] * (MOST_OPERATIONS + 1), waits=True)
    hang = job.hang()
    assert set(hang.circle) == {0, 1}
    assert not hang.is_sure
    assert "in different orders" in hang.verdict()


def test_a_group_that_a_rank_has_never_used_is_not_overwritten(job: Job) -> None:
    """As one that is made for a checkpoint."""
    job.rank(0, (1, "all_reduce"), waits=True)
    ring = FlightRing(job.run, 1)
    ring.group(3, GROUPS[3], None)
    texts = (ring.text("barrier"), 0, 0, 0)
    for number in range(MOST_OPERATIONS):
        ring.returned(ring.add(3, number + 1, 0, 10**18, 8, -1, *texts), 10**18 + 1)
    assert job.hang().causes == (1,)


def test_a_group_has_room_after_thousands_of_modules(job: Job) -> None:
    ring = FlightRing(job.run, 0)
    for layer in range(3000):
        ring.text(f"forward of blocks.{layer}.linear (ColumnParallelLinear)")
    ring.group(1, GROUPS[1], "dp")
    ring.add(1, 1, 0, 10**18, 8, -1, 0, 0, 0, 0)
    job.rank(1)
    assert job.hang().causes == (1,)


def test_a_group_that_had_no_room_is_no_rank_that_does_not_wait(job: Job) -> None:
    job.rank(0, (2, "all_reduce"), waits=True)
    ring = FlightRing(job.run, 1)
    ring.add(9, 1, 0, 10**18, 8, -1, *(ring.text("all_reduce"), 0, 0, 0))
    (job.run / ring_path(0)).unlink()
    job.rank(0, (1, "barrier"), waits=True)
    hang = job.hang()
    assert hang.causes == ()
    assert hang.verdict() == ("rank 1 waits in all_reduce of a group whose ranks it could not note")


def test_a_call_that_an_exception_ended_is_over(job: Job) -> None:
    """Rank 1 has swallowed the exception, and saves a checkpoint."""
    LivenessRegistry(job.run, Topology.of(), 1)
    job.rank(0, (1, "all_reduce"), waits=True)
    job.rank(1, (1, "all_reduce"), raises=True)
    hang = job.hang()
    assert [each.rank for each in hang.waiting] == [0]
    assert "have called all_reduce at train.py:1 step, but an exception ended it on rank 1, " in (
        hang.verdict()
    )
    (job.run / ring_path(0)).unlink()
    job.rank(0, (1, "all_reduce"), (1, "barrier"), waits=True)
    assert re.search(
        r"last called all_reduce .* ago, which an exception ended$", job.hang().verdict()
    )


def test_a_rank_elsewhere_that_caught_an_exception_does_not_wait(job: Job) -> None:
    """It runs on another machine, as far as is known."""
    job.rank(0, (1, "all_reduce"), raises=True)
    path = LivenessRegistry(job.run, Topology.of(), 0)._entry.path
    path.rename(path.with_name("00000.4711.node7-1"))
    job.rank(1, (1, "all_reduce"), (1, "barrier"), waits=True)
    hang = job.hang()
    assert hang.causes == (0,)
    assert hang.verdict().endswith(", which an exception ended")


def test_an_exception_of_another_operation_did_not_end_this_one(job: Job) -> None:
    for rank in (0, 1):
        LivenessRegistry(job.run, Topology.of(), rank)
    job.rank(0, (1, "all_reduce"), waits=True)
    job.rank(1, (1, "all_reduce"), (3, "barrier"), raises=True)
    assert "an exception" not in job.hang().verdict()


def test_in_rings_of_before_a_call_with_a_later_one_is_over(job: Job) -> None:
    """They do not say that an exception ended it."""
    ring = FlightRing(job.run, 1)
    ring.group(1, GROUPS[1], None)
    for sequence in (1, 2):
        texts = (ring.text("all_reduce"), ring.text("float32"), ring.text("train.py:1 step"), 0)
        ring.add(1, sequence, 0, 10**18 + sequence, 8, -1, *texts)
    path = job.run / ring_path(1)
    path.write_bytes(path.read_bytes().replace(b"ppprof flight 3", b"ppprof flight 2", 1))
    job.rank(0, (1, "all_reduce"))
    hang = job.hang()
    assert [(each.rank, each.operation.sequence) for each in hang.waiting] == [(1, 2)]
    assert hang.causes == (0,)


def test_a_rank_that_an_exception_has_ended_waited_in_its_last_call(job: Job) -> None:
    """As after a time-out of rank 1, which waited for rank 0."""
    job.rank(0)
    LivenessRegistry(job.run, Topology.of(), 0)
    job.rank(1, (1, "all_reduce"), raises=True)
    LivenessRegistry(job.run, Topology.of(), 1).mark_failed(RuntimeError("TIMEOUT"))
    hang = job.hang()
    assert ([each.rank for each in hang.waiting], hang.causes) == ([1], (0,))
    assert "where rank 1 waits (rank 1: failed: RuntimeError: TIMEOUT)" in hang.verdict()


def test_of_two_threads_that_wait_one_waits_for_a_rank(job: Job) -> None:
    job.rank(0, (1, "all_reduce"), (2, "barrier"))
    ring = FlightRing(job.run, 1)
    for group in (1, 3):
        ring.group(group, GROUPS[group], None)
        texts = (ring.text("all_reduce"), ring.text("float32"), ring.text("train.py:1 step"), 0)
        ring.add(group, 1, 0, 10**18 - group, 8, -1, *texts)  # the clock was set back meanwhile
    hang = job.hang()
    assert [(each.operation.group, each.missing) for each in hang.waiting] == [(3, (0,))]
    assert hang.causes == (0,)


def test_ranks_in_an_operation_that_all_have_called_are_no_cause_of_others(job: Job) -> None:
    """The group of ranks 2 and 3 is stuck, as by a link; ranks 0 and 1 wait for them."""
    for rank in (0, 1):
        job.rank(rank, (0, "barrier"), waits=True)
    for rank in (2, 3):
        job.rank(rank, (2, "all_reduce"), waits=True)
    hang = job.hang()
    assert (hang.causes, hang.circle, hang.absent) == ((), (), ())
    assert hang.verdict() == (
        "all ranks of the group of ranks 2-3 have called all_reduce at train.py:1 step, and it does not "
        "end: look at the network and at the devices"
    )


def test_whether_ranks_of_another_machine_run_is_not_known(job: Job) -> None:
    for rank in (0, 1):
        job.rank(rank, (1, "all_reduce"), waits=True)
        LivenessRegistry(job.run, Topology.of(), rank)
    path = LivenessRegistry(job.run, Topology.of(), 1)._entry.path
    path.rename(path.with_name(f"00001.{os.getpid()}.node7-1"))
    hang = job.hang()
    assert not hang.is_sure
    assert hang.verdict().endswith(
        "; whether rank 1 still runs cannot be seen from this machine: ask there, too"
    )


def test_the_one_that_outlived_a_signal_to_all_is_the_cause(job: Job) -> None:
    """Rank 3 is in a driver's call that no signal ends; the scheduler has killed the others."""
    for rank in (0, 1, 2):
        job.rank(rank, (0, "all_reduce"), waits=True)
        kill(job.run, rank)
    job.rank(3)
    LivenessRegistry(job.run, Topology.of(), 3)
    hang = job.hang()
    assert (hang.causes, hang.is_sure) == ((3,), False)
    assert hang.verdict().startswith("rank 3 has not come to all_reduce")


def test_a_process_that_has_the_pid_of_a_rank_is_not_the_rank(job: Job) -> None:
    """As after the machine was started again."""
    job.rank(0)
    job.rank(1, (1, "all_reduce"), waits=True)
    for rank in (0, 1):
        LivenessRegistry(job.run, Topology.of(), rank)._entry.path.write_text("another-start 4711")
    hang = job.hang()
    assert {state.is_gone for state in hang.states.values()} == {True}
    assert hang.causes == (0,)


def test_a_rank_that_ended_after_the_failure_of_another_is_not_said_to_have_ended_in_peace(
    job: Job,
) -> None:
    """The launcher ends rank 0, which hung, by SIGTERM once rank 1 has failed by a time-out."""
    job.rank(0)
    job.rank(1, (1, "all_reduce"), raises=True)
    both = [LivenessRegistry(job.run, Topology.of(), rank) for rank in (0, 1)]
    both[1].mark_failed(RuntimeError("TIMEOUT"))
    both[0].mark_failed(None)
    assert (
        job.hang()
        .verdict()
        .startswith(
            "rank 0 (its session has ended, in peace or after another rank failed) has not come to all_reduce"
        )
    )


def test_a_clock_that_is_ahead_does_not_hide_how_long_ranks_wait(job: Job) -> None:
    job.rank(0, (1, "all_reduce"), waits=True)
    job._now = time.time_ns() + 3600 * 10**9
    job.rank(1, (1, "all_reduce"), waits=True)
    assert (job.hang().idle_s or 0) > 10**6


def write_clock(run: Path, rank: int, offset_s: int) -> None:
    """Note that rank 0's clock minus that of a rank was an hour, and is ``offset_s`` by now."""
    path = run / clocks_path(rank)
    path.parent.mkdir(exist_ok=True)
    readings = Reading(1, 3600 * 10**9, 10), Reading(10**18, offset_s * 10**9, 10)
    path.write_text("".join(map(line_of, readings)))


@pytest.mark.parametrize("here", [0, 1])
def test_times_of_ranks_are_those_of_the_clock_that_is_read(job: Job, here: int) -> None:
    """The clock of rank 1 is 40 s ahead; both have waited for 60 s, in a call and for its task."""
    for rank, offset_s in ((0, 0), (1, -40)):
        write_clock(job.run, rank, offset_s)
    now_ns, ahead_ns = time.time_ns(), 40 * 10**9
    for rank in (0, 1):
        ring = FlightRing(job.run, rank)
        ring.group(0, GROUPS[0], None)
        own_ns = now_ns - 60 * 10**9 + (rank - here) * ahead_ns
        number = ring.add(0, 1, 0, own_ns - rank * 10**9, 8, -1, *(ring.text("barrier"), 0, 0, 0))
        if rank == 1:
            ring.returned(number, own_ns - 1)
            ring.waited(number, -own_ns)
    LivenessRegistry(job.run, Topology.of(), here)
    hang = job.hang()
    assert {each.operation.pending_since_ns for each in hang.waiting} == {now_ns - 60 * 10**9}
    assert hang.idle_s == pytest.approx(60, abs=20)


def test_the_first_mismatch_is_the_first_by_one_clock(job: Job) -> None:
    """The clocks of ranks 2 and 3 are 40 s behind; that machine sees none of the processes."""
    for rank in range(4):
        write_clock(job.run, rank, 40 if rank > 1 else 0)
        job._now = 10**18 if rank < 2 else 10**18 - 30 * 10**9  # 10 s later
        job.rank(rank, (rank // 2 + 1, ("barrier", "all_reduce")[rank % 2]), waits=True)
    assert [[*each.group.ranks] for each in job.hang().mismatches] == [[0, 1], [2, 3]]


def test_directories_of_two_starts_are_not_mixed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Node 1 hangs before it attaches: its newest run is of an earlier start."""
    runs = [tmp_path / "node0/run_002", tmp_path / "node0", tmp_path / "node1"]
    for run, day in zip(runs, (2, 1, 1)):
        run.mkdir(parents=True, exist_ok=True)
        manifest = {
            "schema_version": 2,
            "run_id": f"start {day}",
            "started": f"2026-11-0{day}T08:00:00+00:00",
        }
        (run / "manifest.json").write_text(json.dumps(manifest))
    for run, rank in zip(runs, (0, 0, 1)):
        ring = FlightRing(run, rank)
        ring.group(1, (0, 1), None)
        texts = (ring.text("all_reduce"), ring.text("float32"), ring.text("train.py:1 step"), 0)
        number = ring.add(1, 1, 0, 10**18, 8, -1, *texts)
        if run != runs[0]:
            ring.returned(number, 10**18 + 1)
    hang = find_hang([tmp_path / "node0", tmp_path / "node1"])
    assert (hang.run, hang.ranks, hang.absent) == (runs[0], (0,), (1,))
    assert "it has no readable ring of this run here" in hang.verdict()
    assert "node1: it has no directory of the run that was started last" in caplog.text


def test_without_rings_the_message_says_what_makes_them(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"no rank has noted .* Profiler\.flight_recorder"):
        find_hang([tmp_path])
