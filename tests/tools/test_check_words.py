"""``tools/check_words.py`` looks at words, not at code."""

from __future__ import annotations

import pytest

from tools.check_words import words_of_python, words_of_text


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
