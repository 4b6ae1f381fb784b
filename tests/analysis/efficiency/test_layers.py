"""The modules of a step: their shares, and the parts that add up to the step."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.analysis.efficiency.efficiency import largest_modules, layers
from ppprof.analysis.profile.profile import Profile
from ppprof.choices import SummaryOptions
from ppprof.report.text.summary import render_largest
from ppprof.run.advise import findings_of_window
from ppprof.trace import read

RUNS = Path(__file__).parents[2] / "fixtures/runs"
ON_CPU = sorted(path for path in RUNS.iterdir() if path.name != "two_ranks_on_a_device")
STEPS = pl.Series([0])


NODE = "autograd::engine::evaluate_function: "
STEP = (
    *(("user_annotation", "ProfilerStep#0", 0, 40), ("python_function", "nn.Module: Net_0", 1, 13)),
    *(("python_function", "nn.Module: Linear_0", 2, 5), ("cpu_op", "aten::addmm", 3, 5, 1, 0)),
    *(("python_function", "nn.Module: Linear_0", 6, 9), ("cpu_op", "aten::addmm", 7, 9, 2, 0)),
    *(("cpu_op", "aten::relu", 10, 12, 3, 0), ("cpu_op", "aten::mse_loss", 14, 16, 4, 0)),
    *(("cpu_op", f"{NODE}MseLossBackward0", 20, 22, 4, 1),),
    *(("cpu_op", f"{NODE}ReluBackward0", 23, 25, 3, 1),),
    *(("cpu_op", f"{NODE}AddmmBackward0", 26, 29, 2, 1),),
    *(("cpu_op", f"{NODE}torch::autograd::AccumulateGrad", 30, 31),),
    *(("cpu_op", f"{NODE}AddmmBackward0", 32, 36, 1, 1),),
    *(("python_function", "nn.Module: Head_0", 37, 39), ("cpu_op", "aten::relu", 37, 38)),
)
"""Category, name, begin and end in us, then the number of the node, and whether it is the node.

::

    ProfilerStep#0   ########################################   0 to 40
      Net             ############                              1 to 13
        Linear         ###                                      node 1
        Linear             ###                                  node 2
        (relu)                 ##                               node 3, of Net itself
      (mse_loss)                  ##                            node 4, of no module
      (nodes)                           ## ## ### # ####        4, 3, 2, a sum, 1
      Head                                                ##    37 to 39
"""


@pytest.fixture
def trace(tmp_path):
    """The trace of `STEP`."""
    events = [
        {
            **{"ph": "X", "cat": cat, "name": name, "pid": 40, "tid": 41},
            **{"ts": begin, "dur": end - begin},
            "args": dict(zip(("Sequence number", "Fwd thread id"), numbers)),
        }
        for cat, name, begin, end, *numbers in STEP
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return read(path)


def test_modules_of_one_class_are_a_part_of_the_step_and_all_parts_add_up_to_it(trace):
    """The times of modules are without the modules below."""
    parts = largest_modules(Profile(trace), STEPS)
    assert parts.select("name", "modules", "forward_ns", "backward_ns").rows() == [
        ("Net > Linear", 2, 6000, 7000),
        ("", 1, 10_000, 0),
        ("Net", 1, 6000, 2000),
        ("Backward", 1, 0, 7000),
        ("Head", 1, 2000, 0),
    ]
    assert parts["ratio"].to_list() == pytest.approx([13 / 40, 10 / 40, 8 / 40, 7 / 40, 2 / 40])
    assert render_largest(parts) == [
        "the largest parts of this step  forward  backward  share",
        "Net > Linear (2)                6 us     7 us      32.5%",
        "outside all modules             10 us    -         25.0%",
        "Net                             6 us     2 us      20.0%",
        "Backward, of no module          -        7 us      17.5%",
        "Head                            2 us     -         5.0%",
    ]


def test_what_is_not_shown_is_counted(trace):
    parts = largest_modules(Profile(trace), STEPS)
    halves = parts.with_columns(pl.col("ratio") / 2)
    more = halves.vstack(halves)
    assert render_largest(more)[-1].split() == ["5", "more", "parts", "50.0%"]
    assert render_largest(parts.clear()) == []


def test_layers_have_their_share_of_the_step(trace):
    shares = layers(Profile(trace)).with_columns((pl.col("ratio") * 40).round(9))
    assert shares.select("depth", "name", "ratio").rows() == [
        (0, "Net", 21),
        (1, "Linear", 7),
        (1, "Linear", 6),
        (0, "Head", 2),
    ]


@pytest.mark.parametrize("path", ON_CPU, ids=lambda path: path.name)
def test_parts_are_of_the_steps_that_the_sentence_above_them_is_about(path):
    """Slow steps are left out of both, so the parts add up to the step in the sentence."""
    run = ppprof.open(path)
    found = findings_of_window(path, run.recordings[0], run.trace(0))
    assert found is not None
    evidence, _ = found
    parts = largest_modules(Profile(run.trace(0)), evidence.typical_lengths["step"])
    whole_ns = parts["forward_ns"].sum() + parts["backward_ns"].sum()
    assert whole_ns == pytest.approx(evidence.step_ns, abs=1)


@pytest.mark.parametrize("name", ["nothing", "slow_layer", "two_ranks_on_a_device", "remote_calls"])
def test_shares_of_real_steps_add_up_and_layers_are_sorted_on_request(name):
    trace = ppprof.open(RUNS / name).trace(0)
    profile = Profile(trace)
    steps = profile.step.drop_nulls().unique()
    parts = largest_modules(profile, steps)
    assert parts["ratio"].sum() == pytest.approx(1)
    assert parts["ratio"].is_sorted(descending=True)
    in_order, rows = layers(profile), layers(Profile(trace, SummaryOptions("cpu_total")))
    assert rows.sort(rows.columns).equals(in_order.sort(rows.columns))
    assert in_order.filter(depth=0)["ratio"].sum() <= 1 + 1e-9
    last = {}
    for depth, ratio in rows.select("depth", "ratio").iter_rows():
        last = {above: each for above, each in last.items() if above <= depth}
        assert last.get(depth, 1) >= ratio
        last[depth] = ratio
