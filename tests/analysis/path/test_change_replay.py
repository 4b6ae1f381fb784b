from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import ppprof
from ppprof.analysis.path.change_language import parse_change
from ppprof.analysis.path.change_replay import what_if
from ppprof.errors import UsageError
from tests.analysis.path.graphs import job
from tests.fixtures.timeline import Thread, kernel, launch, span
from tests.jobs.planted import COMMITTED

US = 1000


def replayed(graph, *changes, roles=None):
    """The steps' mean time with each change: {change: time}."""
    table = what_if(graph, [parse_change(change) for change in changes], roles)
    assert (table["step_ns"] + table["saved_ns"]).to_list() == pytest.approx(
        [table["step_ns"][0]] * table.height
    )
    return dict(table.select("change", "step_ns").rows())


@pytest.fixture(params=[1, 2])
def two_ranks(request, tmp_path):
    """One window, or two whose steps have the same number, as those of a trace without step numbers.

    ::

        rank 0   matmul    relu  [all_reduce    ] 10
        rank 1   matmul (twice as long)    [all_] 10
    """
    ranks = []
    for matmul, relu in ((30, 20), (60, 20)):
        meets = matmul + relu
        inside = (
            span("Dataloader", "Loader", 0, 10),
            span("Forward", "Net[name=blocks.3]", 10, 10 + meets).around(
                span("Operator", "matmul dygraph", 10, 10 + matmul),
                span("Operator", "relu dygraph", 10 + matmul, 10 + meets),
            ),
            span(
                "Communication",
                "all_reduce[axis=dp group=1 bytes=4 peers=0,1]",
                *(10 + meets, 100),
            ),
        )
        ranks.append(
            [Thread(1, "main").around(span("ProfileStep", "ProfileStep#1", 0, 110, *inside))]
        )
    return job(tmp_path, *ranks, windows=request.param)


def test_each_form_of_a_change(two_ranks):
    """The transfer takes 100 - 90; rank 1's matmul is 30 longer than rank 0's."""
    assert replayed(
        two_ranks,
        *("matmul: 0.5x", "matmul: 0", "operator relu dygraph: 2x", "rank 1: as usual"),
        *("rank 0: as usual", "rank 0: 0", "data loading: 0", "num_workers: enough"),
        *("link dp: 3x", "link 0,1: 0", "overlap dp"),
    ) == {
        "as recorded": 110,
        "matmul: 0.5x": 110 - 30,
        "matmul: 0": 110 - 60,
        "operator relu dygraph: 2x": 110 + 20,
        "rank 1: as usual": 110 - 30,
        "rank 0: as usual": 110,
        "rank 0: 0": 110,
        "data loading: 0": 110 - 10,
        "num_workers: enough": 110 - 10,
        "link dp: 3x": 110 + 20,
        "link 0,1: 0": 110 - 10,
        "overlap dp": 110 - 10,
        "all of these": 40 + 10,  # rank 1's relu, and what follows the transfer
    }


def test_a_step_after_a_lost_one_begins_earlier_by_what_was_saved_before_it(tmp_path):
    """Step 2 is lost: what steps 1 and 2 save moves step 3, and is not saved in it again.

    ::

        step 1 [matmul  ]          (2)          step 3 [matmul  ]
               0       30  50            100          100     130  150
    """
    steps = [
        span("ProfileStep", f"ProfileStep#{step}", start, start + 50).around(
            span("Operator", "matmul dygraph", start, start + 30)
        )
        for step, start in ((1, 0), (3, 100))
    ]
    graph = job(tmp_path, [Thread(1, "main").around(*steps)])
    assert replayed(graph, "matmul: 0", "matmul: 2x") == {
        "as recorded": 50,
        "matmul: 0": 20,
        "matmul: 2x": 80,
        "all of these": 20,
    }


def test_a_module_has_the_modules_in_it(tmp_path):
    """
    ::

        Net          0                                       100
          Block        10                     70
            Linear       20        50
          Head                                   80       100
            Linear                                  85  95
    """

    def layer(name, start, end, *inside):
        return span("Forward", name, start, end, *inside)

    block = layer("Block", 10, 70, layer("Linear", 20, 50))
    head = layer("Head", 80, 100, layer("Linear", 85, 95))
    net = layer("Net", 0, 100, block, head)
    graph = job(
        tmp_path, [Thread(1, "main").around(span("ProfileStep", "ProfileStep#1", 0, 110, net))]
    )
    assert replayed(graph, "module Block: 0", "module linear: 0", "module head: 0") == {
        "as recorded": 110,
        "module Block: 0": 110 - 60,
        "module linear: 0": 110 - 30 - 10,
        "module head: 0": 110 - 20,
        "all of these": 110 - 60 - 20,
    }
    modules = dict(graph.on_path("module").select("module", "time_ns").rows())
    assert modules == {"Net": 20, "Block": 30, "Linear": 40, "Head": 10, "(own code)": 10}
    with pytest.raises(UsageError, match="there are Block, Head, Linear, Net"):
        what_if(graph, [parse_change("module Tail: 0")])


