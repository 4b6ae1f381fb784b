"""The memory of a device, by the functions that each version of Paddle has for it."""

from __future__ import annotations

from types import SimpleNamespace as Fake
from typing import Any

from ppprof.capture.steps.step_log import DeviceMemory, memory_reader


def refuse(*_: object) -> int:
    raise RuntimeError("not supported for this device type")


def paddle(device: dict[str, Any], cuda: dict[str, Any] | None = None, **core: Any) -> Any:
    return Fake(device=Fake(**device, cuda=Fake(**(cuda or {}))), base=Fake(core=Fake(**core)))


def read(module: Any, device: str) -> DeviceMemory:
    reader = memory_reader(module, device)
    assert reader is not None
    return reader()


def test_a_gpu_of_paddle_3() -> None:
    module = paddle(
        {
            "max_memory_allocated": {"gpu:1": 5}.__getitem__,
            "max_memory_reserved": {"gpu:1": 7}.__getitem__,
            "get_device_properties": {"gpu:1": Fake(total_memory=80)}.__getitem__,
        },
    )
    assert read(module, "gpu:1") == DeviceMemory(5, 7, 80)


def test_a_gpu_of_paddle_2_6() -> None:
    cuda = {
        "max_memory_allocated": {"gpu:1": 5}.__getitem__,
        "max_memory_reserved": {"gpu:1": 7}.__getitem__,
        "get_device_properties": {"gpu:1": Fake(total_memory=80)}.__getitem__,
    }
    assert read(paddle({}, cuda), "gpu:1") == DeviceMemory(5, 7, 80)


def test_a_plugin_that_paddle_device_does_not_know() -> None:
    sizes = {("npu", 2): Fake(total_memory=64)}
    module = paddle(
        {"max_memory_allocated": {"npu:2": 5}.__getitem__, "get_device_properties": refuse},
        get_device_properties=lambda kind, number: sizes[kind, number],
    )
    assert read(module, "npu:2") == DeviceMemory(5, None, 64)


def test_a_device_that_reports_nothing() -> None:
    """Paddle gives a size of 0 for a plugin without the function."""
    module = paddle(
        {"max_memory_allocated": refuse, "max_memory_reserved": refuse},
        get_device_properties=lambda kind, number: Fake(total_memory=0),
    )
    assert read(module, "gcu:0") == DeviceMemory(None, None, None)


def test_an_xpu() -> None:
    own = {"xpu": Fake(memory_total={"xpu:0": 32}.__getitem__), "get_device_properties": refuse}
    assert read(paddle(own), "xpu:0").total_bytes == 32


def test_the_size_is_asked_for_once_and_only_when_read() -> None:
    asked = []
    module = paddle(
        {"get_device_properties": lambda device: asked.append(device) or Fake(total_memory=1)}
    )
    reader = memory_reader(module, "gpu:0")
    assert reader is not None
    assert not asked
    assert [reader().total_bytes, reader().total_bytes] == [1, 1]
    assert asked == ["gpu:0"]


def test_a_cpu_has_no_device_memory() -> None:
    assert memory_reader(paddle({}), "cpu") is None
