"""What ``ppprof ranks`` says of ranks that meet: collectives on one clock, who is slow, what if."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

import ppprof
from ppprof.config import ProfilerConfig
from ppprof.rundir import TraceName, claim, write_manifest
from ppprof.rundir.clocks import Reading, clocks_path, line_of
from ppprof.topology import Topology
from tests.fixtures.timeline import EPOCH_NS, Thread, span, write
from tests.fixtures.words import words

GRID = Topology.of(dp=4)
MS = 1_000_000
STEP, WORK, REDUCE = 100 * MS, 60 * MS, 5 * MS
LATE = 20 * MS
BYTES = 30_000_000


def reduction(start, end):
    name = f"all_reduce[axis=dp group=3 bytes={BYTES} dtype=float32 peers=0,1,2,3]"
    return span("Communication", name, start, end)


def steps(work, begin=0):
    """Six steps, 0 to 5: work, then an all-reduce that ends 5 ms after the last rank has come."""
    done = WORK + LATE + REDUCE
    return [
        span("ProfileStep", f"ProfileStep#{number}", start, start + STEP).around(
            span(
                "Forward",
                "GPT",
                start,
                start + work,
                span("Operator", "matmul", start, start + work),
            ),
            reduction(start + work, start + done),
        )
        for number, start in enumerate(range(begin, begin + 6 * STEP, STEP))
    ]


def job(folder, spans_of_rank, topology=GRID):
    """Write four hosts with a rank each."""
    path = claim(folder / "log")
    block = ProfilerConfig.from_mapping({"enable": True}).to_mapping()
    ranks = [
        {"rank": r, "host": f"node{r}", "coordinate": topology.coordinate(r)} for r in range(4)
    ]
    axes = {"order": topology.order, "degrees": topology.degrees}
    write_manifest(path, {"profiler": block, "axes": axes, "ranks": ranks})
    for rank in range(4):
        name = TraceName(rank, topology.label(rank), datetime(2026, 11, 20, 20, 15, 30), 0)
        write(path / name.raw, Thread(1, "main", tuple(spans_of_rank(rank))))
    return path


@pytest.fixture
def run(tmp_path):
    """Rank 2 works 20 ms longer each step."""
    return measured(job(tmp_path, lambda rank: steps(WORK + LATE * (rank == 2))))


def measured(path):
    """Add clocks that were measured ahead of the window and after it."""
    (path / "clocks").mkdir()
    for rank in range(4):
        readings = [Reading(EPOCH_NS + ns, 0, 0 if rank == 0 else 10_000) for ns in (0, 6 * STEP)]
        (path / clocks_path(rank)).write_text("".join(map(line_of, readings)))
    return path


def test_steps_that_only_some_ranks_recorded_count_only_there(tmp_path, cli):
    """Rank 2 was suspected, and a trigger recorded more of its steps."""
    path = job(tmp_path, lambda rank: steps(WORK + LATE * (rank == 2))[: 6 if rank == 2 else 3])
    out = cli("ranks", measured(path)).out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("0,1,2,3")]
    assert row == words("0,1,2,3 dp 3 15.00 20.00 5.00 9 0% 100% 0% 0% 2 (100%)")
    assert (
        "Most time of its own (in which it waits for no other rank), of 3 steps: rank 2 in 3\n"
        in out
    )
    assert "Slow computation: rank 2 (dp2): 20.00 ms a step" in out
    alone = job(tmp_path / "alone", lambda rank: steps(WORK)[: 6 if rank == 2 else 3])
    out = cli("ranks", alone).out
    assert "of 3 steps: rank 0 in 3\n" in out
    assert "No rank is consistently slower than its peers." in out


def test_the_hosts_are_those_that_the_ranks_noted(run, cli):
    """A launcher that names no endpoints: rank 0 believes that all ranks are on its host."""
    manifest = json.loads((run / "manifest.json").read_text())
    for entry in manifest["ranks"]:
        entry["host"] = "node0"
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "nodes").mkdir()
    for rank in range(4):
        (run / f"nodes/{rank:05d}.node{rank // 2}").touch()
    printed = cli("ranks", run, "--by", "host", "--format", "csv").out.splitlines()
    rows = [dict(zip(printed[0].split(","), line.split(","))) for line in printed[1:]]
    assert [(row["host"], row["num_ranks"]) for row in rows] == [("node0", "2"), ("node1", "2")]


def steps_without_collectives(num_steps, work):
    return [
        span("ProfileStep", f"ProfileStep#{number}", start, start + work).around(
            span("Operator", "matmul", start, start + work)
        )
        for number, start in enumerate(range(0, num_steps * STEP, STEP))
    ]


def test_who_comes_last_is_named_with_what_it_costs(run, cli):
    out = cli("ranks", run).out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("0,1,2,3")]
    # Three ranks wait 20 ms: 15 on average; the ring moves 1.5 x 30 MB in 5 ms.
    assert row == words("0,1,2,3 dp 6 15.00 20.00 5.00 9 0% 100% 0% 0% 2 (100%)")
    assert (
        "Slow computation: rank 2 (dp2): 20.00 ms a step (+- 0.00) more of its own than the "
        "3 other ranks of the job\n" in out
    )
    assert "Clocks of 4 ranks measured: known to 0.01 ms.\n" in out
    assert "Slow link" not in out


def test_a_slow_rank_is_named_without_collectives(tmp_path, cli):
    run = job(tmp_path, lambda rank: steps_without_collectives(3, WORK + LATE * (rank == 2)))
    out = cli("ranks", run).out
    assert out.endswith(
        "Slow computation: rank 2 (dp2): 20.00 ms a step (+- 0.00) more of its own than the "
        "3 other ranks of the job\n"
    )


@pytest.mark.parametrize(
    ("num_steps", "topology", "last"),
    [
        (3, GRID, "No rank is consistently slower than its peers."),
        (2, GRID, "Unknown whether a rank or link is slow: ranks share fewer than 3 steps."),
        (3, Topology.of(pp=4), "Unknown whether a rank or link is slow: no rank has peers."),
    ],
)
def test_ranks_are_called_healthy_only_if_they_are_compared(
    tmp_path, cli, num_steps, topology, last
):
    run = job(tmp_path, lambda rank: steps_without_collectives(num_steps, WORK), topology)
    assert cli("ranks", run).out.splitlines()[-1] == last


def test_one_clock_that_was_measured_is_no_plural(run, cli):
    for rank in (2, 3):
        (run / clocks_path(rank)).unlink()
    (run / clocks_path(0)).unlink()
    assert "Clocks of 1 rank measured: known to 0.01 ms.\n" in cli("ranks", run).out


def test_clocks_without_measurements_are_bound_by_the_collectives(run, cli):
    for file in run.glob("clocks/*"):
        file.unlink()
    out = cli("ranks", run, "--format", "json").out
    document = json.loads(out)
    clocks = document["clocks"]
    assert {clocks[rank]["method"] for rank in "123"} == {"collectives"}
    for rank in "123":  # the true offset is 0
        assert abs(clocks[rank]["offset_ns"]) <= clocks[rank]["error_ns"] < 30 * MS
    assert "known to" in cli("ranks", run).out
    assert document["tables"]["collectives"][0]["members"] == "0,1,2,3"
    assert [row["rank"] for row in document["tables"]["slow_ranks"] if row["is_slow"]] == [2]


def test_a_merge_without_measured_clocks_bounds_them(run, cli, tmp_path):
    assert "clocks" not in cli("merge", run, "-o", str(tmp_path / "measured.json")).err
    for file in run.glob("clocks/*"):
        file.unlink()
    error = cli("merge", run, "-o", str(tmp_path / "bounded.json")).err
    assert f"{run}: the clocks of ranks 1-3 were not compared; their collectives bound" in error
    assert "no clock offset" not in error


def test_what_if_says_what_the_slow_rank_costs(run, cli):
    assert "What-if" not in cli("ranks", run).out
    out = cli("ranks", run, "--what-if").out
    assert "What-if Summary" in out
    table = ppprof.open(run).cluster().what_if
    replayed, ideal = (table.filter(fixed=name).row(0, named=True) for name in ("nothing", "all"))
    assert replayed["step_ns"] - ideal["step_ns"] == pytest.approx(LATE, rel=0.01)
    (slowest,) = table.filter(fixed="slowest").rows(named=True)
    assert (slowest["ranks"], slowest["share"]) == ("2", pytest.approx(1.0))


def test_what_if_takes_the_last_of_windows_that_repeat_step_numbers(run, cli):
    """As a profiler made anew for each window does: a step from one to the other took an hour."""
    for rank in range(4):
        name = TraceName(rank, GRID.label(rank), datetime(2026, 11, 20, 21, 15, 30), 1)
        late = 2 * LATE if rank == 1 else 0
        write(run / name.raw, Thread(1, "main", tuple(steps(WORK - LATE + late, 36_000 * STEP))))
    table = ppprof.open(run).cluster().what_if
    (slowest,) = table.filter(fixed="slowest").rows(named=True)
    assert (slowest["ranks"], slowest["share"]) == ("1", pytest.approx(1.0))
    recorded, replayed = (
        table.filter(fixed=name)["step_ns"][0] for name in ("recorded", "nothing")
    )
    assert recorded == replayed == STEP


def test_ranks_that_never_meet_have_no_such_table(run, cli, tmp_path):
    alone = next(run.glob("raw/rank_00001*"))
    assert "Collectives" not in cli("ranks", alone).out
    assert "nothing to replay" in cli("ranks", alone, "--what-if").err
