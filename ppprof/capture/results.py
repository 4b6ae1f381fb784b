"""The output of a session as it ends: tables, the Perf Summary, and the paths of traces."""

from __future__ import annotations

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path

from ppprof.capture.output import print_result
from ppprof.capture.parts import Ending, LivenessPart, Part
from ppprof.capture.postprocess import PostProcessor
from ppprof.capture.recording.store import WindowStore
from ppprof.capture.step_states import StepStates
from ppprof.capture.steps.perf_summary import PerfSummary
from ppprof.capture.steps.slow_lines import SlowLines

_FINISH_SECONDS = 60.0
"""How long a session that ends waits for tables and traces. A gigabyte takes a few seconds. The wait
has a limit because a cluster should not be held for a child process, which outlives the session."""

_MOST_PATHS = 8

log = logging.getLogger("ppprof")


class TablesPart(Part):
    """Waits for tables and traces when a session ends."""

    task = "tables and traces"

    def __init__(self, post_processor: PostProcessor) -> None:
        self._post_processor = post_processor

    def wait(self, ending: Ending) -> None:
        """Wait up to 60 s for the child process, which prints tables; not after an exception."""
        # Other ranks hang until a failing one has ended: it does not wait for tables.
        self._post_processor.wait(0 if ending.failed else _FINISH_SECONDS)


