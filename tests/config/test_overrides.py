"""``-o KEY=VALUE``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.config.overrides import apply_overrides, read_value
from ppprof.config.yaml_source import ConfigTree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("yes", True),
        ("false", False),
        ("False", False),
        ("null", None),
        ("None", None),
        ("~", None),
        ("", None),
        ("8", 8),
        ("+5", 5),
        ("0x1f", 31),
        ("1_0", 10),
        (".5", 0.5),
        ("1e-5", 1e-5),
        ("5e-05", 5e-5),
        ("[1, 5]", [1, 5]),
        ("(1, 5)", (1, 5)),
        ("True,", (True,)),
        ("[json, pb]", ["json", "pb"]),
        ("{dp: 0, pp: all}", {"dp": 0, "pp": "all"}),
        ("{'dp': 0}", {"dp": 0}),
        (
            "{max_lr: 1e-5, warmup: {steps: '8', name: None}}",
            {"max_lr": 1e-5, "warmup": {"steps": 8, "name": None}},
        ),
        ("'./x'", "./x"),
        ('"./x"', "./x"),
        ("'1'", "1"),
        ("./a b/c", "./a b/c"),
        (" x ", "x"),
        ("a=b", "a=b"),
        ("gpu", "gpu"),
        # text that YAML 1.1 or OmegaConf would convert
        ("10:30", "10:30"),
        ("1:2:3.5", "1:2:3.5"),
        ("07", "07"),
        ("-010", "-010"),
        ("2022-08-26", "2022-08-26"),
        ("${x}", "${x}"),
        ("${oc.env:HOME}", "${oc.env:HOME}"),
        ("???", "???"),
        ("#1", "#1"),
        ("x #y", "x #y"),
        ("--- x", "--- x"),
        ("---", "---"),
        ("|", "|"),
        ("a: b", "a: b"),
        ("- a", "- a"),
        ("=", "="),
        ("!!int 3", "!!int 3"),
        # nothing is evaluated, nothing is constructed
        ("__import__('os').getcwd()", "__import__('os').getcwd()"),
        ("!!python/name:os.system", "!!python/name:os.system"),
        ("[!!python/name:os.system]", "[!!python/name:os.system]"),
        ("&a [*a]", "&a [*a]"),
        ("[&a [*a]]", "[&a [*a]]"),
        # half of something is text
        ("[a, b", "[a, b"),
        ('"a', '"a'),
        ("{a", "{a"),
        ("[" * 2000, "[" * 2000),
        ("[" * 100 + "]" * 100, "[" * 100 + "]" * 100),
        ("{a: " * 100 + "}" * 100, "{a: " * 100 + "}" * 100),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_values(text, value):
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)


plain = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1)
plain = plain | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(plain | st.lists(plain) | st.dictionaries(st.text(), plain))
def test_a_python_literal_comes_back_as_it_was(value):
    assert read_value(repr(value)) == value


@given(st.text())
def test_any_text_is_some_value(text):
    source = ConfigTree({"Model": {"x": 1}})
    assert apply_overrides(source, [f"Model.x={text}"]) == []
    assert set(source.values["Model"]) == {"x"}


TREE = "Generation: {x: 1, on_off: True, list: [1, 2], blank: , rows: [{q: 1}], path: a}\nProfiler: {detailed: False}"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("x=2", {"x": 2}),
        ("x=", {"x": None}),
        ("path=", {"path": None}),
        ("path='./x'", {"path": "./x"}),
        ("path=a=b", {"path": "a=b"}),
        ("new=3", {"new": 3}),
        ("a.b.c=3", {"a": {"b": {"c": 3}}}),
        ("blank.y=5", {"blank": {"y": 5}}),
        ("list.0=9", {"list": [9, 2]}),
        ("list[1]=9", {"list": [1, 9]}),
        ("list=[9]", {"list": [9]}),
        ("rows.0.q=7", {"rows": [{"q": 7}]}),
        ("rows[0].q=7", {"rows": [{"q": 7}]}),
        ("rows[0].r=7", {"rows": [{"q": 1, "r": 7}]}),
        ("rows[0]=7", {"rows": [7]}),
        ("rows=7", {"rows": 7}),
        ("on_off=no", {"on_off": False}),
        ("on_off=./x", {"on_off": "./x"}),
        ("max-len=1", {"max-len": 1}),
    ],
)
def test_keys(load, override, expected):
    before = load(TREE).resolved["Generation"]
    assert load(TREE, f"Generation.{override}").resolved["Generation"] == {**before, **expected}


def test_a_mapping_replaces_the_whole_block(load):
    config = load("Generation: {a: {x: 1}}", "Generation.a={y: 2}")
    assert config.resolved == {"Generation": {"a": {"y": 2}}}


def test_the_last_of_several_wins(load):
    assert load("", "Global.seed=1", "Global.seed=2", "Engine.max_steps=3").Global.seed == 2


def test_they_come_after_the_base(load):
    config = load("_base_: base.yaml", "Global.seed=3", base="Global: {seed: 1, device: cpu}")
    assert (config.Global.seed, config.Global.device) == (3, "cpu")


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("Global.seed", '-o: "Global.seed": expected KEY=VALUE, such as Profiler.enable=True'),
        ("", '-o: "": expected KEY=VALUE, such as Profiler.enable=True'),
        ("=5", '-o: "=5": expected KEY=VALUE, such as Profiler.enable=True'),
        ("A..b=5", '-o: "A..b=5": expected KEY=VALUE, such as Profiler.enable=True'),
        (".a=5", '-o: ".a=5": expected KEY=VALUE, such as Profiler.enable=True'),
        ("A.l[x]=5", '-o: "A.l[x]=5": expected KEY=VALUE, such as Profiler.enable=True'),
        ("A b=5", '-o: "A b=5": expected KEY=VALUE, such as Profiler.enable=True'),
        (
            "Generation.x.y=1",
            "-o Generation.x.y=1: Generation.x.y: Generation.x is 1, without keys",
        ),
        (
            "Generation.path[0]=1",
            "-o Generation.path[0]=1: Generation.path.0: Generation.path is 'a', without keys",
        ),
        (
            "Generation.list.2=1",
            '-o Generation.list.2=1: Generation.list.2: "2": expected an index of the list, 0 to 1',
        ),
        (
            "Generation.list.last=1",
            '-o Generation.list.last=1: Generation.list.last: "last": '
            "expected an index of the list, 0 to 1",
        ),
        (
            "Generation.rows.7.q=1",
            '-o Generation.rows.7.q=1: Generation.rows.7.q: "7": '
            "expected an index of the list, 0 to 0",
        ),
        (
            "Generation.on_off=Fasle",
            "-o Generation.on_off=Fasle: Generation.on_off: 'Fasle': expected True or False; "
            'did you mean "False"?',
        ),
        (
            "Model.use_recompute=Fasle",
            "-o Model.use_recompute=Fasle: Model.use_recompute: 'Fasle': expected True or False; "
            'did you mean "False"?',
        ),
        (
            "Profiler.enable=ja",
            "-o Profiler.enable=ja: Profiler.enable: 'ja': expected True or False",
        ),
        (
            "Profiler.schedular=[1, 5]",
            "-o Profiler.schedular=[1, 5]: Profiler.schedular: unknown key; "
            'did you mean "scheduler"?',
        ),
        (
            "Profiler.detailed.x=1",
            "-o Profiler.detailed.x=1: Profiler.detailed.x: Profiler.detailed is False, without keys",
        ),
        ("Profiler=3", "-o Profiler=3: Profiler: 3: expected a mapping (key: value)"),
    ],
)
def test_what_cannot_be_set(problems, override, problem):
    assert problems(TREE, override) == [problem]


def test_all_problems_at_once(problems):
    assert problems(
        "Global:\n  seed: x", "nonsense", "Global.device=3", "Engine.max_steps=1.5"
    ) == [
        '-o: "nonsense": expected KEY=VALUE, such as Profiler.enable=True',
        "-o Engine.max_steps=1.5: Engine.max_steps: 1.5: expected a whole number",
        "-o Global.device=3: Global.device: 3: expected cpu, gpu, xpu, rocm, npu or mlu or text",
        "cfg.yaml:2: Global.seed: 'x': expected a whole number",
    ]


def test_an_override_is_blamed_for_what_it_replaced(problems):
    text = "Profiler:\n  scheduler:\n    record: 2\n    repeat: 1\n"
    assert problems(text, "Profiler.scheduler={repeat: 2}") == [
        "-o Profiler.scheduler={repeat: 2}: Profiler.scheduler.record: "
        "missing; expected the number of steps of a window, at least 1"
    ]


def test_false_in_any_spelling_does_not_enable(load):
    for spelling in ("false", "False", "no", "off", "FALSE"):
        assert (
            load("Profiler: {enable: True}", f"Profiler.enable={spelling}").Profiler.enable is False
        )


def test_a_key_with_false_in_the_file_takes_what_it_takes_elsewhere(load):
    config = load("Profiler: {python_stacks: False}", "Profiler.python_stacks=auto")
    assert config.Profiler.python_stacks == "auto"


@pytest.mark.parametrize("value", ["True", "False"])
def test_true_is_a_block_of_defaults(load, value):
    text = f"Profiler: {{trigger: {value}}}"
    trigger = load(text, "Profiler.trigger.steps=8", "Profiler.trigger.ranks=0").Profiler.trigger
    assert (trigger.file, trigger.steps, trigger.ranks) == (True, 8, 0)
    text = f"Profiler: {{trigger: {{steps: 3, slow_step: {value}}}}}"
    trigger = load(text, "Profiler.trigger.slow_step.times=5").Profiler.trigger
    assert (trigger.steps, trigger.slow_step.times, trigger.slow_step.keep) == (3, 5.0, "slow")


def test_a_path_has_an_end():
    source = ConfigTree({"Model": {"x": 1}})
    (problem,) = apply_overrides(source, [".".join(["a"] * 500) + "=1"])
    assert problem.message == "500 parts: expected at most 32"
    assert source.values == {"Model": {"x": 1}}
