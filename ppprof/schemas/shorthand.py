"""Write a JSON Schema with one line for each property: its name, type and meaning.

>>> rows({"step": "integer: Number of the step.", "host?": "string | null"}, "Steps of a run.")
... # doctest: +NORMALIZE_WHITESPACE
{'type': 'array',
 'items': {'type': 'object',
           'properties': {'step': {'type': 'integer', 'description': 'Number of the step.'},
                          'host': {'type': ['string', 'null']}},
           'required': ['step']},
 'description': 'Steps of a run.'}

A property may be missing if its name ends in ``?``. Types are those of JSON Schema, ``array[TYPE]``,
``object[TYPE]`` (any names with values of the type), ``$NAME`` for a definition, and several of these
with ``|`` between them. Instead of a text, a property may have a JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]
Properties = Mapping[str, Any]
"""The type and meaning of each property as text, or its JSON Schema, keyed by name."""


def document(
    command: str, version: int, meaning: str, schema: str | Schema, **definitions: Schema
) -> Schema:
    """Return the JSON Schema of a command's document.

    Args:
        command: the command.
        version: the document's ``schema_version``.
        meaning: what the document contains.
        schema: the type of the document, or its schema.
        definitions: the schema for each ``$NAME``.
    """
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:ppprof:{command}:{version}",
        "title": f"ppprof {command} --format json",
        "description": meaning,
    }
    return {**head, **_schema(schema), **({"$defs": definitions} if definitions else {})}


def schema_version(number: int) -> Schema:
    """Return the schema of a document's ``schema_version``."""
    rule = "It increases when older readers would misread it; new keys do not increase it."
    return {"const": number, "description": f"Version of the document. {rule}"}


def fields(properties: Properties, meaning: str = "", **more: Any) -> Schema:
    """Return the schema of an object; ``more`` are further keywords of JSON Schema."""
    schema = {
        "type": "object",
        "properties": {name.rstrip("?"): _schema(text) for name, text in properties.items()},
        "required": [name for name in properties if not name.endswith("?")],
        **more,
    }
    return _described(schema, meaning)


def rows(columns: Properties, meaning: str = "") -> Schema:
    """Return the schema of a list of objects."""
    return _described({"type": "array", "items": fields(columns)}, meaning)


def tables(
    row_of_each: Mapping[str, Schema],
    meaning: str = "Rows of each table; units end a column's name.",
) -> Schema:
    """Return the schema of the tables of a document, from the schema of a row of each."""
    lists = {name: {"type": "array", "items": row} for name, row in row_of_each.items()}
    return fields(lists, meaning)


def _schema(text: str | Schema) -> Schema:
    if not isinstance(text, str):
        return text
    kind, _, meaning = text.partition(": ")
    return _described(_type(kind), meaning)


def _described(schema: Schema, meaning: str) -> Schema:
    return {**schema, "description": meaning} if meaning else schema


def _type(text: str) -> Schema:
    """Return the schema of a type.

    >>> _type("array[$step | null]")
    {'type': 'array', 'items': {'anyOf': [{'$ref': '#/$defs/step'}, {'type': 'null'}]}}
    >>> _type("object[integer | null]")
    {'type': 'object', 'additionalProperties': {'type': ['integer', 'null']}}
    """
    inner = re.fullmatch(r"(array|object)\[(.+)\]", text)
    if inner:
        key = "items" if inner[1] == "array" else "additionalProperties"
        return {"type": inner[1], key: _type(inner[2])}
    choices = text.split(" | ")
    if len(choices) == 1:
        return {"$ref": f"#/$defs/{text[1:]}"} if text.startswith("$") else {"type": text}
    if "$" in text:
        return {"anyOf": list(map(_type, choices))}
    return {"type": choices}
