"""``paddle.Model.fit``: ``model.fit(data, callbacks=[PpprofCallback(block)])``."""

from __future__ import annotations

from typing import Any

import paddle

from ppprof.integrations.callback import Block, CallbackSession


class PpprofCallback(CallbackSession, paddle.callbacks.Callback):  # type: ignore[misc]
    """Records the training of ``paddle.Model.fit``.

    A step is one update of the parameters: ``accumulate_grad_batches`` batches. What comes between
    two epochs, evaluation and checkpoint, is in no step's time.

    Args:
        profiler: the block.

    Raises:
        ConfigError: it is none.
    """

    def __init__(self, profiler: Block) -> None:
        super().__init__(profiler)
        self._num_samples = self._num_batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Attaches."""
        self.begin()

    def on_epoch_begin(self, epoch: Any = None, logs: Any = None) -> None:
        """Batches come now."""
        self._num_samples = self._num_batches = 0
        self.resume()

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        """Ends a step, if this batch was the last that an update waited for."""
        # Paddle gives the samples of all ranks, as this rank's times their number.
        samples: int = (logs or {}).get("batch_size", 0)
        self._num_samples += samples // paddle.distributed.ParallelEnv().nranks
        self._num_batches += 1
        is_last = step + 1 == (self.params or {}).get("steps")
        if not is_last and (step + 1) % getattr(self.model, "_accumulate", 1):
            return
        self.session.step(num_samples=self._num_samples, num_micro_batches=self._num_batches)
        self._num_samples = self._num_batches = 0
        if self.session.should_stop:
            self.model.num_iters = 1  # as the argument of fit: this batch was the last

    def on_epoch_end(self, epoch: Any = None, logs: Any = None) -> None:
        """Checkpoint and evaluation come now."""
        self.pause()

    def on_train_end(self, logs: Any = None) -> None:
        """Closes the session."""
        self.end()
