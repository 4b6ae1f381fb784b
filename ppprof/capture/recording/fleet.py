"""Spans for what Fleet's engine does and Paddle does not record, while a window is open.

- A micro-batch's way through this rank's part of a pipeline is a Forward span and a Backward span
  (Paddle records Backward in ``Tensor.backward`` only, which Fleet's pipeline does not call, and
  Forward for the layers inside). Their names say where in the schedule they are:
  ``forward[stage=0 micro_batch=3 phase=steady]``; with virtual stages also which ``chunk``.
- The step of a sharding optimizer is an Optimization span.

A forward is in the *warm-up* until the first one that a backward follows, a backward in the
*cool-down* once no forward is left; between is *steady*. A schedule that is not known here has no
phases, and an evaluation no micro-batches either.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from typing import Any

from paddle.optimizer import Optimizer

from ppprof.capture.recording.patches import Method, Patches
from ppprof.capture.recording.recorder import span

_PIPELINE = "paddle.distributed.fleet.meta_parallel.pipeline_parallel"
_OPTIMIZERS = (
    "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer"
)


class FleetSpans:
    """The wrappers: `install` at the start of a window, `uninstall` after it."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._done: Counter[tuple[str, int | None]] | None = None

    def install(self) -> None:
        """Wraps the methods of the parts of Fleet that are loaded."""
        for kind in _classes(_PIPELINE, "PipelineParallel"):
            self._patches.put(kind, "forward_backward_pipeline", self._schedule)
            self._patches.put(kind, "_forward_step", self._forward)
            self._patches.put(kind, "_backward_step", self._backward)
        for kind in _classes(_OPTIMIZERS, "DygraphShardingOptimizer"):
            self._patches.put(kind, "step", _optimization)
        self._patches.put(Optimizer, "_apply_optimize", _sliced_optimization)

    def uninstall(self) -> None:
        """Gives every class its methods back."""
        self._patches.uninstall()

    def _schedule(self, method: Method, *args: Any, **kwargs: Any) -> Any:
        """All micro-batches of a step: inside, they are counted."""
        self._done = Counter()
        try:
            return method(*args, **kwargs)
        finally:
            self._done = None

    def _forward(self, method: Method, *args: Any, **kwargs: Any) -> Any:
        return self._spanned("forward", method, args, kwargs)

    def _backward(self, method: Method, *args: Any, **kwargs: Any) -> Any:
        return self._spanned("backward", method, args, kwargs)

    def _spanned(self, kind: str, method: Method, args: Any, kwargs: Any) -> Any:
        facts = self._facts(kind, method, args, kwargs)
        around = span(f"{kind}[{' '.join(facts)}]" if facts else kind, kind.capitalize())
        try:
            return method(*args, **kwargs)
        finally:
            around.end()

    def _facts(self, kind: str, method: Method, args: Any, kwargs: Any) -> list[str]:
        """``stage=0``, ``micro_batch=3`` ... of a call; none where Fleet is not as we know it."""
        try:
            given = inspect.signature(method).bind(*args, **kwargs).arguments
            engine, chunk = args[0], given.get("chunk_id")
            facts = [f"stage={engine.stage_id}"]
            if chunk is not None:
                facts.append(f"chunk={chunk}")
            if self._done is not None:
                # Whatever the schedule, the micro-batches of a chunk come in their order.
                facts.append(f"micro_batch={self._done[kind, chunk]}")
                position = sum(count for (of, _), count in self._done.items() if of == kind)
                self._done[kind, chunk] += 1
                phase = _phase(engine, kind, position)
                facts += [f"phase={phase}"] if phase else []
            return facts
        except Exception:
            return []


def _phase(engine: Any, kind: str, position: int) -> str | None:
    """The phase of the ``position``-th forward or backward that a stage does in a step.

    Source: ``startup_steps`` in Fleet's pipeline_parallel.py.
    """
    chunks = getattr(engine, "num_model_chunks", 1)
    total = engine.accumulate_steps * chunks
    behind = engine.num_stages - engine.stage_id - 1
    name = type(engine).__name__
    if name == "PipelineParallel":
        startup = behind
    elif name == "PipelineParallelWithInterleave":
        first = engine.accumulate_steps % engine.num_stages + engine.num_stages
        startup = 2 * behind + (chunks - 1) * first
    elif name == "PipelineParallelWithInterleaveFthenB":
        startup = total
    else:
        return None
    startup = min(startup, total)
    if kind == "forward":
        return "warm-up" if position < startup else "steady"
    return "cool-down" if position >= total - startup else "steady"


def _optimization(method: Method, *args: Any, **kwargs: Any) -> Any:
    around = span("Optimization Step", "Optimization")  # Paddle's name for other optimizers' steps
    try:
        return method(*args, **kwargs)
    finally:
        around.end()


def _sliced_optimization(method: Method, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Sharding stage 3 replaces the ``step`` of an optimizer by one that Paddle does not wrap."""
    if "step" in vars(optimizer):
        return _optimization(method, optimizer, *args, **kwargs)
    return method(optimizer, *args, **kwargs)


def _classes(module: str, prefix: str) -> list[type]:
    """The classes of a loaded module whose names begin like this; none if it is not loaded."""
    found = vars(sys.modules[module]).values() if module in sys.modules else ()
    return [
        kind
        for kind in found
        if isinstance(kind, type) and kind.__module__ == module and kind.__name__.startswith(prefix)
    ]
