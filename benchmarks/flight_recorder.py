"""What the flight recorder adds to a step of eight ranks: dp 2 x mp 2 x pp 2, the harness's tiny GPT.

One job trains; contestants take turns as its profiler, in an order that changes every round: off (``enable:
False``), attached without the recorder, attached with it, and with it without the compiled core. A pair is two contestants' median steps in the
same round. The output is the mean over the pairs, with two standard errors. "off again / off" shows the
noise. Time is that of the slowest rank; processor time is the sum over all ranks, with all of their threads.
On fewer than eight quiet cores, ranks wait for processors, and their caches are cold when they go on.

    python -m benchmarks.flight_recorder [--rounds 24] [--steps 8]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.trace_reading import machine

RANKS = 8
_RATIOS = (
    ("attached with the recorder / off", "recorder", "off"),
    ("attached with the recorder / without", "recorder", "without"),
    ("without the compiled core / without", "python", "without"),
    ("attached without the recorder / off", "without", "off"),
    ("off again / off", "off again", "off"),
)


def measure(rounds: int, steps: int) -> list[tuple[str, str]]:
    """Run the job; return rows of (name, value)."""
    with tempfile.TemporaryDirectory() as folder:
        launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(RANKS)]
        launch += ["--log_dir", f"{folder}/launch"]
        job = str(Path(__file__).with_name("flight_recorder_job.py"))
        command = [sys.executable, *launch, job, folder, str(rounds), str(steps)]
        # Else each of the ranks computes with as many threads as there are processors.
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=one_thread, capture_output=True, text=True, check=False)
        if done.returncode:
            logs = Path(folder, "launch").glob("workerlog.*")
            raise SystemExit("".join(path.read_text()[-2000:] for path in logs) + done.stderr)
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]

    def of(name: str) -> list[tuple[float, float]]:
        """Return the seconds and the seconds of processor time of each round."""
        rounds_of_ranks = zip(*(rank["medians"][name] for rank in ranks))
        return [
            (max(wall for wall, _ in each), sum(busy for _, busy in each))
            for each in rounds_of_ranks
        ]

    wall_s, busy_s = (statistics.median(times) for times in zip(*of("off")))
    operations = [rank["operations"] for rank in ranks]
    title = f"a step while off, of {rounds} rounds of {steps}"
    rows = [(title, f"{wall_s * 1e3:.1f} ms, {busy_s * 1e3:.1f} ms of processors, all ranks")]
    rows.append(("operations a step and rank", f"{min(operations):.0f} to {max(operations):.0f}"))
    for title, over, under in _RATIOS:
        pairs = list(zip(of(over), of(under)))
        wall, busy = ([a[clock] / b[clock] for a, b in pairs] for clock in (0, 1))
        rows.append((title, f"time {_mean(wall, 3)}, processor time {_mean(busy, 3)}"))
    for title, name in (("", "recorder"), (", without the compiled core", "python")):
        added_us = [(a[1] - b[1]) / sum(operations) * 1e6 for a, b in zip(of(name), of("without"))]
        rows.append((f"an operation{title}", f"{_mean(added_us, 0)} us of processor time"))
    return rows


def _mean(values: list[float], digits: int) -> str:
    error = 2 * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):.{digits}f} ± {error:.{digits}f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--steps", type=int, default=8, help="timed steps of a turn")
    args = parser.parse_args(argv)
    print(machine(), end="\n\n")
    for title, value in measure(args.rounds, args.steps):
        print(f"{title:<50}{value:>70}")


if __name__ == "__main__":
    main()
