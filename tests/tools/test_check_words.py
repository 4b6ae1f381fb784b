"""``tools/check_words.py`` looks at words, not at code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_words import rejected_words, words_of_python, words_of_text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a rank\nis told, and there is none", [(2, "told"), (2, "is none")]),
        ("null where the value is None", []),
        ("`is none` and ``whoever`` are\ncode; nobody reads", [(2, "nobody")]),
    ],
)
def test_words_are_found_in_prose_alone(text: str, found: list[tuple[int, str]]) -> None:
    assert list(words_of_text(text)) == found


def test_conditions_in_python_are_no_words() -> None:
    text = 'if x is None:  # there is none\n    y = f"{x is None} `is none`"\n'
    assert list(words_of_python(text)) == [(1, "is none")]


def test_a_chinese_page_has_one_word_for_each_term() -> None:
    """`step` is Paddle's name of a method; in a sentence it is 步."""
    text = "每个 step 的代价\n`step()` 结束一步；第 3 步的开销"
    words = rejected_words(Path("docs/page.zh-CN.md"))
    assert list(words_of_text(text, words)) == [(1, "step"), (1, "代价")]
