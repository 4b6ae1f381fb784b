"""Lines beside the training: which time is theirs, which line is named, and what a gap is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

import ppprof
from ppprof.analysis.advice.beside import beside_training
from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.advice.own_lines import starts_beside
from ppprof.analysis.advice.unexplained import host_time
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import sampled_steps
from ppprof.report.text.advice import headline, render_findings, verdict
from ppprof.rundir.operator_calls import RUN_BACKWARD, Backward, Node, OperatorCalls, Signature
from ppprof.rundir.python_stacks import Frame, PythonStacks
from ppprof.trace import read
from tests.fixtures.findings import (
    AFTER,
    BACKWARD,
    DUMPS,
    FORWARD,
    LOGS,
    UPDATE,
    US,
    beside,
    calls_of_teaching,
    collecting,
    in_lines,
    logging,
    op,
    teaching,
    thread,
    training,
    training_step,
)
from tests.fixtures.run_directories import run, step_lines
from tests.fixtures.timeline import EPOCH_NS, Shapes, Span, Thread, span, write

LOG = "train.py:7, log(): file.write(json.dumps(weights))"
NO_BUBBLES = pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64})


def lines(
    folder: Path, thread: Thread | tuple[Thread, ...], stacks: PythonStacks
) -> dict[str, int]:
    """Return the us of each line in all steps."""
    threads = thread if isinstance(thread, tuple) else (thread,)
    profile = Profile(dataclasses.replace(read(write(folder / "a.pb", *threads)), stacks=stacks))
    beside = host_time(profile, NO_BUBBLES).beside
    sums = beside.group_by("name").agg(pl.col("dur_ns").sum() // US)
    return dict(sums.sort("name").iter_rows())


@pytest.mark.parametrize("until", [750, 900])
def test_a_line_that_has_most_of_the_time_is_named_and_the_rest_is_its_callers(
    tmp_path: Path, until: int
) -> None:
    """From 450 in log(), then in the line that calls it: 55% or 82% are log's."""
    assert lines(tmp_path, training(450), logging(until)) == {
        LOG: 6 * (until - 450),
        "train.py:15: log(step)": 6 * (1000 - until),
    }


def test_the_caller_is_named_if_no_line_has_most_of_the_time(tmp_path: Path) -> None:
    """450 to 700 in log(), 300 in the line that calls it."""
    assert lines(tmp_path, training(450), logging(700)) == {"train.py:15: log(step)": 6 * 550}


@pytest.mark.parametrize(
    ("within", "functions"),
    [
        (
            {"cut": 200, "mix": 150, "fit": 100},
            [("train.py, cut()", 200), ("train.py, mix()", 150)],
        ),
        ({"cut": 150}, []),  # 300 of 450 are in the line itself
    ],
)
def test_the_functions_are_named_that_a_line_has_most_of_its_time_in(
    within: dict[str, int], functions: list[tuple[str, int]], tmp_path: Path
) -> None:
    """450 of 1000 are beside the training, below the line of log(), and in no line most of it."""
    own_us = 450 - sum(within.values())
    calls = [(length, 6 + number) for number, length in enumerate(within.values())]
    stacks = in_lines((550, FORWARD), *calls, (own_us, LOGS))
    frames = [
        Frame("__main__", "train.py", name, 30 + row, is_own=True)
        for row, name in enumerate(within)
    ]
    rows = [len(stacks.frames) + number for number in range(len(frames))]
    stacks = dataclasses.replace(
        stacks,
        frames=[*stacks.frames, *frames],
        stacks=[*stacks.stacks, *([row, *stacks.stacks[LOGS]] for row in rows)],
    )
    path = run(tmp_path / "log", [training(550)], stacks=[stacks])
    (finding,) = [
        each for each in ppprof.advise(ppprof.open(path)) if each.rule == "beside-training"
    ]
    names = [name for name in ("function_1", "function_2") if finding.facts[name]]
    found = [(finding.facts[name], finding.facts[f"{name}_ns"]) for name in names]
    assert finding.facts["line"] == LOG
    assert found == [(name, pytest.approx(time * US)) for name, time in functions]


def test_lines_take_no_more_than_the_time_beside_the_training(tmp_path: Path) -> None:
    """All 24 samples are of log(), by chance: they miss the 450 of each step that train."""
    stacks = in_lines((450, FORWARD), (550, DUMPS), every=50)
    samples = stacks.samples.copy()
    samples = samples[samples[:, 3] == samples[-1, 3]]
    samples[:, 2] *= 20
    assert lines(tmp_path, training(450), dataclasses.replace(stacks, samples=samples)) == {
        LOG: pytest.approx(6 * 550, abs=len(samples))
    }


def test_lines_take_all_time_beside_the_training(tmp_path: Path) -> None:
    """dumps() kept the lock in three of six steps, whose samples came late: in the next forward."""
    stacks = in_lines((450, FORWARD), (550, DUMPS))
    samples = stacks.samples.copy()
    step = (samples[:, 1] - EPOCH_NS) // (1000 * US)
    is_late = (samples[:, 3] == DUMPS) & (step % 2 == 0)
    samples[is_late, 1] = EPOCH_NS + (step[is_late] + 1) * 1000 * US
    samples[is_late, 3] = FORWARD
    found = lines(tmp_path, training(450), dataclasses.replace(stacks, samples=samples))
    assert found == {LOG: pytest.approx(6 * 550, abs=3 * 11)}


def test_a_sample_that_was_due_in_the_step_before_is_of_no_line(tmp_path: Path) -> None:
    """Behind the training, from 550 on, ppprof keeps the lock until the next step begins, in dumps()."""
    stacks = in_lines((100, DUMPS), (450, FORWARD), (450, DUMPS))
    samples = stacks.samples.copy()
    due = (samples[:, 1] - EPOCH_NS) % (1000 * US)
    late = np.where(due > 550 * US, 1000 * US - due, 0)
    samples[:, 1] += late
    samples[:, 4] = late
    steps = thread(lambda start: training_step(start + 100 * US, 450))
    found = lines(tmp_path, steps, dataclasses.replace(stacks, samples=samples))
    assert found == {LOG: 6 * 100}


@pytest.mark.parametrize(("due", "taken"), [(525, 600), (25, 535)])
def test_a_sample_that_missed_the_line_that_keeps_the_lock_says_nothing(
    tmp_path: Path, due: int, taken: int
) -> None:
    """dumps() keeps the lock until 550, or until 530; the sample finds the line of the layers, which follows."""
    stacks = in_lines((550, DUMPS), (450, FORWARD))
    samples = stacks.samples.copy()
    missed = (samples[:, 1] - EPOCH_NS) % (1000 * US) == due * US
    samples[missed, 1] += (taken - due) * US
    samples[missed, 3], samples[missed, 4] = FORWARD, (taken - due) * US
    steps = thread(lambda start: training_step(start + 550 * US, 450))
    found = lines(tmp_path, steps, dataclasses.replace(stacks, samples=samples))
    assert found == {LOG: pytest.approx(6 * 550, abs=6 * 11)}


