"""Findings in English or Chinese: as rows, text, a table or JSON.

The texts are the first document of ``texts/en.yaml`` and ``texts/zh.yaml``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import polars as pl

from ppprof.analysis.advice import RULES
from ppprof.analysis.advice.finding import SMALL, Fact, Finding, Findings
from ppprof.analysis.profile.step_basis import NOT_RECORDED, WITH_PAUSES
from ppprof.analysis.ranks.rank_communication import UNKNOWN_AXIS
from ppprof.errors import UsageError
from ppprof.messages import LANGUAGES, Counted
from ppprof.report.text.layout import PADDLE, Layout
from ppprof.units import format_ratio, format_time, format_value, short_name, short_names

SCHEMA_VERSION = 1
"""Version of `findings_document`. It increases when older readers would misread the document."""

_PROPOSED = "proposed_"
"""How the names of facts begin that a finding proposes."""

_MEANINGS = {"major": "bad", "moderate": "warning"}
"""How a terminal shows a severity: one of the meanings of `Layout.paint`."""


@dataclass(frozen=True)
class FindingRow:
    """A finding with its texts in one of `LANGUAGES`, ready to print."""

    rule: str
    """Name of the rule."""
    severity: str
    """One of `ppprof.analysis.advice.finding.SEVERITIES`; ``severity_text`` is translated."""
    severity_text: str
    title: str
    """The problem in a few words, the same for all findings of a rule."""
    short: str
    """The problem in a few words, with what and where it is."""
    cost_ns: float | None
    """Possible gain per step; None if the finding is not about time."""
    share: float | None
    """``cost_ns`` as a ratio of the step; None if the finding is not about time."""
    cost_text: str
    """Such as ``costs 4 ms a step (48.0%)``."""
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
    evidence_headers: Sequence[str]
    """The headers of the columns of ``evidence``."""
    source: Sequence[str] = ()
    """Lines of source around the place that the finding names, with their numbers; the place's own line
    begins with ``>``."""

    @property
    def evidence_cells(self) -> tuple[list[str], list[list[str]]]:
        """Headers of the evidence, and its rows as lists of cells with units."""
        columns = self.evidence.columns
        cells = [
            [format_value(name, value) for name, value in zip(columns, row)]
            for row in self.evidence.rows()
        ]
        short = short_names(cell for row in cells for cell in row)
        return list(self.evidence_headers), [[short[cell] for cell in row] for row in cells]


def finding_rows(findings: Sequence[Finding], language: str = "en") -> list[FindingRow]:
    """Return each finding with its texts in a language, in the order of ``findings``.

    Raises:
        UsageError: unknown language.
    """
    catalogue = read_catalogue(language)
    thresholds = {rule.name: rule.thresholds for rule in RULES}
    words = catalogue["words"]
    translated = []
    for finding in findings:
        texts = catalogue["rules"][finding.rule]
        facts = _facts(finding, words)
        known = {
            name: facts[name]
            for name, value in finding.facts.items()
            if value is not None or name == "every"
        }
        translated.append(
            FindingRow(
                finding.rule,
                finding.severity,
                words["severity"][finding.severity],
                _text(texts, "title", finding),
                _short(finding, catalogue),
                finding.cost_ns,
                finding.share,
                _cost(finding, words),
                finding.confidence,
                words["confidence"][finding.confidence],
                _known_sentences(_text(texts, "what", finding), known).format_map(facts),
                _remedy(texts["do"], finding.facts, known),
                texts["how"].format_map(format_facts(thresholds[finding.rule]))
                + _replay(finding, words),
                _evidence(finding, words),
                [_header(name, catalogue["columns"]) for name in finding.evidence.columns],
                _source(finding),
            )
        )
    return translated


def _source(finding: Finding) -> list[str]:
    place = finding.place
    width = len(str(max((number for number, _ in finding.source), default=0)))
    return [
        f"{'>' if place is not None and number == place[1] else ' '} {number:>{width}}  {text}"
        for number, text in finding.source
    ]


def headline(findings: Sequence[Finding], language: str = "en", text: str = "first") -> str:
    """Return one line with the number of findings, and the first finding with its cost.

    Notes do not count. If there is no finding, or the first one is at most ``minor``, the line reports only
    that no finding is above minor, and of step times alone that they show few causes. Without a cost,
    the largest parts of a step follow. The findings are sorted as `ppprof.analysis.advice.advise`
    returns them. ``text`` ``first_alone`` leaves out the number and the severity, and says what and
    where the finding is.

    Raises:
        UsageError: unknown language.

    >>> headline([])
    'Nothing above minor: no rule reports a finding.'
    """
    words = read_catalogue(language)["words"]
    is_small = all(finding.severity in SMALL for finding in findings)
    if is_small and isinstance(findings, Findings) and not findings.has_traces:
        return str(words["nothing_in_step_times"])
    if not findings:
        return str(words["nothing"]) + _largest(findings, words)
    first, row = findings[0], finding_rows(findings[:1], language)[0]
    num = sum(finding.severity != "note" for finding in findings)
    if first.severity in SMALL:
        nothing = words["nothing_above_minor"].format(num=num) if num else words["nothing"]
        return str(nothing) + _worth_a_look(findings, language) + _largest(findings, words)
    title = row.short[:1].upper() + row.short[1:] if text == "first_alone" else row.title
    facts = {"num": num, "severity": row.severity_text, "title": title}
    if first.cost_ns is None or first.share is None:
        others = _worth_a_look(findings, language) if text == "first" else ""
        return str(words[text]).format(**facts) + others + _largest(findings, words)
    step = format_value("step_ns", first.facts.get("step_ns"))
    sentence = str(words[f"{text}_with_cost"]).format(
        **facts,
        cost=format_time(first.cost_ns),
        share=format_ratio(first.share),
        step=step,
        basis=_facts(first, words).get("basis"),
    )
    larger = _small_above(findings, first.share) if text == "first" else []
    return sentence + _worth_a_look(larger, language)


def _small_above(findings: Sequence[Finding], share: float, most: float = 1.0) -> Sequence[Finding]:
    """Return small findings with a larger share than those that are not, of at most ``most``."""
    small = (each for each in findings if each.severity in SMALL)
    return [each for each in small if share < (each.share or 0.0) <= most]


def _worth_a_look(findings: Sequence[Finding], language: str, text: str = "worth_a_look") -> str:
    """Return a sentence with the largest small finding, which is small since its cost is possible only; "" without a large share.

    Slow steps that are small may be chance.
    """
    catalogue = read_catalogue(language)
    words = catalogue["words"]
    large = [
        each for each in findings if (each.share or 0.0) >= _LARGE and each.rule != "slow-steps"
    ]
    if not large:
        return ""
    first = max(large, key=lambda each: each.share or 0.0)
    part = f"{first.share:.0%} {_short(first, catalogue)}"
    if first.facts.get("basis") == NOT_RECORDED:
        part = str(words["verdict_other"]).format(part=part, basis=words["basis"][NOT_RECORDED])
    return str(words[text]).format(part=part)


def _largest(findings: Sequence[Finding], words: Mapping[str, Any], text: str = "largest") -> str:
    """Return a sentence with the largest phase, operator, module and line; "" if they are unknown."""
    parts = findings.largest if isinstance(findings, Findings) else ()
    shown = words["and"].join(
        words["part_of_step"].format(
            kind=words["kind"][part.kind],
            name=short_name(part.name),
            share=format_ratio(part.share),
        )
        for part in parts
    )
    return str(words[text]).format(parts=shown) if shown else ""


_MOST_IN_VERDICT = 3
_LARGE = 0.1
"""Share of a step of a small finding that is named where none is larger."""


def verdict(
    step_ns: float,
    findings: Sequence[Finding],
    language: str = "en",
    num_slow: int = 0,
    num_steps: int = 0,
) -> str:
    """Return one sentence on a window: its step time, and the findings above minor with their share.

    Findings that cost no time come last. A share of steps outside the window is called that. Shares
    in one sentence add up to 100% at most: slow steps, whose share is of another mean, are left out
    beside larger ones.

    Args:
        step_ns: mean of the window's typical steps.
        findings: what the rules report.
        language: ``en`` or ``zh``.
        num_slow: steps of the window that ``step_ns`` leaves out, of ``num_steps``.
        num_steps: steps of the window.

    Raises:
        UsageError: unknown language.

    >>> verdict(58e6, [])
    'recorded step 58 ms: nothing above minor'
    """
    catalogue = read_catalogue(language)
    words = catalogue["words"]
    parts: list[str] = []
    left, largest = 1.0, 0.0
    for finding in sorted(findings, key=lambda finding: finding.share is None):
        share = finding.share or 0.0
        if finding.severity not in SMALL and len(parts) < _MOST_IN_VERDICT and share <= left + 1e-9:
            left -= share
            largest = max(largest, share)
            short = _short(finding, catalogue)
            basis = finding.facts.get("basis")
            if basis in (NOT_RECORDED, WITH_PAUSES):
                basis = words["basis"][basis]
                short = str(words["verdict_other"]).format(part=short, basis=basis)
            parts.append(short if finding.share is None else f"{finding.share:.0%} {short}")
    if parts:
        small = _small_above(findings, largest, most=left + 1e-9)
        shown = words["and"].join(parts) + _worth_a_look(small, language, "verdict_worth_a_look")
    else:
        shown = "".join(
            (
                words["verdict_nothing"],
                _worth_a_look(findings, language, "verdict_worth_a_look"),
                _largest(findings, words, "verdict_largest"),
            )
        )
    text = words["verdict_without_slow" if num_slow else "verdict"]
    step = format_time(step_ns)
    return str(text).format(step=step, parts=shown, num_slow=num_slow, num_steps=num_steps)


def _short(finding: Finding, catalogue: Mapping[str, Any]) -> str:
    facts = _facts(finding, catalogue["words"])
    known = {name: facts[name] for name, value in finding.facts.items() if value is not None}
    text = _text(catalogue["rules"][finding.rule], "short", finding)
    return _without_unknown(text, known).format_map(facts)


def render_findings(
    findings: Sequence[Finding],
    language: str = "en",
    limit: int | None = None,
    layout: Layout = PADDLE,
    verbose: bool = False,
) -> str:
    """Return findings as text: a headline, then each finding with its proposal and evidence.

    With ``verbose``, each has its definition and the lines of source around its place, too.

    A last line counts the findings beyond ``limit``.

    Raises:
        UsageError: unknown language.
    """
    words = read_catalogue(language)["words"]
    blocks = [layout.paint(headline(findings, language))]
    for number, row in enumerate(finding_rows(findings[:limit], language), 1):
        severity = layout.paint(row.severity_text, _MEANINGS.get(row.severity))
        summary = words["summary"].format(**{**vars(row), "severity_text": severity})
        lines = [f"{number}. {layout.paint(row.title, 'title')} [{row.rule}]", f"   {summary}"]
        shown = ("what", "do", "how") if verbose else ("what", "do")
        lines += [layout.paint(f"   {words[name]}{getattr(row, name)}") for name in shown]
        if verbose and row.source:
            lines += [f"   {words['source']}", *(f"     {line}" for line in row.source)]
        if row.evidence.height:
            lines.append(f"   {words['evidence']}")
            lines += [f"     {line}" for line in layout.aligned(*row.evidence_cells, indent=5)]
        blocks.append("\n".join(lines))
    blocks += remarks(findings, language, limit)
    return "\n\n".join(blocks) + "\n"


def remarks(findings: Sequence[Finding], language: str, limit: int | None) -> list[str]:
    """Return the lines after findings: what was withheld, and how many are beyond ``limit``."""
    num = 0 if limit is None else max(0, len(findings) - limit)
    more = read_catalogue(language)["words"]["more"].format(num=num, limit=limit) if num else ""
    return [line for line in (withheld(findings, language), more) if line]


def withheld(findings: Sequence[Finding], language: str = "en") -> str:
    """Return a sentence with the rules whose findings were withheld; "" without such rules.

    Raises:
        UsageError: unknown language.
    """
    catalogue = read_catalogue(language)
    rules = findings.withheld if isinstance(findings, Findings) else ()
    titles = [f"{catalogue['rules'][rule]['title']} [{rule}]" for rule in rules]
    shown = str(catalogue["words"]["comma"]).join(titles)
    return str(catalogue["words"]["withheld"]).format(rules=shown) if titles else ""


def findings_table(findings: Sequence[Finding], language: str = "en") -> pl.DataFrame:
    """Return a table with one row per finding, in the order of ``findings``.

    Returns:
        rule, severity, cost_ns float64, share float64, confidence, title, what, do; the other
        columns are text, as in `FindingRow`. cost_ns and share are null if the finding is not about
        time.
    """
    names = ("rule", "severity", "cost_ns", "share", "confidence", "title", "what", "do")
    schema = {name: pl.Float64 if name in ("cost_ns", "share") else pl.String for name in names}
    values = [
        {name: getattr(row, name) for name in names} for row in finding_rows(findings, language)
    ]
    return pl.DataFrame(values, schema)


def findings_document(
    findings: Sequence[Finding], language: str = "en", **identity: Any
) -> dict[str, Any]:
    """Return findings as JSON-compatible values: texts, and facts and evidence as numbers.

    ``identity`` identifies the run, such as ``run="profiler_log"``: further keys of the result.
    """
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
                "basis": finding.facts.get("basis") if finding.cost_ns is not None else None,
                "alone_ns": finding.alone_ns,
                "replay": {"changes": list(finding.changes)} if finding.changes else None,
                **texts,
                "where": _where(finding),
                "proposal": _proposal(finding, row.do),
                "facts": dict(finding.facts),
                "evidence": finding.evidence.rows(named=True),
                "source": [{"line": number, "text": text} for number, text in finding.source],
            }
        )
    return {
        "schema_version": SCHEMA_VERSION,
        **identity,
        "headline": headline(findings, language),
        "findings": entries,
        "withheld": list(findings.withheld) if isinstance(findings, Findings) else [],
    }


def _where(finding: Finding) -> dict[str, Any]:
    """Return the place that a finding names; None for what it does not name."""
    file, line = finding.place or (None, None)
    return {
        "rank": finding.rank,
        "step": finding.step,
        "module": finding.module,
        "file": file,
        "line": line,
        "time": finding.time and asdict(finding.time),
    }


def _proposal(finding: Finding, text: str) -> dict[str, Any]:
    """Return what a finding proposes to change, with the proposed values by their names."""
    values = {
        name.removeprefix(_PROPOSED): value
        for name, value in finding.facts.items()
        if name.startswith(_PROPOSED) and value is not None
    }
    place = str(finding.facts["remedy"]).partition("-")[0]
    return {"to": "config" if place == "config" else "code", "text": text, "values": values}


@cache
def read_catalogue(language: str) -> Mapping[str, Any]:
    """Return the texts of a language: ``words``, and under ``rules`` the texts of each rule.

    Raises:
        UsageError: unknown language.
    """
    import yaml

    if language not in LANGUAGES:
        raise UsageError(f"language {language!r}: expected one of {', '.join(LANGUAGES)}")
    source = files("ppprof.report").joinpath("texts").joinpath(f"{language}.yaml")
    words: Mapping[str, Any] = next(yaml.safe_load_all(source.read_text("utf-8")))
    return words


def format_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return facts or thresholds as text, keyed by name, each in the unit that ends its name."""
    return {name: format_value(name, value) for name, value in facts.items()}


