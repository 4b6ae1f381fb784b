"""Summary tables as Paddle prints them: titles, columns, rows, number formats and notes.

Source of the layout: ``_build_table`` of paddle 3.3's profiler_statistic.py. ppprof adds:

- the rows ``gradient accumulation`` and ``Exposed Communication``;
- operators and spans of remote calls, below their call, with the Node ID of PyTorch's RFC
  (pytorch/pytorch issue 39675);
- a line with the number of hidden rows, below a table that the row limit cuts.

The notes are Paddle's own text, kept word for word, but for those below the Distribution Summary of
a trace without device events, and the line on Exposed Communication.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import polars as pl

from ppprof.choices import ALL_VIEWS, TIME_UNITS, check_time_unit
from ppprof.remote_names import REMOTE, call_of
from ppprof.report.columns import (
    EFFICIENCY,
    Column,
    Row,
    cut,
    cut_start,
    percent,
    text_cells,
    text_columns,
)
from ppprof.report.text import table as drawn
from ppprof.report.text.layout import PADDLE, Layout
from ppprof.report.text.table import Line, Table
from ppprof.units import distinct, escape_cell, format_more, format_ratio, format_time, short_name

Rows = Sequence[Row]
"""The rows of a table of `ppprof.analysis.summaries`, keyed by column."""
T = TypeVar("T")


@dataclass(frozen=True)
class TableOptions:
    """How to print tables.

    Raises:
        UsageError: unknown time unit.
    """

    time_unit: str = "ms"
    """One of `TIME_UNITS`."""
    op_detail: bool = True
    """Whether to list, below each operator, the operators it called and the work it launched."""
    row_limit: int | None = 20
    """Most operators, kernels, spans or memory rows to print; None for all. It applies to each
    thread, each remote call and each memory place separately."""
    where: str = "--row-limit none shows all"
    """Where the hidden rows are, for the line that counts them."""
    layout: Layout = PADDLE
    """How the tables are drawn."""

    def __post_init__(self) -> None:
        check_time_unit(self.time_unit)

    def time(self, time_ns: float) -> str:
        """Format a time in ``time_unit``, with two decimals and without the unit.

        >>> TableOptions(time_unit="us").time(1234)
        '1.23'
        """
        return f"{time_ns / TIME_UNITS[self.time_unit]:.2f}"

    def limited(self, rows: Sequence[T], noun: str) -> tuple[Sequence[T], list[Line]]:
        """Return the rows to show, and a line with the number of hidden rows if there are any.

        ``noun`` names the rows in the line, such as "kernels".
        """
        shown = rows if self.row_limit is None else rows[: self.row_limit]
        hidden = len(rows) - len(shown)
        line = f"{format_more(hidden, noun)}: row_limit is {self.row_limit}; {self.where}"
        return shown, [line] if hidden else []

    def table(
        self,
        title: str,
        columns: Sequence[Column],
        rows: Iterable[Row],
        rest: Sequence[Line] = (),
        **more: Any,
    ) -> Table:
        """Return a table of times with a line for each row, then the lines ``rest``.

        ``more``: further fields of `Table`.
        """
        lines = [text_cells(columns, row, self.time) for row in rows]
        unit = more.pop("unit", self.time_unit)
        return Table(title, text_columns(columns), [*lines, *rest], unit, **more)


def render_tables(tables: Mapping[str, Rows], options: TableOptions) -> str:
    """Return summary tables as text, in Paddle's order.

    Most views without rows print nothing; ``device`` and ``overview`` print an empty table.
    """
    return "".join(
        options.layout.table(table)
        for view in ALL_VIEWS
        if view in tables
        for table in _RENDERERS[view](tables[view], options)
    )


def title(rank: int, coordinate: str, window: int, steps: Sequence[int]) -> str:
    """Return the line that is printed above the tables of one rank's window.

    ``coordinate`` is the rank's coordinate or the file's name; the steps are ascending.

    >>> title(3, "dp1 mp1", 0, [5, 6, 7])
    'rank 3 (dp1 mp1), window 0, steps 5 to 7'
    """
    return f"rank {rank} ({escape_cell(coordinate)}), {window_title(window, steps)}"


def window_title(window: int, steps: Sequence[int]) -> str:
    """Return the part of `title` without the rank.

    >>> window_title(0, [5, 6, 7]), window_title(1, [])
    ('window 0, steps 5 to 7', 'window 1, no steps')
    """
    shown = f"steps {steps[0]} to {steps[-1]}" if steps else "no steps"
    return f"window {window}, {shown}"


def _stats(clock: str) -> Column:
    """Return the column with the times of one clock and their ratio."""
    names = [f"{clock}_{stat}_ns" for stat in ("total", "avg", "max", "min")]
    names.append(f"{clock}_ratio")
    header = f"{clock.upper()} Total / Avg / Max / Min / Ratio(%)"
    return Column(
        lambda row: [row[name] for name in names], header=header, text="stats", width=40, grows=True
    )


_CALLS = Column("calls", header="Calls", width=6, grows=True)
_GPU_STATS = _stats("gpu")
_STATS = (_CALLS, _stats("cpu"), _GPU_STATS)
_FLOPS = Column("flops", header="FLOPs", text="flops", width=10)


def _table(
    title: str, columns: Sequence[Column], lines: Sequence[Line], options: TableOptions, **more: Any
) -> list[Table]:
    """Return a table of times; nothing without lines. ``more``: further fields of `Table`."""
    table = Table(title, text_columns(columns), lines, options.time_unit, **more)
    return [table] if lines else []


def _lines(
    columns: Sequence[Column], rows: Rows, options: TableOptions, noun: str = ""
) -> list[Line]:
    """Return a line for each row; with a ``noun`` that names them, up to the row limit."""
    shown, cut = options.limited(rows, noun) if noun else (rows, [])
    return [*(text_cells(columns, row, options.time) for row in shown), *cut]


def _device(rows: Rows, options: TableOptions) -> list[Table]:
    columns = (
        Column("device", header="Device", width=30),
        Column("utilization", "ratio", header="Utilization (%)", width=20),
    )
    lines = _lines(columns, rows, options)
    return [Table("Device Summary", text_columns(columns), lines, note=_DEVICE_NOTE)]


def _overview(rows: Rows, options: TableOptions) -> list[Table]:
    lines: dict[str, list[Line]] = {"cpu": [], "gpu": []}
    for row in rows:
        side = lines[row["side"]]
        is_first = row["side"] == "cpu" and not side
        name = row["event_type"] if is_first else f"  {row['event_type']}"
        side.append((name, row["calls"], options.time(row["time_ns"]), percent(row["ratio"])))
    return [
        Table(
            "Overview Summary",
            [
                drawn.Column(header, 25)
                for header in ("Event Type", "Calls", "CPU Time", "Ratio (%)")
            ],
            lines["cpu"],
            options.time_unit,
            second=(("", "Calls", "GPU Time", "Ratio (%)"), lines["gpu"]),
            note=_OVERVIEW_NOTE,
        )
    ]


def _below_step(row: Row) -> str:
    return row["name"] if row["name"] == "ProfileStep" else f"  {row['name']}"


def _model(rows: Rows, options: TableOptions) -> list[Table]:
    columns = (Column(_below_step, header="Name", width=15), *_STATS)
    lines = _lines(columns, rows, options)
    return _table("Model Summary", columns, lines, options, note=_MODEL_NOTE)


def _distributed(rows: Rows, options: TableOptions) -> list[Table]:
    columns = (
        Column(_below_step, header="Name", width=25),
        Column("time_ns", "ms", header="Total Time", width=25),
        Column("ratio", "ratio", header="Ratio (%)", width=25),
    )
    computed_by = next((row["computed_by"] for row in rows if row["computed_by"]), "kernels")
    note = _DISTRIBUTED_NOTES[computed_by]
    return _table(
        "Distribution Summary", columns, _lines(columns, rows, options), options, note=note
    )


_OPERATOR_WIDTH = 52
_OPERATOR_INDENT = {"inner": 2, "inner_device": 4, "accumulation": 2, "device": 2, "shape": 2}


def _operator_name(row: Row) -> str:
    """Return an operator's name; that of what it called or launched indented, and cut as in Paddle's table."""
    name = _local_name(row)
    indent = _OPERATOR_INDENT.get(row["kind"])
    return name if indent is None else " " * indent + cut(name, _OPERATOR_WIDTH - indent)


def _local_name(row: Row) -> str:
    """Return an event's name without the prefix that names its remote call, if it has one."""
    name: str = row["name"]
    call = call_of(name)
    return name if call is None else name[len(call) + len(REMOTE) :]


