"""The summaries as Paddle prints them: titles, columns, rows, number formats and notes.

Source of the layout: ``_build_table`` of paddle 3.3's profiler_statistic.py. Ours adds the rows
``gradient accumulation`` and ``Exposed Communication``, operators of remote calls under the call
and with the Node ID of PyTorch's RFC (pytorch/pytorch issue 39675), a note of its own below the Distribution
Summary of a trace without device events and, where a row limit cuts a table, a line that says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import VIEWS, summarize
from ppprof.errors import UsageError
from ppprof.report.text.table import Column, Line, Table
from ppprof.rundir.remote_calls import REMOTE
from ppprof.trace.remote_calls import call_of

TIME_UNITS: Mapping[str, float] = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
"""Nanoseconds in each unit a table may be printed in."""

Row = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class TableOptions:
    """What a reader may choose about the printed tables."""

    time_unit: str = "ms"
    """One of `TIME_UNITS`."""
    op_detail: bool = True
    """Below each operator what it called and launched."""
    row_limit: int | None = 100
    """How many operators, kernels, spans or memory events at the most; None for all."""

    def __post_init__(self) -> None:
        if self.time_unit not in TIME_UNITS:
            raise UsageError(
                f"time_unit {self.time_unit!r}: expected one of {', '.join(TIME_UNITS)}"
            )

    def time(self, time_ns: float) -> str:
        """A time in the unit, two decimals.

        >>> TableOptions(time_unit="us").time(1234)
        '1.23'
        """
        return f"{time_ns / TIME_UNITS[self.time_unit]:.2f}"

    def limited(self, rows: Sequence[T], what: str) -> tuple[Sequence[T], list[Line]]:
        """The rows to show and, where some are left out, a line that says how many."""
        shown = rows if self.row_limit is None else rows[: self.row_limit]
        hidden = len(rows) - len(shown)
        return shown, [f"{hidden} more {what}: row_limit is {self.row_limit}"] if hidden else []


def render(profile: Profile, views: Sequence[str], layout: TableOptions) -> str:
    """The chosen views as text, in Paddle's order; a view with nothing to show prints nothing.

    Raises:
        UsageError: a view that does not exist.
    """
    return render_tables({view: summarize(profile, view) for view in views}, layout)


def render_tables(tables: Mapping[str, pl.DataFrame], layout: TableOptions) -> str:
    """Tables that are made already, by view; see `render`."""
    return "".join(
        str(grid) for view in VIEWS if view in tables for grid in _GRIDS[view](tables[view], layout)
    )


def title(rank: int, what: str, window: int, steps: Sequence[int]) -> str:
    """The line above the tables of a window.

    >>> title(3, "dp1 mp1", 0, [5, 6, 7])
    'rank 3 (dp1 mp1), window 0, steps 5 to 7'
    """
    return f"rank {rank} ({what}), {window_title(window, steps)}"


def window_title(window: int, steps: Sequence[int]) -> str:
    """The part of it that ranks share.

    >>> window_title(0, [5, 6, 7]), window_title(1, [])
    ('window 0, steps 5 to 7', 'window 1, no steps')
    """
    shown = f"steps {steps[0]} to {steps[-1]}" if steps else "no steps"
    return f"window {window}, {shown}"


_CALLS = Column("Calls", 6, grows=True)
_CPU_STATS = Column("CPU Total / Avg / Max / Min / Ratio(%)", 40, grows=True)
_GPU_STATS = Column("GPU Total / Avg / Max / Min / Ratio(%)", 40, grows=True)


def _device(table: pl.DataFrame, layout: TableOptions) -> list[Table]:
    lines = [(row["device"], percent(row["utilization"])) for row in table.rows(named=True)]
    columns = (Column("Device", 30), Column("Utilization (%)", 20))
    return [Table("Device Summary", columns, lines, note=_DEVICE_NOTE)]


def _overview(table: pl.DataFrame, layout: TableOptions) -> list[Table]:
    lines: dict[str, list[Line]] = {"cpu": [], "gpu": []}
    for row in table.rows(named=True):
        of_side = lines[row["side"]]
        first = row["side"] == "cpu" and not of_side
        name = row["event_type"] if first else f"  {row['event_type']}"
        of_side.append((name, row["calls"], layout.time(row["time_ns"]), percent(row["ratio"])))
    return [
        Table(
            "Overview Summary",
            [Column(header, 25) for header in ("Event Type", "Calls", "CPU Time", "Ratio (%)")],
            lines["cpu"],
            layout.time_unit,
            second=(("", "Calls", "GPU Time", "Ratio (%)"), lines["gpu"]),
            note=_OVERVIEW_NOTE,
        )
    ]


def _model(table: pl.DataFrame, layout: TableOptions) -> list[Table]:
    columns = (Column("Name", 15), _CALLS, _CPU_STATS, _GPU_STATS)
    lines = [(_below_step(row), *_stats(row, layout)) for row in table.rows(named=True)]
    if not lines:
        return []
    return [Table("Model Summary", columns, lines, layout.time_unit, note=_MODEL_NOTE)]


def _distributed(table: pl.DataFrame, layout: TableOptions) -> list[Table]:
    columns = [Column(header, 25) for header in ("Name", "Total Time", "Ratio (%)")]
    lines = [
        (_below_step(row), layout.time(row["time_ns"]), percent(row["ratio"]))
        for row in table.rows(named=True)
    ]
    if not lines:
        return []
    on_host = "operators" in table["computed_by"]
    note = _DISTRIBUTED_HOST_NOTE if on_host else _DISTRIBUTED_NOTE
    return [Table("Distribution Summary", columns, lines, layout.time_unit, note=note)]


_OPERATOR_NAME = Column("Name", 52)
_OPERATOR_INDENT = {"inner": 2, "inner_device": 4, "accumulation": 2, "device": 2}


def _operators(table: pl.DataFrame, layout: TableOptions) -> list[Table]:
    lines: list[Line] = []
    for thread, rows in _by_thread(table):
        lines.append(thread)
        blocks: dict[str | None, list[list[Row]]] = {}
        for row in rows:
            if row["kind"] == "operator":
                of_call = blocks.setdefault(call_of(row["name"]), [])
                of_call.append([])
            of_call[-1].append(row)
        for call, operators in blocks.items():
            lines += [call] if call else []
            shown, cut = layout.limited(operators, "operators")
            for operator, *details in shown:
                name = _local(operator["name"])
                node = operator["node"]
                lines.append((name, *_stats(operator, layout), operator["flops"], node))
                for row in details if layout.op_detail else ():
                    name = _indented(_local(row["name"]), _OPERATOR_INDENT[row["kind"]])
                    lines.append((name, *_stats(row, layout), "-", node))
            lines += cut
    columns = [_OPERATOR_NAME, _CALLS, _CPU_STATS, _GPU_STATS, Column("FLOPs", 10)]
    if table["node"].count():
        columns.append(Column("Node ID", 10, grows=True))
    else:
        lines = [line if isinstance(line, str) else line[:-1] for line in lines]
    return [Table("Operator Summary", columns, lines, layout.time_unit)] if lines else []


def _local(name: str) -> str:
    """The name without the remote call that it was recorded in."""
    call = call_of(name)
    return name if call is None else name[len(call) + len(REMOTE) :]


def _kernels(table: pl.DataFrame, layout: TableOptions) -> list[Table]:
    shown, cut = layout.limited(table.rows(named=True), "kernels")
    lines: list[Line] = [
        (kernel_name(row["name"]), row["calls"], _stat(row, "gpu", layout)) for row in shown
    ]
    columns = (Column("Name", 90), _CALLS, _GPU_STATS)
    return [Table("Kernel Summary", columns, lines + cut, layout.time_unit)] if lines else []


_SPAN_COLUMNS = (Column("Name", 0, grows=True), _CALLS, _CPU_STATS, _GPU_STATS)


def _memory_manipulation(table: pl.DataFrame, layout: TableOptions) -> list[Table]:
    shown, cut = layout.limited(table.rows(named=True), "spans")
    lines: list[Line] = [(row["name"], *_stats(row, layout)) for row in shown]
    title = "Memory Manipulation Summary"
    return [Table(title, _SPAN_COLUMNS, lines + cut, layout.time_unit)] if lines else []


def _user_defined(table: pl.DataFrame, layout: TableOptions) -> list[Table]:
    lines: list[Line] = []
    for thread, rows in _by_thread(table):
        shown, cut = layout.limited(rows, "spans")
        lines += [thread, *((row["name"], *_stats(row, layout)) for row in shown), *cut]
    title = "UserDefined Summary"
    return [Table(title, _SPAN_COLUMNS, lines, layout.time_unit, closed=False)] if lines else []


_MEMORY_COLUMNS = {
    "name": Column("Name", 50),
    "type": Column("Type", 12),
    "allocation_count": Column("Allocation Count", 15),
    "free_count": Column("Free Count", 15),
    "allocation_bytes": Column("Allocation Size", 15),
    "free_bytes": Column("Free Size", 15),
    "increase_bytes": Column("Increased Size", 15),
}


def _memory(table: pl.DataFrame, layout: TableOptions) -> list[Table]:
    grids = []
    for (place,), of_place in table.group_by("place", maintain_order=True):
        rows = of_place.rows(named=True)
        shown, cut = layout.limited(rows, "rows")
        lines: list[Line] = [[row[column] for column in _MEMORY_COLUMNS] for row in shown]
        peaks = (
            f"Peak Allocated Memory: {rows[0]['peak_allocated_bytes']}",
            f"Peak Reserved Memory: {rows[0]['peak_reserved_bytes']}",
        )
        is_remote = any(call_of(row["name"]) for row in shown)
        name = replace(_MEMORY_COLUMNS["name"], grows=is_remote)
        columns = tuple({**_MEMORY_COLUMNS, "name": name}.values())
        title = f"Memory Summary - {place}"
        grids.append(Table(title, columns, lines + cut, preamble=peaks, closed=False))
    return grids


_GRIDS: Mapping[str, Callable[[pl.DataFrame, TableOptions], list[Table]]] = {
    "device": _device,
    "overview": _overview,
    "model": _model,
    "dist": _distributed,
    "op": _operators,
    "kernel": _kernels,
    "memcpy": _memory_manipulation,
    "udf": _user_defined,
    "mem": _memory,
}


def _by_thread(table: pl.DataFrame) -> list[tuple[str, list[Row]]]:
    """Rows thread by thread under the line that heads them; one block where threads are merged."""
    blocks: dict[int | None, list[Row]] = {}
    for row in table.rows(named=True):
        blocks.setdefault(row.get("thread"), []).append(row)
    return [
        (f"Thread: {'All threads merged' if thread is None else thread}", rows)
        for thread, rows in blocks.items()
    ]


def _stats(row: Row, layout: TableOptions) -> tuple[object, str, str]:
    """Calls, and the two cells that hold five numbers each."""
    calls = "-" if row["calls"] is None else row["calls"]
    return calls, _stat(row, "cpu", layout), _stat(row, "gpu", layout)


def _stat(row: Row, clock: str, layout: TableOptions) -> str:
    """``total / avg / max / min / ratio`` of one clock; a dash for what does not apply."""
    stats = [row[f"{clock}_{stat}_ns"] for stat in ("total", "avg", "max", "min")]
    times = ["-" if time_ns is None else layout.time(time_ns) for time_ns in stats]
    return " / ".join([*times, percent(row[f"{clock}_ratio"])])


def percent(ratio: float | None) -> str:
    """A ratio in percent, two decimals; a dash where there is none."""
    return "-" if ratio is None else f"{ratio * 100:.2f}"


def _below_step(row: Row) -> str:
    return row["name"] if row["name"] == "ProfileStep" else f"  {row['name']}"


def _indented(name: str, indent: int) -> str:
    """Cut to the column as Paddle cuts: three characters shorter than would fit."""
    if len(name) + indent > _OPERATOR_NAME.width:
        name = name[: _OPERATOR_NAME.width - indent - 3] + "..."
    return " " * indent + name


_KERNEL_SIGNATURE = re.compile(r"(.+?)(<.*>)(\(.*\))")


def kernel_name(name: str) -> str:
    """A kernel without the signature's arguments, cut to 90 characters.

    >>> kernel_name("void k<int, float>(int*, float*)")
    'void k<int, float>'
    """
    match = _KERNEL_SIGNATURE.match(name)
    if match:
        name = match.group(1) + match.group(2)
    return name if len(name) <= 90 else name[:87] + "..."


_DEVICE_NOTE = """\
CPU(Process) Utilization = Current process CPU time over all cpu cores / elapsed time, so max \
utilization can be reached 100% * number of cpu cores.
CPU(System) Utilization = All processes CPU time over all cpu cores(busy time) / (busy time + \
idle time).
GPU Utilization = Current process GPU time / elapsed time."""

_OVERVIEW_NOTE = """\
In this table, We sum up all collected events in terms of event type.
The time of events collected on host are presented as CPU Time, and as GPU Time if on device.
Events with different types may overlap or inclusion, e.g. Operator includes OperatorInner, so \
the sum of ratios is not 100%.
The time of events in the same type with overlap will not calculate twice, and all time is summed \
after merged.
Example:
Thread 1:
  Operator: |___________|     |__________|
