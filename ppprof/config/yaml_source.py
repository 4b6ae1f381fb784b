"""Read YAML files into one tree of plain values, with the line that set each value.

The dialect is FleetX's:

- Scalars are read as PyYAML reads them (YAML 1.1): ``yes`` is True, ``010`` is 8, and the last of
  two equal keys wins.
- ``_base_`` names a file to inherit from. ``_inherited_: False`` replaces a block of the base
  instead of merging with it.
- Strings that are Python literals (``1e-5``, ``None``, ``True,``) become their values.

Nothing is evaluated as code, and no YAML tag creates an object.

`merge` is a plain recursive function. OmegaConf's merge treats null and ``_inherited_`` differently,
and would interpret ``${x}`` and ``???`` in values. OmegaConf handles ``-o`` (`ppprof.config.overrides`).
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ppprof.errors import ConfigError, Problem
from ppprof.paths import read_bounded
from ppprof.safe_yaml import check_size

Key = tuple[str, ...]
"""A path into the tree: ``("Profiler", "scheduler")``; items of lists by index, as text."""

_MOST_BYTES = 1 << 20
"""Largest file to read. FleetX's largest config has 5 KB."""
_MOST_FILES = 100
"""Most files of a chain in which each file names the next one as ``_base_``."""
MOST_DEPTH = 32
"""Most levels of nested lists and mappings. FleetX's configs have 6, and OmegaConf holds some 70."""
_INHERIT_KEY = "_inherited_"
_PLAIN_TAGS = ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")
_NOT_PLAIN = object()


@dataclass
class ConfigTree:
    """The values that files and overrides set, and where each value was set."""

    values: dict[str, Any]
    """Nested dicts, lists and scalars. Every key is text."""
    marks: dict[Key, str] = field(default_factory=dict)
    """The ``file:line`` or ``-o KEY=VALUE`` that set each key."""
    path: str = ""
    """The file that `read_tree` was called with."""

    def where(self, key: Key) -> str:
        """Return the place that set ``key``, such as ``gpt.yaml:37``.

        If no place set ``key``, return the place of the nearest enclosing block, else the file.
        """
        while key and key not in self.marks:
            key = key[:-1]
        return self.marks.get(key, self.path)

    def set_mark(self, key: Key, mark: str) -> None:
        """Record the place that set ``key``, and delete the marks of all keys inside ``key``.

        Enclosing keys without a mark get the same mark, since this place created them.

        Args:
            key: the key.
            mark: the place, such as ``gpt.yaml:37``.
        """
        self.marks = {old: place for old, place in self.marks.items() if old[: len(key)] != key}
        self.marks[key] = mark
        for depth in range(1, len(key)):
            self.marks.setdefault(key[:depth], mark)


def read_tree(path: str | Path) -> ConfigTree:
    """Read a config file and the files that it inherits from.

    Raises:
        ConfigError: a file is missing, unreadable or too large, is not YAML of plain values with
            a mapping at the top level, has too many values, or inherits from itself.
    """
    tree = _read_chain(Path(path), ())
    tree.values = parse_literals(tree.values)
    return tree


