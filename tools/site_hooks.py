"""Fit pages that are written for a repository's viewer into the site that `mkdocs.yml` describes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LANGUAGES = re.compile(r"^\[[^\n]*\]\([\w./-]+\.md\)\n", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(```.*?```)", re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the Markdown of a page for the site.

    - The pages ``index.md`` and ``index.zh-CN.md`` show the README.
    - The line that links a page to the README and to its other language goes: the site has both.
    - Links to files outside ``docs/`` lead to the repository, or become text if its address is unknown.
    """
    source = page.file.src_uri
    if source.startswith("index."):
        readme = ROOT / source.replace("index", "README")
        markdown = re.sub(r"\]\(docs/", "](", readme.read_text(encoding="utf-8"))
    parts = _CODE.split(_LANGUAGES.sub("", markdown, count=1))
    parts[::2] = [_with_site_links(part, source, config) for part in parts[::2]]
    return "".join(parts)


def _with_site_links(text: str, source: str, config: Any) -> str:
    def replaced(link: re.Match[str]) -> str:
        label, target = link.groups()
        if ":" in target or target.startswith("#"):
            return link[0]
        base = ROOT if source.startswith("index.") else ROOT / "docs" / source / ".."
        docs = Path(config.docs_dir)
        path, _, anchor = target.partition("#")
        file = (base / path).resolve()
        if source.startswith("index."):
            file = (docs / path).resolve() if (docs / path).exists() else file
        if file.name in {"README.md", "README.zh-CN.md"} and file.parent == ROOT:
            return link[0].replace(path, "../" * source.count("/") + file.name.replace("README", "index"))
        if docs in file.parents:
            return link[0]
        if not config.repo_url:
            return label
        return f"[{label}]({config.repo_url.rstrip('/')}/blob/main/{file.relative_to(ROOT)})"

    return _LINK.sub(replaced, text)
