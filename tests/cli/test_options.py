"""Options that commands share."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import pytest

import ppprof
from ppprof.choices import SORT_KEYS, SummaryOptions
from ppprof.cli import command_parser, main
from ppprof.errors import UsageError
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write

READING = ("summary", "ranks", "merge", "diff", "advise", "report")
"""Commands that read the windows of a run."""


def options_of(command: str) -> dict[str, argparse.Action]:
    (group,) = (
        action
        for action in command_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return {
        flag: action
        for action in group.choices[command]._actions
        for flag in action.option_strings
        if action.help != argparse.SUPPRESS
    }


@pytest.mark.parametrize("command", READING)
def test_commands_that_read_a_run_share_their_options(command):
    options = options_of(command)
    assert {"--rank", "--window", "--steps", "-o", "--force"} <= options.keys()
    others = {name: options_of(name) for name in READING}
    for flag in ("--window", "--steps", "--force", "--workers", "--row-limit"):
        if flag in options:
            metavars = {other[flag].metavar for other in others.values() if flag in other}
            assert metavars == {options[flag].metavar}
    assert all(action.help for action in options.values())


@pytest.mark.parametrize(
    ("arguments", "old", "new"),
    [
        (["diff", "a.pb", "b.pb", "--limit", "1"], "--limit", "--row-limit"),
        (["diff", "a.pb", "b.pb", "--sort", "calls"], "--sort", "--sorted-by"),
        (["advise", "a.pb", "--limit", "1"], "--limit", "--row-limit"),
        (["merge", "a.pb", "--ranks", "0", "-o", "out.json"], "--ranks", "--rank"),
    ],
)
def test_the_old_name_of_an_option_works_and_warns(arguments, old, new, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    for name in ("a.pb", "b.pb"):
        write(tmp_path / name, *gpu_traces.training())
    first = cli(*arguments).err.splitlines()[0]
    assert first == f"{old} is now called {new}; the next version will reject {old}"


@pytest.mark.parametrize("command", READING)
def test_no_cache_is_accepted_and_has_no_effect(command, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.pb", *gpu_traces.training())
    arguments = [command, "a.pb", *(["--experiment-rank", "0"] if command == "diff" else [])]
    output = {"merge": ["-o", "out.json", "--force"], "report": ["-o", "out.html", "--force"]}
    printed = []
    for options in ([], ["--no-cache"]):
        printed.append(cli(*arguments, *output.get(command, []), *options))
    assert printed[1].out == printed[0].out
    assert printed[1].err.splitlines() == [
        "--no-cache: has no effect: ppprof keeps no caches any more; 0.4 will reject the option",
        *printed[0].err.splitlines(),
    ]


def test_the_parameter_cache_is_accepted_and_has_no_effect(tmp_path):
    path = write(tmp_path / "a.pb", *gpu_traces.training())
    for function in (ppprof.open, ppprof.trace.read):
        with pytest.warns(DeprecationWarning, match="cache has no effect") as warned:
            function(path, cache=False)
        assert warned[0].filename == __file__


def test_a_sort_key_has_paddles_name_too():
    names = [key.replace("cpu_", "CPU").replace("gpu_", "GPU") for key in SORT_KEYS]
    names = [name[:3] + name[3:].capitalize() for name in names]
    assert [SummaryOptions(name).sorted_by for name in names] == list(SORT_KEYS)
    with pytest.raises(UsageError, match="'GPU': expected auto or one of"):
        SummaryOptions("GPU")


@pytest.mark.parametrize(
    "command",
    [
        ("summary",),
        ("summary", "--format", "json"),
        ("advise",),
        ("advise", "--format", "json"),
        ("ranks", "--format", "json"),
        ("report",),
    ],
    ids=" ".join,
)
def test_a_path_that_is_not_utf8_is_written_with_escapes(command, tmp_path, monkeypatch, cli):
    """Such a byte is a surrogate in Python, which UTF-8 cannot hold: JSON gets its escape."""
    monkeypatch.chdir(tmp_path)
    run = Path(os.fsdecode(b"run\xff"))
    run.mkdir()
    write(run / "rank0_step5-7.raw.pb", *gpu_traces.training())
    path = run / "rank0_step5-7.raw.pb"
    cli(*command, path, "-o", "out")
    text = Path("out").read_text(encoding="utf-8")
    assert text
    if "json" in command:
        assert str(path) in json.dumps(json.loads(text), ensure_ascii=False)


def test_without_a_command_the_help_is_printed(cli, capsys):
    shown = cli().out
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out == shown != ""


@pytest.mark.parametrize("command", [*READING, "finish", "trigger"])
def test_the_run_is_profiler_log_by_default(command, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if command == "diff":  # two runs have no default
        with pytest.raises(SystemExit):
            main([command])
        return
    options = ["-o", "merged.json"] if command == "merge" else []
    assert cli(command, *options, code=3).err == (
        "profiler_log: no such directory; expected a run: name its directory, or record one with "
        "ppprof run train.py\n"
    )
    (tmp_path / "profiler_log").mkdir()
    here, named = (cli(command, *options, *run, code=3).err for run in ([], ["profiler_log"]))
    assert here == named != ""
