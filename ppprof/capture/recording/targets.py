"""Which targets of Paddle's profiler a rank can record without danger for its training.

The profiler of a device may end the process in C++ when it cannot start: without the driver's
permission, beside another profiler, without a driver.

On an NVIDIA GPU, CUPTI is asked in this process, just before each window (`cupti`). A child process would
take 0.5 GB of the GPU's memory, which the training may need, and its answer may be out of date.

On other devices a child process opens a window first::

    rank 0 of a node    attach | steps ............. | first window
    child               import Paddle, one kernel |
    other ranks         attach | steps ............. | first window: read the child's result

A window that begins earlier is recorded from the step on that begins when the child has ended. A profiler that refuses later
ends the training all the same, unless its plugin uses a CUPTI. Where the device's profiler does not work, windows record the host alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paddle
from paddle.base import core

from ppprof.capture import probe as probing
from ppprof.capture import process
from ppprof.capture.output import reason
from ppprof.capture.recording import cupti
from ppprof.capture.signals import is_ending
from ppprof.rundir import device_probes
from ppprof.rundir.device_probes import DeviceProbe

log = logging.getLogger("ppprof")

_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = probing.TIMEOUT_SECONDS + 10
_USUAL_SECONDS = 3.0
"""How long a probe usually takes: most of it is the import of Paddle."""
_known: dict[str, DeviceProbe] = {}
"""Results of probes in this process, by device."""
_probed: set[str] = set()
"""Devices that `_probe_for_process` probes or has probed."""


class Targets:
    """The targets of a rank's windows. A child process probes the device's profiler meanwhile.

    Args:
        wanted: ``Profiler.targets``: names of targets, or "auto" for the host and the training's
            device.
        run: the run directory, through which the ranks of a node share one probe. None for a window
            that cannot wait, such as that of a remote call: until the probe has ended, only the host is
            recorded.
    """

    def __init__(
        self,
        wanted: Any,
        run: Path | None = None,
        probe: Callable[..., probing.Probe] = probing.probe,
    ) -> None:
        self._is_explicit = wanted != "auto"
        self._run = run
        self._device = paddle.device.get_device()
        self._training = threading.get_ident()
        self._names = _usable(wanted, self._device)
        self.waits: bool = self._device != "cpu" or self._names != ["cpu"]
        """Whether the training computes on a device. Paddle's profiler waits for it, whatever it records."""
        self.is_gpu = "gpu" in self._names
        """Whether windows record an NVIDIA GPU."""
        self._is_decided = self.is_gpu
        """Whether the probe has accepted the device; a GPU needs none."""
        self._wanted = self._names
        self._was_recorded = self._has_warned = False
        """Whether the last window has recorded the device, or this rank has said that it is not recorded."""
        self._thread: threading.Thread | None = None
        self._warns = True
        self._began = time.monotonic()
        self.on_device = self._names != ["cpu"]
        """Whether windows may record a device; if so, `decide` waits for the probe."""
        self.ahead_ns: tuple[int, int] | None = None
        """The least and the most that the device's clock is ahead of the host's, by the probe."""
        if not self.on_device or self.is_gpu:
            return
        if run is None:
            self._probe_for_process(probe)
            return
        try:
            self._warns = device_probes.claim(run)
        except OSError as error:
            self._give_up(reason(error))
            return
        if self._warns:
            self._thread = process.start_thread(lambda: self._probe(probe), "probe")

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the device of the training current: it may compute on the CPU in between, as in an evaluation.

        That counts for the whole process, so no other thread than the training's does it.
        """
        is_training = self._run is not None and threading.get_ident() == self._training
        is_away = is_training and paddle.device.get_device() == "cpu" and self._device != "cpu"
        if is_away:
            paddle.set_device(self._device)
        try:
            yield
        finally:
            if is_away:
                paddle.set_device("cpu")

    @property
    def seconds_left(self) -> float:
        """The time that the probe is likely to take from now on; 0 if `decide` need not wait."""
        if not self.on_device or self._run is None or self._is_decided:
            return 0.0
        elapsed = time.monotonic() - self._began
        has_ended = self._has_ended or elapsed > _PATIENCE_SECONDS
        if has_ended or device_probes.read(self._run) is not None:
            return 0.0
        return max(_USUAL_SECONDS - elapsed, _USUAL_SECONDS / 3)

    @property
    def _has_ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def decide(
        self, patience_s: float = _PATIENCE_SECONDS, *, continues: bool = False
    ) -> list[str]:
        """Return the targets to record in the window that begins now; wait for the probe if it has not ended.

        If the device is not recorded, log why, once on each node; on each rank if it was recorded before. If
        CUPTI refuses a window, it may accept the next one, but no further segment (``continues``) of that window.
        Do not wait after a SIGTERM, which is about to end the process.
        """
        if self.on_device and not self._is_decided:
            self._decide_by_probe(patience_s)
        if self._is_decided:
            refusal = cupti.refusal(loads=self.is_gpu)
            if refusal:
                self._refused(refusal)
            elif self.on_device or not continues:
                if self._has_warned:
                    log.warning(f"{self._device} is recorded again")
                self._has_warned = False
                self.on_device, self._names, self._was_recorded = True, self._wanted, True
        return self._names

    def _refused(self, refusal: str) -> None:
        """Record the host alone; CUPTI is asked again before the next window."""
        name, _, why, action = probing.cause_of(refusal) or (refusal, "", "CUPTI failed", "")
        self._warns = self._was_recorded
        if self._run is not None:
            with suppress(OSError):
                self._warns |= device_probes.claim(self._run, name)
        self._was_recorded = False
        self._give_up(f"{why} ({name})", action)

    def _decide_by_probe(self, patience_s: float) -> None:
        found = self._await(patience_s) if self._run is not None else _known.get(self._device)
        self.ahead_ns = found.ahead_ns if found is not None else None
        if found is None:
            self._warns = self._warns and not is_ending()
            self._give_up("the probe of its profiler has not ended")
        elif self._is_safe(found):
            _known[self._device] = found
            self._is_decided = True
        else:
            self._give_up(found.reason, found.action)

    def _is_safe(self, found: DeviceProbe) -> bool:
        """Return whether the device's profiler works, and writes no files that were not asked for."""
        if found.kind in (probing.WORKS, probing.NO_EVENTS):
            is_useful = found.kind == probing.WORKS and not found.writes_files
            return is_useful or self._is_explicit
        return False

    def _give_up(self, why: str, action: str = "") -> None:
        self.on_device = False
        self._names = ["cpu"]
        if self._warns and self._run is not None:
            self._has_warned = True
            advice = f"; what to do: {action}" if action else ""
            log.warning(
                f"{self._device} is not recorded: {why}; windows hold the host's events only, and "
                f"the training goes on{advice}"
            )

    def _probe(self, probe: Callable[..., probing.Probe]) -> None:
        assert self._run is not None
        try:
            device_probes.write(self._run, _ask(probe, self._names, self._device))
        except OSError as error:
            log.debug(f"{self._run}: {reason(error)}")

    def _probe_for_process(self, probe: Callable[..., probing.Probe]) -> None:
        def ask() -> None:
            _known[self._device] = _ask(probe, self._names, self._device)

        if self._device not in _known and self._device not in _probed:
            _probed.add(self._device)
            process.start_thread(ask, "probe")

    def _await(self, patience_s: float) -> DeviceProbe | None:
        """Return the result of the node's probe; None if the prober fails or takes too long."""
        assert self._run is not None
        deadline = self._began + patience_s
        while True:
            has_ended = self._has_ended
            found = device_probes.read(self._run)
            is_late = time.monotonic() >= deadline or is_ending()
            if found is not None or has_ended or is_late:
                return found
            time.sleep(_POLL_SECONDS)


def _ask(probe: Callable[..., probing.Probe], targets: list[str], device: str) -> DeviceProbe:
    found = probe(targets, device=device)
    return DeviceProbe(found.kind, found.reason, found.action, bool(found.files), found.ahead_ns)


def _usable(wanted: Any, device: str) -> list[str]:
    """Return the targets that this build of Paddle can record on this machine.

    A target must not be passed to Paddle otherwise: a GPU build on a machine without a GPU crashes
    if the GPU is a target.
    """
    kind = device.partition(":")[0]
    custom_types = paddle.device.get_all_custom_device_type() or []
    is_usable = {
        "cpu": True,
        "gpu": core._Profiler.is_cupti_supported() and paddle.device.cuda.device_count() > 0,
        "xpu": core._Profiler.is_xpti_supported(),
        "custom_device": bool(custom_types),
    }
    if wanted == "auto":
        target = "custom_device" if kind in custom_types else kind
        return [name for name in dict.fromkeys(["cpu", target]) if is_usable.get(name)]
    for target in wanted:
        if not is_usable[target]:
            log.warning(f"Profiler.targets: {target} cannot be traced here and is left out")
    return [target for target in wanted if is_usable[target]]
