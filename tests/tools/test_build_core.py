"""Compiling the core of the reader, and the hook that puts it into a wheel."""

from __future__ import annotations

import shutil
import sys
import types
from pathlib import Path

import pytest

from ppprof.trace.fastpath import core
from tools import build_core

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs cc, gcc or clang"
)


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A folder with the C sources where they are in a checkout; no compiler is chosen."""
    shutil.copytree(
        core.FOLDER, tmp_path / build_core.FOLDER, ignore=shutil.ignore_patterns("*.so", "*.py")
    )
    for name in ("CC", "CFLAGS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def hook(checkout, monkeypatch):
    """The hook as hatchling creates it, and its warnings."""

    class Interface:
        root = str(checkout)
        app = types.SimpleNamespace(warnings=[])
        app.display_warning = app.warnings.append

    name = "hatchling.builders.hooks.plugin.interface"
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(BuildHookInterface=Interface))
    return build_core.get_build_hook()()


@needs_compiler
def test_what_is_compiled_can_be_loaded(checkout):
    library = build_core.build(checkout)
    assert library == checkout / build_core.LIBRARY
    assert core.load(library.parent)[1] == ""
    assert not [path for path in library.parent.iterdir() if path.name.startswith(".")]


def test_without_a_compiler(checkout, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(checkout))
    with pytest.raises(build_core.NoCompilerError, match="found none of cc, gcc and clang"):
        build_core.build(checkout)
    assert build_core.main() == 0
    assert "will read traces without it: found none" in capsys.readouterr().err


def test_a_compiler_that_fails(checkout, monkeypatch, capsys):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(build_core.BuildError, match=r"false -std=c99 .* failed:"):
        build_core.build(checkout)
    monkeypatch.setenv("CC", str(checkout / "no compiler").replace(" ", "-"))
    with pytest.raises(build_core.BuildError, match="no-compiler: No such file"):
        build_core.build(checkout)
    assert build_core.main() == 1
    assert "no-compiler" in capsys.readouterr().err


@needs_compiler
def test_a_wheel_with_the_library(hook, checkout):
    data = {"artifacts": []}
    hook.initialize("standard", data)
    assert hook.app.warnings == []
    assert data["artifacts"] == ["/ppprof/trace/fastpath/native/_core.so"]
    assert data["pure_python"] is False
    assert data["tag"].startswith("py3-none-")
    assert "-" not in data["tag"][len("py3-none-") :]
    assert (checkout / build_core.LIBRARY).exists()


def test_a_pure_wheel(hook, checkout, monkeypatch):
    """A library of older sources does not get into the wheel."""
    (checkout / build_core.LIBRARY).write_bytes(b"old")
    monkeypatch.setenv("CC", "false")
    data = {"artifacts": []}
    hook.initialize("standard", data)
    assert data == {"artifacts": []}
    assert len(hook.app.warnings) == 1
    assert hook.app.warnings[0].startswith("no compiled core, ppprof will read traces without it: ")
    assert not (checkout / build_core.LIBRARY).exists()


@pytest.mark.parametrize(
    ("system", "tag"),
    [("linux", "py3-none-linux_x86_64"), ("darwin", "py3-none-macosx_14_0_arm64")],
)
def test_tags(system, tag, monkeypatch):
    monkeypatch.setattr(build_core.sys, "platform", system)
    monkeypatch.setattr(build_core.sysconfig, "get_platform", lambda: "linux-x86_64")
    monkeypatch.setattr(build_core.platform, "mac_ver", lambda: ("14.2.1", ("", "", ""), "arm64"))
    monkeypatch.setattr(build_core.platform, "machine", lambda: "arm64")
    monkeypatch.delenv("CC", raising=False)
    assert build_core.wheel_tag() == tag


@pytest.mark.parametrize(
    ("target", "tag"),
    [("aarch64-linux-gnu", "py3-none-linux_aarch64"), ("unknown", "py3-none-linux_x86_64")],
)
def test_a_compiler_for_another_machine_decides_the_tag(target, tag, tmp_path, monkeypatch):
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\necho {target}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(build_core.sys, "platform", "linux")
    monkeypatch.setattr(build_core.sysconfig, "get_platform", lambda: "linux-x86_64")
    assert build_core.wheel_tag() == tag
