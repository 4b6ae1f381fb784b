"""``-o A.b.c=value``: one value of the tree, set from the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ppprof.config.source import Key, Source, hide, literal, scalar, show
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
        if not equals or not _PATH.fullmatch(path.strip()):
            message = f'"{text}": expected KEY=VALUE, such as Profiler.enable=True'
            problems.append(Problem("-o", "", message))
            continue
        key = _key(path.strip())
        try:
            OmegaConf.update(tree, _dotted(tree, key), hide(read_value(value)), force_add=True)
        except (OmegaConfBaseException, IndexError, TypeError, ValueError) as error:
            message = f'"{text}": no such place: {str(error).splitlines()[0]}'
            problems.append(Problem("-o", ".".join(key), message))
            continue
        source.marks = {at: mark for at, mark in source.marks.items() if at[: len(key)] != key}
        source.marks[key] = f"-o {text}"
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
    if value is not text and not isinstance(value, str):
        return value
    if isinstance(value, str) and value != text:
        return value  # quoted
    if _PADDED.fullmatch(text) or _COLONS.fullmatch(text):
        return text
    value = scalar(text)
    is_flow = text[0] in "[{"
    return text if isinstance(value, (dict, list)) and not is_flow else value


def _key(path: str) -> Key:
    return tuple(part for part in re.split(r"[.\[\]]", path) if part)


def _dotted(tree: DictConfig, key: Key) -> str:
    """The key as OmegaConf wants it; makes a block of a null on the way to it."""
    at: Any = tree
    for depth, name in enumerate(key[:-1]):
        inner = at.get(int(name) if OmegaConf.is_list(at) else name) if at is not None else None
        if inner is None and OmegaConf.is_dict(at):
            at[name] = {}
            inner = at[name]
        elif not OmegaConf.is_config(inner):
            raise TypeError(f"{'.'.join(key[: depth + 1])} is {inner!r}, which has no keys")
        at = inner
    if OmegaConf.is_list(at) and not 0 <= int(key[-1]) < len(at):
        raise IndexError(f"the list has {len(at)} items, counted from 0")
    return ".".join(key)
