"""YAML files to one tree of plain values, with the line that set each of them.

The dialect is FleetX's: PyYAML's reading of scalars (YAML 1.1: ``yes`` is True, ``010`` is 8, the
last of two equal keys wins), ``_base_`` for inheritance, ``_inherited_: False`` to replace instead
of merge, and strings that are Python literals (``1e-5``, ``None``, ``True,``) read as such. Nothing
is ever evaluated as code, and no YAML tag makes an object.
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
"""A path into the tree: ``("Profiler", "scheduler")``."""

# Private-use stand-ins: OmegaConf would read "${x}" as an interpolation and "???" as missing.
_HIDE = str.maketrans("$?", "\ue000\ue001")
_SHOW = str.maketrans("\ue000\ue001", "$?")

_MOST_BYTES = 1 << 20
"""Of a file; FleetX's largest config has 5 KB."""
_MOST_FILES = 100
"""Based on one another."""
_SWITCH = "_inherited_"
_PLAIN_TAGS = ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")
_NOT_PLAIN = object()


@dataclass
class Source:
    """The tree that some files and overrides make, and where its values come from."""

    values: dict[str, Any]
    """Nested dicts, lists and scalars; every key is text."""
    marks: dict[Key, str] = field(default_factory=dict)
    """Key -> ``file:line`` (or ``-o``) that set it."""
    path: str = ""
    """The file that was asked for."""

    def where(self, key: Key) -> str:
        """Where ``key`` was set, or the nearest block around it; the file where nothing was."""
        while key and key not in self.marks:
            key = key[:-1]
        return self.marks.get(key, self.path)

    def set_mark(self, key: Key, mark: str) -> None:
        """Notes that ``mark`` set ``key``, all of it, and made the blocks that it needed."""
        self.marks = {at: was for at, was in self.marks.items() if at[: len(key)] != key}
        self.marks[key] = mark
        for depth in range(1, len(key)):
            self.marks.setdefault(key[:depth], mark)


def read_source(path: str | Path) -> Source:
    """The tree of a config file and the files it is based on.

    Raises:
        ConfigError: a file is missing, not YAML, or based on itself.
    """
    source = _read_chain(Path(path), ())
    source.values = _literals(source.values)
    return source


