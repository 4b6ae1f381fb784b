"""Findings in words: plain rows in a language, then text, Markdown or data.

The words are data: ``catalogue/en.yaml`` and ``zh.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import polars as pl

from ppprof.analysis.advice import RULES
from ppprof.analysis.advice.finding import Finding
from ppprof.errors import UsageError
from ppprof.report.markdown import code
from ppprof.rundir.summaries import SCHEMA_VERSION
from ppprof.units import format_time, format_value, ratio_text

LANGUAGES = ("en", "zh")

_SUFFIXES = ("_ns", "_bytes")


@dataclass(frozen=True)
class FindingRow:
    """A finding in a language, ready to be drawn by whoever shows it."""

    rule: str
    severity: str
    """As `ppprof.analysis.advice.finding.SEVERITIES` has it; ``severity_text`` in the language."""
    severity_text: str
    title: str
    cost_ns: float | None
    share: float | None
    cost_text: str
    """``costs 4 ms a step (48.0%)``."""
    confidence: str
    """As `ppprof.analysis.advice.finding.CONFIDENCES` has it; ``confidence_text`` in the language."""
    confidence_text: str
    what: str
    """What was found."""
    do: str
    """What to change."""
    how: str
    """How its numbers are defined."""
    evidence: pl.DataFrame
    """As it is in the finding."""

    @property
    def evidence_cells(self) -> tuple[list[str], list[list[str]]]:
        """Headers, and the cells of each row with their units."""
        columns = self.evidence.columns
        cells = [
            [format_value(name, value) for name, value in zip(columns, row)]
            for row in self.evidence.rows()
        ]
        return [_header(name) for name in columns], cells


def rows(findings: Sequence[Finding], language: str = "en") -> list[FindingRow]:
    """Findings in a language, in their order.

    Raises:
        UsageError: no such language.
    """
    catalogue = read_catalogue(language)
    thresholds = {rule.name: rule.thresholds for rule in RULES}
    words = catalogue["words"]
    found = []
    for finding in findings:
        texts = catalogue["rules"][finding.rule]
        facts = {name: format_value(name, value) for name, value in finding.facts.items()}
        settings = {
            name: words["not_set"] if value is None else facts[name]
            for name, value in finding.facts.items()
        }
        of_rule = _formatted(thresholds[finding.rule])
        found.append(
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
                texts["how"].format_map(of_rule),
                finding.evidence,
            )
        )
    return found


def headline(findings: Sequence[Finding], language: str = "en") -> str:
    """One line: the first finding, or that nothing stands out.

    >>> headline([])
    'Nothing above minor: no rule has anything to say.'
    """
    words = read_catalogue(language)["words"]
    if not findings:
        return str(words["nothing"])
    first, row = findings[0], rows(findings[:1], language)[0]
    if first.severity == "minor":
        return str(words["nothing_above_minor"]).format(num=len(findings))
    told = {"num": len(findings), "severity": row.severity_text, "title": row.title}
    if first.cost_ns is None or first.share is None:
        return str(words["first"]).format(**told)
    step = format_value("step_ns", first.facts.get("step_ns"))
    return str(words["first_with_cost"]).format(
        **told, cost=format_time(first.cost_ns), share=ratio_text(first.share), step=step
    )


def render_findings(
    findings: Sequence[Finding], language: str = "en", limit: int | None = None
) -> str:
    """The headline, then each finding with its evidence and what to do, as text."""
    words = read_catalogue(language)["words"]
    blocks = [headline(findings, language)]
    for number, row in enumerate(rows(findings[:limit], language), 1):
        told = words["told"].format(**vars(row))
        lines = [f"{number}. {row.title} [{row.rule}]", f"   {told}"]
        lines += [f"   {words[name]}{getattr(row, name)}" for name in ("what", "do")]
        if row.evidence.height:
            lines.append(f"   {words['evidence']}")
            lines += [f"     {line}" for line in _grid(*row.evidence_cells)]
        blocks.append("\n".join(lines))
    blocks += _hidden(findings, words, limit)
    return "\n\n".join(blocks) + "\n"


def findings_markdown(
    findings: Sequence[Finding], language: str = "en", limit: int | None = None
) -> str:
    """The same as GitHub's Markdown, for a pull request."""
    words = read_catalogue(language)["words"]
    blocks = [f"**{headline(findings, language)}**"]
    for number, row in enumerate(rows(findings[:limit], language), 1):
        told = words["told"].format(**vars(row))
        blocks += [f"### {number}. {row.title}", f"`{row.rule}`: {told}", row.what, row.do]
        headers, cells = row.evidence_cells
        if cells:
            lines = [headers, ["---"] * len(headers), *([_cell(at) for at in of] for of in cells)]
            blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    blocks += _hidden(findings, words, limit)
    return "\n\n".join(blocks) + "\n"


