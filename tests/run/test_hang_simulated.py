"""``ppprof hang`` against jobs that are simulated here, operation by operation, until nothing moves."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppprof.run.hang import Hang, find_hang
from ppprof.rundir.flight import FlightRing


class Call(NamedTuple):
    """A line of the program: an operation of a group, or one side of a transfer."""

    line: int
    group: int
    name: str
    peer: int = -1


@dataclass
class Truth:
    """Where the simulated ranks are when nothing moves any more."""

    blocked: dict[int, Call]
    waits_for: dict[int, set[int]]
    called: list[list[Call]]
    """What each rank has called in the last step."""


GROUPS = {0: (0, 1, 2, 3), 1: (0, 1), 2: (2, 3), 3: (0, 2), 4: (1, 3), 5: (0, 1, 2)}
RANKS = range(4)


def run(run: Path, programs: Sequence[Sequence[Sequence[Call]]]) -> Truth:
    """Let every rank call its steps' operations; a rank that is done with the last step sleeps.

    A collective ends once all ranks are in it; a transfer once both sides are.
    """
    (run / "manifest.json").write_text("{}")
    rings = [FlightRing(run, rank) for rank in RANKS]
    for ring in rings:
        for group, ranks in GROUPS.items():
            ring.group(group, ranks, None)
    todo = [
        [(step, call) for step, calls in enumerate(steps) for call in calls] for steps in programs
    ]
    arrived: dict[object, set[int]] = {}
    counts = [Counter[object]() for _ in RANKS]
    inside: dict[int, tuple[Call, int, object]] = {}
    now = 10**18

    def event(rank: int, call: Call) -> tuple[object, set[int]]:
        is_transfer = call.peer >= 0
        key = (call.group, call.name, call.peer) if is_transfer else call.group
        counts[rank][key] += 1
        number = counts[rank][key]
        if is_transfer:
            sender, receiver = (rank, call.peer)[:: 1 if call.name == "send" else -1]
            return (call.group, sender, receiver, number), {rank, call.peer}
        return (call.group, number), set(GROUPS[call.group])

    called: list[list[Call]] = [[] for _ in RANKS]
    members: dict[object, set[int]] = {}
    is_moving = True
    while is_moving:
        is_moving = False
        for rank in RANKS:
            now += 1_000
            ring = rings[rank]
            if rank in inside:
                call, number, key = inside[rank]
                if arrived[key] >= members[key]:
                    ring.returned(number, now)
                    ring.waited(number, now + 1)
                    del inside[rank]
                    is_moving = True
            elif todo[rank]:
                step, call = todo[rank].pop(0)
                ring.step(step, now)
                called[rank] += [call] * (step == len(programs[rank]) - 1)
                key, members[key] = event(rank, call)
                arrived.setdefault(key, set()).add(rank)
                texts = (ring.text(call.name), ring.text("float32"))
                kind = call.group, call.name if call.peer >= 0 else "", call.peer
                sequence = counts[rank][kind if call.peer >= 0 else call.group]
                number = ring.add(
                    *(call.group, sequence, step, now, 8, call.peer),
                    *(*texts, ring.text(f"train.py:{call.line} step"), 0),
                )
                inside[rank] = call, number, key
                is_moving = True
    return Truth(
        {rank: call for rank, (call, _, _) in inside.items()},
        {rank: members[key] - arrived[key] for rank, (_, _, key) in inside.items()},
        called,
    )


def simulated(folder: Path, programs: Sequence[Sequence[Sequence[Call]]]) -> tuple[Truth, Hang]:
    """Return where the ranks are, and what their rings say."""
    truth = run(folder, programs)
    hang = find_hang([folder])
    shutil.rmtree(folder)  # a thousand examples would fill the disk
    return truth, hang


@st.composite
def steps(draw: st.DrawFn) -> list[list[Call]]:
    """The operations of one step, by rank, in an order in which they all end."""
    calls: list[list[Call]] = [[] for _ in RANKS]
    for line in range(draw(st.integers(2, 8))):
        group = draw(st.sampled_from(sorted(GROUPS)))
        ranks = GROUPS[group]
        if len(ranks) == 2 and draw(st.booleans()):
            sender, receiver = draw(st.permutations(ranks))
            for _ in range(draw(st.integers(1, 3))):
                calls[sender].append(Call(2 * line, group, "send", receiver))
                calls[receiver].append(Call(2 * line + 1, group, "recv", sender))
        else:
            for rank in ranks:
                calls[rank].append(Call(2 * line, group, "all_reduce"))
    return calls


planted = settings(suppress_health_check=[HealthCheck.too_slow])


@planted
@given(calls=steps(), culprit=st.sampled_from(RANKS), data=st.data())
def test_the_rank_that_stops_is_the_only_cause(
    calls: list[list[Call]],
    culprit: int,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The culprit sleeps, or is gone, before an operation of the last of three steps."""
    programs = [[each, each, each] for each in calls]
    left = data.draw(st.integers(0, max(len(calls[culprit]) - 1, 0)))
    programs[culprit][2] = calls[culprit][:left]
    truth, hang = simulated(tmp_path_factory.mktemp("run"), programs)
    assert {each.rank: set(each.missing) for each in hang.waiting} == truth.waits_for
    assert set(hang.causes) == ({culprit} if truth.blocked else set())
    assert not hang.circle
    if truth.blocked:
        assert hang.verdict().startswith(f"rank {culprit} has not come to ")


