"""Layers: Fleet's tensor parallel layers if mp_degree is above 1, else Paddle's plain layers.

With sequence parallelism, the tensors between these layers (of norms, dropouts, residuals) are split
along the sequence, in Fleet's layout: (length / mp, batch, hidden).
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.distributed import fleet
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.meta_parallel import (
    ColumnParallelLinear,
    ParallelCrossEntropy,
    RowParallelLinear,
    VocabParallelEmbedding,
    get_rng_state_tracker,
)
from paddle.distributed.fleet.utils import sequence_parallel_utils as sequence

from ppprof.config import ModelConfig


def mp_degree() -> int:
    """Return Fleet's mp_degree: how many ranks share a layer. 1 if Fleet is not initialized."""
    groups = getattr(fleet.fleet, "_hcg", None)
    return groups.get_model_parallel_world_size() if groups is not None else 1


def splits_sequence(config: ModelConfig) -> bool:
    """Return whether activations are split along the sequence; never if mp_degree is 1."""
    return config.sequence_parallel and mp_degree() > 1


def column_linear(width_in: int, width_out: int, config: ModelConfig) -> nn.Layer:
    """Return a linear layer; each mp rank holds and returns its part of the outputs.

    With sequence parallelism, the layer first gathers its input along the sequence.

    Args:
        width_in: number of inputs.
        width_out: number of outputs of all mp ranks together.
        config: says whether the sequence is split.
    """
    if splits_sequence(config):
        return sequence.ColumnSequenceParallelLinear(
            width_in, width_out, has_bias=True, gather_output=False
        )
    if mp_degree() > 1:
        return ColumnParallelLinear(width_in, width_out, has_bias=True, gather_output=False)
    return nn.Linear(width_in, width_out)


def row_linear(width_in: int, width_out: int, config: ModelConfig) -> nn.Layer:
    """Return a linear layer; each mp rank takes its part of the inputs.

    The layer sums the outputs over mp ranks. With sequence parallelism, each mp rank gets its part
    of the sum along the sequence.

    Args:
        width_in: number of inputs of all mp ranks together.
        width_out: number of outputs.
        config: says whether the sequence is split.
    """
    if splits_sequence(config):
        return sequence.RowSequenceParallelLinear(width_in, width_out, input_is_parallel=True)
    if mp_degree() > 1:
        return RowParallelLinear(width_in, width_out, input_is_parallel=True)
    return nn.Linear(width_in, width_out)


def vocabulary(config: ModelConfig) -> nn.Layer:
    """Return the embedding of tokens; each mp rank holds its part of the vocabulary."""
    embedding = VocabParallelEmbedding if mp_degree() > 1 else nn.Embedding
    return embedding(config.vocab_size, config.hidden_size)


def norm(config: ModelConfig) -> nn.LayerNorm:
    """Return a layer norm over the hidden size.

    If activations are split along the sequence, the norm's parameters are marked, so that Fleet sums
    their gradients over mp ranks.
    """
    layer = nn.LayerNorm(config.hidden_size)
    if splits_sequence(config):
        for param in layer.parameters():
            sequence.mark_as_sequence_parallel_parameter(param)
    return layer


class Dropout(nn.Layer):
    """Dropout of hidden states.

    All mp ranks drop the same elements. If activations are split along the sequence, each mp rank
    drops elements of its part.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._ratio = config.hidden_dropout_prob
        self._splits_sequence = splits_sequence(config)

    def forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Return ``hidden`` with dropout, in the same shape; unchanged in an evaluation."""
        with own_randomness() if self._splits_sequence else contextlib.nullcontext():
            return F.dropout(hidden, self._ratio, training=self.training)


def own_randomness() -> AbstractContextManager[Any]:
    """Return a context manager in which random numbers differ between mp ranks.

    Outside of it, all mp ranks draw the same random numbers. `ppprof.train.grid.Grid.seed` must
    have seeded both before. If mp_degree is 1, the context manager does nothing.
    """
    if mp_degree() == 1:
        return contextlib.nullcontext()
    context: AbstractContextManager[Any] = get_rng_state_tracker().rng_state()
    return context


def to_parts(hidden: paddle.Tensor) -> paddle.Tensor:
    """Return this mp rank's part of the sequence: (length / mp, batch, hidden).

    Args:
        hidden: shape (batch, length, hidden), equal on all mp ranks.
    """
    return sequence.ScatterOp.apply(hidden.transpose([1, 0, 2]))


def from_parts(hidden: paddle.Tensor) -> paddle.Tensor:
    """Return the whole sequence from the parts of all mp ranks, the inverse of `to_parts`.

    Args:
        hidden: this mp rank's part, of shape (length / mp, batch, hidden).

    Returns:
        Shape (batch, length, hidden).
    """
    return sequence.GatherOp.apply(hidden).transpose([1, 0, 2])


def logits(hidden: paddle.Tensor, table: nn.Layer) -> paddle.Tensor:
    """Return the scores of all tokens; on an mp rank, the scores of its part of the vocabulary.

    Args:
        hidden: shape (batch, length, hidden).
        table: the embedding that `vocabulary` returned.

    Returns:
        Float, shape (batch, length, vocab_size or this mp rank's part of it).
    """
    if mp_degree() > 1:
        hidden = mp_ops._c_identity(hidden, table.model_parallel_group)
    return paddle.matmul(hidden, table.weight, transpose_y=True)


def cross_entropy(scores: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
    """Return the mean cross entropy, a float32 scalar.

    Args:
        scores: result of `logits`.
        labels: the token that is correct at each position, int64, shape (batch, length).
    """
    scores = scores.astype("float32")
    if mp_degree() > 1:
        return ParallelCrossEntropy()(scores, labels).mean()
    return F.cross_entropy(scores.reshape([-1, scores.shape[-1]]), labels.flatten())
