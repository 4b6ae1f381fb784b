"""The site of the documentation: it builds without a warning, and works in a browser.

`make docs` installs what builds it; without that, these tests are skipped.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.oracles import chromium

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material")),
        reason="needs the packages that `make docs` installs",
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, "WARNING" in built.stderr) == (0, False), built.stderr
    return folder


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address of a server of the site."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=site))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if chromium.EXECUTABLE is None:
        pytest.skip(chromium.SKIPPED)
    with chromium.browser() as started:
        yield started


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """A page that loads nothing from elsewhere and logs no error."""
    context = browser.new_context()
    page = context.new_page()
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda entry: errors.append(entry.text) if _is_error(entry) else None)
    yield page
    foreign = [url for url in requests if not url.startswith((address, "data:", "blob:"))]
    context.close()
    assert (foreign, errors) == ([], [])


def _is_error(entry: Any) -> bool:
    # The theme looks for a sitemap in each language; there is one for all.
    return entry.type == "error" and not entry.location["url"].endswith("/sitemap.xml")


def search(page: Any, words: str) -> list[str]:
    """Return the addresses that a search finds, best first, without the part after #."""
    page.click("input.md-search__input")
    page.fill("input.md-search__input", words)
    page.press("input.md-search__input", "End")  # a key makes it search, once, for all words
    page.wait_for_selector(".md-search-result__item a")
    links = page.query_selector_all(".md-search-result__item a.md-search-result__link")
    return [link.evaluate("link => link.pathname") for link in links]


@pytest.mark.browser
@pytest.mark.parametrize(
    ("start", "words", "expected"),
    [
        ("", "sharding_degree", {"/config/"}),
        ("zh-CN/", "sharding_degree", {"/zh-CN/config/"}),
        ("zh-CN/", "流水线", {"/zh-CN/hybrid/", "/zh-CN/definitions/"}),
        ("", "exposed communication", {"/definitions/", "/advice/"}),
    ],
)
def test_search(page: Any, address: str, start: str, words: str, expected: set[str]) -> None:
    page.goto(address + start)
    assert expected <= set(search(page, words))


@pytest.mark.browser
@pytest.mark.parametrize("start", ["", "library/", "404.html", "zh-CN/", "zh-CN/library/"])
def test_a_search_finds_pages_in_its_language_only(page: Any, address: str, start: str) -> None:
    is_chinese = start.startswith("zh-CN/")
    for words in ("sharding_degree", "rank", *(["流水线"] if is_chinese else [])):
        page.goto(address + start)
        found = search(page, words)
        assert {path.startswith("/zh-CN/") for path in found} == {is_chinese}, words
        assert page.request.get(address.rstrip("/") + found[-1]).ok


@pytest.mark.browser
def test_an_english_search_finds_no_chinese_word(page: Any, address: str) -> None:
    page.goto(address)
    page.click("input.md-search__input")
    page.fill("input.md-search__input", "流水线")
    page.press("input.md-search__input", "End")
    page.wait_for_function("document.querySelector('.md-search-result__meta').innerText != ''")
    assert page.query_selector_all(".md-search-result__item") == []


@pytest.mark.browser
def test_a_result_opens_its_page(page: Any, address: str) -> None:
    page.goto(f"{address}zh-CN/ranks/")
    (first, *_) = search(page, "流水线")
    page.click(".md-search-result__item a.md-search-result__link")
    page.wait_for_url(f"{address.rstrip('/')}{first}**")
    assert page.get_attribute("html", "lang") == "zh"


@pytest.mark.browser
@pytest.mark.parametrize("language", ["", "zh-CN/"])
def test_an_old_address_leads_to_the_page_that_has_its_content(
    page: Any, address: str, language: str
) -> None:
    page.goto(f"{address}{language}commands/path/")
    page.wait_for_url(f"{address}{language}predict/#ppprof-path")
    assert page.is_visible("#ppprof-path")


@pytest.mark.browser
@pytest.mark.parametrize(
    ("start", "language", "end", "heading"),
    [
        ("ranks/", "zh-CN", "zh-CN/ranks/", "所有 rank"),
        ("zh-CN/ranks/", "en", "ranks/", "All ranks"),
    ],
)
def test_a_page_leads_to_its_other_language(
    page: Any, address: str, start: str, language: str, end: str, heading: str
) -> None:
    page.goto(address + start)
    page.hover(".md-select button")
    page.click(f".md-select a[hreflang={language}]")
    page.wait_for_url(address + end)
    assert page.get_attribute("html", "lang") == language.partition("-")[0]
    assert page.inner_text("h1").startswith(heading)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(page: Any, address: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(address)
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, green, blue = (int(part) for part in colour[4:-1].split(",")[:3])
    assert (red + green + blue > 384) == (scheme == "light")


@pytest.mark.browser
@pytest.mark.parametrize("name", ["", "config/", "commands/", "library/", "zh-CN/devices/"])
def test_a_phone_shows_every_page_without_scrolling_sideways(
    page: Any, address: str, name: str
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(address + name)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