def merge(base: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new mapping: ``base`` with the values of ``child`` merged into it.

    Mappings merge key by key, and keys of ``base`` come first. A list, scalar or null in ``child``
    replaces the value in ``base``. So does a mapping in ``child`` with ``_inherited_: False``.

    >>> merge({"a": {"x": 1, "y": 2}, "b": [1, 2]}, {"b": [3], "a": {"y": 4}, "c": None})
    {'a': {'x': 1, 'y': 4}, 'b': [3], 'c': None}
    >>> merge({"a": {"x": 1}}, {"a": {"_inherited_": False, "y": 2}})
    {'a': {'y': 2}}
    """
    merged = {} if child.get(_INHERIT_KEY, True) is False else dict(base)
    for name, value in child.items():
        if name == _INHERIT_KEY:
            continue
        if isinstance(value, Mapping):
            below = merged.get(name)
            value = merge(below if isinstance(below, Mapping) else {}, value)
        merged[name] = value
    return merged


def literal(text: str) -> Any:
    """Return the value of ``text`` as a Python literal; ``text`` itself if it is no literal.

    Literals with values that YAML cannot hold, such as sets and bytes, stay text, and so do literals
    nested more than `MOST_DEPTH` levels deep.

    >>> literal("1e-5"), literal("True,"), literal("gpu")
    (1e-05, (True,), 'gpu')
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of "\\d", which is fine in plain text
            value = ast.literal_eval(text.lstrip(" \t"))  # Python 3.9 does not strip it
        return value if _is_plain(value) else text
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def yaml_value(text: str) -> Any:
    """Return the value of ``text`` as a YAML scalar, list or mapping; ``text`` itself if invalid.

    ``text`` also stays text if YAML would drop a part of it (a comment, quotes, a tag, a document
    mark), if the value has too many parts, or if it is not plain (`_plain_value`).

    >>> yaml_value("{dp: 0}"), yaml_value("a # b")
    ({'dp': 0}, 'a # b')
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return text
        if isinstance(node, yaml.ScalarNode):
            uses_all_text = node.value == text
        else:
            uses_all_text = text[0] in "[{" and node.end_mark.index == len(text)
        check_size(node)
        return _plain_value(loader, node, (), ConfigTree({}), ()) if uses_all_text else text
    except (yaml.YAMLError, RecursionError):
        return text


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without dates: a date in a config stays text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read_chain(path: Path, chain: tuple[Path, ...], base_mark: str = "") -> ConfigTree:
    """Return the tree of ``path`` and of the files that it inherits from."""
    if "\0" in str(path):
        message = f"{str(path)!r}: no file name has a zero character"
        raise ConfigError([Problem(base_mark or "config", "_base_" if base_mark else "", message)])
    resolved = path.resolve()
    if resolved in chain:
        names = " -> ".join(str(link) for link in (*chain, resolved))
        message = f"files inherit from each other: {names}"
        raise ConfigError([Problem(base_mark, "_base_", message)])
    if len(chain) >= _MOST_FILES:
        message = f"more than {_MOST_FILES} files inherit from one another"
        raise ConfigError([Problem(base_mark, "_base_", message)])
    tree = _read_file(path, base_mark)
    base_name = tree.values.pop("_base_", None)
    if base_name is None:
        return ConfigTree(merge({}, tree.values), tree.marks, tree.path)
    mark = tree.where(("_base_",))
    if not isinstance(base_name, str):
        raise ConfigError([Problem(mark, "_base_", f"{base_name!r}: expected one path")])
    base = _read_chain(path.parent / base_name, (*chain, resolved), mark)
    values = merge(base.values, tree.values)
    base_marks = {key: place for key, place in base.marks.items() if _has_key(values, key)}
    return ConfigTree(values, {**base_marks, **tree.marks}, str(path))


def _read_file(path: Path, base_mark: str) -> ConfigTree:
    try:
        text = read_bounded(path, _MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        key = "_base_" if base_mark else ""
        message = f"{path}: {reason}" if base_mark else str(reason)
        raise ConfigError([Problem(base_mark or str(path), key, message)]) from None
    tree = ConfigTree({}, {}, str(path))
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            check_size(node)
            tree.values = _plain_value(loader, node, (), tree, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        message = " ".join(part for part in (error.context, error.problem) if part)
        is_yaml = isinstance(error, yaml.constructor.ConstructorError)
        raise ConfigError(
            [Problem(where, "", message if is_yaml else f"not YAML: {message}")]
        ) from None
    except yaml.YAMLError as error:
        message = " ".join(str(error).split())
        raise ConfigError([Problem(str(path), "", f"not YAML: {message}")]) from None
    except RecursionError:
        raise ConfigError([Problem(str(path), "", "nested too deeply")]) from None
    if not isinstance(tree.values, dict):
        # The text itself is not shown: `_base_` may name any file of the machine.
        kind = "a list" if isinstance(tree.values, list) else "a single value"
        message = f"{kind}: expected blocks such as Global and Model"
        raise ConfigError([Problem(f"{path}:1", "", message)])
    return tree


def _plain_value(
    loader: _Loader, node: yaml.Node, key: Key, tree: ConfigTree, parents: tuple[yaml.Node, ...]
) -> Any:
    """Return the plain value of a node, and record the line of each key in ``tree``.

    Plain values are text, floats, 64-bit integers, True, False, None, and lists and mappings of
    plain values. Dates stay text. Keys are scalars and become text.
    """
    if node in parents:
        raise _node_error(node, "an alias inside its own anchor")
    if len(parents) > MOST_DEPTH:
        raise _node_error(node, f"nested too deeply: expected at most {MOST_DEPTH} levels")
    if isinstance(node, yaml.ScalarNode):
        try:
            value = loader.construct_object(node)
        except (ValueError, KeyError):  # "!!int x", "!!bool x"
            value = _NOT_PLAIN
        if not _is_plain(value):
            raise _node_error(node, f"{node.value[:40]!r}: not a plain value")
        return value
    if node.tag not in _PLAIN_TAGS:
        raise _node_error(node, f"tag {node.tag}: expected plain values")
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain_value(loader, item, (*key, str(index)), tree, (*parents, node))
            for index, item in enumerate(node.value)
        ]
    assert isinstance(node, yaml.MappingNode)
    loader.flatten_mapping(node)
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise _node_error(key_node, "a list or mapping as a key")
        name = str(_plain_value(loader, key_node, key, tree, ()))
        tree.set_mark((*key, name), f"{tree.path}:{key_node.start_mark.line + 1}")
        values[name] = _plain_value(loader, value_node, (*key, name), tree, (*parents, node))
    return values


def _node_error(node: yaml.Node, message: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, message, node.start_mark)


def _has_key(values: Any, key: Key) -> bool:
    """Whether the tree ``values`` has a value, possibly null, at ``key``."""
    for name in key:
        if isinstance(values, list) and name.isdigit() and int(name) < len(values):
            values = values[int(name)]
        elif isinstance(values, Mapping) and name in values:
            values = values[name]
        else:
            return False
    return True


def parse_literals(value: Any) -> Any:
    """Return ``value`` with strings such as ``"1e-5"`` replaced by their values (see `literal`).

    Strings are replaced at any depth of nested mappings. Lists stay unchanged.
    """
    if isinstance(value, dict):
        return {name: parse_literals(item) for name, item in value.items()}
    return literal(value) if isinstance(value, str) else value


def _is_plain(value: Any, depth: int = 0) -> bool:
    if depth > MOST_DEPTH:
        return False
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return all(
            isinstance(name, str) and _is_plain(item, depth + 1) for name, item in value.items()
        )
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64  # what JSON readers take
    return value is None or isinstance(value, (float, str))
