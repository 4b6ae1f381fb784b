"""Names of kernels that communicate, and names that only look like them."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.trace.communication_names import communicates, is_communication

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
]
COMPUTATION = [
    "hcomplex_mul",
    "void hcomplex::mul<float>(float*)",
    "_Z12hcomplex_mulPf",
    "concl_kernel",
    "oneccl_kernel",
    "mcclellan_kernel",
    "McclellanTransform",
    "MCCLELLAN_TRANSFORM",
    "broadcast_to",
    "void phi::funcs::BroadcastKernel<float>(float*)",
    "dispatch_kernel",
    "void deep_ep::internode::get_dispatch_layout<256, 32>(long*, int*)",
    "void mine::intranode::combine(int*)",
    "deep_epilogue::internode::combine",
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
