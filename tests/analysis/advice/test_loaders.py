"""A data loader that has workers is not advised to have some."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ppprof
from ppprof.report.text.advice import finding_rows
from ppprof.rundir.python_stacks import Frame
from tests.fixtures.findings import AFTER, FORWARD, US, in_lines, op, thread
from tests.fixtures.run_directories import run, step_lines
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
    ("name", "loading", "advice"),
    [
        ("MultiProcess", 200, "Raise num_workers and prefetch_factor of the DataLoader"),
        ("SingleProcess", 450, "Raise num_workers of paddle.io.DataLoader to 2"),
        ("SingleProcess", 350, "Keep num_workers as it is"),
    ],
)
def test_paddle_s_loader(name, loading, advice, tmp_path):
    """What takes 0.35 ms is passed on from a worker no sooner."""

    def step(at):
        load = span("Dataloader", f"_DataLoaderIter{name}", at, at + loading * US)
        return [load, span("Operator", "matmul", at + 500 * US, at + 900 * US)]

    job = run(tmp_path, [thread(step)])
    findings = [f for f in ppprof.advise(ppprof.open(job)) if f.rule == "input-bound"]
    (row,) = finding_rows(findings)
    assert row.do.startswith(advice)


@pytest.mark.parametrize(
    ("loader", "sampling", "is_sampler"),
    [
        ("MultiProcess", 250, True),
        ("MultiProcess", 100, False),
        ("SingleProcess", 250, True),
        ("SingleProcess", 100, False),
    ],
)
def test_a_slow_sampler_is_not_advised_to_have_workers(loader, sampling, is_sampler, tmp_path):
    """400 in the loader, which calls the sampler for some of them.

    It does so in the training's thread, or in its own one, where it reads samples for the others.
    """

    def step(at):
        yield op(at, 0, 400, f"_DataLoaderIter{loader}", category="Dataloader")
        yield op(at, 400, 1000)

    stacks = in_lines((sampling, 1), (400 - sampling, 2), (600, FORWARD))
    frames = [
        Frame("data", "data.py", "Buckets.pick", 29, is_own=True),
        Frame("paddle.io.dataloader.dataloader_iter", "p.py", "next", 1, is_own=False),
        Frame("data", "data.py", "Words.__getitem__", 9, is_own=True),
        Frame("paddle.io.dataloader.fetcher", "p.py", "fetch", 1, is_own=False),
    ]
    sampler, loads, item, fetches = range(len(stacks.frames), len(stacks.frames) + len(frames))
    samples = stacks.samples
    if loader == "SingleProcess":
        samples[samples[:, 3] != FORWARD, 0] = 2
        samples = samples[np.lexsort([samples[:, 1], samples[:, 0]])]
    reading = [item, fetches, loads] if loader == "SingleProcess" else [loads, 0]
    stacks = dataclasses.replace(
        stacks,
        samples=samples,
        frames=[*stacks.frames, *frames],
        stacks=[[0], [sampler, loads, 0], reading],
    )
    job = ppprof.open(run(tmp_path, [thread(step)], stacks=[stacks]))
    (row,) = finding_rows([f for f in ppprof.advise(job) if f.rule == "input-bound"])
    assert row.do.startswith("Make data.py:29, pick() cheaper") == is_sampler
    assert ("mostly chooses the next samples" in row.what) == is_sampler


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("paddle.io.dataloader.fetcher", "data.py:9, __getitem__()"),
        (
            "threading",
            "monitor.py:4, beat()",
        ),  # either thread may load, and this one has more samples
    ],
)
def test_a_thread_that_sleeps_while_another_loads_is_not_named(module, line, tmp_path):
    """400 in the loader, whose thread reads samples; a thread of the user's sleeps all the time."""

    def step(at):
        yield op(at, 0, 400, "_DataLoaderIterSingleProcess", category="Dataloader")
        yield op(at, 400, 1000)

    own, reads = in_lines((400, AFTER), (600, FORWARD)), in_lines((300, 6), (700, -1))
    frames = [
        Frame("data", "data.py", "Words.__getitem__", 9, is_own=True),
        Frame(module, "p.py", "fetch", 1, is_own=False),
        Frame("monitor", "monitor.py", "beat", 4, is_own=True),
    ]
    reading, sleeping = reads.samples[reads.samples[:, 3] == 6], own.samples.copy()
    reading[:, 0], sleeping[:, 0], sleeping[:, 3] = 2, 3, 7
    stacks = dataclasses.replace(
        own,
        samples=np.concatenate([own.samples, reading, sleeping]),
        frames=[*own.frames, *frames],
        stacks=[*own.stacks, [6, 7], [8]],
    )
    job = ppprof.open(run(tmp_path, [thread(step)], stacks=[stacks]))
    (found,) = [f for f in ppprof.advise(job) if f.rule == "input-bound"]
    assert found.facts["line"] == line


@pytest.mark.parametrize(
    ("calls", "is_sampler"),
    [
        (("data.py", 3, ()), False),
        (("data.py", 3, ("paddle.io.dataloader.fetcher",)), False),
        (("data.py", 3, ("paddle.io.dataloader.batch_sampler",)), True),
    ],
    ids=["other thread", "reads", "samples"],
)
def test_a_reader_is_named_though_no_recorded_step_waits(calls, is_sampler, tmp_path):
    """Only steps outside the window wait for it: recording slows the training, and not the reader."""

    def step(at):
        yield op(at, 0, 1000)

    file, line, callers = calls
    own, reader = in_lines((1000, FORWARD)), in_lines((1000, 6))
    reader.samples[:, 0] = 2
    frames = [
        Frame("data", file, "Words.read", line, is_own=True),
        *(Frame(module, "p.py", "call", 1, is_own=False) for module in callers),
    ]
    stacks = dataclasses.replace(
        own,
        samples=np.concatenate([own.samples, reader.samples]),
        frames=[*own.frames, *frames],
        stacks=[*own.stacks, [len(own.frames) + number for number in range(len(frames))]],
    )
    waiting = [{**line, "reader_cost_ns": 400 * US} for line in step_lines(1000 * US)]
    job = ppprof.open(run(tmp_path, [thread(step)], stacks=[stacks], step_lines=[waiting]))
    (found,) = [each for each in ppprof.advise(job) if each.rule == "input-bound"]
    assert found.facts["line"] == ("data.py:3, read()" if callers else None)
    assert (found.facts["remedy"] == "sampler") == is_sampler
