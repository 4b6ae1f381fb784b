"""The dialect of FleetX's files: each rule, and each odd form that real ones hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.config.yaml_source import literal, merge, read_tree

OTHER = "Generation"  # a block of FleetX's that we pass through


@pytest.fixture
def resolve(load):
    """The values of block Generation."""

    def resolve_text(text, *overrides, **others):
        return load(text, *overrides, **others).resolved[OTHER]

    return resolve_text


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("yes", True),
        ("No", False),
        ("on", True),
        ("off", False),
        ("True", True),
        ("", None),
        ("~", None),
        ("null", None),
        ("None", None),
        ("010", 8),
        ("0x10", 16),
        ("1_000", 1000),
        ("10:30", 630),
        ("1.0e-8", 1e-8),
        ("1e-6", 1e-6),
        ("2e-5", 2e-5),
        ("5e-05", 5e-5),
        ("'1'", 1),
        ('"None"', None),
        ("2,", [2]),
        ("True,", [True]),
        ("(1, 5)", [1, 5]),
        ("' 7'", 7),
        ("gpu", "gpu"),
        ("./ckpt/model", "./ckpt/model"),
        ("2022-08-26", "2022-08-26"),
        ("${x}", "${x}"),
        ("'${oc.env:HOME}'", "${oc.env:HOME}"),
        ("'${'", "${"),
        ("'???'", "???"),
        ("__import__('os').getcwd()", "__import__('os').getcwd()"),
        ("'[x for x in (1,)]'", "[x for x in (1,)]"),
        ("1if True else 2", "1if True else 2"),
        ("'\"\\d\"'", r"\d"),
    ],
)
def test_scalars(resolve, written, value):
    resolved = resolve(f"Generation:\n  key: {written}\n")
    assert resolved == {"key": value}
    assert type(resolved["key"]) is type(value)


def test_strings_in_lists_are_not_read_as_literals(resolve):
    text = "Generation: {flat: ['1', None, '1e-5'], deep: [{rate: '1e-5'}], rate: '1e-5'}"
    assert resolve(text) == {
        "flat": ["1", "None", "1e-5"],
        "deep": [{"rate": "1e-5"}],
        "rate": 1e-5,
    }


def test_the_last_of_two_equal_keys_wins_in_the_place_of_the_first(load):
    config = load("Generation: {top_k: 1, seed: 3, top_k: {a: 1}, top_k: 2}")
    assert list(config.resolved[OTHER].items()) == [("top_k", 2), ("seed", 3)]


def test_keys_are_text(resolve):
    assert resolve("Generation: {1: a, yes: b, ~: c}") == {"1": "a", "True": "b", "None": "c"}


def test_anchors_and_merge_keys(load):
    config = load(
        """\
        Tuning: &shared {a: 1, b: [1]}
        Generation: {<<: *shared, a: 2}
        Inference: *shared
        """
    )
    assert config.resolved == {
        "Tuning": {"a": 1, "b": [1]},
        "Generation": {"a": 2, "b": [1]},
        "Inference": {"a": 1, "b": [1]},
    }


def test_an_empty_file_is_all_defaults(load):
    config = load("")
    assert config.resolved == {}
    assert config.Global.seed == 1024


def test_a_blank_block_is_all_defaults(load):
    config = load("Profiler:\nEngine:\n  mix_precision:\n")
    assert config.Profiler.profiler_log == "profiler_log"
    assert config.Engine.mix_precision.enable is False


def test_a_byte_order_mark_is_skipped(folder):
    (folder / "cfg.yaml").write_bytes(b"\xef\xbb\xbfGlobal: {seed: 7}")
    assert read_tree("cfg.yaml").values == {"Global": {"seed": 7}}


class TestBase:
    def test_dicts_merge_deeply_and_base_keys_come_first(self, load):
        config = load(
            """\
            _base_: ./base.yaml
            Generation: {new: 1, inner: {y: 5}, list: [9]}
            Inference: {z: 1}
            """,
            base="Generation: {list: [1, 2, 3], inner: {x: 1, y: 2}, kept: 3}",
        )
        assert config.resolved == {
            "Generation": {"list": [9], "inner": {"x": 1, "y": 5}, "kept": 3, "new": 1},
            "Inference": {"z": 1},
        }
        assert list(config.resolved[OTHER]) == ["list", "inner", "kept", "new"]

    @pytest.mark.parametrize(
        ("under", "over", "result"),
        [
            ("{x: 1}", "", None),
            ("", "{x: 1}", {"x": 1}),
            ("{x: 1}", "[2]", [2]),
            ("[2]", "{x: 1}", {"x": 1}),
            ("{x: 1}", "3", 3),
            ("3", "{x: 1}", {"x": 1}),
            ("[1, 2, 3]", "[4]", [4]),
            ("[{x: 1}]", "[{y: 2}]", [{"y": 2}]),
            ("{x: 1}", "{}", {"x": 1}),
            ("{x: 1}", "{x:}", {"x": None}),
            ("1", "'???'", "???"),
            ("'${a}'", "'${b}'", "${b}"),
            ("{x: 1, y: 2}", "{_inherited_: False, y: 3}", {"y": 3}),
            ("{x: 1, y: 2}", "{_inherited_: no}", {}),
            ("{x: 1, y: 2}", "{_inherited_: True, y: 3}", {"x": 1, "y": 3}),
            ("{x: {a: 1}, y: 2}", "{x: {_inherited_: False, b: 2}}", {"x": {"b": 2}, "y": 2}),
            ("", "{_inherited_: False, y: 3}", {"y": 3}),
        ],
    )
    def test_what_a_child_makes_of_its_base(self, resolve, under, over, result):
        base = f"Generation:\n  key: {under}\n"
        assert resolve(f"_base_: base.yaml\nGeneration:\n  key: {over}\n", base=base) == {
            "key": result
        }

    def test_a_file_that_does_not_inherit_replaces_every_block(self, load):
        config = load(
            "_base_: base.yaml\n_inherited_: False\nGeneration: {x: 1}", base="Tuning: {y: 2}"
        )
        assert config.resolved == {"Generation": {"x": 1}}

    def test_literals_are_read_after_merging(self, resolve):
        merged = resolve(
            "_base_: base.yaml\nGeneration: {x: '{}'}", base="Generation: {x: {y: 1}, z: '2'}"
        )
        assert merged == {"x": {}, "z": 2}

    def test_a_chain_is_relative_to_each_file(self, folder):
        (folder / "a" / "b").mkdir(parents=True)
        (folder / "root.yaml").write_text("Global: {seed: 1}\nModel: {num_layers: 1}")
        (folder / "a" / "mid.yaml").write_text("_base_: ../root.yaml\nGlobal: {seed: 2}")
        (folder / "a" / "b" / "leaf.yaml").write_text(
            "_base_: ../mid.yaml\nModel: {hidden_size: 8}"
        )
        source = read_tree("a/b/leaf.yaml")
        assert source.values == {
            "Global": {"seed": 2},
            "Model": {"num_layers": 1, "hidden_size": 8},
        }
        assert source.where(("Model", "num_layers")).endswith("root.yaml:2")
        assert source.where(("Global", "seed")).endswith("mid.yaml:2")
        assert source.where(("Model", "hidden_size")) == "a/b/leaf.yaml:2"

    def test_it_counts_at_the_top_level_only(self, resolve):
        assert resolve("Generation: {_base_: nothing.yaml}") == {"_base_": "nothing.yaml"}

    def test_missing(self, problems):
        assert problems("Global: {seed: 1}\n_base_: nope.yaml") == [
            "cfg.yaml:2: _base_: nope.yaml: No such file or directory"
        ]

    def test_loop(self, problems, folder):
        (found,) = problems("_base_: base.yaml", base="_base_: cfg.yaml")
        here = folder.resolve()
        assert found == (
            "base.yaml:1: _base_: files inherit from each other: "
            f"{here / 'cfg.yaml'} -> {here / 'base.yaml'} -> {here / 'cfg.yaml'}"
        )

    def test_based_on_itself(self, problems):
        (found,) = problems("\n_base_: ./cfg.yaml")
        assert found.startswith("cfg.yaml:2: _base_: files inherit from each other: ")

    def test_a_list(self, problems):
        assert problems("_base_: [a.yaml, b.yaml]") == [
            "cfg.yaml:1: _base_: ['a.yaml', 'b.yaml']: expected one path"
        ]

    def test_a_problem_in_it_names_its_line(self, problems):
        assert problems("_base_: base.yaml", base="\nGlobal:\n  seed: x") == [
            "base.yaml:3: Global.seed: 'x': expected a whole number"
        ]


class TestUnreadable:
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (
                "Global: {seed: 1\nModel: 2",
                "cfg.yaml:2: not YAML: while parsing a flow mapping expected ',' or '}', but got ':'",
            ),
            (
                "Global:\n\tseed: 1",
                "cfg.yaml:2: not YAML: while scanning for the next token found character '\\t' that "
                "cannot start any token",
            ),
            (
                "Global: {}\n---\nModel: {}",
                "cfg.yaml:2: not YAML: expected a single document in the stream but found another "
                "document",
            ),
            ("3", "cfg.yaml:1: a single value: expected blocks such as Global and Model"),
            ("[1]", "cfg.yaml:1: a list: expected blocks such as Global and Model"),
            (
                "Model:\n  - &a [*a]",
                "cfg.yaml:2: an alias inside its own anchor",
            ),
            ("Model: {[1]: 2}", "cfg.yaml:1: a list or mapping as a key"),
            (
                "Model: !!python/object/apply:os.system [ls]",
                "cfg.yaml:1: tag tag:yaml.org,2002:python/object/apply:os.system: "
                "expected plain values",
            ),
            (
                "Model: !!python/name:os.system",
                "cfg.yaml:1: could not determine a constructor for the tag "
                "'tag:yaml.org,2002:python/name:os.system'",
            ),
            ("Model: !!set {a, b}", "cfg.yaml:1: tag tag:yaml.org,2002:set: expected plain values"),
            ("Model: !!binary aGk=", "cfg.yaml:1: 'aGk=': not a plain value"),
            ("Model: !!int x", "cfg.yaml:1: 'x': not a plain value"),
            ("Model: !!bool x", "cfg.yaml:1: 'x': not a plain value"),
            pytest.param(
                "Model: 1" + "0" * 6000,
                "cfg.yaml:1: '1" + "0" * 39 + "': not a plain value",
                id="too many digits",
            ),
            pytest.param(
                "Model: 0x1" + "0" * 16,
                "cfg.yaml:1: '0x10000000000000000': not a plain value",
                id="more than 64 bits",
            ),
            pytest.param(
                "Model: " + "[" * 80 + "]" * 80,
                "cfg.yaml:1: nested too deeply: expected at most 32 levels",
                id="lists",
            ),
            pytest.param(
                "Model: " + "{a: " * 80 + "}" * 80,
                "cfg.yaml:1: nested too deeply: expected at most 32 levels",
                id="mappings",
            ),
            ('_base_: "a\\0b"', "cfg.yaml:1: _base_: 'a\\x00b': no file name has a zero character"),
            pytest.param("Model: " + "[" * 5000, "cfg.yaml: nested too deeply", id="brackets"),
            (
                "Model: \0",
                "cfg.yaml: not YAML: unacceptable character #x0000: special characters are not "
                'allowed in "<unicode string>", position 7',
            ),
        ],
    )
    def test_each_is_a_problem_at_its_line(self, problems, text, problem):
        assert problems(text) == [problem]

    def test_missing_file(self, folder):
        with pytest.raises(Exception, match=r"^nope.yaml: No such file or directory$"):
            read_tree("nope.yaml")

    def test_a_folder(self, folder):
        with pytest.raises(Exception, match=r": Is a directory$"):
            read_tree(folder)

    def test_not_text(self, folder):
        (folder / "cfg.yaml").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(Exception, match=r"^cfg.yaml: not UTF-8$"):
            read_tree("cfg.yaml")


scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["a", "${x}", "???", ""])
trees = st.dictionaries(
    st.sampled_from("abcd"),
    st.recursive(
        scalars | st.lists(scalars, max_size=2),
        lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@given(trees, trees)
def test_merging_is_replacing_leaf_by_leaf(base, child):
    def merged(under, over):
        if not isinstance(under, dict) or not isinstance(over, dict):
            return over
        joint = {key: merged(under[key], over[key]) for key in under if key in over}
        return {**under, **over, **joint}

    result = merge(base, child)
    assert result == merged(base, child)
    assert list(result) == [*base, *(key for key in child if key not in base)]


@given(st.text() | st.from_regex(r"[-+0-9e._,'\"\[\](){}x]*", fullmatch=True))
def test_literal_takes_any_text(text):
    value = literal(text)
    assert isinstance(value, (str, int, float, list, tuple, dict, type(None)))