def in_functions(lengths: list[tuple[int, list[Frame]]]) -> PythonStacks:
    """As `in_lines`, of stacks of the loop's line and of the frames that it calls, the innermost first."""
    stacks = in_lines(*((length, row) for row, (length, _) in enumerate(lengths)))
    frames = [*stacks.frames]
    rows = []
    for row, (_, called) in enumerate(lengths):
        rows.append([*range(len(frames), len(frames) + len(called)), min(row, AFTER - 2)])
        frames += called
    return dataclasses.replace(stacks, frames=frames, stacks=rows)


def test_an_evaluation_is_named_and_not_the_model_that_the_training_calls_too(
    tmp_path: Path,
) -> None:
    """NNBBU, then evaluate() calls the model of the training from 450 on."""
    model = Frame("__main__", "train.py", "Net.forward", 5, True)
    evaluate = Frame("__main__", "train.py", "evaluate", 30, True)
    stacks = in_functions([(450, [model]), (550, [model, evaluate])])
    assert lines(tmp_path, training(450), stacks) == {"train.py:30, evaluate()": 6 * 550}


@pytest.mark.parametrize("node", ["Global_GradNodePyLayer_Mish", "Global_GradNodeAccumulation"])
def test_what_a_pylayer_or_a_hook_does_itself_is_beside_the_training(
    tmp_path: Path, node: str
) -> None:
    """NNBBBBBBBBUU: a Backward of 500, 400 of it in the user's PyLayer.backward or hook, which calls one operator of 50."""
    in_numpy = [Frame("numpy", "/lib/numpy.py", "exp", 1, False), mish(20)]
    stacks = in_functions(
        [
            (200, []),
            (100, []),
            (100, in_numpy),
            (250, [mish(21)]),
            (50, [mish(22)]),
            (300, []),
        ]
    )
    stacks.stacks[1:5] = [[*stack[:-1], BACKWARD] for stack in stacks.stacks[1:5]]
    stacks.stacks[5] = [UPDATE]

    def step(at: int) -> Iterator[Span]:
        yield op(at, 0, 200, "Net", op(at, 0, 200), category="Forward")
        nodes = (
            op(at, 200, 300, "Global_MatmulGradNode", op(at, 200, 300, "Local_MatmulGradNode")),
            op(at, 300, 700, node, op(at, 650, 700)),
        )
        yield op(at, 200, 700, "Gradient Backward", *nodes, category="Backward")
        yield op(at, 700, 1000, "Optimization Step", op(at, 700, 1000), category="Optimization")

    assert lines(tmp_path, thread(step), stacks) == {
        "mish.py:20, backward()": 6 * 100,
        "mish.py:21, backward()": 6 * 250,
    }
    folder = run(tmp_path / "log", [thread(step)], stacks=[stacks])
    (found,) = [f for f in ppprof.advise(ppprof.open(folder)) if f.rule == "beside-training"]
    assert found.cost_ns == 350 * US
    assert found.facts["line"] == "mish.py:21, backward()"
    assert found.facts["statement"] == "mish.py, Mish.backward()"


def mish(line: int) -> Frame:
    return Frame("mish", "mish.py", "Mish.backward", line, True)


@pytest.mark.parametrize("line", [FORWARD, DUMPS])
def test_time_of_the_training_is_nobodys(tmp_path: Path, line: int) -> None:
    assert lines(tmp_path, training(1000), in_lines((1000, line))) == {}


def test_a_line_that_also_trains_is_not_named(tmp_path: Path) -> None:
    assert lines(tmp_path, training(450), in_lines((1000, FORWARD))) == {}


def test_a_loop_that_trains_in_six_percent_of_its_time_is_not_named(tmp_path: Path) -> None:
    """Line 15 is model.fit(): all training is in it, and a callback that takes the rest."""
    stacks = in_lines((60, AFTER), (940, DUMPS), every=20)
    assert lines(tmp_path, training(60), stacks) == {LOG: 6 * 940}


@pytest.mark.parametrize(
    "function",
    ["Optimizer.clear_grad", "clip_grad_norm_", "clip_grad_value_", "AmpScaler._unscale"],
)
def test_clearing_and_clipping_gradients_trains(function: str, tmp_path: Path) -> None:
    stacks = calling_dumps(function)
    assert lines(tmp_path, training(450), stacks) == {}
    trace = dataclasses.replace(read(tmp_path / "a.pb"), stacks=stacks)
    assert host_time(Profile(trace), NO_BUBBLES).gaps.is_empty()


def test_noted_clearing_of_gradients_trains_if_samples_miss_it(tmp_path: Path) -> None:
    """Gradients are cleared from 450 to 980. That keeps the lock: samples find the line behind it, where time is short."""
    stacks = in_lines((450, FORWARD), (530, DUMPS), (20, DUMPS))
    samples = stacks.samples.copy()
    at_us = (samples[:, 1] - EPOCH_NS) % (1000 * US) // US
    late_us = np.where((at_us > 450) & (at_us < 980), 980 - at_us, 0)
    samples[:, 1] += late_us * US
    samples[:, 4] = late_us * US
    stacks = dataclasses.replace(stacks, samples=samples)
    ends = [EPOCH_NS + (1000 * step + 980) * US for step in range(6)]
    clears = np.array([(1, end, 530 * US, -1, 0) for end in ends], np.int64)
    trace = read(write(tmp_path / "a.pb", training(450)))

    def gaps(stacks: PythonStacks) -> pl.DataFrame:
        return host_time(Profile(dataclasses.replace(trace, stacks=stacks)), NO_BUBBLES).gaps

    assert gaps(stacks).height == 6
    assert gaps(dataclasses.replace(stacks, clears=clears)).is_empty()


def calling_dumps(function: str, module: str = "json") -> PythonStacks:
    """The lines of `training` until 450, and log() from then on, which calls another function than dumps()."""
    stacks = in_lines((450, FORWARD), (550, DUMPS))
    frames = [
        msgspec.structs.replace(each, module=module, function=function)
        if each.function == "dumps"
        else each
        for each in stacks.frames
    ]
    return dataclasses.replace(stacks, frames=frames)


