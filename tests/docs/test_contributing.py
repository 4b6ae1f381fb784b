"""CONTRIBUTING.md: its commands exist, its tiers are those of the Makefile, its glossary is short."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
MOST_TERMS = 25


def section(heading: str) -> str:
    _, _, text = PAGE.partition(f"\n## {heading}\n")
    return text.partition("\n## ")[0]


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"\bmake ([a-z][\w-]*)", PAGE))
    assert {"check", "test", "test-jobs", "test-all", "docs", "release"} <= targets
    assert targets <= set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.M))


def test_the_tiers_are_those_of_the_makefile() -> None:
    tiers = re.findall(r"^\| `make ([\w-]+)` \|", PAGE, re.M)
    assert tiers == re.findall(r"^(test(?:-jobs|-all)?): install", MAKEFILE, re.M)


def test_the_glossary_is_short_and_the_map_is_linked() -> None:
    terms = re.findall(r"^\| ([^|]+) \|", section("Glossary"), re.M)[2:]
    assert 10 < len(terms) <= MOST_TERMS
    assert len(set(terms)) == len(terms)
    assert "(docs/architecture.md)" in section("The map")
