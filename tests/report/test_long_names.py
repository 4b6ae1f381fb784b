"""Names of a thousand characters: short in tables and on the page, whole in data and on hover."""

from __future__ import annotations

import json
from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof.units import short_name
from tests.fixtures.torch_traces import TorchTrace, training, write_events

PARAMETERS = "(" + "int, " * 60 + "int)"
ADD, MUL = (
    f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}<float>, "
    f"at::detail::Array<char*, {size}> >{PARAMETERS}"
    for functor, size in (("CUDAFunctor_add", 2), ("MulFunctor", 3))
)
PRODUCT = f"void cutlass::Kernel2<{'cutlass_80_tensorop_bf16_s16816gemm_relu, ' * 10}X>(Params)"
MANGLED = f"_ZN2at6native13reduce_kernelILi512ELi1E{'NS0_8ReduceOpIfNS0_7MeanOpsEE' * 20}EEvT1_"
NAMES = (ADD, MUL, PRODUCT, MANGLED)


@pytest.fixture
def paths(tmp_path):
    """Two traces with the same kernels, twice as fast in the second one."""
    for name, kernel_us in (("a.json", 900), ("b.json", 450)):
        trace = training(kernel_us=kernel_us)
        for number, kernel in enumerate(trace.kernels()):
            kernel["name"] = NAMES[number % len(NAMES)]
        write_events(tmp_path / name, trace.events)
    return tmp_path / "a.json", tmp_path / "b.json"


def test_tables_are_narrow_and_their_rows_distinct(paths, cli):
    for command in (
        ("summary", paths[0], "--views", "kernel", "--width", "200"),
        ("summary", paths[0], "--views", "kernel", "--format", "md"),
        ("diff", *paths, "--views", "kernel"),
        ("diff", *paths, "--views", "kernel", "--format", "md"),
    ):
        lines = cli.quiet(*command).splitlines()
        assert max(map(len, lines)) < 200, command
        named = [line for line in lines if "at::native::" in line or "cutlass::" in line]
        assert len(set(named)) == 4, command
        for telling in ("CUDAFunctor_add", "MulFunctor", "gemm_relu", "reduce_kernel<ReduceOp"):
            assert any(telling in line for line in named), (telling, command)


ARGUMENTS = st.recursive(
    st.sampled_from(["4", "float", "at::native::AddFunctor", "(T)0", "f(int)::{lambda()#1}"]),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(
        lambda all_: f"k<{', '.join(all_)} >"
    ),
    max_leaves=12,
)


@given(ARGUMENTS, st.integers(30, 90), st.integers(0, 40))
def test_a_short_name_fits_and_keeps_template_arguments(argument, limit, num_parameters):
    parameters = f"({', '.join(['int (*)(long)'] * num_parameters)})"
    name = f"void cutlass::Kernel2<cutlass_80_gemm, {argument}, a->b>{parameters} [clone .kd]"
    short = short_name(name, limit)
    assert len(short) <= max(limit, 1)
    assert short == name or short.startswith("cutlass::Kernel2<cutlass_80_g")


def test_data_holds_the_whole_names(paths, cli):
    (window,) = json.loads(cli.quiet("summary", paths[0], "--views", "kernel", "--format", "json"))
    assert {row["name"] for row in window["tables"]["kernel"]} == set(NAMES)
    text = cli.quiet("summary", paths[0], "--views", "kernel", "--format", "csv")
    assert all(name.replace('"', '""') in text for name in NAMES)


def test_the_page_shows_the_whole_name_on_hover(paths, tmp_path):
    page = tmp_path / "page.html"
    ppprof.write_report(ppprof.open(paths[0]), page)
    text = page.read_text()
    assert f'title="{escape(MANGLED)}"' in text
    assert f">{escape('at::native::reduce_kernel<ReduceOp, MeanOps>')}</a>" in text
    assert f">{escape(MANGLED)}<" not in text


def test_a_trace_of_130_ns_has_no_major_finding(tmp_path):
    """Real traces of one tiny operator were advised on a share of nothing."""
    trace = TorchTrace()
    trace.op("aten::add", 0, 0.13)
    trace.launch(0.01, "add", 0.05, 0.02)
    trace.events[-2]["dur"] = 0.03
    findings = ppprof.advise(ppprof.open(write_events(tmp_path / "a.json", trace.events)))
    assert [finding for finding in findings if finding.severity == "major"] == []