@pytest.mark.parametrize(
    ("function", "module", "remedy"),
    [
        ("ProgramCache._build_once", "paddle.jit.dy2static.program_translator", "code-compile"),
        ("_build_once", "paddle.jit.dy2static.program_translator", "code-compile"),  # Python 3.10
        ("_build_once", "setuptools.build", "code"),
        ("dumps", "json", "code"),
    ],
)
def test_a_line_in_which_to_static_compiles_again_has_a_proposal_of_its_own(
    tmp_path: Path, function: str, module: str, remedy: str
) -> None:
    stacks = [calling_dumps(function, module)]
    folder = run(tmp_path / "log", [training(450)], stacks=stacks)
    first, *_ = ppprof.advise(ppprof.open(folder))
    assert (first.rule, first.facts["remedy"]) == ("beside-training", remedy)


def test_a_line_that_trains_is_named_for_the_time_in_which_it_compiles(tmp_path: Path) -> None:
    """The layers run until 450; from then on, in the same line, ``to_static`` compiles the next program."""
    stacks = in_lines((450, FORWARD), (550, DUMPS))
    compiling = Frame("paddle.jit.dy2static", "paddle/jit.py", "_build_once", 1, False)
    rows = [*stacks.stacks]
    rows[DUMPS] = (len(stacks.frames), *rows[FORWARD])
    stacks = dataclasses.replace(stacks, frames=[*stacks.frames, compiling], stacks=rows)
    found = lines(tmp_path, training(450), stacks)
    assert list(found.values()) == [6 * 550]
    assert lines(tmp_path, training(450), in_lines((1000, FORWARD))) == {}


def test_steps_that_train_for_longer_are_no_trouble(tmp_path: Path) -> None:
    """Every third step trains on more: with samples, a line would be named for anything else."""
    lengths = [5000 if step % 3 == 2 else 1000 for step in range(12)]
    at_start = {sum(lengths[:step]) * US: length for step, length in enumerate(lengths)}
    steps = thread(lambda at: training_step(at, at_start[at]), lengths=lengths)
    stacks = in_lines((1000, FORWARD), num=28)
    findings = ppprof.advise(ppprof.open(run(tmp_path, [steps], stacks=[stacks])))
    (finding,) = (each for each in findings if each.rule == "slow-steps")
    assert (finding.facts["part"], finding.severity) == ("computation", "minor")


@pytest.mark.parametrize("is_evaluation", [True, False])
def test_a_layer_without_gradients_ahead_of_a_backward_is_beside_the_training_if_it_evaluates(
    tmp_path: Path, is_evaluation: bool
) -> None:
    """
    ::

        Teacher Net Backward Optimization
        ^eval() ^train()
    """
    stacks = in_lines((300, AFTER), (700, FORWARD))
    ends = [EPOCH_NS + (1000 * step + 300) * US for step in range(6)]
    rows = np.array([(1, end, 300 * US, -1, 0) for end in ends], np.int64)
    if is_evaluation:
        stacks = dataclasses.replace(stacks, evaluations=rows)
    path = run(tmp_path / "log", [teaching()], stacks=[stacks], calls=[calls_of_teaching()])
    (finding,) = (each for each in ppprof.advise(ppprof.open(path)) if each.facts.get("line"))
    assert finding.cost_ns == pytest.approx(300 * US, rel=0.02)
    rule = "beside-training" if is_evaluation else "without-gradients"
    assert (finding.rule, finding.severity) == (rule, "major" if is_evaluation else "minor")


@pytest.mark.parametrize("name", ["matmul dygraph", "pd_op.matmul"])
@pytest.mark.parametrize(
    ("evaluations", "is_found"),
    [
        ([(0, 300)], True),
        ([(0, 700)], False),
        ([(0, 300), (0, 700)], True),  # the other is of a GAN's discriminator, which is not trained
        ([(0, 300), (300, 700)], True),  # then an attack, as from a second eval() on
    ],
)
def test_an_evaluation_ahead_of_a_backward_of_unknown_operators_is_beside_the_training(
    tmp_path: Path, name: str, evaluations: list[tuple[int, int]], is_found: bool
) -> None:
    """With a Backward ahead of ``train()``, the layer is trained as it is.

    ::

        Net       Net       Backward  Optimization
        0         300       500       700
        ^eval()   ^train()            ^or only here
    """

    def make(at: int) -> Iterator[Span]:
        yield op(at, 0, 300, "Net", op(at, 0, 300, name), category="Forward")
        yield op(at, 300, 500, "Net", op(at, 300, 500, name), category="Forward")
        node = op(at, 500, 700, "Global_MatmulGradNode")
        yield op(at, 500, 700, "Gradient Backward", node, category="Backward")
        yield op(at, 700, 1000, "Optimization Step", op(at, 700, 1000), category="Optimization")

    rows = [
        (1, EPOCH_NS + (1000 * step + end) * US, (end - start) * US, -1, 0)
        for step in range(6)
        for start, end in evaluations
    ]
    stacks = in_lines((300, AFTER), (200, FORWARD), (200, BACKWARD), (300, UPDATE))
    stacks = dataclasses.replace(stacks, evaluations=np.array(rows, np.int64))
    expected = {"train.py:15: log(step)": 6 * 300} if is_found else {}
    assert lines(tmp_path, thread(make), stacks) == expected


def test_noise_for_a_layer_without_gradients_is_of_it(tmp_path: Path) -> None:
    """Of line 15: the layer is a sixth of it."""
    stacks = in_lines((300, AFTER), (700, FORWARD))
    calls = [calls_of_teaching()]
    path = run(tmp_path / "log", [teaching(noise=250)], stacks=[stacks], calls=calls)
    (finding,) = (each for each in ppprof.advise(ppprof.open(path)) if each.facts.get("line"))
    assert (finding.rule, finding.cost_ns) == ("without-gradients", pytest.approx(300 * US))


def test_the_function_that_computes_without_gradients_is_named(tmp_path: Path) -> None:
    """Line 15 calls a loss, whose hard samples are chosen in soften()."""
    stacks = in_lines((300, AFTER), (700, FORWARD))
    frames, rows = [*stacks.frames, soften(3)], [*stacks.stacks]
    rows[AFTER] = [len(stacks.frames), *rows[AFTER]]
    stacks = dataclasses.replace(stacks, frames=frames, stacks=rows)
    calls = [calls_of_teaching()]
    path = run(tmp_path / "log", [teaching(noise=250)], stacks=[stacks], calls=calls)
    (finding,) = (each for each in ppprof.advise(ppprof.open(path)) if each.facts.get("line"))
    assert finding.facts["line"] == "train.py:15: log(step)"
    assert finding.facts["function"] == "loss.py:3, soften()"


