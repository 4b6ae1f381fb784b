"""Each rule of `ppprof.analysis.advice`: a trace that triggers it, and one that nearly does.

A step is 1000 us unless it says otherwise; times in the pictures and below are us.
"""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest

import ppprof
from ppprof.analysis.advice import RULES, Evidence, advise
from ppprof.analysis.advice.finding import CONFIDENCES, MOST_ROWS, SEVERITIES, Finding
from ppprof.analysis.advice.waiting import proposed_micro_batches
from ppprof.errors import InputError, UsageError
from ppprof.report.text.advice import finding_rows, render_findings, verdict
from ppprof.topology import Topology
from tests.analysis.diff.test_diff import run, step_lines
from tests.fixtures.pipelines import one_f_one_b
from tests.fixtures.timeline import (
    Shapes,
    Thread,
    alloc,
    kernel,
    launch,
    memcpy,
    reserve,
    span,
    write,
)
from tests.fixtures.words import words

US = 1000
GIB = 1 << 30
FIRST = ("rule", "severity", "cost_ns", "share", "confidence")


def thread(make, *, num=6, lengths=None):
    """Steps one behind the other, each with what ``make`` gives from its start on (in ns)."""
    at, spans = 0, []
    for number, length in enumerate(lengths or [1000] * num):
        spans.append(span("ProfileStep", f"ProfileStep#{number}", at, at + length * US, *make(at)))
        at += length * US
    return Thread(1, "main", tuple(spans))


def op(at, start, end, name="matmul dygraph", *inside, category="Operator"):
    return span(category, name, at + start * US, at + end * US, *inside)


def on_device(at, *kernels):
    """A launch for each (start, end) of a kernel."""
    return [
        launch(at + start * US, at + start * US, kernel("k", at + start * US, at + end * US))
        for start, end in kernels
    ]


def loading(until, then=1000):
    """LLLL####: data until then, computation behind it."""
    return thread(
        lambda at: (op(at, 0, until, "DataLoader", category="Dataloader"), op(at, until, then))
    )


def computing(until, *, reduced=1000, peers="0,1"):
    """####rr__: computation, then an all_reduce of these ranks."""
    facts = f"all_reduce[axis=dp group=1 bytes=64 dtype=float32 peers={peers}]"
    return thread(
        lambda at: (
            op(at, 0, until),
            span("Communication", facts, at + until * US, at + reduced * US),
        )
    )


def updating(num):
    """uu_uu_uu_: updates of 20 in each 30, half of them kernel."""

    def make(at):
        updates = [
            op(at, start, start + 20, "adamw_ dygraph").around(
                op(at, start + 5, start + 15, "adamw kernel launch", category="DygraphKernelLaunch")
            )
            for start in range(300, 300 + 30 * num, 30)
        ]
        yield op(at, 0, 300)
        yield op(at, 300, 950, "Optimization Step", *updates, category="Optimization")

    return thread(make)


def tiny(length):
    """#_#_#_###: 40 kernels, one in each 20, then a long one."""
    starts = [(20 * i, 20 * i + length) for i in range(40)]
    return thread(lambda at: on_device(at, *starts, (800, 1000)))


def copying(goes_on):
    """####c____###: a copy that returns at 420; the next kernel begins at a given time."""

    def make(at):
        copy = launch(at + 101 * US, at + 102 * US, name="cudaMemcpyAsync").around(
            memcpy(at + 400 * US, at + 410 * US, 4)
        )
        sync = op(at, 100, 420, "GpuMemcpySync:GPU->CPU", copy, category="UserDefined")
        return [
            *on_device(at, (0, 400), (goes_on, 1000)),
            op(at, 90, 430, "item dygraph", sync),
        ]

    return thread(make)


def accumulating(batches):
    """A Backward for each micro-batch: 300 of Global, 200 of them Local."""

    def make(at):
        for first in (100, 500)[:batches]:
            local = op(at, first, first + 200, "Local_XGradNode", category="OperatorInner")
            node = op(at, first, first + 300, "Global_XGradNode", local)
            yield op(at, first, first + 350, "Gradient Backward", node, category="Backward")

    return thread(make)


def recomputing(held):
    """A Forward of 200 in a Backward; so many GiB held."""

    def make(at):
        again = op(at, 500, 700, "Block", *on_device(at, (500, 700)), category="Forward")
        yield reserve(at + 1, held * GIB if at == 0 else 0)
        yield from on_device(at, (0, 500))
        yield op(at, 450, 750, "Backward", again, *on_device(at, (700, 1000)), category="Backward")

    return thread(make)


def allocating(place):
    """An operator that allocates memory at a place, and no device event."""
    return thread(lambda at: (op(at, 0, 900).around(alloc(at + 1, 8, place)),), num=6)


def holding(reserved, allocated):
    """So many GiB reserved, and in tensors; the device has 80."""

    def make(at):
        yield from on_device(at, (0, 1000))
        if at == 0:
            yield reserve(1, reserved * GIB)
            yield alloc(2, allocated * GIB)

    return thread(make)


H100 = {"device_name": "NVIDIA H100 80GB HBM3"}


