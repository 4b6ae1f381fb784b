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
from ppprof.rundir import CLOCK_MARKER, INCOMPLETE_MARKER

if TYPE_CHECKING:
    from ppprof.config import ProfilerConfig

log = logging.getLogger("ppprof")

_LEAST_JUMP_NS = 10_000_000
"""A smaller difference between the two clocks may be an error of its measurement."""
_CLOCK_ATTEMPTS, _EXACT_NS = 4, 20_000
_GUEST_SECONDS, _GUEST_WAIT_SECONDS = 5.0, 0.01
"""Longest time to wait for guests to close, and the time between two attempts."""
_TRACE_SWITCH = {"cpu": 1, "gpu": 2, "xpu": 4, "custom_device": 8}


class Recorder:
    """Records windows, one after another.

    For each window, call `prepare` and `start`, then `begin_step` and `end_step` for each step, then
    `stop`. After the last window, call `close`.

    Args:
        config: the ``Profiler`` block.
        prints: whether `stop` prints Paddle's table of FLOPs if ``with_flops`` is set.
        is_guest: whether the recorder works beside a training of this process that did not ask for
            it, for a remote call. It then changes no function of Paddle, so that the events of
            layers, backward and optimizers are missing, and another recorder waits until it closes.

    Raises:
        RuntimeError: another profiler is open in this process; Paddle allows only one.
    """

    _num_guests = 0
    """Number of recorders of this process that are guests and not closed."""

    def __init__(
        self, config: ProfilerConfig, prints: bool = True, *, is_guest: bool = False
    ) -> None:
        self._is_guest = is_guest
        self._shapes = config.record_shapes or config.with_flops
        self._memory = config.profile_memory
        self._flops = config.with_flops and prints
        self._nvtx = config.emit_nvtx
        self._step: Any = None
        self._clock_offset_ns = 0
        self._prepared = self._recording = False
        options = core.ProfilerOptions()
        for target in _targets(config.targets):
            options.trace_switch |= _TRACE_SWITCH[target]
        self._profiler = self._create(options)
        if self._profiler is None:
            raise RuntimeError("another profiler is open in this process")
        if is_guest:
            Recorder._num_guests += 1
            return
        paddle_profiler.wrap_optimizers()
        _pair_events(True)
        self._switch(False)

    def _create(self, options: Any) -> Any:
        """Return Paddle's profiler; None if another one stays open. Waits for guests to close."""
        devices = paddle.device.get_all_custom_device_type()
        latest = time.monotonic() + _GUEST_SECONDS
        while True:
            profiler = core._Profiler.create(options, devices)
            is_late = time.monotonic() >= latest
            if profiler is not None or self._is_guest or not Recorder._num_guests or is_late:
                return profiler
            time.sleep(_GUEST_WAIT_SECONDS)

    def prepare(self) -> None:
        """Set up the tracers. Call it before the step that precedes a window, if there is one."""
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
                of the raw capture renames the span; see `ppprof.trace.incomplete_steps`.
        """
        if self._step is not None:
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
        result = self._profiler.stop()
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
        self.end_step()
        self._silence()
        if self._prepared:  # prepared tracers are torn down only by a window, here an empty one
            self._profiler.start()
        if self._prepared or self._recording:
            self._profiler.stop()
        self._profiler = None
        if self._is_guest:
            Recorder._num_guests -= 1
            return
        paddle_profiler._is_profiler_used = False
        _pair_events(False)

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


def _targets(wanted: Any) -> list[str]:
    """Return the targets that can be traced with this build of Paddle on this machine.

    A target must not be passed to Paddle otherwise: a GPU build on a machine without a GPU crashes
    if the GPU is a target.

    Args:
        wanted: names of targets; unusable targets are skipped with a warning. "auto" means all
            usable targets.
    """
    is_usable = {
        "cpu": True,
        "gpu": core._Profiler.is_cupti_supported() and paddle.device.cuda.device_count() > 0,
        "xpu": core._Profiler.is_xpti_supported(),
        "custom_device": True,
    }
    if wanted == "auto":
        return [target for target, usable in is_usable.items() if usable]
    for target in wanted:
        if not is_usable[target]:
            log.warning(f"Profiler.targets: {target} cannot be traced here and is left out")
    return [target for target in wanted if is_usable[target]]


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
