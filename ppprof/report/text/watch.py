"""A running job as one screen of text: its numbers, a cell for each rank, and what needs a look."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod

from ppprof.messages import Counted
from ppprof.report.text.layout import Layout, cut
from ppprof.run.watch import SLOW_RATIOS, Rank, View
from ppprof.topology import Topology
from ppprof.units import escape_cell, format_bytes, format_ratio, format_time

_LEVELS = ".+x#"
"""Marks of a rank's extra work: below the first of `SLOW_RATIOS`, from the first one on..."""
_UNKNOWN, _BEHIND, _GONE = "?", "!", "X"
_MARKS = f"{_UNKNOWN}{_LEVELS}{_BEHIND}{_GONE}"
"""The best first: a cell of several ranks has the mark of the worst."""
_MEANINGS = {"+": "warning", "x": "warning", "#": "bad", "!": "bad", "X": "bad", ".": "good"}
_LEGEND = "own work above peers': " + "  ".join(
    f"{mark} {text}"
    for mark, text in zip(
        _LEVELS, (f"<{SLOW_RATIOS[0]:.0%}", *(f"{ratio:.0%}" for ratio in SLOW_RATIOS))
    )
)
_MOST_FINDINGS = 4
_WIDTH = 80
_LABEL = 16
_SHORT_LABEL = 6


def screen(view: View, layout: Layout, height: int, notes: Sequence[str] = ()) -> list[str]:
    """Return the lines of a screen, at most ``height``.

    ::

        8 ranks, dp 2 x pp 2 x mp 2: profiler_log
        step 1,240  412 ms (402 ms to 455 ms)  running
        19,885 tokens/s  MFU 41.2%  loss 2.718 at step 1,230
        waits: communication 12.1%, data 0.4%  peak memory: host 14.0 GiB (rank 3)

        own work above peers': . <5%  + 5%  x 10%  # 20%  ? unknown
        dp0 pp0          ..
        dp0 pp1          ..
        dp1 pp0          .#
        dp1 pp1          ..

        rank 5 (dp1_pp0_sharding0_mp1) is slow: 86 ms more work of its own than ...

    Args:
        view: the job.
        layout: width, 80 columns if it has no width, and whether there are colours.
        height: most lines.
        notes: lines for the end of the screen, such as answers to keys.
    """
    width = layout.width or _WIDTH
    head = [
        layout.paint(line, "title" if not n else None) for n, line in enumerate(_head(view, width))
    ]
    findings = [line for text in view.findings for line in _wrapped(escape_cell(text), width)]
    most = max(1, min(len(findings), _MOST_FINDINGS))
    if len(findings) > most:
        more = Counted(len(findings) - most + 1)
        findings = [
            *findings[: most - 1],
            f"and {more:more line|more lines}: make the terminal higher",
        ]
    meaning = "warning" if view.findings else "good"
    foot = [layout.paint(line, meaning) for line in findings or ["nothing to look at"]]
    foot += [line for text in notes for line in _wrapped(escape_cell(text), width)]
    cells = _cells(view, layout, width, max(1, height - len(head) - len(foot) - 1))
    num_blank = height - len(head) - len(cells) - len(foot)
    lines = [*head, *[""] * (num_blank > 0), *cells, *[""] * (num_blank > 1), *foot]
    return lines[:height]


