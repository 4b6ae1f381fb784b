"""The summaries by name: Operator, Kernel, Memory Manipulation and UserDefined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import polars as pl

from ppprof.analysis.profile.grouping import STATS, grouped, ratio_of, sort_by
from ppprof.analysis.profile.profile import Profile
from ppprof.trace import REMOTE
from ppprof.trace.remote_calls import ends_of

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

KERNELS = {name: dtype for name, dtype in SPANS.items() if not name.startswith("cpu_")}


def operators(profile: Profile) -> pl.DataFrame:
    """Operators by name, each with what it called and launched; the rank's own, then call by call.

    Returns:
        Rows in the order to print: thread (null unless ``thread_sep``), kind, name, calls, cpu_
        and gpu_ total_ns, avg_ns, max_ns, min_ns, ratio, flops and node, which is the worker that
        it ran on; null in a trace without remote calls. ``kind`` is

        - ``operator``: one name; ratios of all operators (of the thread); GPU with copies and sets;
        - ``inner``: a child that is no operator itself; ratios of its operator;
        - ``inner_device``: device events that the inner child launched; ratio of that child;
        - ``accumulation``: for a ``Global_XGradNode``, what is left of it after its
          ``Local_XGradNode``, which is gradient accumulation (Paddle's pull request 62722);
          ratios of the Global;
        - ``device``: device events that the operator launched itself; ratio of the operator.

        CPU columns of device rows are null. flops is 0 for operators and null for the rest: a
        ``.pb`` holds no attributes to compute it from, and Paddle itself reads 0 from one. Ratios
        of what ran in a remote call are of the operators in that call.
    """
    ends = {call: ends_of(call) for call in profile.remote}
    own = next((caller for caller, _ in ends.values()), None)
    return pl.concat(
        [
            _operators(profile, own),
            *(
                _operators(of_call, ends[call][1]).with_columns(
                    name=pl.concat_str(pl.lit(f"{call}{REMOTE}"), "name")
                )
                for call, of_call in profile.remote.items()
            ),
        ]
    )


def _operators(profile: Profile, node: str | None) -> pl.DataFrame:
    thread = pl.col("thread") if profile.options.thread_sep else pl.lit(None, pl.Int64)
    calls = profile.tree.of_category("Operator").select(
        "row", "visit", "cpu_ns", "device_ns", thread.alias("thread"), operator="name"
    )
    children = (
        profile.tree.hosts.filter(pl.col("category") != "Operator")
        .select("row", "parent", "cpu_ns", "device_ns", inner="name")
        .join(calls.select("thread", "operator", parent="row", caller="visit"), on="parent")
        .sort("caller", "row")
    )
    by_operator = ["thread", "operator"]
    by_inner = [*by_operator, "inner"]
    items = sort_by(
        grouped(calls, by_operator, gpu="device_ns"), profile.sorted_by, within=["thread"]
    )
    whole = {row["thread"]: row for row in _rows(items.group_by("thread").agg(_TOTALS))}
    inner = _blocks(grouped(children, by_inner, gpu="device_ns"), by_operator)
    left = _blocks(
        grouped(_accumulation(calls, children), by_operator, gpu="device_ns"), by_operator
    )
    devices = profile.tree.devices.drop_nulls("host").select("gpu_ns", "host", device="name")
    by_calls = _launched(devices, calls, ["visit"])
    by_children = _launched(devices, children, ["caller", "row"])
    own = _blocks(grouped(by_calls, [*by_operator, "device"], clocks=("gpu",)), by_operator)
    below = _blocks(grouped(by_children, [*by_inner, "device"], clocks=("gpu",)), by_inner)

    rows: list[Row] = []
    for item in _rows(items):
        key = (item["thread"], item["operator"])
        rows.append(_row("operator", item["operator"], item, whole[item["thread"]]))
        for child in inner[key]:
            rows.append(_row("inner", child["inner"], child, item))
            of_child = (*key, child["inner"])
            for launched in below[of_child]:
                rows.append(_row("inner_device", launched["device"], launched, child))
        rows += [_row("accumulation", "gradient accumulation", rest, item) for rest in left[key]]
        rows += [_row("device", launched["device"], launched, item) for launched in own[key]]
    return pl.DataFrame([{**row, "node": node} for row in rows], OPERATORS)


_TOTALS = pl.col("cpu_total_ns", "gpu_total_ns").sum()


def _accumulation(calls: pl.DataFrame, children: pl.DataFrame) -> pl.DataFrame:
    """Calls of grad nodes with the time of their Local child taken off; calls without one left out."""
    inner = pl.col("inner").cast(pl.String)
    local = (
        children.filter(inner.str.starts_with("Local_"))
        .group_by("parent")
        .agg(pl.col("cpu_ns", "device_ns").sum())
    )
    return (
        calls.filter(pl.col("operator").cast(pl.String).str.starts_with("Global_"))
        .join(local, left_on="row", right_on="parent", suffix="_local", maintain_order="left")
        .with_columns(
            cpu_ns=pl.col("cpu_ns") - pl.col("cpu_ns_local"),
            device_ns=pl.col("device_ns") - pl.col("device_ns_local"),
        )
    )


def _launched(devices: pl.DataFrame, hosts: pl.DataFrame, order: list[str]) -> pl.DataFrame:
    """Device events with the host event that launched them, in the ``order`` of the hosts."""
    return devices.join(
        hosts, left_on="host", right_on="row", coalesce=False, maintain_order="left"
    ).sort(order, maintain_order=True)


def _row(kind: str, name: str, stats: Row, whole: Row) -> Row:
    """One row of the table; ratios of the totals of ``whole``, 0 where those are 0."""
    row = {"thread": stats["thread"], "kind": kind, **stats, "name": name}
    for clock in ("cpu", "gpu"):
        total = stats.get(f"{clock}_total_ns")
        if total is not None:
            of_all = whole[f"{clock}_total_ns"]
            row[f"{clock}_ratio"] = total / of_all if of_all else 0.0
    row["flops"] = 0 if kind == "operator" else None
    return {column: row.get(column) for column in OPERATORS}


def _rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    return table.rows(named=True)


def _blocks(table: pl.DataFrame, keys: list[str]) -> Mapping[tuple[Any, ...], list[Row]]:
    """Rows by their key, in their order."""
    blocks: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in _rows(table):
        blocks[tuple(row[key] for key in keys)].append(row)
    return blocks


def kernels(profile: Profile) -> pl.DataFrame:
    """Kernels by name.

    Returns:
        name, calls, gpu_total_ns, gpu_avg_ns, gpu_max_ns, gpu_min_ns, gpu_ratio (of all kernels).
        Sorted by the GPU key in force; by GPU total where a CPU key is.
    """
    launched = profile.tree.devices.filter(pl.col("category") == "Kernel")
    table = grouped(launched, ["name"], clocks=("gpu",))
    table = table.with_columns(gpu_ratio=ratio_of("gpu_total_ns", int(table["gpu_total_ns"].sum())))
    key = profile.sorted_by
    return sort_by(table, key if key.startswith("gpu") else "gpu_total")


def memory_manipulation(profile: Profile) -> pl.DataFrame:
    """User-defined spans that copy or set memory, in the order of first meeting.

    Returns:
        name, calls, cpu_ and gpu_ total_ns, avg_ns, max_ns, min_ns, ratio; GPU includes copies.
    """
    spans = profile.tree.of_category("UserDefined", "PythonUserDefined")
    return _with_step_ratios(profile, grouped(spans.filter(_is_copy()), ["name"], gpu="device_ns"))


def user_defined(profile: Profile) -> pl.DataFrame:
    """Spans recorded from Python with ``RecordEvent``; the columns of `memory_manipulation`.

    With ``thread_sep`` a first column thread, one block of rows a thread.
    """
    spans = profile.tree.of_category("PythonUserDefined").filter(~_is_copy())
    keys = ["thread", "name"] if profile.options.thread_sep else ["name"]
    table = _with_step_ratios(profile, grouped(spans, keys, gpu="device_ns"))
    return sort_by(table, profile.sorted_by, within=keys[:-1])


def _with_step_ratios(profile: Profile, table: pl.DataFrame) -> pl.DataFrame:
    """CPU ratio of the time inside steps, GPU ratio of the device time launched in steps."""
    steps = profile.outermost.filter(pl.col("category") == "ProfileStep")
    return table.with_columns(
        cpu_ratio=ratio_of("cpu_total_ns", profile.total_ns, if_none=None),
        gpu_ratio=ratio_of("gpu_total_ns", int(steps["device_ns"].sum())),
    )


def _is_copy() -> pl.Expr:
    return (
        pl.col("name").cast(pl.String).str.to_lowercase().str.contains("memcpy|memorycopy|memset")
    )