def findings_table(findings: Sequence[Finding], language: str = "en") -> pl.DataFrame:
    """A row a finding: rule, severity, cost_ns, share, confidence, title, what, do."""
    names = ("rule", "severity", "cost_ns", "share", "confidence", "title", "what", "do")
    schema = {name: pl.Float64 if name in ("cost_ns", "share") else pl.String for name in names}
    told = [{name: getattr(row, name) for name in names} for row in rows(findings, language)]
    return pl.DataFrame(told, schema)


def findings_document(
    findings: Sequence[Finding], language: str = "en", **identity: Any
) -> dict[str, Any]:
    """Everything, for scripts: facts and evidence as they are, beside the words."""
    told = []
    for finding, row in zip(findings, rows(findings, language)):
        words = {name: getattr(row, name) for name in ("title", "what", "do", "how")}
        told.append(
            {
                "rule": finding.rule,
                "severity": finding.severity,
                "cost_ns": finding.cost_ns,
                "share": finding.share,
                "confidence": finding.confidence,
                **words,
                "facts": dict(finding.facts),
                "evidence": finding.evidence.rows(named=True),
            }
        )
    return {
        "schema_version": SCHEMA_VERSION,
        **identity,
        "headline": headline(findings, language),
        "findings": told,
    }


def rules_markdown(language: str = "en") -> str:
    """The table of all rules: what each says, how its numbers are defined, what it proposes.

    Facts, which differ from run to run, by their names in italics.
    """
    catalogue = read_catalogue(language)["rules"]
    lines = ["| rule | says | evidence and threshold | proposes |", "|---|---|---|---|"]
    for rule in RULES:
        texts = catalogue[rule.name]
        how = texts["how"].format_map(_formatted(rule.thresholds))
        proposals = "<br>".join(dict.fromkeys(texts["do"].values()))
        told = re.sub(r"{(\w+)}", lambda fact: f"_{fact[1].replace('_', ' ')}_", proposals)
        cells = [f"`{rule.name}`", texts["title"], how, told]
        lines.append(f"| {' | '.join(_cell(at) for at in cells)} |")
    return "\n".join(lines) + "\n"


@cache
def read_catalogue(language: str) -> Mapping[str, Any]:
    """The words of a language.

    Raises:
        UsageError: there is no such language.
    """
    import yaml

    if language not in LANGUAGES:
        raise UsageError(f"language {language!r}: expected one of {', '.join(LANGUAGES)}")
    source = files("ppprof.report").joinpath("catalogue").joinpath(f"{language}.yaml")
    words: Mapping[str, Any] = yaml.safe_load(source.read_text("utf-8"))
    return words


def _formatted(values: Mapping[str, float]) -> dict[str, str]:
    return {name: format_value(name, value) for name, value in values.items()}


def _cost(finding: Finding, words: Mapping[str, str]) -> str:
    if finding.cost_ns is None or finding.share is None:
        return words["no_cost"]
    return words["cost"].format(cost=format_time(finding.cost_ns), share=ratio_text(finding.share))


def _hidden(findings: Sequence[Finding], words: Mapping[str, str], limit: int | None) -> list[str]:
    num = 0 if limit is None else max(0, len(findings) - limit)
    return [words["more"].format(num=num, limit=limit)] if num else []


def _header(name: str) -> str:
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def _grid(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(headers, *cells)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths)).rstrip()
        for line in (headers, *cells)
    ]


def _cell(text: str) -> str:
    """A cell of Markdown; what looks like markup is shown as it is."""
    if any(mark in text for mark in "<>*") and "<br>" not in text:
        return code(text)
    return text.replace("|", "\\|").replace("\n", " ")
