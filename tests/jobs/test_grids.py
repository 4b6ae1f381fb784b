"""Every grid trains what one process does: same data, same seed, same losses and gradient norms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.launching import (
    NO_DROPOUT,
    SMALL,
    covering,
    losses,
    norms,
    train,
    workerlogs,
)

pytestmark = [pytest.mark.paddle, pytest.mark.all]

BATCH = ("Global.global_batch_size=8", "Global.local_batch_size=null", "Global.micro_batch_size=2")
EVAL = "Engine.eval_freq=10"


def grid(stage: int = 2, **degrees: int) -> list[str]:
    """Overrides for the degrees of some axes."""
    keys = {axis: f"Distributed.{axis}_degree" for axis in ("dp", "mp", "pp")}
    keys["sharding"] = "Distributed.sharding.sharding_degree"
    chosen = [f"{keys[axis]}={degree}" for axis, degree in degrees.items()]
    return [*chosen, f"Distributed.sharding.sharding_stage={stage}"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, float], dict[int, float]]:
    """Losses and gradient norms of one process."""
    done = train(tmp_path_factory.mktemp("alone"), *SMALL, *NO_DROPOUT, *BATCH, EVAL)
    assert set(losses(done)) == {0, *norms(done)} == set(range(11))
    return losses(done), norms(done)


GRIDS = {
    "dp2": (2, grid(dp=2)),
    "mp2": (2, grid(mp=2)),
    "mp2, sequence parallel": (2, [*grid(mp=2), "Model.sequence_parallel=True"]),
    "pp2": (2, grid(pp=2)),
    "sharding2, stage 1": (2, grid(stage=1, sharding=2)),
    "sharding2, stage 2": (2, grid(stage=2, sharding=2)),
    "sharding2, stage 3": (2, grid(stage=3, sharding=2)),
    "mp2 pp2, sequence parallel": (4, [*grid(mp=2, pp=2), "Model.sequence_parallel=True"]),
    "mp2 pp2, recompute": (
        4, [*grid(mp=2, pp=2), "Model.use_recompute=True", "Model.recompute_granularity=full"],
    ),
    "dp2 mp2, recompute of attention": (
        4, [*grid(dp=2, mp=2), "Model.use_recompute=True", "Model.recompute_granularity=core_attn"],
    ),
    "dp2 pp2": (4, grid(dp=2, pp=2)),
    "sharding2 pp2": (4, grid(stage=1, sharding=2, pp=2)),
    "sharding2 mp2, stage 2": (4, grid(stage=2, sharding=2, mp=2)),
    "sharding2 mp2, stage 3": (4, grid(stage=3, sharding=2, mp=2)),
    "dp2 mp2 pp2": (8, grid(dp=2, mp=2, pp=2)),
    "sharding2 mp2, stage 3, sequence parallel, recompute": (
        4,
        [
            *grid(stage=3, sharding=2, mp=2),
            *("Model.sequence_parallel=True", "Model.use_recompute=True"),
            "Model.recompute_granularity=full",
        ],
    ),
}  # fmt: skip


COVERING = ("dp2 mp2 pp2", "sharding2 mp2, stage 3, sequence parallel, recompute")


@pytest.mark.parametrize("name", [covering(name, *COVERING) for name in GRIDS])
def test_a_grid_trains_what_one_process_does(
    name: str, alone: tuple[dict[int, float], dict[int, float]], tmp_path: Path
) -> None:
    processes, overrides = GRIDS[name]
    done = train(tmp_path, *SMALL, *NO_DROPOUT, *BATCH, EVAL, *overrides, processes=processes)
    of_one, norms_of_one = alone
    assert losses(done) == pytest.approx(of_one, rel=1e-5)
    assert norms(done) == pytest.approx(norms_of_one, rel=1e-5)


@pytest.mark.parametrize(
    ("processes", "of_the_grid", "of_both"),
    [
        pytest.param(
            3,
            [*grid(pp=3), "Model.virtual_pp_degree=2"],
            ["Model.num_layers=6", "Global.micro_batch_size=1", "Global.global_batch_size=6"],
            marks=pytest.mark.jobs,
        ),
        (2, grid(mp=2), ["Model.fuse_attn_qkv=False"]),
        (2, grid(pp=2), ["Data.Eval.dataset.max_seq_len=16", "Engine.eval_freq=5"]),
        (  # norms above the size from which stage 3 divides parameters
            4,
            [*grid(stage=3, sharding=2, mp=2), "Model.sequence_parallel=True"],
            ["Model.hidden_size=288", "Model.num_layers=1", "Engine.max_steps=4"],
        ),
    ],
    ids=[
        "interleaved stages",
        "mp2, query, key and value apart",
        "pp2, shorter sequences to evaluate",
        "wide, stage 3 in sequence",
    ],
)
def test_a_model_of_another_form_too(
    processes: int, of_the_grid: list[str], of_both: list[str], tmp_path: Path
) -> None:
    done = train(
        tmp_path, *SMALL, *NO_DROPOUT, *BATCH, EVAL, *of_the_grid, *of_both, processes=processes
    )
    one = train(tmp_path, *SMALL, *NO_DROPOUT, *BATCH, EVAL, *of_both)
    assert losses(done) == pytest.approx(losses(one), rel=1e-5)
    assert norms(done) == pytest.approx(norms(one), rel=1e-5)


@pytest.mark.parametrize(
    ("processes", "overrides"),
    [
        (4, grid(mp=2, pp=2)),
        (4, grid(stage=1, sharding=2, pp=2)),
        pytest.param(2, grid(stage=2, sharding=2), marks=pytest.mark.jobs),
        (4, grid(stage=3, sharding=2, dp=2)),
    ],
    ids=["mp2 pp2", "sharding2 pp2", "sharding2, stage 2", "sharding2 dp2, stage 3"],
)
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(
    processes: int, overrides: list[str], tmp_path: Path
) -> None:
    """With dropout, whose random numbers differ between mp ranks, stages and replicas."""
    saving = ["Engine.save_load.save_steps=5", f"Engine.save_load.output_dir={tmp_path}/out"]
    loading = f"Engine.save_load.ckpt_dir={tmp_path}/out/step_00000005"
    through = train(tmp_path, *SMALL, *BATCH, *overrides, *saving, processes=processes)
    resumed = train(tmp_path, *SMALL, *BATCH, *overrides, loading, processes=processes)
    assert losses(resumed) == {step: losses(through)[step] for step in range(6, 11)}
    assert norms(resumed) == {step: norms(through)[step] for step in range(6, 11)}


def test_a_checkpoint_of_another_grid_is_refused_by_all(tmp_path: Path) -> None:
    saving = ["Engine.save_load.save_steps=1", f"Engine.save_load.output_dir={tmp_path}/out"]
    assert train(tmp_path, *SMALL, "Engine.max_steps=1", *saving).returncode == 0
    loading = f"Engine.save_load.ckpt_dir={tmp_path}/out/step_00000001"
    done = train(tmp_path, *SMALL, *BATCH, *grid(pp=2), loading, processes=2)
    assert done.returncode == 3
    assert "with other degrees: pp 1 x sharding 1 x mp 1 saved, pp 2 x" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.jobs
def test_what_does_not_divide_ends_the_job_with_one_message(tmp_path: Path) -> None:
    done = train(tmp_path, *grid(dp=1, mp=3), processes=2)
    assert done.returncode == 2
    said = list(workerlogs(tmp_path).values())
    assert said[0].count("dp 1 x mp 3 x pp 1 x sharding 1 = 3, but 2 processes were") == 1
    assert len(re.findall(r"\n.*: ", said[0])) <= 1  # nothing beside it
    assert said[1] == ""
