"""The workflows of GitHub start commands that exist, on the Pythons that the package supports.

`make check` compares the files with GitHub's schemas, those of the issue forms too.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from ppprof.cli import command_parser

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def ci() -> dict[str, Any]:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["jobs"]


def targets_of(script: str) -> set[str]:
    return set(re.findall(r"\bmake ([a-z][\w-]*)", script))


def test_all_commands_exist_and_reach_all_tiers() -> None:
    commands = {step["run"] for job in ci().values() for step in job["steps"] if "run" in step}
    assert commands == {".ci/run", "make test-all"}
    subprocess.run(["bash", "-n", ROOT / ".ci/run"], check=True)
    targets = targets_of((ROOT / ".ci/run").read_text(encoding="utf-8"))
    assert targets == {"check", "docs", "test", "test-jobs"}
    defined = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.M))
    assert targets | {"test-all"} <= defined


def test_every_python_that_the_package_supports_is_tested() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    first, end = re.findall(r'^requires-python = ">=3\.(\d+),<3\.(\d+)"', pyproject, re.M)[0]
    supported = [f"3.{minor}" for minor in range(int(first), int(end))]
    assert ci()["checks"]["strategy"]["matrix"]["python"] == supported


def test_make_integrations_runs_every_test_whose_skip_message_names_it() -> None:
    _, _, recipe = MAKEFILE.partition("\nintegrations: ")
    files = set(re.findall(r"tests/jobs/(\w+\.py)", recipe.partition("\n\n")[0]))
    message = "environment of its own: make integrations"
    tests = (ROOT / "tests/jobs").glob("test_*.py")
    assert files == {path.name for path in tests if message in path.read_text(encoding="utf-8")}


def test_every_hook_of_pre_commit_is_a_command_of_make_check() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert {"ruff", "ruff-format", "words", "mypy"} < {hook["id"] for hook in hooks}
    _, _, recipe = MAKEFILE.partition("\ncheck: ")
    commands = recipe.partition("\n\n")[0]
    for hook in hooks:
        entry = hook["entry"].replace(".venv/bin/", "$(BIN)/").replace(" --force-exclude", "")
        assert f"\t{entry}" in commands


def test_a_report_of_a_bug_needs_the_output_of_doctor() -> None:
    text = (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8")
    (doctor,) = [part for part in yaml.safe_load(text)["body"] if part["id"] == "doctor"]
    assert doctor["validations"]["required"]
    commands = set(re.findall(r"`ppprof (doctor -[^`]+)`", doctor["attributes"]["description"]))
    assert commands
    for command in commands:
        assert command_parser().parse_args(command.split()).command == "doctor"
