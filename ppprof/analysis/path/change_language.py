"""The language of ``ppprof path --what-if``: what changes, and how. It imports neither numpy nor polars.

A change is a target, a colon and a value::

    matmul: 0.7x                 operators and kernels of that name take 0.7 times as long
    module blocks.3: 0.5x        what runs in a module and those in it, forward and backward
    line train.py:41: 0          what a line of the training's code started takes no time
    link mp: 2x                  transfers over an axis, or between ranks ("link 1,5"), take twice as long
    rank 5: as usual             each operator takes what it takes on the other ranks, median
    data loading: 0              a kind of time, see `ppprof.analysis.path.rank_graph.KINDS`
    overlap dp                   transfers over an axis take no time of a step
    num_workers: enough          loading data takes no time of a step
    kernel launches: graph       the host launches a step's kernels at once, as a CUDA graph
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ppprof.errors import UsageError

_FACTOR = re.compile(r"(?P<number>\d{1,6}(\.\d{1,6})?)x|0(\.0{1,6})?")
_TARGET = re.compile(r"(?P<kind>operator|kernel|module|line|link|rank)\s+(?P<name>\S.*)")
_FORMS = (
    "expected TARGET: VALUE such as 'matmul: 0.7x', 'module blocks.3: 0.5x', 'line train.py:41: 0', "
    "'link mp: 2x', 'rank 5: as usual', 'data loading: 0', 'overlap dp', 'num_workers: enough' or "
    "'kernel launches: graph'"
)


class Change(NamedTuple):
    """A change of the times of some edges."""

    text: str
    """As the user wrote it."""
    target: str
    """``name``, ``operator``, ``kernel``, ``module``, ``line``, ``link``, ``rank`` or ``launches``."""
    name: str
    """Name of the target; "" for launches."""
    factor: float | None
    """What the times are multiplied by; None for "as usual"."""


def parse_change(text: str) -> Change:
    """Return a change of `--what-if`.

    >>> parse_change("line train.py:41: 0")[1:], parse_change("matmul: 0.7x")[1:]
    (('line', 'train.py:41', 0.0), ('name', 'matmul', 0.7))
    >>> parse_change("rank 5: as usual")[1:], parse_change("overlap dp")[1:]
    (('rank', '5', None), ('link', 'dp', 0.0))

    Raises:
        UsageError: the text is no change.
    """
    stripped = text.strip()
    if overlap := re.fullmatch(r"overlap\s+(\S+)", stripped):
        return Change(stripped, "link", overlap[1], 0.0)
    written, colon, value = (part.strip() for part in stripped.rpartition(":"))
    if not colon or not written:
        raise UsageError(f"{text!r}: {_FORMS}")
    if (written, value) == ("num_workers", "enough"):
        return Change(stripped, "name", "data loading", 0.0)
    if (written, value) == ("kernel launches", "graph"):
        return Change(stripped, "launches", "", 0.0)
    match = _TARGET.fullmatch(written)
    target, name = (match["kind"], match["name"]) if match else ("name", written)
    if target == "rank" and not re.fullmatch(r"\d{1,6}", name):
        raise UsageError(
            f"{text!r}: {name!r} is no rank: expected a number, as in 'rank 5: as usual'"
        )
    if value == "as usual":
        if target != "rank":
            raise UsageError(
                f"{text!r}: only a rank can be 'as usual': expected 0 or a factor, 0.7x"
            )
        return Change(stripped, target, name, None)
    factor = _FACTOR.fullmatch(value)
    if factor is None:
        raise UsageError(
            f"{text!r}: {value!r} is no value: expected 0, or a factor of the time, 0.7x"
        )
    return Change(stripped, target, name, float(factor["number"] or 0))
