"""``python -m tools.screenshots`` takes every picture that the pages show, from committed runs."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracles import chromium
from tools import screenshots

ROOT = Path(__file__).parents[2]


def size(picture: Path) -> tuple[int, int]:
    """Width and height in the header of a PNG."""
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    return width, height


def test_every_picture_of_the_pages_is_taken() -> None:
    pages = [*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md")]
    shown = {
        Path(picture).name
        for page in pages
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+\.png)\)", page.read_text(encoding="utf-8"))
    }
    assert shown == {f"{name}.png" for name in (*screenshots.PICTURES, "visualdl")}


@pytest.mark.all
@pytest.mark.browser
@pytest.mark.visualdl
@pytest.mark.skipif(chromium.EXECUTABLE is None, reason=chromium.SKIPPED)
def test_the_command_takes_all_pictures(tmp_path: Path) -> None:
    pytest.importorskip("visualdl", reason="needs visualdl")
    command = [sys.executable, "-m", "tools.screenshots", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    for picture in sorted(tmp_path.glob("*.png")):
        width, height = size(picture)
        assert width == size(ROOT / "docs" / picture.name)[0]
        assert height > 400
    assert len(list(tmp_path.glob("*.png"))) == len(screenshots.PICTURES) + 1
