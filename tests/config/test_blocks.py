"""The training blocks: types, bounds, what is derived, and what passes through."""

from __future__ import annotations

import pytest

from ppprof.errors import ConfigError
from ppprof.topology import AXES

FLEETX = """\
_base_: ./base.yaml

Global:
  global_batch_size:
  local_batch_size: 8
  micro_batch_size: 4

Model:
  vocab_size: 50304
  hidden_size: 1024
  num_layers: 24
  num_attention_heads: 16
  ffn_hidden_size:
  use_recompute: True
  recompute_granularity: core_attn
  no_recompute_layers: [0, 23]

Distributed:
  dp_degree:
  mp_degree: 2
  pp_degree: 1
  sharding:
    sharding_degree: 2
    sharding_stage: 2
    reduce_overlap: True

Optimizer:
  tensor_fusion: True
"""
FLEETX_BASE = """\
Global: {device: gpu, seed: 1024, local_batch_size: 1, micro_batch_size: 1}
Engine:
  max_steps: 500000
  accumulate_steps:
  logging_freq: 1
  eval_freq: 500
  test_iters:
  mix_precision:
    enable: True
    dtype: "float16"
    level: "o2"
    scale_loss: 32768.0
    custom_black_list: ["reduce_sum", "elementwise_div"]
    use_fp16_guard: False
  save_load: {save_steps: 1000, save_epoch: 1, output_dir: ./output, ckpt_dir: }
Model: {module: "GPTModule", name: "GPT", fused_linear: False, use_flash_attn: False}
Data:
  Train:
    dataset: {name: GPTDataset, input_dir: ./data/, split: [969, 30, 1], max_seq_len: 1024}
    sampler: {name: GPTBatchSampler, shuffle: False, drop_last: True}
    loader: {num_workers: 1, return_list: False, collate_fn: gpt_collate_fn}
Optimizer:
  name: FusedAdamW
  epsilon: 1e-8
  lr: {name: CosineAnnealingWithWarmupDecay, max_lr: 5e-05, use_increments: True}
  grad_clip: {name: "ClipGradByGlobalNorm", clip_norm: 1.0}
Distributed: {fuse_sequence_parallel_allreduce: False}
Generation: {top_k: 50}
"""


def test_a_config_of_fleetx_is_read_without_a_word(load):
    config = load(FLEETX, base=FLEETX_BASE, world_size=16)
    assert config.warnings == ()
    assert (config.Global.global_batch_size, config.Engine.accumulate_steps) == (64, 2)
    assert config.Engine.mix_precision.level == "O2"
    assert config.Engine.mix_precision.custom_black_list == ("reduce_sum", "elementwise_div")
    assert config.Engine.save_load.ckpt_dir is None
    assert config.Model.no_recompute_layers == (0, 23)
    assert config.Model.ffn_hidden_size is None
    assert config.Data.Train.dataset.split == (969, 30, 1)
    assert config.Optimizer.epsilon == 1e-8
    assert config.Optimizer.lr.max_lr == 5e-5
    assert config.Distributed.dp_degree == 4
    assert config.topology.degrees == (4, 1, 2, 1, 2)
    assert config.topology.order == AXES
    assert config.resolved["Generation"] == {"top_k": 50}
    assert config.resolved["Data"]["Train"]["loader"]["collate_fn"] == "gpt_collate_fn"


