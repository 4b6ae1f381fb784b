"""Drive Paddle's C++ profiler by the same calls as ``paddle.profiler.Profiler``.

``paddle.profiler.Profiler`` itself is not used, for four reasons. Its ``start()`` turns the
recorders of ``record_shapes`` and ``profile_memory`` on, even outside windows: 13 MB a step that are
never freed. Its ``stop()`` prints its own Perf Summary. It slows every ``Layer`` down between
windows. And it keeps Paddle's only C++ profiler as long as it exists (`instance`). Within a window it
makes a dozen calls that have not changed from Paddle 2.5 to 3.3. This module makes these calls, and
with `instance` it holds every private name of Paddle's profiler that they need. A test compares the
resulting trace with a trace of ``paddle.profiler.Profiler``.

Paddle's recorder of operator inputs is never turned on; see `operator_calls` instead. Measured
with Paddle 2.6.2 and 3.3.1 on a CPU, it adds no shape to a trace of a dynamic graph, and all FLOPs
are 0, also under ``to_static`` and an ``Executor``. It adds shapes in one case: with 2.6.2 and a
``to_static`` of a whole graph, to the ``infer_shape`` of backward operators. But it takes 42 KiB in
each step of two small layers, 240 KiB in that one case, which are never freed. And without PIR (always
with 2.6.2), an ``Executor`` that is fed raises InvalidArgumentError.
"""

from __future__ import annotations

import errno
import faulthandler
import logging
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paddle
from paddle.base import core
from paddle.profiler import utils as paddle_profiler

from ppprof.capture.output import text_of
from ppprof.capture.probe_child import TRACE_SWITCH
from ppprof.capture.process import above_standard_streams
from ppprof.capture.recording import cupti, instance
from ppprof.capture.recording.device_work import DeviceWork, watch_streams
from ppprof.capture.recording.record_events import RecordEvents
from ppprof.capture.recording.targets import Targets
from ppprof.capture.signals import default_actions
from ppprof.capture.steps.device_timer import is_capturing
from ppprof.rundir import (
    ALLOCATIONS_MARKER,
    CLOCK_MARKER,
    DEVICE_CLOCK_MARKER,
    INCOMPLETE_MARKER,
)
from ppprof.rundir.run_file import RunFile
from ppprof.units import format_bytes

if TYPE_CHECKING:
    from ppprof.config import ProfilerConfig

log = logging.getLogger("ppprof")

_LEAST_JUMP_NS = 10_000_000
"""A smaller difference between the two clocks may be an error of its measurement."""
LEAST_PATIENCE_SECONDS, LAST_PATIENCE_SECONDS = 30.0, 10.0
"""How long a device may take to finish its work when a window ends, or twice the window's length if that is
longer; and when the training ends by an exception or a signal."""
_STOP_SECONDS = 60
"""How long Paddle's profiler may then wait for streams that were not asked."""
_abandoned: list[Any] = []
"""Profilers of devices that do not answer: destroying one waits for the device."""
_CLOCK_ATTEMPTS, _EXACT_NS = 4, 20_000
_ALLOCATION = b"Place("
"""Part of each allocation in a raw capture, and of nothing else: the name of its place."""
_BYTES_PER_ALLOCATION, _MOST_ALLOCATION_BYTES = 144, 256_000_000
"""Paddle's profiler never frees an allocation that it has recorded: the destructor of its tree of events
deletes all nodes but those. Measured with 3.3.1."""
_TAKEN = "the process has opened a paddle.profiler.Profiler meanwhile"
_GUEST_SECONDS, _GUEST_WAIT_SECONDS = 5.0, 0.01
"""Longest time to wait for guests to close, and the time between two attempts."""


class StuckDeviceError(RuntimeError):
    """A device does not finish its work, so Paddle's profiler would wait for it without end."""