def _operators(rows: Rows, options: TableOptions) -> list[Table]:
    columns = [Column(_operator_name, header="Name", width=_OPERATOR_WIDTH), *_STATS, _FLOPS]
    groups: list[list[Row]] = []
    for row in rows:
        if row["kind"] == "operator":
            groups.append([row])
        elif options.op_detail:
            groups[-1].append({**row, "node": groups[-1][0]["node"]})
    return _by_call("Operator Summary", columns, groups, "operators", options)


def _user_defined(rows: Rows, options: TableOptions) -> list[Table]:
    columns = [replace(_SPAN_NAME, source=_local_name), *_STATS]
    groups = [[row] for row in rows]
    return _by_call("UserDefined Summary", columns, groups, "spans", options, closed=False)


def _by_call(
    title: str,
    columns: Sequence[Column],
    groups: Sequence[Rows],
    noun: str,
    options: TableOptions,
    **more: Any,
) -> list[Table]:
    """Return a table of groups of rows, by thread and remote call; the limit counts groups."""
    if any(group[0]["node"] is not None for group in groups):
        columns = [*columns, Column("node", header="Node ID", width=10, grows=True)]
    threads: dict[str, dict[str | None, list[Rows]]] = {}
    for group in groups:
        thread = group[0].get("thread")
        heading = "Thread: All threads merged" if thread is None else f"Thread: {thread}"
        calls = threads.setdefault(heading, {})
        calls.setdefault(call_of(group[0]["name"]), []).append(group)
    lines: list[Line] = []
    for heading, calls in threads.items():
        lines.append(heading)
        for call, own in calls.items():
            shown, hidden = options.limited(own, noun)
            lines += [call] if call else []
            lines += [*_lines(columns, list(chain(*shown)), options), *hidden]
    return _table(title, columns, lines, options, **more)


