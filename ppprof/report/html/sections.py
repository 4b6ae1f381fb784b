"""The page: headline, identity and key figures at the top, then the sections in their order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import polars as pl

from ppprof.analysis.advice.disjoint import BESIDE, SLOW_STEPS
from ppprof.analysis.advice.finding import SMALL, Finding
from ppprof.analysis.advice.trust import UNFINISHED
from ppprof.analysis.diff.run_costs import PARTS_NS, metric_of
from ppprof.analysis.diff.thresholds import METRICS
from ppprof.analysis.profile.module_tree import UNKNOWN
from ppprof.analysis.profile.step_basis import unrecorded_steps
from ppprof.analysis.profile.steps import UNMARKED
from ppprof.analysis.profile.wholeness import NOTES
from ppprof.analysis.ranks.collectives import to_reference_clock
from ppprof.analysis.ranks.device_queue import CAUSES
from ppprof.analysis.ranks.step_table import own_time
from ppprof.analysis.report_data.memory_timeline import Memory
from ppprof.analysis.report_data.report import ReportData
from ppprof.messages import translated
from ppprof.report.columns import EFFICIENCY, GROUPS, QUEUE, Column, Source, cut, format_as
from ppprof.report.html.blocks import (
    Advice,
    Block,
    Cell,
    Chart,
    Gain,
    Gains,
    Lane,
    Note,
    Section,
    Share,
    Shares,
    Tile,
    Tiles,
    Words,
    table_of,
)
from ppprof.report.html.change import (
    MODULE_TERMS,
    OVERVIEW_KINDS,
    biggest_changes,
    change_section,
    verdict_text,
)
from ppprof.report.html.links import Links, link_of_finding, linked_name
from ppprof.report.text import advice
from ppprof.units import format_ratio, format_time

SHARE_TERMS = (
    *("computation", "exposed", "data_loading", "bubble", "host_bound", "queued", "rest"),
)
"""The terms of the shares of a step."""

HEAT_TERMS = (
    *("one_step", "own", "exposed_communication", "bubble", "data_loading", "host_bound"),
    *("queued", "computation", "rest", "reader_cost"),
)
"""The terms of the numbers of the heat map."""


_SECTIONS = {
    "slow-rank": "ranks",
    "uneven-work": "ranks",
    "slow-link": "communication",
    "exposed-communication": "communication",
    "stage-imbalance": "pipeline",
    "pipeline-bubble": "pipeline",
    "remote-wait": "remote",
    "unexplained": "modules",
    "many-small-operators": "operators",
    "wide-vocabulary": "operators",
    "unused-rows": "operators",
    "discarded-rows": "operators",
    "padded-batches": "operators",
    "penalty-in-loss": "operators",
    "slow-product": "efficiency",
    "tiny-kernels": "kernels",
    **dict.fromkeys(
        ("allocation", "growing-memory", "memory-limit", "memory-fragmented"), "memory"
    ),
}
"""The section that shows more of a finding, keyed by rule; other findings are seen in several."""


def sections(
    report: ReportData, words: Words, links: Links
) -> tuple[list[Section], Sequence[tuple[str, str]]]:
    """Return the sections of the page in their order, and the keys and reasons of those left out.

    Behind the findings come the sections that findings name, in the order of the findings.
    A section without data is left out; only what another run or setting would show has a reason.
    """
    builders: dict[str, Callable[[ReportData, Words, Links], Content | str | None]] = {
        "change": change_section,
        "findings": _findings,
        "steps": _steps,
        "ranks": _ranks,
    }
    if report.has_traces:
        builders.update(
            communication=_communication,
            pipeline=_pipeline,
            remote=_remote,
            modules=modules,
            python=_python,
            operators=operators,
            efficiency=efficiency,
            kernels=kernels,
            memory=_memory,
            timeline=_timeline,
        )
    builders["unread"] = _unread
    named = [_SECTIONS.get(finding.rule) for finding in report.findings]
    order = ["change", "findings", *named]
    keys = sorted(builders, key=lambda key: order.index(key) if key in order else len(order))
    contents = {key: builders[key](report, words, links) for key in keys}
    return (
        [Section(key, *content) for key, content in contents.items() if isinstance(content, tuple)],
        [(key, reason) for key, reason in contents.items() if isinstance(reason, str)],
    )


def _python(report: ReportData, words: Words, links: Links) -> Content | None:
    """Return the flame graph of Python and operators; None without samples of stacks."""
    if report.flame.is_empty():
        return None
    rank = report.flame["rank"][0]
    return words("about.python", rank=rank), [Chart("flame", words("sections.python"), "flame", 0)]


def _findings(report: ReportData, words: Words, links: Links) -> Content:
    rows = advice.finding_rows(report.findings, words.language)
    blocks: list[Block] = [
        Advice(row, row.evidence_cells, number, link_of_finding(finding, links))
        for number, (finding, row) in enumerate(zip(report.findings, rows), 1)
    ]
    missing = [note for note in report.unread if getattr(note, "key", "") in NOTES]
    blocks[:0] = [Note(translated(note, words.language)) for note in missing]
    if not report.has_traces:
        blocks.append(Note(words("about.record_a_window")))
    if withheld := advice.withheld(report.findings, words.language):
        blocks.append(Note(withheld))
    if not report.findings:
        nothing = advice.headline((), words.language)
        return nothing if report.has_traces else words("about.step_times_only"), blocks
    return words("about.findings", num=len(report.findings)), blocks


def _steps(report: ReportData, words: Words, links: Links) -> Content:
    ranks = words.ranks(report.ranks)
    blocks: list[Block] = []
    if report.has_traces:
        blocks.append(Chart("steps", words.term("steps_recorded"), terms=SHARE_TERMS))
    if report.step_times.height:
        caption = words("about.times", rank=report.step_times["rank"][0])
        blocks.append(Chart("times", caption, height=240, terms=("one_step", "reader_cost")))
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
    table, columns = _rank_rows(report) if report.has_traces else _rank_times(report)
    chosen_by = [pl.col("is_slow"), pl.col("own_ns")] if report.has_traces else [pl.col("step_ns")]

    def rank_of(row: Mapping[str, Any]) -> Cell:
        slow = bool(row.get("is_slow"))
        text = f"{'▲ ' if slow else ''}{label(report, row['rank'])}"
        return Cell(text, row["rank"], "slow" if slow else "", _step_of(report, row["rank"], links))

    shown = [column for column in columns if table[str(column.source)].count()]
    columns = [Column(rank_of, term="rank"), *shown]
    return words("about.ranks"), [
        Chart("heat", words("about.heat"), "heat", min(640, 130 + 18 * table.height), HEAT_TERMS),
        table_of(
            *(words("sections.ranks"), table, columns),
            chosen_by=chosen_by,
            key="ranks",
            sorted_by=0,
        ),
        *_queue(report, words, links),
    ]


def _step_of(report: ReportData, rank: int, links: Links) -> str:
    """Return the link to a step of a rank; "" if the page has no timeline of the rank."""
    return links.to_step(rank) if rank in report.details else ""


def _rank_rows(report: ReportData) -> tuple[pl.DataFrame, list[Column]]:
    """Return one row per rank, from traces, and the columns to show."""
    devices = [
        (rank, device.gpu_utilization, device.cpu_utilization, device.peak_bytes)
        for rank, device in report.devices.items()
    ]
    schema = {"rank": pl.Int64, "gpu": pl.Float64, "cpu": pl.Float64, "peak_bytes": pl.Int64}
    cluster = report.typical_cluster
    table = (
        cluster.steps.group_by("rank", maintain_order=True)
        .agg(
            pl.col("host").first(),
            pl.col("step_ns").mean(),
            own_ns=own_time(cluster.steps).mean(),
        )
        .join(cluster.slow_ranks, on="rank", how="left", maintain_order="left")
        .join(pl.DataFrame(devices, schema, orient="row"), on="rank", how="left")
        .join(_logged_memory(report), on="rank", how="left")
        .with_columns(peak_bytes=pl.max_horizontal("peak_bytes", "device_peak_bytes"))
        .sort("rank")
    )
    return table, [
        Column("host", term="host"),
        Column("step_ns", "ms", term="recorded_step"),
        Column("own_ns", "ms", term="own"),
        Column("excess_ns", "ms", term="excess"),
        Column("noise_ns", "ms", term="noise"),
        Column("gpu", "ratio", term="gpu_utilization"),
        Column("cpu", "ratio", term="cpu_utilization"),
        *_MEMORY_COLUMNS,
    ]


def _rank_times(report: ReportData) -> tuple[pl.DataFrame, list[Column]]:
    """Return one row per rank, from step times alone, and the columns to show."""
    times = unrecorded_steps(report.step_times).group_by("rank")
    means = times.agg(pl.col("step_ns", "reader_cost_ns").mean())
    table = means.join(_logged_memory(report), on="rank", how="left").sort("rank")
    return table.with_columns(peak_bytes="device_peak_bytes"), [
        Column("step_ns", "ms", term="step_time"),
        Column("reader_cost_ns", "ms", term="reader_cost"),
        *_MEMORY_COLUMNS,
    ]


_MEMORY_COLUMNS = [
    Column("peak_bytes", "bytes", term="peak_memory"),
    Column("device_peak_reserved_bytes", "bytes", term="peak_reserved_memory"),
    Column("device_total_bytes", "bytes", term="device_memory"),
]


def _logged_memory(report: ReportData) -> pl.DataFrame:
    """Return the highest peaks of each rank's device in the step times, and the device's size."""
    sizes = pl.col("device_peak_bytes", "device_peak_reserved_bytes", "device_total_bytes")
    return report.step_times.group_by("rank").agg(sizes.max())


def _queue(report: ReportData, words: Words, links: Links) -> Sequence[Block]:
    """Return the table of idle devices and their queues; nothing without device events."""
    queue = report.typical_cluster.queue
    if queue.is_empty():
        return []
    means = queue.group_by("rank").agg(pl.exclude("window", "step").mean()).sort("rank")

    def rank_of(row: Mapping[str, Any]) -> Cell:
        rank = row["rank"]
        return Cell(label(report, rank), rank, href=_step_of(report, rank, links))

    columns = [replace(QUEUE[0], source=rank_of), *QUEUE[1:]]
    idle_ns = pl.sum_horizontal(f"{cause}_ns" for cause in CAUSES)
    return [table_of(words("about.queue"), means, columns, chosen_by=[idle_ns], key="queue")]


def _communication(report: ReportData, words: Words, links: Links) -> Content | str:
    if not any(name.startswith("communication_") for name in report.cluster.steps.columns):
        one = len(report.ranks) == 1
        return words("reasons.one_rank" if one else "reasons.no_communication")
    caption, terms = words("sections.communication"), ("hidden", "exposed")
    blocks: list[Block] = [Chart("communication", caption, height=220, terms=terms)]
    groups = report.typical_cluster.groups.with_columns(
        pl.col("axis").cast(pl.String).fill_null("?")
    )

    def group_of(row: Mapping[str, Any]) -> Cell:
        members = row["members"]
        return Cell(_members(members), members, href=links.to_members(members))

    if groups.height:
        blocks.append(
            table_of(
                words("about.groups"),
                groups,
                [
                    replace(GROUPS["group"], source=group_of),
                    *(GROUPS["axis"], GROUPS["calls"]),
                    Column(_verdicts, "number", term="verdicts"),
                    replace(GROUPS["last"], source=_last, kind="number"),
                    *(GROUPS["wait"], GROUPS["transfer"], GROUPS["bus"]),
                ],
                key="groups",
            )
        )
    return words("about.communication", ranks=words.ranks(report.ranks)), blocks


def _members(members: str) -> str:
    numbers = members.split(",")
    return members if len(numbers) <= 8 else f"{', '.join(numbers[:6])} … {numbers[-1]}"


def _verdicts(row: Mapping[str, Any]) -> Cell:
    return Cell(f"{row['transfer']} / {row['skew']} / {row['mixed']}", row["skew"], is_text=True)


def _last(row: Mapping[str, Any]) -> Cell:
    return Cell(f"{row['last_rank']} ({row['last_ratio']:.0%})", row["last_ratio"], is_text=True)


def _pipeline(report: ReportData, words: Words, links: Links) -> Content | None:
    if not has_pipeline(report):
        return None
    chart = Chart("pipeline", words("sections.pipeline"), "lanes")
    clocks = _clocks(report, words)
    return words("about.pipeline", step=typical_step(report), clocks=clocks), [chart]


def _clocks(report: ReportData, words: Words) -> str:
    """Return a sentence on the clocks of the drawn ranks; one rank alone needs none that is known."""
    unknown = report.details.keys() - report.cluster.clocks.keys()
    if not unknown or len(report.details) == 1:
        return words("about.one_clock")
    return words("about.own_clocks", ranks=words.ranks(sorted(unknown)))


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
    columns = [
        Column(lambda row: _remote_name(row, links), term="name"),
        Column("rank", "number", term="rank"),
        Column("worker", term="node"),
        Column("calls", "number", term="calls"),
        Column("total_ns", "ms", term="away"),
        Column("ran_ns", "ms", term="ran"),
        Column("mean_ns", "ms", term="mean_call"),
        Column("max_ns", "ms", term="max_call"),
    ]
    shown = table_of(words("sections.remote"), table, columns, key="remote", sorted_by=4)
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


def typical_step(report: ReportData, among: pl.Series | None = None) -> int:
    """Return the typical step: its time, averaged over ranks, is the lower median of all steps.

    ``among``: of these steps.
    """
    steps = report.cluster.steps
    if among is not None:
        steps = steps.filter(pl.col("step").is_in(among.implode()))
    means = steps.group_by("step").agg(pl.col("step_ns").mean())
    ordered = means.sort("step_ns", "step")["step"]
    return int(ordered[(len(ordered) - 1) // 2])


def _memory(report: ReportData, words: Words, links: Links) -> Content | str:
    memories = {
        rank: details.memory for rank, details in report.details.items() if details.memory.peaks
    }
    if not memories:
        return words("reasons.no_memory")
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
                Column(lambda row: Cell(label(report, row["rank"]), row["rank"]), term="rank"),
                Column("place", term="place"),
                Column("allocated_bytes", "bytes", term="allocated"),
                Column(when, term="peak"),
            ],
            key="peaks",
        ),
        table_of(
            words("about.allocators", rank=fullest, place=place),
            memories[fullest].allocators.filter(place=place),
            [
                Column(linked_name("operator", links), term="name"),
                Column("allocations", "number", term="allocations"),
                Column("allocated_bytes", "bytes", term="allocation_bytes"),
                Column("largest_bytes", "bytes", term="largest_bytes"),
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
            if report.manifest or any(map(_FOR_VISUALDL.search, report.sources.values()))
        ),
    ]
    clocks = _clocks(report, words)
    return words("about.timeline", ranks=words.ranks(report.details), clocks=clocks), [
        Chart("timeline", words("sections.timeline"), "timeline"),
        Note(words("about.full_timeline"), commands),
    ]


_FOR_VISUALDL = re.compile(r"_time_[^/]*\.paddle_trace\.(json|pb)\Z")
"""Names of files that VisualDL opens in a directory that ppprof did not write."""


def _unread(report: ReportData, words: Words, links: Links) -> Content | None:
    notes = [Note(translated(message, words.language)) for message in report.unread]
    return ("", notes) if notes else None


Content = tuple[str, Sequence[Block]]
"""The introduction below a heading, and the blocks of the section. A builder returns a reason as
text in its place if the run has nothing to show, and None if it does not concern the run."""


def operators(report: ReportData, words: Words, links: Links) -> Content | str:
    """Return the table of operators: calls and times on the host and on the device."""
    clock = report.costs.clock
    table = report.costs.means("operators")
    if table.is_empty():
        return words("reasons.no_operators")
    clocks = ["cpu", "gpu"] if clock == "gpu" else ["cpu"]
    for name in clocks:
        table = _with_shares(table, f"{name}_self_ns", f"{name}_share")
    table = table.sort(f"{clock}_self_ns", descending=True, maintain_order=True)
    columns = [
        Column(linked_name("operator", links), term="name"),
        Column("calls", "number", term="calls", metric="calls"),
    ]
    for name in clocks:
        total, own = f"{name}_total", f"{name}_self"
        columns += [
            Column(f"{total}_ns", "ms", term=total, metric="total", clock=name),
            Column(f"{own}_ns", "ms", term=own, metric="self", clock=name),
            Column(_mean(f"{total}_ns"), "ms", term="mean_call", metric="mean", clock=name),
            Column(
                _maximum("operator", links, name),
                "ms",
                term="max_call",
                metric="max",
                clock=name,
            ),
            Column(f"{name}_share", "ratio", term=f"{name}_ratio", metric="share", clock=name),
        ]
    by = [column.source for column in columns].index(f"{clock}_self_ns")
    shown = table_of(words("sections.operators"), table, columns, key="operators", sorted_by=by)
    return words("about.operators"), [shown]


def kernels(report: ReportData, words: Words, links: Links) -> Content | str:
    """Return the table of kernels."""
    total = "gpu_total_ns"
    table = report.costs.means("kernels")
    if table.is_empty():
        return words("reasons.no_kernels")
    table = _with_shares(table, total, "share").sort(total, descending=True, maintain_order=True)
    columns = [
        Column(linked_name("kernel", links), term="name"),
        Column("calls", "number", term="calls", metric="calls"),
        Column(total, "ms", term="gpu_total", metric="total"),
        Column(_mean(total), "ms", term="mean_dur", metric="mean"),
        Column(_maximum("kernel", links, "gpu"), "ms", term="max_call", metric="max"),
        Column("share", "ratio", term="gpu_ratio", metric="share"),
    ]
    shown = table_of(words("sections.kernels"), table, columns, key="kernels", sorted_by=2)
    return words("about.kernels"), [shown]


def _mean(total: str) -> Source:
    return lambda row: row[total] / row["calls"] if row["calls"] else None


def _maximum(kind: str, links: Links, clock: str) -> Source:
    return lambda row: links.maximum(kind, row["name"], clock)


def _with_shares(table: pl.DataFrame, column: str, name: str) -> pl.DataFrame:
    """Return ``table`` with each row's share of the sum of a column: float64, in [0, 1]."""
    return table.with_columns((pl.col(column) / (table[column].sum() or 1)).alias(name))


