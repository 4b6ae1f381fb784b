"""Peak compute rates of known devices."""

from __future__ import annotations

import re

_T = 1e12

PEAK_FLOPS = (
    (r"V100-SXM[23](-\d+GB)?", 125 * _T, "Tesla V100 datasheet: V100 SXM2, deep learning"),
    (r"V100-PCIE(-\d+GB)?", 112 * _T, "Tesla V100 datasheet: V100 PCIe, deep learning"),
    (r"V100S-PCIE-32GB", 130 * _T, "Tesla V100 datasheet: V100S PCIe, deep learning"),
    (r"A100-(SXM4|PCIE)-\d+GB|A100 80GB PCIe", 312 * _T, "A100 datasheet: without sparsity"),
    (r"A800-SXM4-\d+GB|A800 80GB PCIe", 312 * _T, "A800 datasheet: without sparsity"),
    (r"H100( \d+GB HBM3| SXM5?)", 989.5 * _T, "H100 datasheet: SXM, half of 1,979 with sparsity"),
    (r"H100 PCIe", 756.5 * _T, "H100 datasheet (2022): PCIe, half of 1,513 with sparsity"),
    (r"H100 NVL", 835.5 * _T, "H100 datasheet (2024): NVL, half of 1,671 with sparsity"),
    (r"H800( SXM5?)?", 989.5 * _T, "H800 datasheet: SXM, half of 1,979 with sparsity"),
    (r"H800 PCIe", 756.5 * _T, "H800 datasheet: PCIe, half of 1,513 with sparsity"),
    (r"H200", 989.5 * _T, "H200 datasheet: SXM, half of 1,979 with sparsity"),
    (r"H200 NVL", 835.5 * _T, "H200 datasheet: NVL, half of 1,671 with sparsity"),
    (r"H20(-3e)?", 148 * _T, "H20 specifications as server vendors print them: dense"),
    (r"A10", 125 * _T, "A10 datasheet: without sparsity"),
    (r"L20", 119.5 * _T, "L20 specifications as server vendors print them: dense"),
    (r"L40S", 362.05 * _T, "L40S datasheet: without sparsity"),
    (r"RTX 4090", 165.2 * _T, "Ada GPU architecture whitepaper: FP32 accumulate, dense"),
    (r"B200", 2250 * _T, "DGX B200 datasheet: an eighth of half of 36 PFLOPS with sparsity"),
)
"""(name, FLOP/s, source): NVIDIA's numbers for dense bf16 and fp16 matrices on tensor cores. V100
has no bf16, so its number is for fp16. The name is a pattern that matches the whole device name of
CUDA without its brand prefix (``NVIDIA``, ``Tesla``, ``GeForce``)."""


def known_peak_flops(name: str) -> float | None:
    """Return the peak dense bf16/fp16 FLOP/s of a GPU; None for an unknown GPU.

    Args:
        name: the device name of CUDA, with or without its brand prefix.

    >>> known_peak_flops("NVIDIA A100-SXM4-80GB")
    312000000000000.0
    >>> known_peak_flops("NVIDIA A10G")
    """
    model = re.sub(r"^(NVIDIA |Tesla |GeForce )*", "", name.strip())
    matches = (flops for pattern, flops, _ in PEAK_FLOPS if re.fullmatch(pattern, model))
    return next(matches, None)