@pytest.mark.parametrize("is_operator", [False, True])
def test_python_between_layers_without_gradients_is_a_line_of_its_own(
    tmp_path: Path, is_operator: bool
) -> None:
    """Line 15 is collect(): a policy's layers, and a simulator in Python or an operator such as noise.

    ::

        Policy    simulator Net       Backward  Optimization
        0         250       450       600       750
    """

    def make(at: int) -> Iterator[Span]:
        yield op(at, 0, 250, "Policy", op(at, 0, 250), category="Forward")
        if is_operator:
            yield op(at, 250, 450, "gaussian dygraph")
        yield op(at, 450, 600, "Net", op(at, 450, 600), category="Forward")
        node = op(at, 600, 750, "Global_MatmulGradNode")
        yield op(at, 600, 750, "Gradient Backward", node, category="Backward")
        yield op(at, 750, 1000, "Optimization Step", op(at, 750, 1000), category="Optimization")

    rows = [
        (1, EPOCH_NS + (1000 * step + start) * US, EPOCH_NS + (1000 * step + end) * US, row, -1)
        for step in range(6)
        for row, (start, end) in enumerate(((0, 250), (450, 600), (600, 750)))
    ]
    signatures = [Signature(name, {}, {}, {}) for name in ("matmul", "matmul", RUN_BACKWARD)]
    nodes = [Backward(3 * n + 2, [Node("MatmulGradNode", 3 * n + 1, 1)]) for n in range(6)]
    calls = OperatorCalls(signatures, [], np.array(rows, np.int64), nodes)
    collects = [Frame("rollout", "rollout.py", "collect", line, True) for line in (3, 4)]
    simulates = Frame("env", "env.py", "simulate", 7, True)
    called = [[collects[0]], [simulates, collects[1]], [], [], []]
    stacks = in_functions(list(zip((250, 200, 150, 150, 250), called)))
    loop = (AFTER - 2, AFTER - 2, FORWARD, BACKWARD, UPDATE)
    stacks.stacks[:] = [[*each[:-1], line] for each, line in zip(stacks.stacks, loop)]
    path = run(tmp_path / "log", [thread(make)], stacks=[stacks], calls=[calls])
    found = {each.rule: each for each in ppprof.advise(ppprof.open(path)) if each.facts.get("line")}
    without = found.pop("without-gradients")
    assert without.cost_ns == pytest.approx((450 if is_operator else 250) * US, rel=0.02)
    assert len(found) == (not is_operator)
    if not is_operator:
        assert found["beside-training"].facts["line"] == "env.py:7, simulate()"
        assert found["beside-training"].cost_ns == pytest.approx(200 * US, rel=0.02)


@pytest.mark.parametrize("of_a_line", [False, True])
def test_a_teacher_that_loops_over_tokens_is_one_finding(tmp_path: Path, of_a_line: bool) -> None:
    """TTFFBBU: 75 or 300 small operators in 300 without gradients, which line 15 calls."""
    num = 300 if of_a_line else 75
    stack = [Shapes({}, callstack='File "train.py", line 30, in forward')] * of_a_line
    each = 300 // num

    def make(at: int) -> Iterator[Span]:
        parts = [op(at, each * i, each * (i + 1), "slice dygraph", *stack) for i in range(num)]
        yield op(at, 0, 300, "Teacher", *parts, category="Forward")
        yield op(at, 300, 500, "Net", op(at, 300, 500), category="Forward")
        node = op(at, 500, 700, "Global_MatmulGradNode")
        yield op(at, 500, 700, "Gradient Backward", node, category="Backward")
        yield op(at, 700, 1000, "Optimization Step", op(at, 700, 1000), category="Optimization")

    times = [(each * i, each * (i + 1), 0) for i in range(num)]
    times += [(300, 500, 1), (500, 700, 2)]
    rows = [
        (1, EPOCH_NS + (1000 * step + start) * US, EPOCH_NS + (1000 * step + end) * US, row, -1)
        for step in range(6)
        for start, end, row in times
    ]
    nodes = [
        Backward(n * len(times) + num + 1, [Node("MatmulGradNode", n * len(times) + num, 1)])
        for n in range(6)
    ]
    signatures = [Signature(name, {}, {}, {}) for name in ("slice", "matmul", RUN_BACKWARD)]
    calls = OperatorCalls(signatures, [], np.array(rows, np.int64), nodes)
    stacks = in_lines((300, AFTER), (700, FORWARD))
    path = run(tmp_path / "log", [thread(make)], stacks=[stacks], calls=[calls])
    found = [(f.rule, f.cost_ns) for f in ppprof.advise(ppprof.open(path)) if f.share]
    assert found == [("without-gradients", pytest.approx(300 * US, rel=0.02))]


def gradients(step: int, start: int, end: int) -> Span:
    return op(1000 * US * step, start, end, "Global_MatmulGradNode")


def test_a_layer_may_have_gradients_in_a_later_step(tmp_path: Path) -> None:
    """No operator of the second Backward is known: its layers were in the step before.

    ::

        Teacher Net Backward Optimization Backward
    """
    steps = []
    for number, each in enumerate(teaching().inside):
        later = span("Backward", "Gradient Backward", each.end - 100 * US, each.end)
        steps.append(each.around(later.around(gradients(number, 900, 1000))))
    assert not lines_beside_teaching(tmp_path, steps)


def test_gradients_in_no_backward_train(tmp_path: Path) -> None:
    """Of ``paddle.grad``, which Paddle records no event of.

    ::

        gradients Net Backward Optimization
    """
    steps = [
        dataclasses.replace(each, inside=(gradients(number, 0, 300), *each.inside[1:]))
        for number, each in enumerate(teaching().inside)
    ]
    assert not lines_beside_teaching(tmp_path, steps)


def test_a_layer_without_gradients_ahead_of_known_gradients_in_no_backward(tmp_path: Path) -> None:
    """
    ::

        Teacher Net gradients accumulation Optimization
    """
    steps = []
    for number, each in enumerate(teaching().inside):
        teacher, net, _, update = each.inside
        adds = op(1000 * US * number, 600, 700, "Global_GradNodeAccumulation")
        inside = teacher, net, gradients(number, 500, 600), adds, update
        steps.append(dataclasses.replace(each, inside=inside))
    calls = calls_of_teaching()
    accumulation = Node("GradNodeAccumulation", -1, 0)
    runs = [Backward(each.call, [*each.nodes, accumulation]) for each in calls.backwards]
    calls = dataclasses.replace(calls, backwards=runs)
    (finding,) = lines_beside_teaching(tmp_path, steps, calls)
    assert (finding.rule, finding.cost_ns) == ("without-gradients", pytest.approx(300 * US))


