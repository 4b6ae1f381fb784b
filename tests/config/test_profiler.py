"""The Profiler block."""

from __future__ import annotations

import pytest

from ppprof.config import VIEWS, ProfilerConfig, WindowSchedule, load_profiler
from ppprof.errors import ConfigError

# The table of the design, typed in by hand.
DEFAULTS = {
    "enable": False,
    "scheduler": None,
    "trigger": None,
    "profiler_log": "profiler_log",
    "detailed": False,
    "record_shapes": True,
    "profile_memory": True,
    "summary": {
        "overview": True,
        "model": True,
        "kernel": True,
        "op": True,
        "device": False,
        "dist": False,
        "mem": False,
        "memcpy": False,
        "udf": False,
    },
    "python_stacks": "auto",
    "source": True,
    "flight_recorder": True,
    "hang_after": None,
    "hang_exit_code": None,
    "brief": False,
    "timer_only": False,
    "ranks": "all",
    "print_ranks": 0,
    "sorted_by": "auto",
    "time_unit": "ms",
    "op_detail": True,
    "thread_sep": False,
    "row_limit": 20,
    "formats": ["json"],
    "with_flops": False,
    "emit_nvtx": False,
    "targets": "auto",
    "sync_steps": False,
    "stop_training": False,
    "background": True,
    "max_trace_mb": None,
    "on_window_end": None,
    "visualdl_scalars": False,
    "export": None,
    "profiler_options": None,
}


@pytest.fixture
def profiler(load):
    """The Profiler block of some lines."""
    return lambda lines: load(f"Profiler: {lines}").Profiler


@pytest.fixture
def wrong(problems):
    """What is wrong with one line of the Profiler block, without where it stands."""

    def message(line):
        (problem,) = problems(f"Profiler: {{{line}}}")
        assert problem.startswith("cfg.yaml:1: Profiler.")
        return problem[len("cfg.yaml:1: Profiler.") :]

    return message


def test_defaults():
    assert ProfilerConfig().to_mapping() == DEFAULTS


@pytest.mark.parametrize("text", ["", "Profiler:", "Profiler: {}", "Profiler: {summary: }"])
def test_a_block_that_says_nothing_is_the_defaults(load, text):
    assert load(text).Profiler == ProfilerConfig.from_mapping(DEFAULTS)


def test_every_key_at_once(profiler):
    written = {
        "enable": True,
        "scheduler": {"closed": 1, "ready": 2, "record": 3, "repeat": 4, "skip_first": 5},
        "trigger": {
            "file": False,
            "slow_step": {"times": 3.0, "cool_down": 7, "max_windows": 8, "keep": "all"},
            "slow_rank": True,
            "settled": 6,
            "steps": 9,
            "ranks": {"dp": 0},
        },
        "max_trace_mb": 12.5,
        "on_window_end": ["cp", "-t", "/mnt"],
        "profiler_log": "elsewhere",
        "detailed": True,
        "record_shapes": False,
        "profile_memory": False,
        "summary": {view: view in ("dist", "mem") for view in DEFAULTS["summary"]},
        "python_stacks": 50.0,
        "source": False,
        "flight_recorder": False,
        "hang_after": 300.0,
        "hang_exit_code": 75,
        "brief": True,
        "timer_only": True,
        "ranks": {"dp": 0, "pp": "all"},
        "print_ranks": "0,8-15",
        "sorted_by": "gpu_max",
        "time_unit": "us",
        "op_detail": False,
        "thread_sep": True,
        "row_limit": 7,
        "formats": ["json.gz", "pb"],
        "with_flops": True,
        "emit_nvtx": True,
        "targets": ["cpu", "gpu"],
        "sync_steps": True,
        "stop_training": True,
        "background": False,
        "visualdl_scalars": True,
        "export": "prometheus",
        "profiler_options": "batch_range=[3, 4]; profile_path=elsewhere",
    }
    config = profiler(written)
    assert config.to_mapping() == written
    assert config.scheduler == WindowSchedule(1, 2, 3, 4, 5)
    assert ProfilerConfig.from_mapping(config.to_mapping()) == config