def _text(texts: Mapping[str, Any], name: str, finding: Finding) -> str:
    """Return a text of a rule, in the wording that the finding asks for if there is one.

    With the fact ``wording``, "with-waiting" for example, the text ``what`` is
    ``what-with-waiting`` if there is one.
    """
    return str(texts.get(f"{name}-{finding.facts.get('wording')}", texts[name]))


def _cost(finding: Finding, words: Mapping[str, str]) -> str:
    """Return what a finding costs; beside it what it costs alone, and whether a replay shows that."""
    if finding.cost_ns is None or finding.share is None:
        return words["no_cost"]
    cost = format_time(finding.cost_ns)
    alone = cost if finding.alone_ns is None else format_time(finding.alone_ns)
    text = words["cost" if alone == cost else "cost_on_top"].format(
        cost=cost,
        share=format_ratio(finding.share),
        basis=_facts(finding, words).get("basis"),
        alone=alone,
    )
    return words["cost_by_replay"].format(cost=text) if finding.changes else text


def _replay(finding: Finding, words: Mapping[str, str]) -> str:
    """Return a sentence with the command that shows the cost; "" for one that no replay shows."""
    if not finding.changes:
        return ""
    options = " ".join(f'--what-if "{change}"' for change in finding.changes)
    return words["replayed"].format(options=options)