@pytest.mark.parametrize(
    ("name", "node", "is_found"),
    [
        ("matmul dygraph", "", True),
        ("matmul dygraph", "Global_GradNodePyLayer_Mish", False),
        ("pd_op.matmul", "", False),
        ("Global_MatmulGradNode", "", False),
        ("all_reduce", "", False),
    ],
)
def test_operators_of_a_layer_that_have_no_gradients_are_found_in_it(
    tmp_path: Path, name: str, node: str, is_found: bool
) -> None:
    """NNNnnBBU: a layer of 500; in its first 300, 6 of 40 compute a norm of the weights under no_grad.

    They may be those of a ``PyLayer.forward``, of a program, of ``paddle.grad``, or wait for other ranks.
    """
    kind = "Communication" if name == "all_reduce" else "Operator"

    def step(at: int) -> Iterator[Span]:
        norm = [op(at, 50 * i, 50 * i + 40, name, category=kind) for i in range(6)]
        yield op(at, 0, 500, "Net", *norm, op(at, 300, 500), category="Forward")
        nodes = [op(at, 500, 690, "Global_MatmulGradNode")]
        nodes += [op(at, 690, 700, node)] if node else []
        yield op(at, 500, 700, "Gradient Backward", *nodes, category="Backward")
        yield op(at, 700, 1000, "Optimization Step", op(at, 700, 1000), category="Optimization")

    names = [*["matmul"] * 7, RUN_BACKWARD]
    times = [*((50 * i, 50 * i + 40) for i in range(6)), (300, 500), (500, 700)]
    rows = [
        (1, EPOCH_NS + (1000 * number + start) * US, EPOCH_NS + (1000 * number + end) * US, row, -1)
        for number in range(6)
        for row, (start, end) in enumerate(times)
    ]
    nodes = [Backward(8 * n + 7, [Node("MatmulGradNode", 8 * n + 6, 1)]) for n in range(6)]
    signatures = [Signature(name, {}, {}, {}) for name in names]
    calls = OperatorCalls(signatures, [], np.array(rows, np.int64), nodes)
    norms = [Frame("net", "net.py", "spectral_norm", 12, True), forward(28)]
    stacks = in_functions([(300, norms), (200, [forward(30)]), (200, []), (300, [])])
    stacks.stacks[:] = [
        [*stacks.stacks[0][:-1], FORWARD],
        [*stacks.stacks[1][:-1], FORWARD],
        [BACKWARD],
        [UPDATE],
    ]
    path = run(tmp_path / "log", [thread(step)], stacks=[stacks], calls=[calls])
    findings = ppprof.advise(ppprof.open(path))
    all_found = [f for f in findings if f.rule == "without-gradients"]
    assert bool(all_found) == is_found
    if not is_found:
        return
    (found,) = all_found
    assert found.facts["line"] == "net.py:28, forward()"
    look = "orth a look: 29% net.py:28, forward() computes without gradients"
    assert f" W{look}. Largest: " in headline(findings)
    assert f"nothing above minor; w{look}; largest: " in verdict(1000 * US, findings)
    assert found.cost_ns == pytest.approx(300 * US, rel=0.04)
    path = run(tmp_path / "unknown", [thread(step)], stacks=[stacks])
    assert "without-gradients" not in [f.rule for f in ppprof.advise(ppprof.open(path))]


def forward(line: int) -> Frame:
    return Frame("net", "net.py", "Net.forward", line, True)


def lines_beside_teaching(
    folder: Path, steps: list[Span], calls: OperatorCalls | None = None
) -> list[Finding]:
    stacks = in_lines((300, AFTER), (700, FORWARD))
    threads = [Thread(1, "main", tuple(steps))]
    path = run(folder / "log", threads, stacks=[stacks], calls=[calls or calls_of_teaching()])
    return [each for each in ppprof.advise(ppprof.open(path)) if each.facts.get("line")]


def test_an_evaluation_behind_the_update_is_beside_the_training(tmp_path: Path) -> None:
    """
    ::

        Net Backward Optimization Teacher
    """

    def behind(at: int) -> Iterator[Span]:
        yield from training_step(at, 600)
        yield op(at, 600, 900, "Teacher", op(at, 600, 900), category="Forward")

    stacks = in_lines((600, FORWARD), (300, AFTER), (100, FORWARD))
    path = run(tmp_path / "log", [thread(behind)], stacks=[stacks])
    (finding,) = (each for each in ppprof.advise(ppprof.open(path)) if each.facts.get("line"))
    assert (finding.rule, finding.severity) == ("beside-training", "major")


def test_a_program_of_to_static_trains_on_threads_of_its_executor(tmp_path: Path) -> None:
    """
    ::

        steps     waits     Backward   Optimization   log()
        executor  pd_op.x
        0         300       400        500            1000
    """
    steps, programs = [], []
    for number in range(6):
        at = 1000 * US * number
        inside = phase(number, "Backward", 300, 400), phase(number, "Optimization", 400, 500)
        steps.append(span("ProfileStep", f"ProfileStep#{number}", at, at + 1000 * US, *inside))
        programs.append(span("Operator", "pd_op.matmul", at, at + 300 * US))
    threads = Thread(1, "main", tuple(steps)), Thread(2, "executor", tuple(programs))
    lengths = (300, FORWARD), (100, BACKWARD), (100, UPDATE), (500, DUMPS)
    assert lines(tmp_path, threads, in_lines(*lengths)) == {LOG: 6 * 500}


def test_a_static_graph_trains_while_its_executor_runs(tmp_path: Path) -> None:
    """
    ::

        steps     [StandaloneExecutor::run] log()
        executor            matmul
        0                   400       500   1000
    """
    steps, programs = [], []
    for number in range(6):
        at = 1000 * US * number
        run = span("UserDefined", "StandaloneExecutor::run", at, at + 500 * US)
        steps.append(span("ProfileStep", f"ProfileStep#{number}", at, at + 1000 * US, run))
        programs.append(span("Operator", "matmul", at + 400 * US, at + 500 * US))
    threads = Thread(1, "main", tuple(steps)), Thread(2, "executor", tuple(programs))
    assert lines(tmp_path, threads, in_lines((500, FORWARD), (500, DUMPS))) == {LOG: 6 * 500}


