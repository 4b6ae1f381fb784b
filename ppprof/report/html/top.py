"""The top of the page: a headline, the identity of the run, and its key figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ppprof.analysis.report_data.run import ReportData
from ppprof.choices.thresholds import METRICS
from ppprof.report.html.blocks import Block, Part, Parts, Tile, Tiles, format_as
from ppprof.report.html.change import OVERVIEW_KINDS, verdict_text
from ppprof.report.html.links import Links, link_of_finding
from ppprof.report.html.words import Words
from ppprof.report.text import advice
from ppprof.units import format_ratio, format_time

_STEP = ("step_time", "step_time_median", "step_time_p95", "tokens_per_s", "ips", "reader_cost")

_PARTS = (
    *("computation", "exposed_communication", "data_loading", "bubble"),
    *("host_bound", "queued", "rest"),
)

_USE = (
    *("gpu_utilization", "cpu_utilization", "peak_memory"),
    *("peak_reserved_memory", "device_memory"),
)

_MODEL_SIZES = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")


def head(report: ReportData, words: Words, links: Links) -> Mapping[str, Any]:
    """Return the headline (``title``), its link (``href``), ``verdict`` and ``identity``.

    The verdict is the change from the baseline, "" without a baseline. The identity is a list of
    pairs: a name and a value.
    """
    first = report.findings[0] if report.findings else None
    is_slow = first is not None and first.severity != "minor"
    verdict = "" if report.diff is None else verdict_text(report.diff, words)
    has_changed = report.diff is not None and report.diff.change.verdict in ("faster", "slower")
    title = advice.headline_of_first(report.findings, words.language)
    if has_changed and not is_slow:
        title, verdict = words("page.changed", verdict=verdict), title
    return {
        "title": title,
        "href": link_of_finding(first, links) if first is not None and is_slow else "",
        "verdict": verdict,
        "identity": list(_identity(report, words)),
    }


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


def key_figures(report: ReportData, words: Words) -> Sequence[Block]:
    """Return the run's key figures, each with the steps that it is of, and the parts of a step.

    Figures that are unknown or 0 are left out.
    """
    metrics = report.costs.metrics
    measured = words(f"basis.{report.costs.step_times[1].replace(' ', '_')}")
    recorded = words("basis.recorded")
    has_memory = report.step_times["device_peak_bytes"].count() > 0
    memory = words("basis.all_steps") if has_memory else recorded
    bases = {**dict.fromkeys(_STEP, measured), **dict.fromkeys(_USE[:2], recorded)}
    tiles = []
    for metric in (*_STEP, *_USE):
        value = metrics.get(metric)
        if not isinstance(value, (int, float)) or not value:
            continue
        text = format_as(float(value), OVERVIEW_KINDS[METRICS[metric]])
        detail = "" if metric == "device_memory" else bases.get(metric, memory)
        step_time = metrics.get("step_time")
        if metric == "step_time_p95" and isinstance(step_time, float) and step_time:
            detail = f"{value / step_time - 1:+.1%} · {detail}"
        tiles.append(Tile(metric, text, detail))
    parts = []
    for metric in _PARTS:
        value = metrics.get(metric)
        if isinstance(value, (int, float)) and value and report.step_ns:
            parts.append(Part(metric, format_time(value), value / report.step_ns))
    label = words("about.parts", step=format_time(report.step_ns))
    bar = [Parts(label, [part for part in parts if format_ratio(part.share) != "0.0%"])]
    return [Tiles(tiles), *(bar if parts else [])]
