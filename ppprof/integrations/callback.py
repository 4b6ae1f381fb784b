"""The base class of the callbacks for several frameworks: it opens and closes a session in hooks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Union

from ppprof.capture import attach
from ppprof.capture.session import NoopSession, ProfilerSession
from ppprof.config import ProfilerConfig, load_profiler

Block = Union[ProfilerConfig, Mapping[str, Any], str, Path]
"""A ``Profiler`` block: typed, as a mapping, or the path of a YAML file."""

OpenSession = Callable[..., ProfilerSession]

Self = TypeVar("Self", bound="CallbackSession")


class CallbackSession:
    """Opens a session when the training begins, and closes it when the training ends.

    Frameworks do not report exceptions to callbacks. So after an exception the recording is saved
    only when the program ends, or at once if ``with callback:`` surrounds the training.

    Args:
        profiler: the ``Profiler`` block: typed, as a mapping, or the path of a YAML file.
        open_session: called with the block and ``first_step=``; returns the session. None means
            `ppprof.attach`.

    Raises:
        ConfigError: the block is invalid.
    """

    def __init__(self, profiler: Block, open_session: OpenSession | None = None) -> None:
        super().__init__()
        if isinstance(profiler, (str, Path)):
            loaded = load_profiler(profiler)
            profiler = loaded.profiler
            open_session = open_session or partial(attach, config=loaded.resolved)
        elif isinstance(profiler, Mapping):
            profiler = ProfilerConfig.from_mapping(profiler)
        self._profiler = profiler
        self._open_session = open_session or attach
        self._pause = ExitStack()
        self._reason: str | None = None
        """What the open pause is for."""
        self.session: ProfilerSession = NoopSession()
        """The session of `ppprof.attach`; outside of the training, a session that does nothing."""

    def begin(self, first_step: int = 0) -> None:
        """Open a session with `ppprof.attach`; first close a session that an exception left open.

        Args:
            first_step: number of the training's first step.
        """
        self.end()
        self.session = self._open_session(self._profiler, first_step=first_step)

    def end(self) -> None:
        """Close the session; do nothing without an open session."""
        self._finish(None)

    def pause(self, what: str) -> None:
        """Stop counting step time until `resume`; if a pause is open already, it goes on under this name."""
        if what != self._reason:
            self.resume()
            self._pause.enter_context(self.session.paused(what))
            self._reason = what

    @property
    def is_paused(self) -> bool:
        """Whether a pause is open."""
        return self._reason is not None

    def resume(self) -> None:
        """Count step time again; do nothing without a pause."""
        self._reason = None
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

    A step is a global step of the ``Trainer``: ``gradient_accumulation_steps`` micro-batches. It has the
    number that ``global_step`` has ahead of it, also after a resume; the schedule counts from the first
    step after it. Step
    times exclude evaluations and checkpoints between steps. Tokens are those of ``input_ids``, with their
    padding; FLOPs are `flops_of_token` of each.

    Args:
        profiler, open_session: as for `CallbackSession`.

    Raises:
        ConfigError: the block is invalid.
    """

    def __init__(self, profiler: Block, open_session: OpenSession | None = None) -> None:
        super().__init__(profiler, open_session)
        self._model: Any = None
        self._num_tokens = self._num_flops = 0
        self._loss: float | None = None
        """What the trainer has logged since the last step: the loss of the steps before it."""
        self._latest = (0, 0)
        """Tokens and FLOPs of the micro-batch that was loaded last."""
        self._flops: dict[int, int] = {}
        """`flops_of_token` by the length of a sample: it walks the whole model."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the session. Paddle has initialized the ranks before this hook is called.

        A trainer that resumes has read ``global_step`` from its checkpoint.
        """
        self._model = kwargs.get("model")
        self._flops.clear()
        self.begin(int(getattr(state, "global_step", 0) or 0))

    def on_load_data_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count step time again if a pause is still open, and the tokens of the micro-batch.

        The trainer calls this hook when it has loaded a micro-batch of the training.
        """
        self.resume()
        self._latest = _tokens_and_flops(args, self._model, kwargs.get("inputs"), self._flops)
        self._num_tokens += self._latest[0]
        self._num_flops += self._latest[1]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count from the micro-batch that was loaded last: a resumed training skips those ahead of it."""
        self._num_tokens, self._num_flops = self._latest

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the loss that the trainer logs, for the next step: it is a number already.

        An evaluation logs metrics without one.
        """
        self._loss = (kwargs.get("logs") or {}).get("loss", self._loss)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a step; if ``should_stop`` is true after it, make the trainer stop.

        Stop counting step time if an evaluation or a checkpoint follows.
        """
        num_micro_batches = args.gradient_accumulation_steps
        self.session.step(
            num_samples=args.per_device_train_batch_size * num_micro_batches,
            num_micro_batches=num_micro_batches,
            num_tokens=self._num_tokens or None,
            num_flops=self._num_flops or None,
            loss=self._loss,
        )
        self._loss = None
        self._num_tokens = self._num_flops = 0
        if self.session.should_stop:
            control.should_training_stop = True
        self._pause_for_evaluation_or_save(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop counting step time if an evaluation or a checkpoint follows the epoch."""
        self._pause_for_evaluation_or_save(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop counting step time: of several evaluations in a row, the next one has begun."""
        self.pause("evaluation")

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


def _tokens_and_flops(
    args: Any, model: Any, inputs: Any, flops_of: dict[int, int]
) -> tuple[int, int]:
    """Return the tokens and the FLOPs of a micro-batch; 0 for a number that is unknown.

    ``flops_of`` has `flops_of_token` by the length of a sample, and gets what it lacks.
    """
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    # With sep or context parallelism, each rank has a part of each sample.
    if ids is None or max(map(partial(_degree, args), _OF_SEQUENCES)) > 1:
        return 0, 0
    shape, batch_axes = ids.shape, frozenset[str]()
    if getattr(ids, "is_dist", bool)():  # of semi-automatic parallelism
        shape, batch_axes = ids._local_shape, frozenset(axis for axis, _ in _split_axes(ids))
    num_tokens, length = math.prod(shape), shape[-1]
    if length not in flops_of:
        mp_degree = max(map(partial(_degree, args), _OF_TENSORS))
        flops_of[length] = flops_of_token(model, length, mp_degree, batch_axes)
    return num_tokens, num_tokens * flops_of[length]


def _split_axes(tensor: Any) -> Iterator[tuple[str, int]]:
    """Yield the axes of its mesh over which a tensor is split, with the number of ranks."""
    mesh = tensor.process_mesh
    for axis, size, placement in zip(mesh.dim_names, mesh.shape, tensor.placements):
        if placement.is_shard():
            yield axis, size


_OF_SEQUENCES = (
    *("sep_parallel_degree", "context_parallel_degree"),
    *("sep_parallel_size", "context_parallel_size"),
)
_OF_TENSORS = ("tensor_parallel_degree", "tensor_model_parallel_size")
"""Names of degrees in the arguments of PaddleNLP's Trainer, and of PaddleFormers' and PaddleFleet's."""


def _degree(args: Any, name: str) -> int:
    """Return a degree of a Trainer's arguments; 1 if it is missing, or -1 as by default."""
    return max(getattr(args, name, 1) or 1, 1)


def flops_of_token(
    model: Any, length: int, mp_degree: int = 1, batch_axes: Set[str] = frozenset()
) -> int:
    """Return the FLOPs that a token costs on this rank, forward and backward; 0 if they are unknown.

    Counted are two operations for each weight of a matrix product, and ``4 * length * hidden_size`` for the
    scores and values of each attention, in full although half may be masked; three times, since a backward
    pass has twice as many. So `ppprof.train.model.rank_flops` counts, too.

    Unknown: a mixture of experts, where a token uses a part of the weights, and a model of which a part is
    trained, such as LoRA.

    Args:
        model: this rank's part of the model, with the ``config`` of its framework.
        length: tokens of a sample.
        mp_degree: the number of ranks that each attention's heads are split over.
        batch_axes: axes of a mesh over which the samples are split. A weight that is split over them, too, as by
            sharding stage 3, is gathered for its product.
    """
    hidden = getattr(getattr(model, "config", None), "hidden_size", 0)
    layers = model.sublayers(include_self=True) if hidden else []
    if not layers or any(_EXPERTS.search(type(layer).__name__) for layer in layers):
        return 0
    own = [layer for layer in layers if "Embedding" not in type(layer).__name__]
    weights = {id(p): p for layer in own for p in layer.parameters(include_sublayers=False)}
    matrices = [weight for weight in weights.values() if len(weight.shape) == 2]
    if any(weight.stop_gradient for weight in matrices):
        return 0
    attentions = [layer for layer in layers if type(layer).__name__.endswith("Attention")]
    inner = {id(part) for layer in attentions for part in layer.sublayers()}
    num_attentions = sum(
        id(layer) not in inner and all(map(_is_here, layer.parameters())) for layer in attentions
    )
    attention = 4 * length * int(hidden) * num_attentions // mp_degree
    num_weights = sum(_num_multiplied(each, batch_axes) for each in matrices if _is_here(each))
    return 3 * (2 * num_weights + attention)


def _is_here(weight: Any) -> bool:
    """Return whether this rank has a part of a weight; of semi-automatic stages, each rank knows all weights."""
    return not weight.is_dist() or bool(weight._is_initialized())


def _num_multiplied(weight: Any, batch_axes: Set[str]) -> int:
    """Return how many elements of a weight this rank's products take."""
    split = _split_axes(weight) if weight.is_dist() else ()
    num_parts = math.prod(size for axis, size in split if axis not in batch_axes)
    return math.prod(map(int, weight.shape)) // num_parts


_EXPERTS = re.compile("MoE|Moe|Expert")
"""Part of the name of a layer with experts."""
