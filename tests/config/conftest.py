"""Configs as small inline YAML."""

from __future__ import annotations

import textwrap

import pytest

from ppprof.config import load_config
from ppprof.errors import ConfigError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that is also the current one, so that messages hold short paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def load(folder):
    """``load(text, "K=V", world_size=2, base=text)``: the Config of a file and of its bases."""

    def load_text(text, *overrides, world_size=None, **others):
        for name, other in others.items():
            (folder / f"{name}.yaml").write_text(textwrap.dedent(other), encoding="utf-8")
        (folder / "cfg.yaml").write_text(textwrap.dedent(text), encoding="utf-8")
        return load_config("cfg.yaml", overrides, world_size)

    return load_text


@pytest.fixture
def problems(load):
    """The same, for a config that cannot be used: its problems, one string each."""

    def problems_of(text, *overrides, **options):
        with pytest.raises(ConfigError) as raised:
            load(text, *overrides, **options)
        assert raised.value.exit_code == 2
        return [str(problem) for problem in raised.value.problems]

    return problems_of
