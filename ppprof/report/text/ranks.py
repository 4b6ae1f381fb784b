"""The step breakdown of ranks, their collectives, slow ranks and links, and what these cost, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from ppprof.analysis.ranks.cluster import Cluster
from ppprof.analysis.ranks.rank_communication import UNKNOWN_AXIS
from ppprof.analysis.ranks.stragglers import LEAST_STEPS
from ppprof.messages import Counted
from ppprof.report.columns import GROUPS, QUEUE, Column
from ppprof.report.text.summary import TableOptions
from ppprof.report.text.table import Line, Table, columns_for
from ppprof.units import format_more

_ALWAYS_SHOWN = ("step_ns", "computation_ns", "rest_ns")
"""Columns that are shown even if they are 0 in all rows. Columns ``communication_...`` are never
shown: they are the sum of exposed, bubble and hidden."""

_NOTE = """\
Means over recorded steps: time, and % of the step. Computation, Exposed (by axis), Data Loading, Bubble, Host Bound, Queued
and Rest add up to the step. Exposed: communication that no computation hides. Bubble: waiting for other pipeline
stages; it includes transfers if the trace of the other side is missing. Hidden: communication under computation.
Host Bound: the device is idle and has nothing in its queue; Queued: idle with work in its queue. Host Launch:
runtime calls that do not wait; they run beside the device's time. *: largest value of its column."""

_UNKNOWN_AXIS_NOTE = """
?: communication whose axis is not known, such as that of kernels that C++ launches outside all spans."""


def render_ranks(table: pl.DataFrame, by: Sequence[str], options: TableOptions) -> str:
    """Return the table of `ppprof.analysis.ranks.step_table.group_steps` as text.

    A table with several rows ends with the minimum, median and maximum of each column. Columns
    that are 0 in all rows are left out, except for `_ALWAYS_SHOWN`. Coordinates (host, axes)
    that are equal in all rows are left out, except for those in ``by``. The columns in ``by``
    name a row, and are shown first. The row limit is ignored.
    """
    times = [
        name
        for name in table.columns
        if name.endswith("_ns")
        and not name.startswith(("communication_", "slowest_", "median_"))
        and (name in _ALWAYS_SHOWN or table[name].sum() > 0)
    ]
    is_number = [name.startswith("num_") or name.endswith("_ns") for name in table.columns]
    coordinates = [name for name in table.columns[: is_number.index(True)] if name not in by]
    labels = [*by, *(name for name in coordinates if table[name].n_unique() > 1)]
    maxima = {
        name: table[name].max()
        for name in times
        if table.height > 1 and table[name].max() != table[name].min()
    }
    lines: list[Line] = []
    for row in table.iter_rows(named=True):
        cells = ["-" if row[name] is None else str(row[name]) for name in labels]
        for name in times:
            mark = " *" if name in maxima and row[name] == maxima[name] else ""
            cells.append(_cell(row[name], row["step_ns"], options) + mark)
        if "slowest_rank" in table.columns:
            cells.append(_slowest(row))
        lines.append(cells)
    if table.height > 1:
        lines.append("of the rows above")
        lines += [
            _statistic(name, table, len(labels), times, options)
            for name in ("min", "median", "max")
        ]
    headers = [*labels, *(_header(name) for name in times)]
    if "slowest_rank" in table.columns:
        headers.append("Slowest Rank (own time / median)")
        lines = [
            line if isinstance(line, str) else [*line, *[""] * (len(headers) - len(line))]
            for line in lines
        ]
    unit = f"{options.time_unit} / % of the step"
    is_axis_unknown = any(name.endswith(f"_{UNKNOWN_AXIS}_ns") for name in times)
    note = _NOTE + _UNKNOWN_AXIS_NOTE if is_axis_unknown else _NOTE
    return options.layout.table(
        Table("Step Breakdown", columns_for(headers), lines, unit, note=note)
    )


def _statistic(
    name: str, table: pl.DataFrame, num_labels: int, times: Sequence[str], options: TableOptions
) -> Sequence[object]:
    """Return the line with the ``min``, ``median`` or ``max`` of each column of times."""
    values = [getattr(table[column].drop_nulls(), name)() for column in times]
    cells = ["-" if value is None else options.time(value) for value in values]
    return [name, *[""] * (num_labels - 1), *cells]


def _slowest(row: Mapping[str, Any]) -> str:
    """Return the cell of the slowest rank; "-" if no rank's own time is known."""
    if row["slowest_rank"] is None:
        return "-"
    ratio = row["slowest_own_ns"] / row["median_own_ns"] if row["median_own_ns"] else 1.0
    return f"{row['slowest_rank']} ({ratio:.2f} x)"


