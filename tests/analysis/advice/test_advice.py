"""Each rule of `ppprof.analysis.advice`: a trace that triggers it, and one that nearly does.

A step is 1000 us unless it says otherwise; times in the pictures and below are us.
"""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import polars as pl
import pytest

import ppprof
from ppprof.analysis.advice import RULES, Evidence, advise
from ppprof.analysis.advice.finding import CONFIDENCES, MOST_ROWS, SEVERITIES, Finding
from ppprof.analysis.advice.indicators import collect_indicators
from ppprof.analysis.advice.waiting import proposed_micro_batches
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.step_breakdown import breakdown
from ppprof.errors import InputError, UsageError
from ppprof.report.text.advice import finding_rows, headline, render_findings, verdict
from ppprof.run.advise import collect_evidence_of_run
from ppprof.rundir.operator_calls import (
    Backward,
    Cleared,
    Node,
    OperatorCalls,
    Repeat,
    RepeatedFunction,
)
from ppprof.rundir.python_stacks import Frame, PythonStacks
from ppprof.rundir.step_times import STEP_TIMES
from ppprof.topology import Topology
from tests.fixtures.findings import (
    AFTER,
    BACKWARD,
    CALL,
    FORWARD,
    FOUR,
    GIB,
    H100,
    LOGS,
    PARAMETERS,
    TRIGGERS,
    US,
    Called,
    accumulated,
    accumulating,
    ahead,
    allocating,
    allocating_on_device,
    backward_twice,
    batches,
    beside,
    beside_a_reader,
    called_on_tables,
    calling,
    calls_of_backward_twice,
    calls_of_distilling,
    calls_of_encoding,
    calls_of_switching_off,
    calls_of_teaching,
    casting,
    collecting,
    computing,
    copying,
    copying_pageable,
    differentiating,
    distilling,
    encoding,
    growing,
    holding,
    in_lines,
    late_in_turn,
    loading,
    looking_up,
    looping,
    losing,
    multiplying,
    normalising,
    on_device,
    on_table,
    on_views,
    one,
    op,
    pauses,
    pausing,
    penalised,
    pointwise,
    recomputing,
    recorded,
    sleeping,
    stages,
    switching_off,
    taking,
    teaching,
    thread,
    tiny,
    training,
    training_step,
    updating,
    widening,
    with_work,
)
from tests.fixtures.pipelines import OPTIMIZER_NS
from tests.fixtures.run_directories import run, step_lines
from tests.fixtures.timeline import (
    EPOCH_NS,
    Memory,
    Shapes,
    Thread,
    kernel,
    launch,
    span,
    write,
)
from tests.fixtures.words import words

DTYPES = {"X0": ["float32"], "X1": ["float32"]}
FIRST = ("rule", "severity", "cost_ns", "share", "confidence")


def synchronising():
    """####____####: the host waits for the device from 300 to 700."""
    return thread(
        lambda at: [
            *on_device(at, (0, 400), (700, 1000)),
            launch(at + 300 * US, at + 700 * US, name="cudaStreamSynchronize"),
        ]
    )


