"""The Model Summary under pipeline parallelism: phases by the micro-batch, nothing counted twice."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest

from ppprof.analysis.profile.module_tree import OCCURRENCE, SEPARATOR, modules
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import SummaryOptions
from ppprof.report.text.summary import TableOptions
from ppprof.trace import read
from tests.fixtures.rendered import render
from tests.fixtures.timeline import Thread, span, write

STEP = 1_000
LENGTH = {"F": 40, "B": 80, "O": 100}
STAGES = ("F0 F1 B0 F2 B1 F3 B2 B3 O", "F0 B0 F1 B1 F2 B2 F3 B3 O")
both_stages = pytest.mark.parametrize("stage", [0, 1])
recomputing_or_not = pytest.mark.parametrize("recompute", [False, True])


def two_steps(stage, *, recompute):
    """1F1B on 2 stages with 4 micro-batches, waiting 10 in front of each task.

    ::

        stage 0   F0 F1      B0   F2 B1   F3 B2        B3   O....  |
        stage 1      F0 B0   F1 B1   F2 B2   F3 B3          O....  |

        Forward     forward(Block(Linear, Linear))              40
        Backward    backward(Block(Linear, Linear) if recompute, Global_MatmulGradNode)   80
        the rest    recv between the tasks, and the end of the step: 1000 - 4 40 - 4 80 - 100 = 420
    """
    steps = []
    for number in range(2):
        at = number * STEP
        tasks = []
        for task in STAGES[stage].split():
            start = at + 10
            tasks.append(span("Communication", "recv", at, start))
            at = start + LENGTH[task[0]]
            tasks.append(_task(task[0], start, at, recompute=recompute))
        first, last = number * STEP, (number + 1) * STEP
        steps.append(span("ProfileStep", f"ProfileStep#{number}", first, last, *tasks))
    return Thread(1, "MainThread", tuple(steps))


def _task(kind, start, end, *, recompute):
    if kind == "F":
        return span("Forward", "forward", start, end, _block(start + 2))
    if kind == "B":
        grad = span("Operator", "Global_MatmulGradNode", start + 45, end - 5)
        again = (_block(start + 5),) if recompute else ()
        return span("Backward", "backward", start, end, *again, grad)
    return span("Optimization", "Optimization Step", start, end)


def _block(at):
    return span("Forward", "Block", at, at + 30).around(
        span("Forward", "Linear", at + 1, at + 15).around(
            span("Operator", "matmul dygraph", at + 2, at + 9)
        ),
        span("Forward", "Linear", at + 15, at + 29),
    )


def profile_of(path):
    return Profile(read(path), SummaryOptions("cpu_total"))


@both_stages
@recomputing_or_not
def test_phases_are_counted_by_the_micro_batch(stage, recompute, tmp_path):
    path = write(tmp_path / "a.pb", two_steps(stage, recompute=recompute))
    rows = summarize(profile_of(path), "model").select(pl.col("name", "calls", "^cpu_.*$"))
    assert rows.rows() == [
        ("ProfileStep", 2, 2000, 1000.0, 1000, 1000, 1.0),
        ("Forward", 8, 320, 40.0, 40, 40, 0.16),
        ("Backward", 8, 640, 80.0, 80, 80, 0.32),
        ("Optimization", 2, 200, 100.0, 100, 100, 0.1),
        ("Others", None, 840, None, None, None, 0.42),
    ]
    assert rows["cpu_ratio"][1:].sum() == pytest.approx(1)


@pytest.mark.paddle
@both_stages
@recomputing_or_not
def test_paddle_counts_them_the_same(stage, recompute, tmp_path):
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    from tests.oracles import paddle_tables

    path = write(tmp_path / "a.pb", two_steps(stage, recompute=recompute))
    ours = render(profile_of(path), ["model"], TableOptions("ns"))
    assert ours == paddle_tables.load(path).text(["model"], time_unit="ns")


ORDERS = {
    "1F1B": "F00 F10 B00 F20 B10 B20",
    "interleaved": "F00 F10 F01 F11 B01 B11 B00 B10",
    "all forward, the last one backward first": "F00 F10 F20 B20 B10 B00",
}
"""Passes with micro-batch and chunk, as `ppprof` records them."""


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_what_a_backward_repeats_is_of_the_pass_with_its_number(order, tmp_path):
    at, tasks = 0, []
    for task in order.split():
        kind, micro_batch, chunk = task
        name = {"F": "forward", "B": "backward"}[kind]
        passed = _task(kind, at, at + LENGTH[kind], recompute=True)
        name = f"{name}[stage=0 chunk={chunk} micro_batch={micro_batch} phase=steady]"
        tasks.append(dataclasses.replace(passed, name=name))
        at += LENGTH[kind]
    thread = Thread(1, "MainThread", (span("ProfileStep", "ProfileStep#0", 0, at, *tasks),))
    trace = read(write(tmp_path / "a.pb", thread))
    events = trace.events.with_row_index("row")
    product = pl.when(name="matmul dygraph").then("row").forward_fill().cast(pl.Int32)
    links = pl.when(name="Global_MatmulGradNode").then(product)
    trace = dataclasses.replace(trace, events=events.with_columns(forward=links).drop("row"))
    found = modules(Profile(trace))["path"]
    pairs = found.str.extract_groups(
        f"^Backward{OCCURRENCE}(\\d+){SEPARATOR}forward{OCCURRENCE}(\\d+)"
    )
    forwards, backwards = ([task[1:] for task in order.split() if task[0] == kind] for kind in "FB")
    expected = {(str(number), str(forwards.index(task))) for number, task in enumerate(backwards)}
    assert set(pairs.struct.unnest().drop_nulls().rows()) == expected