def _cell(time_ns: float | None, step_ns: float | None, options: TableOptions) -> str:
    if time_ns is None:
        return "-"
    percent = f" / {100 * time_ns / step_ns:.1f}" if step_ns else ""
    return options.time(time_ns) + (percent if time_ns != step_ns else "")


def _header(column: str) -> str:
    """Return a column header such as ``Exposed mp`` for ``exposed_mp_ns``.

    >>> _header("data_loading_ns"), _header("hidden_pp+mp_ns")
    ('Data Loading', 'Hidden pp+mp')
    """
    if column == "step_ns":
        return "Step Time"
    words = column.removesuffix("_ns").split("_")
    if words[0] in ("exposed", "hidden"):
        return " ".join([words[0].capitalize(), *words[1:]])
    return " ".join(word.capitalize() for word in words)


_QUEUE_NOTE = """\
Means over steps. No device event runs: with an empty queue (the host has launched nothing), or while work is in
the queue: Latency, for 20 us at most after its launch; Blocking Call, while the host copies, allocates or frees;
Other Work, for another stream, an event, the rest of a CUDA graph; Unknown, its launch was not recorded.
Queue Length: launched device events that wait. Launch Delay: from a launch to the start of its device event."""


def render_queue(cluster: Cluster, options: TableOptions) -> str:
    """Return the queues of the ranks' devices as text: a row per rank, means over its steps.

    "" for a run without device events. The row limit is ignored.
    """
    means = cluster.queue.group_by("rank").agg(pl.exclude("window", "step").mean()).sort("rank")
    if means.is_empty():
        return ""
    rows = means.iter_rows(named=True)
    return options.layout.table(options.table("Idle Device", QUEUE, rows, note=_QUEUE_NOTE))


_GROUPS_NOTE = """\
Times are means per step and rank, summed over the collectives of the step. Wait: until the last rank arrives.
Transfer: from then to the end. Cost: last arrival minus median arrival. Bus: bytes over Transfer, as nccl-tests
counts them. Verdict of a collective: most time in the link (transfer), in waiting for a
late rank (skew), in both (mixed), or inconclusive, as the clocks' error is larger than the skew.
Last: the rank that most often arrives last."""

_MAX_MEMBERS = 6
"""Most ranks of a group that are all listed; of a larger group, the first two and the last are."""


def render_groups(cluster: Cluster, options: TableOptions) -> str:
    """Return the table of `ppprof.analysis.ranks.arrivals.by_group` as text, longest wait first.

    A last line counts the groups beyond the row limit.
    """
    return _limited("Collectives", _GROUPS, cluster.groups, "groups", _GROUPS_NOTE, options)


def _limited(
    title: str,
    columns: Sequence[Column],
    table: pl.DataFrame,
    noun: str,
    note: str,
    options: TableOptions,
) -> str:
    """Return the rows of a table up to the row limit as text, and the number of the others."""
    shown = table if options.row_limit is None else table.head(options.row_limit)
    num_hidden = table.height - shown.height
    rest = [format_more(num_hidden, noun)] if num_hidden else []
    rows = shown.iter_rows(named=True)
    return options.layout.table(options.table(title, columns, rows, rest, note=note))


_BANDWIDTHS_NOTE = """\
Size: what a rank contributes. Transfer: of one call, from the last arrival to the end; the median.
Algorithm, Bus: algbw and busbw of nccl-tests; Bus is the rate of the slowest link of a ring.
Of link: Bus over what a device can send to its host's other devices (NVLink); -: unknown, or other hosts."""


def render_bandwidths(cluster: Cluster, options: TableOptions) -> str:
    """Return the table of `ppprof.analysis.ranks.arrivals.by_size` as text; "" without rows.

    A last line counts the rows beyond the row limit.
    """
    table = cluster.bandwidths
    if table.is_empty():
        return ""
    title = "Bandwidth of collectives"
    return _limited(title, _BANDWIDTHS, table, "sizes", _BANDWIDTHS_NOTE, options)


def _members(members: str) -> str:
    """Return the ranks of a group: ``0,8`` or, for a large group, ``0,8,...,120 (16)``."""
    ranks = members.split(",")
    is_short = len(ranks) <= _MAX_MEMBERS
    return members if is_short else f"{ranks[0]},{ranks[1]},...,{ranks[-1]} ({len(ranks)})"


