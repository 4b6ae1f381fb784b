"""Findings in words: both languages have every rule, with every number filled in."""

from __future__ import annotations

import dataclasses
import json
import re
import string

import polars as pl
import pytest

import ppprof
from ppprof.analysis.advice import RULES
from ppprof.analysis.advice.finding import CONFIDENCES, SEVERITIES, Finding, Findings, StepPart
from ppprof.analysis.profile.step_basis import NOT_RECORDED, RECORDED
from ppprof.errors import UsageError
from ppprof.report.markdown import findings_markdown
from ppprof.report.text.advice import (
    LANGUAGES,
    finding_rows,
    findings_document,
    findings_table,
    headline,
    read_catalogue,
    render_findings,
    verdict,
)
from ppprof.report.text.layout import Layout
from tests.fixtures.findings import TRIGGERS, logging, training
from tests.fixtures.run_directories import run
from tests.fixtures.timeline import Thread, span


def placeholders(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def shape(texts):
    """Every key, down to the texts, with the placeholders of each."""
    if isinstance(texts, str):
        return placeholders(texts)
    return {name: shape(inner) for name, inner in texts.items()}


@pytest.fixture(scope="module")
def triggered(tmp_path_factory):
    """A finding of each rule."""
    found = {}
    for rule, (arguments, *_) in TRIGGERS.items():
        path = run(tmp_path_factory.mktemp(rule) / "log", **arguments)
        findings = ppprof.advise(ppprof.open(path))
        found[rule] = next(finding for finding in findings if finding.rule == rule)
    return found


def test_languages_have_the_same_texts_with_the_same_placeholders():
    of_each = [shape(read_catalogue(language)) for language in LANGUAGES]
    chinese_headers = of_each[1].pop("columns")  # in English, most are the column's name
    assert of_each[0].pop("columns").items() <= chinese_headers.items()
    assert of_each[0] == of_each[1]
    assert list(of_each[0]["rules"]) == sorted(
        of_each[0]["rules"], key=list(read_catalogue("zh")["rules"]).index
    )
    assert set(of_each[0]["rules"]) == {rule.name for rule in RULES}
    assert set(of_each[0]["words"]["severity"]) == set(SEVERITIES)
    assert set(of_each[0]["words"]["confidence"]) == set(CONFIDENCES)


def test_chinese_evidence_is_aligned_in_files_too():
    """Each Chinese character takes two columns."""
    assert Layout().aligned(
        ["成员", "轴", "等待"], [["2,3", "mp", "7 ms"], ["0,1", "pp", "9 ms"]]
    ) == [
        "成员  轴  等待",
        "2,3   mp  7 ms",
        "0,1   pp  9 ms",
    ]


@pytest.mark.parametrize(
    ("role", "english", "chinese"),
    [("stage 2", "stage 2", "流水线阶段 2"), ("", "the job", "整个任务")],
)
def test_the_role_of_a_rank_is_translated(triggered, role, english, chinese):
    """Without a pipeline there are no stages."""
    slow = triggered["slow-rank"]
    evidence = slow.evidence.with_columns(role=pl.lit(role))
    slow = dataclasses.replace(slow, facts={**slow.facts, "role": role}, evidence=evidence)
    (row,) = finding_rows([slow], "zh")
    assert f" 个 rank（{chinese}）多" in row.what
    assert set(row.evidence["role"]) == {chinese}
    (row,) = finding_rows([slow], "en")
    assert f"of {english})" in row.what


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_placeholder_is_a_fact_and_every_remedy_has_a_text(rule, triggered):
    texts = read_catalogue("en")["rules"][rule.name]
    facts = set(triggered[rule.name].facts)
    assert placeholders(texts["what"]) <= facts
    assert placeholders(texts["short"]) <= facts
    for name, text in texts.items():
        if name.startswith(("what-", "short-", "title-")):
            assert placeholders(text) <= facts
    remedy = triggered[rule.name].facts["remedy"]
    assert remedy in texts["do"] or remedy.replace("code", "config", 1) in texts["do"]
    for text in texts["do"].values():
        assert placeholders(text) <= facts
    assert placeholders(texts["how"]) == set(rule.thresholds)


def test_no_article_stands_before_a_number_of_the_run():
    """A number is not known when the text is written, and with it whether it is a or an: an 80 ms step."""
    texts = json.dumps(read_catalogue("en"))
    assert re.findall(r"\b[Aa]n? \{\w+", texts) == []


@pytest.mark.parametrize(("siblings", "those"), [(1, "1 group"), (3, "3 groups")])
def test_a_slow_link_is_compared_with_one_group_or_several(siblings, those, triggered):
    finding = triggered["slow-link"]
    facts = {**finding.facts, "siblings": siblings}
    (row,) = finding_rows([dataclasses.replace(finding, facts=facts)])
    assert row.what.endswith(f" more in transfers than the {those} beside them.")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_finding_is_rendered(language, triggered):
    for finding, row in zip(triggered.values(), finding_rows(list(triggered.values()), language)):
        assert "{" not in f"{row.title}{row.what}{row.do}{row.how}"
        assert "{" not in verdict(1e6, [dataclasses.replace(finding, severity="major")], language)
        headers, cells = row.evidence_cells
        assert len(headers) == finding.evidence.width
        assert len(cells) == finding.evidence.height
    assert json.dumps(findings_document(list(triggered.values()), language), allow_nan=False)


def test_every_column_of_evidence_has_a_header_in_both_languages(triggered):
    named = read_catalogue("zh")["columns"]
    for finding in triggered.values():
        for column in finding.evidence.columns:
            kind = column.partition("_")[0]
            assert column in named or f"{kind}_axis_ns" in named, (finding.rule, column)
    (row,) = finding_rows([triggered["slow-rank"]], "zh")
    assert row.evidence_cells[0] == ["rank", "角色", "同类数", "多出", "误差"]
    axis = dataclasses.replace(
        triggered["exposed-communication"],
        evidence=pl.DataFrame({"rank": [0], "exposed_dp_ns": [1], "communication_dp_ns": [2]}),
    )
    english, chinese = (finding_rows([axis], language)[0] for language in LANGUAGES)
    assert english.evidence_cells[0] == ["rank", "exposed dp", "communication dp"]
    assert chinese.evidence_cells[0] == ["rank", "未被掩盖的 dp", "dp 通信"]


def test_a_finding_as_text(triggered):
    assert render_findings([triggered["input-bound"]]) == (
        "Findings: 1. First, major: The training waits for data, "
        "480 us of a step of 1 ms, recorded (48.0%).\n"
        "\n"
        "1. The training waits for data [input-bound]\n"
        "   major, sure; costs 480 us of a step, recorded (48.0%)\n"
        "   What: Rank 0 waits 480 us of a step of 1 ms (48.0%) for its DataLoader; steps: recorded. "
        "In recorded steps the longest wait averages 480 us.\n"
        "   Do: Raise Data.Train.loader.num_workers to 2 (now 0). If that does not help, "
        "preprocess samples once, or read from faster storage.\n"
        "   Evidence:\n"
        "     rank  loading  step  loading ratio\n"
        "     0     480 us   1 ms  48.0%\n"
    )


def test_a_finding_in_chinese(triggered):
    text = render_findings([triggered["input-bound"]], "zh")
    assert text.splitlines()[2:5] == [
        "1. 训练在等待数据 [input-bound]",
        "   严重，确定；每步（窗口内）的开销为 480 us（48.0%）",
        "   现象：rank 0 在 1 ms 的一步中有 480 us（48.0%）在等待 DataLoader；步：窗口内。"
        "记录的步中，等待最久的 rank 平均等待 480 us。",
    ]
    with pytest.raises(UsageError, match="language 'de': expected one of en, zh"):
        finding_rows([], "de")


def test_headlines(triggered):
    assert headline([triggered["memory-limit"]]) == (
        "Findings: 1. First, moderate: The device is nearly full."
    )
    unpriced = Findings([triggered["memory-limit"]], [StepPart("phase", "Forward", 0.5)])
    assert headline(unpriced, text="first_alone") == (
        "The device is nearly full. Largest: phase Forward 50.0%."
    )
    assert headline([triggered["memory-fragmented"]]) == "Nothing above minor (small findings: 1)."
    assert headline([], "zh") == "没有高于轻微的问题：没有规则触发。"


def test_findings_that_are_not_shown_are_counted(triggered):
    two = [triggered["input-bound"], triggered["recompute"]]
    assert render_findings(two, limit=1).endswith("\n\nNot shown: 1 (--row-limit is 1)\n")
    assert findings_markdown(two, limit=1).endswith("\n\nNot shown: 1 (--row-limit is 1)\n")


def test_names_do_not_break_a_table():
    evidence = pl.DataFrame({"name": ["void k<int*>(a|b)"], "calls": [2.5]})
    facts = {
        "remedy": "config",
        "num_kernels": 9,
        "num_tiny_kernels": 8,
        "tiny_ratio": 0.9,
        "tiny_ns": 1,
        "idle_ns": 1,
    }
    finding = Finding("tiny-kernels", "major", 2.0, 0.5, "likely", facts, evidence)
    assert "| `void k<int*>(a\\|b)` | 2.5 |" in findings_markdown([finding])
    assert findings_table([finding]).row(0)[:5] == ("tiny-kernels", "major", 2.0, 0.5, "likely")


def test_long_names_are_short_in_texts_and_whole_in_json(triggered):
    """A kernel's name of 900 characters, and one that has nothing to leave out."""
    arguments = ", ".join(["at::native::BinaryFunctor<float, float, float>"] * 20)
    long = f"void at::native::elementwise_kernel<128, 4, {arguments}>(int, {arguments})"
    for name, short in ((long, "at::native::elementwise_kernel"), ("x" * 900, "x…x")):
        finding = dataclasses.replace(
            triggered["tiny-kernels"], evidence=pl.DataFrame({"name": [name], "calls": [1]})
        )
        text = render_findings([finding])
        assert max(map(len, text.splitlines())) < 400
        assert short.partition("…")[0] in text
        assert text.count("BinaryFunctor") <= 1
        (document,) = findings_document([finding])["findings"]
        assert document["evidence"][0]["name"] == name


def test_a_trace_of_130_ns_has_no_costly_finding(tmp_path):
    inside = span("Operator", "matmul dygraph", 0, 10)
    loads = span("Dataloader", "DataLoader", 10, 130)
    step = span("ProfileStep", "ProfileStep#0", 0, 130, inside, loads)
    path = run(tmp_path / "log", [Thread(1, "main", (step,))])
    assert [each.rule for each in ppprof.advise(ppprof.open(path))] == ["short-window"]


def test_shares_in_one_sentence_add_up_to_the_step_at_most():
    """Slow steps are a share of another mean: 84% and 30% would be 114%."""

    def finding(rule, share, **facts):
        return Finding(rule, "major", share * 1e6, share, "sure", facts, pl.DataFrame())

    found = [
        finding("beside-training", 0.84, line="a.py:7, log()"),
        finding("slow-steps", 0.30, gap=None),
        finding("input-bound", 0.16),
    ]
    sentence = verdict(1e6, found)
    assert [int(share) for share in re.findall(r"(\d+)% ", sentence)] == [84, 16]


def test_one_sentence_says_which_steps_its_numbers_are_of():
    facts = {"basis": NOT_RECORDED}
    waiting = Finding("input-bound", "major", 0.2e6, 0.2, "sure", facts, pl.DataFrame())
    assert verdict(1e6, [waiting]) == (
        "recorded step 1 ms: 20% waiting for data (outside the window)"
    )
    recorded = dataclasses.replace(waiting, facts={"basis": RECORDED})
    assert verdict(1e6, [recorded], num_slow=2, num_steps=9) == (
        "recorded step 1 ms, slower ones (2 of 9) left out: 20% waiting for data"
    )


def test_the_source_around_a_place_is_shown_and_escaped(tmp_path):
    """Five lines, as they were recorded; a page shows them as text."""
    text = {5: "def log():", 6: "    rows = []", 7: "    file.write('<script>')", 9: "    end"}
    stacks = dataclasses.replace(logging(), source={"train.py": text})
    findings = ppprof.advise(ppprof.open(run(tmp_path / "log", [training(450)], stacks=[stacks])))
    assert findings[0].place == ("train.py", 7)
    assert findings[0].source == tuple(text.items())
    shown = render_findings(findings, verbose=True)
    lines = [
        "  5  def log():",
        "  6      rows = []",
        "> 7      file.write('<script>')",
        "  9      end",
    ]
    assert "\n".join(f"     {line}" for line in lines) in shown
    assert "def log" not in render_findings(findings)
    document = findings_document(findings)["findings"][0]
    assert document["source"][2] == {"line": 7, "text": text[7]}
    page = tmp_path / "page.html"
    ppprof.write_report(ppprof.open(tmp_path / "log"), page)
    html = page.read_text(encoding="utf-8")
    assert "&gt; 7      file.write(&#39;&lt;script&gt;&#39;)" in html
    assert "file.write('<script>')" not in html.replace("&#39;", "'")


@pytest.mark.parametrize("language", LANGUAGES)
def test_advice_on_torch_s_traces_is_in_torch_s_words(language, triggered):
    """Every proposal of every rule, in the words for a trace of torch."""
    num_own = 0
    for rule, finding in triggered.items():
        texts = read_catalogue(language)["rules"][rule]["do"]
        for remedy in (name for name in texts if not name.startswith(("torch", "config"))):
            facts = {**finding.facts, "remedy": remedy, "framework": "torch"}
            (row,) = finding_rows([dataclasses.replace(finding, facts=facts)], language)
            is_of_device = rule == "no-device-events" and remedy.startswith("code-")
            assert is_of_device or "paddle" not in row.do.lower(), (rule, remedy)
            num_own += "torch" in row.do.lower()
    assert num_own > 15
