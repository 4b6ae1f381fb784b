"""One trace prepared for the summaries: its tree, steps, phases and communication."""

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
"""The phases of a step; Paddle's "model perspective"."""

SORT_KEYS = tuple(
    f"{clock}_{stat}" for clock in ("cpu", "gpu") for stat in ("total", "avg", "max", "min")
)
"""The largest come first; for ``_min``, the smallest (as in Paddle)."""


PADDLE_SORT_KEYS = {key[:3].upper() + key[4:].capitalize(): key for key in SORT_KEYS}
"""Names of ``paddle.profiler.SortedKeys``: GPUTotal -> gpu_total."""


@dataclass(frozen=True)
class SummaryOptions:
    """Options of the summaries."""

    sorted_by: str = "auto"
    """One of `SORT_KEYS`; ``auto`` is gpu_total if there are device events, else cpu_total."""
    thread_sep: bool = False
    """Whether operators and user-defined spans are listed thread by thread, not merged."""

    def __post_init__(self) -> None:
        key = PADDLE_SORT_KEYS.get(self.sorted_by, self.sorted_by)
        object.__setattr__(self, "sorted_by", key)
        if key not in ("auto", *SORT_KEYS):
            raise UsageError(
                f"sorted_by {self.sorted_by!r}: expected auto or one of {', '.join(SORT_KEYS)}"
            )


class Profile:
    """One trace prepared for the summaries. Shared results are computed once.

    Attributes:
        trace: the rank's own events.
        whole: the same, with the events of its remote calls.
    """

    def __init__(self, trace: Trace, options: SummaryOptions | None = None) -> None:
        self.whole = trace
        self.trace, self._remote = split_calls(trace)
        self.options = options or SummaryOptions()

    @cached_property
    def tree(self) -> Tree:
        """The event tree."""
        return Tree.from_trace(self.trace)

    @cached_property
    def whole_tree(self) -> Tree:
        """The event tree with the events of remote calls."""
        return Tree.from_trace(self.whole) if self._remote else self.tree

    @cached_property
    def remote(self) -> Mapping[str, Profile]:
        """The profile of the events recorded in each remote call.

        Keys are chains of calls, as `ppprof.trace.remote_calls.call_of` returns them:
        ``rpc#f(worker0 -> worker1)``.
        """
        return {call: Profile(trace, self.options) for call, trace in self._remote.items()}

    @cached_property
    def sorted_by(self) -> str:
        """The sort key, with ``auto`` resolved."""
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
        """The time inside steps: the union of all ProfileStep events. The base of CPU ratios."""
        return covered(*intervals_of(self.tree.of_category("ProfileStep")))

    @cached_property
    def outermost(self) -> pl.DataFrame:
        """Steps and phases outside any other phase: rows of ``tree.hosts``."""
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
        """Return one row of `phases`; None if the trace has no such event."""
        row = self.phases.filter(pl.col("category") == category)
        return row.row(0, named=True) if row.height else None

    @cached_property
    def communication(self) -> Communication:
        """The time of communication and computation."""
        return Communication.from_tree(self.tree)
