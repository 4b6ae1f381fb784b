"""The summaries as Paddle prints them: titles, columns, rows, number formats and notes.

Source of the layout: ``_build_table`` of paddle 3.3's profiler_statistic.py. Ours adds the rows
``gradient accumulation`` and, where a row limit cuts a table, a line that says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import polars as pl

from ppprof.analysis.profile import Profile
from ppprof.analysis.summary import VIEWS, summarize
from ppprof.errors import UsageError

TIME_UNITS: Mapping[str, float] = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
"""Nanoseconds in each unit a table may be printed in."""

_GAP = 2  # spaces after every column
_STATS_WIDTH = 40
_CPU_STATS = "CPU Total / Avg / Max / Min / Ratio(%)"
_GPU_STATS = "GPU Total / Avg / Max / Min / Ratio(%)"
_KERNEL_SIGNATURE = re.compile(r"(.+?)(<.*>)(\(.*\))")

Row = Mapping[str, Any]
Line = Union[str, Sequence[object]]
"""A row of cells, or a text to centre in dashes over the whole width."""


@dataclass(frozen=True)
class Layout:
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


def render(profile: Profile, views: Sequence[str], layout: Layout) -> str:
    """The chosen views as text, in Paddle's order; a view with nothing to show prints nothing.

    Raises:
        UsageError: a view that does not exist.
    """
    tables = {view: summarize(profile, view) for view in views}
    return "".join(_PRINTERS[view](tables[view], layout) for view in VIEWS if view in tables)


def _device(table: pl.DataFrame, layout: Layout) -> str:
    lines = [(row["device"], _percent(row["utilization"])) for row in table.rows(named=True)]
    return _boxed(
        "Device Summary", ("Device", "Utilization (%)"), (30, 20), lines, _DEVICE_NOTE, unit=None
    )


def _overview(table: pl.DataFrame, layout: Layout) -> str:
    unit = layout.time_unit
    widths = (25, 25, 25, 25)
    cpu, gpu = ([row for row in table.rows(named=True) if row["side"] == side] for side in _SIDES)

    def line(row: Row, indent: str) -> Line:
        name = f"{indent}{row['event_type']}"
        return name, row["calls"], _time(row["time_ns"], unit), _percent(row["ratio"])

    lines: list[Line] = [line(row, "  " if at else "") for at, row in enumerate(cpu)]
    return _boxed(
        "Overview Summary",
        ("Event Type", "Calls", "CPU Time", "Ratio (%)"),
        widths,
        lines,
        _OVERVIEW_NOTE,
        unit,
        second=(("", "Calls", "GPU Time", "Ratio (%)"), [line(row, "  ") for row in gpu]),
    )


def _model(table: pl.DataFrame, layout: Layout) -> str:
    lines: list[Line] = []
    for row in table.rows(named=True):
        name = row["name"] if row["name"] == "ProfileStep" else f"  {row['name']}"
        if row["calls"] is None:
            cpu, gpu = (
                f"{_time(row[f'{clock}_total_ns'], layout.time_unit)} / - / - / - / "
                f"{_percent(row[f'{clock}_ratio'])}"
                for clock in _SIDES
            )
            lines.append((name, "-", cpu, gpu))
        else:
            lines.append((name, *_stats(row, layout)))
    if not lines:
        return ""
    return _boxed(
        "Model Summary",
        ("Name", "Calls", _CPU_STATS, _GPU_STATS),
        _fitted((15, 6, _STATS_WIDTH, _STATS_WIDTH), lines, fixed=1),
        lines,
        _MODEL_NOTE,
        layout.time_unit,
    )


def _distributed(table: pl.DataFrame, layout: Layout) -> str:
    lines: list[Line] = [
        (
            row["name"] if row["name"] == "ProfileStep" else f"  {row['name']}",
            _time(row["time_ns"], layout.time_unit),
            _percent(row["ratio"]),
        )
        for row in table.rows(named=True)
    ]
    if not lines:
        return ""
    return _boxed(
        "Distribution Summary",
        ("Name", "Total Time", "Ratio (%)"),
        (25, 25, 25),
        lines,
        _DISTRIBUTED_NOTE,
        layout.time_unit,
    )


_OPERATOR_NAME = 52
_OPERATOR_INDENT = {"operator": 0, "inner": 2, "inner_device": 4, "accumulation": 2, "device": 2}


def _operators(table: pl.DataFrame, layout: Layout) -> str:
    rows = table.rows(named=True)
    lines: list[Line] = []
    for thread in dict.fromkeys(row["thread"] for row in rows):
        lines.append(f"Thread: {'All threads merged' if thread is None else thread}")
        of_thread = [row for row in rows if row["thread"] == thread]
        starts = [at for at, row in enumerate(of_thread) if row["kind"] == "operator"]
        shown, hidden = _limited(starts, layout)
        stop = starts[len(shown)] if hidden else len(of_thread)
        for row in of_thread[:stop]:
            if row["kind"] == "operator":
                lines.append((row["name"], *_stats(row, layout), row["flops"]))
            elif layout.op_detail:
                name = _indented(row["name"], _OPERATOR_INDENT[row["kind"]])
                lines.append((name, *_stats(row, layout), "-"))
        lines += _cut(hidden, "operators", layout)
    if not lines:
        return ""
    return _framed(
        "Operator Summary",
        ("Name", "Calls", _CPU_STATS, _GPU_STATS, "FLOPs"),
        _fitted((_OPERATOR_NAME, 6, _STATS_WIDTH, _STATS_WIDTH, 10), lines, fixed=1),
        lines,
        layout.time_unit,
    )


def _kernels(table: pl.DataFrame, layout: Layout) -> str:
    shown, hidden = _limited(table.rows(named=True), layout)
    lines: list[Line] = [
        (_kernel_name(row["name"]), row["calls"], _stat(row, "gpu", layout)) for row in shown
    ]
    lines += _cut(hidden, "kernels", layout)
    if not lines:
        return ""
    widths = _fitted((90, 6, _STATS_WIDTH), lines, fixed=1)
    headers = ("Name", "Calls", _GPU_STATS)
    return _framed("Kernel Summary", headers, widths, lines, layout.time_unit)


def _memory_manipulation(table: pl.DataFrame, layout: Layout) -> str:
    return _spans("Memory Manipulation Summary", table, layout, close=True)


def _user_defined(table: pl.DataFrame, layout: Layout) -> str:
    return _spans("UserDefined Summary", table, layout, close=False)


def _spans(title: str, table: pl.DataFrame, layout: Layout, close: bool) -> str:
    """Both tables of user-defined spans; Paddle closes one with a rule and heads threads in the other."""
    lines: list[Line] = []
    rows = table.rows(named=True)
    for thread in dict.fromkeys(row.get("thread") for row in rows):
        if not close:
            lines.append(f"Thread: {'All threads merged' if thread is None else thread}")
        shown, hidden = _limited([row for row in rows if row.get("thread") == thread], layout)
        lines += [(row["name"], *_stats(row, layout)) for row in shown]
        lines += _cut(hidden, "spans", layout)
    if not lines:
        return ""
    headers = ("Name", "Calls", _CPU_STATS, _GPU_STATS)
    widths = _fitted((0, 6, _STATS_WIDTH, _STATS_WIDTH), lines)
    return _framed(title, headers, widths, lines, layout.time_unit, close=close)


def _memory(table: pl.DataFrame, layout: Layout) -> str:
    printed = []
    for (place,), block in table.group_by("place", maintain_order=True):
        rows = block.rows(named=True)
        shown, hidden = _limited(rows, layout)
        lines: list[Line] = [
            (
                row["name"],
                row["type"],
                row["allocation_count"],
                row["free_count"],
                row["allocation_bytes"],
                row["free_bytes"],
                row["increase_bytes"],
            )
            for row in shown
        ]
        printed.append(
            _framed(
                f"Memory Summary - {place}",
                _MEMORY_HEADERS,
                (50, 12, 15, 15, 15, 15, 15),
                [*lines, *_cut(hidden, "rows", layout)],
                unit=None,
                close=False,
                preamble=(
                    f"Peak Allocated Memory: {rows[0]['peak_allocated_bytes']}",
                    f"Peak Reserved Memory: {rows[0]['peak_reserved_bytes']}",
                ),
            )
        )
    return "".join(printed)


_PRINTERS: Mapping[str, Callable[[pl.DataFrame, Layout], str]] = {
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

_SIDES = ("cpu", "gpu")

_MEMORY_HEADERS = (
    "Name",
    "Type",
    "Allocation Count",
    "Free Count",
    "Allocation Size",
    "Free Size",
    "Increased Size",
)


def _stats(row: Row, layout: Layout) -> tuple[object, str, str]:
    """Calls, and the two cells that hold five numbers each."""
    return row["calls"], _stat(row, "cpu", layout), _stat(row, "gpu", layout)


def _stat(row: Row, clock: str, layout: Layout) -> str:
    """``total / avg / max / min / ratio`` of one clock; dashes where it did not run."""
    if row[f"{clock}_total_ns"] is None:
        return "- / - / - / - / -"
    times = (_time(row[f"{clock}_{stat}_ns"], layout.time_unit) for stat in _STAT_ORDER)
    return " / ".join((*times, _percent(row[f"{clock}_ratio"])))


_STAT_ORDER = ("total", "avg", "max", "min")


def _time(time_ns: float, unit: str) -> str:
    return f"{time_ns / TIME_UNITS[unit]:.2f}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio * 100:.2f}"


def _indented(name: str, indent: int) -> str:
    """Cut to the column as Paddle cuts: three characters shorter than would fit."""
    if len(name) + indent > _OPERATOR_NAME:
        name = name[: _OPERATOR_NAME - indent - 3] + "..."
    return " " * indent + name


def _kernel_name(name: str) -> str:
    """Without the signature's arguments, cut to 90 characters."""
    match = _KERNEL_SIGNATURE.match(name)
    if match:
        name = match.group(1) + match.group(2)
    return name if len(name) <= 90 else name[:87] + "..."