def test_as_fleetx_has_it(load):
    config = load(
        """\
        Profiler:
          enable: False
          scheduler: [1, 5]
          profiler_log: profiler_log
          detailed: False
        """
    )
    assert config.Profiler.to_mapping() == {**DEFAULTS, "scheduler": [1, 5]}
    assert config.Profiler.scheduler == (1, 5)
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("scheduler: (1, 5)", (1, 5)),
        ("scheduler: '[0, 1]'", (0, 1)),
        ("scheduler: {record: 2}", WindowSchedule(record=2)),
        ("scheduler: {record: 2, repeat: }", WindowSchedule(record=2)),
        ("scheduler: ", None),
    ],
)
def test_schedules(load, written, read):
    assert load(f"Profiler:\n  {written}\n").Profiler.scheduler == read


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "scheduler: [5, 1]",
            "scheduler: [5, 1]: stop 1 is not after start 5; no step would be recorded",
        ),
        (
            "scheduler: [3, 3]",
            "scheduler: [3, 3]: stop 3 is not after start 3; no step would be recorded",
        ),
        ("scheduler: [-1, 4]", "scheduler: [-1, 4]: start -1 is below 0, the first step"),
        (
            "scheduler: [3]",
            "scheduler: [3]: expected [start, stop], a mapping with record, or null",
        ),
        (
            "scheduler: [1, 2, 3]",
            "scheduler: [1, 2, 3]: expected [start, stop], a mapping with record, or null",
        ),
        (
            "scheduler: [1.0, 5]",
            "scheduler: [1.0, 5]: expected [start, stop], a mapping with record, or null",
        ),
        (
            "scheduler: [True, 5]",
            "scheduler: [True, 5]: expected [start, stop], a mapping with record, or null",
        ),
        (
            "scheduler: always",
            "scheduler: 'always': expected [start, stop], a mapping with record, or null",
        ),
        (
            "scheduler: 5",
            "scheduler: 5: expected [start, stop], a mapping with record, or null",
        ),
        ("scheduler: {record: 0}", "scheduler.record: 0: expected at least 1"),
        (
            "scheduler: {closed: 1}",
            "scheduler.record: missing; expected the number of steps of a window, at least 1",
        ),
        (
            "scheduler: {}",
            "scheduler.record: missing; expected the number of steps of a window, at least 1",
        ),
        ("scheduler: {record: 1, closed: -1}", "scheduler.closed: -1: expected at least 0"),
        (
            "scheduler: {record: 1, repeats: 2}",
            'scheduler.repeats: unknown key; did you mean "repeat"?',
        ),
        ("schedular: [1, 5]", 'schedular: unknown key; did you mean "scheduler"?'),
        ("Enable: True", 'Enable: unknown key; did you mean "enable"?'),
        ("summary: {ops: True}", 'summary.ops: unknown key; did you mean "op"?'),
        (
            "summary: {zzz: True}",
            "summary.zzz: unknown key; expected one of overview, model, kernel, op, device, dist, "
            "mem, memcpy, udf",
        ),
        ("summary: [op]", "summary: ['op']: expected a mapping (key: value)"),
        ("summary: {op: 1}", "summary.op: 1: expected True or False"),
        ("enable: flase", "enable: 'flase': expected True or False; did you mean \"False\"?"),
        ("enable: 1", "enable: 1: expected True or False"),
        ("enable: [True]", "enable: [True]: expected True or False"),
        (
            "profiler_log: 's3://bucket/run'",
            "profiler_log: s3://bucket/run: a capture can write only to local disks; expected a "
            "directory of this machine (copy its files to a store afterwards and read them there)",
        ),
        ("profiler_log: [a]", "profiler_log: ['a']: expected text"),
        ("profiler_log: 20261120", "profiler_log: 20261120: expected text"),
        ("row_limit: 0", "row_limit: 0: expected at least 1"),
        ("row_limit: many", "row_limit: 'many': expected a whole number"),
        (
            "time_unit: min",
            "time_unit: 'min': expected s, ms, us or ns",
        ),
        (
            "sorted_by: cpu_totl",
            "sorted_by: 'cpu_totl': expected auto, cpu_total, cpu_avg, cpu_max, cpu_min, gpu_total,"
            ' gpu_avg, gpu_max or gpu_min; did you mean "cpu_total"?',
        ),
        ("formats: [xml]", "formats: ['xml']: expected a list, each item json, json.gz or pb"),
        ("formats: []", "formats: []: expected at least one of json, json.gz, pb"),
        (
            "targets: [tpu]",
            "targets: ['tpu']: expected auto or a list, each item cpu, gpu, xpu or custom_device",
        ),
    ],
)
def test_what_is_refused(wrong, line, message):
    assert wrong(line) == message


SELECTORS = (
    'expected all, a rank, a list of ranks, "0,8-15", or coordinates such as '
    "{dp: 0, mp: 0, pp: all} on the axes dp, pp, sharding, sep, mp"
)