def _shapes(rows: Rows, options: TableOptions) -> list[Table]:
    columns = (
        Column("name", header="Name", width=30, grows=True),
        Column(
            lambda row: row["shapes"] or None, header="Inputs", text="inputs", width=24, grows=True
        ),
        *(*_STATS, _FLOPS),
    )
    lines = _lines(columns, rows, options, "operators")
    return _table("Operator Summary by Shape", columns, lines, options)


def _kernels(rows: Rows, options: TableOptions) -> list[Table]:
    shown, _ = options.limited(rows, "kernels")
    names = {row["name"]: kernel_name(row["name"]) for row in shown}
    if options.layout != PADDLE:  # Paddle's own table cuts them at the end
        names = distinct(names, _KERNEL_WIDTH, _short_kernel)
    name = Column(lambda row: names[row["name"]], header="Name", width=_KERNEL_WIDTH)
    columns = (name, _CALLS, _GPU_STATS)
    return _table("Kernel Summary", columns, _lines(columns, rows, options, "kernels"), options)


_SPAN_NAME = Column("name", header="Name", width=0, grows=True)


def _memory_manipulation(rows: Rows, options: TableOptions) -> list[Table]:
    columns = (_SPAN_NAME, *_STATS)
    lines = _lines(columns, rows, options, "spans")
    return _table("Memory Manipulation Summary", columns, lines, options)