@pytest.mark.parametrize("run", ["interpreter_core_run", "StandaloneExecutor::run"])
def test_a_program_that_waits_for_its_threads_trains(tmp_path: Path, run: str) -> None:
    """
    ::

        steps     Net [run                    ] Backward   Optimization   log()
        executor                  pd_op.x
        0                         1950         2000       2100            2200 to 3000
    """
    steps, programs = [], []
    for number in range(6):
        at = 3000 * US * number
        program = span("UserDefined", run, at, at + 2000 * US)
        net = span("Forward", "Net", at, at + 2000 * US).around(program)
        phases = [
            span(name, name, at + begin * US, at + end * US)
            for name, begin, end in (("Backward", 2000, 2100), ("Optimization", 2100, 2200))
        ]
        steps.append(span("ProfileStep", f"ProfileStep#{number}", at, at + 3000 * US, net, *phases))
        programs.append(span("Operator", "pd_op.matmul", at + 1950 * US, at + 2000 * US))
    path = write(
        tmp_path / "a.pb",
        Thread(1, "main", tuple(steps)),
        Thread(2, "executor", tuple(programs)),
    )
    gaps = host_time(Profile(read(path)), NO_BUBBLES).gaps
    assert gaps.select("name", "time_ns").unique().rows() == [
        ("step, after Optimization", 800 * US)
    ]


@pytest.mark.parametrize(("others_ratio", "num"), [(0.0, 1), (0.5, 0)])
def test_few_samples_on_a_busy_machine_are_no_finding(
    tmp_path: Path, others_ratio: float, num: int
) -> None:
    """6 samples of 60, one in each step."""
    stacks = in_lines((900, FORWARD), (100, DUMPS), every=100)
    load = {"processors_busy_ratio": 1.0, "processors_own_ratio": 1.0 - others_ratio}
    times = [{**line, **load, "window": 0} for line in step_lines(1000 * US, steps=6, noise=0)]
    folder = run(tmp_path / "log", [training(900)], stacks=[stacks], step_lines=[times])
    found = [each.rule for each in ppprof.advise(ppprof.open(folder))]
    assert found.count("beside-training") == num


@pytest.mark.parametrize(("waited", "first"), [(0.3, "beside-training"), (0.4, "busy-machine")])
def test_a_step_that_mostly_waits_for_a_processor_questions_all_findings(
    tmp_path: Path, waited: float, first: str
) -> None:
    folder = run(
        tmp_path / "log",
        [training(450)],
        stacks=[in_lines((450, FORWARD), (550, DUMPS))],
        step_lines=beside(1.0, waited),
    )
    found = ppprof.advise(ppprof.open(folder))
    assert (found[0].rule, found[0].severity) == (first, "major")
    assert {"busy-machine", "beside-training"} <= {each.rule for each in found}


def test_few_samples_name_the_gap_but_are_no_time_of_a_line(tmp_path: Path) -> None:
    stacks = in_lines((500, FORWARD), (500, LOGS), every=500)
    kept = dataclasses.replace(stacks, samples=stacks.samples[:6])
    folder = run(tmp_path / "log", [training(450)], stacks=[kept])
    (finding,) = (one for one in ppprof.advise(ppprof.open(folder)) if one.facts.get("gap"))
    assert (finding.rule, finding.facts["gap"]) == ("unexplained", LOG)
    assert finding.cost_ns == pytest.approx(550 * US)


def step(number: int, *inside: Span) -> Span:
    at = 1000 * US * number
    return span("ProfileStep", f"ProfileStep#{number}", at, at + 1000 * US, *inside)


def layers(number: int, start: int, end: int) -> Span:
    at = 1000 * US * number
    relu = span("Operator", "relu dygraph", at + start * US, at + end * US)
    return span("Forward", "Net", at + start * US, at + end * US).around(relu)


def phase(number: int, category: str, start: int, end: int) -> Span:
    at = 1000 * US * number
    work = span("Operator", "work", at + start * US, at + end * US)
    return span(category, category, at + start * US, at + end * US).around(work)


@pytest.mark.parametrize("trains", [True, False])
def test_layers_train_if_a_backward_follows_ahead_of_an_update(
    tmp_path: Path, trains: bool
) -> None:
    """
    ::

        Forward  Backward  Optimization  Forward      or the last one, then Backward, Optimization
        0        300       500           600 to 1000
    """
    ends = (
        [phase(0, "Backward", 300, 500), phase(0, "Optimization", 500, 600), layers(0, 600, 1000)]
        if not trains
        else [
            layers(0, 300, 800),
            phase(0, "Backward", 800, 900),
            phase(0, "Optimization", 900, 1000),
        ]
    )
    steps = []
    for number in range(6):
        inside = (layers(0, 0, 300), *ends)
        steps.append(_moved(step(0, *inside), 1000 * US * number, number))
    thread = Thread(1, "main", tuple(steps))
    expected = {} if trains else {LOG: 6 * 400}
    lengths = ((600, FORWARD), (400, DUMPS))
    assert lines(tmp_path, thread, in_lines(*lengths)) == expected


def _moved(item: Span, by_ns: int, number: int) -> Span:
    name = f"ProfileStep#{number}" if item.category == "ProfileStep" else item.name
    inside = tuple(_moved(each, by_ns, number) for each in item.inside)  # type: ignore[arg-type]
    return dataclasses.replace(
        item, name=name, start=item.start + by_ns, end=item.end + by_ns, inside=inside
    )


def test_one_finding_has_all_lines_of_a_statement_and_names_the_largest(tmp_path: Path) -> None:
    """log() takes 300 of each step, and the line that calls it 250; both are train.py:15."""
    options = {"threads": [training(450)], "stacks": [logging(750)]}
    findings = ppprof.advise(ppprof.open(run(tmp_path, **options)))
    (finding,) = (each for each in findings if each.rule == "beside-training")
    assert finding.cost_ns == pytest.approx(550 * US, rel=0.01)
    assert finding.place == ("train.py", 7)
    assert finding.facts["line_ns"] == pytest.approx(300 * US, rel=0.01)
    assert finding.facts["statement"] == "train.py:15: log(step)"
    assert dict(finding.evidence.select("name", "samples").iter_rows()) == {
        LOG: 6 * 6,
        "train.py:15: log(step)": 6 * 5,
    }