@pytest.mark.parametrize(
    "written", ["all", "0", "3", "[0, 2]", "'0,2-3'", "0-1", "0,1", "{}", "{dp: 1}", "{dp: all}"]
)
def test_rank_selectors(load, written):
    lines = f"Profiler:\n  ranks: {written}\n  print_ranks: {written}\n"
    config = load(lines + "Distributed: {dp_degree: 4}")
    assert config.topology.select(config.Profiler.ranks) <= {0, 1, 2, 3}
    assert config.topology.select(config.Profiler.print_ranks)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("some", "'some'"),
        ("True", "True"),
        ("-1", "-1"),
        ("1.5", "1.5"),
        ("[0, x]", "[0, 'x']"),
        ("[[0]]", "[[0]]"),
        ("'0-'", "'0-'"),
        ("{t-p: 0}", "{'t-p': 0}"),
        ("{dp: some}", "{'dp': 'some'}"),
        ("{dp: [0]}", "{'dp': [0]}"),
        ("{dp: -1}", "{'dp': -1}"),
    ],
)
def test_what_is_no_rank_selector(wrong, written, shown):
    assert wrong(f"ranks: {written}") == f"ranks: {shown}: {SELECTORS}"
    assert wrong(f"print_ranks: {written}") == f"print_ranks: {shown}: {SELECTORS}"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("9", "ranks [9]: expected 0 to 1"),
        ("'0-3'", 'ranks "0-3": expected 0 to 1'),
        ("'3-2'", 'ranks "3-2": expected all, or numbers and ranges such as "0,8-15"'),
        ("{dp: 2}", "dp: 2: expected all or 0 to 1"),
    ],
)
def test_ranks_that_the_grid_does_not_have(problems, written, message):
    text = f"Profiler:\n  ranks: {written}\n  enable: True\n"
    assert problems(text, world_size=2) == [f"cfg.yaml:2: Profiler.ranks: {message}"]


def test_ranks_of_a_grid_not_known_yet(load):
    assert load("Profiler: {ranks: 8-15}").Profiler.ranks == "8-15"


def test_ranks_of_a_profiler_that_is_off_have_no_effect(load, folder):
    assert not load("Profiler: {enable: False, ranks: '0,8-15'}", world_size=2).Profiler.enable
    assert not load_profiler(folder / "cfg.yaml", world_size=2).profiler.enable


def test_a_config_with_a_block_may_have_keys_of_the_block_beside_it(folder):
    (folder / "cfg.yaml").write_text("scheduler: {name: cosine}\nProfiler: {scheduler: [10, 20]}\n")
    assert load_profiler("cfg.yaml").profiler.scheduler == (10, 20)


def test_one_format_and_paddles_sort_keys(profiler):
    config = profiler("{formats: pb, sorted_by: GPUMax}")
    assert config.formats == ("pb",)
    assert config.sorted_by == "gpu_max"


def test_targets_may_be_one_word(profiler):
    assert profiler("{targets: cpu}").targets == ("cpu",)


class TestViews:
    def test_by_default(self):
        assert ProfilerConfig().views() == ("overview", "model", "op", "kernel")

    def test_of_the_toggles(self, profiler):
        config = profiler("{summary: {dist: True, mem: True, op: False, kernel: False}}")
        assert config.views() == ("overview", "model", "dist", "mem")

    def test_all_when_detailed(self, profiler):
        assert profiler("{detailed: True, summary: {op: False}}").views() == VIEWS
        assert profiler("{with_flops: True}").views()[-2:] == ("kernel", "layer")
        assert set(VIEWS) == set(DEFAULTS["summary"])