def _limited(rows: Sequence[Any], layout: Layout) -> tuple[Sequence[Any], int]:
    """The rows to show and how many are left out."""
    shown = rows if layout.row_limit is None else rows[: layout.row_limit]
    return shown, len(rows) - len(shown)


def _cut(hidden: int, what: str, layout: Layout) -> list[Line]:
    return [f"{hidden} more {what}: row_limit is {layout.row_limit}"] if hidden else []


def _fitted(widths: Sequence[int], lines: Sequence[Line], fixed: int = 0) -> tuple[int, ...]:
    """Columns wide enough for their cells; the first ``fixed`` stay as they are.

    So does a last column of FLOPs, whose width Paddle fixes too.
    """
    cells = [line for line in lines if not isinstance(line, str)]
    last = 4 if len(widths) == 5 else len(widths)
    return tuple(
        width if at < fixed or at >= last else max([width, *(len(str(line[at])) for line in cells)])
        for at, width in enumerate(widths)
    )


def _line(cells: Sequence[object], widths: Sequence[int]) -> str:
    return "".join(f"{cell!s:<{width}}{'':{_GAP}}" for cell, width in zip(cells, widths))


def _length(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _centred(text: str, width: int) -> str:
    """Dashes on both sides; the odd one goes to the right."""
    dashes = width - len(text)
    return "-" * (dashes // 2) + text + "-" * (dashes - dashes // 2)


def _framed(
    title: str,
    headers: Sequence[str],
    widths: Sequence[int],
    lines: Sequence[Line],
    unit: str | None,
    close: bool = True,
    preamble: Sequence[str] = (),
) -> str:
    """A table without a note."""
    rule = _line(["-" * width for width in widths], widths)
    printed = [_centred(title, _length(widths))]
    printed += [f"Time unit: {unit}"] if unit else []
    printed += [*preamble, rule, _line(headers, widths), rule]
    printed += [
        _centred(line, _length(widths)) if isinstance(line, str) else _line(line, widths)
        for line in lines
    ]
    printed += [rule] if close else []
    return "\n".join([*printed, "", "", ""])


def _boxed(
    title: str,
    headers: Sequence[str],
    widths: Sequence[int],
    lines: Sequence[Line],
    note: str,
    unit: str | None,
    second: tuple[Sequence[str], Sequence[Line]] | None = None,
) -> str:
    """A table with a note below it, and perhaps a second head and body in the same columns."""
    table = _framed(title, headers, widths, lines, unit).rstrip("\n")
    rule = _line(["-" * width for width in widths], widths)
    printed = [table]
    if second:
        printed += [_line(second[0], widths), rule]
        printed += [_line(line, widths) for line in second[1]]
        printed += [rule]
    return "\n".join([*printed, f"Note:\n{note}", "-" * _length(widths), "", "", ""])


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
Example:
Communication:
  CPU:              |_________________|
  GPU:                                  |______________|
  Total:            |_________________| |______________|
Computation time(Kernel):
  GPU:         |________________|
Overlap time:       |___________|
"""
