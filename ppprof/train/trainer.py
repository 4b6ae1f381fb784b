"""The training loop: steps of micro-batches, on any topology, recorded by ppprof."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.io import DataLoader

import ppprof
from ppprof.config import Config
from ppprof.config.validation import did_you_mean
from ppprof.errors import ConfigError
from ppprof.train import checkpoint
from ppprof.train.corpus import DataError, find_files, token_file
from ppprof.train.data import Share, StepBatches, TextSamples
from ppprof.train.engine import make_engine
from ppprof.train.grid import make_grid
from ppprof.train.optim import notes


def train(config: Config) -> None:
    """Train this process's rank with a config. Call it in every process that the launcher has started.

    Raises:
        ConfigError: the device does not exist, or the text is missing or too short for a step.
        InputError: the checkpoint to resume from is unusable.
        UsageError: the ``Profiler`` block names ranks that the job does not have.
    """
    _set_device(config)
    trainer = Trainer(config)
    profiler = ppprof.attach(
        config.Profiler,
        topology=config.topology,
        config=config.resolved,
        device_peak_flops=config.Global.device_peak_flops,
        device_peak_gbps=config.Global.device_peak_gbps,
        first_step=trainer.step,
    )
    with profiler as session:
        trainer.fit(session)


def _set_device(config: Config) -> None:
    """Make Paddle compute on ``Global.device``."""
    name = config.Global.device
    try:
        paddle.set_device("gpu" if name == "rocm" else name)
    except (ValueError, RuntimeError) as error:
        device = paddle.device
        types = (*device.get_all_device_type(), *device.get_all_custom_device_type())
        known = list(dict.fromkeys(["cpu", *types]))
        message = (
            f"{name}: {str(error).strip().splitlines()[-1]}; this build of Paddle knows "
            f"{', '.join(known)}{did_you_mean(name, known)}"
        )
        raise ConfigError([config.problem("Global.device", message)]) from error


class Trainer:
    """The data and the engine of one rank, and the training loop.

    Creating a trainer initializes Fleet, and loads a checkpoint if the config names one.

    Raises:
        ConfigError: the text is missing or too short for a step.
        InputError: the checkpoint to resume from is unusable.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        # Check the amount of text first, so that an error comes before process groups are created.
        self._samples: dict[str, TextSamples] = {}
        for purpose in config.Engine.purposes:
            try:
                self._samples[purpose] = _samples(config, purpose)
                self._batches(purpose, Share(0, config.topology.replicas))
            except DataError as error:
                problem = config.problem(f"Data.{purpose}.dataset.input", str(error))
                raise ConfigError([problem]) from error
        self._grid = make_grid(config)
        self._share = Share(config.topology.replica(self._grid.rank), config.topology.replicas)
        self._engine = make_engine(config, self._grid)
        self._step = 0
        self._taken = 0  # samples taken, over all ranks
        if config.Engine.save_load.ckpt_dir:
            folder = Path(config.Engine.save_load.ckpt_dir)
            progress = checkpoint.load(
                folder, self._engine.model, self._engine.optimizer, self._grid
            )
            self._step, self._taken = progress.step, progress.samples
            self._engine.amp.load(progress.scaler)
        self._engine.distribute()
        for note in (*self._engine.amp.notes, *notes(config.Optimizer)):
            self._log(note)

    @property
    def step(self) -> int:
        """Steps that are trained, those before a resume included."""
        return self._step

    def fit(self, profiler: Any) -> None:
        """Run the remaining steps; log, evaluate and save checkpoints as the config says.

        End at ``max_steps``, at the end of the data, or when the profiler asks for it.

        Args:
            profiler: the session that `ppprof.attach` returned.
        """
        engine, world = self._config.Engine, self._config.Global
        last = engine.max_steps if engine.max_steps >= 0 else None
        if last is not None and self._step >= last:
            self._log(f"{self._progress(last)} nothing left to train")
        loader = iter(self._loader("Train", self._taken))
        throughput = _Throughput(self._config)
        while last is None or self._step < last:
            num_micro_batches = engine.accumulate_steps or 1
            with throughput.reading():
                micro_batches = list(itertools.islice(loader, num_micro_batches))
            if len(micro_batches) < num_micro_batches:
                break
            rate = self._engine.schedule.get_lr()
            self._grid.seed(world.seed, self._step)
            loss = self._engine.train(micro_batches)
            self._step += 1
            self._taken += world.global_batch_size or 1
            is_logged = self._step % engine.logging_freq == 0 or self._step == last
            # This waits for the device, inside the step that is logged.
            mean = self._engine.mean(loss) if is_logged else None
            length = micro_batches[0][0].shape[1]
            local = world.local_batch_size or 1
            profiler.step(
                num_samples=local,
                num_tokens=local * length,
                num_micro_batches=len(micro_batches),
                num_flops=self._engine.flops(local * length, length),
                loss=mean,
            )
            throughput.step(tokens=local * length)
            if is_logged:
                self._log(
                    f"{self._progress(last)} loss {mean:.6f}"
                    f"{self._engine.norm_text()} lr {rate:.3e} {throughput}"
                )
                throughput.reset()
            if engine.eval_freq > 0 and self._step % engine.eval_freq == 0:
                with throughput.paused(), profiler.paused("evaluation"):
                    self._log(f"{self._progress(last)} eval loss {self._evaluate():.6f}")
            save_steps = engine.save_load.save_steps or -1
            if save_steps > 0 and self._step % save_steps == 0:
                with throughput.paused(), profiler.paused("checkpoint"):
                    self._save(Path(engine.save_load.output_dir))
            if profiler.should_stop:
                self._log(f"{self._progress(last)} stopping: the profiler's last window has closed")
                break

    def _evaluate(self) -> float:
        """Return the mean loss of the first ``eval_iters`` evaluation batches, over all ranks.

        At least one batch is evaluated. As in training, a batch has ``local_batch_size`` samples on
        each rank, in ``accumulate_steps`` micro-batches.
        """
        engine = self._config.Engine
        num_micro_batches = max(1, engine.eval_iters) * (engine.accumulate_steps or 1)
        micro_batches = list(itertools.islice(self._loader("Eval"), num_micro_batches))
        return self._engine.mean(self._engine.evaluate(micro_batches))

    def _batches(self, purpose: str, share: Share, taken: int = 0) -> StepBatches:
        data = getattr(self._config.Data, purpose)
        world, engine = self._config.Global, self._config.Engine
        # The limit only if max_steps is negative, which means no limit.
        is_limited = engine.num_train_epochs >= 0 and engine.max_steps < 0
        epochs = engine.num_train_epochs if is_limited else None
        return StepBatches(
            len(self._samples[purpose]),
            world.local_batch_size or 1,
            world.micro_batch_size or 1,
            share,
            seed=world.seed if data.sampler.shuffle else None,
            taken=taken,
            epochs=epochs if purpose == "Train" else 1,
        )

    def _loader(self, purpose: str, taken: int = 0) -> DataLoader:
        return DataLoader(
            self._samples[purpose],
            batch_sampler=self._batches(purpose, self._share, taken),
            num_workers=getattr(self._config.Data, purpose).loader.num_workers,
        )

    def _save(self, folder: Path) -> None:
        progress = checkpoint.Progress(self._step, self._taken, self._engine.amp.state())
        target = checkpoint.save(
            folder, progress, self._engine.model, self._engine.optimizer, self._grid
        )
        self._log(f"saved {target}")

    def _progress(self, last: int | None) -> str:
        return f"step {self._step}/{last}" if last else f"step {self._step}"

    def _log(self, message: str) -> None:
        if dist.get_rank() == 0:
            print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {message}", flush=True)


