"""YAML files to one tree of plain values, with the line that set each of them.

The dialect is FleetX's: PyYAML's reading of scalars (YAML 1.1: ``yes`` is True, ``010`` is 8, the
last of two equal keys wins), ``_base_`` for inheritance, ``_inherited_: False`` to replace instead
of merge, and strings that are Python literals (``1e-5``, ``None``, ``True,``) read as such. Nothing
is ever evaluated as code, and no YAML tag makes an object.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from ppprof.errors import ConfigError, Problem

Key = tuple[str, ...]
"""A path into the tree: ``("Profiler", "scheduler")``."""

_DOLLAR = "\ue000"  # a private-use stand-in: OmegaConf would read "${x}" as an interpolation


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


def read_source(path: str | Path) -> Source:
    """The tree of a config file and the files it is based on.

    Raises:
        ConfigError: a file is missing, not YAML, or based on itself.
    """
    source = _read_chain(Path(path), ())
    source.values = _literals(source.values)
    return source


def merge(base: dict[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """``child`` over ``base``: dicts deeply, base's keys first; lists, scalars and nulls replace."""
    merged = OmegaConf.merge(OmegaConf.create(hide(base)), OmegaConf.create(hide(child)))
    shown = show(OmegaConf.to_container(merged, resolve=False))
    assert isinstance(shown, dict)
    return shown


def hide(value: Any) -> Any:
    """The value with its dollars out of OmegaConf's sight; `show` brings them back."""
    return _in_strings(value, "$", _DOLLAR)


def show(value: Any) -> Any:
    """Inverse of `hide`."""
    return _in_strings(value, _DOLLAR, "$")


def literal(text: str) -> Any:
    """What ``text`` means as a Python literal; the text itself where it is none.

    >>> literal("1e-5"), literal("True,"), literal("gpu")
    (1e-05, (True,), 'gpu')
    """
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return value if _is_plain(value) else text


def scalar(text: str) -> Any:
    """What ``text`` means as YAML; the text itself where it is none, or more than one document."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        value = loader.construct_document(node) if node else None
    except (yaml.YAMLError, ValueError):
        return text
    return value if _is_plain(value) else text


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
    source = _read_file(path, asked_at)
    base_name = source.values.pop("_base_", None)
    if base_name is None:
        return _without_switches(source)
    at = source.where(("_base_",))
    if not isinstance(base_name, str):
        raise ConfigError([Problem(at, "_base_", f"{base_name!r}: expected one path")])
    base = _read_chain(path.parent / base_name, (*chain, resolved), at)
    for key in _replaced(source.values):
        _drop(base, key)
    source = _without_switches(source)
    return Source(merge(base.values, source.values), {**base.marks, **source.marks}, str(path))


def _read_file(path: Path, asked_at: str) -> Source:
    where = asked_at or str(path)
    key = "_base_" if asked_at else ""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        message = f"{path}: {error.strerror or error}"
        raise ConfigError(
            [Problem(where, key, message if asked_at else str(error.strerror))]
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(where, key, f"{path}: not UTF-8: {error.reason}")]) from None
    source = Source({}, {}, str(path))
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            source.values = _plain(loader, node, (), source, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        message = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError([Problem(where, "", f"not YAML: {message}")]) from None
    except yaml.YAMLError as error:
        raise ConfigError([Problem(str(path), "", f"not YAML: {error}")]) from None
    if not isinstance(source.values, dict):
        message = f"{source.values!r}: expected blocks such as Global and Model"
        raise ConfigError([Problem(f"{path}:1", "", message)])
    return source


def _plain(
    loader: _Loader, node: yaml.Node, key: Key, source: Source, above: tuple[yaml.Node, ...]
) -> Any:
    """The plain value of a node; notes where each key stands."""
    if node in above:
        raise yaml.constructor.ConstructorError(
            None, None, "an alias inside its own anchor", node.start_mark
        )
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(loader, item, (*key, str(at)), source, (*above, node))
            for at, item in enumerate(node.value)
        ]
    if not isinstance(node, yaml.MappingNode):
        value = loader.construct_object(node)
        if not _is_plain(value):
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.tag}: expected plain values", node.start_mark
            )
        return value
    loader.flatten_mapping(node)
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        name = str(loader.construct_object(key_node))
        inner = (*key, name)
        source.marks = {at: mark for at, mark in source.marks.items() if at[: len(inner)] != inner}
        source.marks[inner] = f"{source.path}:{key_node.start_mark.line + 1}"
        values.pop(name, None)
        values[name] = _plain(loader, value_node, inner, source, (*above, node))
    return values


def _replaced(values: Mapping[str, Any], key: Key = ()) -> Iterator[Key]:
    """Keys of the sections that say ``_inherited_: False``."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            if value.get("_inherited_", True) is False:
                yield (*key, name)
            yield from _replaced(value, (*key, name))


def _without_switches(source: Source) -> Source:
    def cleaned(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: cleaned(item) for name, item in value.items() if name != "_inherited_"}

    return Source(cleaned(source.values), source.marks, source.path)


def _drop(source: Source, key: Key) -> None:
    """Takes a section out of the tree, if it is there."""
    section: Any = source.values
    for name in key[:-1]:
        section = section.get(name) if isinstance(section, dict) else None
    if isinstance(section, dict):
        section.pop(key[-1], None)
    source.marks = {at: mark for at, mark in source.marks.items() if at[: len(key)] != key}


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
    return value is None or isinstance(value, (bool, int, float, str))


def _in_strings(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, Mapping):
        return {name: _in_strings(item, old, new) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_strings(item, old, new) for item in value]
    return value
