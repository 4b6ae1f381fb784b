"""A proposal names what the job has: keys of its config, or the code to write, and known values."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import ppprof
from ppprof.analysis.advice import Evidence, advise
from ppprof.analysis.advice.finding import Finding
from ppprof.config.training import BLOCKS
from ppprof.messages import LANGUAGES
from ppprof.report.text.advice import finding_rows, headline, render_findings, verdict
from ppprof.run.advise import collect_evidence_of_run
from ppprof.run.run import Run
from ppprof.topology import Topology
from tests.fixtures.findings import TRIGGERS, US, batches, op, thread, updating
from tests.fixtures.run_directories import run
from tests.fixtures.timeline import Span, span

KEY = re.compile(rf"\b({'|'.join((*BLOCKS, 'Profiler'))})\.[a-z]\w*")
FIXTURES = Path(__file__).parents[2] / "fixtures"
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


def runs_of_each_kind(folder: Path) -> Iterator[Run]:
    """Captures of CPUs, of devices, of several ranks, of remote calls; other writers' traces; step times."""
    for path in sorted((FIXTURES / "runs").iterdir()):
        yield ppprof.open(path)
    for path in sorted((FIXTURES / "kineto").glob("*.json*")):
        if "key_averages" not in path.name:
            yield ppprof.open(path)
    for name in ("slow_dataset", "one_micro_batch"):  # without traces, and without a manifest
        for kept in ("*.json", "steps/*", "nodes/*"), ("*.paddle_trace.*",):
            copy = folder / f"{name}_{len(kept)}"
            for path in (
                path for pattern in kept for path in (FIXTURES / "runs" / name).glob(pattern)
            ):
                if len(kept) == 1 or "paddle_trace" not in path.name:
                    target = copy / path.relative_to(FIXTURES / "runs" / name)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target)
            yield ppprof.open(copy)


def test_no_text_on_a_run_of_any_kind_has_a_value_that_is_unknown(tmp_path: Path):
    num = 0
    for each in runs_of_each_kind(tmp_path):
        findings = ppprof.advise(each)
        num += len(findings)
        for language in LANGUAGES:
            shown = render_findings(findings, language)
            for row in finding_rows(findings, language):
                for text in (row.what, row.do, row.title + row.cost_text):
                    assert not NO_VALUE.search(text), (each, text)
            assert not NO_VALUE.search(headline(findings, language)), each
            assert "not set" not in shown
    assert num > 20


def test_what_the_system_does_not_count_is_not_mentioned():
    """A kernel without schedstat: how long the thread waited for a processor is unknown."""
    facts = {"others_ratio": 0.5, "busy_ratio": 0.95, "wait_ratio": None, "remedy": "code"}
    finding = Finding("busy-machine", "moderate", None, None, "sure", facts, pl.DataFrame())
    for language, num in (("en", 2), ("zh", 2)):
        (row,) = finding_rows([finding], language)
        assert not NO_VALUE.search(row.what)
        assert len(re.findall(r"[.。](?= |$|[^0-9])", row.what)) == num


SETTINGS = [
    ("memory-limit", "use_recompute", "Model.use_recompute", False, True),
    ("memory-limit", "micro_batch_size", "Global.micro_batch_size", 2, 1),
    ("memory-limit", "sharding_stage", "Distributed.sharding.sharding_stage", 2, 3),
    ("input-bound", "num_workers", "Data.Train.loader.num_workers", 4, 32),
    ("profiler-overhead", "profile_memory", "Profiler.profile_memory", True, False),
    ("no-device-events", "targets", "Profiler.targets", "[cpu]", "auto"),
    ("tiny-kernels", "fuse_attn_qkv", "Model.fuse_attn_qkv", False, True),
    ("sharding", "reduce_overlap", "Distributed.sharding.reduce_overlap", False, True),
    ("sharding", "sharding_stage", "Distributed.sharding.sharding_stage", 3, 2),
]
"""Rule (or axis), a word of its proposal, a key of the config, a value to change and one that cannot be."""


def of_sharding(at: int) -> tuple[Span, Span]:
    facts = "reduce_scatter[axis=sharding group=1 bytes=64 dtype=float32 peers=0,1]"
    return op(at, 0, 800), span("Communication", facts, at + 800 * US, at + 1000 * US)


