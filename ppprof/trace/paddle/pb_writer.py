"""Write traces as Paddle's ``.pb``, which ``paddle.profiler.load_profiler_result`` loads.

Field numbers: paddle/fluid/platform/profiler/dump/nodetree.proto. Paddle's fields are required, so
a missing value is written as 0 or as empty text. Events outside of every host event hang under the
root node of their thread. Event types that Paddle's loader cannot name are written by their number;
Paddle refuses such a file, ppprof reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from ppprof.arrays import Int64
from ppprof.paths import atomic_writer, to_path
from ppprof.trace.annotations import annotated_names, has_annotations
from ppprof.trace.fastpath.protobuf_encode import ByteStrings, Field, encode, header
from ppprof.trace.operator_inputs import INPUT_KEYS, SOURCE, TARGET, memory_of_copy
from ppprof.trace.paddle.pb_inputs import encode_dtypes, encode_shapes
from ppprof.trace.paddle.pb_messages import DEVICE_PROPERTIES
from ppprof.trace.schema import CATEGORIES, KERNELS, MEMORY_KINDS, Trace

_ROWS = 1 << 14
"""Host events per chunk: few enough that the indices of their bytes fit in memory."""
_ROOT_NAME = "root node"
_ROOT_END_NS = 2**64 - 1
_NO_TEXT = ByteStrings.of([""])


def write_paddle_pb(trace: Trace, path: str | Path) -> Mapping[str, int]:
    """Write one trace; the file appears under its name when it is complete and on disk.

    Returns:
        Kind -> number of values that the format cannot hold, empty if nothing was omitted. The
        kinds are device events without a known launch, since the format stores a device event
        inside its launch; annotations that a name cannot hold; links from gradients to their
        forward events; attributes of operators; and shapes or dtypes in another form than Paddle's.

    Raises:
        OSError: the file cannot be written.
    """
    annotated = annotated_names(trace.events)
    with atomic_writer(to_path(path)) as file:
        for part in _parts(trace, annotated):
            file.write(part)
    is_device = pl.col("device").is_not_null()
    counts = trace.events.select(
        (is_device & pl.col("parent").is_null()).sum().alias("device events without a launch"),
        (has_annotations().sum() - annotated.height).alias("event annotations"),
        pl.col("forward").count().alias("links from gradients to forward events"),
        pl.col("attributes").filter(~is_device).count().alias("operators' attributes"),
    ).row(0, named=True)
    counts["inputs of operators"] = _num_without_message(trace.events)
    return {kind: count for kind, count in counts.items() if count}


def _num_without_message(events: pl.DataFrame) -> int:
    """Return the number of shapes and dtypes that are not of the form of Paddle's messages."""
    num = 0
    for column, encode_text in (("shapes", encode_shapes), ("dtypes", encode_dtypes)):
        for text, count in events[column].drop_nulls().value_counts().iter_rows():
            num += count if encode_text(str(text)) is None else 0
    return num


def _parts(trace: Trace, annotated: pl.DataFrame) -> Iterator[bytes]:
    yield _encode_one(
        Field(1, ByteStrings.of([trace.version])), Field(2, np.array([trace.span], np.int64))
    )
    for thread, nodes in _threads(trace, annotated):
        body = [_encode_one(Field(1, np.array([thread], np.int64))), *nodes]
        yield from _message(3, body)
    for key, value in trace.extra_info.items():
        yield from _message(
            4, [_encode_one(Field(1, ByteStrings.of([key])), Field(2, ByteStrings.of([value])))]
        )
    for device in trace.devices:
        numbers = {"id": 1, **DEVICE_PROPERTIES}
        fields = {
            number: Field(number, np.array([_integer(device.get(key))], np.int64))
            for key, number in numbers.items()
        }
        fields[2] = Field(2, ByteStrings.of([str(device.get("name", ""))]))
        yield from _message(5, [_encode_one(*(fields[number] for number in sorted(fields)))])


