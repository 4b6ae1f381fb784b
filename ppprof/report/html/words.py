"""What a page says, in one language, and how it writes numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_MB = 1 << 20
_GB = 1 << 30


@dataclass(frozen=True)
class Words:
    """The texts of ``en.yaml`` or ``zh.yaml``."""

    language: str
    texts: Mapping[str, Mapping[str, Any]]

    def __call__(self, key: str, **values: object) -> str:
        """The text of ``section.key``, its ``{placeholders}`` filled in."""
        group, _, name = key.partition(".")
        text: str = self.texts[group][name]
        return text.format(**values) if values else text

    def term(self, key: str) -> str:
        """What a number is called."""
        name: str = self.texts["terms"][key][0]
        return name

    def definition(self, key: str) -> str:
        """What a number means."""
        text: str = self.texts["terms"][key][1]
        return text

    @cached_property
    def for_scripts(self) -> Mapping[str, Any]:
        """What the page's scripts need of them."""
        return {
            "language": self.language,
            "page": self.texts["page"],
            "terms": self.texts["terms"],
        }


def milliseconds(time_ns: float | None) -> str:
    """``12.346``, of nanoseconds; ``-`` where it is not known."""
    return "-" if time_ns is None else f"{time_ns / 1e6:,.3f}"


def duration(time_ns: float | None) -> str:
    """With its unit, ``12.3 ms``.

    >>> duration(1_234_567), duration(980.0), duration(2.5e9), duration(None)
    ('1.23 ms', '0.98 us', '2.5 s', '-')
    """
    if time_ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(time_ns) >= size or unit == "us":
            return (
                f"{time_ns / size:.3g} {unit}"
                if abs(time_ns) < 1e3 * size
                else f"{time_ns / size:,.0f} {unit}"
            )
    raise AssertionError


def size(num_bytes: float | None) -> str:
    """Bytes as MB, or as GB from 1024 of them.

    >>> size(3_234_012), size(85_899_345_920), size(None)
    ('3.08 MB', '80.00 GB', '-')
    """
    if num_bytes is None:
        return "-"
    if abs(num_bytes) >= _GB:
        return f"{num_bytes / _GB:,.2f} GB"
    return f"{num_bytes / _MB:,.2f} MB"


def percent(ratio: float | None) -> str:
    """``12.3%``; ``-`` where it is not known."""
    return "-" if ratio is None else f"{ratio:.1%}"


def signed(text: str, value: float | None) -> str:
    """With a plus where it is above 0."""
    return f"+{text}" if value is not None and value > 0 else text


def number(value: float | None) -> str:
    """``1,234`` or ``12.5``; ``-`` where it is not known."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.3g}"
