"""Work that grows with each step, and work that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ppprof
from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.advice.growing_work import _elements
from tests.fixtures.findings import accumulated
from tests.fixtures.run_directories import run


def found(folder: Path, thread: Any) -> list[Finding]:
    findings = ppprof.advise(ppprof.open(run(folder / "log", [thread])))
    return [each for each in findings if each.rule == "growing-work"]


@pytest.mark.parametrize(
    ("more", "is_found"),
    [
        ([100, 100, 50, 100, 60, 100, 100], True),
        (
            [100, 100, 49, 100, 60, 100, 100],
            False,
        ),  # of other sizes, as batches padded to their longest
        ([100, 100, 0, 100, 100, 100, 100], False),
        ([100, 100, 100, 100, 100, 100, -600], False),  # a new epoch
        ([-10] * 7, False),
    ],
)
def test_each_step_has_more_than_the_one_before(
    tmp_path: Path, more: list[int], is_found: bool
) -> None:
    assert bool(found(tmp_path, accumulated(more))) == is_found


def test_steps_without_a_backward_may_decode_one_token_each(tmp_path: Path) -> None:
    assert not found(tmp_path, accumulated(100, is_training=False))


@pytest.mark.parametrize(("constant", "is_found"), [(136, True), (135, False)])
@pytest.mark.parametrize("updates", [False, True])
def test_if_most_of_a_step_grows_the_samples_become_longer(
    tmp_path: Path, constant: int, is_found: bool, updates: bool
) -> None:
    """Optimizers take no longer with longer samples: their time does not count."""
    thread = accumulated(100, constant=constant, updates=updates)
    assert bool(found(tmp_path, thread)) == is_found


def test_shapes_of_other_programs_do_not_count() -> None:
    assert _elements("none") is None
    assert _elements('{"X": [[4, 1000000000, 1000000000]]}') is None
    assert _elements('{"X": [[2, 3], [4]], "Y": [[]]}') == 11