_GROUPS = (
    replace(GROUPS["group"], source=lambda row: _members(row["members"])),
    *tuple(GROUPS.values())[1:],
)
_BANDWIDTHS = (
    Column("op", header="Collective"),
    Column("axis", header="Axis", text="word"),
    Column("ranks", header="Ranks"),
    Column("bytes", "bytes", header="Size"),
    Column("calls", header="Calls/step", text="mean"),
    Column("transfer_ns", "ms", header="Transfer"),
    Column("algorithm_bytes_per_s", "GB/s", header="Algorithm (GB/s)"),
    Column("bus_bytes_per_s", "GB/s", header="Bus (GB/s)"),
    Column("link_ratio", header="Of link", text="percent"),
)


def render_stragglers(cluster: Cluster, options: TableOptions) -> str:
    """Return a line for each slow rank and slow link, then lines on the accuracy of the clocks.

    A slow link is a group of ranks with longer transfers than its siblings: the groups of the same
    axis. If there are several ranks and none is slow, one line says so, or why that is unknown.
    """
    unit, paint = options.time_unit, options.layout.paint
    lines = []
    slow = cluster.slow_ranks.filter("is_slow")
    longer = cluster.slow_lines.select("rank", "name", line_ns="excess_ns")
    for row in slow.join(longer, "rank", "left", maintain_order="left").iter_rows(named=True):
        where = _coordinates(cluster, row["rank"])
        lines.append(
            f"{paint('Slow computation', 'bad')}: rank {row['rank']}{where}: {options.time(row['excess_ns'])} {unit} a "
            f"step (+- {options.time(row['noise_ns'])}) more of its own than the "
            f"{Counted(row['peers']):other rank|other ranks} of {row['role'] or 'the job'}"
        )
        if row["name"] is not None:
            lines[-1] += f"; {options.time(row['line_ns'])} more in {row['name']}"
    for row in cluster.slow_groups.filter("is_slow").iter_rows(named=True):
        lines.append(
            f"{paint('Slow link', 'bad')}: ranks {_members(row['members'])} ({row['axis'] or '?'}): "
            f"{options.time(row['excess_ns'])} {unit} a step "
            f"(+- {options.time(row['noise_ns'])}) more in transfers than the "
            f"{Counted(row['siblings']):group|groups} beside it"
        )
    if not lines and cluster.steps["rank"].n_unique() > 1:
        lines.append(_all_clear(cluster))
    return "".join(f"{line}\n" for line in [*lines, *_clock_errors(cluster, options)])


def _all_clear(cluster: Cluster) -> str:
    """Return that no rank or link is slow, of those that are compared with others, or why it is unknown."""
    peers, siblings = cluster.slow_ranks["peers"], cluster.slow_groups["siblings"]
    known = ["rank"] * (peers > 0).any() + ["link"] * (siblings > 0).any()
    unknown = "Unknown whether a rank or link is slow: "
    ranks = cluster.steps.group_by("step").agg(pl.col("rank").n_unique())["rank"]
    if (ranks > 1).sum() < LEAST_STEPS:
        return f"{unknown}ranks share fewer than {LEAST_STEPS} steps."
    if not known:
        return f"{unknown}{'no rank has peers' if len(peers) else 'own times are unknown'}."
    return f"No {' or '.join(known)} is consistently slower than its peers."


def _coordinates(cluster: Cluster, rank: int) -> str:
    """Return a rank's positions on the axes on which ranks differ, such as `` (dp0 mp1)``; "" without such an axis."""
    (row,) = cluster.steps.filter(pl.col("rank") == rank).head(1).iter_rows(named=True)
    coordinates = [
        f"{axis}{row[axis]}"
        for axis in ("dp", "pp", "sharding", "sep", "mp")
        if row[axis] is not None and cluster.steps[axis].n_unique() > 1
    ]
    return f" ({' '.join(coordinates)})" if coordinates else ""


def _clock_errors(cluster: Cluster, options: TableOptions) -> list[str]:
    """Return a line with the largest error above 0 for each method that gave clock offsets.

    Ranks that meet others, and whose offset is unknown, have a line, too.
    """
    lines = []
    for method, how in (("exchange", "measured"), ("collectives", "bounded by collectives")):
        errors = [clock.error_ns for clock in cluster.clocks.values() if clock.method == method]
        if any(errors):
            error = f"{options.time(max(errors))} {options.time_unit}"
            lines.append(f"Clocks of {Counted(len(errors)):rank|ranks} {how}: known to {error}.")
    unknown = set(cluster.matched_collectives["rank"]) - cluster.clocks.keys()
    if unknown:
        lines.append(
            f"Clocks of {Counted(len(unknown)):rank|ranks} unknown: what they wait at collectives may "
            "be the difference of two clocks."
        )
    return lines


