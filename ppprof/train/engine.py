"""Engines, which train one step at a time: a model and its optimizer, distributed by Fleet."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.distributed import fleet
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients
from paddle.distributed.fleet.utils.sequence_parallel_utils import (
    register_sequence_parallel_allreduce_hooks,
)
from paddle.distributed.sharding import group_sharded_parallel

from ppprof.config import Config
from ppprof.train import layers
from ppprof.train.grid import Grid
from ppprof.train.model import GPT, Block, PretrainingLoss, initialize, pipeline_stage, rank_flops
from ppprof.train.optim import (
    SlicedClip,
    keeping_masters,
    make_optimizer,
    make_schedule,
    observe_norm,
)

MicroBatches = Sequence[tuple[paddle.Tensor, paddle.Tensor]]
"""Tokens and labels of each micro-batch of a step, int64 of shape (micro_batch_size, length)."""


def make_engine(config: Config, grid: Grid) -> Engine:
    """Return the engine for the config's degrees.

    `Pipelined` for several pipeline stages; else `Sharded` for sharding stage 2 or 3 with several
    sharding ranks; else `Engine`.
    """
    if grid.topology.degree("pp") > 1:
        return Pipelined(config, grid)
    sharding = config.Distributed.sharding
    if sharding.sharding_degree > 1 and sharding.sharding_stage > 1:
        return Sharded(config, grid)
    return Engine(config, grid)


class Engine:
    """Accumulates the gradients of micro-batches, then steps the optimizer.

    This engine is for every topology with one pipeline stage, except sharding stages 2 and 3. With
    several ranks, Fleet's wrappers of model and optimizer communicate. Call `distribute` before
    all other methods.
    """

    def __init__(self, config: Config, grid: Grid) -> None:
        self._config = config
        self._grid = grid
        self.amp = Amp(config)
        self.model = self._make_model()
        initialize(self.model, config.Model, config.Global.seed)
        self.schedule = make_schedule(config.Optimizer)
        self.optimizer = make_optimizer(config.Optimizer, self.model, self.schedule)
        self.model, self.optimizer = self.amp.decorate(self.model, self.optimizer)

    def distribute(self) -> None:
        """Wrap model and optimizer for Fleet; a job with one rank needs no wrappers.

        If the training resumes, the caller must load the checkpoint into model and optimizer first.
        """
        if layers.splits_sequence(self._config.Model):
            register_sequence_parallel_allreduce_hooks(
                self.model, self._config.Engine.accumulate_steps, False
            )
        self._distributed_model: Any = self.model
        self._distributed_optimizer: Any = self.optimizer
        self._loss = PretrainingLoss()
        if self._grid.topology.world_size > 1:
            self._wrap()
            observe_norm(self.optimizer)

    def train(self, micro_batches: MicroBatches) -> paddle.Tensor:
        """Run one optimizer step; return the mean loss of its micro-batches on this replica.

        Also advance the learning rate schedule and clear the gradients.
        """
        loss = self._accumulate(micro_batches)
        self.amp.step(self._distributed_optimizer)
        self._distributed_optimizer.clear_grad()
        self.schedule.step()
        return loss

    @paddle.no_grad()
    def evaluate(self, micro_batches: MicroBatches) -> paddle.Tensor:
        """Return the mean loss of micro-batches on this replica, without gradients and dropout.

        The model is in training mode afterwards.
        """
        self.model.eval()
        losses = []
        for tokens, labels in micro_batches:
            with self.amp.cast():
                losses.append(self._loss(self.model(tokens), labels))
        self.model.train()
        return paddle.add_n(losses) / len(losses)

    def flops(self, tokens: int, length: int) -> int:
        """Return this rank's share of the model FLOPs of a step (`rank_flops`).

        Args:
            tokens: tokens of the step in this rank's replica.
            length: tokens of a sample.
        """
        topology = self._grid.topology
        return rank_flops(
            self._config.Model,
            tokens,
            length,
            num_blocks=sum(isinstance(layer, Block) for layer in self.model.sublayers()),
            has_logits=topology.coordinate(self._grid.rank)["pp"] == topology.degree("pp") - 1,
            mp_degree=topology.degree("mp"),
        )

    def norm_text(self) -> str:
        """Return the last step's gradient norm before clipping as text: `` grad_norm 1.234567``.

        "" if no norm is known: if gradients are not clipped, or before the first step.
        """
        norm = getattr(self.optimizer._grad_clip, "norm", None)
        return "" if norm is None else f" grad_norm {norm.item():.6f}"

    def mean(self, loss: paddle.Tensor) -> float:
        """Return the mean of ``loss`` over all ranks, and so over all replicas.

        All ranks must call this method.
        """
        total = loss.detach().astype("float32").reshape([1])
        num_ranks = self._grid.topology.world_size
        if num_ranks > 1:
            dist.all_reduce(total)
        mean: float = total.item() / num_ranks
        return mean

    def _wrap(self) -> None:
        self._distributed_model = fleet.distributed_model(self.model)
        self._distributed_optimizer = fleet.distributed_optimizer(self.optimizer)

    def _make_model(self) -> nn.Layer:
        return GPT(self._config.Model)

    def _accumulate(self, micro_batches: MicroBatches) -> paddle.Tensor:
        losses = []
        model = self._distributed_model
        is_data_parallel = isinstance(model, paddle.DataParallel)
        overlaps = is_data_parallel and self._reduces_in_backward
        for number, (tokens, labels) in enumerate(micro_batches, start=1):
            is_reduced = overlaps and number == len(micro_batches)
            is_local = is_data_parallel and not is_reduced
            with model.no_sync() if is_local else contextlib.nullcontext():
                with self.amp.cast():
                    loss = self._loss(model(tokens), labels) / len(micro_batches)
                self._backward(self.amp.scale(loss))
            losses.append(loss.detach())
        if is_data_parallel and not overlaps:
            fused_allreduce_gradients(list(self.model.parameters()), None)
        return paddle.add_n(losses)

    @property
    def _reduces_in_backward(self) -> bool:
        """Whether Paddle's reducer reduces gradients while backward computes others.

        The reducer runs in C++, and starts a collective as soon as a group of parameters has its
        gradients. False on a CPU, where its work does not appear in traces. False with recompute,
        since `paddle.DataParallel` does not support a PyLayer. All gradients are then reduced after
        backward, as FleetX does.
        """
        return self._config.Global.device != "cpu" and not self._config.Model.use_recompute

    def _backward(self, loss: paddle.Tensor) -> None:
        loss.backward()


class Pipelined(Engine):
    """The engine for several pipeline stages.

    It uses Fleet's 1F1B schedule, or Fleet's interleaved schedule if ``virtual_pp_degree`` is above 1.
    """

    def _make_model(self) -> nn.Layer:
        return pipeline_stage(self._config.Model)

    def train(self, micro_batches: MicroBatches) -> paddle.Tensor:
        """Run one optimizer step; return the mean loss of its micro-batches, the same on all stages.

        Also advance the learning rate schedule and clear the gradients.
        """
        with self.amp.cast():
            loss: paddle.Tensor = self._distributed_model.train_batch(
                iter(micro_batches), self._distributed_optimizer, self.schedule, self.amp.scaler
            )
        return loss

    @paddle.no_grad()
    def evaluate(self, micro_batches: MicroBatches) -> paddle.Tensor:
        """Return the mean loss of micro-batches, without training.

        ``accumulate_steps`` micro-batches pass through the pipeline at a time. The model is in
        training mode afterwards.
        """
        data = self._config.Data
        if data.Eval.dataset.max_seq_len == data.Train.dataset.max_seq_len:
            return self._evaluate(micro_batches)
        # Stages send shapes only once: with the first micro-batch after this call.
        forget_shapes = self._distributed_model._p2p_helper.clear_meta_cache
        forget_shapes()
        loss = self._evaluate(micro_batches)
        forget_shapes()
        return loss

    def _evaluate(self, micro_batches: MicroBatches) -> paddle.Tensor:
        size = self._config.Engine.accumulate_steps or 1
        losses = []
        for first in range(0, len(micro_batches), size):
            with self.amp.cast():
                batches = iter(micro_batches[first : first + size])
                losses.append(self._distributed_model.eval_batch(batches, compute_loss=True))
        self._distributed_model.train()
        return paddle.add_n(losses) / len(losses)


class Sharded(Engine):
    """The engine for sharding stages 2 and 3, by Fleet's group sharding.

    Stage 2 shards optimizer state and gradients; stage 3 also shards parameters.
    """

    def _backward(self, loss: paddle.Tensor) -> None:
        super()._backward(loss)
        if getattr(self._distributed_optimizer, "_reduce_overlap", False):
            # Fleet waits only in the optimizer's step, which is too late: before it, the next
            # micro-batch would add to gradients that are being reduced, and the scaler would read
            # them.
            self._distributed_optimizer._comm_task.wait()

    def _wrap(self) -> None:
        sharding = self._config.Distributed.sharding
        shard, on_cpu = group_sharded_parallel, self._config.Global.device == "cpu"
        if on_cpu:
            from ppprof.train.fleet_on_cpu import shard
        groups = fleet.get_hybrid_communicate_group()
        has_dp = self._grid.topology.degree("dp") > 1
        parts = [param.name for param in self.model.parameters() if param.is_distributed]
        clip = self.optimizer._grad_clip
        with keeping_masters(self.optimizer):
            self._distributed_model, self._distributed_optimizer, self.amp.scaler = shard(
                self.model,
                self.optimizer,
                {2: "os_g", 3: "p_g_os"}[sharding.sharding_stage],
                scaler=self.amp.scaler,
                group=groups.get_sharding_parallel_group(),
                dp_group=groups.get_data_parallel_group() if has_dp else None,
            )
        if clip is not None and sharding.sharding_stage == 3:
            mp = groups.get_model_parallel_group() if layers.mp_degree() > 1 else None
            self.optimizer._grad_clip = SlicedClip(
                clip.clip_norm, parts, groups.get_sharding_parallel_group(), mp
            )
        if sharding.sharding_stage == 2 and not on_cpu:
            if sharding.reduce_overlap:
                self._distributed_model._set_reduce_overlap(True)
            if sharding.broadcast_overlap:
                # Only the members of a sharding group create its second group. So the second
                # groups of several sharding groups would get one group number, and thereby one
                # NCCL id in the job's store.
                is_only_group = sharding.sharding_degree == self._grid.topology.world_size
                self._distributed_optimizer._set_broadcast_overlap(
                    True, layers=self.model, num_groups=2 if is_only_group else 1
                )


class Amp:
    """Mixed precision on a GPU. On a CPU the methods change nothing.

    Paddle's CPU build accepts the settings but ignores them; ``notes`` holds a warning if so.
    """

    def __init__(self, config: Config) -> None:
        mix = config.Engine.mix_precision
        is_requested = mix.enable or mix.use_pure_fp16
        self._mix = mix
        self._level = mix.level.upper()
        self._is_enabled = is_requested and config.Global.device != "cpu"
        self.scaler: Any = None
        """The gradient scaler; None unless gradients are float16."""
        if self._is_enabled and mix.dtype == "float16":
            self.scaler = paddle.amp.GradScaler(init_loss_scaling=mix.scale_loss)
            if config.topology.world_size > config.topology.degree("dp"):
                self.scaler = fleet.distributed_scaler(self.scaler)
        self.notes: tuple[str, ...] = ()
        if is_requested and not self._is_enabled:
            self.notes = (
                f"Engine.mix_precision: {mix.dtype} {self._level} has no effect: Paddle's CPU build "
                "computes in float32",
            )

    def decorate(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        """Return model and optimizer, prepared for level O2; unchanged at any other level.

        With O2, the parameters have low precision, and the optimizer keeps float32 copies.
        """
        if self._is_enabled and self._level == "O2":
            model, optimizer = paddle.amp.decorate(
                model, optimizer, level="O2", dtype=self._mix.dtype
            )
        return model, optimizer

    def cast(self) -> Any:
        """Return the context manager for a forward pass; it does nothing without mixed precision."""
        if not self._is_enabled:
            return contextlib.nullcontext()
        return paddle.amp.auto_cast(
            True,
            custom_white_list=self._mix.custom_white_list,
            custom_black_list=self._mix.custom_black_list,
            level=self._level,
            dtype=self._mix.dtype,
        )

    def scale(self, loss: paddle.Tensor) -> paddle.Tensor:
        """Return the loss, scaled if gradients are float16, else unchanged."""
        return self.scaler.scale(loss) if self.scaler else loss

    def step(self, optimizer: Any) -> None:
        """Step the optimizer; skip the step if a scaled gradient has overflowed.

        Also update the scale of the gradient scaler, if there is one.
        """
        if self.scaler:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()

    def state(self) -> dict[str, Any]:
        """Return the gradient scaler's state as values for JSON; empty without a scaler."""
        if not self.scaler:
            return {}
        return {
            key: value.item() if hasattr(value, "item") else value
            for key, value in self.scaler.state_dict().items()
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the gradient scaler from a result of `state`.

        Does nothing if ``state`` is empty or if this run has no scaler.
        """
        if state and self.scaler:
            scale = np.array([state["scale"]], np.float32)
            self.scaler.load_state_dict({**state, "scale": scale})
