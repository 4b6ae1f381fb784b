"""Slow steps that begin a pass over a DataLoader whose workers start."""

from __future__ import annotations

import pytest

import ppprof
from ppprof.report.text.advice import finding_rows
from tests.fixtures.findings import US, training
from tests.fixtures.run_directories import run, step_lines

MS = 1000 * US


def found(folder, slow, *, workers=2, every=6):
    """Steps of 10 ms; a pass over the data begins at every sixth one: step -> length, start and reading in ms."""
    lines = []
    for line in step_lines(10 * MS, steps=40, noise=0):
        begins = line["step"] % every == 0
        length, start, reading = slow.get(line["step"], (12, 1.5, 0.001) if begins else (10, 0, 0))
        more = {"batch_cost_ns": length * MS, "reader_cost_ns": int(reading * MS)}
        starting = {"started_workers": workers if start else 0, "starting_ns": int(start * MS)}
        lines.append({**line, **more, **starting})
    path = run(folder / "log", [training(999)], step_lines=[lines])
    return [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "slow-steps"]


BEGIN = {12: (160, 90, 40), 24: (160, 90, 40), 36: (160, 90, 40)}


def test_slow_steps_begin_passes_over_a_loader(tmp_path):
    """Of 150 more, starting has 90 and the first batch 40; in other passes the steps are not slow."""
    (finding,) = found(tmp_path, BEGIN)
    names = ("num_slow", "num_begin", "num_workers", "wording", "remedy", "start_ns")
    expected = (3, 3, 2, "workers", "code-workers", pytest.approx(130 * MS, rel=1e-5))
    assert tuple(finding.facts[name] for name in names) == expected
    assert (finding.severity, finding.confidence) == ("major", "sure")
    (row,) = finding_rows([finding])
    assert "it stops and starts its 2 worker processes, 130 ms each time" in row.what
    assert row.short == "slow steps, in which the workers of a DataLoader start"


def test_persistent_workers_are_waited_for(tmp_path):
    (finding,) = found(tmp_path, BEGIN, workers=0)
    assert (finding.facts["wording"], finding.facts["num_workers"]) == ("resumed", None)
    assert "persistent workers, 130 ms each" in finding_rows([finding])[0].what


@pytest.mark.parametrize(
    ("slow", "num_begin"),
    [
        ({**BEGIN, 15: (160, 0, 0), 28: (160, 0, 0)}, 3),  # three fifths begin a pass
        ({12: (160, 90, 40), 24: (160, 90, 40), **dict.fromkeys((15, 17, 28), (160, 0, 0))}, None),
        ({12: (160, 30, 10), 24: (160, 30, 10), 36: (160, 30, 10)}, None),  # of 150 more
        ({12: (160, 90, 40)}, None),  # once
    ],
)
def test_a_reason_explains_half_of_the_excess(tmp_path, slow, num_begin):
    (finding,) = found(tmp_path, slow)
    assert finding.facts["num_begin"] == num_begin


def test_steps_that_wait_for_their_first_batch_above_all_do_not_wait_for_workers(tmp_path):
    """Starting takes 30 of 150 more, and the batch itself 60."""
    (finding,) = found(tmp_path, {12: (160, 30, 60), 24: (160, 30, 60), 36: (160, 30, 60)})
    assert finding.facts["num_begin"] is None
