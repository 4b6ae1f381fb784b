"""The args of collectives, by name, type and group."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ppprof.trace.kineto.collectives import (
    _Collective,
    axis_of_description,
    collective_args,
)


def args_of(groups: dict[int, tuple[int, ...]] | None = None, **values: Any) -> dict[str, Any]:
    whole = {"name": "", "kernel": "", "bytes": None, "group": None, "dtype": None}
    collective = _Collective(**{**whole, "peers": None, "axis": None, **values})
    return json.loads("{" + collective_args(collective, groups or {})[1:] + "}")


@pytest.mark.parametrize(
    ("span", "kernel", "name"),
    [
        ("all_reduce", "", "allreduce"),
        ("all_gather_into_tensor", "", "_allgather_base"),
        ("reduce_scatter", "", "_reduce_scatter_base"),
        ("alltoall_single", "ncclDevKernel_SendRecv(...)", "all_to_all"),
        ("broadcast", "", "broadcast"),
        ("scatter", "", "scatter"),
        ("gather", "", "gather"),
        ("reduce", "", "reduce"),
        ("barrier", "ncclDevKernel_AllReduce_Sum_i32_RING_LL(...)", "barrier"),
        ("irecv", "", "recv"),
        ("record_param_comms", "ncclDevKernel_ReduceScatter_Sum_bf16", "_reduce_scatter_base"),
        ("", "ncclKernel_Broadcast_RING_LL_Sum_int8_t", "broadcast"),
        ("something", "", "something"),
    ],
)
def test_operations_have_torchs_names(span: str, kernel: str, name: str) -> None:
    assert args_of(name=span, kernel=kernel)["Collective name"] == name


@pytest.mark.parametrize(
    ("dtype", "num_bytes", "scalar", "num_elements"),
    [
        ("float32", 4096, "Float", 1024),
        ("bfloat16", 4096, "BFloat16", 2048),
        ("float8_e4m3fn", 4096, "Float8_e4m3fn", 4096),
        ("float32", 4097, "Byte", 4097),
        (None, 12, "Byte", 12),
        ("pstring", 12, "Byte", 12),
        ("int64", None, "Long", 0),
        (None, None, None, 0),
    ],
)
def test_elements(
    dtype: str | None, num_bytes: int | None, scalar: str | None, num_elements: int
) -> None:
    args = args_of(name="all_reduce", dtype=dtype, bytes=num_bytes)
    assert (args.get("dtype"), args["In msg nelems"]) == (scalar, num_elements)


@pytest.mark.parametrize(
    ("name", "num_output"), [("all_gather", 4096), ("reduce_scatter", 256), ("all_reduce", 1024)]
)
def test_outputs_of_gathers_and_scatters_differ_from_inputs(name: str, num_output: int) -> None:
    args = args_of(name=name, dtype="float32", bytes=4096, peers="0,1,2,3")
    assert (args["In msg nelems"], args["Out msg nelems"]) == (1024, num_output)


def test_long_lists_of_ranks_are_cut_as_torch_does() -> None:
    short, long = (",".join(map(str, range(number))) for number in (30, 31))
    assert args_of(name="all_reduce", peers=short)["Process Group Ranks"].endswith("28, 29]")
    args = args_of(name="all_reduce", peers=long)
    assert args["Process Group Ranks"] == f"[{', '.join(map(str, range(29)))}, ..., 30]"
    assert args["Group size"] == 31


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        *(("TENSOR_MODEL_PARALLEL_GROUP", "mp"), ("PIPELINE_MODEL_PARALLEL_GROUP", "pp")),
        *(("MODEL_PARALLEL_GROUP", "mp"), ("CONTEXT_PARALLEL_GROUP", "sep")),
        *(("DATA_PARALLEL_GROUP", "dp"), ("DATA_PARALLEL_GROUP_WITH_CP", "dp")),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        *(("TENSOR_AND_DATA_PARALLEL_GROUP", "mp"), ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "sep")),
        ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "mp"),
        *(("EXPERT_MODEL_PARALLEL_GROUP", "ep"), ("EXPERT_DATA_PARALLEL_GROUP", "dp")),
        *(("mesh_dp", "dp"), ("mesh_dp_replicate", "dp"), ("mesh_dp_shard", "sharding")),
        *(("mesh_dp_shard_cp", "sharding"), ("mesh_fsdp", "sharding"), ("mesh_dp_cp", "dp")),
        *(("mesh_dp_shard_in_ep", "sharding"), ("mesh_ep", "ep"), ("mesh_efsdp", "sharding")),
        *(("mesh_cp", "sep"), ("mesh_tp", "mp"), ("mesh_pp", "pp"), ("default_pg", None)),
    ],
)
def test_groups_of_megatron_and_torchtitan_have_axes(description: str, axis: str | None) -> None:
    """Over two axes: gradients are reduced over dp and cp, and parameters are sharded over both."""
    assert axis_of_description(description) == axis
