"""docs/definitions.md: the pictures of numbers are those in the code that computes the numbers."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tests.fixtures.pages import resolve

DOCS = Path(__file__).parents[2] / "docs"
NUMBERS = 9


def pictures(page: str) -> list[tuple[str, str]]:
    """Return the name of the code and the picture of each part of the last section."""
    section = (DOCS / page).read_text(encoding="utf-8").rpartition("\n## ")[2]
    parts = section.split("\n### ")[1:]
    return [
        (
            re.findall(r"`(ppprof\.[\w.]+)`", part)[0],
            re.findall(r"^```\n(.*?)\n```$", part, re.M | re.S)[0],
        )
        for part in parts
    ]


@pytest.mark.parametrize("page", ["definitions.md", "definitions.zh-CN.md"])
def test_every_picture_is_in_the_docstring_of_the_code_that_it_names(page: str) -> None:
    shown = pictures(page)
    assert len(shown) >= NUMBERS
    for name, picture in shown:
        lines = [re.escape(line) for line in picture.splitlines()]
        docstring = inspect.getdoc(resolve(name)) or ""
        assert re.search(r"^( +)" + r"\n\1".join(lines) + "$", docstring, re.M), name
