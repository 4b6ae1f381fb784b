"""`RunFiles`: what the file names and the manifest of a run say, without any trace."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ppprof import rundir
from ppprof.errors import ConfigError
from ppprof.messages import Message
from ppprof.run import selection
from ppprof.rundir.recordings import Recording, RunLocation, join_paths
from ppprof.topology import RankSelector, Topology

if TYPE_CHECKING:
    from ppprof.config import ProfilerConfig

_log = logging.getLogger("ppprof")


class RunFiles:
    """The files of a run; `ppprof.run.run.Run` also reads the traces.

    It imports neither numpy nor polars.
    """

    def __init__(self, location: RunLocation) -> None:
        self.paths = location.paths
        """The directories of the run, one for each node that wrote its own; or the trace file."""
        self.path = self.paths[0]
        """The first of ``paths``."""
        self.recordings = location.recordings
        """Every window of every rank, sorted by rank, then window."""

    def __str__(self) -> str:
        """Return ``paths`` as text for messages, separated by commas."""
        return join_paths(self.paths)

    @property
    def ranks(self) -> list[int]:
        """The recorded ranks, ascending."""
        return sorted({recording.rank for recording in self.recordings})

    @property
    def expected_ranks(self) -> list[int]:
        """The ranks that the job was configured to record, and the recorded ranks, ascending."""
        return sorted(selection.configured_ranks(self).union(self.ranks))

    def windows(self, rank: int | None = None) -> list[int]:
        """Return the numbers of a rank's windows, ascending; of all ranks' windows for None."""
        return sorted({recording.window for recording in self.select(rank)})

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """The manifest: what the capture wrote about the job, and ``nodes``: rank -> host name.

        Empty for traces that ppprof did not record.

        Raises:
            InputError: the manifest cannot be read, or a newer ppprof wrote it.
        """
        if not rundir.has_manifest(self.path):
            return {}
        nodes = {rank: node for path in self.paths for rank, node in rundir.nodes(path).items()}
        return {**rundir.read_manifest(self.path), "nodes": nodes}

    @cached_property
    def profiler(self) -> ProfilerConfig | None:
        """The ``Profiler`` block of the job; None without a valid one (an invalid one is logged)."""
        return _profiler(self)

    @cached_property
    def topology(self) -> Topology | None:
        """The topology of the job; None if there is no manifest, or no valid topology in it."""
        return rundir.topology_of(self.manifest)

    def select(self, rank: int | None = None, window: int | None = None) -> list[Recording]:
        """Return the recordings of a rank and window, sorted by rank, then window; None: all."""
        return selection.select(self, rank, window)

    def select_ranks(
        self, ranks: RankSelector | None = "all", window: int | None = None
    ) -> list[Recording]:
        """Return the recordings of several ranks, sorted by rank, then window.

        ``ranks`` may also be None: the ranks in ``Profiler.print_ranks`` of the run's config; all
        ranks if the run has no config, or if none of ``print_ranks`` was recorded. A warning names
        selected ranks that the job was configured to record but that have no trace.
        """
        return selection.select_ranks(self, ranks, window)


def _profiler(run: RunFiles) -> ProfilerConfig | None:
    values = run.manifest.get("profiler")
    if not isinstance(values, Mapping):
        return None
    from ppprof.config import ProfilerConfig

    try:
        return ProfilerConfig.from_mapping(values)
    except ConfigError as error:
        _log.warning("%s", Message("ignored_block", path=run, error=error))
        return None
