"""What a call of a device's runtime or driver does: one table for all makers.

Paddle names some 45 calls; the others are called ``Runtime API`` and their number in CUPTI's header
(cupti_runtime_cbid.h). It looks numbers of driver calls (cupti_driver_cbid.h) up in the same table.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ppprof.arrays import Bool
from ppprof.trace.labels import Labels

LAUNCH = "launch"
"""Puts a kernel, or a graph of kernels, into a queue of the device."""
WAIT = "wait"
"""Returns when the device has done something: a stream, an event, everything."""
COPY = "copy"
"""Puts a copy or a memset into a queue."""
BLOCKING = "blocking"
"""Copies, allocates or frees, and returns only when that is done, perhaps when all work is done."""
BEGIN_CAPTURE, END_CAPTURE = "begin capture", "end capture"
"""Between them, the thread's launches go into a graph and run nothing."""
OTHER = "other"

_NUMBERS = {
    **{32: BLOCKING, 44: COPY},  # cudaMemcpy2D, cudaMemcpy2DAsync
    **{
        121: WAIT,
        126: WAIT,
        137: WAIT,
    },  # cuEventSynchronize, cuStream- and cudaThread-, cudaEvent-
    **{307: LAUNCH, 311: LAUNCH, 430: LAUNCH},  # cuLaunchKernel, cudaGraphLaunch, -KernelExC
    **dict.fromkeys((315, 316, 452, 453, 495, 496, 539, 540), BEGIN_CAPTURE),
    **dict.fromkeys((319, 320, 497, 498), END_CAPTURE),
}
_NAMES = {
    **{32: "cudaMemcpy2D", 44: "cudaMemcpy2DAsync", 137: "cudaEventSynchronize"},
    **{311: "cudaGraphLaunch", 430: "cudaLaunchKernelExC"},
    **{121: "cuEventSynchronize", 307: "cuLaunchKernel"},
    126: "cudaThreadSynchronize or cuStreamSynchronize",
}
"""Number -> name of the call; of 126, which is in use in both tables, both names.

Source: the enumerations ``CUpti_runtime_api_trace_cbid`` and ``CUpti_driver_api_trace_cbid``.
"""
_NUMBERED = re.compile(r"runtime api ([0-9]{1,9})")
_VERSION = re.compile(r"(?<=[a-z0-9])(_pts[zk])?_v[0-9]{4,5}\Z", re.IGNORECASE)
_KINDS = {
    WAIT: re.compile(r"synchroni[sz]e|queuesync|syncdevice|^xpu_?wait"),
    LAUNCH: re.compile(r"launch(?!hostfunc)"),
    BEGIN_CAPTURE: re.compile("streambegincapture"),
    END_CAPTURE: re.compile("streamendcapture"),
    COPY: re.compile(r"mem(cpy|set).*async|memset"),
    BLOCKING: re.compile(r"memcpy|alloc|free|hostregister|hostunregister"),
}
"""Kind -> names of its calls, in lower case; the first kind whose pattern is found counts."""


def name_of_call(name: str) -> str:
    """Return the name of a runtime call as in CUDA's documentation.

    Paddle adds the version of CUDA that introduced it, and knows some by their numbers alone.

    >>> name_of_call("Runtime API 137"), name_of_call("cudaMemcpyAsync_v3020"), name_of_call("Runtime API 9")
    ('cudaEventSynchronize (Runtime API 137)', 'cudaMemcpyAsync', 'Runtime API 9')
    >>> name_of_call("cudaLaunchKernel_ptsz_v7000"), name_of_call("cuMemAlloc_v2")
    ('cudaLaunchKernel', 'cuMemAlloc_v2')
    """
    numbered = _NUMBERED.fullmatch(name.lower())
    known = _NAMES.get(int(numbered[1])) if numbered else None
    return f"{known} ({name})" if known else _VERSION.sub("", name)


@lru_cache(1024)
def kind_of_call(name: str) -> str:
    """Return the kind of a runtime call from its name.

    >>> kind_of_call("cudaLaunchKernelExC_v11060"), kind_of_call("hipStreamSynchronize")
    ('launch', 'wait')
    >>> kind_of_call("cudaMemcpyAsync"), kind_of_call("cudaMemcpy"), kind_of_call("Runtime API 137")
    ('copy', 'blocking', 'wait')
    """
    lowered = name.lower()
    numbered = _NUMBERED.fullmatch(lowered)
    if numbered:
        return _NUMBERS.get(int(numbered[1]), OTHER)
    return next((kind for kind, names in _KINDS.items() if names.search(lowered)), OTHER)


def is_of_kind(names: Labels, *kinds: str) -> Bool:
    """Return whether each runtime call is of one of ``kinds``.

    Returns:
        Booleans, shape (N,).
    """
    return names.where(lambda name: kind_of_call(name) in kinds)
