"""Links between pages have existing targets."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def target_exists(page: Path, path: str, anchor: str) -> bool:
    target = (page.parent / path) if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def test_links_have_targets() -> None:
    texts = {
        page: re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL) for page in PAGES
    }
    links = [(page, *link) for page, text in texts.items() for link in _LINK.findall(text)]
    assert len(links) > 20
    dead = [
        f"{page.name}: {path}#{anchor}"
        for page, path, anchor in links
        if not target_exists(page, path, anchor)
    ]
    assert dead == []


def test_files_of_the_repository_that_pages_name_exist() -> None:
    names = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(
            r"`((?:tests|tools|ppprof|examples)/[\w/.]*\.\w+)[`:]", page.read_text("utf-8")
        )
    }
    assert len(names) > 20
    assert [named for named in sorted(names) if not (ROOT / named[1]).exists()] == []
