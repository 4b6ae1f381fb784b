"""The summaries with a row per name: Operator, Kernel, Memory Manipulation, UserDefined and Memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl

from ppprof.analysis.efficiency.operator_work import work_of_profile
from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.grouping import STATS, grouped, ratio_of, sort_by
from ppprof.analysis.profile.profile import Profile
from ppprof.arrays import Int32
from ppprof.remote_names import REMOTE, ends_of
from ppprof.trace.labels import Labels, map_texts, rows_by_number
from ppprof.trace.operator_inputs import shapes_as_shown
from ppprof.trace.schema import is_kernel

Row = Mapping[str, Any]

OPERATORS = {
    "thread": pl.Int64(),
    "kind": pl.String(),
    **STATS,
    "cpu_ratio": pl.Float64(),
    "gpu_ratio": pl.Float64(),
    "flops": pl.Int64(),
    "node": pl.String(),
}

SPANS = {
    **STATS,
    "name": pl.Categorical(),
    "cpu_ratio": pl.Float64(),
    "gpu_ratio": pl.Float64(),
}

USER_SPANS = {**SPANS, "node": pl.String()}

SHAPES = {
    "name": pl.String(),
    "shapes": pl.String(),
    **{name: dtype for name, dtype in STATS.items() if name != "name"},
    "cpu_ratio": pl.Float64(),
    "gpu_ratio": pl.Float64(),
    "flops": pl.Int64(),
}

KERNELS = {name: dtype for name, dtype in SPANS.items() if not name.startswith("cpu_")}


def operators(profile: Profile) -> pl.DataFrame:
    """Return operators, sorted by the sort key, each followed by its children and device events.

    The rank's own operators come first, then the operators in each remote call, whose names begin
    with the call. GPU times include memory copies and sets.

    Returns:
        thread (null unless ``thread_sep``), kind, name, calls; cpu_ and gpu_ total_ns, avg_ns,
        max_ns, min_ns, ratio; flops; node (the worker; null in a trace without remote calls). The
        values of ``kind``, and what the ratios are relative to:

        - ``operator``: all calls of one name; relative to all operators (with ``thread_sep``: of
          the thread; in a remote call: of the call);
        - ``inner``: a child that is not an operator; relative to its operator;
        - ``inner_device``: device events that the inner child launched; relative to that child;
        - ``accumulation``: a ``Global_XGradNode`` without its ``Local_XGradNode``, which is
          gradient accumulation (Paddle's pull request 62722); relative to the Global node;
        - ``device``: device events that the operator itself launched; relative to the operator;
        - ``shape``: the calls with inputs of one shape, ``[4,128] [128,64]``, if the operator has
          calls with several; relative to the operator.

        CPU columns are null in rows of device events. flops is the sum over the calls of an
        ``operator`` or ``shape`` (`ppprof.analysis.efficiency.operator_work`). It is null in all other
        rows, and if the FLOPs of one call are unknown, as in a trace without shapes (Paddle's own
        table then has 0).
    """
    return with_remote_calls(profile, _operators)


def with_remote_calls(
    profile: Profile, table_of: Callable[[Profile, str | None], pl.DataFrame]
) -> pl.DataFrame:
    """Return the rows of the rank's own events, then those of each remote call."""
    ends = {call: ends_of(call) for call in profile.remote}
    own = next((caller for caller, _ in ends.values()), None)
    tables = [table_of(profile, own)]
    for call, call_profile in profile.remote.items():
        table = table_of(call_profile, ends[call][1])
        name = pl.concat_str(pl.lit(f"{call}{REMOTE}"), pl.col("name").cast(pl.String))
        tables.append(table.with_columns(name.cast(table.schema["name"]).alias("name")))
    return pl.concat(tables)


def _operators(profile: Profile, node: str | None) -> pl.DataFrame:
    by_thread = ["thread"] if profile.options.thread_sep else []
    by_operator = [*by_thread, "operator"]
    by_inner = [*by_operator, "inner"]
    tree = profile.tree
    columns = ("row", "cpu_ns", "device_ns", "name", *by_thread)
    calls = tree.hosts_at(tree.rows_of_category("Operator"), *columns)
    calls = _with_inputs(calls.rename({"name": "operator"}), profile)
    children = _children(tree, calls, by_operator)
    items = sort_by(_with_flops(calls, by_operator), profile.sorted_by, within=by_thread)
    is_one_of_several = pl.col("shapes").n_unique().over(by_operator) > 1
    several = calls.filter(is_one_of_several) if calls["shapes"].count() else calls.clear()
    shapes = _with_flops(several.drop_nulls("shapes"), [*by_operator, "shapes"])
    by_shape = _blocks(sort_by(shapes, profile.sorted_by), by_operator)
    blocks = items.group_by("thread").agg(_TOTALS) if by_thread else items.select(_TOTALS)
    whole = {row.get("thread"): row for row in _rows(blocks)}
    inner = _blocks(grouped(children, by_inner, gpu="device_ns"), by_operator)
    left = _blocks(
        grouped(_accumulation(tree, calls, children), by_operator, gpu="device_ns"), by_operator
    )
    devices = tree.devices.select("gpu_ns", "host", device="name").drop_nulls("host")
    by_calls = _launched(devices, calls, by_operator)
    by_children = _launched(devices, children, by_inner)
    own = _blocks(grouped(by_calls, [*by_operator, "device"], clocks=("gpu",)), by_operator)
    below = _blocks(grouped(by_children, [*by_inner, "device"], clocks=("gpu",)), by_inner)

    rows: list[Row] = []
    for item in _rows(items):
        key = tuple(item[name] for name in by_operator)
        rows.append(_row("operator", item["operator"], item, whole[item.get("thread")]))
        for child in inner[key]:
            rows.append(_row("inner", child["inner"], child, item))
            child_key = (*key, child["inner"])
            for launched in below[child_key]:
                rows.append(_row("inner_device", launched["device"], launched, child))
        rows += [_row("accumulation", "gradient accumulation", rest, item) for rest in left[key]]
        rows += [_row("device", launched["device"], launched, item) for launched in own[key]]
        rows += [_row("shape", shape["shapes"], shape, item) for shape in by_shape[key]]
    return pl.DataFrame([{**row, "node": node} for row in rows], OPERATORS)


def _children(tree: Tree, calls: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the host events directly below operators that are not operators themselves.

    Returns:
        row, cpu_ns, device_ns, inner (the name), and ``keys`` of the caller; in the order of
        ``calls``, the children of a call sorted by row.
    """
    caller = _positions(tree.events.parent[: tree.events.num_hosts], calls["row"])
    caller[calls["row"].to_numpy()] = -1
    rows = rows_by_number(caller)
    children = tree.hosts_at(rows, "row", "cpu_ns", "device_ns", "name").rename({"name": "inner"})
    return children.hstack(calls.select(keys)[caller[rows]])


def _positions(wanted: Int32, rows: pl.Series) -> Int32:
    """Return the position in ``rows`` of each wanted row; -1 for a row that it lacks."""
    num_rows = max(wanted.max(initial=-1), rows.to_numpy().max(initial=-1)) + 1
    position = np.full(num_rows + 1, -1, np.int32)
    position[rows.to_numpy()] = np.arange(len(rows))
    positions: Int32 = position[wanted]  # the last item is -1, for row -1
    return positions


def _with_inputs(calls: pl.DataFrame, profile: Profile) -> pl.DataFrame:
    """Return calls of operators with shapes (as shown; null if unknown) and flops."""
    events = profile.trace.events
    shapes = map_texts(events["shapes"].gather(calls["row"]), shapes_as_shown)
    work = work_of_profile(profile).select("row", "flops")
    return calls.with_columns(shapes=shapes).join(work, on="row", how="left", maintain_order="left")


def _with_flops(calls: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the statistics of each group of calls, and flops; null if unknown of one call."""
    flops = calls.group_by(keys).agg(
        flops=pl.when(pl.col("flops").null_count() == 0).then(pl.col("flops").sum())
    )
    return grouped(calls, keys, gpu="device_ns").join(
        flops, on=keys, nulls_equal=True, maintain_order="left"
    )


def operator_shapes(profile: Profile) -> pl.DataFrame:
    """Return operators by the shapes of their inputs, sorted by the sort key.

    Without the operators in remote calls.

    Returns:
        name; shapes (``[4,128] [128,64]``, null if unknown); calls; cpu_ and gpu_ total_ns, avg_ns,
        max_ns, min_ns; cpu_ratio, gpu_ratio (of the time of all operators; 0 if that is 0); flops of
        all calls (null if unknown).
    """
    rows = profile.tree.rows_of_category("Operator")
    calls = profile.tree.hosts_at(rows, "row", "cpu_ns", "device_ns", "name")
    table = _with_flops(_with_inputs(calls, profile), ["name", "shapes"])
    table = sort_by(table, profile.sorted_by).with_columns(
        pl.col("name").cast(pl.String),
        cpu_ratio=ratio_of("cpu_total_ns", int(table["cpu_total_ns"].sum())),
        gpu_ratio=ratio_of("gpu_total_ns", int(table["gpu_total_ns"].sum())),
    )
    return table.select(pl.col(name).cast(dtype) for name, dtype in SHAPES.items())


_TOTALS = pl.col("cpu_total_ns", "gpu_total_ns").sum()


def _accumulation(tree: Tree, calls: pl.DataFrame, children: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of ``Global_`` gradient nodes that have ``Local_`` children, without the time of these."""
    is_local = Labels.of(children["inner"]).where(lambda name: name.startswith("Local_"))
    local = children.select("row", "cpu_ns", "device_ns")[np.flatnonzero(is_local)]
    local = local.with_columns(row=pl.Series(tree.events.parent[local["row"].to_numpy()]))
    local = local.group_by("row").agg(pl.col("cpu_ns", "device_ns").sum())
    is_global = Labels.of(calls["operator"]).where(lambda name: name.startswith("Global_"))
    return (
        calls[np.flatnonzero(is_global)]
        .join(local, on="row", suffix="_local", maintain_order="left")
        .with_columns(
            cpu_ns=pl.col("cpu_ns") - pl.col("cpu_ns_local"),
            device_ns=pl.col("device_ns") - pl.col("device_ns_local"),
        )
    )


def _launched(devices: pl.DataFrame, hosts: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return device events with the columns of the host event that launched them.

    Returns:
        The device events in the order of ``hosts``, with the columns ``keys`` of these.
    """
    launcher = _positions(devices["host"].to_numpy(), hosts["row"])
    rows = rows_by_number(launcher)
    return devices[rows].hstack(hosts.select(keys)[launcher[rows]])


def _row(kind: str, name: str, stats: Row, whole: Row) -> Row:
    """Return one row of the Operator Summary."""
    row = {"kind": kind, **stats, "name": name}
    for clock in ("cpu", "gpu"):
        total = stats.get(f"{clock}_total_ns")
        if total is not None:
            whole_ns = whole[f"{clock}_total_ns"]
            row[f"{clock}_ratio"] = total / whole_ns if whole_ns else 0.0
    return {column: row.get(column) for column in OPERATORS}


def _rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    return table.rows(named=True)


def _blocks(table: pl.DataFrame, keys: list[str]) -> Mapping[tuple[Any, ...], list[Row]]:
    """Return the rows of ``table``, keyed by the values of ``keys``, in their order."""
    blocks: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in _rows(table):
        blocks[tuple(row[key] for key in keys)].append(row)
    return blocks


def kernels(profile: Profile) -> pl.DataFrame:
    """Return kernels, one row per name.

    Returns:
        name, calls, gpu_total_ns, gpu_avg_ns, gpu_max_ns, gpu_min_ns, gpu_ratio (the share of the
        time of all kernels; 0 if that is 0). Sorted by the sort key, or by gpu_total_ns, the
        largest first, if the sort key is a CPU key.
    """
    launched = profile.tree.devices.filter(is_kernel())
    table = grouped(launched, ["name"], clocks=("gpu",))
    table = table.with_columns(gpu_ratio=ratio_of("gpu_total_ns", int(table["gpu_total_ns"].sum())))
    key = profile.sorted_by
    return sort_by(table, key if key.startswith("gpu") else "gpu_total")


def memory_manipulation(profile: Profile) -> pl.DataFrame:
    """Return user-defined spans that copy or set memory, one row per name, in Paddle's order.

    Returns:
        name, calls; cpu_ and gpu_ total_ns, avg_ns, max_ns, min_ns, ratio. GPU times include memory
        copies and sets. cpu_ratio is the share of `Profile.whole_ns` (null if that is 0), gpu_ratio
        that of the device time of
        steps and of `Profile.beside_steps` (0 if that is 0).
    """
    spans = profile.tree.of_category("UserDefined", "PythonUserDefined")
    return _with_step_ratios(profile, grouped(spans.filter(_is_copy()), ["name"], gpu="device_ns"))


def user_defined(profile: Profile) -> pl.DataFrame:
    """Return spans recorded from Python with ``RecordEvent``, one row per name.

    The rank's own spans come first, then the functions and spans in each remote call, whose names
    begin with the call. The columns are those of `memory_manipulation`, whose spans are not repeated
    here, and node (the worker; null in a trace without remote calls). In remote calls, which have
    no steps, cpu_ratio is null and gpu_ratio 0. Sorted by the sort key. With ``thread_sep``, the first column is
    thread, and each thread has a block of rows.
    """
    return with_remote_calls(profile, _user_defined)


def _user_defined(profile: Profile, node: str | None) -> pl.DataFrame:
    spans = profile.tree.of_category("PythonUserDefined").filter(~_is_copy())
    keys = ["thread", "name"] if profile.options.thread_sep else ["name"]
    table = _with_step_ratios(profile, grouped(spans, keys, gpu="device_ns"))
    table = table.with_columns(pl.lit(node, pl.String).alias("node"))
    return sort_by(table, profile.sorted_by, within=keys[:-1])


def _with_step_ratios(profile: Profile, table: pl.DataFrame) -> pl.DataFrame:
    """Return ``table`` with cpu_ratio and gpu_ratio, as `memory_manipulation` defines them."""
    steps = profile.outermost.filter(pl.col("category") == "ProfileStep")
    device_ns = int(steps["device_ns"].sum()) + int(profile.beside_steps["gpu_ns"].sum())
    return table.with_columns(
        cpu_ratio=ratio_of("cpu_total_ns", profile.whole_ns, if_none=None),
        gpu_ratio=ratio_of("gpu_total_ns", device_ns),
    )


def _is_copy() -> pl.Expr:
    return (
        pl.col("name").cast(pl.String).str.to_lowercase().str.contains("memcpy|memorycopy|memset")
    )


MEMORY = {
    "place": pl.Categorical(),
    "type": pl.String(),
    "name": pl.Categorical(),
    "allocation_count": pl.Int64(),
    "free_count": pl.Int64(),
    "allocation_bytes": pl.Int64(),
    "free_bytes": pl.Int64(),
    "increase_bytes": pl.Int64(),
    "peak_allocated_bytes": pl.Int64(),
    "peak_reserved_bytes": pl.Int64(),
}


def memory(profile: Profile) -> pl.DataFrame:
    """Return allocations and frees, grouped by place, type and name of the host event around them.

    As in Paddle, a memory event in an operator's child counts for the operator, and also for the
    child unless the child is an OperatorInner. Memory events outside all host events do not count.
    Memory events in remote calls count, with the places of the workers.

    Returns:
        place; type ("Allocated": memory of tensors, "Reserved": memory held from the device); name;
        allocation_count, free_count; allocation_bytes, free_bytes (both at least 0); increase_bytes
        (allocation_bytes - free_bytes); peak_allocated_bytes and peak_reserved_bytes (of the place,
        equal in all its rows). Sorted by place (in the order of Paddle's walk), then
        Allocated before Reserved, then increase_bytes, the largest first. A place where only
        reserved memory changed has no rows.
    """
    records = profile.whole.memory.filter(pl.col("event").is_not_null())
    every = slice(0, profile.whole_tree.events.num_hosts)
    hosts = profile.whole_tree.hosts_at(every, "parent", "name", "category", "visit")
    own_host = hosts.select(pl.all().gather(records["event"]))
    above = hosts.select(pl.all().gather(own_host["parent"]))
    records = records.hstack(own_host).with_columns(
        above=above["name"], above_is=above["category"], above_visit=above["visit"]
    )
    columns = ["place", "kind", "bytes", "peak_allocated", "peak_reserved", "event"]
    own = records.filter(pl.col("category") != "OperatorInner").select(
        *columns, "name", "visit", is_own=pl.lit(True)
    )
    in_operator = records.filter(pl.col("above_is") == "Operator").select(
        *columns, name="above", visit="above_visit", is_own=pl.lit(False)
    )
    # Paddle walks the operators' children, in order, before the operator itself.
    counted_events = pl.concat([own, in_operator]).sort(
        "visit", "is_own", "event", maintain_order=True
    )
    kinds = Labels.of(counted_events["kind"])
    counted_events = counted_events.with_columns(
        is_reserved=pl.Series(kinds.where(lambda kind: kind.startswith("Reserved"))),
        is_free=pl.Series(kinds.where(lambda kind: kind.endswith("Free"))),
    )
    is_free, size = pl.col("is_free"), pl.col("bytes")
    rows = (
        counted_events.group_by("place", "is_reserved", "name", maintain_order=True)
        .agg(
            allocation_count=(~is_free).sum().cast(pl.Int64),
            free_count=is_free.sum().cast(pl.Int64),
            allocation_bytes=size.filter(~is_free).sum(),
            free_bytes=-size.filter(is_free).sum(),
        )
        .with_columns(increase_bytes=pl.col("allocation_bytes") - pl.col("free_bytes"))
    )
    peaks = counted_events.group_by("place").agg(
        peak_allocated_bytes=pl.max_horizontal(pl.col("peak_allocated").max(), 0),
        peak_reserved_bytes=pl.max_horizontal(pl.col("peak_reserved").max(), 0),
    )
    places = (
        counted_events.filter(~pl.col("is_reserved"))
        .select("place")
        .unique(maintain_order=True)
        .with_row_index("place_order")
    )
    return (
        places.join(rows, on="place", maintain_order="left_right")
        .join(peaks, on="place", how="left", maintain_order="left")
        .sort("place_order", "is_reserved", -pl.col("increase_bytes"), maintain_order=True)
        .with_columns(
            type=pl.when("is_reserved").then(pl.lit("Reserved")).otherwise(pl.lit("Allocated"))
        )
        .select(MEMORY.keys())
    )
