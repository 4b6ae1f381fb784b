"""AdamW with a cosine schedule, and gradient clipping that records the gradient norm."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.hybrid_parallel_optimizer import (
    HybridParallelClipGrad,
)

from ppprof.config import OptimizerConfig
from ppprof.train.model import parameters

SLICE = "slice@"
"""Prefix in the name of a slice of a parameter under sharding stage 3: ``slice@linear_0.w_0``."""


class CosineWithWarmup(paddle.optimizer.lr.LRScheduler):
    r"""Learning rate: linear from 0 to ``max_lr``, then half a cosine to ``min_lr``, then constant.

        max_lr      /\\
                   /   `.
        min_lr    /      `------
                 0 warm   decay_steps

    Args:
        max_lr: the rate after the warm-up.
        min_lr: the rate from ``decay_steps`` on.
        warmup_steps: optimizer steps of the linear part.
        decay_steps: optimizer steps until the end of the cosine, the warm-up included.

    Source: FleetX's CosineAnnealingWithWarmupDecay, counted in optimizer steps.
    """

    def __init__(self, max_lr: float, min_lr: float, warmup_steps: float, decay_steps: int) -> None:
        self.max_lr = max_lr
        self.min_lr = min_lr
        self.warmup_steps = warmup_steps
        self.decay_steps = decay_steps
        super().__init__(max_lr)

    def get_lr(self) -> float:
        """Return the learning rate after ``last_epoch`` steps, which Paddle counts."""
        done: int = self.last_epoch
        if done < self.warmup_steps:
            return self.max_lr * done / self.warmup_steps
        if done >= self.decay_steps:
            return self.min_lr
        ratio = (done - self.warmup_steps) / (self.decay_steps - self.warmup_steps)
        return self.min_lr + (self.max_lr - self.min_lr) * (math.cos(math.pi * ratio) + 1) / 2


class Clip(nn.ClipGradByGlobalNorm):
    """Gradient clipping by global norm that records the norm.

    If ranks hold parts of the gradients, Fleet replaces this clip by its own clip.
    `observe_norm` makes Fleet's clip record the norm too.
    """

    norm: paddle.Tensor | None = None
    """Gradient norm of the last step before clipping; None before the first step."""

    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: Any) -> Any:
        squares = [grad.astype("float32").square().sum() for _, grad in params_grads]
        self.norm = paddle.add_n(squares).sqrt()
        return super()._dygraph_clip(params_grads)


class SlicedClip(Clip):
    """Gradient clipping by global norm under sharding stage 3, where ranks hold slices of parameters.

    It replaces Fleet's own clip, which counts the parts of one mp rank only and does not record the
    norm. Clipping changes the gradients in place.

    Args:
        clip_norm: the largest norm that is allowed.
        names: names of the parameters that are split over mp ranks.
        sharding: the sharding group, whose ranks hold slices.
        mp: the mp group, whose ranks hold parts; None if mp_degree is 1.
    """

    def __init__(self, clip_norm: float, names: Iterable[str], sharding: Any, mp: Any) -> None:
        super().__init__(clip_norm)
        self._names = frozenset(names)
        self._groups = (sharding, mp)

    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: Any) -> Any:
        # Sums of squares, keyed by (is a slice, is split over mp ranks).
        booleans = (True, False)
        sums = {key: paddle.zeros([]) for key in itertools.product(booleans, booleans)}
        for param, grad in params_grads:
            is_split = param.name.replace(SLICE, "") in self._names
            sums[param.name.startswith(SLICE), is_split] += grad.astype("float32").square().sum()
        for axis, group in enumerate(self._groups):
            for key, total in sums.items():
                if key[axis] and group is not None:
                    dist.all_reduce(total, group=group)
        self.norm = paddle.add_n(list(sums.values())).sqrt()
        scale = self.clip_norm / self.norm.clip(min=self.clip_norm)
        for _, grad in params_grads:
            grad.scale_(scale.astype(grad.dtype))
        return params_grads


class MultiTensorAdamW(paddle.optimizer.AdamW):
    """AdamW with one operator for all parameters with weight decay, and one for all others.

    Low-precision parameters with float32 copies need two more operators. Paddle 3.3 has
    ``use_multi_tensor`` for Adam and Momentum only, but its operator ``fused_adam_`` supports AdamW
    too.
    """

    _CHUNK = 32 * 2048
    """Elements that a thread block updates, as in Paddle's own tests of the operator."""

    _pending: list[Any] | None = None
    _groups: dict[tuple[int, ...], list[Any]] | None = None
    """The result of `_group` for the parameters that had gradients in the latest step, keyed by the
    ``id()`` of each parameter."""

    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> None:
        """Collect a parameter and its gradient for `_finish_update`, which updates all at once."""
        if self._pending is None:
            self._pending = []
        self._pending.append(param_and_grad)

    def _finish_update(self, block: Any, parameters_and_grads: Any) -> None:
        pending, self._pending = self._pending or [], None
        if not pending:
            return
        key = tuple(id(param) for param, _ in pending)
        if self._groups is None or key not in self._groups:
            self._groups = {key: self._group(pending)}
        rate = self._create_param_lr(pending[0])
        for indices, params, state, masters, weight_decay in self._groups[key]:
            paddle._C_ops.fused_adam_(
                params,
                [pending[index][1] for index in indices],
                rate,
                *(*state[:2], None, *state[2:], masters, None),
                *(self._beta1, self._beta2, self._epsilon, self._CHUNK, weight_decay),
                *(True, masters is not None, False, False),
            )

    def _group(self, pending: list[Any]) -> list[Any]:
        """Group parameters by whether they have weight decay, and whether they have float32 copies.

        Returns:
            For each group a tuple: indices into ``pending``, parameters, their state, their float32
            copies (None without copies), and the weight decay (0 for parameters without decay).
        """
        indices_by_treatment: dict[tuple[bool, bool], list[int]] = {}
        for index, (param, _) in enumerate(pending):
            decays = self._apply_decay_param_fun is None or self._apply_decay_param_fun(param.name)
            is_low_precision = self._multi_precision and self._is_dtype_fp16_or_bf16(param.dtype)
            indices_by_treatment.setdefault((decays, is_low_precision), []).append(index)
        names = (
            self._moment1_acc_str,
            self._moment2_acc_str,
            self._beta1_pow_acc_str,
            self._beta2_pow_acc_str,
        )
        groups = []
        for (decays, is_low_precision), indices in indices_by_treatment.items():
            params = [pending[index][0] for index in indices]
            state = [
                [self._get_accumulator_master(name, param) for param in params] for name in names
            ]
            masters = None
            if is_low_precision:
                masters = [self._master_weights[param.name] for param in params]
            weight_decay = self._weight_decay if decays else 0.0
            groups.append((indices, params, state, masters, weight_decay))
        return groups


