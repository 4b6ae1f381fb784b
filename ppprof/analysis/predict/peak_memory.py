"""The peak memory of a rank: the largest sum of the tensors that it holds at one moment of a step.

::

    forward passes in flight     what each block keeps, for each micro-batch
    loss                         + logits and softmax
    backward pass of a block     + gradients of the block at work
    optimizer                    no block keeps anything; copies of all gradients

Weights, gradients and moments of AdamW are there at all of them. A block keeps what the harness's
operators save for their gradients (`ppprof.train.model`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ppprof.analysis.predict.schedule import in_flight
from ppprof.analysis.predict.training_spec import TrainingSpec

_FLOAT32 = 4
_BUCKET = 1 << 23
"""Most gradients of a buffer of sharding stage 2 (``buffer_max_size`` of ``group_sharded_parallel``)."""


@dataclass(frozen=True)
class Memory:
    """The memory of a rank, in bytes."""

    state_bytes: int
    """Weights, gradients and moments."""
    moments: dict[str, int]
    """What else is held at each moment of a step that may be the largest."""

    @property
    def moment(self) -> str:
        """The moment of the peak."""
        return max(self.moments, key=self.moments.__getitem__)

    @property
    def total_bytes(self) -> int:
        """The peak."""
        return self.state_bytes + self.moments[self.moment]


def memory_of(spec: TrainingSpec, stage: int) -> Memory:
    """Return the memory of the rank of a stage that needs most; not for sharding stage 3."""
    s, b, t, word = spec.length, spec.micro_batch_size, spec.mp, spec.word_bytes
    assert word is not None
    whole = word * s * b * spec.hidden  # hidden states
    part = whole // t if spec.sequence_parallel else whole  # the same between split layers
    head = whole // t  # queries, keys or values
    inner = word * s * b * spec.inner // t
    scores = 0 if spec.flash_attention else word * spec.heads * s * s * b // t
    logits = s * b * spec.vocabulary // t // spec.loss_parts
    mask = s * b * spec.hidden // (t if spec.sequence_parallel else 1) * spec.hidden_dropout
    words = word * spec.vocabulary * spec.hidden // t

    # The inputs of a block's parts: norm, product, softmax and sum of values, product.
    attention = whole + 4 * head + scores
    if spec.attention_dropout:
        attention += scores + scores // word
    mlp = whole + 2 * inner
    block = 2 * part + attention + mlp + 2 * mask
    again = {
        "": 0,
        "full": block - part,
        "full_attn": attention - whole,
        "core_attn": attention - whole - 4 * head,
    }
    kept = block - again[spec.recompute]

    in_chunk = spec.stage_layers() // spec.virtual
    num_kept = in_chunk * in_flight(stage, spec.pp, spec.virtual, spec.micro_batches)
    # One message to each neighbour, and one from it.
    messages = 2 * part * ((stage > 0) + (stage < spec.pp - 1))
    before = messages + num_kept * kept
    is_first, is_last = stage == 0, stage == spec.pp - 1
    # With one stage, the loss's gradient of the words waits for that of the embedding.
    waiting = words if is_first and is_last else 0
    # A block computed again also has its result and the gradient of that.
    at_work = before + waiting + (again["full"] + 2 * part if spec.recompute == "full" else 0)
    # The gradient of the softmax; then that of the scores, or of values and the sums of them.
    softmax = scores + max(0 if spec.attention_dropout else scores, 3 * head)
    if spec.recompute in ("full_attn", "core_attn"):
        softmax += again[spec.recompute] + 2 * head
    moments = {
        "backward pass of an MLP": at_work
        + (part + whole + inner + word * spec.hidden * spec.inner // t),
        "backward pass of an attention": at_work - mlp - 2 * mask + softmax,
        "optimizer": _copies(spec, spec.parameters(stage)),
    }
    if is_last:
        head_of_model = before + part + whole
        # Logits and softmax, in float32.
        moments["loss"] = head_of_model + (2 * _FLOAT32 + (word < _FLOAT32) * word) * logits
        moments["backward pass of the loss"] = head_of_model + word * logits + whole + words
    if is_first:
        others = messages + (num_kept - in_chunk) * kept
        moments["backward pass of the embedding"] = others + whole + words + waiting
    return Memory(_state_bytes(spec, spec.tensors(stage)), moments)


def _state_bytes(spec: TrainingSpec, tensors: Sequence[int]) -> int:
    """Return the bytes of weights, gradients and AdamW's state of the rank with most."""
    total, ranks, word = sum(tensors), spec.sharding, spec.word_bytes
    assert word is not None
    # Two moments, and copies of weights that are not in float32.
    state = _FLOAT32 * (2 if word == _FLOAT32 else 3)
    if ranks == 1:
        return (2 * word + state) * total
    own = max(shares(sorted(tensors, reverse=True) if spec.sharding_stage == 1 else tensors, ranks))
    gradients = total
    if spec.sharding_stage == 2:
        # A buffer for each rank's small tensors; one more is still held when they are made again.
        buffer = min(own, _BUCKET)
        gradients = own - buffer + (ranks + 1) * buffer
    return word * (total + gradients) + state * own


def _copies(spec: TrainingSpec, total: int) -> int:
    """Return the bytes of copies of gradients: for their sum over dp, or made by Paddle's clip, not by Fleet's."""
    sums = spec.dp > 1 and (spec.sharding == 1 or spec.sharding_stage == 1)
    if sums or (spec.clips and spec.world_size == 1):
        return (spec.word_bytes or 0) * total
    return 0


def shares(sizes: Iterable[int], ranks: int) -> list[int]:
    """Return what each rank has if each tensor goes to the rank that has least.

    >>> shares([5, 4, 3, 3], 2)
    [8, 7]
    """
    loads = [0] * ranks
    for size in sizes:
        loads[loads.index(min(loads))] += size
    return loads
