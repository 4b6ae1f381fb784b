"""AdamW with a cosine schedule: the optimizer that the configs describe."""

from __future__ import annotations

import contextlib
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
"""Before the name of a parameter of which sharding stage 3 left this rank a slice."""


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


class Clip(nn.ClipGradByGlobalNorm):
    """Clipping by global norm that remembers the norm.

    Fleet puts a clip of its own in the place of this one where ranks hold parts of the gradients;
    `observe_norm` makes that one tell the norm too.
    """

    norm: paddle.Tensor | None = None
    """Of the last step's gradients, before clipping; None before the first."""

    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: Any) -> Any:
        squares = [grad.astype("float32").square().sum() for _, grad in params_grads]
        self.norm = paddle.add_n(squares).sqrt()
        return super()._dygraph_clip(params_grads)


class SlicedClip(Clip):
    """Clipping by global norm under sharding stage 3, where ranks hold slices of parameters.

    Fleet's own counts the parts of one mp rank only, and does not tell the norm.

    Args:
        clip_norm: the largest norm.
        names: of the parameters that mp ranks have parts of.
        sharding: the group that has slices.
        mp: the group that has parts; None where mp is 1.
    """

    def __init__(self, clip_norm: float, names: Iterable[str], sharding: Any, mp: Any) -> None:
        super().__init__(clip_norm)
        self._names = frozenset(names)
        self._groups = (sharding, mp)

    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: Any) -> Any:
        # Sums of squares by (is a slice, is a part).
        sums = {(at, of): paddle.zeros([]) for at in (True, False) for of in (True, False)}
        for param, grad in params_grads:
            is_part = param.name.replace(SLICE, "") in self._names
            sums[param.name.startswith(SLICE), is_part] += grad.astype("float32").square().sum()
        for axis, group in enumerate(self._groups):
            for which, total in sums.items():
                if which[axis] and group is not None:
                    dist.all_reduce(total, group=group)
        self.norm = paddle.add_n(list(sums.values())).sqrt()
        scale = self.clip_norm / self.norm.clip(min=self.clip_norm)
        for _, grad in params_grads:
            grad.scale_(scale.astype(grad.dtype))
        return params_grads


class MultiTensorAdamW(paddle.optimizer.AdamW):
    """AdamW whose updates are one operator for the parameters that decay, one for those that do not.

    Paddle 3.3 has ``use_multi_tensor`` for Adam and Momentum alone; its operator ``fused_adam_`` knows
    AdamW too. Parameters in a short type, with float32 copies, are a pair of operators more.
    """

    _CHUNK = 32 * 2048
    """Elements that a thread block updates, as in Paddle's own tests of the operator."""

    _kept: list[Any] | None = None
    _groups: dict[tuple[int, ...], list[Any]] | None = None
    """What stays the same from step to step, by the parameters that have gradients."""

    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> None:
        """Keeps a parameter for `_finish_update`."""
        if self._kept is None:
            self._kept = []
        self._kept.append(param_and_grad)

    def _finish_update(self, block: Any, parameters_and_grads: Any) -> None:
        kept, self._kept = self._kept or [], None
        if not kept:
            return
        known = tuple(id(param) for param, _ in kept)
        if self._groups is None or known not in self._groups:
            self._groups = {known: self._grouped(kept)}
        rate = self._create_param_lr(kept[0])
        for places, params, state, masters, weight_decay in self._groups[known]:
            paddle._C_ops.fused_adam_(
                params,
                [kept[at][1] for at in places],
                rate,
                *(*state[:2], None, *state[2:], masters, None),
                *(self._beta1, self._beta2, self._epsilon, self._CHUNK, weight_decay),
                *(True, masters is not None, False, False),
            )

    def _grouped(self, kept: list[Any]) -> list[Any]:
        """Parameters with the same treatment: where they are, they, their state, and the decay."""
        groups: dict[tuple[bool, bool], list[int]] = {}
        for at, (param, _) in enumerate(kept):
            decays = self._apply_decay_param_fun is None or self._apply_decay_param_fun(param.name)
            is_short = self._multi_precision and self._is_dtype_fp16_or_bf16(param.dtype)
            groups.setdefault((decays, is_short), []).append(at)
        state = (
            self._moment1_acc_str,
            self._moment2_acc_str,
            self._beta1_pow_acc_str,
            self._beta2_pow_acc_str,
        )
        found = []
        for (decays, is_short), places in groups.items():
            params = [kept[at][0] for at in places]
            of_state = [[self._get_accumulator_master(name, at) for at in params] for name in state]
            masters = [self._master_weights[at.name] for at in params] if is_short else None
            found.append((places, params, of_state, masters, self._weight_decay if decays else 0.0))
        return found


def observe_norm(optimizer: Any) -> None:
    """Has `Clip.norm` set by Fleet's clip, which computes the norm over the grid."""
    clip = optimizer._grad_clip
    if not isinstance(clip, HybridParallelClipGrad):
        return
    over_the_grid = clip._global_norm

    def observed(parts: paddle.Tensor, copies: paddle.Tensor) -> None:
        over_the_grid(parts, copies)  # sums of squares, reduced in place
        clip.norm = paddle.sqrt(parts + copies)

    clip._global_norm = observed


def make_schedule(config: OptimizerConfig) -> CosineWithWarmup:
    """The learning rate of the config."""
    lr = config.lr
    return CosineWithWarmup(lr.max_lr, lr.min_lr, lr.warmup_rate * lr.decay_steps, lr.decay_steps)


def make_optimizer(
    config: OptimizerConfig, model: nn.Layer, schedule: CosineWithWarmup
) -> paddle.optimizer.Optimizer:
    """AdamW over the model's parameters; biases and norms do not decay.

    Sharding stage 3 asks for ``slice@linear_0.w_0`` and means ``linear_0.w_0``.
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
    """Gives an optimizer the float32 copies back that it had, whatever they are made inside.

    Group sharding makes new ones, of short parameters: a resumed run would lose their last bits.
    """
    had = dict(optimizer._master_weights)
    yield
    for name, master in optimizer._master_weights.items():
        if name in had:
            master.set_value(had[name])


def notes(config: OptimizerConfig) -> Iterable[str]:
    """What the config asks for and does not get, in words for the log."""
    if config.name == "FusedAdamW":
        yield f"Optimizer.name {config.name}: trained with AdamW, the same update in plain kernels"


def _decays(name: str) -> bool:
    return not name.endswith("bias") and "norm" not in name
