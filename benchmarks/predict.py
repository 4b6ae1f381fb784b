"""What ``ppprof predict`` says of other configurations, against trainings with these configurations.

::

    python -m benchmarks.predict steps FOLDER --train     # train what FOLDER lacks, as long as a turn takes
    python -m benchmarks.predict steps FOLDER             # predicted and measured steps
    python -m benchmarks.predict memory FOLDER [--train]  # the same of the peak of Paddle's allocator

In trainings for steps, blocks sleep for their work, so that eight ranks on two cores do not slow each
other down.
"""

from __future__ import annotations

import argparse
import itertools
import math
import shutil
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

import ppprof
from ppprof.analysis.predict.prediction import memory
from ppprof.run.predict import base_of, measured_of, prediction, spec_in
from ppprof.topology import Topology
from tests.jobs.launching import CONFIG, JOBS, NO_DROPOUT, SMALL, TRAIN, overrides, run

WORK = "work:0.01:0.0003125"
"""A block's forward: 10 ms and, for a sample of 32 tokens, 10 ms; its backward takes twice as long."""

MICRO, LOCAL = "Global.micro_batch_size", "Global.local_batch_size"
PP, DP, MP = (f"Distributed.{axis}_degree" for axis in ("pp", "dp", "mp"))
SHARDING, STAGE = (f"Distributed.sharding.sharding_{key}" for key in ("degree", "stage"))
VIRTUAL, AGAIN, WHAT = (
    f"Model.{key}" for key in ("virtual_pp_degree", "use_recompute", "recompute_granularity")
)
SEQUENCE = "Model.sequence_parallel"
Change = Mapping[str, Any]

CHANGES: Sequence[Change] = (
    {},
    {MICRO: 2},
    {MICRO: 4},
    {LOCAL: 16},
    {PP: 2},
    {PP: 8},
    {PP: 2, DP: 2},
    {PP: 4, DP: 2},
    {PP: 1, DP: 4},
    {VIRTUAL: 2},
    {AGAIN: True},
    {PP: 2, MICRO: 2},
    {PP: 8, LOCAL: 16, MICRO: 2},
    {PP: 2, MP: 2},
    {PP: 4, MP: 2},
    {PP: 2, MP: 4},
    {PP: 2, SHARDING: 2, STAGE: 1},
    {PP: 4, SHARDING: 2, STAGE: 1},
    {PP: 2, SHARDING: 4, STAGE: 1},
    {PP: 1, SHARDING: 4, STAGE: 2},
    {PP: 1, SHARDING: 4, STAGE: 3},
    {PP: 2, MP: 2, MICRO: 2},
)
"""What differs from pp_degree 4, 8 micro-batches of one sample."""
BASES: Sequence[tuple[Sequence[int], Sequence[int]]] = (
    ((0, 1), range(2, 21)),
    ((13,), (4, 14, 15, 21)),
    ((16,), (4, 6, 13, 17, 18, 19, 20)),
)
"""Numbers of recorded runs, and of the changes that are predicted from them."""
_STEPS = (4, 9)
_TURN_S = 100
_MOST_WAIT_RATIO = 0.15
"""Runs in which ranks wait longer for a processor are repeated: other programs were running. With mp_degree,
ranks that share processors wait for up to 13% without any."""


class Size(NamedTuple):
    """The sizes of a model."""

    hidden: int
    heads: int
    layers: int
    length: int
    vocabulary: int

    def settings(self) -> Change:
        """Return the keys that set them."""
        names = ("hidden_size", "num_attention_heads", "num_layers", "vocab_size")
        values = (self.hidden, self.heads, self.layers, self.vocabulary)
        lengths = (f"Data.{each}.dataset.max_seq_len" for each in ("Train", "Eval"))
        return {
            **{f"Model.{name}": value for name, value in zip(names, values)},
            **dict.fromkeys(lengths, self.length),
            "Model.max_position_embeddings": 256,
        }


