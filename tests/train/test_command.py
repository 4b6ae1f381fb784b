"""What is said of a config before Paddle is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ppprof.config import load_config
from ppprof.train.command import main, notes, preflight
from tests.jobs.launching import CONFIG

SHARDING = "Distributed.sharding"


def test_sep_is_not_for_this_harness() -> None:
    config = load_config(CONFIG, ["Distributed.sep_degree=2"], world_size=2)
    (problem,) = preflight(config)
    assert problem.message.endswith("2: tools/train.py does not support sep; expected 1")


def test_what_a_cpu_has_no_use_for_is_said() -> None:
    idle = ("sharding_offload", "reduce_overlap", "broadcast_overlap")
    overrides = [f"{SHARDING}.sharding_degree=2", *(f"{SHARDING}.{name}=True" for name in idle)]
    messages = [
        note.partition(": ")[2] for note in notes(load_config(CONFIG, overrides, world_size=2))
    ]
    not_offloaded = (
        f"{SHARDING}.sharding_offload: has no effect: tools/train.py keeps optimizer state on the "
        "training device"
    )
    on_a_cpu = [f"{SHARDING}.{name}: has no effect on a CPU" for name in idle[1:]]
    assert messages == [not_offloaded, *on_a_cpu]
    on_gpu = load_config(CONFIG, [*overrides, "Global.device=gpu"], world_size=2)
    assert [note.partition(": ")[2] for note in notes(on_gpu)] == [not_offloaded]


@pytest.fixture
def refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """``refusal("K=V", processes=2)``: what ``tools/train.py`` prints before it exits with 2."""

    monkeypatch.chdir(tmp_path)

    def refused(*overrides: str, processes: int = 1) -> str:
        monkeypatch.setenv("PADDLE_TRAINERS_NUM", str(processes))
        options = [part for override in overrides for part in ("-o", override)]
        assert main(["-c", str(CONFIG), *options]) == 2
        return capsys.readouterr().err

    return refused


def test_without_the_launcher_its_command_line_is_printed(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["tools/train.py"])
    monkeypatch.delenv("PADDLE_TRAINER_ID", raising=False)
    override = "Distributed.mp_degree=2"
    said = refusal(override, "Distributed.dp_degree=2").splitlines()
    assert said[-1] == (
        "start it with the launcher: python -m paddle.distributed.launch --nproc_per_node 4 "
        f"tools/train.py -c {CONFIG} -o {override} -o Distributed.dp_degree=2"
    )
    monkeypatch.setenv("PADDLE_TRAINER_ID", "0")
    assert "start it with" not in refusal(override, "Distributed.dp_degree=2")
    monkeypatch.delenv("PADDLE_TRAINER_ID")
    assert "start it with" not in refusal("Data.Train.dataset.input=/nowhere")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["Engine.max_step=3", "Model.hidden_size=0"], "Model.hidden_size: 0: expected at least 1"),
        (["Data.Train.dataset.input=/nowhere"], "/nowhere: no text found; expected a file"),
        (["Distributed.mp_degree=2", "Distributed.dp_degree=1"], "but 1 processes were launched"),
        (
            ["Model.vocab_size=100"],
            "Model.vocab_size: 100: expected at least 256, one per byte value",
        ),
        (["Profiler.enable=True", "Profiler.profiler_log=file/log"], "is a file; expected a dir"),
        (["Data.Train.dataset.max_seq_len=65"], "65: more than Model.max_position_embeddings 64"),
        (["Data.Train.dataset.split=[0, 0, 0]"], "(0.0, 0.0, 0.0): expected three shares (train"),
        (["Data.Eval.dataset.split=[9, -1, 0]"], "(9.0, -1.0, 0.0): expected three shares (train"),
        (["Engine.save_load.ckpt_dir=gone"], "gone: no such directory; expected a checkpoint"),
        (
            ["Optimizer.name=Lamb", "Model.module=MoEModule"],
            "Model.module: MoEModule: expected GPTModule\n"
            "-o Optimizer.name=Lamb: Optimizer.name: Lamb: expected AdamW or FusedAdamW",
        ),
        (
            ["Optimizer.lr.name=Linear", "Optimizer.grad_clip.name=ByValue"],
            "Optimizer.lr.name: Linear: expected CosineAnnealingWithWarmupDecay\n"
            "-o Optimizer.grad_clip.name=ByValue: Optimizer.grad_clip.name: ByValue: "
            "expected ClipGradByGlobalNorm",
        ),
    ],
)
def test_what_cannot_work_is_refused(
    refusal: Callable[..., str], overrides: list[str], message: str
) -> None:
    Path("file").write_text("")
    assert message in refusal(*overrides)


MISFITS = {
    "degrees": (["Distributed.dp_degree=1", "Distributed.mp_degree=3"], "dp 1 x mp 3 x pp 1 x sharding 1 = 3, but 2 processes were"),
    "stages": (
        ["Distributed.pp_degree=2", "Model.num_layers=3"], "Model.num_layers: 3: expected a multiple of pp_degree 2",
    ),
    "heads": (
        ["Distributed.mp_degree=2", "Model.num_attention_heads=1"],
        "Model.num_attention_heads: 1 heads: expected a multiple of mp_degree 2",
    ),
    "vocabulary": (
        ["Distributed.mp_degree=2", "Model.vocab_size=257"],
        "Model.vocab_size: 257 tokens: expected a multiple of mp_degree 2",
    ),
    "batch": (
        ["Distributed.dp_degree=2", "Global.global_batch_size=7", "Global.local_batch_size=null"],
        "Global.global_batch_size: 7 samples over dp x sharding = 2 ranks: expected a multiple",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_divide_is_one_message(name: str, refusal: Callable[..., str]) -> None:
    overrides, message = MISFITS[name]
    printed = refusal(*overrides, processes=2)
    assert printed.count(message) == 1
    assert printed.count("\n") == 1


def test_the_data_of_an_evaluation_counts_only_if_there_is_one() -> None:
    missing = "Data.Eval.dataset.input=/not/here"
    overrides = [missing, "Engine.eval_freq=-1"]
    assert preflight(load_config(CONFIG, overrides, world_size=1)) == []
    (problem,) = preflight(load_config(CONFIG, [missing, "Engine.eval_freq=5"], world_size=1))
    assert "Data.Eval.dataset.input" in str(problem)


def test_a_folder_of_an_evaluation_that_does_not_run_is_no_warning() -> None:
    overrides = ["Data.Eval.dataset={'input_dir': './data'}", "Engine.eval_freq=0"]
    assert not notes(load_config(CONFIG, overrides, world_size=1))
    read = notes(load_config(CONFIG, [overrides[0], "Engine.eval_freq=5"], world_size=1))
    assert ["FleetX's token files" in each for each in read] == [True]


def test_a_share_of_text_may_be_0() -> None:
    overrides = ["Data.Train.dataset.split=[1, 0, 0]", "Data.Eval.dataset.split=[0, 1, 0]"]
    assert preflight(load_config(CONFIG, overrides, world_size=1)) == []
