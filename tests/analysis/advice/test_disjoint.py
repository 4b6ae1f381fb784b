"""No time counts twice: what a wait for a late rank costs is not communication, too."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof.analysis.advice.disjoint import BESIDE, COMPUTATION, WAITING, disjoint
from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.profile.step_basis import NOT_RECORDED, RECORDED
from ppprof.run.advise import collect_evidence_of_run
from ppprof.trace import GARBAGE_COLLECTION
from tests.fixtures.findings import (
    TRIGGERS,
    US,
    beside_a_reader,
    by_rule,
    collecting,
    op,
    sleeping,
    thread,
)
from tests.fixtures.run_directories import run
from tests.fixtures.timeline import Thread, span
from tests.fixtures.torch_traces import TorchTrace

STEP, TRANSFER = 10_000.0, 260.0
RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def reducing(
    folder: Path, late: list[float], *, axis: str = "default_pg", has_args: bool = True
) -> Path:
    """A step of each rank: four products, later on some ranks, then an all-reduce of all ranks."""
    folder.mkdir()
    for rank, delay in enumerate(late):
        trace = TorchTrace(device=rank, world_size=len(late))
        args = {
            **{"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000},
            **{"Group size": len(late), "dtype": "Float", "Process Group Name": "0"},
            **{"Process Group Description": axis, "Process Group Ranks": str([*range(len(late))])},
        }
        args = args if has_args else {}
        for number in range(6):
            at = number * STEP
            trace.step(number, at, STEP)
            for i in range(4):
                start = at + 50 + i * 1200 + (delay if i else 0)
                trace.span("cpu_op", "aten::mm", start, 100)
                trace.launch(start + 20, "gemm", start + 40, 1000)
            start = at + 50 + 4 * 1200 + delay
            end = at + 50 + 4 * 1200 + max(late) + 40 + TRANSFER
            trace.span("cpu_op", "c10d::allreduce_", start, 80)
            if has_args:
                trace.span("cpu_op", "record_param_comms", start + 10, 60, **args)
            trace.launch(start + 20, RING, start + 40, end - start - 40, stream=20, **args)
        trace.write(folder / f"rank{rank}.pt.trace.json")
    return folder


@pytest.mark.parametrize("has_args", [True, False])
def test_waiting_for_a_late_rank_is_no_communication(has_args: bool, tmp_path: Path):
    """Rank 3 arrives 1.9 ms late; the transfer takes 0.26 ms."""
    found = by_rule(reducing(tmp_path / "d", [0, 100, 200, 2000], has_args=has_args))
    assert found["exposed-communication"].cost_ns == pytest.approx(TRANSFER * US, rel=0.01)
    assert found["slow-rank"].cost_ns == pytest.approx(1900 * US, rel=0.01)
    assert found["slow-rank"].facts["rank"] == 3


def test_a_device_that_waits_for_the_excess_of_its_rank_waits_for_no_other_cause(tmp_path: Path):
    """The late rank's device is idle for 2 ms that the other device waits in the all-reduce::

    device 0   ####____rr______
    device 1   #____###rr______      idle as long as without the delay: 2 ms of it are the slow rank's
    """
    even = by_rule(reducing(tmp_path / "even", [0, 0]))
    late = by_rule(reducing(tmp_path / "late", [0, 2000]))
    assert late["slow-rank"].cost_ns == pytest.approx(2000 * US, rel=0.01)
    idle_ns = even["host-bound"].cost_ns
    assert late["host-bound"].facts["idle_ns"] == pytest.approx(idle_ns - 1000 * US, rel=0.01)
    assert late["host-bound"].cost_ns == pytest.approx(idle_ns - 2000 * US, rel=0.01)


@given(
    st.lists(st.sampled_from([0.0, 100.0, 400.0, 2000.0]), min_size=2, max_size=4),
    st.booleans(),
    st.sampled_from(["default_pg", "mesh_dp", "TENSOR_MODEL_PARALLEL_GROUP"]),
)
def test_a_transfer_is_what_the_last_rank_communicates(
    tmp_path_factory: pytest.TempPathFactory, late: list[float], has_args: bool, axis: str
):
    path = tmp_path_factory.mktemp("a") / "d"
    reducing(path, late, axis=axis, has_args=has_args)
    found = by_rule(path)
    assert found["exposed-communication"].cost_ns == pytest.approx(TRANSFER * US, rel=0.01)
    name = {"mesh_dp": "dp", "TENSOR_MODEL_PARALLEL_GROUP": "mp"}.get(axis, "?")
    assert found["exposed-communication"].facts["axis"] == (name if has_args else "?")
    assert found["exposed-communication"].facts["wording"] is None  # the wait is known
    assert_disjoint(list(found.values()), max(late) - min(late) + TRANSFER)


def assert_disjoint(findings: list[Finding], longest_wait_us: float) -> None:
    parts = [finding for finding in findings if finding.rule not in BESIDE and finding.cost_ns]
    assert sum(finding.share or 0 for finding in parts) <= 1 + 1e-9
    waiting = sum(finding.cost_ns or 0 for finding in parts if finding.rule in WAITING)
    assert waiting <= longest_wait_us * US * 1.01


@given(
    st.lists(
        st.tuples(*[st.sampled_from([0, 50, 200, 400, 700])] * 2, st.sampled_from([0, 50, 200])),
        min_size=1,
        max_size=4,
    )
)
def test_costs_add_up_to_a_step_at_most(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[tuple[int, int, int]]
):
    """Each rank loads data, computes, sleeps, and waits for the last one in an all_reduce."""
    longest = max(map(sum, ranks)) + 100
    peers = ",".join(map(str, range(len(ranks))))
    facts = f"all_reduce[axis=dp group=1 bytes=64 dtype=float32 peers={peers}]"

    def rank(load: int, compute: int, sleep: int):
        def make(at: int):
            if load:
                yield op(at, 0, load, "DataLoader", category="Dataloader")
            if compute:
                yield op(at, load, load + compute)
            yield span(
                "Communication", facts, at + (load + compute + sleep) * US, at + longest * US
            )

        return thread(make, lengths=[longest] * 6)

    path = run(tmp_path_factory.mktemp("a") / "log", [rank(*times) for times in ranks])
    shortest = min(map(sum, ranks))
    assert_disjoint(ppprof.advise(ppprof.open(path)), longest - shortest)


@pytest.mark.parametrize("rule", TRIGGERS)
def test_costs_of_any_run_add_up_to_its_parts(rule: str, tmp_path: Path):
    found = ppprof.advise(ppprof.open(run(tmp_path / "log", **TRIGGERS[rule][0])))
    parts = [finding for finding in found if finding.rule not in BESIDE and finding.cost_ns]
    assert sum(finding.share or 0 for finding in parts) <= 1 + 1e-9
    assert {rule} & (WAITING | COMPUTATION) <= {finding.rule for finding in parts}


def sleepy(sleep: int) -> Thread:
    """##__rr: 200 us of work, a time without events, and an all_reduce until 1000."""
    facts = "all_reduce[axis=dp group=1 bytes=64 dtype=float32 peers=0,1]"
    return thread(
        lambda at: (
            op(at, 0, 200),
            span("Communication", facts, at + (200 + sleep) * US, at + 1000 * US),
        )
    )


