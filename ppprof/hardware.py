"""Peak compute rates and memory bandwidths of known devices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

_Rates = tuple[Optional[float], ...]

DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
"""Data types of a peak rate."""

_ALIASES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_ALIASES |= {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}

_A100: _Rates = (19.5, 156, 312, 312, None, 624)
_H100: _Rates = (67, 494.5, 989.5, 989.5, 1979, 1979)
_H100_PCIE: _Rates = (51, 378, 756.5, 756.5, 1513, 1513)
_H100_NVL: _Rates = (60, 417.5, 835.5, 835.5, 1670.5, 1670.5)
_H20: _Rates = (44, 74, 148, 148, 296, 296)
_R200: _Rates = (32, None, None, 128, None, 256)

DEVICES: tuple[tuple[str, _Rates, float | None, str], ...] = (
    # NVIDIA, data centres
    (r"V100-SXM2(-\d+GB)?", (15.7, None, None, 125, None, None), 900, "V100 datasheet: SXM2"),
    (r"V100-SXM3(-\d+GB)?", (15.7, None, None, 125, None, None), None, "V100 datasheet: SXM2"),
    (r"V100-PCIE(-\d+GB)?", (14, None, None, 112, None, None), 900, "V100 datasheet: PCIe"),
    (r"V100S-PCIE-32GB", (16.4, None, None, 130, None, None), 1134, "V100 datasheet: V100S"),
    (r"T4", (8.1, None, None, 65, None, 130), 320, "T4 datasheet; bandwidth: product brief"),
    (r"A10", (31.2, 62.5, 125, 125, None, 250), 600, "A10 datasheet"),
    (r"A30", (10.3, 82, 165, 165, None, 330), 933, "A30 datasheet"),
    (r"A40", (37.4, 74.8, 149.7, 149.7, None, 299.3), 696, "A40 datasheet"),
    (r"A[18]00-(SXM4|PCIE)-40GB", _A100, 1555, "A100 datasheet: 40 GB"),
    (r"A[18]00-SXM4-80GB", _A100, 2039, "A100 and A800 datasheets: 80 GB SXM"),
    (r"A[18]00(-PCIE-80GB| 80GB PCIe)", _A100, 1935, "A100 and A800 datasheets: 80 GB PCIe"),
    (r"L4", (30.3, 60, 121, 121, 242.5, 242.5), 300, "L4 datasheet: half of sparse"),
    (r"L20", (59.8, 59.8, 119.5, 119.5, 239, 239), 864, "L20 as server vendors print it"),
    (r"L40", (90.5, 90.5, 181.05, 181.05, 362, 362), 864, "L40 datasheet"),
    (r"L40S", (91.6, 183, 362.05, 362.05, 733, 733), 864, "L40S datasheet"),
    (r"H100( 80GB HBM3| SXM5?)", _H100, 3350, "H100 datasheet: SXM, half of sparse"),
    (r"H100 \d+GB HBM3", _H100, None, "H100 datasheet: SXM, half of sparse"),
    (r"H100 PCIe", _H100_PCIE, 2000, "H100 datasheet (2022): PCIe, half of sparse"),
    (r"H100 NVL", _H100_NVL, 3900, "H100 datasheet (2024): NVL, half of sparse"),
    (r"H800( SXM5?)?", _H100, 3350, "H800 datasheet: SXM, half of sparse"),
    (r"H800 PCIe", _H100_PCIE, 2000, "H800 datasheet: PCIe, half of sparse"),
    (r"H200", _H100, 4800, "H200 datasheet: SXM, half of sparse"),
    (r"H200 NVL", _H100_NVL, 4800, "H200 datasheet: NVL, half of sparse"),
    (r"H20", _H20, 4000, "H20 as server vendors print it"),
    (r"H20-3e", _H20, 4800, "H20 as server vendors print it"),
    (r"GH200 (480|120)GB", _H100, 4000, "GH200 datasheet: HBM3, half of sparse"),
    (r"GH200 144G HBM3e", _H100, 4900, "GH200 datasheet: HBM3e, half of sparse"),
    (r"B100", (60, 875, 1750, 1750, 3500, 3500), 8000, "HGX B100: an eighth, half of sparse"),
    (r"B200", (75, 1125, 2250, 2250, 4500, 4500), 8000, "DGX/HGX B200: an eighth, half of sparse"),
    (r"B300( SXM6( AC)?)?", (75, 1125, 2250, 2250, 4500, None), 8000, "HGX B300: an eighth"),
    (r"GB200", (80, 1250, 2500, 2500, 5000, 5000), 8000, "GB200 NVL72 datasheet: half of sparse"),
    # NVIDIA, workstations: rates with FP32 accumulation
    (r"RTX 3090", (35.6, 35.6, 71, 71, None, 284), 936, "GA102 whitepaper"),
    (r"RTX A6000", (38.7, 77.4, 154.8, 154.8, None, 309.7), 768, "GA102 whitepaper"),
    (r"RTX 4090", (82.6, 82.6, 165.2, 165.2, 330.3, 660.6), 1008, "Ada whitepaper"),
    (
        r"RTX 6000 Ada Generation",
        (91.1, 182.1, 364.2, 364.2, 728.5, 728.5),
        960,
        "Ada whitepaper (professional)",
    ),
    (r"RTX 5090", (104.8, 104.8, 209.5, 209.5, 419, 838), 1792, "RTX Blackwell whitepaper"),
    # Kunlun
    (r"R200(-8F)?", _R200, 512, "R200 product page"),
    (r"R300", _R200, 512, "R480-X8 product page: an eighth; unchecked"),
    # Ascend, as npu-smi names the chips
    (r"910A", (None, None, None, 256, None, 512), 1200, "Hot Chips 2019, Ascend 910"),
    (r"910B2", (None, None, None, 376, None, None), None, "Atlas 800T A2: an eighth; unchecked"),
    (r"910B3", (None, None, None, 313, None, None), None, "Atlas 800T A2: an eighth; unchecked"),
    (r"910B4", (None, None, None, 280, None, None), None, "Atlas 800I A2: an eighth; unchecked"),
    # Hygon
    (
        r"K100[ _-]AI",
        (49, 96, 192, 192, None, 392),
        None,
        "K100-AI as server vendors print it; unchecked",
    ),
)
"""(name, TFLOP/s for each of `DTYPES`, GB/s, source), for dense matrices; None where the source
gives no number. The name is a pattern that matches the whole name of the device without its brand.
"unchecked" marks numbers that could not be compared with the document again. Missing for want of a published number: P800, 910B1, BW1000, A10G."""

LINKS: tuple[tuple[str, float, str], ...] = (
    (r"V100-SXM[23](-\d+GB)?", 150, "V100 datasheet: NVLink, half of both directions"),
    (r"A100-SXM4-\d+GB", 300, "A100 datasheet: NVLink, half of both directions"),
    (r"A800-SXM4-\d+GB", 200, "A800 datasheet: NVLink, half of both directions"),
    (r"H100( \d+GB HBM3| SXM5?)", 450, "H100 datasheet: NVLink, half of both directions"),
    (r"H800( SXM5?)?", 200, "H800 datasheet: NVLink, half of both directions"),
    (r"H200", 450, "H200 datasheet: NVLink, half of both directions"),
    (r"H20(-3e)?", 450, "H20 as server vendors print it: NVLink, half of both directions"),
    (r"B[123]00( SXM6( AC)?)?", 900, "HGX B100, B200, B300: NVLink, half of both directions"),
    (r"GB200", 900, "GB200 NVL72 datasheet: NVLink, half of both directions"),
)
"""(name, GB/s, source): what a device can send to the devices of its host, and receive at the same
time. The name is as in `DEVICES`. Missing: devices with PCIe, which others on the host share, and those
whose bridges join pairs only."""

_BRAND = re.compile(
    r"^((NVIDIA|Tesla|GeForce|Quadro|KUNLUN(XIN)?|Hygon|DCU|Huawei) |Ascend ?)*", re.I
)


@dataclass(frozen=True)
class Device:
    """What the vendor of a device publishes about it."""

    name: str
    """The name that was asked for."""
    memory_bandwidth: float | None
    """Bytes per second of the device's memory."""
    source: str
    link_bandwidth: float | None
    """Bytes per second that it can send to the devices of its host; None if unknown, see `LINKS`."""
    _tflops: _Rates

    def peak_flops(self, dtype: str) -> float | None:
        """Return the peak dense FLOP/s, or integer operations/s for int8.

        Args:
            dtype: one of `DTYPES`, or Paddle's name such as ``bfloat16``.

        Returns:
            None if the device lacks the data type, or if its vendor publishes no number.
        """
        name = _ALIASES.get(dtype.removeprefix("paddle."), dtype)
        tflops = self._tflops[DTYPES.index(name)] if name in DTYPES else None
        return tflops * 1e12 if tflops is not None else None


def known_device(name: str) -> Device | None:
    """Return what is published about a device; None for an unknown device.

    Args:
        name: the name that the vendor's tools and CUDA give, with or without its brand.

    >>> device = known_device("NVIDIA H100 80GB HBM3")
    >>> device.peak_flops("fp8"), device.memory_bandwidth, device.link_bandwidth
    (1979000000000000.0, 3350000000000.0, 450000000000.0)
    >>> known_device("NVIDIA A10G")
    """
    model = _BRAND.sub("", name.strip())
    for pattern, tflops, gb_per_s, source in DEVICES:
        if re.fullmatch(pattern, model):
            bandwidth = gb_per_s * 1e9 if gb_per_s is not None else None
            links = (rate * 1e9 for link, rate, _ in LINKS if re.fullmatch(link, model))
            return Device(name, bandwidth, source, next(links, None), tflops)
    return None


def known_peak_flops(name: str) -> float | None:
    """Return the peak dense FLOP/s of a device for fp16, which is also its peak for bf16.

    Devices without bf16, such as V100, have the number for fp16. None for an unknown device.

    >>> known_peak_flops("NVIDIA A100-SXM4-80GB")
    312000000000000.0
    """
    device = known_device(name)
    return device.peak_flops("fp16") if device is not None else None
