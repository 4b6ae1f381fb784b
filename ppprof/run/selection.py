"""Choose windows of a run: by rank, by number, by coordinates."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ppprof.errors import UsageError
from ppprof.rundir.recordings import Recording, no_trace
from ppprof.topology import RankSelector, Topology
from ppprof.units import format_ranges

if TYPE_CHECKING:
    from ppprof.run.run_files import RunFiles

_log = logging.getLogger("ppprof")


def select(run: RunFiles, rank: int | None = None, window: int | None = None) -> list[Recording]:
    """Return the recordings of a rank and window, sorted by rank, then window.

    Args:
        run: the run.
        rank: the rank; None: all ranks.
        window: the number of the window; None: all windows.

    Raises:
        InputError: the run has no window at all.
        UsageError: no such rank or window; the message names the existing ones.
    """
    _check_recordings(run)
    of_rank = [recording for recording in run.recordings if rank in (None, recording.rank)]
    if not of_rank:
        raise UsageError(f"{run}: no rank {rank}; it has {format_ranges('rank', run.ranks)}")
    selected = [recording for recording in of_rank if window in (None, recording.window)]
    if not selected:
        windows = format_ranges("window", (recording.window for recording in of_rank))
        suffix = "" if rank is None else f" of rank {rank}"
        raise UsageError(f"{run}: no window {window}{suffix}; it has {windows}")
    return selected


def select_one(run: RunFiles, rank: int | None = None, window: int | None = None) -> Recording:
    """Return the recording of a rank and window.

    Args:
        run: the run.
        rank: the rank; None if there is only one.
        window: the number of the window; None if there is only one.

    Raises:
        InputError: the run has no window at all.
        UsageError: no such rank or window, or several; the message names the existing ones.
    """
    selected = select(run, rank, window)
    if len(selected) > 1:
        several = sorted({recording.rank for recording in selected})
        choice = (
            format_ranges("rank", several)
            if len(several) > 1
            else format_ranges("window", (recording.window for recording in selected))
        )
        raise UsageError(f"{run}: it has {choice}: choose one")
    return selected[0]


def selected_ranks(run: RunFiles, ranks: RankSelector) -> frozenset[int]:
    """Return the ranks that a selector selects, also ranks that were not recorded.

    Args:
        run: the run.
        ranks: as in `select_ranks`.

    Raises:
        UsageError: the job has no such ranks.
    """
    topology = run.topology
    if topology is None:
        if isinstance(ranks, Mapping):
            raise UsageError(f"{run.path}: {ranks}: coordinates need a manifest; it has none")
        topology = Topology.of(dp=max(run.ranks) + 1)
    try:
        wanted = frozenset(topology.select(ranks))
    except UsageError as error:
        raise UsageError(f"{run.path}: {error}") from error
    if ranks == "all":
        wanted = wanted.union(run.ranks)
    return wanted


def select_ranks(
    run: RunFiles, ranks: RankSelector | None = "all", window: int | None = None
) -> list[Recording]:
    """Return the recordings of several ranks, sorted by rank, then window.

    A warning names selected ranks that the job was configured to record but that have no trace.

    Args:
        run: the run.
        ranks: ``"all"``, ``3``, ``"0,8-15"`` or, if the run has a manifest, coordinates such as
            ``{"pp": 0}``. None: the ranks in ``Profiler.print_ranks`` of the run's config; the
            other recorded ranks are named in the log. If the run has no config, or if none of
            ``print_ranks`` was recorded, None selects all ranks.
        window: the number of the window; None: all windows.

    Raises:
        InputError: the run has no window at all.
        UsageError: no such ranks or no such window; the message names the existing ones.
    """
    _check_recordings(run)
    configured = configured_ranks(run)
    if ranks is None:
        missing = configured.difference(run.ranks)
        wanted = _printed_ranks(run, window)
    else:
        wanted = selected_ranks(run, ranks)
        missing = (wanted & configured).difference(run.ranks)
    selected = [recording for recording in run.recordings if recording.rank in wanted]
    if not selected:
        raise UsageError(
            f"{run.path}: no {format_ranges('rank', wanted)}; "
            f"it has {format_ranges('rank', run.ranks)}"
        )
    if missing:
        warn_of_missing(run, missing)
    windows = {recording.window for recording in selected}
    if window is not None and window not in windows:
        raise UsageError(
            f"{run.path}: no window {window}; it has {format_ranges('window', windows)}"
        )
    return [recording for recording in selected if window in (None, recording.window)]


def _printed_ranks(run: RunFiles, window: int | None) -> frozenset[int]:
    """Return the recorded ranks in ``Profiler.print_ranks`` of the run's config.

    Other recorded ranks are named in the log. If the run has no valid config or no topology, or if
    none of ``print_ranks`` was recorded, return all recorded ranks. Only ranks with the window
    count as recorded; None: ranks with any window.
    """
    recorded = frozenset(recording.rank for recording in run.select(window=window))
    if run.profiler is None or run.topology is None:
        return recorded
    try:
        printed = recorded & frozenset(run.topology.select(run.profiler.print_ranks)) or recorded
    except UsageError:
        return recorded
    if others := recorded - printed:
        _log.info(
            "%s: not shown: %s; --rank R or --rank all shows them",
            run,
            format_ranges("rank", others),
        )
    return printed


def configured_ranks(run: RunFiles) -> frozenset[int]:
    """Return the ranks that the job was configured to record; empty if they are unknown.

    They are unknown if the run has no manifest, or no topology in it.
    """
    block = run.manifest.get("profiler")
    try:
        ranks = block["ranks"] if isinstance(block, Mapping) else "all"
        return run.topology.select(ranks) if run.topology else frozenset()
    except (KeyError, TypeError, UsageError):
        return frozenset()


def warn_of_missing(run: RunFiles, ranks: Iterable[int]) -> None:
    """Log a warning that ``ranks``, which the job was configured to record, have no trace."""
    _log.warning(
        "%s: no trace of %s; if other nodes wrote them, give their directories too",
        run,
        format_ranges("rank", ranks),
    )


def _check_recordings(run: RunFiles) -> None:
    if not run.recordings:
        raise no_trace(run.paths)