Thread 2:
  Operator:   |____________|     |___|
After merged:
  Result:   |______________|  |__________|
"""

_MODEL_NOTE = """\
In this table, GPU time is the sum of all device(GPU) events called in the phase.
Unlike overview summary, if two device(GPU) events execute on different streams with overlap \
time, we sum them directly here.
"""

_DISTRIBUTED_NOTE = """\
Communication time: Communication Event time, Communication Op time and its kernel time on gpu.
Computation time: Kernel time, except kernels belong to communication(nccl kernels).
Overlap time: Communication time intersects with computation time.
Exposed Communication time: Communication time minus overlap time (ppprof's own row).
Example:
Communication:
  CPU:              |_________________|
  GPU:                                  |______________|
  Total:            |_________________| |______________|
Computation time(Kernel):
  GPU:         |________________|
Overlap time:       |___________|
"""

_DISTRIBUTED_HOST_NOTE = """\
This trace holds no device events. Paddle counts kernels only, so its Computation and Overlap are 0; \
here operators stand for kernels.
Communication time: Communication Event time and Communication Op time.
Computation time: Time in which a thread runs an operator and does not communicate itself.
Overlap time: One thread communicates while another computes.
Exposed Communication time: Communication time minus overlap time (ppprof's own row).
Example:
Thread 1:
  Operator:         |____________________|
  Communication:           |______|
Thread 2:
  Communication:                    |_________|
Communication time:        |______| |_________|
Computation time:   |______|      |______|
Overlap time:                       |____|
Exposed time:              |______|      |____|
"""
