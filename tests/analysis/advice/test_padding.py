"""What the padding of batches costs, with numbers that are counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import ppprof
from ppprof.analysis.advice.finding import Finding
from ppprof.trace.operator_inputs import LENGTHS
from tests.fixtures.findings import US, Called, differentiating, looking_up
from tests.fixtures.run_directories import run

LOOKUP, GELU, _ = looking_up(16)


def found(folder: Path, *called: Called, each: int = 50) -> list[Finding]:
    made = ppprof.advise(ppprof.open(run(folder / "log", **differentiating(*called, each=each))))
    return [finding for finding in made if finding.rule == "padded-batches"]


def lookup(width: int, *lengths: int) -> Called:
    return Called("embedding", ((len(lengths), width), (1000, 64)), {LENGTHS: [width, *lengths]})


@pytest.mark.parametrize(
    "shape",
    [(8, 32, 64), (8, 4, 32, 32), (256, 64), (32, 8, 64), (32, 32, 16)],
    ids=["states", "scores", "flat", "time ahead", "heads ahead"],
)
def test_operators_on_positions_count(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Half of what each takes beyond 10: of 50 the lookup, the operator, and its gradient."""
    (finding,) = found(tmp_path, LOOKUP, Called("gelu", (shape,)))
    text = ",".join(map(str, shape))
    times = {name: time / US for name, _, time in finding.evidence.iter_rows()}
    assert times == {f"gelu [{text}]": 40, "embedding [8,32] [1000,64]": 20}
    assert finding.cost_ns == 60 * US


@pytest.mark.parametrize(
    "shape", [(8, 64), (64, 32), (1, 32, 64), (8, 31, 64), (16, 32), (8, 16, 32), (8, 32)]
)
def test_other_operators_do_not(shape: tuple[int, ...], tmp_path: Path) -> None:
    (finding,) = found(tmp_path, LOOKUP, GELU, Called("relu", (shape,)))
    assert finding.cost_ns == 60 * US


def test_of_two_batches_with_the_same_dims_the_one_with_less_padding_counts(tmp_path: Path) -> None:
    """It is unknown whether the operator is of a source, or of its target."""
    target = lookup(32, 24, *7 * (10,))._replace(line=8)
    (finding,) = found(tmp_path, LOOKUP, target, GELU)
    # Both lookups, of 40 one half and one quarter; of the operator and its gradient, a quarter of 80.
    assert finding.cost_ns == (20 + 10 + 20) * US


def test_operators_belong_to_the_last_batch_of_a_line(tmp_path: Path) -> None:
    full = lookup(32, 32, *7 * (10,))
    (finding,) = found(tmp_path, LOOKUP, GELU, full, GELU, each=25)
    # A quarter of all numbers is beyond the longest samples: half of those of the first batch.
    assert finding.cost_ns == (7.5 + 15) * US
    assert (finding.facts["numbers"], finding.facts["kept"]) == (512, 128 + 256)


def test_batches_of_unknown_lengths_are_as_those_of_their_line(tmp_path: Path) -> None:
    """A window knows the lengths of its first batches."""
    later = LOOKUP._replace(attributes={})
    (finding,) = found(tmp_path, LOOKUP, GELU, later, GELU)
    assert finding.cost_ns == 2 * 60 * US
    assert (finding.facts["numbers"], finding.facts["words"]) == (512, 2 * 86)
    other = later._replace(line=9)
    (finding,) = found(tmp_path / "other", LOOKUP, other)
    assert finding.cost_ns == 20 * US
    assert finding.facts["numbers"] == 256


def test_other_tables_of_the_same_line_do_not_count_as_words(tmp_path: Path) -> None:
    """A line that calls an installed model looks up words, positions and types."""
    types = Called("embedding", ((8, 32), (2, 64)))
    (finding,) = found(tmp_path, LOOKUP, types, GELU)
    assert (finding.facts["numbers"], finding.facts["words"]) == (256, 86)


@pytest.mark.parametrize(
    "lengths", ["12", [], [32], [32, *8 * ["9"]], [32, *8 * [33]], [16, *8 * [9]], [32, *7 * [9]]]
)
def test_lengths_of_another_program_are_unknown(lengths: object, tmp_path: Path) -> None:
    assert not found(tmp_path, LOOKUP._replace(attributes={LENGTHS: lengths}), GELU)


def test_samples_of_like_lengths_would_share_a_batch(tmp_path: Path) -> None:
    """Each batch has one long sample; sorted, each has four of these or none."""
    batches = [lookup(32, 32, 8, 8, number) for number in range(4, 8)]
    (finding,) = found(tmp_path, *batches, Called("gelu", ((4, 32, 64),)), each=25)
    assert finding.facts["remedy"] == "code-grouped"
    # Of six steps: 4 to 7 six times each, which share two batches, twelve batches of 8, and six of 32.
    kept = 4 * (4 + 5 + 5 + 6 + 7 + 7 + 12 * 8 + 6 * 32) / 6
    assert (finding.facts["numbers"], finding.facts["kept"]) == (
        4 * 4 * 32,
        pytest.approx(kept, abs=3),
    )
    share = 1 - kept / 512
    assert finding.cost_ns == pytest.approx(share * (4 * 15 + 30) * US, rel=0.02)


@pytest.mark.parametrize(
    ("widths", "longest", "kept"),
    [
        ((128, 128), 70, 96 + 96),
        ((128, 128), 100, None),
        ((128, 96), 70, None),
        ((100, 100), 70, 140),
    ],
    ids=["fixed", "already rounded up", "as wide as some need", "no round width"],
)
def test_round_widths_stay_round(
    widths: tuple[int, int], longest: int, kept: int | None, tmp_path: Path
) -> None:
    batches = [lookup(width, longest, 9)._replace(line=7) for width in widths]
    made = found(tmp_path, *batches, Called("gelu", ((2, widths[0], 64),)))
    assert [each.facts["kept"] for each in made] == ([] if kept is None else [2 * kept])


def test_what_other_findings_have_does_not_count(tmp_path: Path) -> None:
    """A product with rows that the next operator leaves out, as that finding has it."""
    rows = Called("matmul", ((8, 32, 64), (64, 128)), gradients=2)
    taken = Called("slice", ((8, 32, 128),), line=8)
    loss = Called("cross_entropy_with_softmax", ((8, 1, 128), (8, 1, 1)), line=9)
    (finding,) = found(tmp_path, LOOKUP, rows, taken, loss)
    names = {name.partition(" ")[0] for name, *_ in finding.evidence.rows()}
    assert names == {"embedding", "slice"}


def test_few_batches_say_nothing_of_others(tmp_path: Path) -> None:
    batches = [lookup(32, 32, 8, 8, number) for number in range(4, 7)]
    assert not found(tmp_path, *batches, Called("gelu", ((4, 32, 64),)), each=25)


def test_operators_of_unknown_shapes_cost_nothing(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, LOOKUP, GELU, Called("relu", ()))
    assert finding.cost_ns == 60 * US