def multiplying(width, *, dtype="bfloat16", sides=(1024, 768), calls=1, each=800):
    """A layer of a language model: a product of (1024, 768) and (768, width) that takes 800."""
    m, k = sides
    inputs = Shapes({"X0": [[m, k]], "X1": [[k, width]]}, {"X0": [dtype], "X1": [dtype]})

    def make(at):
        for call in range(calls):
            begin = call * each
            work = kernel("k", at + begin * US, at + (begin + each) * US)
            yield op(at, begin, begin + 1, "matmul dygraph", inputs, launch(at, at, work))

    return thread(make)


def pointwise(*names, each=100):
    """Operators in a row over (4096, 4096) in bf16, a kernel of 100 each."""
    inputs = Shapes({"X0": [[4096, 4096]]}, {"X0": ["bfloat16"]})

    def make(at):
        for number, name in enumerate(names):
            begin = number * each
            work = kernel("k", at + begin * US, at + (begin + each) * US)
            yield op(at, begin, begin + 1, f"{name} dygraph", inputs, launch(at, at, work))

    return thread(make)


def losing(loss, cast, *, words=50304):
    """The end of a language model: a product, a cast of its logits, and the cross entropy."""
    m = 1024
    product = Shapes({"X0": [[m, 768]], "X1": [[768, words]]}, {"X0": ["bfloat16"]})
    logits = Shapes({"X0": [[m, words]]}, {"X0": ["bfloat16"]})
    labelled = Shapes({"X0": [[m, words]], "X1": [[m, 1]]}, {"X0": ["float32"], "X1": ["int64"]})

    def make(at):
        begin = 0
        for name, inputs, length in (
            ("matmul", product, 500),
            ("cast", logits, cast),
            ("cross_entropy_with_softmax", labelled, loss),
        ):
            work = kernel("k", at + begin * US, at + (begin + length) * US)
            yield op(at, begin, begin + 1, f"{name} dygraph", inputs, launch(at, at, work))
            begin += length

    return thread(make)


CALL = "rpc#f(w0 -> w1)"


def calling(*computed):
    """A call of 200 to 800 on a worker; the rank computes in these times."""

    def make(at):
        for start, end in computed:
            yield op(at, start, end)

    calls = [
        op(1000 * US * step, 200, 800, CALL, op(1000 * US * step, 250, 780, f"{CALL}#remote_op: f"))
        for step in range(6)
    ]
    spans = [dataclasses.replace(call, category="PythonUserDefined") for call in calls]
    return thread(make), Thread(9, "w1", tuple(spans))


def sleeping(length):
    """A layer that computes for 100, and then does something that has no event."""

    def make(at):
        inner = op(at, 10, 120 + length, "Linear", op(at, 10, 110), category="Forward")
        yield op(at, 0, 130 + length, "Net", inner, category="Forward")
        yield op(at, 130 + length, 990)

    return thread(make)


def ahead(by):
    """Of a kernel of 1000 so much runs after the host has ended the step."""

    def make(at):
        yield launch(at, at + 1).around(kernel("k", at + by * US, at + (1000 + by) * US))

    return thread(make)


def synchronising():
    """####____####: the host waits for the device from 300 to 700."""
    return thread(
        lambda at: [
            *on_device(at, (0, 400), (700, 1000)),
            launch(at + 300 * US, at + 700 * US, name="cudaStreamSynchronize"),
        ]
    )


def recorded(steps_ns):
    """Step times: 30 outside of a window, then 10 of it."""
    outside, inside = steps_ns
    lines = step_lines(outside, steps=40, noise=0) + step_lines(inside, steps=10, noise=0)
    numbered = [{**line, "step": number} for number, line in enumerate(lines)]
    return [[{**line, "window": 0 if line["step"] >= 40 else None} for line in numbered]]


def batches(size, samples=8, of=1):
    """A config, and two stages with so many micro-batches."""
    config = {"Global": {"local_batch_size": samples, "micro_batch_size": size}}
    threads = one_f_one_b(2, of, meets=True, steps=6, forward=30 * US, backward=50 * US)
    return {"threads": threads, "topology": Topology.of(pp=2), "config": config}


FOUR = Topology.of(dp=2, mp=2)
"""Whose dp groups are 0,2 and 1,3."""

