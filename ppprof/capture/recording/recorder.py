"""Drive Paddle's C++ profiler by the same calls as ``paddle.profiler.Profiler``.

``paddle.profiler.Profiler`` itself is not used, for three reasons. Its ``start()`` turns the
recorders of ``record_shapes`` and ``profile_memory`` on, even outside windows: 13 MB a step that are
never freed. Its ``stop()`` prints a Perf Summary of its own. And it slows every ``Layer`` down
between windows. Within a window it makes a dozen calls that have not changed from Paddle 2.5 to
3.3. This module makes these calls, and holds every private name of Paddle's profiler that they
need. A test compares the resulting trace with a trace of ``paddle.profiler.Profiler``.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paddle
from paddle.base import core
from paddle.base.dygraph import tensor_patch_methods
from paddle.io.dataloader import dataloader_iter
from paddle.profiler import utils as paddle_profiler
from paddle.profiler.profiler_statistic import gen_layer_flops

from ppprof import paths
from ppprof.capture.output import print_result
from ppprof.capture.probe_child import TRACE_SWITCH
from ppprof.capture.recording.targets import Targets
from ppprof.capture.sigterm import default_sigterm
from ppprof.rundir import CLOCK_MARKER, INCOMPLETE_MARKER

if TYPE_CHECKING:
    from ppprof.config import ProfilerConfig

log = logging.getLogger("ppprof")

_LEAST_JUMP_NS = 10_000_000
"""A smaller difference between the two clocks may be an error of its measurement."""
_PATIENCE_SECONDS, _POLL_SECONDS = 10.0, 0.005
"""How long a device may take to finish its work after an exception, and the time between queries."""
_abandoned: list[Any] = []
"""Profilers and events of devices that do not answer: destroying one waits for the device."""
_CLOCK_ATTEMPTS, _EXACT_NS = 4, 20_000
_GUEST_SECONDS, _GUEST_WAIT_SECONDS = 5.0, 0.01
"""Longest time to wait for guests to close, and the time between two attempts."""


class Recorder:
    """Records windows, one after another.

    For each window, call `prepare` and `start`, then `begin_step` and `end_step` for each step, then
    `stop`. After the last window, call `close`.

    Paddle's profiler is created at once on a CPU. On another device it is created by the first
    `prepare`, after the probe of the device's profiler.

    Args:
        config: the ``Profiler`` block.
        prints: whether `stop` prints Paddle's table of FLOPs if ``with_flops`` is set.
        targets: what to record; None for ``config.targets`` in a window that cannot wait for a probe.
        is_guest: whether the recorder works beside a training of this process that did not ask for
            it, for a remote call. It then changes no function of Paddle, so that the events of
            layers, backward and optimizers are missing, and another recorder waits until it closes.

    Raises:
        RuntimeError: another profiler is open in this process; Paddle allows only one.
    """

    _num_guests = 0
    """Number of recorders of this process that are guests and not closed."""

    def __init__(
        self,
        config: ProfilerConfig,
        prints: bool = True,
        targets: Targets | None = None,
        *,
        is_guest: bool = False,
    ) -> None:
        self._is_guest = is_guest
        self._shapes = config.record_shapes or config.with_flops
        self._memory = config.profile_memory
        self._flops = config.with_flops and prints
        self._nvtx = config.emit_nvtx
        self._synchronizes = config.sync_steps and not is_guest
        if self._synchronizes and paddle.device.get_device().startswith("cpu"):
            log.warning("Profiler.sync_steps has no effect: Paddle computes on the CPU")
            self._synchronizes = False
        self._step: Any = None
        self._clock_offset_ns = 0
        self._prepared = self._recording = False
        self._targets = targets or Targets(config.targets)
        self._profiler: Any = None
        if not self._targets.on_device:
            self._create()
        if is_guest:
            Recorder._num_guests += 1
            return
        paddle_profiler.wrap_optimizers()
        _pair_events(True)
        self._switch(False)

    def _create(self) -> None:
        """Create Paddle's profiler for the targets that can be recorded."""
        options = core.ProfilerOptions()
        for target in self._targets.decide():
            options.trace_switch |= TRACE_SWITCH[target]
        self._profiler = self._create_profiler(options)
        if self._profiler is None:
            raise RuntimeError("another profiler is open in this process")

    def _create_profiler(self, options: Any) -> Any:
        """Return Paddle's profiler; None if another one stays open. Waits for guests to close."""
        has_custom = options.trace_switch & TRACE_SWITCH["custom_device"]
        devices = paddle.device.get_all_custom_device_type() if has_custom else []
        latest = time.monotonic() + _GUEST_SECONDS
        while True:
            profiler = core._Profiler.create(options, devices)
            is_late = time.monotonic() >= latest
            if profiler is not None or self._is_guest or not Recorder._num_guests or is_late:
                return profiler
            time.sleep(_GUEST_WAIT_SECONDS)

    @property
    def on_device(self) -> bool:
        """Whether windows record a device, and so wait for it when they are stopped."""
        return self._targets.on_device

    def prepare(self) -> None:
        """Set up the tracers. Call it before the step that precedes a window, if there is one.

        On a device, the first call waits for the probe of the device's profiler.

        Raises:
            RuntimeError: another profiler is open in this process.
        """
        if self._profiler is None:
            self._create()
        self._profiler.prepare()
        self._prepared = True

    def start(self) -> None:
        """Open a window: events are recorded from now on. Call `prepare` first."""
        if self._shapes:
            core.enable_op_info_recorder()
        if self._memory:
            core.enable_memory_recorder()
        self._switch(True)
        self._profiler.start()
        self._prepared, self._recording = False, True

    def begin_step(self, step: int) -> None:
        """Open the span of a step, such as ``ProfileStep#5``, in an open window."""
        self._step = core._RecordEvent(f"ProfileStep#{step}", core.TracerEventType.ProfileStep)
        self._clock_offset_ns = _clock_offset_ns()

    def end_step(self, *, is_complete: bool = True) -> None:
        """Close the span of the step; do nothing without an open span.

        Args:
            is_complete: whether the training has ended the step by ``step()``. If not, the reader
                of the raw capture renames the span; see `ppprof.trace.incomplete_steps`. With
                ``Profiler.sync_steps``, a complete step first waits for the device.
        """
        if self._step is not None:
            if is_complete and self._synchronizes:
                paddle.device.synchronize()
            self._mark_clock_jump()
            if not is_complete:
                span(INCOMPLETE_MARKER, "UserDefined").end()
            self._step.end()
            self._step = None

    def _mark_clock_jump(self) -> None:
        """Record a marker if the wall clock was set since the step began."""
        jump_ns = _clock_offset_ns() - self._clock_offset_ns
        if abs(jump_ns) >= _LEAST_JUMP_NS:
            span(f"{CLOCK_MARKER}{jump_ns} ns", "UserDefined").end()

    def stop(self, raw: Path, brief: bool = False) -> None:
        """Close the window and write its raw capture. The file is written whole or not at all.

        Args:
            raw: path of the raw capture.
            brief: whether to skip what takes long: Paddle's table of FLOPs, the check for a full
                disk.

        Raises:
            OSError: the directory is gone, read-only or full; the window is lost.
        """
        self._silence()
        self._recording = False
        result = self._stop()
        hidden = raw.with_name(f".{raw.stem}.tmp")
        try:
            result.save(str(hidden), "pb")
            # Paddle does not report a full disk, which truncates the file.
            if not brief:
                _check_space(hidden.parent)
            paths.publish(hidden, raw)
        finally:
            paths.remove_quietly(hidden)
        if self._flops and not brief:
            _print_flops(result)

    def close(self) -> None:
        """Release Paddle's profiler, so that another one can be created; drop an open window."""
        self.end_step(is_complete=False)
        self._silence()
        if self._prepared:  # prepared tracers are torn down only by a window, here an empty one
            self._profiler.start()
        if self._prepared or self._recording:
            self._stop()
        self._profiler = None
        if self._is_guest:
            Recorder._num_guests -= 1
            return
        paddle_profiler._is_profiler_used = False
        _pair_events(False)

    def device_answers(self, patience_s: float = _PATIENCE_SECONDS) -> bool:
        """Return whether the device finishes its work; True without a device in the window.

        The work is not waited for by Paddle's calls, which may never return, but by an event.

        Args:
            patience_s: how long the device may take.
        """
        if not (self._targets.on_device and (self._prepared or self._recording)):
            return True
        event = paddle.device.Event()
        event.record()
        deadline = time.monotonic() + patience_s
        while not event.query():
            if time.monotonic() >= deadline:
                _abandoned.append(event)
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def abandon(self) -> None:
        """Leave an open window as it is, since stopping it would wait for a device for ever."""
        self._silence()
        _abandoned.append(self._profiler)
        self._profiler, self._prepared, self._recording, self._step = None, False, False, None

    def _stop(self) -> Any:
        """Stop Paddle's profiler and return its result.

        On a device, Paddle waits for the device meanwhile, in C++ and with Python's lock. If the
        device never answers, only the default action of SIGTERM can end the process.
        """
        if not self._targets.on_device:
            return self._profiler.stop()
        with default_sigterm():
            return self._profiler.stop()

    def _silence(self) -> None:
        if self._shapes:
            core.disable_op_info_recorder()
        if self._memory:
            core.disable_memory_recorder()
        self._switch(False)

    def _switch(self, on: bool) -> None:
        """Switch the events of Paddle's ``RecordEvent`` on or off: layers, backward, optimizers.

        With ``emit_nvtx`` they stay on between windows too.
        """
        if not self._is_guest:
            paddle_profiler._is_profiler_used = on or self._nvtx


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


