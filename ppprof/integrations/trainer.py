"""The hooks that the ``Trainer`` classes of PaddleNLP and PaddleFormers share."""

from __future__ import annotations

from typing import Any

from ppprof.integrations.callback import CallbackSession


class TrainerHooks(CallbackSession):
    """Hooks that record the training of a ``Trainer``.

    A step is a global step of the ``Trainer``: ``gradient_accumulation_steps`` micro-batches. Step
    times exclude evaluations and checkpoints between steps.

    Args:
        profiler: the ``Profiler`` block: typed, as a mapping, or the path of a YAML file.

    Raises:
        ConfigError: the block is invalid.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the session. Paddle has initialized the ranks before this hook is called."""
        self.begin()

    def on_load_data_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count step time again if a pause for an evaluation or a checkpoint is still open.

        The trainer calls this hook when it has loaded a micro-batch of the training.
        """
        self.resume()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a step; if ``should_stop`` is true after it, make the trainer stop.

        Stop counting step time if an evaluation or a checkpoint follows.
        """
        num_micro_batches = args.gradient_accumulation_steps
        self.session.step(
            num_samples=args.per_device_train_batch_size * num_micro_batches,
            num_micro_batches=num_micro_batches,
        )
        if self.session.should_stop:
            control.should_training_stop = True
        self._pause_for_evaluation_or_save(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop counting step time if an evaluation or a checkpoint follows the epoch."""
        self._pause_for_evaluation_or_save(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count step time again after an evaluation, unless a checkpoint follows."""
        if not control.should_save:
            self.resume()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count step time again after a checkpoint was written."""
        self.resume()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the session."""
        self.end()

    def _pause_for_evaluation_or_save(self, control: Any) -> None:
        """Stop counting step time if the trainer will evaluate or save a checkpoint next.

        The trainer's own callback sets ``should_evaluate`` and ``should_save``. It runs before this
        callback.
        """
        if control.should_evaluate or control.should_save:
            self.pause()
