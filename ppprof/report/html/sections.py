"""The sections of the page in their order, with tables, charts and notes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from ppprof.analysis.modules.gaps import UNKNOWN
from ppprof.analysis.ranks.device_queue import CAUSES
from ppprof.analysis.ranks.step_table import own_time
from ppprof.analysis.report_data.memory_timeline import Memory
from ppprof.analysis.report_data.run import ReportData
from ppprof.choices.thresholds import METRICS
from ppprof.report.html.blocks import (
    Advice,
    Block,
    Cell,
    Chart,
    Note,
    Section,
    Spec,
    Tile,
    Tiles,
    format_as,
    table_of,
)
from ppprof.report.html.change import OVERVIEW_KINDS, change_section
from ppprof.report.html.words import Words
from ppprof.report.text import advice
from ppprof.units import format_ranges, format_ratio

_PARTS = (
    *("computation", "exposed_communication", "data_loading", "bubble"),
    *("host_bound", "queued", "rest"),
)

_HEADLINE = (
    *("step_time", "step_time_median", "step_time_p95", "tokens_per_s", "ips"),
    *_PARTS,
    *("gpu_utilization", "cpu_utilization", "peak_memory"),
    *("peak_reserved_memory", "device_memory", "device"),
)

Content = tuple[str, Sequence[Block]]
"""The introduction below a heading, and the blocks of the section."""


def sections(report: ReportData, words: Words) -> list[Section]:
    """Return the sections of the page in their order.

    A section without data states the reason. The section on changes is missing without a baseline,
    the section on the pipeline is missing for a run without a pipeline.
    """
    builders = {
        "findings": _findings,
        "change": change_section,
        "steps": _steps,
        "ranks": _ranks,
        "communication": _communication,
        "pipeline": _pipeline,
        "operators": _operators,
        "efficiency": _efficiency,
        "kernels": _kernels,
        "modules": _modules,
        "memory": _memory,
        "timeline": _timeline,
        "unread": _unread,
    }
    contents = {key: build(report, words) for key, build in builders.items()}
    return [Section(key, *content) for key, content in contents.items() if content is not None]


def _nothing(words: Words, reason: str) -> Content:
    return words("page.nothing", reason=words(f"reasons.{reason}")), []


def headline(report: ReportData, words: Words) -> Tiles:
    """Return the key figures of the run: step time and its parts, throughput, utilization, memory.

    Figures that are unknown for the run are left out.
    """
    metrics = report.costs.metrics
    tiles = []
    for metric in _HEADLINE:
        value = metrics.get(metric)
        if value is None:
            continue
        if isinstance(value, str):
            tiles.append(Tile(metric, value))
            continue
        detail = ""
        if metric in _PARTS and report.step_ns:
            detail = f"{format_ratio(value / report.step_ns)} · {words('basis.recorded')}"
        step_time = metrics.get("step_time")
        if metric == "step_time":
            detail = words(f"basis.{report.costs.step_times[1].replace(' ', '_')}")
        if metric == "step_time_p95" and isinstance(step_time, float) and step_time:
            detail = f"{value / step_time - 1:+.1%}"
        kind = OVERVIEW_KINDS[METRICS[metric]]
        tiles.append(Tile(metric, format_as(float(value), kind), detail))
    return Tiles(tiles)


def _findings(report: ReportData, words: Words) -> Content:
    rows = advice.finding_rows(report.findings, words.language)
    blocks = [Advice(row, row.evidence_cells) for row in rows]
    return advice.headline(report.findings, words.language), blocks


def _steps(report: ReportData, words: Words) -> Content:
    ranks = format_ranges("rank", report.ranks)
    blocks: list[Block] = [Chart("steps", words.term("steps_recorded"))]
    if report.step_times.height:
        first = report.step_times["rank"][0]
        blocks.append(Chart("times", words("about.times", rank=first), height=240))
    if report.phases.height:
        blocks.append(Chart("phases", words("about.phases", ranks=ranks), height=220))
    return words("about.steps", ranks=ranks), blocks


def label(report: ReportData, rank: int) -> str:
    """Return a rank with its positions on axes of degree above 1, such as ``3 · dp0 pp1 mp1``.

    The number alone if there is no such axis, or if the topology is unknown or lacks the rank.
    """
    topology = report.cluster.topology
    if topology is None or rank >= topology.world_size:
        return str(rank)
    coordinates = " ".join(
        f"{axis}{index}"
        for axis, index in topology.coordinate(rank).items()
        if topology.degree(axis) > 1
    )
    return f"{rank} · {coordinates}" if coordinates else str(rank)


def _ranks(report: ReportData, words: Words) -> Content:
    devices = [
        (rank, device.gpu_utilization, device.cpu_utilization, device.peak_bytes)
        for rank, device in report.devices.items()
    ]
    schema = {"rank": pl.Int64, "gpu": pl.Float64, "cpu": pl.Float64, "peak_bytes": pl.Int64}
    table = (
        report.cluster.steps.group_by("rank", maintain_order=True)
        .agg(
            pl.col("host").first(),
            pl.col("step_ns").mean(),
            own_ns=own_time(report.cluster.steps).mean(),
        )
        .join(report.cluster.slow_ranks, on="rank", how="left", maintain_order="left")
        .join(pl.DataFrame(devices, schema, orient="row"), on="rank", how="left")
        .join(_logged_memory(report), on="rank", how="left")
        .with_columns(peak_bytes=pl.max_horizontal("peak_bytes", "device_peak_bytes"))
        .sort("rank")
    )

    def rank_of(row: Mapping[str, Any]) -> Cell:
        slow = bool(row["is_slow"])
        text = f"{'▲ ' if slow else ''}{label(report, row['rank'])}"
        return Cell(text, row["rank"], "slow" if slow else "")

    spec = [
        ("host", "text", "host"),
        ("step_time", "ms", "step_ns"),
        ("own", "ms", "own_ns"),
        ("excess", "ms", "excess_ns"),
        ("noise", "ms", "noise_ns"),
        ("gpu_utilization", "ratio", "gpu"),
        ("cpu_utilization", "ratio", "cpu"),
        ("peak_memory", "bytes", "peak_bytes"),
        ("peak_reserved_memory", "bytes", "device_peak_reserved_bytes"),
        ("device_memory", "bytes", "device_total_bytes"),
    ]
    known = [column for column in spec if table[column[2]].count()]
    height = min(640, 130 + 18 * table.height)
    return words("about.ranks"), [
        Chart("heat", words("about.heat"), "heat", height),
        table_of(words("sections.ranks"), table, [("rank", "text", rank_of), *known]),
        *_queue(report, words),
    ]


def _logged_memory(report: ReportData) -> pl.DataFrame:
    """Return the highest peaks of each rank's device in the step times, and the device's size."""
    sizes = pl.col("device_peak_bytes", "device_peak_reserved_bytes", "device_total_bytes")
    return report.step_times.group_by("rank").agg(sizes.max())


def _queue(report: ReportData, words: Words) -> Sequence[Block]:
    """Return the table of idle devices and their queues; nothing without device events."""
    queue = report.cluster.queue
    if queue.is_empty():
        return []
    means = queue.group_by("rank").agg(pl.exclude("window", "step").mean()).sort("rank")
    spec: Spec = [
        ("rank", "text", lambda row: Cell(label(report, row["rank"]), row["rank"])),
        *((cause, "ms", f"{cause}_ns") for cause in CAUSES),
        ("queue_length", "number", "queue_length"),
        ("launch_delay", "ms", "launch_delay_ns"),
    ]
    return [table_of(words("about.queue"), means, spec)]


def _communication(report: ReportData, words: Words) -> Content:
    if not any(name.startswith("communication_") for name in report.cluster.steps.columns):
        return _nothing(words, "one_rank" if len(report.ranks) == 1 else "no_communication")
    blocks: list[Block] = [Chart("communication", words("sections.communication"), height=220)]
    groups = report.cluster.groups.with_columns(pl.col("axis").cast(pl.String).fill_null("?"))
    if groups.height:
        blocks.append(
            table_of(
                words("about.groups"),
                groups,
                [
                    ("group", "text", lambda row: Cell(_members(row["members"]), row["members"])),
                    ("axis", "text", "axis"),
                    ("group_calls", "number", "calls"),
                    ("verdicts", "number", _verdicts),
                    ("last_rank", "number", _last),
                    ("wait", "ms", "wait_ns"),
                    ("transfer", "ms", "transfer_ns"),
                    ("bandwidth", "GB/s", "bus_bytes_per_s"),
                ],
            )
        )
    return words("about.communication", ranks=format_ranges("rank", report.ranks)), blocks


def _members(members: str) -> str:
    numbers = members.split(",")
    return members if len(numbers) <= 8 else f"{', '.join(numbers[:6])} … {numbers[-1]}"


def _verdicts(row: Mapping[str, Any]) -> Cell:
    return Cell(f"{row['transfer']} / {row['skew']} / {row['mixed']}", row["skew"])


def _last(row: Mapping[str, Any]) -> Cell:
    return Cell(f"{row['last_rank']} ({row['last_ratio']:.0%})", row["last_ratio"])


def _pipeline(report: ReportData, words: Words) -> Content | None:
    if not has_pipeline(report):
        return None
    chart = Chart("pipeline", words("sections.pipeline"), "lanes")
    return words("about.pipeline", step=typical_step(report)), [chart]


def has_pipeline(report: ReportData) -> bool:
    """Whether ``pp_degree`` is above 1 and a pass of a micro-batch was recorded."""
    topology = report.cluster.topology
    staged = topology is not None and topology.degree("pp") > 1
    return staged and any(
        part["kind"].is_in(["forward", "backward"]).any() for part in report.cluster.passes
    )


def typical_step(report: ReportData) -> int:
    """Return the typical step: its time, averaged over ranks, is the lower median of all steps."""
    means = report.cluster.steps.group_by("step").agg(pl.col("step_ns").mean())
    ordered = means.sort("step_ns", "step")["step"]
    return int(ordered[(len(ordered) - 1) // 2])


def _operators(report: ReportData, words: Words) -> Content:
    clock = report.costs.clock
    values = ["cpu_total", "cpu_self", *(["gpu_total", "gpu_self"] if clock == "gpu" else [])]
    table = _shares(report.costs.means("operators"), f"{clock}_self_ns")
    if table.is_empty():
        return _nothing(words, "no_operators")
    spec = [
        ("name", "text", "name"),
        ("calls", "number", "calls"),
        *((value, "ms", f"{value}_ns") for value in values),
        (f"{clock}_ratio", "ratio", "share"),
    ]
    return words("about.operators"), [table_of(words("sections.operators"), table, spec)]


def _efficiency(report: ReportData, words: Words) -> Content:
    table = report.efficiency
    if table.is_empty():
        return _nothing(words, "no_shapes")
    spec: Spec = [
        ("name", "text", "name"),
        ("shapes", "text", "shapes"),
        ("dtype", "text", "dtype"),
        ("calls", "number", "calls"),
        ("operator_time", "ms", "time_ns"),
        ("flops_per_s", "TFLOP/s", "flops_per_s"),
        ("bytes_per_s", "GB/s", "bytes_per_s"),
        ("flops_per_byte", "number", "flops_per_byte"),
        ("roof_ratio", "ratio", "roof_ratio"),
        ("bound", "text", "bound"),
        ("above_roof", "ms", "above_roof_ns"),
    ]
    known = [column for column in spec if table[str(column[2])].count()]
    chart = Chart("roofline", words("about.roofline"), height=420)
    return words("about.efficiency"), [chart, table_of(words("sections.efficiency"), table, known)]


def _kernels(report: ReportData, words: Words) -> Content:
    total = "gpu_total_ns"
    table = _shares(report.costs.means("kernels"), total)
    if table.is_empty():
        return _nothing(words, "no_kernels")
    spec = [
        ("name", "text", "name"),
        ("calls", "number", "calls"),
        ("gpu_total", "ms", total),
        ("mean_dur", "ms", "mean"),
        ("gpu_ratio", "ratio", "share"),
    ]
    table = table.with_columns(mean=pl.col(total) / pl.col("calls"))
    return words("about.kernels"), [table_of(words("sections.kernels"), table, spec)]


def _shares(table: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return ``table`` sorted by column ``by``, largest first, with each row's share of the sum.

    The new column ``share`` is float64, in [0, 1].
    """
    ordered = table.sort(by, descending=True, maintain_order=True)
    return ordered.with_columns(share=pl.col(by) / (table[by].sum() or 1))


