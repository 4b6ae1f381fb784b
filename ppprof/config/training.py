"""The training blocks (Global, Engine, Model...), in the dialect of FleetX's GPT configs.

The fields are the keys that ppprof's harness reads. FleetX's other keys (``UNUSED``) pass through
without effect and without a warning. Unknown keys pass through with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Optional, Union

from ppprof.config.validation import knob
from ppprof.topology import AXES


@dataclass(frozen=True)
class GlobalConfig:
    """Settings of the whole job."""

    UNUSED: ClassVar[tuple[str, ...]] = ("flags", "enable_partial_send_recv", "use_recompute")

    device: Union[Literal["cpu", "gpu", "xpu", "rocm", "npu", "mlu"], str] = "gpu"
    """Type of device to train on: cpu, gpu, xpu, rocm (Paddle's gpu on AMD and Hygon), or an
    installed plugin, such as npu, mlu, gcu or metax_gpu."""
    seed: int = knob(1024, minimum=0)
    """Seed of initialization, dropout and data order."""
    global_batch_size: Optional[int] = knob(None, minimum=1)
    """Samples of a step over all ranks: local_batch_size x dp x sharding; blank derives it."""
    local_batch_size: Optional[int] = knob(None, minimum=1)
    """Samples of a step on one model replica, of which there are dp x sharding. Blank derives it
    from global_batch_size, else 1."""
    micro_batch_size: Optional[int] = knob(None, minimum=1)
    """Samples of one forward and backward pass, a divisor of local_batch_size; blank for
    local_batch_size."""
    device_peak_flops: Optional[float] = knob(None, above=0)
    """Peak dense FLOP/s of one device in the training's dtype, for MFU. Blank: the bf16 and fp16
    peak of a known device, else no MFU. ``ppprof doctor --measure`` measures it."""
    device_peak_gbps: Optional[float] = knob(None, above=0)
    """Bandwidth of one device's memory in GB/s, for the efficiency of operators. Blank: that of a
    known device."""


@dataclass(frozen=True)
class MixPrecisionConfig:
    """Automatic mixed precision (GPU only; Paddle's CPU build computes in float32)."""

    UNUSED: ClassVar[tuple[str, ...]] = (
        "main_grad",
        "use_fp16_guard",
        "use_bf16_guard",
        "fp16_dtype",
    )

    enable: bool = False
    """Compute in ``dtype`` where it is safe."""
    dtype: Literal["float16", "bfloat16"] = "float16"
    """The low-precision type."""
    level: Literal["O1", "O2"] = "O2"
    """O1 casts the inputs of each operator; O2 also keeps the parameters in low precision."""
    use_pure_fp16: bool = False
    """FleetX's older key for ``enable``; ``dtype`` and ``level`` apply."""
    scale_loss: float = knob(32768.0, above=0)
    """Initial loss scale; only for float16."""
    custom_black_list: Optional[tuple[str, ...]] = None
    """Operators to keep in float32."""
    custom_white_list: Optional[tuple[str, ...]] = None
    """Operators to compute in low precision."""


@dataclass(frozen=True)
class SaveLoadConfig:
    """Settings of checkpoints."""

    save_steps: Optional[int] = knob(None, minimum=-1)
    """Steps between checkpoints; blank, 0 or -1 saves no checkpoints."""
    save_epoch: Optional[int] = knob(None, minimum=-1)
    """Epochs between checkpoints; without effect."""
    output_dir: str = "./output"
    """Directory to write checkpoints in."""
    ckpt_dir: Optional[str] = None
    """Checkpoint to resume from, such as ``output/step_00001000``; blank for a new training."""


@dataclass(frozen=True)
class EngineConfig:
    """The training loop."""

    UNUSED: ClassVar[tuple[str, ...]] = (
        *("verbose", "strategy", "run_mode", "use_recompute", "metric", "inference"),
        *("quant_mode", "balance_loss_weight"),
    )

    max_steps: int = knob(500000, minimum=-1)
    """Number of optimizer steps to train; -1 trains for num_train_epochs."""
    num_train_epochs: int = knob(1, minimum=-1)
    """Passes over the data if max_steps is -1; -1 for no limit."""
    accumulate_steps: Optional[int] = knob(None, minimum=1)
    """Always local_batch_size / micro_batch_size; another value causes a warning."""
    logging_freq: int = knob(1, minimum=1)
    """Steps between log lines."""
    eval_freq: int = knob(-1, minimum=-1)
    """Steps between evaluations; 0 or -1 for no evaluation."""
    eval_iters: int = knob(0, minimum=-1)
    """Batches of local_batch_size samples in an evaluation, on each model replica; 0 or -1 counts
    as 1."""
    test_iters: Optional[int] = knob(None, minimum=-1)
    """FleetX's batches of a test; without effect."""
    mix_precision: MixPrecisionConfig = field(default_factory=MixPrecisionConfig)
    """Automatic mixed precision."""
    save_load: SaveLoadConfig = field(default_factory=SaveLoadConfig)
    """Settings of checkpoints."""

    @property
    def purposes(self) -> tuple[str, ...]:
        """The blocks of ``Data`` that a training reads: Eval only if it evaluates."""
        return ("Train", "Eval") if self.eval_freq > 0 else ("Train",)


@dataclass(frozen=True)
class ModelConfig:
    """A GPT model."""

    UNUSED: ClassVar[tuple[str, ...]] = (
        *("vocab_size_divisible_unit", "scale_qk_by_layer_num", "use_flash_attn", "loss"),
        *("fused_softmax_with_triangular", "fused_linear", "num_experts", "expert_mode"),
        *("gate", "top_k", "topk", "expert_interval", "moe_use_residual"),
        *("moe_train_capacity_factor", "moe_eval_capacity_factor", "moe_min_capacity"),
        *("moe_token_dropping", "balance_loss_weight", "metric", "num_classes"),
        *("pretrained", "freeze_embedding", "moe_configs", "num_partitions"),
        *("use_fused_dropout_add", "fuse_sequence_parallel_allreduce", "skip_tensor_map"),
    )

    module: str = "GPTModule"
    """Module to train; ``tools/train.py`` supports GPTModule only."""
    name: str = "GPT"
    """Name of the model; without effect."""
    vocab_size: int = knob(256, minimum=1)
    """Number of distinct tokens; at least 256, one for each byte value."""
    hidden_size: int = knob(1024, minimum=1)
    """Width of the residual stream."""
    num_layers: int = knob(24, minimum=1)
    """Number of transformer blocks; a multiple of pp_degree x virtual_pp_degree."""
    num_attention_heads: int = knob(16, minimum=1)
    """Number of attention heads; a divisor of hidden_size, and a multiple of mp_degree."""
    ffn_hidden_size: Optional[int] = knob(None, minimum=1)
    """Width of the MLP; blank for 4 x hidden_size."""
    hidden_dropout_prob: float = knob(0.1, minimum=0, maximum=1)
    """Probability of dropout of embeddings and residual branches."""
    attention_probs_dropout_prob: float = knob(0.1, minimum=0, maximum=1)
    """Probability of dropout of attention weights."""
    max_position_embeddings: int = knob(1024, minimum=1)
    """Largest number of tokens of a sequence."""
    type_vocab_size: int = knob(16, minimum=0)
    """Size of FleetX's segment vocabulary; without effect."""
    initializer_range: float = knob(0.02, minimum=0)
    """Standard deviation of initial weights."""
    use_recompute: bool = False
    """Recompute activations in the backward pass instead of keeping them."""
    recompute_granularity: Optional[Literal["full", "full_attn", "core_attn"]] = None
    """Part of a block to recompute: all of it (full, also if blank), its attention layer
    (full_attn) or only softmax(QK)V (core_attn)."""
    no_recompute_layers: Optional[tuple[int, ...]] = None
    """Numbers of the blocks that are not recomputed, from 0; blank for no such block."""
    fuse_attn_qkv: bool = True
    """Use one linear layer for query, key and value."""
    sequence_parallel: bool = False
    """Split activations along the sequence over the mp ranks; without effect if mp_degree is 1."""
    virtual_pp_degree: int = knob(1, minimum=1)
    """Pipeline stages of each rank (chunks); above 1, Fleet interleaves them, which needs
    pp_degree 3 or more."""


@dataclass(frozen=True)
class DatasetConfig:
    """Source of the tokens."""

    UNUSED: ClassVar[tuple[str, ...]] = (
        *("input_dir", "mode", "eos_id", "seed", "build_data_file", "model_type", "root"),
        *("max_length", "tokenizer_type", "overlapping_eval"),
    )

    name: str = "GPTDataset"
    """Name of the dataset; without effect: every byte of the text is a token."""
    input: Optional[str] = None
    """A text file, directory or glob; blank for the source of Python's standard library."""
    split: Union[tuple[float, ...], str] = (969.0, 30.0, 1.0)
    """Shares of the text for train, eval and test; a name, as of FleetX's other datasets, is
    rejected."""
    max_seq_len: int = knob(1024, minimum=1)
    """Tokens of a sample; at most max_position_embeddings."""
    num_samples: Optional[int] = knob(None, minimum=1)
    """Most samples to use; blank for all samples."""
    read_latency_ms: float = knob(0.0, minimum=0)
    """Wait of each read of a sample, in ms, without a processor: a stand-in for slow storage."""


@dataclass(frozen=True)
class SamplerConfig:
    """The order of samples."""

    UNUSED: ClassVar[tuple[str, ...]] = ("batch_size", "consumed_samples")

    name: str = "GPTBatchSampler"
    """FleetX's name of the sampler; without effect."""
    shuffle: bool = False
    """Shuffle the samples in each epoch; False keeps the order of the text."""
    drop_last: bool = True
    """FleetX's switch to skip an incomplete last batch; it is always skipped."""


@dataclass(frozen=True)
class LoaderConfig:
    """The data loader."""

    UNUSED: ClassVar[tuple[str, ...]] = ("return_list", "collate_fn", "use_shared_memory")

    num_workers: int = knob(0, minimum=0)
    """Number of worker processes; 0 loads the data in the training process."""


@dataclass(frozen=True)
class SplitConfig:
    """Data for one purpose: training or evaluation."""

    UNUSED: ClassVar[tuple[str, ...]] = ("batch_size", "sample_split", "collect_data", "collate_fn")

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    """Source of the tokens."""
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    """The order of samples."""
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    """The data loader."""


@dataclass(frozen=True)
class DataConfig:
    """Data for training and evaluation."""

    UNUSED: ClassVar[tuple[str, ...]] = ("Test", "Predict")

    Train: SplitConfig = field(default_factory=SplitConfig)
    """Training data."""
    Eval: SplitConfig = field(default_factory=SplitConfig)
    """Evaluation data."""


@dataclass(frozen=True)
class LearningRateConfig:
    """Linear warm-up, then cosine decay to ``min_lr``."""

    UNUSED: ClassVar[tuple[str, ...]] = (
        *("use_increments", "last_epoch", "total_steps", "step_each_epoch", "epochs"),
        *("verbose", "learning_rate", "warmup", "warmup_steps", "decay_type", "linear_end"),
        *("milestones", "gamma", "update_unit", "run_mode"),
    )

    name: str = "CosineAnnealingWithWarmupDecay"
    """The schedule; ``tools/train.py`` supports the default only."""
    decay_steps: int = knob(360000, minimum=1)
    """Steps until the rate reaches ``min_lr``."""
    warmup_rate: float = knob(0.01, minimum=0, maximum=1)
    """Share of decay_steps spent on warm-up."""
    max_lr: float = knob(5.0e-5, minimum=0)
    """Learning rate at the end of the warm-up."""
    min_lr: float = knob(1.0e-5, minimum=0)
    """Learning rate from step decay_steps on."""


@dataclass(frozen=True)
class GradClipConfig:
    """Gradient clipping by global norm."""

    name: str = "ClipGradByGlobalNorm"
    """The method; ``tools/train.py`` supports the default only."""
    clip_norm: float = knob(1.0, above=0)
    """Largest global norm: gradients with a larger norm are scaled down to it."""


@dataclass(frozen=True)
class OptimizerConfig:
    """The AdamW optimizer, its learning rate and gradient clipping."""

    UNUSED: ClassVar[tuple[str, ...]] = ("tensor_fusion", "multi_precision", "amsgrad", "momentum")

    name: str = "AdamW"
    """AdamW or FusedAdamW (FleetX's own kernel); ``tools/train.py`` uses AdamW for both."""
    use_multi_tensor: bool = False
    """Update all parameters in one operator."""
    weight_decay: float = knob(0.01, minimum=0)
    """Weight decay of all parameters except biases and norms."""
    beta1: float = knob(0.9, minimum=0, maximum=1)
    """Decay rate of the first moment."""
    beta2: float = knob(0.999, minimum=0, maximum=1)
    """Decay rate of the second moment."""
    epsilon: float = knob(1.0e-8, above=0)
    """Number added to the root of the second moment."""
    lr: LearningRateConfig = field(default_factory=LearningRateConfig)
    """Learning rate."""
    grad_clip: Optional[GradClipConfig] = field(default_factory=GradClipConfig)
    """Gradient clipping; a missing or blank block clips at norm 1."""


@dataclass(frozen=True)
class ShardingConfig:
    """Optimizer state, gradients and parameters split over ranks."""

    UNUSED: ClassVar[tuple[str, ...]] = (
        "comm_overlap",
        "accumulate_grad",
        "segment_broadcast_size",
    )

    sharding_degree: int = knob(1, minimum=1)
    """Number of ranks to split over; 1 splits nothing."""
    sharding_stage: Literal[1, 2, 3] = 2
    """Stage 1 splits the optimizer state, stage 2 also the gradients, stage 3 also the parameters.
    With pp_degree above 1, Fleet supports stage 1 only."""
    sharding_offload: bool = False
    """Keep the optimizer state in host memory; without effect."""
    reduce_overlap: bool = False
    """Reduce gradients during the backward pass; only in stage 2, and not on a CPU."""
    broadcast_overlap: bool = False
    """Broadcast parameters during the forward pass; only in stage 2, and not on a CPU."""


@dataclass(frozen=True)
class DistributedConfig:
    """Degrees of hybrid parallelism; their product is the number of processes."""

    UNUSED: ClassVar[tuple[str, ...]] = (
        *("fuse_sequence_parallel_allreduce", "use_main_grad", "fused_linear"),
        *("schedule_mode", "pp_recompute_interval", "outer_pp_degree", "hcg"),
    )

    dp_degree: Optional[int] = knob(None, minimum=1)
    """Degree of data parallelism; blank derives it from the number of processes."""
    mp_degree: int = knob(1, minimum=1)
    """Degree of tensor parallelism (tp, elsewhere)."""
    pp_degree: int = knob(1, minimum=1)
    """Degree of pipeline parallelism."""
    sep_degree: int = knob(1, minimum=1)
    """Degree of segment parallelism; ``tools/train.py`` supports 1 only."""
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    """Optimizer state, gradients and parameters split over ranks."""
    order: tuple[Literal["dp", "pp", "sharding", "sep", "mp"], ...] = AXES  # type: ignore[assignment]
    """All five axes from the outermost (slowest to change) to the innermost, as in Fleet's
    ``hybrid_configs``."""


BLOCKS: Mapping[str, type[Any]] = {
    "Global": GlobalConfig,
    "Engine": EngineConfig,
    "Model": ModelConfig,
    "Data": DataConfig,
    "Optimizer": OptimizerConfig,
    "Distributed": DistributedConfig,
}
"""The dataclass of each block except ``Profiler``, keyed by the block's name."""