def test_an_operator_of_a_program_has_the_name_of_the_eager_one(tmp_path):
    operators = [
        span("Operator", name, start, end)
        for name, start, end in (
            ("pd_op.matmul", 0, 40),
            ("pd_op.matmul_grad", 40, 80),
            ("matmul dygraph", 80, 100),
        )
    ]
    main = Thread(1, "main").around(span("ProfileStep", "ProfileStep#1", 0, 110, *operators))
    assert replayed(job(tmp_path, [main]), "matmul: 0") == {"as recorded": 110, "matmul: 0": 10}


def test_what_becomes_critical_then_is_not_won(two_ranks):
    """Without the 60 of rank 1's matmul, rank 0's 30 are next."""
    table = what_if(two_ranks, [parse_change("matmul: 0"), parse_change("rank 1: 0")])
    assert table["on_path_ns"].to_list()[1:3] == [60, 100]
    assert table["saved_ns"].to_list()[1:3] == [60, 30]
    assert table["saved_ratio"][1] == pytest.approx(60 / 110)
    is_single = two_ranks.steps.height == 1
    assert table["low_ns"].null_count() == table.height * is_single, "a single step has no interval"


def test_a_graph_of_kernels_is_launched_at_once(tmp_path):
    """Launch bound: the kernels, 10 each, then follow each other."""
    operators = [
        span("Operator", "matmul dygraph", start, start + 45 * US).around(
            launch(
                *(start + 30 * US, start + 35 * US),
                kernel("gemm", start + 40 * US, start + 50 * US),
            )
        )
        for start in range(0, 200 * US, 50 * US)
    ]
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#1", 0, 210 * US, *operators).around(
            launch(196 * US, 205 * US, name="cudaDeviceSynchronize")
        )
    )
    graph = job(tmp_path, [main])
    assert replayed(graph, "kernel launches: graph", "kernel gemm: 0") == {
        "as recorded": 210 * US,
        "kernel launches: graph": 4 * 10 * US + 5 * US + 5 * US,
        "kernel gemm: 0": 196 * US + 5 * US,  # the call then has nothing to wait for
        "all of these": 15 * US + 5 * US + 5 * US,  # the last is launched after three times 5
    }


def test_a_step_ends_with_whichever_stream_is_last_then(tmp_path):
    """Nothing in the recording shows that the optimizer waits for the sum.

    ::

        stream 7    [k1   40][k2          100][opt 110]
        stream 20            [sum       90]               50 long, and begins with the end of k1
    """
    kernels = (
        *(kernel("k1", 10 * US, 40 * US), kernel("k2", 40 * US, 100 * US)),
        *(kernel("sum", 40 * US, 90 * US, stream=20), kernel("opt", 100 * US, 110 * US)),
    )
    launches = [launch(2 * n * US, (2 * n + 1) * US, each) for n, each in enumerate(kernels)]
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#1", 0, 10 * US).around(*launches)
    )
    graph = job(tmp_path, [main])
    times = replayed(graph, "kernel sum: 1x", "kernel sum: 3x", "kernel sum: 1.2x", "kernel k2: 0")
    assert {change: time / US for change, time in times.items() if change != "all of these"} == {
        "as recorded": 110,
        "kernel sum: 1x": 110,
        "kernel sum: 3x": 40 + 150,
        "kernel sum: 1.2x": 110,
        "kernel k2: 0": 90,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("matmul", "expected TARGET: VALUE"),
        (": 0", "expected TARGET: VALUE"),
        ("matmul: 3", "'3' is no value: expected 0, or a factor of the time, 0.7x"),
        ("matmul: -1x", "'-1x' is no value"),
        ("matmul: as usual", "only a rank can be 'as usual'"),
        ("rank x: 0", "'x' is no rank: expected a number"),
    ],
)
def test_a_text_that_is_no_change_says_what_is_expected(text, message):
    with pytest.raises(UsageError) as error:
        parse_change(text)
    assert message in str(error.value)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "conv2d: 0",
            "no such operator, kernel, span or kind; there are all_reduce, matmul dygraph",
        ),
        ("link mp: 0", "no such link; there are dp, 0,1"),
        ("rank 7: 0", "no such rank; there are 0, 1"),
        ("line a.py:3: 0", "no line was recorded"),
        ("kernel gemm: 0", "no kernel was recorded"),
        ("kernel launches: graph", "no launch was recorded"),
    ],
)
def test_a_change_of_nothing_says_what_there_is(two_ranks, text, message):
    with pytest.raises(UsageError) as error:
        what_if(two_ranks, [parse_change(text)])
    assert str(error.value).startswith(f"{text!r}: {message}")


def test_a_rank_without_peers_has_no_usual_time(two_ranks):
    with pytest.raises(UsageError, match="no other rank does the same work"):
        what_if(two_ranks, [parse_change("rank 1: as usual")], {0: 0, 1: 1})