def _head(view: View, width: int) -> list[str]:
    num = len(view.ranks)
    axes = ""
    if view.topology is not None:
        degrees = zip(view.topology.order, view.topology.degrees)
        axes = " x ".join(f"{axis} {degree}" for axis, degree in degrees if degree > 1)
    world = view.topology.world_size if view.topology else num
    ranks = f"{Counted(num):rank|ranks}" if num == world else f"{num} of {world} ranks"
    state = "running"
    if view.has_ended:
        state = "ended, or not begun"
    elif view.is_stalled:
        state = f"no step for {view.idle_s:.0f} s"
    length = "-"
    if view.step_ns is not None:
        length = format_time(view.step_ns)
        if view.range_ns is not None:
            length += f" ({' to '.join(map(format_time, view.range_ns))})"
    speed = [f"{view.tokens_per_s:,.0f} tokens/s"] if view.tokens_per_s is not None else []
    if view.samples_per_s is not None:
        speed.append(f"{view.samples_per_s:,.1f} samples/s")
    speed += [f"MFU {format_ratio(view.mfu)}"] if view.mfu is not None else []
    if view.loss is not None:
        speed.append(f"loss {view.loss[1]:.4g} at step {view.loss[0]:,}")
    waits = {"communication": view.communication_ratio, "data": view.reader_ratio}
    known = [f"{name} {format_ratio(ratio)}" for name, ratio in waits.items() if ratio is not None]
    memory = []
    if view.device_bytes is not None:
        peak, total, rank = view.device_bytes
        of = f" of {format_bytes(total)}" if total else ""
        memory.append(f"device {format_bytes(peak)}{of} (rank {rank})")
    if view.host_bytes is not None:
        memory.append(f"host {format_bytes(view.host_bytes[0])} (rank {view.host_bytes[1]})")
    title = ranks + (f", {axes}: " if axes else ": ")
    lines = [
        f"step {view.num_ended:,}  {length}  {state}",
        "  ".join(speed) or "speed unknown: step(num_samples, num_tokens, num_flops)",
        "  ".join(
            [f"waits: {', '.join(known) or 'unknown'}"]
            + ["peak memory: " + ", ".join(memory)] * bool(memory)
        ),
    ]
    run = cut(escape_cell(str(view.run)), max(width - len(title), 0))
    return [title + run, *(part for line in lines for part in _wrapped(line, width))]


def _cells(view: View, layout: Layout, width: int, height: int) -> list[str]:
    """Return the legend, and lines with a label and a mark for each rank."""
    topology = view.topology
    num_ranks = max(topology.world_size if topology else 0, max(view.ranks, default=-1) + 1)
    marks = [_mark(view.ranks.get(rank)) for rank in range(num_ranks)]
    topology = topology if topology and topology.world_size == num_ranks else None
    each, label, per_line = 1, _LABEL, _per_line(topology, num_ranks, width - _LABEL, height)
    if not per_line:
        label = _SHORT_LABEL
        per_line = _per_line(topology, num_ranks, width - label, height)
    if not per_line:
        per_line = width - label
        each = -(-num_ranks // (per_line * height))
    # The worst of the ranks that share a cell.
    cells = [
        max(marks[first : first + each], key=_MARKS.index) for first in range(0, num_ranks, each)
    ]
    legend = _LEGEND + "".join(
        f"  {mark} {text}"
        for mark, text in ((_UNKNOWN, "unknown"), (_BEHIND, "behind"), (_GONE, "gone"))
        if mark in cells
    )
    lines = [(legend + (f"  a cell: {each} ranks" if each > 1 else ""))[:width]]
    for first in range(0, len(cells), per_line):
        drawn = "".join(
            layout.paint("".join(run), _MEANINGS.get(mark))
            for mark, run in groupby(cells[first : first + per_line])
        )
        lines.append(f"{_label(topology, first * each, per_line * each, label):<{label}}{drawn}")
    return lines


def _per_line(topology: Topology | None, num_ranks: int, width: int, height: int) -> int:
    """Return the ranks of a line: whole inner axes, as few as fit the height; 0 if they do not fit."""
    degrees = topology.degrees if topology else (num_ranks,)
    inner = sorted({prod(degrees[n:]) for n in range(len(degrees) + 1)})
    for size in inner[1:]:
        if size <= width and num_ranks <= size * height:
            return size
    block = max((size for size in inner if size <= width), default=1)
    per_line = block * -(-num_ranks // (height * block))
    return per_line if per_line <= width else 0


def _label(topology: Topology | None, rank: int, num: int, width: int) -> str:
    """Return the position of a line's ranks on the axes that they share; their first number if that is too wide."""
    shared = ""
    if topology is not None:
        last = topology.coordinate(min(rank + num, topology.world_size) - 1)
        shared = " ".join(
            f"{axis}{position}"
            for axis, position in topology.coordinate(rank).items()
            if topology.degree(axis) > 1 and last[axis] == position
        )
    return shared if shared and len(shared) < width else str(rank).rjust(width - 1)


def _mark(rank: Rank | None) -> str:
    if rank is None:
        return _UNKNOWN
    if rank.gone:
        return _GONE
    if rank.is_behind:
        return _BEHIND
    if rank.excess_ratio is None:
        return _UNKNOWN
    return _LEVELS[sum(rank.excess_ratio >= ratio for ratio in SLOW_RATIOS)]


def _wrapped(text: str, width: int) -> list[str]:
    return Layout(width).fit(text).split("\n")
