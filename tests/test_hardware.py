"""Names as CUDA gives them, and what is known of such a device."""

from __future__ import annotations

import pytest

from ppprof.hardware import DEVICES, DTYPES, known_device, known_peak_flops


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
        "NVIDIA L40G",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "",
    ],
)
def test_a_device_of_another_speed_is_not_taken_for_it(name: str) -> None:
    assert known_peak_flops(name) is None


@pytest.mark.parametrize(
    ("name", "tflops", "gb_per_s"),
    [
        ("Tesla V100-SXM2-32GB", [15.7, None, None, 125, None, None], 900),
        ("Tesla T4", [8.1, None, None, 65, None, 130], 320),
        ("NVIDIA A30", [10.3, 82, 165, 165, None, 330], 933),
        ("NVIDIA A40", [37.4, 74.8, 149.7, 149.7, None, 299.3], 696),
        ("NVIDIA A100-SXM4-40GB", [19.5, 156, 312, 312, None, 624], 1555),
        ("NVIDIA L4", [30.3, 60, 121, 121, 242.5, 242.5], 300),
        ("NVIDIA H20-3e", [44, 74, 148, 148, 296, 296], 4800),
        ("NVIDIA GH200 480GB", [67, 494.5, 989.5, 989.5, 1979, 1979], 4000),
        ("NVIDIA B300 SXM6 AC", [75, 1125, 2250, 2250, 4500, None], 8000),
        ("NVIDIA GB200", [80, 1250, 2500, 2500, 5000, 5000], 8000),
        ("NVIDIA RTX 6000 Ada Generation", [91.1, 182.1, 364.2, 364.2, 728.5, 728.5], 960),
        ("NVIDIA GeForce RTX 5090", [104.8, 104.8, 209.5, 209.5, 419, 838], 1792),
        ("KUNLUN R300", [32, None, None, 128, None, 256], 512),
        ("Ascend910B3", [None, None, None, 313, None, None], None),
        ("910A", [None, None, None, 256, None, 512], 1200),
        ("K100_AI", [49, 96, 192, 192, None, 392], None),
    ],
)
def test_rates_by_data_type_and_bandwidth(
    name: str, tflops: list[float | None], gb_per_s: float | None
) -> None:
    device = known_device(name)
    assert device is not None
    rates = [device.peak_flops(dtype) for dtype in DTYPES]
    assert rates == [None if rate is None else pytest.approx(rate * 1e12) for rate in tflops]
    bandwidth = device.memory_bandwidth
    assert bandwidth == (None if gb_per_s is None else pytest.approx(gb_per_s * 1e9))


def test_paddles_names_of_data_types() -> None:
    device = known_device("NVIDIA L40S")
    assert device is not None
    assert device.peak_flops("bfloat16") == device.peak_flops("bf16") == 362.05e12
    assert device.peak_flops("paddle.float32") == 91.6e12
    assert device.peak_flops("float8_e4m3fn") == 733e12
    assert device.peak_flops("complex64") is None


@pytest.mark.parametrize(
    ("name", "bus_bits", "transfers_gt_per_s"),
    [
        ("Tesla T4", 256, 10),
        ("NVIDIA A10", 384, 12.5),
        ("NVIDIA A100-SXM4-40GB", 5120, 2.43),
        ("NVIDIA A100-SXM4-80GB", 5120, 3.186),
        ("NVIDIA H100 80GB HBM3", 5120, 5.2386),
        ("NVIDIA L40S", 384, 18),
        ("NVIDIA GeForce RTX 4090", 384, 21),
        ("NVIDIA GeForce RTX 5090", 512, 28),
    ],
)
def test_a_bandwidth_is_what_the_bus_does_in_a_second(
    name: str, bus_bits: int, transfers_gt_per_s: float
) -> None:
    """Bus widths and data rates of NVIDIA's architecture whitepapers."""
    device = known_device(name)
    assert device is not None
    assert device.memory_bandwidth == pytest.approx(
        bus_bits / 8 * transfers_gt_per_s * 1e9, rel=0.01
    )


def test_the_rows_of_the_table_are_plausible() -> None:
    """A narrower data type is never slower, every row has a source, and no name has two rows."""
    for pattern, tflops, gb_per_s, source in DEVICES:
        assert len(tflops) == len(DTYPES), pattern
        rates = [rate for rate in tflops if rate is not None]
        assert rates == sorted(rates), pattern
        assert gb_per_s is None or 200 < gb_per_s < 10_000, pattern
        assert source, pattern


@pytest.mark.parametrize("name", ["P800", "910B", "910B1", "BW1000", "NVIDIA L40G", "cpu"])
def test_a_device_without_published_numbers_is_left_out(name: str) -> None:
    assert known_device(name) is None
