"""YAML of somebody else's, as plain values: no objects, and no more values than were meant."""

from __future__ import annotations

from typing import Any

import yaml

MOST_VALUES = 10_000
"""In a text, each alias counted as all that it stands for; FleetX's largest config has 200."""


def check_size(root: yaml.Node) -> None:
    """Counts values as they will be once each alias is what it stands for, before any is.

    Ten lines of aliases to one another can stand for a billion values.

    Raises:
        yaml.MarkedYAMLError: there are too many.
    """
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        at = id(node)
        if at not in sizes:
            sizes[at] = 1  # what an alias inside its own anchor finds
            if isinstance(node, yaml.SequenceNode):
                sizes[at] += sum(map(size, node.value))
            elif isinstance(node, yaml.MappingNode):
                sizes[at] += sum(size(part) for pair in node.value for part in pair)
        return sizes[at]

    if size(root) > MOST_VALUES:
        message = f"more than {MOST_VALUES} values, aliases written out"
        raise yaml.constructor.ConstructorError(None, None, message, root.start_mark)


def safe_load(text: str) -> Any:
    """What a text means; None for an empty one.

    Raises:
        yaml.YAMLError: not YAML, tags that make objects, too many values or nested too deeply.
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
