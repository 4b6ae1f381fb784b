"""Read the memory of the device that Paddle computes on, whatever its maker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class DeviceMemory(NamedTuple):
    """The memory of a device, in bytes. None: the device does not report the value."""

    peak_bytes: int | None = None
    """Peak of the memory in tensors so far."""
    peak_reserved_bytes: int | None = None
    """Peak of the memory that Paddle has taken from the device so far: tensors and free memory."""
    total_bytes: int | None = None
    """Size of the device's memory."""


_Ask = Callable[[Any, str], Any]

_PEAK: tuple[_Ask, ...] = (
    lambda paddle, _: paddle.device.max_memory_allocated(),
    lambda paddle, _: paddle.device.cuda.max_memory_allocated(),  # Paddle 2.6, GPUs only
)
_PEAK_RESERVED: tuple[_Ask, ...] = (
    lambda paddle, _: paddle.device.max_memory_reserved(),
    lambda paddle, _: paddle.device.cuda.max_memory_reserved(),
)
_TOTAL: tuple[_Ask, ...] = (
    lambda paddle, device: paddle.device.get_device_properties(device).total_memory,
    # Paddle 3.3.1 refuses the function above for a plugin that was loaded after paddle.device.
    lambda paddle, device: _properties(paddle, device).total_memory,
    lambda paddle, device: paddle.device.cuda.get_device_properties(device).total_memory,
    lambda paddle, device: paddle.device.xpu.memory_total(device),
)


def memory_reader(paddle: Any, device: str) -> Callable[[], DeviceMemory] | None:
    """Return a function that reads the memory of a device; None for a CPU. It never raises.

    The size is asked for by the first call only: asking may start the device.

    Args:
        paddle: the module.
        device: the device that Paddle computes on, such as ``gpu:0``.
    """
    if device.startswith("cpu"):
        return None
    total: list[int | None] = []

    def read() -> DeviceMemory:
        if not total:
            total.append(_first_answer(_TOTAL, paddle, device) or None)  # 0: the plugin is silent
        return DeviceMemory(
            _first_answer(_PEAK, paddle, device),
            _first_answer(_PEAK_RESERVED, paddle, device),
            total[0],
        )

    return read


def _first_answer(functions: tuple[_Ask, ...], paddle: Any, device: str) -> int | None:
    for ask in functions:
        try:
            return int(ask(paddle, device))
        except Exception:  # not for this device, or not in this version
            continue
    return None


def _properties(paddle: Any, device: str) -> Any:
    kind, _, number = device.partition(":")
    return paddle.base.core.get_device_properties(kind, int(number or 0))
