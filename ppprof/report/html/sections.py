"""The page's sections: which tables, charts and notes, in which order."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ppprof.analysis.module_changes import UNKNOWN
from ppprof.analysis.picture import Picture
from ppprof.analysis.significance import Change
from ppprof.report import findings
from ppprof.report.diff import Shown, tables
from ppprof.report.html.blocks import (
    Advice,
    Block,
    Cell,
    Chart,
    Column,
    Note,
    Section,
    Table,
    Tile,
    Tiles,
    cell,
    change,
    number_columns,
    rows_of,
    text_columns,
    written,
)
from ppprof.report.html.words import Words
from ppprof.units import ratio_text
from ppprof.wording import listed

_MOST_ROWS = 300
"""Of a table: behind these nobody looks, and each costs the browser."""

_PARTS = (
    "computation",
    "exposed_communication",
    "data_loading",
    "bubble",
    "host_bound",
    "rest",
)


def sections(picture: Picture, words: Words) -> list[Section]:
    """All of the page's sections; one without anything to show says why."""
    makers = {
        "findings": _findings,
        "change": _change,
        "steps": _steps,
        "ranks": _ranks,
        "communication": _communication,
        "pipeline": _pipeline,
        "operators": _operators,
        "kernels": _kernels,
        "modules": _modules,
        "memory": _memory,
        "timeline": _timeline,
        "unread": _unread,
    }
    found = []
    for key, make in makers.items():
        made = make(picture, words)
        if made is not None:
            about, blocks = made
            found.append(Section(key, about, list(blocks)))
    return found


Made = tuple[str, Sequence[Block]]


def nothing(words: Words, reason: str) -> Made:
    """A section that has nothing to show."""
    return words("page.nothing", reason=words(f"reasons.{reason}")), []


def headline(picture: Picture, words: Words) -> Tiles:
    """The numbers that matter most."""
    rows = {row["metric"]: row for row in picture.itself.overview.rows(named=True)}
    tiles = []
    step_ns = (rows.get("step_time") or {}).get("baseline") or picture.step_ns
    units = {"ns": "duration", "per_s": "number"}
    for metric in (
        "step_time", "step_time_median", "step_time_p95", "tokens_per_s", "ips", *_PARTS,
        "gpu_utilization", "cpu_utilization", "peak_memory", "device",
    ):  # fmt: skip
        row = rows.get(metric)
        if row is None or (row["baseline"] is None and row["unit"] != "text"):
            continue
        if row["unit"] == "text":
            tiles.append(Tile(metric, row["baseline_text"]))
            continue
        value = row["baseline"]
        detail = ratio_text(value / picture.step_ns) if metric in _PARTS and picture.step_ns else ""
        if metric == "step_time_p95" and step_ns:
            detail = f"{value / step_ns - 1:+.1%}"
        tiles.append(Tile(metric, written(value, units.get(row["unit"], row["unit"])), detail))
    return Tiles(tiles)


def _findings(picture: Picture, words: Words) -> Made:
    blocks: list[Block] = []
    for row in findings.rows(picture.findings, words.language):
        headers, cells = row.evidence_cells
        evidence = None
        if cells:
            columns = [Column(header, is_number=at > 0) for at, header in enumerate(headers)]
            evidence = Table(words("page.evidence"), columns, [list(map(Cell, at)) for at in cells])
        blocks.append(Advice(row, evidence))
    return findings.headline(picture.findings, words.language), blocks


def _change(picture: Picture, words: Words) -> Made | None:
    diff = picture.diff
    if diff is None:
        return None
    shown = Shown(limit=_MOST_ROWS)
    found = tables(diff, shown)
    blocks: list[Block] = [
        Tiles(
            [
                Tile("verdict", _verdict(diff.change, words)),
                Tile("alike", ratio_text(diff.comparability.score)),
            ]
        )
    ]
    blocks += [
        Note(difference) for difference in diff.comparability.differences[:_MOST_DIFFERENCES]
    ]
    blocks.append(_overview_change(found["overview"], words))
    blocks.append(
        Chart("change_steps", words("about.change_steps", words=diff.step_times[1][1]), height=300)
    )
    for view, title, values in (
        ("op", "operators", ("calls", "cpu_self_ns", "gpu_self_ns")),
        ("kernel", "kernels", ("calls", "gpu_total_ns")),
    ):
        if found[view].height:
            blocks.append(_name_change(found[view], words("sections." + title), values))
        elif not (diff.operators if view == "op" else diff.kernels).is_empty():
            reason = words("reasons.nothing_changed")
            text = words("page.nothing", reason=reason)
            blocks.append(Note(f"{words('sections.' + title)}: {text}"))
    if diff.modules.height > 1:
        blocks.append(
            Chart("change_modules", words("about.change_modules"), drawn_by="tree", height=360)
        )
        blocks.append(Chart("trend", words("about.trend"), height=300))
    return words("about.change", baseline=diff.baseline.what), blocks