@pytest.mark.parametrize("hosts", [(), ("a", "a")])
@pytest.mark.parametrize(
    ("collected", "shared"),
    [
        ((0, 400), "beside-training"),  # the 100 that rank 0 has, too, are its own lines
        ((100, 100), "garbage-collection"),
    ],
)
def test_garbage_that_a_slow_rank_alone_collects_counts_once(
    collected: tuple[int, int], shared: str, hosts: tuple[str, ...], tmp_path: Path
):
    """Between the work of 200 and the all_reduce, rank 0 takes 100 and rank 1 takes 600.

    With replays, which ranks on one host have, and without.
    """
    stacks = [collecting(length, start=200) for length in collected]
    options = {"stacks": stacks, "hosts": hosts}
    found = ppprof.advise(ppprof.open(run(tmp_path / "log", [sleepy(100), sleepy(600)], **options)))
    costs = {finding.rule: (finding.cost_ns or 0) / US for finding in found}
    assert costs == {"slow-rank": 500, "exposed-communication": 200, shared: 100}
    has_reason = found[0].facts["reason"] == GARBAGE_COLLECTION
    assert has_reason == (collected == (0, 400)), "400 of the 500 that rank 1 takes longer"


def test_what_makes_a_rank_slow_is_not_unexplained_too(tmp_path: Path):
    """Rank 1 sleeps 700 of 1000 us, and rank 0 waits for it."""
    found = ppprof.advise(ppprof.open(run(tmp_path / "log", [sleepy(0), sleepy(700)])))
    assert [(finding.rule, finding.cost_ns) for finding in found] == [
        ("slow-rank", 700 * US),
        ("exposed-communication", 100 * US),
    ]


