"""Backward passes by the modules whose forward made them, of traces as PyTorch writes them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof.analysis.profile.module_tree import OCCURRENCE, SEPARATOR, UNKNOWN, gaps, modules
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import select_steps
from ppprof.choices import StepRange
from ppprof.trace import formats, read
from tests.fixtures import small_net
from tests.fixtures.random_traces import traces
from tests.fixtures.timeline import Thread, span, write
from tests.fixtures.torch_modules import (
    ENGINE,
    LINEARS,
    event,
    launch,
    module,
    node,
    op,
    step,
    written,
)

KINETO = Path(__file__).parents[2] / "fixtures/kineto"


def paths(table):
    readable = pl.col("path").str.replace_all(OCCURRENCE, "#").str.replace_all(SEPARATOR, "/")
    return table.with_columns(readable)


def table(trace, **options):
    """Microseconds, in the order in which modules begin."""
    found = modules(Profile(trace), **options)
    times = pl.col("start_ns", "time_ns", "self_ns", "cpu_ns", "gpu_ns") // 1000
    return paths(found.with_columns(times)).sort("step", "start_ns", "path")


def test_a_gradient_is_of_the_module_whose_forward_made_it(tmp_path):
    found = table(read(written(tmp_path, *LINEARS)))
    assert found.select("path", "start_ns", "time_ns", "self_ns", "cpu_ns", "gpu_ns").rows() == [
        ("", 0, 40, 12, 40, 0),
        ("Net#0", 1, 12, 6, 12, 0),
        ("Net#0/Linear#0", 2, 3, 3, 3, 0),
        ("Net#0/Linear#1", 6, 3, 3, 3, 0),
        ("Backward#0", 20, 16, 7, 16, 0),  # the loss 2, the sum 1 and 4 between nodes
        ("Backward#0/Net#0", 23, 9, 2, 9, 0),
        ("Backward#0/Net#0/Linear#1", 26, 3, 3, 3, 0),
        ("Backward#0/Net#0/Linear#0", 32, 4, 4, 4, 0),
    ]


def test_or_all_of_them_are_the_backwards(tmp_path):
    found = table(read(written(tmp_path, *LINEARS)), attribute_backward=False)
    assert found.filter(pl.col("path").str.contains("Backward")).rows() == [
        ("Backward#0", 0, 20, 16, 16, 16, 0)
    ]


def test_gradients_of_an_engines_thread_count_by_what_they_launch(tmp_path):
    """
    ::

        main     step   Net   Linear addmm 1   Linear addmm 2   Tokens view 3
        engine                                                          view 3    addmm 2    addmm 1
        stream                                                                       =======    ====
    """
    forward = (
        step(5, 0, 60),
        module("Net", 1, 20),
        *(module("Linear", 2, 6), op("aten::addmm", 3, 5, 1)),
        *(module("Linear", 7, 11), op("aten::addmm", 8, 10, 2)),
        *(module("Tokens", 12, 16), op("aten::view", 13, 15, 3)),
    )
    backward = (
        node("ViewBackward0", 30, 33, 3, ENGINE),
        *(node("AddmmBackward0", 34, 38, 2, ENGINE), *launch("gemm", 35, 36, 46, ENGINE)),
        *(node("AddmmBackward0", 39, 43, 1, ENGINE), *launch("gemm", 40, 46, 51, ENGINE)),
    )
    # As the thread with the step only waits, it has them; else they are a thread's own.
    for others in ((), (op("aten::item", 35, 36, 4),)):
        found = table(read(written(tmp_path, *forward, *backward, *others)))
        found = found.filter(pl.col("path").str.contains("Backward"))
        columns = ("path", "step", "start_ns", "time_ns", "self_ns", "cpu_ns", "gpu_ns")
        assert found.select(columns).rows() == [
            ("Backward#0", 5, 30, 18, 0, 13, 15),
            ("Backward#0/Net#0", 5, 30, 18, 0, 11, 15),
            ("Backward#0/Net#0/Tokens#0", 5, 30, 3, 3, 3, 0),
            ("Backward#0/Net#0/Linear#1", 5, 34, 10, 10, 4, 10),
            ("Backward#0/Net#0/Linear#0", 5, 39, 5, 5, 4, 5),
        ]


def test_a_forward_may_be_of_the_step_before(tmp_path):
    events = (
        *(step(0, 0, 10), module("Net", 1, 5), op("aten::addmm", 2, 4, 1)),
        *(step(1, 10, 20), node("AddmmBackward0", 12, 15, 1)),
    )
    trace = read(written(tmp_path, *events))
    found = table(trace).filter(pl.col("path").str.contains("Backward"))
    assert found.select("step", "path", "time_ns", "self_ns").rows() == [
        (1, "Backward#0", 3, 0),
        (1, "Backward#0/Net#0", 3, 3),
    ]
    alone = select_steps(trace, StepRange(1, 2))
    assert alone.events["forward"].to_list() == [None] * 3
    assert table(alone)["path"].to_list() == ["", "Backward#0"]


def test_what_holds_the_forward_and_the_backward_is_not_said_again(tmp_path):
    """
    ::

        ProfilerStep#0   ##############################
          train           ############################     a span of the user's
            Net            ######
            Backward               ##########
    """
    events = (
        *(step(0, 0, 40), event("train", 1, 39, "user_annotation")),
        *(module("Net", 2, 6), op("aten::addmm", 3, 5, 1), op("aten::loss", 7, 9, 2)),
        *(node("LossBackward0", 10, 12, 2), node("AddmmBackward0", 12, 16, 1)),
    )
    found = table(read(written(tmp_path, *events)))
    assert found.select("path", "time_ns", "self_ns").rows() == [
        ("", 40, 2),
        ("train#0", 38, 28),
        ("train#0/Net#0", 4, 4),
        ("train#0/Backward#0", 6, 2),
        ("train#0/Backward#0/Net#0", 4, 4),
    ]


def test_what_is_computed_again_in_a_backward_lies_in_the_gradient_that_needs_it(tmp_path):
    """
    ::

        Net          ##########
          Block       ##                 checkpoint 1: no node is made of what is in it
          Block           ##             checkpoint 2
        Backward                 ##################
          Checkpoint 2           ########                 of Net
            Block                 ##                      anew, addmm 11
            Addmm 11                  ##                  of this Block
          Checkpoint 1                   ########
            Block                         ###             anew, addmm 12
            Addmm 12                          ##
    """
    events = (
        *(step(0, 0, 60), module("Net", 1, 12)),
        *(op("Checkpoint", 2, 5, 1), module("Block", 3, 5)),
        *(op("Checkpoint", 6, 9, 2), module("Block", 7, 9)),
        *(
            node("CheckpointBackward", 20, 28, 2),
            module("Block", 21, 23),
            op("aten::addmm", 21, 22, 11),
        ),
        node("AddmmBackward0", 25, 27, 11),
        *(
            node("CheckpointBackward", 30, 38, 1),
            module("Block", 31, 34),
            op("aten::addmm", 31, 32, 12),
        ),
        node("AddmmBackward0", 35, 37, 12),
    )
    found = table(read(written(tmp_path, *events)))
    found = found.filter(pl.col("path").str.contains("Backward"))
    assert found.select("path", "time_ns", "self_ns", "cpu_ns").rows() == [
        ("Backward#0", 18, 2, 18),
        ("Backward#0/Net#0", 16, 7, 16),
        ("Backward#0/Net#0/Block#2", 4, 4, 4),  # those in the forward are 0 and 1
        ("Backward#0/Net#0/Block#3", 5, 5, 5),
    ]


def test_what_was_computed_again_may_have_its_gradient_in_the_next_step(tmp_path):
    """In step 0 the Block begins 21 us after the step, in step 1 its gradient 2."""
    events = (
        *(step(0, 0, 30), module("Net", 1, 12), op("Checkpoint", 2, 5, 1)),
        *(
            node("CheckpointBackward", 20, 28, 1),
            module("Block", 21, 24),
            op("aten::addmm", 22, 23, 11),
        ),
        *(step(1, 30, 60), node("AddmmBackward0", 32, 36, 11)),
    )
    found = table(read(written(tmp_path, *events)))
    found = found.filter(pl.col("path").str.contains("Backward"))
    assert found.select("step", "path", "start_ns", "time_ns", "self_ns").rows() == [
        (0, "Backward#0", 20, 8, 0),
        (0, "Backward#0/Net#0", 20, 8, 5),
        (0, "Backward#0/Net#0/Block#0", 21, 3, 3),
        (1, "Backward#0", 2, 4, 0),
        (1, "Backward#0/Net#0", 2, 4, 0),
        (1, "Backward#0/Net#0/Block#0", 2, 4, 4),
    ]


def test_the_gradient_of_a_gradient_is_of_the_same_module(tmp_path):
    events = (
        *(step(0, 0, 60), module("Net", 1, 6), op("aten::addmm", 2, 4, 1)),
        *(node("AddmmBackward0", 10, 16, 1), op("aten::mm", 11, 15, 2)),
        *(op("aten::loss", 20, 22, 3), node("LossBackward0", 24, 26, 3)),
        node("MmBackward0", 27, 30, 2),
    )
    found = table(read(written(tmp_path, *events)))
    assert found.select("path", "time_ns", "self_ns").rows() == [
        ("", 60, 43),
        ("Net#0", 5, 5),
        ("Backward#0", 6, 0),
        ("Backward#0/Net#0", 6, 6),
        ("Backward#1", 6, 3),
        ("Backward#1/Net#0", 3, 3),
    ]


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_converted_trace_gives_the_same_modules(suffix, tmp_path):
    trace = read(KINETO / "cpu_small_net.json.gz")
    formats.write(trace, tmp_path / f"out{suffix}")
    assert table(read(tmp_path / f"out{suffix}")).equals(table(trace))


def test_sequence_numbers_without_a_match_are_ignored(tmp_path):
    trace = read(KINETO / "cpu_small_net.json.gz")
    formats.write(trace, tmp_path / "out.json")
    text = (tmp_path / "out.json").read_text().replace('"sequence":', '"sequence":9')
    (tmp_path / "out.json").write_text(text)
    found = read(tmp_path / "out.json").events
    whole = trace.events["forward"].drop_nulls()
    kept = found["forward"].drop_nulls()
    assert len(kept) < len(whole)


def test_a_slow_backward_of_one_module_is_found_in_its_branch():
    """`small_net` with and without 20 ms more in the backward of ``blocks[1].down``."""
    names = ("cpu_small_net.json.gz", "cpu_small_net_slow.json.gz")
    found = ppprof.diff(*(ppprof.open(KINETO / name) for name in names)).modules
    slow_ns = small_net.SLOW_S * 1e9
    (row,) = [
        index
        for index, delta in enumerate(found["delta_self_ns"].to_list())
        if delta is not None and abs(delta) > slow_ns / 2
    ]
    branch, depth = [], found["depth"][row] + 1
    for index in range(row, -1, -1):  # up to the root
        if found["depth"][index] < depth:
            depth = found["depth"][index]
            branch.append(found["name"][index])
    assert branch == ["Linear", "Block", "Net", "Backward", "step"]
    assert found["is_clear"][row]
    assert found["delta_self_ns"][row] == pytest.approx(slow_ns, rel=0.1)
    blocks = found.slice(row - 4, 9).filter(name="Block")["delta_time_ns"].to_list()
    assert sum(delta > slow_ns / 2 for delta in blocks) == 1  # the second that begins, of three


def test_gradients_count_as_backward_if_one_run_has_no_links(tmp_path):
    """A pb has no place for it; `small_net` once more through one."""
    whole = KINETO / "cpu_small_net.json.gz"
    formats.write(read(whole), tmp_path / "unlinked.pb")
    found = ppprof.diff(ppprof.open(whole), ppprof.open(tmp_path / "unlinked.pb")).modules
    assert set(found["status"]) == {"both"}
    names = [name for name in found["name"] if name != UNKNOWN]
    assert names[names.index("Backward") + 1] == "Optimization"
    assert found.filter(name="Backward")["delta_time_ns"].to_list() == [0.0]


def test_a_real_backward_has_the_modules_of_its_forward():
    found = table(read(KINETO / "cpu_small_net.json.gz")).filter(step=4)["path"].to_list()
    net = [path for path in found if path.startswith("Net#0")]
    backward = [path for path in found if path.startswith("Backward#0/")]
    assert sorted(backward) == [f"Backward#0/{path}" for path in sorted(net)]
    blocks = [path for path in backward if path.endswith(("Block#0", "Block#1", "Block#2"))]
    assert [path[-1] for path in blocks] == ["2", "1", "0"]


@pytest.mark.parametrize("linked", ["Backward", "ProfileStep"])
def test_a_link_of_a_backward_or_of_a_step_is_ignored(tmp_path, linked):
    """
    ::

        ProfileStep   ########
          Dataloader   #            what the second line's event is said to be the gradient of
          Backward       #####      Backward: itself; ProfileStep: the one inside it
            ProfileStep   ###
    """
    inner = span("ProfileStep", "ProfileStep#1", 4, 7)
    backward = span("Backward", "b", 3, 8, inner)
    loader = span("Dataloader", "d", 1, 2)
    thread = Thread(31, "main", (span("ProfileStep", "ProfileStep#0", 0, 9, loader, backward),))
    trace = read(write(tmp_path / "a.pb", thread))
    categories = trace.events["category"].cast(pl.String).to_list()
    row = len(categories) - 1 - categories[::-1].index(linked)
    forward = [
        categories.index("Dataloader") if index == row else None for index in range(len(categories))
    ]
    events = trace.events.with_columns(forward=pl.Series(forward, dtype=pl.Int64))
    profile = Profile(dataclasses.replace(trace, events=events))
    found, plain = (
        modules(profile, attribute_backward=attribute_backward).sort("path", "step")
        for attribute_backward in (True, False)
    )
    assert found.equals(plain)


@given(traces(), st.randoms(use_true_random=False))
def test_links_of_any_kind_neither_lose_nor_double_time(tmp_path_factory, threads, random):
    """Links of any kind, such as damaged files have: to what lies inside, around, or in no step."""
    trace = read(write(tmp_path_factory.mktemp("a") / "a.pb", *threads))
    hosts = trace.events.filter(pl.col("depth").is_not_null())
    forward = [random.randrange(-1, hosts.height) for _ in range(hosts.height)]
    forward = pl.Series(forward, dtype=pl.Int64)
    linked = hosts.with_columns(forward=forward.set(forward < 0, None))
    profile = Profile(dataclasses.replace(trace, events=linked))
    linked, plain = (
        modules(profile, attribute_backward=attribute_backward)
        for attribute_backward in (True, False)
    )
    # A gradient that begins in another step than its Backward takes its time along to that step.
    assert linked["self_ns"].sum() == plain["self_ns"].sum()
    # The gaps of a step are its own time.
    of_steps = plain.filter(path="").group_by("step").agg(pl.col("self_ns").sum())
    of_gaps = gaps(profile)
    of_gaps = of_gaps.group_by("step").agg(gaps_ns=pl.col("self_ns").sum())
    joined = of_steps.join(of_gaps, on="step", how="full").fill_null(0)
    assert joined["self_ns"].to_list() == joined["gaps_ns"].to_list()


def recomputed(begin, number):
    """A Block that runs again for 2 and 1, and its gradient of 4 and 2."""
    return (
        node("CheckpointFunctionBackward", begin, begin + 10, number + 500),
        *(module("Block", begin, begin + 3), module("Linear", begin + 1, begin + 3)),
        op("aten::addmm", begin + 2, begin + 3, number),
        *(op("aten::relu", begin, begin + 1, number + 1),),
        *(node("ReluBackward0", begin + 4, begin + 6, number + 1),),
        node("AddmmBackward0", begin + 6, begin + 10, number),
    )


def forward_of(name, begin, number=None):
    """A Block of 4 with a Linear of 2; without a number, its operators make no nodes."""
    operators = (
        [("aten::relu", begin, begin + 1), ("aten::addmm", begin + 2, begin + 3)]
        if number is None
        else []
    )
    return (
        *(module(name, begin, begin + 4), module("Linear", begin + 1, begin + 3)),
        *(event(op_name, start, end, "cpu_op") for op_name, start, end in operators),
        *([] if number is None else [op("aten::addmm", begin + 2, begin + 3, number)]),
    )


def test_what_runs_again_in_a_backward_is_of_the_module_that_ran_first(tmp_path):
    """
    ::

        ProfilerStep#0   ########################################################
          Net             ################
            Block          ####                           checkpointed
            Block              ####                       node 7
            Block                  ####                   checkpointed
          (nodes)                          ##########     of the third Block, which runs again
                                                     ##   of the second Block
                                                       ##########    of the first Block
    """
    blocks = (*forward_of("Block", 2), *forward_of("Block", 6, 7), *forward_of("Block", 10))
    backward = (*recomputed(20, 100), node("AddmmBackward0", 30, 32, 7), *recomputed(32, 200))
    found = table(read(written(tmp_path, step(0, 0, 50), module("Net", 1, 15), *blocks, *backward)))
    backward = found.filter(pl.col("path").str.starts_with("Backward#0"))
    assert backward.select("path", "time_ns").sort("path").rows() == [
        ("Backward#0", 22),  # 1 between the two events in each node of a checkpoint
        ("Backward#0/Net#0", 20),
        ("Backward#0/Net#0/Block#0", 9),
        ("Backward#0/Net#0/Block#0/Linear#0", 6),
        ("Backward#0/Net#0/Block#1", 2),
        ("Backward#0/Net#0/Block#1/Linear#0", 2),
        ("Backward#0/Net#0/Block#2", 9),
        ("Backward#0/Net#0/Block#2/Linear#0", 6),
    ]
    forward = found.filter(pl.col("path").str.starts_with("Net#0"))
    paths_of_forward = set(forward["path"])
    assert {path.removeprefix("Backward#0/") for path in backward["path"][1:]} == paths_of_forward


def test_what_runs_again_in_the_gradient_of_its_own_module(tmp_path):
    """As with ``use_reentrant=False``: the first gradient asks for what it needs, and all is computed."""
    again = (
        module("Block", 21, 25),
        module("Linear", 22, 24),
        event("aten::addmm", 23, 24, "cpu_op"),
    )
    work = (*forward_of("Block", 2, 1), *forward_of("Block", 6, 2))
    nodes = (node("AddmmBackward0", 20, 27, 2), *again, node("AddmmBackward0", 30, 33, 1))
    found = table(read(written(tmp_path, step(0, 0, 40), module("Net", 1, 11), *work, *nodes)))
    backward = found.filter(pl.col("path").str.starts_with("Backward#0/"))
    assert backward.select("path", "time_ns", "self_ns").sort("path").rows() == [
        ("Backward#0/Net#0", 10, 0),
        ("Backward#0/Net#0/Block#0", 3, 0),
        ("Backward#0/Net#0/Block#0/Linear#0", 3, 3),
        ("Backward#0/Net#0/Block#1", 7, 2),
        ("Backward#0/Net#0/Block#1/Linear#0", 5, 5),
    ]


@pytest.mark.parametrize("warm_up", [0, 1, 3])
@pytest.mark.parametrize("links", [False, True])
def test_a_backward_of_1f1b_repeats_the_modules_of_its_micro_batch(tmp_path, warm_up, links):
    """Of 4 micro-batches, some are forwarded ahead; a Linear that is not repeated links one gradient.

    ::

        Net Net Backward Net Backward Net Backward Backward     with a warm-up of 1
    """
    tasks = ["F"] * warm_up + ["F", "B"] * (4 - warm_up) + ["B"] * warm_up
    spans, at, num = [], 2, {"F": 0, "B": 0}
    for task in tasks:
        number = num[task]
        num[task] += 1
        if task == "F":
            spans.append(module("Net", at, at + 12))
            spans += [*forward_of("Block", at + 1), *forward_of("Block", at + 5)]
            if links:
                spans += [
                    module("Linear", at + 9, at + 11),
                    op("aten::addmm", at + 9, at + 10, number),
                ]
            at += 13
        else:
            begin = at
            if links:
                spans.append(node("AddmmBackward0", at, at + 1, number))
            for again in range(2):
                spans += recomputed(begin + 1 + 11 * again, 1000 + 100 * (2 * number + again))
            spans.append(event("send", begin + 25, begin + 26, "user_annotation"))
            at += 30
    path = written(tmp_path, step(0, 0, at), *spans)
    found = table(read(path)).filter(pl.col("path").str.starts_with("Backward#"))
    pairs = set(
        found["path"].str.extract_groups(r"^Backward#(\d+)/Net#(\d+)").struct.unnest().rows()
    )
    assert pairs - {(None, None)} == {(str(number), str(number)) for number in range(4)}


def test_a_module_of_the_same_class_that_is_never_repeated_takes_no_backward(tmp_path):
    """A teacher that is called ahead of the model, without gradients."""
    work = [
        module("Net", 2, 8),
        *forward_of("Block", 3),
        module("Net", 9, 15),
        *forward_of("Block", 10),
    ]
    path = written(tmp_path, step(0, 0, 40), *work, *recomputed(20, 100))
    found = table(read(path)).filter(pl.col("path").str.starts_with("Backward#0/"))
    assert found["path"].str.contains("/Net#1").all()
