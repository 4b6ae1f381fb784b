"""Ranges of steps: their text forms."""

from __future__ import annotations

import pytest

from ppprof.choices.steps import StepRange
from ppprof.errors import UsageError


@pytest.mark.parametrize(
    ("text", "start", "stop"),
    [("2:5", 2, 5), ("2:", 2, None), (":5", 0, 5), ("4", 4, 5), (4, 4, 5), ("0:1", 0, 1)],
)
def test_how_steps_are_written(text, start, stop):
    assert StepRange.parse(text) == StepRange(start, stop)


@pytest.mark.parametrize("text", ["", ":", "a:b", "-1", "-2:3", "1:2:3", "1.5", "1-3"])
def test_what_is_no_range_of_steps(text):
    with pytest.raises(UsageError, match=r"expected A:B \(steps A to B-1\)"):
        StepRange.parse(text)


@pytest.mark.parametrize("text", ["5:5", "5:1", ":0"])
def test_a_range_without_a_step(text):
    with pytest.raises(UsageError, match="no step is in it"):
        StepRange.parse(text)
