"""Ask whether a device has finished its work, without waiting for it in Paddle's calls.

Paddle's profiler waits for all streams of the device when it is started and when it is stopped: in C++,
with Python's lock and without a limit. A copy of a checkpoint on a stream of its own may take minutes, and a collective whose peer
is dead never ends::

    current stream    step 7 |                        idle: the training needs nothing else
    another stream    copy ................... |
    Paddle's stop()          | waits ......... |      no other thread of Python runs, and no handler of a signal

So all streams are asked first:

- On a GPU, a thread calls the driver's ``cuCtxSynchronize``, which waits for the same streams.
- On other devices, an event is recorded on each stream that Python has made, and on the current one.
  Communication has its own streams; its tasks are asked. Unknown are the streams of what starts in C++: a
  plugin's own, and the gradients' all-reduce of ``paddle.DataParallel`` until the training waits for it.
"""

from __future__ import annotations

import gc
import logging
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import paddle

from ppprof.capture import process
from ppprof.capture.output import reason
from ppprof.capture.recording.patches import Patches
from ppprof.capture.signals import pass_interruption
from ppprof.capture.steps.device_timer import Context

log = logging.getLogger("ppprof")

_POLL_SECONDS = 0.005
_streams: weakref.WeakSet[Any] = weakref.WeakSet()
"""The streams of the training, as far as Python holds them."""
_patches = Patches()
_unreached: list[Any] = []
"""Events that the device may never reach: destroying such an event waits for the device."""


def watch_streams() -> None:
    """Know the streams that the training has made, and those that it makes from now on."""
    kind = getattr(paddle.device, "Stream", None)
    if kind is None or _patches.is_installed:
        return
    _streams.update(item for item in gc.get_objects() if issubclass(type(item), kind))
    _patches.install(kind, "__init__", _make)


def _make(init: Callable[..., None], stream: Any, /, *args: Any, **kwargs: Any) -> None:
    init(stream, *args, **kwargs)
    _streams.add(stream)


class DeviceWork:
    """The work of the device of the calling thread.

    Args:
        tasks: returns the communication of the device that the training has not waited for.
    """

    def __init__(self, tasks: Callable[[], Iterable[Any]] = tuple) -> None:
        self._tasks = tasks
        self._context = Context()
        self.is_known = self._context.is_cuda
        """Whether `is_done` asks all streams."""

    def is_done(self, patience_s: float) -> bool:
        """Return whether the device finishes the work that it has now within so many seconds."""
        if self._context.is_cuda:
            with suppress(RuntimeError):  # Python 3.12 starts no thread in a hook at its exit
                thread = process.start_thread(self._context.synchronize, "device")
                thread.join(patience_s)
                return not thread.is_alive()
        events = [*_marks(), *self._tasks()]
        waiting = [getattr(each, "query", None) or each.is_completed for each in events]
        deadline = time.monotonic() + patience_s
        while True:
            waiting = [is_over for is_over in waiting if not is_over()]
            if not waiting:
                return True
            if time.monotonic() >= deadline:
                _unreached.extend(events)
                return False
            time.sleep(_POLL_SECONDS)


def _marks() -> list[Any]:
    """Record an event on each stream that is known, after the work that the stream has now."""
    marks = []
    streams = list(_streams)
    with suppress(TypeError):  # of a CPU: targets were asked for that the training does not use
        streams.append(paddle.device.current_stream())
    for stream in streams:
        try:
            event = paddle.device.Event()
            event.record(stream)
            event.query()
        except Exception as error:  # the stream of another device
            pass_interruption(error)
            log.debug(f"a stream of {stream.device} is not asked: {reason(error)}")
        else:
            marks.append(event)
    return marks