def test_a_stretch_without_events_in_which_a_thread_waits_for_the_lock_counts_once(
    tmp_path: Path,
) -> None:
    """610 of each step have no event; in 400 of all 1000, the thread stands still for a reader."""
    path = run(tmp_path / "log", [sleeping(600)], stacks=[beside_a_reader(still=0.4)])
    assert {finding.rule: finding.cost_ns for finding in ppprof.advise(ppprof.open(path))} == {
        "interpreter-lock": pytest.approx(400 * US, abs=US),
        "unexplained": pytest.approx(210 * US, abs=US),
    }


def test_small_operators_of_a_line_beside_the_training_count_once(tmp_path: Path) -> None:
    """Steps of 1000 us: 500 in two lines of a statement; operators of one of them and of a layer take 250."""
    steps = thread(lambda at: (op(at, 0, 1000),))
    evidence = collect_evidence_of_run(ppprof.open(run(tmp_path / "log", [steps])))
    lines = pl.DataFrame(
        {"name": ["a.py:7, log()", "a.py:8, log()"], "time_ns": [300.0 * US, 200.0 * US]}
    )
    (beside,) = evidence.time_finding("beside-training", 500 * US, "likely", {}, lines)
    small = [
        evidence.time_finding("many-small-operators", 250 * US, "possible", {"layer": layer}, lines)
        for layer in ("a.py:7, log()", "Net/Block")
    ]
    found = disjoint([beside, *small[0], *small[1]], evidence)
    assert [(each.rule, each.facts.get("layer")) for each in found] == [
        ("beside-training", None),
        ("many-small-operators", "Net/Block"),
    ]


def test_a_line_beside_the_training_has_none_of_its_time_in_layers_without_gradients(
    tmp_path: Path,
) -> None:
    """Of steps of 1000 us, ``y = augment(teacher(x))`` takes 450: 250 in the teacher, 200 beside the training."""
    line = "train.py:15: y = augment(teacher(x))"
    steps = thread(lambda at: (op(at, 0, 1000),))
    evidence = collect_evidence_of_run(ppprof.open(run(tmp_path / "log", [steps])))
    both = []
    for rule, cost_ns in (("beside-training", 200.0 * US), ("without-gradients", 250.0 * US)):
        rows = pl.DataFrame({"name": [line], "time_ns": [cost_ns]})
        both += evidence.time_finding(rule, cost_ns, "likely", {"line": line}, rows)
    assert [each.cost_ns for each in disjoint(both, evidence)] == [200 * US, 250 * US]