class TestWithoutEffect:
    @pytest.mark.parametrize(
        ("line", "warnings"),
        [
            (
                "detailed: True, summary: {dist: True}",
                ["summary: has no effect, because detailed is True"],
            ),
            ("timer_only: True, scheduler: [1, 5]", []),
            (
                "timer_only: True, detailed: True, summary: {op: False}, formats: [pb], with_flops: True",
                [
                    "summary: has no effect, because timer_only is True",
                    "detailed: has no effect, because timer_only is True",
                    "formats: has no effect, because timer_only is True",
                    "with_flops: has no effect, because timer_only is True",
                ],
            ),
            (
                "stop_training: True",
                [
                    "stop_training: has no effect, because scheduler is null: the window ends with "
                    "the training"
                ],
            ),
            (
                "stop_training: True, scheduler: {closed: 1, ready: 1, record: 3}",
                [
                    "stop_training: has no effect, because scheduler.repeat is 0: there is no last window"
                ],
            ),
            ("stop_training: True, scheduler: {record: 3, repeat: 1}", []),
            (
                "hang_exit_code: 75",
                ["hang_exit_code: has no effect, because hang_after is blank"],
            ),
            ("hang_exit_code: 75, hang_after: 300", []),
            ("detailed: False, summary: {dist: True}, scheduler: [1, 5], stop_training: True", []),
        ],
    )
    def test_is_reported(self, load, line, warnings):
        config = load(f"Profiler: {{enable: True, {line}}}")
        assert list(config.warnings) == [f"cfg.yaml:1: Profiler.{warning}" for warning in warnings]

    def test_but_not_of_a_profiler_that_is_off(self, load):
        config = load("Profiler: {enable: False, timer_only: True, detailed: True}")
        assert config.warnings == ()


def test_from_mapping_has_every_problem():
    with pytest.raises(ConfigError) as raised:
        ProfilerConfig.from_mapping({"scheduler": [5, 1], "enabled": True, "ranks": "x"})
    assert [(problem.where, problem.key) for problem in raised.value.problems] == [
        ("Profiler", "enabled"),
        ("Profiler", "scheduler"),
        ("Profiler", "ranks"),
    ]


TRIGGER = {
    "file": True,
    "slow_step": None,
    "slow_rank": False,
    "settled": None,
    "steps": 4,
    "ranks": "all",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trigger: ", None),
        ("trigger: False", None),
        ("trigger: True", TRIGGER),
        ("trigger: {steps: 2, ranks: 0}", {**TRIGGER, "steps": 2, "ranks": 0}),
        *[
            (
                f"trigger: {{file: False, slow_step: {written}}}",
                {
                    **TRIGGER,
                    "file": False,
                    "slow_step": {
                        "times": times,
                        "cool_down": 100,
                        "max_windows": 5,
                        "keep": keep,
                    },
                },
            )
            for written, times, keep in [
                ("3", 3.0, "slow"),
                ("True", 2.0, "slow"),
                ("{}", 2.0, "slow"),
                ("{times: 1.5, keep: all}", 1.5, "all"),
            ]
        ],
    ],
)
def test_triggers(profiler, text, expected):
    config = profiler(f"{{enable: True, {text}}}")
    assert config.to_mapping()["trigger"] == expected
    assert ProfilerConfig.from_mapping(config.to_mapping()) == config


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "trigger: 4",
            "trigger: 4: expected True, or a mapping of file, slow_step, slow_rank, settled, steps, ranks",
        ),
        ("trigger: {stpes: 4}", 'trigger.stpes: unknown key; did you mean "steps"?'),
        ("trigger: {steps: 0}", "trigger.steps: 0: expected at least 1"),
        ("trigger: {slow_step: 1}", "trigger.slow_step.times: 1: expected more than 1"),
        (
            "trigger: {slow_step: {keep: slwo}}",
            "trigger.slow_step.keep: 'slwo': expected slow or all; did you mean \"slow\"?",
        ),
        (
            "trigger: {file: False}",
            "trigger: file is False, slow_step, slow_rank and settled are blank, so no window could ever open; "
            "expected at least one of them",
        ),
        ("max_trace_mb: 0", "max_trace_mb: 0: expected more than 0"),
        ("on_window_end: ' '", "on_window_end: empty; expected a command"),
        ("on_window_end: []", "on_window_end: empty; expected a command"),
        ("on_window_end: 'cp \"a'", "on_window_end: 'cp \"a': no closing quotation"),
    ],
)
def test_what_is_wrong_with_a_trigger(wrong, line, expected):
    assert wrong(line) == expected


def test_every_problem_of_a_trigger_at_once(problems):
    assert len(problems("Profiler: {trigger: {steps: 0, rank: 1, slow_step: {time: 2}}}")) == 3


def test_triggers_on_ranks_that_do_not_record(problems):
    text = "Profiler: {enable: True, ranks: 0, trigger: {ranks: [1]}}\nDistributed: {dp_degree: 2}"
    (problem,) = problems(text)
    assert problem.endswith("Profiler.trigger.ranks: [1]: none of them is in ranks")


def test_a_command_is_a_list_or_text_that_is_split(profiler):
    assert profiler("{on_window_end: [cp, a b]}").command == ("cp", "a b")
    assert profiler("{on_window_end: \"cp 'a b'\"}").command == ("cp", "a b")
    assert profiler("{}").command == ()
