"""Convert Kineto's JSON, which ``torch.profiler`` exports, to Paddle's terms.

Kineto writes a flat list of events. Here they become the tree of a Paddle trace::

    Kineto                                        category
    ProfilerStep#N                                ProfileStep, named ProfileStep#N
    enumerate(DataLoader)#...                     Dataloader
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
known (`_forwards`).

Left out, and counted in ``Trace.ignored``: other python_function events (frames of the interpreter, ten per operator, which no
table counts; the long ones are in `Trace.frames`), gpu_user_annotation (copies of the host's annotations), cuda_sync and overhead (no work of
the model), flows (correlation ids and sequence numbers hold the same links), Trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.trace.communication_names import TORCH_SPANS
from ppprof.trace.json.values import drop_nonportable_numbers
from ppprof.trace.kineto.columns import KinetoColumns, KinetoEvent
from ppprof.trace.kineto.terms import (
    DDP,
    DEVICES,
    EVALUATE,
    MODULE,
    OPERATORS,
    PLACES,
    SCALAR_TYPES,
    STEP,
)
from ppprof.trace.nesting import nest
from ppprof.trace.schema import (
    EVENTS,
    KERNELS,
    MEMORY,
    MEMSETS,
    Trace,
    conform,
    empty,
    nullable,
)
from ppprof.trace.step_numbers import steps_of
from ppprof.trace.tree_arrays import pre_order

_FOREVER_NS = 2**62
"""Upper limit of ``baseTimeNanoseconds`` (the year 2116): no time may overflow an int64."""


def kineto_trace(head: Mapping[str, Any], batches: Iterable[list[KinetoEvent]]) -> Trace:
    """Return the trace of one Kineto file.

    Args:
        head: the file's top level without ``traceEvents``. It is read after the last batch, so keys
            that stand behind the events may be added while the batches are read.
        batches: ``traceEvents`` in their order, in lists of any length.

    Returns:
        The trace, in nanoseconds since 1970; exact if the file records nanoseconds (until torch
        2.3: microseconds). ``extra_info`` holds thread id -> name and, if the file has them, rank,
        world_size, backend and host_name. ``skipped`` counts events without a usable time, process
        or thread. Values that Kineto does not record stay null or empty: CPU utilisation, memsets'
        values.
    """
    columns = KinetoColumns.from_batches(batches)
    base_ns = head.get("baseTimeNanoseconds")
    if not isinstance(base_ns, int) or not 0 <= base_ns < _FOREVER_NS:
        base_ns = 0  # as until torch 2.3
    tables = columns.tables(base_ns)
    information = head.get("distributedInfo")
    information = information if isinstance(information, Mapping) else {}
    host_annotations, device_annotations = (
        _annotations(columns.collectives(kind), _rank_lists(information))
        for kind in ("hosts", "devices")
    )

    hosts, launches, memory = _with_threads(
        *(tables[kind] for kind in ("hosts", "launches", "memory"))
    )
    slack_ns = _slack_ns(hosts)
    hosts = _categorised(hosts).with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    backward = _backward(hosts, slack_ns)
    calls = _backward_calls(backward, hosts)
    hosts = pl.concat([backward, hosts], how="diagonal")
    # Before events move from an engine's thread to its caller: each thread counts its own nodes.
    numbered = columns.sequences().join(hosts.select("index", counter="key"), on="index")
    hosts, launches, memory = (_with_caller(table, calls) for table in (hosts, launches, memory))
    num_hosts = hosts.height
    hosts = _nested(hosts, slack_ns)
    columns.ignored["operators inside one of the same name"] += num_hosts - hosts.height
    forward = _forwards(hosts, numbered)
    hosts = _with_annotations(hosts, host_annotations, slack_ns)
    hosts = hosts.join(columns.inputs(), on="index", how="left", maintain_order="left")
    launches, memory = _with_parent(hosts, launches), _with_parent(hosts, memory)
    launches = (
        launches.sort("parent", "index")
        .with_row_index("row", offset=hosts.height)
        .with_columns(pl.col("row").cast(pl.Int64), category=pl.lit("CudaRuntime"))
    )
    devices = _device_events(tables["devices"], launches, device_annotations)
    forward = forward.extend_constant(None, launches.height + devices.height)
    # A correlation id marks a launch, so every launch needs one.
    launches = launches.with_columns(correlation_id=pl.col("correlation").fill_null(0))
    events = pl.concat([hosts, launches, devices], how="diagonal_relaxed").with_columns(
        end_ns=pl.col("start_ns") + pl.col("dur_ns")
    )
    return Trace(
        events=conform(events.with_columns(step=steps_of(events), forward=forward), EVENTS),
        memory=_memory(memory),
        kernels=_kernels(devices, first_device=hosts.height + launches.height),
        memsets=empty(MEMSETS),
        frames=columns.frames(base_ns),
        extra_info={
            **_named(
                columns.thread_names, *map(str, events["thread"].drop_nulls().unique().sort())
            ),
            **_named(information, "rank", "world_size", "backend"),
            **_named(head, "host_name"),
        },
        devices=tuple(_devices(head.get("deviceProperties"))),
        skipped=dict(columns.skipped),
        ignored=dict(columns.ignored),
    )


def _rank_lists(information: Mapping[str, Any]) -> Mapping[int, str]:
    """Return the number of each process group -> its global ranks, such as '0,1'.

    ``information`` is the file's ``distributedInfo``. Groups without ranks, and groups whose name
    is not a number, are left out.
    """
    groups = information.get("pg_config")
    rank_lists = {}
    for group in groups if isinstance(groups, list) else ():
        name, ranks = (
            group.get(key) if isinstance(group, dict) else None for key in ("pg_name", "ranks")
        )
        if re.fullmatch(r"\d{1,18}", str(name)) and isinstance(ranks, list):
            rank_lists[int(str(name))] = ",".join(map(str, ranks))
    return rank_lists


def _annotations(table: pl.DataFrame, rank_lists: Mapping[int, str]) -> pl.DataFrame:
    """Return the annotations of collectives: ``index``, bytes, group, dtype and peers.

    ``index`` is that of ``table``. ``bytes`` is the size of this rank's input; of its output if
    there is no input. Unknown values are null.

    Args:
        table: from `KinetoColumns.collectives`.
        rank_lists: number of a process group -> its global ranks, for collectives that lack them.
    """
    num_elements = pl.when(pl.col("num_in") > 0).then("num_in").otherwise("num_out")
    scalar_type = pl.col("dtype")
    is_float8 = scalar_type.str.contains(r"^Float8_\w+$")
    dtypes = {name: dtype for name, (dtype, _) in SCALAR_TYPES.items()}
    sizes = {name: size for name, (_, size) in SCALAR_TYPES.items()}
    element_bytes = (
        pl.when(is_float8)
        .then(1)
        .otherwise(scalar_type.replace_strict(sizes, default=None, return_dtype=pl.Int64))
    )
    # Kineto cuts long lists: "[0, 1, ..., 63]".
    whole = pl.when(~pl.col("ranks").str.contains(".", literal=True)).then("ranks")
    group = pl.coalesce("group", "group_id")
    return table.select(
        "index",
        bytes=num_elements * element_bytes,
        group=group,
        dtype=pl.when(is_float8)
        .then(scalar_type.str.to_lowercase())
        .otherwise(scalar_type.replace_strict(dtypes, default=None, return_dtype=pl.String)),
        peers=pl.coalesce(
            "destination",
            "source",
            whole.str.extract(r"\[([\d, ]+)\]").str.replace_all(" ", ""),
            group.replace_strict(rank_lists, default=None, return_dtype=pl.String),
        ),
    )


def _with_threads(*tables: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield each table with ``key``, a number for each thread of each process.

    The numbers ascend by thread id, then by process id. They are the same in all tables.
    """
    threads = pl.concat([table.select("thread", "process") for table in tables]).unique()
    keys = threads.sort("thread", "process").with_row_index("key").cast({"key": pl.Int64})
    for table in tables:
        yield table.join(keys, on=["thread", "process"], maintain_order="left")


