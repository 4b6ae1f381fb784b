"""Where a training step ends, seen from the optimizers alone.

A step ends when the outermost call of ``step`` or ``minimize`` returns, of an optimizer or of what
wraps one: a ``GradScaler``, Fleet's hybrid optimizer, ``LookAhead``::

    GradScaler.step      |----------------------|* one step ends here,
      Hybrid...step         |----------------|     also when the scaler
        AdamW.step             |----------|        skips the update

Where several optimizers step, one of them ends the steps, and the others belong to its steps.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ppprof.integrations.imports import after_import

log = logging.getLogger("ppprof")

_FLEET = "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer"
_SCALERS = ("paddle.amp.grad_scaler", f"{_FLEET}.hybrid_parallel_gradscaler")
_WRAPPERS = (
    f"{_FLEET}.hybrid_parallel_optimizer",
    f"{_FLEET}.heter_parallel_optimizer",
    f"{_FLEET}.dygraph_sharding_optimizer",
)
"""Modules of classes that wrap an optimizer without being one."""


class OptimizerSteps:
    """Watches the optimizers of this process, once Paddle is imported; it does not import it.

    Args:
        begin: called when an optimizer is made, and again before one steps, until it returns
            True: the training is set up far enough.
        end_step: called when a step has ended.
        boundary: which optimizer ends the steps, counted from 1 in the order in which they step
            for the first time.
    """

    def __init__(
        self,
        begin: Callable[[], bool],
        end_step: Callable[[], None],
        boundary: int = 1,
    ) -> None:
        self._begin = begin
        self._end_step = end_step
        self._boundary = boundary
        self._pid = os.getpid()
        self._began = self._is_watching = False
        self._closed = False
        self._inside = threading.local()
        self._wrapped: dict[tuple[type, str], Any] = {}
        self._known: list[weakref.WeakSet[Any]] = []
        self._names: list[str] = []
        self.num_optimizers = 0
        """That have stepped so far."""
        after_import("paddle.optimizer.optimizer", self._watch_making)

    def close(self) -> None:
        """Ends no more steps; the wrappers stay, and pass calls on."""
        self._closed = True

    @property
    def _is_on(self) -> bool:
        # A forked child is another process, with a training of its own or none.
        return not self._closed and os.getpid() == self._pid and _in_dynamic_mode()

    def _watch_making(self, module: Any) -> None:
        base = module.Optimizer
        steps = self

        def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:  # noqa: N807
            super(base, cls).__init_subclass__(**kwargs)
            steps._wrap_making(cls)  # AdamW, for one, does not call the base's
            if steps._is_watching:
                steps._wrap(cls)

        self._wrap_making(base)
        base.__init_subclass__ = classmethod(__init_subclass__)

    def _wrap_making(self, kind: Any) -> None:
        make = vars(kind).get("__init__")
        if make is None:
            return

        @functools.wraps(make)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            make(*args, **kwargs)
            self._before_training()

        kind.__init__ = wrapper

    def _before_training(self) -> None:
        if self._began or not self._is_on:
            return
        self._began = self._begin()
        # Only now: `begin` has Paddle wrap the classes too, and a step ends after its span.
        self._is_watching = True
        for kind in (*_family(_base()), *_classes(_WRAPPERS)):
            self._wrap(kind)
        for kind in _classes(_SCALERS):
            self._wrap(kind, is_scaler=True)

    def _wrap(self, kind: type, is_scaler: bool = False) -> None:
        for name in ("step", "minimize"):
            method = vars(kind).get(name)
            if method is None or self._wrapped.get((kind, name)) is method:
                continue
            wrapper = self._watched(method, is_scaler)
            self._wrapped[kind, name] = wrapper
            setattr(kind, name, wrapper)

    def _watched(self, method: Callable[..., Any], is_scaler: bool) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self._is_on:
                return method(*args, **kwargs)
            self._before_training()
            seen = getattr(self._inside, "seen", None)
            is_outermost = seen is None
            if seen is None:
                seen = self._inside.seen = []
            seen.extend([kwargs.get("optimizer"), *args[1:2]] if is_scaler else args[:1])
            try:
                result = method(*args, **kwargs)
            finally:
                if is_outermost:
                    self._inside.seen = None
            if is_outermost and self._ends_step(seen):
                self._end_step()  # may raise SystemExit, and nothing else
            return result

        return wrapper

    def _ends_step(self, seen: list[Any]) -> bool:
        """Whether the one optimizer that these are, wrappers included, is the one that counts."""
        optimizers = [optimizer for optimizer in seen if optimizer is not None]
        try:
            at = self._place(optimizers)
            self._known[at].update(optimizers)
        except TypeError as error:  # a class of somebody's that has no hash or no weak references
            log.warning(f"{error}; steps are no longer seen, the training goes on without")
            self.close()
            return False
        return at == self._boundary - 1

    def _place(self, optimizers: list[Any]) -> int:
        """Where it stands among those that step; a new one takes the place of one that is gone."""
        for at, known in enumerate(self._known):
            if any(optimizer in known for optimizer in optimizers):
                return at
        self.num_optimizers += 1
        name = type(optimizers[-1]).__name__
        if self._known:
            gc.collect()  # an optimizer whose training is over may wait for that to be gone
        for at, known in enumerate(self._known):
            if not known:
                self._names[at] = name
                return at
        self._known.append(weakref.WeakSet())
        self._names.append(name)
        if len(self._names) == 2:
            names = " and ".join(f"{name} ({n})" for n, name in enumerate(self._names, start=1))
            log.warning(
                f"several optimizers step, {names}: a step ends with number {self._boundary}; "
                "--optimizer N takes another"
            )
        return len(self._known) - 1


def _base() -> Any:
    return sys.modules["paddle.optimizer.optimizer"].Optimizer


def _in_dynamic_mode() -> bool:
    return bool(sys.modules["paddle"].in_dynamic_mode())


def _family(kind: Any) -> Iterator[type]:
    """The class and all that inherit from it, so far."""
    yield kind
    for inner in kind.__subclasses__():
        yield from _family(inner)


def _classes(modules: tuple[str, ...]) -> list[type]:
    """The classes that those of the modules define which are loaded."""
    return [
        kind
        for name in modules
        if name in sys.modules
        for kind in vars(sys.modules[name]).values()
        if isinstance(kind, type) and kind.__module__ == name
    ]
