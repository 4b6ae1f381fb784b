"""What a configuration splits over its ranks: sizes, parameters and memory."""

from __future__ import annotations

from dataclasses import dataclass

from ppprof.analysis.predict.schedule import in_flight

_BYTES = 4  # of a float32


@dataclass(frozen=True)
class Layout:
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
    recompute: bool
    """Whether the backward pass computes whole blocks again."""
    sequence_parallel: bool
    is_float32: bool

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

    def stage_layers(self) -> int:
        """Return the blocks of a stage, over all its chunks."""
        return self.layers // self.pp

    def parameters(self, stage: int) -> int:
        """Return the parameters of a rank of a stage."""
        h, f, mp = self.hidden, self.inner, self.mp
        split = (4 * h * h + 2 * h * f + 3 * h + f) // mp
        block = split + 2 * h + 4 * h  # biases after the two row-parallel products, two norms
        words = self.vocabulary * h // mp
        first = words + self.positions * h if stage == 0 else 0
        last = 2 * h + (words if self.pp > 1 else 0) if stage == self.pp - 1 else 0
        return self.stage_layers() * block + first + last

    def most_parameters(self) -> int:
        """Return the parameters of the rank with most of them."""
        return max(self.parameters(stage) for stage in range(self.pp))

    def state_bytes(self, stage: int) -> int:
        """Return the bytes of weights, gradients and AdamW's two moments on a rank, in float32."""
        split = self.sharding
        parts = (
            1 if self.sharding_stage < 3 else split,  # weights
            1 if self.sharding_stage < 2 else split,  # gradients
            *(split, split),
        )
        return sum(self.parameters(stage) * _BYTES // part for part in parts)

    def activation_bytes(self, stage: int) -> int:
        """Return the most bytes of kept activations on a rank, with s, b, h, a and mp degree t.

        A block keeps s b h (18 + 48 / t) + 9 a s^2 b / t bytes, with sequence parallelism
        (66 s b h + 9 a s^2 b) / t, for each micro-batch in flight; with recompute 4 s b h, and all
        once for the block at work. The last stage also keeps 12 s b V / t + 8 s b h for the loss.

        Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
        Models", with the tensors that Paddle keeps in float32.
        """
        s, b, h, t = self.length, self.micro_batch_size, self.hidden, self.mp
        scores = 9 * self.heads * s * s * b
        if self.sequence_parallel:
            block = (66 * s * b * h + scores) // t
        else:
            block = 18 * s * b * h + (48 * s * b * h + scores) // t
        num = in_flight(stage, self.pp, self.virtual, self.micro_batches)
        num *= self.stage_layers() // self.virtual
        kept = num * 4 * s * b * h + block if self.recompute else num * block
        loss = 12 * s * b * self.vocabulary // t + 8 * s * b * h
        return kept + (loss if stage == self.pp - 1 else 0)
