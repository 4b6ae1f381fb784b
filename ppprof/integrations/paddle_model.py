"""``paddle.Model.fit``: ``model.fit(data, callbacks=[PpprofCallback(block)])``."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

from ppprof.integrations.callback import Block, CallbackSession


class PpprofCallback(CallbackSession, paddle.callbacks.Callback):  # type: ignore[misc]
    """A callback that records the training of ``paddle.Model.fit``.

    A step is one update of the parameters: ``accumulate_grad_batches`` batches, or fewer at the end
    of an epoch. Step times exclude evaluation and checkpoints between epochs.

    Args:
        profiler: the ``Profiler`` block: typed, as a mapping, or the path of a YAML file.

    Raises:
        ConfigError: the block is invalid.
    """

    def __init__(self, profiler: Block) -> None:
        super().__init__(profiler)
        self._num_samples = self._num_batches = 0
        self._ends_within_epoch = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Open the session."""
        # With num_iters, Paddle makes one epoch of it only if the data has more batches. It then ends
        # within an epoch, and what has accumulated is no update.
        has_limit = getattr(self.model, "num_iters", None) is not None
        self._ends_within_epoch = has_limit and (self.params or {}).get("epochs") == 1
        self.begin()

    def on_epoch_begin(self, epoch: Any = None, logs: Any = None) -> None:
        """Count step time again after the previous epoch; count samples and batches from 0."""
        self._num_samples = self._num_batches = 0
        self.resume()

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        """End a step if this was the last batch of an update.

        If ``should_stop`` is true after the step, also end the training with this batch.
        """
        # Paddle passes the samples of all ranks: this rank's samples times the number of ranks.
        samples: int = (logs or {}).get("batch_size", 0)
        self._num_samples += samples // paddle.distributed.ParallelEnv().nranks
        self._num_batches += 1
        is_last = step + 1 == (self.params or {}).get("steps")
        if (not is_last or self._ends_within_epoch) and (step + 1) % getattr(
            self.model, "_accumulate", 1
        ):
            return
        self.session.step(
            num_samples=self._num_samples,
            num_micro_batches=self._num_batches,
            loss=_first_loss((logs or {}).get("loss")),
        )
        self._num_samples = self._num_batches = 0
        if self.session.should_stop:
            self.model.num_iters = 1  # like the argument of fit: makes this batch the last

    def on_epoch_end(self, epoch: Any = None, logs: Any = None) -> None:
        """Stop counting step time until the next epoch: a checkpoint or an evaluation may follow."""
        self.pause("end of epoch")

    def on_eval_begin(self, logs: Any = None) -> None:
        """Call the pause an evaluation if ``fit`` evaluates behind an epoch."""
        if self.is_paused:
            self.pause("evaluation")

    def on_eval_end(self, logs: Any = None) -> None:
        """Call the rest of the pause the end of the epoch."""
        if self.is_paused:
            self.pause("end of epoch")

    def on_train_end(self, logs: Any = None) -> None:
        """Close the session."""
        self.end()


def _first_loss(losses: Any) -> float | None:
    """Return the first of the losses, which Paddle has copied to the host; None without one."""
    values = np.ravel(losses if losses is not None else [])
    return float(values[0]) if len(values) else None