DROPOUT: Change = {key.partition("=")[0]: 0.1 for key in NO_DROPOUT}
ATTENTION: Change = {AGAIN: True, WHAT: "full_attn"}
CORE: Change = {AGAIN: True, WHAT: "core_attn"}
MODELS: Sequence[tuple[Size, Change]] = (
    (Size(96, 6, 3, 80, 1000), {MICRO: 2, LOCAL: 4}),
    (Size(160, 4, 2, 48, 3000), {MICRO: 3, LOCAL: 3}),
    (Size(64, 8, 3, 192, 600), {LOCAL: 2, **DROPOUT}),
    (Size(64, 8, 3, 256, 600), {LOCAL: 2}),
    (Size(96, 6, 6, 112, 700), {MICRO: 2, LOCAL: 4, AGAIN: True}),
    (Size(192, 12, 4, 40, 2000), {MICRO: 2, LOCAL: 4, DP: 2}),
    (Size(112, 4, 3, 96, 900), {MICRO: 2, LOCAL: 4, MP: 2}),
    (Size(112, 4, 3, 96, 900), {MICRO: 2, LOCAL: 4, MP: 2, SEQUENCE: True}),
    (Size(128, 8, 3, 144, 800), {LOCAL: 2, MP: 2, **ATTENTION, **DROPOUT}),
    (Size(176, 8, 4, 56, 1400), {MICRO: 2, LOCAL: 4, MP: 4, SEQUENCE: True, AGAIN: True}),
    (Size(96, 6, 4, 112, 600), {LOCAL: 4, PP: 2}),
    (Size(144, 6, 6, 72, 1536), {MICRO: 2, LOCAL: 8, PP: 3}),
    (Size(80, 5, 8, 96, 512), {LOCAL: 8, PP: 4}),
    (Size(80, 5, 6, 88, 640), {LOCAL: 6, PP: 3, VIRTUAL: 2}),
    (Size(96, 4, 8, 48, 600), {LOCAL: 8, PP: 4, VIRTUAL: 2}),
    (Size(128, 4, 4, 104, 800), {LOCAL: 6, PP: 2, AGAIN: True}),
    (Size(96, 8, 4, 160, 700), {LOCAL: 4, PP: 2, **CORE}),
    (Size(144, 6, 4, 72, 1100), {LOCAL: 4, PP: 2, DP: 2}),
    (Size(176, 8, 4, 56, 1400), {LOCAL: 4, PP: 2, MP: 2}),
    (Size(96, 6, 4, 128, 500), {LOCAL: 4, PP: 2, MP: 2, **DROPOUT}),
    (Size(128, 8, 4, 96, 600), {LOCAL: 4, PP: 2, MP: 2, SEQUENCE: True, AGAIN: True, **DROPOUT}),
    (Size(112, 7, 6, 64, 1536), {LOCAL: 6, PP: 3, DP: 2, AGAIN: True}),
    (Size(128, 8, 4, 64, 1024), {MICRO: 2, LOCAL: 8, PP: 2, MP: 2, DP: 2}),
    (Size(208, 8, 4, 40, 1200), {MICRO: 2, LOCAL: 2, SHARDING: 2, STAGE: 1}),
    (Size(240, 8, 2, 32, 4000), {LOCAL: 2, PP: 2, SHARDING: 2, STAGE: 1}),
    (Size(176, 8, 2, 120, 1400), {LOCAL: 4, MP: 2, SHARDING: 2, STAGE: 1}),
    (Size(208, 8, 4, 40, 1200), {MICRO: 2, LOCAL: 2, SHARDING: 2, STAGE: 2}),
    (Size(320, 5, 2, 24, 2500), {SHARDING: 4, STAGE: 2, LOCAL: 1}),
    (Size(160, 5, 3, 48, 2000), {SHARDING: 2, DP: 2, STAGE: 2, LOCAL: 2}),
    (Size(120, 6, 6, 72, 2048), {LOCAL: 4, PP: 2, MP: 2, SEQUENCE: True}),
    (Size(88, 11, 10, 104, 820), {LOCAL: 10, PP: 5}),
    (Size(256, 16, 3, 64, 512), {MICRO: 4, LOCAL: 4, **DROPOUT}),
    (Size(144, 9, 6, 48, 3600), {LOCAL: 6, PP: 3, VIRTUAL: 2, AGAIN: True}),
    (Size(200, 10, 3, 56, 1000), {LOCAL: 2, DP: 2, MP: 2}),
)
"""Models, and what differs from one rank with micro-batches of one sample.

No number of the model of memory was fitted. The last five were trained after its last change."""


