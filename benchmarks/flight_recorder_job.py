"""A rank of `flight_recorder`: trains the harness while contestants take turns as its profiler.

    flight_recorder_job.py OUT ROUNDS STEPS

Writes ``OUT/RANK.json``: for each contestant, its seconds and its seconds of processor time a step, as the
medians of each round; and how many communication operations a step has.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ppprof
from ppprof.config import load_config
from ppprof.rundir.flight import read_rings
from ppprof.trace.fastpath.core import PYTHON, VARIABLE
from ppprof.train.trainer import Trainer

CONFIG = Path(__file__).parents[1] / "configs/gpt/pretrain_gpt_tiny_cpu_dp2_mp2_pp2.yaml"
WORLD_SIZE = 8
AHEAD = 3
"""Steps ahead of the timed ones of each turn."""
_FAR = 10**6
_ATTACHED: dict[str, Any] = {"enable": True, "scheduler": [_FAR, _FAR + 1], "print_ranks": []}
CONTESTANTS: dict[str, dict[str, Any]] = {
    "off": {"enable": False},
    "off again": {"enable": False},
    "without": {**_ATTACHED, "flight_recorder": False},
    "recorder": _ATTACHED,
    "python": _ATTACHED,
}
"""The last one without the compiled core."""


class Turns:
    """The session of the training loop: that of one contestant after another."""

    should_stop = False

    def __init__(self, out: Path, rank: int, rounds: int, steps: int) -> None:
        self.out, self.rank = out, rank
        self.medians: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTESTANTS}
        self.num_operations = 0.0
        self._turns = self._all_turns(rounds)
        self._num_steps = AHEAD + steps
        self._times: list[tuple[float, float]] = []
        self._next_turn()

    def _all_turns(self, rounds: int) -> Iterator[str]:
        names = list(CONTESTANTS)
        for number in range(rounds):
            random.Random(number).shuffle(names)  # the same on all ranks
            yield from names

    def _next_turn(self) -> None:
        self._name = next(self._turns, "")
        if self._name:
            self._log = self.out / "log"
            os.environ[VARIABLE] = PYTHON if self._name == PYTHON else ""
            block = {**CONTESTANTS[self._name], "profiler_log": str(self._log)}
            with _quiet():
                self._session = ppprof.attach(block)
            self._mark()

    def _mark(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def step(self, **counts: Any) -> None:
        """End a step of the contestant whose turn it is."""
        self._session.step(**counts)
        wall, busy = self._start
        self._times.append((time.perf_counter() - wall, time.process_time() - busy))
        if len(self._times) == self._num_steps:
            timed, self._times = self._times[AHEAD:], []
            self.medians[self._name].append(tuple(map(statistics.median, zip(*timed))))  # type: ignore[arg-type]
            with _quiet():
                self._session.close()
            if self._name == "recorder" and not self.num_operations:
                run = max(self._log.rglob("flight"), key=lambda path: path.stat().st_mtime).parent
                ring = read_rings(run)[0][self.rank]
                self.num_operations = ring.operations[-1].number / self._num_steps
            self._next_turn()
        self._mark()

    @contextlib.contextmanager
    def paused(self, what: str = "") -> Iterator[None]:
        """Leave a time out: the harness asks for it, but nothing is evaluated or saved."""
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def main(out: Path, rounds: int, steps: int) -> None:
    num = rounds * len(CONTESTANTS) * (AHEAD + steps)
    settings = [f"Engine.max_steps={num}", "Engine.eval_freq=-1", "Engine.save_load.save_steps=-1"]
    settings.append(f"Engine.logging_freq={num}")
    config = load_config(CONFIG, settings, WORLD_SIZE)
    trainer = Trainer(config)
    import paddle.distributed as dist

    turns = Turns(out, dist.get_rank(), rounds, steps)
    trainer.fit(turns)
    result = {"medians": turns.medians, "operations": turns.num_operations}
    (out / f"{turns.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