TRIGGERS = {
    # 480 of 1000: 520 are left to load the next batch in, so 2 workers do.
    "input-bound": (
        {"threads": [loading(480)], "config": {"Data": {"Train": {"loader": {"num_workers": 0}}}}},
        ("major", 480 * US, 0.48, "sure"),
        {"rank": 0, "loading_ratio": 0.48, "num_workers": 0, "proposed_workers": 2},
    ),
    # 900 against 500 of own time.
    "slow-rank": (
        {"threads": [computing(500), computing(900)]},
        ("major", 400 * US, 0.4, "sure"),
        {"rank": 1, "peers": 1, "excess_ns": 400 * US, "num_slow": 1, "saved_ns": 400 * US},
    ),
    # 500 against 100 of transfer.
    "slow-link": (
        {
            "threads": [
                computing(500, reduced=start, peers=peers)
                for start, peers in [(600, "0,2"), (1000, "1,3")] * 2
            ],
            "topology": FOUR,
        },
        ("major", 400 * US, 0.4, "sure"),
        {"members": "1,3", "axis": "dp", "siblings": 1, "excess_ns": 400 * US},
    ),
    "remote-wait": (
        {"threads": [calling((0, 200), (700, 1000))]},
        ("major", 500 * US, 0.5, "likely"),
        {"rank": 0, "num_calls": 1, "call": CALL, "worker": "w1"},
    ),
    # Half of 160 is bubble; with 8 micro-batches an eighth of these 80.
    "pipeline-bubble": (
        batches(8),
        ("major", 70 * US, pytest.approx(70 / 160, abs=1e-4), "likely"),
        {
            "micro_batches": 1,
            "proposed_micro_batches": 8,
            "bubble_ns": 80 * US,
            "bubble_ratio": 0.5,
            "proposed_bubble_ratio": 1 / 9,
            "proposed_micro_batch_size": 1,
        },
    ),
    "exposed-communication": (
        {"threads": [computing(800), computing(800)]},
        ("major", 200 * US, 0.2, "possible"),
        {
            "axis": "dp",
            "exposed_ns": 200 * US,
            "transfer_ratio": 1.0,
            "degree": 2,
            "remedy": "code-dp",
        },
    ),
    # The copy's device event ends at 410; the host is back at 420, in time for a kernel at 610.
    "blocking-copies": (
        {"threads": [copying(610)]},
        ("major", 200 * US, 0.2, "likely"),
        {"num_copies": 1, "copies_ns": 320 * US, "caller": "item dygraph"},
    ),
    # From 300 to 890, less 20 kernels of 10; 2 of 20 updates are left.
    "optimizer-unfused": (
        {"threads": [updating(20)]},
        ("major", pytest.approx(351 * US), pytest.approx(0.351), "likely"),
        {"num_updates": 20, "optimizer_ns": 650 * US},
    ),
    # 39 gaps of 15 between kernels of 5; the last gap is before a long one.
    "tiny-kernels": (
        {"threads": [tiny(5)]},
        ("major", 585 * US, 0.585, "likely"),
        {"num_kernels": 41, "num_tiny_kernels": 40},
    ),
    # 40 gaps of 8 between kernels of 12.
    "host-bound": (
        {"threads": [tiny(12)]},
        ("major", 320 * US, 0.32, "likely"),
        {"idle_ns": 320 * US, "other_idle_ns": 0, "num_kernels": 41},
    ),
    # 10 after the operator in Linear are part of it, 10 more in Net are not.
    "unexplained": (
        {"threads": [sleeping(700)]},
        ("major", 710 * US, 0.71, "possible"),
        {"gap": "Net/Linear", "gap_ns": 710 * US},
    ),
    # 2 * 1024 * 50257 * 768 FLOPs take 80 at the H100's 989.5 TFLOP/s.
    "slow-product": (
        {"threads": [multiplying(50257)], "config": {"Model": {"vocab_size": 50257}}, **H100},
        (
            "major",
            pytest.approx((800 - 2 * 1024 * 50257 * 768 / 989.5e6 / 0.7) * US),
            pytest.approx(0.8 - 2 * 1024 * 50257 * 768 / 989.5e9 / 0.7),
            "possible",
        ),
        {
            "name": "matmul",
            "shapes": "[1024,768] [768,50257]",
            "dim": 50257,
            "proposed_dim": 50304,
            "remedy": "config-vocabulary",
        },
    ),
    # Half of the loss and of a cast of its logits; the product is not on the vocabulary's account.
    "wide-vocabulary": (
        {"threads": [losing(60, 40)], "config": {"Model": {}}},
        ("moderate", 50 * US, pytest.approx(0.05), "possible"),
        {
            "name": "cross_entropy_with_softmax [1024,50304] [1024,1]",
            "vocabulary_ns": 100 * US,
            "mp_degree": 1,
            "remedy": "config",
        },
    ),
    # Of 6 tensors that are read or written, 4 pass from one operator to the next.
    "fusible": (
        {"threads": [pointwise("scale", "gelu", "dropout")]},
        ("major", pytest.approx(200 * US), pytest.approx(0.2), "possible"),
        {"chain": "scale + gelu + dropout [4096,4096]"},
    ),
    # 100 a micro-batch, half of that with half as many.
    "gradient-accumulation": (
        {"threads": [accumulating(2)], "config": {"Global": {"micro_batch_size": 4}}},
        ("major", 100 * US, 0.1, "possible"),
        {"accumulation_ns": 200 * US, "micro_batches": 2, "proposed_micro_batch_size": 8},
    ),
    "recompute": (
        {"threads": [recomputing(39)]},
        ("major", 200 * US, 0.2, "possible"),
        {"peak_bytes": 39 * GIB, "total_bytes": 80 * GIB, "granularity": "full"},
    ),
    "memory-limit": (
        {"threads": [holding(78, 77)]},
        ("moderate", None, None, "sure"),
        {"rank": 0, "held_ratio": 0.975, "use_recompute": "False"},
    ),
    "memory-fragmented": (
        {"threads": [holding(70, 50)]},
        ("minor", None, None, "sure"),
        {"unused_bytes": 20 * GIB, "unused_ratio": 20 / 70},
    ),
    # 7000 in 6 steps rather than 5000 in 5.
    "warm-up": (
        {"threads": [thread(lambda at: (op(at, 0, 900),), lengths=[2000, *[1000] * 5])]},
        ("moderate", None, None, "sure"),
        {
            "step": 0,
            "first_ns": 2000 * US,
            "typical_ns": 1000 * US,
            "next_step": 1,
            "mean_ratio": pytest.approx(1 / 6),
        },
    ),
    "profiler-overhead": (
        {"threads": [loading(1)], "step_lines": recorded((1000 * US, 1300 * US))},
        ("moderate", None, None, "sure"),
        {"overhead_ratio": pytest.approx(0.3)},
    ),
    "runs-ahead": (
        {"threads": [ahead(200)]},
        ("minor", None, None, "sure"),
        {"outlived_ns": 200 * US, "step_ns": 1000 * US, "outlived_ratio": 0.2},
    ),
    "no-device-events": (
        {"threads": [allocating("Place(gpu:0)")]},
        ("major", None, None, "sure"),
        {"num_ranks": 1},
    ),
    "short-window": (
        {"threads": [thread(lambda at: (op(at, 0, 900),), num=2)]},
        ("moderate", None, None, "sure"),
        {"num_steps": 2, "least_steps": 5},
    ),
}
"""Rule -> run, (severity, cost, share, confidence), and facts."""

