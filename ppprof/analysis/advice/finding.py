"""`Finding`: what a rule of `ppprof.analysis.advice` has to say, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

import polars as pl

Fact = Union[str, int, float, None]

SEVERITIES = ("major", "moderate", "minor")
"""The worst first."""

CONFIDENCES = ("sure", "likely", "possible")
"""Measured as it is told; measured, and its cause inferred; one explanation of several."""

MAJOR_RATIO = 0.10
"""Of a step: a tenth of the machine's time, which is what one changes a job for."""

MODERATE_RATIO = 0.05
"""Of a step: below it two runs of one config on a shared machine differ by as much, which is also
what `ppprof.analysis.ranks.stragglers` calls little."""

LEAST_RATIO = 0.01
"""Of a step: what costs less is not told."""

MOST_ROWS = 10
"""Of a finding's evidence."""


@dataclass(frozen=True)
class Finding:
    """Something to change, or to know before numbers are trusted."""

    rule: str
    """Which rule: the key of its texts in ``ppprof/report/catalogue``."""
    severity: str
    """One of `SEVERITIES`."""
    cost_ns: float | None
    """What would be won per step, of the run's typical step; None where it is no time."""
    share: float | None
    """That of the step, 0 to 1."""
    confidence: str
    """One of `CONFIDENCES`."""
    facts: Mapping[str, Fact]
    """Numbers and names that the text quotes; units end the key. ``remedy`` says which of the rule's
    proposals fits."""
    evidence: pl.DataFrame
    """The rows that show it, `MOST_ROWS` at the most; units end the columns."""


def severity_of(share: float) -> str:
    """By what is won.

    >>> severity_of(0.48), severity_of(0.05), severity_of(0.049)
    ('major', 'moderate', 'minor')
    """
    if share >= MAJOR_RATIO:
        return "major"
    return "moderate" if share >= MODERATE_RATIO else "minor"
