"""Lines of the user's code in two runs: what takes longer, though its number has changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.naming import keys_of_lines
from ppprof.report.text.diff import headline
from ppprof.rundir.python_stacks import Frame, PythonStacks
from tests.fixtures.findings import (
    BACKWARD,
    FORWARD,
    LOGS,
    OWN,
    STACKS,
    UPDATE,
    US,
    in_lines,
    op,
    thread,
    training,
)
from tests.fixtures.run_directories import run, step_lines
from tests.fixtures.timeline import EPOCH_NS, Shapes, Span, span


def compared(folder: Path, *stacks: PythonStacks | None) -> Diff:
    """Return the comparison of two runs with these samples; None for a run without samples."""
    runs = [
        run(folder / str(number), [training(900)], stacks=[] if each is None else [each])
        for number, each in enumerate(stacks)
    ]
    return ppprof.diff(*map(ppprof.open, runs))


def times(diff: Diff) -> dict[str, tuple[int, int]]:
    """Return the microseconds per step of each line in both runs."""
    columns = [pl.col(f"{side}_time_ns") / US for side in ("baseline", "experiment")]
    return {name: both for name, *both in diff.lines.select("name", *columns).iter_rows()}


def moved(stacks: PythonStacks, by: int) -> PythonStacks:
    """Return the samples of a program into whose first line lines have been inserted."""
    frames = [Frame(f.module, f.file, f.function, f.line + by, f.is_own) for f in stacks.frames]
    source = {f: {n + by: text for n, text in lines.items()} for f, lines in stacks.source.items()}
    return dataclasses.replace(stacks, frames=frames, source=source)


SOURCE = {
    "train.py": {
        **{7: "    save(record)", 12: "    loss = net(batch)", 13: "    loss.backward()"},
        **{14: "    optimizer.step()", 15: "    log(step)"},
    }
}


def lines(*lengths: tuple[int, int], **options: int) -> PythonStacks:
    return dataclasses.replace(in_lines(*lengths, **options), source=SOURCE)


def test_a_line_is_the_same_if_its_text_is(tmp_path: Path, cli) -> None:
    before = lines((700, FORWARD), (200, BACKWARD), (100, LOGS))
    after = moved(lines((500, FORWARD), (200, BACKWARD), (250, LOGS), (50, UPDATE)), 2)
    diff = compared(tmp_path, before, after)
    assert times(diff) == {
        "train.py:12 -> 14: loss = net(batch)": [700, 500],
        "train.py:7 -> 9, log(): save(record)": [100, 250],
        "train.py:16: optimizer.step()": [0, 50],
        "train.py:13 -> 15: loss.backward()": [200, 200],
    }
    out = cli("diff", *(tmp_path / side for side in "01")).out
    (row,) = [line.split()[-5:] for line in out.splitlines() if line.startswith("train.py:7")]
    assert row == ["0.10", "0.25", "+0.15", "+150.00", "0.00"]
    assert "loss.backward()" not in out  # unchanged


Place = tuple[int, str, str]
"""Number, function and text of a line."""
STEP = (13, "<module>", "loss = net(batch)")
WAIT = (14, "<module>", "loss.backward()")


def trained(
    folder: Path,
    *ranks: Mapping[Place, int],
    times: Sequence[object] = (),
    file: str = "train.py",
    num_in_turn: int = 1,
) -> Path:
    """Return a run of six steps; of each rank, the microseconds per step of each line. `WAIT` ends in an all_reduce.

    The last ``num_in_turn`` lines, which take as long as each other, are in one step each.
    """
    threads, stacks = [], []
    for lines_us in ranks:
        places = list(lines_us.items())
        always, in_turn = places[: len(places) - num_in_turn], places[len(places) - num_in_turn :]
        length = sum(time_us for _, time_us in [*always, *in_turn[:1]])
        frames = [Frame("__main__", file, f, line, is_own=True) for line, f, _ in lines_us]
        samples = [
            (1, EPOCH_NS + (length * step + 50 * number + 25) * US, 50 * US, row, 0)
            for step in range(6)
            for number, row in enumerate(
                row if row < len(always) else row + step % num_in_turn
                for row, (_, time_us) in enumerate([*always, *in_turn[:1]])
                for _ in range(time_us // 50)
            )
        ]
        source = {file: {line: text for line, _, text in lines_us}}
        each = [[row] for row in range(len(frames))]
        stacks.append(PythonStacks(50 * US, frames, each, np.array(samples, np.int64), source))
        threads.append(thread(partial(inside, length, lines_us.get(WAIT, 0)), lengths=[length] * 6))
    return run(folder, threads, stacks=stacks, step_lines=times)


def inside(length: int, waits: int, at: int) -> Iterator[Span]:
    yield op(at, 0, length - waits - 1)
    if waits:
        peers = "all_reduce[axis=dp group=1 bytes=64 dtype=float32 peers=0,1,2]"
        yield span("Communication", peers, at + (length - waits) * US, at + (length - 1) * US)


def sentence(folder: Path, before: Mapping[Place, int], after: Mapping[Place, int]) -> str:
    """Return the headline's sentence about the line; empty without one."""
    runs = [trained(folder / side, lines) for side, lines in (("a", before), ("b", after))]
    text = headline(ppprof.diff(*map(ppprof.open, runs)))
    return next((line for line in text.split("\n") if line.startswith("Line:")), "")