def _facts(finding: Finding, words: Mapping[str, Any]) -> dict[str, str]:
    """Return the finding's facts as text; those that are words are translated."""
    texts = format_facts(finding.facts)
    facts: dict[str, str] = {name: Counted(short_name(text)) for name, text in texts.items()}
    if "basis" in facts:
        facts["basis"] = words["basis"][facts["basis"]]
    if "role" in facts:
        facts["role"] = _role(facts["role"], words)
    if "host" in facts and finding.facts["host"] is None:
        facts["host"] = words["unknown_host"]
    if facts.get("axis") == UNKNOWN_AXIS:
        facts["axis"] = words["unknown_axis"]
    if "part" in facts:
        facts["part"] = words["part"].get(facts["part"], facts["part"])
    if "every" in facts:
        every = finding.facts["every"]
        facts["every"] = "" if every is None else words["every"].format(every=every)
    return facts


def _role(role: str, words: Mapping[str, Any]) -> str:
    """Return the ranks of one role, ``stage 1`` or the job, in the language of the catalogue."""
    return str(words["role" if role else "role_of_job"]).format(stage=role.removeprefix("stage "))


def _evidence(finding: Finding, words: Mapping[str, Any]) -> pl.DataFrame:
    """Return the finding's evidence; the column ``role`` is translated."""
    if "role" not in finding.evidence.columns:
        return finding.evidence
    roles = [_role(role, words) for role in finding.evidence["role"]]
    return finding.evidence.with_columns(role=pl.Series(roles, dtype=pl.String))


