"""Paddle's one C++ profiler of this process: who holds it, and how it is passed to the training.

Paddle allows one profiler at a time. The constructor of ``paddle.profiler.Profiler`` creates it, even
with ``timer_only``, and only the end of that object releases it; ``stop()`` does not. A second
constructor gets None, and its ``start()`` raises ``AttributeError``::

    window       | prepare ........ stop |          | skipped |         | prepare ...
    training                   Profiler(...): our window is saved, then theirs is created

So this process holds the C++ profiler for a window only. Meanwhile the function that creates it is
wrapped: it first preempts the window, which is saved and releases the C++ profiler.
Windows are skipped while the training holds it.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import paddle
from paddle.base import core

from ppprof.capture.output import reason
from ppprof.capture.recording.patches import Patches
from ppprof.capture.signals import pass_interruption

log = logging.getLogger("ppprof")

_mutex = threading.RLock()
"""Guards the variables below; no other lock is taken while it is held."""
_preempt: Callable[[], None] | None = None
"""The argument of `acquire`; None while this process does not hold the profiler."""
_holder_pid = 0
_num_arriving = 0
"""Number of threads that create a profiler of the training now."""
_patches = Patches()
_constructing = threading.local()


def acquire(trace_switch: int, custom_devices: list[str], preempt: Callable[[], None]) -> Any:
    """Create Paddle's C++ profiler and return it; return None if another one exists.

    The caller holds it until it drops the object and then calls `release`.

    Args:
        trace_switch: the sum of ``TRACE_SWITCH`` of the targets to record.
        custom_devices: types of custom devices to record.
        preempt: saves what is recorded, and calls `release`. It is called if the training creates its own
            profiler before, in the thread that does so.
    """
    global _preempt, _holder_pid
    options = core.ProfilerOptions()
    options.trace_switch = trace_switch
    if _preempt is not None and _holder_pid != os.getpid():
        _call(_preempt)  # this process was forked in a window of its parent
    with _mutex:
        if _num_arriving or _preempt is not None:
            return None
        create = core._Profiler.create
        # First the wrapper: another thread may be in the constructor of a profiler already.
        _patches.install(core._Profiler, "create", lambda _, *args: _create_theirs(create, *args))
        _patches.install(paddle.profiler.Profiler, "__init__", _construct_theirs)
        profiler = None
        try:
            profiler = create(options, custom_devices)
            if profiler is None and _release_timers():
                profiler = create(options, custom_devices)
        finally:
            if profiler is None:
                _patches.uninstall()
            else:
                _preempt, _holder_pid = preempt, os.getpid()
        return profiler


def release(preempt: Callable[[], None]) -> None:
    """End the hold of `acquire`: the caller has dropped Paddle's C++ profiler."""
    global _preempt
    with _mutex:
        if _preempt == preempt:
            _preempt = None
            _patches.uninstall()


def is_free() -> bool:
    """Return whether no profiler exists in this process, neither ours nor the training's."""
    with _mutex:
        return _preempt is None and core._Profiler.create(core.ProfilerOptions(), []) is not None


def _construct_theirs(
    init: Callable[..., None], profiler: Any, /, *args: Any, **kwargs: Any
) -> None:
    """Construct a ``paddle.profiler.Profiler`` of the training while this process holds the one."""
    # With `timer_only` it never uses the C++ profiler, and works with None.
    _constructing.is_timer = kwargs.get("timer_only", False)
    try:
        init(profiler, *args, **kwargs)
    finally:
        _constructing.is_timer = False


def _create_theirs(create: Callable[..., Any], *args: Any) -> Any:
    """Create the training's C++ profiler, after this process has released its own."""
    global _num_arriving
    if getattr(_constructing, "is_timer", False):
        return create(*args)
    with _mutex:
        _num_arriving += 1  # no other window may begin before the training has its profiler
        preempt = _preempt
    try:
        if preempt is not None:
            _call(preempt)
        return create(*args)
    finally:
        with _mutex:
            _num_arriving -= 1


def _call(preempt: Callable[[], None]) -> None:
    """Preempt the window; a failure is logged, since it is not the training's."""
    try:
        preempt()
    except Exception as error:
        pass_interruption(error)
        log.warning(f"the open window is lost: {reason(error)}")


def _release_timers() -> bool:
    """Release the C++ profiler of a ``timer_only`` Profiler, which never uses it; return whether there was one."""
    kind = paddle.profiler.Profiler
    found = False
    for item in gc.get_objects():
        if not issubclass(type(item), kind) or not vars(item).get("timer_only"):
            continue
        if vars(item).get("profiler") is not None:
            item.profiler = None
            found = True
    return found


def _after_fork_in_child() -> None:
    """Forget the threads of the parent, which do not exist in the child."""
    global _mutex, _num_arriving
    _mutex, _num_arriving = threading.RLock(), 0


os.register_at_fork(after_in_child=_after_fork_in_child)
