"""The texts of the page in one language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ppprof.units import format_ranges


@dataclass(frozen=True)
class Words:
    """The texts of ``en.yaml`` or ``zh.yaml``; an unknown key raises KeyError."""

    language: str
    """``en`` or ``zh``."""
    texts: Mapping[str, Mapping[str, Any]]
    """The texts, keyed by group, then name. A term (group ``terms``) is a pair: the name and the
    definition of a number or column of the page."""
    used: set[str] = field(default_factory=set, compare=False)
    """The terms that the page has shown so far: those that `term` was called with."""

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
        self.used.add(key)
        return name

    def steps(self, numbers: Iterable[int]) -> str:
        """Return step numbers as text: ``steps 3-5``."""
        return self._ranges("step", numbers)

    def ranks(self, numbers: Iterable[int]) -> str:
        """Return ranks as text: ``ranks 0-7``."""
        return self._ranges("rank", numbers)

    def _ranges(self, what: str, numbers: Iterable[int]) -> str:
        text = format_ranges(what, numbers)
        if self.language == "en":
            return text
        return self(f"page.{what}s", numbers=text.partition(" ")[2])

    def definition(self, key: str) -> str:
        """Return the sentences that define a number or column; ``key`` is its term."""
        text: str = self.texts["terms"][key][1]
        return text

    @cached_property
    def for_scripts(self) -> Mapping[str, Any]:
        """The texts that the page's scripts need: ``language``, ``page``, ``metrics`` and ``terms``."""
        return {
            "language": self.language,
            "page": self.texts["page"],
            "metrics": self.texts["metrics"],
            "terms": self.texts["terms"],
        }
