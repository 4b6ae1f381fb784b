"""Which kernels communicate, by their names: one rule for the libraries of all makers.

=========  =======================  ==================================================
library    devices                  for example
=========  =======================  ==================================================
NCCL       NVIDIA                   ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)``
RCCL       AMD, Hygon               ``rcclGenericKernel<...>``; newer ones as NCCL's
BKCL       Kunlun                   ``bkcl_all_reduce`` (bkcl.h)
HCCL       Ascend, Gaudi            ``hcom_allReduce__428_0_1``, ``HcclAllReduce``
CNCL       Cambricon                ``cnclAllReduce`` (cncl.h)
MCCL       MetaX, Moore Threads     as NCCL's, with another first letter
TCCL       Tecorigin                ``tcclAllReduce`` (tccl.h)
XCCL       Paddle's custom devices  ``xccl_all_reduce``; a name of Paddle's own rule
DeepEP     NVIDIA, AMD              ``deep_ep::internode::dispatch<...>``
=========  =======================  ==================================================

A library's name counts at the start of a word only, and only if the word ends there or a capital
letter, a digit, an underscore or the name of an operation follows. So ``hcomplex_mul`` and
``mcclellan_kernel`` are computation. In a mangled C++ name, a digit comes before each word:
``_ZN7deep_ep9intranode7combineI...``.

Of DeepEP, the kernels count that move data or wait for other ranks (csrc/kernels); not
``get_dispatch_layout``, which only computes. Copies never count: NCCL 2.28 can run collectives as
memory copies, whose names are those of all copies.

Paddle's own rule is narrower: see `PADDLE_PATTERN`.
"""

from __future__ import annotations

import re
from functools import lru_cache

import polars as pl

from ppprof.trace.labels import Labels

_LIBRARIES = ("nccl", "rccl", "bkcl", "hccl", "hcom", "cncl", "mccl", "tccl", "xccl")
_OPERATIONS = "all|barrier|bcast|broadcast|dev|gather|group|kernel|recv|reduce|scatter|send"

PADDLE_PATTERN = "nccl|xccl"
"""A kernel communicates by Paddle's rule if its name, in lower case, contains this pattern.

Source: ``TraceParseResult`` of paddle 3.3's profiler_statistic.py. Only the tables that equal Paddle's
use it.
"""

TORCH_SPANS = rf"^(c10d::|({'|'.join((*_LIBRARIES, 'gloo', 'mpi', 'ucc'))}):|record_param_comms$)"
"""The names of torch's host events that communicate: ``nccl:all_reduce``, ``c10d::allreduce_``."""


RESHARDING = re.compile(
    r"((PTo[RS]|STo[RS]|XToRShrink|RToXExpand|SameStatus|(Same|Cross)NdMesh)Reshard"
    r"|[PRS]To[PRS]ReshardCrossMesh)"
)
"""The whole names of the host events of Paddle's semi-automatic parallelism that move data: a tensor
from one placement on the ranks (P partial, R replicated, S sharded) or one mesh to another. The others,
such as RToSReshard, cut out what is there. On a mesh of several axes all have one name."""


def _alternatives(names: tuple[str, ...]) -> str:
    return f"(?:{'|'.join(names)})"


_LOWER = _alternatives(_LIBRARIES)
_TITLE = _alternatives(tuple(name.capitalize() for name in _LIBRARIES))
_UPPER = _alternatives(tuple(name.upper() for name in _LIBRARIES))
_KERNEL = re.compile(
    rf"(?<![A-Za-z]){_LOWER}(?![a-z])"
    rf"|(?<![A-Za-z])(?i:{_LOWER}(?:{_OPERATIONS}))"
    rf"|(?<![A-Z]){_TITLE}(?![a-z])"
    rf"|(?<![A-Z]){_UPPER}(?![A-Z](?![a-z]))"
    r"|(?<![A-Za-z])deep_ep(?:::|\d+)(?:intra|inter)node(?:_ll)?(?:::|\d+)"
    r"(?:cached_)?(?:notify|dispatch|combine|barrier)"
)


@lru_cache(4096)
def is_communication(kernel: str) -> bool:
    """Return whether a kernel communicates, by its name.

    >>> is_communication("ncclDevKernel_SendRecv"), is_communication("hcomplex_mul")
    (True, False)
    """
    return _KERNEL.search(kernel) is not None


def communicates(kernels: pl.Series) -> pl.Series:
    """Return whether each kernel communicates.

    Args:
        kernels: names of kernels, a categorical column, shape (N,).

    Returns:
        Booleans, shape (N,).
    """
    return pl.Series(Labels.of(kernels).where(is_communication))
