"""A proposal names what the job has: keys of its config, or the code to write, and known values."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest

import ppprof
from ppprof.analysis.advice import Evidence, advise
from ppprof.config.training import BLOCKS
from ppprof.messages import LANGUAGES
from ppprof.report.text.advice import finding_rows, headline, verdict
from ppprof.run.advise import collect_evidence_of_run
from tests.fixtures.findings import TRIGGERS, updating
from tests.fixtures.run_directories import run

KEY = re.compile(rf"\b({'|'.join((*BLOCKS, 'Profiler'))})\.[a-z]\w*")
NAMES = ("Global", "Engine", "Model", "Data", "Optimizer", "Distributed", "Profiler")
CONFIGS: tuple[dict[str, dict[str, object]], ...] = (
    {},
    {"Profiler": {"enable": True}},  # of ppprof run
    *({name: {}} for name in NAMES),
    {name: {} for name in NAMES},
    {
        **{"Global": {"local_batch_size": 8, "micro_batch_size": 1}, "Optimizer": {"name": "Adam"}},
        **{"Engine": {"logging_freq": 10}, "Model": {"vocab_size": 50257}, "Profiler": {}},
        "Data": {"Train": {"loader": {"num_workers": 2}}},
    },
    {"Global": {"local_batch_size": "many"}, "Model": {"vocab_size": None}, "Data": {"Train": 1}},
)
NO_VALUE = re.compile(r"not set|未设置|(?<!=)None|\{|(?<=[ （(：])[-?](?=[ ,.;:)），。；]|$)")


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Evidence]:
    """The evidence of a run for each rule, which triggers it."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        rule: collect_evidence_of_run(ppprof.open(run(folder / rule, **options)))
        for rule, (options, *_) in TRIGGERS.items()
    }


@pytest.mark.parametrize("rule", TRIGGERS)
def test_texts_name_only_blocks_and_values_that_the_job_has(
    rule: str, evidence: dict[str, Evidence]
):
    for config, version in itertools.product(CONFIGS, ("3.3.1", None)):
        known = dataclasses.replace(evidence[rule], config=config, paddle_version=version)
        findings = advise(known)
        assert rule in [finding.rule for finding in findings]
        for language in LANGUAGES:
            for row in finding_rows(findings, language):
                assert set(KEY.findall(row.do)) <= config.keys(), (config, row.do)
                assert not NO_VALUE.search(row.do), row.do
                assert not NO_VALUE.search(row.what), row.what
                assert not NO_VALUE.search(row.title + row.cost_text)
            assert not NO_VALUE.search(headline(findings, language))
            assert not NO_VALUE.search(verdict(known.step_ns, findings, language))


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        ("adamw_", "AdamW (Paddle 3.3.1) has no option"),
        ("sgd_", "Momentum(momentum=0.0, use_multi_tensor=True)"),
        ("adam_", "paddle.optimizer.Adam(use_multi_tensor=True)"),
        ("momentum_", "paddle.optimizer.Momentum(use_multi_tensor=True)"),
        ("lamb_", "only Adam and Momentum"),
    ],
)
def test_the_optimizer_decides_how_to_fuse_it(operator: str, says: str, tmp_path: Path):
    found = ppprof.advise(ppprof.open(run(tmp_path / "log", [updating(20, operator)])))
    (row,) = finding_rows([each for each in found if each.rule == "optimizer-unfused"])
    assert says in row.do