def efficiency(report: ReportData, words: Words, links: Links) -> Content | str:
    """Return the roofline and the table of operators by shape."""
    table = report.efficiency
    if table.is_empty():
        return words("reasons.no_shapes")
    name = linked_name("shape", links, lambda row: f"{row['name']} {row['shapes']}")
    known = [column for column in EFFICIENCY if table[str(column.source)].count()]
    shown: dict[str | Source, Source] = {"name": name, "shapes": _inputs_of}
    columns = [replace(column, source=shown.get(column.source, column.source)) for column in known]
    families = [key for key in words.texts["terms"] if key.startswith("family_")]
    chart = Chart("roofline", words("about.roofline"), height=420, terms=families)
    rows = table_of(words("sections.efficiency"), table, columns, key="efficiency")
    return words("about.efficiency"), [chart, rows]


def _inputs_of(row: Mapping[str, Any]) -> Cell:
    """Return the shapes of a row; those of a hundred inputs are cut, and whole on hover."""
    shapes = row["shapes"] or "-"
    return Cell(cut(shapes, 64), shapes)


def modules(report: ReportData, words: Words, links: Links) -> Content | str:
    """Return the tree of modules."""
    table = report.costs.module_means
    if table.filter((pl.col("depth") > 0) & (pl.col("name") != UNKNOWN)).is_empty():
        return words("reasons.no_modules")
    return words("about.modules"), [
        Chart("modules", words("sections.modules"), "tree", 0, terms=MODULE_TERMS)
    ]


