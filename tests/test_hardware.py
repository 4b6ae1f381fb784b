"""Names as CUDA gives them, and what is known of such a device."""

from __future__ import annotations

import pytest

from ppprof.hardware import known_peak_flops


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("Tesla V100-SXM2-32GB", 125),
        ("Tesla V100-PCIE-16GB", 112),
        ("A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A800-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H800", 989.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA H20", 148),
        ("NVIDIA A10", 125),
        ("NVIDIA L20", 119.5),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA B200", 2250),
    ],
)
def test_a_known_device(name: str, tflops: float) -> None:
    assert known_peak_flops(name) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize(
    ("name", "multiprocessors", "boost_mhz", "flops_a_clock"),
    [
        ("Tesla V100-SXM2-16GB", 80, 1530, 1024),
        ("Tesla V100-PCIE-16GB", 80, 1380, 1024),
        ("NVIDIA A100-SXM4-80GB", 108, 1410, 2048),
        ("NVIDIA A10", 72, 1695, 1024),
        ("NVIDIA H100 80GB HBM3", 132, 1830, 4096),
        ("NVIDIA GeForce RTX 4090", 128, 2520, 512),
    ],
)
def test_a_peak_is_what_the_hardware_does_in_a_second(
    name: str, multiprocessors: int, boost_mhz: int, flops_a_clock: int
) -> None:
    """Counts and clocks of NVIDIA's architecture whitepapers: V100, A100, GA102, H100, Ada."""
    computed = multiprocessors * boost_mhz * 1e6 * flops_a_clock
    assert known_peak_flops(name) == pytest.approx(computed, rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A10G",
        "NVIDIA L40",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "",
    ],
)
def test_a_device_of_another_speed_is_not_taken_for_it(name: str) -> None:
    assert known_peak_flops(name) is None