def test_the_line_that_makes_the_step_longer_is_named_above_the_tables(tmp_path: Path) -> None:
    before = {STEP: 700, (15, "<module>", "log(step)"): 50}
    after = {**before, (7, "log", "save(record)"): 300}
    assert sentence(tmp_path, before, after) == (
        "Line: 300 us a step more in train.py:7, log(): save(record) (new)"
    )


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ((7, "log", "save(x)"), (8, "log", "save(x, 2)"), "7 -> 8, log(): save(x) -> save(x, 2)"),
        (
            (7, "log", "save(x)"),
            (9, "write", "save(x)"),
            "7, log(): save(x) -> train.py:9, write(): save(x)",
        ),
    ],
    ids=["edited", "renamed function"],
)
def test_an_edited_line_has_what_it_added_and_not_all_its_time(
    tmp_path: Path, before: Place, after: Place, name: str
) -> None:
    assert sentence(tmp_path, {STEP: 1000, before: 2000}, {STEP: 1000, after: 2200}) == (
        f"Line: 200 us a step more in train.py:{name}"
    )


def test_code_that_moved_makes_no_step_longer(tmp_path: Path) -> None:
    """Neither within the program nor out of a package: the step takes as long."""
    after = {STEP: 1000, (7, "log", "save(x)"): 500, (8, "log", "close(x)"): 1500}
    assert sentence(tmp_path / "a", {STEP: 1000, (30, "main", "write(x)"): 2000}, after) == ""
    before = dataclasses.replace(lines((700, FORWARD), (300, 6)), stacks=[*STACKS, [5]])
    diff = compared(tmp_path / "b", before, lines((700, FORWARD), (300, LOGS)))
    assert "Line:" not in headline(diff)


