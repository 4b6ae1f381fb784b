"""Paddle's own table builder as an oracle: what `Profiler.summary()` prints for a trace.

Three ways in. `load` is Paddle's loader, for files of the event types it knows. `live` takes the
result that a profiler holds. `adopt` hands Paddle's builder a tree made from the protobuf here, for
files with the newer types, which Paddle records and prints but cannot load; that such a tree gives
the same tables as Paddle's own is tested in test_paddle_tables.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from tests.fixtures.paddle_proto import NodeTrees

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Paddle warns of absent compilers while it is imported
    from paddle.base import core
    from paddle.profiler import SummaryView, load_profiler_result
    from paddle.profiler.profiler_statistic import SortedKeys, StatisticData, _build_table

VIEWS = {
    "device": SummaryView.DeviceView,
    "overview": SummaryView.OverView,
    "model": SummaryView.ModelView,
    "dist": SummaryView.DistributedView,
    "op": SummaryView.OperatorView,
    "kernel": SummaryView.KernelView,
    "memcpy": SummaryView.MemoryManipulationView,
    "udf": SummaryView.UDFView,
    "mem": SummaryView.MemoryView,
}
"""Our names of the views in the order in which Paddle prints them."""

SORTED_BY = {
    "cpu_total": SortedKeys.CPUTotal,
    "cpu_avg": SortedKeys.CPUAvg,
    "cpu_max": SortedKeys.CPUMax,
    "cpu_min": SortedKeys.CPUMin,
    "gpu_total": SortedKeys.GPUTotal,
    "gpu_avg": SortedKeys.GPUAvg,
    "gpu_max": SortedKeys.GPUMax,
    "gpu_min": SortedKeys.GPUMin,
}
TIME_UNITS = ("s", "ms", "us", "ns")


class PaddleTables:
    """What Paddle prints for one trace."""

    def __init__(
        self, node_trees: Mapping[int, object], extra_info: Mapping[str, str], owner=None
    ) -> None:
        self._statistics = StatisticData(node_trees, extra_info)
        # Event types in the statistics point into the memory of the result they came from.
        self._owner = owner

    def text(
        self,
        views=tuple(VIEWS),
        *,
        sorted_by: str = "cpu_total",
        time_unit: str = "ms",
        op_detail: bool = True,
        thread_sep: bool = False,
        row_limit: int = 100,
    ) -> str:
        """The tables of ``views``, one below the other; raises as Paddle raises."""
        return _build_table(
            self._statistics,
            sorted_by=SORTED_BY[sorted_by],
            time_unit=time_unit,
            op_detail=op_detail,
            thread_sep=thread_sep,
            row_limit=row_limit,
            views=[VIEWS[view] for view in views],
        )


def load(path: Path) -> PaddleTables:
    """Tables of a ``.pb`` through Paddle's own loader."""
    return live(load_result(path))


def load_result(path: Path):
    """Paddle's result object of a ``.pb``; it can ``save(path, "json")``."""
    result = load_profiler_result(str(path))
    if result is None:
        raise ValueError(f"{path}: Paddle cannot load it")
    return result


def live(result) -> PaddleTables:
    """Tables of a result that Paddle holds."""
    return PaddleTables(result.get_data(), result.get_extra_info(), owner=result)


def adopt(path: Path) -> PaddleTables:
    """Tables of a ``.pb`` with event types that Paddle's loader does not know."""
    trees = NodeTrees.FromString(path.read_bytes())
    by_thread = {tree.thread_id: tree for tree in trees.thread_trees}
    return PaddleTables(
        {thread: _root(by_thread[thread]) for thread in sorted(by_thread)},
        {entry.key: entry.value for entry in trees.extra_info},
    )


def _root(tree) -> SimpleNamespace:
    nodes = {proto.id: _host_node(proto) for proto in tree.host_nodes}
    parents = {proto.id: proto.parentid for proto in tree.host_nodes}
    for index in sorted(nodes):
        if parents[index] != -1:
            nodes[parents[index]].children_node.append(nodes[index])
    (root,) = (nodes[index] for index in nodes if parents[index] == -1)
    return root


def _host_node(proto) -> SimpleNamespace:
    return SimpleNamespace(
        **_fields(proto.host_trace_event),
        children_node=[],
        runtime_node=[_runtime_node(node) for node in proto.runtime_nodes],
        device_node=[],
        mem_node=[_memory_node(node.mem_event) for node in proto.mem_nodes],
        input_shapes={},  # Paddle's loader drops the shapes too
        attributes={},
    )


def _runtime_node(proto) -> SimpleNamespace:
    return SimpleNamespace(
        **_fields(proto.runtime_trace_event),
        type=core.TracerEventType.CudaRuntime,
        children_node=[],
        runtime_node=[],
        device_node=[SimpleNamespace(**_fields(node.device_event)) for node in proto.device_nodes],
        mem_node=[],
    )


def _memory_node(event) -> SimpleNamespace:
    return SimpleNamespace(**{**_scalars(event), "type": core.TracerMemEventType(event.type)})


def _fields(event) -> dict[str, object]:
    fields = _scalars(event)
    if "type" in fields:
        fields["type"] = core.TracerEventType(event.type)
    return fields


def _scalars(event) -> dict[str, object]:
    return {
        field.name: getattr(event, field.name)
        for field in event.DESCRIPTOR.fields
        if field.message_type is None
    }
