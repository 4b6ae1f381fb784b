"""Sessions with their usual parts, made without `ppprof.attach` and without Paddle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ppprof.capture.parts import Part, RecordingPart, StepsPart
from ppprof.capture.postprocess import PostProcessor
from ppprof.capture.results import Results, TablesPart
from ppprof.capture.schedule import Schedule
from ppprof.capture.session import RecordingSession
from ppprof.capture.step_states import StepStates
from ppprof.capture.steps.perf_summary import PerfSummary
from ppprof.capture.steps.step_log import StepLog
from ppprof.capture.steps.timer import StepTimer
from ppprof.capture.steps.visualdl_scalars import Scalars


def session(
    windows: Any,
    schedule: Schedule,
    *,
    run: Path | None = None,
    steps: StepLog | None = None,
    scalars: Scalars | None = None,
    post_processor: PostProcessor | None = None,
    timer: StepTimer | None = None,
    timer_only: bool = False,
    prints: bool = True,
    viewed: str | None = "json",
    device_peak_flops: float | None = None,
    rank: int = 0,
    stop_training: bool = False,
) -> RecordingSession:
    """Return a session that records by ``windows``, if given."""
    states = StepStates(schedule, timer_only=timer_only)
    summary = PerfSummary(device_peak_flops)
    parts: list[Part] = [StepsPart(summary, steps, scalars)]
    made = post_processor
    if windows is not None or made is not None:
        made = made or PostProcessor(Path("log"), rank, prints, command=[])
        parts.insert(0, RecordingPart(states, windows, made))
        parts.append(TablesPart(made))
    parts.append(Results(rank, run, states, summary, prints, viewed, None, None, windows, made))
    return RecordingSession(
        states, parts, timer=timer, rank=rank, stop_training=stop_training, saves=True
    )
