"""Drives Paddle's C++ profiler by the same calls as ``paddle.profiler.Profiler``.

That class itself is not used. It turns the recorders of ``record_shapes`` and ``profile_memory`` on
at ``start()``, window or not (13 MB a step that are never freed), prints its own Perf Summary at
``stop()``, and slows every ``Layer`` down between windows. Within a window it makes a dozen calls
that have not changed from Paddle 2.5 to 3.3. All of them are here, with every private name of
Paddle's profiler that they need. A test compares their trace with that of
``paddle.profiler.Profiler``.
"""

from __future__ import annotations

import logging
import os
import tempfile
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

if TYPE_CHECKING:
    from ppprof.config import ProfilerConfig

log = logging.getLogger("ppprof")

_TRACE_SWITCH = {"cpu": 1, "gpu": 2, "xpu": 4, "custom_device": 8}


class Recorder:
    """Records windows: `prepare`, `start`, `begin_step` and `end_step`, `stop`; then again.

    Raises:
        RuntimeError: another profiler is open: Paddle has one for each process.
    """

    def __init__(self, config: ProfilerConfig, prints: bool = True) -> None:
        self._shapes = config.record_shapes or config.with_flops
        self._memory = config.profile_memory
        self._flops = config.with_flops and prints
        self._nvtx = config.emit_nvtx
        self._step: Any = None
        self._prepared = self._recording = False
        options = core.ProfilerOptions()
        for target in _targets(config.targets):
            options.trace_switch |= _TRACE_SWITCH[target]
        self._profiler = core._Profiler.create(options, paddle.device.get_all_custom_device_type())
        if self._profiler is None:
            raise RuntimeError("another profiler is open in this process")
        paddle_profiler.wrap_optimizers()
        _pair_events(True)
        self._switch(False)

    def prepare(self) -> None:
        """Set the tracers up: in the step before a window, if there is one."""
        self._profiler.prepare()
        self._prepared = True

    def start(self) -> None:
        """Open a window, after `prepare`."""
        if self._shapes:
            core.enable_op_info_recorder()
        if self._memory:
            core.enable_memory_recorder()
        self._switch(True)
        self._profiler.start()
        self._prepared, self._recording = False, True

    def begin_step(self, step: int) -> None:
        """Open the span of a step in an open window."""
        self._step = core._RecordEvent(f"ProfileStep#{step}", core.TracerEventType.ProfileStep)

    def end_step(self) -> None:
        """Close the span of the step, if there is one."""
        if self._step is not None:
            self._step.end()
            self._step = None

    def stop(self, raw: Path, brief: bool = False) -> None:
        """Close the window and write its events to ``raw``: the whole file, or none.

        Args:
            raw: the file.
            brief: do not print Paddle's table of FLOPs, which takes long.

        Raises:
            OSError: the directory is gone, read-only or full.
        """
        self._silence()
        self._recording = False
        result = self._profiler.stop()
        hidden = raw.with_name(f".{raw.stem}.tmp")
        try:
            result.save(str(hidden), "pb")
            # Paddle does not report a full disk, which truncates the file.
            _check_space(hidden.parent)
            paths.publish(hidden, raw)
        finally:
            paths.remove_quietly(hidden)
        if self._flops and not brief:
            _print_flops(result)

    def close(self) -> None:
        """Release Paddle's profiler, so that another one can be created."""
        self.end_step()
        self._silence()
        if self._prepared:  # an empty window is what tears prepared tracers down
            self._profiler.start()
        if self._prepared or self._recording:
            self._profiler.stop()
        self._profiler = None
        paddle_profiler._is_profiler_used = False
        _pair_events(False)

    def _silence(self) -> None:
        if self._shapes:
            core.disable_op_info_recorder()
        if self._memory:
            core.disable_memory_recorder()
        self._switch(False)

    def _switch(self, on: bool) -> None:
        """Switch the events of Paddle's own ``RecordEvent``: layers, backward, optimizers."""
        paddle_profiler._is_profiler_used = on or self._nvtx


def _print_flops(result: Any) -> None:
    """Print Paddle's table of FLOPs by layer, which needs the result in memory."""
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
    """Return an open span, which its ``end()`` closes.

    The public ``RecordEvent`` rejects some categories.

    Args:
        name: of the span in the trace.
        category: one of ``ppprof.trace.schema.CATEGORIES`` that Paddle's recorder has.
    """
    return core._RecordEvent(name, getattr(core.TracerEventType, category))


def _targets(wanted: Any) -> list[str]:
    """Return the wanted targets that this build and this machine have; all of them for "auto".

    A GPU build on a machine without a GPU crashes if the GPU is a target.
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
    """Make two functions of Paddle begin and end their event by one decision, not by two.

    Both check whether a profiler is in use before *and* after their work. If another thread opens a
    window in between, they end an event that was never begun (UnboundLocalError in the training).
    Their events still record nothing outside a window.

    Args:
        always: let them record an event in any case; False restores Paddle's check.
    """
    for module in (dataloader_iter, tensor_patch_methods):
        if hasattr(module, "in_profiler_mode"):
            module.in_profiler_mode = (lambda: True) if always else paddle_profiler.in_profiler_mode


def _check_space(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(1 << 16))
        probe.flush()
        os.fsync(probe.fileno())
