"""A recorder that notes the calls it gets, without Paddle."""

from __future__ import annotations

import weakref

from ppprof.rundir.run_file import RunFile


class Steps(list[str]):
    """What a recorder keeps in memory."""


class Recorder:
    """Writes the numbers of the steps of a window, and ``-`` for a step that has not ended."""

    waits = False
    probe_seconds_left = 0.0

    def __init__(self) -> None:
        self.log: list[str] = []
        self.steps: list[str] = []
        self.step: int | None = None
        self.is_in_use = False
        self.taken: list[weakref.ref[Steps]] = []

    def prepare(self, preempt: object = None, *, continues: bool = False) -> bool:
        if not self.is_in_use:
            self.log.append("prepare")
        return not self.is_in_use

    def start(self) -> None:
        self.steps = []
        self.log.append("start")

    def begin_step(self, step: int) -> None:
        self.step = step

    def end_step(self, *, is_complete: bool = True) -> None:
        if self.step is not None:
            self.steps.append(f"{self.step}{'' if is_complete else '-'}")
            self.step = None

    def take(self, brief: bool = False) -> Steps:
        self.log.append("take")
        steps = Steps(self.steps)
        self.taken.append(weakref.ref(steps))
        return steps

    def write(self, result: list[str], raw: RunFile, brief: bool = False) -> None:
        self.log.append("write")
        raw.write(" ".join(result).encode())

    wait_seconds = 0.0

    def ends_by(self, error: BaseException) -> None:
        """Do nothing: there is no device."""

    def discard(self) -> None:
        self.log.append("discard")

    close = discard