NEARLY = {
    "input-bound": {"threads": [loading(9)]},
    "slow-rank": {"threads": [computing(500), computing(540)]},
    "slow-link": {
        "threads": [
            computing(500, reduced=start, peers=peers)
            for start, peers in [(600, "0,2"), (690, "1,3")] * 2
        ],
        "topology": FOUR,
    },
    "remote-wait": {"threads": [calling((0, 795), (795, 1000))]},  # the rank computes meanwhile
    "pipeline-bubble": batches(1, samples=9, of=9),  # a tenth is bubble: good enough
    # Who comes first waits 200 for 5 of transfer.
    "exposed-communication": {
        "threads": [computing(600, reduced=805), computing(800, reduced=805)]
    },
    "blocking-copies": {"threads": [copying(418)]},  # before the copy returns
    "optimizer-unfused": {"threads": [updating(15)]},
    "tiny-kernels": {"threads": [tiny(12)]},
    "host-bound": {"threads": [synchronising()]},
    "unexplained": {"threads": [sleeping(480)]},
    "slow-product": {"threads": [multiplying(50304)], **H100},
    "wide-vocabulary": {"threads": [losing(20, 29)]},
    "fusible": {"threads": [pointwise("gelu", "matmul", "gelu")]},
    "gradient-accumulation": {"threads": [accumulating(1)]},
    "recompute": {"threads": [recomputing(40)]},
    "memory-limit": {"threads": [holding(71, 70)]},
    "memory-fragmented": {"threads": [holding(70, 57)]},
    "warm-up": {"threads": [thread(lambda at: (op(at, 0, 900),), lengths=[1499, *[1000] * 5])]},
    "profiler-overhead": {
        "threads": [loading(1)],
        "step_lines": recorded((1000 * US, 1090 * US)),
    },
    "runs-ahead": {"threads": [ahead(49)]},
    "no-device-events": {"threads": [allocating("Place(cpu)")]},
    "short-window": {"threads": [thread(lambda at: (op(at, 0, 900),), num=5)]},
}
"""Rule -> a run in which it finds nothing."""


def findings(folder, threads, **options):
    return ppprof.advise(ppprof.open(run(folder / "log", threads, **options)))


def test_every_rule_is_tested():
    assert [rule.name for rule in RULES] == sorted(TRIGGERS, key=[*NEARLY].index)
    assert list(NEARLY) == [rule.name for rule in RULES]


@pytest.mark.parametrize("rule", TRIGGERS)
def test_a_rule_is_triggered(rule, tmp_path):
    options, expected, facts = TRIGGERS[rule]
    (finding,) = (finding for finding in findings(tmp_path, **options) if finding.rule == rule)
    assert tuple(getattr(finding, name) for name in FIRST) == (rule, *expected)
    assert {name: finding.facts[name] for name in facts} == facts
    assert 0 < finding.evidence.height <= MOST_ROWS
    assert finding.severity in SEVERITIES
    assert finding.confidence in CONFIDENCES


@pytest.mark.parametrize(
    ("made", "config", "remedy"),
    [
        (multiplying(50257), {}, "unaligned"),
        (multiplying(50304, dtype="float32"), {}, "float32"),
        (multiplying(50304, dtype="float32"), {"Model": {}}, "config-float32"),
        (multiplying(4096, sides=(4096, 16)), {}, "thin"),
        (multiplying(64, sides=(64, 64), calls=40, each=20), {}, "small"),
        (multiplying(64, sides=(64, 64), calls=10, each=80), {}, None),
        (multiplying(50304, each=100), {}, None),  # at 80% of the peak
        (multiplying(50257, each=100), {}, None),
    ],
)
def test_what_keeps_a_product_slow(made, config, remedy, tmp_path):
    found = findings(tmp_path, threads=[made], config=config, **H100)
    remedies = [finding.facts["remedy"] for finding in found if finding.rule == "slow-product"]
    assert remedies == ([] if remedy is None else [remedy])


