"""``ppprof config``, through ``main()`` and once as a process."""

from __future__ import annotations

import json

import pytest
import yaml

from ppprof.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a config and its base."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text("Global: {seed: 7, device: cpu}\nProfiler:\n  enable: no\n")
    (tmp_path / "cfg.yaml").write_text(
        "_base_: base.yaml\nModel: {num_layers: 2, rope: 1}\nGeneration: {top_k: '5'}\n"
    )
    return tmp_path


def test_prints_the_resolved_config(folder, cli):
    out, err = cli("config", "cfg.yaml", "-o", "Profiler.scheduler=(1, 5)", "-o", "A.b=1e-5")
    values = yaml.safe_load(out)
    assert "_base_" not in values
    assert values["Global"]["seed"] == 7
    assert values["Model"]["num_layers"] == 2
    assert values["Model"]["rope"] == 1
    assert values["Generation"] == {"top_k": 5}
    assert values["Profiler"]["scheduler"] == [1, 5]
    assert values["Profiler"]["row_limit"] == 20
    assert values["A"] == {"b": 1e-5}
    assert err == (
        "-o A.b=1e-5: A: unknown block, passed through\n"
        "cfg.yaml:2: Model.rope: unknown key, passed through\n"
    )


def test_the_keys_of_the_block_at_the_top_level_are_checked(folder, cli):
    """As where ``ppprof run`` and `attach` read the file."""
    bare = folder / "bare.yaml"
    bare.write_text("enable: True\nscheduler: [3, 5]\n")
    out, err = cli("config", "bare.yaml", "-o", "Profiler.row_limit=5")
    block = yaml.safe_load(out)["Profiler"]
    assert (block["enable"], block["scheduler"], block["row_limit"]) == (True, [3, 5], 5)
    assert err == ""
    bare.write_text("enable: True\nschedular: [3, 5]\n")
    err = cli("config", "bare.yaml", code=2).err
    assert err.startswith("bare.yaml:2: Profiler.schedular: unknown key; did you mean ")


def test_a_key_of_another_programs_config_is_none_of_the_block(folder, cli):
    """PaddleDetection's have ``export``."""
    (folder / "other.yaml").write_text("export: {nms: True}\nepoch: 12\nuse_gpu: True\n")
    out, err = cli("config", "other.yaml")
    assert yaml.safe_load(out)["Profiler"]["export"] is None
    assert "other.yaml:1: export: unknown block, passed through" in err


def test_json_says_the_same(folder, cli):
    as_yaml = yaml.safe_load(cli("config", "cfg.yaml").out)
    assert json.loads(cli("config", "cfg.yaml", "--format", "json").out) == as_yaml


def test_json_is_strict(folder, cli):
    (folder / "cfg.yaml").write_text("Generation: {most: .inf, least: -.inf, none: .nan}\n")

    def refuse(constant):
        raise AssertionError(constant)

    printed = cli("config", "cfg.yaml", "--format", "json").out
    values = json.loads(printed, parse_constant=refuse)["Generation"]
    assert values == {"most": "inf", "least": "-inf", "none": "nan"}


def test_what_it_prints_is_a_config(folder, cli):
    printed = cli("config", "cfg.yaml", "--world-size", "4").out
    (folder / "printed.yaml").write_text(printed)
    assert cli("config", "printed.yaml", "--world-size", "4").out == printed


def test_text_is_printed_as_it_is(folder, cli):
    assert "name: 语言模型\n" in cli("config", "cfg.yaml", "-o", "Model.name=语言模型").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope.yaml"], "nope.yaml: No such file or directory"),
        (["cfg.yaml", "-o", "x"], '-o: "x": expected KEY=VALUE, such as Profiler.enable=True'),
        (
            ["cfg.yaml", "-o", "Profiler.enable=Ture"],
            "-o Profiler.enable=Ture: Profiler.enable: 'Ture': expected True or False; "
            'did you mean "True"?',
        ),
        (
            ["cfg.yaml", "-o", "Profiler.scheduler=[5, 1]"],
            "-o Profiler.scheduler=[5, 1]: Profiler.scheduler: [5, 1]: stop 1 is not after start 5; "
            "no step would be recorded",
        ),
        (
            ["cfg.yaml", "-o", "Distributed.mp_degree=3", "--world-size", "8"],
            "-o Distributed.mp_degree=3: Distributed: dp 2 x mp 3 x pp 1 x sharding 1 = 6, "
            "but 8 processes were launched",
        ),
        (
            ["cfg.yaml", "--world-size", "0"],
            "--world-size: '0': expected a whole number from 1",
        ),
    ],
)
def test_problems_go_to_stderr_and_it_returns_2(folder, cli, arguments, message):
    out, err = cli("config", *arguments, code=2)
    assert (out, err) == ("", message + "\n")


@pytest.mark.parametrize("arguments", [[], ["cfg.yaml", "--format", "xml"], ["a", "b"]])
def test_bad_usage(folder, capsys, arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["config", *arguments])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("usage: ppprof")


def test_as_a_process_every_problem_at_once_and_no_traceback(folder, cli):
    (folder / "bad.yaml").write_text(
        "Global: {seed: x}\nProfiler:\n  schedular: [1, 5]\n  row_limit: 0\n"
    )
    out, err = cli("config", "bad.yaml", "-o", "Engine.max_steps=no", code=2, process=True)
    assert out == ""
    assert err.splitlines() == [
        "-o Engine.max_steps=no: Engine.max_steps: False: expected a whole number",
        "bad.yaml:1: Global.seed: 'x': expected a whole number",
        'bad.yaml:3: Profiler.schedular: unknown key; did you mean "scheduler"?',
        "bad.yaml:4: Profiler.row_limit: 0: expected at least 1",
    ]
