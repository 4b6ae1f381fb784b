"""Measure how long steps take on a device that works while the host runs ahead."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

from ppprof.capture import process
from ppprof.capture.output import reason
from ppprof.capture.steps.timer import StepCost, StepTime, StepTimer

log = logging.getLogger("ppprof")

_DRIVER = "libcuda.so.1"
_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED of cuda.h."""


class DeviceEvents:
    """Events of ``paddle.device`` on the current stream of the training's device.

    An event costs more than the question whether the stream is idle. So an idle device, which the
    training has just read a result from, gets no event. Every method may raise.
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
        self._context = Context()
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
        """Return an event after the work of the current stream; None if the stream is idle."""
        stream = self._device.current_stream()
        if self._asks_stream and stream.query():
            return None
        event = self._pool.pop() if self._pool else self._device.Event()
        event.record(stream)
        return event

    def is_over(self, event: Any) -> bool:
        """Return whether the device has reached the event; never waits."""
        return bool(event.query())

    def is_capturing(self) -> bool:
        """Return whether this thread captures a graph, which any other method would break."""
        return is_capturing()

    def reuse(self, event: Any) -> None:
        """Keep an event for a later `record`."""
        self._pool.append(event)

    def use_in_thread(self) -> None:
        """Make the CUDA context of the training current in the calling thread."""
        self._context.use()


def is_capturing() -> bool:
    """Return whether this thread captures a CUDA graph, or one of a plugin's device.

    The thread must not ask about a stream or an event meanwhile: that breaks the capture.
    """
    from paddle.base import core

    return bool(core.is_cuda_graph_capturing())


class Context:
    """The CUDA context of the thread that makes it; nothing without CUDA's driver.

    A thread without a context would make one on device 0, which takes 0.5 GB there. And a query of
    an event would invalidate a CUDA graph that another thread captures in the mode "global".
    """

    def __init__(self) -> None:
        self._context = ctypes.c_void_p()
        self._driver: Any = None
        with suppress(OSError, AttributeError):
            driver = ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            if driver.cuCtxGetCurrent(ctypes.byref(self._context)) == 0 and self._context:
                self._driver = driver

    @property
    def is_cuda(self) -> bool:
        """Whether there is a context."""
        return self._driver is not None

    def use(self) -> None:
        """Make the context current in the calling thread."""
        if self._driver is not None:
            with suppress(AttributeError):
                self._driver.cuCtxSetCurrent(self._context)
                mode = ctypes.c_int(_RELAXED)
                self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def synchronize(self) -> None:
        """Wait for all work of the context, without Python's lock."""
        self.use()
        self._driver.cuCtxSynchronize()


def holds_cuda() -> bool:
    """Return whether this process holds a context on any GPU: a first one would take 0.5 GB there."""
    flags, is_active, device = ctypes.c_uint(), ctypes.c_int(), ctypes.c_int()
    num = ctypes.c_int()
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        if driver.cuDeviceGetCount(ctypes.byref(num)):  # also if no call has initialised the driver
            return False
        for number in range(num.value):
            driver.cuDeviceGet(ctypes.byref(device), number)
            state = ctypes.byref(flags), ctypes.byref(is_active)
            if not driver.cuDevicePrimaryCtxGetState(device, *state) and is_active.value:
                return True
    return False


MOST_PENDING = 1024
"""Most events that the device has not reached. No queue of a device is that long."""
PATIENCE_S = 5.0
"""How long `DeviceStepTimer.finish` waits for the device; twice the longest of the latest steps if
that is longer."""

_LEAST_POLL_S, _MOST_POLL_S = 0.001, 0.25
_NUM_KEPT = 16
"""Number of latest steps that the next queries are planned by."""
_LATE_NS = 10_000_000
"""Longest time between two queries after which the end of a step is exact enough in a stall."""
_unreached: list[Any] = []
"""Events that the device may never reach: destroying such an event waits for the device."""
_ON_DEVICE, _LATE, _ON_HOST = (True, False), (True, True), (False, True)
"""Values of ``device_timed`` and ``excluded``."""