@pytest.mark.parametrize(("rows", "remedies"), [(50304, ["embedding"]), (1024, [])])
def test_an_embedding_of_many_rows_is_a_wide_vocabulary(rows, remedies, tmp_path):
    table = Shapes({"X0": [[8, 64]], "X1": [[rows, 768]]}, {"X0": ["int64"], "X1": ["float32"]})

    def make(at):
        work = kernel("k", at, at + 200 * US)
        yield op(at, 0, 1, "embedding dygraph", table, launch(at, at, work))

    found = findings(tmp_path, threads=[thread(make)])
    wide = [finding.facts["remedy"] for finding in found if finding.rule == "wide-vocabulary"]
    assert wide == remedies


@pytest.mark.parametrize("rule", NEARLY)
def test_a_rule_is_not_triggered_below_its_threshold(rule, tmp_path):
    assert rule not in [finding.rule for finding in findings(tmp_path, **NEARLY[rule])]


@pytest.mark.parametrize(
    "rule",
    words(
        "input-bound slow-rank pipeline-bubble blocking-copies optimizer-unfused tiny-kernels",
    ),
)
def test_the_cause_is_first(rule, tmp_path):
    assert findings(tmp_path, **TRIGGERS[rule][0])[0].rule == rule


def test_evidence_is_the_rows_that_show_it(tmp_path):
    def rows(rule, number):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = findings(folder, **TRIGGERS[rule][0])
        return next(finding for finding in found if finding.rule == rule).evidence.rows()

    assert rows("input-bound", 0) == [(0, 480 * US, 1000 * US, 0.48)]
    assert rows("blocking-copies", 1) == [("item dygraph", 1, 320 * US)]
    assert rows("optimizer-unfused", 2) == [("adamw_ dygraph", 20, 400 * US)]
    assert rows("tiny-kernels", 3) == [("k", 40, 200 * US)]
    assert rows("gradient-accumulation", 4) == [("Global_XGradNode", 2, 200 * US)]
    assert rows("slow-link", 5) == [("1,3", "dp", 1, 400 * US, 0)]


def test_slow_data_of_one_rank_is_reported_once(tmp_path):
    """Rank 1 is slow, for it waits for data; rank 0 waits for rank 1."""
    facts = "all_reduce[axis=dp group=1 bytes=64 dtype=float32 peers=0,1]"

    def rank(until):
        return thread(
            lambda at: (
                op(at, 0, until, "DataLoader", category="Dataloader"),
                op(at, until, until + 500),
                span("Communication", facts, at + (until + 500) * US, at + 905 * US),
            )
        )

    found = findings(tmp_path, [rank(0), rank(400)])
    assert [(finding.rule, finding.cost_ns) for finding in found] == [("input-bound", 400 * US)]
    assert found[0].facts["rank"] == 1


def test_an_optimizer_on_a_device_costs_its_idling(tmp_path):
    """u__u__u__: an update's kernel runs for 10 of each 30."""

    def make(at):
        updates = [
            op(at, start, start + 20, "adamw_ dygraph", *on_device(at, (start + 10, start + 20)))
            for start in range(300, 900, 30)
        ]
        yield from on_device(at, (0, 300), (900, 1000))
        yield op(at, 300, 895, "Optimization Step", *updates, category="Optimization")

    found = findings(tmp_path, [thread(make)])
    # 10 before the first kernel and 19 gaps of 20; behind the last one no update idles.
    assert [(finding.rule, finding.cost_ns) for finding in found] == [
        ("optimizer-unfused", pytest.approx(390 * 0.9 * US)),
        ("host-bound", pytest.approx(400 * US - 351 * US)),
    ]


def test_samples_that_cannot_be_cut_finer(tmp_path):
    (found,) = (
        finding
        for finding in findings(tmp_path, **batches(1, samples=1))
        if finding.rule == "pipeline-bubble"
    )
    assert found.facts["remedy"] == "config-more-samples"
    assert found.facts["proposed_micro_batches"] == 9
    assert found.cost_ns == pytest.approx(80 * US * 8 / 9)


def test_a_batch_size_beyond_all_trainings_is_unknown(tmp_path):
    """Its divisors, which are tried one by one, would take days."""
    (found,) = (
        finding
        for finding in findings(tmp_path, **batches(1, samples=10**15))
        if finding.rule == "pipeline-bubble"
    )
    assert found.facts["local_batch_size"] is None
    assert found.facts["proposed_micro_batches"] == 9


@pytest.mark.parametrize("present", [1, 4, 6])
@pytest.mark.parametrize("stages", [2, 4])
def test_micro_batches_divide_the_samples(present, stages):
    needed = 9 * (stages - 1)  # a tenth of (stages - 1) / (needed + stages - 1)
    for samples in range(1, 100):
        cuts = [number for number in range(present, samples + 1) if samples % number == 0]
        enough = [number for number in cuts if number >= needed]
        least = min(enough, default=max(cuts, default=present))
        assert proposed_micro_batches(stages, present, 1, samples) == least


