"""Configs in pages are valid, and so are the command lines that train with the harness."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from ppprof.config import load_config
from ppprof.trace.communication_names import communication_patterns
from tests.fixtures.pages import ROOT, blocks

BASE = ROOT / "configs/gpt/pretrain_gpt_tiny_cpu.yaml"
PLACEHOLDERS = {"CFG", "cfg.yaml"}


def trainings() -> list[tuple[str, str]]:
    """Page and each command line that starts tools/train.py, continuation lines joined."""
    return [
        (page, line)
        for language in ("", "bash")
        for page, text in blocks(language)
        for line in text.replace("\\\n", " ").splitlines()
        if "tools/train.py" in line
    ]


def assert_known(path: Path, overrides: Sequence[str] = (), world_size: int = 1) -> None:
    """Reject invalid keys and values, which are errors, and unknown blocks, which are warnings."""
    warnings = load_config(path, overrides, world_size).warnings
    assert [warning for warning in warnings if "unknown" in warning] == []


NAMES = [block for block in blocks("yaml") if block[1].startswith("communication:")]
CONFIGS = [block for block in blocks("yaml") if block not in NAMES]


@pytest.mark.parametrize(("page", "text"), [pytest.param(*block, id=block[0]) for block in NAMES])
def test_a_table_of_names_is_valid(page: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "names.yaml"
    path.write_text(text, encoding="utf-8")
    assert communication_patterns(path)


@pytest.mark.parametrize(("page", "text"), [pytest.param(*block, id=block[0]) for block in CONFIGS])
def test_a_config_is_valid(page: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"_base_: {BASE}\n{text}", encoding="utf-8")
    assert_known(path)


@pytest.mark.parametrize(
    ("page", "line"), [pytest.param(*line, id=line[0]) for line in trainings()]
)
def test_a_training_has_a_config_and_valid_overrides(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    config = words[words.index("-c") + 1]
    path = BASE if config in PLACEHOLDERS else ROOT / config
    overrides = [words[index + 1] for index, word in enumerate(words) if word == "-o"]
    processes = re.search(r"--nproc_per_node (\d+)", line)
    world_size = int(processes[1]) if processes and path is not BASE else 1
    assert overrides
    assert_known(path, overrides, world_size)


def test_pages_have_trainings() -> None:
    assert len(trainings()) > 1