def _modules(report: ReportData, words: Words) -> Content:
    table = report.costs.module_means
    if table.filter((pl.col("depth") > 0) & (pl.col("name") != UNKNOWN)).is_empty():
        return _nothing(words, "no_modules")
    return words("about.modules"), [Chart("modules", words("sections.modules"), "tree")]


def _memory(report: ReportData, words: Words) -> Content:
    memories = {
        rank: details.memory for rank, details in report.details.items() if details.memory.peaks
    }
    if not memories:
        return _nothing(words, "no_memory")
    peaks = pl.DataFrame(
        [
            {
                "rank": label(report, rank),
                "place": peak.place,
                "allocated_bytes": peak.allocated_bytes,
                "when": " › ".join(
                    str(part)
                    for part in (
                        None if peak.step is None else f"ProfileStep#{peak.step}",
                        peak.phase,
                        peak.event,
                    )
                    if part
                ),
            }
            for rank, memory in memories.items()
            for peak in memory.peaks
        ]
    )
    fullest = max(memories, key=lambda rank: memories[rank].peaks[0].allocated_bytes)
    place = memories[fullest].peaks[0].place
    return words("about.memory"), [
        Chart("memory", words("sections.memory"), "memory", 300),
        *_less_reserved(memories.values(), words),
        table_of(
            words.term("peak"),
            peaks,
            [
                ("rank", "text", "rank"),
                ("place", "text", "place"),
                ("allocated", "bytes", "allocated_bytes"),
                ("peak", "text", "when"),
            ],
        ),
        table_of(
            words("about.allocators", rank=fullest, place=place),
            memories[fullest].allocators.filter(place=place),
            [
                ("name", "text", "name"),
                ("allocations", "number", "allocations"),
                ("allocation_bytes", "bytes", "allocated_bytes"),
                ("largest_bytes", "bytes", "largest_bytes"),
            ],
        ),
    ]


def _less_reserved(memories: Iterable[Memory], words: Words) -> list[Note]:
    """Return a note on the places that report less reserved than allocated memory, as Paddle's CPU."""
    levels = pl.concat(memory.levels for memory in memories)
    places = levels.filter(pl.col("reserved_bytes") < pl.col("allocated_bytes"))["place"]
    names = ", ".join(places.unique().sort())
    return [Note(words("about.less_reserved", places=names))] if names else []


def _timeline(report: ReportData, words: Words) -> Content:
    commands = [
        f"ppprof merge {shlex.join(report.paths)} -o timeline.json.gz"
        f"    # {words('about.perfetto')}",
        *(
            f"visualdl --logdir {shlex.quote(path)}    # {words('about.visualdl')}"
            for path in report.paths
        ),
    ]
    return words("about.timeline", ranks=format_ranges("rank", report.details)), [
        Chart("timeline", words("sections.timeline"), "lanes"),
        Note(words("about.full_timeline"), commands),
    ]


def _unread(report: ReportData, words: Words) -> Content:
    return "" if report.unread else words("about.unread"), list(map(Note, report.unread))
