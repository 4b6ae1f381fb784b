"""Which line communicates and what is proposed for it; ranks that wait at small collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.analysis.advice import advise
from ppprof.analysis.advice.communication import _distances
from ppprof.analysis.advice.finding import Finding
from ppprof.report.text.advice import finding_rows, findings_document
from ppprof.run.advise import collect_evidence_of_run
from tests.fixtures.findings import (
    AFTER,
    BACKWARD,
    FORWARD,
    LOGS,
    UPDATE,
    US,
    in_lines,
    late_in_turn,
    one,
    op,
    thread,
)
from tests.fixtures.run_directories import run
from tests.fixtures.timeline import Launch, Span, Thread, kernel, launch

ALONE = [in_lines((800, FORWARD), (200, BACKWARD))] * 2
"""The last 200 of each step are in one line."""


def call(
    at: int,
    start: int,
    end: int,
    name: str = "all_reduce",
    size: int | None = 4096,
    axis: str = "dp",
) -> Span:
    """A collective of two ranks."""
    facts = "" if size is None else f" bytes={size} dtype=float32"
    facts = f"{name}[axis={axis} group=1{facts} peers=0,1]"
    return op(at, start, end, facts, category="Communication")


def calls(at: int, num: int, name: str = "all_reduce", size: int | None = 4096) -> Iterable[Span]:
    """Collectives one behind the other, for 200 together."""
    return [call(at, 800 + 20 * n, 800 + 20 * (n + 1), name, size) for n in range(num - 1)] + [
        call(at, 800 + 20 * (num - 1), 1000, name, size)
    ]


def reducing(at: int, start: int, end: int, *layers: str, num: int = 1) -> Span:
    """A Backward of layers in which the reducer of DataParallel divides for 10, and reduces the rest of its part."""
    nodes = [op(at, start, start + 1, f"Global_{layer}GradNode") for layer in layers]
    length = (end - start) // num
    for begin in range(start, start + num * length, length):
        divides = op(
            at, begin + 1, begin + 10, "scale kernel launch", category="DygraphKernelLaunch"
        )
        node = op(at, begin + 1, begin + length, "Global_GradNodeAccumulation").around(divides)
        nodes.append(node)
    return op(at, start, end, "Backward", *nodes, category="Backward")


def updating(at: int, start: int, end: int) -> Span:
    return op(at, start, end, "Optimization Step", category="Optimization")


JOBS = {
    "buffer": lambda at: (op(at, 0, 800), *calls(at, 8)),
    "own-cpu": lambda at: (op(at, 0, 800), *calls(at, 7)),
    "own-cpu of one rank": lambda at: (op(at, 0, 800), *calls(at, 8, "reduce")),
    "own-cpu of large tensors": lambda at: (op(at, 0, 800), *calls(at, 8, size=1 << 20)),
    "replicas": lambda at: (op(at, 0, 800), *calls(at, 8, "broadcast")),
    "objects": lambda at: (op(at, 0, 800), *calls(at, 1, "all_gather_object", None)),
    "objects-broadcast": lambda at: (
        op(at, 0, 800),
        *calls(at, 1, "broadcast_object_list", None),
    ),
    "small of barriers": lambda at: (op(at, 0, 800), *calls(at, 1, "barrier", None)),
    "layers": lambda at: (
        op(at, 0, 800),
        op(at, 800, 1000, "Norm", *calls(at, 8), category="Forward"),
    ),
    "values-cpu": lambda at: (
        op(at, 0, 800),
        op(at, 800, 1000, "Loss", *calls(at, 2), category="Forward"),
    ),
    "dp-cpu": lambda at: (op(at, 0, 700), reducing(at, 790, 1000), updating(at, 700, 780)),
    "dp-accumulate": lambda at: (
        op(at, 0, 700),
        updating(at, 700, 780),
        reducing(at, 790, 900),
        reducing(at, 900, 1000),
    ),
}
"""Remedy, with what else it is for -> the spans of a step of 1000, of which the last 200 communicate."""


def communication(path: Path) -> Finding:
    return one("exposed-communication", ppprof.advise(ppprof.open(path)))


@pytest.mark.parametrize("job", JOBS)
def test_the_proposal_is_for_what_communicates(job: str, tmp_path: Path):
    remedy = job.partition(" ")[0]
    threads = [thread(JOBS[job])] * 2
    found = communication(run(tmp_path / "log", threads, stacks=ALONE, hosts=["host"] * 2))
    assert found.facts["remedy"] == f"code-{remedy}"
    assert found.place == ("train.py", 13)
    # Nothing hides what each update needs on a CPU.
    is_needed = remedy in ("own-cpu", "dp-cpu", "values-cpu")
    expected = "minor" if is_needed else "major"
    if remedy == "buffer":
        assert "in `with paddle.no_grad():`" in finding_rows([found], "en")[0].do
    if remedy == "dp-accumulate":
        expected = "moderate"  # one of the two reductions remains
        assert "Each update reduces gradients 2 times." in finding_rows([found], "en")[0].do
    assert found.severity == expected


@pytest.mark.parametrize(
    ("name", "phase", "size", "remedy"),
    [
        ("all_gather", "Forward", 4096, "mp-gather"),
        ("all_gather", "Backward", 4096, "mp-gather"),
        ("all_gather", "", 4096, "mp-outside"),
        ("all_reduce", "", 4, "mp"),  # a norm or an overflow that all ranks have to know
        ("all_reduce", "Forward", 4096, "mp"),  # sums over the parts of a layer, which it needs
        ("all_reduce", "", 4096, "mp"),  # gradients of what all ranks have
        ("broadcast", "", 4096, "mp-broadcast"),
        ("broadcast_object_list", "", None, "objects-broadcast"),
        ("all_gather reduce_scatter", "Forward", 4096, "mp"),  # parts of a sequence
    ],
)
def test_ranks_with_parts_of_the_layers(
    name: str, phase: str, size: int | None, remedy: str, tmp_path: Path
):
    """Another operation behind a blank takes the last 50 of 200."""

    def make(at: int) -> Iterable[Span]:
        first, _, second = name.partition(" ")
        until = 950 if second else 1000
        collectives = [call(at, 800, until, first, size, axis="mp")]
        collectives += [call(at, until, 1000, second, size, axis="mp")] if second else []
        yield op(at, 0, 800)
        yield from (
            [op(at, 800, 1000, phase, *collectives, category=phase)] if phase else collectives
        )

    path = run(tmp_path / "log", [thread(make)] * 2, stacks=ALONE, hosts=["host"] * 2)
    assert communication(path).facts["remedy"] == f"code-{remedy}"


def test_sums_of_parts_of_layers_come_behind_what_need_not_be(tmp_path: Path):
    """They take 110 of 200, and a gather outside of the layers 90; were it 30, the sums would be named."""

    def make(until: int) -> Thread:
        return thread(
            lambda at: (
                op(at, 0, 800),
                op(at, 800, until, "Net", call(at, 800, until, axis="mp"), category="Forward"),
                call(at, until, 1000, "all_gather", axis="mp"),
            )
        )

    found = {}
    for until in (910, 970):
        stacks = [in_lines((800, FORWARD), (until - 800, BACKWARD), (1000 - until, LOGS))] * 2
        path = run(tmp_path / str(until), [make(until)] * 2, stacks=stacks, hosts=["host"] * 2)
        found[until] = communication(path).facts["op"]
    assert found == {910: "all_gather", 970: "all_reduce"}


def of_step(at: int) -> int:
    return at // (1000 * US)


OPTIMIZERS = {
    "a GAN": (
        lambda at: (reducing(at, 790, 900, "Relu"), reducing(at, 900, 1000, "Tanh")),
        ("code-dp", None),
    ),
    "models with as many layers, but other buffers": (
        lambda at: (reducing(at, 790, 900), reducing(at, 900, 1000, num=2)),
        ("code-dp", None),
    ),
    "twins": (
        lambda at: (reducing(at, 790, 900), reducing(at, 900, 1000)),
        ("code-dp", None),
    ),
    "micro-batches": (
        lambda at: (reducing(at, 790, 870), reducing(at, 870, 930), reducing(at, 930, 1000)),
        ("code-dp-accumulate", 3),
    ),
    "one model": (lambda at: (reducing(at, 790, 1000),), ("code-dp-cpu", None)),
}
"""What two optimizers, which step one after another, train -> the Backwards of each update, the remedy and a number."""


@pytest.mark.parametrize("job", OPTIMIZERS)
def test_backwards_of_two_models_are_no_micro_batches(job: str, tmp_path: Path):
    backwards, expected = OPTIMIZERS[job]

    def make(at: int) -> Iterable[Span]:
        yield from (op(at, 0, 600), updating(at, 600, 680), updating(at, 690, 780))
        yield from backwards(at)

    threads = [thread(make)] * 2
    found = communication(run(tmp_path / "log", threads, stacks=ALONE, hosts=["host"] * 2))
    assert (found.facts["remedy"], found.facts["num_reductions"]) == expected


def test_backwards_in_two_lines_may_be_of_two_models(tmp_path: Path):
    """Their layers are equal, as those of an actor and a critic may be."""
    lines = [in_lines((800, FORWARD), (100, BACKWARD), (100, UPDATE))] * 2
    threads = [thread(JOBS["dp-accumulate"])] * 2
    found = communication(run(tmp_path / "log", threads, stacks=lines, hosts=["host"] * 2))
    assert found.facts["remedy"] == "code-dp"


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([1, 3, 5], ("code-dp-accumulate", 2, "moderate")),
        ([0, 2, 4], ("code-dp-accumulate", 2, "moderate")),  # what precedes step 0 is unknown
        ([0], ("code-dp", None, "major")),
        ([2], ("code-dp", None, "major")),
        ([], ("code-dp", None, "major")),  # an update class of one's own has no event
        ([0, 1, 2, 3, 4, 5], ("code-dp-cpu", None, "minor")),
    ],
)
def test_updates_may_take_several_steps(
    updates: list[int], expected: tuple[str, int | None, str], tmp_path: Path
):
    """Each step has a Backward that reduces, and some end with an update."""

    def make(at: int) -> Iterable[Span]:
        yield from (op(at, 0, 700), reducing(at, 700, 900))
        if of_step(at) in updates:
            yield updating(at, 900, 990)

    stacks = [in_lines((700, FORWARD), (200, BACKWARD), (100, UPDATE))] * 2
    found = communication(
        run(tmp_path / "log", [thread(make)] * 2, stacks=stacks, hosts=["host"] * 2)
    )
    facts = found.facts
    assert (facts["remedy"], facts["num_reductions"], found.severity) == expected


def test_without_samples_the_proposal_is_that_of_the_axis(tmp_path: Path):
    found = communication(run(tmp_path / "log", [thread(JOBS["buffer"])] * 2))
    assert (found.facts["remedy"], found.severity) == ("code-dp", "major")
    assert found.evidence.drop("wait_ns", "transfer_ns").rows(named=True) == [
        {"op": "all_reduce", "calls": pytest.approx(8), "mean_bytes": 4096}
    ]


def test_each_line_and_operation_has_a_row(tmp_path: Path):
    """Two lines reduce; the broadcasts of every second step have samples in none of their calls of 64 bytes.

    ::

        us      0        500   700       900  1000
        even    #########[13   ][15 13 13    ]        13: reductions; 15: broadcasts
        odd     #########[13   ]##############
    """

    def make(at: int) -> Iterable[Span]:
        is_even = of_step(at) % 2 == 0
        yield op(at, 0, 500)
        yield call(at, 500, 700, size=1 << 20)
        if is_even:
            yield call(at, 700, 900, "broadcast", 1 << 20)
            for number, size in enumerate((64, 128)):
                yield call(at, 900 + 10 * number, 910 + 10 * number, "broadcast", size)
            yield op(at, 920, 1000)
        else:
            yield op(at, 700, 1000)

    stacks = in_lines((500, FORWARD), (200, BACKWARD), (200, LOGS), (100, FORWARD))
    path = run(tmp_path / "log", [thread(make)] * 2, stacks=[stacks] * 2, hosts=["host"] * 2)
    found = communication(path)
    assert found.evidence.rows(named=True) == [
        {
            **{"line": "train.py:13", "op": "all_reduce", "calls": 1.0, "every": None},
            **{"mean_bytes": 1 << 20, "wait_ns": 0.0, "transfer_ns": pytest.approx(200 * US)},
        },
        {
            "line": "train.py:7, log(): file.write(json.dumps(weights))",
            **{"op": "broadcast", "calls": pytest.approx(1.5), "every": 2},
            "mean_bytes": pytest.approx(((1 << 20) + 192) / 3),
            **{"wait_ns": 0.0, "transfer_ns": pytest.approx(110 * US)},
        },
    ]
    assert found.facts["exposed_ns"] == pytest.approx(310 * US)
    # The broadcasts can go, the reductions cannot: their line is named, though they take longer.
    assert (found.facts["remedy"], found.place) == ("code-replicas", ("train.py", 7))
    (row,) = finding_rows([found], "en")
    assert row.what.endswith(
        "110 us of it is in 1.5 calls of broadcast a step (every 2 steps) (of 341 KiB each, on average) "
        "in train.py:7, log(): file.write(json.dumps(weights))."
    )
    (entry,) = findings_document([found])["findings"]
    assert [each["every"] for each in entry["evidence"]] == [None, 2]


def test_waits_choose_no_line(tmp_path: Path):
    """Rank 0 waits for 400 in a barrier that transfers for 10; the sums behind it transfer for 150.

    ::

        us       0     300       700 710         860
        rank 0   #######[13        ][7           ]###
        rank 1   ################[13][7          ]###
    """

    def make(until: int) -> Thread:
        return thread(
            lambda at: (
                op(at, 0, until),
                call(at, until, 710, "barrier", None),
                call(at, 710, 860, size=1 << 20),
                op(at, 860, 1000),
            )
        )

    stacks = [
        in_lines((until, FORWARD), (700 - until, BACKWARD), (150, LOGS), (150, FORWARD))
        for until in (300, 700)
    ]
    threads = [make(300), make(700)]
    found = communication(run(tmp_path / "log", threads, stacks=stacks, hosts=["host"] * 2))
    assert found.evidence["op"].to_list() == ["all_reduce", "barrier"]
    # Sums cannot be hidden on a CPU, and the rest transfers for a hundredth of the step.
    assert (found.facts["remedy"], found.place, found.severity) == (
        "code-own-cpu",
        ("train.py", 7),
        "minor",
    )


@pytest.mark.parametrize(
    ("phase", "hidden", "remedy"),
    [
        ("Forward", 0, "code-values"),
        ("Forward", 100, "code-overlap"),
        ("Backward", 0, "code-overlap"),
    ],
)
def test_a_device_computes_while_others_communicate(
    phase: str, hidden: int, remedy: str, tmp_path: Path
):
    """The kernel of an all_reduce from 800 to 1000, beside another one until 800 and ``hidden``."""

    def make(at: int) -> Iterable[Span | Launch]:
        reduces = kernel("ncclDevKernel_AllReduce", at + 800 * US, at + 1000 * US, stream=20)
        yield launch(at, at + 1, kernel("gemm", at, at + (800 + hidden) * US))
        sums = call(at, 800, 990).around(launch(at + 801 * US, at + 802 * US, reduces))
        yield op(at, 795, 995, phase, sums, category=phase)

    # Without one clock there is no replay, in which the host would be as long.
    found = communication(run(tmp_path / "log", [thread(make)] * 2, stacks=ALONE))
    assert (found.facts["remedy"], found.severity) == (remedy, "major")


@pytest.mark.parametrize(
    ("windows", "called", "every"),
    [
        ([range(6)], [0, 2, 4], 2),
        ([range(6), range(20, 26)], [0, 2, 4, 21, 23], 2),
        ([[0], [10], [20]], [0, 10, 20], None),  # the schedule records these steps only
        ([range(0, 12, 2)], [0, 4, 8], None),
        ([range(6)], [0, 2], None),
        ([range(6)], [0, 2, 5], None),
        ([range(6)], range(6), None),
    ],
)
def test_calls_of_every_second_step_are_seen_not_to_be_in_the_others(
    windows: Sequence[Iterable[int]], called: Iterable[int], every: int | None
):
    rows = [(number, step) for number, steps in enumerate(windows) for step in steps]
    steps = pl.DataFrame(rows, ["window", "step"], orient="row")
    made = pl.DataFrame({"step": list(called)}).with_columns(line=pl.lit("a.py:7"), op=pl.lit("a"))
    distances = _distances(made, steps)["every"].to_list()
    assert distances == ([] if every is None else [every])


IN_TURN = (400, 100), (100, 400)
"""The lengths of two parts of a step on two ranks, between which they meet in a small collective."""
LINES = [
    in_lines((500, FORWARD), (500, BACKWARD)),
    in_lines((100, FORWARD), (300, AFTER), (400, FORWARD), (200, BACKWARD)),
]


def in_turn(path: Path, first: Sequence[int], second: Sequence[int], **options: object) -> Path:
    threads = [late_in_turn(first, second, **options), late_in_turn(second, first, **options)]
    return run(path, threads, stacks=LINES, hosts=["host"] * 2)


def small(path: Path) -> list[Finding]:
    found = ppprof.advise(ppprof.open(path))
    return [each for each in found if each.rule == "small-collectives"]


@pytest.mark.parametrize(
    ("options", "cost_us"),
    [
        ({}, 300),
        ({"small": "barrier"}, 300),
        ({"size": 1 << 20}, None),  # it may be the gradients
        ({"size": 8 << 10}, None),
    ],
)
def test_ranks_that_are_late_in_turn_win_what_they_wait_for_nothing(
    options: dict[str, object], cost_us: int | None, tmp_path: Path
):
    found = small(in_turn(tmp_path / "log", *IN_TURN, **options))
    assert [each.cost_ns for each in found] == ([] if cost_us is None else [cost_us * US])
    for each in found:
        barrier = options.get("small") == "barrier"
        assert each.facts["remedy"] == ("code-barrier" if barrier else "code")
        assert (each.facts["late_rank"], each.facts["late_ratio"]) == (0, 1.0)
        (row,) = each.evidence.rows(named=True)
        assert (row["calls"], row["wait_ns"], row["transfer_ns"]) == (1, 150 * US, 20 * US)


def test_a_rank_that_is_always_late_is_waited_for_later(tmp_path: Path):
    """Rank 0 works for 300 longer ahead of both collectives: without the first, ranks wait in the second."""
    assert not small(in_turn(tmp_path / "log", (400, 400), (100, 100)))


def meeting(
    parts: Callable[[int], Sequence[int]], peers: str, is_called: Callable[[int], bool]
) -> Thread:
    """Steps of two parts, each until all have done it, a small collective between them and a large one behind."""

    def make(at: int) -> Iterable[Span]:
        own = parts(of_step(at))
        facts = f"axis=dp group=1 bytes={{}} dtype=float32 peers={peers}"
        yield op(at, 0, own[0])
        if is_called(of_step(at)):
            yield op(at, own[0], 420, f"all_reduce[{facts.format(4)}]", category="Communication")
        yield op(at, 420, 420 + own[1])
        large = f"all_reduce[{facts.format(1 << 20)}]"
        yield op(at, 420 + own[1], 1000, large, category="Communication")

    return thread(make)


@pytest.mark.parametrize("calls_in_turn", [False, True])
def test_two_groups_that_wait_wait_no_longer_than_one(calls_in_turn: bool, tmp_path: Path):
    """Of four ranks, two and two meet, in the same steps or in turn."""
    threads = [
        meeting(
            lambda step, rank=rank: IN_TURN[rank % 2],
            "0,1" if rank < 2 else "2,3",
            lambda step, rank=rank: not calls_in_turn or step % 2 == rank // 2,
        )
        for rank in range(4)
    ]
    found = small(run(tmp_path / "log", threads, stacks=LINES * 2, hosts=["host"] * 4))
    if calls_in_turn:
        assert not found
        return
    facts = found[0].facts
    assert (facts["num_calls"], facts["wait_ns"]) == (1, 150 * US)
    assert (facts["late_rank"], facts["late_ratio"], facts["group"]) == (0, 1.0, "0,1")


@pytest.mark.parametrize("turns", [False, True])
def test_the_rank_that_comes_last_may_change(turns: bool, tmp_path: Path):
    """Rank 0 has the longer one of the first parts, of all steps or of each second one."""
    threads = [
        meeting(
            lambda step, rank=rank: IN_TURN[(rank + step * turns) % 2], "0,1", lambda step: True
        )
        for rank in range(2)
    ]
    stacks = [LINES[1]] * 2
    (found,) = small(run(tmp_path / "log", threads, stacks=stacks, hosts=["host"] * 2))
    (row,) = finding_rows([found], "en")
    said = (
        "(most often rank 0, in 50.0% of the calls)"
        if turns
        else "Rank 0 comes last here, in 100.0%"
    )
    assert said in row.what
    assert ("changes" in row.what) == turns
    assert "group" not in row.what


@pytest.mark.parametrize("why", ["a layer needs it", "no other reduction", "neither"])
def test_what_the_training_may_need_is_waited_for(why: str, tmp_path: Path):
    """A small all_reduce in a layer, or the only one of the job: it may be a norm, or the gradients."""

    def make(own: Sequence[int]) -> Thread:
        def step(at: int) -> Iterable[Span]:
            inner = call(at, own[0], 420, size=4)
            yield op(at, 0, own[0])
            if why == "a layer needs it":
                inner = op(at, own[0], 420, "Norm", inner, category="Forward")
            yield inner
            yield op(at, 420, 420 + own[1])
            other = "barrier" if why == "no other reduction" else "all_reduce"
            yield call(at, 420 + own[1], 1000, other, size=1 << 20)

        return thread(step)

    threads = [make(own) for own in IN_TURN]
    found = small(run(tmp_path / "log", threads, stacks=LINES, hosts=["host"] * 2))
    assert {name for each in found for name in each.evidence["op"]} == {
        "a layer needs it": set(),
        "no other reduction": {"barrier"},
        "neither": {"all_reduce"},
    }[why]


def test_waits_and_transfers_count_once(tmp_path: Path):
    """Of 1000, 200 are transfers, and 300 waits of the ranks for each other in turn."""
    evidence = collect_evidence_of_run(ppprof.open(in_turn(tmp_path / "log", *IN_TURN)))
    costs = {each.rule: each.cost_ns for each in advise(evidence) if each.rule in WAITS}
    assert costs == {"small-collectives": 300 * US, "exposed-communication": 200 * US}
    replays = evidence.replays
    assert replays is not None
    apart = evidence.collective_calls.filter(pl.col("bytes") == 4)
    assert replays.saved_ns(["overlap dp"], apart) == sum(costs.values())
    assert replays.saved_ns(["overlap dp"]) == 200 * US


WAITS = ("small-collectives", "exposed-communication", "slow-rank")