_MEMORY = (
    Column("name", header="Name", width=50),
    Column("type", header="Type", width=12),
    Column("allocation_count", header="Allocation Count", width=15),
    Column("free_count", header="Free Count", width=15),
    Column("allocation_bytes", header="Allocation Size", width=15),
    Column("free_bytes", header="Free Size", width=15),
    Column("increase_bytes", header="Increased Size", width=15),
)


def _memory(rows: Rows, options: TableOptions) -> list[Table]:
    tables = []
    places: dict[str, list[Row]] = {}
    for row in rows:
        places.setdefault(row["place"], []).append(row)
    for place, own in places.items():
        peaks = (
            f"Peak Allocated Memory: {own[0]['peak_allocated_bytes']}",
            f"Peak Reserved Memory: {own[0]['peak_reserved_bytes']}",
        )
        shown, _ = options.limited(own, "rows")
        is_remote = any(call_of(row["name"]) for row in shown)
        columns = (replace(_MEMORY[0], grows=is_remote), *_MEMORY[1:])
        lines = _lines(columns, own, options, "rows")
        title = f"Memory Summary - {place}"
        tables.append(Table(title, text_columns(columns), lines, preamble=peaks, closed=False))
    return tables


def _efficiency(rows: Rows, options: TableOptions) -> list[Table]:
    if not rows:
        return []
    known = [row for row in rows if row["name"] is not None]
    total_ns = sum(row["time_ns"] for row in rows)
    unknown_ns = total_ns - sum(row["time_ns"] for row in known)
    unknown = percent(unknown_ns / total_ns if total_ns else 0.0)
    preamble = [f"Work is unknown of {unknown}% of the operators' time"]
    faster = [row["name"] for row in known if (row["roof_ratio"] or 0) > _EXACT_ROOF]
    if faster:
        preamble.append(
            f"Faster than the roof, so it is not the device's: {len(faster)} of {len(known)} rows, such as "
            f"{faster[0]}. State the vendor's numbers: Global.device_peak_flops and Global.device_peak_gbps"
        )
    columns, lines = text_columns(EFFICIENCY), _lines(EFFICIENCY, known, options, "operators")
    return [Table("Efficiency Summary", columns, lines, options.time_unit, preamble, note=_ROOF)]


def _copies(rows: Rows, options: TableOptions) -> list[Table]:
    lines = _lines(_COPIES, rows, options, "kinds of copies")
    return _table("Device Copies", _COPIES, lines, options, note=_OF_STEPS)


_COPIES = (
    Column("direction", header="Direction", width=10, grows=True),
    Column("memory", header="Memory", text="word", width=12),
    Column("calls", "number", header="Calls", text="text", width=8),
    Column("bytes", "bytes", header="Bytes", text="bytes", width=10),
    Column("gpu_total_ns", "ms", header="Total", text="whole ns", width=10),
    Column("gpu_avg_ns", "ms", header="Avg", text="whole ns", width=10),
    Column("gpu_max_ns", "ms", header="Max", text="whole ns", width=10),
    Column("step_ratio", "ratio", header="Steps (%)", width=9),
    Column("bytes_per_s", "GB/s", header="GB/s", width=8),
)

_OF_STEPS = (
    "On the device. Steps: the share of the steps' time in which one of them runs.\n"
    "pageable: memory of the host that is not pinned; the copy passes through a buffer of the driver,\n"
    "and the host waits for it. GB/s: bytes by the time of the copies that record them."
)


def _layers(rows: Rows, options: TableOptions) -> list[Table]:
    lines = _lines(_LAYERS, _with_attributes(rows), options, "layers")
    return _table("Layer Summary", _LAYERS, lines, options, note=_PER_STEP)


def _with_attributes(rows: Rows) -> list[Row]:
    """Return layers with the attributes that lead to them from the layer above: ``mlp (MLP)``."""
    above: list[str] = []
    shown: list[Row] = []
    for row in rows:
        depth, attribute = row["depth"], row.get("attribute") or ""
        outer = next((name for name in reversed(above[:depth]) if name), "")
        own = attribute.removeprefix(f"{outer}.") if outer else attribute
        above[depth:] = [attribute]
        shown.append({**row, "name": f"{own} ({row['name']})" if own else row["name"]})
    return shown


