"""Apply ``-o A.b.c=value``: set one value of the tree from the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ppprof.config.validation import not_a_bool
from ppprof.config.yaml_source import (
    MOST_DEPTH,
    ConfigTree,
    Key,
    literal,
    parse_literals,
    yaml_value,
)
from ppprof.errors import Problem

_PATH = re.compile(r"[^.\[\]=\s]+(\.[^.\[\]=\s]+|\[\d+\])*")
_ZERO_PADDED = re.compile(r"[-+]?0[\d_]+")  # 07, which YAML 1.1 reads as octal
_BASE_60 = re.compile(r"[-+]?\d[\d_]*(:\d+)+(\.\d*)?")  # 10:30, which YAML 1.1 reads as 630

_SWITCHES: tuple[Key, ...] = (("Profiler", "trigger"), ("Profiler", "trigger", "slow_step"))
"""Blocks that a config may also switch on and off by True and False; the outer one first."""

# OmegaConf reads "${x}" as an interpolation and "???" as missing. These private-use characters
# stand in for "$" and "?" while OmegaConf holds the values.
_MASK = str.maketrans("$?", "\ue000\ue001")
_UNMASK = str.maketrans("\ue000\ue001", "$?")


def apply_overrides(source: ConfigTree, overrides: Iterable[str]) -> list[Problem]:
    """Apply each override to ``source``; return a problem for each invalid override.

    Changes the values and marks of ``source``; the mark of an override is ``-o KEY=VALUE``. Invalid
    overrides are not applied. An override is invalid if it has no ``=``, if KEY is not a path, if
    KEY has a part below a scalar (other than a `_SWITCHES`) or an index outside a list, or if VALUE
    is a word where the tree has True or False outside the ``Profiler`` block. Every VALUE can be read: see `read_value`.

    Args:
        source: the tree to change.
        overrides: each is ``KEY=VALUE``, such as ``Profiler.enable=True`` or ``a.list[0]=1``; the
            last one for a key counts. Missing blocks are created.
    """
    problems = []
    tree = OmegaConf.create(_translate(source.values, _MASK))
    assert isinstance(tree, DictConfig)
    for text in overrides:
        path, equals, value_text = text.partition("=")
        path = path.strip()
        if not equals or not _PATH.fullmatch(path):
            message = f'"{text}": expected KEY=VALUE, such as Profiler.enable=True'
            problems.append(Problem("-o", "", message))
            continue
        key = tuple(part for part in re.split(r"[.\[\]]", path) if part)
        value = read_value(value_text)
        _open_switches(tree, key)
        reason = _why_not(tree, key, value)
        if len(key) > MOST_DEPTH:
            reason = f"{len(key)} parts: expected at most {MOST_DEPTH}"
        if reason:
            problems.append(Problem(f"-o {text}", ".".join(key), reason))
            continue
        masked = _translate(value, _MASK)
        OmegaConf.update(tree, ".".join(key), masked, merge=False, force_add=True)
        source.set_mark(key, f"-o {text}")
    source.values = _translate(OmegaConf.to_container(tree, resolve=False), _UNMASK)
    return problems


def read_value(text: str) -> Any:
    """Return the value of an override from its text.

    The text is read as a Python literal, else as a YAML scalar, list or mapping, else it stays
    text. Text inside a YAML mapping is read as in a file (`parse_literals`). ``10:30`` and ``07``
    stay text, which YAML 1.1 would turn into 630 and 7. Empty text is read as null.

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
    if _ZERO_PADDED.fullmatch(text) or _BASE_60.fullmatch(text):
        return text
    value = yaml_value(text)
    return parse_literals(value) if isinstance(value, dict) else value


def _why_not(tree: DictConfig, key: Key, value: Any) -> str:
    """Return why ``key`` cannot be set to ``value``; empty if it can.

    A path through a missing or null block is valid: OmegaConf creates the block. A word (text of
    letters) is invalid where the tree has True or False, except in the ``Profiler`` block.
    """
    node: Any = tree
    for depth, name in enumerate(key):
        if node is None:
            return ""
        if not OmegaConf.is_config(node):
            return f"{'.'.join(key[:depth])} is {_translate(node, _UNMASK)!r}, without keys"
        if OmegaConf.is_list(node):
            if not name.isdecimal() or int(name) >= len(node):
                return f'"{name}": expected an index of the list, 0 to {len(node) - 1}'
            node = node[int(name)]
        else:
            node = node.get(name)
    if key[0] == "Profiler":  # whose values are checked by their types: some take words, too
        return ""
    is_typo = isinstance(node, bool) and isinstance(value, str) and value.isalpha()
    return not_a_bool(value) if is_typo else ""


def _open_switches(tree: DictConfig, key: Key) -> None:
    """Replace True or False by an empty block where ``key`` has a part below it: True is its defaults."""
    for switch in _SWITCHES:
        *outer, name = switch
        node: Any = tree
        for part in outer:
            node = node.get(part) if OmegaConf.is_dict(node) else None
        is_inside = len(key) > len(switch) and key[: len(switch)] == switch
        if is_inside and OmegaConf.is_dict(node) and isinstance(node.get(name), bool):
            node[name] = {}


def _translate(value: Any, table: Mapping[int, int]) -> Any:
    """Return a copy of a tree of values with every string translated, but not the keys."""
    if isinstance(value, str):
        return value.translate(table)
    if isinstance(value, Mapping):
        return {name: _translate(item, table) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_translate(item, table) for item in value]
    return value
