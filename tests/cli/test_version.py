"""``ppprof --version`` and ``ppprof completion``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys

import polars
import pytest

from ppprof.cli import COMMANDS, main, versions
from ppprof.cli.completion import SHELLS
from ppprof.trace.fastpath import core


def test_versions_that_matter_in_a_bug_report(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    out, err = capsys.readouterr()
    names = ["ppprof", "core", "Python", "platform", "polars", "numpy", "paddle", "visualdl"]
    shown = dict(line.split(" ", 1) for line in out.splitlines())
    assert list(shown) == names
    assert shown["ppprof"] == importlib.metadata.version("ppprof")
    assert shown["core"] == core.describe()
    assert shown["Python"].startswith(platform.python_version())
    assert shown["polars"] == polars.__version__
    assert err == ""


def test_versions_import_nothing():
    """A Paddle that cannot be loaded is what a report of a bug may be about."""
    code = (
        "import sys; from ppprof.cli import versions; versions();"
        "sys.exit(', '.join({'paddle', 'polars', 'numpy', 'visualdl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("installed", "there", "shown"),
    [
        ({}, False, "not installed"),
        ({}, True, "of unknown version, not installed by pip"),
        ({"paddlepaddle": "3.3.1"}, True, "3.3.1 (paddlepaddle)"),
        (
            {"paddlepaddle": "3.3.1", "paddlepaddle-gpu": "2.6.2"},
            True,
            "3.3.1 (paddlepaddle), 2.6.2 (paddlepaddle-gpu)",
        ),
    ],
)
def test_which_paddle(monkeypatch, installed, there, shown):
    def of(name):
        if name in installed:
            return installed[name]
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(
        importlib.metadata,
        "version",
        lambda name: "1" if name in ("ppprof", "polars", "numpy") else of(name),
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if there else None)
    assert f"\npaddle {shown}\n" in versions()


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """A script for each shell."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        done = subprocess.run(
            [sys.executable, "-m", "ppprof", "completion", shell],
            capture_output=True,
            check=True,
            text=True,
        )
        (folder / shell).write_text(done.stdout)
    return folder


@pytest.fixture
def completed(scripts, tmp_path):
    """What bash offers for a line that ends in a tab."""
    if not (bash := shutil.which("bash")):
        pytest.skip("needs bash")
    (tmp_path / "profiler_log").mkdir()
    (tmp_path / "trace.json").touch()

    def of(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in ("ppprof", *words))
        code = (
            f"source {scripts / 'bash'}; COMP_WORDS=({line}); COMP_CWORD={len(words)};"
            f"_shtab_ppprof ppprof '{words[-1]}'; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        done = subprocess.run(
            [bash, "--norc", "-c", code],
            cwd=tmp_path,
            capture_output=True,
            check=True,
            text=True,
            env={**os.environ, "LC_ALL": "C"},
        )
        return sorted(set(done.stdout.split()))

    return of


def test_bash_completes_commands_options_choices_and_files(completed):
    assert set(COMMANDS) <= set(completed(""))
    assert completed("su") == ["summary"]
    assert completed("summary", "--ste") == ["--step-mark", "--steps"]
    assert completed("summary", "--format", "") == ["csv", "json", "md", "table"]
    assert completed("summary", "prof") == ["profiler_log"]
    assert completed("convert", "tr") == ["trace.json"]
    assert completed("report", "--baseline", "prof") == ["profiler_log"]
    assert completed("completion", "") == ["bash", "tcsh", "zsh"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_takes_its_script(scripts, shell):
    """Its own parser reads it."""
    if not (program := shutil.which(shell)):
        pytest.skip(f"needs {shell}")
    done = subprocess.run(
        [program, "-n", str(scripts / shell)], capture_output=True, check=False, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_shell_without_a_script(capsys):
    with pytest.raises(SystemExit) as end:
        main(["completion", "fish"])
    assert end.value.code == 2
    assert "choose from" in capsys.readouterr().err
