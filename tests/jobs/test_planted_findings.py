"""What is planted in real trainings is the first finding; where nothing is, none is above minor."""

from __future__ import annotations

from collections.abc import Callable

import ppprof
from ppprof.run.run import Run

MS = 1_000_000
Open = Callable[[str], Run]


def test_a_slow_dataset(planted_run: Open) -> None:
    first, *_ = ppprof.advise(planted_run("slow_dataset"))
    assert (first.rule, first.severity) == ("input-bound", "major")
    assert (first.facts["num_workers"], first.facts["remedy"]) == (0, "config")
    # 8 samples of 40 ms a step; a thread of Paddle's hides as much as the rest of the step takes.
    assert first.cost_ns is not None
    assert 0.1 * 320 * MS < first.cost_ns < 320 * MS


def test_a_slow_rank(planted_run: Open) -> None:
    found = ppprof.advise(planted_run("slow_rank_of_two"))
    assert (found[0].rule, found[0].severity) == ("slow-rank", "major")
    assert found[0].facts["rank"] == 1
    # 2 blocks of 30 ms; on a busy machine what keeps the sleeper from waking in time as well.
    assert found[0].cost_ns is not None
    assert 0.75 * 60 * MS < found[0].cost_ns < 2 * 60 * MS


def test_one_micro_batch_for_two_stages(planted_run: Open) -> None:
    first, *_ = ppprof.advise(planted_run("one_micro_batch"))
    assert (first.rule, first.severity) == ("pipeline-bubble", "major")
    assert first.facts["micro_batches"] == 1
    assert first.facts["proposed_micro_batches"] == 8
    assert first.facts["proposed_micro_batch_size"] == 1


def test_an_unfused_optimizer(planted_run: Open) -> None:
    first, *_ = ppprof.advise(planted_run("unfused_optimizer"))
    assert first.rule == "optimizer-unfused"
    assert first.severity != "minor"
    assert first.facts["num_updates"] == 148
    # What it proposes is done.
    found = ppprof.advise(planted_run("fused_optimizer"))
    assert "optimizer-unfused" not in [finding.rule for finding in found]


def test_nothing(planted_run: Open) -> None:
    """On a CPU, the attention of any model copies views, which Paddle can do without."""
    found = ppprof.advise(planted_run("nothing"))
    above = {(each.rule, each.severity) for each in found if each.severity != "minor"}
    assert above <= {("strided-inputs", "moderate")}, [(each.rule, each.facts) for each in found]