class _Kind(Enum):
    START = "start"
    STEP = "step"
    PAUSE = "pause"
    RESUME = "resume"


class _Mark:
    """A point of the training between two pieces of the device's work."""

    __slots__ = ("done_ns", "event", "host_ns", "is_captured", "kind", "stalls")

    def __init__(
        self, kind: _Kind, host_ns: int, event: Any, *, stalls: bool, is_captured: bool = False
    ) -> None:
        self.kind = kind
        self.host_ns = host_ns
        self.event = event
        """None if the device was idle, or has reached the event since, and in a capture."""
        self.done_ns = host_ns if event is None and not is_captured else None
        """When the device reached it; None if that is unknown."""
        self.is_captured = is_captured
        """Whether it is in a capture, which has no time of the device."""
        self.stalls = stalls
        """Whether the profiler stalls the training while the event may be reached."""


class DeviceStepTimer(StepTimer):
    """Splits time into steps; a step ends when the host has ended it and the device has done its work.

    ::

        host     |1  |2  |3  |
        device    111111 222222 333333
        steps    |1     |2     |3     |       as `ppprof.analysis.ranks.device_steps` cuts them

        host     |1  |2  |e e e e e|3  |      e: an evaluation in `paused`
        device    111111 222222 e e e 333333
        steps    |1     |2     |      |3     |

    Each mark of the host (the end of a step, of a pause, the start of a pause) records an event on
    the device's stream. One thread queries the oldest event that the device has not reached, and
    never waits for the device. The time of a mark is the later of the host's and the device's, and
    never earlier than that of the mark before it. In the second picture, the pause begins when the
    device has done step 2, and ends when it has done the evaluation; so the pause shortens no step.

    The cost of a step is known only when the device has done it: `step` returns None as
    ``batch_cost_ns``, and `take` returns the cost later, in order. The reader cost is the host's.

    The thread sleeps while the device is idle, and until half of the time is over that the next step
    takes at least. From then on, it halves the rest each time, down to 1 ms; and at once when `finish`
    waits for it. If it finds several
    steps done at once, because another thread held Python's lock meanwhile, these steps divide the
    time since the last query equally.

    A step that ends while the training captures a graph ends when the host ends it, and is excluded.

    If an event fails, or if `MOST_PENDING` events are not reached, all later steps end when the host
    ends them, as `StepTimer` measures.

    Args:
        watches: whether a thread queries the events. If not, only calls of this class query them.
    """

    def __init__(
        self,
        events: DeviceEvents,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
        *,
        watches: bool = True,
    ) -> None:
        super().__init__(clock)
        self._events = events
        self._sleep = sleep
        self._watches = watches
        self._pid = os.getpid()
        self._fails = False
        self._lock = threading.RLock()  # of marks that leave the queue
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._hurries = threading.Event()
        self._watcher: threading.Thread | None = None
        self._pending: deque[_Mark] = deque()
        self._known: deque[StepCost] = deque()
        self._latest: deque[int] = deque(maxlen=_NUM_KEPT)
        self._polled = clock()
        """A time at which the oldest event was not reached: the last query began then."""
        self._last = clock()
        """Time of the latest mark whose time is known."""
        self._stalls = False
        self._done = _Splitter(clock())

    def start(self) -> None:
        """Begin step 0: when the device has done its work so far."""
        super().start()
        self._mark(_Kind.START)

    def step(self) -> StepTime:
        """End the current step on the host, begin the next one, and return the step's reader cost.

        The batch cost becomes known by `take`; after a failure the host's is returned.
        """
        host = super().step()
        if not self._fails:
            self._mark(_Kind.STEP)
            return host._replace(batch_cost_ns=None)
        self._drop_pending()
        if not self._known:
            return host._replace(device_timed=False)
        # The costs of earlier steps come first.
        self._known.append(
            StepCost(host.batch_cost_ns or 0, device_timed=False, paused_ns=host.paused_ns)
        )
        return host._replace(batch_cost_ns=None)

    @contextmanager
    def paused(self, what: str = "") -> Iterator[None]:
        """Return a context manager whose time, on the host and on the device, counts in no step."""
        is_outermost = not self._pauses
        if is_outermost:
            self._mark(_Kind.PAUSE)
        try:
            with super().paused(what):
                yield
        finally:
            if is_outermost:
                self._mark(_Kind.RESUME)

    def take(self) -> Iterator[StepCost]:
        """Yield the costs of the steps that have become known, in the order of the steps."""
        if self._fails:
            self._drop_pending()
        while self._known:
            yield self._known.popleft()

    def stall(self, begins: bool) -> None:
        """Note that a stall of the profiler begins or ends, in which Python's lock may be held.

        Steps whose end is found late because of it are excluded.
        """
        self._stalls = begins
        self.poll()
        for mark in tuple(self._pending):
            mark.stalls = begins

    def finish(self, *, waits: bool = True) -> None:
        """Make the costs of all steps known: `take` returns them.

        Steps that the device has not done in time end when the host ended them, and are excluded.

        Args:
            waits: whether to wait for the device, at most `PATIENCE_S`. If not, the device is not
                even asked.
        """
        waits = waits and not self._events.is_capturing()
        patience_ns = max(PATIENCE_S * 1e9, 2 * max(self._latest, default=0))
        deadline = self._clock() + (patience_ns if waits else 0)
        self._hurries.set()
        while waits and self._pending and not self._fails and self._clock() < deadline:
            if self._watcher is None or not self._watcher.is_alive():
                self.poll()  # otherwise its thread does, which traces leave out
            if self._pending:
                self._sleep(_LEAST_POLL_S)
        self._hurries.clear()
        self._drop_pending()

    def close(self) -> None:
        """End the thread, and remove this timer from the hooks of Paddle's benchmark."""
        super().close()
        self._fails = True
        self._closed.set()
        self._hurries.set()
        self._wake.set()
        if self._watcher is not None:
            self._watcher.join(1)

    def _mark(self, kind: _Kind) -> None:
        """Record an event after the device's work so far. Never raises."""
        if self._fails or os.getpid() != self._pid:  # a forked child must not use the device
            return
        now = self._clock()
        try:
            is_captured = self._events.is_capturing()
            event = None if is_captured else self._events.record()
            mark = _Mark(kind, now, event, stalls=self._stalls, is_captured=is_captured)
            self._pending.append(mark)
        except Exception as error:
            self._pending.append(_Mark(kind, now, None, stalls=False))
            self._give_up(f"an event failed: {reason(error)}")
            return
        if event is None:
            self.poll()
        elif len(self._pending) > MOST_PENDING:
            problem = f"the device has not finished {MOST_PENDING} steps"
            self._give_up(problem)
        elif self._watches and not self._wake.is_set():
            if self._watcher is None:
                self._watcher = process.start_thread(self._watch, "steps")
            self._wake.set()

    def _watch(self) -> None:
        """Query the oldest event until the timer closes."""
        try:
            self._events.use_in_thread()
            while not self._closed.is_set():
                self._wake.clear()
                if not self._pending:
                    self._wake.wait()
                self._wake.set()
                if self._hurries.is_set():
                    self._closed.wait(_LEAST_POLL_S)
                else:
                    self._hurries.wait(self._pause_s())
                self.poll()
        except Exception as error:
            self._give_up(f"an event failed: {reason(error)}")

    def _pause_s(self) -> float:
        """Return the time until the next query: half of the time until the oldest event is expected.

        An event is expected when its step is as long as the shortest of the latest steps. After
        that, the time between two queries is a 64th of the delay, or 1 ms.
        """
        expected_ns = self._last + min(tuple(self._latest), default=0)
        with suppress(IndexError):  # another thread may have emptied the queue
            expected_ns = max(expected_ns, self._pending[0].host_ns)
        rest_ns = expected_ns - self._clock()
        pause_s = (rest_ns / 2 if rest_ns > 0 else -rest_ns / 64) / 1e9
        return min(max(pause_s, _LEAST_POLL_S), _MOST_POLL_S)

    def poll(self) -> None:
        """Query events, oldest first, and compute the costs of the steps that are over."""
        with self._lock:
            if self._fails or self._events.is_capturing():
                return
            before = self._clock()
            found: list[_Mark] = []
            try:
                while len(found) < len(self._pending):
                    mark = self._pending[len(found)]
                    if mark.event is not None:
                        if not self._events.is_over(mark.event):
                            break
                        self._events.reuse(mark.event)
                        mark.event = None
                    found.append(mark)
            except Exception as error:
                self._give_up(f"an event failed: {reason(error)}")
                return
            if found:
                self._set_times(found, self._clock())
            self._polled = before

    def _set_times(self, found: list[_Mark], now: int) -> None:
        """Compute the times of marks, the oldest ones, which the device has reached by ``now``."""
        if len(found) == 1 and found[0].done_ns is not None:  # of a training that reads each result
            mark = self._pending.popleft()
            self._last = max(mark.done_ns or 0, self._last)
            self._add(mark.kind, self._last, _ON_DEVICE)
            return
        while found:
            # Marks up to one at which the device was idle, so that its time is known.
            count = next((i + 1 for i, mark in enumerate(found) if mark.done_ns is not None), None)
            group, found = found[:count], found[count or len(found) :]
            upper = group[-1].done_ns or now
            lower = min(max(self._last, self._polled, group[0].host_ns), upper)
            works = [mark.kind is not _Kind.PAUSE and not mark.is_captured for mark in group]
            steps, number = sum(works), 0
            for mark, is_work in zip(group, works):
                number += is_work
                share = number / steps if steps else 1.0
                done = upper if number == steps else lower + round((upper - lower) * share)
                if mark.is_captured:
                    done = mark.host_ns
                is_late = mark.stalls and mark.done_ns is None and upper - lower > _LATE_NS
                self._pending.popleft()
                self._last = max(done, mark.host_ns, self._last)
                cost = _ON_HOST if mark.is_captured else _LATE if is_late else _ON_DEVICE
                self._add(mark.kind, self._last, cost)

    def _add(self, kind: _Kind, now: int, cost: tuple[bool, bool]) -> None:
        if kind is _Kind.START:
            self._done = _Splitter(now)
        elif kind is _Kind.PAUSE:
            self._done.pause(now)
        elif kind is _Kind.RESUME:
            self._done.resume(now)
        else:
            batch_cost_ns, paused_ns = self._done.step(now)
            if cost == _ON_DEVICE:  # the others say nothing of how long the device needs for a step
                self._latest.append(batch_cost_ns)
            self._known.append(StepCost(batch_cost_ns, *cost, paused_ns))

    def _drop_pending(self) -> None:
        """Give marks that the device has not reached the host's time, and exclude their steps."""
        with self._lock:
            while self._pending:
                mark = self._pending.popleft()
                _unreached.append(mark.event)
                self._last = max(self._last, mark.host_ns)
                self._add(mark.kind, self._last, _ON_HOST)

    def _give_up(self, why: str) -> None:
        """Use the host's clock from now on."""
        with self._lock:
            if not self._fails:
                log.warning(
                    f"{why}; from now on, step times are those of the host, which only launches work"
                )
                self._drop_pending()
                self._fails = True


class _Splitter:
    """Splits known times into steps, without pauses."""

    def __init__(self, now: int) -> None:
        self._start = now
        self._paused_ns = self._paused_before_ns = 0
        self._pause_start: int | None = None

    def pause(self, now: int) -> None:
        self._pause_start = now

    def resume(self, now: int) -> None:
        if self._pause_start is not None:
            self._paused_ns += now - self._pause_start
        self._pause_start = None

    def step(self, now: int) -> tuple[int, int]:
        """Return the time of the step that ends, and the time in pauses since the step before."""
        now = (now if self._pause_start is None else self._pause_start) - self._paused_ns
        cost, self._start = now - self._start, now
        paused_ns = self._paused_ns - self._paused_before_ns
        self._paused_before_ns = self._paused_ns
        return cost, paused_ns