def test_step_times_alone_find_slow_data(tmp_path):
    lines = [{**line, "reader_cost_ns": 480 * US} for line in step_lines(1000 * US, noise=0)]
    others = step_lines(1000 * US, noise=0)
    path = run(tmp_path / "log", [], topology=Topology.of(dp=2), step_lines=[lines, others])
    (found,) = ppprof.advise(ppprof.open(path))
    assert (found.rule, found.cost_ns, found.share) == ("input-bound", 480 * US, 0.48)
    assert found.evidence.select("rank", "loading_ns").rows() == [(0, 480 * US), (1, US)]
    assert ppprof.advise(ppprof.open(path), ranks=1) == []
    with pytest.raises(UsageError, match="steps 1:3: the run has step times only, no window"):
        ppprof.advise(ppprof.open(path), steps="1:3")


def test_nothing_to_read(tmp_path):
    with pytest.raises(InputError, match="neither a trace in it nor step times"):
        ppprof.advise(ppprof.open(run(tmp_path / "log", [])))


def test_steps_are_chosen(tmp_path):
    """The first step alone waits for data."""

    def make(at):
        waits = at == 0
        if waits:
            yield op(at, 0, 500, "DataLoader", category="Dataloader")
        yield op(at, 500 * waits, 990)

    path = run(tmp_path / "log", [thread(make)])
    assert [finding.rule for finding in ppprof.advise(ppprof.open(path))] == ["input-bound"]
    assert ppprof.advise(ppprof.open(path), steps="1:") == []


def test_doubt_comes_first_only_if_it_is_major():
    def finding_of(rule, severity, cost_ns=None):
        return Finding(rule, severity, cost_ns, None, "sure", {}, pl.DataFrame())

    findings_of_rules = [
        finding_of("warm-up", "major"),
        finding_of("short-window", "minor"),
        finding_of("input-bound", "major", 3),
        finding_of("slow-rank", "major", 9),
        finding_of("host-bound", "minor", 1),
    ]
    from ppprof.analysis import advice

    rules = tuple(
        dataclasses.replace(
            rule,
            find=lambda evidence, name=rule.name: [
                finding for finding in findings_of_rules if finding.rule == name
            ],
        )
        for rule in RULES
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advice, "RULES", rules)
        found = advise(Evidence(None))
    assert [finding.rule for finding in found] == words(
        "warm-up slow-rank input-bound host-bound short-window"
    )


def test_empty_evidence_has_no_findings():
    assert advise(Evidence(None)) == []


def waited(reader_cost_ns, step_ns):
    """40 steps that were not recorded, which waited so long for data."""
    lines = step_lines(step_ns, steps=40, noise=0)
    return [
        [{**line, "step": line["step"] + 10, "reader_cost_ns": reader_cost_ns} for line in lines]
    ]


def test_a_wait_is_sized_by_the_steps_that_were_not_recorded(tmp_path):
    """Recorded steps wait 480 of 1000 us, because they are recorded; the others 40 of 800."""
    lines = waited(40 * US, 800 * US)
    (found,) = findings(tmp_path, [loading(480)], step_lines=lines)
    assert (found.rule, found.severity, found.confidence) == ("input-bound", "moderate", "likely")
    assert (found.cost_ns, found.share) == (40 * US, 0.05)
    assert found.facts["basis"] == "not recorded"
    assert found.facts["recorded_loading_ns"] == 480 * US
    (row,) = found.evidence.rows(named=True)
    assert (row["loading_ns"], row["step_ns"]) == (40 * US, 800 * US)
    text = render_findings([found])
    assert "Rank 0 waits 40 us of a 800 us step (5.0%) for its DataLoader; steps: not rec" in text
    assert "In recorded steps the longest wait is 480 us." in text


def test_a_wait_that_is_the_same_without_recording_is_sure(tmp_path):
    (found,) = findings(tmp_path, [loading(480)], step_lines=waited(470 * US, 1000 * US))
    assert (found.confidence, found.cost_ns, found.share) == ("sure", 470 * US, 0.47)


def test_few_steps_that_were_not_recorded_do_not_count(tmp_path):
    lines = [waited(40 * US, 800 * US)[0][:4]]
    (found,) = findings(tmp_path, [loading(480)], step_lines=lines)
    assert (found.facts["basis"], found.cost_ns) == ("recorded", 480 * US)


def test_unexplained_time_between_two_phases_is_named_by_them(tmp_path):
    def make(at):
        yield op(at, 0, 100, "Forward", op(at, 0, 100), category="Forward")
        yield op(at, 700, 1000, "Backward", op(at, 700, 1000), category="Backward")

    (found,) = findings(tmp_path, [thread(make)])
    assert found.facts["gap"] == "step, after Forward, before Backward"
    assert found.cost_ns == 600 * US


