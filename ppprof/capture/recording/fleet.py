"""Record spans of Fleet's engine that Paddle does not record, while a window is open.

- Each micro-batch has a Forward span and a Backward span in this rank's stage of a pipeline. (Paddle
  records Backward only in ``Tensor.backward``, which Fleet's pipeline does not call. It records
  Forward only for the layers inside.) A span's name holds its place in the schedule:
  ``forward[stage=0 micro_batch=3 phase=steady]``. With virtual stages it also holds the ``chunk``.
- The step of a sharding optimizer is an Optimization span; so is that of ``dist.shard_optimizer``, and of a
  direct subclass of ``paddle.optimizer.Optimizer``.

The first forward that a backward follows ends the *warm-up*: all forwards before it are in the
warm-up. Backwards after the last forward are in the *cool-down*. All other spans are *steady*. Spans
of an unknown schedule have no phase. Spans of an evaluation have neither phase nor micro-batch.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter
from functools import partial
from typing import Any

from paddle.optimizer import Optimizer

from ppprof.capture.recording.observers import WindowObserver
from ppprof.capture.recording.patches import Method, Patches
from ppprof.capture.recording.record_events import RecordEvents
from ppprof.capture.recording.recorder import open_span

_PIPELINE = "paddle.distributed.fleet.meta_parallel.pipeline_parallel"
_OPTIMIZERS = (
    "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer"
)
_AUTO_PARALLEL = "paddle.distributed.auto_parallel.api"
_OPTIMIZATION = "Optimization"
_thread = threading.local()
"""Has ``updates``, whether one of the Optimization spans here is open in the thread."""


class FleetSpans(WindowObserver):
    """Wrappers of Fleet's methods."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._done: Counter[tuple[str, int | None]] | None = None

    def install(self) -> None:
        """Wrap the methods of Fleet's pipelines and optimizers, in loaded modules only.

        Also wrap ``Optimizer._apply_optimize``: Paddle records the ``step`` of its own optimizers and of their
        subclasses only, and not the one that sharding stage 3 puts on an optimizer object.
        """
        for kind in _classes(_PIPELINE, "PipelineParallel"):
            self._patches.install(kind, "forward_backward_pipeline", self._schedule)
            self._patches.install(kind, "_forward_step", partial(self._record, "forward"))
            self._patches.install(kind, "_backward_step", partial(self._record, "backward"))
        for kind in _classes(_OPTIMIZERS, "DygraphShardingOptimizer"):
            self._patches.install(kind, "step", _optimization)
        for kind in _classes(_AUTO_PARALLEL, "_ShardOptimizer"):
            self._patches.install(kind, "_apply_optimize", _optimization)
        # Not its step: `ppprof run` ends steps there, inside of what is installed later.
        self._patches.install(Optimizer, "_apply_optimize", _optimization)

    def uninstall(self) -> None:
        """Restore the methods, except those that other code has replaced since."""
        self._patches.uninstall()

    def _schedule(self, method: Method, /, *args: Any, **kwargs: Any) -> Any:
        """Call the pipeline's schedule for a step, and number the micro-batches inside from 0."""
        self._done = Counter()
        try:
            return method(*args, **kwargs)
        finally:
            self._done = None

    def _record(self, kind: str, method: Method, /, *args: Any, **kwargs: Any) -> Any:
        annotations = self._annotations(kind, method, args, kwargs)
        name = f"{kind}[{' '.join(annotations)}]" if annotations else kind
        around = open_span(name, kind.capitalize())
        try:
            return method(*args, **kwargs)
        finally:
            around.end()

    def _annotations(self, kind: str, method: Method, args: Any, kwargs: Any) -> list[str]:
        """Return ``["stage=0", "micro_batch=3", ...]`` for a call, and count the micro-batch.

        Empty if this version of Fleet is unknown.
        """
        try:
            arguments = inspect.signature(method).bind(*args, **kwargs).arguments
            engine, chunk = args[0], arguments.get("chunk_id")
            annotations = [f"stage={engine.stage_id}"]
            if chunk is not None:
                annotations.append(f"chunk={chunk}")
            if self._done is not None:
                # In every schedule, the micro-batches of a chunk come in order.
                annotations.append(f"micro_batch={self._done[kind, chunk]}")
                position = sum(n for (other, _), n in self._done.items() if other == kind)
                self._done[kind, chunk] += 1
                phase = _phase(engine, kind, position)
                annotations += [f"phase={phase}"] if phase else []
            return annotations
        except Exception:
            return []


def _phase(engine: Any, kind: str, position: int) -> str | None:
    """Return the phase of a forward or backward: "warm-up", "steady" or "cool-down".

    None if ppprof does not know the pipeline's schedule.

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


def _optimization(method: Method, /, *args: Any, **kwargs: Any) -> Any:
    """Record an Optimization span, unless Paddle or an outer call already has one open in this thread."""
    if getattr(_thread, "updates", False) or RecordEvents.has_open(_OPTIMIZATION):
        return method(*args, **kwargs)
    around = open_span("Optimization Step", _OPTIMIZATION)  # Paddle's name for it
    _thread.updates = True
    try:
        return method(*args, **kwargs)
    finally:
        _thread.updates = False
        around.end()


def _classes(module: str, prefix: str) -> list[type]:
    """Return the classes that a module defines whose names begin with ``prefix``; [] if it is not loaded."""
    values = vars(sys.modules[module]).values() if module in sys.modules else ()
    return [
        kind
        for kind in values
        if isinstance(kind, type) and kind.__module__ == module and kind.__name__.startswith(prefix)
    ]