_STEP = ("step_time", "step_time_median", "step_time_p95", "tokens_per_s", "ips", "reader_cost")

_USE = (
    *("gpu_utilization", "cpu_utilization", "peak_memory"),
    *("peak_reserved_memory", "device_memory"),
)

_MODEL_SIZES = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")


def head(report: ReportData, words: Words, links: Links) -> Mapping[str, Any]:
    """Return ``title`` and ``second``, each a text and its link; ``do``, ``sure`` and ``identity``.

    The title is the change from the baseline, and the first finding comes second; without a
    baseline, the finding is the title. ``do`` is what the finding proposes, and ``sure`` how sure it
    is and which line it names; "" without a finding above minor. Step times alone show few causes,
    so without such a finding the title says that there is nothing else, and ``do`` proposes a
    window. The identity is a list of pairs: a name and a value.
    """
    first = report.findings[0] if report.findings else None
    is_slow = first is not None and first.severity not in SMALL
    href = link_of_finding(first, links) if first is not None and is_slow else ""
    finding = (advice.headline(report.findings, words.language, "first_alone"), href)
    row = advice.finding_rows(report.findings[:1], words.language)[0] if is_slow else None
    do = row.do if row else ""
    if not report.has_traces and not is_slow:
        finding, do = (words("about.step_times_only"), ""), words("about.record_a_window")
    changed = None
    if report.diff is not None:
        changed = (words("page.changed", verdict=verdict_text(report.diff, words)), "")
    return {
        "title": changed or finding,
        "second": finding if changed else None,
        "do": do,
        "sure": _sure(row, first, words) if row and first else "",
        "identity": list(_identity(report, words)),
    }


