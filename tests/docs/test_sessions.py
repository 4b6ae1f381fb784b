"""Sessions of a shell and of Python in pages print what the pages show."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import doc_sessions

ROOT = Path(__file__).parents[2]
PAGES = [
    path
    for path in sorted([*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md")])
    if doc_sessions.commands(path.read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module", autouse=True)
def runs() -> Iterator[None]:
    with doc_sessions.runs_folder():
        yield


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_shows_what_its_commands_print(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert page == doc_sessions.updated(page), "run python -m tools.docs"


def test_output_of_a_filter_and_exit_code() -> None:
    assert doc_sessions.output("ppprof summary nowhere; echo $?") == (
        "nowhere: No such file or directory\n3\n"
    )
    assert (
        doc_sessions.output("ppprof nonsense | tail -1 | cut -c 1-20") == "nonsense: unknown co\n"
    )


def test_output_replaces_what_stood_below_a_command() -> None:
    page = (
        "a\n\n```console\n$ ppprof summary nowhere\nold\nlines\n$ ppprof nonsense; echo $?\n```\n"
    )
    updated = doc_sessions.updated(page)
    assert "\nold\n" not in updated
    assert updated.startswith("a\n\n```console\n$ ppprof summary nowhere\nnowhere: No such file")
    assert updated.endswith("\n2\n```\n")
    assert doc_sessions.updated(updated) == updated


def test_a_session_runs_ppprof_only() -> None:
    with pytest.raises(ValueError, match="runs ppprof"):
        doc_sessions.output("rm -r .")


PYTHON = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON_SESSIONS = [
    pytest.param(path, "\n".join(blocks), id=str(path.relative_to(ROOT)))
    for path in sorted(ROOT.glob("docs/**/*.md"))
    if (blocks := PYTHON.findall(path.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(("path", "text"), PYTHON_SESSIONS)
def test_a_page_shows_what_python_prints(path: Path, text: str) -> None:
    """All blocks of a page are one session."""
    session = doctest.DocTestParser().get_doctest(text, {}, path.name, str(path), 0)
    assert len(session.examples) > 2
    output: list[str] = []
    doctest.DocTestRunner(verbose=False).run(session, out=output.append)
    assert "".join(output) == ""
