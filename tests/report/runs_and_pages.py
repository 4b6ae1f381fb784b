"""Runs for tests of the page, and the pages that ``ppprof report`` writes for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppprof.cli import main
from tests.fixtures.pipelines import pipeline_run
from tests.fixtures.timeline import Shapes, Thread, alloc, free, kernel, launch, span, write
from tests.oracles.chromium import EXECUTABLE, SKIPPED

TORCH = Path(__file__).parents[1] / "fixtures/kineto/cpu_small_net.json.gz"
EVIL = "<img src=x onerror=alert(1)>"

in_browser = [
    pytest.mark.all,
    pytest.mark.browser,
    pytest.mark.skipif(EXECUTABLE is None, reason=SKIPPED),
]


def pipeline(folder, *, forward=30_000_000):
    """Two replicas of a pipeline of two stages, three steps each, on two hosts."""
    path = pipeline_run(folder, steps=3, forward=forward, backward=50_000_000)
    for rank in range(4):
        steps = path / "steps"
        steps.mkdir(exist_ok=True)
        (steps / f"rank_{rank:05d}.jsonl").write_text(
            "".join(
                json.dumps(
                    {
                        "step": step,
                        "batch_cost_ns": 400_000_000 + step,
                        "reader_cost_ns": 1_000_000,
                        "num_samples": 8,
                        "num_tokens": 512,
                        "window": 0 if step < 3 else None,
                    }
                )
                + "\n"
                for step in range(8)
            )
        )
    return path


def gpu(folder):
    """One rank on a GPU: modules, memory, and a kernel with an HTML image tag as its name."""
    folder.mkdir()
    us = 1000

    def at(number, time):
        return (100 * number + time) * us

    steps = [
        span("ProfileStep", f"ProfileStep#{n}", at(n, 0), at(n, 90)).around(
            span("Forward", "GPT", at(n, 5), at(n, 40)).around(
                span("Forward", "Block", at(n, 6), at(n, 30)).around(
                    span("Operator", "matmul", at(n, 8), at(n, 20)).around(
                        Shapes(
                            {"X0": [[512, 512]], "X1": [[512, 1024]]},
                            {"X0": ["bfloat16"], "X1": ["bfloat16"]},
                        ),
                        alloc(at(n, 9), 3 << 20),
                        launch(at(n, 10), at(n, 12), kernel(EVIL, at(n, 15), at(n, 45))),
                    )
                )
            ),
            span("Backward", "Backward", at(n, 50), at(n, 80)).around(
                span("Operator", "matmul_grad", at(n, 52), at(n, 78)).around(
                    free(at(n, 77), 3 << 20),
                    launch(at(n, 55), at(n, 56), kernel("gemm_grad", at(n, 60), at(n, 79))),
                )
            ),
        )
        for n in range(3)
    ]
    thread = Thread(1, "main", tuple(steps))
    return write(folder / "rank_0.pb", thread, device_name="NVIDIA H100 80GB HBM3")


def timer_only(folder):
    """The step times of a pipeline of two stages, without traces."""
    path = pipeline(folder)
    for raw in path.glob("raw/*"):
        raw.unlink()
    for file in path.glob("steps/*.jsonl"):
        first, *others = file.read_text().splitlines()
        known = {"slow_line": "train.py:20: <b>evaluate()</b>", "slow_inner_line": "train.py:7"}
        file.write_text("\n".join([json.dumps({**json.loads(first), **known}), *others, ""]))
    return path


def page_of(folder, name, *arguments):
    path = folder / f"{name}.html"
    if not path.exists():
        assert main(["report", *map(str, arguments), "-o", str(path)]) == 0
    return path