def test_a_loop_in_a_wider_dtype_counts_once(tmp_path: Path) -> None:
    """700 of 1000 us are computation: 600 in a loop; 300 in products of float64, so 200 of these in the loop."""
    steps = thread(lambda at: (op(at, 0, 700),))
    evidence = collect_evidence_of_run(ppprof.open(run(tmp_path / "log", [steps])))
    rows = pl.DataFrame({"name": ["a"], "time_ns": [600.0 * US]})
    both = [
        evidence.time_finding(rule, cost_ns, "possible", {"layer": "Net"}, rows)[0]
        for rule, cost_ns in (("many-small-operators", 600 * US), ("wider-dtype", 300 * US))
    ]
    found = disjoint(both, evidence)
    assert [each.cost_ns for each in found] == pytest.approx([600 * US, 100 * US])


@pytest.mark.parametrize(
    ("rule", "cause", "basis", "known"),
    [
        ("garbage-collection", {"wording": "collection"}, NOT_RECORDED, 200),
        ("garbage-collection", {"wording": "line", "gap": "a.py:7, save()"}, NOT_RECORDED, 0),
        ("beside-training", {"wording": "line", "gap": "a.py:7, save()"}, NOT_RECORDED, 150),
        ("beside-training", {"wording": "line", "gap": "a.py:9, log()"}, NOT_RECORDED, 0),
        # The slow steps of the window are no part of its typical ones.
        ("garbage-collection", {"wording": "collection"}, RECORDED, 0),
    ],
)
def test_slow_steps_count_without_what_another_finding_has_of_their_cause(
    rule: str, cause: dict[str, str], basis: str, known: int, tmp_path: Path
) -> None:
    """Slow steps add 300 or 155 us to a mean step; another finding has 200 us of it, 150 of these in one line."""
    steps = thread(lambda at: (op(at, 0, 1000),))
    evidence = collect_evidence_of_run(ppprof.open(run(tmp_path / "log", [steps])))
    rows = pl.DataFrame(
        {"name": ["a.py:7, save()", "a.py:8, save()"], "time_ns": [150.0 * US, 50.0 * US]}
    )
    (typical,) = evidence.time_finding(rule, 200 * US, "sure", {}, rows)
    for added in (300, 155):
        (slow,) = evidence.time_finding(
            "slow-steps", added * US, "sure", cause, rows, (1000 * US, basis)
        )
        costs = {each.rule: each.cost_ns for each in disjoint([slow, typical], evidence)}
        assert costs[rule] == 200 * US
        left = added - known if added - known >= 10 else 0
        assert costs.get("slow-steps", 0) == pytest.approx(left * US)


@pytest.mark.parametrize("basis", [NOT_RECORDED, RECORDED])
@pytest.mark.parametrize(
    ("cause", "part", "left_us"),
    [(None, None, 50), ("line", None, 200), ("part", "exposed", 50), ("part", "computation", 200)],
)
def test_steps_that_are_slow_since_ranks_wait_in_turn_count_once(
    cause: str | None, part: str | None, left_us: int, basis: str, tmp_path: Path
) -> None:
    """Of 200 that slow steps cost, ranks win 150 that do not wait; a line that slow steps have is no wait."""
    steps = thread(lambda at: (op(at, 0, 1000),))
    evidence = collect_evidence_of_run(ppprof.open(run(tmp_path / "log", [steps])))
    facts = {"basis": basis, "wording": cause, "part": part}
    found = [
        Finding(rule, "major", cost_us * US, cost_us / 1000, "possible", facts, pl.DataFrame())
        for rule, cost_us in (("slow-steps", 200), ("small-collectives", 150))
    ]
    left = {each.rule: each.cost_ns for each in disjoint(found, evidence)}
    # Without other ranks, no time is a wait.
    assert left.get("small-collectives") is None
    two = run(tmp_path / "two", **TRIGGERS["exposed-communication"][0])
    evidence = collect_evidence_of_run(ppprof.open(two))
    left = {each.rule: each.cost_ns for each in disjoint(found, evidence)}
    assert left == {"slow-steps": left_us * US, "small-collectives": 150 * US}
