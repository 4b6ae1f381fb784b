"""What a finding costs if all ranks have a window: what replays of the critical path win."""

from __future__ import annotations

import dataclasses
import shutil
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof.analysis.advice import advise, evidence
from ppprof.analysis.advice.disjoint import replayed
from ppprof.analysis.advice.finding import LEAST_RATIO, Finding
from ppprof.report.text.advice import findings_document, render_findings
from ppprof.run.advise import collect_evidence_of_run
from ppprof.rundir.clocks import Clock
from tests.fixtures.findings import US, op, thread
from tests.fixtures.run_directories import run as run_of
from tests.fixtures.run_directories import step_lines
from tests.fixtures.timeline import span
from tests.jobs.planted import COMMITTED

STEP_NS = 1000.0


@pytest.fixture(scope="module")
def run():
    return ppprof.open(COMMITTED / "slow_rank_and_link")


@pytest.fixture(scope="module")
def recorded(run):
    return collect_evidence_of_run(run)


def by_replay(findings):
    return [finding for finding in findings if finding.changes]


def test_together_findings_cost_what_a_replay_of_all_wins(run, recorded):
    findings = by_replay(advise(recorded))
    changes = [change for finding in findings for change in finding.changes]
    assert {change.partition(" ")[0] for change in changes} == {"link", "rank", "overlap"}
    table = run.what_if(*changes)
    assert sum(finding.cost_ns for finding in findings) == pytest.approx(table["saved_ns"][-1])
    alone = dict(zip(table["change"], table["saved_ns"]))
    for finding in findings:
        assert finding.alone_ns == pytest.approx(alone[finding.changes[0]])
        assert finding.share == pytest.approx(finding.cost_ns / recorded.step_ns)


def test_planted_delays_cost_what_they_delay(recorded):
    """200 ms on a link; 240 ms in a rank's blocks, of which others hide a part."""
    link, rank, *_ = advise(recorded)
    assert (link.rule, rank.rule) == ("slow-link", "slow-rank")
    assert link.cost_ns == pytest.approx(200e6, rel=0.05)
    assert 0.75 * 240e6 < rank.cost_ns < 240e6


def test_the_texts_have_the_command_and_what_a_change_wins_alone(recorded):
    findings = advise(recorded)
    text = render_findings(findings, verbose=True)
    assert 'ppprof path RUN --what-if "rank 3: as usual"' in text
    assert f"on top of the others; alone {findings[1].alone_ns / 1e6:.0f} ms" in text
    entries = findings_document(findings)["findings"]
    assert entries[1]["replay"]["changes"] == ["rank 3: as usual"]
    assert entries[1]["alone_ns"] == findings[1].alone_ns
    assert entries[-1]["replay"] is None


@pytest.mark.parametrize("why", ["no graph", "other steps", "unknown clocks"])
def test_without_a_replay_that_is_trusted_rules_estimate(recorded, why, monkeypatch):
    if why == "other steps":
        monkeypatch.setattr(evidence, "MOST_ERROR", 0.001)
    elif why == "unknown clocks":
        monkeypatch.setattr(Clock, "error_ns", 10_000_000)
    graph = None if why == "no graph" else recorded.graph
    other = dataclasses.replace(recorded, graph=graph)
    findings = advise(other)
    assert not by_replay(findings)
    assert {"slow-link", "slow-rank"} <= {finding.rule for finding in findings}


def test_without_all_ranks_there_is_no_graph(tmp_path):
    """Of rank 3 alone; or rank 6 is unreadable, for which ranks 2, 5 and 7 would wait for no time."""
    path = COMMITTED / "slow_rank_and_link"
    assert collect_evidence_of_run(ppprof.open(path), 3).graph is None
    copy = shutil.copytree(path, tmp_path / "log")
    next(copy.glob("rank_00006*")).write_bytes(b"garbage")
    assert collect_evidence_of_run(ppprof.open(copy)).graph is None


def reducing(*ranks):
    """LL####rr: a thread for each rank, of steps of (loading, work, length), in us; the rest is an all_reduce."""
    peers = ",".join(map(str, range(len(ranks))))
    facts = f"all_reduce[axis=dp group=1 bytes=64 dtype=float32 peers={peers}]"

    def rank(steps):
        starts = [sum(length for *_, length in steps[:step]) * US for step in range(len(steps))]

        def make(at):
            load, work, length = steps[starts.index(at)]
            if load:
                yield op(at, 0, load, "DataLoader", category="Dataloader")
            yield op(at, load, load + work)
            yield span("Communication", facts, at + (load + work) * US, at + length * US)

        return thread(make, lengths=[length for *_, length in steps])

    return [rank(steps) for steps in ranks]


def costs_of(path, *ranks, **options):
    """Rule -> cost in us, in a run with such ranks on one host, whose clock they share."""
    run_path = run_of(path, reducing(*ranks), hosts=["host"] * len(ranks), **options)
    found = advise(collect_evidence_of_run(ppprof.open(run_path)))
    assert by_replay(found)
    return {each.rule: each.cost_ns / US for each in found if each.cost_ns}