def _remedy(texts: Mapping[str, str], facts: Mapping[str, Fact], known: Mapping[str, str]) -> str:
    """Return the text of a remedy with its values, in the words of the trace's framework.

    A rule may have one text for a remedy in the config and in the code. If a value of the config is
    unknown, the text is that of the code. Later sentences with unknown values are left out: a rule knows
    no value for what the run cannot change.
    """
    remedy = str(facts["remedy"])
    place, dash, kind = remedy.partition("-")
    other = {"config": "code", "code": "config"}.get(place, place)
    names = [remedy, f"{other}{dash}{kind}"]
    if facts.get("framework") == "torch":
        names = [f"torch-{kind or remedy}", *(["torch"] if other != place else []), *names]
    found = [texts[name] for name in names if name in texts]
    filled = [_known_sentences(text, known) for text in found]
    complete = [text for text in filled if _placeholders(text) <= known.keys()]
    return (complete or filled)[0].format_map(defaultdict(lambda: "?", known))


def _without_unknown(text: str, known: Mapping[str, str]) -> str:
    """Return a text without the parentheses in which a value is unknown.

    >>> _without_unknown("Raise x to {more} (now {present}).", {"more": "5"})
    'Raise x to {more}.'
    """
    return _PARENTHESES.sub(
        lambda match: match[0] if _placeholders(match[0]) <= known.keys() else "", text
    )


