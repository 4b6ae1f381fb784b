"""What is planted in real trainings is the first finding; where nothing is, none is above minor."""

from __future__ import annotations

from pathlib import Path

import pytest

import ppprof
from ppprof.analysis.findings import Finding
from tests.jobs.launching import CONFIG, JOBS, overrides, run

MS = 1_000_000
pytestmark = [pytest.mark.paddle, pytest.mark.all]

PLAIN = ("Profiler.record_shapes=False", "Profiler.profile_memory=False")
SMALL_PARAMETERS = (
    "Model.num_layers=12", "Model.hidden_size=32", "Data.Train.dataset.max_seq_len=16",
    "Global.local_batch_size=1", "Global.micro_batch_size=1",
)  # fmt: skip
"""148 parameters, and hardly anything to compute."""


def advised(folder: Path, planted: str, *more: str, processes: int = 0) -> list[Finding]:
    """Eight recorded steps of a tiny GPT with that planted in it."""
    settings = ["Profiler.enable=True", "Profiler.scheduler=[12, 20]", "Profiler.formats=[pb]",
             "Engine.max_steps=32", "Engine.eval_freq=-1", *PLAIN, *more]  # fmt: skip
    program = (JOBS / "planted_job.py", planted, "-c", CONFIG, *overrides(*settings))
    run(folder, *program, processes=processes)
    return ppprof.advise(ppprof.open(folder / "profiler_log"))


def test_a_slow_dataset(tmp_path: Path) -> None:
    first, *_ = advised(tmp_path, "data:0:0.04")
    assert (first.rule, first.severity) == ("input-bound", "major")
    assert (first.facts["num_workers"], first.facts["remedy"]) == (0, "config")
    # 8 samples of 40 ms a step; a thread of Paddle's hides as much as the rest of the step takes.
    assert first.cost_ns is not None
    assert 0.1 * 320 * MS < first.cost_ns < 320 * MS


def test_a_slow_rank(tmp_path: Path) -> None:
    found = advised(tmp_path, "rank:1:0.03", "Distributed.dp_degree=2", processes=2)
    assert (found[0].rule, found[0].severity) == ("slow-rank", "major")
    assert found[0].facts["rank"] == 1
    # 2 blocks of 30 ms; on a busy machine what keeps the sleeper from waking in time as well.
    assert found[0].cost_ns is not None
    assert 0.75 * 60 * MS < found[0].cost_ns < 2 * 60 * MS


def test_one_micro_batch_for_two_stages(tmp_path: Path) -> None:
    first, *_ = advised(tmp_path, "nothing", "Distributed.pp_degree=2", processes=2)
    assert (first.rule, first.severity) == ("pipeline-bubble", "major")
    assert first.facts["micro_batches"] == 1
    assert first.facts["proposed_micro_batches"] == 8
    assert first.facts["proposed_micro_batch_size"] == 1


def test_an_unfused_optimizer(tmp_path: Path) -> None:
    for name in ("unfused", "fused"):
        (tmp_path / name).mkdir()
    first, *_ = advised(tmp_path / "unfused", "nothing", *SMALL_PARAMETERS)
    assert first.rule == "optimizer-unfused"
    assert first.severity != "minor"
    assert first.facts["num_updates"] == 148
    # What it proposes is done.
    found = advised(
        tmp_path / "fused", "nothing", *SMALL_PARAMETERS, "Optimizer.use_multi_tensor=True"
    )
    assert "optimizer-unfused" not in [at.rule for at in found]


def test_nothing(tmp_path: Path) -> None:
    found = advised(tmp_path, "nothing")
    assert {at.severity for at in found} <= {"minor"}, [(at.rule, at.facts) for at in found]