def test_another_threads_work_explains_a_wait(tmp_path):
    """As of a backward pass in the engine's thread, for which the training thread waits."""
    main = thread(lambda at: (op(at, 0, 1000, "Backward", category="Backward"),))
    engine = [op(number * 1000 * US, 0, 990) for number in range(6)]
    path = run(tmp_path / "log", [])
    trace = write(path / "raw.pb", main, Thread(2, "engine", tuple(engine)))
    assert ppprof.advise(ppprof.open(trace)) == []


def test_a_wait_for_a_remote_call_is_reported_once(tmp_path):
    """It has no event of the training thread, and is neither unexplained nor bound by the host."""
    waits = calling((0, 200), (800, 1000))
    (finding,) = findings(tmp_path / "host", [waits])
    assert finding.rule == "remote-wait"
    main = thread(lambda at: on_device(at, (0, 200), (800, 1000)))
    (found,) = findings(tmp_path / "device", [(main, waits[1])])
    assert (found.rule, found.cost_ns) == ("remote-wait", 600 * US)


def test_one_long_remote_call_makes_no_wait_longer_than_a_step(tmp_path):
    """Five steps of 1000 wait 600 each, one of 9000 waits 8600: a mean of 1933."""
    lengths = [1000, 1000, 9000, 1000, 1000, 1000]
    starts = [sum(lengths[:number]) * US for number in range(6)]
    computing = thread(lambda at: (op(at, 0, 200),), lengths=lengths)
    calls = [op(start, 200, length - 200, CALL) for start, length in zip(starts, lengths)]
    worker = Thread(
        9, "w1", tuple(dataclasses.replace(call, category="PythonUserDefined") for call in calls)
    )
    found = {each.rule: each for each in findings(tmp_path, [(computing, worker)])}
    finding = found["remote-wait"]
    assert finding.cost_ns == pytest.approx(11_600 / 14_000 * 1000 * US)
    assert finding.facts["remote_ns"] == finding.cost_ns


def test_on_a_device_the_place_is_part_of_host_bound(tmp_path):
    def make(at):
        yield from on_device(at, (0, 100))
        yield op(at, 110, 900, "Net", op(at, 110, 120), category="Forward")
        yield from on_device(at, (900, 1000))

    found = findings(tmp_path, [thread(make)])
    assert [finding.rule for finding in found] == ["host-bound"]
    assert found[0].facts["gap"] == "Net"
    assert found[0].facts["gap_ns"] == 780 * US


def hidden_loading(lines, *, recorded_ns):
    """The device works for 1000 us a step, also while the host waits for data, for 480 us.

    ::

        host     LLLL|launch        480 of loading, then a launch
        device   ###################
    """

    def make(at):
        yield op(at, 0, 480, "DataLoader", category="Dataloader")
        yield op(at, 480, 990, "matmul dygraph", *on_device(at, (480, 1480)))

    inside = [
        {**lines[0][0], "step": step, "window": 0, "reader_cost_ns": recorded_ns}
        for step in range(6)
    ]
    return {"threads": [thread(make)], "step_lines": [[*inside, *lines[0]]]}


def test_data_that_a_device_hides_cost_nothing(tmp_path):
    """Of 480 us of waiting, 80 are exposed: those of the first step, before the first kernel."""
    lines = waited(480 * US, 1000 * US)
    found = findings(tmp_path, **hidden_loading(lines, recorded_ns=480 * US))
    (reading,) = [finding for finding in found if finding.rule == "input-bound"]
    assert (reading.cost_ns, reading.facts["basis"]) == (80 * US, "not recorded")


def test_data_of_a_device_without_a_recorded_reader_cost(tmp_path):
    found = findings(tmp_path, **hidden_loading(waited(480 * US, 1000 * US), recorded_ns=None))
    (reading,) = [finding for finding in found if finding.rule == "input-bound"]
    assert (reading.cost_ns, reading.facts["basis"]) == (80 * US, "recorded")


def test_step_times_of_a_device_alone_leave_open_what_it_hides(tmp_path):
    (lines,) = waited(480 * US, 1000 * US)
    timed = [[{**line, "device_timed": True} for line in lines]]
    (found,) = findings(tmp_path, [], topology=Topology.of(dp=1), step_lines=timed)
    assert (found.rule, found.confidence, found.cost_ns) == ("input-bound", "possible", 480 * US)


@pytest.mark.parametrize(("reserved_gib", "rules"), [(71, []), (73, ["memory-limit"])])
def test_memory_of_a_device_without_memory_events(tmp_path, reserved_gib, rules):
    """The step log says that a device of 80 GiB held 70 in tensors, and so much altogether."""
    sizes = {
        "device_peak_bytes": 70 * GIB,
        "device_peak_reserved_bytes": reserved_gib * GIB,
        "device_total_bytes": 80 * GIB,
    }
    lines = [[{**line, **sizes} for line in step_lines(1000 * US, noise=0)]]
    path = run(tmp_path / "log", [], topology=Topology.of(dp=1), step_lines=lines)
    found = ppprof.advise(ppprof.open(path))
    assert [finding.rule for finding in found] == rules
    for finding in found:
        assert finding.evidence.rows() == [(0, "device", 73 * GIB, 80 * GIB, 73 / 80)]
    metrics = ppprof.diff(ppprof.open(path), ppprof.open(path)).overview
    shown = dict(metrics.select("metric", "experiment").iter_rows())
    memory = [shown[name] for name in ("peak_memory", "peak_reserved_memory", "device_memory")]
    assert memory == [70 * GIB, reserved_gib * GIB, 80 * GIB]


