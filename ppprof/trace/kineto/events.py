"""Convert Kineto's JSON, which ``torch.profiler`` exports, to Paddle's terms.

Kineto writes a flat list of events. Here they become the tree of a Paddle trace::

    Kineto                                        category
    ProfilerStep#N                                ProfileStep, named ProfileStep#N
    enumerate(DataLoader)#...                     Dataloader (before torch 1.10: cat Operator)
    python_function "nn.Module: Linear_0"         Forward, named Linear as in Paddle
    DistributedDataParallel.forward               Forward, where no module was recorded
    Optimizer.step#...                            Optimization
    autograd::engine::evaluate_function: XBack..  Operator; an unbroken run of them: Backward
      the XBackward directly inside               OperatorInner, as Paddle's Local_XGradNode
    c10d::..., record_param_comms, nccl:...       Communication; one inside another: OperatorInner
    record_param_comms of a wait                  PythonUserDefined record_param_comms.wait
    other cpu_op                                  Operator, at any depth
    other user_annotation                         PythonUserDefined
    cuda_runtime, cuda_driver, ...                CudaRuntime
    kernel, gpu_memcpy, gpu_memset                Kernel, Memcpy, Memset
    any other cat, with a stream or a device      the cat itself: a device event of unknown kind

An operator inside another stays an Operator, so that its row equals ``key_averages()``, and because
the innermost operator launches the kernels: the aten::addmm in an aten::linear does, aten::linear
does not. An operator that is the only child of an event with the same name is a layer of its
parent. Such a layer is left out, as in ``key_averages()``.

An operator records the number that its thread will give to the next node of the backward pass. A
node records its own number and the thread that gave it. So the operator that made each node is
known (`forwards`).

Left out, and counted in ``Trace.ignored``: other python_function events (frames of the interpreter, ten per operator, which no
table counts; the long ones are in `Trace.frames`), gpu_user_annotation (copies of the host's annotations, which give steps if the host has none), cuda_sync and overhead (no work of
the model; the latter are in `Trace.overheads`), flows (correlation ids and sequence numbers hold the same links), Trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from ppprof.trace.json.values import drop_nonportable_numbers
from ppprof.trace.kineto.collectives import annotations_of, rank_lists, with_annotations
from ppprof.trace.kineto.columns import KinetoColumns
from ppprof.trace.kineto.host_tree import (
    backward_calls,
    backward_events,
    categorised,
    forwards,
    nested,
    slack_of,
    with_called,
    with_caller,
    with_parent,
    with_threads,
)
from ppprof.trace.kineto.joins import first_rows, looked_up, mapped, per_text, sorted_by
from ppprof.trace.kineto.names import DEVICE_TYPES, DEVICES
from ppprof.trace.kineto.step_marks import Device, with_marked_steps
from ppprof.trace.schema import (
    EVENTS,
    FRAMES,
    KERNELS,
    MEMORY,
    MEMSETS,
    OVERHEADS,
    Note,
    Trace,
    conform,
    empty,
    nullable,
    with_pieces,
)
from ppprof.trace.steps import single_steps, steps_of

_FOREVER_NS = 2**62
"""Upper limit of ``baseTimeNanoseconds`` (the year 2116): no time may overflow an int64."""


def kineto_trace(
    head: Mapping[str, Any], columns: KinetoColumns, step_mark: str | None = None
) -> Trace:
    """Return the trace of one Kineto file.

    Args:
        head: the file's top level without ``traceEvents``.
        columns: the events; empty afterwards.
        step_mark: a regular expression for the names of spans that begin steps; None for
            ProfilerStep or, without any, marks that `ppprof.trace.kineto.step_marks` finds.

    Returns:
        The trace, in nanoseconds since 1970; exact if the file records nanoseconds (until torch
        2.3: microseconds). ``extra_info`` holds thread id -> name and, if the file has them, rank,
        world_size, backend and host_name. ``skipped`` counts events without a usable time, process
        or thread. Values that Kineto does not record stay null or empty: CPU utilisation, memsets'
        values.
    """
    base_ns = head.get("baseTimeNanoseconds")
    if not isinstance(base_ns, int) or not 0 <= base_ns < _FOREVER_NS:
        base_ns = 0  # as until torch 2.3
    tables = columns.tables(base_ns)
    information = head.get("distributedInfo")
    information = information if isinstance(information, Mapping) else {}
    host_annotations, device_annotations = (
        annotations_of(columns.table(f"{kind} collectives"), rank_lists(information))
        for kind in ("host", "device")
    )

    devices = tables.pop("devices")
    hosts, launches, memory = with_threads(
        *(tables.pop(kind) for kind in ("hosts", "launches", "memory"))
    )
    slack_ns = slack_of(hosts)
    recorded = hosts["name"]
    hosts = categorised(hosts).with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    hosts, notes = single_steps(hosts)
    device = Device(devices, columns.table("annotations", base_ns).drop_nulls())
    hosts, marks = with_marked_steps(hosts, launches, step_mark, device, recorded)
    del device, recorded
    backward = backward_events(hosts, slack_ns)
    calls = backward_calls(backward, hosts)
    hosts = pl.concat([with_called(backward, calls, hosts), hosts], how="diagonal")
    # Before events move from an engine's thread to its caller: each thread counts its own nodes.
    numbered = columns.table("sequences")
    rows = first_rows(hosts["index"], numbered["index"])
    counters = pl.Series("counter", np.append(hosts["key"].to_numpy(), -1)[rows])
    numbered = numbered.with_columns(counters).filter(pl.Series(rows >= 0))
    hosts, launches, memory = (with_caller(table, calls) for table in (hosts, launches, memory))
    num_hosts = hosts.height
    hosts = nested(hosts, slack_ns)
    columns.ignored["operators inside one of the same name"] += num_hosts - hosts.height
    forward = forwards(hosts, numbered)
    hosts = with_annotations(hosts, host_annotations, slack_ns)
    inputs = columns.table("inputs")
    hosts = hosts.with_columns(
        looked_up(inputs.drop("index"), first_rows(inputs["index"], hosts["index"]))
    )
    memory = memory_table(with_parent(hosts, memory))
    launches = with_parent(hosts, launches)
    launches = sorted_by(launches, launches["parent"].fill_null(-1).to_numpy()).with_columns(
        row=pl.int_range(hosts.height, hosts.height + pl.len(), dtype=pl.Int32),
        category=pl.lit("CudaRuntime", pl.Categorical()),
    )
    devices = device_events(devices, launches, device_annotations)
    kernels = kernel_table(devices, first_device=hosts.height + launches.height)
    forward = forward.extend_constant(None, launches.height + devices.height)
    # A correlation id marks a launch, so every launch needs one.
    launches = launches.with_columns(correlation_id=pl.col("correlation").fill_null(0))
    launches = launches.drop("row", "index", "key", "cat", "correlation")
    parts = [hosts, launches, devices]
    del hosts, launches, devices
    events = _joined(parts)
    overheads = conform(columns.table("overheads", base_ns), OVERHEADS)
    return Trace(
        events=with_pieces(events, steps_of(events).alias("step"), forward.alias("forward")),
        memory=memory,
        kernels=kernels,
        memsets=empty(MEMSETS),
        frames=conform(columns.table("frames", base_ns), FRAMES).drop_nulls(),
        overheads=overheads.drop_nulls().filter(pl.col("dur_ns") >= 0),
        extra_info={
            **_named(
                columns.thread_names, *map(str, events["thread"].drop_nulls().unique().sort())
            ),
            **_named(information, "rank", "world_size", "backend"),
            **_named(head, "host_name"),
        },
        devices=tuple(device_properties(head.get("deviceProperties"))),
        skipped=dict(columns.skipped),
        ignored=dict(columns.ignored),
        notes=notes + marks + _dropped(head),
        has_derived_steps=bool(marks),
        has_format_of_kineto=True,
    )


_DROPPED = re.compile(r"Dropped (\d{1,18}) activity records")
"""A warning of Kineto. Source: libkineto/src/CuptiActivityApi.cpp; log lines become keys of the file."""


def _dropped(head: Mapping[str, Any]) -> tuple[Note, ...]:
    """Return a note with the number of records of the device that Kineto's log says are lost."""
    num = sum(map(int, _DROPPED.findall(str(head.get("WARNING")))))
    return (("dropped", {"num": num}),) if num else ()


