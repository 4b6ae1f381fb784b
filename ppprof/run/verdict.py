"""What is slow in one rank's window, right after it was recorded: the rules of ``ppprof advise``."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import polars as pl

from ppprof.analysis.advice import advise
from ppprof.analysis.advice.finding import Finding
from ppprof.run.advise import analyze, collect_evidence
from ppprof.run.ranks import cluster_of
from ppprof.run.run import Run
from ppprof.run.traces import TraceReader, WindowResult
from ppprof.rundir import read_job_facts
from ppprof.rundir.clocks import Clocks
from ppprof.rundir.recordings import Recording, RunLocation
from ppprof.rundir.step_times import read_step_times
from ppprof.trace import Trace


class _OneRank(Run):
    """A run of which a single rank is read: the files of a thousand ranks would take too long."""

    @cached_property
    def step_times(self) -> pl.DataFrame:
        """The times of the rank's latest steps."""
        return read_step_times(self.path, self.recordings[0].rank)

    @cached_property
    def clocks(self) -> Clocks:
        """Nothing: clocks matter between ranks only."""
        return {}


def findings_of_window(
    run: Path, recording: Recording, trace: Trace
) -> tuple[float, list[Finding]] | None:
    """Return the typical step time of a window in ns, and what the rules report on it.

    None if the window has no steps: the loop has not called ``step()``.

    Args:
        run: the run directory.
        recording: the window.
        trace: its events.

    Raises:
        InputError: the trace has no event, or the manifest is unreadable.
    """
    location = RunLocation((str(run),), (run,), (recording,))
    one_rank = _OneRank(location, TraceReader(None, read_job_facts(run)))
    analysis, indicators = analyze(trace)
    if not analysis.has_steps:
        return None
    cluster = cluster_of(one_rank, [WindowResult(recording, recording.files[0], {}, analysis)])
    evidence = collect_evidence(one_rank, cluster, {recording.rank: indicators})
    return evidence.step_ns, advise(evidence)