def test_what_no_other_rank_does_is_unusual(tmp_path):
    """Rank 1 alone evaluates; rank 0 saves, too, and rank 2 does not: half of it is usual."""
    ranks = []
    for others in (["save"], ["evaluate", "save"], []):
        spans = [
            span("PythonUserDefined", name, start, start + 20)
            for start, name in zip((0, 20), others)
        ]
        meet = comm(20 * len(others), 50)
        ranks.append(
            [Thread(1, "main").around(span("ProfileStep", "ProfileStep#1", 0, 60, *spans, meet))]
        )
    assert replayed(job(tmp_path, *ranks), "rank 1: as usual") == {
        "as recorded": 60,
        "rank 1: as usual": 60 - 20,  # rank 0's save
    }


def test_steps_that_a_rank_lacks_do_not_count(tmp_path):
    """Both work for 30 of 60; rank 0 is killed after a step, and rank 1 has no peer in its other two."""
    ranks = [
        [
            Thread(1, "main").around(
                *(
                    span(
                        *("ProfileStep", f"ProfileStep#{step}", 60 * step, 60 * step + 60),
                        span("Operator", "matmul dygraph", 60 * step, 60 * step + 30),
                        comm(60 * step + 30, 60 * step + 60, "0,1"),
                    )
                    for step in range(num)
                )
            )
        ]
        for num in (1, 3)
    ]
    graph = job(tmp_path, *ranks)
    assert graph.steps["step"].to_list() == [0]
    assert replayed(graph, "rank 1: as usual") == {"as recorded": 60, "rank 1: as usual": 60}


def comm(start, end, peers="0,1,2"):
    name = f"all_reduce[axis=dp group=1 bytes=4 peers={peers}]"
    return span("Communication", name, start, end)


def test_a_planted_delay_is_what_the_replay_wins():
    """Rank 1 sleeps 30 ms in each of its two blocks; on 8 ranks, 4 times 60 ms and 200 ms on a link."""
    table = ppprof.open(COMMITTED / "slow_rank_of_two").what_if("rank 1: as usual")
    assert table["saved_ns"][1] / 1e6 == pytest.approx(60, rel=0.1)
    table = ppprof.open(COMMITTED / "slow_rank_and_link").what_if("link 1,5: 0", "rank 3: as usual")
    assert table["saved_ns"][1] / 1e6 == pytest.approx(200, rel=0.05)
    both = table["saved_ns"][1] + table["saved_ns"][2]
    assert table["saved_ns"][3] == pytest.approx(both, rel=0.05), "one after the other: they add up"
    assert (table["low_ns"] <= table["step_ns"]).all()
    assert (table["step_ns"] <= table["high_ns"]).all()
    names = table.filter(pl.col("on_path_ns") < pl.col("saved_ns") - 1e6)
    assert names.is_empty(), "nothing saves more than it has on the path"
    assert np.isfinite(table["saved_ratio"].to_numpy()).all()


@pytest.mark.parametrize(("change", "length"), [("layer_norm: 0", 30), ("gather: 0", 90)])
def test_a_name_stands_for_its_gradients_and_for_no_other_name(change, length, tmp_path):
    spans = [
        ("layer_norm dygraph", 0, 30),
        ("Global_LayerNormGradNode", 30, 70),
        ("gather dygraph", 70, 80),
        ("global_gather dygraph", 80, 100),
    ]
    inside = [span("Operator", *each) for each in spans]
    step = span("ProfileStep", "ProfileStep#0", 0, 100, *inside)
    graph = job(tmp_path, [Thread(1, "main", (step,))])
    assert replayed(graph, change)[change] == length


def test_an_operator_stands_for_its_gradients_in_each_spelling(tmp_path):
    """matmul 30 and its gradient 60; relu 20, and a kernel that is called relu in another operator."""
    operators = [
        span("Operator", "matmul dygraph", 0, 30 * US),
        span("Operator", "Global_MatmulGradNode", 30 * US, 90 * US),
        span("Operator", "relu dygraph", 90 * US, 110 * US),
        span("Operator", "pd_op.add", 110 * US, 130 * US).around(
            launch(110 * US, 120 * US, kernel("relu", 125 * US, 165 * US))
        ),
    ]
    step = span("ProfileStep", "ProfileStep#0", 0, 200 * US, *operators).around(
        launch(130 * US, 200 * US, name="cudaDeviceSynchronize")
    )
    graph = job(tmp_path, [Thread(1, "main", (step,))])
    saved = {
        "matmul: 0.5x": 45,
        "matmul dygraph: 0.5x": 45,
        "pd_op.matmul: 0.5x": 45,
        "operator matmul dygraph: 0.5x": 45,
        "Global_MatmulGradNode: 0.5x": 30,
        "kernel relu: 0.5x": 20,
        "relu: 0.5x": 20 + 10,
    }
    times = replayed(graph, *saved)
    assert {change: 200 - times[change] / US for change in saved} == saved


def test_no_interval_is_below_zero(tmp_path):
    """Steps of 100 and 900: Student's factor of two steps is 12.7."""
    steps = (
        span("ProfileStep", "ProfileStep#0", 0, 100),
        span("ProfileStep", "ProfileStep#1", 100, 1000),
    )
    table = what_if(job(tmp_path, [Thread(1, "main", steps)]), [])
    assert table["step_ns"].to_list() == [500]
    assert table["low_ns"].to_list() == [0]