def _nested(hosts: pl.DataFrame, slack_ns: int) -> pl.DataFrame:
    """Return the host events in pre-order, with parent and depth.

    Duplicates (`_is_duplicate`) are left out. A node inside its own evaluate_function becomes
    OperatorInner.
    """
    hosts = hosts.sort("key", "start_ns", -pl.col("dur_ns"), "index", maintain_order=True)
    hosts = hosts.filter(~_is_duplicate(hosts, _nest(hosts, slack_ns)))
    parent = _nest(hosts, slack_ns)
    _, depth = pre_order(parent)
    above = hosts["name"].gather(nullable(parent))
    return hosts.with_columns(
        parent=nullable(parent),
        depth=pl.Series(depth.astype(np.int32)),
        category=pl.when(pl.lit(above) == EVALUATE + pl.col("name"))
        .then(pl.lit("OperatorInner"))
        .otherwise("category"),
    )


def _forwards(hosts: pl.DataFrame, numbered: pl.DataFrame) -> pl.Series:
    """Return the row of the operator that made each node of the backward pass; null if unknown.

    Each thread counts the nodes it makes. Until a node is made, all operators record its number. So
    the last operator with a number made that node::

        aten::linear 7                      evaluate_function: AddmmBackward0 8
          aten::t 7      makes node 7         AddmmBackward0 8
          aten::addmm 8  makes node 8       evaluate_function: TBackward0 7

    Nodes that sum up gradients (AccumulateGrad) have no number. A node names the thread that
    counted it, by a number that torch gives to threads and no other event holds. The thread with
    this number is taken to be the one that recorded the most sequence numbers of such nodes. If
    several threads recorded equally many, the operators are unknown.

    Args:
        hosts: N rows; reads index and start_ns.
        numbered: index, sequence, forward_thread (0 for events that are not nodes) and counter, the
            thread that counts the nodes made in the event.

    Returns:
        int64, shape (N,).

    Source: generateForwardBackwardLink in torch/csrc/profiler/collection.cpp.
    """
    numbered = (
        hosts.select("index", "start_ns", row=pl.int_range(pl.len()))
        .join(numbered, on="index", maintain_order="left")
        .drop_nulls("sequence")
    )
    is_node = (pl.col("forward_thread") > 0).fill_null(False)
    makers = (
        numbered.filter(~is_node)
        .sort("start_ns", maintain_order=True)
        .unique(["counter", "sequence"], keep="last")
        .select("counter", "sequence", forward="row", begun_ns="start_ns")
    )
    links = (
        numbered.filter(is_node)
        .select("forward_thread", "sequence", "row", "start_ns")
        .join(makers, on="sequence")
        .filter(pl.col("begun_ns") < pl.col("start_ns"))
    )
    counters = links.group_by("forward_thread", "counter").len()
    most = pl.col("len") == pl.col("len").max().over("forward_thread")
    counters = counters.filter(most).filter(pl.len().over("forward_thread") == 1)
    links = links.join(counters, on=["forward_thread", "counter"], how="semi")
    forward = np.full(hosts.height, -1, np.int64)
    forward[links["row"].to_numpy()] = links["forward"].to_numpy()
    return nullable(forward)


