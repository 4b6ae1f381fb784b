"""Memory that steps keep, against a count of live allocations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof.analysis.advice.memory_growth import LAST_STEPS, kept_memory
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import with_step
from ppprof.report.text.advice import render_findings
from ppprof.rundir.python_stacks import Holder, write_python_stacks
from ppprof.rundir.run_file import RunFile
from ppprof.trace import read
from tests.fixtures.findings import FORWARD, US, growing, in_lines, one, op, thread
from tests.fixtures.run_directories import run, trace_name
from tests.fixtures.timeline import GPU0, Memory, Shapes, Span, Thread, span, write

STEPS, LENGTH = 6, 100
CHANGES = st.lists(
    st.tuples(st.integers(0, STEPS * LENGTH - 1), st.integers(0, 5), st.integers(1, 9)),
    max_size=40,
    unique_by=lambda change: change[0],
)
"""Time, address and bytes: an allocation if nothing is there, else a free."""


@given(CHANGES)
def test_what_a_step_keeps_is_what_is_alive_at_the_end(
    tmp_path_factory: Any, changes: list[tuple[int, int, int]]
) -> None:
    alive: dict[int, tuple[int, int]] = {}
    events: list[Memory] = []
    for time, address, num_bytes in sorted(changes):
        if address in alive:
            _, size = alive.pop(address)
            events.append(Memory("Free", time, -size, GPU0, address))
        else:
            alive[address] = (time // LENGTH, num_bytes)
            events.append(Memory("Allocate", time, num_bytes, GPU0, address))
    expected = dict.fromkeys(range(STEPS - LAST_STEPS), 0)
    for step, num_bytes in alive.values():
        if step in expected:
            expected[step] += num_bytes
    steps = []
    for number in range(STEPS):
        begin = number * LENGTH
        inside = [event for event in events if begin <= event.time < begin + LENGTH]
        operator = span("Operator", "relu dygraph", begin, begin + LENGTH, *inside)
        steps.append(
            span("ProfileStep", f"ProfileStep#{number}", begin, begin + LENGTH).around(operator)
        )
    path = write(tmp_path_factory.mktemp("memory") / "a.pb", Thread(1, "main", tuple(steps)))
    kept = kept_memory(Profile(with_step(read(path))))
    sums = kept.group_by("step").agg(pl.col("bytes").sum()).sort("step")
    assert dict(sums.iter_rows()) == expected


@pytest.mark.parametrize(("freed", "kept"), [(0, 8), (3, 5), (8, 0), (9, 0)])
def test_what_a_step_frees_from_before_the_window_is_taken_off(
    tmp_path: Path, freed: int, kept: int
) -> None:
    """A ring that is full. The first step frees what the step before it had used, too."""
    steps = []
    for number in range(STEPS):
        begin, first = number * LENGTH, 50 * (number == 0)
        changes = [
            Memory("Free", begin + 1, -(freed + first), GPU0, number + 1),
            Memory("Allocate", begin + 2, 8, GPU0, number + 100),
        ]
        operator = span("Operator", "relu dygraph", begin, begin + LENGTH, *changes)
        steps.append(
            span("ProfileStep", f"ProfileStep#{number}", begin, begin + LENGTH).around(operator)
        )
    path = write(tmp_path / "a.pb", Thread(1, "main", tuple(steps)))
    table = kept_memory(Profile(with_step(read(path))))
    assert table["bytes"].to_list() == [kept] * (STEPS - LAST_STEPS)


def test_a_container_with_few_of_the_bytes_does_not_hold_them(tmp_path: Path) -> None:
    """Numbers of 4 bytes are appended beside what keeps 64 KiB a step."""
    content = growing(1 << 16)
    steps = []
    for number, step in enumerate(content.inside):
        small = Memory("Allocate", step.start + 1, 4, GPU0, (number << 20) + 4)
        steps.append(dataclasses.replace(step, inside=(*step.inside, small)))
    for has_graphs in (False, True):
        addresses = [(number << 20) + 4 for number in range(8)]
        holder = Holder("history, train.py (list)", addresses, has_graphs=has_graphs)
        stacks = dataclasses.replace(in_lines((1000, FORWARD), num=8), holders=[holder])
        content = dataclasses.replace(content, inside=tuple(steps))
        path = run(tmp_path / f"log{has_graphs}", [content], stacks=[stacks])
        finding = one("growing-memory", ppprof.advise(ppprof.open(path)))
        assert finding.facts["holder"] == ("history, train.py (list)" if has_graphs else None)


def test_what_a_bounded_container_holds_does_not_grow_for_good(tmp_path: Path) -> None:
    """Step N allocates what it keeps at N MiB."""
    holder = Holder("replay, train.py (deque)", [step << 20 for step in range(8)], is_bounded=True)
    stacks = dataclasses.replace(in_lines((1000, FORWARD), num=8), holders=[holder])
    path = run(tmp_path / "log", [growing(1 << 16)], stacks=[stacks])
    assert not [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "growing-memory"]


@pytest.mark.parametrize(
    ("steps", "holder"),
    [
        (range(1, 8), "losses, train.py (list)"),
        (range(5), "losses, train.py (list)"),  # the last two steps do not count
        (range(4), None),  # tensors of too few steps
    ],
)
def test_a_container_with_tensors_of_most_steps_holds_them(
    tmp_path: Path, steps: range, holder: str | None
) -> None:
    """Step N allocates what it keeps at N MiB."""
    largest = [Holder("Trainer.queue (deque)", [9 << 20, *range(1, 99)])]
    holders = [*largest, Holder("losses, train.py (list)", [step << 20 for step in steps])]
    stacks = dataclasses.replace(in_lines((1000, FORWARD), num=8), holders=holders)
    path = run(tmp_path / "log", [growing(1 << 16)], stacks=[stacks])
    finding = one("growing-memory", ppprof.advise(ppprof.open(path)))
    assert finding.facts["holder"] == holder
    assert ("in losses, train.py (list)" in render_findings([finding])) == (holder is not None)


@pytest.mark.parametrize(
    ("every", "num_bytes", "is_held", "is_found"),
    [
        (2, 1 << 17, True, True),
        (2, (1 << 17) - 2, True, False),
        (2, 1 << 17, False, False),  # may wait for the garbage collector
        (3, 1 << 18, True, False),  # two times only
    ],
)
def test_a_container_that_grows_every_second_step_is_found(
    tmp_path: Path, every: int, num_bytes: int, is_held: bool, is_found: bool
) -> None:
    """Steps 0, 2 and 4 keep 128 KiB, of the six that count."""
    holders = [Holder("history, train.py (list)", [step << 20 for step in range(8)])] * is_held
    stacks = dataclasses.replace(in_lines((1000, FORWARD), num=8), holders=holders)
    path = run(tmp_path / "log", [growing(num_bytes, every)], stacks=[stacks])
    found = [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "growing-memory"]
    assert len(found) == is_found
    for finding in found:
        assert finding.facts["growth_bytes"] == 1 << 16
        assert finding.facts["line_bytes"] == 1 << 16
        assert (finding.facts["since"], finding.facts["num_steps"]) == (0, 6)
        assert finding.facts["holder"] == "history, train.py (list)"
        assert "on average: one step in 2 does" in render_findings([finding])


@pytest.mark.parametrize(("in_second", "is_found"), [(True, True), (False, False)])
def test_a_container_that_grows_every_second_step_is_found_in_several_windows(
    tmp_path: Path, in_second: bool, is_found: bool
) -> None:
    """Of steps 0 to 5 and 101 to 106, which count, 0, 2, 4, 101, 103 and 105 keep 128 KiB; or only the first three."""
    first = growing(1 << 17, 2)
    steps = [
        dataclasses.replace(step, name=f"ProfileStep#{101 + number}")
        for number, step in enumerate(first.inside)
    ]
    windows = first, dataclasses.replace(first, inside=tuple(steps))
    path = run(tmp_path / "log", [])
    for window, content in enumerate(windows):
        addresses = [step << 20 for step in range(8)] if in_second or not window else []
        holders = [Holder("history, train.py (list)", addresses)]
        stacks = dataclasses.replace(in_lines((1000, FORWARD), num=8), holders=holders)
        write(path / trace_name(0, window).raw, content)
        write_python_stacks(RunFile(path, trace_name(0, window).stacks), stacks)
    found = [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "growing-memory"]
    assert len(found) == is_found
    for finding in found:
        assert finding.facts["growth_bytes"] == 1 << 16
        assert (finding.facts["period"], finding.facts["num_steps"]) == (2, 12)


def with_graphs(bytes_of_steps: list[int]) -> Thread:
    """Each step keeps so many bytes at an address without a container, and steps 1, 3 and 5 a loss of 4 bytes at their MiB."""
    shape = Shapes({}, callstack='File "train.py", line 9, in <module>')

    def make(begin: int) -> Iterator[Span]:
        step = begin // (1000 * US)
        own = Memory("Allocate", begin + 1, bytes_of_steps[step], addr=(1 << 40) + step)
        loss = [Memory("Allocate", begin + 2, 4, addr=step << 20)] * (step % 2)
        yield op(begin, 0, 500, "relu dygraph", shape, own, *loss)

    return thread(make, num=8)


@pytest.mark.parametrize(
    ("bytes_of_steps", "has_graphs", "growth"),
    [
        ([1 << 10, 1 << 18] * 4, True, (1 << 17) - (1 << 9) + 2),  # with 4 bytes every second step
        ([1 << 10, 1 << 18] * 4, False, None),  # losses without graphs keep nothing
        ([1 << 10, 1 << 17] * 4, True, None),  # a little less than 64 KiB a step
        ([1 << 10, 1 << 18, 1 << 10, 1 << 21, 1 << 10, 1 << 18, 9, 9], True, None),  # one is large
        ([1 << 18] * 2 + [1 << 10, 1 << 18] * 3, True, None),  # another step keeps as much
        ([9, 1 << 18, 9, 9, 9, 1 << 18, 9, 9], True, None),  # one has freed it
    ],
)
def test_losses_with_their_graphs_every_second_step(
    tmp_path: Path, bytes_of_steps: list[int], has_graphs: bool, growth: int | None
) -> None:
    addresses = [step << 20 for step in (1, 3, 5)]
    holders = [Holder("losses, train.py (list)", addresses, has_graphs=has_graphs)]
    stacks = dataclasses.replace(in_lines((1000, FORWARD), num=8), holders=holders)
    path = run(tmp_path / "log", [with_graphs(bytes_of_steps)], stacks=[stacks])
    found = [each for each in ppprof.advise(ppprof.open(path)) if each.rule == "growing-memory"]
    assert [each.facts["growth_bytes"] for each in found] == ([] if growth is None else [growth])
    for finding in found:
        assert (finding.facts["since"], finding.facts["num_steps"]) == (1, 6)
        assert finding.facts["line_bytes"] == growth
        text = render_findings([finding])
        assert "in losses, train.py (list)" in text
        assert "append float(loss) or loss.detach()" in text


@pytest.mark.parametrize("is_held", [True, False])
def test_a_graph_over_all_steps_is_named_unless_a_container_holds_the_tensors(
    tmp_path: Path, is_held: bool
) -> None:
    """Step N allocates what it keeps at N MiB."""
    chain = Holder("total_loss, main() of train.py", [], is_chain=True)
    losses = Holder("losses, train.py (list)", [step << 20 for step in range(8)])
    holders = [losses, chain] if is_held else [chain]
    stacks = dataclasses.replace(in_lines((1000, FORWARD), num=8), holders=holders)
    path = run(tmp_path / "log", [growing(1 << 16)], stacks=[stacks])
    finding = one("growing-memory", ppprof.advise(ppprof.open(path)))
    assert finding.facts["chain"] == (None if is_held else chain.name)
    text = render_findings([finding])
    assert ("Let total_loss, main() of train.py keep no graph." in text) != is_held
    assert ("graph of gradients of total_loss, main() of train.py reaches" in text) != is_held