def _threads(trace: Trace, annotated: pl.DataFrame) -> Iterator[tuple[int, list[bytes]]]:
    """Yield each thread's id and its nodes, the root first, as fields of the thread's message.

    ``annotated`` holds the names that replace those of host events (`annotated_names`).
    """
    events = trace.events.with_row_index("row").cast({"row": pl.Int32})
    is_device = pl.col("device").is_not_null()
    is_launch = is_device.not_() & pl.col("correlation_id").is_not_null()
    hosts = events.filter(is_device.not_() & is_launch.not_())
    hosts = hosts.join(annotated, on="row", how="left", maintain_order="left").with_columns(
        name=pl.coalesce("annotated", pl.col("name").cast(pl.String))
    )
    launches = events.filter(is_launch)
    devices = _devices(trace, events.filter(is_device & pl.col("parent").is_not_null()))
    memory = trace.memory.rename({"event": "parent"})
    threads = pl.concat([table["thread"] for table in (hosts, launches, memory)])
    for thread in threads.unique().sort():
        in_thread = pl.col("thread") == thread
        calls, changes, own = (table.filter(in_thread) for table in (launches, memory, hosts))
        first = int(own["row"][0]) if own.height else 0
        outside = pl.col("parent").is_null()
        nodes = [_nodes(_root(), calls.filter(outside), changes.filter(outside), devices, first)]
        for part in own.iter_slices(_ROWS):
            inside = pl.col("parent").is_between(part["row"][0], part["row"][-1])
            nodes.append(_nodes(part, calls.filter(inside), changes.filter(inside), devices, first))
        yield thread, nodes


def _root() -> pl.DataFrame:
    return pl.DataFrame(
        {
            **{"row": [-1], "name": [_ROOT_NAME], "category": ["UserDefined"]},
            **{"start_ns": [0], "end_ns": [_ROOT_END_NS], "process": [0], "thread": [0]},
        },
        schema_overrides={"end_ns": pl.UInt64},
    )


def _nodes(
    hosts: pl.DataFrame,
    launches: pl.DataFrame,
    memory: pl.DataFrame,
    devices: pl.DataFrame,
    first: int,
) -> bytes:
    """Return the encoded nodes of ``hosts``, which are the root or host events of one thread.

    The id of the root is 0. The id of the thread's first host event, whose row is ``first``, is 1.
    """
    is_root = bool(hosts["row"][0] == -1)
    rows = hosts["row"].to_numpy()
    ids = np.zeros(1, np.int64) if is_root else rows - first + 1
    if is_root:
        parents = np.full(1, -1, np.int64)
    else:
        parents = (hosts["parent"] - (first - 1)).fill_null(0).to_numpy()
    ends = (
        hosts["end_ns"].to_numpy() if is_root else (hosts["start_ns"] + hosts["dur_ns"]).to_numpy()
    )
    event = encode(
        hosts.height,
        [
            Field(1, _texts(hosts["name"])),
            Field(2, _types(hosts["category"])),
            Field(3, hosts["start_ns"].to_numpy()),
            Field(4, ends),
            Field(5, _numbers(hosts["process"])),
            Field(6, _numbers(hosts["thread"])),
        ],
    )
    launches = launches.sort("parent", maintain_order=True)
    memory = memory.sort("parent", maintain_order=True)
    owners = [
        np.zeros(table.height, np.int64)
        if is_root
        else np.searchsorted(rows, table["parent"].to_numpy())
        for table in (launches, memory)
    ]
    node = encode(
        hosts.height,
        [
            Field(1, ids),
            Field(2, parents),
            Field(3, event),
            Field(4, _launches(launches, devices), owners[0]),
            Field(5, encode(memory.height, [Field(1, _memory(memory))]), owners[1]),
            *([] if is_root else [_inputs(hosts)]),
        ],
    )
    return encode(1, [Field(2, node, np.zeros(hosts.height, np.int64))]).buffer.tobytes()


