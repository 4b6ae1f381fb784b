"""Slow steps whose cause or distance the step log knows, though no window has one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import polars as pl
import pytest

import ppprof
from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.advice.slow_steps import period_of
from ppprof.report.text.advice import finding_rows
from tests.fixtures.findings import US, training
from tests.fixtures.run_directories import run, step_lines

MS = 1000 * US


def found(
    folder: Path,
    slow: dict[int, int],
    collecting: Iterable[int] = (),
    lines_of: Mapping[int, tuple[str, str, int]] = MappingProxyType({}),
) -> list[Finding]:
    """200 steps of 10 ms: step -> length in ms; steps in which Python collects garbage; lines of steps."""
    lines = []
    for line in step_lines(10 * MS, steps=200, noise=0):
        number = line["step"]
        more: dict[str, object] = {"num_collections": int(number in collecting)}
        if number in lines_of:
            line_of, inner, time_ms = lines_of[number]
            more |= {"slow_line": line_of, "slow_inner_line": inner, "slow_line_ns": time_ms * MS}
        lines.append({**line, **more, "batch_cost_ns": slow.get(number, 10) * MS})
    path = run(folder / "log", [training(999)], step_lines=[lines])
    return [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "slow-steps"]


@pytest.mark.parametrize(
    ("slow", "collecting", "num", "severity"),
    [
        ({90: 410, 130: 410}, [90, 130], 2, "moderate"),
        ({90: 710, 130: 110, 131: 110}, [90], 1, "minor"),
        ({60: 410, 90: 410, 130: 410}, [60, 90, 130, 140], 3, "moderate"),
        ({90: 210, 130: 210, 135: 210}, [90], None, "major"),  # a third of the time
        ({90: 210, 130: 210}, [90, *range(10, 60, 10)], None, "major"),  # others are not slow
        ({}, [90], None, ""),
    ],
)
def test_collections_have_half_of_what_slow_steps_take_longer(
    tmp_path: Path, slow: dict[int, int], collecting: list[int], num: int | None, severity: str
) -> None:
    findings = found(tmp_path, slow, collecting)
    assert [each.severity for each in findings] == ([severity] if slow else [])
    for finding in findings:
        assert finding.facts["num_begin"] == num
        assert (finding.facts["wording"] == "collections") == (num is not None)
        (row,) = finding_rows([finding])
        assert ("gc.freeze()" in row.do) == (num is not None)
        if num is not None:
            assert f"{num} of these steps had a full garbage collection" in row.what
            assert finding.confidence == "possible"
        assert f" Slow: {', '.join(map(str, slow))}. The mean" in row.what


EVALUATES, READS, SAVES = "t.py:20: evaluate()", "t.py:7, evaluate(): read()", "t.py:21: save()"


@pytest.mark.parametrize(
    ("lines_of", "num", "inner"),
    [
        ({90: (EVALUATES, READS, 350), 130: (EVALUATES, READS, 300)}, 2, READS),
        ({90: (EVALUATES, EVALUATES, 350), 130: (EVALUATES, READS, 300)}, 2, None),
        (
            {90: (EVALUATES, READS, 250), 130: (SAVES, SAVES, 900)},
            1,
            None,
        ),  # 400 of 800 ms, no more
        ({130: (EVALUATES, READS, 350)}, 1, READS),  # nothing to compare step 90 with
        ({90: (EVALUATES, READS, 350)}, None, None),  # step 130 did something else
        ({90: (EVALUATES, READS, 210), 130: (SAVES, SAVES, 210)}, None, None),
        ({}, None, None),
    ],
)
def test_a_line_that_slow_steps_were_seen_in_has_half_of_what_they_take_longer(
    tmp_path: Path, lines_of: dict[int, tuple[str, str, int]], num: int | None, inner: str | None
) -> None:
    (finding,) = found(tmp_path, {90: 410, 130: 410}, [90, 130], lines_of)
    assert (finding.facts["wording"] == "seen") == (num is not None)
    if num is None:
        return
    line = max(lines_of.values(), key=lambda each: each[2])[0]
    assert (finding.facts["gap"], finding.facts["num_begin"]) == (line, num)
    assert finding.facts["inner"] == inner
    assert (finding.severity, finding.confidence) == ("major", "likely")
    (row,) = finding_rows([finding])
    assert f"{num} slow step{'s spend' if num > 1 else ' spends'} " in row.what
    assert ("most of it in" in row.what) == (inner is not None)
    assert row.do.startswith("Run this line less often")


def test_a_line_of_one_rank_says_which(tmp_path: Path) -> None:
    """The other one waits for it, in a line of all steps."""
    ranks = []
    for rank in range(2):
        lines = [{**line, "slow_line": None} for line in step_lines(10 * MS, steps=200, noise=0)]
        for number in (90, 130):
            lines[number]["batch_cost_ns"] = 410 * MS
            if rank == 1:
                lines[number] |= {
                    "slow_line": SAVES,
                    "slow_inner_line": SAVES,
                    "slow_line_ns": 390 * MS,
                }
        ranks.append(lines)
    path = run(tmp_path / "log", [training(999), training(999)], step_lines=ranks)
    (finding,) = [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "slow-steps"]
    assert (finding.facts["gap"], finding.facts["on_ranks"]) == (SAVES, "rank 1")
    assert f"in {SAVES}, which other steps hardly spend time in (seen on rank 1)." in (
        finding_rows([finding])[0].what
    )


@pytest.mark.parametrize("is_noted", [True, False])
def test_ranks_that_wait_at_a_barrier_do_not_stand_for_the_one_that_works(
    is_noted: bool, tmp_path: Path
) -> None:
    """Rank 1 saves; the others wait in a line of their own, a little longer. All run maybe_save()."""
    ranks = []
    for rank in range(4):
        barrier = "train.py:9, maybe_save(): dist.barrier()"
        lines = [{**line, "slow_line": None} for line in step_lines(10 * MS, steps=200, noise=0)]
        for number in (90, 130):
            lines[number] |= {
                "batch_cost_ns": 410 * MS,
                "slow_line": SAVES if rank == 1 else barrier,
                "slow_inner_line": SAVES if rank == 1 else barrier,
                "slow_line_ns": (390 if rank == 1 else 395) * MS,
                "communication_ns": (0 if rank == 1 else 390 * MS) if is_noted else None,
            }
        ranks.append(lines)
    path = run(tmp_path / "log", [training(999)] * 4, step_lines=ranks)
    (finding,) = [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "slow-steps"]
    assert (finding.facts["gap"], finding.facts["on_ranks"]) == (SAVES, "rank 1")
    common = "train.py:20, main(): maybe_save(step)"
    for lines in ranks:
        for number in (90, 130):
            lines[number]["slow_line"] = common
    path = run(tmp_path / "common", [training(999)] * 4, step_lines=ranks)
    (finding,) = [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "slow-steps"]
    assert (finding.facts["gap"], finding.facts["inner"]) == (common, SAVES)


def test_steps_that_come_evenly_are_seen_beside_others(tmp_path: Path) -> None:
    """Every 20th step saves; two others are slow by chance."""
    slow = {**dict.fromkeys(range(20, 200, 20), 40), 33: 90, 71: 25}
    (finding,) = found(tmp_path, slow)
    assert (finding.facts["every"], finding.facts["most_every"]) == (None, 20)
    assert (finding.severity, finding.confidence) == ("major", "likely")
    assert (
        "Most of the time they take longer comes every 20 steps." in finding_rows([finding])[0].what
    )


def period(slow: list[int], num: int) -> int | None:
    lengths = [20.0 + step % 3 if step in slow else 10.0 + step % 3 for step in range(num)]
    steps = pl.DataFrame({"step": range(num), "step_ns": lengths})
    return period_of(pl.DataFrame({"step": slow, "excess_ns": [10.0] * len(slow)}), steps)


@pytest.mark.parametrize(
    ("slow", "num", "expected"),
    [
        ([9, 19, 29, 39, 41], 49, 10),
        ([9, 19, 39, 41], 49, None),  # step 29 is not slow
        ([10, 20, 21, 22, 30, 33, 34], 40, None),  # most are between
        ([100, 200, 250, 300], 1000, None),  # and then no more
        ([10, 20], 25, None),
    ],
)
def test_nearly_all_steps_at_the_distance_are_slow(
    slow: list[int], num: int, expected: int | None
) -> None:
    assert period(slow, num) == expected


def test_even_steps_of_which_only_some_are_slow_enough_to_be_slow_have_a_distance() -> None:
    """Every 6th step evaluates, and takes 1.4 to 2.2 times as long."""
    draw = random.Random(3)
    lengths = [
        22 * (draw.uniform(1.4, 2.2) if step % 6 == 0 else draw.uniform(0.9, 1.2))
        for step in range(300)
    ]
    steps = pl.DataFrame({"step": range(300), "step_ns": lengths})
    slow = steps.filter(pl.col("step_ns") > 1.75 * 22)
    assert 15 < slow.height < 35
    assert period_of(slow.with_columns(excess_ns=pl.col("step_ns") - 22), steps) == 6


def test_chance_has_no_distance() -> None:
    """Of 400 trainings in which each step is slow with the same probability, less than 1% have one."""
    draw = random.Random(5)
    seen = 0
    for _ in range(400):
        probability, num = draw.choice([0.02, 0.1, 0.3]), draw.choice([60, 300])
        slow = [step for step in range(num) if draw.random() < probability]
        seen += bool(slow) and period(slow, num) is not None
    assert seen <= 4
