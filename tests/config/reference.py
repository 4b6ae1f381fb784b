"""The tables of docs/config.md, from the dataclasses and the docstrings under their fields.

``python -m tests.config.reference`` writes them into the file, below its marker.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ppprof.config import ProfilerConfig, WindowSchedule
from ppprof.config.training import BLOCKS
from ppprof.config.validation import expected

PAGE = Path(__file__).parents[2] / "docs" / "config.md"
MARKER = "<!-- written by python -m tests.config.reference -->\n"


def tables() -> str:
    """A section a block, a row a key."""
    sections = []
    for name, block in {"Profiler": ProfilerConfig, **BLOCKS}.items():
        lines = [f"## {name}\n", f"{inspect.getdoc(block)}\n", *_table(_rows(block, ""))]
        unused = [f"`{prefix}{key}`" for prefix, key in _unused(block, "")]
        if unused:
            lines.append(f"\nKnown from FleetX, without effect here: {', '.join(unused)}.")
        if block is ProfilerConfig:
            lines.append("\n`scheduler` as a mapping:\n")
            lines += _table(_rows(WindowSchedule, "scheduler."))
        sections.append("\n".join(lines))
    return "\n\n".join(sections) + "\n"


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
            default = "none, it must be said"
        yield f"| `{prefix}{item.name}` | {default} | {kind} | {docs[item.name]} |"


def _unused(block: type[Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key in getattr(block, "UNUSED", ()):
        yield prefix, key
    for name, hint in get_type_hints(block).items():
        inner = _inner(hint)
        if inner is not None and name != "Eval":
            yield from _unused(inner, f"{prefix}{name}.")


def _inner(hint: Any) -> type[Any] | None:
    """The dataclass in a type hint."""
    choices = (hint, *get_args(hint))
    return next((choice for choice in choices if dataclasses.is_dataclass(choice)), None)


def _plain(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value).replace("'", "")


def _bounds(item: dataclasses.Field[Any]) -> str:
    words = {"minimum": "at least", "above": "more than", "maximum": "at most"}
    bounds = {word: item.metadata.get(name) for name, word in words.items()}
    return "".join(f", {word} {bound}" for word, bound in bounds.items() if bound is not None)


def _docstrings(block: type[Any]) -> dict[str, str]:
    """The string under each field of a dataclass."""
    (tree,) = ast.parse(inspect.getsource(block)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:]):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and is_text:
            found[field.target.id] = " ".join(below.value.value.split()).replace("``", "`")
    return found


if __name__ == "__main__":
    words, _, _ = PAGE.read_text(encoding="utf-8").partition(MARKER)
    PAGE.write_text(f"{words}{MARKER}\n{tables()}", encoding="utf-8")
