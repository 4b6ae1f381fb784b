"""What findings cost, from replays of the graph of all ranks without what they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from ppprof.analysis.path.change_language import parse_change
from ppprof.analysis.path.change_replay import factors_of
from ppprof.analysis.path.graph import Graph
from ppprof.arrays import Float64
from ppprof.errors import UsageError

MOST_ERROR = 0.1
"""The graph's steps may differ from the recorded ones by this share. Beyond it, no replay counts."""


class Replays:
    """The graph of all ranks, replayed with changes.

    Args:
        graph: the graph of all ranks.
        roles: rank -> its role, such as its pipeline stage.
        steps: window and step of the steps whose mean counts.
    """

    def __init__(self, graph: Graph, roles: Mapping[int, str], steps: pl.DataFrame) -> None:
        self._graph, self._roles = graph, roles
        numbered = graph.steps.with_row_index("row")
        self._steps = numbered.join(steps, ["window", "step"], "semi")
        self._factors: dict[str, Float64 | None] = {}
        self.step_ns = self._mean_ns(None)
        """Mean of the steps as recorded; 0 if the graph has none of them."""

    def can_replay(self, changes: Iterable[str]) -> bool:
        """Return whether the graph has what each of the changes names."""
        return all(self._factors_of(change) is not None for change in changes)

    def saved_ns(self, changes: Sequence[str]) -> float:
        """Return what a step gets shorter with all of some changes that can be replayed."""
        factors = [self._factors_of(change) for change in dict.fromkeys(changes)]
        return self.step_ns - self._mean_ns(
            np.prod([each for each in factors if each is not None], axis=0)
        )

    def _factors_of(self, change: str) -> Float64 | None:
        if change not in self._factors:
            try:
                factors = factors_of(self._graph, parse_change(change), self._roles, self._steps)
            except UsageError:  # the graph lacks it
                factors = None
            self._factors[change] = factors
        return self._factors[change]

    def _mean_ns(self, factors: Float64 | None) -> float:
        step_ns = self._graph.step_ns(factors)[self._steps["row"].to_numpy()]
        return float(step_ns.mean()) if len(step_ns) else 0.0
