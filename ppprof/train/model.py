"""A GPT made of the same pieces on one device and on any topology. Its sizes have FleetX's names.

The model is a chain of pieces: `Words`, `Positions`, each `Block`, a `Norm`, and again `Words`, which
returns logits. `GPT` runs the whole chain. `pipeline_stage` passes this rank's pieces to Fleet's
pipeline.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from paddle import nn
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer, SharedLayerDesc
from paddle.distributed.fleet.utils import recompute
from paddle.framework import core

from ppprof.config import ModelConfig
from ppprof.train import layers


class GPT(nn.Layer):
    """A decoder-only Transformer with pre-norm and tied embeddings, not split into pipeline stages."""

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
    """Return this rank's stage of the model; with virtual stages, all stages of this rank.

    The model is that of `GPT`. Its blocks are divided evenly over the stages. Call this function
    after ``fleet.init``.
    """
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
        # Fleet looks up the attribute's name ("weight") among the parameters' names and does not
        # find it. So it would count the weight of `Words` in the gradient norm of every stage that
        # holds the weight.
        is_first = dist.get_rank() == min(shared["ranks"])
        shared["layer"].weight.is_firstly_shared = is_first
    return stage


def parameters(model: nn.Layer) -> Iterator[tuple[str, paddle.Tensor]]:
    """Yield name and tensor of each parameter of this rank, each parameter once.

    The name is the parameter's name in the whole model, such as ``blocks.3.mlp.up.weight``. A `GPT`
    and a `pipeline_stage` use the same names.
    """
    seen: set[str] = set()
    for piece in model.sublayers():
        if isinstance(piece, Piece) and piece.place not in seen:
            seen.add(piece.place)
            for name, param in piece.named_parameters():
                yield f"{piece.place}.{name}", param


def initialize(model: nn.Layer, config: ModelConfig, seed: int) -> None:
    """Set the model's weights to normal random numbers that depend on ``seed`` and the weight's name.

    They do not depend on the topology: each mp rank draws the whole weight and keeps its part.
    Norms and biases are not changed; they stay ones and zeros.
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
    """A link of the chain that makes up the model.

    Args:
        place: the piece's name in the whole model, such as ``blocks.3``; the same on every rank.
    """

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place