def _inputs(hosts: pl.DataFrame) -> Field:
    """Return the nodes with the inputs of those host events that have any."""
    has_inputs = hosts.select(pl.any_horizontal(pl.col(list(INPUT_KEYS)).is_not_null()))
    owner = np.flatnonzero(has_inputs.to_series().to_numpy())
    own = hosts[owner]
    supplement = encode(
        own.height,
        [
            Field(1, own["start_ns"].to_numpy()),
            Field(2, _texts(own["name"])),
            Field(3, _numbers(own["process"])),
            Field(4, _numbers(own["thread"])),
            Field(5, _encoded(own["shapes"], encode_shapes)),
            Field(6, _encoded(own["dtypes"], encode_dtypes)),
            Field(7, _texts(own["callstack"])),
            Field(8, np.zeros(own.height, np.int64)),
        ],
    )
    return Field(6, encode(own.height, [Field(1, supplement)]), owner)


def _encoded(column: pl.Series, encode_text: Callable[[str], bytes | None]) -> ByteStrings:
    texts = column.cast(pl.String).fill_null("{}")
    distinct = texts.unique(maintain_order=True).to_list()
    numbers = {text: number for number, text in enumerate(distinct)}
    messages = [encode_text(text) or b"" for text in distinct]
    return ByteStrings.of(messages)[_numbered(texts, numbers)]


def _launches(launches: pl.DataFrame, devices: pl.DataFrame) -> ByteStrings:
    started = launches.select(parent="row", owner=pl.int_range(pl.len()))
    inside = devices.join(started, on="parent", maintain_order="right_left")
    event = encode(
        launches.height,
        [
            Field(1, _texts(launches["name"])),
            Field(2, launches["start_ns"].to_numpy()),
            Field(3, (launches["start_ns"] + launches["dur_ns"]).to_numpy()),
            Field(4, _numbers(launches["process"])),
            Field(5, _numbers(launches["thread"])),
            Field(6, _numbers(launches["correlation_id"])),
            Field(7, np.zeros(launches.height, np.int64)),
        ],
    )
    device = encode(inside.height, [Field(1, _device_events(inside))])
    return encode(launches.height, [Field(1, event), Field(2, device, inside["owner"].to_numpy())])


def _devices(trace: Trace, devices: pl.DataFrame) -> pl.DataFrame:
    return devices.join(
        trace.kernels.rename({"event": "row"}), on="row", how="left", maintain_order="left"
    ).join(trace.memsets.rename({"event": "row"}), on="row", how="left", maintain_order="left")


def _device_events(devices: pl.DataFrame) -> ByteStrings:
    category = devices["category"].cast(pl.String)
    is_kernel = devices["grid_x"].is_not_null().to_numpy()
    is_memset = devices["value"].is_not_null().to_numpy()
    is_memcpy = devices["bytes"].is_not_null().to_numpy() & ~is_memset
    kernels, copies, sets = (np.flatnonzero(chosen) for chosen in (is_kernel, is_memcpy, is_memset))
    numbers = {
        name: _numbers(devices[name][rows])
        for rows, names in ((kernels, KERNELS), (sets, ("value",)))
        for name in names
        if name in devices.columns and devices[name].dtype == pl.Int64
    }
    axes = [f"{side}_{axis}" for side in ("block", "grid") for axis in "xyz"]
    zeros = np.zeros(len(kernels), np.int64)
    kernel_info = encode(
        len(kernels),
        [
            *(Field(number, numbers[name]) for number, name in enumerate(axes, 1)),
            Field(7, zeros),
            Field(8, numbers["shared_bytes"]),
            Field(9, numbers["registers"]),
            *(Field(number, zeros) for number in range(10, 15)),
            *(
                Field(number, _single(devices[name][kernels]))
                for number, name in enumerate(("blocks_per_sm", "warps_per_sm", "occupancy"), 15)
            ),
        ],
    )
    copy_info = encode(
        len(copies),
        [
            Field(1, _numbers(devices["bytes"][copies])),
            Field(2, _NO_TEXT[np.zeros(len(copies), np.int64)]),
            *(
                Field(number, _texts(memory_of_copy(devices["attributes"][copies], side)))
                for number, side in enumerate((SOURCE, TARGET), 3)
            ),
        ],
    )
    set_info = encode(
        len(sets),
        [
            Field(1, _numbers(devices["bytes"][sets])),
            Field(2, _NO_TEXT[np.zeros(len(sets), np.int64)]),
            Field(3, numbers["value"]),
        ],
    )
    return encode(
        devices.height,
        [
            Field(1, _texts(devices["name"])),
            Field(2, _types(category)),
            Field(3, devices["start_ns"].to_numpy()),
            Field(4, (devices["start_ns"] + devices["dur_ns"]).to_numpy()),
            *(
                Field(number, _numbers(devices[name]))
                for number, name in enumerate(("device", "context", "stream", "correlation_id"), 5)
            ),
            Field(9, kernel_info, kernels),
            Field(10, copy_info, copies),
            Field(11, set_info, sets),
        ],
    )