_MOST_DIFFERENCES = 12


def _verdict(change: Change, words: Words) -> str:
    verdict = words(f"verdicts.{change.verdict}")
    if change.ratio is None:
        return f"{verdict}: {change.reason}"
    if change.low is None or change.high is None:
        return f"{verdict}: {change.ratio:+.1%}; {change.reason}"
    return words(
        "verdicts.interval", verdict=verdict, ratio=f"{change.ratio:+.1%}",
        low=f"{change.low:+.1%}", high=f"{change.high:+.1%}",
    )  # fmt: skip


def _overview_change(table: pl.DataFrame, words: Words) -> Table:
    rows = []
    for row in table.rows(named=True):
        name = Cell(words.term(row["metric"]), row["metric"])
        if row["unit"] == "text":
            texts = [row["baseline_text"] or "-", row["experiment_text"] or "-", "", ""]
            rows.append([name, *(Cell(text) for text in texts)])
            continue
        unit = {"ns": "duration", "per_s": "number"}.get(row["unit"], row["unit"])
        better = row["metric"] in _MORE_IS_BETTER
        rows.append(
            [
                name,
                cell(row["baseline"], unit),
                cell(row["experiment"], unit),
                change(row["delta"], unit, better),
                change(row["delta_ratio"], "ratio", better),
            ]
        )
    columns = [
        *text_columns("name"),
        *number_columns("baseline", "experiment", "delta", "delta_ratio"),
    ]
    return Table(words("sections.change"), columns, rows)


_MORE_IS_BETTER = ("ips", "tokens_per_s", "gpu_utilization")


def _name_change(table: pl.DataFrame, label: str, values: Sequence[str]) -> Table:
    rows = []
    clock = values[-1] if table[f"delta_{values[-1]}"].abs().sum() else values[1]
    for row in table.head(_MOST_ROWS).rows(named=True):
        rows.append(
            [
                Cell(row["name"], row["name"]),
                Cell("" if row["status"] == "both" else row["status"], row["status"]),
                cell(row[f"baseline_{clock}"], "ns"),
                cell(row[f"experiment_{clock}"], "ns"),
                change(row[f"delta_{clock}"], "ns"),
                change(row[f"delta_ratio_{clock.removesuffix('_ns')}"], "ratio"),
                cell(row[f"noise_{clock}"], "ns"),
                change(row["delta_calls"], "number"),
            ]
        )
    columns = [
        *text_columns("name", "status"),
        *number_columns("baseline", "experiment", "delta", unit="ms"),
        *number_columns("delta_ratio"),
        *number_columns("delta_noise", unit="ms"),
        *number_columns("delta_calls"),
    ]
    return Table(label, columns, rows, max(0, table.height - _MOST_ROWS))


def _steps(picture: Picture, words: Words) -> Made:
    of_ranks = listed("rank", picture.ranks)
    blocks: list[Block] = [Chart("steps", words.term("steps_recorded"))]
    if picture.step_times.height:
        first = picture.step_times["rank"][0]
        blocks.append(Chart("times", words("about.times", rank=first), height=240))
    if picture.phases.height:
        blocks.append(Chart("phases", words("about.phases", ranks=of_ranks), height=220))
    return words("about.steps", ranks=of_ranks), blocks


