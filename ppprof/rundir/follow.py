"""Follow a running job: read only what its ranks have written since the last look.

The steps of a rank come from its step log, which is appended to every 10 seconds; how many have ended, and when the
last one did, from the head of its ring (`ppprof.rundir.flight`), which is always of now.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional, Union

import msgspec

from ppprof.rundir.flight import ranks_with_rings, read_progress
from ppprof.rundir.names import jsonl_files, steps_path
from ppprof.rundir.run_file import RunFile

_MOST_STEPS = 1000
_MOST_STEPS_OF_ALL = 100_000
_LEAST_STEPS = 50
"""Latest steps that are kept of each rank: 1,000, fewer of more than 100 ranks, at least 50."""
_MOST_RANKS = 128
"""Most ranks whose files one look reads: those of 1,024 ranks take eight looks."""
_MOST_BYTES = 4 << 20
"""Most bytes of step logs that one look reads."""
_LEAST_BYTES = 8 << 10
"""Bytes of a rank's step log that a look may always read: about 16 steps."""


# Python 3.9 cannot evaluate "int | None", and msgspec evaluates annotations.
_Int = Optional[int]
_Bool = Optional[bool]
_Loss = Optional[Union[float, str]]


class Step(msgspec.Struct):
    """A line of the step log; `ppprof.capture.steps.step_log.StepRecord` says what the fields mean."""

    step: int
    batch_cost_ns: int
    excluded: bool = False
    reader_cost_ns: _Int = None
    num_samples: _Int = None
    num_tokens: _Int = None
    num_flops: _Int = None
    device_peak_bytes: _Int = None
    device_total_bytes: _Int = None
    host_peak_bytes: _Int = None
    window: _Int = None
    device_timed: _Bool = None
    communication_ns: _Int = None
    loss: _Loss = None


_DECODER = msgspec.json.Decoder(Step)


@dataclass
class RankProgress:
    """What a rank has written so far."""

    steps: deque[Step] = field(default_factory=deque)
    """Its latest steps, the oldest first."""
    first_step: int | None = None
    """Number of the training's first step; 0 if the beginning of the step log is left out; None before a step."""
    loss: tuple[int, float] | None = None
    """The latest step with a loss, and the loss."""
    num_ended: int = 0
    """Steps that have ended."""
    ended_ns: int | None = None
    """When the last one did, on the rank's wall clock; None without a ring."""
    changed_s: float | None = None
    """When ``num_ended`` changed last, on the reader's monotonic clock; None until it is read."""
    offset: int = 0
    """Bytes of its step log that have been read or left out."""


class Follower:
    """Reads the files of a run directory, a part of the ranks with each look.

    Args:
        run: the run directory.
        clock: the monotonic time, in seconds.
    """

    def __init__(self, run: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.ranks: dict[int, RankProgress] = {}
        """All ranks that have written something, by rank."""
        self._run = run
        self._clock = clock
        self._pending: list[int] = []

    def look(self) -> bool:
        """Read what up to 128 ranks have appended; return whether all ranks have been read once more.

        Files that are unreadable are left out.
        """
        if not self._pending:
            found = {*ranks_with_rings(self._run)}
            found.update(rank for rank, _ in jsonl_files(self._run, "steps"))
            self._pending = sorted(found, reverse=True)
        most = max(_LEAST_BYTES, _MOST_BYTES // (len(self._pending) or 1))
        for _ in range(min(_MOST_RANKS, len(self._pending))):
            rank = self._pending.pop()
            progress = self.ranks.setdefault(rank, RankProgress())
            with suppress(OSError):
                self._read(rank, progress, most)
            kept = max(_LEAST_STEPS, min(_MOST_STEPS, _MOST_STEPS_OF_ALL // len(self.ranks)))
            for _ in range(len(progress.steps) - kept):
                progress.steps.popleft()
        return not self._pending

    def _read(self, rank: int, progress: RankProgress, most: int) -> None:
        num_ended = progress.num_ended
        with suppress(FileNotFoundError):  # without a flight recorder
            num_ended, progress.ended_ns = read_progress(self._run, rank)
        with suppress(FileNotFoundError):  # until it is first written
            begin = progress.offset
            text, progress.offset = RunFile(self._run, steps_path(rank)).read_on(
                progress.offset, most
            )
            for line in text.splitlines():
                with suppress(msgspec.MsgspecError, ValueError):
                    progress.steps.append(step := _DECODER.decode(line))
                    if progress.first_step is None:
                        progress.first_step = (
                            step.step if progress.offset == begin + len(text) else 0
                        )
                    if step.loss is not None:
                        progress.loss = step.step, float(step.loss)
        if progress.steps:
            num_ended = max(num_ended, progress.steps[-1].step + 1)
        if progress.changed_s is None:  # by the rank's clock, which may be ahead of this machine's
            ended_ns = progress.ended_ns or time.time_ns()
            progress.changed_s = self._clock() - max(0.0, (time.time_ns() - ended_ns) / 1e9)
        elif num_ended != progress.num_ended:
            progress.changed_s = self._clock()
        progress.num_ended = num_ended
