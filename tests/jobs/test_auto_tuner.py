"""Paddle's auto-tuner trains the configurations that ``ppprof predict --search`` wrote for it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.jobs.launching import CONFIG, NO_DROPOUT, SMALL, TRAIN, overrides, run, train

pytestmark = [pytest.mark.paddle, pytest.mark.all]

SETTINGS = (*SMALL, *NO_DROPOUT, "Global.global_batch_size=8")
PIPELINE = ("Distributed.pp_degree=2", "Global.micro_batch_size=2")
RECORDED = ("Profiler.enable=True", "Profiler.scheduler=[4,9]")
KEYS = {
    **{f"{axis}_degree": f"Distributed.{axis}_degree" for axis in ("dp", "mp", "pp")},
    "sharding_degree": "Distributed.sharding.sharding_degree",
    "sharding_stage": "Distributed.sharding.sharding_stage",
    "vpp_degree": "Model.virtual_pp_degree",
    "use_recompute": "Model.use_recompute",
    "recompute_granularity": "Model.recompute_granularity",
    **{f"{name}_batch_size": f"Global.{name}_batch_size" for name in ("micro", "local", "global")},
}
"""Keys of the tuner, and keys of the harness."""


def test_the_tuner_trains_the_best_and_its_history_is_compared(tmp_path: Path, cli: Cli) -> None:
    train(tmp_path, *SETTINGS, *PIPELINE, *RECORDED, processes=2, code=0)
    recorded = tmp_path / "profiler_log"
    best = tmp_path / "best.csv"
    cli("predict", recorded, "--search", "--world-size", 2, "--to", "paddle-tuner", best)
    tuner = {
        "search_algo": {"name": "customize"},
        "configs_csv": str(best),
        "task_limit": 2,
        "run_best": False,
        "metric_cfg": {"name": "batch_cost", "OptimizationDirection": "Minimize"},
        "model_cfg": {"global_batch_size": 8},
        "run_cmd": {name: ["-o", key] for name, key in KEYS.items()},
    }
    (tmp_path / "tuner.json").write_text(json.dumps(tuner))
    options = ("--auto_tuner_json", str(tmp_path / "tuner.json"))
    run(tmp_path, TRAIN, "-c", CONFIG, *overrides(*SETTINGS), processes=2, options=options)

    history = tmp_path / "tuner_history.csv"
    with history.open(newline="") as lines:
        measured = {float(row["job_id"]): float(row["batch_cost"]) for row in csv.DictReader(lines)}
    assert len(measured) == 2
    out = cli("predict", recorded, "--history", history, "--format", "json").out
    rows = json.loads(out)["tables"]["history"]
    assert [row["ranks"] for row in rows] == [2, 2]
    assert sorted(row["measured_ns"] for row in rows) == pytest.approx(
        sorted(1e9 * seconds for seconds in measured.values())
    )