def _samples(config: Config, purpose: str) -> TextSamples:
    """Return the dataset for training or evaluation; write its token file on first use."""
    dataset = getattr(config.Data, purpose).dataset
    shares = np.cumsum([0.0, *dataset.split]) / sum(dataset.split)
    index = {"Train": 0, "Eval": 1}[purpose]
    return TextSamples(
        token_file(find_files(dataset.input)),
        dataset.max_seq_len,
        share=(float(shares[index]), float(shares[index + 1])),
        limit=dataset.num_samples,
        latency_ms=dataset.read_latency_ms,
    )


class _Throughput:
    """The throughput since the last log line; evaluation and checkpoints do not count."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.reset()

    def reset(self) -> None:
        """Set the counts to 0 and measure from now on."""
        self._start = time.perf_counter()
        self._reader_s = 0.0
        self._steps = 0
        self._tokens = 0

    def step(self, tokens: int) -> None:
        """Count a step."""
        self._steps += 1
        self._tokens += tokens

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Return a context manager whose time counts as reader cost."""
        start = time.perf_counter()
        yield
        self._reader_s += time.perf_counter() - start

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context manager whose time does not count."""
        start = time.perf_counter()
        yield
        self._start += time.perf_counter() - start

    def __str__(self) -> str:
        elapsed_s = time.perf_counter() - self._start
        topology = self._config.topology
        batch_size = self._config.Global.global_batch_size or 1
        steps = max(1, self._steps)
        rate = self._tokens * topology.replicas / elapsed_s
        return (
            f"reader_cost {self._reader_s / steps:.5f} s batch_cost {elapsed_s / steps:.5f} s "
            f"ips {batch_size * self._steps / elapsed_s:.1f} samples/s "
            f"{rate:.0f} tokens/s ({rate / topology.world_size:.0f} a card)"
        )
