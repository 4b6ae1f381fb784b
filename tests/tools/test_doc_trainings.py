"""Outputs of trainings in pages: which part of an output a page shows, and what counts as a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import doc_trainings, docs

ROOT = Path(__file__).parents[2]
PAGE = """
```bash
export STEP=12
```

```bash
echo "-- Model Summary --"; echo "Forward  $STEP ms"; echo "----"
echo left out
echo "what to change: ppprof advise"
```

It prints:

```output
------ Model Summary ------
Forward      3 us
------
...
what to change: ppprof advise
```
"""


def test_a_page_with_the_same_words_keeps_its_text_but_for_the_numbers() -> None:
    text = doc_trainings.updated(PAGE, doc_trainings.run(PAGE))
    assert text == PAGE.replace("------ Model Summary ------", "-- Model Summary --").replace(
        "Forward      3 us\n------\n", "Forward  12 ms\n----\n"
    )
    assert doc_trainings.difference(PAGE, text) == []


def test_a_new_line_and_another_word_are_differences() -> None:
    outputs = [
        "",
        "- Model Summary -\nForward 4 s\nBackward 5 s\n----\nwhat to change: ppprof advise",
    ]
    text = doc_trainings.updated(PAGE, outputs)
    assert doc_trainings.difference(PAGE, text)[2:] == [
        "@@ -2,2 +2,3 @@",
        " Forward 0 TIME",
        "+Backward 0 TIME",
        " -",
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("from 1,024 to 7", "from 16 to 2", True),
        ("Step time: faster: -74.8%", "Step time: faster: -3.1%", True),
        ("Step time: faster: -74.8%", "Step time: slower: +3.1%", False),
        ("|   ips   |  39.2 |", "| ips | 1039.27 |", True),
        ("171 ms of a step", "1.2 s of a step", True),
        ("303 MiB", "1.3 GiB", True),
        ("Time unit: ms", "Time unit: s", False),
        ("Others  -  18.18 / -", "Others  -  18.18 / 3", False),
        ("w 0: step 3 ms: 4% waiting, 2% bubble", "w 1: step 1.2 s: 9% waiting", True),
        ("w 0: step 3 ms: 4% waiting, 2% bubble", "w 0: step 3 ms: 4% bubble", False),
        ("rank_0_time_20261123T204512_000.json", "rank_0_time_20270101T000000_000.json", True),
    ],
)
def test_words(shown: str, printed: str, same: bool) -> None:
    assert (doc_trainings.masked(shown) == doc_trainings.masked(printed)) == same


def test_a_line_that_repeats_ends_a_part_where_it_did() -> None:
    table = "---\nName\n---\nForward 1\n---\n"
    printed = "before\n---\nName\n---\nForward 2\n---\nafter\n---\n"
    assert doc_trainings.excerpt(table, printed) == table.replace("1", "2")


def test_an_output_without_the_lines_of_the_page_names_the_first() -> None:
    with pytest.raises(doc_trainings.TrainingError, match="no line '- Model Summary -'"):
        doc_trainings.updated(PAGE, ["", "something else"])


def test_commands_that_fail_end_with_what_they_printed() -> None:
    with pytest.raises(doc_trainings.TrainingError, match=r"exit code 7 after:\nlast words"):
        doc_trainings.run("```bash\necho last words; exit 7\n```\n")


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_pages_with_trainings(name: str) -> None:
    assert name in doc_trainings.pages()
    page = doc_trainings.read(name)
    assert doc_trainings.with_outputs(page, doc_trainings.output_blocks(page)) == page


def test_no_command_of_these_pages_needs_a_running_job() -> None:
    """`make docs` runs all of them, one after another; a block without ``bash`` is not run."""
    commands = [
        text
        for name in doc_trainings.pages()
        for text in doc_trainings.commands(doc_trainings.read(name))
    ]
    assert [text for text in commands if "ppprof trigger" in text] == []


@pytest.fixture
def old_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """A page in two languages whose output has a word that its command does not print."""
    (tmp_path / "docs").mkdir()
    paths = [tmp_path / "README.md", tmp_path / "README.zh-CN.md"]
    old = PAGE.replace("Forward      3 us", "Sideways     3 us")
    for path, words in zip(paths, ("It prints:", "打印：")):
        path.write_text(old.replace("It prints:", words), encoding="utf-8")
    monkeypatch.setattr(doc_trainings, "ROOT", tmp_path)
    doc_trainings.remade.cache_clear()
    yield paths
    doc_trainings.remade.cache_clear()


def test_words_that_differ_are_an_error(
    old_pages: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = [path.read_text(encoding="utf-8") for path in old_pages]
    assert doc_trainings.compare(write=False) == 1
    assert "-Sideways 0 TIME\n+Forward 0 TIME\n" in capsys.readouterr().out
    assert [path.read_text(encoding="utf-8") for path in old_pages] == before


def test_write_replaces_the_output_in_both_languages(old_pages: list[Path]) -> None:
    assert doc_trainings.compare(write=True) == 0
    for path, words in zip(old_pages, ("It prints:", "打印：")):
        text = path.read_text(encoding="utf-8")
        assert f"{words}\n\n```output\n-- Model Summary --\nForward  12 ms\n----\n" in text
        assert "Sideways" not in text


@pytest.mark.parametrize(("argv", "write"), [([], False), (["--write"], True)])
def test_the_command_of_make_docs(
    argv: list[str], write: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(doc_trainings, "compare", lambda *, write: calls.append(write) or 1)
    assert docs.main(["--trainings", *argv]) == 1
    assert calls == [write]
    _, _, recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndocs: $(VENV)")
    assert "-m tools.docs --trainings" in recipe.partition("\n\n")[0]
