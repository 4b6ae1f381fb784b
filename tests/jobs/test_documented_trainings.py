"""Trainings in pages print what the pages show, apart from numbers (`tools.doc_trainings`)."""

from __future__ import annotations

import pytest

from tools import doc_trainings

pytestmark = [pytest.mark.paddle, pytest.mark.all]
pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")


@pytest.mark.parametrize("name", doc_trainings.pages())
def test_a_page_shows_the_words_that_its_trainings_print(name: str) -> None:
    text = doc_trainings.remade(name).text
    assert doc_trainings.difference(doc_trainings.read(name), text) == []