class Recorder:
    """Records windows, one after another.

    For each window, call `prepare` and `start`, then `begin_step` and `end_step` for each step, then
    `take` and `write`. After the last window, call `close`.

    Paddle's C++ profiler exists from `prepare` to `stop`. On a CPU, a cycle of creating, preparing,
    starting, stopping and releasing an empty one takes 50 us and leaves no memory in use. On another
    device, the first `prepare` waits for the probe of the device's profiler.

    Args:
        prints: whether this rank prints tables; if so, it reports what they lack, and events that it
            leaves out.
        targets: what to record; None for ``config.targets`` in a window that cannot wait for a probe.
        is_guest: whether the recorder works beside a training of this process that did not ask for
            it, for a remote call. It then changes no function of Paddle, so that the events of
            layers, backward and optimizers are missing, and another recorder waits 5 s until it closes.
        tasks: returns the communication of the device that the training has not waited for.
    """

    _guest: Recorder | None = None
    """The guest that holds Paddle's profiler now."""
    _allocation_bytes = 0
    """What this process has written of allocations, as Paddle keeps them in memory."""

    def __init__(
        self,
        config: ProfilerConfig,
        prints: bool = True,
        targets: Targets | None = None,
        *,
        is_guest: bool = False,
        tasks: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        self._is_guest = is_guest
        self._memory = config.profile_memory
        self._prints = prints
        self._marks_allocations = False
        """Whether the next step that ends gets a marker: allocations are no longer recorded."""
        self._has_ended_allocations = False
        self._synchronizes = config.sync_steps and not is_guest
        if self._synchronizes and paddle.device.get_device().startswith("cpu"):
            log.warning("Profiler.sync_steps has no effect: Paddle computes on the CPU")
            self._synchronizes = False
        if config.with_flops and prints and not config.record_shapes:
            log.warning("Profiler.with_flops: the table has no FLOPs, since record_shapes is False")
        self._step: Any = None
        self._clock_offset_ns = 0
        self._is_prepared = self._is_recording = False
        self._events = RecordEvents(config.emit_nvtx, prints) if not is_guest else None
        if not is_guest:
            # At once: a function that calls step() from within an optimizer wraps this wrapper, so
            # that the optimizer's event ends ahead of the step's. Paddle cannot save them crossed.
            paddle_profiler.wrap_optimizers()
        self._targets = targets or Targets(config.targets)
        if self._targets.waits:
            watch_streams()
        self._tasks = tasks
        self._work: DeviceWork | None = None
        self._started = time.monotonic()
        self._cause = ""
        """The exception that ends the training, as text: itself would keep the training's objects."""
        self._trace_switch = 0
        self._profiler: Any = None
        self._pid = os.getpid()
        self._lock = threading.RLock()  # between a guest's thread and `discard`
        self._thread = threading.get_ident()
        self._preempt: Callable[[], None] = self._discard_after_a_while
        self.wait_seconds = 0.0
        """Processor time for which this has waited for the device's work so far."""

    def _create(self, *, continues: bool) -> bool:
        """Create Paddle's profiler for the targets that can be recorded; return whether that is possible.

        First wait for a guest to close; a guest that does not close in time loses its window.
        """
        self._trace_switch = sum(
            TRACE_SWITCH[target] for target in self._targets.decide(continues=continues)
        )
        has_custom = self._trace_switch & TRACE_SWITCH["custom_device"]
        devices = paddle.device.get_all_custom_device_type() if has_custom else []
        self._profiler = instance.acquire(self._trace_switch, devices, self._give_up)
        guest = Recorder._guest
        if self._profiler is None and guest is not None and not self._is_guest:
            guest._discard_after_a_while()
            self._profiler = instance.acquire(self._trace_switch, devices, self._give_up)
        if self._is_guest and self._profiler is not None:
            Recorder._guest = self
        return self._profiler is not None

    def _give_up(self) -> None:
        if os.getpid() == self._pid:
            self._preempt()
        else:  # a forked child: the window is the parent's, which saves it
            self._lock = threading.RLock()  # another thread of the parent may hold the other one
            self.discard()

    @property
    def waits(self) -> bool:
        """Whether windows wait for a device when they are started and stopped."""
        return self._targets.waits

    @property
    def probe_seconds_left(self) -> float:
        """The time for which `prepare` is likely to wait for the probe of the device's profiler."""
        return self._targets.seconds_left

    def prepare(
        self, preempt: Callable[[], None] | None = None, *, continues: bool = False
    ) -> bool:
        """Set up the tracers. Call it before the step that precedes a window, if there is one.

        On a device, the first call waits for the probe of the device's profiler.

        Args:
            continues: whether it is for a further segment of a window.
            preempt: called when the training creates its own profiler, in the thread that does so.
                It must release Paddle's profiler, by `take` or `discard`. None drops the window, after
                a while.

        Returns:
            False if another profiler is open in this process: Paddle allows only one.
        """
        with self._lock:
            self._preempt = preempt or self._discard_after_a_while
            if not self._create(continues=continues):
                return False
            self._profiler.prepare()
            self._is_prepared = True
            return True

    def start(self) -> None:
        """Open a window: events are recorded from now on. Call `prepare` first.

        Raises:
            RuntimeError: the training has taken Paddle's profiler since.
            StuckDeviceError: the device does not answer.
        """
        with self._lock:
            if self._profiler is None:
                raise RuntimeError(_TAKEN)
            self._started = time.monotonic()
            self._marks_allocations = self._has_ended_allocations
            if self._targets.waits:
                self._work = DeviceWork(self._tasks)
            with self._waiting_for_device():
                if self._memory:
                    core.enable_memory_recorder()
                if self._events is not None:
                    self._events.start()
                self._is_prepared, self._is_recording = False, True
                self._profiler.start()
                least, most = self._targets.ahead_ns or (0, 0)
                if least > 0 or most < 0:
                    open_span(f"{DEVICE_CLOCK_MARKER}{least} to {most} ns", "UserDefined").end()

    def begin_step(self, step: int) -> None:
        """Open the span of a step, such as ``ProfileStep#5``, in an open window."""
        self._step = core._RecordEvent(f"ProfileStep#{step}", core.TracerEventType.ProfileStep)
        self._clock_offset_ns = _clock_offset_ns()

    def end_step(self, *, is_complete: bool = True) -> None:
        """Close the span of the step; do nothing without an open span.

        Args:
            is_complete: whether the training has ended the step by ``step()``. If not, the reader
                of the raw capture renames the span; see `ppprof.trace.steps`. With
                ``Profiler.sync_steps``, a complete step first waits for the device.
        """
        if self._step is not None:
            if self._events is not None:
                self._events.leave_open_ones(reports=is_complete)
            if is_complete and self._synchronizes and not is_capturing():
                with self._targets.current():
                    paddle.device.synchronize()
            self._mark_clock_jump()
            if self._marks_allocations:
                self._marks_allocations = False
                open_span(ALLOCATIONS_MARKER, "UserDefined").end()
            if not is_complete:
                open_span(INCOMPLETE_MARKER, "UserDefined").end()
            self._step.end()
            self._step = None

    def _mark_clock_jump(self) -> None:
        """Record a marker if the wall clock was set since the step began."""
        jump_ns = _clock_offset_ns() - self._clock_offset_ns
        if abs(jump_ns) >= _LEAST_JUMP_NS:
            open_span(f"{CLOCK_MARKER}{jump_ns} ns", "UserDefined").end()

    def take(self, brief: bool = False) -> Any:
        """Close the window and return its events, as Paddle keeps them in memory, for `write`.

        Args:
            brief: whether to keep Paddle's profiler until `close`: the process is about to end.

        Raises:
            RuntimeError: the training has taken Paddle's profiler since.
            StuckDeviceError: the device does not answer; the window is lost.
        """
        with self._lock:
            if self._profiler is None:
                raise RuntimeError(_TAKEN)
            self._silence()
            self._is_recording = False
            result = self._stop(brief=brief)
            # When the process ends by a signal, the training may be in an operator meanwhile.
            if not brief:
                self._release()
        return result

    def write(self, result: Any, raw: RunFile, brief: bool = False) -> None:
        """Write the raw capture of a window. The file is written whole or not at all.

        Args:
            result: what `take` has returned for the window.
            raw: the raw capture.
            brief: whether the process or the caller cannot wait: skip the check for a full disk.

        Raises:
            OSError: the directory is gone, read-only or full; the window is lost.
        """
        with above_standard_streams(), raw.writing() as hidden:
            result.save(str(hidden), "pb")
            # Paddle does not report a full disk or a limit, which truncate the file.
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            if limit != resource.RLIM_INFINITY and hidden.path.stat().st_size >= limit:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(raw))
            if self._memory and not brief:
                self._count_allocations(hidden.path)
            if not brief:
                _check_space(hidden.path.parent)

    def _count_allocations(self, raw: Path) -> None:
        num = raw.read_bytes().count(_ALLOCATION)
        Recorder._allocation_bytes += num * _BYTES_PER_ALLOCATION
        if Recorder._allocation_bytes > _MOST_ALLOCATION_BYTES:
            self.end_allocations(
                f"Paddle keeps each one until the process ends, "
                f"{format_bytes(Recorder._allocation_bytes)} by now"
            )

    def end_allocations(self, why: str) -> bool:
        """Record no allocation from now on, and log the reason. Any thread may call it.

        Returns:
            Whether allocations were recorded.
        """
        if not self._memory:
            return False
        self._memory = False
        core.disable_memory_recorder()
        self._has_ended_allocations = self._marks_allocations = True
        if self._prints:
            log.warning(
                f"allocations are no longer recorded: {why}; to leave them out from the start: "
                "Profiler.profile_memory: False"
            )
        return True

    def discard(self) -> None:
        """Drop an open or prepared window, and release Paddle's profiler; do nothing without one."""
        with self._lock:
            try:
                if self._profiler is not None:
                    self.end_step(is_complete=False)
                    self._silence()
                    self._tear_down()
            finally:
                self._is_prepared = self._is_recording = False
                self._release()

    def _tear_down(self) -> None:
        if os.getpid() != self._pid and self._targets.waits:
            _abandoned.append(self._profiler)  # a forked child cannot use the device
            return
        if self._is_prepared or self._is_recording:
            with suppress(StuckDeviceError):
                self._stop()

    def _discard_after_a_while(self) -> None:
        """Drop the window; first wait for its own thread, which may be in an operator, to close it."""
        deadline = time.monotonic() + _GUEST_SECONDS
        while threading.get_ident() != self._thread and time.monotonic() < deadline:
            if self._profiler is None:
                return
            time.sleep(_GUEST_WAIT_SECONDS)
        self.discard()

    def close(self) -> None:
        """Drop an open window, and restore the functions of Paddle."""
        try:
            self.discard()
        finally:
            if self._events is not None:
                self._events.close()

    def _release(self) -> None:
        if Recorder._guest is self:
            Recorder._guest = None
        self._profiler = None
        if self._events is not None:
            self._events.left.clear()
        instance.release(self._give_up)

    def ends_by(self, error: BaseException) -> None:
        """Note that an exception ends the training: it must not wait for the device for long."""
        self._cause = f"{type(error).__name__}: {text_of(error)}"

    def _stop(self, *, brief: bool = False) -> Any:
        """Stop Paddle's profiler and return its result.

        Raises:
            StuckDeviceError: the device does not answer.
        """
        with self._waiting_for_device(brief=brief):
            if self._is_prepared:  # only a window tears prepared tracers down, here an empty one
                self._profiler.start()
            result = self._profiler.stop()
            if self._targets.is_gpu and not brief:
                cupti.detach_on_request()
            return result

    @contextmanager
    def _waiting_for_device(self, *, brief: bool = False) -> Iterator[None]:
        """Enter once the device has finished its work: Paddle's ``start()`` and ``stop()`` wait for it.

        They do so in C++ and with Python's lock. If the device does not answer, leave Paddle's profiler as it
        is. If it never answers inside all the same, only the default action of SIGTERM ends the process.

        Raises:
            StuckDeviceError: the device does not answer.
        """
        if not self._targets.waits:
            yield
            return
        if is_capturing():
            _abandoned.append(self._profiler)
            self._release()
            raise StuckDeviceError(
                "the training captures a graph, and Paddle's profiler would break the capture: it waits for "
                "the device; call step() outside of captures"
            )
        begin = time.thread_time()
        with self._targets.current(), default_actions():
            work = self._work or DeviceWork(self._tasks)
            patience_s = self._patience_s(brief)
            if not work.is_done(patience_s):
                _abandoned.append(self._profiler)
                self._release()
                raise StuckDeviceError(
                    f"the device has not finished its work in {patience_s:.0f} s"
                )
            with nullcontext() if work.is_known or not self._cause else _deadline(self._cause):
                if paddle.device.get_device() != "cpu":
                    paddle.device.synchronize()
                self.wait_seconds += time.thread_time() - begin
                yield

    def _patience_s(self, brief: bool) -> float:
        """Return how long the device may take to finish its work."""
        if brief or self._cause:
            return LAST_PATIENCE_SECONDS
        return max(LEAST_PATIENCE_SECONDS, 2 * (time.monotonic() - self._started))

    def _silence(self) -> None:
        if self._memory and self._is_recording:
            core.disable_memory_recorder()
        if self._events is not None:
            self._events.stop()


