"""Findings as GitHub's Markdown, for notes."""

from __future__ import annotations

from collections.abc import Sequence

from ppprof.analysis.advice.finding import Finding
from ppprof.report.markdown import code
from ppprof.report.text.advice import (
    finding_rows,
    headline,
    hidden_findings,
    read_catalogue,
)


def findings_markdown(
    findings: Sequence[Finding], language: str = "en", limit: int | None = None
) -> str:
    """Return findings in Markdown: a headline, then each finding with evidence and proposal.

    Args:
        findings: the findings, in the order to show.
        language: language of the texts: ``en`` or ``zh``.
        limit: most findings to show; None for all. A last line counts the findings that are not
            shown.
    """
    words = read_catalogue(language)["words"]
    blocks = [f"**{headline(findings, language)}**"]
    for number, row in enumerate(finding_rows(findings[:limit], language), 1):
        summary = words["summary"].format(**vars(row))
        blocks += [f"### {number}. {row.title}", f"`{row.rule}`: {summary}", row.what, row.do]
        headers, cells = row.evidence_cells
        if cells:
            lines = [headers, ["---"] * len(headers), *([*map(_cell, line)] for line in cells)]
            blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    blocks += hidden_findings(findings, words, limit)
    return "\n\n".join(blocks) + "\n"


def _cell(text: str) -> str:
    """Return the text of a table cell; text with ``<``, ``>`` or ``*`` becomes code.

    Text with ``<br>`` stays: its line breaks are intended.
    """
    if any(mark in text for mark in "<>*") and "<br>" not in text:
        return code(text)
    return text.replace("|", "\\|").replace("\n", " ")
