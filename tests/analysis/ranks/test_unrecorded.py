"""Slow ranks from generated step times, in a job in which all ranks wait for the slowest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ppprof.analysis.advice import Evidence, advise
from ppprof.analysis.ranks.unrecorded import RANKS, unrecorded_ranks
from ppprof.report.text.advice import render_findings
from ppprof.rundir.flight import FlightRing, ring_path
from ppprof.rundir.step_times import STEP_TIMES
from ppprof.topology import Topology
from tests.conftest import Cli

JOB = Topology.of(dp=2, pp=2, mp=2)
ROLES = {rank: f"stage {JOB.coordinate(rank)['pp']}" for rank in range(8)}


def step_times(num_steps: int, seed: int, slow: int = -1, factor: float = 1.0) -> pl.DataFrame:
    """Return times of eight ranks: 3% noise in each one's work, 1% of the steps three times as long.

    The stages differ in their work; a step takes what its slowest rank works, and 5 ms for transfers.
    """
    chance = np.random.default_rng(seed)
    work = np.array([80.0 if ROLES[rank] == "stage 0" else 60.0 for rank in range(8)])
    work = work * chance.normal(1, 0.03, (num_steps, 8))
    work *= np.where(chance.random((num_steps, 8)) < 0.01, 3, 1)
    if slow >= 0:
        work[:, slow] *= factor
    step = work.max(axis=1, keepdims=True) + 5
    rows = [
        {
            **dict.fromkeys(STEP_TIMES),
            "rank": rank,
            "step": number,
            "batch_cost_ns": int(step[number, 0] * 1e6),
            "communication_ns": int((step[number, 0] - work[number, rank]) * 1e6),
            "excluded": False,
        }
        for number in range(num_steps)
        for rank in range(8)
    ]
    return pl.DataFrame(rows, STEP_TIMES)


def found(times: pl.DataFrame) -> list[int]:
    return unrecorded_ranks(times, ROLES).filter("is_slow")["rank"].to_list()


@pytest.mark.parametrize(("percent", "num_steps"), [(20, 22), (10, 102)])
def test_the_slow_rank_is_found_though_all_steps_are_equally_long(
    percent: int, num_steps: int
) -> None:
    for seed in range(25):
        slow = seed % 8
        times = step_times(num_steps, seed, slow, 1 + percent / 100)
        assert found(times) == [slow], seed


def test_no_rank_is_slow_without_a_cause() -> None:
    assert [found(step_times(num, seed)) for num in (22, 102, 400) for seed in range(25)] == [
        []
    ] * 75


@pytest.mark.parametrize("num_ranks", [4, 16])
def test_half_of_the_ranks_may_be_slow(num_ranks: int) -> None:
    rows = [
        {
            **dict.fromkeys(STEP_TIMES),
            **{"rank": rank, "step": step, "excluded": False, "batch_cost_ns": 200_000_000},
            "communication_ns": 0 if rank < num_ranks // 2 else 100_000_000,
        }
        for step in range(60)
        for rank in range(num_ranks)
    ]
    table = unrecorded_ranks(pl.DataFrame(rows, STEP_TIMES), dict.fromkeys(range(num_ranks), ""))
    slow = table.filter("is_slow")
    assert slow["rank"].to_list() == list(range(num_ranks // 2))
    assert set(slow["excess_ns"]) == {100_000_000}


def test_without_communication_no_rank_is_called_healthy(tmp_path: Path, cli: Cli) -> None:
    """paddle.DataParallel communicates in C++: rank 3 is slow, and the others wait in the Backward."""
    times = step_times(100, 0, 3, 1.5).with_columns(communication_ns=pl.lit(0, pl.Int64))
    table = unrecorded_ranks(times, ROLES)
    assert table["excess_ns"].null_count() == 8
    assert not table["is_slow"].any()
    out, _ = cli("ranks", _run(tmp_path, times))
    assert "no peers" not in out
    assert "Verdict: unknown: next to no communication is noted (paddle.DataParallel" in out


def test_windows_excluded_steps_and_devices_do_not_count() -> None:
    times = step_times(30, 0, 3, 1.5)
    for left_out in ({"window": 0}, {"excluded": True}, {"device_timed": True}):
        columns = [pl.lit(value).alias(name) for name, value in left_out.items()]
        assert unrecorded_ranks(times.with_columns(columns), ROLES).is_empty()


def _run(folder: Path, times: pl.DataFrame) -> Path:
    manifest = {"schema_version": 2, "axes": {"order": JOB.order, "degrees": JOB.degrees}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "steps").mkdir()
    for (rank,), table in times.group_by("rank"):
        lines = table.drop("rank", "others_ratio").write_ndjson()
        (folder / "steps" / f"rank_{rank:05d}.jsonl").write_text(lines)
    return folder


def test_the_command_works_without_a_window(tmp_path: Path, cli: Cli) -> None:
    _run(tmp_path, step_times(30, 0, 3, 1.5))
    out, _ = cli("ranks", tmp_path)
    assert "no window; by the times of 28 steps" in out
    assert out.endswith("Verdict: slow: rank 3.\n")
    assert "slow since step 2\n" in out
    rows = json.loads(cli("ranks", tmp_path, "--format", "json").out)["tables"]["ranks"]
    assert [*rows[0]] == [*RANKS]
    assert rows[0]["rank"] == 3
    assert len(cli("ranks", tmp_path, "--format", "csv").out.splitlines()) == 9
    assert len(cli("ranks", tmp_path, "--format", "md").out.splitlines()) == 10


def _rings(run: Path, steps: range) -> None:
    """Write the last operations: the link of ranks 1 and 5 takes 90 ms, others 10; rank 0 comes 50 ms late."""
    groups = {number: (number, number + 4) for number in range(4)}
    for number, ranks in groups.items():
        for rank in ranks:
            ring = FlightRing(run, rank)
            ring.group(number + 1, ranks, "dp")
            text = ring.text("all_reduce")
            for step in steps:
                late = 50 if rank == 0 else 0
                transfer = (90 if number == 1 else 10) + step % 3
                ended = step * 1000 + transfer + (50 if number == 0 else 0)
                called_ns = (step * 1000 + late) * 1_000_000
                call = ring.add(number + 1, step, step, called_ns, 4096, -1, text, 0, 0, 0)
                ring.returned(call, ended * 1_000_000)


def test_a_slow_link_is_named_from_the_last_operations(tmp_path: Path, cli: Cli) -> None:
    """Ranks 1 and 5 transfer for 90 ms, others for 10; rank 0 comes 50 ms late to its group, and waits for none of them.

    ::

        rank 0        #      10 ms: the transfer
        rank 4   ######      it waits for rank 0
    """
    run = _run(tmp_path, step_times(30, 0))
    _rings(run, range(2, 30))
    out, _ = cli("ranks", run)
    assert "ranks 1,5 (dp): 80.00 ms a step (± " in out
    assert out.endswith("Verdict: slow: the link of ranks 1,5.\n")
    (first, *others) = json.loads(cli("ranks", run, "--format", "json").out)["tables"][
        "slow_groups"
    ]
    assert first["members"] == "1,5"
    assert first["excess_ns"] == 80e6
    assert [each["is_slow"] for each in others] == [False] * 3


def test_links_without_last_operations_are_not_called_healthy(tmp_path: Path, cli: Cli) -> None:
    out, _ = cli("ranks", _run(tmp_path, step_times(30, 0)))
    assert "\nLinks: unknown; " in out
    assert out.endswith("Verdict: no rank is slow.\n")


def test_links_of_two_steps_in_the_step_log_are_unknown(tmp_path: Path, cli: Cli) -> None:
    run = _run(tmp_path, step_times(30, 0))
    _rings(run, range(28, 40))
    out, _ = cli("ranks", run)
    assert "\nLinks: unknown; " in out
    assert out.endswith("Verdict: no rank is slow.\n")


def test_a_slow_rank_in_few_steps_is_not_called_healthy(tmp_path: Path, cli: Cli) -> None:
    """Rank 3 works half as long again as its peers, in 6 steps."""
    out, _ = cli("ranks", _run(tmp_path, step_times(8, 0, 3, 1.5)))
    assert out.endswith(
        "Verdict: unknown: too few steps to say whether rank 3 worked longer by chance.\n"
    )


def test_a_rank_that_is_slow_in_most_of_few_steps_is_not_called_healthy(
    tmp_path: Path, cli: Cli
) -> None:
    """Its interval begins at 0: in two of eight steps it works as long as its peers."""
    is_early = pl.col("step") < 4
    parts = step_times(10, 0).filter(is_early), step_times(10, 0, 3, 1.5).filter(~is_early)
    out, _ = cli("ranks", _run(tmp_path, pl.concat(parts)))
    assert out.endswith(
        "Verdict: unknown: too few steps to say whether rank 3 worked longer by chance.\n"
    )


def test_ranks_of_five_steps_are_not_called_healthy(tmp_path: Path, cli: Cli) -> None:
    times = step_times(7, 0).with_columns(communication_ns=pl.lit(1_000_000, pl.Int64))
    out, _ = cli("ranks", _run(tmp_path, times))
    assert out.endswith("Verdict: unknown: fewer than 6 steps of ranks 0-7.\n")


def test_the_verdict_is_on_ranks_with_step_times(tmp_path: Path, cli: Cli) -> None:
    """Ranks 4-7 of the job have written no step times."""
    out, _ = cli("ranks", _run(tmp_path, step_times(30, 0).filter(pl.col("rank") < 4)))
    assert "\nUnknown: ranks 4-7: no step times on the host with their communication.\n" in out
    assert out.endswith("Verdict: none of ranks 0-3 is slow.\n")


def test_ranks_that_the_verdict_names_have_a_row(tmp_path: Path, cli: Cli) -> None:
    slow = pl.when(pl.col("rank").is_in([1, 6])).then(0).otherwise(pl.col("communication_ns"))
    run = _run(tmp_path, step_times(60, 0, 1, 1.3).with_columns(communication_ns=slow))
    lines = cli("ranks", run, "--row-limit", "1").out.splitlines()
    assert sorted(int(line.split()[0]) for line in lines[2:4]) == [1, 6]
    assert lines[4] == "6 more ranks; --row-limit none shows all"
    assert lines[-1] == "Verdict: slow: ranks 1, 6."


def test_ranks_and_steps_are_selected_without_a_window(tmp_path: Path, cli: Cli) -> None:
    """Rank 3 works longer from step 30 on. It is compared with all peers, though these are not shown."""
    early, late = step_times(60, 0), step_times(60, 0, 3, 1.5)
    run = _run(
        tmp_path, pl.concat([early.filter(pl.col("step") < 30), late.filter(pl.col("step") >= 30)])
    )
    _rings(run, range(30, 60))
    out, _ = cli("ranks", run, "--rank", "2-3", "--time-unit", "s")
    assert [int(line.split()[0]) for line in out.splitlines()[2:4]] == [3, 2]
    assert "58 steps, medians in s:" in out
    assert "  +0.03 (+0.03 to +0.03) (stage 1) slow since step " in out
    assert out.endswith("Verdict: slow: rank 3.\n")
    assert ", the link of ranks 1,5.\n" in cli("ranks", run, "--rank", "3,5").out
    out, _ = cli("ranks", run, "--steps", "0:30")
    assert "28 steps, " in out
    assert out.endswith("Verdict: no rank is slow.\n")
    assert cli("ranks", run, "--rank", "2", "--steps", "0:30").out.endswith(
        "Verdict: rank 2 is not slow.\n"
    )
    tables = json.loads(cli("ranks", run, "--rank", "dp=0,pp=1", "--format", "json").out)["tables"]
    assert [row["rank"] for row in tables["ranks"]] == [3, 2]
    assert len(cli("ranks", run, "--rank", "7", "--format", "csv").out.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--window", "0"], "--window 0: the run has step times only, no window"),
        (["--by", "pp", "--what-if"], "--by pp, --what-if: the run has step times only, no window"),
        (["--steps", "40:50"], "no step of 40:50; it has steps 0-29"),
        (["--rank", "8"], 'ranks "8": expected 0 to 7'),
    ],
)
def test_options_that_need_a_window_are_refused_without_one(
    tmp_path: Path, cli: Cli, arguments: list[str], why: str
) -> None:
    run = _run(tmp_path, step_times(30, 0))
    assert why in cli("ranks", run, *arguments, code=2).err


def test_a_resumed_training_warms_up_again(tmp_path: Path, cli: Cli) -> None:
    times = step_times(30, 0).with_columns(step=pl.col("step") + 700)
    out, _ = cli("ranks", _run(tmp_path, times))
    assert "by the times of 28 steps" in out


def test_the_interval_of_few_steps_is_unknown(tmp_path: Path, cli: Cli) -> None:
    """Of n steps, all are above or below the true median in 1 of 2^(n-1) cases: of five, in 6%."""
    for num_steps, is_known in ((7, False), (8, True)):  # two are left out
        table = unrecorded_ranks(step_times(num_steps, 0), ROLES)
        assert table["excess_ns"].null_count() == 0
        assert {each is not None for each in table["excess_low_ns"]} == {is_known}
        assert {each is not None for each in table["excess_high_ns"]} == {is_known}
    out, _ = cli("ranks", _run(tmp_path, step_times(7, 0)))
    assert out.count(" (interval unknown: fewer than 6 steps) (stage ") == 8


def test_a_rank_without_peers_is_not_called_healthy(tmp_path: Path, cli: Cli) -> None:
    times = step_times(30, 0).filter(pl.col("rank").is_in([0, 2]))  # one of each stage
    out, _ = cli("ranks", _run(tmp_path, times))
    assert out.count("  no step times of peers (stage ") == 2
    assert out.endswith("Verdict: unknown: no step times of peers.\n")
    (run := tmp_path / "one_rank").mkdir()
    (_run(run, times) / "manifest.json").write_text('{"schema_version": 2}')
    out, _ = cli("ranks", run)
    assert out.count("  no peers (rank ") == 2
    assert out.endswith("Verdict: unknown: no rank has peers.\n")


def test_a_damaged_ring_is_named(tmp_path: Path, cli: Cli) -> None:
    run = _run(tmp_path, step_times(30, 0))
    FlightRing(run, 2)
    (run / ring_path(2)).write_bytes(b"damaged")
    assert str(ring_path(2)) in cli("ranks", run).err


@pytest.mark.parametrize(("slow", "rules"), [(5, ["slow-rank"]), (-1, [])])
def test_advice_on_step_times_alone_names_the_slow_rank(slow: int, rules: list[str]) -> None:
    """20% more work of 60 or 80 ms is 12 or 16 ms; of stage 0, whose ranks work most, all waits for it."""
    times = step_times(100, 1, slow, 1.2)
    findings = advise(Evidence(None, step_times=times, topology=JOB))
    assert [each.rule for each in findings if each.rule == "slow-rank"] == rules
    for finding in findings[: len(rules)]:
        own = (80 if ROLES[slow] == "stage 0" else 60) * 0.2
        assert finding.facts["rank"] == slow
        assert finding.facts["peers"] == 3
        assert finding.cost_ns == pytest.approx(own * 1e6, rel=0.3)
        assert "(host" not in render_findings([finding])
