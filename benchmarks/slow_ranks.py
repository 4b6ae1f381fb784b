"""How soon a slow rank is found without a window, and how often one is named without a cause.

Eight real ranks train, dp 2 x mp 2 x pp 2, all of which wait for the slowest: without a slow rank, and with a rank
whose blocks sleep 5, 10 or 20% of its own work longer. Most of a block's work is a sleep as well, so that ranks do not
slow each other down on few processors. Then:

- found: windows of so many steps, from each step of a planted run, in which the rank is named.
- false alarms: ranks that are named in hours of steps drawn from the runs without a slow rank, in pieces of 20 steps, whose
  ranks are exchanged within their stage.

    python -m benchmarks.slow_ranks [--steps 150] [--hours 300] [--keep FOLDER]

With --keep, the runs stay in FOLDER, and runs that are there are read instead.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import ppprof
from benchmarks.trace_reading import machine
from ppprof.analysis.ranks.unrecorded import own_by_step, roles_of_ranks, steps_outside_windows
from ppprof.slow_ranks import SlowRanks

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs/gpt/pretrain_gpt_tiny_cpu_dp2_mp2_pp2.yaml"
RANKS = 8
SLOW = 3
WORK_S = 0.06
"""Sleep of a block's forward, half as long as that of its backward: 12 of them are a rank's work in a step."""
FORWARDS = 4
PERCENT = (20, 10, 5)
LIMITS = (20, 50, 100, 200)
PIECE = 20

Own = npt.NDArray[np.float64]
"""Own work, by step and rank, in nanoseconds."""


def record(folder: Path, slow_s: float, steps: int) -> None:
    """Train, with a rank whose blocks sleep ``slow_s`` longer in each forward."""
    settings = [
        *("Profiler.enable=True", "Profiler.timer_only=True", "Model.num_layers=2"),
        *(f"Engine.max_steps={steps}", "Engine.eval_freq=-1", "Engine.save_load.save_steps=-1"),
    ]
    what = f"work:{WORK_S}:0" + f"+rank:{SLOW}:{slow_s}" * bool(slow_s)
    command = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", str(RANKS)]
    command += ["--log_dir", "launch", str(ROOT / "tests/jobs/planted_job.py"), what]
    command += ["-c", str(CONFIG)]
    folder.mkdir(parents=True)
    subprocess.run(
        [*command, *(part for setting in settings for part in ("-o", setting))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
    )


def read(folder: Path) -> tuple[Own, float, list[str]]:
    """Return the own work of a run, its median step and the role of each rank."""
    run = ppprof.open(folder / "profiler_log")
    steps = steps_outside_windows(run.step_times)
    ranks, own = own_by_step(steps)
    roles = roles_of_ranks(run.topology, ranks)
    whole = own[np.isfinite(own).all(axis=1)]
    return whole, steps["step_ns"].median(), [roles[rank] for rank in ranks]


def alarms(own: Iterator[Own], step_ns: float, roles: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the number of steps so far and the rank, for each time that a rank begins to be named."""
    test, known = SlowRanks(roles), set[int]()
    for number, each in enumerate(own, 1):
        test.add(each)
        slow = {rank for rank, _ in test.slow(step_ns)}
        yield from ((number, rank) for rank in sorted(slow - known))
        known = slow


def drawn(runs: Sequence[Own], roles: Sequence[str], num: int, seed: int) -> Iterator[Own]:
    """Yield steps of random pieces of the runs; ranks stand for others of their stage."""
    chance = np.random.default_rng(seed)
    families = [np.flatnonzero(np.array(roles) == role) for role in sorted(set(roles))]
    places = np.arange(len(roles))
    for family in families:
        places[family] = chance.permutation(family)
    for _ in range(num // PIECE):
        own = runs[chance.integers(len(runs))]
        first = chance.integers(len(own) - PIECE)
        yield from own[first : first + PIECE, places]


def main(argv: Sequence[str] | None = None) -> None:
    """Record what is not there, and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=150, help="of a run")
    parser.add_argument("--hours", type=float, default=300, help="of steps without a slow rank")
    parser.add_argument("--keep", type=Path, help="folder of the runs")
    args = parser.parse_args(argv)
    print(machine(), end="\n\n")
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        for name in ("nothing", "nothing again"):
            if not (folder / name).exists():
                record(folder / name, 0, args.steps)
        quiet = [read(folder / name) for name in ("nothing", "nothing again")]
        runs, (_, step_ns, roles) = [own for own, *_ in quiet], quiet[0]
        usual_ns = np.median(
            runs[0][:, [rank for rank in range(RANKS) if roles[rank] == roles[SLOW]]]
        )
        spread = np.median(
            np.abs(runs[0] - np.median(runs[0], axis=0)) / np.median(runs[0], axis=0)
        )
        print(
            f"step {step_ns / 1e6:.0f} ms, own work of rank {SLOW}'s stage {usual_ns / 1e6:.0f} ms, ",
            end="",
        )
        print(f"from step to step +-{1.4826 * spread:.1%} (1.4826 x MAD)")
        for percent in PERCENT:
            name = f"slow {percent}"
            if not (folder / name).exists():
                record(folder / name, percent / 100 * usual_ns / 1e9 / FORWARDS, args.steps)
            own, step_ns, _ = read(folder / name)
            numbers = []
            for limit in LIMITS:
                starts = range(0, len(own) - limit + 1)
                named = [
                    any(
                        rank == SLOW
                        for _, rank in alarms(iter(own[first:][:limit]), step_ns, roles)
                    )
                    for first in starts
                ]
                numbers.append(f"{np.mean(named):.0%} in {limit}" if named else "")
            print(f"{percent:>3}% slower: found in steps: {', '.join(filter(None, numbers))}")
        num = int(args.hours * 3600e9 / step_ns)
        false = list(alarms(drawn(runs, roles, num, seed=1), step_ns, roles))
        print(f"false alarms in {args.hours:g} hours of {num:,} steps: {len(false)}")


if __name__ == "__main__":
    main()
