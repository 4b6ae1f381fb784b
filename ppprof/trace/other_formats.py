"""Name the files that are no trace ppprof reads, so that a message can say what they are."""

from __future__ import annotations

import re

_SIGNATURES = (
    (
        rb"\xff\xfe|\xfe\xff|[\[{]\0|\0[\[{]",
        "text in UTF-16; convert it to UTF-8: iconv -f UTF-16 -t UTF-8",
    ),
    (rb"(?s).{257}ustar", "a tar archive; unpack it, and give the traces in it"),
    (rb"PK\x03\x04", "a zip archive; unpack it, and give the traces in it"),
    (rb"\x28\xb5\x2f\xfd", "packed with zstd; unpack it: zstd -d"),
    (rb"BZh[1-9]", "packed with bzip2; unpack it: bunzip2"),
    (rb"\xfd7zXZ\0", "packed with xz; unpack it: xz -d"),
    (rb"SQLite format 3\0", "a database such as Nsight Systems, msprof and rocprof export"),
    (rb"\x80[\x02-\x05].*", "a pickle, such as PyTorch's memory snapshot"),
    (
        rb"version https://git-lfs\.github\.com",
        "a pointer of Git LFS; fetch the file itself: git lfs pull",
    ),
)
"""Pattern of the first bytes -> what the file is."""
_WRITERS = (
    (
        rb'"CPU functions"|"CUDA functions"',
        "torch's profiler before Kineto (torch.autograd.profiler)",
    ),
    (rb'"name"\s*:\s*"/(device:|host:)', "XLA's profiler (JAX, TensorFlow)"),
    (rb'"viztracer_metadata"|"cat"\s*:\s*"FEE"', "VizTracer"),
    (rb'"cat"\s*:\s*"(Session|Node)"', "ONNX Runtime's profiler"),
    (rb'"(KERNEL_LAUNCH|GROUP_API|COLL_API|P2P_API)"', "NCCL's example profiler"),
    (rb'"schema"\s*:\s*"[^"]*"[^\[]{0,1000}"nodes"\s*:\s*\[', "PyTorch's execution trace (Chakra)"),
    (rb'"rocprofiler-sdk-tool"', "rocprofv3 (--output-format json)"),
    (rb'"device_traces"\s*:|"segments"\s*:\s*\[', "PyTorch's memory snapshot"),
    (rb'"(devtools\.timeline|toplevel)"', "Chrome's tracing"),
    (rb'"ph"\s*:\s*"[be]"', 'a writer of asynchronous spans ("ph": "b", "e")'),
)
"""Pattern in the first events -> whose they are."""


def signature_of(head: bytes) -> str | None:
    """Return what a file is that begins with ``head``, 512 bytes or more; None if it is unknown.

    >>> signature_of(b"BZh91AY&SY")
    'packed with bzip2; unpack it: bunzip2'
    """
    return next((name for pattern, name in _SIGNATURES if re.match(pattern, head)), None)


def writer_of(text: bytes) -> str | None:
    """Return whose JSON a file is, by the text at its beginning; None if it is unknown."""
    return next((name for pattern, name in _WRITERS if re.search(pattern, text)), None)