_LAYERS = (
    Column(lambda row: f"{'  ' * row['depth']}{row['name']}", header="Layer", width=30, grows=True),
    Column("forward_ns", "ms", header="Forward", text="whole ns", width=10),
    Column("backward_ns", "ms", header="Backward", text="whole ns", width=10),
    Column("ratio", "ratio", header="Ratio (%)", width=9),
    Column("flops", header="GFLOPs", text="GFLOP", width=10),
    Column("backward_flops", header="Backward GFLOPs", text="GFLOP", width=16),
    Column("flops_per_s", "TFLOP/s", header="TFLOP/s", width=10),
    Column("mfu", "ratio", header="MFU(%)", width=8),
)


def _python(rows: Rows, options: TableOptions) -> list[Table]:
    tables: list[Table] = []
    for thread, where in (("steps", ""), ("others", " of Other Threads")):
        for kind, name in (("line", "Line"), ("function", "Function")):
            own = [row for row in rows if (row["thread"], row["kind"]) == (thread, kind)]
            columns = [replace(_PLACE, header=name), *_PYTHON, *([_CODE] if kind == "line" else [])]
            lines = _lines(columns, own, options, f"{kind}s")
            note = "" if tables else _SAMPLED
            tables += _table(f"Python {name}s{where}", columns, lines, options, note=note)
    return tables


def _place(row: Row) -> str:
    """Return where a line or function is, as `python_lines` names it."""
    file = f"{row['file']}:{row['line']}" if row["kind"] == "line" else row["file"]
    return " ".join(filter(None, (cut_start(file, 40), cut(row["function"], 40))))


_PLACE = Column(_place, width=30, grows=True)
_PYTHON = (
    Column("samples", "number", header="Samples", width=8),
    Column("self_ns", "ms", header="Self", text="whole ns", width=10),
    Column("total_ns", "ms", header="Total", text="whole ns", width=10),
    Column("self_ratio", "ratio", header="Self(%)", width=8),
    Column("total_ratio", "ratio", header="Total(%)", width=8),
    Column(
        lambda row: (
            "-"
            if row["low_ratio"] is None
            else f"{row['low_ratio'] * 100:.1f} to {row['high_ratio'] * 100:.1f}"
        ),
        header="95% of Total(%)",
        width=15,
    ),
)
_CODE = Column(lambda row: cut(row["source"] or "", 60), header="Source", width=8, grows=True)

_SAMPLED = (
    "Of an average step, by samples of stacks at random instants.\n"
    "Self: the line is the innermost of your code; what it calls in Paddle, in packages and in Python's\n"
    "library is its own. Total: the line is on the stack."
)

_PER_STEP = (
    "Of one step: times, and floating point operations (FLOPs) of operators whose work is known.\n"
    "Ratio: of forward and backward, with all layers below, in the time of all steps.\n"
    "TFLOP/s and MFU count forward and backward; MFU is the share of the device's peak."
)

_EXACT_ROOF = 1.02
"""Roofs above this ratio are wrong: clocks that boost and rounded times do not explain them."""

_MOST_PARTS = 5


def render_largest(parts: pl.DataFrame) -> list[str]:
    """Return `ppprof.analysis.efficiency.efficiency.largest_modules` as lines: the largest, and a rest.

    No lines for a table without rows.
    """
    rows = []
    for name, num, forward_ns, backward_ns, ratio in parts[:_MOST_PARTS].iter_rows():
        classes = name.split(" > ")
        shown = " > ".join(classes[-2:]) + (f" ({num})" if num > 1 else "")
        shown = {"": "outside all modules", "Backward": "Backward, of no module"}.get(name, shown)
        times = (format_time(time_ns) if time_ns else "-" for time_ns in (forward_ns, backward_ns))
        rows.append((shown, *times, format_ratio(ratio)))
    rest = parts["ratio"][_MOST_PARTS:].to_list()
    rows += [(format_more(len(rest), "parts"), "", "", format_ratio(sum(rest)))] if rest else []
    title = "the largest parts of this step"
    return PADDLE.aligned((title, "forward", "backward", "share"), rows) if rows else []


