"""A GPT with FleetX's names for its sizes: the same pieces on one device and on any topology.

The model is a chain of pieces: words, positions, blocks, a norm, and the words again as logits.
`GPT` runs the whole chain. `pipeline_stage` passes this rank's part of it to Fleet's pipeline.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from paddle import nn
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer, SharedLayerDesc
from paddle.distributed.fleet.utils import recompute

from ppprof.config import ModelConfig
from ppprof.train import layers


class GPT(nn.Layer):
    """Decoder-only Transformer with pre-norm and tied embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.words = Words(config)
        self.positions = Positions(config)
        self.blocks = nn.LayerList([Block(config, index) for index in range(config.num_layers)])
        self.norm = Norm(config)
        self.extra_parameters = [self.words.weight]  # sharding stage 3: also read in `forward`

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Return the logits of the next token.

        Args:
            tokens: int64, shape (batch, length), length at most max_position_embeddings.

        Returns:
            Float, shape (batch, length, vocab_size or this mp rank's part of it).
        """
        hidden = self.positions(self.words(tokens))
        for block in self.blocks:
            hidden = block(hidden)
        return self.words.logits(self.norm(hidden))


def pipeline_stage(config: ModelConfig) -> PipelineLayer:
    """Return this rank's stages of the same model; blocks are divided evenly."""
    pieces = [
        SharedLayerDesc("words", Words, None, "weight", config),
        LayerDesc(Positions, config),
        *(LayerDesc(Block, config, index) for index in range(config.num_layers)),
        LayerDesc(Norm, config),
        SharedLayerDesc("words", Words, Words.logits, "weight", config),
    ]
    stage = PipelineLayer(
        pieces,
        topology=fleet.get_hybrid_communicate_group().topology(),
        loss_fn=PretrainingLoss(),
        seg_method="layer:Block",
        num_virtual_pipeline_stages=config.virtual_pp_degree,
    )
    for shared in stage.shared_comm.values():
        # Fleet looks up the attribute's name among the parameters' names and does not find it. It
        # would count the words in the gradient norm of every stage that holds them.
        is_first = dist.get_rank() == min(shared["ranks"])
        shared["layer"].weight.is_firstly_shared = is_first
    return stage


def parameters(model: nn.Layer) -> Iterator[tuple[str, paddle.Tensor]]:
    """Yield this rank's parameters with their names in the whole model.

    The names are the same in a `GPT` and in a `pipeline_stage`: ``blocks.3.mlp.up.weight``.
    """
    seen: set[str] = set()
    for piece in model.sublayers():
        if isinstance(piece, Piece) and piece.place not in seen:
            seen.add(piece.place)
            for name, param in piece.named_parameters():
                yield f"{piece.place}.{name}", param


def initialize(model: nn.Layer, config: ModelConfig, seed: int) -> None:
    """Draw normal weights that depend on seed and name, but not on the topology.

    Each mp rank keeps its part of a weight. Norms and biases stay ones and zeros.
    """
    for name, param in parameters(model):
        if len(param.shape) < 2:
            continue
        shape, part = list(param.shape), [slice(None)] * len(param.shape)
        if param.is_distributed:
            mp_rank = fleet.get_hybrid_communicate_group().get_model_parallel_rank()
            axis, size = param.split_axis, param.shape[param.split_axis]
            shape[axis] *= layers.mp_degree()
            part[axis] = slice(mp_rank * size, (mp_rank + 1) * size)
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        whole = rng.standard_normal(shape, np.float32) * np.float32(config.initializer_range)
        param.set_value(np.ascontiguousarray(whole[tuple(part)]))


class Piece(nn.Layer):
    """A link of the chain.

    ``place`` is its name in the whole model (``blocks.3``), on every rank.
    """

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place


class Words(Piece):
    """Embedding of tokens, and the projection back to logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__("words")
        self.table = layers.vocabulary(config)

    @property
    def weight(self) -> paddle.Tensor:
        """The weight that both ends share: shape (vocab_size or this mp rank's part, hidden)."""
        return self.table.weight

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Map (batch, length) to (batch, length, hidden)."""
        return self.table(tokens)

    def logits(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Map (batch, length, hidden) to (batch, length, vocab_size or this mp rank's part)."""
        return layers.logits(hidden, self.table)


class Positions(Piece):
    """Adds an embedding of the position; the first hidden states."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__("positions")
        self.table = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.dropout = layers.Dropout(config)
        self._splits_sequence = layers.splits_sequence(config)

    def forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Map (batch, length, hidden) to the same shape, or to this mp rank's part of the length."""
        hidden = hidden + self.table(paddle.arange(hidden.shape[1]))
        return self.dropout(layers.to_parts(hidden) if self._splits_sequence else hidden)


class Block(Piece):
    """Attention and MLP, each after a norm and with a residual connection."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__(f"blocks.{index}")
        keeps = config.no_recompute_layers or ()
        self._granularity = ""
        if config.use_recompute and index not in keeps:
            self._granularity = config.recompute_granularity or "full"
        self.attention_norm = layers.norm(config)
        self.attention = Attention(config, recompute_core=self._granularity == "core_attn")
        self.mlp_norm = layers.norm(config)
        self.mlp = MLP(config)
        self.dropout = layers.Dropout(config)

    def forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Return hidden states in the shape of the input, which comes from `Positions`."""
        if self._granularity == "full" and self.training:
            return recompute(self._forward, hidden)
        return self._forward(hidden)

    def _forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        normed = self.attention_norm(hidden)
        if self._granularity == "full_attn" and self.training:
            attended = recompute(self.attention, normed)
        else:
            attended = self.attention(normed)
        hidden = hidden + self.dropout(attended)
        return hidden + self.dropout(self.mlp(self.mlp_norm(hidden)))


class Norm(Piece):
    """The norm after the last block; with sequence parallelism it also gathers the sequence."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__("norm")
        self.norm = layers.norm(config)
        self._splits_sequence = layers.splits_sequence(config)

    def forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Map the output of a `Block` to (batch, length, hidden)."""
        normed = self.norm(hidden)
        return layers.from_parts(normed) if self._splits_sequence else normed


class Attention(nn.Layer):
    """Causal self-attention; each mp rank has its part of the heads."""

    def __init__(self, config: ModelConfig, recompute_core: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self._num_heads = config.num_attention_heads // layers.mp_degree()
        self._size = width // config.num_attention_heads
        self._dropout = config.attention_probs_dropout_prob
        self._recompute_core = recompute_core
        self._splits_sequence = layers.splits_sequence(config)
        self._is_fused = config.fuse_attn_qkv
        if self._is_fused:
            self.qkv = layers.column_linear(width, 3 * width, config)
        else:
            self.query, self.key, self.value = (
                layers.column_linear(width, width, config) for _ in range(3)
            )
        self.out = layers.row_linear(width, width, config)

    def forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Return hidden states in the shape of the input: (batch, length, hidden) or a part."""
        if self._is_fused:
            parts = self._heads(self.qkv(hidden), 3 * self._size).split(3, axis=-1)
        else:
            each = (self.query(hidden), self.key(hidden), self.value(hidden))
            parts = [self._heads(part, self._size) for part in each]
        if self._recompute_core and self.training:
            attended = recompute(self._core, *parts)
        else:
            attended = self._core(*parts)
        attended = attended.flatten(2)
        return self.out(attended.transpose([1, 0, 2]) if self._splits_sequence else attended)

    def _heads(self, projected: paddle.Tensor, size: int) -> paddle.Tensor:
        """Reshape a projection to (batch, length, heads, size), with the whole length."""
        if self._splits_sequence:
            projected = projected.transpose([1, 0, 2])
        return projected.reshape([*projected.shape[:2], self._num_heads, size])

    def _core(
        self, query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor
    ) -> paddle.Tensor:
        """Return the attended values; shape (batch, length, heads, size) as the inputs."""
        with layers.own_randomness():
            if query.place.is_gpu_place() and query.dtype != paddle.float32:
                return F.scaled_dot_product_attention(
                    query, key, value, None, self._dropout, is_causal=True, training=self.training
                )
            query, key, value = (part.transpose([0, 2, 1, 3]) for part in (query, key, value))
            scores = paddle.matmul(query, key, transpose_y=True) * query.shape[-1] ** -0.5
            length = scores.shape[-1]
            future = paddle.triu(paddle.full([length, length], -1e4, scores.dtype), diagonal=1)
            weights = F.softmax(scores + future, axis=-1)
            weights = F.dropout(weights, self._dropout, training=self.training)
            return paddle.matmul(weights, value).transpose([0, 2, 1, 3])


class MLP(nn.Layer):
    """Two linear layers with a GELU between them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inner = config.ffn_hidden_size or 4 * config.hidden_size
        self.up = layers.column_linear(config.hidden_size, inner, config)
        self.down = layers.row_linear(inner, config.hidden_size, config)

    def forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Return hidden states in the shape of the input: (batch, length, hidden) or a part."""
        return self.down(F.gelu(self.up(hidden), approximate=True))


class PretrainingLoss(nn.Layer):
    """Mean cross entropy of the next token, in float32."""

    def forward(self, logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
        """Return a scalar from the result of `Words.logits` and int64 labels (batch, length)."""
        return layers.cross_entropy(logits, labels)
