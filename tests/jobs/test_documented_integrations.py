"""docs/integrations.md: every example in it runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.jobs.launching import ROOT, run
from tests.jobs.remains import arrived

PAGE = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
pytestmark = [pytest.mark.paddle, pytest.mark.all]
pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")


def examples(heading: str, language: str) -> list[str]:
    """The fenced blocks of a language in a section."""
    section = re.split(r"^## ", PAGE, flags=re.M)
    (text,) = [part for part in section if part.startswith(f"{heading}\n")]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the page's ``profiler.yaml`` and ``train.py``."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.partition("\n## ")[0], re.M | re.S)
    (script,) = examples("A script as it is", "python")
    (tmp_path / "profiler.yaml").write_text(block)
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    return tmp_path


def has_traces(folder: Path, num_files: int = 1) -> bool:
    found = arrived(folder / "profiler_log", "*.paddle_trace.json", num_files)
    return len(found) == num_files


def test_the_script_without_and_with_the_two_commands(folder: Path) -> None:
    (ours,) = examples("A script as it is", "bash")
    theirs = ours.replace(" tools/attach.py -c profiler.yaml --", "")
    losses = []
    for command in (theirs, ours):
        done = run(folder, *shlex.split(command)[1:])
        losses += re.findall(r"^loss .*$", done.stdout, re.M)
    assert len(losses) == 2
    assert losses[0] == losses[1]
    assert has_traces(folder, 2)


def test_options_on_the_command_line_and_in_a_block(folder: Path) -> None:
    (command,) = examples("profiler_options", "bash")
    (block,) = examples("profiler_options", "yaml")
    run(folder, *shlex.split(command)[1:])
    assert has_traces(folder)
    (folder / "profiler.yaml").write_text(block)
    run(folder, "tools/attach.py", "-c", "profiler.yaml", "train.py", "0.01")
    assert (folder / "profiler_log/run_002").is_dir()


def test_paddle_model_and_what_to_do_about_exceptions(folder: Path) -> None:
    (example,) = examples("paddle.Model.fit", "python")
    (more,) = examples("When a training raises", "python")
    callback = 'callback = PpprofCallback("profiler.yaml")\n'
    run(folder, "-W", "ignore", "-c", example + callback + more)
    assert has_traces(folder)
    assert (folder / "profiler_log/run_002").is_dir()


@pytest.mark.parametrize("package", ["paddlenlp", "paddleformers"])
def test_the_trainers(folder: Path, package: str) -> None:
    variable = f"PPPROF_{package.upper()}_PYTHON"
    interpreter = os.environ.get(variable, str(ROOT / f".venv-{package}/bin/python"))
    if not Path(interpreter).exists():
        pytest.skip(
            f"needs {package} in an environment of its own: make integrations, or {variable}"
        )
    (example,) = examples("PaddleNLP and PaddleFormers", "python")
    if package == "paddleformers":  # as the page says below it
        example = example.replace("paddlenlp", package)
        example = example.replace("report_to=[]", "report_to=[], amp_master_grad=False")
        example = example.replace("hidden_size=32,", "hidden_size=32, fuse_rms_norm=False,")
    run(folder, "-W", "ignore", "-c", example, python=interpreter)
    assert has_traces(folder)
