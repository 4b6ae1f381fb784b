"""A data loader that has workers is not advised to have some."""

from __future__ import annotations

import pytest

import ppprof
from ppprof.report.text.advice import finding_rows
from tests.fixtures.findings import US, thread
from tests.fixtures.run_directories import run
from tests.fixtures.timeline import span
from tests.fixtures.torch_traces import TorchTrace, write_events


def loaded(name: str) -> TorchTrace:
    """Case 17: 30 iterations of 10 ms, 0.5 of it in the data loader, without ProfilerStep."""
    trace = TorchTrace()
    for number in range(30):
        begin = number * 10_000
        trace.span("user_annotation", f"enumerate(DataLoader)#{name}.__next__", begin, 500)
        for kernel in range(6):
            at = begin + 600 + kernel * 1_400
            trace.op("aten::mm", at, 100)
            trace.launch(at + 20, "gemm", at + 40, 1_200)
        trace.span("user_annotation", "Optimizer.step#SGD.step", begin + 9_100, 300)
    return trace


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (
            "_MultiProcessingDataLoaderIter",
            "Raise num_workers and prefetch_factor of the DataLoader",
        ),
        ("_SingleProcessDataLoaderIter", "Raise num_workers of torch.utils.data.DataLoader to 2"),
    ],
)
def test_torch_s_loader(name, advice, tmp_path):
    run = ppprof.open(write_events(tmp_path / "a.json", loaded(name).events))
    assert run.breakdown()["step"].to_list() == list(range(30))
    findings = [finding for finding in ppprof.advise(run) if finding.rule == "input-bound"]
    (row,) = finding_rows(findings)
    assert row.do.startswith(advice)
    assert findings[0].cost_ns == 500 * US


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("_DataLoaderIterMultiProcess", "Raise num_workers and prefetch_factor of the DataLoader"),
        ("_DataLoaderIterSingleProcess", "Raise num_workers of paddle.io.DataLoader to 2"),
    ],
)
def test_paddle_s_loader(name, advice, tmp_path):
    def step(at):
        load = span("Dataloader", name, at, at + 200 * US)
        return [load, span("Operator", "matmul", at + 300 * US, at + 900 * US)]

    job = run(tmp_path, [thread(step)])
    findings = [f for f in ppprof.advise(ppprof.open(job)) if f.rule == "input-bound"]
    (row,) = finding_rows(findings)
    assert row.do.startswith(advice)