@planted
@given(calls=steps(), culprit=st.sampled_from(RANKS), repeats=st.booleans(), data=st.data())
def test_the_rank_that_departs_from_its_steps_is_named(
    calls: list[list[Call]],
    culprit: int,
    repeats: bool,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The culprit leaves an operation of the last step out, or calls it once more."""
    own = calls[culprit]
    programs = [[each, each, each] for each in calls]
    if not own:
        return
    place = data.draw(st.integers(0, len(own) - 1))
    changed = [*own[:place], *([own[place]] * 2 if repeats else []), *own[place + 1 :]]
    programs[culprit][2] = changed
    truth, hang = simulated(tmp_path_factory.mktemp("run"), programs)
    if hang.mismatches:
        return  # it is that of the ranks' calls, without who is right
    assert {each.rank: set(each.missing) for each in hang.waiting} == truth.waits_for
    now = truth.called[culprit]
    departs = bool(truth.blocked) and now != own[: len(now)]
    assert {each.rank for each in hang.departures} == ({culprit} if departs else set())
    if departs:
        assert f"rank {culprit} called " in hang.verdict()


RECEIVES, SENDS = Call(7, 1, "recv", 0), Call(9, 1, "send", 0)
SUMS = Call(11, 1, "all_reduce")
MICRO_BATCH = [RECEIVES, SENDS]


@pytest.mark.parametrize(
    ("usual", "last", "says"),
    [
        (  # a send is left out
            [*MICRO_BATCH * 3, SUMS],
            [RECEIVES, *MICRO_BATCH * 2, SUMS],
            "recv at train.py:7 step in step 2, where step 1 called send at train.py:9 step",
        ),
        (
            [*MICRO_BATCH * 3, SUMS],
            [*MICRO_BATCH, RECEIVES, *MICRO_BATCH, SUMS],
            "recv at train.py:7 step in step 2, where step 1 called send at train.py:9 step",
        ),
        (  # two micro-batches of three
            [*MICRO_BATCH * 3, SUMS],
            [*MICRO_BATCH * 2, SUMS],
            "recv at train.py:7 step 2 times and then all_reduce at train.py:11 step in step 2, but 3 "
            "times in step 1, as with another number of micro-batches",
        ),
        (  # two of three, and then what no earlier step calls
            [*MICRO_BATCH * 3, SUMS],
            [*MICRO_BATCH * 2, Call(13, 0, "barrier")],
            "barrier at train.py:13 step in step 2, where step 1 called recv at train.py:7 step",
        ),
        (  # four of three, in a schedule that receives one ahead
            [RECEIVES, *MICRO_BATCH * 2, SENDS, SUMS],
            [RECEIVES, *MICRO_BATCH * 3, SENDS, SUMS],
            "recv at train.py:7 step 4 times in step 2, but 3 times in step 1, as with another number "
            "of micro-batches",
        ),
    ],
)
def test_what_a_stage_of_a_pipeline_calls_otherwise(
    usual: list[Call], last: list[Call], says: str, tmp_path: Path
) -> None:
    """Rank 1 does; rank 0 does as before: it sends what rank 1 receives, and receives what it sends."""
    others = {RECEIVES: Call(3, 1, "send", 1), SENDS: Call(5, 1, "recv", 1)}
    first_stage = [others.get(call, call) for call in usual]
    programs = [[first_stage] * 3, [usual, usual, last], [[]] * 3, [[]] * 3]
    run(tmp_path, programs)
    assert find_hang([tmp_path]).verdict().endswith(f"; rank 1 called {says}")


def test_an_evaluation_of_all_ranks_is_no_departure_in_a_hybrid_job(tmp_path: Path) -> None:
    """Line 20 sums in groups 1 and 2, where a step sums at line 2; then rank 3 sleeps."""
    groups, everyone = (1, 1, 2, 2), Call(4, 0, "barrier")
    steps = [[Call(2, group, "all_reduce"), everyone] for group in groups]
    evaluations = [[Call(20, group, "all_reduce"), everyone] for group in groups]
    evaluations[3].pop()
    run(tmp_path, [[step, step, last] for step, last in zip(steps, evaluations)])
    hang = find_hang([tmp_path])
    assert (hang.causes, hang.departures) == ((3,), ())


def test_ranks_that_call_otherwise_at_one_line_depart_all(tmp_path: Path) -> None:
    """As at the line that calls Fleet's ``train_batch``: no rank has left it."""
    sends, receives = Call(7, 1, "send", 1), Call(7, 1, "recv", 1)
    first_stage, last_stage = [sends, receives] * 3, [RECEIVES, Call(7, 1, "send", 0)] * 3
    others = [sends] * 3 + [receives] * 3, [RECEIVES] * 4
    programs = [[each, each, last] for each, last in zip((first_stage, last_stage), others)]
    run(tmp_path, [*programs, [[]] * 3, [[]] * 3])
    assert (
        find_hang([tmp_path])
        .verdict()
        .endswith(
            "; rank 0 called send at train.py:7 step in step 2, where step 1 called recv at train.py:7 step; "
            "rank 1 called recv at train.py:7 step 4 times in step 2, but 3 times in step 1, as with another "
            "number of micro-batches"
        )
    )