def _sure(row: advice.FindingRow, finding: Finding, words: Words) -> str:
    """Return how sure a finding is, and the line that it names."""
    sure = f"{words.term('confidence')}: {row.confidence_text}"
    return sure if finding.place is None else "{} · {}:{}".format(sure, *finding.place)


def _identity(report: ReportData, words: Words) -> Iterator[tuple[str, str]]:
    """Yield what is known of the run: a name in the page's language, and a value."""
    manifest = report.manifest
    hosts = sorted(set(report.cluster.steps["host"].drop_nulls())) or _hosts(manifest)
    yield words("identity.run"), report.what
    if report.diff is not None:
        yield words.term("baseline"), report.diff.baseline.what
    if started := _date(manifest.get("started")):
        yield words("identity.date"), started
    if hosts:
        more = f" … ({len(hosts)})" if len(hosts) > 3 else ""
        yield words("identity.hosts"), ", ".join(hosts[:3]) + more
    if devices := _devices(report):
        yield words("identity.devices"), devices
    if paddle := _value(manifest, "versions", "paddle"):
        yield "Paddle", paddle
    if report.cluster.topology is not None:
        yield words("identity.degrees"), _degrees(report)
    if model := _model(manifest):
        yield words("identity.model"), model
    if file := _value(manifest, "config_file"):
        yield words("identity.config"), file
    yield words("identity.recorded"), _recorded(report, words)