def _print_flops(result: Any) -> None:
    """Print Paddle's table of FLOPs of each layer; log a warning if Paddle has no operator shapes.

    Paddle needs the window's events in memory for it, so ``ppprof finish`` cannot print it later.
    """
    table = gen_layer_flops(result.get_data(), 1)
    if not table.strip():
        log.warning(
            "no FLOPs are printed: Paddle recorded no operator shapes, as is usual in dynamic graphs"
        )
        return
    begin, end = (
        " Flops Profiler Begin ".center(100, "-"),
        "- Flops Profiler End -".center(100, "-"),
    )
    print_result(f"{begin}\n{table}\n{end}\n")


def span(name: str, category: str) -> Any:
    """Open a span and return it; ``end()`` of the span closes it.

    Paddle's public ``RecordEvent`` is not used, since it rejects some categories.

    Args:
        name: name of the span in the trace.
        category: one of ``ppprof.trace.schema.CATEGORIES`` that is also a ``TracerEventType`` of
            Paddle, such as "Communication".
    """
    return core._RecordEvent(name, getattr(core.TracerEventType, category))


def _pair_events(always: bool) -> None:
    """Make Paddle's DataLoader iterators and ``Tensor.backward`` always begin and end their event.

    Both check whether a profiler is in use before their work, and again after it. If another thread
    opens a window in between, they end an event that was never begun, which raises UnboundLocalError
    in the training. The additional events record nothing outside a window.

    Args:
        always: whether to make them always begin and end the event; False restores Paddle's check.
    """
    for module in (dataloader_iter, tensor_patch_methods):
        if hasattr(module, "in_profiler_mode"):
            module.in_profiler_mode = (lambda: True) if always else paddle_profiler.in_profiler_mode


def _check_space(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(1 << 16))
        probe.flush()
        os.fsync(probe.fileno())