def test_slow_steps_name_the_line_that_makes_them_slow(tmp_path: Path) -> None:
    """Steps of 1 ms; log() takes 4 ms more in each third one."""
    lengths = [5000 if step % 3 == 2 else 1000 for step in range(12)]
    starts = np.cumsum([0, *lengths[:-1]])
    samples = [
        (
            1,
            EPOCH_NS + int(start + 50 * number + 25) * US,
            50 * US,
            DUMPS if number >= 20 else FORWARD,
            0,
        )
        for start, length in zip(starts, lengths)
        for number in range(length // 50)
    ]
    stacks = dataclasses.replace(logging(), samples=np.array(samples, np.int64))
    steps = thread(lambda at: training_step(at, 1000), lengths=lengths)
    findings = ppprof.advise(ppprof.open(run(tmp_path, threads=[steps], stacks=[stacks])))
    (finding,) = (each for each in findings if each.rule == "slow-steps")
    assert finding.facts["gap"] == LOG
    assert finding.facts["gap_ns"] == pytest.approx(4000 * US, rel=0.01)
    assert finding.place == ("train.py", 7)


def test_slow_steps_name_the_statement_whose_lines_make_them_slow(tmp_path: Path) -> None:
    """Steps of 1 ms; in each third one, soften() has 1 ms more in each of four lines."""
    lengths = [5000 if step % 3 == 2 else 1000 for step in range(12)]
    starts = np.cumsum([0, *lengths[:-1]])
    stacks = logging()
    frames = [*stacks.frames, *map(soften, range(3, 7))]
    rows = [[len(stacks.frames) + number, 3] for number in range(4)]
    samples = [
        (
            *(1, EPOCH_NS + int(start + 50 * number + 25) * US, 50 * US),
            *(len(stacks.stacks) + (number - 20) // 20 if number >= 20 else FORWARD, 0),
        )
        for start, length in zip(starts, lengths)
        for number in range(length // 50)
    ]
    stacks = dataclasses.replace(
        stacks,
        samples=np.array(samples, np.int64),
        frames=frames,
        stacks=[*stacks.stacks, *rows],
    )
    steps = thread(lambda at: training_step(at, 1000), lengths=lengths)
    findings = ppprof.advise(ppprof.open(run(tmp_path, threads=[steps], stacks=[stacks])))
    (finding,) = (each for each in findings if each.rule == "slow-steps")
    assert finding.facts["gap"] == "train.py:15: log(step)"
    assert finding.facts["gap_ns"] == pytest.approx(4000 * US, rel=0.02)


def test_the_stall_of_a_slow_step_is_no_time_of_a_line_in_others(tmp_path: Path) -> None:
    """The first step takes 5000, of which no sample knows 4550: the window opens."""
    lines = in_lines((150, FORWARD), (150, BACKWARD), (150, UPDATE), (550, DUMPS), num=11)
    stacks = dataclasses.replace(lines, samples=lines.samples[5 * 20 :])
    steps = thread(lambda at: training_step(at, 450), lengths=[5000, *[1000] * 6])
    findings = ppprof.advise(ppprof.open(run(tmp_path, threads=[steps], stacks=[stacks])))
    (finding,) = (each for each in findings if each.rule == "beside-training")
    assert finding.cost_ns == pytest.approx(550 * US, rel=0.01)


def test_a_garbage_collection_is_no_time_of_the_line_in_which_it_runs(tmp_path: Path) -> None:
    """Of the 550 of a step behind the training, 400 are garbage collection; both are in train.py:15."""
    options = {"threads": [training(450)], "stacks": [collecting(400)]}
    found = {each.rule: each for each in ppprof.advise(ppprof.open(run(tmp_path, **options)))}
    assert found["garbage-collection"].cost_ns == 400 * US
    assert found["beside-training"].cost_ns == pytest.approx(150 * US, rel=0.01)


@pytest.mark.parametrize(
    ("outside", "is_cause"), [((), True), ((1, 1, 5), True), ((1, 1, 100), False)]
)
def test_slow_steps_are_slow_by_garbage_collection(
    outside: tuple[int, ...], is_cause: bool, tmp_path: Path
) -> None:
    """Each third step is longer by a collection of 4 ms. Longer steps outside the window have another cause."""
    lengths = [5000 if step % 3 == 2 else 1000 for step in range(12)]
    ends = np.cumsum(lengths)
    steps = thread(lambda at: training_step(at, 1000), lengths=lengths)
    rows = [(1, EPOCH_NS + int(end - 1) * US, 4000 * US, -1, 0) for end in ends[2::3]]
    stacks = dataclasses.replace(logging(), collections=np.array(rows, np.int64))
    lines = [
        {"step": 100 + number, "batch_cost_ns": outside[number % 3] * 1000 * US}
        for number in range(30 if outside else 0)
    ]
    path = run(tmp_path, threads=[steps], stacks=[stacks], step_lines=[lines])
    (finding,) = (each for each in ppprof.advise(ppprof.open(path)) if each.rule == "slow-steps")
    text = render_findings([finding])
    says_so = "In a slow step of the window, Python collects garbage for 4 ms more." in text
    assert (says_so, "gc.freeze()" in text) == (is_cause, is_cause)


@pytest.mark.parametrize(
    ("collected_us", "rule"), [(4000, "slow-steps"), (100, "warm-up"), (0, "warm-up")]
)
def test_a_first_step_in_which_python_collects_garbage_is_no_warm_up(
    collected_us: int, rule: str, tmp_path: Path
) -> None:
    lengths = [5000, *[1000] * 5]
    steps = thread(lambda at: training_step(at, 1000), lengths=lengths)
    rows = [(1, EPOCH_NS + 4999 * US, collected_us * US, -1, 0)] if collected_us else []
    collections = np.array(rows, np.int64).reshape(-1, 5)
    stacks = dataclasses.replace(logging(), collections=collections)
    findings = ppprof.advise(ppprof.open(run(tmp_path, threads=[steps], stacks=[stacks])))
    (finding,) = (each for each in findings if each.rule in ("slow-steps", "warm-up"))
    assert finding.rule == rule
    says_so = "Python collects garbage for 4 ms more." in render_findings([finding])
    assert says_so == (rule == "slow-steps")


def test_a_gap_is_called_by_the_line_in_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pb", training(450))
    trace = dataclasses.replace(read(path), stacks=logging())
    named = host_time(Profile(trace), NO_BUBBLES).gaps
    assert named["name"].unique().to_list() == [LOG]
    bare = host_time(Profile(read(path)), NO_BUBBLES).gaps
    assert set(bare["name"].to_list()) == {"step, after Optimization Step"}
    assert named.drop("name").equals(bare.drop("name"))


def test_a_gap_without_a_sample_is_called_as_the_others_at_its_place(tmp_path: Path) -> None:
    stacks = logging()
    in_step_3 = (stacks.samples[:, 1] - EPOCH_NS) // (1000 * US) == 3
    trace = dataclasses.replace(
        read(write(tmp_path / "a.pb", training(450))),
        stacks=dataclasses.replace(stacks, samples=stacks.samples[~in_step_3]),
    )
    assert host_time(Profile(trace), NO_BUBBLES).gaps["name"].to_list() == [LOG] * 6


def test_names_are_bounded(tmp_path: Path) -> None:
    frame = Frame("m", "a.py", "Outer.f.<locals>.inner", 3, is_own=True)
    samples = np.array(
        [(1, EPOCH_NS + (460 + 10 * i) * US, 10 * US, 0, 0) for i in range(50)], np.int64
    )
    stacks = PythonStacks(10 * US, [frame], [[0]], samples, {"a.py": {3: "x" * 200}})
    (name,) = lines(tmp_path, training(450), stacks)
    assert name == f"a.py:3, inner(): {'x' * 57}..."


def test_the_closing_line_and_the_finding_name_the_line(tmp_path: Path) -> None:
    from ppprof.report.text.advice import verdict

    folder = run(tmp_path / "log", [training(450)], stacks=[logging()])
    findings = ppprof.advise(ppprof.open(folder))
    rules = [finding.rule for finding in findings]
    assert rules[0] == "beside-training"
    assert "unexplained" not in rules
    assert verdict(1e6, findings) == f"recorded step 1 ms: 55% in {LOG}"


def test_shares_of_all_lines_are_at_most_the_step(tmp_path: Path) -> None:
    stacks = in_lines((300, FORWARD), (350, DUMPS), (350, AFTER))
    folder = run(tmp_path / "log", [training(300)], stacks=[stacks])
    found = [each for each in ppprof.advise(ppprof.open(folder)) if each.rule == "beside-training"]
    assert sum(each.share or 0 for each in found) == pytest.approx(0.7)


def soften(line: int) -> Frame:
    return Frame("loss", "loss.py", "soften", line, True)


def test_two_statements_that_call_one_line_are_named(tmp_path: Path) -> None:
    """evaluate() is called for two sets of data."""
    callers = [Frame("__main__", "train.py", "main", line, True) for line in (30, 31)]
    stacks = in_functions([(450, []), *((275, [soften(3), caller]) for caller in callers), (0, [])])
    stacks.stacks[1:3] = [stack[:-1] for stack in stacks.stacks[1:3]]
    folder = run(tmp_path / "log", [training(450)], stacks=[stacks])
    found = [f for f in ppprof.advise(ppprof.open(folder)) if f.rule == "beside-training"]
    assert [(each.facts["line"], each.facts["caller"]) for each in found] == [
        ("loss.py:3, soften()", f"train.py:{line}, main()") for line in (30, 31)
    ]
    named = "28% in loss.py:3, soften() (called in train.py:31, main())"
    assert named in verdict(1000 * US, found)


def test_a_statement_that_is_named_has_the_time_of_the_other_lines_that_it_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what the statement calls is in one line, the other half in many."""
    lines_of = {"name": [LOG, "log.py:3, dump()"], "samples": [30, 20], "time_ns": [300e3, 200e3]}
    rows = pl.DataFrame({"statement": [LOG, LOG], **lines_of})
    monkeypatch.setitem(beside_training.__globals__, "lines_beside", lambda _: rows)
    folder = run(tmp_path / "log", [training(450)], stacks=[logging()])
    (found,) = (f for f in ppprof.advise(ppprof.open(folder)) if f.rule == "beside-training")
    facts = found.facts
    assert (found.cost_ns, facts["line"], facts["statement"]) == (500 * US, LOG, None)
    assert (facts["line_ns"], facts["function_1"]) == (None, None)


def test_the_lines_of_a_function_are_one_finding_and_those_of_the_loop_are_not(
    tmp_path: Path,
) -> None:
    """Behind the training of 450: soften() in three lines, then two other statements of the loop."""
    stacks = in_functions([(450, []), *((100, [soften(line)]) for line in (3, 4, 5)), (250, [])])
    stacks.stacks[1:5] = [[*stack[:-1], FORWARD] for stack in stacks.stacks[1:4]] + [[AFTER - 2]]
    folder = run(tmp_path / "log", [training(450)], stacks=[stacks])
    found = [f for f in ppprof.advise(ppprof.open(folder)) if f.rule == "beside-training"]
    assert [(each.cost_ns, each.facts["statement"]) for each in found] == [
        (300 * US, "loss.py, soften()"),
        (250 * US, None),
    ]
    assert "of it; the rest elsewhere in loss.py, soften()" in "".join(
        render_findings(found, verbose=True)
    )
    named = "30% in loss.py:3, soften() (and elsewhere in loss.py, soften())"
    assert verdict(1000 * US, found) == (
        f"recorded step 1 ms: {named}, 25% in train.py:15: log(step)"
    )
    assert "30% loss.py:3, soften()（以及 loss.py, soften() 的别处）" in verdict(
        1000 * US, found, "zh"
    )


def test_statements_that_call_the_same_line_keep_their_times(tmp_path: Path) -> None:
    """Behind the training of 450: line 14 calls log() for 300, then line 15 for 250; the four reads of a step are of both."""
    stacks = in_lines((450, FORWARD), (300, BACKWARD), (250, DUMPS))
    rows = [*stacks.stacks]
    rows[BACKWARD] = [*rows[DUMPS][:-1], 2]
    ends = [EPOCH_NS + (1000 * n + end) * US for n in range(6) for end in (500, 600, 800, 900)]
    reads = np.array([(1, end, US, LOGS, 0) for end in ends], np.int64)
    stacks = dataclasses.replace(stacks, stacks=rows, reads=reads)
    folder = run(tmp_path / "log", [training(450)], stacks=[stacks])
    found = [f for f in ppprof.advise(ppprof.open(folder)) if f.rule == "beside-training"]
    assert [(each.cost_ns, each.facts["line"]) for each in found] == [
        (300 * US, LOG),
        (250 * US, LOG),
    ]
    assert [each.facts["num_reads"] for each in found] == [None, None]


def test_nodes_of_gradients_are_no_time_beside_the_training(tmp_path: Path) -> None:
    """As Paddle records them, with the node's own computation inside: a PyLayer could run Python ahead of it."""

    def make(at: int) -> Iterator[Span]:
        yield op(at, 0, 300, "Net", op(at, 10, 290), category="Forward")
        local = op(at, 420, 480, "Local_MatmulGradNode", category="OperatorInner")
        node = op(at, 400, 500, "Global_MatmulGradNode", local)
        yield op(at, 390, 700, "Gradient Backward", node, category="Backward")
        yield op(at, 800, 900, "Optimization Step", category="Optimization")

    stacks = [in_lines((450, FORWARD), (200, BACKWARD), (350, UPDATE))]
    profile = Profile(ppprof.open(run(tmp_path / "log", [thread(make)], stacks=stacks)).trace(0))
    names = profile.tree.hosts["name"].cast(pl.String)
    assert not names.filter(pl.Series(starts_beside(profile))).str.contains("GradNode").any()
    assert sampled_steps(profile) is not None
