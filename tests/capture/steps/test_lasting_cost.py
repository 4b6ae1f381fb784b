"""Step times before and after the first window: a slow-down is said with both medians, chance is not."""

from __future__ import annotations

import random

import pytest

from ppprof.capture.steps.lasting_cost import LastingCost

MS = 1_000_000


def said(
    before: float, after: float, *, spread: float = 0.02, steps: int = 60, seed: int = 0
) -> list[str]:
    """What is said of so many steps on each side, of lengths in ms that differ by ``spread``."""
    chance = random.Random(seed)
    judge = LastingCost()
    texts = []
    for number in range(2 * steps + 5):
        window = 0 if steps <= number < steps + 5 else None
        mean = before if number < steps else after
        cost = round(mean * MS * chance.gauss(1, spread))
        # The first steps of a training, and those beside the files of the window, are longer.
        is_first = number < 3 or steps + 5 <= number < steps + 8
        texts.append(judge.add(cost * (5 if is_first else 1), window, is_excluded=number == 20))
    return [text for text in texts if text] or [text for text in [judge.compare()] if text]


def test_a_slow_down_is_said_with_its_medians() -> None:
    (text,) = said(10, 10.5, steps=80)
    assert "steps take 5." in text or "steps take 4.9" in text
    assert "(medians of 77 and 76 steps)" in text
    assert len(said(10, 10.5, steps=400)) == 1


@pytest.mark.parametrize("after", [10, 10.05, 9])
def test_chance_is_not_said(after: float) -> None:
    assert [said(10, after, seed=seed) for seed in range(100)] == [[]] * 100
    assert said(10, 20, steps=7) == []


def test_steps_after_a_second_window_are_not_the_first_ones() -> None:
    judge = LastingCost()
    for _ in range(20):
        judge.add(10 * MS, None, is_excluded=False)
    judge.add(10 * MS, 0, is_excluded=False)
    for _ in range(20):
        judge.add(10 * MS, None, is_excluded=False)
    assert judge.add(10 * MS, 1, is_excluded=False) == ""
    for _ in range(300):
        assert judge.add(30 * MS, None, is_excluded=False) == ""
    assert judge.compare() == ""
