"""The texts of the page in one language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Words:
    """The texts of ``en.yaml`` or ``zh.yaml``; an unknown key raises KeyError."""

    language: str
    """``en`` or ``zh``."""
    texts: Mapping[str, Mapping[str, Any]]
    """The texts, keyed by group, then name. A term (group ``terms``) is a pair: the name and the
    definition of a number or column of the page."""

    def __call__(self, key: str, **values: object) -> str:
        """Return the text of a key, with its ``{placeholders}`` replaced by ``values``.

        Args:
            key: ``group.name``, such as ``page.window``.
            values: the value of each placeholder.
        """
        group, _, name = key.partition(".")
        text: str = self.texts[group][name]
        return text.format(**values) if values else text

    def term(self, key: str) -> str:
        """Return the name that the page shows for a number or column; ``key`` is its term."""
        name: str = self.texts["terms"][key][0]
        return name

    def definition(self, key: str) -> str:
        """Return the sentences that define a number or column; ``key`` is its term."""
        text: str = self.texts["terms"][key][1]
        return text

    @cached_property
    def for_scripts(self) -> Mapping[str, Any]:
        """The texts that the page's scripts need: ``language``, ``page`` and ``terms``."""
        return {
            "language": self.language,
            "page": self.texts["page"],
            "terms": self.texts["terms"],
        }
