from __future__ import annotations

import dataclasses
import json
import shutil

import polars as pl
import pytest

import ppprof
from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.gate import outcome_of, rate_changes
from ppprof.analysis.diff.run_costs import PARTS_NS, RunCosts
from ppprof.analysis.diff.thresholds import Threshold
from ppprof.analysis.profile.module_tree import MODULES, UNKNOWN
from ppprof.errors import InputError, UsageError
from ppprof.report.diff_rows import RowSelection, is_clear_in_overview, select_rows
from ppprof.rundir.step_times import STEP_TIMES
from ppprof.topology import Topology
from tests.fixtures.models import MS, Layer, gpt, training
from tests.fixtures.run_directories import run, step_lines
from tests.fixtures.timeline import Thread, kernel, launch, span, write
from tests.fixtures.torch_traces import TorchTrace, write_events
from tests.jobs.planted import COMMITTED


def compared(tmp_path, one, other, **options) -> Diff:
    """Two threads as traces of their own."""
    paths = [write(tmp_path / f"{name}.pb", thread) for name, thread in (("a", one), ("b", other))]
    return ppprof.diff(*map(ppprof.open, paths), **options)


def changed(table, *columns):
    """Rows that changed, in their order."""
    moved = table.filter(pl.col("is_clear") | (pl.col("status") != "both"))
    return moved.select("name", *columns).rows()


def modules(diff, *columns):
    moved = diff.modules.filter(pl.col("is_clear") | (pl.col("status") != "both"))
    return moved.filter(pl.col("delta_self_ns") != 0).select("name", *columns).rows()


def test_a_slower_layer_is_the_first_row_and_the_rest_is_quiet(tmp_path):
    slow = gpt()
    slow[2] = Layer("Block", {"matmul dygraph": 6.0, "gelu dygraph": 1.0})
    diff = compared(tmp_path, training(gpt(), jitter=1000), training(slow, jitter=1000))
    assert changed(diff.operators, "status", "delta_cpu_self_ns", "delta_calls") == [
        ("matmul", "both", 2 * MS, 0)
    ]
    # The second of three blocks is the one, and what lies around it in the tree.
    assert modules(diff, "depth", "delta_self_ns") == [("Block", 2, 2 * MS)]
    tree = diff.modules.filter(name="Block")
    assert tree["delta_time_ns"].to_list() == [0, 2 * MS, 0]
    step = diff.modules.filter(name="step").row(0, named=True)
    assert (step["delta_time_ns"], step["is_clear"]) == (2 * MS, True)
    assert diff.change.verdict == "slower"
    assert diff.change.ratio == pytest.approx(2 / 20.85, rel=0.05)


def test_a_swapped_operator_is_new_and_gone(tmp_path):
    diff = compared(tmp_path, training(gpt()), training(gpt(activation="relu")))
    assert changed(diff.operators, "status", "baseline_calls", "experiment_calls") == [
        ("gelu", "gone", 3, 0),
        ("relu", "new", 0, 3),
    ]
    assert diff.operators.filter(status="new")["delta_ratio_cpu_self"].to_list() == [None]
    assert modules(diff) == []
    assert str(diff.change).startswith("no difference seen: +0.0%")
    assert diff.comparability.shares["operators"] == pytest.approx(1 - 6 / 41.5, abs=0.05)


def test_an_added_layer_is_a_gap_in_the_other_tree(tmp_path):
    diff = compared(tmp_path, training(gpt(3)), training(gpt(4)))
    assert diff.modules.filter(status="new").select(
        "name", "baseline_time_ns", "experiment_time_ns", "baseline_until_ns"
    ).rows() == [("Block", None, 5_030_000, None)]
    assert changed(diff.operators, "delta_calls") == [("matmul", 1), ("gelu", 1)]


@pytest.mark.parametrize(
    ("classes", "rows"),
    [
        (
            ("GPT", "DataParallel"),
            [("DataParallel", "new"), ("GPT", "both"), ("Embedding", "both"), ("Block", "both")],
        ),
        (("MyGPT",), [("GPT -> MyGPT", "both"), ("Embedding", "both"), ("Block", "both")]),
    ],
)
def test_a_wrapped_or_renamed_model_is_the_same(tmp_path, classes, rows):
    slow = gpt()
    slow[2] = Layer("Block", {"matmul dygraph": 6.0, "gelu dygraph": 1.0})
    diff = compared(
        tmp_path, training(gpt(), jitter=1000), training(slow, jitter=1000, classes=classes)
    )
    tree = diff.modules.filter(pl.col("depth") > 0, ~pl.col("name").is_in(["Dataloader", UNKNOWN]))
    assert tree.select("name", "status").rows()[: len(rows)] == rows
    assert ("Block", 2 * MS) in modules(diff, "delta_self_ns")
    outcome = outcome_of(Threshold.parse("module.GPT > 1ms"), diff)
    assert (outcome.status, outcome.detail[:5]) == ("fail", "+2 ms")
    if len(classes) == 1:
        assert outcome_of(Threshold.parse("module.MyGPT > 1ms"), diff)[1:] == outcome[1:]


def every_fourth(first: int, num: int = 6) -> Thread:
    """Steps from a number on; in each fourth one, an Ema of 2 ms with an operator."""
    spans = []
    for number in range(first, first + num):
        at = number * 10 * MS
        inside = [span("Operator", "matmul dygraph", at, at + MS)]
        if number % 4 == 0:
            scale = span("Operator", "scale dygraph", at + 3 * MS, at + 4 * MS)
            inside.append(span("Forward", "Ema", at + 2 * MS, at + 4 * MS, scale))
        spans.append(span("ProfileStep", f"ProfileStep#{number}", at, at + 9 * MS, *inside))
    return Thread(1, "main", tuple(spans))


@pytest.mark.parametrize("steps", [(1, 6), (5, 3)], ids=["one call", "no call"])
def test_where_a_window_cuts_a_period_changes_no_number_of_calls(tmp_path, steps):
    """Steps 3 to 8 have two calls, steps 1 to 6 have one, and steps 5 to 7 have none: that is shown."""
    diff = compared(tmp_path, every_fourth(3), every_fourth(*steps))
    assert diff.operators.filter(name="scale")["delta_calls"].item() < 0
    tables = select_rows(diff, RowSelection(("op", "module")))
    is_gone = steps == (5, 3)
    assert tables["op"]["name"].to_list() == ["scale"] * is_gone
    assert ("Ema" in tables["module"]["name"]) == is_gone
    more = compared(tmp_path, training(gpt(3)), training(gpt(4)))
    tables = select_rows(more, RowSelection(("op", "module")))
    assert "matmul" in tables["op"]["name"]
    assert "Block" in tables["module"]["name"]


