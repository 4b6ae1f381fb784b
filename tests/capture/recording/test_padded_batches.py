"""The lengths of padded samples, from what trainings look up in the tables of embeddings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.usefixtures("unfinished")]

from ppprof.arrays import Int64  # noqa: E402
from ppprof.capture.recording import padded_batches  # noqa: E402
from ppprof.capture.recording.padded_batches import lengths_of  # noqa: E402
from tests.fixtures import recorded_calls  # noqa: E402


def batches_of(lengths: list[list[int]], width: int, padding: int, *, is_left: bool) -> list[Int64]:
    """Return batches of random words of 100 to 999, padded."""
    generator = np.random.default_rng(5)
    made = []
    for each in lengths:
        batch = np.full((len(each), width), padding)
        for row, length in zip(batch, each):
            words = generator.integers(100, 1000, length)
            row[slice(width - length, None) if is_left else slice(length)] = words
        made.append(batch)
    return made


@given(
    lengths=st.lists(st.lists(st.integers(5, 60), min_size=6, max_size=6), min_size=4, max_size=6),
    padding=st.sampled_from([0, 1, -1, 5000]),
    is_left=st.booleans(),
)
def test_lengths_are_counted_on_both_sides(
    lengths: list[list[int]], padding: int, is_left: bool
) -> None:
    found = lengths_of(batches_of(lengths, 80, padding, is_left=is_left))
    num_lengths = len({length for each in lengths for length in each})
    assert found == (lengths if num_lengths >= 3 else [])


def words(*shape: int) -> Int64:
    return np.random.default_rng(3).integers(100, 1000, shape)


def with_marks(begin: int, end: int) -> list[Int64]:
    """Return batches of full samples with the same marks in the same place of each one."""
    made = [words(8, 64) for _ in range(4)]
    for batch in made:
        batch[:, begin:end] = 7
    return made


def buckets() -> list[Int64]:
    """Return numbers of relative positions, clipped, as T5 looks them up."""
    distance = np.arange(64)[None, :] - np.arange(64)[:, None]
    return [np.clip(distance, 0, 15)] * 4


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([words(8, 64)] * 4, id="full samples"),
        pytest.param([np.tile(np.arange(64), (8, 1))] * 4, id="positions"),
        pytest.param(with_marks(60, 64), id="marks at the end"),
        pytest.param(with_marks(0, 40), id="places of an image"),
        pytest.param([(np.arange(64) > 30).astype(int) * np.ones((8, 1), int)] * 4, id="types"),
        pytest.param(buckets(), id="clipped distances"),
        pytest.param([np.zeros((8, 64), int)] * 4, id="zeros"),
    ],
)
def test_other_numbers_have_no_lengths(batches: list[Int64]) -> None:
    assert lengths_of(batches) == []


LENGTHS = [[9, 20, 13, 17], [30, 8, 11, 25]]


def lookups(step: Callable[[Any], Any]) -> list[list[int]]:
    """Return what is recorded of steps that get the batches of `LENGTHS`, 40 wide."""
    tensors = map(paddle.to_tensor, batches_of(LENGTHS, 40, 0, is_left=False))
    calls = recorded_calls.recorded(*(lambda each=each: step(each) for each in tensors))
    names = [calls.signatures[row].name for row in calls.calls[:, 3].tolist()]
    assert {names[row] for row in calls.lengths} <= {"embedding"}
    return [calls.lengths[row] for row in sorted(calls.lengths)]


def test_each_batch_of_a_window_has_its_lengths() -> None:
    table = paddle.nn.Embedding(1000, 4)
    assert lookups(table) == [[40, *lengths] for lengths in LENGTHS]


def test_a_small_table_is_none_of_words() -> None:
    table = paddle.nn.Embedding(63, 4)
    assert lookups(lambda ids: table(ids.clip(max=62))) == []


def test_a_view_is_copied_without_what_it_is_a_view_of() -> None:
    samples = paddle.to_tensor(
        np.concatenate([words(100, 40), *batches_of(LENGTHS, 40, 0, is_left=False)])
    )
    batches = padded_batches.PaddedBatches()
    batches.note((1, 0), samples[100:], SimpleNamespace(shape=[1000, 4]))
    ((batch,),) = batches._batches.values()
    assert batch.numbers.base is None
    assert batches.lengths() == {(1, 0): [40, *LENGTHS[0], *LENGTHS[1]]}


OF_RANKS = """
import numpy as np
import paddle
from paddle.distributed import ProcessMesh, Replicate, shard_tensor
from ppprof.capture.recording.operator_calls import WindowCalls

ids = np.arange(160).reshape(4, 40)
ids[[0, 1, 2], [9, 20, 13]] = 999
ids[0, 9:] = ids[1, 20:] = ids[2, 13:] = 999
local, table = paddle.to_tensor(ids), paddle.nn.Embedding(1000, 4)
window = WindowCalls(None)
of_ranks = shard_tensor(local, ProcessMesh([0], dim_names=["dp"]), [Replicate()])
for number, tensor in enumerate((of_ranks, local)):
    window.note_numbers("embedding", (tensor, table.weight), (1, number))
