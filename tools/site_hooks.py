"""Fit pages that are written for a repository's viewer into the site that `mkdocs.yml` describes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LINKS = re.compile(r"^(?:\[[^\]\n]+\]\([^)\n]+\)[ ·]*\n?)+$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_README_TARGET = re.compile(r"\]\((?!\w+:|#)(docs/)?")
_CODE = re.compile(r"(```.*?```)", re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the Markdown of a page for the site.

    - The pages ``index.md`` and ``index.zh-CN.md`` show the README.
    - The paragraph of links below the title goes: the site has the README and both languages.
    - Links to files outside ``docs/`` lead to the repository, or become text if its address is unknown.
    """
    source = page.file.src_uri
    if source.startswith("index."):
        readme = (ROOT / source.replace("index", "README")).read_text(encoding="utf-8")
        markdown = _README_TARGET.sub(lambda start: "](" if start[1] else "](../", readme)
    folder = Path(config.docs_dir, source).parent
    parts = _CODE.split(_LINKS.sub("", markdown, count=1))
    parts[::2] = [_with_site_links(part, folder, config) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, **_: Any) -> str:
    """Return the HTML of a page, with one colon where docstrings have two before an example."""
    return html.replace("::</p>", ":</p>")


def _with_site_links(text: str, folder: Path, config: Any) -> str:
    def replaced(link: re.Match[str]) -> str:
        label, target = link.groups()
        file = (folder / target).resolve()
        if ":" in target or target.startswith("#") or Path(config.docs_dir) in file.parents:
            return link[0]
        if not config.repo_url:
            return label
        return f"[{label}]({config.repo_url.rstrip('/')}/blob/main/{file.relative_to(ROOT)})"

    return _LINK.sub(replaced, text)
