"""The line that calls a collective, where samples are in some calls only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ppprof
from ppprof.analysis.advice import Evidence
from ppprof.analysis.advice.collective_lines import COLLECTIVE_LINES
from ppprof.run.advise import collect_evidence_of_run
from ppprof.rundir.python_stacks import PythonStacks
from tests.fixtures.findings import BACKWARD, OWN, STACKS, UPDATE, US, op, thread
from tests.fixtures.run_directories import run
from tests.fixtures.timeline import EPOCH_NS, Launch, kernel, launch

SIZES = (64, 64, 8, 16)
"""Bytes of the all_reduces of a step: each begins at the next 100 us, and takes 50."""


def evidence_of(tmp_path: Path, *ranks: list[tuple[int, int, int]]) -> Evidence:
    """The evidence of two ranks with two steps.

    Args:
        tmp_path: a folder.
        ranks: for each rank, step, collective and the row in ``STACKS`` of each sample.
    """

    def make(at: int):
        yield op(at, 0, 100)
        for number, size in enumerate(SIZES, 1):
            facts = f"all_reduce[axis=dp group=1 bytes={size} dtype=float32 peers=0,1]"
            yield op(at, 100 * number, 100 * number + 50, facts, category="Communication")

    stacks = []
    for samples in ranks:
        rows = [
            (1, EPOCH_NS + (1000 * step + 100 * (number + 1) + 25) * US, 50 * US, stack, 0)
            for step, number, stack in sorted(samples)
        ]
        stacks.append(PythonStacks(50 * US, OWN, STACKS, np.array(rows, np.int64), {}))
    path = run(tmp_path / "log", [thread(make, num=2)] * 2, stacks=stacks)
    return collect_evidence_of_run(ppprof.open(path))


def lines_of(
    tmp_path: Path, samples: list[tuple[int, int, int]]
) -> list[list[tuple[str | None, int | None]]]:
    """Line and guess of each collective of each step of rank 0."""
    table = evidence_of(tmp_path, samples, samples).indicators[0].collectives
    assert dict(table.schema) == COLLECTIVE_LINES
    return [table.filter(step=step).select("line", "guess").rows() for step in (0, 1)]


def test_the_surest_sample_gives_a_call_its_line(tmp_path: Path):
    """A call's own sample; that of the same call of another step; of a loop over three sizes."""
    first, second = lines_of(tmp_path, [(0, 0, BACKWARD), (1, 1, BACKWARD)])
    line = first[0][0]
    assert first == [(line, 0), (line, 1), (line, 3), (line, 3)]
    assert second == [(line, 1), (line, 0), (line, 3), (line, 3)]


@pytest.mark.parametrize("num", [2, 20])
def test_where_two_lines_call_equal_collectives_only_samples_of_a_call_count(
    num: int, tmp_path: Path
):
    """A tenth or less of the samples of a kind is in the line behind the call: it calls none."""
    samples = [(0, 0, BACKWARD)] * (num - 1) + [(1, 1, UPDATE)]
    first, second = lines_of(tmp_path, samples)
    lines = {line for line, _ in first + second if line is not None}
    assert len(lines) == (2 if num == 2 else 1)
    assert first[0][1] == 0
    assert [guess for _, guess in first] == ([0, 1, None, None] if num == 2 else [0, 2, 3, 3])


@pytest.mark.parametrize("sure", [BACKWARD, UPDATE])
def test_of_two_ranks_the_surest_one_knows_a_line(sure: int, tmp_path: Path):
    """One rank has a sample in the third call, the other only in another size of a loop."""
    other = BACKWARD + UPDATE - sure
    evidence = evidence_of(tmp_path, [(0, 0, other), (1, 0, other)], [(0, 2, sure), (1, 2, sure)])
    calls = evidence.collective_calls.filter(index=2)
    own = OWN[STACKS[sure][0]].line
    assert calls["line"].to_list() == [f"train.py:{own}"] * 2


def test_what_a_synchronized_batch_norm_reduces_is_of_a_layer(tmp_path: Path):
    """Kernels on a device without a span: two of the gradient of a batch norm, then one of the reducer."""

    def make(at: int):
        def reducing(start: int) -> Launch:
            times = at + start * US, at + (start + 50) * US
            return launch(*times, kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", *times))

        norm = op(at, 100, 300, "Global_SyncBatchNormGradNode", reducing(100), reducing(200))
        node = op(at, 300, 400, "Global_GradNodeAccumulation", reducing(300))
        yield op(at, 100, 900, "Backward", norm, node, category="Backward")

    path = run(tmp_path / "log", [thread(make, num=2)] * 2)
    table = collect_evidence_of_run(ppprof.open(path)).indicators[0].collectives
    assert table.filter(step=0)["inside"].to_list() == ["Forward", "Forward", "Backward"]
    assert table["is_named"].any() is False
