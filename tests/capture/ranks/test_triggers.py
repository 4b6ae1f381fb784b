"""Windows on demand, on ranks with a fake channel and a fake clock."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from ppprof.capture.parts import Ending, TriggersPart
from ppprof.capture.ranks.control_channel import ControlChannel, Message
from ppprof.capture.ranks.own_times import OwnTimes
from ppprof.capture.ranks.triggers import Triggers
from ppprof.capture.schedule import Schedule, State
from ppprof.config import ProfilerConfig, TriggerConfig
from ppprof.rundir.triggers import read_response, request_path, write_request
from ppprof.topology import Topology

MS = 1_000_000
LETTERS = {
    State.CLOSED: ".",
    State.READY: "r",
    State.RECORD: "R",
    State.LAST: "L",
    State.PROVISIONAL: "p",
}


class Post(ControlChannel):
    """A channel that delivers at the next step, or later if it delays."""

    def __init__(self, ranks: list[Post], rank: int) -> None:
        self.ranks = ranks
        self.rank = rank
        self.box: list[Message] = []
        self.delayed: list[Message] = []
        self.delays = False
        self.waited: float | None = None
        """For how long `close` may have waited for confirmations."""

    def read(self) -> list[Message]:
        found, self.box = self.box, []
        return found

    def send(self, message: Message) -> None:
        text = json.dumps({**message, "rank": self.rank})
        for other in self.ranks[1:] if self.rank == 0 else self.ranks[:1]:
            (other.delayed if other.delays else other.box).append(json.loads(text))

    def unconfirmed(self) -> list[int]:
        return [other.rank for other in self.ranks[1:] if other.delays]

    def deliver(self) -> None:
        self.delays = False
        self.box += self.delayed
        self.delayed = []

    def close(self, seconds: float = 0) -> None:
        self.waited = seconds


class Job:
    """Ranks in lockstep; ``timeline`` has a letter per step: see `LETTERS`.

    ``late`` is the number of steps after which the time of a step is known, as on a device.
    """

    def __init__(
        self,
        run: Path,
        ranks: int = 2,
        schedule: Schedule | None = None,
        late: int = 0,
        stages: int = 1,
        **config: Any,
    ) -> None:
        self.run = run
        self.late = late
        self.times: list[list[tuple[int, int, bool, bool]]] = [[] for _ in range(ranks)]
        self.own_ms: list[float] = []
        """Own work of each rank in a step; empty: unknown."""
        self.now = 0.0
        self.posts: list[Post] = []
        self.posts += [Post(self.posts, rank) for rank in range(ranks)]
        block = ProfilerConfig.from_mapping({"trigger": {"steps": 3, **config}}).trigger
        assert isinstance(block, TriggerConfig)
        self.schedule = schedule or Schedule.of(None, on_demand=True)
        topology = Topology.of(dp=ranks // stages, pp=stages)
        self.ranks = [
            Triggers(
                block,
                self.schedule,
                rank,
                topology,
                range(ranks),
                run,
                self.posts[rank],
                self.clock,
            )
            for rank in range(ranks)
        ]
        self.step = 0
        self.windows = [0] * ranks
        self.states = [self._advance(rank, State.CLOSED) for rank in range(ranks)]
        self.befores = self.states
        self.timeline = [LETTERS[state] for state in self.states]
        self.keep_decisions: list[dict[int, bool]] = [{} for _ in range(ranks)]

    def clock(self) -> float:
        return self.now

    def _advance(self, rank: int, before: State) -> State:
        triggers = self.ranks[rank]
        self.windows[rank] += before is State.LAST
        triggers.advance(self.step, self.windows[rank])
        self.windows[rank] = max(self.windows[rank], triggers.first_free)
        state = self.schedule.state(self.step)
        if state is State.CLOSED:
            state = triggers.state(self.step) if triggers.is_member else State.CLOSED
        return state

    def go(self, steps: int, took_ms: list[float] | float = 250) -> Job:
        """Run steps that take so long on each rank."""
        for _ in range(steps):
            each = took_ms if isinstance(took_ms, list) else [took_ms] * len(self.ranks)
            self.now += max(each) / 1e3
            for triggers, times, took, before, state in zip(
                self.ranks, self.times, each, self.befores, self.states
            ):
                is_excluded = state is State.READY or state is not before
                times.append((self.step, int(took * MS), state.records, is_excluded))
                if len(times) > self.late:
                    step, took_ns, is_recorded, is_excluded = times.pop(0)
                    triggers.add_step(
                        step, took_ns, is_recorded=is_recorded, is_excluded=is_excluded
                    )
            for triggers, own in zip(self.ranks, self.own_ms):
                triggers.add_own(self.step, int(own * MS))
            self.step += 1
            self.befores = self.states
            self.states = [self._advance(rank, was) for rank, was in enumerate(self.states)]
            for rank, state in enumerate(self.states):
                self.timeline[rank] += LETTERS[state]
                self.keep_decisions[rank] |= self.ranks[rank].keep_decisions
        return self


def test_a_request_starts_at_the_same_step_on_all_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, ranks=3).go(6)
    request_id = write_request(tmp_path, None, None)
    job.go(12)
    # Seen ahead of step 7, and 2 steps and half a second on: 11.
    assert job.timeline == ["..........rRRL....."] * 3
    assert job.windows == [1, 1, 1]
    answer = read_response(tmp_path, request_id)
    assert answer is not None
    assert (answer.window, answer.start, answer.steps, answer.ranks) == (0, 11, 3, [0, 1, 2])
    assert not request_path(tmp_path).exists()
    assert capsys.readouterr().err == (
        "ppprof: rank 0: window 0, steps 11 to 13, on ranks 0-2: asked for by request\n"
    )


def test_a_request_says_how_long_and_where(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=3).go(6)
    write_request(tmp_path, 1, "0,2")
    job.go(8)
    assert job.timeline == ["..........rL...", "...............", "..........rL..."]
    assert job.windows == [1, 1, 1]  # the next one has the same number on all


def test_an_empty_file_is_a_request(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=1).go(6)
    request_path(tmp_path).touch()
    job.go(5)
    assert job.timeline == [".......rRRL."]  # no other rank has to get the plan


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        (9000 * "[", "not JSON"),
        ('{"steps": 0}', "steps 0: expected a whole number from 1 to 10000"),
        ('{"steps": "4"}', "steps '4': expected a whole number from 1 to 10000"),
        ('{"ranks": 7}', "ranks 7: ranks [7]: expected 0 to 1"),
        ('{"ranks": {"x": 0}}', "ranks {'x': 0}: "),
        ('{"ranks": 1.5}', "ranks 1.5: "),
    ],
)
def test_an_invalid_request_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    job = Job(tmp_path).go(6)
    request_path(tmp_path).write_text(text)
    job.go(9)
    assert set(job.timeline[0]) == {"."}
    err = capsys.readouterr().err
    assert err.startswith(f"ppprof: rank 0: no window, asked for by request: {why}")
    assert err.count("\n") == 1
    write_request(tmp_path, 1, None)  # and the next one is taken
    assert job.go(6).timeline[1].endswith("rL.")


def test_a_request_while_one_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path).go(6)
    write_request(tmp_path, 5, None)
    job.go(2)
    again = write_request(tmp_path, 5, None)
    job.go(12)
    assert job.timeline == ["..........rRRRRL....."] * 2
    answer = read_response(tmp_path, again)
    assert answer is not None
    assert answer.refused == "already recording: window 0, steps 11 to 15"


def test_windows_of_the_scheduler_go_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, schedule=Schedule.of((12, 14))).go(6)
    ids = [write_request(tmp_path, None, None)]
    job.go(6)
    ids.append(write_request(tmp_path, None, None))
    job.go(3)
    ids.append(write_request(tmp_path, None, None))
    job.go(9)
    assert job.timeline == ["...........rRL.....rRRL.."] * 2
    assert job.windows == [2, 2]
    assert [answer.refused for answer in (read_response(tmp_path, id) for id in ids) if answer] == [
        "already recording before step 14: the schedule is steps 12 to 13",
        "already recording: the schedule is steps 12 to 13",
        None,
    ]


@pytest.mark.parametrize(
    ("delivered_at", "timeline", "message"),
    [
        (10, "..........rRRL......", ""),
        (12, "............RL......", "the plan arrived late, this rank records from step 12 on"),
        (13, ".............L......", "the plan arrived late, this rank records from step 13 on"),
        (
            15,
            "....................",
            "missed window 0, steps 11 to 13: the plan arrived ahead of step 15",
        ),
    ],
)
def test_a_rank_that_gets_the_plan_too_late_joins_or_logs_that_it_missed_the_window(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    delivered_at: int,
    timeline: str,
    message: str,
) -> None:
    job = Job(tmp_path).go(6)
    write_request(tmp_path, None, None)
    job.posts[1].delays = True
    job.go(delivered_at - 7)
    job.posts[1].deliver()
    job.go(19 - job.step)
    assert job.timeline == ["..........rRRL......", timeline]
    assert job.windows == [1, 1]
    err = capsys.readouterr().err
    assert message in err
    assert ("rank 1: " in err) is bool(message)
    assert ("begins, but rank 1 did not confirm it" in err) is (delivered_at > 11)


def slow_job(tmp_path: Path, late: int = 0, **slow: Any) -> Job:
    block = {"times": 2, "cool_down": 10, **slow}
    return Job(tmp_path, late=late, file=False, slow_step=block).go(25)


def test_a_slow_step_of_any_rank_opens_a_window_that_stays_if_it_has_slow_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = slow_job(tmp_path).go(1, [250, 501])
    job.go(6).go(1, [250, 501]).go(8)
    assert job.timeline == ["." * 29 + "rRRL" + "." * 9] * 2
    assert job.keep_decisions == [{0: True}] * 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "ppprof: rank 0: window 0, steps 30 to 32, on ranks 0-1: "
        "step 25 of rank 1 took 501.0 ms, 2.0 times the median"
    )
    assert not (tmp_path / "trigger").exists()


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_a_window_stays_for_its_last_step_whose_time_is_known_after_it(
    tmp_path: Path, slow_rank: int
) -> None:
    job = slow_job(tmp_path, late=1).go(1, [600, 250])
    while job.states[0] is not State.LAST:
        job.go(1)
    job.go(1, [600 if rank == slow_rank else 250 for rank in range(2)]).go(10)
    assert job.timeline[0].count("L") == 1
    assert job.keep_decisions == [{0: True}] * 2


def test_a_window_without_a_slow_step_is_deleted_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = slow_job(tmp_path).go(1, [600, 250]).go(15)
    assert job.keep_decisions == [{0: False}] * 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        "ppprof: rank 0: window 0 is deleted: no step took more than 2 times the median"
    ]


def test_all_can_be_kept(tmp_path: Path) -> None:
    job = slow_job(tmp_path, keep="all").go(1, [600, 250]).go(15)
    assert "rRRL" in job.timeline[1]
    assert job.keep_decisions == [{}, {}]


def test_cool_down_and_number_are_the_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = slow_job(tmp_path, max_windows=2)
    for step in range(90):
        is_slow = step % 3 == 0
        job.go(1, [600.0 if is_slow and step % 2 else 250.0, 600.0 if is_slow else 250.0])
    starts = [step for step, state in enumerate(job.timeline[0]) if state == "r"]
    assert job.timeline[0] == job.timeline[1]
    assert len(starts) == 2
    assert starts[1] - starts[0] >= 3 + 10  # a window's steps and the cool-down
    assert capsys.readouterr().err.count("max_windows 2 is reached") == 1


def test_nothing_is_slow_before_there_is_a_median(tmp_path: Path) -> None:
    job = Job(tmp_path, file=False, slow_step=2).go(1, 9000).go(10, 250).go(1, 9000).go(20)
    assert set(job.timeline[0]) == {"."}


def test_a_request_that_cannot_be_deleted_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path).go(6)
    request_path(tmp_path).mkdir()
    job.go(9)
    err = capsys.readouterr().err
    assert err.count(f"rank 0: {request_path(tmp_path)}: Is a directory; ") == 1
    request_path(tmp_path).rmdir()
    write_request(tmp_path, None, None)
    job.go(9)
    assert not request_path(tmp_path).exists()
    assert "R" in job.timeline[0]


@pytest.mark.parametrize("kind", ["pipe", "link", "socket"])
def test_a_request_that_is_no_file_is_refused_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    job = Job(tmp_path).go(6)
    request = request_path(tmp_path)
    if kind == "pipe":
        os.mkfifo(request)
    elif kind == "link":
        request.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(request))  # a path of a socket has at most 107 bytes
    job.go(9)
    what = "request: a symbolic link" if kind == "link" else "not a regular file"
    assert f"rank 0: no window, asked for by request: {what}" in capsys.readouterr().err.replace(
        "trigger/", ""
    )
    assert not os.path.lexists(request)
    assert set(job.timeline[0]) == {"."}


@pytest.mark.parametrize(
    ("times", "timeline"),
    [
        # Five are alike after step 7; a message takes up to 4 steps.
        ([900, 500, *[250] * 14], ".pp........rRL..."),
        # Never alike: the window starts at step 20.
        ([900, 100] * 16, ".pp" + 16 * "." + "rRL" + 11 * "."),
        # A message takes up to 102 steps: all ranks know that step 20 is the latest.
        ([5] * 31, ".pp" + 16 * "." + "rRL" + 10 * "."),
    ],
)
def test_a_window_opens_once_when_step_times_have_settled(
    tmp_path: Path, times: list[int], timeline: str
) -> None:
    job = Job(tmp_path, settled=2, file=False)
    for took in times:
        job.go(1, took)
    assert job.timeline == [timeline, timeline]


@pytest.mark.parametrize(
    ("ranks", "took_ms", "steps", "first"),
    [
        (1, [250], 10, 7),
        (1, [20], 50, 7),
        (1, [5], 100, 7),
        (1, [20, 60], 50, 20),  # never alike
        (2, [60], 17, 17),
        (2, [5], 10, 20),  # a message would take too long
        (2, [20, 60], 10, 20),
    ],
)
def test_short_steps_are_recorded_for_a_second(
    tmp_path: Path, ranks: int, took_ms: list[float], steps: int, first: int
) -> None:
    job = Job(tmp_path, ranks=ranks, settled="auto", file=False)
    for number in range(130):
        job.go(1, took_ms[number % len(took_ms)])
    timelines = set(job.timeline)
    assert len(timelines) == 1
    (timeline,) = timelines
    assert timeline.count("R") + timeline.count("L") == steps
    assert timeline.index("R") == first


def test_a_settled_window_is_not_longer_than_the_schedule_has_room(tmp_path: Path) -> None:
    schedule = Schedule(closed=39, ready=1, record=2, repeat=1)
    job = Job(tmp_path, ranks=1, settled="auto", file=False, schedule=schedule).go(60, 5)
    assert [part for part in job.timeline[0].split(".") if part] == ["rRRRRRRRRRL", "rRL"]


def test_a_training_that_ends_in_a_long_settled_window_is_not_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, ranks=1, settled="auto", file=False).go(40, 5)
    for saved, num in ((range(12, 40), 0), (range(12, 15), 1)):
        caplog.clear()
        part = TriggersPart(job.ranks[0], {0: saved})
        ending = Ending(None, saved.stop, saved.stop, False, set())
        part.close(ending)
        part.wait(ending)
        assert len(caplog.messages) == num


def test_the_times_of_provisional_steps_settle_too_and_the_window_ends_these_steps(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path, settled=8, file=False).go(24)
    # Five are alike after step 5, without step 1, ahead of which the recording is opened.
    assert job.timeline == [".pppppppprRRRRRRRL" + 7 * "."] * 2


def test_it_waits_until_all_ranks_can_be_reached(tmp_path: Path) -> None:
    job = Job(tmp_path, settled=2, file=False)
    job.posts[1].delays = True
    job.go(10)
    assert job.timeline == 2 * [".pp" + 8 * "."]
    job.posts[1].deliver()
    job.go(10)
    assert job.timeline == 2 * [".pp" + 11 * "." + "rRL" + 4 * "."]


@pytest.mark.parametrize(
    ("delivered_at", "timeline"),
    [
        (9, ".pppppppprRRRRRRRRRL......"),
        (10, ".ppppppppp" + "RRRRRRRRRL......"),
        (12, ".pppppppppp." + "RRRRRRRL......"),
    ],
)
def test_a_rank_that_gets_that_plan_late_goes_from_provisional_steps_to_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivered_at: int, timeline: str
) -> None:
    job = Job(tmp_path, settled=10, file=False).go(5)
    monkeypatch.setattr(job.posts[0], "unconfirmed", list)
    job.posts[1].delays = True
    job.go(delivered_at - 6)
    job.posts[1].deliver()
    job.go(25 - job.step)
    assert job.timeline == [".pppppppprRRRRRRRRRL......", timeline]


@pytest.mark.parametrize(
    ("schedule", "timeline"),
    [
        (
            Schedule(closed=8, ready=1, record=2, repeat=3),
            8 * "." + "rRL" + 8 * "." + "rRL" + "rRRRRL" + 2 * "." + "rRL" + 7 * ".",
        ),
        (Schedule(closed=0, ready=0, record=None, repeat=1), 40 * "R"),
    ],
)
def test_the_latest_steps_are_those_that_the_schedule_leaves_free(
    tmp_path: Path, schedule: Schedule, timeline: str
) -> None:
    job = Job(tmp_path, settled=5, file=False, schedule=schedule).go(39, 5)
    assert job.timeline == [timeline, timeline]


def test_a_request_ahead_of_that_window_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, settled=2).go(6, 5)
    write_request(tmp_path, None, None)
    job.now += 1
    job.go(1, 5)
    refused = "no window, asked for by request: already recording: window 0, steps 20 to 21"
    assert refused in capsys.readouterr().err
    job.go(30, 5)
    assert job.timeline[0][3:].strip(".") == job.timeline[1][3:].strip(".") == "rRL"


def test_a_window_opens_at_once_on_one_rank(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=1, settled=3, file=False).go(30)
    assert job.timeline == [".ppp...rRRL" + 20 * "."]


@pytest.mark.parametrize(
    ("steps", "recorded", "message"),
    [
        (1, range(0), "1 step, before window 0, steps 20 to 22: nothing was recorded; "),
        (2, range(1, 2), "2 steps, before window 0, steps 20 to 22: step 1 was recorded instead; "),
        (
            6,
            range(1, 4),
            "6 steps, before window 0, steps 20 to 22: steps 1 to 3 were recorded instead; ",
        ),
        (
            7,
            range(1, 4),
            "7 steps, before window 0, steps 8 to 10: steps 1 to 3 were recorded instead; ",
        ),
        (
            8,
            range(1, 4),
            "8 steps, before window 0, steps 8 to 10: steps 1 to 3 were recorded instead; ",
        ),
        (8, range(0), "8 steps, before window 0, steps 8 to 10: nothing was recorded; "),
        (9, range(8, 9), "9 steps, only step 8 was recorded; "),
        (
            9,
            range(1, 4),
            "9 steps, within window 0, steps 8 to 10: steps 1 to 3 were recorded instead; ",
        ),
        (10, range(8, 10), "10 steps, only steps 8 to 9 were recorded; "),
        (11, range(8, 11), None),
    ],
)
def test_a_training_that_ends_too_early_logs_how_to_choose_the_steps(
    tmp_path: Path,
    steps: int,
    recorded: range,
    message: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = Job(tmp_path, ranks=1, settled=3, file=False).go(steps)
    caplog.clear()
    part = TriggersPart(job.ranks[0], {0: recorded})
    ending = Ending(None, steps, steps, False, set())
    part.close(ending)
    assert not caplog.messages  # not before all windows are saved
    part.wait(ending)
    advice = (
        "to choose the steps: ppprof run --steps FIRST:END, or Profiler.scheduler: [FIRST, END]"
    )
    expected = [] if message is None else [f"rank 0: the training ended after {message}{advice}"]
    assert caplog.messages == expected
    assert (job.ranks[0].cut_short is None) is (message is None)


def test_closing_decides_and_takes_the_request_away(tmp_path: Path) -> None:
    job = Job(tmp_path, slow_step={"times": 2, "cool_down": 10}).go(25).go(1, [600, 250]).go(7)
    write_request(tmp_path, None, None)
    for triggers in job.ranks:
        triggers.close(failed=False)
    assert [triggers.keep_decisions for triggers in job.ranks] == [{0: False}] * 2
    assert job.posts[0].waited == 2
    assert not request_path(tmp_path).exists()


def test_a_plan_that_comes_too_late_for_the_training_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, settled=3, file=False).go(7)
    assert "window 0, steps 11 to 13, on ranks 0-1" in capsys.readouterr().err
    for triggers in job.ranks:
        triggers.close(failed=False)
    assert job.posts[0].waited == 0


@pytest.mark.parametrize("recovers", [False, True])
def test_a_window_for_a_rank_that_becomes_slow_is_kept_if_it_still_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recovers: bool
) -> None:
    """Stage 1, the odd ranks, has less work."""
    job = Job(tmp_path, ranks=8, stages=2, slow_rank=True, file=False)
    job.own_ms = [100, 50, 100, 50, 100, 50, 100, 50]
    job.go(40)
    assert job.timeline[0] == 41 * "."
    job.own_ms[5] = 60
    num_steps = 0
    while "r" not in job.timeline[5]:
        job.go(1)
        num_steps += 1
        # Those of the score, of a message, until it is sent, and by which ranks are apart.
        assert num_steps < 18 + 8 + 7 + 4
    if recovers:
        job.own_ms[5] = 50
    job.go(40)
    assert [line.count("L") for line in job.timeline] == [0, 1] * 4
    assert job.keep_decisions == [{0: not recovers}] * 8
    err = capsys.readouterr().err
    assert "on ranks 1, 3, 5, 7: rank 5 has worked longer than its peers for " in err
    deleted = "window 0 is deleted: rank 5 did not work longer than its peers in it"
    assert (deleted in err) == recovers


@pytest.mark.parametrize(("num_recovered", "windows"), [(40, 1), (300, 2)])
def test_a_rank_gets_another_window_only_after_it_has_recovered(
    tmp_path: Path, num_recovered: int, windows: int
) -> None:
    job = slow_rank_job(tmp_path, 4, slow=[3]).go(300)
    job.own_ms = [100] * 4
    job.go(num_recovered)
    job.own_ms = [100, 100, 100, 130]
    job.go(100)
    assert job.timeline[3].count("L") == windows


def slow_rank_job(tmp_path: Path, ranks: int, slow: Collection[int], **config: Any) -> Job:
    """Return a job of which ranks ``slow`` work longer after 30 steps."""
    job = Job(tmp_path, ranks=ranks, slow_rank=True, file=False, **config)
    job.own_ms = [100] * ranks
    job.go(30)
    job.own_ms = [130 if rank in slow else 100 for rank in range(ranks)]
    return job


@pytest.mark.parametrize("slow", [range(8), range(32, 40)])
def test_the_slow_ranks_of_a_host_get_one_window_with_ranks_of_others(
    tmp_path: Path, slow: range, capsys: pytest.CaptureFixture[str]
) -> None:
    job = slow_rank_job(tmp_path, 64, slow).go(300)
    recording = [rank for rank, line in enumerate(job.timeline) if "L" in line]
    assert len(recording) == 8
    assert [rank for rank in recording if rank in slow] == [slow[0]]
    assert job.keep_decisions[0] == {0: True}
    assert f"steps, ranks {slow[1]}-{slow[-1]} too" in capsys.readouterr().err
    job.own_ms[50] = 200  # of another cause
    job.go(100)
    assert job.timeline[50].count("L") == 1
    assert job.keep_decisions[0] == {0: True, 1: True}


def test_ranks_that_become_slow_one_after_the_other_get_one_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = slow_rank_job(tmp_path, 8, slow=[5]).go(60)
    job.own_ms[6] = 130
    job.go(300)
    assert [line.count("L") for line in job.timeline] == [1] * 8
    err = capsys.readouterr().err
    assert err.count("rank 6 has worked longer than its peers for ") == 1
    assert "no window, since one was opened less than 200 steps ago" in err


def test_deleted_windows_for_slow_ranks_count_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = slow_rank_job(tmp_path, 4, slow=[])
    for _ in range(7):
        job.own_ms[2] = 130
        last = job.step + 40
        while job.step < last and job.states[2] is not State.READY:
            job.go(1)
        job.own_ms[2] = 100
        job.go(250)
    assert job.keep_decisions[0] == dict.fromkeys(range(5), False)
    assert capsys.readouterr().err.count("no window, since 5 windows were opened for slow") == 1


def test_windows_for_slow_steps_and_for_slow_ranks_have_limits_of_their_own(
    tmp_path: Path,
) -> None:
    block = {"times": 2, "cool_down": 10, "keep": "all", "max_windows": 5}
    job = slow_rank_job(tmp_path, 4, slow=[], slow_step=block)
    for _ in range(6):
        job.go(30).go(1, 600)
    assert job.timeline[0].count("L") == 5
    job.own_ms[2] = 130
    job.go(60)
    assert job.timeline[0].count("L") == 6


def test_a_slow_rank_without_room_for_a_window_is_logged_once_and_gets_a_later_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = Schedule(closed=99, ready=1, record=20, repeat=1)
    job = slow_rank_job(tmp_path, 4, slow=[], schedule=schedule).go(52)
    job.own_ms[2] = 130
    while job.states[0] is State.CLOSED:
        job.go(1)
    job.go(60)
    err = capsys.readouterr().err
    assert err.count("no window, since already recording") == 1
    assert job.timeline[2].endswith("rRRL" + job.timeline[2].rpartition("L")[2])


def test_steps_of_a_scheduled_window_are_not_compared(tmp_path: Path) -> None:
    """Recording makes the steps of one rank longer: it records alone."""
    schedule = Schedule(closed=59, ready=1, record=20, repeat=3)
    job = slow_rank_job(tmp_path, 8, slow=[], schedule=schedule)
    for _ in range(210):
        job.own_ms[0] = 130 if schedule.state(job.step).records else 100
        job.go(1)
    assert job.keep_decisions[0] == {}


def test_a_lost_message_keeps_no_window(tmp_path: Path) -> None:
    job = slow_rank_job(tmp_path, 16, slow=[3])
    while "r" not in job.timeline[3]:
        job.go(1)
    job.own_ms = [100] * 16
    send = job.posts[15].send
    job.posts[15].send = lambda message: None if message["kind"] == "own" else send(message)
    job.go(40)
    assert job.keep_decisions[0] == {0: False}


def test_the_messages_of_many_ranks_arrive_an_eighth_at_a_time() -> None:
    topology = Topology.of(dp=64)
    times = [OwnTimes(rank, topology) for rank in range(64)]
    receiver = times[0]
    sent = []
    for step in range(32):
        messages = [own.add(step, rank, 10**9, is_wanted=False) for rank, own in enumerate(times)]
        sent.append(sum(message is not None for message in messages))
        for message in messages:
            if message is not None:
                receiver.take(message)
    assert sent == [0] * 7 + [8] * 25
    ready = dict(receiver.ready(32))
    assert list(ready) == list(range(24))
    assert all(own.tolist() == list(range(64)) for own in ready.values())


def test_a_rank_whose_work_is_unknown_sends_nothing() -> None:
    own = OwnTimes(1, Topology.of(dp=2))
    assert {str(own.add(step, None, 10**9, is_wanted=True)) for step in range(40)} == {"None"}


def test_a_window_is_known_as_a_whole_though_a_large_job_leaves_blocks_out() -> None:
    """Of 4,000 ranks with steps of 0.1 s, each sends one block in 128."""
    own = OwnTimes(1, Topology.of(dp=4000))
    sent = []
    for step in range(8, 64):
        message = own.add(step, 7, 10**8, is_wanted=22 <= step < 26)
        if message is not None:
            sent.append(range(message["step"] + 1 - len(message["ns"]), message["step"] + 1))
    assert sent == [range(16, 24), range(24, 32)]


def test_a_lost_message_delays_no_comparison_for_ever(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=4, slow_rank=True, file=False)
    job.own_ms = [100, 100, 100, 130]
    job.posts[0].delays = True
    job.go(8)
    job.posts[0].delays = False  # nothing of those steps arrives
    job.go(72)
    assert job.timeline[0].count("L") == 1


def test_a_window_is_kept_if_the_training_ends_before_its_times_are_known(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=4, slow_rank=True, file=False)
    job.own_ms = [100, 100, 100, 130]
    while "L" not in job.timeline[3]:
        job.go(1)
        assert job.step < 60
    job.ranks[0].close(failed=False)
    assert job.ranks[0].keep_decisions.get(0, True)
