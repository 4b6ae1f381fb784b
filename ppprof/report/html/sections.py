"""The sections of the page in their order, with tables, charts and notes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from ppprof.analysis.profile.step_basis import unrecorded_steps
from ppprof.analysis.ranks.device_queue import CAUSES
from ppprof.analysis.ranks.step_table import own_time
from ppprof.analysis.report_data.memory_timeline import Memory
from ppprof.analysis.report_data.run import ReportData
from ppprof.report.html.blocks import (
    Advice,
    Block,
    Cell,
    Chart,
    Note,
    Section,
    Spec,
    table_of,
)
from ppprof.report.html.change import change_section
from ppprof.report.html.links import Links, link_of_finding
from ppprof.report.html.name_tables import (
    Content,
    efficiency,
    kernels,
    linked_name,
    modules,
    nothing_to_show,
    operators,
)
from ppprof.report.html.words import Words
from ppprof.report.messages import translated
from ppprof.report.text import advice

PART_TERMS = (
    *("computation", "exposed", "data_loading", "bubble", "host_bound", "queued", "rest"),
)
"""The terms of the parts of a step."""

HEAT_TERMS = ("step_time", "own", "exposed_communication", *PART_TERMS)
"""The terms of the numbers of the heat map."""


def sections(report: ReportData, words: Words, links: Links) -> list[Section]:
    """Return the sections of the page in their order.

    A section without data states the reason. Missing are the section on changes without a baseline,
    the section on the pipeline for a run without a pipeline, and the sections on traces for a run
    with step times only.
    """
    builders: dict[str, Callable[[ReportData, Words, Links], Content | None]] = {
        "findings": _findings,
        "change": change_section,
        "steps": _steps,
        "ranks": _ranks,
    }
    if report.has_traces:
        builders.update(
            communication=_communication,
            pipeline=_pipeline,
            remote=_remote,
            modules=modules,
            operators=operators,
            efficiency=efficiency,
            kernels=kernels,
            memory=_memory,
            timeline=_timeline,
        )
    builders["unread"] = _unread
    contents = {key: build(report, words, links) for key, build in builders.items()}
    return [Section(key, *content) for key, content in contents.items() if content is not None]


def _findings(report: ReportData, words: Words, links: Links) -> Content:
    rows = advice.finding_rows(report.findings, words.language)
    blocks: list[Block] = [
        Advice(row, row.evidence_cells, link_of_finding(finding, links))
        for finding, row in zip(report.findings, rows)
    ]
    if not report.has_traces:
        blocks.append(Note(words("about.step_times_only")))
    if not report.findings:
        return advice.headline((), words.language), blocks
    return words("about.findings", num=len(report.findings)), blocks


def _steps(report: ReportData, words: Words, links: Links) -> Content:
    ranks = words.ranks(report.ranks)
    blocks: list[Block] = []
    if report.has_traces:
        blocks.append(Chart("steps", words.term("steps_recorded"), terms=PART_TERMS))
    if report.step_times.height:
        caption = words("about.times", rank=report.step_times["rank"][0])
        blocks.append(Chart("times", caption, height=240, terms=("step_time", "reader_cost")))
    if report.phases.height:
        caption = words("about.phases", ranks=ranks)
        blocks.append(Chart("phases", caption, height=220, terms=("phase_cpu", "phase_gpu")))
    about = "steps" if report.has_traces else "steps_only"
    return words(f"about.{about}", ranks=ranks), blocks


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


def _ranks(report: ReportData, words: Words, links: Links) -> Content:
    table, spec = _rank_rows(report) if report.has_traces else _rank_times(report)

    def rank_of(row: Mapping[str, Any]) -> Cell:
        slow = bool(row.get("is_slow"))
        text = f"{'▲ ' if slow else ''}{label(report, row['rank'])}"
        return Cell(text, row["rank"], "slow" if slow else "", _step_of(report, row["rank"], links))

    shown = [column for column in spec if table[str(column[2])].count()]
    columns: Spec = [("rank", "text", rank_of), *shown]
    return words("about.ranks"), [
        Chart("heat", words("about.heat"), "heat", min(640, 130 + 18 * table.height), HEAT_TERMS),
        table_of(words("sections.ranks"), table, columns, key="ranks", sorted_by=0),
        *_queue(report, words, links),
    ]


def _step_of(report: ReportData, rank: int, links: Links) -> str:
    """Return the link to a step of a rank; "" if the page has no timeline of the rank."""
    return links.to_step(rank) if rank in report.details else ""


def _rank_rows(report: ReportData) -> tuple[pl.DataFrame, Spec]:
    """Return one row per rank, from traces, and the columns to show."""
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
    return table, [
        ("host", "text", "host"),
        ("step_time", "ms", "step_ns"),
        ("own", "ms", "own_ns"),
        ("excess", "ms", "excess_ns"),
        ("noise", "ms", "noise_ns"),
        ("gpu_utilization", "ratio", "gpu"),
        ("cpu_utilization", "ratio", "cpu"),
        *_MEMORY_COLUMNS,
    ]


def _rank_times(report: ReportData) -> tuple[pl.DataFrame, Spec]:
    """Return one row per rank, from step times alone, and the columns to show."""
    times = unrecorded_steps(report.step_times).group_by("rank")
    means = times.agg(pl.col("step_ns", "reader_cost_ns").mean())
    table = means.join(_logged_memory(report), on="rank", how="left").sort("rank")
    return table.with_columns(peak_bytes="device_peak_bytes"), [
        ("step_time", "ms", "step_ns"),
        ("reader_cost", "ms", "reader_cost_ns"),
        *_MEMORY_COLUMNS,
    ]


_MEMORY_COLUMNS: Spec = [
    ("peak_memory", "bytes", "peak_bytes"),
    ("peak_reserved_memory", "bytes", "device_peak_reserved_bytes"),
    ("device_memory", "bytes", "device_total_bytes"),
]


def _logged_memory(report: ReportData) -> pl.DataFrame:
    """Return the highest peaks of each rank's device in the step times, and the device's size."""
    sizes = pl.col("device_peak_bytes", "device_peak_reserved_bytes", "device_total_bytes")
    return report.step_times.group_by("rank").agg(sizes.max())


def _queue(report: ReportData, words: Words, links: Links) -> Sequence[Block]:
    """Return the table of idle devices and their queues; nothing without device events."""
    queue = report.cluster.queue
    if queue.is_empty():
        return []
    means = queue.group_by("rank").agg(pl.exclude("window", "step").mean()).sort("rank")

    def rank_of(row: Mapping[str, Any]) -> Cell:
        rank = row["rank"]
        return Cell(label(report, rank), rank, href=_step_of(report, rank, links))

    spec: Spec = [
        ("rank", "text", rank_of),
        *((cause, "ms", f"{cause}_ns") for cause in CAUSES),
        ("queue_length", "number", "queue_length"),
        ("launch_delay", "ms", "launch_delay_ns"),
    ]
    return [table_of(words("about.queue"), means, spec, key="queue")]


def _communication(report: ReportData, words: Words, links: Links) -> Content:
    if not any(name.startswith("communication_") for name in report.cluster.steps.columns):
        return nothing_to_show(words, "one_rank" if len(report.ranks) == 1 else "no_communication")
    caption, terms = words("sections.communication"), ("hidden", "exposed")
    blocks: list[Block] = [Chart("communication", caption, height=220, terms=terms)]
    groups = report.cluster.groups.with_columns(pl.col("axis").cast(pl.String).fill_null("?"))

    def group_of(row: Mapping[str, Any]) -> Cell:
        members = row["members"]
        return Cell(_members(members), members, href=links.to_members(members))

    if groups.height:
        blocks.append(
            table_of(
                words("about.groups"),
                groups,
                [
                    ("group", "text", group_of),
                    ("axis", "text", "axis"),
                    ("group_calls", "number", "calls"),
                    ("verdicts", "number", _verdicts),
                    ("last_rank", "number", _last),
                    ("wait", "ms", "wait_ns"),
                    ("transfer", "ms", "transfer_ns"),
                    ("bandwidth", "GB/s", "bus_bytes_per_s"),
                ],
                key="groups",
            )
        )
    return words("about.communication", ranks=words.ranks(report.ranks)), blocks


def _members(members: str) -> str:
    numbers = members.split(",")
    return members if len(numbers) <= 8 else f"{', '.join(numbers[:6])} … {numbers[-1]}"


def _verdicts(row: Mapping[str, Any]) -> Cell:
    return Cell(f"{row['transfer']} / {row['skew']} / {row['mixed']}", row["skew"])


def _last(row: Mapping[str, Any]) -> Cell:
    return Cell(f"{row['last_rank']} ({row['last_ratio']:.0%})", row["last_ratio"])


def _pipeline(report: ReportData, words: Words, links: Links) -> Content | None:
    if not has_pipeline(report):
        return None
    chart = Chart("pipeline", words("sections.pipeline"), "lanes")
    return words("about.pipeline", step=typical_step(report)), [chart]


def _remote(report: ReportData, words: Words, links: Links) -> Content | None:
    flows = [
        details.remote_flows.with_columns(rank=pl.lit(rank, pl.Int64))
        for rank, details in report.details.items()
    ]
    calls = pl.concat(flows) if flows else pl.DataFrame()
    if calls.is_empty():
        return None
    away_ns, ran_ns = (
        pl.col("received_ns") - pl.col("sent_ns"),
        pl.col("ended_ns") - pl.col("began_ns"),
    )
    num = max(1, len(report.steps))
    table = (
        calls.group_by("name", "rank", "worker")
        .agg(
            calls=pl.len() / num,
            total_ns=away_ns.sum() / num,
            ran_ns=ran_ns.sum() / num,
            mean_ns=away_ns.mean(),
            max_ns=away_ns.max(),
        )
        .sort("total_ns", "name", descending=[True, False])
    )
    spec: Spec = [
        ("name", "text", lambda row: _remote_name(row, links)),
        ("rank", "number", "rank"),
        ("node", "text", "worker"),
        ("calls", "number", "calls"),
        ("away", "ms", "total_ns"),
        ("ran", "ms", "ran_ns"),
        ("mean_call", "ms", "mean_ns"),
        ("max_call", "ms", "max_ns"),
    ]
    shown = table_of(words("sections.remote"), table, spec, key="remote", sorted_by=4)
    return words("about.remote"), [shown]


def _remote_name(row: Mapping[str, Any], links: Links) -> Cell:
    return Cell(row["name"], row["name"], href=links.to("remote", row["name"], [row["rank"]]))


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


def _memory(report: ReportData, words: Words, links: Links) -> Content:
    memories = {
        rank: details.memory for rank, details in report.details.items() if details.memory.peaks
    }
    if not memories:
        return nothing_to_show(words, "no_memory")
    peaks = pl.DataFrame(
        [
            {
                "rank": rank,
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

    def when(row: Mapping[str, Any]) -> Cell:
        href = links.to("peak", row["place"], [row["rank"]])
        return Cell(row["when"], row["when"], href=href)

    fullest = max(memories, key=lambda rank: memories[rank].peaks[0].allocated_bytes)
    place = memories[fullest].peaks[0].place
    return words("about.memory"), [
        Chart("memory", words("sections.memory"), "memory", 300, ("allocated", "reserved")),
        *_less_reserved(memories.values(), words),
        table_of(
            words.term("peak"),
            peaks,
            [
                ("rank", "text", lambda row: Cell(label(report, row["rank"]), row["rank"])),
                ("place", "text", "place"),
                ("allocated", "bytes", "allocated_bytes"),
                ("peak", "text", when),
            ],
            key="peaks",
        ),
        table_of(
            words("about.allocators", rank=fullest, place=place),
            memories[fullest].allocators.filter(place=place),
            [
                ("name", "text", linked_name("operator", links)),
                ("allocations", "number", "allocations"),
                ("allocation_bytes", "bytes", "allocated_bytes"),
                ("largest_bytes", "bytes", "largest_bytes"),
            ],
            key="allocators",
            sorted_by=2,
        ),
    ]


def _less_reserved(memories: Iterable[Memory], words: Words) -> list[Note]:
    """Return a note on the places that report less reserved than allocated memory, as Paddle's CPU."""
    levels = pl.concat(memory.levels for memory in memories)
    places = levels.filter(pl.col("reserved_bytes") < pl.col("allocated_bytes"))["place"]
    names = ", ".join(places.unique().sort())
    return [Note(words("about.less_reserved", places=names))] if names else []


def _timeline(report: ReportData, words: Words, links: Links) -> Content:
    commands = [
        f"ppprof merge {shlex.join(report.paths)} -o timeline.json.gz"
        f"    # {words('about.perfetto')}",
        *(
            f"visualdl --logdir {shlex.quote(path)}    # {words('about.visualdl')}"
            for path in report.paths
        ),
    ]
    return words("about.timeline", ranks=words.ranks(report.details)), [
        Chart("timeline", words("sections.timeline"), "timeline"),
        Note(words("about.full_timeline"), commands),
    ]


def _unread(report: ReportData, words: Words, links: Links) -> Content:
    return "" if report.unread else words("about.unread"), [
        Note(translated(message, words.language)) for message in report.unread
    ]