def _is_duplicate(hosts: pl.DataFrame, parent: Int64) -> pl.Series:
    """Return a mask of the operators that are the only child of an event with the same name.

    The dispatcher passes through several layers under one name. ``key_averages()`` also counts
    these layers as one call (``_remove_dup_nodes`` of torch/autograd/profiler_util.py).
    """
    num_children = np.bincount(parent[parent >= 0], minlength=len(parent))
    above = hosts["name"].gather(nullable(parent))
    is_same = ((hosts["name"] == above) & (hosts["category"] == "Operator")).fill_null(False)
    return is_same & pl.Series((parent >= 0) & (num_children[parent] == 1))


def _slack_ns(hosts: pl.DataFrame) -> int:
    """Return 1000 if all times are in whole microseconds, as until torch 2.3; else 0."""
    is_whole = hosts.select((pl.col("start_ns", "dur_ns") % 1000 == 0).all()).row(0)
    return 1000 if all(is_whole) else 0


def _nest(hosts: pl.DataFrame, slack_ns: int, holds: pl.Series | None = None) -> Int64:
    thread, start, end = (hosts[column].to_numpy() for column in ("key", "start_ns", "end_ns"))
    return nest(
        thread, start, end, holds=None if holds is None else holds.to_numpy(), slack_ns=slack_ns
    )