def _memory(memory: pl.DataFrame) -> ByteStrings:
    kinds = {kind: number for number, kind in enumerate(MEMORY_KINDS)}
    numbers = ("current_allocated", "current_reserved", "peak_allocated", "peak_reserved")
    return encode(
        memory.height,
        [
            Field(1, memory["time_ns"].to_numpy()),
            Field(2, _numbered(memory["kind"], kinds)),
            Field(3, memory["addr"].fill_null(0).to_numpy()),
            Field(4, _numbers(memory["process"])),
            Field(5, _numbers(memory["thread"])),
            Field(6, _numbers(memory["bytes"])),
            Field(7, _texts(memory["place"])),
            *(Field(number, _numbers(memory[name])) for number, name in enumerate(numbers, 8)),
        ],
    )


def _texts(column: pl.Series) -> ByteStrings:
    texts = column.cast(pl.String).fill_null("")
    distinct = texts.unique(maintain_order=True)
    numbers = {text: number for number, text in enumerate(distinct)}
    return ByteStrings.of(distinct.to_list())[_numbered(texts, numbers)]


def _types(column: pl.Series) -> Int64:
    distinct = column.unique().cast(pl.String).to_list()
    return _numbered(column, {name: _type_number(name) for name in distinct})


def _type_number(category: str) -> int:
    """Return the number of a category, also of ``Type99``, which has no name in this version.

    A category without a number becomes UserDefined.

    >>> _type_number("Type99")
    99
    """
    if category in CATEGORIES:
        return CATEGORIES.index(category)
    digits = category[len("Type") :]
    is_number = category.startswith("Type") and digits.isdecimal()
    return int(digits) if is_number else CATEGORIES.index("UserDefined")


def _numbered(column: pl.Series, numbers: dict[str, int]) -> Int64:
    replaced = column.cast(pl.String).replace_strict(numbers, default=0, return_dtype=pl.Int64)
    values: Int64 = replaced.to_numpy()
    return values


def _numbers(column: pl.Series) -> Int64:
    values: Int64 = column.fill_null(0).to_numpy()
    return values


def _single(column: pl.Series) -> npt.NDArray[np.float32]:
    """Return the column as float32: NaN for null, infinite for values that are too large."""
    with np.errstate(over="ignore"):
        return column.fill_null(np.nan).to_numpy().astype(np.float32)


def _integer(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


def _encode_one(*fields: Field) -> bytes:
    """Return the bytes of one message with these fields."""
    return encode(1, fields).buffer.tobytes()


def _message(number: int, body: list[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a message, as the field ``number``, in parts: one message may be most of the file."""
    yield header(number, sum(map(len, body)))
    yield from body
