"""Choose how the rows of tables are sorted and grouped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ppprof.errors import UsageError
from ppprof.topology import AXES

SortKey = Literal[
    "auto",
    "cpu_total",
    "cpu_avg",
    "cpu_max",
    "cpu_min",
    "gpu_total",
    "gpu_avg",
    "gpu_max",
    "gpu_min",
]
"""One of `SORT_KEYS`, or ``auto``: gpu_total if the trace has device events, else cpu_total."""

SORT_KEYS: tuple[str, ...] = get_args(SortKey)[1:]
"""Keys by which summaries are sorted: the largest value first, but for ``_min`` the smallest first
(as in Paddle). ``gpu_total`` is the column gpu_total_ns."""

PADDLE_SORT_KEYS = {key[:3].upper() + key[4:].capitalize(): key for key in SORT_KEYS}
"""Our sort keys, keyed by their names in ``paddle.profiler.SortedKeys``: GPUTotal -> gpu_total."""

DIFF_SORT_KEYS = ("calls", "cpu_total", "cpu_self", "gpu_total", "gpu_self")
"""Keys by which the operators and kernels of a comparison are sorted."""

GROUPS = ("rank", "step", "host", *AXES)
"""Columns by which the steps of all ranks can be grouped."""


def sort_key(text: str) -> str:
    """Return the sort key of a summary that ``text`` names: ours or Paddle's.

    >>> sort_key("GPUMax"), sort_key("cpu_avg"), sort_key("auto")
    ('gpu_max', 'cpu_avg', 'auto')

    Raises:
        UsageError: ``text`` is neither ``auto``, one of `SORT_KEYS`, nor a name of
            ``paddle.profiler.SortedKeys``.
    """
    key = PADDLE_SORT_KEYS.get(text, text)
    if key not in ("auto", *SORT_KEYS):
        raise UsageError(f"sorted_by {key!r}: expected auto or one of {', '.join(SORT_KEYS)}")
    return key


@dataclass(frozen=True)
class SummaryOptions:
    """Options of the summaries.

    >>> SummaryOptions("GPUMax").sorted_by
    'gpu_max'

    Raises:
        UsageError: ``sorted_by`` is neither ``auto``, one of `SORT_KEYS`, nor a name of
            ``paddle.profiler.SortedKeys``.
    """

    sorted_by: str = "auto"
    """One of `SORT_KEYS`, or ``auto``: gpu_total if the trace has device events, else cpu_total. A
    name of ``paddle.profiler.SortedKeys``, such as GPUMax, is replaced by its key in `SORT_KEYS`."""
    thread_sep: bool = False
    """Whether operators and user-defined spans are listed thread by thread. If False, the threads
    are merged."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sorted_by", sort_key(self.sorted_by))