def train(folder: Path, program: Sequence[str | Path], settings: Change) -> None:
    """Train in ``folder``, on as many ranks as the degrees give."""
    settings = {PP: 1, DP: 1, MP: 1, SHARDING: 1, MICRO: 1, "Engine.logging_freq": 100, **settings}
    folder.mkdir(parents=True)
    ranks = math.prod(int(settings[key]) for key in (PP, DP, MP, SHARDING))
    values = (f"{key}={value}" for key, value in settings.items())
    given = overrides(*NO_DROPOUT, "Engine.eval_freq=-1", "Profiler.enable=True", *values)
    run(folder, *program, "-c", CONFIG, *given, processes=ranks if ranks > 1 else 0)


def train_steps(folder: Path, number: int) -> None:
    """Train with a change; with a window if predictions start from it."""
    is_base = any(number in bases for bases, _ in BASES)
    small = dict(setting.split("=") for setting in SMALL)
    more = {"Model.num_layers": 8, "Engine.logging_freq": 100, PP: 4, LOCAL: 8}
    window = {"Profiler.scheduler": list(_STEPS), "Profiler.timer_only": not is_base}
    program = (JOBS / "planted_job.py", WORK)
    train(folder, program, {**small, **more, **window, **CHANGES[number]})


def train_memory(folder: Path, number: int) -> None:
    """Train a model for some steps, without a window."""
    size, change = MODELS[number]
    settings = {"Engine.max_steps": 4, "Profiler.timer_only": True}
    train(folder, [TRAIN], {**settings, **size.settings(), **change})


def measured_ns(folder: Path) -> tuple[float, float]:
    """Return the median step, and the most that a rank waits for a processor in it, as a ratio."""
    steps = ppprof.open(folder / "profiler_log").step_times
    steps = steps.filter(pl.col("step").is_between(*_STEPS, closed="left"))
    waits = steps["processor_wait_ns"] / steps["batch_cost_ns"]
    by_step = steps.group_by("step").agg(
        (pl.col("batch_cost_ns") - pl.col("stall_ns").fill_null(0)).median()
    )
    cost_ns, wait_ratio = by_step["batch_cost_ns"].median(), waits.median()
    assert isinstance(cost_ns, float)
    assert isinstance(wait_ratio, float)
    return cost_ns, wait_ratio


def order_of(pairs: Iterable[tuple[float, float]]) -> tuple[int, int]:
    """Return how many pairs of measured and predicted steps that differ by more than 15% are in the right order, and of how many.

    >>> order_of([(10, 11), (20, 19), (30, 18), (31, 40)])
    (4, 5)
    """
    apart = [
        (first[0] < second[0]) == (first[1] < second[1])
        for first, second in itertools.combinations(pairs, 2)
        if max(first[0], second[0]) > 1.15 * min(first[0], second[0])
    ]
    return sum(apart), len(apart)


