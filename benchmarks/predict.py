"""What ``ppprof predict`` says of other configurations, against trainings with these configurations.

::

    python -m benchmarks.predict FOLDER train     # train what FOLDER lacks, as long as a turn takes
    python -m benchmarks.predict FOLDER           # the table

Blocks sleep for their work, so that eight ranks on two cores do not slow each other down.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

import ppprof
from ppprof.run.predict import base_of, measured_of, prediction
from tests.jobs.launching import CONFIG, JOBS, NO_DROPOUT, SMALL, overrides, run

WORK = "work:0.01:0.0003125"
"""A block's forward: 10 ms and, for a sample of 32 tokens, 10 ms; its backward takes twice as long."""

MICRO, LOCAL = "Global.micro_batch_size", "Global.local_batch_size"
PP, DP, MP = (f"Distributed.{axis}_degree" for axis in ("pp", "dp", "mp"))
CHANGES: Sequence[Mapping[str, int | bool]] = (
    {},
    {MICRO: 2},
    {MICRO: 4},
    {LOCAL: 16},
    {PP: 2},
    {PP: 8},
    {PP: 2, DP: 2},
    {PP: 4, DP: 2},
    {PP: 1, DP: 4},
    {"Model.virtual_pp_degree": 2},
    {"Model.use_recompute": True},
    {PP: 2, MICRO: 2},
    {PP: 8, LOCAL: 16, MICRO: 2},
)
"""What differs from the first base: pp_degree 4, 8 micro-batches of one sample. The second is the other base."""
BASES = (0, 1)
_STEPS = (4, 9)
_TURN_S = 200


def train(folder: Path, change: Mapping[str, int | bool], *, traced: bool) -> None:
    """Train with a change in ``folder``."""
    settings = {PP: 4, DP: 1, MP: 1, MICRO: 1, LOCAL: 8, **change}
    folder.mkdir(parents=True)
    run(
        folder,
        JOBS / "planted_job.py",
        WORK,
        "-c",
        CONFIG,
        *overrides(
            *SMALL,
            *NO_DROPOUT,
            "Model.num_layers=8",
            "Engine.logging_freq=100",
            "Profiler.enable=True",
            f"Profiler.scheduler={list(_STEPS)}",
            f"Profiler.timer_only={not traced}",
            *(f"{key}={value}" for key, value in settings.items()),
        ),
        processes=int(settings[PP] * settings[DP] * settings[MP]),
    )


def measured_ns(folder: Path) -> tuple[float, float]:
    """Return the median step, and the most that a rank waits for a processor in it, as a ratio."""
    steps = ppprof.open(folder / "profiler_log").step_times
    steps = steps.filter(pl.col("step").is_between(*_STEPS, closed="left"))
    waits = steps["processor_wait_ns"] / steps["batch_cost_ns"]
    by_step = steps.group_by("step").agg(
        (pl.col("batch_cost_ns") - pl.col("stall_ns").fill_null(0)).median()
    )
    return float(by_step["batch_cost_ns"].median()), float(waits.median())


def main() -> None:
    """Train or print."""
    folder = Path(sys.argv[1])
    begin = time.monotonic()
    paths = [folder / f"{number:02}" for number in range(len(CHANGES))]
    for number, (change, path) in enumerate(zip(CHANGES, paths)):
        if sys.argv[2:] == ["train"] and not path.exists() and time.monotonic() - begin < _TURN_S:
            train(path, change, traced=number in BASES)
            print(number, change, f"{time.monotonic() - begin:.0f} s", flush=True)
    if sys.argv[2:]:
        return
    runs = [ppprof.open(paths[number] / "profiler_log") for number in BASES]
    both = base_of(runs, [measured_of(run) for run in runs])
    alone = both._replace(runs=both.runs[:1])
    print("| change | measured, ms | from two runs, ms | error | from one run, ms | waits |")
    print("|---|---:|---:|---:|---|---:|")
    pairs = []
    for number, (change, path) in enumerate(zip(CHANGES, paths)):
        if number in BASES or not path.exists():
            continue
        overrides = [f"{key}={value}" for key, value in change.items()]
        real, wait = measured_ns(path)
        found, one = (prediction(base, overrides)["steps"][-1] for base in (both, alone))
        likely = found["step_ns"]
        pairs.append((real, likely))
        cells = [
            "`" + " ".join(overrides) + "`",
            f"{real / 1e6:,.0f}",
            *(
                ["-", "-"]
                if likely is None
                else [f"{likely / 1e6:,.0f}", f"{likely / real - 1:+.1%}"]
            ),
            " to ".join(
                "-" if one[key] is None else f"{one[key] / 1e6:,.0f}"
                for key in ("low_ns", "high_ns")
            ),
            f"{wait:.1%}",
        ]
        print(f"| {' | '.join(cells)} |")
    known = [(real, likely) for real, likely in pairs if likely is not None]
    errors = [abs(likely / real - 1) for real, likely in known]
    print(f"median {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    apart = [
        (first[0] < second[0]) == (first[1] < second[1])
        for first, second in itertools.combinations(known, 2)
        if max(first[0], second[0]) > 1.15 * min(first[0], second[0])
    ]
    print(f"order right in {sum(apart)} of {len(apart)} pairs that differ by more than 15%")


if __name__ == "__main__":
    main()