NEARLY = {
    "input-bound": {"threads": [loading(9)]},
    "slow-steps": {"threads": [thread(lambda at: (op(at, 0, 990),), lengths=[*[1000] * 5, 1490])]},
    "between-steps": {"threads": [pausing()], "step_lines": pauses(49)},  # 9.8 of a step
    "interpreter-lock": {"threads": [training(999)], "stacks": [beside_a_reader(ran=0.4)]},
    "slow-link": {
        "threads": [
            computing(500, reduced=start, peers=peers)
            for start, peers in [(600, "0,2"), (690, "1,3")] * 2
        ],
        "topology": FOUR,
    },
    "slow-rank": {"threads": [computing(500), computing(540)]},
    "uneven-work": {"threads": [with_work(*[500, 518] * 3), with_work(*[518, 500] * 3)]},  # 9
    "garbage-collection": {"threads": [training(450)], "stacks": [collecting(9)]},
    "stage-imbalance": stages(1, 1),
    "remote-wait": {"threads": [calling((0, 795), (795, 1000))]},  # the rank computes meanwhile
    "pipeline-bubble": batches(1, samples=9, of=9),  # a tenth is bubble: good enough
    # Who comes first waits 200 for 5 of transfer.
    "exposed-communication": {
        "threads": [computing(600, reduced=805), computing(800, reduced=805)]
    },
    # Of 1000, the ranks win 20.
    "small-collectives": {
        "threads": [
            late_in_turn((400, 380), (370, 400)),
            late_in_turn((370, 400), (400, 380)),
        ],
        "stacks": [in_lines((350, FORWARD), (50, AFTER), (600, BACKWARD))] * 2,
        "hosts": ["host", "host"],
    },
    "allocation": {"threads": [allocating_on_device(100, 300)]},
    "pageable-copies": {"threads": [copying_pageable("Memcpy HtoD (Pinned -> Device)")]},
    "blocking-copies": {"threads": [copying(418)]},  # before the copy returns
    "optimizer-unfused": {"threads": [updating(15)]},
    "tiny-kernels": {"threads": [tiny(12)]},
    "host-bound": {"threads": [synchronising()]},
    "written-out": {"threads": [normalising(42)]},
    "beside-training": {
        "threads": [training(990)],
        "stacks": [in_lines((950, FORWARD), (50, LOGS))],
    },
    "without-gradients": {
        "threads": [teaching(45)],
        "stacks": [in_lines((50, AFTER), (950, FORWARD))],
        "calls": [calls_of_teaching(45)],
    },
    "repeated-call": {"threads": [encoding(4)], "calls": [calls_of_encoding(4)]},
    "zero-gradients": {"threads": [switching_off()], "calls": [calls_of_switching_off(*[2] * 6)]},
    "penalty-in-loss": differentiating(*penalised(*PARAMETERS[:3]), each=25, updated=PARAMETERS),
    "many-small-operators": {"threads": [looping(63)]},
    "unexplained": {"threads": [sleeping(480)]},
    # A sum computes both of its gradients at once.
    "unused-gradients": {
        "threads": [distilling("add")],
        "calls": [calls_of_distilling(("add", 2, 1))],
    },
    "wider-dtype": {"threads": [widening(519)]},
    "slow-product": {"threads": [multiplying(50304)], **H100},
    "padded-batches": differentiating(*looking_up(31)),
    "discarded-rows": differentiating(*taking(11)),
    "wide-vocabulary": {"threads": [losing(20, 29)]},
    "unused-rows": {"threads": [called_on_tables(*on_table(8191, 1))]},
    "strided-inputs": {"threads": [on_views(19)]},
    "casts": {"threads": [casting(49)]},
    "fusible": {"threads": [pointwise("gelu", "matmul", "gelu")]},
    "gradient-accumulation": {"threads": [accumulating(1)]},
    "gradients-again": {
        "threads": [backward_twice(between="Forward")],
        "stacks": [in_lines((450, FORWARD), (550, BACKWARD))],
        "calls": [calls_of_backward_twice()],
    },
    "recompute": {"threads": [recomputing(40)]},
    "growing-work": {"threads": [accumulated(100, num=5)]},
    "growing-memory": {"threads": [growing((1 << 16) - 1)]},
    "memory-limit": {"threads": [holding(71, 70)]},
    "memory-fragmented": {"threads": [holding(70, 57)]},
    "warm-up": {"threads": [thread(lambda at: (op(at, 0, 900),), lengths=[1499, *[1000] * 5])]},
    "unlike-steps": {
        "threads": [loading(1)],
        "step_lines": recorded((1990 * US, 1000 * US)),
    },
    "profiler-overhead": {
        "threads": [loading(1)],
        "step_lines": recorded((1000 * US, 1090 * US)),
    },
    "busy-machine": {
        "threads": [thread(lambda at: (op(at, 0, 900),))],
        "step_lines": beside(0.8, waited=0.04),
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
    finding = one(rule, findings(tmp_path, **options))
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
        (
            multiplying(50257, dtype="float32"),
            {},
            "float32",
        ),  # without tensor cores, no side has to be even
        (multiplying(50304, dtype="float32"), {"Engine": {}}, "config-float32"),
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


LOOKUP, GRADIENT, UPDATE = on_table(16384, 4096)
TABLE = [16384, 768]
ONE_HOT = {"X0": [[4096, 16384]], "X1": [TABLE]}
LOOKUP_BY_PRODUCT = (
    ("one_hot", {"X0": [[4096]]}),
    ("matmul", ONE_HOT),
    ("Global_MatmulGradNode", ONE_HOT),
    UPDATE,
)


@pytest.mark.parametrize(
    ("calls", "saved", "remedy"),
    [
        ((LOOKUP, GRADIENT, UPDATE), 75, "code"),
        (on_table(16384, 16384), 0, None),  # all rows may occur
        # The lookup itself reads no other rows: a frozen table costs nothing.
        ((LOOKUP,), 0, None),
        (
            (LOOKUP, ("scale", {"X0": [TABLE]}), GRADIENT, UPDATE),
            75,
            "code",
        ),  # an average needs all
        # Two lookups of a quarter: the update needs half of the rows, each gradient a quarter.
        ((LOOKUP, LOOKUP, GRADIENT, GRADIENT, UPDATE), 100, "code"),
        # One lookup each in two tables.
        ((LOOKUP, LOOKUP, GRADIENT, GRADIENT, UPDATE, UPDATE), 150, "code"),
        # A lookup without a gradient, such as a teacher's, changes no row.
        ((on_table(16384, 16384)[0], LOOKUP, GRADIENT, UPDATE), 75, "code"),
        # A last layer that shares the table, transposed, or a part of it.
        ((LOOKUP, GRADIENT, UPDATE, ("matmul", {"X0": [[8, 768]], "X1": [TABLE]})), 0, None),
        ((LOOKUP, GRADIENT, UPDATE, ("matmul", {"X0": [[8, 768]], "X1": [TABLE[::-1]]})), 0, None),
        ((LOOKUP, GRADIENT, UPDATE, ("Global_SliceGradNode", {"X0": [TABLE]})), 0, None),
        # The gradient is sparse already.
        ((LOOKUP, GRADIENT, ("adam_", {"X0": [TABLE], "X1": [[4096, 768]]})), 0, None),
        (LOOKUP_BY_PRODUCT, 150, "code-one-hot"),
        # The one_hot has the labels of a loss, and the product the probabilities.
        ((("softmax", {"X0": [[4096, 16384]]}), *LOOKUP_BY_PRODUCT), 0, None),
    ],
)
def test_rows_of_a_table_that_do_not_occur(calls, saved, remedy, tmp_path):
    found = findings(tmp_path, threads=[called_on_tables(*calls)])
    rows = [each for each in found if each.rule == "unused-rows"]
    assert [each.facts["remedy"] for each in rows] == ([] if remedy is None else [remedy])
    assert sum(each.cost_ns for each in rows) == saved * US


@pytest.mark.parametrize(("classes", "saved"), [(1023, 0), (1024, 112.5)])
def test_a_product_of_few_classes_is_no_slow_lookup(classes, saved, tmp_path):
    """A quarter of the rows may occur; the update of so small a table is not counted."""
    ids, table, ones = [classes // 4], [classes, 768], [classes // 4, classes]
    calls = (
        ("one_hot", {"X0": [ids]}),
        ("matmul", {"X0": [ones], "X1": [table]}),
        ("Global_MatmulGradNode", {"X0": [ones], "X1": [table]}),
        ("adam_", {"X0": [table], "X1": [table]}),
    )
    found = findings(tmp_path, threads=[called_on_tables(*calls)])
    assert sum(each.cost_ns for each in found if each.rule == "unused-rows") == saved * US


def test_gradients_of_a_table_are_cleared(tmp_path):
    """In 400; three quarters of what is cleared is the table's, and three quarters of its rows do not occur."""
    smaller = ("adam_", {"X0": [[16384, 256]], "X1": [[16384, 256]]})
    thread = called_on_tables(LOOKUP, GRADIENT, UPDATE, smaller, on_device=False)
    stacks = dataclasses.replace(in_lines((1000, FORWARD)), clears=collecting(400).collections)
    found = one("unused-rows", findings(tmp_path, [thread], stacks=[stacks]))
    assert found.evidence["name"][0] == "clear_grad [16384,768]"
    assert found.evidence["time_ns"].to_list() == [225 * US, 37.5 * US, 37.5 * US]


@pytest.mark.parametrize(("axes", "saved"), [({"dp": 2}, 62.5), ({"sharding": 2}, 0)])
def test_rows_that_other_ranks_look_up_are_updated(axes, saved, tmp_path):
    """Two ranks update twice as many rows; sharding refuses sparse gradients."""
    thread = called_on_tables(LOOKUP, GRADIENT, UPDATE)
    found = findings(tmp_path, threads=[thread, thread], topology=Topology.of(**axes))
    assert sum(each.cost_ns for each in found if each.rule == "unused-rows") == saved * US


def test_an_update_of_several_steps_gradients_is_not_counted(tmp_path):
    """Which of the rows that it updates occurred in earlier steps is unknown."""
    thread = called_on_tables(LOOKUP, GRADIENT, UPDATE, updated=2)
    found = one("unused-rows", findings(tmp_path, [thread]))
    assert found.evidence["name"].to_list() == ["embedding_grad [4096] [16384,768]"]


def test_the_table_with_the_largest_part_is_named(tmp_path):
    """The first lookup is in a table all of whose rows may occur."""
    calls = (*on_table(9000, 9000), LOOKUP, GRADIENT, UPDATE)
    found = one("unused-rows", findings(tmp_path, threads=[called_on_tables(*calls)]))
    assert found.facts["line"] == "train.py:10, forward()"


@pytest.mark.parametrize(
    ("dtypes", "is_found"),
    [
        (["float32", "float64", "float32"], True),
        (["bfloat16", "float32", "bfloat16"], True),
        (["float64", "float64", "float64"], False),
        (["float32", "float32", "float32"], False),
        (["float32", *["float64"] * 4], False),  # a rarity does not make the model narrow
    ],
)
def test_a_wide_dtype_may_take_most_of_the_time(dtypes, is_found, tmp_path):
    """Products of 50 in the first dtype, and of 150 in others: half of the bytes are 75."""

    def make(at):
        begin = 0
        for number, dtype in enumerate(dtypes):
            length = 50 if dtype == dtypes[0] else 150
            stack = f'File "train.py", line {number}, in f'
            inputs = Shapes({"X0": [[4]]}, {"X0": [dtype]}, stack)
            yield op(at, begin, begin + length, "matmul dygraph", inputs)
            begin += length

    found = findings(tmp_path, threads=[thread(make)])
    costs = {each.facts["line"]: each.cost_ns for each in found if each.rule == "wider-dtype"}
    assert costs == ({"train.py:1, f()": 75 * US} if is_found else {})


@pytest.mark.parametrize(
    ("functions", "named"),
    [(("forward", "forward", "forward"), " (train.py:9, forward())"), (("f", "g", "h"), "")],
)
def test_a_loop_of_several_lines_is_named_by_the_one_with_most_operators(
    functions, named, tmp_path
):
    """Of 84 operators of a layer, lines 8, 9 and 10 call 24, 36 and 24."""
    stacks = [
        f'File "train.py", line {line}, in {name}' for line, name in zip((8, 9, 10), functions)
    ]

    def make(at):
        parts = [
            op(
                at,
                8 * i,
                8 * i + 7,
                "slice dygraph",
                Shapes({}, callstack=stacks[(0, 1, 2, 0, 1, 2, 1)[i % 7]]),
            )
            for i in range(84)
        ]
        yield op(at, 0, 700, "Attention", *parts, category="Forward")
        yield op(at, 750, 990)

    first = one("many-small-operators", findings(tmp_path, threads=[thread(make)]))
    assert first.facts["layer"] == f"Attention{named}"


def test_a_layer_with_a_loop_of_several_lines_has_all_of_its_time(tmp_path):
    """128 times, line 8 calls two operators of 1 and line 9 one; the layer takes 700."""
    stacks = [Shapes({}, callstack=f'File "train.py", line {n}, in forward') for n in (8, 9)]

    def make(at):
        parts = [
            op(at, 5 * i + start, 5 * i + start + 1, "tanh dygraph", stacks[start == 3])
            for i in range(128)
            for start in (0, 1, 3)
        ]
        yield op(at, 0, 700, "Scan", *parts, category="Forward")
        yield op(at, 750, 990)

    first = one("many-small-operators", findings(tmp_path, threads=[thread(make)]))
    assert first.facts["layer"] == "Scan (train.py:8, forward())"
    assert first.facts["num_operators"] == 3 * 128
    assert first.cost_ns == 700 * US


@pytest.mark.parametrize(
    ("num", "category", "is_loop"),
    [(64, "", True), (63, "", False), (64, "UserDefined", True), (64, "Forward", False)],
)
def test_a_loop_in_a_function_is_found_and_lines_of_many_layers_are_none(
    num, category, is_loop, tmp_path
):
    """64 times, lines 8 and 9 call two operators of 2 each, with 1 between all of them; else in a layer of their own."""
    stacks = [Shapes({}, callstack=f'File "train.py", line {n}, in loss') for n in (8, 9)]

    def make(at):
        for i in range(num):
            starts = [(12 * i + 3 * k, stacks[k // 2]) for k in range(4)]
            parts = [op(at, each, each + 2, "add dygraph", stack) for each, stack in starts]
            begin, end = 12 * i, 12 * i + 11
            yield from (
                (op(at, begin, end, "part", *parts, category=category),) if category else parts
            )
        yield op(at, 800, 990)

    found = findings(tmp_path, threads=[thread(make)])
    loops = [each for each in found if each.rule == "many-small-operators"]
    assert len(loops) == is_loop
    for loop in loops:
        assert loop.facts["layer"] == "train.py:8, loss()"
        assert loop.cost_ns == (64 * 12 - 1) * US


@pytest.mark.parametrize(
    ("num", "num_backwards", "first", "is_loop"),
    [
        (16, 1, "add", True),
        (15, 1, "add", False),
        (30, 2, "add", False),
        (16, 1, "matmul", False),  # blocks of a model that is a function
    ],
)
def test_a_function_outside_layers_is_a_loop_from_16_calls_on(
    num, num_backwards, first, is_loop, tmp_path
):
    """f() calls 16 operators of 1 in two lines, again and again; a Backward ends each half of it."""
    stacks = [Shapes({}, callstack=f'File "loss.py", line {n}, in f') for n in (8, 9)]

    def make(at):
        for i in range(num):
            for k in range(16):
                begin = 25 * i + k
                name = "tanh dygraph" if k else f"{first} dygraph"
                yield op(at, begin, begin + 1, name, stacks[k >= 8])
            if (i + 1) % (num // num_backwards) == 0:
                node = op(at, 25 * i + 21, 25 * i + 22, "Global_AddGradNode")
                yield op(at, 25 * i + 20, 25 * i + 23, "Backward", node, category="Backward")

    found = [each.rule for each in findings(tmp_path, threads=[thread(make)])]
    assert ("many-small-operators" in found) == is_loop


def calls_of_layers(names, times):
    """Calls of layers in each of 6 steps: rows of ``names``, and (row, start, end) in the step."""
    rows = [
        (1, EPOCH_NS + (1000 * step + start) * US, EPOCH_NS + (1000 * step + end) * US, row)
        for step in range(6)
        for row, start, end in times
    ]
    nothing = np.zeros((0, 5), np.int64)
    return OperatorCalls([], [], nothing, (), list(names), np.array(rows, np.int64))


@pytest.mark.parametrize(
    ("num", "is_one_layer", "name", "is_found"),
    [
        (40, True, "tanh dygraph", True),
        (40, False, "tanh dygraph", False),  # blocks of a model
        (31, True, "tanh dygraph", False),
        (40, True, "pd_op.tanh", False),  # of a program of to_static
    ],
)
def test_a_layer_that_another_one_calls_in_a_loop_has_the_loops_time(
    num, is_one_layer, name, is_found, tmp_path
):
    """num times 20: a cell of 9 operators of 2, and an operator of 1 of another layer behind it."""

    def make(at):
        parts = []
        for i in range(num):
            inner = [op(at, 20 * i + 2 * k, 20 * i + 2 * k + 2, name) for k in range(9)]
            parts.append(op(at, 20 * i, 20 * i + 18, "Cell", *inner, category="Forward"))
            parts.append(op(at, 20 * i + 18, 20 * i + 19, "slice dygraph"))
        yield op(at, 0, 20 * num, "Net", *parts, category="Forward")

    names = ["", *(["cell"] if is_one_layer else [f"blocks.{i}" for i in range(num)])]
    times = [(0, 0, 20 * num)]
    times += [(1 if is_one_layer else 1 + i, 20 * i, 20 * i + 18) for i in range(num)]
    calls = calls_of_layers(names, sorted(times, key=lambda call: (call[1], -call[2])))
    found = findings(tmp_path, threads=[thread(make)], calls=[calls])
    loops = [each for each in found if each.rule == "many-small-operators"]
    assert len(loops) == is_found
    for loop in loops:
        assert loop.facts["layer"] == "Net/Cell"
        assert loop.facts["num_operators"] == 9 * num
        assert loop.cost_ns == (20 * num - 2 - (num - 1)) * US


def test_the_line_of_a_repeated_layer_is_the_innermost_that_its_samples_share(tmp_path):
    """Samples in the cell: main, forward of Net, and one of two lines of the cell."""

    def make(at):
        parts = []
        for i in range(40):
            inner = [op(at, 20 * i + 2 * k, 20 * i + 2 * k + 2, "tanh dygraph") for k in range(9)]
            parts.append(op(at, 20 * i, 20 * i + 18, "Cell", *inner, category="Forward"))
        yield op(at, 0, 800, "Net", *parts, category="Forward")

    frames = [
        Frame("__main__", "train.py", function, line, is_own=True)
        for line, function in (
            (3, "Cell.forward"),
            (4, "Cell.forward"),
            (9, "Net.forward"),
            (20, "main"),
        )
    ]
    samples = [
        (1, EPOCH_NS + (1000 * step + 20 * i + 9) * US, 20 * US, (step + i) % 2, 0)
        for step in range(6)
        for i in range(40)
    ]
    stacks = PythonStacks(20 * US, frames, [[0, 2, 3], [1, 2, 3]], np.array(samples, np.int64))
    calls = calls_of_layers(
        ["", "cell"], [(0, 0, 800), *((1, 20 * i, 20 * i + 18) for i in range(40))]
    )
    found = findings(tmp_path, threads=[thread(make)], calls=[calls], stacks=[stacks])
    assert one("many-small-operators", found).facts["layer"] == "Net/Cell (train.py:9, forward())"


def test_a_line_of_many_small_operators_counts_without_a_model_that_its_function_calls(tmp_path):
    """In main(), line 8 calls 300 operators of 100, a model, and line 9 300 of 20: a mean of 60."""
    stacks = [Shapes({}, callstack=f'File "train.py", line {n}, in main') for n in (8, 9)]

    def make(at):
        for i in range(300):
            yield op(at, 100 * i, 100 * (i + 1), "conv2d dygraph", stacks[0])
        for i in range(300):
            yield op(at, 30_000 + 20 * i, 30_020 + 20 * i, "add dygraph", stacks[1])

    threads = [thread(make, lengths=[40_000] * 6)]
    found = one("many-small-operators", findings(tmp_path, threads=threads))
    assert found.facts["layer"] == "train.py:9, main()"
    assert found.facts["num_operators"] == 300
    assert found.cost_ns == 300 * 20 * US


def test_lines_of_one_function_that_several_layers_call_count_together(tmp_path):
    """Eight layers call join(), whose lines 8 and 9 call 35 operators of 2 in turn for each, and a product of 50."""
    stacks = [Shapes({}, callstack=f'File "net.py", line {n}, in join') for n in (8, 9, 12)]

    def make(at):
        for layer in range(8):
            begin = 200 * layer
            parts = [
                op(at, begin + 2 * i, begin + 2 * i + 2, "slice dygraph", stacks[i % 2])
                for i in range(70)
            ]
            product = op(at, begin + 140, begin + 190, "matmul dygraph", stacks[2])
            yield op(at, begin, begin + 195, f"Tree{layer}", *parts, product, category="Forward")

    threads = [thread(make, lengths=[2000] * 6)]
    found = one("many-small-operators", findings(tmp_path, threads=threads))
    assert found.facts["num_operators"] == 560
    assert found.cost_ns == 560 * 2 * US


@pytest.mark.parametrize("line", [8, 9])
def test_an_optimizer_counts_without_other_operators_of_its_line_and_function(line, tmp_path):
    """A line calls 300 operators of 1 in 2, then line 9 as many norms of 2 in 3 in an optimizer."""
    stacks = [Shapes({}, callstack=f'File "train.py", line {n}, in main') for n in (line, 9)]

    def make(at):
        for i in range(300):
            yield op(at, 2 * i, 2 * i + 1, "add dygraph", stacks[0])
        norms = [
            op(at, 600 + 3 * i, 602 + 3 * i, "squared_l2_norm dygraph", stacks[1])
            for i in range(300)
        ]
        yield op(at, 600, 1600, "Optimization Step", *norms, category="Optimization")

    threads = [thread(make, lengths=[2000] * 6)]
    found = one("many-small-operators", findings(tmp_path, threads=threads))
    assert found.facts["layer"] == "Optimization Step (train.py:9, main())"
    assert found.facts["remedy"] == "code-optimizer"
    assert found.cost_ns == (300 * 3 - 1) * US


@pytest.mark.parametrize(("category", "is_loop"), [("Optimization", False), ("UserDefined", True)])
def test_updates_of_many_parameters_are_no_loop_of_the_users(category, is_loop, tmp_path):
    stack = Shapes({}, callstack='File "train.py", line 9, in <module>')

    def make(at):
        parts = [op(at, 3 * i, 3 * i + 2, "adamw_ dygraph", stack) for i in range(300)]
        yield op(at, 0, 950, "step", *parts, category=category)

    rules = [finding.rule for finding in findings(tmp_path, threads=[thread(make)])]
    assert ("many-small-operators" in rules) == is_loop


def test_operators_for_each_parameter_beside_its_update_are_many_small_ones(tmp_path):
    """256 norms of 2 in each 3, then 10 updates of 2 in 3, all called by one line: an optimizer that clips."""
    stack = Shapes({}, callstack='File "train.py", line 9, in <module>')
    names = ["squared_l2_norm dygraph"] * 256 + ["merged_adam_ dygraph"] * 10

    def make(at):
        parts = [op(at, 3 * i, 3 * i + 2, name, stack) for i, name in enumerate(names)]
        yield op(at, 0, 950, "Optimization Step", *parts, category="Optimization")

    found = one("many-small-operators", findings(tmp_path, threads=[thread(make)]))
    assert found.cost_ns == 256 * 3 * US  # 2, and the 1 until the next
    assert found.facts["layer"] == "Optimization Step (train.py:9)"
    assert found.facts["num_operators"] == 256
    assert found.facts["remedy"] == "code-optimizer"


def test_operators_between_updates_count_once(tmp_path):
    """Twice, for each group of parameters, 260 norms of 2 in 3 and 20 updates of 2 in 3, half of them kernel.

    The second group's norms lie between the first update, at 780, and the last one, which ends at 1679.
    """
    stack = Shapes({}, callstack='File "train.py", line 9, in <module>')
    names = 2 * (["squared_l2_norm"] * 260 + ["adamw_"] * 20)

    def make(at):
        parts = [
            op(at, 3 * i, 3 * i + 2, f"{name} dygraph", stack).around(
                op(at, 3 * i, 3 * i + 1, "adamw kernel launch", category="DygraphKernelLaunch")
            )
            for i, name in enumerate(names)
        ]
        yield op(at, 0, 1680, "Optimization Step", *parts, category="Optimization")

    found = findings(tmp_path, threads=[thread(make, lengths=[2000] * 6)])
    costs = {each.rule: each.cost_ns for each in found if each.share}
    outside_kernels = 899 - (20 + 260 + 20)
    assert costs == {
        "optimizer-unfused": pytest.approx(outside_kernels * (1 - 2 / 40) * US),
        "many-small-operators": 260 * 3 * US,
    }


def test_a_model_that_an_optimizer_computes_again_and_again_is_no_loop(tmp_path):
    """20 times, ``step(closure)`` of LBFGS runs 15 operators of 1 in 2 in a layer, and a gradient for each."""
    stack = Shapes({}, callstack='File "train.py", line 9, in forward')

    def make(at):
        parts = []
        for begin in range(0, 1000, 50):
            calls = [
                op(at, begin + 2 * i, begin + 2 * i + 1, "tanh dygraph", stack) for i in range(15)
            ]
            nodes = [
                op(at, begin + 30 + i, begin + 31 + i, "Global_TanhGradNode", stack)
                for i in range(15)
            ]
            parts.append(op(at, begin, begin + 30, "Net", *calls, category="Forward"))
            parts.append(op(at, begin + 30, begin + 45, "Backward", *nodes, category="Backward"))
        yield op(at, 0, 1000, "Optimization Step", *parts, category="Optimization")

    rules = [finding.rule for finding in findings(tmp_path, threads=[thread(make)])]
    assert "many-small-operators" not in rules


@pytest.mark.parametrize("is_of_a_line", [True, False])
def test_a_slow_step_makes_no_operators_large(is_of_a_line, tmp_path):
    """300 operators a step, of 3; in the last one of 60."""
    stack = [Shapes({}, callstack='File "train.py", line 9, in <module>')] * is_of_a_line

    def make(at):
        each = 60 if at >= 5_000 * US else 3
        parts = [op(at, each * i, each * (i + 1), "slice dygraph", *stack) for i in range(300)]
        yield op(at, 0, 300 * each, "Net", *parts, category="Forward")

    threads = [thread(make, lengths=[1000] * 5 + [18_500])]
    first = one("many-small-operators", findings(tmp_path, threads=threads))
    assert first.facts["num_operators"] == 300


@pytest.mark.parametrize("is_of_a_line", [True, False])
@pytest.mark.parametrize(("names", "is_loop"), [(("add", "add"), True), (("add", "conv2d"), False)])
def test_a_pause_makes_an_operator_no_larger(names, is_loop, is_of_a_line, tmp_path):
    """Of 300 operators, each tenth takes 520, and the others 10: a mean of 61."""
    stack = [Shapes({}, callstack='File "train.py", line 9, in <module>')] * is_of_a_line

    def make(at):
        parts = []
        for i in range(30):
            begin = 610 * i
            for k in range(9):
                start = begin + 10 * k
                parts.append(op(at, start, start + 10, f"{names[0]} dygraph", *stack))
            parts.append(op(at, begin + 90, begin + 610, f"{names[1]} dygraph", *stack))
        yield op(at, 0, 18_300, "Net", *parts, category="Forward")

    threads = [thread(make, lengths=[18_500] * 6)]
    rules = [finding.rule for finding in findings(tmp_path, threads=threads)]
    assert ("many-small-operators" in rules) == is_loop


def test_a_large_product_among_small_ones_of_its_name_is_none(tmp_path):
    """Each third of 300 products is one of 500 with a vocabulary: the median of all is 10."""

    def make(at):
        parts = []
        for i in range(100):
            begin = 520 * i
            for k, (length, width) in enumerate([(10, 8), (10, 8), (500, 50304)]):
                inputs = {"X0": [[8, 256]], "X1": [[256, width]]}
                call = Shapes(inputs, callstack='File "train.py", line 9, in <module>')
                start = begin + 10 * k
                parts.append(op(at, start, start + length, "matmul dygraph", call))
        yield op(at, 0, 52_000, "Net", *parts, category="Forward")

    found = findings(tmp_path, threads=[thread(make, lengths=[52_500] * 6)])
    assert "many-small-operators" not in [finding.rule for finding in found]


def test_operators_of_a_program_are_not_called_one_by_one(tmp_path):
    found = findings(tmp_path, threads=[looping(64, "pd_op.slice")])
    assert "many-small-operators" not in [finding.rule for finding in found]


def test_recomputing_on_a_host_costs_its_gradient_node_without_the_gradients(tmp_path):
    """A node of 500, in which gradients take 60 + 40, and Paddle's Backward between them nothing."""

    def make(at):
        block = op(at, 350, 500, "Block", op(at, 360, 480), category="Forward")
        gradients = [op(at, 600, 660, "Global_A"), op(at, 680, 720, "Global_B")]
        backward = op(at, 560, 740, "backward", *gradients, category="UserDefined")
        node = op(at, 300, 800, "Global_GradNodePyLayer_RecomputeFunction", block, backward)
        yield op(at, 0, 200)
        yield op(at, 250, 950, "Backward", op(at, 250, 290), node, category="Backward")

    finding = one("recompute", findings(tmp_path, threads=[thread(make)]))
    assert finding.cost_ns == (500 - 60 - 40) * US
    assert finding.evidence["time_ns"].to_list() == [400 * US]


def test_the_longest_of_several_recomputed_layers_is_named(tmp_path):
    """A node of 400 in which layers take 80 and 120, and a gradient 140; 60 are around them."""

    def make(at):
        layers = [
            op(at, start, end, name, op(at, start, end), category="Forward")
            for name, start, end in (("Norm", 310, 390), ("Attention", 400, 520))
        ]
        gradient = op(at, 560, 700, "Global_A")
        node = op(at, 300, 700, "Global_GradNodePyLayer_RecomputeFunction", *layers, gradient)
        yield op(at, 250, 950, "Backward", node, category="Backward")

    found = one("recompute", findings(tmp_path, threads=[thread(make)]))
    assert found.cost_ns == 260 * US
    assert found.evidence.select("name", "time_ns").rows() == [
        ("Attention", 180 * US),
        ("Norm", 80 * US),
    ]


@pytest.mark.parametrize(("node", "cost"), [("RecomputeFunction", 260), ("Mish", None)])
def test_a_function_is_recomputed_without_a_layer(node, cost, tmp_path):
    """A node of 400 in which operators take 200 and gradients 60 + 80; others may be a PyLayer's own."""
    stacks = [Shapes({}, callstack=f'File "train.py", line {n}, in core') for n in (7, 8)]

    def make(at):
        calls = [
            op(at, 310, 390, "matmul dygraph", stacks[0]),
            op(at, 400, 520, "softmax dygraph", stacks[1]),
        ]
        gradients = [op(at, 560, 620, "Global_A"), op(at, 620, 700, "Global_B")]
        backward = op(at, 550, 700, "backward", *gradients, category="UserDefined")
        inner = op(at, 300, 700, f"Global_GradNodePyLayer_{node}", *calls, backward)
        yield op(at, 0, 200)
        yield op(at, 250, 950, "Backward", inner, op(at, 700, 900, "Global_C"), category="Backward")

    found = [
        each for each in findings(tmp_path, threads=[thread(make)]) if each.rule == "recompute"
    ]
    assert [each.cost_ns for each in found] == ([cost * US] if cost else [])
    for each in found:
        assert each.facts["line"] == "train.py:8, core()"
        assert (each.facts["layer"], each.facts["layer_ns"]) == ("softmax dygraph", 120 * US)


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
        return one(rule, findings(folder, **TRIGGERS[rule][0])).evidence.rows()

    assert rows("input-bound", 0) == [(0, 480 * US, 1000 * US, 0.48)]
    assert rows("blocking-copies", 1) == [("item dygraph", 1, 320 * US)]
    assert rows("optimizer-unfused", 2) == [("adamw_ dygraph", 20, 400 * US)]
    assert rows("tiny-kernels", 3) == [("k", 40, 200 * US)]
    assert rows("gradient-accumulation", 4) == [("Global_XGradNode", 2, 200 * US)]
    assert rows("slow-link", 5) == [("1,3", "dp", 1, 400 * US, 0)]


def rules_of(folder, *threads):
    folder.mkdir(exist_ok=True)
    return {finding.rule for finding in findings(folder, [*threads])}


def test_two_optimizers_accumulate_no_gradients(tmp_path):
    """A Backward and an update of each: Global minus Local is for the branches of a network."""

    def make(at):
        for first in (100, 500):
            local = op(at, first, first + 200, "Local_XGradNode", category="OperatorInner")
            node = op(at, first, first + 300, "Global_XGradNode", local)
            yield op(at, first, first + 300, "Gradient Backward", node, category="Backward")
            yield op(at, first + 310, first + 350, "Adam", category="Optimization")

    assert "gradient-accumulation" not in rules_of(tmp_path, thread(make))


@pytest.mark.parametrize(
    ("phases", "num"), [("BBBBBBBBUU", 8), ("BUBU", 1), ("BBUBBU", 2), ("BBU", 2), ("UB", 1)]
)
def test_optimizers_that_step_together_are_one_update(phases, num, tmp_path):
    """Muon and AdamW share the gradients of all Backwards ahead of them; those of a GAN do not."""
    category = {"B": "Backward", "U": "Optimization"}

    def make(at):
        for place, phase in enumerate(phases):
            yield op(at, 50 * place, 50 * place + 40, phase, category=category[phase])

    trace = ppprof.open(run(tmp_path / "log", [thread(make)])).trace(0)
    profile = Profile(trace)
    steps = collect_indicators(profile, breakdown(profile)).steps
    assert steps["num_micro_batches"].to_list() == [num] * 6


def test_one_operator_on_many_tensors_is_no_chain(tmp_path):
    """As of a norm of each head, or where gradients are clipped one by one."""
    assert "fusible" not in rules_of(tmp_path, pointwise("gelu", "gelu", "gelu"))


def test_operators_of_an_optimizer_are_no_chain(tmp_path):
    chain = pointwise("gelu", "dropout", "gelu")
    steps = [
        dataclasses.replace(
            each,
            inside=(span("Optimization", "Adam", each.start, each.end - 1, *each.inside),),
        )
        for each in chain.inside
    ]
    assert "fusible" in rules_of(tmp_path / "forward", chain)
    assert "fusible" not in rules_of(
        tmp_path / "update", dataclasses.replace(chain, inside=tuple(steps))
    )


def test_what_computes_on_the_weights_of_logits_is_not_on_logits(tmp_path):
    """The head's weight has the vocabulary as its last side, too: clipping and casts pass over it."""
    weight = Shapes({"X0": [[768, 50304]]}, {"X0": ["bfloat16"]})

    loss = losing(40, 60)
    steps = [
        dataclasses.replace(
            each,
            inside=(
                *each.inside,
                op(
                    each.start,
                    700,
                    701,
                    "squared_l2_norm dygraph",
                    weight,
                    launch(
                        each.start,
                        each.start,
                        kernel("k", each.start + 700 * US, each.start + 900 * US),
                    ),
                ),
            ),
        )
        for each in loss.inside
    ]
    found = findings(tmp_path, [dataclasses.replace(loss, inside=tuple(steps))])
    assert one("wide-vocabulary", found).facts["vocabulary_ns"] == 100 * US


def test_a_loss_on_logits_with_the_shape_of_the_weights_is_found(tmp_path):
    """There are 768 tokens, and the hidden size is 768; the cast may be of either."""
    found = findings(tmp_path, [losing(400, 60, m=768)])
    assert one("wide-vocabulary", found).facts["vocabulary_ns"] == 400 * US


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
    # 10 before the first kernel and 19 gaps of 20; after the last one no update idles.
    assert [(finding.rule, finding.cost_ns) for finding in found] == [
        ("optimizer-unfused", pytest.approx(390 * 0.9 * US)),
        ("host-bound", pytest.approx(400 * US - 351 * US)),
    ]


def test_samples_that_cannot_be_cut_finer(tmp_path):
    found = one("pipeline-bubble", findings(tmp_path, **batches(1, samples=1)))
    assert found.facts["remedy"] == "code-more-samples"
    assert found.facts["proposed_micro_batches"] == 9
    assert found.cost_ns == pytest.approx(80 * US * 8 / 9)


def test_a_batch_size_beyond_all_trainings_is_unknown(tmp_path):
    """Its divisors, which are tried one by one, would take days."""
    found = one("pipeline-bubble", findings(tmp_path, **batches(1, samples=10**15)))
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
        finding_of("runs-ahead", "major"),
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
        found = advise(Evidence(None, pl.DataFrame(schema=STEP_TIMES)))
    assert [finding.rule for finding in found] == words(
        "runs-ahead slow-rank input-bound host-bound short-window"
    )


def test_empty_evidence_has_no_findings():
    assert advise(Evidence(None, pl.DataFrame(schema=STEP_TIMES))) == []


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
    assert found.facts["basis"] == "outside the window"
    assert found.facts["recorded_loading_ns"] == 480 * US
    (row,) = found.evidence.rows(named=True)
    assert (row["loading_ns"], row["step_ns"]) == (40 * US, 800 * US)
    text = render_findings([found])
    assert (
        "Rank 0 waits 40 us of a step of 800 us (5.0%) for its DataLoader; steps: outside the window"
        in text
    )
    assert "In recorded steps the longest wait averages 480 us." in text


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


@pytest.mark.parametrize(
    ("lengths", "gap"),
    [
        ([200, 200, 200], ("step, after Forward, before Backward", "train.py:13 to 15")),
        ([100, 300, 100], ("train.py:14, main()", "train.py:13 to 15")),
        ([0, 0, 0], ("step, after Forward, before Backward", None)),
    ],
)
def test_unexplained_time_says_the_lines_that_share_it(lengths, gap, tmp_path):
    """Of the function that also trains, in lines 12 and 16. A line of so few samples has no finding of its own."""

    def make(at):
        yield op(at, 0, 100, "Forward", op(at, 0, 100), category="Forward")
        yield op(at, 700, 1000, "Backward", op(at, 700, 1000), category="Backward")

    frames = [Frame("__main__", "train.py", "main", line, is_own=True) for line in range(12, 17)]
    frames.append(Frame("json", "/lib/json/__init__.py", "dumps", 9, is_own=False))
    idle = 600 - sum(lengths)
    stacks = in_lines(*zip((100, *lengths, idle, 300), (0, 1, 2, 3, 5, 4)), every=100)
    in_gap = np.isin(stacks.samples[:, 3], (1, 2, 3))
    stacks = dataclasses.replace(
        stacks,
        frames=frames,
        stacks=[[row] for row in range(len(frames))],
        samples=stacks.samples[~in_gap | (in_gap.cumsum() <= sum(lengths) // 100)],
        source={},
    )
    found = findings(tmp_path, [thread(make)], stacks=[stacks])
    facts = one("unexplained", found).facts
    assert (facts["gap"], facts["lines"]) == gap


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


def test_one_long_remote_call_does_not_count_for_all_steps(tmp_path):
    """Five steps of 1000 wait 600 each, one of 9000 waits 8600: the slow step is another finding."""
    lengths = [1000, 1000, 9000, 1000, 1000, 1000]
    starts = [sum(lengths[:number]) * US for number in range(6)]
    computing = thread(lambda at: (op(at, 0, 200),), lengths=lengths)
    calls = [op(start, 200, length - 200, CALL) for start, length in zip(starts, lengths)]
    worker = Thread(
        9, "w1", tuple(dataclasses.replace(call, category="PythonUserDefined") for call in calls)
    )
    found = {each.rule: each for each in findings(tmp_path, [(computing, worker)])}
    finding = found["remote-wait"]
    assert finding.cost_ns == finding.facts["remote_ns"] == 600 * US
    assert found["slow-steps"].cost_ns == pytest.approx(14_000 / 6 * US - 1000 * US)


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


@pytest.mark.parametrize("recorded_ns", [480 * US, None])
def test_data_that_a_device_hides_cost_nothing(recorded_ns, tmp_path):
    """The device works during 480 us of waiting. It idles ahead of the first step alone, since the window began."""
    lines = waited(480 * US, 1000 * US)
    found = findings(tmp_path, **hidden_loading(lines, recorded_ns=recorded_ns))
    assert "input-bound" not in [finding.rule for finding in found]


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
        start = launch(at + until * US, at + until * US, reduced)
        yield span("Communication", facts, at + until * US, at + 1000 * US, start)

    return thread(make)


@pytest.mark.parametrize(
    ("make", "wording", "sentence"),
    [
        (computing, None, False),
        (lambda until: computing_on_device(until, 100), "device", True),
    ],
)
def test_the_wait_of_a_slow_ranks_device_is_given_where_a_device_was_recorded(
    make, wording, sentence, tmp_path
):
    path = run(tmp_path / "log", [make(500), make(900)])
    finding = one("slow-rank", ppprof.advise(ppprof.open(path)))
    assert finding.facts["wording"] == wording
    text = render_findings([finding])
    assert ("Its device waits 100 us of a step for the host." in text) == sentence
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
    finding = one("no-device-events", found)
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
    found = findings(tmp_path, [allocating("Place(npu:0)")], config={"Profiler": {"enable": True}})
    finding = one("no-device-events", found)
    for language in ("en", "zh"):
        (row,) = finding_rows([finding], language)
        assert "Profiler.targets: [cpu, custom_device]" in row.do


def test_communication_of_one_rank_may_be_waiting(tmp_path):
    (alone,) = communication_of(run(tmp_path / "alone", [computing(800)]))
    assert alone.facts["wording"] == "with-waiting"
    assert verdict(1e6, [alone]) == (
        "recorded step 1 ms: 20% communication over dp or waiting for other ranks in it"
    )
    assert "This contains waiting for other ranks" in render_findings([alone])
    (both,) = communication_of(run(tmp_path / "both", [computing(800), computing(800)]))
    assert (
        verdict(1e6, [both])
        == "recorded step 1 ms: 20% communication over dp that no computation hides"
    )


def test_a_very_long_step_is_no_communication_of_the_others(tmp_path):
    """Five steps communicate for 200 of 1000, and one for 9200 of 10000."""

    def make(at):
        step = at // (1000 * US)
        end = 10_000 if step == 5 else 1000
        facts = "all_reduce[axis=dp group=1 bytes=64 dtype=float32 peers=0,1]"
        yield op(at, 0, 800)
        yield span("Communication", facts, at + 800 * US, at + end * US)

    path = run(tmp_path / "log", [thread(make, lengths=[1000] * 5 + [10_000])])
    (finding,) = communication_of(path)
    assert (finding.share, finding.facts["exposed_ns"]) == (0.2, 200 * US)
    (slow,) = [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "slow-steps"]
    assert (slow.facts["slow_steps"], slow.facts["part"]) == ("5", "exposed")


@pytest.mark.parametrize(
    ("collective", "remedy"),
    [
        ("alltoall_single[", "config-experts"),
        ("all_gather[", "config-other"),
        ("all_gather[axis=ep ", "config-experts"),
    ],
)
def test_tokens_of_experts_have_their_own_proposal(collective, remedy, tmp_path):
    thread = computing(800, collective=collective)
    found = one("exposed-communication", findings(tmp_path, [thread, thread]))
    assert found.facts["remedy"] == remedy
    assert ("experts" in render_findings([found])) == (remedy == "config-experts")


def test_a_gradient_of_a_cast_that_a_cast_computes_counts_once(tmp_path):
    found = one("casts", findings(tmp_path, [casting(100, with_create_graph=True)]))
    assert (found.cost_ns, found.facts["calls"]) == (100 * US, 1)
    assert found.evidence["name"].to_list() == ["cast [8,64]", "cast_grad"]


@pytest.mark.parametrize("view", ["transpose", "relu"])
def test_operators_that_copy_views(view, tmp_path):
    """A step without an operator that returns a view has no such copies, whatever takes the time."""
    found = [each.rule for each in findings(tmp_path, [on_views(95, view)])]
    assert ("strided-inputs" in found) == (view == "transpose")


def test_sums_of_gradients_are_no_copies_of_views(tmp_path):
    """With DataParallel, the last of 8 sums waits for 400 of 1000 until all ranks have reduced their gradients."""

    def make(at):
        inputs = Shapes({"X0": [[8, 64]]}, {}, 'File "train.py", line 7, in forward')
        yield op(at, 0, 5, "transpose dygraph", inputs)
        for number in range(8):
            begin, own = 10 + 30 * number, 405 if number == 7 else 105
            launched = op(
                *(at, begin + own, begin + own + 20, "add kernel launch"),
                category="DygraphKernelLaunch",
            )
            node = op(at, begin, begin + own + 20, "Global_GradNodeAccumulation").around(launched)
            yield (
                node
                if number == 7
                else op(at, begin, begin + 25, "add dygraph", inputs).around(
                    op(
                        at,
                        begin + 5,
                        begin + 25,
                        "add kernel launch",
                        category="DygraphKernelLaunch",
                    )
                )
            )

    found = [each.rule for each in findings(tmp_path, [thread(make)])]
    assert "strided-inputs" not in found


def test_the_kernels_of_a_device_that_copy_views(tmp_path):
    """Of the relu's two kernels, the one that copies its input counts: 100 of 1000, of a gradient as much."""
    copying = "void phi::ContiguousCaseOneFunc<float, 4ul>(float const*)"

    def make(at):
        inputs = Shapes({"X0": [[8, 64]]}, {}, 'File "train.py", line 7, in forward')
        yield op(at, 0, 1, "transpose dygraph", inputs)
        for number, name in enumerate(("relu dygraph", "Global_ReluGradNode")):
            begin = 300 * number
            kernels = [
                kernel(each, at + start * US, at + end * US)
                for each, start, end in (
                    (copying, begin + 10, begin + 110),
                    ("relu_kernel", begin + 110, begin + 300),
                )
            ]
            launches = [launch(at + begin * US, at + begin * US, each) for each in kernels]
            yield op(at, begin + 2, begin + 5, name, inputs, *launches)

    found = one("strided-inputs", findings(tmp_path, [thread(make)]))
    assert (found.severity, found.cost_ns, found.facts["remedy"]) == ("minor", 200 * US, "code")
    assert found.evidence["name"].to_list() == ["relu [8,64]", "relu_grad [8,64]"]
    assert found.facts["line"] == "train.py:7, forward()"


def communication_of(path):
    findings = ppprof.advise(ppprof.open(path))
    return [finding for finding in findings if finding.rule == "exposed-communication"]


@pytest.mark.parametrize(
    ("options", "cost_us", "remedy"),
    [
        ({}, 500, "code-loading"),
        ({"loads": False}, 500, "code"),
        ({"still": 0.9, "ran": 0.6}, 600, "code-loading"),  # the other thread runs for no longer
        ({"ran": 0.3}, None, None),  # it sleeps, or waits for a file
        ({"still": 0.0}, None, None),  # the training runs
    ],
)
def test_a_thread_that_runs_python_while_the_training_stands_still(
    options, cost_us, remedy, tmp_path
):
    path = run(tmp_path / "log", [training(999)], stacks=[beside_a_reader(**options)])
    found = [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "interpreter-lock"]
    assert [(each.cost_ns, each.facts["remedy"]) for each in found] == (
        [] if cost_us is None else [(pytest.approx(cost_us * US, abs=US), remedy)]
    )


def test_a_thread_of_many_lines_costs_all_of_their_time(tmp_path):
    """The training stands still for 500 of 1000, while another thread runs in 25 lines in turn."""
    stacks = beside_a_reader()
    reader = stacks.frames[-2]
    lines = [msgspec.structs.replace(reader, line=number) for number in range(25)]
    first, row = len(stacks.frames), len(stacks.stacks)
    samples = stacks.samples.copy()
    samples[samples[:, 0] == 2, 3] = row + np.arange((samples[:, 0] == 2).sum()) % 25
    stacks = dataclasses.replace(
        stacks,
        frames=[*stacks.frames, *lines],
        stacks=[*stacks.stacks, *([first + n, first - 1] for n in range(25))],
        samples=samples,
    )
    path = run(tmp_path / "log", [training(999)], stacks=[stacks])
    finding = one("interpreter-lock", ppprof.advise(ppprof.open(path)))
    assert finding.cost_ns == pytest.approx(500 * US, abs=US)
    assert finding.facts["remedy"] == "code-loading"
    assert finding.evidence.height == MOST_ROWS


@pytest.mark.parametrize(
    ("outside_us", "cost_us"),
    [
        (1500, 1000),
        (1040, 500),
        (20_000, 13_000),
    ],  # 4% may be chance; 25 times as much as in the window
)
def test_a_window_in_which_threads_take_turns_more_often_hides_a_part_of_the_wait(
    outside_us, cost_us, tmp_path
):
    """500 in the window, and what steps outside take longer."""
    times = step_lines(outside_us * US)
    for each in times[10:30]:
        each.update(batch_cost_ns=each["batch_cost_ns"] * 1000 // outside_us, window=0)
    path = run(
        tmp_path / "log", [training(999)], stacks=[beside_a_reader(ran=1.0)], step_lines=[times]
    )
    finding = one("interpreter-lock", ppprof.advise(ppprof.open(path)))
    assert finding.cost_ns == pytest.approx(cost_us * US, rel=0.01)
    assert ("outside the window" in render_findings([finding])) == (cost_us > 500)


@pytest.mark.parametrize(
    ("slow", "slow_us", "ran", "is_named"),
    [
        ((13, 18, 29, 41, 47, 58), 10_000, 0.8, True),
        ((13, 18, 29, 41, 47, 58), 10_000, 0.3, False),
        ((13, 18, 29, 41, 47, 58), 400_000, 0.8, False),  # 5 ms rather than 0.2 do not explain it
        ((13, 23, 33, 43, 53), 10_000, 0.8, False),  # what comes evenly is no chance
    ],
)
def test_slow_steps_outside_the_window_may_be_those_in_which_another_thread_keeps_the_lock(
    slow, slow_us, ran, is_named, tmp_path
):
    """None of them is in the window, where threads take turns more often."""
    times = step_lines(1000 * US, steps=60)
    for step in slow:
        times[step]["batch_cost_ns"] = slow_us * US
    for each in times[34:40]:
        each["window"] = 0
    path = run(tmp_path, [training(999)], stacks=[beside_a_reader(ran)], step_lines=[times])
    found = one("slow-steps", ppprof.advise(ppprof.open(path)))
    named = ("data.py:3, __getitem__()", "lock") if is_named else (None, None)
    assert (found.facts["gap"], found.facts["wording"]) == named


def test_steps_that_become_shorter_do_not_wait_for_the_lock_at_first(tmp_path):
    """3000 up to the window; 1000 in it and behind it, of which the training stands still for 500."""
    times = step_lines(3000 * US, steps=60)
    for number, each in enumerate(times[50:]):
        each.update(batch_cost_ns=each["batch_cost_ns"] // 3, window=0 if number < 6 else None)
    path = run(
        tmp_path / "log", [training(999)], stacks=[beside_a_reader(ran=1.0)], step_lines=[times]
    )
    finding = one("interpreter-lock", ppprof.advise(ppprof.open(path)))
    assert finding.cost_ns == pytest.approx(500 * US, rel=0.01)


@pytest.mark.parametrize(
    ("slow", "severity"), [(range(30), "minor"), ((13, 18, 29, 41, 47, 58), "major")]
)
def test_steps_that_are_longer_up_to_the_window_are_no_few_slow_ones(slow, severity, tmp_path):
    """Longer samples at first, or one in ten, of which the window has none by chance."""
    times = step_lines(1000 * US, steps=90)
    for step in slow:
        times[step]["batch_cost_ns"] = 400_000 * US
    for each in times[60:80]:
        each["window"] = 0
    path = run(tmp_path, [thread(lambda at: training_step(at, 999), num=20)], step_lines=[times])
    assert one("slow-steps", ppprof.advise(ppprof.open(path))).severity == severity


@pytest.mark.parametrize(
    ("nodes", "costs"),
    [
        ([("matmul", 2, 2)], [(200 * US, "code")]),
        ([("matmul", 2, 1)], [(100 * US, "code-passing")]),  # the other gradient is needed
        ([("matmul", 2, 0)], []),
        ([("add", 2, 2)], [(200 * US, "code")]),
        # fc(condition) * x, whose gradient passes to x, and one that passes in whole
        ([("matmul", 1, 1), ("multiply", 2, 1)], [(100 * US, "code-passing")]),
        ([("matmul", 1, 1), ("tanh", 1, 0)], [(100 * US, "code-passing")]),
        ([("matmul", 1, 1), ("tanh", 1, 1)], [(200 * US, "code")]),
    ],
)
def test_of_gradients_that_pass_through_a_layer_those_of_weights_are_unused(nodes, costs, tmp_path):
    operators = [name for name, _, _ in nodes]
    path = run(tmp_path / "log", [distilling(*operators)], calls=[calls_of_distilling(*nodes)])
    found = ppprof.advise(ppprof.open(path))
    found = [each for each in found if each.rule == "unused-gradients"]
    assert [(each.cost_ns, each.facts["remedy"]) for each in found] == costs


def test_a_call_without_a_known_line_is_named_by_its_layer(tmp_path):
    """Two layers of one line would have no place in the text."""
    calls = calls_of_encoding(layer="", lines=(0, 0, 0, 0))
    path = run(tmp_path / "log", [encoding()], calls=[calls])
    finding = one("repeated-call", ppprof.advise(ppprof.open(path)))
    names = ("layer", "caller", "earlier")
    assert [finding.facts[name] for name in names] == ["Encoder", None, None]


def test_the_first_call_is_named_if_another_line_makes_it(tmp_path):
    path = run(tmp_path / "log", [encoding()], calls=[calls_of_encoding(lines=(9, 21, 7, 20))])
    finding = one("repeated-call", ppprof.advise(ppprof.open(path)))
    assert finding.facts["earlier"] == "train.py:7, encode()"
    path = run(tmp_path / "loop", [encoding()], calls=[calls_of_encoding(lines=(7, 21, 7, 21))])
    finding = one("repeated-call", ppprof.advise(ppprof.open(path)))
    assert finding.facts["earlier"] is None


MASKS = (5, "mask"), (9, "Block.forward"), (5, "mask"), (9, "Block.forward")
"""Lines and functions of a mask that blocks compute."""


def in_function(calls, row, lines=MASKS):
    """Return calls whose operator in one row of each step is a repeated one of a function."""
    stacks = [f'File "net.py", line {line}, in {function}' for line, function in lines]
    rows = [3 * step + row for step in range(6)]
    return dataclasses.replace(
        calls,
        repeats=(),
        repeated_calls=np.zeros((0, 4), np.int64),
        repeated_functions=[RepeatedFunction(*stacks, rows)],
    )


@pytest.mark.parametrize(
    ("lines", "name", "earlier"),
    [
        (MASKS, "mask() (net.py:9, forward())", None),
        (
            ((5, "main.<locals>.mask"), (9, "fit"), (6, "main.<locals>.mask"), (8, "fit")),
            "mask() (net.py:9, fit())",
            "net.py:8, fit()",
        ),
        (
            ((5, "mask"), (9, "fit"), (2, "causal"), (8, "fit")),
            "mask() (net.py:9, fit())",
            "causal() (net.py:8, fit())",
        ),
    ],
)
def test_a_function_is_named_whose_operators_compute_again(lines, name, earlier, tmp_path):
    """An operator of 149, and its gradient of 150."""
    path = run(tmp_path / "log", [encoding()], calls=[in_function(calls_of_encoding(), 1, lines)])
    finding = one("repeated-call", ppprof.advise(ppprof.open(path)))
    assert (finding.cost_ns, finding.facts["layer"]) == (299 * US, name)
    assert (finding.facts["num_again"], finding.facts["earlier"]) == (1, earlier)
    (row,) = finding_rows([finding])
    assert row.title == "A function computes the same result again"
    assert f"{name} calls 1 operator a step that the step has called before" in row.what
    assert ("first in" in row.what) == (earlier is not None)
    assert row.do.startswith("Call the function once a step")
    (row,) = finding_rows([finding], "zh")
    assert row.title == "函数重复计算了同样的结果"
    assert f"{name} 每步调用 1 个算子" in row.what


def test_operators_in_a_repeated_layer_are_of_the_layer(tmp_path):
    calls = calls_of_encoding()
    functions = in_function(calls, 1).repeated_functions
    path = run(
        tmp_path / "log",
        [encoding()],
        calls=[dataclasses.replace(calls, repeated_functions=functions)],
    )
    finding = one("repeated-call", ppprof.advise(ppprof.open(path)))
    assert (finding.cost_ns, finding.facts["num_others"]) == (300 * US, None)
    assert finding.facts["layer"].startswith("encoder")


def test_a_repeated_mask_is_no_layer_without_gradients(tmp_path):
    """It has no gradients, and its time counts once."""
    stacks = in_lines((300, FORWARD), (700, BACKWARD))
    found = {}
    for calls in (calls_of_teaching(), in_function(calls_of_teaching(), 0)):
        path = run(tmp_path / str(len(found)), [teaching()], calls=[calls], stacks=[stacks])
        costs = {each.rule: each.cost_ns for each in ppprof.advise(ppprof.open(path))}
        found[len(found)] = {
            rule: costs[rule] for rule in ("without-gradients", "repeated-call") if rule in costs
        }
    assert found == {0: {"without-gradients": 300 * US}, 1: {"repeated-call": 300 * US}}


def called_again(calls):
    """Return calls in which the first 300 of each step are a repeated call of a layer."""
    stacks = [f'File "train.py", line {line}, in compute_loss' for line in (68, 21, 65, 21)]
    rows = [(1, start, end, 0) for _, start, end, *_ in calls.calls[::3].tolist()]
    rows = np.array(rows, np.int64)
    return dataclasses.replace(
        calls,
        layers=[""],
        layer_calls=rows,
        repeats=[Repeat(0, *stacks)],
        repeated_calls=rows,
    )


def test_a_model_that_a_metric_calls_again_is_no_layer_without_gradients(tmp_path):
    """Its gradients are unused, and its time counts once."""
    calls, stacks = called_again(calls_of_teaching()), in_lines((300, FORWARD), (700, BACKWARD))
    path = run(tmp_path / "log", [teaching()], calls=[calls], stacks=[stacks])
    findings = ppprof.advise(ppprof.open(path))
    assert "without-gradients" not in {each.rule for each in findings}
    finding = one("repeated-call", findings)
    assert (finding.cost_ns, finding.severity) == (300 * US, "major")
    assert finding.facts["earlier"] == "train.py:65, compute_loss()"
    (row,) = finding_rows([finding])
    assert row.title == "A layer is called again for a result that it has returned"
    assert "Teacher (train.py:68, compute_loss()) is called 1 more time a step" in row.what
    assert row.do.startswith("Take the result of the first call, such as logits.detach()")


def test_a_model_that_an_evaluation_calls_again_is_beside_the_training(tmp_path):
    ends = [EPOCH_NS + (1000 * step + 300) * US for step in range(6)]
    rows = np.array([(1, end, 300 * US, -1, 0) for end in ends], np.int64)
    stacks = dataclasses.replace(in_lines((300, AFTER), (700, FORWARD)), evaluations=rows)
    calls = called_again(calls_of_teaching())
    path = run(tmp_path / "log", [teaching()], calls=[calls], stacks=[stacks])
    assert "repeated-call" not in {each.rule for each in ppprof.advise(ppprof.open(path))}


def test_a_mask_in_an_evaluation_is_beside_the_training(tmp_path):
    ends = [EPOCH_NS + (1000 * step + 300) * US for step in range(6)]
    rows = np.array([(1, end, 300 * US, -1, 0) for end in ends], np.int64)
    stacks = dataclasses.replace(in_lines((300, AFTER), (700, FORWARD)), evaluations=rows)
    calls = in_function(calls_of_teaching(), 0)
    path = run(tmp_path / "log", [teaching()], calls=[calls], stacks=[stacks])
    rules = {each.rule for each in ppprof.advise(ppprof.open(path))}
    assert "beside-training" in rules
    assert "repeated-call" not in rules


def test_the_repeated_calls_of_a_frozen_layer_count_once(tmp_path):
    """Its gradients are unused: of 150 of the first call, and of the second one only as a repeated call."""
    calls = calls_of_encoding()
    backwards = [
        Backward(each.call, [Node(node.name, node.call, 1, 1) for node in each.nodes])
        for each in calls.backwards
    ]
    calls = dataclasses.replace(calls, backwards=backwards, not_updated={0: ""})
    path = run(tmp_path / "log", [encoding()], calls=[calls])
    costs = {each.rule: each.cost_ns for each in ppprof.advise(ppprof.open(path))}
    assert costs["repeated-call"] == 300 * US
    assert costs["unused-gradients"] == 150 * US


def test_small_operators_of_a_repeated_call_count_once(tmp_path):
    """A layer of 700 with 64 small operators: without the call, none would be left."""
    calls = calls_of_encoding()
    rows = [
        [1, EPOCH_NS + 1000 * step * US, EPOCH_NS + (1000 * step + 750) * US, 0]
        for step in range(6)
    ]
    calls = dataclasses.replace(
        calls,
        calls=np.zeros((0, 5), np.int64),
        backwards=(),
        layer_calls=np.array(rows, np.int64),
        repeated_calls=np.array(rows, np.int64),
    )
    path = run(tmp_path / "log", [looping(64)], calls=[calls])
    costs = {each.rule: each.cost_ns for each in ppprof.advise(ppprof.open(path))}
    assert costs["repeated-call"] == 750 * US
    assert "many-small-operators" not in costs


def test_gradients_that_run_again_are_unused_once(tmp_path):
    """A second loss runs the teacher's node of 200 once more, for 150: that is not counted twice."""
    calls = calls_of_backward_twice()
    rows = calls.calls[calls.calls[:, 3] == 0][:, :4]
    line = 'File "train.py", line 12, in step'
    signatures = [msgspec.structs.replace(each, callstack=line) for each in calls.signatures]
    backwards = [
        Backward(each.call, [*each.nodes[:-1], Node("MatmulGradNode", 0, 1, 1)])
        for each in calls.backwards
    ]
    calls = dataclasses.replace(
        calls,
        signatures=signatures,
        backwards=backwards,
        layers=[""],
        layer_calls=rows,
        not_updated={0: line},
    )
    path = run(tmp_path / "log", [backward_twice()], calls=[calls])
    costs = {each.rule: each.cost_ns for each in ppprof.advise(ppprof.open(path))}
    assert costs["unused-gradients"] == 200 * US
    assert costs["gradients-again"] == 150 * US


def test_a_layer_with_an_optimizer_has_no_unused_gradients(tmp_path):
    """Its operators may use parameters of another layer: which one is unknown."""
    calls = dataclasses.replace(calls_of_distilling(), not_updated={})
    path = run(tmp_path / "log", [distilling()], calls=[calls])
    assert "unused-gradients" not in {each.rule for each in ppprof.advise(ppprof.open(path))}


@pytest.mark.parametrize(("factors", "steps"), [((0,) * 6, 6), ((0, 0, 0, 2, 2, 2), 3)])
def test_gradients_are_0_in_the_steps_that_multiply_by_0(factors, steps, tmp_path):
    """A weight that begins with 0 costs nothing later. A mean step has a half of what three of six steps have."""
    calls = calls_of_switching_off(*factors)
    path = run(tmp_path / "log", [switching_off()], calls=[calls])
    finding = one("zero-gradients", ppprof.advise(ppprof.open(path)))
    assert finding.cost_ns == 200 * US * steps / 6
    assert finding.facts["term_ns"] == 220 * US * steps / 6


def test_a_product_with_0_of_what_others_use_says_only_its_own_line(tmp_path):
    """Its gradients are 0, but the operators below are needed."""
    calls = calls_of_switching_off(term=-1)
    path = run(tmp_path / "log", [switching_off()], calls=[calls])
    finding = one("zero-gradients", ppprof.advise(ppprof.open(path)))
    facts = [finding.facts[name] for name in ("line", "term", "term_ns")]
    assert facts == ["train.py:9, loss()", None, 20 * US]


def multiplied_by_0(options, product):
    """Return options of a run, all of whose gradients are 0 for a product."""
    (calls,) = options["calls"]
    (backward,) = calls.backwards
    nodes = [msgspec.structs.replace(node, product=product) for node in backward.nodes]
    others = [(row, product) for row in range(product + 1)]
    backwards = [Backward(backward.call, nodes, others)]
    return {**options, "calls": [dataclasses.replace(calls, backwards=backwards)]}


def test_a_penalty_that_is_multiplied_by_0_is_no_task_of_the_optimizer(tmp_path):
    """Its eight gradients of 25, and that of the product, are 0: the optimizer has nothing to do in their place."""
    product = Called("scale", ((),), {"X1": 0}, line=8)
    options = differentiating(*penalised(*PARAMETERS), product, each=25, updated=PARAMETERS)
    path = run(tmp_path / "log", **multiplied_by_0(options, 8))
    costs = {each.rule: each.cost_ns for each in ppprof.advise(ppprof.open(path))}
    assert costs["zero-gradients"] == 225 * US
    assert "penalty-in-loss" not in costs


def test_casts_of_gradients_that_are_0_count_once(tmp_path):
    called = (Called("cast", ((64, 64),), {"X1": "float16"}), Called("scale", ((),), {"X1": 0}))
    options = differentiating(*called, each=200)
    costs = [
        {
            each.rule: each.cost_ns
            for each in ppprof.advise(ppprof.open(run(tmp_path / name, **case)))
        }
        for name, case in (("zero", multiplied_by_0(options, 1)), ("other", options))
    ]
    assert costs[0]["zero-gradients"] == 400 * US
    assert "casts" not in costs[0]
    assert costs[1] == {"casts": 360 * US}  # of the gradient, its own part


def test_small_gradients_that_are_0_count_once(tmp_path):
    """A loop of 256 operators of 1, whose gradients take as long: fewer operators would save the forward part."""
    called = [Called("slice", ((4,),), line=7 + number % 2) for number in range(256)]
    options = differentiating(*called, Called("scale", ((),), {"X1": 0}, line=9), each=1)
    costs = [
        {
            each.rule: each.cost_ns
            for each in ppprof.advise(ppprof.open(run(tmp_path / name, **case)))
        }
        for name, case in (("zero", multiplied_by_0(options, 256)), ("other", options))
    ]
    assert costs[0]["zero-gradients"] == 257 * US
    assert costs[1]["many-small-operators"] == 512 * US
    assert costs[0]["many-small-operators"] == 256 * US


def test_gradients_that_are_0_are_unused_once(tmp_path):
    """The term is of a layer that no optimizer has."""
    calls = calls_of_switching_off()
    line = 'File "train.py", line 5, in loss'
    teachers = calls.calls[calls.calls[:, 3] == 0][:, :4]
    backwards = [
        Backward(
            each.call,
            [msgspec.structs.replace(node, num_unused=1) for node in each.nodes],
            each.multiplied,
        )
        for each in calls.backwards
    ]
    calls = dataclasses.replace(
        calls, backwards=backwards, layers=[""], layer_calls=teachers, not_updated={0: line}
    )
    path = run(tmp_path / "log", [switching_off()], calls=[calls])
    costs = {each.rule: each.cost_ns for each in ppprof.advise(ppprof.open(path))}
    assert costs["zero-gradients"] == 200 * US
    assert "unused-gradients" not in costs


@pytest.mark.parametrize(
    ("node", "cost", "remedy"),
    [(("matmul", 2, 2), 200, "code-cleared"), (("matmul", 2, 1), 100, "code-cleared-passing")],
)
def test_gradients_that_are_cleared_before_the_optimizer_uses_them(node, cost, remedy, tmp_path):
    """Of three of six steps: a mean step has half of them. The layer has an optimizer."""
    calls = calls_of_distilling(node)
    teachers = calls.layer_calls[calls.layer_calls[:, 3] == 0]
    stacks = [
        f'File "train.py", line {line}, in {name}' for line, name in ((4, "make"), (9, "step"))
    ]
    calls = dataclasses.replace(
        calls, not_updated={}, cleared=[Cleared(0, *stacks)], cleared_calls=teachers[::2]
    )
    path = run(tmp_path / "log", [distilling()], calls=[calls])
    finding = one("unused-gradients", ppprof.advise(ppprof.open(path)))
    assert finding.cost_ns == cost * US // 2
    assert finding.facts["remedy"] == remedy
    assert finding.facts["layer"] == "Classifier (train.py:4, make())"
    assert finding.facts["caller"] == "train.py:9, step()"
    assert finding.facts["wording"] == "cleared"


def test_nodes_of_unknown_operators_do_not_run_again(tmp_path):
    """They may be those of the step before: a loss of features that it has kept."""
    calls = calls_of_backward_twice(matmul=-1)
    path = run(tmp_path / "log", [backward_twice()], calls=[calls])
    assert not [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "gradients-again"]


@pytest.mark.parametrize(("waited", "costs"), [(300, [410 * US]), (670, []), (900, [])])
def test_a_place_where_the_thread_waits_for_a_processor_is_no_cause(waited, costs, tmp_path):
    """Of a step of 1000, 710 are unexplained in one layer: if less than 5% are left, nothing is."""
    times = step_lines(1000 * US, steps=6)
    lines = [[{**each, "window": 0, "processor_wait_ns": waited * US} for each in times]]
    path = run(tmp_path / "log", [sleeping(700)], step_lines=lines)
    found = ppprof.advise(ppprof.open(path))
    assert [each.cost_ns for each in found if each.rule == "unexplained"] == costs


def test_steps_of_which_means_are_made_are_not_slow_without_those_that_wait(tmp_path):
    """Two of seven wait for a processor. Of all, 310 is typical, as 200 is; of the other five, 310 would be slow."""
    lengths = [200, 200, 200, 310, 310, 390, 390]
    waits = [0, 0, 0, 0, 0, 200, 200]
    lines = [
        {**line, "window": 0, "batch_cost_ns": length * US, "processor_wait_ns": wait * US}
        for line, length, wait in zip(step_lines(US, steps=7), lengths, waits)
    ]
    steps = thread(lambda at: (op(at, 0, 190),), lengths=lengths)
    path = run(tmp_path / "log", [steps], step_lines=[lines])
    rules = [each.rule for each in ppprof.advise(ppprof.open(path))]
    assert "slow-steps" not in rules


def test_a_wait_for_data_is_not_one_for_the_interpreter(tmp_path):
    """Of the 500 in which the training stands still, it waits for data for 480."""
    path = run(tmp_path / "log", [loading(480)], stacks=[beside_a_reader()])
    findings_ = ppprof.advise(ppprof.open(path))
    costs = {each.rule: each.cost_ns for each in findings_}
    assert costs["input-bound"] == 480 * US
    assert costs.get("interpreter-lock", 0) <= 20 * US


@pytest.mark.parametrize(
    ("hosts", "more", "busy", "remedy", "confidence"),
    [
        (("a", "a"), 0, 0.2, "code", "likely"),
        (("a", "b"), 0, 0.2, "code-hosts", "sure"),
        (("a", "b"), 1, 0.2, "code-work", "likely"),
        (("a", "b"), 0, 0.9, "code", "possible"),
        (("a", "b"), 1, 0.9, "code-work", "possible"),
    ],
)
def test_a_slow_rank_is_no_sick_machine(hosts, more, busy, remedy, confidence, tmp_path):
    """Rank 1 takes 900 instead of 500 for as many operators, or for one more of them.

    On a busy machine, 0.7 of the processors are other processes'.
    """
    facts = "all_reduce[axis=dp group=1 bytes=64 dtype=float32 peers=0,1]"

    def rank(until, num):
        return thread(
            lambda at: (
                *(op(at, i * until // num, (i + 1) * until // num) for i in range(num)),
                span("Communication", facts, at + until * US, at + 1000 * US),
            )
        )

    lines = [*beside(0.2), *beside(busy)]
    ranks = [rank(500, 4), rank(900, 4 + more)]
    path = run(tmp_path / "log", ranks, hosts=hosts, step_lines=lines)
    (found,) = (each for each in ppprof.advise(ppprof.open(path)) if each.rule == "slow-rank")
    assert (found.facts["remedy"], found.confidence) == (remedy, confidence)
    for language in ("en", "zh"):
        (row,) = finding_rows([found], language)
        assert ("nvidia-smi -q" in row.do) == (remedy == "code-hosts")
        assert "replace" not in row.do


@pytest.mark.parametrize(("times", "cost_us"), [((1, 3), 640), ((3, 3), None)])
def test_unequal_stages_are_found_if_their_replay_is_inaccurate(times, cost_us, tmp_path):
    """Stage 1 computes for 1920, stage 0 for 640 and waits for longer: equal ones compute for 1280."""
    evidence = collect_evidence_of_run(ppprof.open(run(tmp_path / "log", **stages(*times))))
    inaccurate = evidence.typical.what_if.with_columns(error_ratio=pl.lit(0.2))
    vars(evidence.typical)["what_if"] = inaccurate
    found = [each for each in advise(evidence) if each.rule == "stage-imbalance"]
    costs = [] if cost_us is None else [(pytest.approx(cost_us * US), "possible")]
    assert [(each.cost_ns, each.confidence) for each in found] == costs


@pytest.mark.parametrize(("tokens", "factor"), [(2048, 2.0), (1200, None)])
def test_a_slow_rank_has_longer_samples(tokens, factor, tmp_path):
    """Of its forward pass: the work of gradients is known in some steps only, and optimizers have equal work.

    17% more do not explain why it takes 900 in place of 500.
    """

    def rank(tokens, until):
        products = [
            Shapes({"X0": [[rows, 768]], "X1": [[768, 768]]}, DTYPES) for rows in (tokens, 9999)
        ]

        def make(at):
            yield op(at, 0, 100, "matmul dygraph", products[0])
            update = op(at, 100, 120, "matmul dygraph", products[1])
            yield op(at, 100, 120, "Optimization Step", update, category="Optimization")
            yield op(at, 120, until)
            facts = "all_reduce[axis=dp group=1 bytes=64 dtype=float32 peers=0,1]"
            yield span("Communication", facts, at + until * US, at + 1000 * US)

        return thread(make)

    path = run(tmp_path / "log", [rank(1024, 500), rank(tokens, 900)])
    found = one("slow-rank", ppprof.advise(ppprof.open(path)))
    assert (found.facts["flops_factor"], found.facts["remedy"]) == (
        factor,
        "code-flops" if factor else "code",
    )
    (row,) = finding_rows([found], "en")
    assert ("have 2 times the FLOPs" in row.what) == (factor is not None)


@pytest.mark.parametrize(
    ("tokens", "num", "factor"), [(3072, 1, 3.0), (1024, 1, None), (1024, 3, None)]
)
def test_a_slow_step_has_longer_samples(tokens, num, factor, tmp_path):
    """One of six takes three times as long. With more operators, it does something else, such as to evaluate."""

    def make(at):
        is_slow = at == 3 * 1000 * US
        inputs = Shapes({"X0": [[tokens if is_slow else 1024, 768]], "X1": [[768, 768]]}, DTYPES)
        each = 2970 // num if is_slow else 990
        for number in range(num if is_slow else 1):
            yield op(at, number * each, (number + 1) * each, "matmul dygraph", inputs)

    steps = thread(make, lengths=[1000, 1000, 1000, 3000, 1000, 1000])
    found = one("slow-steps", ppprof.advise(ppprof.open(run(tmp_path / "log", [steps]))))
    assert found.facts["part"] == "computation"
    assert found.facts["flops_factor"] == factor
    assert found.facts.get("remedy", "code") == ("code-flops" if factor else "code")


def test_stages_of_a_schedule_of_ones_own(tmp_path):
    """Passes without numbers, as of a loop with send and recv: stages compute for 1920 and 640 a step, as above."""
    of_stages = stages(1, 3)
    threads = [without_numbers(each) for each in of_stages["threads"]]
    path = run(tmp_path / "log", threads, topology=of_stages["topology"])
    found = one("stage-imbalance", ppprof.advise(ppprof.open(path)))
    facts = found.facts
    assert (facts["stage"], facts["least_stage"], found.confidence) == (1, 0, "possible")
    # With the update, which Computation has, too.
    assert facts["busy_ns"] == 1920 * US + OPTIMIZER_NS
    assert facts["least_busy_ns"] == 640 * US + OPTIMIZER_NS
    assert found.cost_ns == 640 * US  # above the mean of 1280


def without_numbers(each):
    """The spans of a thread, whose passes say no stage and no micro-batch."""
    is_pass = each.name.startswith(("forward[", "backward["))
    name = each.name.partition("[")[0] if is_pass else each.name
    return dataclasses.replace(each, name=name, inside=tuple(map(without_numbers, each.inside)))


def test_stages_without_a_topology_are_no_slow_ranks(tmp_path):
    """Stage 1 has three times the work of stage 0; they send to each other by plain send and recv."""
    made = stages(1, 3)["threads"]
    found = findings(tmp_path, made)
    assert "slow-rank" not in [finding.rule for finding in found]


@pytest.mark.parametrize("rule", NEARLY)
def test_without_a_finding_the_largest_parts_are_named(rule, tmp_path):
    found = findings(tmp_path, **NEARLY[rule])
    assert all(0 <= part.share <= 1 for part in found.largest)
    if not found or found[0].severity == "minor":
        for text in (headline(found), verdict(1e6, found)):
            assert all(
                f"{part.kind} {part.name} {part.share:.1%}" in text for part in found.largest
            )


def test_the_largest_parts_are_without_what_is_in_them(tmp_path):
    """Of 900, a node takes 500 with an operator of 400 in it; Net's Linear takes 300."""

    def make(at):
        linear = op(at, 0, 300, "Linear", op(at, 0, 300, "linear dygraph"), category="Forward")
        yield op(at, 0, 350, "Net", linear, category="Forward")
        inner = op(at, 450, 850, "conv2d_grad dygraph")
        node = op(at, 400, 900, "Dy2StGradNode", inner)
        yield op(at, 400, 900, "Gradient Backward", node, category="Backward")

    largest = findings(tmp_path, [thread(make)]).largest
    assert [(part.kind, part.name, part.share) for part in largest] == [
        ("phase", "Backward", 0.5),
        ("operator", "conv2d_grad dygraph", 0.4),
        ("module", "Net/Linear", 0.3),
    ]


def test_a_closure_that_an_optimizer_calls_is_no_part_of_the_optimization(tmp_path):
    """Of 900 in LBFGS.step, two closures take 600: Forwards of 200, and Backwards of 400 with a sgd."""

    def closure(at, start):
        net = op(at, start, start + 100, "Net", category="Forward")
        inner = op(at, start + 110, start + 120, "sgd dygraph")
        yield from (net, op(at, start + 100, start + 300, "Backward", inner, category="Backward"))

    def make(at):
        inside = (*closure(at, 0), op(at, 320, 370, "sgd dygraph"), *closure(at, 400))
        yield op(at, 0, 900, "Optimization Step", *inside, category="Optimization")

    opened = ppprof.open(run(tmp_path / "log", [thread(make)]))
    profile = Profile(opened.trace(0))
    step = collect_indicators(profile, breakdown(profile)).steps.row(0, named=True)
    assert (step["optimizer_ns"], step["num_updates"]) == (300 * US, 1)
    assert (
        step["num_micro_batches"] == 0
    )  # each closure clears the gradients: nothing is accumulated
    largest = ppprof.advise(opened).largest[0]
    assert (largest.kind, largest.name, largest.share) == ("phase", "Backward", 0.4)


def test_a_backward_in_a_span_is_no_module(tmp_path):
    """Of 900 in the span, Net takes 300 and the Backward 500."""

    def make(at):
        net = op(at, 0, 300, "Net", category="Forward")
        backward = op(at, 400, 900, "Gradient Backward", category="Backward")
        yield op(at, 0, 900, "train_step", net, backward, category="PythonUserDefined")

    largest = findings(tmp_path, [thread(make)]).largest
    assert [(part.kind, part.name, part.share) for part in largest] == [
        ("phase", "Backward", 0.5),
        ("module", "train_step/Net", 0.3),
    ]


@pytest.mark.parametrize(("known", "line"), [(500, [("line", "a.py:4", 0.5)]), (400, [])])
def test_the_line_with_the_largest_part_has_the_gradients_of_its_operators(known, line, tmp_path):
    """Operators of 900 in a step of 1000, and 500 or 400 of it are of a.py:4; else, lines are unknown."""
    here = 'File "a.py", line 4, in <module>'

    def make(at):
        yield op(at, 0, 100, "relu dygraph", Shapes({}, {}, callstack=here))
        yield op(at, 100, known, "tanh dygraph", Shapes({}, {}, callstack=here))
        yield op(at, known, 900, "matmul dygraph")

    largest = findings(tmp_path, [thread(make)]).largest
    assert [(part.kind, part.name, part.share) for part in largest if part.kind == "line"] == line


@pytest.mark.parametrize(
    ("name", "rules"), [("paused: evaluation", set()), ("my evaluation", {"slow-steps"})]
)
def test_a_step_with_a_pause_of_the_training_is_no_slow_step(tmp_path, name, rules):
    def make(at):
        yield op(at, 0, 1000)
        if at == 5000 * US:
            yield span("PythonUserDefined", name, at + 1000 * US, at + 10_000 * US)

    path = run(tmp_path / "log", [thread(make, lengths=[1000] * 5 + [10_000])])
    found = {each.rule for each in ppprof.advise(ppprof.open(path))}
    assert found & {"slow-steps", "unexplained", "beside-training"} == rules


@pytest.mark.parametrize(("stall_us", "is_found"), [(0, True), (900, False)])
def test_a_wait_for_another_ranks_window_is_no_warm_up(tmp_path, stall_us, is_found):
    """Rank 1's first step has a collective of 1200, in which rank 0's window is still being opened."""
    threads = [
        thread(lambda at: (op(at, 0, 900),), lengths=[length, *[1000] * 5])
        for length in (1000, 2200)
    ]
    lines = [step_lines(1000 * US, steps=6) for _ in threads]
    lines[0][0]["stall_ns"], lines[1][0]["stall_ns"] = stall_us * US, 0
    path = run(tmp_path / "log", threads, step_lines=lines)
    rules = {each.rule for each in ppprof.advise(ppprof.open(path))}
    assert ("warm-up" in rules) == is_found
    assert "slow-steps" not in rules


def test_memory_that_only_the_latest_steps_keep_may_wait_for_the_garbage_collector(tmp_path):
    """Steps 0 to 3 of 12 are freed in step 4, as the batches of a loader in reference cycles are."""

    def make(at):
        step, mib = at // (1000 * US), 1 << 20
        changes = [Memory("Allocate", at + 1, mib, addr=mib * step)]
        if step == 4:
            changes += [Memory("Free", at + 2 + n, -mib, addr=mib * n) for n in range(4)]
        yield op(at, 0, 500, "stack dygraph", *changes)

    rules = [finding.rule for finding in findings(tmp_path, [thread(make, num=12)])]
    assert "growing-memory" not in rules


@pytest.mark.parametrize(
    ("lengths", "reason", "factor"),
    [
        ((400, 300, 200), None, 1.8),  # all take 1.8 times as long
        ((620, 170, 110), "matmul dygraph", None),
        ((222, 167, 111), "Net/Linear", None),  # and a pause of 400 in the layer
    ],
)
def test_a_slow_rank_has_a_reason_or_all_of_it_is_slower(lengths, reason, factor, tmp_path):
    """Its peers take 222, 167 and 111 for three operators, and nothing for the pause; all wait until 1000."""
    facts = "all_reduce[axis=dp group=1 bytes=64 dtype=float32 peers=0,1,2]"
    names = ("matmul dygraph", "relu dygraph", "add dygraph")

    def rank(lengths, pause):
        ends = [sum(lengths[: number + 1]) for number in range(3)]

        def make(at):
            for name, end, length in zip(names, ends, lengths):
                yield op(at, end - length, end, name)
            until = ends[-1] + pause
            if pause:
                inner = op(at, ends[-1], until, "Linear", category="Forward")
                yield op(at, ends[-1], until, "Net", inner, category="Forward")
            yield span("Communication", facts, at + until * US, at + 1000 * US)

        return thread(make)

    usual = (222, 167, 111)
    pause = 900 - sum(lengths)
    path = run(tmp_path / "log", [rank(usual, 0), rank(lengths, pause), rank(usual, 0)])
    (found,) = (each for each in ppprof.advise(ppprof.open(path)) if each.rule == "slow-rank")
    assert found.facts["reason"] == reason
    assert found.facts["factor"] == (None if factor is None else pytest.approx(factor, rel=0.01))
    (row,) = finding_rows([found], "en")
    assert ("take 1.8" in row.what) == (factor is not None)
    if reason is not None:
        assert f"most of the excess: {reason}, 400 us more" in row.what or "398 us" in row.what


def test_communication_has_the_line_that_calls_it(tmp_path):
    """The last 200 of each step communicate: 150 of them in one line, 50 in another."""
    stacks = [in_lines((800, FORWARD), (150, BACKWARD), (50, LOGS))] * 2
    path = run(tmp_path / "log", [computing(800), computing(800)], stacks=stacks)
    (finding,) = communication_of(path)
    assert finding.place == ("train.py", 13)
    (row,) = finding_rows([finding], "en")
    assert row.what.endswith(
        "200 us of it is in 1 call of all_reduce a step (of 64 B each, on average) in train.py:13."
    )


THIN = {"X0": [[1, 1024]], "X1": [[1024, 1024]]}


def of_micro_batches(at, *, rows=1, num=4):
    """A product and its gradient of 60 each, and 30 to add to the gradient of the weight."""
    shapes = {**THIN, "X0": [[rows, 1024]]}
    inputs = Shapes(shapes, {"X0": ["float32"], "X1": ["float32"]})
    for begin in range(0, 200 * num, 200):
        forward = op(at, begin, begin + 60, "matmul dygraph", inputs)
        yield op(at, begin, begin + 60, "Linear", forward, category="Forward")
        added = op(at, begin + 160, begin + 190, "Global_GradNodeAccumulation")
        gradient = op(at, begin + 100, begin + 160, "Global_MatmulGradNode", inputs)
        yield op(
            at, begin + 90, begin + 200, "Gradient Backward", gradient, added, category="Backward"
        )
    yield op(at, 900, 990, "Optimization Step", category="Optimization")


@pytest.mark.parametrize(("rows", "cost"), [(1, 4 * (30 + 120 * 1024 / 1026) / 2), (8, 4 * 30 / 2)])
def test_micro_batches_of_few_rows_read_the_weights_each_time(tmp_path, rows, cost):
    """A product of one row takes as long as one of two; what is added is added half as often."""
    found = findings(tmp_path, threads=[thread(lambda at: of_micro_batches(at, rows=rows))])
    finding = one("gradient-accumulation", found)
    assert finding.facts["accumulation_ns"] == 4 * 30 * US
    assert finding.cost_ns == pytest.approx(cost * US, rel=0.01)
    (row,) = finding.evidence.rows()
    assert row == ("Global_GradNodeAccumulation", 4, 4 * 30 * US)


def test_a_single_backward_accumulates_nothing(tmp_path):
    make = thread(lambda at: of_micro_batches(at, num=1))
    rules = [finding.rule for finding in findings(tmp_path, threads=[make])]
    assert "gradient-accumulation" not in rules


@pytest.mark.parametrize(
    ("outside_ms", "inside_ms", "rule"),
    [
        (20, 21.4, None),
        (20, 23, "profiler-overhead"),
        (20, 121, "profiler-overhead"),  # 1000 operators: 101 ms at most
        (20, 122, "unlike-steps"),
        (200, 310, "unlike-steps"),
        (500, 610, "profiler-overhead"),  # a fifth more may be the machine's
        (28, 23, None),
        (29, 23, "unlike-steps"),
    ],
)
def test_what_recording_cannot_explain_is_other_work(tmp_path, outside_ms, inside_ms, rule):
    """Steps of 1000 operators."""
    steps = thread(lambda at: [op(at, number, number + 1) for number in range(1000)], num=10)
    lines = recorded((int(outside_ms * 1000 * US), int(inside_ms * 1000 * US)))
    found = findings(tmp_path, [steps], step_lines=lines)
    names = [each.rule for each in found if each.rule in ("unlike-steps", "profiler-overhead")]
    assert names == ([rule] if rule else [])
    for each in found:
        if each.rule == "profiler-overhead":
            assert each.confidence == ("sure" if inside_ms - outside_ms <= 101 else "possible")


@pytest.mark.parametrize(("waits_us", "is_found"), [(1600, False), (1400, True)])
def test_a_loader_that_reads_ahead_while_a_window_opens_makes_no_other_steps(
    tmp_path, waits_us, is_found
):
    """Steps of 4000 with waits for data, and recorded ones of 1000 without."""
    ((*lines,),) = recorded((4000 * US, 1000 * US))
    waiting = [
        {**line, "reader_cost_ns": 0 if line["window"] == 0 else waits_us * US} for line in lines
    ]
    rules = {each.rule for each in findings(tmp_path, [loading(1)], step_lines=[waiting])}
    assert ("unlike-steps" in rules) == is_found


@pytest.mark.parametrize(
    ("window", "proposed"),
    [(range(24, 30), (12, 22)), (range(14, 34), (34, 40)), (range(30, 40), (15, 25))],
)
def test_other_steps_to_record_are_neither_recorded_ones_nor_beyond_the_last(
    tmp_path, window, proposed
):
    lines = [
        {**line, "window": 0 if line["step"] in window else None}
        for line in step_lines(4000 * US, steps=40, noise=0)
    ]
    for number in window:
        lines[number]["batch_cost_ns"] = 1000 * US
    found = one("unlike-steps", findings(tmp_path, [loading(1)], step_lines=[lines]))
    assert (found.facts["later"], found.facts["later_end"]) == proposed


def test_steps_beside_another_job_may_be_as_long_as_others(tmp_path):
    ((*lines,),) = recorded((200 * 1000 * US, 10 * 1000 * US))
    load = {"processors_busy_ratio": 0.95, "processors_own_ratio": 0.2}
    busy = [[{**line, **load, "processor_wait_ns": 900 * US} for line in lines]]
    rules = {each.rule for each in findings(tmp_path, [loading(1)], step_lines=busy)}
    assert "busy-machine" in rules
    assert "unlike-steps" not in rules