def test_more_data_loading(tmp_path):
    diff = compared(tmp_path, training(gpt(), data=0.2), training(gpt(), data=9.2))
    assert changed(diff.operators) == []
    assert modules(diff, "delta_self_ns") == [("Dataloader", 9 * MS)]
    row = diff.overview.filter(metric="data_loading").row(0, named=True)
    assert (row["baseline"], row["experiment"], row["delta"], row["delta_ratio"]) == (
        0.2 * MS,
        9.2 * MS,
        9 * MS,
        45,
    )


def test_a_run_against_itself_has_no_row_and_raises_no_alarm(tmp_path):
    diff = compared(tmp_path, training(gpt(), jitter=5000), training(gpt(), jitter=5000))
    assert not diff.operators["is_clear"].any()
    assert set(diff.operators["delta_cpu_self_ns"]) == {0.0}
    assert not diff.modules["is_clear"].any()
    assert diff.change.verdict == "no difference seen"
    assert diff.comparability.score == 1


def test_windows_of_another_length_compare(tmp_path):
    diff = compared(tmp_path, training(gpt(), steps=3), training(gpt(), steps=9))
    assert diff.operators.filter(pl.col("delta_cpu_self_ns").abs() > 1).is_empty()
    assert diff.operators.filter(name="matmul")["baseline_calls"].item() == 4
    assert diff.change.verdict == "inconclusive"


def test_gpu_time_is_what_counts_where_there_is_a_gpu(tmp_path):
    def model(linear):
        operators = {"matmul dygraph": 1.0, "add dygraph": 1.0}
        return [Layer("Block", operators, {"matmul dygraph": linear, "add dygraph": 2.0})] * 2

    diff = compared(tmp_path, training(model(5.0)), training(model(8.0)))
    assert diff.clock == "gpu"
    assert changed(diff.operators, "delta_gpu_self_ns", "delta_cpu_self_ns") == [
        ("matmul", 6 * MS, 0)
    ]
    assert changed(diff.kernels, "delta_gpu_total_ns", "delta_ratio_gpu_total") == [
        ("matmul_kernel", 6 * MS, 0.6)
    ]
    assert modules(diff, "delta_self_ns") == [("Block", 3 * MS), ("Block", 3 * MS)]


def test_collectives_and_runtime_calls_have_rows(tmp_path):
    """A collective takes 30 instead of 10 on the device; the host waits 20 more for it."""

    def steps(length):
        spans = []
        for step in range(6):
            at = 500 * step
            spans.append(
                span("ProfileStep", f"ProfileStep#{step}", at, at + 400).around(
                    span("Communication", "all_reduce", at + 10, at + 20).around(
                        launch(at + 12, at + 15, kernel("ncclKernel", at + 30, at + 30 + length))
                    ),
                    span("Operator", "add", at + 21, at + 30).around(
                        launch(at + 22, at + 25, kernel("add", at + 100, at + 105))
                    ),
                    launch(at + 40, at + 45 + length, name="Runtime API 126"),
                )
            )
        return Thread(1, "main", tuple(spans))

    diff = compared(tmp_path, steps(10), steps(30))
    columns = ("name", "status", "baseline_calls")
    times = ("baseline_total_ns", "experiment_total_ns", "is_clear")
    assert diff.collectives.select(*columns, *times).rows() == [
        ("all_reduce", "both", 1, 10, 30, True)
    ]
    times = ("baseline_cpu_total_ns", "experiment_cpu_total_ns", "is_clear")
    assert diff.runtime_calls.select(*columns, *times).rows() == [
        (
            "cudaThreadSynchronize or cuStreamSynchronize (Runtime API 126)",
            *("both", 1, 15, 35, True),
        ),
        ("cudaLaunchKernel", "both", 2, 6, 6, False),
    ]


def test_a_collective_on_the_host_has_its_axis(tmp_path):
    def job(folder, length):
        """Two ranks of one group, with the harness's names of groups."""
        spans = tuple(
            span("ProfileStep", f"ProfileStep#{step}", 99 * step, 99 * step + 90).around(
                span(
                    "Communication",
                    "all_reduce[axis=dp group=1]",
                    99 * step + 5,
                    99 * step + 5 + length,
                )
            )
            for step in range(5)
        )
        return run(folder, [Thread(1, "main", spans)] * 2, topology=Topology.of(dp=2))

    runs = [job(tmp_path / str(length), length) for length in (10, 40)]
    (row,) = ppprof.diff(*map(ppprof.open, runs)).collectives.rows(named=True)
    assert (row["name"], row["baseline_calls"], row["delta_total_ns"]) == ("all_reduce (dp)", 1, 30)


def test_the_trend_is_all_own_time_so_far(tmp_path):
    diff = compared(tmp_path, training(gpt(1)), training(gpt(1, linear=5.0)))
    rows = diff.modules.filter(pl.col("depth") > 0)
    for side in ("baseline", "experiment"):
        own = rows[f"{side}_self_ns"].cum_sum()
        assert rows[f"{side}_until_ns"].to_list() == pytest.approx(own.to_list())
    assert rows.filter(depth=1)["name"].to_list() == [
        *(UNKNOWN, "Dataloader", UNKNOWN, "GPT", UNKNOWN, "Backward", UNKNOWN)
    ]
    whole = diff.modules.filter(depth=0)
    assert rows["baseline_until_ns"].to_list()[-1] == pytest.approx(
        whole["baseline_time_ns"].item()
    )