def print_steps(folders: Sequence[Path]) -> None:
    """Print predicted and measured steps, and whether the measured one is in the range."""
    print(
        "| from | change | measured, ms | likely, ms | error | least to most, ms | in it | waits |"
    )
    print("|---|---|---:|---:|---:|---|---|---:|")
    pairs = []
    num_in = num = 0
    for numbers, targets in BASES:
        if not all(folders[number].exists() for number in numbers):
            continue
        runs = [ppprof.open(folders[number] / "profiler_log") for number in numbers]
        base = base_of(runs, [measured_of(each) for each in runs])
        for number in targets:
            if not folders[number].exists():
                continue
            start = {PP: 4, DP: 1, MP: 1, SHARDING: 1, MICRO: 1, LOCAL: 8}
            change = {**start, **CHANGES[numbers[0]], **start, **CHANGES[number]}
            row = prediction(base, [f"{key}={value}" for key, value in change.items()])["steps"][-1]
            real, wait = measured_ns(folders[number])
            likely, low, high = (row[key] for key in ("step_ns", "low_ns", "high_ns"))
            is_in = low <= real <= (math.inf if high is None else high)
            num_in, num = num_in + is_in, num + 1
            if likely is not None:
                pairs.append((real, likely))
            named = (f"{key.rpartition('.')[2]}={value}" for key, value in CHANGES[number].items())
            cells = [
                "+".join(map(str, numbers)),
                " ".join(named),
                f"{real / 1e6:,.0f}",
                "-" if likely is None else f"{likely / 1e6:,.0f}",
                "-" if likely is None else f"{likely / real - 1:+.1%}",
                " to ".join("-" if each is None else f"{each / 1e6:,.0f}" for each in (low, high)),
                "yes" if is_in else "no",
                f"{wait:.1%}",
            ]
            print(f"| {' | '.join(cells)} |")
    errors = [abs(likely / real - 1) for real, likely in pairs]
    print(f"median {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    print(f"measured step between least and most in {num_in} of {num}")
    right, apart = order_of(pairs)
    print(f"order right in {right} of {apart} pairs that differ by more than 15%")


def print_memory(folders: Sequence[Path]) -> None:
    """Print the predicted peak of each stage beside the largest that its ranks measured."""
    print("| model | stage | measured, MiB | predicted, MiB | error | when |")
    print("|---|---:|---:|---:|---:|---|")
    errors = []
    for (size, change), folder in zip(MODELS, folders):
        if not folder.exists():
            continue
        opened = ppprof.open(folder / "profiler_log")
        spec = spec_in(opened)
        topology = Topology.of(dp=spec.dp, pp=spec.pp, sharding=spec.sharding, mp=spec.mp)
        peaks = dict(
            opened.step_times.group_by("rank").agg(pl.col("host_peak_allocated_bytes").max()).rows()
        )
        for row in memory(spec):
            ranks = topology.select({"pp": row["stage"]})
            real, predicted = max(peaks[rank] for rank in ranks), row["total_bytes"]
            errors.append(abs(predicted / real - 1))
            named = (f"{key.rpartition('.')[2]}={value}" for key, value in change.items())
            print(
                f"| {'/'.join(map(str, size))} {' '.join(named)} | {row['stage']} | {real / 2**20:.2f} | "
                f"{predicted / 2**20:.2f} | {predicted / real - 1:+.1%} | {row['moment']} |"
            )
    print(f"median {statistics.median(errors):.1%}, worst {max(errors):.1%} of {len(errors)}")


def main() -> None:
    """Train or print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("steps", "memory"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", action="store_true", help="train for at most a turn")
    args = parser.parse_args()
    num = len(CHANGES if args.what == "steps" else MODELS)
    folders = [args.folder / f"{number:02}" for number in range(num)]
    if not args.train:
        (print_steps if args.what == "steps" else print_memory)(folders)
        return
    begin = time.monotonic()
    for number, folder in enumerate(folders):
        if not folder.exists() and time.monotonic() - begin < _TURN_S:
            (train_steps if args.what == "steps" else train_memory)(folder, number)
            print(number, f"{time.monotonic() - begin:.0f} s", flush=True)
            if args.what == "steps" and measured_ns(folder)[1] > _MOST_WAIT_RATIO:
                print(f"{number}: not kept: its ranks waited for processors", flush=True)
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