class TestUnknown:
    def test_keys_of_others_pass_with_a_warning_each(self, load):
        config = load(
            """\
            Model:
              hiden_size: 8
              rope: {theta: 1}
            Optimizer: {lr: {max_rl: 1}}
            Profilr: {enable: True}
            Wandb: {on: True}
            """
        )
        assert config.warnings == (
            'cfg.yaml:5: Profilr: unknown block, passed through; did you mean "Profiler"?',
            "cfg.yaml:6: Wandb: unknown block, passed through",
            "cfg.yaml:2: Model.hiden_size: unknown key, passed through; "
            'did you mean "hidden_size"?',
            "cfg.yaml:3: Model.rope: unknown key, passed through",
            'cfg.yaml:4: Optimizer.lr.max_rl: unknown key, passed through; did you mean "max_lr"?',
        )
        assert config.resolved["Model"]["rope"] == {"theta": 1}
        assert config.Model.hidden_size == 1024


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Global: 3", "Global: 3: expected a mapping (key: value)"),
        ("Model: [a]", "Model: ['a']: expected a mapping (key: value)"),
        (
            "Engine: {mix_precision: True}",
            "Engine.mix_precision: True: expected a mapping (key: value)",
        ),
        ("Global: {seed: 1.5}", "Global.seed: 1.5: expected a whole number"),
        ("Global: {seed: True}", "Global.seed: True: expected a whole number"),
        ("Global: {seed: -1}", "Global.seed: -1: expected at least 0"),
        ("Global: {micro_batch_size: 0}", "Global.micro_batch_size: 0: expected at least 1"),
        ("Engine: {logging_freq: 0}", "Engine.logging_freq: 0: expected at least 1"),
        (
            "Engine: {mix_precision: {dtype: float32}}",
            "Engine.mix_precision.dtype: 'float32': expected float16 or bfloat16; "
            'did you mean "float16"?',
        ),
        (
            "Engine: {mix_precision: {custom_black_list: [1]}}",
            "Engine.mix_precision.custom_black_list: [1]: expected a list, each item text",
        ),
        (
            "Engine: {mix_precision: {scale_loss: 0}}",
            "Engine.mix_precision.scale_loss: 0: expected more than 0",
        ),
        (
            "Model: {use_recompute: Fasle}",
            "Model.use_recompute: 'Fasle': expected True or False; did you mean \"False\"?",
        ),
        (
            "Model: {hidden_dropout_prob: 1.5}",
            "Model.hidden_dropout_prob: 1.5: expected at most 1",
        ),
        (
            "Model: {recompute_granularity: fulll}",
            "Model.recompute_granularity: 'fulll': expected full, full_attn or core_attn; "
            'did you mean "full"?',
        ),
        (
            "Model: {hidden_size: 10, num_attention_heads: 4}",
            "Model.num_attention_heads: 4: expected a divisor of hidden_size 10",
        ),
        ("Optimizer: {weight_decay: .nan}", "Optimizer.weight_decay: nan: expected a number"),
        ("Optimizer: {lr: {max_lr: .inf}}", "Optimizer.lr.max_lr: inf: expected a number"),
        ("Optimizer: {epsilon: tiny}", "Optimizer.epsilon: 'tiny': expected a number"),
        (
            "Optimizer: {weight_decay: '1%s'}" % ("0" * 400),
            "Optimizer.weight_decay: '1%s': expected a number" % ("0" * 400),
        ),
        ("Data: {Train: {dataset: {input: 3}}}", "Data.Train.dataset.input: 3: expected text"),
        (
            "Distributed: {sharding: {sharding_stage: 4}}",
            "Distributed.sharding.sharding_stage: 4: expected 1, 2 or 3",
        ),
        (
            "Distributed: {sharding: {sharding_stage: True}}",
            "Distributed.sharding.sharding_stage: True: expected 1, 2 or 3",
        ),
        ("Distributed: {dp_degree: -1}", "Distributed.dp_degree: -1: expected at least 1"),
        (
            "Distributed: {order: [dp, mp]}",
            "Distributed.order: ['dp', 'mp']: expected each of dp, pp, sharding, sep, mp once",
        ),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_refused(problems, text, problem):
    assert problems(text) == [f"cfg.yaml:1: {problem}"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Engine: {max_steps: 1e3}", lambda config: config.Engine.max_steps == 1000),
        ("Engine: {max_steps: 20.0}", lambda config: config.Engine.max_steps == 20),
        ("Optimizer: {weight_decay: 0}", lambda config: config.Optimizer.weight_decay == 0.0),
        ("Global: {device: GPU}", lambda config: config.Global.device == "gpu"),
        ("Global: {device: metax_gpu}", lambda config: config.Global.device == "metax_gpu"),
        ("Model: {no_recompute_layers: '2,'}", lambda c: c.Model.no_recompute_layers == (2,)),
        ("Data: {Eval: {dataset: {split: dev}}}", lambda c: c.Data.Eval.dataset.split == "dev"),
    ],
)
def test_what_is_converted(load, text, read):
    assert read(load(text))


def test_problems_come_in_the_order_of_the_file(problems):
    text = "Model:\n  num_layers: 0\nGlobal:\n  seed: x\nProfiler:\n  scheduler: [5, 1]\n"
    assert [problem.split(": ")[0] for problem in problems(text)] == [
        "cfg.yaml:2",
        "cfg.yaml:4",
        "cfg.yaml:6",
    ]


