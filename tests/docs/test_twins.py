"""README.md and every page in docs/ have a Chinese page with the same headings, code and tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).parents[2] / "docs"
ENGLISH = sorted(page for page in DOCS.rglob("*.md") if not page.name.endswith(".zh-CN.md"))
README = DOCS.parent / "README.md"
_CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r" *#.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")
_LINK = re.compile(r"\]\(([\w./-]*\.md)[#)]")

pages = pytest.mark.parametrize("page", [*ENGLISH, README], ids=lambda page: page.stem)


class Outline(NamedTuple):
    """What a page has in common with its page in the other language."""

    headings: list[int]
    """Level of each heading."""
    items: list[int]
    """Number of list items before the first heading and below each heading."""
    code: list[str]
    """Each block of code without comments, which are translated."""
    tables: list[list[int]]
    """Number of cells in each row of each table."""
    row_code: list[list[str]]
    """The code in each table row, sorted, without repetitions."""


def chinese(page: Path) -> Path:
    return page.with_suffix(".zh-CN.md")


def outline(page: Path) -> Outline:
    text = page.read_text("utf-8")
    prose = _CODE_BLOCK.sub("", text)
    tables = re.findall(r"(?:^\|.*\n)+", prose, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    sections = re.split(r"^#+ ", prose, flags=re.MULTILINE)
    return Outline(
        headings=[len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)],
        items=[len(re.findall(r"^- ", part, re.MULTILINE)) for part in sections],
        code=[_COMMENT.sub("", block) for block in _CODE_BLOCK.findall(text)],
        tables=[
            [len(re.findall(r"(?<!\\)\|", row)) - 1 for row in table.splitlines()]
            for table in tables
        ],
        row_code=[sorted(set(_CODE.findall(row))) for row in rows],
    )


def test_every_page_has_a_chinese_page_and_the_reverse() -> None:
    assert len(ENGLISH) > 10
    assert {chinese(page) for page in ENGLISH} == set(DOCS.rglob("*.zh-CN.md"))


@pages
def test_both_languages_have_the_same_headings(page: Path) -> None:
    assert outline(chinese(page)).headings == outline(page).headings


@pages
def test_both_languages_have_the_same_number_of_list_items(page: Path) -> None:
    assert outline(chinese(page)).items == outline(page).items


@pages
def test_both_languages_have_the_same_code(page: Path) -> None:
    assert outline(chinese(page)).code == outline(page).code


@pages
def test_both_languages_have_tables_of_the_same_shape(page: Path) -> None:
    assert outline(chinese(page)).tables == outline(page).tables


@pages
def test_both_languages_have_the_same_code_in_each_table_row(page: Path) -> None:
    assert outline(chinese(page)).row_code == outline(page).row_code


@pages
def test_pages_link_to_each_other_and_otherwise_to_pages_in_their_language(page: Path) -> None:
    """A Chinese page may link to an English page that has no Chinese page."""
    english, translated = (_LINK.findall(text.read_text("utf-8")) for text in (page, chinese(page)))
    assert chinese(page).name in english
    assert page.name in translated
    assert [link for link in english if ".zh-CN" in link] == [chinese(page).name]
    other = [link for link in translated if ".zh-CN" not in link and link != page.name]
    assert [link for link in other if chinese(page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [README, chinese(README)], ids=lambda page: page.name)
def test_the_readme_is_short(page: Path) -> None:
    assert len(page.read_text("utf-8").splitlines()) <= 180
