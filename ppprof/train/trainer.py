"""The training loop: steps of micro-batches, data parallel over Fleet, under ppprof's profiler."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients
from paddle.io import DataLoader

import ppprof
from ppprof.config import Config
from ppprof.errors import ConfigError
from ppprof.train import checkpoint
from ppprof.train.corpus import find_files, token_file
from ppprof.train.data import Share, StepBatches, TextSamples
from ppprof.train.errors import DataError
from ppprof.train.model import GPT, PretrainingLoss
from ppprof.train.optim import make_optimizer, make_schedule, notes


def train(config: Config) -> None:
    """Trains as the config says; needs the processes that the launcher started.

    Raises:
        ConfigError: the device is not there, or too little text for a step.
        InputError: the checkpoint to go on from cannot be used.
    """
    try:
        paddle.set_device(config.Global.device)
    except (ValueError, RuntimeError) as error:
        message = f"{config.Global.device}: {str(error).strip().splitlines()[-1]}"
        raise ConfigError([config.problem("Global.device", message)]) from error
    trainer = Trainer(config)
    profiler = ppprof.attach(config.Profiler, topology=config.topology, config=config.resolved)
    with profiler as session:
        trainer.fit(session)


class Trainer:
    """Model, data and optimizer of one rank, and the loop over them."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._rank = dist.get_rank()
        self._replicas = dist.get_world_size()
        # Too little text ends the job here, before a process group is made.
        self._samples: dict[str, TextSamples] = {}
        for purpose in ("Train", "Eval") if config.Engine.eval_freq > 0 else ("Train",):
            try:
                self._samples[purpose] = _samples(config, purpose)
                self._batches(purpose)
            except DataError as error:
                problem = config.problem(f"Data.{purpose}.dataset.input", str(error))
                raise ConfigError([problem]) from error
        if self._replicas > 1:
            _init_fleet(config)
        paddle.seed(config.Global.seed)
        self._model = GPT(config.Model)
        self._loss = PretrainingLoss()
        self._schedule = make_schedule(config.Optimizer)
        self._optimizer = make_optimizer(config.Optimizer, self._model, self._schedule)
        self._amp = _Amp(config)
        self._model, self._optimizer = self._amp.decorate(self._model, self._optimizer)
        self._step = 0
        self._taken = 0  # samples, over all ranks
        if config.Engine.save_load.ckpt_dir:
            progress = checkpoint.load(
                Path(config.Engine.save_load.ckpt_dir), self._model, self._optimizer
            )
            self._step, self._taken = progress.step, progress.samples
            self._amp.load(progress.scaler)
        self._replica: Any = self._model
        if self._replicas > 1:
            self._replica = fleet.distributed_model(self._model)
        for note in (*self._amp.notes, *notes(config.Optimizer)):
            self._log(note)

    def fit(self, profiler: Any) -> None:
        """Runs the remaining steps; ``profiler`` is what `ppprof.attach` gave."""
        engine, world = self._config.Engine, self._config.Global
        last = engine.max_steps if engine.max_steps >= 0 else None
        if last is not None and self._step >= last:
            self._log(f"{self._at(last)} nothing left to train")
        loader = iter(self._loader("Train", self._taken))
        clock = _Clock(self._config)
        while last is None or self._step < last:
            micro_batches = _take(loader, engine.accumulate_steps or 1, clock)
            if not micro_batches:
                break
            rate = self._optimizer.get_lr()
            loss = self._train_step(micro_batches)
            self._step += 1
            self._taken += world.global_batch_size or 1
            length = micro_batches[0][0].shape[1]
            local = world.local_batch_size or 1
            profiler.step(num_samples=local, num_tokens=local * length)
            clock.step(tokens=local * length)
            if self._step % engine.logging_freq == 0 or self._step == last:
                self._log(f"{self._at(last)} loss {self._mean(loss):.6f} lr {rate:.3e} {clock}")
                clock.reset()
            if engine.eval_freq > 0 and self._step % engine.eval_freq == 0:
                with clock.paused():
                    self._log(f"{self._at(last)} eval loss {self._evaluate():.6f}")
            save_steps = engine.save_load.save_steps or -1
            if save_steps > 0 and self._step % save_steps == 0:
                with clock.paused():
                    self._save(Path(engine.save_load.output_dir))
            if profiler.should_stop:
                self._log(f"{self._at(last)} stopping: the profiler's last window has closed")
                break

    def _train_step(self, micro_batches: list[list[paddle.Tensor]]) -> paddle.Tensor:
        """One optimizer step; the mean loss of its micro-batches on this rank."""
        # A seed for each step and rank, so that a resumed run drops out what it would have.
        paddle.seed(_seed(self._config.Global.seed, self._step, self._rank))
        losses = []
        # Not Paddle's reducer, which overlaps with backward in C++ and leaves no trace of itself
        # on CPU: gradients are reduced once a step, fused, as FleetX does when it accumulates.
        with self._local_gradients():
            for tokens, labels in micro_batches:
                with self._amp.cast():
                    loss = self._loss(self._replica(tokens), labels) / len(micro_batches)
                self._amp.scale(loss).backward()
                losses.append(loss.detach())
        if self._replicas > 1:
            fused_allreduce_gradients(list(self._model.parameters()), None)
        self._amp.step(self._optimizer)
        self._optimizer.clear_grad()
        self._schedule.step()
        return paddle.add_n(losses)

    def _local_gradients(self) -> AbstractContextManager[Any]:
        if self._replicas == 1:
            return contextlib.nullcontext()
        context: AbstractContextManager[Any] = self._replica.no_sync()
        return context

    @paddle.no_grad()
    def _evaluate(self) -> float:
        """Mean loss of the first ``eval_iters`` batches of the evaluation text, one at least.

        As in training a batch is ``local_batch_size`` samples, however it is cut.
        """
        self._model.eval()
        losses = []
        engine = self._config.Engine
        micro_batches = max(1, engine.eval_iters) * (engine.accumulate_steps or 1)
        for _, (tokens, labels) in zip(range(micro_batches), self._loader("Eval")):
            with self._amp.cast():
                losses.append(self._loss(self._model(tokens), labels))
        self._model.train()
        return self._mean(paddle.add_n(losses) / len(losses))

    def _batches(self, purpose: str, taken: int = 0) -> StepBatches:
        data = getattr(self._config.Data, purpose)
        world = self._config.Global
        return StepBatches(
            len(self._samples[purpose]),
            world.local_batch_size or 1,
            world.micro_batch_size or 1,
            Share(self._rank, self._replicas),
            seed=world.seed if data.sampler.shuffle else None,
            taken=taken,
            epochs=self._epochs() if purpose == "Train" else 1,
        )

    def _epochs(self) -> int | None:
        """Passes over the text: as many as max_steps needs, or as num_train_epochs says."""
        engine = self._config.Engine
        return (
            engine.num_train_epochs
            if engine.num_train_epochs >= 0 and engine.max_steps < 0
            else None
        )

    def _loader(self, purpose: str, taken: int = 0) -> DataLoader:
        return DataLoader(
            self._samples[purpose],
            batch_sampler=self._batches(purpose, taken),
            num_workers=getattr(self._config.Data, purpose).loader.num_workers,
        )

    def _save(self, folder: Path) -> None:
        """Data-parallel ranks hold the same state: rank 0 writes it."""
        if self._rank == 0:
            progress = checkpoint.Progress(self._step, self._taken, self._amp.state())
            target = checkpoint.save(folder, progress, self._model, self._optimizer)
            self._log(f"saved {target}")
        if self._replicas > 1:
            dist.barrier()

    def _mean(self, loss: paddle.Tensor) -> float:
        """The mean over data-parallel ranks."""
        total = loss.detach().astype("float32").reshape([1])
        if self._replicas > 1:
            dist.all_reduce(total)
        mean: float = total.item() / self._replicas
        return mean

    def _at(self, last: int | None) -> str:
        return f"step {self._step}/{last}" if last else f"step {self._step}"

    def _log(self, message: str) -> None:
        if self._rank == 0:
            print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {message}", flush=True)