def test_one_operator_under_several_names_counts_once(tmp_path):
    """torch's linear calls addmm: one matmul of 10, as in Paddle."""
    step = span("ProfileStep", "ProfileStep#0", 0, 20).around(
        span("Operator", "aten::linear", 2, 12, span("Operator", "aten::addmm", 3, 11))
    )
    paddle = span("ProfileStep", "ProfileStep#0", 0, 20, span("Operator", "matmul dygraph", 2, 14))
    diff = compared(tmp_path, Thread(1, "main", (step,)), Thread(1, "main", (paddle,)))
    columns = [
        f"{side}_{value}"
        for value in ("calls", "cpu_total_ns", "cpu_self_ns")
        for side in ("baseline", "experiment")
    ]
    assert diff.operators.select("name", "status", *columns).rows() == [
        ("matmul", "both", 1, 1, 10, 12, 10, 12)
    ]
    assert "framework: torch -> paddle" in diff.comparability.differences
    exact = compared(tmp_path, Thread(1, "main", (step,)), Thread(1, "main", (paddle,)), exact=True)
    assert exact.operators["name"].sort().to_list() == [
        "aten::addmm",
        "aten::linear",
        "matmul dygraph",
    ]


def test_a_gradient_of_torchs_is_one_operator_as_it_is_in_paddle(tmp_path):
    evaluate = "autograd::engine::evaluate_function: AddmmBackward0"
    torch = span("ProfileStep", "ProfileStep#0", 0, 30).around(
        span("Backward", "Backward", 0, 20).around(
            span("Operator", evaluate, 2, 18).around(
                span("OperatorInner", "AddmmBackward0", 3, 17).around(
                    span("Operator", "aten::mm", 4, 8), span("Operator", "aten::t", 9, 10)
                )
            )
        ),
        span("Operator", "aten::mm", 22, 27),
    )
    paddle = span("ProfileStep", "ProfileStep#0", 0, 30).around(
        span("Backward", "Gradient Backward", 0, 20).around(
            span("Operator", "Global_MatmulGradNode", 2, 17)
        ),
        span("Operator", "matmul dygraph", 22, 28),
    )
    diff = compared(tmp_path, Thread(1, "main", (torch,)), Thread(1, "main", (paddle,)))
    columns = ("baseline_calls", "baseline_cpu_self_ns", "experiment_cpu_self_ns")
    assert diff.operators.sort("name").select("name", "status", *columns).rows() == [
        ("matmul", "both", 1, 5, 6),
        ("matmul grad", "both", 1, 16, 15),
    ]
    assert diff.modules.filter(depth=1)["status"].unique().to_list() == ["both"]


def test_names_of_ones_own(tmp_path):
    mine = tmp_path / "names.yaml"
    mine.write_text("activation: [gelu, relu]\n")
    diff = compared(tmp_path, training(gpt()), training(gpt(activation="relu")), names=mine)
    assert diff.operators["status"].unique().to_list() == ["both"]
    assert "activation" in diff.operators["name"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [b]\nc: [b]\n", "b: counts as a and as c"),
        ("- a\n", "expected lines such as"),
        ("a: b\n", "a: 'b': expected lines such as"),
        ("a: [", "expected lines such as"),
        ("a: [2024-13-45]", "month must be in 1..12"),
    ],
)
def test_a_broken_file_of_names(tmp_path, text, said):
    mine = tmp_path / "names.yaml"
    mine.write_text(text)
    with pytest.raises(InputError) as raised:
        compared(tmp_path, training(gpt()), training(gpt()), names=mine)
    assert said in str(raised.value)
    assert str(raised.value).startswith(str(mine))


def test_traces_without_steps_are_one(tmp_path):
    one, other = (Thread(1, "main", (span("Operator", "relu", 0, length),)) for length in (5, 8))
    diff = compared(tmp_path, one, other)
    assert diff.operators.select("name", "delta_cpu_self_ns", "noise_cpu_self_ns").rows() == [
        ("relu", 3, None)
    ]
    assert diff.modules.height <= 2
    assert diff.change.verdict == "inconclusive"


def test_the_guides_benchmark(tmp_path):
    """Paddle's profiling guide: 39.1 ips with no workers, 151.5 with four: +287%."""
    runs = [
        run(tmp_path / name, [], step_lines=[step_lines(8 / ips * 1e9)])
        for name, ips in (("before", 39.1), ("after", 151.5))
    ]
    diff = ppprof.diff(*map(ppprof.open, runs))
    row = diff.overview.filter(metric="ips").row(0, named=True)
    assert row["baseline"] == pytest.approx(39.1, rel=1e-3)
    assert row["experiment"] == pytest.approx(151.5, rel=1e-3)
    assert f"{row['delta_ratio']:+.0%}" == "+287%"
    assert diff.change.verdict == "faster"
    assert [words for _, words in diff.samples] == ["without a window"] * 2
    assert diff.operators.is_empty()
    assert diff.modules.height <= 2


@pytest.mark.parametrize(
    ("samples", "ips"), [(-8, []), (2**56, []), (2**53, [2**53])], ids=["-8", "2**56", "2**53"]
)
def test_counts_of_samples_that_cannot_be_are_unknown_and_no_sum_of_others_overflows(
    tmp_path, samples, ips
):
    lines = step_lines(1e9, steps=1100, samples=samples, noise=0)
    opened = ppprof.open(run(tmp_path / "a", [], step_lines=[lines]))
    overview = ppprof.diff(opened, opened).overview
    assert overview.filter(metric="ips")["baseline"].drop_nulls().to_list() == ips


def test_ips_of_a_job_are_those_of_all_replicas(tmp_path):
    topology = Topology.of(dp=2, mp=2)
    path = run(tmp_path / "a", [], topology=topology, step_lines=[step_lines(1e9, noise=0)] * 4)
    diff = ppprof.diff(ppprof.open(path), ppprof.open(path))
    assert diff.overview.filter(metric="ips")["baseline"].item() == 16
    assert diff.overview.filter(metric="tokens_per_s")["baseline"].item() == 16 * 64


def test_what_else_is_different(tmp_path):
    configs = [
        {
            "Model": {"num_layers": layers, "hidden_size": 8},
            "Profiler": {"enable": True},
            "Engine": {"save_load": {"output_dir": str(layers)}},
        }
        for layers in (4, 5)
    ]
    runs = [
        run(
            tmp_path / str(number),
            [training(gpt())],
            config=config,
            topology=Topology.of(dp=1, pp=1),
        )
        for number, config in enumerate(configs)
    ]
    found = ppprof.diff(*map(ppprof.open, runs)).comparability
    assert found.differences == ["Model.num_layers: 4 -> 5"]
    assert found.shares == {"config": 0.5, "versions": 1, "grid": 1, "operators": 1}
    assert found.score == 3.5 / 4