def merge(base: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """``child`` over ``base``: dicts deeply, base's keys first; lists, scalars and nulls replace.

    >>> merge({"a": {"x": 1, "y": 2}, "b": [1, 2]}, {"b": [3], "a": {"y": 4}, "c": None})
    {'a': {'x': 1, 'y': 4}, 'b': [3], 'c': None}
    >>> merge({"a": {"x": 1}}, {"a": {"_inherited_": False, "y": 2}})
    {'a': {'y': 2}}
    """
    from omegaconf import OmegaConf  # 45 ms, which a config of plain values does not need

    under = OmegaConf.create(hide(_inherited(base, child)))
    merged = OmegaConf.merge(under, OmegaConf.create(hide(_without_switches(child))))
    shown = show(OmegaConf.to_container(merged, resolve=False))
    assert isinstance(shown, dict)
    return shown


def hide(value: Any) -> Any:
    """The value with what OmegaConf would interpret out of its sight; `show` brings it back."""
    return _translated(value, _HIDE)


def show(value: Any) -> Any:
    """Inverse of `hide`."""
    return _translated(value, _SHOW)


def literal(text: str) -> Any:
    """What ``text`` means as a Python literal; the text itself where it is none.

    >>> literal("1e-5"), literal("True,"), literal("gpu")
    (1e-05, (True,), 'gpu')
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\\d" is text to us, not doubtful source code
            value = ast.literal_eval(text.lstrip(" \t"))  # Python 3.9 does not strip it
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return value if _is_plain(value) else text


def scalar(text: str) -> Any:
    """What ``text`` means as a YAML scalar, list or mapping; the text itself where it is none."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return text
        if isinstance(node, yaml.ScalarNode):
            whole = node.value == text  # no comment, quotes, tag or document mark
        else:
            whole = text[0] in "[{" and node.end_mark.index == len(text)
        check_size(node)
        return _plain(loader, node, (), Source({}), ()) if whole else text
    except (yaml.YAMLError, RecursionError):
        return text


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without dates: a date in a config is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read_chain(path: Path, chain: tuple[Path, ...], asked_at: str = "") -> Source:
    resolved = path.resolve()
    if resolved in chain:
        names = " -> ".join(str(link) for link in (*chain, resolved))
        raise ConfigError([Problem(asked_at, "_base_", f"files are based on each other: {names}")])
    if len(chain) >= _MOST_FILES:
        message = f"more than {_MOST_FILES} files are based on one another"
        raise ConfigError([Problem(asked_at, "_base_", message)])
    source = _read_file(path, asked_at)
    base_name = source.values.pop("_base_", None)
    if base_name is None:
        return Source(_without_switches(source.values), source.marks, source.path)
    at = source.where(("_base_",))
    if not isinstance(base_name, str):
        raise ConfigError([Problem(at, "_base_", f"{base_name!r}: expected one path")])
    base = _read_chain(path.parent / base_name, (*chain, resolved), at)
    values = merge(base.values, source.values)
    marks = {key: mark for key, mark in base.marks.items() if _holds(values, key)}
    return Source(values, {**marks, **source.marks}, str(path))


def _read_file(path: Path, asked_at: str) -> Source:
    try:
        text = read_bounded(path, _MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        key = "_base_" if asked_at else ""
        message = f"{path}: {reason}" if asked_at else str(reason)
        raise ConfigError([Problem(asked_at or str(path), key, message)]) from None
    source = Source({}, {}, str(path))
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            check_size(node)
            source.values = _plain(loader, node, (), source, ())
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
    if not isinstance(source.values, dict):
        message = f"{source.values!r}: expected blocks such as Global and Model"
        raise ConfigError([Problem(f"{path}:1", "", message)])
    return source


def _plain(
    loader: _Loader, node: yaml.Node, key: Key, source: Source, above: tuple[yaml.Node, ...]
) -> Any:
    """The plain value of a node; notes where each key stands."""
    if node in above:
        raise _unusable(node, "an alias inside its own anchor")
    if isinstance(node, yaml.ScalarNode):
        try:
            value = loader.construct_object(node)
        except (ValueError, KeyError):  # "!!int x", "!!bool x"
            value = _NOT_PLAIN
        if not _is_plain(value):
            raise _unusable(node, f"{node.value[:40]!r}: not a plain value")
        return value
    if node.tag not in _PLAIN_TAGS:
        raise _unusable(node, f"tag {node.tag}: expected plain values")
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(loader, item, (*key, str(at)), source, (*above, node))
            for at, item in enumerate(node.value)
        ]
    assert isinstance(node, yaml.MappingNode)
    loader.flatten_mapping(node)
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise _unusable(key_node, "a list or mapping as a key")
        name = str(_plain(loader, key_node, key, source, ()))
        source.set_mark((*key, name), f"{source.path}:{key_node.start_mark.line + 1}")
        values[name] = _plain(loader, value_node, (*key, name), source, (*above, node))
    return values


def _unusable(node: yaml.Node, message: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, message, node.start_mark)


def _inherited(base: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with nulls, in their places, where ``child`` replaces what there is."""
    if child.get(_SWITCH, True) is False:
        return {}
    return {
        name: value
        if name not in child
        else _inherited(value, child[name])
        if isinstance(value, Mapping) and isinstance(child[name], Mapping)
        else None
        for name, value in base.items()
    }


def _without_switches(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: _without_switches(item) for name, item in value.items() if name != _SWITCH}


def _holds(values: Any, key: Key) -> bool:
    """Whether the tree has a value at ``key``."""
    for name in key:
        if isinstance(values, list) and name.isdigit() and int(name) < len(values):
            values = values[int(name)]
        elif isinstance(values, Mapping) and name in values:
            values = values[name]
        else:
            return False
    return True


def _literals(value: Any) -> Any:
    """Strings in dicts as the literals they are; lists stay as they are."""
    if isinstance(value, dict):
        return {name: _literals(item) for name, item in value.items()}
    return literal(value) if isinstance(value, str) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(item) for name, item in value.items())
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64  # what JSON readers take
    return value is None or isinstance(value, (float, str))


def _translated(value: Any, table: Mapping[int, int]) -> Any:
    if isinstance(value, str):
        return value.translate(table)
    if isinstance(value, Mapping):
        return {name: _translated(item, table) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_translated(item, table) for item in value]
    return value