def _samples(config: Config, purpose: str) -> TextSamples:
    """The text of one purpose ("Train" or "Eval").

    Raises:
        DataError: there is none, or too little.
    """
    dataset = getattr(config.Data, purpose).dataset
    shares = np.cumsum([0.0, *dataset.split]) / sum(dataset.split)
    at = {"Train": 0, "Eval": 1}[purpose]
    return TextSamples(
        token_file(find_files(dataset.input)),
        dataset.max_seq_len,
        (float(shares[at]), float(shares[at + 1])),
        dataset.num_samples,
    )


class _Amp:
    """Mixed precision on GPU; on CPU, where Paddle takes the settings and ignores them, nothing."""

    def __init__(self, config: Config) -> None:
        mix = config.Engine.mix_precision
        wanted = mix.enable or mix.use_pure_fp16
        self._mix = mix
        self._level = mix.level.upper()
        self._on = wanted and config.Global.device != "cpu"
        scales = self._on and mix.dtype == "float16"
        self._scaler = paddle.amp.GradScaler(scales, init_loss_scaling=mix.scale_loss)
        self.notes: tuple[str, ...] = ()
        if wanted and not self._on:
            self.notes = (
                f"Engine.mix_precision: Paddle's CPU build computes in float32 whatever the "
                f"setting ({mix.dtype} {self._level}); so does this run",
            )

    def decorate(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        """O2 keeps the parameters in the short type and the optimizer's copies in float32."""
        if self._on and self._level == "O2":
            model, optimizer = paddle.amp.decorate(
                model, optimizer, level="O2", dtype=self._mix.dtype
            )
        return model, optimizer

    def cast(self) -> Any:
        """The context of a forward pass."""
        if not self._on:
            return contextlib.nullcontext()
        return paddle.amp.auto_cast(
            True,
            custom_white_list=self._mix.custom_white_list,
            custom_black_list=self._mix.custom_black_list,
            level=self._level,
            dtype=self._mix.dtype,
        )

    def scale(self, loss: paddle.Tensor) -> paddle.Tensor:
        """The loss, scaled where gradients are float16."""
        return self._scaler.scale(loss)

    def step(self, optimizer: Any) -> None:
        """The optimizer's step, left out where a scaled gradient overflowed."""
        if self._scaler.is_enable():
            self._scaler.step(optimizer)
            self._scaler.update()
        else:
            optimizer.step()

    def state(self) -> dict[str, Any]:
        """What a resumed run needs of it."""
        return {
            key: value.item() if hasattr(value, "item") else value
            for key, value in self._scaler.state_dict().items()
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        if state:
            self._scaler.load_state_dict({**state, "scale": np.array([state["scale"]], np.float32)})


class _Clock:
    """Throughput since the last log; what is not training does not count."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.reset()

    def reset(self) -> None:
        """Starts over."""
        self._start = time.perf_counter()
        self._reader_s = 0.0
        self._steps = 0
        self._tokens = 0

    def step(self, tokens: int) -> None:
        """Counts a step of so many tokens on this rank."""
        self._steps += 1
        self._tokens += tokens

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Time inside is the reader's."""
        start = time.perf_counter()
        yield
        self._reader_s += time.perf_counter() - start

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside does not count."""
        start = time.perf_counter()
        yield
        self._start += time.perf_counter() - start

    def __str__(self) -> str:
        took = time.perf_counter() - self._start
        ranks = self._config.topology.world_size
        whole = self._config.Global.global_batch_size or 1
        steps = max(1, self._steps)
        return (
            f"reader_cost {self._reader_s / steps:.5f} s batch_cost {took / steps:.5f} s "
            f"ips {whole * self._steps / took:.1f} samples/s "
            f"{self._tokens / took * ranks:.0f} tokens/s ({self._tokens / took:.0f} a card)"
        )


def _take(loader: Iterator[Any], count: int, clock: _Clock) -> list[Any]:
    """The micro-batches of a step; fewer than ``count``, at the end of the data, are none."""
    with clock.reading():
        found = [batch for _, batch in zip(range(count), loader)]
    return found if len(found) == count else []


def _seed(seed: int, step: int, rank: int) -> int:
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])


def _init_fleet(config: Config) -> None:
    distributed = config.Distributed
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {
        "dp_degree": distributed.dp_degree,
        "mp_degree": distributed.mp_degree,
        "pp_degree": distributed.pp_degree,
        "sharding_degree": distributed.sharding.sharding_degree,
        "sep_degree": distributed.sep_degree,
        "order": list(distributed.order),
    }
    fleet.init(is_collective=True, strategy=strategy)