def test_a_key_of_one_config_alone_has_no_value_in_the_other(tmp_path):
    paths = [
        run(tmp_path / str(number), [training(gpt())], config={"Model": {"num_layers": 4, **more}})
        for number, more in enumerate(({}, {"dropout": 0.1}))
    ]
    one, other = map(ppprof.open, paths)
    assert ppprof.diff(one, other).comparability.differences == [
        "Model.dropout: 0.1, experiment only"
    ]
    assert ppprof.diff(other, one).comparability.differences == [
        "Model.dropout: 0.1, baseline only"
    ]


def test_runs_that_have_nothing_in_common_get_no_verdict(tmp_path):
    other = [Layer("Conv", {"conv2d dygraph": 30.0})]
    one, two = training(gpt(), backward=0.1), training(other, backward=0.1)
    diff = compared(tmp_path, one, two)
    assert diff.comparability.score < 0.1
    assert diff.change.verdict == "inconclusive"
    assert diff.change.ratio is not None


def test_ranks_of_one_run(tmp_path):
    path = run(tmp_path / "a", [training(gpt()), training(gpt(linear=6.0))])
    opened = ppprof.open(path)
    diff = ppprof.diff(opened, opened, ranks=("0", "1"))
    assert changed(diff.operators, "delta_cpu_self_ns") == [("matmul", 6 * MS)]
    both = ppprof.diff(opened, opened)
    assert set(both.operators["delta_cpu_self_ns"]) == {0.0}
    # Means over ranks: 3 blocks of 4 and of 6, and a head of 2.
    assert both.operators.filter(name="matmul")["baseline_cpu_self_ns"].item() == 17 * MS
    with pytest.raises(UsageError, match="rank"):
        ppprof.diff(opened, opened, ranks=("0", "7"))


def test_ranks_are_compared_with_those_that_stand_where_they_stand(tmp_path):
    """mp and dp in another order: rank 1 of the one run is rank 2 of the other."""
    layers = [gpt(linear=linear) for linear in (4.0, 5.0, 6.0, 7.0)]
    one = run(tmp_path / "a", [*map(training, layers)], topology=Topology.of(dp=2, mp=2))
    slower = training(gpt(linear=7.5), backward=3.0)
    swapped = [training(layers[0]), training(layers[2]), training(layers[1]), slower]
    order = ("mp", "pp", "sharding", "sep", "dp")
    other = run(tmp_path / "b", swapped, topology=Topology((2, 1, 1, 1, 2), order))
    table = ppprof.diff(ppprof.open(one), ppprof.open(other)).ranks
    columns = ["baseline_rank", "experiment_rank", "coordinate", "delta_own_ns", "is_clear"]
    assert table.select(columns).rows() == [
        (3, 3, "dp1 mp1", 1.5 * MS, True),
        (0, 0, "dp0 mp0", 0, False),
        (1, 2, "dp0 mp1", 0, False),
        (2, 1, "dp1 mp0", 0, False),
    ]


