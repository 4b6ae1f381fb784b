"""The modules of a step: their shares, and the parts that add up to the step."""

from __future__ import annotations

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
from tests.fixtures.torch_modules import LINEARS, event, module, written

RUNS = Path(__file__).parents[2] / "fixtures/runs"
ON_CPU = sorted(path for path in RUNS.iterdir() if path.name != "two_ranks_on_a_device")
STEPS = pl.Series([0])


@pytest.fixture
def trace(tmp_path):
    """`LINEARS`, and at its end a module Head of 2 us with an operator of 1."""
    head = (module("Head", 37, 39), event("aten::relu", 37, 38, "cpu_op"))
    return read(written(tmp_path, *LINEARS, *head))


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


@pytest.mark.parametrize(
    ("spans", "rows", "parts"),
    [
        pytest.param(
            [("train_step", 1, 37)],
            [  # depth, name, forward, backward and both
                (0, "train_step", 20, 16, 36),
                (1, "Net", 12, 9, 21),
                (2, "Linear", 3, 4, 7),
                (2, "Linear", 3, 3, 6),
            ],
            {
                "train_step > Net > Linear": (6, 7),
                "train_step": (8, 0),
                "train_step > Net": (6, 2),
                "Backward": (0, 7),
                "": (4, 0),
            },
            id="around all",
        ),
        pytest.param(
            [("forward", 1, 18), ("backward", 19, 37)],
            [
                (0, "forward", 17, 11, 28),
                (1, "Net", 12, 9, 21),
                (2, "Linear", 3, 4, 7),
                (2, "Linear", 3, 3, 6),
                (0, "backward", 2, 16, 18),
            ],
            {
                "forward > Net > Linear": (6, 7),
                "forward > Net": (6, 2),
                "forward": (5, 2),
                "Backward": (0, 5),
                "backward": (2, 0),
                "": (5, 0),
            },
            id="around forward and backward",
        ),
    ],
)
def test_gradients_are_of_their_modules_inside_spans_of_the_user(tmp_path, spans, rows, parts):
    around = [event(name, start, end, "user_annotation") for name, start, end in spans]
    profile = Profile(read(written(tmp_path, *LINEARS, *around)))
    table = layers(profile).with_columns((pl.col("ratio") * 40).round(9))
    us = pl.col("forward_ns", "backward_ns") / 1000
    assert table.select("depth", "name", us, "ratio").rows() == rows
    largest = largest_modules(profile, STEPS).select("name", us).rows()
    assert {name: times for name, *times in largest} == {
        name: [*times] for name, times in parts.items()
    }


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
