"""Trainings with something slow planted in them, and the small run directories that they left.

``tests/fixtures/runs/`` holds one of each, written by ``python -m tests.jobs.planted NAME...``, so
that the analyses are tested on real runs without training. ``make test-all`` records each anew into
a folder of its own, tests that too, and compares the two; it never writes over the committed ones.
"""

from __future__ import annotations

import gzip
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests import device
from tests.jobs.launching import CONFIGS, JOBS, ROOT, overrides, run

COMMITTED = ROOT / "tests/fixtures/runs"
SLEEP_MS = 40
"""What is planted in a layer."""

_HYBRID = "pretrain_gpt_tiny_cpu_dp2_mp2_pp2"
_TWO_BLOCKS = ("Model.num_layers=2",)
_MANY_PARAMETERS = (
    *("Model.num_layers=12", "Model.hidden_size=32", "Data.Train.dataset.max_seq_len=16"),
    *("Global.local_batch_size=1", "Global.micro_batch_size=1"),
)
"""148 parameters, and hardly anything to compute."""


class Planted(NamedTuple):
    """How a run is recorded."""

    what: str = "nothing"
    """For planted_job.py; without a config, the program that trains."""
    settings: tuple[str, ...] = ()
    processes: int = 0
    config: str = "pretrain_gpt_tiny_cpu"
    """Of configs/gpt/; empty for a program with settings of its own."""
    window: tuple[int, int] = (12, 18)
    on_device: bool = False
    """Whether it trains on the test device (`tests.device`), which g++ builds."""


RUNS = {
    "nothing": Planted(),
    "nothing_again": Planted(),
    "nothing_once_more": Planted(),
    "slow_layer": Planted(f"layer:1:{SLEEP_MS / 1000}"),
    "other_operator": Planted("operator:relu"),
    "added_layer": Planted(settings=("Model.num_layers=3",)),
    "slow_dataset": Planted("data:0:0.04"),
    "dataset_without_workers": Planted("data:0:0.02", ("Data.Train.loader.num_workers=0",)),
    "dataset_with_workers": Planted("data:0:0.02", ("Data.Train.loader.num_workers=2",)),
    "unfused_optimizer": Planted(settings=_MANY_PARAMETERS, window=(12, 15)),
    "fused_optimizer": Planted(
        settings=(*_MANY_PARAMETERS, "Optimizer.use_multi_tensor=True"), window=(12, 15)
    ),
    "slow_rank_of_two": Planted("rank:1:0.03", ("Distributed.dp_degree=2",), 2, window=(12, 16)),
    "one_micro_batch": Planted(settings=("Distributed.pp_degree=2",), processes=2),
    "eight_ranks": Planted("nothing", _TWO_BLOCKS, 8, _HYBRID, (3, 6)),
    # Rank 3 has 1 block and 4 micro-batches a step; ranks 1 and 5 reduce gradients once a step.
    "slow_rank_and_link": Planted("rank:3:0.06+link:1,5:0.2", _TWO_BLOCKS, 8, _HYBRID, (3, 6)),
    "small_net": Planted("small_net_job.py", config=""),  # PyTorch's: tests/fixtures/kineto
    "remote_calls": Planted("remote_job.py", config=""),
    "two_ranks_on_a_device": Planted(
        settings=("Distributed.dp_degree=2", f"Global.device={device.NAME}"),
        processes=2,
        window=(6, 9),
        on_device=True,
    ),
}


def record(name: str, folder: Path, steps: int | None = None) -> Path:
    """Train run ``name`` of `RUNS` in a folder and return its run directory, traces finished.

    ``steps`` is the length of its window, if it is to be another than in `RUNS`.
    """
    planted = RUNS[name]
    if not planted.config:
        run(folder, JOBS / planted.what)
        return folder / "profiler_log"
    start, stop = planted.window
    stop = start + steps if steps else stop
    settings = (
        *("Profiler.enable=True", f"Profiler.scheduler=[{start}, {stop}]"),
        *("Profiler.formats=[json.gz]", "Profiler.record_shapes=False"),
        *("Profiler.profile_memory=False", f"Engine.max_steps={stop + 1}", "Engine.eval_freq=-1"),
        *planted.settings,
    )
    config = CONFIGS / f"{planted.config}.yaml"
    program = (JOBS / "planted_job.py", planted.what, "-c", config, *overrides(*settings))
    variables = device.variables(device.build(folder)) if planted.on_device else {}
    run(folder, *program, processes=planted.processes, **variables)
    return folder / "profiler_log"


def main(*names: str) -> None:
    """Record runs, all of them if none is named, in the place of the committed ones."""
    for name in names or RUNS:
        with tempfile.TemporaryDirectory() as folder:
            made = record(name, Path(folder))
            for part in ("raw", "summary", "nodes", "alive", "devices"):
                shutil.rmtree(made / part, ignore_errors=True)
            for path in made.glob("*.json.gz"):
                path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 9, mtime=0))
            shutil.rmtree(COMMITTED / name, ignore_errors=True)
            shutil.copytree(made, COMMITTED / name)
        print(name, sum(file.stat().st_size for file in (COMMITTED / name).rglob("*")), "bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
