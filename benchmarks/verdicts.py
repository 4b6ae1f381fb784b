"""How often `ppprof diff` is right: runs of one config, and runs that a planted sleep makes slower.

The runs are processes of their own, one after another: equal, 10% slower, 20% slower, equal... Each
has ``timer_only``, so all steps from step 10 on count. All pairs of equal runs must not be called
faster or slower; a slower run is compared with the equal run just before it.

Then several runs of either side are compared, as `ppprof bench` does: `ROUNDS` rounds are drawn again and again, each
with an equal and a slower run that were trained one after the other, or with two equal runs in a random order.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import ppprof
from ppprof.analysis.diff.several_runs import run_time, runs_change

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs/gpt/pretrain_gpt_tiny_cpu.yaml"
SKIPPED = 10
"""First steps of a run that `ppprof diff` leaves out."""
SLOWDOWNS = (0.10, 0.20)
ROUNDS = (3, 5, 8)
_DRAWS = 500


def train(folder: Path, num_steps: int, sleep_s: float) -> ppprof.Run:
    """Train in a process of its own; the first block sleeps in each step."""
    settings = (
        *("Profiler.enable=True", "Profiler.timer_only=True", "Engine.eval_freq=-1"),
        f"Engine.max_steps={SKIPPED + num_steps}",
    )
    options = [part for setting in settings for part in ("-o", setting)]
    planted = ROOT / "tests/jobs/planted_job.py"
    what = f"layer:1:{sleep_s}" if sleep_s else "nothing"
    folder.mkdir()
    subprocess.run(
        [sys.executable, planted, what, "-c", CONFIG, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return ppprof.open(folder / "profiler_log")


def shortened(run: ppprof.Run, num_steps: int, folder: Path) -> ppprof.Run:
    """Return a run with the first steps of another one only."""
    (source,) = run.paths
    (folder / "steps").mkdir(parents=True)
    (folder / "manifest.json").write_bytes((source / "manifest.json").read_bytes())
    lines = (source / "steps/rank_00000.jsonl").read_text().splitlines(keepends=True)
    text = "".join(lines[: SKIPPED + num_steps])
    (folder / "steps/rank_00000.jsonl").write_text(text)
    return ppprof.open(folder)


def verdicts(pairs: Sequence[tuple[ppprof.Run, ppprof.Run]]) -> dict[str, int]:
    """Return how many pairs have each verdict."""
    return dict(Counter(ppprof.diff(*pair).change.verdict for pair in pairs).most_common())


def drawn(rounds: Sequence[tuple[float, float]], num: int, is_equal: bool) -> Counter[str]:
    """Return how often each verdict is given on ``num`` rounds."""
    chance = random.Random(num)
    found: Counter[str] = Counter()
    for _ in range(_DRAWS):
        pairs = chance.sample(rounds, num)
        if is_equal:
            pairs = [chance.sample(pair, 2) for pair in pairs]
        found[runs_change(*zip(*pairs)).verdict] += 1
    return found


def print_drawn(kind: str, rounds: Sequence[tuple[ppprof.Run, ppprof.Run]]) -> None:
    """Print the verdicts on several runs of either side."""
    times = [tuple(run_time(run.step_times) for run in pair) for pair in rounds]
    for name in ("median_ns", "quiet_ns"):
        values = [tuple(getattr(each, name) for each in pair) for pair in times]
        for num in ROUNDS:
            if num <= len(values):
                found = drawn(values, num, kind == "equal")
                shares = ", ".join(f"{key} {n / _DRAWS:.0%}" for key, n in found.most_common())
                print(f"{kind}, {num} runs a side, {name.removesuffix('_ns')}: {shares}")


def main() -> None:
    """Train all runs, and print a line for each kind of pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs of each kind")
    parser.add_argument("--steps", type=int, default=50, help="steps that count, of each run")
    parser.add_argument(
        "--slower", type=float, nargs="*", default=SLOWDOWNS, help="planted slowdowns"
    )
    parser.add_argument("--short", type=int, default=12, help="steps of the shortened runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        equal, slower = [], {slowdown: [] for slowdown in options.slower}
        usual_s = 0.0
        for number in range(options.runs):
            equal.append(train(folder / f"equal{number}", options.steps, 0))
            steps = equal[-1].step_times["batch_cost_ns"][SKIPPED:]
            usual_s = usual_s or float(steps.mean()) / 1e9
            for slowdown, runs in slower.items():
                path = folder / f"slower{slowdown}_{number}"
                runs.append(train(path, options.steps, slowdown * usual_s))
            print(f"{number + 1} of {options.runs}", file=sys.stderr, flush=True)
        short = [
            shortened(run, options.short, folder / f"short{number}")
            for number, run in enumerate(equal)
        ]
        means = [float(run.step_times["batch_cost_ns"][SKIPPED:].mean()) for run in equal]
        spread = statistics.stdev(means) / statistics.mean(means)
        print(f"step {statistics.mean(means) / 1e6:.1f} ms, between equal runs +-{spread:.1%}")
        for kind, runs in ((f"{options.steps} steps", equal), (f"{options.short} steps", short)):
            pairs = list(itertools.combinations(runs, 2))
            print(f"equal, {kind}: {len(pairs)} pairs: {verdicts(pairs)}")
        for slowdown, runs in slower.items():
            pairs = list(zip(equal, runs))
            print(f"{slowdown:.0%} slower: {len(pairs)} pairs: {verdicts(pairs)}")
        print_drawn("equal", list(zip(equal[::2], equal[1::2])))
        for slowdown, runs in slower.items():
            print_drawn(f"{slowdown:.0%} slower", list(zip(equal, runs)))


if __name__ == "__main__":
    main()
