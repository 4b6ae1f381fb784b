"""Logged messages in the language of a page or of findings."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from ppprof.report.text.advice import read_catalogue

_FIELD = re.compile(r"\{(\w+)\}")


def translated(message: str, language: str) -> str:
    """Return a logged message in a language; unchanged if the catalogue lacks it.

    >>> print(translated("a.json: no step in it; left out", "zh"))
    a.json：其中没有步，已略去
    >>> translated("a.json: the disk is full", "zh")
    'a.json: the disk is full'

    Args:
        message: the message in English.
        language: one of `ppprof.choices.formats.LANGUAGES`.
    """
    texts = read_catalogue(language)["messages"]
    for key, pattern in _patterns().items():
        match = pattern.fullmatch(message)
        if match:
            fields = {name: _part(text, language) for name, text in match.groupdict().items()}
            return str(texts[key].format_map(fields))
    return message


def _part(text: str, language: str) -> str:
    """Return a field of a message; the reasons for a partly read file are translated one by one."""
    texts = read_catalogue(language)["message_parts"]
    for key, english in read_catalogue("en")["message_parts"].items():
        text = text.replace(english, texts[key])
    return text


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    """Return a pattern for each English message, with a group for each field."""
    patterns = {}
    for key, text in read_catalogue("en")["messages"].items():
        pieces = _FIELD.split(text)
        texts, fields = pieces[::2], pieces[1::2]
        pattern = re.escape(texts[0])
        for field, rest in zip(fields, texts[1:]):
            pattern += f"(?P<{field}>.+?){re.escape(rest)}"
        patterns[key] = re.compile(pattern, re.DOTALL)
    return patterns


@contextmanager
def logged_in(language: str) -> Iterator[None]:
    """Translate the messages of the logger ``ppprof`` while the context is open.

    Args:
        language: as in `translated`. Nothing changes for English.
    """
    logger = logging.getLogger("ppprof")
    handlers = list(logger.handlers) if language != "en" else []

    def translate(record: logging.LogRecord) -> bool:
        record.msg, record.args = translated(record.getMessage(), language), ()
        return True

    for handler in handlers:
        handler.addFilter(translate)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(translate)
