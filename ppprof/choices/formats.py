"""Choose how results are written: the unit of times, the language, the format of a trace file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from ppprof.errors import UsageError

TimeUnit = Literal["s", "ms", "us", "ns"]

TIME_UNITS: Mapping[str, float] = dict(zip(get_args(TimeUnit), (1e9, 1e6, 1e3, 1.0)))
"""Nanoseconds per unit, for each unit in which a table may be printed."""

LANGUAGES = ("en", "zh")
"""Languages in which findings and pages are written."""

LEAST_WIDTH = 40
"""The least columns of a terminal that tables are fitted to."""

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
