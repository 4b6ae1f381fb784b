"""``ppprof demo``: the run that is shipped, and its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ppprof
from ppprof.cli import main

PLANTED = "def tokenize"


def test_the_demo_is_unpacked_and_has_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    folder = tmp_path / "shown"
    assert main(["demo", "-o", str(folder)]) == 0
    page = folder / "report.html"
    assert opened == [page.as_uri()]
    assert "train.py" in page.read_text(encoding="utf-8")
    assert f"ppprof advise {folder}" in capsys.readouterr().out

    first = ppprof.advise(ppprof.open(folder))[0]
    lines = (folder / "train.py").read_text(encoding="utf-8").splitlines()
    planted = next(number for number, line in enumerate(lines, 1) if line.startswith(PLANTED))
    assert first.rule == "slow-rank"
    assert first.place == ("train.py", planted + 1)
    assert first.facts["rank"] == 2


def test_what_is_shipped_names_no_other_machine(tmp_path: Path) -> None:
    folder = tmp_path / "shown"
    assert main(["demo", "-o", str(folder), "--no-browser"]) == 0
    found = set()
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "report.html":
            found |= set(re.findall(rb"/(?:root|home|work|tmp)/[\w./-]*", path.read_bytes()))
    assert not found


def test_a_directory_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("kept", encoding="utf-8")
    assert main(["demo", "-o", str(tmp_path)]) == 2
    assert "it exists; name a new directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
