"""What a finding's text, cost and evidence say of one time agrees: its parts add up to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.analysis.advice import Evidence, advise
from ppprof.analysis.advice.finding import Finding
from ppprof.messages import LANGUAGES
from ppprof.report.text.advice import finding_rows
from ppprof.run.advise import collect_evidence_of_run
from ppprof.units import format_time
from tests.fixtures.findings import TRIGGERS
from tests.fixtures.run_directories import run
from tests.jobs.planted import COMMITTED

SUMS = {
    "pipeline-bubble": [
        ("bubble_ns", "scheduled_ns", "other_ns"),
        ("scheduled_ns", "saved_ns", "proposed_scheduled_ns"),
    ],
    "exposed-communication": [("exposed_ns", "transfer_ns", "wait_ns")],
    "slow-steps": [("step_ns", "typical_ns", "cost_ns")],
    "host-bound": [("idle_ns", "other_idle_ns", "cost_ns")],
}
"""Rule -> facts and the cost: the first is the sum of the others."""

DIFFERENCES = ("pipeline-bubble", "slow-steps", "host-bound")
"""Rules whose texts have the cost as the difference of two times."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Evidence, Finding]]:
    """The findings of a run for each rule and of the committed runs, with the run's name and evidence."""
    folder = tmp_path_factory.mktemp("runs")

    def paths() -> Iterator[Path]:
        for rule, (options, *_) in TRIGGERS.items():
            yield run(folder / rule, **options)
        yield from sorted(COMMITTED.iterdir())

    every = [(path.name, collect_evidence_of_run(ppprof.open(path))) for path in paths()]
    return [(name, evidence, finding) for name, evidence in every for finding in advise(evidence)]


def test_facts_that_are_parts_add_up(found):
    rules = set()
    for name, _, finding in found:
        for whole, *parts in SUMS.get(finding.rule, []):
            rules.add(finding.rule)
            facts = {**finding.facts, "cost_ns": finding.cost_ns}
            times = [facts[part] or 0 for part in parts]
            assert sum(times) == pytest.approx(finding.facts[whole]), (name, finding.rule, whole)
    assert rules == set(SUMS)


def test_waits_and_transfers_of_groups_add_up_to_the_communication(found):
    """Those of lines are means of the ranks; of groups, each member counts.

    Without parallel transfers, a rank is in one collective of an axis at a time.
    """
    num = 0
    for name, evidence, finding in found:
        if finding.rule != "exposed-communication" or "wait_ns" not in finding.evidence.columns:
            continue
        num += 1
        if "members" not in finding.evidence.columns:
            sums = finding.evidence.select("wait_ns", "transfer_ns").sum().row(0)
            expected = finding.facts["wait_ns"], finding.facts["transfer_ns"]
            assert sums == pytest.approx(expected), name
            continue
        size = pl.col("members").str.count_matches(",") + 1
        whole_ns = (size * (pl.col("wait_ns") + pl.col("transfer_ns"))).sum()
        of_groups = finding.evidence.select(whole_ns).item() / evidence.steps["rank"].n_unique()
        assert of_groups == pytest.approx(finding.facts["communication_ns"], rel=1e-5), name
    assert num > 4


def test_the_bubble_of_the_text_is_the_mean_of_the_stages(found):
    """All stages have as many ranks."""
    bubbles = [finding for *_, finding in found if finding.rule == "pipeline-bubble"]
    assert len(bubbles) > 3
    for finding in bubbles:
        assert finding.evidence["bubble_ns"].mean() == pytest.approx(finding.facts["bubble_ns"])
        ratio = finding.facts["bubble_ns"] / finding.facts["step_ns"]
        assert finding.facts["bubble_ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_text_says_what_its_finding_costs(found, language):
    """But for a replay, which the cost itself mentions."""
    missing = [
        (name, finding.rule, time, row.what)
        for name, _, finding in found
        for row in finding_rows([finding], language)
        if finding.cost_ns is not None and not finding.changes and finding.rule not in DIFFERENCES
        for time in [format_time(finding.alone_ns or finding.cost_ns)]
        if time not in row.what
    ]
    assert missing == []
