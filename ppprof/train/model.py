"""A GPT in plain Paddle layers, with FleetX's names for its sizes."""

from __future__ import annotations

from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.distributed.fleet.utils import recompute

from ppprof.config import ModelConfig


class GPT(nn.Layer):
    """Decoder-only Transformer, pre-norm, with the vocabulary tied.

    Every linear layer and the embedding are made by `linear` and `embedding`, so that tensor
    parallel ones can take their place.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.word_embeddings = embedding(config.vocab_size, config)
        self.position_embeddings = embedding(config.max_position_embeddings, config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.blocks = nn.LayerList([Block(config, at) for at in range(config.num_layers)])
        self.norm = nn.LayerNorm(config.hidden_size)

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Logits of the next token.

        Args:
            tokens: int64, shape (batch, length), length at most max_position_embeddings.

        Returns:
            float, shape (batch, length, vocab_size).
        """
        positions = paddle.arange(tokens.shape[1])
        hidden = self.word_embeddings(tokens) + self.position_embeddings(positions)
        hidden = self.dropout(hidden)
        for block in self.blocks:
            hidden = block(hidden)
        return paddle.matmul(self.norm(hidden), self.word_embeddings.weight, transpose_y=True)


class Block(nn.Layer):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        keeps = config.no_recompute_layers or ()
        self._granularity = ""
        if config.use_recompute and index not in keeps:
            self._granularity = config.recompute_granularity or "full"
        self.attention_norm = nn.LayerNorm(config.hidden_size)
        self.attention = Attention(config, recompute_core=self._granularity == "core_attn")
        self.mlp_norm = nn.LayerNorm(config.hidden_size)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Shape (batch, length, hidden) in and out."""
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


class Attention(nn.Layer):
    """Causal self-attention."""

    def __init__(self, config: ModelConfig, recompute_core: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self._num_heads = config.num_attention_heads
        self._dropout = config.attention_probs_dropout_prob
        self._recompute_core = recompute_core
        self._is_fused = config.fuse_attn_qkv
        if self._is_fused:
            self.qkv = linear(width, 3 * width, config)
        else:
            self.query, self.key, self.value = (linear(width, width, config) for _ in range(3))
        self.out = linear(width, width, config)

    def forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Shape (batch, length, hidden) in and out."""
        batch, length, width = hidden.shape
        if self._is_fused:
            parts = self.qkv(hidden).split(3, axis=-1)
        else:
            parts = [self.query(hidden), self.key(hidden), self.value(hidden)]
        heads = [part.reshape([batch, length, self._num_heads, -1]) for part in parts]
        if self._recompute_core and self.training:
            attended = recompute(self._core, *heads)
        else:
            attended = self._core(*heads)
        return self.out(attended.reshape([batch, length, width]))

    def _core(
        self, query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor
    ) -> paddle.Tensor:
        """Shape (batch, length, heads, size) in and out."""
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
        self.up = linear(config.hidden_size, inner, config)
        self.down = linear(inner, config.hidden_size, config)

    def forward(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Shape (batch, length, hidden) in and out."""
        return self.down(F.gelu(self.up(hidden), approximate=True))


class PretrainingLoss(nn.Layer):
    """Mean cross entropy of the next token, in float32."""

    def forward(self, logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
        """A scalar, from logits (batch, length, vocab) and int64 labels (batch, length)."""
        vocab = logits.shape[-1]
        return F.cross_entropy(logits.astype("float32").reshape([-1, vocab]), labels.flatten())


def linear(width_in: int, width_out: int, config: ModelConfig) -> nn.Layer:
    """A linear layer with the config's initial weights."""
    return nn.Linear(width_in, width_out, weight_attr=_initial(config))


def embedding(count: int, config: ModelConfig) -> nn.Layer:
    """An embedding table with the config's initial weights."""
    return nn.Embedding(count, config.hidden_size, weight_attr=_initial(config))


def _initial(config: ModelConfig) -> Any:
    return paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, config.initializer_range))
