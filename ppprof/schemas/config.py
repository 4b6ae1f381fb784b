"""The schema of ``ppprof config``, from the dataclasses and the docstrings under their fields."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec

from ppprof.config import ProfilerConfig
from ppprof.config.training import BLOCKS
from ppprof.schemas.shorthand import Schema, document, fields


def docstrings(block: type[Any]) -> dict[str, str]:
    """Return the docstring of a dataclass under the key "", and that below each field.

    Each is one line, with code between single backticks. They are read from the source: Python keeps
    no docstrings of fields.
    """
    tree = _class_definitions(block.__module__)[block.__name__]
    texts = {"": ast.get_docstring(tree) or ""}
    for field, below in zip(tree.body, tree.body[1:]):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                texts[field.target.id] = text.value
    return {name: " ".join(text.split()).replace("``", "`") for name, text in texts.items()}


@cache  # inspect.getsource of a class parses its whole module, each time
def _class_definitions(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _schema() -> Schema:
    blocks = {**BLOCKS, "Profiler": ProfilerConfig}
    references, definitions = msgspec.json.schema_components(
        blocks.values(), ref_template="#/$defs/{name}"
    )
    classes = {each.__name__: each for block in blocks.values() for each in _with_inner(block)}
    for name, definition in definitions.items():
        _describe(definition, docstrings(classes[name]))
    return document(
        "config",
        1,
        "The config that a training gets: its blocks, and further blocks of the file as they are. Keys of the known blocks are described in docs/config.md.",
        fields(dict(zip(blocks, references))),
        **definitions,
    )


def _with_inner(block: type[Any]) -> Iterator[type[Any]]:
    """Yield a dataclass, and those in the types of its fields."""
    yield block
    for hint in get_type_hints(block).values():
        for choice in (hint, *get_args(hint)):
            if isinstance(choice, type) and is_dataclass(choice):
                yield from _with_inner(choice)


def _describe(definition: Schema, texts: dict[str, str]) -> None:
    """Add the docstrings to a definition, and require every key: the printed config has them all."""
    del definition["title"]
    definition.update(description=texts[""], required=[*definition["properties"]])
    for name, described in definition["properties"].items():
        described.pop("default", None)
        described["description"] = texts[name]


SCHEMA = _schema()
