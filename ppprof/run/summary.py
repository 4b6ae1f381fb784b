"""Tables of a window, of one rank or over ranks, and what they were made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ppprof.analysis.profile.profile import SummaryOptions
from ppprof.analysis.profile.steps import StepRange
from ppprof.errors import InputError
from ppprof.report.data import read_document
from ppprof.rundir.recordings import Recording


@dataclass(frozen=True)
class WindowTables:
    """Some of the nine tables of one window, and what they were made from."""

    recording: Recording
    source: Path
    """The file that was read."""
    steps: Sequence[int]
    """Numbers of the steps, ascending."""
    sorted_by: str
    """The sort key in force."""
    skipped: Mapping[str, int]
    """What of the file could not be used, kind -> how many."""
    tables: Mapping[str, pl.DataFrame]
    """By view, in the order of `ppprof.analysis.summaries.views.VIEWS`."""

    def identity(self) -> dict[str, Any]:
        """What says which window this is, for `ppprof.report.data.document`."""
        return {
            "file": str(self.source),
            "rank": self.recording.rank,
            "coordinate": self.recording.coordinate,
            "window": self.recording.window,
            "steps": list(self.steps),
            "sorted_by": self.sorted_by,
            "lost": dict(self.skipped),
        }


@dataclass(frozen=True)
class AcrossRanks:
    """Some tables of one window over several ranks, and what they were made from."""

    by: str
    """One of `ppprof.analysis.summaries.across_ranks.WAYS`."""
    window: int
    sorted_by: str
    """The sort key in force."""
    ranks: Sequence[WindowTables]
    """One a rank, ascending; of each table what is comparable."""
    left_out: Sequence[int]
    """Ranks that should be there and are not, or cannot be read."""
    tables: Mapping[str, pl.DataFrame]
    """By view, in the order of `ppprof.analysis.summaries.views.VIEWS`."""

    @property
    def steps(self) -> list[int]:
        """Numbers of the steps of any of the ranks, ascending."""
        return sorted({step for made in self.ranks for step in made.steps})

    def identity(self) -> dict[str, Any]:
        """What says which ranks these are, for `ppprof.report.data.document`."""
        return {
            "by": self.by,
            "window": self.window,
            "sorted_by": self.sorted_by,
            "ranks": [
                {key: of[key] for key in ("rank", "coordinate", "file", "steps", "lost")}
                for of in (made.identity() for made in self.ranks)
            ],
            "left_out": list(self.left_out),
        }


def saved_tables(
    recording: Recording,
    path: Path,
    views: list[str],
    steps: StepRange | None,
    options: SummaryOptions,
) -> WindowTables:
    """The tables that a capture left; they are as they are.

    Raises:
        InputError: not readable, or other ones were asked for.
    """
    identity, tables = read_document(path)
    sorted_by = str(identity.get("sorted_by"))
    threads = [tables[view]["thread"] for view in ("op", "udf") if "thread" in tables[view].columns]
    thread_sep = any(thread.count() for thread in threads)
    if (
        steps is not None
        or options.sorted_by not in ("auto", sorted_by)
        or (options.thread_sep != thread_sep and any(len(thread) for thread in threads))
    ):
        raise InputError(
            f"{path}: no trace is left of this window, only its tables, which cannot be made "
            f"again: they hold all steps, sorted by {sorted_by}, "
            f"{'thread by thread' if thread_sep else 'threads merged'}"
        )
    return WindowTables(
        dataclasses.replace(recording, coordinate=identity.get("coordinate")),
        path,
        identity.get("steps") or [],
        sorted_by,
        identity.get("lost") or {},
        {view: table for view, table in tables.items() if view in views},
    )
