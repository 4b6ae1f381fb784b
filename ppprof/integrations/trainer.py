"""The hooks that the ``Trainer`` classes of PaddleNLP and PaddleFormers share."""

from __future__ import annotations

from typing import Any

from ppprof.integrations.callback import CallbackSession


class TrainerHooks(CallbackSession):
    """Hooks that record the training of a ``Trainer``.

    A step is a global step: ``gradient_accumulation_steps`` micro-batches. Step times exclude
    evaluations and checkpoints after the step.

    Args:
        profiler: the block.

    Raises:
        ConfigError: the block is invalid.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the session: Paddle has initialized the ranks before this hook."""
        self.begin()

    def on_load_data_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a pause that no other hook has ended: training goes on with this micro-batch."""
        self.resume()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a step."""
        num_micro_batches = args.gradient_accumulation_steps
        self.session.step(
            num_samples=args.per_device_train_batch_size * num_micro_batches,
            num_micro_batches=num_micro_batches,
        )
        if self.session.should_stop:
            control.should_training_stop = True
        self._pause_for_evaluation_or_save(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pause step times if an evaluation or a checkpoint follows the epoch."""
        self._pause_for_evaluation_or_save(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the pause after an evaluation, unless a checkpoint follows."""
        if not control.should_save:
            self.resume()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the pause: the checkpoint was written."""
        self.resume()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the session."""
        self.end()

    def _pause_for_evaluation_or_save(self, control: Any) -> None:
        """Pause step times if the trainer will evaluate or save a checkpoint next.

        The trainer's own callback makes these requests. It runs before this one.
        """
        if control.should_evaluate or control.should_save:
            self.pause()
