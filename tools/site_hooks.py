"""Fit pages that are written for a repository's viewer into the site that `mkdocs.yml` describes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LINKS = re.compile(r"^(?:\[[^\]\n]+\]\([^)\n]+\)[ ·]*\n?)+$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_README_TARGET = re.compile(r"\]\((?!\w+:|#)(docs/)?")
_BASE = re.compile(r'(<script id="__config"[^>]*>[^<]*"base": ")([^"]*)"')
CHINESE = "zh-CN/"
"""Where the Chinese pages are in the site."""
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


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Return a page of the site, which takes the search index of its own language.

    The theme reads ``search/search_index.json`` below its base, which is the site's root in all
    languages.
    """
    if not page.url.startswith(CHINESE):
        return output
    return _BASE.sub(rf'\g<1>\g<2>/{CHINESE}"', output, count=1)


def on_post_build(*, config: Any, **_: Any) -> None:
    """Divide the search index by language, and write a page at each old address."""
    _divide_search_index(config)
    for prefix in ("", CHINESE):
        for old, new in config.extra["redirects"].items():
            _redirect(Path(config.site_dir, prefix), old, new)


def _divide_search_index(config: Any) -> None:
    """Write an index for each language, with addresses relative to its pages."""
    path = Path(config.site_dir, "search/search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    entries: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for entry in index["docs"]:
        location = entry["location"]
        is_chinese = location.startswith(CHINESE)
        entries[is_chinese].append({**entry, "location": location.removeprefix(CHINESE)})
    for is_chinese, prefix in ((False, ""), (True, CHINESE)):
        path = Path(config.site_dir, prefix, "search/search_index.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**index, "docs": entries[is_chinese]}, ensure_ascii=False)
        path.write_text(text, encoding="utf-8")


# After the plugin i18n (-100), which builds the Chinese pages and the index of both languages. This is
# what `mkdocs.plugins.event_priority` sets; mkdocs is missing where only the tests are installed.
vars(on_post_build)["mkdocs_priority"] = -200


def _redirect(site: Path, old: str, new: str) -> None:
    """Write a page that leads from an old address to the one that has its content now.

    Raises:
        FileNotFoundError: the new address has no page.
    """
    if not (site / new.partition("#")[0] / "index.html").is_file():
        raise FileNotFoundError(f"redirect of {old}: no page {new}")
    address = f"{'../' * len(Path(old).parts)}{new}"
    page = site / old / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(
        f'<!doctype html><link rel="icon" href="data:,">'  # browsers ask for one otherwise
        f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">{new}</a>\n',
        encoding="utf-8",
    )


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
