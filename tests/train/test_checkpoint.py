from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from ppprof.config import ModelConfig, OptimizerConfig  # noqa: E402
from ppprof.config.training import LearningRateConfig  # noqa: E402
from ppprof.errors import InputError  # noqa: E402
from ppprof.topology import Topology  # noqa: E402
from ppprof.train import checkpoint  # noqa: E402
from ppprof.train.grid import Grid  # noqa: E402
from ppprof.train.model import GPT  # noqa: E402
from ppprof.train.optim import SLICE, keeping_masters, make_optimizer, make_schedule  # noqa: E402

pytestmark = pytest.mark.paddle
OPTIMIZER = OptimizerConfig(lr=LearningRateConfig(max_lr=0.1, warmup_rate=0.0), grad_clip=None)
ALONE = Grid(0, Topology.of())
PROGRESS = checkpoint.Progress(step=1, samples=8, scaler={"scale": 32768.0})


class Job:
    """A model and its optimizer; gradients are made up, the same for the same step."""

    def __init__(self, dtype: str = "float32", **settings: int) -> None:
        sizes = {"hidden_size": 8, "num_layers": 1, "num_attention_heads": 2, **settings}
        self.model = GPT(ModelConfig(vocab_size=16, max_position_embeddings=4, **sizes)).to(
            dtype=dtype
        )
        self.schedule = make_schedule(OPTIMIZER)
        self.optimizer = make_optimizer(OPTIMIZER, self.model, self.schedule)

    def step(self, seed: int) -> None:
        draws = np.random.default_rng(seed)
        for param in self.model.parameters():
            gradient = draws.standard_normal(param.shape).astype(np.float32)
            param.grad = paddle.to_tensor(gradient).astype(param.dtype)
        self.optimizer.step()
        self.optimizer.clear_grad()
        self.schedule.step()

    def weights(self) -> list[np.ndarray]:
        return [param.astype("float32").numpy() for param in self.model.parameters()]

    def save(self, folder: Path) -> Path:
        return checkpoint.save(folder, PROGRESS, self.model, self.optimizer, ALONE)

    def load(self, folder: Path) -> checkpoint.Progress:
        return checkpoint.load(folder, self.model, self.optimizer, ALONE)


@pytest.fixture
def short_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    """What AdamW's GPU kernel does with short parameters: it updates their float32 copies.

    Paddle's CPU build has the kernel for float32 alone.
    """
    kernel = paddle._C_ops.adamw_

    def adamw(param: Any, grad: Any, *rest: Any) -> Any:
        *state, master, found_inf = rest[:8]
        settings = list(rest[8:])
        settings[8] = False  # the parameter given is the float32 copy itself
        updated = kernel(master, grad.astype("float32"), *state, None, found_inf, *settings)
        param.set_value(master.astype(param.dtype))
        return updated

    monkeypatch.setattr(paddle._C_ops, "adamw_", adamw)


def _goes_on(folder: Path, dtype: str) -> None:
    """A run that was saved and resumed in a process which made other layers before."""
    first = Job(dtype)
    first.step(seed=1)
    saved = first.save(folder)
    first.step(seed=2)
    resumed = Job(dtype)
    assert resumed.load(saved) == PROGRESS
    resumed.step(seed=2)
    for one, other in zip(first.weights(), resumed.weights()):
        assert np.array_equal(one, other)
    assert resumed.optimizer.get_lr() == first.optimizer.get_lr()


def test_weights_moments_and_schedule_come_back(tmp_path: Path) -> None:
    _goes_on(tmp_path, "float32")


@pytest.mark.usefixtures("short_adamw")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_weights_and_their_float32_copies_come_back(tmp_path: Path, dtype: str) -> None:
    _goes_on(tmp_path, dtype)


@pytest.mark.usefixtures("short_adamw")
@pytest.mark.parametrize("mark", ["", SLICE], ids=["stage 2", "stage 3"])
def test_float32_copies_under_the_names_that_group_sharding_gives_them(
    tmp_path: Path, mark: str
) -> None:
    """Fleet's stages 2 and 3 call a copy what the parameter is called; 3 keeps it as a slice's."""
    first, resumed = Job("bfloat16"), Job("bfloat16")
    first.step(seed=1)
    copies = first.optimizer._master_weights
    for param in first.model.parameters():
        copy = copies.pop(param.name)
        copy.name = param.name
        copies[mark + param.name] = copy
    resumed.load(first.save(tmp_path))
    with keeping_masters(resumed.optimizer):  # as group sharding makes them, of the parameters
        for param in resumed.model.parameters():
            master = param.astype("float32")
            resumed.optimizer._master_weights[mark + param.name] = master
    found = resumed.optimizer._master_weights
    assert found.keys() == {mark + param.name for param in resumed.model.parameters()}
    for one, other in zip(first.model.parameters(), resumed.model.parameters()):
        assert np.array_equal(copies[mark + one.name].numpy(), found[mark + other.name].numpy())