@dataclass(frozen=True)
class Results(Part):
    """The last part of a session: prints the summary, and where the traces are."""

    rank: int
    shown: Path | None
    """The run directory as the config names it; None if it could not be made."""
    states: StepStates
    summary: PerfSummary
    prints: bool = True
    """Whether this rank prints results. All ranks log messages about lost ranks."""
    viewed: str | None = "json"
    """The format of the traces whose paths are printed; None if only ``pb`` is written."""
    clocks_of: Path | None = None
    """The run directory whose clock readings are printed; None if clocks are not compared."""
    liveness: LivenessPart | None = None
    """Names the ranks that died; None if ranks are not marked."""
    store: WindowStore | None = None
    """What became of the windows of this rank; None if this rank does not record."""
    post_processor: PostProcessor | None = None
    """Makes the tables; None if this rank does not record."""
    brief: bool = False
    """Whether a few lines are printed instead of tables."""
    has_rings: bool = False
    """Whether ranks note what they wait for."""
    slow_lines: SlowLines | None = None
    """Knows which line slow steps are in; None if none is looked for."""

    task = "printing the results"

    def close(self, ending: Ending) -> None:
        """Log which ranks died before this rank, now that this rank's data are saved."""
        self._log_lost_ranks()

    def wait(self, ending: Ending) -> None:
        """Print the Perf Summary, the clocks and the traces' paths; tables are printed already."""
        if self.prints:
            self._log_cut_window(ending)
            self._print_summary()
            if self.store is not None and self.shown is not None and not self.states.timer_only:
                self._print_traces(self.store, self.shown, ending)
            self._print_end(ending)

    def rescue(self) -> None:
        """Log which ranks died before this rank, and the command that makes missing tables."""
        self._log_lost_ranks()
        if self.post_processor is not None:
            self.post_processor.leave()

    def _log_lost_ranks(self) -> None:
        if self.liveness is not None and self.liveness.lost_ranks:
            num_saved = len(self.store.saved) if self.store is not None else 0
            saved = f"{num_saved} window{'s' * (num_saved != 1)} and the step times of this rank"
            lost = self.liveness.lost_ranks
            hang = f"; {self._hang()}" if self.has_rings else ""
            log.warning(f"rank {self.rank}: {lost}; {saved} are saved in {self.shown}{hang}")

    def _hang(self) -> str:
        return f"which rank waited for which: ppprof hang {shlex.quote(str(self.shown))}"

    def _log_cut_window(self, ending: Ending) -> None:
        """Warn if the training ended in the middle of a saved window of ``Profiler.scheduler``.

        If `step` was never called, warn of that instead, but not if an exception ended the
        training: the exception explains the missing steps.
        """
        schedule, window = self.states.schedule, self.states.window
        num_recorded = schedule.num_recorded(ending.step)
        store = self.store
        saved = {name.window for name in store.saved} - store.cut if store is not None else ()
        if not ending.num_steps and not ending.failed:
            log.warning("step() was never called: no step times are known")
        elif schedule.record is not None and num_recorded and window in saved:
            steps = f"{num_recorded} of {schedule.record} steps"
            log.warning(
                f"window {window} was cut short by the end of the training: "
                f"it has {steps}, the last of them {ending.step - 1}"
            )

    def _print_summary(self) -> None:
        if self.states.timer_only or (self.summary.has_table and not self.brief):
            print_result(f"{self.summary.text()}\n")
        if self.clocks_of is not None:
            # Imported before, by the part that compares the clocks.
            from ppprof.capture.ranks.clock_sync import describe_clocks
            from ppprof.rundir.clocks import read_clocks

            line = describe_clocks(read_clocks(self.clocks_of))
            if line is not None:
                print_result(f"{line}\n")

    def _print_traces(self, store: WindowStore, run: Path, ending: Ending) -> None:
        if not store.saved:
            # A failure, a skipped window and a short training were logged, which explains it.
            on_demand = self.states.on_demand
            is_short = on_demand is not None and on_demand.cut_short is not None
            if not (ending.failures or store.num_skipped or is_short):
                log.warning(f"no window was recorded: {self._why_no_window(store, ending)}")
            return
        if self.viewed is None:
            log.warning(f"{run}: no viewer opens pb alone; add json to Profiler.formats")
            return
        if self.viewed == "json" and not self.brief:  # VisualDL does not open gzip files
            print_result(f"VisualDL (its Trace page needs the internet): visualdl --logdir {run}\n")
        paths = [str(run / name.trace(self.viewed)) for name in store.saved]
        traces = " ".join(paths[:_MOST_PATHS])
        num_traces = sum(store.num_segments.get(name.window, 1) for name in store.saved)
        num_more = num_traces - min(len(paths), _MOST_PATHS)
        more = f" and {num_more} more" if num_more else ""
        print_result(f"chrome://tracing or https://ui.perfetto.dev: {traces}{more}\n")

    def _print_end(self, ending: Ending) -> None:
        """Print what is slow on this rank, and the commands that show more; nothing if the run has nothing to show."""
        has_windows = self.store is not None and bool(self.store.saved)
        if self.shown is None or not (has_windows or self.summary.has_table):
            return
        run, lines = shlex.quote(str(self.shown)), []
        if ending.failed and self.has_rings:
            lines.append(self._hang())
        if has_windows and self.post_processor is not None and self.post_processor.verdict:
            lines.append(self.post_processor.verdict)
        elif self.summary.has_table and (self.brief or not has_windows):
            lines.append(f"rank {self.rank}: {self.summary.verdict()}")
        slow = self.slow_lines.summary() if self.slow_lines is not None else ""
        if slow:
            lines.append(f"rank {self.rank}: {slow}")
        if self.brief and has_windows:
            lines.append(f"all tables: ppprof summary {run} --views all")
        lines.append(f"all ranks, as a page: ppprof report {run}")
        lines.append(f"what to change: ppprof advise {run}")
        print_result("".join(f"{line}\n" for line in lines))

    def _why_no_window(self, store: WindowStore, ending: Ending) -> str:
        num = ending.num_steps
        if not num:
            return "the training ended before its first step"
        seen = f"{num} {'step was' if num == 1 else 'steps were'} seen"
        why = f"the schedule is {self.states.schedule}, and {seen}"
        if self.states.on_demand is None:
            return why
        if store.num_dropped:
            return f"{why}; what was recorded was not slow, and deleted"
        return f"{why}; no window was asked for on this rank"