def _hosts(manifest: Mapping[str, Any]) -> list[str]:
    ranks = manifest.get("ranks")
    entries = ranks if isinstance(ranks, list) else []
    return sorted({str(entry["host"]) for entry in entries if _value(entry, "host")})


def _date(started: Any) -> str:
    """Return the start of the run in the time zone of its machine; "" if unknown.

    >>> _date("2026-11-22T01:12:28+00:00"), _date(None)
    ('2026-11-22 01:12 +0000', '')
    """
    try:
        return f"{datetime.fromisoformat(str(started)):%Y-%m-%d %H:%M %z}".rstrip()
    except ValueError:
        return ""


def _devices(report: ReportData) -> str:
    name = report.costs.metrics.get("device")
    if not name:
        device = _value(report.manifest, "device") or _value(report.manifest, "machine", "device")
        device = device or _value(report.manifest, "config", "Global", "device")
        name = device.partition(":")[0].upper() if device else ""
    return f"{name} × {len(report.ranks)}" if name else ""


def _value(mapping: Any, *keys: str) -> str:
    """Return a nested value of a manifest as text; "" if it is missing or not a text or number."""
    for key in keys:
        mapping = mapping.get(key) if isinstance(mapping, Mapping) else None
    return str(mapping) if isinstance(mapping, (str, int, float)) and mapping != "" else ""