def computing_on_device(until, waits):
    """##__##rr: two kernels with the device idle for ``waits`` between them, then an all_reduce."""
    facts = "all_reduce[axis=dp group=1 bytes=64 dtype=float32 peers=0,1]"

    def make(at):
        reduced = kernel("ncclAllReduce", at + until * US, at + 1000 * US)
        yield op(at, 0, until, "matmul dygraph", *on_device(at, (0, 100), (100 + waits, until)))
        end = at + 1000 * US
        start = launch(end - 2 * US, end - 1 * US, reduced)
        yield span("Communication", facts, at + until * US, end, start)

    return thread(make)


@pytest.mark.parametrize(
    ("make", "remedy", "sentence"),
    [
        (computing, "code", False),
        (lambda until: computing_on_device(until, 100), "code-device", True),
    ],
)
def test_the_wait_of_a_slow_ranks_device_is_given_where_a_device_was_recorded(
    make, remedy, sentence, tmp_path
):
    path = run(tmp_path / "log", [make(500), make(900)])
    findings = ppprof.advise(ppprof.open(path))
    (finding,) = (finding for finding in findings if finding.rule == "slow-rank")
    assert finding.facts["remedy"] == remedy
    text = render_findings([finding])
    assert ("Time per step in which its device waits for the host: 100 us." in text) == sentence
    assert "not set" not in text


@pytest.mark.parametrize(
    ("places", "remedy", "says"),
    [
        (["gpu:0"], "code", ["targets=None"]),
        (["npu:0"], "code-npu", ["msprof", "MindStudio Insight", "ProfilerTarget.CUSTOM_DEVICE"]),
        (["npu:0", "npu:1"], "code-npu", ["msprof"]),
        (["intel_hpu:0"], "code-intel_hpu", ["HABANA_PROFILE=1"]),
        (["custom_cpu:0"], "code-custom_cpu", ["paddle.set_device('cpu')"]),
        (["gcu:0"], "code-gcu", ["topsprof"]),
        (["SUPA:0"], "code-other", ["SUPA"]),
        (["mps:0"], "code-other", ["mps"]),
        (["mlu:0"], "code", ["ppprof doctor"]),
        (["npu:0", "gpu:0"], "code", ["ppprof doctor"]),  # one proposal fits no two devices
    ],
)
def test_what_to_use_on_a_device_that_records_no_events_depends_on_its_type(
    places, remedy, says, tmp_path
):
    found = findings(tmp_path, [allocating(f"Place({place})") for place in places])
    (finding,) = (finding for finding in found if finding.rule == "no-device-events")
    assert finding.facts["remedy"] == remedy
    kinds = {place.partition(":")[0] for place in places}
    assert finding.facts["device"] == (kinds.pop() if len(kinds) == 1 else "")
    for language in ("en", "zh"):
        (row,) = finding_rows([finding], language)
        assert [text for text in says if text not in row.do] == []
        assert ("Profiler.targets: auto" in row.do or "targets=None" in row.do) == (
            remedy == "code"
        )


def test_ascends_profiler_in_a_config(tmp_path):
    found = findings(tmp_path, [allocating("Place(npu:0)")], config={"Global": {"seed": 1}})
    (finding,) = (finding for finding in found if finding.rule == "no-device-events")
    for language in ("en", "zh"):
        (row,) = finding_rows([finding], language)
        assert "Profiler.targets: [cpu, custom_device]" in row.do


def test_communication_of_one_rank_may_be_waiting(tmp_path):
    (alone,) = communication_of(run(tmp_path / "alone", [computing(800)]))
    assert alone.facts["transfer_ratio"] is None
    assert verdict(1e6, [alone]) == (
        "step 1 ms: 20% communication over dp or waiting for other ranks in it"
    )
    assert "This contains waiting for other ranks" in render_findings([alone])
    (both,) = communication_of(run(tmp_path / "both", [computing(800), computing(800)]))
    assert verdict(1e6, [both]) == "step 1 ms: 20% communication over dp that no computation hides"


def test_a_few_very_long_steps_are_not_all_communication(tmp_path):
    """Five steps communicate for 200 of 1000, and one for 9200 of 10000."""

    def make(at):
        step = at // (1000 * US)
        end = 10_000 if step == 5 else 1000
        facts = "all_reduce[axis=dp group=1 bytes=64 dtype=float32 peers=0,1]"
        yield op(at, 0, 800)
        yield span("Communication", facts, at + 800 * US, at + end * US)

    path = run(tmp_path / "log", [thread(make, lengths=[1000] * 5 + [10_000])])
    (finding,) = communication_of(path)
    assert finding.share == pytest.approx(10_200 / 15_000)  # 1700 is more than a typical step
    assert finding.facts["exposed_ns"] == 1700 * US


def communication_of(path):
    findings = ppprof.advise(ppprof.open(path))
    return [finding for finding in findings if finding.rule == "exposed-communication"]