class TestBatches:
    @pytest.mark.parametrize(
        ("written", "sizes"),
        [
            ("{global_batch_size: 64, local_batch_size: 16, micro_batch_size: 4}", (64, 16, 4, 4)),
            ("{global_batch_size: 64, micro_batch_size: 4}", (64, 16, 4, 4)),
            ("{local_batch_size: 16, micro_batch_size: 4}", (64, 16, 4, 4)),
            ("{local_batch_size: 16}", (64, 16, 16, 1)),
            ("{global_batch_size: 64}", (64, 16, 16, 1)),
            ("{}", (4, 1, 1, 1)),
        ],
    )
    def test_the_missing_ones_are_derived(self, load, written, sizes):
        config = load(
            f"Global: {written}\nDistributed: {{mp_degree: 2, sharding: {{sharding_degree: 2}}}}",
            world_size=8,
        )
        assert sizes == (
            config.Global.global_batch_size,
            config.Global.local_batch_size,
            config.Global.micro_batch_size,
            config.Engine.accumulate_steps,
        )

    @pytest.mark.parametrize(
        ("written", "problem"),
        [
            (
                "{global_batch_size: 64, local_batch_size: 8}",
                "global_batch_size: 64: expected local_batch_size 8 x dp x sharding 4 = 32; "
                "leave one of the two blank",
            ),
            (
                "{global_batch_size: 6}",
                "global_batch_size: 6 samples over dp x sharding = 4 ranks: expected a multiple",
            ),
            (
                "{local_batch_size: 8, micro_batch_size: 3}",
                "micro_batch_size: 3: expected a divisor of local_batch_size 8",
            ),
        ],
    )
    def test_that_do_not_fit(self, problems, written, problem):
        assert problems(f"Global: {written}", world_size=4) == [f"cfg.yaml:1: Global.{problem}"]

    def test_accumulation_that_says_otherwise_has_no_effect(self, load):
        config = load(
            "Global: {local_batch_size: 8, micro_batch_size: 2}\nEngine: {accumulate_steps: 2}"
        )
        assert config.Engine.accumulate_steps == 4
        assert config.warnings == (
            "cfg.yaml:2: Engine.accumulate_steps: has no effect: local_batch_size 8 / "
            "micro_batch_size 2 = 4 counts",
        )


