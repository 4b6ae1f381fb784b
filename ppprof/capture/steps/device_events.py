"""Events on the stream of the training's device: when has the device done its work?"""

from __future__ import annotations

import ctypes
import logging
import os
from contextlib import suppress
from typing import Any, Protocol

from ppprof.capture.output import reason

log = logging.getLogger("ppprof")

_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED of cuda.h."""


class Events(Protocol):
    """Events that `ppprof.capture.steps.device_timer.DeviceStepTimer` uses; every method may raise."""

    def record(self) -> Any:
        """Return an event behind the work that the device has now; None if it has no work."""

    def is_over(self, event: Any) -> bool:
        """Return whether the device has reached the event; never waits."""

    def reuse(self, event: Any) -> None:
        """Take back an event that is over, to record it again."""

    def use_in_thread(self) -> None:
        """Prepare the calling thread for `is_over`."""


class DeviceEvents:
    """Events of ``paddle.device`` on the current stream of the training's device.

    An event costs more than the question whether the stream is idle. So an idle device, which the
    training has just read a result from, gets no event.
    """

    def __init__(self) -> None:
        import paddle

        self._device = paddle.device
        # Raises here if this version of Paddle has no events for the device.
        self._pool: list[Any] = [paddle.device.Event()]
        self._asks_stream = False
        stream = paddle.device.current_stream()
        with suppress(Exception):  # a plugin may lack the query of a stream
            stream.query()
            self._asks_stream = True
        self._context = _Context()
        event = self._pool.pop()
        event.record(stream)
        event.query()
        self._pool.append(event)

    @classmethod
    def here(cls) -> DeviceEvents | None:
        """Return events for the device that Paddle computes on.

        None on a CPU, and where Paddle has no events for the device: 2.5 and 2.6 have them for GPUs
        and custom devices.
        """
        import paddle

        device = str(paddle.device.get_device())
        if device.startswith("cpu"):
            return None
        try:
            return cls()
        except Exception as error:  # an unknown device or version of Paddle
            log.debug(f"{device}: no events ({reason(error)}): steps end when the host ends them")
            return None

    def record(self) -> Any:
        """Return an event behind the work of the current stream; None if the stream is idle."""
        stream = self._device.current_stream()
        if self._asks_stream and stream.query():
            return None
        event = self._pool.pop() if self._pool else self._device.Event()
        event.record(stream)
        return event

    def is_over(self, event: Any) -> bool:
        """Return whether the device has reached the event."""
        return bool(event.query())

    def reuse(self, event: Any) -> None:
        """Keep an event for a later `record`."""
        self._pool.append(event)

    def use_in_thread(self) -> None:
        """Make the CUDA context of the training current in the calling thread."""
        self._context.use()


class _Context:
    """The CUDA context of the thread that makes it; nothing without CUDA's driver.

    A thread without a context would make one on device 0, which takes 0.5 GB there. And a query of
    an event would invalidate a CUDA graph that another thread captures in the mode "global".
    """

    def __init__(self) -> None:
        self._context = ctypes.c_void_p()
        self._driver: Any = None
        with suppress(OSError, AttributeError):
            driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            if driver.cuCtxGetCurrent(ctypes.byref(self._context)) == 0 and self._context:
                self._driver = driver

    def use(self) -> None:
        if self._driver is not None:
            with suppress(AttributeError):
                self._driver.cuCtxSetCurrent(self._context)
                mode = ctypes.c_int(_RELAXED)
                self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
