"""`tools/site_hooks.py`: a page of the repository becomes a page of the site."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import site_hooks


def markdown(text: str, source: str = "page.md", repo_url: str = "") -> str:
    config = SimpleNamespace(docs_dir=str(site_hooks.ROOT / "docs"), repo_url=repo_url)
    page = SimpleNamespace(file=SimpleNamespace(src_uri=source))
    return site_hooks.on_page_markdown(text, page=page, config=config)


def test_the_paragraph_of_links_goes() -> None:
    page = "# T\n\n[README](../README.md) · [中文](page.zh-CN.md) ·\n[x](x.md)\n\nText [x](x.md).\n"
    assert markdown(page) == "# T\n\n\nText [x](x.md).\n"


def test_links_out_of_the_docs() -> None:
    page = "# T\n\n[l](x.md)\n\nSee [code](../tests/a.py) and [b](b.md#c), [w](https://w), [d](#e)."
    end = " and [b](b.md#c), [w](https://w), [d](#e)."
    assert markdown(page).endswith("See code" + end)
    assert markdown(page, repo_url="https://r/").endswith(
        "See [code](https://r/blob/main/tests/a.py)" + end
    )


def test_code_stays_as_it_is() -> None:
    page = "# T\n\n[l](x.md)\n\n```python\na[0](../b)\n```\n"
    assert "a[0](../b)" in markdown(page)


def test_the_start_page_is_the_readme() -> None:
    for name, title in (("index.md", "# ppprof"), ("index.zh-CN.md", "# ppprof")):
        page = markdown("replaced", name)
        assert page.startswith(title)
        assert "](report.png)" in page
        assert "](docs/" not in page
        assert "README" not in page


def test_docstrings_end_in_one_colon_before_an_example() -> None:
    assert site_hooks.on_page_content("<p>So::</p><pre>a::b</pre>") == "<p>So:</p><pre>a::b</pre>"


def test_a_chinese_page_has_an_index_of_its_own() -> None:
    html = (
        '<script id="__config" type="application/json">{"annotate": null, "base": "../.."}</script>'
    )
    english, chinese = (
        site_hooks.on_post_page(html, page=SimpleNamespace(url=url))
        for url in ("ranks/", "zh-CN/ranks/")
    )
    assert english == html
    assert chinese == html.replace('"../.."', '"../../zh-CN/"')


def test_the_search_index_is_divided_by_language(tmp_path: Path) -> None:
    def index(*locations: str) -> dict[str, object]:
        return {"config": {"lang": ["en"]}, "docs": [{"location": each} for each in locations]}

    path = tmp_path / "search/search_index.json"
    path.parent.mkdir()
    path.write_text(json.dumps(index("", "ranks/#a", "zh-CN/", "zh-CN/ranks/#a")))
    site_hooks.on_post_build(
        config=SimpleNamespace(site_dir=str(tmp_path), extra={"redirects": {}})
    )
    assert json.loads(path.read_text()) == index("", "ranks/#a")
    chinese = tmp_path / "zh-CN/search/search_index.json"
    assert json.loads(chinese.read_text()) == index("", "ranks/#a")


def test_an_old_address_leads_to_a_page_that_exists(tmp_path: Path) -> None:
    for folder in ("search", "diff", "zh-CN/diff"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "index.html").touch()
    (tmp_path / "search/search_index.json").write_text('{"docs": []}')

    def build(redirects: dict[str, str]) -> None:
        config = SimpleNamespace(site_dir=str(tmp_path), extra={"redirects": redirects})
        site_hooks.on_post_build(config=config)

    build({"commands/bench": "diff/#ppprof-bench"})
    for folder in (tmp_path, tmp_path / "zh-CN"):
        page = (folder / "commands/bench/index.html").read_text()
        assert 'content="0; url=../../diff/#ppprof-bench"' in page
    (tmp_path / "search/search_index.json").write_text('{"docs": []}')
    with pytest.raises(FileNotFoundError, match=r"redirect of old: no page gone/"):
        build({"old": "gone/"})
