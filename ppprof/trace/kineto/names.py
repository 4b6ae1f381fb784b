"""Words of Kineto's files: names and values that its reader and its writer share.

Sources: as `ppprof.trace.kineto.columns`.
"""

from __future__ import annotations

LAUNCHES = frozenset(
    [
        *("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime"),
        *("privateuse1_runtime", "privateuse1_driver", "Runtime"),
    ]
)
"""Values of ``cat`` for runtime calls; "Runtime" until torch 1.11."""
DEVICES = {
    **{"kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset"},
    **{"Kernel": "Kernel", "Memcpy": "Memcpy", "Memset": "Memset"},
}
"""``cat`` of a device event -> category."""
OPERATORS = frozenset(["cpu_op", "Operator"])
MODULE = "nn.Module: "
"""Prefix of the name of a python_function event that is a module.

Other python_function events are frames of the interpreter.
"""
LEAST_FRAME_NS = 500_000
"""Least length of a call in `ppprof.trace.schema.FRAMES`: there may be ten shorter ones per operator."""

STEP = "ProfilerStep#"
DDP = "DistributedDataParallel.forward"
EVALUATE = "autograd::engine::evaluate_function: "

SCALAR_TYPES = {
    **{"Byte": ("uint8", 1), "Char": ("int8", 1), "Bool": ("bool", 1)},
    **{"Short": ("int16", 2), "Int": ("int32", 4), "Long": ("int64", 8)},
    **{"UInt16": ("uint16", 2), "UInt32": ("uint32", 4), "UInt64": ("uint64", 8)},
    **{"Half": ("float16", 2), "BFloat16": ("bfloat16", 2)},
    **{"Float": ("float32", 4), "Double": ("float64", 8)},
    **{"ComplexHalf": ("complex32", 4), "ComplexFloat": ("complex64", 8)},
    "ComplexDouble": ("complex128", 16),
}
"""c10::ScalarType (c10/core/ScalarType.h) -> dtype name and bytes per element.

Types with 8 bits, such as Float8_e4m3fn, are not listed: they become float8_e4m3fn, with 1 byte.
"""

DEVICE_TYPES = {0: "cpu", 1: "gpu", 6: "gpu", 12: "xpu"}
"""c10::DeviceType (torch/headeronly/core/DeviceType.h) -> Paddle's name; 6 is HIP."""
