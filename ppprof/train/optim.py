"""AdamW with a cosine schedule: the optimizer that the configs describe."""

from __future__ import annotations

import math
from collections.abc import Iterable

import paddle
from paddle import nn

from ppprof.config import OptimizerConfig


class CosineWithWarmup(paddle.optimizer.lr.LRScheduler):
    r"""Linear from 0 to ``max_lr``, then half a cosine down to ``min_lr``, then flat.

        max_lr      /\\
                   /   `.
        min_lr    /      `------
                 0 warm   decay_steps

    Source: FleetX's CosineAnnealingWithWarmupDecay, counted in optimizer steps.
    """

    def __init__(self, max_lr: float, min_lr: float, warmup_steps: float, decay_steps: int) -> None:
        self.max_lr = max_lr
        self.min_lr = min_lr
        self.warmup_steps = warmup_steps
        self.decay_steps = decay_steps
        super().__init__(max_lr)

    def get_lr(self) -> float:
        """The rate at ``last_epoch`` steps done."""
        done: int = self.last_epoch
        if done < self.warmup_steps:
            return self.max_lr * done / self.warmup_steps
        if done >= self.decay_steps:
            return self.min_lr
        ratio = (done - self.warmup_steps) / (self.decay_steps - self.warmup_steps)
        return self.min_lr + (self.max_lr - self.min_lr) * (math.cos(math.pi * ratio) + 1) / 2


def make_schedule(config: OptimizerConfig) -> CosineWithWarmup:
    """The learning rate of the config."""
    lr = config.lr
    return CosineWithWarmup(lr.max_lr, lr.min_lr, lr.warmup_rate * lr.decay_steps, lr.decay_steps)


def make_optimizer(
    config: OptimizerConfig, model: nn.Layer, schedule: CosineWithWarmup
) -> paddle.optimizer.Optimizer:
    """AdamW over the model's parameters; biases and norms do not decay."""
    decaying = {param.name for name, param in model.named_parameters() if _decays(name)}
    clip = config.grad_clip
    return paddle.optimizer.AdamW(
        learning_rate=schedule,
        beta1=config.beta1,
        beta2=config.beta2,
        epsilon=config.epsilon,
        parameters=model.parameters(),
        weight_decay=config.weight_decay,
        apply_decay_param_fun=decaying.__contains__,
        grad_clip=nn.ClipGradByGlobalNorm(clip.clip_norm) if clip else None,
        multi_precision=True,
    )


def notes(config: OptimizerConfig) -> Iterable[str]:
    """What the config asks for and does not get, in words for the log."""
    if config.name == "FusedAdamW":
        yield f"Optimizer.name {config.name}: trained with AdamW, the same update in plain kernels"


def _decays(name: str) -> bool:
    return not name.endswith("bias") and "norm" not in name