def observe_norm(optimizer: Any) -> None:
    """Make Fleet's clip record the gradient norm over all ranks as its attribute ``norm``.

    `Clip` records it in the same way. Do nothing if Fleet has not replaced the optimizer's clip.
    """
    clip = optimizer._grad_clip
    if not isinstance(clip, HybridParallelClipGrad):
        return
    global_norm = clip._global_norm

    def observed_norm(parts: paddle.Tensor, copies: paddle.Tensor) -> None:
        global_norm(parts, copies)  # reduces the sums of squares in place
        clip.norm = paddle.sqrt(parts + copies)

    clip._global_norm = observed_norm


def make_schedule(config: OptimizerConfig) -> CosineWithWarmup:
    """Return the learning rate schedule; its warm-up is ``warmup_rate`` x ``decay_steps`` steps."""
    lr = config.lr
    return CosineWithWarmup(lr.max_lr, lr.min_lr, lr.warmup_rate * lr.decay_steps, lr.decay_steps)


def make_optimizer(
    config: OptimizerConfig, model: nn.Layer, schedule: CosineWithWarmup
) -> paddle.optimizer.Optimizer:
    """Return AdamW over the model's parameters; biases and norms have no weight decay.

    `MultiTensorAdamW` if ``use_multi_tensor`` is set. Gradients are clipped if the config has a
    ``grad_clip``. Weight decay also finds parameters under sharding stage 3, which names them
    ``slice@linear_0.w_0`` instead of ``linear_0.w_0``.
    """
    decaying = {param.name for name, param in parameters(model) if _decays(name)}
    clip = config.grad_clip
    adamw = MultiTensorAdamW if config.use_multi_tensor else paddle.optimizer.AdamW
    return adamw(
        learning_rate=schedule,
        beta1=config.beta1,
        beta2=config.beta2,
        epsilon=config.epsilon,
        parameters=model.parameters(),
        weight_decay=config.weight_decay,
        apply_decay_param_fun=lambda name: name.replace(SLICE, "") in decaying,
        grad_clip=Clip(clip.clip_norm) if clip else None,
        multi_precision=True,
    )


@contextlib.contextmanager
def keeping_masters(optimizer: Any) -> Iterator[None]:
    """Return a context manager that restores an optimizer's float32 copies when it ends.

    Use it around group sharding, which makes new copies of the low-precision parameters. Without
    the context manager, a resumed run would lose the last bits of the copies.
    """
    masters = dict(optimizer._master_weights)
    yield
    for name, master in optimizer._master_weights.items():
        if name in masters:
            master.set_value(masters[name])


def notes(config: OptimizerConfig) -> Iterable[str]:
    """Yield a message for each setting that `make_optimizer` does not use as it is set.

    Only the name ``FusedAdamW`` is such a setting: plain AdamW is used instead.
    """
    if config.name == "FusedAdamW":
        yield f"Optimizer.name {config.name}: using AdamW: the same update without fused kernels"


def _decays(name: str) -> bool:
    return not name.endswith("bias") and "norm" not in name