def _ranks(picture: Picture, words: Words) -> Made:
    slow = {row["rank"]: row for row in picture.cluster.slow_ranks.rows(named=True)}
    of_ranks = (
        picture.cluster.steps.group_by("rank", maintain_order=True)
        .agg(
            pl.col("host").first(),
            pl.col("step_ns").mean(),
            own_ns=(pl.col("step_ns") - pl.sum_horizontal("^exposed_.*_ns$", "bubble_ns")).mean(),
        )
        .rows(named=True)
    )
    rows = []
    for row in of_ranks:
        rank = row["rank"]
        judged, device = slow.get(rank, {}), picture.devices.get(rank)
        is_slow = bool(judged.get("is_slow"))
        rows.append(
            [
                Cell(f"{'▲ ' if is_slow else ''}{label(picture, rank)}", rank, "slow" * is_slow),
                cell(row["host"], "text"),
                cell(row["step_ns"], "ns"),
                cell(row["own_ns"], "ns"),
                cell(judged.get("excess_ns"), "ns"),
                cell(judged.get("noise_ns"), "ns"),
                cell(device and device.gpu_utilization, "ratio"),
                cell(device and device.cpu_utilization, "ratio"),
                cell(device and device.peak_bytes, "bytes"),
            ]
        )
    columns = [
        *text_columns("rank", "host"),
        *number_columns("step_time", "own", "excess", "noise", unit="ms"),
        *number_columns("gpu_utilization", "cpu_utilization", "peak_memory"),
    ]
    known = [at for at in range(len(columns)) if any(row[at].order is not None for row in rows)]
    columns = [columns[at] for at in known]
    rows = [[row[at] for at in known] for row in rows]
    left_out = max(0, len(rows) - _MOST_ROWS)
    table = Table(words("sections.ranks"), columns, rows[:_MOST_ROWS], left_out)
    tall = min(640, 130 + 18 * len(rows))
    return words("about.ranks"), [
        Chart("heat", words("about.heat"), drawn_by="heat", height=tall),
        table,
    ]


def label(picture: Picture, rank: int) -> str:
    """``3 · dp0 pp1 mp1``: the axes that have several ranks."""
    grid = picture.cluster.grid
    if grid is None or rank >= grid.world_size:
        return str(rank)
    where = " ".join(
        f"{axis}{at}" for axis, at in grid.coordinate(rank).items() if grid.degree(axis) > 1
    )
    return f"{rank} · {where}" if where else str(rank)


def _communication(picture: Picture, words: Words) -> Made:
    if not any(name.startswith("communication_") for name in picture.cluster.steps.columns):
        return nothing(words, "one_rank" if len(picture.ranks) == 1 else "no_communication")
    of_ranks = listed("rank", picture.ranks)
    blocks: list[Block] = [Chart("communication", words("sections.communication"), height=220)]
    groups = picture.cluster.groups
    if groups.height:
        blocks.append(_groups(groups, words))
    return words("about.communication", ranks=of_ranks), blocks


def _groups(groups: pl.DataFrame, words: Words) -> Table:
    rows = []
    for row in groups.head(_MOST_ROWS).rows(named=True):
        bandwidth = row["bus_bytes_per_s"]
        rows.append(
            [
                Cell(_members(row["members"]), row["members"]),
                cell(row["axis"] or "?", "text"),
                cell(row["calls"], "number"),
                Cell(f"{row['transfer']} / {row['skew']} / {row['mixed']}", row["skew"]),
                Cell(f"{row['last_rank']} ({row['last_ratio']:.0%})", row["last_ratio"]),
                cell(row["wait_ns"], "ns"),
                cell(row["transfer_ns"], "ns"),
                Cell("-" if bandwidth is None else f"{bandwidth / 1e9:,.2f}", bandwidth),
            ]
        )
    columns = [
        *text_columns("group", "axis"),
        *number_columns("group_calls", "verdicts", "last_rank"),
        *number_columns("wait", "transfer", unit="ms"),
        *number_columns("bandwidth", unit="GB/s"),
    ]
    return Table(words("about.groups"), columns, rows, max(0, groups.height - _MOST_ROWS))


def _members(members: str) -> str:
    numbers = members.split(",")
    return members if len(numbers) <= 8 else f"{', '.join(numbers[:6])} … {numbers[-1]}"


def _pipeline(picture: Picture, words: Words) -> Made | None:
    if not has_pipeline(picture):
        return None
    chart = Chart("pipeline", words("sections.pipeline"), drawn_by="lanes")
    return words("about.pipeline", step=typical_step(picture)), [chart]


def has_pipeline(picture: Picture) -> bool:
    """Whether a pass of a micro-batch was recorded, in a pipeline of several stages."""
    grid = picture.cluster.grid
    staged = grid is not None and grid.degree("pp") > 1
    return staged and any(
        part["kind"].is_in(["forward", "backward"]).any() for part in picture.cluster.passes
    )


