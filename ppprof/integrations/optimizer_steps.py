"""Detect the end of training steps from calls of the optimizers.

A step ends when the outermost call of ``step`` or ``minimize`` returns. The method may belong to an
optimizer or to a wrapper of an optimizer: a ``GradScaler``, Fleet's hybrid optimizer,
``LookAhead``::

    GradScaler.step      |----------------------|* one step ends here,
      Hybrid...step         |----------------|     also when the scaler
        AdamW.step             |----------|        skips the update

A call of the model that ``paddle.distributed.to_static`` returns is a step if it trains.

If a training has several optimizers, only the calls of one optimizer end steps (``boundary``). Calls
of the other optimizers are part of these steps.

What a function steps that another process calls by ``paddle.distributed.rpc`` is part of that process's
step, unless the call is a training: one in which an optimizer steps more than `_STEPS_OF_A_SERVER` times.

A training may update its parameters itself, without an optimizer of Paddle. Then each outermost call of
``backward`` ends a step, once parameters have changed between two such calls, and until there is an optimizer.
"""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import operator
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ppprof.capture.signals import pass_interruption

log = logging.getLogger("ppprof")

_FLEET = "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer"
_SCALERS = ("paddle.amp.grad_scaler", f"{_FLEET}.hybrid_parallel_gradscaler")
_WRAPPERS = (
    f"{_FLEET}.hybrid_parallel_optimizer",
    f"{_FLEET}.heter_parallel_optimizer",
    f"{_FLEET}.dygraph_sharding_optimizer",
)
"""Modules of classes that wrap an optimizer but do not inherit from ``Optimizer``."""
_PROGRAMS = "paddle.distributed.auto_parallel.api"
"""Module of ``DistModel``, which ``paddle.distributed.to_static`` returns."""
_FIRST_BACKWARD, _LAST_BACKWARD = 4, 100
"""Without an optimizer, the calls of ``backward`` between which parameters are looked at: the first ones may only try
the model out, and a script that has not updated it by the last does something else."""
_MOST_WATCHED, _MOST_ELEMENTS, _MOST_OF_A_ROW = 8, 4096, 1 << 20
"""Parameters that are compared, about how many values of each, in rows from all of it, since a step may change some
of them; and the most values of such a row."""
_STEPS_OF_A_SERVER = 4
"""Most steps of an optimizer in one remote call that are those of a server, which updates what it serves."""
_Called = Callable[..., Sequence[Any]]
"""Takes the arguments of a call, and returns what steps in it."""

_Optimizer = weakref.WeakSet[Any]
"""An optimizer and its wrappers."""


def _own(optimizer: Any, /, *_: Any, **__: Any) -> Sequence[Any]:
    return (optimizer,)


def _of_scaler(scaler: Any, /, *args: Any, **kwargs: Any) -> Sequence[Any]:
    return (kwargs.get("optimizer"), *args[:1])


def _of_program(model: Any, /, *_: Any, **__: Any) -> Sequence[Any]:
    return (model,) if getattr(model, "_mode", None) == "train" else ()


