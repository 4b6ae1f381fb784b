"""`Finding`: the result of a rule of `ppprof.analysis.advice`, with its evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

import polars as pl

Fact = Union[str, int, float, None]

SEVERITIES = ("major", "moderate", "minor", "note")
"""The severities of a finding, the worst first. A ``note`` is nothing to mend: it says how to read the
others."""

SMALL = ("minor", "note")
"""Severities with which a finding is not named in one line."""

CONFIDENCES = ("sure", "likely", "possible")
"""The confidences of a finding. ``sure``: measured directly. ``likely``: the effect is measured,
the cause is inferred. ``possible``: one of several possible causes."""

MAJOR_RATIO = 0.10
"""Share of a step from which a cost is major: a tenth of the machine's time is worth a change to
the job."""

MODERATE_RATIO = 0.05
"""Share of a step from which a cost is moderate: smaller gains are within the noise between two
runs of one config on a shared machine. `ppprof.analysis.ranks.stragglers` has this limit, too."""

LEAST_RATIO = 0.01
"""Share of a step. Smaller costs are not reported."""

LEAST_COST_NS = 1_000
"""Smaller costs are not reported, whatever their share: a clock is read no more exactly."""

MOST_ROWS = 10
"""Maximum number of rows of a finding's evidence."""


@dataclass(frozen=True)
class StepTime:
    """When a rank was in a step, on the clock of the rank's trace."""

    rank: int
    step: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Finding:
    """A change to make, or a reason to doubt the numbers."""

    rule: str
    """The rule's name, also the key of its texts in ``ppprof/report/texts``."""
    severity: str
    """One of `SEVERITIES`."""
    cost_ns: float | None
    """The possible gain in the run's typical step; None if the finding costs no time."""
    share: float | None
    """``cost_ns`` as a share of the run's typical step, 0 to 1; None without ``cost_ns``."""
    confidence: str
    """One of `CONFIDENCES`."""
    facts: Mapping[str, Fact]
    """Numbers and names in the rule's texts. Keys end in their units: ``idle_ns``. ``remedy``
    selects one of the rule's proposals."""
    evidence: pl.DataFrame
    """The rows that show the finding, at most `MOST_ROWS`. Columns end in their units."""

    changes: tuple[str, ...] = ()
    """What a replay changes to win ``cost_ns``, as for ``ppprof path --what-if``; empty if the cost is
    the rule's own estimate."""

    alone_ns: float | None = None
    """The cost without the other findings: ``cost_ns`` comes on top of what these cost. None: it is
    ``cost_ns``."""

    source: tuple[tuple[int, str], ...] = ()
    """Number and text of the lines of source around the place that the finding names; empty if it
    names none, or if no source was kept."""

    at_most: str = "major"
    """The worst severity that the finding may have: less where no remedy is known to win all of its cost."""

    time: StepTime | None = None
    """The longest step, of the rank if the finding names one: where a trace shows it. None without one."""

    @property
    def rank(self) -> int | None:
        """The rank that the finding names; None if it is about several or all ranks."""
        return self._number("rank")

    @property
    def step(self) -> int | None:
        """The step that the finding names; None if it is about all steps."""
        return self._number("step")

    @property
    def module(self) -> str | None:
        """The module that the finding names, such as ``GPT/Block``; None without one."""
        gap = self.facts.get("reason") if self.facts.get("reason_kind") == "gap" else None
        for name in (self.facts.get("layer"), self.facts.get("gap"), gap):
            module = str(name or "").partition(",")[0]
            if module not in ("", "step") and not _PLACE.search(module):
                return module
        return None

    def _number(self, name: str) -> int | None:
        value = self.facts.get(name)
        return value if isinstance(value, int) else None

    @property
    def place(self) -> tuple[str, int] | None:
        """The file and the line of the user's code that the finding names; None without one."""
        names = (str(self.facts.get(name)) for name in ("reason", "line", "gap", "layer"))
        match = next(filter(None, map(_PLACE.search, names)), None)
        return None if match is None else (match[1], int(match[2]))


_PLACE = re.compile(r"([^\s(,:]+\.py):([0-9]{1,9})")


@dataclass(frozen=True)
class StepPart:
    """A part of the step that takes much of it, whether or not a rule finds fault with it."""

    kind: str
    """``phase``, ``operator``, ``module`` or ``line``."""
    name: str
    share: float
    """Its time as a share of the run's typical step, 0 to 1."""


class Findings(list[Finding]):
    """The findings of a run, a list; notebooks show it as a page of text and tables."""

    def __init__(
        self,
        findings: Iterable[Finding] = (),
        largest: Sequence[StepPart] = (),
        withheld: Sequence[str] = (),
        has_traces: bool = True,
    ) -> None:
        super().__init__(findings)
        self.withheld = tuple(withheld)
        """Rules whose findings were left out: device events that they need are not recorded."""
        self.largest = tuple(largest)
        """The largest phase, operator and module; empty if the run has no trace."""
        self.has_traces = has_traces
        """False if only step times were read, which show few causes."""


def severity_of(share: float, at_most: str = "major") -> str:
    """Return the severity of a possible gain, given as a share of a step, ``at_most`` the worst.

    >>> severity_of(0.48), severity_of(0.05), severity_of(0.049), severity_of(0.48, "minor")
    ('major', 'moderate', 'minor', 'minor')
    """
    severity = "moderate" if share >= MODERATE_RATIO else "minor"
    if share >= MAJOR_RATIO:
        severity = "major"
    return max(severity, at_most, key=SEVERITIES.index)