def test_stages_of_a_pipeline_have_trees_of_their_own(tmp_path):
    topology = Topology.of(pp=2)
    runs = [
        run(tmp_path / name, [training(gpt(2)), training(gpt(3, linear=linear))], topology=topology)
        for name, linear in (("a", 4.0), ("b", 4.5))
    ]
    diff = ppprof.diff(*map(ppprof.open, runs))
    slower = diff.modules.filter("is_clear").filter(name="Block")
    assert slower.select("stage", "delta_self_ns").rows() == [(1, MS // 2)] * 3


def test_steps_and_windows(tmp_path):
    path = write(tmp_path / "a.pb", training(gpt(), steps=6))
    opened = ppprof.open(path)
    diff = ppprof.diff(opened, opened, steps=("0:3", "3:"))
    assert diff.baseline.ranks_of_step == {0: 1, 1: 1, 2: 1}
    assert diff.experiment.ranks_of_step == {3: 1, 4: 1, 5: 1}
    with pytest.raises(UsageError, match="no step of 8:9; it has steps 0-5"):
        ppprof.diff(opened, opened, steps="8")


def test_neither_trace_nor_step_times(tmp_path):
    path = run(tmp_path / "a", [])
    opened = ppprof.open(path)
    with pytest.raises(InputError, match="neither a trace in it nor step times"):
        ppprof.diff(opened, opened)
    with pytest.raises(InputError, match="no trace in it"):
        opened.summary("op")
    with pytest.raises(InputError, match="no trace in it"):
        opened.cluster()


def side(**overview):
    modules = pl.DataFrame(schema={"stage": pl.Int64, **MODULES, "calls": pl.Int64})
    empty = {
        "steps": pl.DataFrame(schema={"rank": pl.Int64, "step": pl.Int64, "step_ns": pl.Int64}),
        "times": pl.DataFrame(schema=STEP_TIMES),
        "operators": pl.DataFrame(
            schema={"name": pl.String, "step": pl.Int64, "gpu_total_ns": pl.Int64}
        ),
        "lines": pl.DataFrame(),
        "kernels": pl.DataFrame(),
        "collectives": pl.DataFrame(),
        "runtime_calls": pl.DataFrame(),
        "operator_shapes": pl.DataFrame(),
        "modules": modules,
        "unattributed_modules": modules,
    }
    empty["unattributed_modules"] = empty["modules"]
    empty["unattributed_lines"] = empty["lines"]
    return RunCosts("run", **{**empty, **overview})


def test_the_rfcs_overview():
    """pytorch/kineto issue 342: its table of two ResNet runs on a V100, to the digit."""
    from ppprof.analysis.diff.costs import Device
    from ppprof.report.text.diff import _overview
    from ppprof.report.text.summary import TableOptions

    def ran(utilization, mean, peak, step_ms):
        steps = {"rank": [0], "step": [0], "step_ns": [int(step_ms * MS)]}
        parts = {part: [None] for part in PARTS_NS}
        device = Device("Tesla V100-DGXS-32GB", 31_740_000_000, utilization, None, mean, peak)
        return side(steps=pl.DataFrame({**steps, **parts}), devices=[device])

    diff = Diff(ran(0.30, 1.5e9, 5_000_000_000, 9.3), ran(0.17, 1.7e9, 4_900_000_000, 11.2))
    printed = {line[0]: line[1:] for line in _overview(diff, diff.overview, TableOptions()).lines}
    assert printed["device"] == ["Tesla V100-DGXS-32GB", "Tesla V100-DGXS-32GB", "", ""]
    assert printed["device memory"][:2] == ["31.74 GB", "31.74 GB"]
    assert printed["gpu utilization"] == ["30.00%", "17.00%", "-13.00 points", "-43.33"]
    assert printed["mean memory"] == ["1.50 GB", "1.70 GB", "+200.00 MB", "+13.33"]
    assert printed["peak memory"] == ["5.00 GB", "4.90 GB", "-100.00 MB", "-2.00"]
    assert printed["step time"] == ["9.30", "11.20", "+1.90", "+20.43"]


@pytest.fixture
def slower(tmp_path):
    """Each of 3 blocks takes 1 ms more, of 4."""
    return compared(tmp_path, training(gpt(), jitter=1000), training(gpt(linear=5.0), jitter=1000))


@pytest.mark.parametrize(
    ("rule", "status", "detail"),
    [
        ("step_time > 5%", "fail", "+14.3%, 95% interval"),
        ("step_time > 20%", "pass", "+14.3%, 95% interval"),
        ("step_time > 2ms", "fail", "+3 ms, 95% interval"),
        ("op.matmul.cpu > 10%", "fail", "+21.4%, 95% interval +21.4% to +21.4%"),
        ("op.matmul.cpu_self > 3.5ms", "pass", "+3 ms, 95% interval +3 ms to +3 ms"),
        ("op.matmul.calls > 0", "pass", "+0, 95% interval +0 to +0"),
        ("op.gelu.cpu < -1%", "pass", "+0.0%, 95% interval"),
        ("module.Block > 10%", "fail", "+19.9%, 95% interval"),
        ("computation > 1ms", "fail", "+3 ms, 95% interval +2.99 ms to +3.01 ms"),
    ],
)
def test_thresholds(slower, rule, status, detail):
    outcome = outcome_of(Threshold.parse(rule), slower)
    assert (outcome.status, outcome.detail[: len(detail)]) == (status, detail)
    assert str(outcome).startswith(f"{status}ed: {rule}: ")


def test_a_limit_within_the_interval_is_inconclusive(tmp_path):
    noisy = training(gpt(linear=5.0), jitter=400_000)
    diff = compared(tmp_path, training(gpt(), jitter=400_000), noisy)
    assert diff.change.low < 0.13 < diff.change.ratio
    outcome = outcome_of(Threshold.parse("step_time > 13%"), diff)
    assert outcome.status == "inconclusive"
    assert str(outcome).startswith("inconclusive: step_time > 13%: ")


def test_a_new_operator_fails_any_ratio(tmp_path):
    diff = compared(tmp_path, training(gpt()), training(gpt(activation="relu")))
    assert outcome_of(Threshold.parse("op.relu.cpu > 1000%"), diff).status == "fail"
    assert outcome_of(Threshold.parse("op.gelu.cpu > 5%"), diff).status == "pass"
    with pytest.raises(UsageError, match="neither run has an operator 'silu'"):
        outcome_of(Threshold.parse("op.silu.cpu > 5%"), diff)
    with pytest.raises(UsageError, match="ips is not known for both runs"):
        outcome_of(Threshold.parse("ips < -5%"), diff)


def test_what_ran_in_remote_calls_is_not_the_callers(tmp_path):
    """A step's number is found by the rows of the rank's own events, which the others shift."""

    def steps(length):
        spans, at = [], 0
        for step in range(3):
            spans.append(
                span("ProfileStep", f"ProfileStep#{step}", at, at + 100).around(
                    span("Operator", "rpc#f(w0 -> w1)#remote_op: relu", at + 1, at + 20),
                    span("Operator", "add", at + 30, at + 30 + length),
                )
            )
            at += 100
        return Thread(1, "main", tuple(spans))

    diff = compared(tmp_path, steps(10), steps(15))
    assert diff.operators.select("name", "baseline_cpu_self_ns", "delta_cpu_self_ns").rows() == [
        ("add", 10, 5)
    ]


def windows(folder, *threads, step_lines=()):
    """A run of one rank with these windows."""
    path = run(folder, [], step_lines=step_lines)
    for number, thread in enumerate(threads):
        stem = f"rank_00000_dp0_pp0_sharding0_mp0_time_20261120T20153{number}_{number:03}"
        write(path / f"raw/{stem}.pb", thread)
    return ppprof.open(path)


def test_windows_are_judged_by_their_own_steps(tmp_path):
    opened = windows(
        tmp_path / "a", training(gpt()), training(gpt(linear=8.0)), step_lines=[step_lines(1e9)]
    )
    diff = ppprof.diff(opened, opened, windows=(0, 1))
    assert diff.change.verdict == "slower"
    assert [words for _, words in diff.samples] == ["recorded"] * 2


def test_windows_that_count_from_0_each_have_steps_of_their_own(tmp_path):
    opened = windows(tmp_path / "a", training(gpt()), training(gpt()))
    diff = ppprof.diff(opened, opened, windows=(0, None))
    assert (diff.change.baseline_steps, diff.change.experiment_steps) == (6, 12)
    assert diff.operators["delta_calls"].unique().to_list() == [0]
    assert diff.modules["status"].unique().to_list() == ["both"]
    assert diff.modules.select(pl.col("delta_time_ns").abs().max()).item() < 1


def test_two_profile_steps_of_one_number_are_one_step(tmp_path):
    halves = [
        span(
            "ProfileStep",
            "ProfileStep#3",
            start,
            start + 50,
            span("Forward", "A", start + 5, start + 15),
        )
        for start in (0, 50)
    ]
    diff = compared(tmp_path, *[Thread(1, "main", tuple(halves))] * 2)
    rows = diff.modules.filter(name="A").select("baseline_time_ns", "baseline_calls").rows()
    assert rows == [(10, 1), (10, 1)]
    assert diff.modules.filter(depth=0)["baseline_time_ns"].item() == 100


@pytest.mark.parametrize("step_ns", [1e9, 0.98e9])
def test_a_rate_has_the_interval_of_what_a_step_does_over_its_time(tmp_path, step_ns):
    """A step of half the samples that is a little shorter is another one, not that of an equal run."""
    runs = [
        run(tmp_path / str(samples), [], step_lines=[step_lines(ns, samples=samples, noise=0.001)])
        for samples, ns in ((8, 1e9), (4, step_ns))
    ]
    diff = ppprof.diff(*map(ppprof.open, runs))
    outcome = outcome_of(Threshold.parse("ips < -5%"), diff)
    assert outcome.status == "fail"
    assert outcome.detail.startswith(("-50.0%, 95% interval -5", "-49.0%, 95% interval -4"))


def test_a_run_without_a_pipeline_compares_with_a_trace_that_knows_no_stages(tmp_path):
    path = run(tmp_path / "a", [training(gpt())])
    diff = ppprof.diff(ppprof.open(path), ppprof.open(write(tmp_path / "b.pb", training(gpt()))))
    assert diff.modules.select("status", "stage").unique().rows() == [("both", None)]


def test_steps_of_two_kinds_give_no_verdict(tmp_path):
    one = run(tmp_path / "a", [], step_lines=[step_lines(21e6)])
    diff = ppprof.diff(ppprof.open(one), ppprof.open(write(tmp_path / "b.pb", training(gpt()))))
    assert diff.change.verdict == "inconclusive"
    assert "steps without a window against steps recorded" in str(diff.change)


def test_of_larger_batches_the_rate_is_in_the_headline(tmp_path, cli):
    """Twice the samples in 1.8 of the time: slower steps, and a faster training."""
    paths = [
        run(tmp_path / name, (), step_lines=[step_lines(time_ns, samples=samples)])
        for name, time_ns, samples in (("a", 100e6, 8), ("b", 180e6, 16), ("c", 200e6, 16))
    ]
    out = cli("diff", *paths[:2]).out
    assert "Step time: slower: +80." in out
    for line in ("Samples/s: higher: +11.", "Tokens/s: higher: +11."):
        assert line in out
    assert "; a step has 100.0% more samples\n" in out
    document = json.loads(cli("diff", *paths[:2], "--format", "json").out)
    assert [rate["metric"] for rate in document["rates"]] == ["ips", "tokens_per_s"]
    same_rate = ppprof.diff(*map(ppprof.open, (paths[0], paths[2])))
    assert [rate.verdict for rate in rate_changes(same_rate)] == ["no difference seen"] * 2
    assert not is_clear_in_overview(same_rate, "ips", 1.0)
    assert is_clear_in_overview(same_rate, "step_time", 1.0)
    same_batches = ppprof.diff(ppprof.open(paths[1]), ppprof.open(paths[2]))
    assert rate_changes(same_batches) == []
    assert is_clear_in_overview(same_batches, "ips", 1.0)


def test_of_a_run_whose_steps_grow_equal_step_numbers_are_compared(tmp_path):
    """Of 60 and 30 steps, 10 are left out; what the overview and the limits compare is the same."""
    paths = []
    for name, steps in (("long", 60), ("short", 30)):
        lines = step_lines(100e6, steps=steps)
        for line in lines:
            line["batch_cost_ns"] += 5_000_000 * line["step"]
        paths.append(run(tmp_path / name, (), step_lines=[lines]))
    diff = ppprof.diff(*map(ppprof.open, paths))
    assert str(diff.change).startswith("no difference seen: +0.0%")
    assert str(diff.change).endswith(
        "at equal step numbers, the baseline's steps grow by 5.01 ms a step and the experiment's steps grow "
        "by 5.01 ms a step over 20 steps"
    )
    assert diff.overview.filter(metric="step_time")["delta"].item() == 0
    assert outcome_of(Threshold.parse("step_time > 5%"), diff).status == "pass"


def test_one_rank_against_one(tmp_path):
    path = run(tmp_path / "a", [training(gpt()), training(gpt(linear=6.0))])
    opened = ppprof.open(path)
    (row,) = ppprof.diff(opened, opened, ranks=("0", "1")).ranks.rows(named=True)
    assert (row["baseline_rank"], row["experiment_rank"], row["delta_own_ns"]) == (0, 1, 6 * MS)


def test_ranks_of_a_job_with_more_replicas(tmp_path):
    threads = [training(gpt())] * 2
    one = run(tmp_path / "a", threads, topology=Topology.of(mp=2))
    other = run(tmp_path / "b", threads * 2, topology=Topology.of(dp=2, mp=2))
    table = ppprof.diff(ppprof.open(one), ppprof.open(other)).ranks
    assert table.select("baseline_rank", "experiment_rank", "coordinate", "status").rows() == [
        (0, 0, "dp0 mp0", "both"),
        (1, 1, "dp0 mp1", "both"),
        (None, 2, "dp1 mp0", "new"),
        (None, 3, "dp1 mp1", "new"),
    ]


def test_a_module_in_one_of_its_name_counts_once(tmp_path):
    def steps(length):
        spans = (
            span("ProfileStep", f"ProfileStep#{step}", start, start + 90).around(
                span("Forward", "Seq", start + 1, start + 11 + length).around(
                    span("Forward", "Seq", start + 2, start + 10 + length)
                )
            )
            for step, start in enumerate(range(0, 600, 100))
        )
        return Thread(1, "main", tuple(spans))

    diff = compared(tmp_path, steps(0), steps(10))
    outcome = outcome_of(Threshold.parse("module.Seq > 12ns"), diff)
    assert (outcome.status, outcome.detail[:6]) == ("pass", "+10 ns")


def test_no_module_loses_more_than_all_of_its_time(tmp_path):
    """12 or 60 ns in turn, then 4: 32 less than 36, with a standard error of 10.73, times 2.571 (Student, 5)."""

    def steps(*lengths):
        spans = (
            span("ProfileStep", f"ProfileStep#{step}", start, start + 90).around(
                span("Forward", "Seq", start + 1, start + 1 + length)
            )
            for step, (start, length) in enumerate(zip(range(0, 600, 100), lengths * 6))
        )
        return Thread(1, "main", tuple(spans))

    diff = compared(tmp_path, steps(12, 60), steps(4))
    for rule, detail in [
        ("module.Seq > 5%", "-88.9%, 95% interval -100.0% to -12.3%"),
        ("module.Seq > 12ns", "-32 ns, 95% interval -36 ns to -4.4"),
    ]:
        outcome = outcome_of(Threshold.parse(rule), diff)
        assert (outcome.status, outcome.detail[: len(detail)]) == ("pass", detail)


def test_modules_of_a_trace_without_steps(tmp_path):
    threads = [Thread(1, "main", (span("Forward", "A", 0, length),)) for length in (5, 8)]
    tree = compared(tmp_path, *threads).modules.filter(name="A")
    assert tree.select("baseline_time_ns", "experiment_time_ns").rows() == [(5, 8)]


def test_a_part_that_was_nothing(tmp_path):
    diff = compared(tmp_path, training(gpt(), data=0.0), training(gpt(), data=5.0))
    assert outcome_of(Threshold.parse("data_loading > 1ms"), diff).status == "fail"
    assert outcome_of(Threshold.parse("bubble > 1ms"), diff).status == "pass"


def test_a_timer_only_run_has_no_windows(tmp_path):
    path = run(tmp_path / "a", [], topology=Topology.of(dp=2), step_lines=[step_lines(1e9)] * 2)
    opened = ppprof.open(path)
    with pytest.raises(UsageError, match="no steps of window 3"):
        ppprof.diff(opened, opened, windows=3)
    assert ppprof.diff(opened, opened, ranks="1").baseline.times["rank"].unique().to_list() == [1]


def test_what_a_run_has_not_recorded_is_not_gone(tmp_path, cli):
    """A run with windows, and the same one after its traces were deleted: step times alone."""
    times = [step_lines(20e6)] * 2
    threads = [training(gpt()), training(gpt())]
    path = run(tmp_path / "a", threads, topology=Topology.of(dp=2), step_lines=times)
    shutil.copytree(path, tmp_path / "b")
    for trace in (tmp_path / "b").rglob("*.pb"):
        trace.unlink()
    one, other = ppprof.open(path), ppprof.open(tmp_path / "b")
    for pair, side in (((one, other), "experiment"), ((other, one), "baseline")):
        found = ppprof.diff(*pair)
        assert found.unrecorded_side == side
        for table in (found.operators, found.collectives, found.lines, found.ranks, found.modules):
            assert table.is_empty()
        with pytest.raises(UsageError, match=f"the {side} has recorded no step"):
            outcome_of(Threshold.parse("op.matmul.cpu > 5%"), found)
        assert outcome_of(Threshold.parse("step_time > 5%"), found).status == "pass"
    result = cli("diff", path, tmp_path / "b")
    assert "Only step times are compared: the experiment has recorded no step." in result.out
    assert "gone" not in result.out
    assert ppprof.diff(one, one).unrecorded_side == ""
    assert ppprof.diff(one, one).operators.height


def test_steps_that_a_run_has_not_recorded_are_not_gone(tmp_path):
    """Both have windows; only that of the second is among the chosen steps."""
    times = [step_lines(20e6)]
    paths = [run(tmp_path / name, [training(gpt())], step_lines=times) for name in ("a", "b")]
    one, other = map(ppprof.open, paths)
    recorded = one.breakdown()["step"].to_list()
    chosen = f"{max(recorded) + 1}:40"
    found = ppprof.diff(one, other, steps=(chosen, f"{min(recorded)}:40"))
    assert found.unrecorded_side == "baseline"
    assert found.operators.is_empty()


def test_rates_and_step_times_are_of_the_same_clock():
    """The first step of a window stalls while the profiler starts, which its length in the trace leaves out."""
    path = COMMITTED / "dataset_with_workers"
    costs = ppprof.diff(ppprof.open(path), ppprof.open(path), windows=0).baseline
    metrics = costs.metrics_over(costs.recorded)
    samples = costs.times["num_samples"].unique().to_list()
    assert [round(metrics["ips"] * metrics["step_time"] / 1e9, 6)] == samples


def test_windows_without_steps_are_averaged(tmp_path):
    """As torch writes them without ``ProfilerStep``: one file each."""
    trace = TorchTrace()
    trace.op("aten::mm", 0, 100)
    trace.launch(20, "gemm", 40, 1200)
    one = write_events(tmp_path / "one.pt.trace.json", trace.events)
    (tmp_path / "several").mkdir()
    for number in range(3):
        name = f"host_1.{1_700_000_000_000_000_000 + number}.pt.trace.json"
        write_events(tmp_path / "several" / name, trace.events)
    found = ppprof.diff(ppprof.open(one), ppprof.open(tmp_path / "several"))
    for table in (found.operators, found.kernels):
        assert table["baseline_calls"].to_list() == table["experiment_calls"].to_list() == [1]


def test_a_window_without_steps_is_not_in_a_step_of_another(tmp_path):
    """The other window has a step 0, too."""
    traces = [TorchTrace(), TorchTrace()]
    traces[0].step(0, 0, 1900)
    (tmp_path / "both").mkdir()
    for number, trace in enumerate(traces):
        trace.op("aten::mm", 100, 100)
        name = f"host_1.{1_700_000_000_000_000_000 + number}.pt.trace.json"
        write_events(tmp_path / "both" / name, trace.events)
    one = write_events(tmp_path / "one.pt.trace.json", traces[0].events)
    table = ppprof.diff(ppprof.open(one), ppprof.open(tmp_path / "both")).operators
    assert table["baseline_calls"].to_list() == table["experiment_calls"].to_list() == [1]


def steps_beside(others, *, step_ns, busy=1.0, wait_ns=0, num=40):
    """A run whose steps (with some noise) were measured while other processes took ``others``."""
    rows = [
        {
            "rank": 0,
            "step": step,
            "batch_cost_ns": step_ns + step % 5 * MS // 10,
            "num_samples": 8,
            "device_peak_bytes": 20 * step_ns,
            "processor_wait_ns": wait_ns,
            "processors_busy_ratio": busy,
            "others_ratio": others,
        }
        for step in range(num)
    ]
    return side(times=pl.DataFrame(rows, STEP_TIMES))


def test_a_loaded_baseline_gives_no_verdict():
    loaded, quiet = steps_beside(0.6, step_ns=100 * MS), steps_beside(0.02, step_ns=28 * MS)
    change = Diff(loaded, quiet).change
    assert (change.verdict, change.low) == ("inconclusive", None)
    assert str(change).endswith(
        "; other processes took 60% of the processors during the baseline: use a quieter machine"
    )
    assert "baseline" not in Diff(quiet, loaded).change.reason
    both = Diff(loaded, steps_beside(0.3, step_ns=28 * MS)).change
    assert "60% of the processors during the baseline and 30% of the" in both.reason
    for rule in ("step_time > 5%", "step_time < -5%", "ips < -5%", "step_time_p95 > 5%"):
        for pair in ((loaded, quiet), (quiet, loaded)):
            assert outcome_of(Threshold.parse(rule), Diff(*pair)).status == "inconclusive"
    memory = outcome_of(Threshold.parse("peak_memory > 5%"), Diff(quiet, loaded))
    assert memory.status == "fail"  # what other processes do does not change it


@pytest.mark.parametrize(
    ("load", "verdict"),
    [
        ({"others": None}, "slower"),  # unknown, as in runs of earlier versions
        ({"others": 0.09}, "slower"),
        ({"others": 0.5, "busy": 0.6}, "slower"),  # idle processors for both
        ({"others": 0.0, "wait_ns": 60 * MS}, "slower"),  # its own threads are too many
        ({"others": 0.12}, "inconclusive"),
        # Fewer processors than the machine has, and shared ones.
        ({"others": 0.5, "busy": 0.6, "wait_ns": 10 * MS}, "inconclusive"),
    ],
)
def test_when_the_load_of_a_machine_counts(load, verdict):
    quiet = steps_beside(0.0, step_ns=28 * MS)
    assert Diff(quiet, steps_beside(step_ns=100 * MS, **load)).change.verdict == verdict


@pytest.mark.parametrize("rule", ["computation > 5%", "op.matmul.cpu > 5%", "module.Block > 5%"])
def test_one_recorded_step_decides_nothing(tmp_path, rule):
    diff = compared(tmp_path, training(gpt(), steps=1), training(gpt(linear=5.0), steps=1))
    outcome = outcome_of(Threshold.parse(rule), diff)
    assert outcome.status == "inconclusive"
    assert outcome.detail.endswith("; no interval: one recorded step")


@pytest.mark.parametrize("rule", ["step_time > 1%", "step_time > 0.1ms", "ips < -1%"])
def test_a_pair_of_runs_fails_nothing_that_equal_runs_may_differ_by(rule):
    diff = Diff(*(steps_beside(0.0, step_ns=ms * MS // 10) for ms in (1000, 1022)))
    assert diff.change.is_within_runs
    outcome = outcome_of(Threshold.parse(rule), diff)
    assert outcome.status == "inconclusive"
    assert outcome.detail.endswith("; equal runs differ by 3%, too: ppprof bench compares several")
    assert outcome_of(Threshold.parse("step_time > 3%"), diff).status == "pass"


def divided(*computations, rank=0):
    """Recorded steps of a rank that compute so long, in ms; of 100 ms."""
    steps = [
        {
            **dict.fromkeys(PARTS_NS, 0),
            **{"rank": rank, "step": step, "step_ns": 100 * MS},
            **{"computation_ns": int(ms * MS), "rest_ns": int((100 - ms) * MS)},
        }
        for step, ms in enumerate(computations)
    ]
    return pl.DataFrame(steps)


def test_the_interval_of_a_part_is_students():
    """Two steps a side: 50 +- 1 and 60 +- 2; half the interval is 12.706 times sqrt(1 + 4)."""
    diff = Diff(side(steps=divided(49, 51)), side(steps=divided(58, 62)))
    outcome = outcome_of(Threshold.parse("computation > 5ms"), diff)
    assert outcome.status == "inconclusive"
    assert outcome.detail == "+10 ms, 95% interval -18.4 ms to +38.4 ms"


def test_what_was_nothing_fails_once_it_is_more_than_noise():
    """A mean of 4 in 10 steps, all in one, is as far from 0 as its error."""
    quiet, rare = divided(*[0] * 10), divided(*[0] * 9, 40)
    often = divided(*[40] * 9, 41)
    outcomes = [
        outcome_of(Threshold.parse("computation > 5%"), Diff(side(steps=quiet), side(steps=steps)))
        for steps in (rare, often)
    ]
    assert [outcome.status for outcome in outcomes] == ["inconclusive", "fail"]


def test_parts_are_of_ranks_that_know_them_and_add_up():
    known = divided(60, 60)
    unknown = [pl.lit(None, pl.Int64).alias(part) for part in PARTS_NS if part != "data_loading_ns"]
    without = divided(60, 60, rank=1).with_columns(*unknown, data_loading_ns=50 * MS)
    metrics = side(steps=pl.concat([known, without], how="vertical_relaxed")).metrics
    assert (metrics["computation"], metrics["rest"]) == (60 * MS, 40 * MS)
    assert metrics["data_loading"] == 0


def test_a_step_that_a_rank_lacks_is_left_out(tmp_path):
    """Stage 1 computes less; it has recorded 2 of the 4 steps of stage 0."""
    threads = [training(gpt(), steps=4), training(gpt(1), steps=2)]
    path = run(tmp_path / "a", threads, topology=Topology.of(pp=2))
    whole = run(
        tmp_path / "b",
        [training(gpt(), steps=2), training(gpt(1), steps=2)],
        topology=Topology.of(pp=2),
    )
    diff = ppprof.diff(ppprof.open(whole), ppprof.open(path))
    assert sorted(diff.experiment.ranks_of_step.values()) == [2, 2]
    row = diff.overview.filter(metric="computation").row(0, named=True)
    assert row["experiment"] == pytest.approx(row["baseline"])


def test_a_utilisation_beside_others_fails_nothing():
    one, other = steps_beside(0.0, step_ns=28 * MS), steps_beside(0.6, step_ns=28 * MS)
    from ppprof.analysis.diff.costs import Device

    sides = [
        dataclasses.replace(run, devices=[Device("a", 1, used, None, None, None)])
        for run, used in ((one, 0.9), (other, 0.5))
    ]
    outcome = outcome_of(Threshold.parse("gpu_utilization < -5%"), Diff(*sides))
    assert outcome.status == "inconclusive"