class OptimizerSteps:
    """Watches the optimizers of this process once the script imports Paddle.

    Calls in static graph mode and in forked children are not watched.

    Args:
        begin: opens the session; returns False if this is not possible yet, because the ranks are
            not initialized. It is called when an optimizer is created, before a layer is called or a
            tensor sent or received once there is an optimizer, and before each call of ``step`` or
            ``minimize``, until it returns True.
        end_step: called after each step, when the outermost call of ``step`` or ``minimize`` has
            returned.
        at_creation: whether ``begin`` is called when an optimizer is created, not only later.
        boundary: number of the optimizer whose calls end steps. Optimizers are numbered from 1 in
            the order of their first call of ``step`` or ``minimize``.
    """

    def __init__(
        self,
        begin: Callable[[], bool],
        end_step: Callable[[], None],
        boundary: int = 1,
        *,
        at_creation: bool = True,
    ) -> None:
        self._at_creation = at_creation
        self._begin = begin
        self._end_step = end_step
        self._boundary = boundary
        self._pid = os.getpid()
        self._beginning = threading.RLock()
        self._began = self._is_beginning = self._is_watching = False
        self.begins_in_step = False
        """Whether ``begin`` is called as a step begins to end: the process trains."""
        self.is_closed = False
        """Whether `close` was called."""
        self._first_use: Any = None
        """The wrappers of what begins the session, once there is an optimizer."""
        self._thread_state = threading.local()
        self._has_optimizer = False
        """Whether an optimizer of Paddle was created."""
        self._num_backwards = 0
        self._updates: list[Callable[[], bool]] = []
        self._updates_parameters = self._has_warned = False
        self._wrapped: dict[tuple[type, str], Any] = {}
        self._families: list[list[_Optimizer]] = []
        """By number: an optimizer, and others of its class that have replaced it, in this order."""
        self._names: list[str] = []
        self.has_served = False
        """Whether another process has called a function of this one by rpc."""
        self.num_optimizers = 0
        """Number of optimizers that have stepped so far, even if they no longer exist."""
        after_import("paddle.optimizer.optimizer", self._watch_creation)
        after_import("paddle", self._watch_backwards)
        after_import("paddle.distributed.rpc.internal", self._watch_remote_calls)

    def close(self) -> None:
        """Stop calling ``begin`` and ``end_step``. The wrappers stay installed and forward calls."""
        self.is_closed = True

    @property
    def _is_active(self) -> bool:
        # A forked child is another process: if it trains, that training is not the recorded one.
        is_open = not self.is_closed and os.getpid() == self._pid and _in_dynamic_mode()
        return is_open and not self._is_served

    @property
    def _is_served(self) -> bool:
        """Whether this thread runs a call that is part of the step of the process that makes it."""
        state = self._thread_state
        served = getattr(state, "served", None)
        if served is None:
            return False
        is_inside = getattr(state, "is_in_served_step", False)
        return is_inside or max(served.values(), default=0) <= _STEPS_OF_A_SERVER

    def _watch_creation(self, module: Any) -> None:
        base = module.Optimizer
        steps = self

        def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:  # noqa: N807
            super(base, cls).__init_subclass__(**kwargs)
            steps._wrap_init(cls)  # some classes, such as AdamW, do not call the base's __init__
            if steps._is_watching:
                steps._wrap_steps(cls)

        for cls in set(_subclasses(base)):  # a package of `-m` may have imported Paddle before
            self._wrap_init(cls)
        base.__init_subclass__ = classmethod(__init_subclass__)

    def _wrap_init(self, cls: Any) -> None:
        init = vars(cls).get("__init__")
        if init is None:
            return

        @functools.wraps(init)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            init(*args, **kwargs)
            self._has_optimizer = True
            if self._at_creation:
                self._begin_if_ready()
            elif self._is_active:
                self._watch_steps()
                self._watch_first_use()

        # `inspect.getfullargspec`, by which a training may select options, does not look at what is wrapped.
        with suppress(TypeError, ValueError):
            wrapper.__signature__ = inspect.signature(init)  # type: ignore[attr-defined]
        cls.__init__ = wrapper

    def _watch_remote_calls(self, internal: Any) -> None:
        """Keep in ``served`` how often each optimizer steps in a call that the thread serves; None outside of calls."""
        run = internal._run_py_func

        @functools.wraps(run)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            state = self._thread_state
            state.served, self.has_served = Counter(), True
            try:
                return run(*args, **kwargs)
            finally:
                state.served = None

        internal._run_py_func = wrapper

    def _watch_backwards(self, paddle: Any) -> None:
        self._has_optimizer = False  # Fleet makes one when it is imported
        for owner in (paddle.Tensor, paddle.autograd):
            owner.backward = self._backward_wrapper(owner.backward)

    def _backward_wrapper(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            state = self._thread_state
            is_inner = getattr(state, "is_in_backward", False)  # as recomputation makes it
            if is_inner or self._has_optimizer or not self._is_active:
                return method(*args, **kwargs)
            ends_step = self._has_updated()
            if ends_step:
                self._begin_if_ready(in_step=True)
            state.is_in_backward = True
            try:
                result = method(*args, **kwargs)
            finally:
                state.is_in_backward = False
            if ends_step and self._is_active and self._began:
                if not self._has_warned:
                    self._has_warned = True
                    log.warning(
                        "there is no optimizer of Paddle: each backward() ends a step; if an update takes "
                        "several of them, use ppprof.attach() and its step()"
                    )
                self._end_step()  # may raise SystemExit, and nothing else
            return result

        return wrapper

    def _has_updated(self) -> bool:
        """Return whether the script has updated parameters between two calls of ``backward``."""
        self._num_backwards += 1
        try:
            if self._updates and _FIRST_BACKWARD < self._num_backwards <= _LAST_BACKWARD:
                self._updates_parameters |= any(has_changed() for has_changed in self._updates)
            elif self._num_backwards == _FIRST_BACKWARD:
                self._updates = _watched_parameters()
        except Exception as error:  # values that cannot be read
            pass_interruption(error)
            self._updates = []
        if self._updates_parameters:
            self._updates = []
        return self._updates_parameters

    def _begin_if_ready(self, *, in_step: bool = False) -> None:
        if self._began or not self._is_active:
            return
        with self._beginning:  # another thread of the training waits, so that its step counts
            if self._began or self._is_beginning:
                return
            self._is_beginning, self.begins_in_step = True, in_step
            try:
                self._began = self._begin()
            finally:
                self._is_beginning = False
            # Wrap only now: `begin` makes Paddle wrap the classes too, and a step must end after the
            # span that Paddle records for it.
            self._watch_steps()

    def _watch_first_use(self) -> None:
        """Begin with the call of a layer, or with a transfer: a job may hang ahead of its first step.

        The later stages of a pipeline receive before they call a layer. What they receive is numbered as
        what the stage before sends: so the call that begins is noted, too.
        """
        if self._began or (self._first_use is not None and self._first_use.is_installed):
            return
        from ppprof.capture.ranks.flight_recorder import transfer_methods
        from ppprof.capture.recording.patches import Patches

        patches = self._first_use = Patches()

        def install() -> None:
            layer = sys.modules["paddle.nn.layer.layers"].Layer
            for kind, name in [(layer, "__call__"), *transfer_methods()]:
                patches.install(kind, name, functools.partial(call, kind, name))

        def call(kind: type, name: str, method: Any, /, *args: Any, **kwargs: Any) -> Any:
            patches.uninstall()
            is_restored = vars(kind)[name] is method
            self._begin_if_ready()
            if is_restored:
                method = vars(kind)[name]  # the session may have wrapped it
            if self._is_active and not self._began:
                install()
            return method(*args, **kwargs)

        install()

    def _watch_steps(self) -> None:
        self._is_watching = True
        for cls in (*_subclasses(_optimizer_base()), *_classes_in(_WRAPPERS)):
            self._wrap_steps(cls)
        for cls in _classes_in(_SCALERS):
            self._wrap_steps(cls, _of_scaler)
        model = getattr(sys.modules.get(_PROGRAMS), "DistModel", None)
        if model is not None:
            self._wrap_steps(model, _of_program, ("__call__",))

    def _wrap_steps(
        self, cls: type, called: _Called = _own, names: Sequence[str] = ("step", "minimize")
    ) -> None:
        for name in names:
            method = vars(cls).get(name)
            if method is None or self._wrapped.get((cls, name)) is method:
                continue
            wrapper = self._step_wrapper(method, called)
            self._wrapped[cls, name] = wrapper
            setattr(cls, name, wrapper)

    def _step_wrapper(self, method: Callable[..., Any], called: _Called) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self._is_active:
                return self._step_served(method, called, *args, **kwargs)
            self._begin_if_ready(in_step=True)
            optimizers = getattr(self._thread_state, "optimizers", None)
            is_outermost = optimizers is None
            if optimizers is None:
                optimizers = self._thread_state.optimizers = []
            optimizers.extend(called(*args, **kwargs))
            self._has_optimizer = True  # also one that is not Paddle's, which a scaler steps
            try:
                result = method(*args, **kwargs)
            finally:
                if is_outermost:
                    self._thread_state.optimizers = None
            if is_outermost and self._ends_step(optimizers):
                self._end_step()  # may raise SystemExit, and nothing else
            return result

        return wrapper

    def _step_served(
        self, method: Callable[..., Any], called: _Called, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a method that steps an optimizer, and count it if it is the outermost one in a served call."""
        state = self._thread_state
        served = getattr(state, "served", None)
        if served is None or getattr(state, "is_in_served_step", False):
            return method(*args, **kwargs)
        stepped = [id(each) for each in called(*args, **kwargs) if each is not None]
        served.update(stepped[:1])
        state.is_in_served_step = True
        try:
            return method(*args, **kwargs)
        finally:
            state.is_in_served_step = False

    def _ends_step(self, called: list[Any]) -> bool:
        """Return whether an outermost call ends a step; remember ``called`` as one optimizer.

        If an object in ``called`` cannot be remembered, log a warning, call `close`, and return
        False.
        """
        optimizers = [optimizer for optimizer in called if optimizer is not None]
        if not optimizers:
            return False
        try:
            index = self._index(weakref.WeakSet(optimizers), type(optimizers[-1]).__name__)
        except TypeError as error:  # a class without hash or weak references
            log.warning(f"{error}; the training continues without recording of further steps")
            self.close()
            return False
        return index == self._boundary - 1

    def _index(self, called: _Optimizer, name: str) -> int:
        """Return the index of an optimizer, from 0.

        An optimizer keeps its index if it or one of its wrappers was seen before. A new optimizer
        takes the index of one of its class with the same parameters: a training may create it again
        in each step. If the earlier one steps again, they were several: the later ones are split
        off, to an index of their own. Else a new optimizer gets one (`_add`).
        """
        for index, family in enumerate(self._families):
            for place, optimizer in enumerate(family, start=1):
                if _any_pair(operator.is_, called, optimizer):
                    optimizer.update(called)
                    later, family[place:] = [*filter(None, family[place:])], []
                    if later:
                        self._add(later, self._names[index])
                    return index
        for index, family in enumerate(self._families):
            if any(_any_pair(_updates_the_same, called, optimizer) for optimizer in family):
                family[:] = [*filter(None, family), called]
                return index
        return self._add([called], name)

    def _add(self, optimizers: list[_Optimizer], name: str) -> int:
        """Return the index that optimizers get: that of one that no longer exists, or the next.

        When index 1 is first used, a warning names both optimizers and the one that ends the steps.
        """
        self.num_optimizers += 1
        if self._families and all(map(any, self._families)):
            gc.collect()  # reference cycles may keep the optimizer of an ended training alive
        for index, family in enumerate(self._families):
            if not any(family):
                self._families[index], self._names[index] = optimizers, name
                return index
        self._families.append(optimizers)
        self._names.append(name)
        if len(self._names) == 2:
            names = " and ".join(f"{name} ({n})" for n, name in enumerate(self._names, start=1))
            log.warning(
                f"several optimizers step, {names}: number {self._boundary} ends the steps; "
                "select another with --optimizer N"
            )
        return len(self._families) - 1


def _watched_parameters() -> list[Callable[[], bool]]:
    """Return, for some parameters of this process, functions that say whether values have changed since the last call."""
    kind = sys.modules["paddle.base.framework"].EagerParamBase
    found = [
        each
        for each in gc.get_objects()
        if kind in type(each).__mro__  # `isinstance` looks behind proxies
        and not each.stop_gradient
        and each._is_initialized()
        and not each.is_dist()  # its values may be on other ranks
        and each.size
        and each.shape  # a single number has no rows
        and _row_size(each) <= _MOST_OF_A_ROW
    ]
    return [_change_of(each) for each in found[:: max(1, len(found) // _MOST_WATCHED)]]


def _change_of(parameter: Any) -> Callable[[], bool]:
    reference, values = weakref.ref(parameter), [_some_values(parameter)]

    def has_changed() -> bool:
        known = reference()
        if known is None:
            return False
        values.append(_some_values(known))
        return bool((values.pop(0) != values[0]).any())

    return has_changed


def _some_values(parameter: Any) -> Any:
    with sys.modules["paddle"].no_grad():
        num_rows = max(1, _MOST_ELEMENTS // _row_size(parameter))
        return parameter[:: max(1, parameter.shape[0] // num_rows)].numpy()


def _row_size(parameter: Any) -> int:
    """Return how many elements one index of the first axis has."""
    return int(parameter.size) // int(parameter.shape[0])


def _any_pair(is_same: Callable[[Any, Any], bool], called: _Optimizer, known: _Optimizer) -> bool:
    return any(is_same(new, old) for old in known for new in called)


def _updates_the_same(new: Any, old: Any) -> bool:
    """Return whether two optimizers are of one class and have the same parameters."""
    lists = [getattr(optimizer, "_parameter_list", None) or () for optimizer in (new, old)]
    is_alike = type(new) is type(old) and 0 < len(lists[0]) == len(lists[1])
    return is_alike and all(map(operator.is_, *lists))


def _optimizer_base() -> Any:
    return sys.modules["paddle.optimizer.optimizer"].Optimizer


def _in_dynamic_mode() -> bool:
    return bool(sys.modules["paddle"].in_dynamic_mode())


def _subclasses(cls: Any) -> Iterator[type]:
    """Yield a class and all subclasses that are defined now, recursively; some may appear twice."""
    yield cls
    for subclass in cls.__subclasses__():
        yield from _subclasses(subclass)


def _classes_in(modules: tuple[str, ...]) -> list[type]:
    """Return the classes that the modules define; skip modules that are not loaded."""
    return [
        cls
        for name in modules
        if name in sys.modules
        for cls in vars(sys.modules[name]).values()
        if isinstance(cls, type) and cls.__module__ == name
    ]


def after_import(name: str, hook: Callable[[ModuleType], None]) -> None:
    """Call ``hook`` with a module once the module's code has run; at once if it is imported already.

    The module is not imported here. Paddle reads environment variables when it is imported, and the
    script may set these variables before it imports Paddle.

    Args:
        name: full name of the module, such as ``paddle.optimizer.optimizer``.
        hook: takes the module.
    """
    if name in sys.modules:
        hook(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, hook))


class _Finder(MetaPathFinder):
    """A finder that calls ``hook`` after the import of the module ``name``.

    It takes the module's spec from the other finders. When the module is first looked up, the
    finder removes itself from ``sys.meta_path``.
    """

    def __init__(self, name: str, hook: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._hook = hook

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec, whose loader also calls the hook after the module's code.

        None for any other module, and if no other finder finds the module.
        """
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._hook(module)

        loader.exec_module = exec_module
        return spec