def _known_sentences(text: str, known: Mapping[str, str]) -> str:
    """Return a text without the parentheses and later sentences in which a value is unknown.

    >>> _known_sentences("It takes {whole}. A part waits, {wait}. So it is.", {"whole": "9 ms"})
    'It takes {whole}. So it is.'
    """
    first, *later = _SENTENCES.split(_without_unknown(text, known))
    return first + "".join(each for each in later if _placeholders(each) <= known.keys())


_SENTENCES = re.compile(r"(?<=\.)(?= [A-Z])|(?<=。)")
_PARENTHESES = re.compile(r" ?[(（][^()（）]*\{[^()（）]*[)）]")


def _placeholders(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)[:}]", text))


def _header(column: str, headers: Mapping[str, str]) -> str:
    """Return the header of a column of evidence; its name without the unit if it has none.

    >>> headers = {"exposed_axis_ns": "exposed {axis}"}
    >>> _header("exposed_dp_ns", headers), _header("excess_ns", headers)
    ('exposed dp', 'excess')
    """
    kind, _, rest = column.partition("_")
    if column not in headers and f"{kind}_axis_ns" in headers:
        return headers[f"{kind}_axis_ns"].format(axis=rest.removesuffix("_ns"))
    name = column.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")
    return headers.get(column, name)
