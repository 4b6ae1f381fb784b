"""The costs of one window: utilization and memory of its device."""

from __future__ import annotations

import pytest

from ppprof.analysis.diff.costs import Device, costs
from ppprof.analysis.diff.naming import Naming
from ppprof.trace import read
from tests.fixtures.timeline import Thread, alloc, free, kernel, launch, span, write


def device_of(path, *inside) -> Device:
    """The device of a window of two steps, 0 to 100 and 100 to 200 on the host."""
    steps = (
        span("ProfileStep", "ProfileStep#0", 0, 100, *inside),
        span("ProfileStep", "ProfileStep#1", 100, 200),
    )
    return costs(read(write(path / "a.pb", Thread(1, "main", steps))), Naming()).device


def test_a_device_that_outlives_its_hosts_steps_is_at_most_fully_used(tmp_path):
    """
    ::

        host     |0 L       |1         |
        device      kkkkkkkkkkkkkkkkkkkkkkkkkkk     10 to 300
        steps    |0                            1|   0 to 300, 300 to 300
    """
    device = device_of(tmp_path, launch(5, 8, kernel("gemm", 10, 300)))
    assert device.gpu_utilization == pytest.approx(290 / 300)


def test_utilization_is_the_mean_over_devices_and_counts_no_copies(tmp_path):
    first = launch(5, 8, kernel("gemm", 10, 60), kernel("gemm", 40, 70, stream=9))
    second = launch(20, 25, kernel("gemm", 30, 50, device=1))
    assert device_of(tmp_path, first, second).gpu_utilization == pytest.approx((60 + 20) / 2 / 200)


def test_utilization_is_unknown_without_device_events(tmp_path):
    assert device_of(tmp_path).gpu_utilization is None


def test_the_mean_of_a_large_memory_is_not_cut_to_64_bits(tmp_path):
    """80 GB for a second, then 40 GB for three."""
    second, size = 10**9, 80 * 10**9
    events = (alloc(0, size), free(second, size // 2), alloc(4 * second, 0))
    step = span("ProfileStep", "ProfileStep#0", 0, 5 * second, *events)
    device = costs(read(write(tmp_path / "a.pb", Thread(1, "main", (step,)))), Naming()).device
    assert device.mean_bytes == pytest.approx(50e9)
    assert device.peak_bytes == size
