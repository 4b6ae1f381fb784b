"""Load untrusted YAML as plain values: no objects, and a limited number of values."""

from __future__ import annotations

from typing import Any

import yaml

MOST_VALUES = 10_000
"""Most values of a document, with aliases expanded. FleetX's largest config has 200 values."""


def check_size(root: yaml.Node) -> None:
    """Reject a document with more than `MOST_VALUES` values, with aliases expanded.

    The aliases are counted without being expanded: ten lines of nested aliases can expand to a
    billion values.

    Raises:
        yaml.MarkedYAMLError: the document has more than `MOST_VALUES` values.
        RecursionError: the document is nested too deeply.
    """
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        key = id(node)
        if key not in sizes:
            sizes[key] = 1  # counts for an alias inside its own anchor
            if isinstance(node, yaml.SequenceNode):
                sizes[key] += sum(map(size, node.value))
            elif isinstance(node, yaml.MappingNode):
                sizes[key] += sum(size(part) for pair in node.value for part in pair)
        return sizes[key]

    if size(root) > MOST_VALUES:
        message = f"more than {MOST_VALUES} values with aliases expanded"
        raise yaml.constructor.ConstructorError(None, None, message, root.start_mark)


def safe_load(text: str) -> Any:
    """Load one YAML document as plain values; return None for text without a value.

    Text without a value is empty, or has only comments.

    Raises:
        yaml.YAMLError: the text is not YAML or has several documents, has a tag that creates an
            object, has more than `MOST_VALUES` values with aliases expanded, or is nested too
            deeply.
        ValueError: a value is invalid for its type, such as ``!!int x`` or ``2024-13-45``.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        check_size(node)
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    finally:
        loader.dispose()
