"""The least time in which a device can do some work.

::

    FLOP/s |        _________ peak of the dtype
           |      / *           compute: at best FLOPs / peak
           |    /
           |  / *               memory: at best bytes / bandwidth
           |/_______________
             FLOPs per byte

The least time is the larger of both.

Source: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ppprof.hardware import Device, known_device
from ppprof.trace.schema import Trace

_HALVES = ("bfloat16", "float16")
_REALS = (*_HALVES, "float32", "float64")


@dataclass(frozen=True)
class Roof:
    """What a device can do at best."""

    bytes_per_s: float | None
    """Bandwidth of its memory; None if unknown."""
    device: Device | None = None
    """None for a device whose vendor's numbers are unknown."""
    stated_flops: float | None = None
    """Peak FLOP/s that the job states; None if it states none."""

    def flops(self, dtype: str) -> float | None:
        """Return the peak FLOP/s of a dtype such as ``float32``; None if unknown.

        The number that the job states holds for bf16 and fp16, in which trainings compute; of an
        unknown device, for all real numbers.
        """
        stated_for = _HALVES if self.device is not None else _REALS
        if self.stated_flops is not None and dtype in stated_for:
            return self.stated_flops
        return self.device.peak_flops(dtype) if self.device is not None else None

    def lines(self, dtypes: Iterable[str]) -> dict[str, float]:
        """Return the known peaks of some dtypes, keyed by dtype; empty without a bandwidth."""
        if self.bytes_per_s is None:
            return {}
        peaks = {dtype: self.flops(dtype) for dtype in sorted(set(dtypes))}
        return {dtype: peak for dtype, peak in peaks.items() if peak is not None}


def roof_of(trace: Trace) -> Roof:
    """Return the roof of the device that a trace was recorded on.

    Of a trace without device events, it is the CPU's, which only the job can state.
    """
    names = {str(device.get("name", "")) for device in trace.devices}
    has_device = trace.events["device"].count() > 0
    device = known_device(names.pop()) if has_device and len(names) == 1 else None
    published = device.memory_bandwidth if device is not None else None
    return Roof(trace.stated_bytes_per_s or published, device, trace.stated_flops)