def _joined(tables: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of all tables, with the columns of `EVENTS`.

    A column that is null in all rows takes no memory before it is used. The tables are freed column
    by column: ``tables`` is empty afterwards.
    """
    columns: dict[str, pl.Series] = {}
    heights = [table.height for table in tables]
    parts = [{name: table[name] for name in table.columns if name in EVENTS} for table in tables]
    tables.clear()
    for name, (dtype, _) in EVENTS.items():
        values = [part.pop(name, None) for part in parts]
        if any(part is not None and part.null_count() < len(part) for part in values):
            columns[name] = pl.concat(
                [
                    pl.repeat(None, height, dtype=dtype, eager=True)
                    if part is None
                    else part.cast(dtype)
                    for part, height in zip(values, heights)
                ]
            ).alias(name)
    return conform(pl.DataFrame(columns), EVENTS) if columns else empty(EVENTS)


def _named(values: Mapping[str, Any], *keys: str) -> dict[str, str]:
    return {key: str(values[key]) for key in keys if key in values}


def device_events(
    devices: pl.DataFrame, launches: pl.DataFrame, annotations: pl.DataFrame
) -> pl.DataFrame:
    """Return the device events with their category, annotations and launch, sorted by launch.

    ``parent`` is the row of the launch. It is null for device events without a recorded launch,
    which come last.

    Args:
        devices: the table ``devices`` of `KinetoColumns.tables`.
        launches: reads correlation and row, the launch's row in the events table.
        annotations: the result of `_annotations` for device events.
    """
    launch = first_rows(launches["correlation"], devices["correlation"])
    parent = np.append(launches["row"].to_numpy(), np.int32(-1))[launch]
    annotated = looked_up(
        annotations.drop("index"), first_rows(annotations["index"], devices["index"])
    )
    if annotated.width:
        devices = devices.with_columns(
            annotated.drop("bytes"), bytes=devices["bytes"].fill_null(annotated["bytes"])
        )
    devices = devices.with_columns(
        parent=nullable(parent),
        category=mapped(devices["cat"], DEVICES),
        # Until torch 1.11 some events lack device and stream in their args.
        device=pl.coalesce("device", "process"),
        stream=pl.coalesce("stream", "thread"),
        correlation_id="correlation",
    ).drop("index", "cat", "process", "thread", "correlation")
    return sorted_by(devices, np.where(parent < 0, np.iinfo(np.int32).max, parent))


def kernel_table(devices: pl.DataFrame, first_device: int) -> pl.DataFrame:
    """Return the launch configurations of kernels, with the columns of `KERNELS`.

    Kernels whose grid is not recorded, such as those of ROCm, have no row.

    Args:
        devices: the device events in their final order.
        first_device: row of the first device event in the events table.
    """
    per_sm = pl.col("blocks_per_sm", "warps_per_sm", "occupancy")
    columns = [name for name in KERNELS if name in devices.columns]
    table = (
        devices.select("grid", "block", *columns)
        .with_row_index("event", offset=first_device)
        .filter(devices["category"] == "Kernel", devices["grid"].is_not_null())
    )
    table = (
        table.with_columns(*_sizes(table["grid"]), *_sizes(table["block"]))
        .with_columns(pl.when(per_sm.is_finite()).then(per_sm))
        .with_columns(occupancy=pl.col("occupancy") / 100)
        .drop_nulls("grid_x")
    )
    return conform(table, KERNELS)


def _sizes(texts: pl.Series) -> pl.DataFrame:
    """Return the sizes along x, y and z in each text, such as ``[4, 1, 1]``."""
    three = r"\[(\d+), ?(\d+), ?(\d+)\]"
    return per_text(
        texts,
        **{
            f"{texts.name}_{axis}": pl.col("text")
            .str.extract(three, number)
            .cast(pl.Int64, strict=False)
            for number, axis in enumerate("xyz", start=1)
        },
    )


def memory_table(memory: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations and frees, with the columns of `MEMORY`.

    Kineto records no peaks. So a peak is the highest value so far in this window, per process and
    place.

    Args:
        memory: memory events with ``parent``, from `with_parent`.
    """
    number = pl.col("device_id").cast(pl.String)
    kind = pl.col("device_type").replace_strict(
        DEVICE_TYPES, default=pl.format("device_type{}", "device_type"), return_dtype=pl.String
    )
    place = (
        pl.when(kind == "cpu")
        .then(pl.lit("Place(cpu)"))
        .otherwise(pl.format("Place({}:{})", kind, number))
    )
    table = memory.sort("start_ns", maintain_order=True).select(
        "key",
        "process",
        "thread",
        "addr",
        time_ns="start_ns",
        event="parent",
        kind=pl.when(pl.col("size") < 0).then(pl.lit("Free")).otherwise(pl.lit("Allocate")),
        place=place,
        bytes="size",
        current_allocated="allocated",
        current_reserved="reserved",
    )
    peaks = (
        pl.col(f"current_{kind}").cum_max().over("process", "place").alias(f"peak_{kind}")
        for kind in ("allocated", "reserved")
    )
    return conform(table.with_columns(*peaks).sort("key", maintain_order=True), MEMORY)


def device_properties(properties: Any) -> Iterator[Mapping[str, object]]:
    """Yield each device's properties with Paddle's keys: ``smCount`` instead of ``numSms``."""
    for item in properties if isinstance(properties, list) else ():
        if isinstance(item, dict):
            values = drop_nonportable_numbers(item)
            yield {"smCount" if key == "numSms" else key: value for key, value in values.items()}