def _degrees(report: ReportData) -> str:
    topology = report.cluster.topology
    assert topology is not None
    degrees = [
        f"{axis} {topology.degree(axis)}" for axis in topology.order if topology.degree(axis) > 1
    ]
    return " × ".join(degrees) or "1"


def _model(manifest: Mapping[str, Any]) -> str:
    """Return the model's name and sizes, such as ``GPT (num_layers 2, hidden_size 64)``."""
    name = _value(manifest, "config", "Model", "name")
    name = name or _value(manifest, "config", "Model", "module")
    sizes = [
        f"{key} {size}"
        for key in _MODEL_SIZES
        if (size := _value(manifest, "config", "Model", key))
    ]
    return f"{name} ({', '.join(sizes)})" if name and sizes else name


def _recorded(report: ReportData, words: Words) -> str:
    steps, ranks = words.steps(report.steps), words.ranks(report.ranks)
    if report.window is None:
        return words("page.step_times_only", steps=steps, ranks=ranks)
    return words("page.window", window=report.window, steps=steps, ranks=ranks)


def key_figures(report: ReportData, words: Words, links: Links) -> Sequence[Block]:
    """Return what a step is on this page, the run's key figures, and the parts of a recorded step.

    Figures that are unknown or 0 are left out.
    """
    metrics = report.costs.metrics
    recorded = words("basis.recorded")
    has_memory = report.step_times["device_peak_bytes"].count() > 0
    memory = words("basis.all_steps") if has_memory else recorded
    details = {**dict.fromkeys((*_STEP, "device_memory"), ""), **dict.fromkeys(_USE[:2], recorded)}
    step_time = metrics.get("step_time")
    tiles = []
    for metric in (*_STEP, *_USE):
        value = metrics.get(metric)
        if not isinstance(value, (int, float)) or not value:
            continue
        text = format_as(float(value), OVERVIEW_KINDS[METRICS[metric]])
        detail = details.get(metric, memory)
        if metric == "step_time_p95" and isinstance(step_time, float) and step_time:
            detail = f"{value / step_time - 1:+.1%}"
        tiles.append(Tile(metric, text, detail))
    basis = [Note(_basis(report, words, step_time))] if isinstance(step_time, float) else []
    changes = biggest_changes(report, words, links)
    parts = _step_parts(report, words, links)
    return [*basis, *changes, *parts, *_gains(report, words), Tiles(tiles)]


