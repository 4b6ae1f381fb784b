"""Code in pages parses: Python, YAML, shell, and the command lines of ppprof."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from ppprof.cli import command_parser
from tests.fixtures.pages import blocks


def command_lines() -> Iterator[tuple[str, str]]:
    """Yield page and each line that starts ppprof, continuation lines joined."""
    for language in ("", "bash", "console"):
        for page, text in blocks(language):
            for line in text.replace("\\\n", " ").splitlines():
                command = re.sub(r"^\$ ", "", line.strip())
                if re.match(r"ppprof [a-z]", command):
                    yield page, re.split(r" \| |; echo", command)[0]


def named(found: Iterator[tuple[str, str]]) -> pytest.MarkDecorator:
    cases = list(found)
    assert len(cases) > 1
    return pytest.mark.parametrize(("page", "text"), cases, ids=[page for page, _ in cases])


@named(blocks("python"))
def test_python_parses(page: str, text: str) -> None:
    ast.parse(text)


@named(blocks("yaml"))
def test_yaml_parses(page: str, text: str) -> None:
    assert isinstance(yaml.safe_load(text), dict)


@named(blocks("bash"))
def test_shell_parses(page: str, text: str) -> None:
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_command_lines_have_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(command_lines())
    assert len(lines) > 50
    parser = command_parser()
    refused = []
    for page, line in lines:
        words = shlex.split(line, comments=True)[1:]
        if "--help" in words or words[0] == "run" or "IN" in words:
            continue  # a placeholder, or the command line of a script
        try:
            parser.parse_args(words)
        except SystemExit:
            refused.append((page, line, capsys.readouterr().err.splitlines()[-1]))
    assert refused == []
