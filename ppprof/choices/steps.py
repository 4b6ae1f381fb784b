"""Choose steps: a range of recorded steps, or the length of a window to record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppprof.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

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
