"""The base class of the callbacks for several frameworks: it opens and closes a session in hooks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Union

from ppprof.capture import attach
from ppprof.capture.session import NoopSession, ProfilerSession
from ppprof.config import ProfilerConfig, load_profiler

Block = Union[ProfilerConfig, Mapping[str, Any], str, Path]
"""A ``Profiler`` block: typed, as a mapping, or the path of a YAML file."""

Self = TypeVar("Self", bound="CallbackSession")


class CallbackSession:
    """Opens a session when the training begins, and closes it when the training ends.

    Frameworks do not report exceptions to callbacks. So after an exception the recording is saved
    only when the program ends, or at once if ``with callback:`` surrounds the training.

    Args:
        profiler: the ``Profiler`` block: typed, as a mapping, or the path of a YAML file.

    Raises:
        ConfigError: the block is invalid.
    """

    def __init__(self, profiler: Block) -> None:
        super().__init__()
        if isinstance(profiler, (str, Path)):
            profiler = load_profiler(profiler).profiler
        elif isinstance(profiler, Mapping):
            profiler = ProfilerConfig.from_mapping(profiler)
        self._profiler = profiler
        self._pause = ExitStack()
        self.session: ProfilerSession = NoopSession()
        """The session of `ppprof.attach`; outside of the training, a session that does nothing."""

    def begin(self) -> None:
        """Open a session with `ppprof.attach`; first close a session that an exception left open."""
        self.end()
        self.session = attach(self._profiler)

    def end(self) -> None:
        """Close the session; do nothing without an open session."""
        self._finish(None)

    def pause(self, what: str) -> None:
        """Stop counting step time until `resume`; if a pause is open already, it goes on under this name."""
        self.resume()
        self._pause.enter_context(self.session.paused(what))

    def resume(self) -> None:
        """Count step time again; do nothing without a pause."""
        self._pause.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        self.resume()
        session, self.session = self.session, NoopSession()
        session.__exit__(type(error) if error is not None else None, error, None)


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
        self.resume()
        if control.should_save:
            self.pause("checkpoint")

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
            self.pause("evaluation" if control.should_evaluate else "checkpoint")
