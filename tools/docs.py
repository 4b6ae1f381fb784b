"""Write the generated tables of the docs pages.

    python tools/docs.py

``docs/config.md`` gets a table of keys for each block, from the dataclasses and the docstrings
under their fields. ``docs/advice.md`` gets the table of rules, from the English catalogue.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ppprof.analysis.advice import RULES
from ppprof.config import ProfilerConfig, WindowSchedule
from ppprof.config.training import BLOCKS
from ppprof.config.validation import expected
from ppprof.report.text.advice import read_catalogue
from ppprof.units import format_value

DOCS = Path(__file__).parents[1] / "docs"
CONFIG_MARKER = "<!-- written by python tools/docs.py -->\n"
_RULES_HEADER = "| rule | says | evidence and threshold | proposes |\n"


def config_tables() -> str:
    """Return a section for each block, with a row for each key."""
    sections = []
    blocks: dict[str, type[Any]] = {"Profiler": ProfilerConfig, **BLOCKS}
    for name, block in blocks.items():
        lines = [f"## {name}\n", f"{inspect.getdoc(block)}\n", *_table(_rows(block, ""))]
        unused = [f"`{prefix}{key}`" for prefix, key in _unused(block, "")]
        if unused:
            lines.append(f"\nKnown from FleetX, without effect here: {', '.join(unused)}.")
        if block is ProfilerConfig:
            lines.append("\n`scheduler` as a mapping:\n")
            lines += _table(_rows(WindowSchedule, "scheduler."))
        sections.append("\n".join(lines))
    return "\n\n".join(sections) + "\n"


def rules_table(language: str = "en") -> str:
    """Return the table of all rules: title, definition of the numbers, and proposals.

    Facts differ between runs, so the table shows their names in italics.
    """
    catalogue = read_catalogue(language)["rules"]
    lines = [_RULES_HEADER.strip(), "|---|---|---|---|"]
    for rule in RULES:
        texts = catalogue[rule.name]
        thresholds = {name: format_value(name, value) for name, value in rule.thresholds.items()}
        proposals = "<br>".join(dict.fromkeys(texts["do"].values()))
        proposals = re.sub(r"{(\w+)}", lambda fact: f"_{fact[1].replace('_', ' ')}_", proposals)
        cells = [f"`{rule.name}`", texts["title"], texts["how"].format_map(thresholds), proposals]
        escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
        lines.append(f"| {' | '.join(escaped)} |")
    return "\n".join(lines) + "\n"


def updated_config_page(page: str) -> str:
    """Return ``docs/config.md`` with new tables below its marker."""
    text, _, _ = page.partition(CONFIG_MARKER)
    return f"{text}{CONFIG_MARKER}\n{config_tables()}"


def updated_advice_page(page: str) -> str:
    """Return ``docs/advice.md`` with a new table of rules."""
    before, _, rest = page.partition(_RULES_HEADER)
    _, _, after = rest.partition("\n\n")
    return f"{before}{rules_table()}\n{after}"


UPDATES = {"config.md": updated_config_page, "advice.md": updated_advice_page}
"""The pages with generated tables, and the function that updates each."""


def _table(rows: Iterator[str]) -> list[str]:
    return ["| key | default | expected | meaning |", "|---|---|---|---|", *rows]


def _rows(block: type[Any], prefix: str) -> Iterator[str]:
    hints, docs = get_type_hints(block), _docstrings(block)
    for item in dataclasses.fields(block):
        inner = _inner(hints[item.name])
        if item.name == "Eval":
            yield "| `Eval...` | | the same keys as `Train` | " + docs["Eval"] + " |"
            continue
        if inner is not None and inner is not WindowSchedule:
            yield from _rows(inner, f"{prefix}{item.name}.")
            continue
        hint = hints[item.name]
        kind = "ranks" if hint is Any else f"{expected(hint)}{_bounds(item)}"
        default = "blank" if item.default is None else f"`{_plain(item.default)}`"
        if block is WindowSchedule and item.name == "record":
            default = "required"
        yield f"| `{prefix}{item.name}` | {default} | {kind} | {docs[item.name]} |"


def _unused(block: type[Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key in getattr(block, "UNUSED", ()):
        yield prefix, key
    for name, hint in get_type_hints(block).items():
        inner = _inner(hint)
        if inner is not None and name != "Eval":
            yield from _unused(inner, f"{prefix}{name}.")


def _inner(hint: Any) -> type[Any] | None:
    """Return the dataclass in a type hint, if any."""
    for choice in (hint, *get_args(hint)):
        if isinstance(choice, type) and dataclasses.is_dataclass(choice):
            return choice
    return None


def _plain(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value).replace("'", "")


def _bounds(item: dataclasses.Field[Any]) -> str:
    words = {"minimum": "at least", "above": "more than", "maximum": "at most"}
    bounds = {word: item.metadata.get(name) for name, word in words.items()}
    return "".join(f", {word} {bound}" for word, bound in bounds.items() if bound is not None)


def _docstrings(block: type[Any]) -> dict[str, str]:
    """Return the string under each field of a dataclass."""
    (tree,) = ast.parse(inspect.getsource(block)).body
    assert isinstance(tree, ast.ClassDef)
    docstrings = {}
    for field, below in zip(tree.body, tree.body[1:]):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                docstring = " ".join(text.value.split())
                docstrings[field.target.id] = docstring.replace("``", "`")
    return docstrings


def main() -> None:
    """Update all pages."""
    for name, update in UPDATES.items():
        path = DOCS / name
        path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
