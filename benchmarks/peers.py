"""Other people's ways to read a Paddle trace: ``python -m benchmarks.peers NAME FILE``.

Each does its work once in a process of its own and prints what it would show. The process then
ends at once: the seconds that it takes Python to free millions of objects are not held against
anyone.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Union


def paddle_summary(path: str) -> None:
    """Loads a ``.pb`` and prints the nine tables, as ``Profiler.summary()`` does for a live one."""
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
    """The file as VisualDL's trees of nodes, before it computes anything."""
    import json

    from visualdl.component.profiler.parser.event_node import ProfilerResult

    with Path(path).open() as file:
        content = json.load(file)
    # VisualDL 2.5.3 asks for the name that Paddle gave it until 3.1, and has no page without it.
    content.setdefault("span_indx", content["span_index"])
    return ProfilerResult(content)


def visualdl_pages(path: str) -> Any:
    """The file as what VisualDL's pages show."""
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
    """The whole file as typed objects that hold what the nine tables need, and nothing else."""
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
    """A msgspec type; ``fields`` are JSON's keys, each with its type and default."""
    import msgspec

    keys = {key.replace(" ", "_"): key for key in fields}
    members = [(field, *fields[key]) for field, key in keys.items()]
    return msgspec.defstruct(name, members, rename=keys, gc=False)


def floor(path: str) -> None:
    """Every byte of the file brought into memory once, a piece of 4 MiB after the other."""
    piece = bytearray(4 << 20)
    with Path(path).open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass


READERS: Mapping[str, Callable[[str], Any]] = {
    reader.__name__: reader
    for reader in (
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
    held = READERS[sys.argv[1]](sys.argv[2])
    sys.stdout.flush()
    os._exit(0)
