"""Pauses between steps, such as evaluations, cost what they add to the mean time from a step to the next."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ppprof
from ppprof.report.text.advice import finding_rows, verdict
from tests.fixtures.findings import AFTER, EVALUATES, FORWARD, LOGS, US, pauses, pausing
from tests.fixtures.run_directories import run, step_lines


def found(folder, lines, **options):
    path = run(folder / "log", [pausing()], step_lines=[lines], **options)
    return [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "between-steps"]


def lines_with(paused_us, steps=31, **more):
    """Step times of 1000; step -> pause ahead of it in us."""
    return [
        {**line, "paused_ns": paused_us.get(line["step"], 0) * US, **more}
        for line in step_lines(1000 * US, steps=steps, noise=0)
    ]


@pytest.mark.parametrize(
    ("paused_us", "confidence", "severity", "share"),
    [
        ({5: 6000, 10: 6000, 15: 6000, 20: 6000}, "sure", "major", 0.8 / 1.8),
        ({5: 6000, 6: 6000, 15: 6000, 20: 6000}, "likely", "major", 0.8 / 1.8),
        ({5: 6000, 20: 6000}, "possible", "major", 0.4 / 1.4),
        ({20: 6000}, "possible", "moderate", 0.2 / 1.2),
        ({20: 900}, "possible", "minor", 0.03 / 1.03),
    ],
)
def test_pauses_are_as_sure_as_they_are_regular(tmp_path, paused_us, confidence, severity, share):
    """Thirty steps of 1000: a single pause may be the only one of a training."""
    (finding,) = found(tmp_path, lines_with(paused_us))
    assert (finding.confidence, finding.severity) == (confidence, severity)
    assert finding.share == pytest.approx(share)


@pytest.mark.parametrize(
    "lines",
    [
        lines_with({0: 90_000}),  # ahead of the training
        lines_with({}),
        step_lines(1000 * US, steps=31),  # of an older version, which does not log pauses
        lines_with(dict.fromkeys(range(1, 31), 9)),  # of 9 in 1000, each
    ],
)
def test_without_long_pauses_within_the_training_nothing_is_found(tmp_path, lines):
    assert found(tmp_path, lines) == []


def test_pauses_outside_windows_count_where_there_are_enough_steps(tmp_path):
    """Recorded pauses of 9000 are longer than the others, of 3000."""
    lines = lines_with({5: 3000, 10: 3000, 15: 3000, 35: 9000, 40: 9000}, steps=51)
    lines = [{**line, "window": 0 if line["step"] > 30 else None} for line in lines]
    (finding,) = found(tmp_path, lines)
    assert finding.cost_ns == pytest.approx(9000 / 30 * US)
    assert finding.facts["num_paused"] == 3
    assert finding.facts["before_steps"] == "5, 10, 15, 35, 40"


def test_a_line_is_of_pauses_for_what_most_of_the_time_goes_to(tmp_path):
    """In the window, the training pauses for evaluations only; checkpoints take longer."""
    lines = lines_with({10: 3000, 20: 3000, 30: 3000}, paused_for="checkpoint")
    (finding,) = found(tmp_path, lines, stacks=EVALUATES)
    assert (finding.facts["line"], finding.facts["remedy"]) == (None, "code-checkpoint")
    assert finding.evidence.row(0) == ("checkpoint", 10, 3000 * US)


def test_evaluations_come_evenly_though_checkpoints_lie_between(tmp_path):
    lines = lines_with({5: 3000, 10: 4000, 12: 100, 15: 3000}, paused_for="evaluation")
    lines[10]["paused_for"], lines[12]["paused_for"] = "evaluation, checkpoint", "checkpoint"
    (finding,) = found(tmp_path, lines)
    names = ("num_paused", "distance", "before_steps", "paused_for", "remedy")
    assert [finding.facts[name] for name in names] == [
        *(4, 5, "5, 10, 15"),
        *("evaluation, checkpoint", "code-evaluation"),
    ]


def test_the_first_name_of_a_pause_is_what_most_of_its_time_is_for(tmp_path):
    """The names of a pause are in the order of their times."""
    lines = lines_with({5: 3000, 10: 3000, 15: 3000}, paused_for="evaluation, checkpoint")
    (finding,) = found(tmp_path, lines, stacks=EVALUATES)
    assert finding.facts["paused_for"] == "evaluation, checkpoint"
    assert finding.facts["remedy"] == "code-evaluation"
    assert str(finding.facts["line"]).startswith("train.py:7, log()")


@pytest.mark.parametrize(
    ("unnamed_us", "expected"),
    [
        (60_000, (None, "code", "4, 6, 8, 20", None)),
        (500, ("checkpoint", "code-checkpoint", "6, 20", None)),
    ],
)
def test_pauses_without_a_name_may_have_most_of_the_time(tmp_path, unnamed_us, expected):
    lines = lines_with({4: unnamed_us, 6: 1000, 8: unnamed_us, 20: 1000})
    lines[6]["paused_for"] = lines[20]["paused_for"] = "checkpoint"
    (finding,) = found(tmp_path, lines)
    names = ("paused_for", "remedy", "before_steps", "distance")
    assert tuple(finding.facts[name] for name in names) == expected


def test_what_one_rank_pauses_longer_is_no_pause_of_the_others(tmp_path):
    """It is in their steps, where they wait for this rank."""
    long, short = lines_with({5: 6000, 10: 6000, 15: 6000}), lines_with({5: 1000, 10: 1000})
    path = run(tmp_path / "log", [pausing(), pausing()], step_lines=[long, short])
    (finding,) = [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "between-steps"]
    assert (finding.facts["num_paused"], finding.facts["pause_ns"]) == (2, 1000 * US)
    assert finding.cost_ns == pytest.approx(2000 / 30 * US)


def test_a_line_is_of_the_ranks_that_pause_for_this_reason(tmp_path):
    """One of two ranks evaluates in the window: 400 of 500 in train.py:7, not 200."""
    lines = pauses(2500) * 2
    threads = [pausing(), pausing("paused: checkpoint")]
    path = run(tmp_path / "log", threads, step_lines=lines, stacks=EVALUATES * 2)
    (finding,) = [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "between-steps"]
    assert (finding.facts["paused_for"], finding.facts["line_ns"]) == ("evaluation", 400 * US)


def test_pauses_ahead_of_every_step_have_no_distance_in_the_text(tmp_path):
    (finding,) = found(tmp_path, lines_with(dict.fromkeys(range(1, 31), 900)))
    (row,) = finding_rows([finding])
    assert finding.confidence == "sure"
    assert "(every" not in row.what


def test_lines_that_train_too_are_not_named_in_a_pause(tmp_path):
    """The layer of the steps, train.py:12, is called by train.py:7 in the whole pause."""
    (stacks,) = EVALUATES
    forward, in_log = stacks.stacks[FORWARD], stacks.stacks[LOGS]
    samples = stacks.samples.copy()
    samples[np.isin(samples[:, 3], (LOGS, AFTER)), 3] = len(stacks.stacks)
    stacks = dataclasses.replace(
        stacks, stacks=[*stacks.stacks, [*forward, *in_log]], samples=samples
    )
    (finding,) = found(tmp_path, *pauses(2500), stacks=[stacks])
    assert str(finding.facts["line"]).startswith("train.py:7, log()")
    assert finding.facts["line_ns"] == 500 * US


def test_the_evaluation_of_a_package_has_no_line_of_the_model(tmp_path):
    """As in ``Model.fit``: the same line calls the layer, in steps and in the pause."""
    (stacks,) = EVALUATES
    samples = stacks.samples.copy()
    samples[np.isin(samples[:, 3], (LOGS, AFTER)), 3] = FORWARD
    (finding,) = found(
        tmp_path, *pauses(2500), stacks=[dataclasses.replace(stacks, samples=samples)]
    )
    assert finding.facts["line"] is None


def test_the_line_after_a_training_names_pauses_with_their_reason(tmp_path):
    (finding,) = found(tmp_path, *pauses(2500), stacks=EVALUATES)
    line = "train.py:7, log(): file.write(json.dumps(weights))"
    expected = (
        f"recorded step 500 us: 33% pauses between steps (evaluation), in {line} (with pauses)"
    )
    assert verdict(500 * US, [finding]) == expected
    (row,) = finding_rows([finding])
    assert row.cost_text == "costs 500 us of a step, with pauses (33.3%)"
    assert "ahead of steps 5, 10, 15, 20, 25, 30 (every 5 steps)." in row.what
    assert "500 us of the 1.5 ms from one step to the next" in row.what
