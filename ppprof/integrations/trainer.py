"""The hooks that the ``Trainer`` of PaddleNLP and that of PaddleFormers have in common."""

from __future__ import annotations

from typing import Any

from ppprof.integrations.callback import CallbackSession


class TrainerHooks(CallbackSession):
    """Records the training of a ``Trainer``.

    A step is a global step, ``gradient_accumulation_steps`` micro-batches. An evaluation and a
    checkpoint after it are in no step's time.

    Args:
        profiler: the block.

    Raises:
        ConfigError: it is none.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attaches: by now the ranks are initialised."""
        self.begin()

    def on_load_data_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A micro-batch was read."""
        self.resume()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends a step."""
        num_micro_batches = args.gradient_accumulation_steps
        self.session.step(
            num_samples=args.per_device_train_batch_size * num_micro_batches,
            num_micro_batches=num_micro_batches,
        )
        if self.session.should_stop:
            control.should_training_stop = True
        self._await(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An epoch may end with an evaluation and a checkpoint."""
        self._await(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation is over; a checkpoint comes after it."""
        if not control.should_save:
            self.resume()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is written."""
        self.resume()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Closes the session."""
        self.end()

    def _await(self, control: Any) -> None:
        """Pauses, if the trainer's own callback, which comes first, asks for one of the two."""
        if control.should_evaluate or control.should_save:
            self.pause()
