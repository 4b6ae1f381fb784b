"""Findings in words: plain rows in a language, then text, a table or JSON.

The words are data: ``catalogue/en.yaml`` and ``catalogue/zh.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import polars as pl

from ppprof.analysis.advice import RULES
from ppprof.analysis.advice.finding import Finding
from ppprof.errors import UsageError
from ppprof.units import format_time, format_value, ratio_text

LANGUAGES = ("en", "zh")

SCHEMA_VERSION = 1
"""Version of `findings_document`; goes up when a reader of the older form would misread it."""

_SUFFIXES = ("_ns", "_bytes")


@dataclass(frozen=True)
class FindingRow:
    """A finding in a language, ready to print."""

    rule: str
    severity: str
    """One of `ppprof.analysis.advice.finding.SEVERITIES`; ``severity_text`` is translated."""
    severity_text: str
    title: str
    cost_ns: float | None
    share: float | None
    cost_text: str
    """``costs 4 ms a step (48.0%)``."""
    confidence: str
    """One of `ppprof.analysis.advice.finding.CONFIDENCES`; ``confidence_text`` is translated."""
    confidence_text: str
    what: str
    """The finding with its numbers."""
    do: str
    """The proposed change."""
    how: str
    """The definition of the numbers, with thresholds."""
    evidence: pl.DataFrame
    """The finding's evidence, unchanged."""

    @property
    def evidence_cells(self) -> tuple[list[str], list[list[str]]]:
        """Headers of the evidence, and the cells of each row with their units."""
        columns = self.evidence.columns
        cells = [
            [format_value(name, value) for name, value in zip(columns, row)]
            for row in self.evidence.rows()
        ]
        return [_header(name) for name in columns], cells


def finding_rows(findings: Sequence[Finding], language: str = "en") -> list[FindingRow]:
    """Return findings in a language, in their order.

    Raises:
        UsageError: unknown language.
    """
    catalogue = read_catalogue(language)
    thresholds = {rule.name: rule.thresholds for rule in RULES}
    words = catalogue["words"]
    translated = []
    for finding in findings:
        texts = catalogue["rules"][finding.rule]
        facts = format_facts(finding.facts)
        settings = {
            name: words["not_set"] if value is None else facts[name]
            for name, value in finding.facts.items()
        }
        translated.append(
            FindingRow(
                finding.rule,
                finding.severity,
                words["severity"][finding.severity],
                texts["title"],
                finding.cost_ns,
                finding.share,
                _cost(finding, words),
                finding.confidence,
                words["confidence"][finding.confidence],
                texts["what"].format_map(facts),
                texts["do"][finding.facts["remedy"]].format_map(settings),
                texts["how"].format_map(format_facts(thresholds[finding.rule])),
                finding.evidence,
            )
        )
    return translated


def headline(findings: Sequence[Finding], language: str = "en") -> str:
    """Return one line: the first finding, or that there are only minor findings.

    >>> headline([])
    'Nothing above minor: no rule reports a finding.'
    """
    words = read_catalogue(language)["words"]
    if not findings:
        return str(words["nothing"])
    first, row = findings[0], finding_rows(findings[:1], language)[0]
    if first.severity == "minor":
        return str(words["nothing_above_minor"]).format(num=len(findings))
    facts = {"num": len(findings), "severity": row.severity_text, "title": row.title}
    if first.cost_ns is None or first.share is None:
        return str(words["first"]).format(**facts)
    step = format_value("step_ns", first.facts.get("step_ns"))
    return str(words["first_with_cost"]).format(
        **facts, cost=format_time(first.cost_ns), share=ratio_text(first.share), step=step
    )


def render_findings(
    findings: Sequence[Finding], language: str = "en", limit: int | None = None
) -> str:
    """Return the headline, then each finding with its evidence and what to change, as text."""
    words = read_catalogue(language)["words"]
    blocks = [headline(findings, language)]
    for number, row in enumerate(finding_rows(findings[:limit], language), 1):
        summary = words["summary"].format(**vars(row))
        lines = [f"{number}. {row.title} [{row.rule}]", f"   {summary}"]
        lines += [f"   {words[name]}{getattr(row, name)}" for name in ("what", "do")]
        if row.evidence.height:
            lines.append(f"   {words['evidence']}")
            lines += [f"     {line}" for line in _aligned(*row.evidence_cells)]
        blocks.append("\n".join(lines))
    blocks += hidden_findings(findings, words, limit)
    return "\n\n".join(blocks) + "\n"


def hidden_findings(
    findings: Sequence[Finding], words: Mapping[str, str], limit: int | None
) -> list[str]:
    """Return one line with the number of findings beyond the limit; no line if all are shown."""
    num = 0 if limit is None else max(0, len(findings) - limit)
    return [words["more"].format(num=num, limit=limit)] if num else []


def findings_table(findings: Sequence[Finding], language: str = "en") -> pl.DataFrame:
    """Return one row per finding: rule, severity, cost_ns, share, confidence, title, what, do."""
    names = ("rule", "severity", "cost_ns", "share", "confidence", "title", "what", "do")
    schema = {name: pl.Float64 if name in ("cost_ns", "share") else pl.String for name in names}
    values = [
        {name: getattr(row, name) for name in names} for row in finding_rows(findings, language)
    ]
    return pl.DataFrame(values, schema)


def findings_document(
    findings: Sequence[Finding], language: str = "en", **identity: Any
) -> dict[str, Any]:
    """Return findings as JSON-compatible values: texts, and facts and evidence as numbers."""
    entries = []
    for finding, row in zip(findings, finding_rows(findings, language)):
        texts = {name: getattr(row, name) for name in ("title", "what", "do", "how")}
        entries.append(
            {
                "rule": finding.rule,
                "severity": finding.severity,
                "cost_ns": finding.cost_ns,
                "share": finding.share,
                "confidence": finding.confidence,
                **texts,
                "facts": dict(finding.facts),
                "evidence": finding.evidence.rows(named=True),
            }
        )
    return {
        "schema_version": SCHEMA_VERSION,
        **identity,
        "headline": headline(findings, language),
        "findings": entries,
    }


@cache
def read_catalogue(language: str) -> Mapping[str, Any]:
    """Return the texts of a language.

    Raises:
        UsageError: unknown language.
    """
    import yaml

    if language not in LANGUAGES:
        raise UsageError(f"language {language!r}: expected one of {', '.join(LANGUAGES)}")
    source = files("ppprof.report").joinpath("catalogue").joinpath(f"{language}.yaml")
    words: Mapping[str, Any] = yaml.safe_load(source.read_text("utf-8"))
    return words


def format_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return facts or thresholds as text, each by the unit that ends its name."""
    return {name: format_value(name, value) for name, value in facts.items()}


def _cost(finding: Finding, words: Mapping[str, str]) -> str:
    if finding.cost_ns is None or finding.share is None:
        return words["no_cost"]
    return words["cost"].format(cost=format_time(finding.cost_ns), share=ratio_text(finding.share))


def _header(name: str) -> str:
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def _aligned(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Return headers and rows as lines whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(headers, *cells)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths)).rstrip()
        for line in (headers, *cells)
    ]