_ROOF = (
    "Time: of the device, or of the CPU in a trace without a device; all calls.\n"
    "Roof: the least time in which the device could compute or move it, divided by Time; - for an\n"
    "unknown device. Above roof: what that would save in one step. Bound by launch: no kernel is as\n"
    "short as the roof; fewer, larger ones are. Peak: the dtype whose peak is the roof's.\n"
    "Inputs of a gradient, such as matmul_grad: those of its operator."
)


_RENDERERS: Mapping[str, Callable[[Rows, TableOptions], list[Table]]] = {
    "device": _device,
    "overview": _overview,
    "model": _model,
    "dist": _distributed,
    "op": _operators,
    "kernel": _kernels,
    "memcpy": _memory_manipulation,
    "udf": _user_defined,
    "mem": _memory,
    "copies": _copies,
    "shape": _shapes,
    "layer": _layers,
    "efficiency": _efficiency,
    "python": _python,
}


_KERNEL_WIDTH = 90
_KERNEL_SIGNATURE = re.compile(r"(.+?)(<.*>)(\(.*\))")


def kernel_name(name: str) -> str:
    """Return a kernel's name with template arguments, without parameter list, in 90 characters.

    A longer name is cut and ends in "...". The parameter list of a name without template arguments
    stays.

    >>> kernel_name("void k<int, float>(int*, float*)")
    'void k<int, float>'
    """
    name = _with_templates(name)
    return name if len(name) <= _KERNEL_WIDTH else name[: _KERNEL_WIDTH - 3] + "..."


def _short_kernel(name: str) -> str:
    """Return a name as `kernel_name`, but a longer one as `short_name`."""
    with_templates = _with_templates(name)
    return (
        with_templates if len(with_templates) <= _KERNEL_WIDTH else short_name(name, _KERNEL_WIDTH)
    )


def _with_templates(name: str) -> str:
    match = _KERNEL_SIGNATURE.match(name)
    return match.group(1) + match.group(2) if match else name


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

_DISTRIBUTED_NOTES = {
    "kernels": """\
Communication time: Communication Event time, Communication Op time and its kernel time on gpu.
Computation time: Kernel time, except kernels belong to communication(nccl kernels).
Overlap time: Communication time intersects with computation time.
Exposed Communication time: the device communicates and does not compute, as in ppprof ranks (ppprof's own row).
Example:
Communication:
  CPU:              |_________________|
  GPU:                                  |______________|
  Total:            |_________________| |______________|
Computation time(Kernel):
  GPU:         |________________|
Overlap time:       |___________|
""",
    "operators": """\
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
""",
    "nothing": """\
This trace was recorded on a device, but holds no device events.
Communication time: Communication Event time and Communication Op time on the host, which only launches.
Computation, overlap and exposed communication time: unknown.
""",
}
"""Notes by what counts as computation."""

_WHY_EMPTY = {
    "model": "at most one of steps, Dataloader, Forward, Backward and Optimization in this trace",
    "dist": "no communication in this trace",
    "op": "no operators in this trace",
    "kernel": "no kernels of a device in this trace",
    "memcpy": "no spans of copies on the host in this trace; --views copies lists the device's copies",
    "udf": "no spans of the training's own in this trace",
    "mem": "no memory events in this trace; Profiler.profile_memory: True records them",
    "copies": "no copies of a device in this trace",
    "shape": "no operators in this trace",
    "layer": "no layers in this trace, or no times of their device",
    "efficiency": "no operator times of the device in this trace",
    "python": "no samples of Python stacks beside this trace; Profiler.python_stacks takes them",
}


def explain_empty(tables: Mapping[str, Sequence[object]]) -> str:
    """Return a line for each table without rows that says why; "" if every table has rows."""
    lines = [
        f"{view}: {_WHY_EMPTY.get(view, 'nothing recorded')}\n"
        for view, rows in tables.items()
        if not rows
    ]
    return "".join([*lines, "\n"]) if lines else ""