class Words(Piece):
    """The embedding of tokens, and the projection of hidden states to logits by the same weight."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__("words")
        self.table = layers.vocabulary(config)

    @property
    def weight(self) -> paddle.Tensor:
        """The weight of embedding and projection: shape (vocab_size or this mp rank's part, hidden).

        With several pipeline stages, the first and the last stage each hold a copy.
        """
        return self.table.weight

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Map int64 tokens (batch, length) to hidden states (batch, length, hidden)."""
        return self.table(tokens)

    def logits(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Map hidden states (batch, length, hidden) to logits.

        Returns:
            Float, shape (batch, length, vocab_size or this mp rank's part of it).
        """
        return layers.logits(hidden, self.table)


class Positions(Piece):
    """Adds an embedding of the position to the output of `Words`, then applies dropout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__("positions")
        self.table = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.dropout = layers.Dropout(config)
        self._splits_sequence = layers.splits_sequence(config)

    def forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Map (batch, length, hidden) to the hidden states for the first `Block`.

        Returns:
            Shape (batch, length, hidden); with sequence parallelism, this mp rank's part of the
            sequence, of shape (length / mp, batch, hidden).
        """
        hidden = hidden + self.table(paddle.arange(hidden.shape[1]))
        return self.dropout(layers.to_parts(hidden) if self._splits_sequence else hidden)


class Block(Piece):
    """Attention and MLP, each after a norm and with a residual connection.

    Args:
        config: the model's sizes.
        index: number of the block in the whole model, from 0.
    """

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
        """Return hidden states in the shape of ``hidden``, the output of `Positions` or a `Block`."""
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
    """The norm after the last block. With sequence parallelism, it also gathers the whole sequence."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__("norm")
        self.norm = layers.norm(config)
        self._splits_sequence = layers.splits_sequence(config)

    def forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Map the output of a `Block` to (batch, length, hidden)."""
        normed = self.norm(hidden)
        return layers.from_parts(normed) if self._splits_sequence else normed


class Attention(nn.Layer):
    """Causal self-attention; each mp rank computes its part of the heads.

    Args:
        config: the model's sizes.
        recompute_core: whether backward computes the attention scores and the weighted sums of
            values again instead of keeping them, to save memory.
    """

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
        """Return hidden states in the shape of ``hidden``.

        Args:
            hidden: shape (batch, length, hidden); with sequence parallelism, this mp rank's part of
                the sequence, of shape (length / mp, batch, hidden).
        """
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
        """Reshape a projection to (batch, length, heads of this mp rank, size), with the whole length."""
        if self._splits_sequence:
            projected = projected.transpose([1, 0, 2])
        return projected.reshape([*projected.shape[:2], self._num_heads, size])

    def _core(
        self, query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor
    ) -> paddle.Tensor:
        """Return the sums of values, weighted by attention scores.

        Inputs and result have shape (batch, length, heads of this mp rank, size of a head).
        """
        with layers.own_randomness():
            if _has_flash_attention(_device_type(), query.dtype):
                return _flash_attention(query, key, value, self._dropout, self.training)
            query, key, value = (part.transpose([0, 2, 1, 3]) for part in (query, key, value))
            scores = paddle.matmul(query, key, transpose_y=True) * query.shape[-1] ** -0.5
            length = scores.shape[-1]
            future = paddle.triu(paddle.full([length, length], -1e4, scores.dtype), diagonal=1)
            weights = F.softmax(scores + future, axis=-1)
            weights = F.dropout(weights, self._dropout, training=self.training)
            return paddle.matmul(weights, value).transpose([0, 2, 1, 3])


def _device_type() -> str:
    """Return Paddle's name of the kind of device that computes, such as ``gpu``."""
    device: str = paddle.get_device()
    return device.partition(":")[0]


@functools.cache
def _has_flash_attention(device_type: str, dtype: Any) -> bool:
    """Return whether Paddle, or the plugin of a device, has flash attention for a data type."""
    kernels = core._get_registered_phi_kernels("all").get("flash_attn", ())
    wanted = f"({device_type},", f", {str(dtype).rpartition('.')[2]})"
    return any(text.lower().startswith(wanted[0]) and text.endswith(wanted[1]) for text in kernels)


def _flash_attention(
    query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, dropout: float, training: bool
) -> paddle.Tensor:
    """Return causal attention in the shape of its inputs, (batch, length, heads, size)."""
    if _device_type() in ("gpu", "xpu"):
        # It also checks what the model of the device supports.
        return F.scaled_dot_product_attention(
            query, key, value, None, dropout, is_causal=True, training=training
        )
    # On the devices of plugins, Paddle's functions never choose flash attention.
    return paddle._C_ops.flash_attn(
        query, key, value, None, None, dropout, True, False, not training, ""
    )[0]


class MLP(nn.Layer):
    """Two linear layers with a GELU between them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inner = config.ffn_hidden_size or 4 * config.hidden_size
        self.up = layers.column_linear(config.hidden_size, inner, config)
        self.down = layers.row_linear(inner, config.hidden_size, config)

    def forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Return hidden states in the shape of ``hidden``.

        Args:
            hidden: shape (batch, length, hidden); with sequence parallelism, this mp rank's part of
                the sequence, of shape (length / mp, batch, hidden).
        """
        return self.down(F.gelu(self.up(hidden), approximate=True))


class PretrainingLoss(nn.Layer):
    """The mean cross entropy of the next token, in float32.

    The labels are the next tokens: they are shifted against the model's inputs already.
    """

    def forward(self, logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
        """Return the mean loss, a float32 scalar.

        Args:
            logits: result of `Words.logits`.
            labels: the next token at each position, int64, shape (batch, length).
        """
        return layers.cross_entropy(logits, labels)


def rank_flops(
    model: ModelConfig,
    tokens: int,
    length: int,
    *,
    num_blocks: int,
    has_logits: bool,
    mp_degree: int = 1,
) -> int:
    """Return one rank's share of the model FLOPs of an optimizer step of its data-parallel replica.

    Counts matrix products only, two operations per multiply-add. For each token, with hidden size
    h, MLP width f, length s, vocabulary V and l blocks, a forward pass has

    ====================  ==========
    query, key, value     6 h^2        each block
    scores, values        4 s h        each block; in full, although half is masked
    attention's output    2 h^2        each block
    MLP                   4 h f        each block
    logits                2 h V        once
    ====================  ==========

    A backward pass has twice as many: one product for each operand's gradient. With f = 4h and B
    samples, the shares of all ranks sum to 72 B s l h^2 (1 + s/6h + V/12lh). Recomputation is not
    counted: it is not work of the model, and MFU should fall with it.

    Args:
        model: the sizes of the whole model; a blank ``ffn_hidden_size`` is 4 x hidden_size.
        tokens: tokens of the step in this replica; every pipeline stage computes all of them.
        length: tokens of a sample.
        num_blocks: blocks of this rank's pipeline stage, over all its virtual stages.
        has_logits: whether this rank's pipeline stage is the last stage.
        mp_degree: number of ranks that every matrix product is split over. It divides the heads,
            ``ffn_hidden_size`` and ``vocab_size``.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM", appendix. Their formula is 96 B s l h^2 (1 + s/6h + V/16lh), because they
    run the forward passes of all blocks twice.
    """
    hidden = model.hidden_size
    inner = model.ffn_hidden_size or 4 * hidden
    block = 8 * hidden * hidden + 4 * length * hidden + 4 * hidden * inner
    logits = 2 * hidden * model.vocab_size if has_logits else 0
    forward = tokens * (num_blocks * block + logits)
    return 3 * forward // mp_degree
