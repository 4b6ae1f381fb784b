"""Peers that read a Paddle trace: ``python -m benchmarks.peers NAME FILE``.

Each peer runs once in its own process and prints its tables, if it has some. The process then exits
without cleanup, so the time to free millions of Python objects is not counted.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Union


def paddle_summary(path: str) -> None:
    """Load a ``.pb`` and print the nine tables, like ``Profiler.summary()`` after a recording."""
    from paddle.profiler import SortedKeys, SummaryView, load_profiler_result
    from paddle.profiler.profiler_statistic import StatisticData, _build_table

    result = load_profiler_result(path)
    statistics = StatisticData(result.get_data(), result.get_extra_info())
    print(
        _build_table(
            statistics,
            sorted_by=SortedKeys.CPUTotal,
            time_unit="ms",
            op_detail=True,
            thread_sep=False,
            views=list(SummaryView),
        )
    )


def visualdl_parser(path: str) -> Any:
    """Return VisualDL's trees of nodes, before any computation."""
    import json

    from visualdl.component.profiler.parser.event_node import ProfilerResult

    with Path(path).open() as file:
        content = json.load(file)
    # VisualDL 2.5.3 needs the key that Paddle used until 3.1; without it there are no pages.
    content.setdefault("span_indx", content["span_index"])
    return ProfilerResult(content)


def visualdl_pages(path: str) -> Any:
    """Return the data of VisualDL's pages."""
    from visualdl.component.profiler.profiler_data import ProfilerData

    return ProfilerData("run", "worker", "0", visualdl_parser(path))


def json_loads(path: str) -> Any:
    import json

    return json.loads(Path(path).read_bytes())


def orjson_loads(path: str) -> Any:
    import orjson

    return orjson.loads(Path(path).read_bytes())


def orjson_loads_without_gc(path: str) -> Any:
    gc.disable()
    return orjson_loads(path)


def msgspec_decode(path: str) -> Any:
    """Return the file as typed objects with only the fields that the nine tables need."""
    import msgspec

    number, text = (int, 0), (str, "")
    args = {
        "start_time": text,
        "end_time": text,
        "correlation id": number,
        "bytes": number,
        "place": text,
        "increase_bytes": number,
        "current_allocated": number,
        "current_reserved": number,
        "peak_allocated": number,
        "peak_reserved": number,
    }
    identity = (Union[int, str], 0)
    event = {
        "name": text,
        "ph": text,
        "cat": text,
        "pid": identity,
        "tid": identity,
        "id": number,
        "ts": (float, 0.0),
        "dur": (float, 0.0),
        "args": (Union[_struct("Args", args), None], None),
    }
    trace = _struct("Trace", {"traceEvents": (list[_struct("Event", event)], [])})
    return msgspec.json.decode(Path(path).read_bytes(), type=trace)


def _struct(name: str, fields: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return a msgspec type; ``fields`` maps JSON keys to type and default."""
    import msgspec

    keys = {key.replace(" ", "_"): key for key in fields}
    members = [(field, *fields[key]) for field, key in keys.items()]
    return msgspec.defstruct(name, members, rename=keys, gc=False)


def hta_breakdown(path: str) -> Any:
    """Return HTA's tables of kernels, of communication overlap and of time by kind, without plots."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: path}, trace_dir=str(Path(path).parent))
    return (
        analysis.get_gpu_kernel_breakdown(visualize=False),
        analysis.get_comm_comp_overlap(visualize=False),
        analysis.get_temporal_breakdown(visualize=False),
    )


def floor(path: str) -> None:
    """Read every byte of the file once, in pieces of 4 MiB."""
    piece = bytearray(4 << 20)
    with Path(path).open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass


READERS: Mapping[str, Callable[[str], Any]] = {
    reader.__name__: reader
    for reader in (
        hta_breakdown,
        paddle_summary,
        visualdl_parser,
        visualdl_pages,
        json_loads,
        orjson_loads,
        orjson_loads_without_gc,
        msgspec_decode,
        floor,
    )
}

if __name__ == "__main__":
    result = READERS[sys.argv[1]](sys.argv[2])  # keeps the objects alive until the exit
    sys.stdout.flush()
    os._exit(0)
