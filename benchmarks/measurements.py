"""The parts of ``docs/measurements.md`` and of its Chinese page that a benchmark writes."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
LANGUAGES = {"en": "measurements.md", "zh": "measurements.zh-CN.md"}
"""The pages, by language."""
_END = "<!-- end -->\n"


def part_of(language: str, benchmark: str) -> str:
    """Return the part of a page that a benchmark has written.

    Args:
        language: a key of `LANGUAGES`.
        benchmark: what the page's marker names, such as ``benchmarks.stopwatch``.
    """
    text = (DOCS / LANGUAGES[language]).read_text(encoding="utf-8")
    _, marker, rest = text.partition(_marker(benchmark))
    part, end, _ = rest.partition(_END)
    assert marker, f"{LANGUAGES[language]} has no part of {benchmark}"
    assert end, f"the part of {benchmark} in {LANGUAGES[language]} has no end"
    return part.strip("\n") + "\n"


def write_part(language: str, benchmark: str, part: str) -> None:
    """Replace the part of a page that a benchmark has written."""
    path = DOCS / LANGUAGES[language]
    before, marker, rest = path.read_text(encoding="utf-8").partition(_marker(benchmark))
    _, end, after = rest.partition(_END)
    path.write_text(f"{before}{marker}\n{part}\n{end}{after}", encoding="utf-8")


def _marker(benchmark: str) -> str:
    return f"<!-- written by python -m {benchmark} -->\n"