@pytest.mark.parametrize(("rule", "word", "key", "possible", "impossible"), SETTINGS)
def test_what_is_so_already_is_not_proposed(
    rule: str,
    word: str,
    key: str,
    possible: object,
    impossible: object,
    evidence: dict[str, Evidence],
    tmp_path: Path,
):
    known = evidence.get(rule)
    if known is None:
        threads = [thread(of_sharding)] * 2
        known = collect_evidence_of_run(ppprof.open(run(tmp_path / "log", threads)))
    for value, is_proposed in ((possible, True), (impossible, False)):
        config: dict[str, Any] = {name: {} for name in NAMES}
        inner = config
        *blocks, last = key.split(".")
        for block in blocks:
            inner = inner.setdefault(block, {})
        inner[last] = value
        two = dataclasses.replace(known, config=config, topology=Topology.of(dp=2))
        found = advise(two)
        (finding, *_) = (each for each in found if rule in (each.rule, each.facts.get("axis")))
        for language in LANGUAGES:
            (row,) = finding_rows([finding], language)
            assert (word in row.do) == is_proposed, row.do


@pytest.mark.parametrize(
    ("rule", "options", "word"),
    [
        ("pipeline-bubble", batches(1, samples=1), "replicas"),
        ("wide-vocabulary", TRIGGERS["wide-vocabulary"][0], "ParallelCrossEntropy"),
    ],
)
def test_one_replica_or_rank_shares_with_no_other(
    rule: str, options: dict[str, Any], word: str, tmp_path: Path
):
    known = collect_evidence_of_run(ppprof.open(run(tmp_path / "log", **options)))
    for num in (1, 2):
        degrees = {"pp": known.degree("pp"), "dp": num}
        found = advise(dataclasses.replace(known, topology=Topology.of(**degrees)))
        (row,) = finding_rows([each for each in found if each.rule == rule])
        assert (word in row.do) == (num == 2), row.do


@pytest.mark.parametrize(("num", "size"), [(2, 4), (3, 6), (9, 6), (5, 10)])
def test_the_size_of_larger_micro_batches_divides_the_samples(num: int, size: int, tmp_path: Path):
    """2 samples in each of 3 micro-batches cannot be cut into those of 4."""

    def make(at: int) -> Iterator[Span]:
        for first in range(0, 100 * num, 100):
            local = op(at, first, first + 60, "Local_XGradNode", category="OperatorInner")
            node = op(at, first, first + 90, "Global_XGradNode", local)
            yield op(at, first, first + 95, "Gradient Backward", node, category="Backward")

    config = {"Global": {"micro_batch_size": 2}}
    found = ppprof.advise(ppprof.open(run(tmp_path / "log", [thread(make)], config=config)))
    (finding,) = (each for each in found if each.rule == "gradient-accumulation")
    assert finding.facts["proposed_micro_batch_size"] == size


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        ("adamw_", "AdamW (Paddle 3.3.1) has no option"),
        ("sgd_", "Momentum(momentum=0.0, use_multi_tensor=True)"),
        ("adam_", "paddle.optimizer.Adam(use_multi_tensor=True)"),
        ("momentum_", "paddle.optimizer.Momentum(use_multi_tensor=True)"),
        *(
            (name, "Only Adam and Momentum")
            for name in ("lamb_", "nadam_", "radam_", "rprop_", "asgd_")
        ),
    ],
)
def test_the_optimizer_decides_how_to_fuse_it(operator: str, says: str, tmp_path: Path):
    found = ppprof.advise(ppprof.open(run(tmp_path / "log", [updating(20, operator)])))
    (row,) = finding_rows([each for each in found if each.rule == "optimizer-unfused"])
    assert says in row.do


# Only Paddle records the accumulation of a gradient beside its computation; only its lookups are known.
@pytest.mark.parametrize("rule", sorted(TRIGGERS.keys() - {"gradient-accumulation", "unused-rows"}))
def test_advice_on_a_trace_of_torch_names_nothing_of_paddle(
    rule: str, evidence: dict[str, Evidence]
):
    own = evidence[rule].indicators
    indicators = {rank: each._replace(framework="torch") for rank, each in own.items()}
    of_torch = dataclasses.replace(evidence[rule], config={}, indicators=indicators)
    for row in finding_rows([each for each in advise(of_torch) if each.rule == rule]):
        assert not re.search(r"paddle\.|ppprof\.span|Fleet", row.do), row.do
