"""Names of kernels that communicate, and names that only look like them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import ppprof
from ppprof.trace import communication_names
from ppprof.trace.communication_names import communicates, is_communication
from tests.fixtures.torch_traces import TorchTrace, write_events

COMMUNICATION = [
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "_Z37ncclDevKernel_ReduceScatter_Sum_f32_LL24ncclDevKernelArgsStorageILm4096EE",
    "void rcclGenericKernel<1, false>(ncclDevComm*, channelMasks, ncclWork*)",
    "bkcl_all_reduce",
    "hcom_allReduce__428_0_1",
    "hcomAicpuInit",
    "HcclAllReduce",
    "hcclallreduce",
    "cnclAllReduce",
    "void cncl::kernel<float>(float*)",
    "mcclKernel_Broadcast_TREE_LL_Sum_int8_t",
    "tcclAllReduce",
    "xccl_all_reduce",
    "XCCL_ALL_REDUCE",
    "ProcessGroupNCCLKernel",
    "void deep_ep::internode::dispatch<true, 4, false>(int4*, float*)",
    "void deep_ep::intranode::cached_notify_combine<8>(void**, int*)",
    "void deep_ep::internode_ll::combine<true, 9, 7168>(void*)",
    "_ZN7deep_ep9intranode15notify_dispatchILi8EEEvPKiPiS2_",
    "_ZN7deep_ep12internode_ll8dispatchILb1EEEvPv",
    "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*, float*)",
    "void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, long*)",
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
    "void sglang::cross_device_reduce_1stage<half, 2>(sglang::RankData*)",
    "void aiter::reduce_scatter_cross_device_store<bf16, 8>(aiter::RankData*)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<4>(int)",
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<4>(int)",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(AllReduceParams)",
    "_ZN12tensorrt_llm7kernels22twoShotAllReduceKernelIfEEvv",
    "userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int)",
    "kuserbuffers_pushsendrecv(int, int)",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    "void c10d::symmetric_memory::multimem_all_reduce_kernel<c10::BFloat16>(int)",
    "void c10d::intra_node_comm::hybridCubeMeshAllReduceKernel<8>(int)",
    "two_shot_all_reduce_kernel_inplace<c10::BFloat16, 4>(c10::BFloat16**)",
    "nvshmemi_transfer_rma_kernel(void*)",
    "oneccl_allreduce_kernel<float>",
    "mscclKernel_Sum_half_LL(ncclDevComm*)",
    "void mscclpp::allreduce7<half>(half*)",
    "dlslime::intranode_alltoall_kernel",
]
COMPUTATION = [
    "hcomplex_mul",
    "void hcomplex::mul<float>(float*)",
    "_Z12hcomplex_mulPf",
    "concl_kernel",
    "mcclellan_kernel",
    "McclellanTransform",
    "MCCLELLAN_TRANSFORM",
    "broadcast_to",
    "void phi::funcs::BroadcastKernel<float>(float*)",
    "dispatch_kernel",
    "void deep_ep::internode::get_dispatch_layout<256, 32>(long*, int*)",
    "void mine::intranode::combine(int*)",
    "deep_epilogue::internode::combine",
    "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::GemmKernel>(int)",
    "void softmax::warpAllReduce<float>(float*)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)",
    "",
]


@pytest.mark.parametrize("name", COMMUNICATION)
def test_a_kernel_of_a_communication_library_communicates(name):
    assert is_communication(name)


@pytest.mark.parametrize("name", COMPUTATION)
def test_a_kernel_with_a_similar_name_does_not(name):
    assert not is_communication(name)


def test_a_column_of_names_may_have_nulls_and_repeated_names():
    names = pl.Series([*COMMUNICATION[:2], None, *COMPUTATION[:2], COMMUNICATION[0]])
    answers = communicates(names.cast(pl.Categorical()))
    assert answers.fill_null(value=False).to_list() == [True, True, False, False, False, True]


LETTERS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=6)
LIBRARY = st.sampled_from(["nccl", "rccl", "bkcl", "hccl", "hcom", "cncl", "mccl", "tccl", "xccl"])


@given(LIBRARY, LETTERS, st.sampled_from(["_AllReduce", "DevKernel", "2Kernel", "", "::k<int>"]))
def test_a_library_counts_only_at_the_start_of_a_word(library, letters, rest):
    assert is_communication(f"void {library}{rest}(float*)")
    assert is_communication(f"_Z{len(library)}{library}{rest}")
    assert not is_communication(f"void {letters}{library}{rest}(float*)")


def test_the_table_is_yaml():
    content = Path(communication_names.__file__).with_suffix(".yaml").read_text("utf-8")
    patterns = communication_names.patterns_of(yaml.safe_load(content), "the table")
    assert [*communication_names.built_in_patterns()] == [*patterns]


KERNELS = {
    "void mylib_exchange<4>(float*)": 300,
    "ring_send_recv_kernel": 200,
    "void blockAllReduce<float>(float*)": 100,
    "ampere_sgemm": 900,
}


def trace_of(path: Path) -> Path:
    trace = TorchTrace()
    for step in range(3):
        trace.step(step, step * 10_000, 9000)
        for number, (name, dur) in enumerate(KERNELS.items()):
            start = step * 10_000 + number * 2000
            trace.op("aten::op", start, 100)
            trace.launch(start + 10, name, start + 50, dur)
    return write_events(path, trace.events)


def test_communication_by_other_names(tmp_path):
    """Case 05: in each of 5 steps, 7 kernels that communicate and one that computes, of 0.9 ms."""
    names = [
        name for name in COMMUNICATION if re.search("dpsk|vllm|flashinfer|fp16|c10d|onecc", name)
    ]
    trace = TorchTrace()
    for step in range(5):
        trace.step(step, step * 10_000, 10_000)
        for number, name in enumerate([*names[:7], "ampere_sgemm"]):
            start = step * 10_000 + 50 + number * 1200
            trace.op(f"op{number}", start, 100)
            trace.launch(start + 20, name, start + 40, 900)
    run = ppprof.open(write_events(tmp_path / "a.json", trace.events))
    assert exposed_ms(run) == pytest.approx(6.3)
    assert run.breakdown("rank")["computation_ns"].item() == 900_000


def exposed_ms(run: ppprof.Run) -> float:
    row = run.breakdown("rank").row(0, named=True)
    return sum(time / 1e6 for name, time in row.items() if name.startswith("exposed"))


@given(st.sets(st.sampled_from(list(KERNELS)), min_size=1))
@settings(max_examples=8)
def test_names_of_a_user_count_in_every_table(tmp_path_factory, names):
    """Counted in the file: the time of the chosen kernels, which nothing hides."""
    folder = tmp_path_factory.mktemp("file")
    path, file = trace_of(folder / "a.json"), folder / "names.yaml"
    patterns = [re.escape(name) for name in names]
    file.write_text(json.dumps({"communication": {"mine": patterns}, "matmul": ["my_mm"]}))
    expected = sum(KERNELS[name] for name in names) / 1000
    assert exposed_ms(ppprof.open(path, names=file)) == pytest.approx(expected)
    assert exposed_ms(ppprof.open(path)) == 0


def test_what_looks_like_communication_is_named_with_its_time(tmp_path, cli):
    path, file = trace_of(tmp_path / "a.json"), tmp_path / "names.yaml"
    message = cli("ranks", path).err
    assert f"{path}: 1 names of kernels look like communication and are in no table: " in message
    assert "ring_send_recv_kernel (600 us, 3 calls)" in message
    file.write_text("communication:\n  mine: ['ring_(send|recv)', mylib]\n")
    output = cli("ranks", path, "--names", file)
    assert "look like communication" not in output.err
    assert "Exposed" in output.out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("communication: [a]\n", "communication: ['a']; expected lines such as"),
        ("communication: {a: b}\n", "communication: a: 'b'; expected lines such as"),
        ("communication: {a: ['(']}\n", "a: '(': not a regular expression"),
        ("[1]\n", "[1]; expected lines such as"),
        ("a: [", "expected lines such as"),
    ],
)
def test_an_invalid_file_of_names_is_reported(tmp_path, cli, text, message):
    file = tmp_path / "names.yaml"
    file.write_text(text)
    error = cli("summary", tmp_path / "a.json", "--names", file, code=3).err
    assert f"{file}: " in error
    assert message in error
