"""`Finding`: the result of a rule of `ppprof.analysis.advice`, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

import polars as pl

Fact = Union[str, int, float, None]

SEVERITIES = ("major", "moderate", "minor")
"""The worst first."""

CONFIDENCES = ("sure", "likely", "possible")
"""Measured directly; effect measured, cause inferred; one of several possible causes."""

MAJOR_RATIO = 0.10
"""Of a step: a tenth of the machine's time is worth a change to the job."""

MODERATE_RATIO = 0.05
"""Of a step: smaller gains are within the noise between two runs of one config on a shared machine. It is
also the limit of `ppprof.analysis.ranks.stragglers`."""

LEAST_RATIO = 0.01
"""Of a step: smaller costs are not reported."""

MOST_ROWS = 10
"""Maximum number of rows of a finding's evidence."""


@dataclass(frozen=True)
class Finding:
    """A change to make, or a reason to doubt the numbers."""

    rule: str
    """The rule's name: the key of its texts in ``ppprof/report/catalogue``."""
    severity: str
    """One of `SEVERITIES`."""
    cost_ns: float | None
    """The possible gain per step, in the run's typical step; None if it is not time."""
    share: float | None
    """The same as a share of the step, 0 to 1."""
    confidence: str
    """One of `CONFIDENCES`."""
    facts: Mapping[str, Fact]
    """Numbers and names in the text; keys end in their units. ``remedy`` selects one of the rule's
    proposals."""
    evidence: pl.DataFrame
    """The rows that show the finding, at most `MOST_ROWS`; columns end in their units."""


def severity_of(share: float) -> str:
    """Return the severity of a possible gain.

    >>> severity_of(0.48), severity_of(0.05), severity_of(0.049)
    ('major', 'moderate', 'minor')
    """
    if share >= MAJOR_RATIO:
        return "major"
    return "moderate" if share >= MODERATE_RATIO else "minor"
