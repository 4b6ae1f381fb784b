"""What a configuration splits over its ranks: sizes, parameters and memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingSpec:
    """A configuration of the harness, in numbers."""

    dp: int
    mp: int
    pp: int
    sharding: int
    sharding_stage: int
    virtual: int
    micro_batch_size: int
    micro_batches: int
    """Micro-batches of a step."""
    layers: int
    hidden: int
    inner: int
    """Width of the MLP."""
    heads: int
    vocabulary: int
    positions: int
    length: int
    """Tokens of a sample."""
    recompute: str
    """What the backward pass computes again: nothing, or ``full``, ``full_attn`` or ``core_attn``."""
    sequence_parallel: bool
    """Whether ranks of mp split the sequence between the layers; without effect if mp is 1."""
    fused_qkv: bool
    """Whether one product computes queries, keys and values."""
    word_bytes: int | None
    """Bytes of an activation; None if they differ (mixed precision O1)."""
    flash_attention: bool
    hidden_dropout: bool
    attention_dropout: bool
    clips: bool
    """Whether gradients are clipped."""
    loss_parts: int = 1
    """Parts of the tokens for which the loss is computed, one after the other."""

    @property
    def samples(self) -> int:
        """Samples of a step on one replica."""
        return self.micro_batch_size * self.micro_batches

    @property
    def replicas(self) -> int:
        """Replicas that add up their gradients."""
        return self.dp * self.sharding

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.dp * self.mp * self.pp * self.sharding

    @property
    def is_memory_known(self) -> bool:
        """Whether `memory_of` knows the configuration: no mixed precision O1, no sharding stage 3."""
        return self.word_bytes is not None and not (self.sharding > 1 and self.sharding_stage == 3)

    @property
    def value_bytes(self) -> int:
        """Bytes of a gradient, and of a hidden value (with mixed precision O1, of a gradient alone)."""
        return self.word_bytes or 4

    def stage_layers(self) -> int:
        """Return the blocks of a stage, over all its chunks."""
        return self.layers // self.pp

    def tensors(self, stage: int) -> list[int]:
        """Return the sizes of the parameters of a rank of a stage, in the model's order."""
        h, f, mp = self.hidden, self.inner, self.mp
        projected = [3 * h * h // mp, 3 * h // mp] if self.fused_qkv else 3 * [h * h // mp, h // mp]
        attention = [*projected, h * h // mp, h]
        mlp = [h * f // mp, f // mp, f * h // mp, h]
        norm = [h, h]
        words = [self.vocabulary * h // mp]
        sizes = [*words, self.positions * h] if stage == 0 else []
        sizes += self.stage_layers() * [*norm, *attention, *norm, *mlp]
        if stage == self.pp - 1:
            sizes += norm + (words if self.pp > 1 else [])
        return sizes

    def parameters(self, stage: int) -> int:
        """Return the parameters of a rank of a stage."""
        return sum(self.tensors(stage))

    def most_parameters(self) -> int:
        """Return the parameters of the rank with most of them."""
        return max(self.parameters(stage) for stage in range(self.pp))