def test_steps_that_a_rank_lacks_do_not_count(tmp_path):
    """Rank 2 works for 600 longer; without rank 1's later steps, nothing shows that it waits there."""
    step, slow = (0, 200, 1000), (0, 800, 1000)
    costs = costs_of(tmp_path / "log", [step] * 12, [step] * 4, [slow] * 12)
    assert costs == {"slow-rank": 600, "exposed-communication": 200}


def test_a_slow_rank_is_compared_in_typical_steps(tmp_path):
    """Rank 0 saves for 9 ms in step 6: no reason to take rank 1's 600 in each step for usual."""
    saves = [(0, 9800, 10_000) if step == 6 else (0, 200, 1000) for step in range(12)]
    slow = [(0, 800, length) for *_, length in saves]
    costs = costs_of(tmp_path / "log", saves, slow)
    assert costs == {"slow-rank": 600, "exposed-communication": 200, "slow-steps": 9000 / 12}


def test_steps_that_wait_for_bursts_of_batches_are_not_replayed(tmp_path):
    """Each fourth step waits for 4 ms on both ranks: typical steps do not, and a replay has only these."""
    steps = [(4000, 900, 5000) if step % 4 == 3 else (0, 900, 1000) for step in range(16)]
    costs = costs_of(tmp_path / "log", steps, steps)
    assert costs == {"input-bound": 4000 / 4, "exposed-communication": 100}


@pytest.mark.parametrize("has_others", [False, True])
def test_what_a_slow_rank_loads_counts_once(has_others, tmp_path):
    """Rank 2 loads for 300 and works for 400 longer; by recorded steps, or by the reader cost of others."""
    ranks = [(0, 200, 1000), (0, 200, 1000), (300, 600, 1000)]
    times = [
        [{**line, "reader_cost_ns": load * US} for line in step_lines(1000 * US, noise=0)]
        for load, *_ in ranks
    ]
    steps = [[rank] * 6 for rank in ranks]
    costs = costs_of(tmp_path / "log", *steps, step_lines=times if has_others else ())
    assert costs == {"slow-rank": 400, "input-bound": 300, "exposed-communication": 100}


def finding(name, cost_ns=500.0):
    return Finding(
        "slow-rank", "major", cost_ns, cost_ns / STEP_NS, "sure", {}, pl.DataFrame(), (name,)
    )


def costs(saved_ns, *names):
    """Change -> cost of each finding that is left, by replays that win ``saved_ns(changes)``."""
    replays = SimpleNamespace(saved_ns=lambda changes: saved_ns(frozenset(changes)))
    fake = SimpleNamespace(replays=replays, step_ns=STEP_NS)
    left = replayed([finding(name) for name in names], fake)
    return {each.changes[0] if each.changes else "own": each.cost_ns for each in left}


def test_the_best_change_comes_first_and_others_on_top_of_it():
    """b hides behind a: alone 300, on top of a 100. c wins nothing any more."""
    won = {"a": 400, "b": 300, "c": 200, "ab": 500, "ac": 400, "bc": 300, "abc": 505}
    table = {frozenset(key): value for key, value in won.items()}
    assert costs(table.__getitem__, "c", "b", "a") == {"a": 400, "b": 100}


def test_a_replay_makes_no_finding_worse_than_it_may_be():
    replays = SimpleNamespace(saved_ns=lambda changes: 400.0)
    fake = SimpleNamespace(replays=replays, step_ns=STEP_NS)
    (left,) = replayed([dataclasses.replace(finding("a"), at_most="minor")], fake)
    assert (left.cost_ns, left.severity) == (400, "minor")


def test_two_causes_that_delay_alike_keep_the_costs_of_their_rules():
    """As on two ranks that both are late: mending one wins nothing, mending both wins 400."""
    assert costs(lambda changes: 400 if len(changes) == 2 else 0, "a", "b") == {"own": 500}
    left = replayed(
        [finding("a"), finding("b")],
        SimpleNamespace(
            replays=SimpleNamespace(saved_ns=lambda changes: 400 if len(changes) == 2 else 0),
            step_ns=STEP_NS,
        ),
    )
    assert [(each.changes, each.alone_ns, each.cost_ns) for each in left] == [((), None, 500.0)] * 2


@given(st.dictionaries(st.sets(st.sampled_from("abcd")).map(frozenset), st.integers(0, 200)))
def test_costs_add_up_to_a_replay(parts):
    """A set of changes wins the time of all its parts: what needs several changes, too."""

    def saved_ns(changes):
        return float(sum(time for part, time in parts.items() if part and part <= changes))

    found = costs(saved_ns, *"abcd")
    known = frozenset(change for change in found if change != "own")
    total = sum(cost for change, cost in found.items() if change != "own")
    assert total == pytest.approx(saved_ns(known))
    if "own" not in found:
        rest = saved_ns(frozenset("abcd")) - saved_ns(known)
        assert rest < LEAST_RATIO * STEP_NS
