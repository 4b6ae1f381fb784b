"""Operators against the roof of their device."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ppprof.analysis.diff.costs import costs
from ppprof.analysis.diff.naming import Naming
from ppprof.analysis.efficiency import operator_work as work_module
from ppprof.analysis.efficiency.avoidable import fusible_chains
from ppprof.analysis.efficiency.efficiency import (
    EFFICIENCY,
    efficiency,
    layers,
    operator_work,
)
from ppprof.analysis.efficiency.operator_work import work_of_operators
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.cluster import analyze_rank
from ppprof.analysis.report_data.report import collect_rank_report_data
from ppprof.analysis.summaries.views import summarize
from ppprof.report.text.summary import TableOptions
from ppprof.trace import read
from tests.fixtures.rendered import render
from tests.fixtures.timeline import Shapes, Span, Thread, kernel, launch, span, write

A100 = "NVIDIA A100-SXM4-80GB"  # 312 TFLOP/s in bf16, 2039 GB/s


def operator(
    name: str, start: int, end: int, *shapes: list[int], device_ns: int = 0, dtype: str = "bfloat16"
) -> Span:
    """Return an operator that takes ``end - start`` on the host, and launches a kernel."""
    inputs = {f"X{place}": [shape] for place, shape in enumerate(shapes)}
    around: list[Any] = [Shapes(inputs, {name: [dtype] for name in inputs})] if shapes else []
    if device_ns:
        work = kernel("k", end, end + device_ns)
        around.append(launch(start + 1, start + 2).around(work))
    return span("Operator", name, start, end).around(*around)


def profile_of(tmp_path: Path, *operators: Span, device: str = A100) -> Profile:
    step = span("ProfileStep", "ProfileStep#0", 0, 10**9, *operators)
    trace = read(write(tmp_path / "a.pb", Thread(31, "main", (step,))))
    devices = ({"name": device}, {"name": device}) if trace.devices else ()
    return Profile(dataclasses.replace(trace, devices=devices))


def rows(table: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return table.select(columns).rows()


def test_a_matrix_product_is_bound_by_computing_and_a_sum_by_memory(tmp_path: Path) -> None:
    n = 4096
    table = efficiency(
        profile_of(
            tmp_path,
            operator("matmul dygraph", 10, 20, [n, n], [n, n], device_ns=1_000_000),
            operator("matmul dygraph", 30, 40, [n, n], [n, n], device_ns=3_000_000),
            operator("add dygraph", 50, 60, [n, n], [n, n], device_ns=100_000),
        )
    )
    assert rows(table, "name", "shapes", "dtype", "calls", "time_ns", "bound") == [
        ("matmul", "[4096,4096] [4096,4096]", "bfloat16", 2, 4_000_000, "compute"),
        ("add", "[4096,4096] [4096,4096]", "bfloat16", 1, 100_000, "memory"),
    ]
    product, total = table.rows(named=True)
    assert product["flops"] == 2 * n**3
    assert product["flops_per_s"] == pytest.approx(2 * 2 * n**3 / 4e-3)
    assert product["roof_ratio"] == pytest.approx(2 * (2 * n**3 / 312e12) / 4e-3)
    assert product["above_roof_ns"] == pytest.approx(4e6 - 2 * 2 * n**3 / 312e12 * 1e9, abs=1)
    assert total["bytes"] == 3 * 2 * n * n
    assert total["bytes_per_s"] == pytest.approx(3 * 2 * n * n / 1e-4)
    assert total["roof_ratio"] == pytest.approx(3 * 2 * n * n / 2039e9 / 1e-4)
    assert total["flops_per_byte"] == pytest.approx(1 / 6)


def test_shapes_and_dtypes_have_rows_of_their_own_the_largest_saving_first(tmp_path: Path) -> None:
    table = efficiency(
        profile_of(
            tmp_path,
            operator("relu dygraph", 10, 20, [64], device_ns=1_000),
            operator("relu dygraph", 30, 40, [128], device_ns=6_000),
            operator("relu dygraph", 50, 60, [64], device_ns=2_000, dtype="float32"),
            operator("relu dygraph", 70, 80, [64], device_ns=4_000),
        )
    )
    assert rows(table, "shapes", "dtype", "calls", "time_ns") == [
        ("[128]", "bfloat16", 1, 6_000),
        ("[64]", "bfloat16", 2, 5_000),
        ("[64]", "float32", 1, 2_000),
    ]


def test_unknown_work_is_the_last_row(tmp_path: Path) -> None:
    table = efficiency(
        profile_of(
            tmp_path,
            operator("mystery dygraph", 10, 20, [64], device_ns=7_000),
            operator("Global_ReluGradNode", 30, 40, device_ns=2_000),
            operator("full dygraph", 50, 60),
            operator("relu dygraph", 70, 80, [64], device_ns=1_000),
        )
    )
    assert rows(table, "name", "calls", "time_ns", "flops") == [
        ("relu", 1, 1_000, 64),
        (None, 2, 9_000, None),
    ]


def test_a_device_without_published_numbers_has_no_roof(tmp_path: Path) -> None:
    relu = operator("relu dygraph", 10, 20, [64], device_ns=1_000)
    (row,) = efficiency(profile_of(tmp_path, relu, device="Imaginary GPU")).rows(named=True)
    assert (row["roof_ratio"], row["bound"], row["above_roof_ns"]) == (None, None, None)
    assert row["flops_per_s"] == pytest.approx(64 / 1e-6)


@pytest.mark.parametrize(
    ("id", "bound", "link", "name"), [(0, "memory", 300e9, A100), (7, None, None, "NVIDIA H20")]
)
def test_the_roof_is_that_of_the_device_with_events(
    tmp_path: Path, id: int, bound: str | None, link: float | None, name: str
) -> None:
    """The process uses device 0, and a worker of a remote call device 1. The device 7 has no events."""
    relu = operator("relu dygraph", 10, 20, [1 << 20], device_ns=10_000)
    remote = kernel("rpc#f(worker0 -> worker1)#remote_op: k", 40, 50, device=1)
    trace = profile_of(tmp_path, relu, launch(30, 31).around(remote)).whole
    others = {"id": 2, "name": "NVIDIA H20"}, {"id": 1, "name": f"{A100} of worker1"}
    trace = dataclasses.replace(trace, devices=(*others, {"id": id, "name": A100}))
    assert efficiency(Profile(trace))["bound"].to_list() == [bound]
    assert analyze_rank(trace).link_bytes_per_s == link
    assert costs(trace, Naming()).device.name == name


def test_the_job_can_state_the_roof_of_an_unknown_device(tmp_path: Path) -> None:
    n = 4096
    product = operator("matmul dygraph", 10, 20, [n, n], [n, n], device_ns=10**9)
    total = operator("add dygraph", 30, 40, [n, n], [n, n], device_ns=10**6, dtype="float32")
    profile = profile_of(tmp_path, product, total, device="Imaginary GPU")
    stated = dataclasses.replace(profile.whole, stated_flops=1e12, stated_bytes_per_s=1e12)
    table = efficiency(Profile(stated))
    ratios = dict(table.select("name", "roof_ratio").rows())
    assert ratios["matmul"] == pytest.approx(2 * n**3 / 1e12)
    assert ratios["add"] == pytest.approx(3 * 4 * n * n / 1e12 / 1e-3)


def test_what_no_kernel_can_reach_is_bound_by_its_launch(tmp_path: Path) -> None:
    relu = operator("relu dygraph", 10, 20, [64], device_ns=3_000)
    table = efficiency(profile_of(tmp_path, relu))
    assert rows(table, "bound") == [("launch",)]


def test_savings_are_those_of_one_step(tmp_path: Path) -> None:
    n = 4096
    steps = [
        span(
            "ProfileStep",
            f"ProfileStep#{number}",
            number * 10**7,
            (number + 1) * 10**7,
            operator(
                "add dygraph",
                number * 10**7 + 10,
                number * 10**7 + 20,
                [n, n],
                [n, n],
                device_ns=10**6,
            ),
        )
        for number in range(4)
    ]
    trace = read(write(tmp_path / "a.pb", Thread(31, "main", tuple(steps))))
    (row,) = efficiency(Profile(dataclasses.replace(trace, devices=({"name": A100},)))).rows(
        named=True
    )
    assert row["calls"] == 4
    assert row["above_roof_ns"] == pytest.approx(10**6 - 3 * 2 * n * n / 2039e9 * 1e9)


def test_on_a_cpu_the_time_is_the_operators_own(tmp_path: Path) -> None:
    inner = operator("relu dygraph", 12, 18, [64])
    outer = span("Operator", "recompute", 10, 20, inner)
    table = efficiency(profile_of(tmp_path, outer))
    assert rows(table, "name", "calls", "time_ns") == [("relu", 1, 6), (None, 1, 4)]
    assert table["roof_ratio"].null_count() == 2


def test_a_trace_without_operators_or_without_its_device_has_no_rows(tmp_path: Path) -> None:
    assert efficiency(profile_of(tmp_path)).is_empty()
    relu = operator("relu dygraph", 10, 20, [64])
    trace = dataclasses.replace(profile_of(tmp_path, relu).whole, unrecorded_device="gpu:0")
    table = efficiency(Profile(trace))
    assert table.is_empty()
    assert dict(table.schema) == EFFICIENCY


def test_as_printed(tmp_path: Path) -> None:
    profile = profile_of(
        tmp_path,
        operator("matmul dygraph", 10, 20, [4096, 4096], [4096, 4096], device_ns=1_000_000),
        operator("mystery dygraph", 30, 40, [64], device_ns=250_000),
    )
    lines = render(profile, ["efficiency"], TableOptions()).splitlines()
    assert "Work is unknown of 20.00% of the operators' time" in lines
    (row,) = (line.split() for line in lines if line.startswith("matmul"))
    assert row == [
        *("matmul", "[4096,4096]", "[4096,4096]", "bfloat16", "1", "1.00", "137", "101"),
        *("1.37e+03", "bfloat16", "44.05", "compute", "0.56"),
    ]


def test_operators_by_shape(tmp_path: Path) -> None:
    profile = profile_of(
        tmp_path,
        operator("matmul dygraph", 10, 20, [8, 16], [16, 4], device_ns=3_000),
        operator("matmul dygraph", 30, 40, [8, 16], [16, 4], device_ns=1_000),
        operator("matmul dygraph", 50, 60, [2, 2], [2, 2], device_ns=5_000),
        operator("mystery dygraph", 70, 80, device_ns=500),
    )
    by_shape = summarize(profile, "shape")
    assert rows(by_shape, "name", "shapes", "calls", "gpu_total_ns", "gpu_max_ns", "flops") == [
        ("matmul dygraph", "[2,2] [2,2]", 1, 5_000, 5_000, 16),
        ("matmul dygraph", "[8,16] [16,4]", 2, 4_000, 3_000, 2 * 2 * 8 * 16 * 4),
        ("mystery dygraph", None, 1, 500, 500, None),
    ]
    assert by_shape["gpu_ratio"].to_list() == pytest.approx([5 / 9.5, 4 / 9.5, 0.5 / 9.5])
    details = summarize(profile, "op").filter(kind="shape")
    assert rows(details, "name", "calls", "flops") == [
        ("[2,2] [2,2]", 1, 16),
        ("[8,16] [16,4]", 2, 2048),
    ]
    assert details["gpu_ratio"].to_list() == pytest.approx([5 / 9, 4 / 9])
    lines = render(profile, ["shape"], TableOptions()).splitlines()
    (line,) = (line.split() for line in lines if "[8,16]" in line)
    assert line[:5] == ["matmul", "dygraph", "[8,16]", "[16,4]", "2"]


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [
        ({"X0": 5}, {"X0": 5}),
        ({"X0": [5]}, {"X0": [None]}),
        ({"X0": None}, {"X0": None}),
        ({"X0": [[]]}, {"X0": [[]]}),
        ({"X0": [[1.5, 2]]}, {"X0": ["float32"]}),
        ({"X0": [[10**18, 10**18]]}, {"X0": ["float32"]}),
        ({"X0": [[-1, 4]]}, {"X0": ["float32"]}),
    ],
)
def test_inputs_of_another_form_are_shown_as_they_are(
    tmp_path: Path, shapes: Any, dtypes: Any
) -> None:
    relu = [
        operator("relu dygraph", 10 + 40 * n, 20 + 40 * n, [64], device_ns=1_000) for n in range(3)
    ]
    trace = profile_of(tmp_path, *relu).whole
    is_operator = pl.col("category") == "Operator"
    odd = {"shapes": json.dumps(shapes), "dtypes": json.dumps(dtypes)}
    events = trace.events.with_columns(
        pl.when(is_operator).then(pl.lit(text)).cast(pl.Categorical).alias(name)
        for name, text in odd.items()
    )
    profile = Profile(dataclasses.replace(trace, events=events))
    for view in ("op", "shape", "efficiency", "layer"):
        summarize(profile, view)
    assert summarize(profile, "shape")["calls"].sum() == 3
    assert fusible_chains(profile)["saved_ns"].sum() >= 0
    assert operator_work(profile)["time_ns"].sum() == 3_000


def test_rates_of_huge_operators_are_not_negative(tmp_path: Path) -> None:
    n = 10**15
    calls = [
        operator("relu dygraph", 10 + 9 * c, 12 + 9 * c, [n], device_ns=1) for c in range(9000)
    ]
    (row,) = efficiency(profile_of(tmp_path, *calls)).rows(named=True)
    assert row["flops_per_s"] == pytest.approx(9000 * n * 1e9 / 9000)


def test_the_work_of_a_window_is_computed_once(tmp_path, monkeypatch):
    """The rules of advice ask three times for it, and for a page it is needed five times."""
    computed = []

    def counted(events):
        computed.append(events.height)
        return work_of_operators(events)

    monkeypatch.setattr(work_module, "work_of_operators", counted)
    profile = profile_of(tmp_path, operator("matmul dygraph", 0, 9, [4, 8], [8, 4], device_ns=5))
    collect_rank_report_data(profile.trace, Naming())
    assert len(computed) == 1


@pytest.mark.parametrize(
    ("uses_tf32", "kernel_name", "took_ns", "peak_dtype", "peak"),
    [
        (False, "ampere_sgemm_128x64_tn", 8_000_000, "float32", 19.5e12),
        (True, "ampere_sgemm_128x64_tn", 8_000_000, "tf32", 156e12),
        (False, "ampere_sgemm_128x64_tn", 2_033_000, "tf32", 156e12),  # 346.8% of the other peak
        (False, "cutlass_80_tensorop_s1688gemm_128x128_16x5_tn", 8_000_000, "tf32", 156e12),
        (False, "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n", 8_000_000, "tf32", 156e12),
    ],
)
def test_the_roof_of_float32_is_of_what_the_device_computes(
    tmp_path: Path, uses_tf32: bool, kernel_name: str, took_ns: int, peak_dtype: str, peak: float
) -> None:
    n = 4096
    around = launch(11, 12).around(kernel(kernel_name, 20, 20 + took_ns))
    product = operator("matmul dygraph", 10, 20, [n, n], [n, n], dtype="float32").around(around)
    trace = profile_of(tmp_path, product).whole
    (row,) = efficiency(Profile(dataclasses.replace(trace, uses_tf32=uses_tf32))).rows(named=True)
    assert row["peak_dtype"] == peak_dtype
    assert row["roof_ratio"] == pytest.approx(2 * n**3 / (took_ns / 1e9) / peak)


def test_the_mfu_of_layers_has_the_peak_of_what_the_device_computes(tmp_path: Path) -> None:
    """2 * 4096^3 FLOPs in 2.033 ms are 346.7% of an A100's 19.5 TFLOP/s, 43.3% of TF32's 156."""
    n = 4096
    product = operator(
        "matmul dygraph", 10, 20, [n, n], [n, n], device_ns=2_033_000, dtype="float32"
    )
    profile = profile_of(tmp_path, span("Forward", "Linear", 5, 25, product))
    assert layers(profile)["mfu"].to_list() == [pytest.approx(0.4334, abs=1e-4)]
    page = collect_rank_report_data(profile.trace, Naming())
    assert page.roof.lines(["float32"]) == {"float32": 156e12}


@pytest.mark.parametrize(("took_ns", "is_said"), [(400_000, True), (500_000, False)])
def test_a_rate_above_the_roof_is_said_of_the_roof(
    tmp_path: Path, took_ns: int, is_said: bool
) -> None:
    """2 * 4096^3 FLOPs take an A100 440 us at best."""
    n = 4096
    product = operator("matmul dygraph", 10, 20, [n, n], [n, n], device_ns=took_ns)
    text = render(profile_of(tmp_path, product), ["efficiency"], TableOptions())
    assert ("Faster than the roof" in text) == is_said