_WHAT_IF_NAMES = {
    "recorded": "as recorded",
    "nothing": "as replayed",
    "all": "everything",
    "steady": "each as it usually is",
    "balanced": "stages balanced",
    "slowest": "slowest workers",
    "kind": "every {kind}",
    "stage": "stage {stage}",
    "worker": "worker of stage {stage}",
    "link": "link",
    "step": "everything in step {step}",
}

_WHAT_IF_NOTE = """\
Source: Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025.
Worker: one stage of one replica, with all its mp ranks. Usual: the lower median of all workers and \
micro-batches in a step, forward and backward separately. For stages: the mean over stages, since \
other stages have to do the work that a slow stage gives away.
Stages balanced: the stages share their work equally, and what varies by chance or machine stays: what moving layers can gain.
Step Time: replayed step time if the workers, stage or link of the row were as fast as usual; mean over steps.
Saved: the replayed step time minus Step Time.
Share: Saved, relative to the row "everything"; of a stage, relative to all stages at their mean.
Each as it usually is: every worker as fast as in its own typical pass of the run. Saved is then the cost of \
variation between micro-batches: chance, or sequences of different length.
S: step time relative to the row "everything". For a single step, Saved is of that step.
Alone: step time if only this worker, stage, link or kind is slower than usual, relative to the row "everything" \
(S_w for workers, S_t for kinds; a stage relative to all stages at their mean).
M_W: share of the 3% of workers that are slowest alone (at least one). Near 100%: these workers cause the delay.
M_S: share of the last stage. Near 100%: {stage_cause}.
"""

_STAGE_TOO_LARGE = "its part of the model is too large"
_STAGE_OR_WORKER = (
    "its part of the model is too large, or its machines are slow (ranks {ranks}); without another "
    "replica of the stage the replay cannot separate the two"
)
_SLOW_WORKER = (
    "its part of the model is too large. Here slow workers in it explain the delay at least as well "
    "(ranks {ranks}: M_W): look at them first"
)


def render_what_if(table: pl.DataFrame, options: TableOptions | None = None) -> str:
    """Return the table of `ppprof.analysis.ranks.what_if.what_if` as text; "" if it has no rows."""
    if table.is_empty():
        return ""
    options = options or TableOptions()
    rows = table.rows(named=True)
    replayed = next(row for row in rows if row["fixed"] == "nothing")
    ideal = next(row for row in rows if row["fixed"] == "all")
    slowest = next(row for row in rows if row["fixed"] == "slowest")
    stages = sorted((row for row in rows if row["fixed"] == "stage"), key=lambda row: row["stage"])
    last = stages[-1] if stages else None
    of_last_stage = last["share"] if last else None
    preamble = (
        f"S {ideal['slowdown']:.2f}, M_W {_percent(slowest['share'])}, "
        f"M_S {_percent(of_last_stage)}",
        f"The replay differs from the recording by {_percent(replayed['error_ratio'])}, mean over steps",
    )
    shown, hidden = options.limited(rows, "rows")
    note = _WHAT_IF_NOTE.format(stage_cause=_stage_cause(last, slowest))
    more = {"preamble": preamble, "note": note}
    return options.layout.table(options.table("What-if Summary", _WHAT_IF, shown, hidden, **more))


def _stage_cause(last: Mapping[str, Any] | None, slowest: Mapping[str, Any]) -> str:
    """Return what a large share of the last stage means, given the slowest workers."""
    if last is None or last["share"] is None or slowest["share"] is None:
        return _STAGE_TOO_LARGE
    in_stage, slow = (set((row["ranks"] or "").split(",")) for row in (last, slowest))
    if in_stage <= slow:
        return _STAGE_OR_WORKER.format(**last)
    if slow < in_stage and slowest["share"] >= last["share"]:
        return _SLOW_WORKER.format(**slowest)
    return _STAGE_TOO_LARGE


_WHAT_IF = (
    Column(
        lambda row: _WHAT_IF_NAMES[row["fixed"]].format(**row),
        header="If as fast as usual",
        width=24,
    ),
    Column("ranks", header="Ranks", text="word", width=16, grows=True),
    Column("step_ns", "ms", header="Step Time", width=12),
    Column(
        lambda row: None if row["slowdown"] is None else row["step_ns"] * (row["slowdown"] - 1),
        "ms",
        header="Saved",
        width=12,
    ),
    Column("share", header="Share", text="per mille", width=8),
    Column("alone_slowdown", header="Alone", text="thousandths", width=8),
)


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"