@contextmanager
def _deadline(cause: str) -> Iterator[None]:
    """End the process with code 1, as the exception does, if it is still inside after a minute.

    A thread of Python's faulthandler does: it needs no lock of the interpreter.
    """
    log.warning(
        f"the training ends by {cause}; first Paddle's profiler is stopped, "
        f"in {_STOP_SECONDS} s at most"
    )
    faulthandler.dump_traceback_later(_STOP_SECONDS, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _clock_offset_ns() -> int:
    """Return the wall clock minus the monotonic clock: it changes if the wall clock is set.

    The wall clock is read between two readings of the monotonic clock. Of a few attempts, the one
    with the least time between these counts.
    """
    readings = []
    for _ in range(_CLOCK_ATTEMPTS):
        before = time.perf_counter_ns()
        wall_ns = time.time_ns()
        after = time.perf_counter_ns()
        readings.append((after - before, wall_ns - after))
        if after - before < _EXACT_NS:
            break
    return min(readings)[1]


def open_span(name: str, category: str) -> Any:
    """Open a span and return it; ``end()`` of the span closes it.

    Paddle's public ``RecordEvent`` is not used, since it rejects some categories.

    Args:
        name: name of the span in the trace.
        category: one of ``ppprof.trace.schema.CATEGORIES`` that is also a ``TracerEventType`` of
            Paddle, such as "Communication".
    """
    return core._RecordEvent(name, getattr(core.TracerEventType, category))


def _check_space(folder: Path) -> None:
    """Raise OSError if a disk is full that reports it at once; others do when the capture is synced."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(1 << 16))
        probe.flush()