def test_a_checkpoint_takes_the_place_of_one_and_of_what_a_killed_run_left(tmp_path: Path) -> None:
    job = Job()
    saved = job.save(tmp_path)
    (saved / "stale").touch()
    (tmp_path / f".{saved.name}.part").mkdir()
    assert job.save(tmp_path) == saved
    assert [path.name for path in tmp_path.iterdir()] == [saved.name]
    assert not (saved / "stale").exists()


def _damage(folder: Path, how: str) -> None:
    if how == "cut":
        (folder / "optimizer_pp0_sharding0_mp0.safetensors").write_bytes(b"\x00" * 20)
    elif how == "no state":
        (folder / "state.json").unlink()
    else:
        (folder / "state.json").write_text(how)


@pytest.mark.parametrize("how", ["cut", "no state", "{}", "[]", "{", '{"step": true}'])
def test_what_is_not_a_checkpoint_says_so(tmp_path: Path, how: str) -> None:
    job = Job()
    job.step(seed=1)
    saved = job.save(tmp_path)
    _damage(saved, how)
    with pytest.raises(InputError, match=f"^{saved}: not a checkpoint: "):
        Job().load(saved)


def test_moments_of_an_unknown_parameter(tmp_path: Path) -> None:
    job = Job()
    job.step(seed=1)
    saved, other = job.save(tmp_path / "a"), Job(num_layers=2)
    other.step(seed=1)
    name = "optimizer_pp0_sharding0_mp0.safetensors"
    (other.save(tmp_path / "b") / name).replace(saved / name)
    with pytest.raises(InputError, match=r"not a checkpoint: blocks\.1.*: no such parameter"):
        Job().load(saved)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"num_layers": 2},
            "12 tensors differ, the first blocks.1.attention.out.bias: "
            "missing saved, float32 [8] in the config",
        ),
        (
            {"hidden_size": 4},
            "16 tensors differ, the first blocks.0.attention.out.bias: "
            "float32 [8] saved, float32 [4] in the config",
        ),
        (
            {"num_layers": 0},
            "12 tensors differ, the first blocks.0.attention.out.bias: "
            "float32 [8] saved, none in the config",
        ),
        (
            {"dtype": "bfloat16"},
            "16 tensors differ, the first blocks.0.attention.out.bias: "
            "float32 [8] saved, bfloat16 [8] in the config",
        ),
    ],
)
def test_a_checkpoint_of_another_model(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    job = Job()
    job.step(seed=1)
    saved = job.save(tmp_path)
    with pytest.raises(InputError) as raised:
        Job(**changed).load(saved)
    assert "a checkpoint of another model: " in str(raised.value)
    assert message in str(raised.value)


def test_a_stage_with_other_blocks_may_be_one_of_another_virtual_degree(tmp_path: Path) -> None:
    grid = Grid(0, Topology.of(pp=3))
    job, other = Job(), Job(num_layers=2)
    job.step(seed=1)
    saved = checkpoint.save(tmp_path, PROGRESS, job.model, job.optimizer, ALONE)
    state = json.loads((saved / "state.json").read_text())
    state["grid"]["pp"] = 3
    (saved / "state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match="of another model or virtual_pp_degree: 12 tensors"):
        checkpoint.load(saved, other.model, other.optimizer, grid)


def test_nothing_in_a_checkpoint_is_a_pickle(tmp_path: Path) -> None:
    job = Job()
    job.step(seed=1)
    saved = job.save(tmp_path)
    names = sorted(path.name for path in saved.iterdir())
    assert names == [
        "model_pp0_sharding0_mp0.safetensors",
        "optimizer_pp0_sharding0_mp0.safetensors",
        "state.json",
    ]
    assert json.loads((saved / "state.json").read_text())["step"] == 1


def test_a_checkpoint_of_another_grid(tmp_path: Path) -> None:
    job = Job()
    saved = job.save(tmp_path)
    grid = Grid(0, Topology.of(mp=2, dp=2))
    with pytest.raises(InputError, match="pp 1 x sharding 1 x mp 1 saved, pp 1 x sharding 1 x mp"):
        checkpoint.load(saved, job.model, job.optimizer, grid)


def test_a_checkpoint_of_another_sharding_stage(tmp_path: Path) -> None:
    job, topology = Job(), Topology.of(sharding=2)
    saved = job.save(tmp_path)
    state = json.loads((saved / "state.json").read_text())
    written = {"pp": 1, "sharding": 2, "mp": 1, "sharding_stage": 3}
    (saved / "state.json").write_text(json.dumps({**state, "grid": written}))
    with pytest.raises(InputError) as raised:
        checkpoint.load(saved, job.model, job.optimizer, Grid(0, topology, sharding_stage=2))
    assert (
        "with other degrees: pp 1 x sharding 2 x mp 1 in sharding_stage 3 saved, "
        "pp 1 x sharding 2 x mp 1 in sharding_stage 2 in the config; only dp may differ"
    ) in str(raised.value)


def test_a_gpu_has_done_its_work_before_parameters_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``broadcast_overlap`` they come in beside the computation, which nothing else awaits."""
    job, waited = Job(), []
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(
        paddle.device, "synchronize", lambda: waited.append(list(tmp_path.iterdir()))
    )
    job.save(tmp_path)
    assert waited == [[]]