def typical_step(picture: Picture) -> int:
    """The step whose mean time over ranks is the lower median."""
    means = picture.cluster.steps.group_by("step").agg(pl.col("step_ns").mean())
    ordered = means.sort("step_ns", "step")["step"]
    return int(ordered[(len(ordered) - 1) // 2])


def _operators(picture: Picture, words: Words) -> Made:
    table = picture.itself.operators
    if table.is_empty():
        return nothing(words, "no_operators")
    clock = picture.itself.clock
    by = f"baseline_{clock}_self_ns"
    whole = table[by].sum()
    table = table.sort(by, descending=True).with_columns(share=pl.col(by) / (whole or 1))
    values = ["cpu_total", "cpu_self", *(["gpu_total", "gpu_self"] if clock == "gpu" else [])]
    units = [
        ("name", "text"),
        ("baseline_calls", "number"),
        *((f"baseline_{value}_ns", "ns") for value in values),
        ("share", "ratio"),
    ]
    columns = [
        *text_columns("name"),
        *number_columns("calls"),
        *number_columns(*values, unit="ms"),
        *number_columns(f"{clock}_ratio"),
    ]
    rows = rows_of(table.head(_MOST_ROWS).rows(named=True), units)
    left_out = max(0, table.height - _MOST_ROWS)
    return words("about.operators"), [Table(words("sections.operators"), columns, rows, left_out)]


def _kernels(picture: Picture, words: Words) -> Made:
    table = picture.itself.kernels
    if table.is_empty():
        return nothing(words, "no_kernels")
    by = "baseline_gpu_total_ns"
    table = table.sort(by, descending=True).with_columns(
        share=pl.col(by) / (table[by].sum() or 1), mean=pl.col(by) / pl.col("baseline_calls")
    )
    units = [("name", "text"), ("baseline_calls", "number"), (by, "ns"), ("mean", "ns"),
             ("share", "ratio")]  # fmt: skip
    columns = [
        *text_columns("name"),
        *number_columns("calls"),
        *number_columns("gpu_total", "mean_dur", unit="ms"),
        *number_columns("gpu_ratio"),
    ]
    rows = rows_of(table.head(_MOST_ROWS).rows(named=True), units)
    left_out = max(0, table.height - _MOST_ROWS)
    return words("about.kernels"), [Table(words("sections.kernels"), columns, rows, left_out)]


def _modules(picture: Picture, words: Words) -> Made:
    table = picture.itself.modules
    if table.filter((pl.col("depth") > 0) & (pl.col("name") != UNKNOWN)).is_empty():
        return nothing(words, "no_modules")
    chart = Chart("modules", words("sections.modules"), drawn_by="tree", height=420)
    return words("about.modules"), [chart]


def _memory(picture: Picture, words: Words) -> Made:
    full = [rank for rank, of in picture.details.items() if of.memory.peaks]
    if not full:
        return nothing(words, "no_memory")
    fullest = max(full, key=lambda rank: picture.details[rank].memory.peaks[0].allocated_bytes)
    rows = []
    for rank in full:
        for peak in picture.details[rank].memory.peaks:
            when = [
                "" if peak.step is None else f"ProfileStep#{peak.step}",
                peak.phase or "",
                peak.event or "",
            ]
            rows.append(
                [
                    Cell(label(picture, rank), rank),
                    cell(peak.place, "text"),
                    cell(peak.allocated_bytes, "bytes"),
                    Cell(" › ".join(part for part in when if part)),
                ]
            )
    columns = [
        *text_columns("rank", "place"),
        *number_columns("allocated"),
        *text_columns("peak"),
    ]
    details = picture.details[fullest]
    place = details.memory.peaks[0].place
    units = [("name", "text"), ("allocations", "number"), ("allocated_bytes", "bytes"),
             ("largest_bytes", "bytes")]  # fmt: skip
    allocators = details.memory.allocators.filter(pl.col("place") == place)
    terms = ("allocations", "allocation_bytes", "largest_bytes")
    return words("about.memory"), [
        Chart("memory", words("sections.memory"), drawn_by="memory", height=300),
        Table(words.term("peak"), columns, rows),
        Table(
            words("about.allocators", rank=fullest, place=place),
            [*text_columns("name"), *number_columns(*terms)],
            rows_of(allocators.head(_MOST_ROWS).rows(named=True), units),
            max(0, allocators.height - _MOST_ROWS),
        ),
    ]


def _timeline(picture: Picture, words: Words) -> Made:
    commands = [
        f"ppprof merge {picture.what} -o timeline.json.gz    # {words('about.perfetto')}",
        f"visualdl --logdir {picture.what}",
    ]
    of_ranks = listed("rank", picture.details)
    return words("about.timeline", ranks=of_ranks), [
        Chart("timeline", words("sections.timeline"), drawn_by="lanes"),
        Note(words("about.full_timeline"), commands),
    ]


def _unread(picture: Picture, words: Words) -> Made:
    if not picture.unread:
        return words("about.unread"), []
    return "", [Note(message) for message in picture.unread]