class TestGrid:
    def test_the_product_must_be_the_processes(self, problems):
        text = "\nDistributed: {dp_degree: 1, mp_degree: 3}"
        assert problems(text, world_size=8) == [
            "cfg.yaml:2: Distributed: dp 1 x mp 3 x pp 1 x sharding 1 = 3, "
            "but 8 processes were launched"
        ]

    def test_a_blank_dp_cannot_help_where_nothing_divides(self, problems):
        assert problems("Distributed: {mp_degree: 3, sep_degree: 2}", world_size=8) == [
            "cfg.yaml:1: Distributed: dp 1 x mp 3 x pp 1 x sharding 1 x sep 2 = 6, "
            "but 8 processes were launched"
        ]

    def test_a_file_without_the_block(self, load):
        config = load("", world_size=8)
        assert (config.Distributed.dp_degree, config.topology.world_size) == (8, 8)

    def test_without_a_world_size_the_degrees_decide(self, load):
        assert load("Distributed: {mp_degree: 8, pp_degree: 12}").topology.world_size == 96

    def test_an_order_of_axes(self, load):
        config = load(
            "Distributed: {order: [pp, dp, mp, sharding, sep], dp_degree: 2, pp_degree: 3}"
        )
        assert config.topology.order == ("pp", "dp", "mp", "sharding", "sep")
        assert config.topology.coordinate(1) == {"pp": 0, "dp": 1, "mp": 0, "sharding": 0, "sep": 0}

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (
                "Model: {num_layers: 6}\nDistributed: {pp_degree: 4}",
                "cfg.yaml:1: Model.num_layers: 6: expected a multiple of pp_degree 4",
            ),
            (
                "Model: {num_layers: 6, virtual_pp_degree: 2}\nGlobal: {local_batch_size: 8, "
                "micro_batch_size: 1}\nDistributed: {pp_degree: 4}",
                "cfg.yaml:1: Model.num_layers: 6: expected a multiple of pp_degree 4 x "
                "virtual_pp_degree 2",
            ),
            (
                "Model: {virtual_pp_degree: 2}\nDistributed: {pp_degree: 2}",
                "cfg.yaml:1: Model.virtual_pp_degree: 2: Fleet interleaves from pp_degree 3 on, "
                "and it is 2",
            ),
            (
                "Model: {virtual_pp_degree: 2}\nGlobal: {local_batch_size: 8, "
                "micro_batch_size: 2}\nDistributed: {pp_degree: 3}",
                "cfg.yaml:1: Model.virtual_pp_degree: 2: expected micro-batches (now 4) in "
                "multiples of pp 3",
            ),
            (
                "Model: {num_attention_heads: 6, hidden_size: 96}\nDistributed: {mp_degree: 4}",
                "cfg.yaml:1: Model.num_attention_heads: 6 heads: expected a multiple of "
                "mp_degree 4",
            ),
            (
                "Model: {vocab_size: 257}\nDistributed: {mp_degree: 2}",
                "cfg.yaml:1: Model.vocab_size: 257 tokens: expected a multiple of mp_degree 2",
            ),
            (
                "Model: {ffn_hidden_size: 5}\nDistributed: {mp_degree: 2}",
                "cfg.yaml:1: Model.ffn_hidden_size: 5 columns: expected a multiple of mp_degree 2",
            ),
            (
                "Model: {sequence_parallel: True}\nDistributed: {mp_degree: 2}\n"
                "Data: {Train: {dataset: {max_seq_len: 33}}}",
                "cfg.yaml:3: Data.Train.dataset.max_seq_len: 33: sequence_parallel needs a "
                "multiple of mp_degree 2",
            ),
            (
                "Distributed: {pp_degree: 2, sharding: {sharding_degree: 2, sharding_stage: 3}}",
                "cfg.yaml:1: Distributed.sharding.sharding_stage: 3: Fleet's pipeline "
                "(pp_degree 2) takes stage 1 only",
            ),
        ],
    )
    def test_axes_that_cannot_divide_the_model(self, problems, text, problem):
        assert problems(text) == [problem]

    @pytest.mark.parametrize(
        ("text", "warning"),
        [
            (
                "Model: {sequence_parallel: True}",
                "Model.sequence_parallel: has no effect: mp_degree is 1",
            ),
            (
                "Model: {virtual_pp_degree: 2, num_layers: 3}",
                "Model.virtual_pp_degree: has no effect: pp_degree is 1",
            ),
            (
                "Distributed: {sharding: {reduce_overlap: True}}",
                "Distributed.sharding.reduce_overlap: has no effect: Fleet overlaps in stage 2 only",
            ),
        ],
    )
    def test_settings_that_the_degrees_make_idle(self, load, text, warning):
        assert load(text).warnings == (f"cfg.yaml:1: {warning}",)

    def test_a_wrong_degree_is_one_problem(self, problems):
        assert problems("Distributed: {mp_degree: x}", world_size=8) == [
            "cfg.yaml:1: Distributed.mp_degree: 'x': expected a whole number"
        ]


def test_a_program_places_its_own_problems(load):
    config = load("_base_: base.yaml", base="\nModel: {vocab_size: 8}")
    problem = config.problem("Model.vocab_size", "8: bytes need 256")
    assert str(problem) == "base.yaml:2: Model.vocab_size: 8: bytes need 256"
    assert str(config.problem("Data.Train", "missing")) == "cfg.yaml: Data.Train: missing"


def test_to_mapping_reads_back_as_the_same_config(load, folder):
    config = load(FLEETX, "Profiler.scheduler={record: 2}", base=FLEETX_BASE, world_size=16)
    again = load(str(config.to_mapping()), world_size=16)
    assert again.to_mapping() == config.to_mapping()
    assert again.Profiler == config.Profiler


ERNIE = """\
Global: {device: gpu, local_batch_size: 16, micro_batch_size: 1}
Model:
  module: ErnieModule
  hidden_size: 12288
  num_hidden_layers: 96
  num_attention_heads: 96
Distributed: {mp_degree: 8, pp_degree: 16}
"""


def test_of_another_model_only_what_its_block_says_is_checked(load):
    """FleetX's ERNIE 175B has 96 layers under another name; GPT's default of 24 says nothing."""
    config = load(ERNIE, world_size=128)
    assert config.topology.degree("pp") == 16
    with pytest.raises(ConfigError) as caught:
        load(ERNIE.replace("num_attention_heads: 96", "num_attention_heads: 97"), world_size=128)
    assert [problem.key for problem in caught.value.problems] == ["Model.num_attention_heads"]
    with pytest.raises(ConfigError, match="24: expected a multiple of pp_degree 16"):
        load(ERNIE.replace("ErnieModule", "GPTModule"), world_size=128)
