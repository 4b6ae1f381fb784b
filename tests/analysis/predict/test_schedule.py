"""Schedules against formulas of the literature."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.predict.schedule import Simulated, in_flight, order, simulate

SIZES = st.integers(1, 6)
TIMES = st.integers(1, 50)


def simulated(
    stages: int, chunks: int, micro_batches: int, times: list[int], gap: int = 0, transfer: int = 0
) -> Simulated:
    """Return a pipeline whose passes take the given times, forward and backward of each stage."""
    orders = [order(stage, stages, chunks, micro_batches) for stage in range(stages)]
    scenario = np.ones(1)
    return simulate(
        orders,
        lambda stage, each: scenario * times[2 * stage + (not each.is_forward)],
        0 * scenario,
        gap * scenario,
        transfer * scenario,
    )


@given(SIZES, st.integers(1, 12), TIMES, TIMES)
def test_1f1b_with_equal_stages_takes_m_plus_p_minus_1_passes(
    stages: int, micro_batches: int, forward: int, backward: int
) -> None:
    found = simulated(stages, 1, micro_batches, [forward, backward] * stages)
    assert found.span == (micro_batches + stages - 1) * (forward + backward)
    assert np.isclose(found.idle, (stages - 1) * (forward + backward))


@given(st.integers(3, 5), st.integers(2, 3), st.integers(2, 4), TIMES)
def test_interleaving_divides_the_bubble_by_the_chunks(
    stages: int, chunks: int, rounds: int, forward: int
) -> None:
    """Narayanan et al. 2021, section 2.2.2: bubble (p - 1)(f + b) / v for f, b of a whole stage."""
    found = simulated(stages, chunks, rounds * stages, [forward, 2 * forward] * stages)
    assert np.isclose(found.idle, (stages - 1) * 3 * forward)  # f and b of one chunk here


@given(SIZES, SIZES, st.data())
def test_more_work_never_shortens_a_step(
    stages: int, micro_batches: int, data: st.DataObject
) -> None:
    times = data.draw(st.lists(TIMES, min_size=2 * stages, max_size=2 * stages))
    gap, transfer = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    span = simulated(stages, 1, micro_batches, times, gap, transfer).span
    assert simulated(stages, 1, micro_batches + 1, times, gap, transfer).span > span
    assert simulated(stages, 1, micro_batches, times, gap, transfer + 1).span >= span
    longer = list(times)
    longer[data.draw(st.integers(0, 2 * stages - 1))] += 1
    assert simulated(stages, 1, micro_batches, longer, gap, transfer).span >= span


@given(st.integers(1, 12), TIMES, TIMES, st.integers(0, 9))
def test_one_stage_takes_the_sum_of_its_passes(
    micro_batches: int, forward: int, backward: int, gap: int
) -> None:
    found = simulated(1, 1, micro_batches, [forward, backward], gap)
    assert found.span == micro_batches * (forward + backward) + (2 * micro_batches - 1) * gap
    assert found.idle == 0, "no stage waits for another"


def test_gaps_between_passes_are_no_bubble() -> None:
    """Two stages, two micro-batches, passes of 10 and gaps of 1: each stage has 4 passes and 3 gaps.

    ::

        stage 0   F0 F1 . B0 . B1        begin at 0, 11, 31, 53; the last ends at 63
        stage 1   . F0 B0 F1 B1 .        begin at 10, 21, 32, 43; the last ends at 53
    """
    found = simulated(2, 1, 2, [10, 10, 10, 10], gap=1)
    assert found.span == 63
    assert found.idle == 63 - (40 + 3)


@given(st.integers(1, 8), st.integers(1, 20), st.data())
def test_1f1b_keeps_a_micro_batch_for_each_later_stage(
    stages: int, micro_batches: int, data: st.DataObject
) -> None:
    stage = data.draw(st.integers(0, stages - 1))
    assert in_flight(stage, stages, 1, micro_batches) == min(micro_batches, stages - stage)


@given(st.integers(3, 5), st.integers(2, 3), st.integers(3, 4), st.data())
def test_interleaving_keeps_more_chunks(
    stages: int, chunks: int, rounds: int, data: st.DataObject
) -> None:
    stage = data.draw(st.integers(0, stages - 1))
    expected = (stages - stage - 1) * 2 + (chunks - 1) * stages + 1
    kept = in_flight(stage, stages, chunks, rounds * stages)
    assert kept == min(expected, chunks * rounds * stages)


@given(st.integers(3, 5), st.integers(1, 3), st.integers(1, 4))
def test_every_pass_is_scheduled_once_and_forward_first(
    stages: int, chunks: int, rounds: int
) -> None:
    for stage in range(stages):
        passes = order(stage, stages, chunks, rounds * stages)
        assert len(set(passes)) == len(passes) == 2 * chunks * rounds * stages
        for each in passes:
            if not each.is_forward:
                assert passes.index(each._replace(is_forward=True)) < passes.index(each)
