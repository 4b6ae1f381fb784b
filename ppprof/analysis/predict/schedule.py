"""Fleet's pipeline schedules: the order of each stage's passes, and the time that they take.

1F1B with 3 stages and 4 micro-batches; a backward pass takes twice as long as a forward pass::

    stage 0   F0 F1 F2       B0 B0 F3 B1 B1    B2 B2    B3 B3
    stage 1      F0 F1    B0 B0 F2 B1 B1 F3 B2 B2    B3 B3
    stage 2         F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3

Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", and Fleet's ``meta_parallel/pipeline_parallel.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ppprof.arrays import Float64


class Pass(NamedTuple):
    """The pass of one micro-batch through one chunk of a stage."""

    is_forward: bool
    chunk: int
    micro_batch: int


class Simulated(NamedTuple):
    """The result of `simulate`."""

    span: Float64
    """From the start of the step to the end of the last pass."""
    idle: Float64
    """Time of an average stage from the end of the first stage's head to the end of the last pass that is in
    neither a pass nor a gap between two passes."""


def order(stage: int, num_stages: int, num_chunks: int, num_micro_batches: int) -> list[Pass]:
    """Return the passes of a stage in the order of Fleet's schedule.

    1F1B with one chunk. With several, Fleet interleaves them; with fewer than two micro-batches for
    each stage, all forward passes come first.

    Args:
        stage: the stage, from 0.
        num_stages: pp_degree.
        num_chunks: virtual_pp_degree; above 1, num_stages divides num_micro_batches.
        num_micro_batches: of a step.
    """
    num = num_chunks * num_micro_batches
    if num_chunks == 1:
        num_first = num_stages - stage - 1
    elif num_micro_batches < 2 * num_stages:
        num_first = num
    else:
        num_first = 2 * (num_stages - stage - 1) + (num_chunks - 1) * num_stages
    num_first = min(num_first, num)

    def pass_of(number: int, *, is_forward: bool) -> Pass:
        if num_chunks == 1:
            return Pass(is_forward, 0, number)
        group, within = divmod(number, num_stages * num_chunks)
        chunk, micro_batch = divmod(within, num_stages)
        chunk = chunk if is_forward else num_chunks - 1 - chunk
        return Pass(is_forward, chunk, group * num_stages + micro_batch)

    passes = [pass_of(number, is_forward=True) for number in range(num_first)]
    for number in range(num):
        if num_first + number < num:
            passes.append(pass_of(num_first + number, is_forward=True))
        passes.append(pass_of(number, is_forward=False))
    return passes


def in_flight(stage: int, num_stages: int, num_chunks: int, num_micro_batches: int) -> int:
    """Return the most forward passes of a stage whose backward pass has not ended."""
    most = kept = 0
    for each in order(stage, num_stages, num_chunks, num_micro_batches):
        kept += 1 if each.is_forward else -1
        most = max(most, kept)
    return most


def simulate(
    orders: Sequence[Sequence[Pass]],
    time_of: Callable[[int, Pass], Float64],
    head: Float64,
    gap: Float64,
    transfer: Float64,
) -> Simulated:
    """Return the time of a pipeline: a pass begins when the previous one is done and its input has come.

    Args:
        orders: the passes of each stage.
        time_of: returns the time of a pass of a stage. All times have one shape, that of the scenarios.
        head: from the start of the step to the first pass of stage 0.
        gap: between two passes of a stage.
        transfer: from the end of a pass to the start of a pass of another stage that waits for it.
    """
    num_stages = len(orders)
    last = max(each.chunk for passes in orders for each in passes) * num_stages + num_stages - 1
    ends: dict[tuple[bool, int, int], Float64] = {}
    busy = [np.zeros_like(head) for _ in orders]
    until = [head if stage == 0 else np.zeros_like(head) for stage in range(num_stages)]
    position = [0] * num_stages
    while any(done < len(passes) for done, passes in zip(position, orders)):
        before = list(position)
        for stage, passes in enumerate(orders):
            while position[stage] < len(passes):
                each = passes[position[stage]]
                place = each.chunk * num_stages + stage
                own = gap if position[stage] else np.zeros_like(head)
                start = until[stage] + own
                source = place - 1 if each.is_forward else place + 1
                if 0 <= source <= last:
                    ready = ends.get((each.is_forward, source, each.micro_batch))
                    if ready is None:
                        break
                    start = np.maximum(start, ready + (transfer if num_stages > 1 else 0))
                time = time_of(stage, each)
                until[stage] = start + time
                busy[stage] = busy[stage] + own + time
                ends[each.is_forward, place, each.micro_batch] = until[stage]
                position[stage] += 1
        assert position != before, "the schedule waits for itself"
    span = np.max(until, axis=0)
    idle = span - head - np.mean(busy, axis=0)
    return Simulated(span, np.maximum(idle, 0))  # sums in another order differ in their last digits
