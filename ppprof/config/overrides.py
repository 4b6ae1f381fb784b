"""``-o A.b.c=value``: one value of the tree, set from the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ppprof.config.validation import not_a_bool
from ppprof.config.yaml_source import Key, Source, hide, literal, scalar, show
from ppprof.errors import Problem

_PATH = re.compile(r"[^.\[\]=\s]+(\.[^.\[\]=\s]+|\[\d+\])*")
_PADDED = re.compile(r"[-+]?0[\d_]+")  # 07: YAML 1.1 would read an octal number
_COLONS = re.compile(r"[-+]?\d[\d_]*(:\d+)+(\.\d*)?")  # 10:30: and here 630


def apply_overrides(source: Source, overrides: Iterable[str]) -> list[Problem]:
    """Sets each override in ``source``; returns what is wrong with those that cannot be."""
    problems = []
    tree = OmegaConf.create(hide(source.values))
    assert isinstance(tree, DictConfig)
    for text in overrides:
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals or not _PATH.fullmatch(path):
            message = f'"{text}": expected KEY=VALUE, such as Profiler.enable=True'
            problems.append(Problem("-o", "", message))
            continue
        key = tuple(part for part in re.split(r"[.\[\]]", path) if part)
        try:
            _set(tree, key, read_value(value))
        except _NoPlaceError as error:
            problems.append(Problem(f"-o {text}", ".".join(key), str(error)))
        else:
            source.set_mark(key, f"-o {text}")
    source.values = show(OmegaConf.to_container(tree, resolve=False))
    return problems


def read_value(text: str) -> Any:
    """The value that the text of an override means.

    Python literals first, then YAML; what is neither is text. Empty is null.

    >>> read_value("true"), read_value("None"), read_value("(1, 5)"), read_value("1e-5")
    (True, None, (1, 5), 1e-05)
    >>> read_value("10:30"), read_value("07"), read_value("./a b"), read_value("")
    ('10:30', '07', './a b', None)
    """
    text = text.strip()
    if not text:
        return None
    value = literal(text)
    if value is not text:
        return value
    return text if _PADDED.fullmatch(text) or _COLONS.fullmatch(text) else scalar(text)


class _NoPlaceError(Exception):
    """A key that nothing can be set at, or not this value."""


def _set(tree: DictConfig, key: Key, value: Any) -> None:
    """Sets ``key``; makes blocks on the way to it where there is nothing or a null."""
    at: Any = tree
    for depth, name in enumerate(key[:-1]):
        inner = at.get(_name_in(at, name))
        if inner is None:
            at[_name_in(at, name)] = {}
            inner = at[_name_in(at, name)]
        if not OmegaConf.is_config(inner):
            raise _NoPlaceError(f"{'.'.join(key[: depth + 1])} is {show(inner)!r}, without keys")
        at = inner
    old = at.get(_name_in(at, key[-1]))
    if isinstance(old, bool) and isinstance(value, str) and value.isalpha():
        raise _NoPlaceError(not_a_bool(value))
    OmegaConf.update(tree, ".".join(key), hide(value), merge=False, force_add=True)


def _name_in(container: Any, name: str) -> str | int:
    """The name as the container wants it: a list counts its items."""
    if not OmegaConf.is_list(container):
        return name
    if not name.isdecimal() or int(name) >= len(container):
        raise _NoPlaceError(f'"{name}": expected an index of the list, 0 to {len(container) - 1}')
    return int(name)