print(window.batches.lengths())
"""


def test_a_tensor_of_semi_automatic_parallelism_is_not_read() -> None:
    """The other ranks would have to read theirs, too. In a process of its own, which a mesh changes for good."""
    done = subprocess.run(
        [sys.executable, "-c", OF_RANKS], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "{(1, 1): [40, 9, 20, 13, 40]}"


def test_a_device_without_streams_costs_no_other_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paddle.device, "current_stream", lambda: None)
    of_host, of_device = batches_of(LENGTHS, 40, 0, is_left=False)
    batches = padded_batches.PaddedBatches()
    batches.note((1, 0), OfDevice(of_device), SimpleNamespace(shape=[1000, 4]))
    batches.note((1, 1), paddle.to_tensor(of_host), SimpleNamespace(shape=[1000, 4]))
    batches.note((1, 2), paddle.zeros([0, 40], "int64"), SimpleNamespace(shape=[1000, 4]))
    assert batches.lengths() == {(1, 1): [40, *LENGTHS[0]]}


def test_numbers_of_a_host_are_those_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that the training writes later; and not of more calls than memory may be kept for."""
    table = paddle.nn.Embedding(1000, 4)

    def step(ids: Any) -> None:
        for _ in range(2):
            table(ids)
        ids.zero_()

    assert lookups(step) == [[40, *lengths] for lengths in LENGTHS for _ in range(2)]
    monkeypatch.setattr(padded_batches, "_MOST_NUMBERS", 2 * 4 * 40 + 1)
    assert lookups(step) == [[40, *lengths] for lengths in (LENGTHS[0], LENGTHS[0], LENGTHS[1])]


def test_the_training_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `OperatorCallRecorder` and the sampler of stacks wrap the method, and note each call."""
    reads: list[Any] = []
    read = paddle.Tensor.numpy

    def noting(tensor: Any) -> Any:
        reads.append(tensor)
        return read(tensor)

    monkeypatch.setattr(paddle.Tensor, "numpy", noting)
    assert len(lookups(paddle.nn.Embedding(1000, 4))) == len(LENGTHS)
    assert not reads


class OfDevice:
    """A tensor of a device, which needs time."""

    def __init__(self, numbers: Int64) -> None:
        self.shape, self.numbers, self.inplace_version = numbers.shape, numbers, 0
        self.dtype = "paddle.int64"
        self.place = self

    def is_cpu_place(self) -> bool:
        return False

    def numpy(self) -> Int64:
        return self.numbers


@pytest.mark.parametrize(
    ("is_done", "changes", "num"), [(True, False, 2), (True, True, 1), (False, False, 0)]
)
def test_a_device_is_read_at_the_end_if_it_is_done(
    is_done: bool, changes: bool, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And if the numbers are still those of the call."""
    stream = SimpleNamespace(query=lambda: is_done)
    monkeypatch.setattr(paddle.device, "current_stream", lambda: stream)
    tensors = list(map(OfDevice, batches_of(LENGTHS, 40, 0, is_left=False)))
    batches = padded_batches.PaddedBatches()
    for number, tensor in enumerate(tensors):
        batches.note((1, number), tensor, SimpleNamespace(shape=[1000, 4]))
    tensors[1].inplace_version += changes
    found = batches.lengths()
    assert found == {(1, row): [40, *lengths] for row, lengths in enumerate(LENGTHS[:num])}


def test_labels_that_a_loss_ignores_are_counted() -> None:
    """As they are at the call, of numbers only, and not of soft labels."""
    logits = paddle.randn([2, 6, 5])
    labels = paddle.to_tensor([[1, -100, -100, 3, 0, -100], [-100, 2, -100, -100, -100, -100]])
    cross_entropy = paddle.nn.functional.cross_entropy

    def step() -> None:
        given = labels.clone()
        cross_entropy(logits, given)
        given.zero_()
        cross_entropy(logits, given, ignore_index=0)
        cross_entropy(logits, paddle.nn.functional.softmax(logits), soft_label=True)

    calls = recorded_calls.recorded(step)
    assert [calls.lengths[row] for row in sorted(calls.lengths)] == [[12, 4], [12, 0]]


@pytest.mark.parametrize(("is_done", "changes", "num"), [(True, 0, 1), (True, 1, 0), (False, 0, 0)])
def test_labels_on_a_device_are_counted_at_the_end_if_it_is_done(
    is_done: bool, changes: int, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = SimpleNamespace(query=lambda: is_done)
    monkeypatch.setattr(paddle.device, "current_stream", lambda: stream)
    labels = OfDevice(np.array([[4, -100], [-100, -100]]))
    counted = padded_batches.CountedLabels()
    counted.note((1, 0), labels, -100)
    labels.inplace_version += changes
    assert list(counted.counts().values()) == [[4, 1]] * num