def _gains(report: ReportData, words: Words) -> Iterator[Gains]:
    """Yield the bar of what findings cost, if several cost time; those of `BESIDE` are no part of it."""
    rows = advice.finding_rows(report.findings, words.language)
    gains = [
        Gain(row.short, row.severity, format_time(row.cost_ns), row.share, f"#finding-{number}")
        for number, row in enumerate(rows, 1)
        if row.cost_ns is not None and row.share is not None and row.rule not in BESIDE
    ]
    if len(gains) > 1:
        left = max(0.0, 1.0 - sum(gain.ratio for gain in gains))
        label = words("about.gains", share=format_ratio(1 - left))
        yield Gains(label, [*gains, Gain(words("about.no_finding"), "", "", left)])


def _basis(report: ReportData, words: Words, step_time: float) -> str:
    """Return a sentence with each step time that the page uses, and the steps that it is of."""
    times, basis = report.costs.sample
    num = times["step"].n_unique()
    unmarked = (UNMARKED, UNFINISHED)
    is_unmarked = any(finding.facts.get("wording") in unmarked for finding in report.findings)
    kind = UNMARKED if is_unmarked else basis.split()[0]
    of = words(f"about.step_{kind}", num=num, ranks=words.ranks(report.ranks))
    names = {format_time(step_time): of}
    if recorded := _mean_recorded(report):
        num, num_slow = len(report.steps), len(report.steps) - len(report.typical)
        in_window = "step_in_window" if num_slow in (0, num) else "step_without_slow"
        of = words(f"about.{in_window}", num=num_slow)
        names.setdefault(format_time(recorded), of)
    for finding in report.findings[:1]:
        if finding.rule in BESIDE and isinstance(finding.facts["step_ns"], float):
            kind = "slow" if finding.rule == SLOW_STEPS else "pauses"
            names.setdefault(
                format_time(finding.facts["step_ns"]), words(f"about.step_with_{kind}")
            )
    (first, *others) = names.items()
    text = words("about.step", step=first[0], of=first[1])
    return "".join(
        [text, *(words("about.other_step", step=time, of=steps) for time, steps in others)]
    )


