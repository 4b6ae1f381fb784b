"""Wrap functions of Paddle and restore them, wherever modules have imported them to."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

import paddle
from paddle.base import core

Method = Callable[..., Any]


class Patches:
    """The wrappers that are installed now, and the methods that they replace."""

    def __init__(self) -> None:
        self._replaced: list[tuple[type | ModuleType, str, Method, Method]] = []

    @property
    def is_installed(self) -> bool:
        """Whether a wrapper is installed."""
        return bool(self._replaced)

    def install(self, kind: type | ModuleType, name: str, call: Callable[..., Any]) -> None:
        """Replace ``kind.name(...)`` by ``call(method, ...)``.

        Does nothing if the class itself does not define the method.

        Args:
            kind: the class, or a module.
            name: name of the method, or of the module's function.
            call: takes the original method, which it must call, then the method's arguments.
        """
        method = vars(kind).get(name)
        if method is None:
            return

        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return call(method, *args, **kwargs)

        self._replaced.append((kind, name, method, wrapper))
        setattr(kind, name, wrapper)

    def uninstall(self) -> None:
        """Restore every method, except methods that other code has replaced since."""
        for kind, name, method, wrapper in self._replaced:
            if vars(kind).get(name) is wrapper:
                setattr(kind, name, method)
        self._replaced.clear()


dtype_key: Callable[[Any], int] = int if paddle.dtype is core.VarDesc.VarType else id
"""Returns a number for a data type, the same one for equal types.

Paddle 3 has one object of each type, whose hash takes half a microsecond. Paddle 2 makes an object for
each use, and its types are an enumeration.
"""


def namespaces() -> Iterator[dict[str, Any]]:
    """Yield the namespace of each loaded module."""
    for module in list(sys.modules.values()):
        # `getattr` would trigger a lazily loaded module.
        with suppress(AttributeError):
            names = object.__getattribute__(module, "__dict__")
            if isinstance(names, dict):
                yield names