def _categorised(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return the events with ``category``, and with ``name`` as Paddle gives it.

    The category follows from ``cat`` and the recorded name, which becomes the column ``recorded``.
    """
    name = pl.col("name")
    is_module = pl.col("cat") == "python_function"
    kinds = hosts.select("cat", name.alias("recorded")).unique()
    has_modules = kinds.select(is_module.any()).item()
    name = pl.col("recorded")
    rules = {
        "ProfileStep": name.str.starts_with(STEP),
        "Forward": is_module | (name == DDP) & (not has_modules),
        "Communication": name.str.contains(TORCH_SPANS),
        "Operator": pl.col("cat").is_in(list(OPERATORS)),
        "Optimization": name.str.starts_with("Optimizer.step#"),
        "Dataloader": name.str.starts_with("enumerate(DataLoader)#"),
        "PythonUserDefined": pl.lit(True),
    }
    category = pl.coalesce(pl.when(rule).then(pl.lit(kind)) for kind, rule in rules.items())
    kinds = kinds.with_columns(
        category=category,
        name=name.str.replace(f"^{STEP}", "ProfileStep#").str.replace(
            rf"^{re.escape(MODULE)}(.*?)(_\d+)?$", "$1"
        ),
    )
    return hosts.rename({"name": "recorded"}).join(
        kinds, on=["cat", "recorded"], maintain_order="left"
    )


def _backward(hosts: pl.DataFrame, slack_ns: int) -> pl.DataFrame:
    """Return a Backward event around each run of autograd nodes; Kineto records no such event.

    A run belongs to one thread. It ends when the thread with the steps begins another outermost
    event, since that thread waits for the backward pass to end. In a file without steps, a run ends
    when any thread begins another outermost event::

        thread with steps   aten::mm  mse_loss                    Optimizer.step
        thread of engine                        evaluate evaluate
                                                Backward---------
    """
    is_node = hosts["name"].str.starts_with(EVALUATE)
    outside = pl.Series(_nest(hosts, slack_ns, holds=is_node) < 0)
    nodes = hosts.filter(is_node & outside).sort("key", "start_ns")
    with_steps = hosts.filter(pl.col("category") == "ProfileStep")["key"].unique()
    others = hosts.filter(outside & ~is_node)
    if len(with_steps):
        others = others.filter(pl.col("key").is_in(with_steps.to_list()))
    gaps = nodes.select(start_ns=pl.col("end_ns").shift(1, fill_value=0), end_ns="start_ns")
    is_first = nodes["key"] != nodes["key"].shift(1, fill_value=-1)
    run = (is_first | (_num_within(others["start_ns"], gaps) > 0)).cum_sum().alias("run")
    return (
        nodes.group_by(run, maintain_order=True)
        .agg(pl.col("key", "thread", "process", "start_ns").first(), pl.col("end_ns").max())
        .drop("run")
        .with_columns(
            index=pl.lit(-1, pl.Int64),
            name=pl.lit("Backward"),
            category=pl.lit("Backward"),
            dur_ns=pl.col("end_ns") - pl.col("start_ns"),
        )
    )


def _num_within(times: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """Return the number of times that lie in [start_ns, end_ns) of each span."""
    starts, ends = (spans[side].to_numpy() for side in ("start_ns", "end_ns"))
    ascending = times.sort().to_numpy()
    return pl.Series(np.searchsorted(ascending, ends) - np.searchsorted(ascending, starts))


def _backward_calls(backward: pl.DataFrame, hosts: pl.DataFrame) -> pl.DataFrame:
    """Return the Backward events on a thread of the autograd engine, with the thread that waits.

    The waiting thread is the caller. It must be the only thread with steps. A Backward event is
    left out if the caller began or ended an event meanwhile, or if another backward pass ran
    meanwhile.

    Returns:
        key, begin_ns and until_ns of the Backward event; caller_key and caller, the thread's id.
    """
    steps = hosts.filter(pl.col("category") == "ProfileStep")
    callers = steps.select(caller_key="key", caller="thread").unique()
    runs = backward.join(callers, how="cross").sort("start_ns")
    own = hosts.join(callers, left_on="key", right_on="caller_key", how="semi")
    return runs.filter(
        pl.lit(callers.height == 1),
        pl.col("key") != pl.col("caller_key"),
        _num_within(own["start_ns"], runs) == 0,
        _num_within(own["end_ns"] - 1, runs) == 0,
        _num_within(runs["start_ns"], runs) <= 1,
        pl.col("start_ns") >= pl.col("end_ns").cum_max().shift(1, fill_value=0),
    ).select("key", "caller_key", "caller", begin_ns="start_ns", until_ns="end_ns")


def _with_caller(table: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return ``table`` with the rows in a called Backward moved to the thread of its caller.

    The rows are sorted by start_ns. So the step contains all work of the backward pass, as in
    Paddle, whose backward pass runs on the calling thread. HTA's call graph also hangs the engine's
    stack below the caller's.

    Args:
        table: events; changes key and thread.
        calls: from `_backward_calls`.
    """
    joined = table.sort("start_ns").join_asof(
        calls, left_on="start_ns", right_on="begin_ns", by="key", check_sortedness=False
    )
    is_called = pl.col("start_ns") < pl.col("until_ns")
    return joined.with_columns(
        key=pl.when(is_called).then("caller_key").otherwise("key"),
        thread=pl.when(is_called).then("caller").otherwise("thread"),
    ).drop("caller_key", "caller", "begin_ns", "until_ns", strict=False)


def _with_annotations(
    hosts: pl.DataFrame, annotations: pl.DataFrame, slack_ns: int
) -> pl.DataFrame:
    """Return ``hosts`` with the annotations of each collective on its outermost event.

    Communication events inside that event become OperatorInner. The outermost event gets the sum of
    ``bytes``, and the first known group, dtype and peers of all annotations inside it.
    """
    is_collective = hosts["category"] == "Communication"
    # Only events of collectives are needed here; most events have nothing to do with them.
    rows = np.flatnonzero(is_collective | hosts["index"].is_in(annotations["index"].implode()))
    some, is_collective = hosts[rows], is_collective.gather(rows)
    is_inner = is_collective & pl.Series(_nest(some, slack_ns, holds=is_collective) >= 0)
    is_outer = is_collective & ~is_inner
    owner = np.where(is_outer, np.arange(len(rows)), _nest(some, slack_ns, holds=is_outer))
    num_bytes = pl.col("bytes")
    sums = (
        some.select("index", row=np.where(owner < 0, -1, np.append(rows, -1)[owner]))
        .join(annotations, on="index", maintain_order="left")
        .group_by("row")
        .agg(
            pl.when(num_bytes.is_not_null().any()).then(num_bytes.sum()),
            pl.col("group", "dtype", "peers").drop_nulls().first(),
        )
    )
    row = pl.int_range(pl.len())
    return (
        hosts.with_columns(
            row=row,
            category=pl.when(row.is_in(rows[is_inner]))
            .then(pl.lit("OperatorInner"))
            .otherwise("category"),
        )
        .join(sums, on="row", how="left", maintain_order="left")
        .drop("row")
    )


def _with_parent(hosts: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Return ``table`` with ``parent``: the row in ``hosts`` of the innermost enclosing event.

    ``parent`` is null for events that began outside of all host events of their thread.
    """
    start = np.concatenate((hosts["start_ns"].to_numpy(), table["start_ns"].to_numpy()))
    end = start.copy()
    end[: hosts.height] = hosts["end_ns"].to_numpy()
    thread = np.concatenate((hosts["key"].to_numpy(), table["key"].to_numpy()))
    parent = nest(thread, start, end, holds=np.arange(len(start)) < hosts.height)
    return table.with_columns(parent=nullable(parent[hosts.height :]))


def _device_events(
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
    launched = launches.drop_nulls("correlation").unique(
        "correlation", keep="first", maintain_order=True
    )
    kind = pl.col("cat").cast(pl.String).replace(DEVICES)
    return (
        devices.join(launched.select("correlation", parent="row"), on="correlation", how="left")
        .join(annotations, on="index", how="left", suffix="_annotated")
        .sort("parent", "index", nulls_last=True)
        .with_columns(
            category=kind,
            bytes=pl.coalesce("bytes", "bytes_annotated"),
            # Until torch 1.11 some events lack device and stream in their args.
            device=pl.coalesce("device", "process"),
            stream=pl.coalesce("stream", "thread"),
            correlation_id="correlation",
            process=None,
            thread=None,
        )
    )


def _kernels(devices: pl.DataFrame, first_device: int) -> pl.DataFrame:
    """Return the launch configurations of kernels, with the columns of `KERNELS`.

    Kernels whose grid is not recorded, such as those of ROCm, have no row.

    Args:
        devices: the device events in their final order.
        first_device: row of the first device event in the events table.
    """
    three = r"\[(\d+), ?(\d+), ?(\d+)\]"
    axes = [
        pl.col(side).str.extract(three, number).cast(pl.Int64, strict=False).alias(f"{side}_{axis}")
        for side in ("grid", "block")
        for number, axis in enumerate("xyz", start=1)
    ]
    per_sm = pl.col("blocks_per_sm", "warps_per_sm", "occupancy")
    table = (
        devices.with_row_index("event", offset=first_device)
        .filter(pl.col("category") == "Kernel")
        .with_columns(*axes, pl.when(per_sm.is_finite()).then(per_sm))
        .with_columns(occupancy=pl.col("occupancy") / 100)
        .drop_nulls("grid_x")
    )
    return conform(table, KERNELS)


def _memory(memory: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations and frees, with the columns of `MEMORY`.

    Kineto records no peaks. So a peak is the highest value so far in this window, per process and
    place.

    Args:
        memory: memory events with ``parent``, from `_with_parent`.
    """
    number = pl.col("device_id").cast(pl.String)
    kind = pl.col("device_type").replace_strict(
        PLACES, default=pl.format("device_type{}", "device_type"), return_dtype=pl.String
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


def _devices(properties: Any) -> Iterator[Mapping[str, object]]:
    """Yield each device's properties with Paddle's keys: ``smCount`` instead of ``numSms``."""
    for item in properties if isinstance(properties, list) else ():
        if isinstance(item, dict):
            values = drop_nonportable_numbers(item)
            yield {"smCount" if key == "numSms" else key: value for key, value in values.items()}


def _named(values: Mapping[str, Any], *keys: str) -> dict[str, str]:
    return {key: str(values[key]) for key in keys if key in values}
