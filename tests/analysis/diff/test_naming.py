from __future__ import annotations

import polars as pl
import pytest

from ppprof.analysis.diff.naming import Naming, normalized


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void vectorized<float, 4>(int, float*)", "void vectorized<half, 8>(int, half*)"),
        ("ampere_sgemm_128x64_tn", "sm80_sgemm_128x64_tn"),
        ("cutlass_80_tensorop_s1688gemm", "cutlass_90_tensorop_s1688gemm"),
        ("(anonymous namespace)::softmax_warp<float, 10>(float*)", "softmax_warp<half, 9>(half*)"),
        ("triton_poi_fused_add_0d1d2d", "triton_poi_fused_add_3d4d"),
        ("matmul dygraph", "matmul"),
        ("relu_ dygraph", "pd_op.relu_"),
        ("void cutlass::Kernel<cutlass_80_gemm>(P)", "void cutlass::Kernel<cutlass_90_gemm>(P)"),
    ],
)
def test_builds_of_one_kernel_have_one_name(one, other):
    assert normalized(one) == normalized(other)
    assert Naming(exact=True).common_name(one) == one


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "void elementwise<float, AddFunctor<float>>(int)",
            "void elementwise<float, MulFunctor>(int)",
        ),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x128_tn"),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_gemm_64x64>(P)",
            "void cutlass::Kernel<cutlass_80_tensorop_gemm_128x64>(P)",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(I)::f>()",
            "void at::native::vectorized_elementwise_kernel<4, at::native::sigmoid_kernel_cuda(I)::f>()",
        ),
        ("relu", "relu_"),
        ("rpc#f(worker0 -> worker1)", "rpc#g(worker0 -> worker1)"),
        ("Optimizer.step#SGD.step", "Optimizer.step#Adam.step"),
    ],
)
def test_kernels_that_do_something_else_do_not(one, other):
    assert normalized(one) != normalized(other)


@pytest.mark.parametrize(
    "name", ["", "<", ">", "a<b", "f(", "void ", "operator()", "a::b()<c", "()"]
)
def test_what_is_no_name_stays_something(name):
    assert isinstance(normalized(name), str)
    assert bool(normalized(name)) == bool(name.strip())


def test_names_that_count_as_one():
    names = pl.Series(["aten::mm", "matmul dygraph", "relu"], dtype=pl.Categorical)
    same = {"aten::mm": "matmul"}
    assert Naming(same=same).apply(names).to_list() == ["matmul", "matmul", "relu"]