def logging_in(folder: Path, num_steps: int, step_ns: float) -> Path:
    """Return a run of six steps of 1000, some of which log for 400 more, and of steps outside the window."""
    lengths = [1400] * num_steps + [1000] * (6 - num_steps)
    samples = [
        (1, EPOCH_NS + (begin + 50 * number + 25) * US, 50 * US, int(number >= 20), 0)
        for begin, length in zip(np.cumsum([0, *lengths]).tolist(), lengths)
        for number in range(length // 50)
    ]
    frames = [
        Frame("__main__", "train.py", f, line, is_own=True)
        for f, line in (("<module>", 13), ("log", 7))
    ]
    stacks = PythonStacks(50 * US, frames, [[0], [1]], np.array(samples, np.int64), SOURCE)
    steps = thread(lambda at: [op(at, 0, 40)], lengths=lengths)
    return run(folder, [steps], stacks=[stacks], step_lines=[step_lines(step_ns)])


@pytest.mark.parametrize(
    ("num_steps", "step_ns", "is_named"),
    [
        (3, 130e6, False),  # 2.2 standard errors
        (4, 130e6, True),  # 3.2
        (4, 100e6, False),
        (6, 130e6, True),
    ],
)
def test_a_line_that_is_likely_is_named_where_the_step_is_surely_slower(
    num_steps: int, step_ns: float, is_named: bool, tmp_path: Path
) -> None:
    runs = logging_in(tmp_path / "a", 0, 100e6), logging_in(tmp_path / "b", num_steps, step_ns)
    text = headline(ppprof.diff(*map(ppprof.open, runs)))
    name = "train.py:7, log(): save(record) (new)"
    assert (f"Line: {round(400 * num_steps / 6)} us a step more in {name}" in text) == is_named


@pytest.mark.parametrize(
    ("noise", "step_ns", "is_named"),
    [
        (0.02, 125e6, True),
        (0.5, 105e6, True),  # inconclusive: up to half more
        (0.2, 101e6, False),  # the steps outside the window do not take 40% more
    ],
)
def test_a_change_of_the_window_alone_is_no_change_of_the_run(
    noise: float, step_ns: float, is_named: bool, tmp_path: Path
) -> None:
    runs = [
        trained(tmp_path / side, {STEP: 1000, **more}, times=[step_lines(each, noise=noise)])
        for side, more, each in (
            ("a", {}, 100e6),
            ("b", {(7, "log", "save(record)"): 250}, step_ns),
        )
    ]
    assert ("Line: 250 us" in headline(ppprof.diff(*map(ppprof.open, runs)))) == is_named


def test_the_time_of_a_gradient_is_that_of_the_line_of_its_operator(tmp_path: Path) -> None:
    """From 500 to 900, a Backward; its gradients of train.py:8 from 550 to 650, and of no known line from 700 to 710.

    A hook of the training's own runs in the first 50 of the former.
    """

    def step(at: int, has_shapes: bool) -> Iterator[Span]:
        known = Shapes({"X0": [[4, 4]]}, {}, 'File "train.py", line 8, in forward')
        yield op(at, 0, 500)
        yield op(
            *(at, 500, 900, "Backward"),
            op(at, 550, 650, "Global_MatmulGradNode", *[known] * has_shapes),
            op(at, 700, 710, "Global_AddGradNode"),
            category="Backward",
        )

    hook = len(STACKS)
    stacks = lines((500, FORWARD), (50, BACKWARD), (50, hook), (300, BACKWARD), (100, LOGS))
    backward = Frame("paddle.autograd", "/paddle.py", "Tensor.backward", 9, is_own=False)
    calls = [[len(OWN), *STACKS[row]] if row == BACKWARD else STACKS[row] for row in range(hook)]
    stacks = dataclasses.replace(
        stacks,
        frames=[*OWN, backward],
        stacks=[*calls, [STACKS[LOGS][0], len(OWN), *STACKS[BACKWARD]]],
    )
    runs = [
        run(tmp_path / side, [thread(partial(step, has_shapes=side != "c"))], stacks=[stacks])
        for side in "abc"
    ]
    assert times(ppprof.diff(*runs[:2])) == {
        "train.py:12: loss = net(batch)": [500, 500],
        "train.py:13: loss.backward()": [300, 300],
        "train.py:8, forward()": [50, 50],
        "train.py:7, log(): save(record)": [150, 150],
    }
    # Of a run without shapes, whose gradients these are is unknown: no line differs for that.
    assert times(ppprof.diff(*runs[1:])) == {
        "train.py:12: loss = net(batch)": [500, 500],
        "train.py:13: loss.backward()": [350, 350],
        "train.py:7, log(): save(record)": [150, 150],
    }


@pytest.mark.parametrize(("length", "is_named"), [(90e6, False), (130e6, True)])
def test_no_line_makes_a_faster_run_slower(tmp_path: Path, length: float, is_named: bool) -> None:
    runs = [
        trained(tmp_path / "a", {STEP: 1000}, times=[step_lines(100e6)]),
        trained(tmp_path / "b", {STEP: 1100}, times=[step_lines(length)]),
    ]
    assert (
        "Line: 100 us a step more" in headline(ppprof.diff(*map(ppprof.open, runs)))
    ) == is_named


def test_a_line_adds_no_more_than_all_lines_together(tmp_path: Path) -> None:
    before = {STEP: 1000, (30, "main", "write(x)"): 200}
    after = {STEP: 1000, (7, "log", "save(x)"): 500}
    assert sentence(tmp_path, before, after) == (
        "Line: 300 us a step more in train.py:7, log(): save(x) (new)"
    )


@pytest.mark.parametrize(
    ("file", "function"), [("train.py", "train.py, taps()"), ("fast.py", "taps()")]
)
def test_a_function_is_named_where_each_of_its_lines_has_few_samples(
    file: str, function: str, tmp_path: Path
) -> None:
    """Each line of the loop is found in one step of six."""
    loop = {(line, "taps", f"rows[{line}] = f(x)"): 300 for line in range(20, 26)}
    runs = [
        trained(tmp_path / "a", {STEP: 1000}, file=file),
        trained(tmp_path / "b", {STEP: 1000, **loop}, num_in_turn=len(loop)),
    ]
    text = headline(ppprof.diff(*map(ppprof.open, runs)))
    assert f"Line: 300 us a step more in {function} (new)\n" in text


def test_a_line_that_may_be_an_edited_one_is_not_what_changed(tmp_path: Path) -> None:
    """The step is longer by what the other line adds."""
    before = {STEP: 1000, (30, "main", "write(x)"): 2000}
    after = {STEP: 1000, (7, "log", "save(y)"): 2300}
    assert not sentence(tmp_path / "one", before, after)
    (augment,) = [(9, "read", "augment(x)")]
    after = {STEP: 1000, augment: 600, (7, "log", "save(y)"): 2000}
    assert sentence(tmp_path / "two", {**before, augment: 300}, after) == (
        "Line: 300 us a step more in train.py:9, read(): augment(x)"
    )


def test_the_line_of_the_slow_rank_is_named_and_not_that_in_which_others_wait(
    tmp_path: Path,
) -> None:
    before = {STEP: 1000, WAIT: 200}
    waits, slow = {STEP: 1000, WAIT: 700}, {STEP: 1000, (7, "log", "save(x)"): 500, WAIT: 200}
    runs = [
        trained(tmp_path / "a", before, before, before),
        trained(tmp_path / "b", waits, waits, slow),
    ]
    text = headline(ppprof.diff(*map(ppprof.open, runs)))
    assert "Line: 500 us a step more on rank 2 in train.py:7, log(): save(x) (new)\n" in text
    slower = {STEP: 1500, WAIT: 200}
    all_of_them = trained(tmp_path / "c", slower, slower, slower)
    text = headline(ppprof.diff(*map(ppprof.open, (runs[0], all_of_them))))
    assert "Line: 500 us a step more in train.py:13: loss = net(batch)\n" in text


def test_between_other_lines_of_the_function_nothing_was_edited() -> None:
    before = ["a.py:1, f(): x = 1", "a.py:2, f(): y = 2"]
    after = ["a.py:1, f(): y = 2", "a.py:2, f(): z = 3"]
    *_, names = keys_of_lines(before, after)
    assert sorted(names.values()) == [
        "a.py:1, f(): x = 1",
        "a.py:2 -> 1, f(): y = 2",
        "a.py:2, f(): z = 3",
    ]


def test_lines_that_are_not_at_one_place_are_not_edited() -> None:
    *_, names = keys_of_lines(["a.py:1: x", "a.py:9: y"], ["a.py:1: x", "a.py:5: z"])
    assert sorted(names.values()) == ["a.py:1: x", "a.py:5: z", "a.py:9: y"]


def test_of_several_edited_lines_the_nearest_are_one() -> None:
    before = ["a.py:1, f(): a", "a.py:3, f(): x = g(1)", "a.py:9, f(): y = g(1)", "a.py:12, f(): z"]
    after = [
        "a.py:11, f(): a",
        "a.py:13, f(): x = g(2)",
        "a.py:19, f(): y = g(2)",
        "a.py:22, f(): z",
    ]
    *_, names = keys_of_lines(before, after)
    assert set(names.values()) >= {
        "a.py:3 -> 13, f(): x = g(1) -> x = g(2)",
        "a.py:9 -> 19, f(): y = g(1) -> y = g(2)",
    }


def test_lines_of_unlike_texts_are_two() -> None:
    """One was sampled by chance, and the other one was inserted beside it."""
    before = ["a.py:8: lr = sched(step)", "a.py:9: net(x)"]
    *_, names = keys_of_lines(before, ["a.py:9: save(x)", "a.py:10: net(x)"])
    assert "a.py:9: save(x)" in names.values()
    *_, names = keys_of_lines(
        ["a.py:8: loss = crit(net(x), y)"], ["a.py:8: out = net(x)", "a.py:9: loss = crit(out, y)"]
    )
    assert "a.py:8 -> 9: loss = crit(net(x), y) -> loss = crit(out, y)" in names.values()


def test_lines_of_which_a_run_has_no_text_are_not_edited() -> None:
    before = ["a.py:42", "a.py:1: x"]
    *_, names = keys_of_lines(before, ["a.py:41", "a.py:1: x"])
    assert sorted(names.values()) == ["a.py:1: x", "a.py:41", "a.py:42"]


def test_of_lines_of_equal_text_that_of_the_same_function_is_the_same() -> None:
    before = ["train.py:10, train(): logits = model(x)"]
    after = ["fixed.py:12, train(): logits = model(x)", "fixed.py:10, distill(): logits = model(x)"]
    *_, names = keys_of_lines(before, after)
    assert (
        "train.py:10, train(): logits = model(x) -> fixed.py:12, train(): logits = model(x)"
        in names.values()
    )


def test_lines_of_a_copied_file_are_edited_ones() -> None:
    before = ["base.py:1: x = f()", "base.py:2: y = g()", "base.py:3: z = net(x)"]
    after = ["new.py:1: x = f()", "new.py:2: y = g()", "new.py:3: z = net(x, y)"]
    *_, names = keys_of_lines(before, after)
    assert "base.py:3: z = net(x) -> new.py:3: z = net(x, y)" in names.values()


def test_without_the_source_of_a_run_numbers_are_compared(tmp_path: Path) -> None:
    before = dataclasses.replace(lines((900, FORWARD), (100, LOGS)), source={})
    diff = compared(tmp_path, before, lines((800, FORWARD), (200, LOGS)))
    assert times(diff) == {"train.py:7, log()": [100, 200], "train.py:12": [900, 800]}


def test_a_run_without_samples_has_no_new_lines(tmp_path: Path) -> None:
    diff = compared(tmp_path, None, lines((1000, FORWARD)))
    assert diff.lines.is_empty()


def test_a_line_that_few_samples_found_is_no_change(tmp_path: Path, cli) -> None:
    after = lines((1000, FORWARD), every=250)
    samples = after.samples.copy()
    samples[5, 3] = LOGS  # 250 of 6000 us, by chance
    compared(tmp_path, lines((1000, FORWARD)), dataclasses.replace(after, samples=samples))
    out = cli("diff", *(tmp_path / side for side in "01"), "--views", "line").out
    assert "log()" not in out


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), min_size=2, max_size=2))
def test_lines_of_each_run_add_up_to_its_step(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, int]]
) -> None:
    stacks, raw = [], []
    for first, second in map(sorted, cuts):
        lengths = {FORWARD: first, UPDATE: second - first, LOGS: 20 - second}
        stacks.append(lines(*((50 * num, line) for line, num in lengths.items() if num)))
        raw.append({line: 50 * num for line, num in lengths.items()})
    found = times(compared(tmp_path_factory.mktemp("a"), *stacks))
    names = {FORWARD: "train.py:12: loss", UPDATE: "train.py:14: opt", LOGS: "train.py:7, log()"}
    for line, name in names.items():
        both = next((value for key, value in found.items() if key.startswith(name)), [0, 0])
        assert both == pytest.approx([each[line] for each in raw])
    assert [sum(side) for side in zip(*found.values())] == pytest.approx([1000, 1000])
