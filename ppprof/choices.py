"""What users choose by name or number, on the command line, in a config and in the library.

Tables (*views*), how their rows are sorted, steps, units and formats: the names and their checks,
without the code that they select. Parsing a command line or attaching a profiler imports this module,
so it must import neither numpy nor polars.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from ppprof.errors import UsageError
from ppprof.topology import AXES

if TYPE_CHECKING:
    import polars as pl

VIEWS = ("device", "overview", "model", "dist", "op", "kernel", "memcpy", "udf", "mem")
"""Paddle's nine summary tables, in printing order."""

ALL_VIEWS = (*VIEWS, "copies", "shape", "layer", "efficiency", "python")
"""`VIEWS`, and the views that Paddle does not have."""

ACROSS = ("model", "dist", "op", "kernel", "memcpy", "udf")
"""The views whose rows are names that ranks share, in the order of `VIEWS`."""

WAYS = ("rank", "name")
"""The ways to join the tables of several ranks: one row per name and rank, or one row per name. See
`ppprof.analysis.summaries.across_ranks`."""

PATH_GROUPS = ("kind", "name", "operator", "module", "line", "rank", "link", "axis", "step")
"""What the time on a critical path can be divided by."""

DIFF_VIEWS = ("overview", "rank", "line", "op", "kernel", "dist", "runtime", "shape", "module")
"""The tables of a comparison, in the order in which they are shown."""


def check_across(views: Sequence[str], by: str) -> None:
    """Reject views that cannot be compared across ranks.

    Raises:
        UsageError: one of ``views`` is not in `ACROSS`, or ``by`` is not in `WAYS`.
    """
    if by not in WAYS:
        raise UsageError(f"by {by!r}: expected {' or '.join(WAYS)}")
    others = [view for view in views if view not in ACROSS]
    if others:
        raise UsageError(
            f"{', '.join(map(repr, others))}: expected some of {', '.join(ACROSS)}, "
            "whose rows are names that ranks share"
        )


@dataclass(frozen=True)
class ReadOptions:
    """What a user knows about traces that the traces do not say."""

    step_mark: str | None = None
    """Regular expression for the names of spans that begin steps; None for the recorded steps."""
    communication: tuple[str, ...] = ()
    """Regular expressions for names of kernels that communicate, besides the known ones."""


def check_pattern(text: str) -> str:
    """Return ``text`` if it is a regular expression.

    Raises:
        UsageError: the text is invalid.
    """
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r}: not a regular expression: {error}") from error
    return text


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


MOST_TRIGGERED_STEPS = 10_000
"""Most steps of a window that can be requested."""

_STEPS = r"(?P<one>\d{1,18})|(?P<start>\d{0,18}):(?P<stop>\d{0,18})"


@dataclass(frozen=True)
class StepRange:
    """The steps from ``start`` to ``stop - 1``, as in ``Profiler.scheduler: [start, stop]``.

    >>> print(StepRange.parse("2:5"), StepRange.parse("7"), StepRange.parse("3:"))
    2:5 7:8 3:
    """

    start: int = 0
    """The first step of the range."""
    stop: int | None = None
    """The first step after the range; None: the range goes on to the last step."""

    @classmethod
    def parse(cls, text: str | int) -> StepRange:
        """Parse ``"A:B"`` (steps A to B - 1), ``"A:"``, ``":B"`` (from step 0) or one number.

        Raises:
            UsageError: ``text`` has none of these forms, or no step is in the range.
        """
        match = re.fullmatch(_STEPS, str(text).strip())
        if match is None or match[0] == ":":
            raise UsageError(
                f"steps {text!r}: expected A:B (steps A to B-1), A:, :B or one number, from 0"
            )
        if match["one"]:
            return cls(int(match["one"]), int(match["one"]) + 1)
        start = int(match["start"] or 0)
        stop = int(match["stop"]) if match["stop"] else None
        if stop is not None and stop <= start:
            raise UsageError(f"steps {text!r}: {stop} is not after {start}; no step is in it")
        return cls(start, stop)

    @classmethod
    def of(cls, steps: StepRange | str | int | None) -> StepRange | None:
        """Return ``steps`` as a range; a text or number is parsed, None (all steps) stays None.

        Raises:
            UsageError: the text is not a range of steps; see `parse`.
        """
        return steps if steps is None or isinstance(steps, cls) else cls.parse(steps)  # type: ignore[arg-type]

    def __str__(self) -> str:
        stop = "" if self.stop is None else self.stop
        return f"{self.start}:{stop}"

    def contains(self, step: pl.Expr) -> pl.Expr:
        """Return the expression for whether ``step`` is in the range; False where it is null."""
        inside = step >= self.start
        if self.stop is not None:
            inside &= step < self.stop
        return inside.fill_null(value=False)


TimeUnit = Literal["s", "ms", "us", "ns"]

TIME_UNITS: Mapping[str, float] = dict(zip(get_args(TimeUnit), (1e9, 1e6, 1e3, 1.0)))
"""Nanoseconds per unit, for each unit in which a table may be printed."""

TraceFormat = Literal["json", "json.gz", "pb"]

SUFFIXES = tuple(f".{name}" for name in get_args(TraceFormat))
"""Suffixes of the trace files that can be written."""


def check_time_unit(text: str) -> str:
    """Return ``text`` if it is one of `TIME_UNITS`.

    Raises:
        UsageError: unknown time unit.
    """
    if text not in TIME_UNITS:
        raise UsageError(f"time_unit {text!r}: expected one of {', '.join(TIME_UNITS)}")
    return text


def suffix_of(path: str | Path) -> str:
    """Return the suffix of `SUFFIXES` in which a file's name ends, such as ``.json.gz``.

    Raises:
        UsageError: the name ends in no suffix of `SUFFIXES`.
    """
    for suffix in SUFFIXES:
        if str(path).endswith(suffix):
            return suffix
    raise UsageError(f"{path}: expected a name that ends in one of {', '.join(SUFFIXES)}")
