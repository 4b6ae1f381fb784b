"""One trace made ready for the summaries: its tree, its steps and phases, its communication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from ppprof.analysis.profile.communication import Communication
from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.grouping import grouped, intervals_of
from ppprof.analysis.profile.intervals import covered
from ppprof.analysis.profile.remote_calls import split_calls
from ppprof.errors import UsageError
from ppprof.trace.schema import Trace

PHASES = ("Dataloader", "Forward", "Backward", "Optimization")
"""What a step is made of; Paddle's "model perspective"."""

SORT_KEYS = tuple(
    f"{clock}_{stat}" for clock in ("cpu", "gpu") for stat in ("total", "avg", "max", "min")
)
"""The largest first, except ``_min``, which puts the smallest first (as Paddle does)."""


_PADDLE_SORT_KEYS = {key[:3].upper() + key[4:].capitalize(): key for key in SORT_KEYS}
"""Names of ``paddle.profiler.SortedKeys``: GPUTotal -> gpu_total."""


def sort_key(text: str) -> str:
    """Return a sort key of `SummaryOptions`, given by our name or by Paddle's.

    >>> sort_key("gpu_max"), sort_key("GPUMax"), sort_key("auto")
    ('gpu_max', 'gpu_max', 'auto')

    Raises:
        UsageError: neither.
    """
    return SummaryOptions(_PADDLE_SORT_KEYS.get(text, text)).sorted_by


@dataclass(frozen=True)
class SummaryOptions:
    """What a caller may choose about the summaries."""

    sorted_by: str = "auto"
    """One of `SORT_KEYS`; ``auto`` is gpu_total when there are device events, else cpu_total."""
    thread_sep: bool = False
    """Operators and user-defined spans thread by thread rather than merged."""

    def __post_init__(self) -> None:
        if self.sorted_by not in ("auto", *SORT_KEYS):
            raise UsageError(
                f"sorted_by {self.sorted_by!r}: expected auto or one of {', '.join(SORT_KEYS)}"
            )


class Profile:
    """One trace made ready for the summaries: what several of them need is computed once.

    Attributes:
        trace: the rank's own events.
        whole: those and what ran in its remote calls.
    """

    def __init__(self, trace: Trace, options: SummaryOptions | None = None) -> None:
        self.whole = trace
        self.trace, self._remote = split_calls(trace)
        self.options = options or SummaryOptions()

    @cached_property
    def tree(self) -> Tree:
        """Events with their place in the tree."""
        return Tree.of(self.trace)

    @cached_property
    def whole_tree(self) -> Tree:
        """The same with what ran in remote calls."""
        return Tree.of(self.whole) if self._remote else self.tree

    @cached_property
    def remote(self) -> Mapping[str, Profile]:
        """What ran in remote calls, by call (`ppprof.trace.remote_calls.call_of`); the rest has none of it."""
        return {call: Profile(trace, self.options) for call, trace in self._remote.items()}

    @cached_property
    def sorted_by(self) -> str:
        """The sort key in force."""
        if self.options.sorted_by != "auto":
            return self.options.sorted_by
        return "cpu_total" if self.tree.devices.is_empty() else "gpu_total"

    @cached_property
    def steps(self) -> list[int]:
        """Numbers of the recorded steps, ascending."""
        names = self.tree.of_category("ProfileStep")["name"].cast(pl.String)
        return sorted(names.str.extract(r"#(\d+)$").cast(pl.Int64).drop_nulls().to_list())

    @cached_property
    def total_ns(self) -> int:
        """Time inside steps: the union of all ProfileStep events; the base of CPU ratios."""
        return covered(*intervals_of(self.tree.of_category("ProfileStep")))

    @cached_property
    def outermost(self) -> pl.DataFrame:
        """Host events that are a step or a phase and lie in no phase: rows of ``tree.hosts``."""
        tree = self.tree
        is_phase = tree.hosts["category"].is_in(PHASES).to_numpy()
        is_step = (tree.hosts["category"] == "ProfileStep").to_numpy()
        nested = tree.below(np.flatnonzero(is_phase))
        return tree.hosts.filter(pl.Series((is_phase | is_step) & ~nested)).sort("visit")

    @cached_property
    def phases(self) -> pl.DataFrame:
        """Calls and times of `outermost` by category: columns of `grouped`."""
        return grouped(self.outermost, ["category"])

    def phase(self, category: str) -> Mapping[str, Any] | None:
        """One row of `phases`; None where the trace has no such event."""
        row = self.phases.filter(pl.col("category") == category)
        return row.row(0, named=True) if row.height else None

    @cached_property
    def communication(self) -> Communication:
        """Which time is communication."""
        return Communication.of(self.tree)