def _typical(report: ReportData) -> pl.DataFrame:
    """Return the costs of the steps that findings are about: the typical ones, with known parts."""
    steps = report.costs.steps.filter(pl.col("rest_ns").is_not_null())
    return steps.filter(pl.col("step").is_in(report.typical)) if report.typical else steps


def _mean_recorded(report: ReportData) -> float | None:
    mean = _typical(report)["step_ns"].mean()
    return float(mean) if isinstance(mean, (int, float)) else None


_MOST_LANES = 16
_PART_TERMS = {"exposed": "exposed_communication"}


def _step_parts(report: ReportData, words: Words, links: Links) -> list[Block]:
    """Return the bar with the parts of a recorded step, which add up to it; empty if unknown."""
    steps, step_ns = _typical(report), _mean_recorded(report)
    if not step_ns:
        return []
    shares = []
    for part in PARTS_NS:
        time_ns = float(steps[part].sum()) / steps.height
        if format_ratio(time_ns / step_ns) != "0.0%":
            shares.append(Share(metric_of(part), format_time(time_ns), time_ns / step_ns))
    label = words("about.parts", step=format_time(step_ns))
    return [Shares(label, shares, *_one_step(report, words, links))]


def _one_step(report: ReportData, words: Words, links: Links) -> tuple[str, Sequence[Lane]]:
    """Return the typical step of each rank along the time, and a sentence on it.

    Of many ranks, the slow ones and some others. All have one axis of time if their clocks are known;
    else each begins at its own start.
    """
    slices = [table for table in report.cluster.slices if table.height]
    if not slices:
        return "", ()
    step = typical_step(report, pl.concat(table["step"] for table in slices).unique())
    of_step = {table["rank"][0]: table.filter(step=step) for table in slices}
    ranks = _lane_ranks(report, [rank for rank, table in of_step.items() if table.height])
    clocks = report.cluster.clocks
    tables = {rank: to_reference_clock(of_step[rank], clocks) for rank in ranks}
    begins = {rank: int(table["start_ns"][0]) for rank, table in tables.items()}
    is_aligned = clocks.keys() >= tables.keys()
    if is_aligned:
        begins = dict.fromkeys(begins, min(begins.values()))
    length_ns = max(int(table["end_ns"][-1]) - begins[rank] for rank, table in tables.items())
    lanes = [
        Lane(
            label(report, rank),
            _step_of(report, rank, links),
            _pieces(table, begins[rank], begins[rank] + length_ns),
        )
        for rank, table in tables.items()
    ]
    about = "one_step" if is_aligned or len(lanes) == 1 else "one_step_unaligned"
    of_all = words("about.lanes_of", shown=len(lanes), num=len(report.ranks))
    left_out = of_all if len(lanes) < len(report.ranks) else ""
    return words(f"about.{about}", step=step, time=format_time(length_ns)) + left_out, lanes


def _lane_ranks(report: ReportData, ranks: Sequence[int]) -> list[int]:
    """Return the ranks to draw: at most `_MOST_LANES`, the slow ones and others at equal distances."""
    is_slow = set(report.typical_cluster.slow_ranks.filter("is_slow")["rank"])
    slow = [rank for rank in ranks if rank in is_slow]
    others = [rank for rank in ranks if rank not in is_slow]
    distance = max(1, -(-len(others) // max(1, _MOST_LANES - len(slow))))
    return sorted([*slow, *others[::distance]][:_MOST_LANES])


def _pieces(slices: pl.DataFrame, begin_ns: int, end_ns: int) -> list[tuple[str, int]]:
    """Return the pieces of a lane from begin to end; part "" where no slice is, such as in a pause."""
    pieces, until_ns = [], begin_ns
    for part, start, end in slices.select("part", "start_ns", "end_ns").iter_rows():
        pieces += [("", start - until_ns), (_PART_TERMS.get(part, part), end - start)]
        until_ns = end
    pieces.append(("", end_ns - until_ns))
    return [piece for piece in pieces if piece[1]]
