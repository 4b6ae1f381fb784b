"""Wrap functions of Paddle and restore them, wherever modules have imported them to."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import paddle
from paddle.base import core

Method = Callable[..., Any]


class Patches:
    """The wrappers that are installed now, and the methods that they replace."""

    def __init__(self) -> None:
        self._replaced: list[tuple[type | ModuleType, str, Any, Any]] = []

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

        def wrapped(method: Method) -> Method:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return call(method, *args, **kwargs)

            return wrapper

        self.replace(kind, name, wrapped)

    def replace(
        self, kind: type | ModuleType, name: str, wrapped: Callable[[Method], Method]
    ) -> None:
        """As `install`, by the function that ``wrapped`` returns for the original method."""
        method = vars(kind).get(name)
        if method is not None:
            wrapper = wrapped(method)
            if isinstance(wrapper, FunctionType):  # one of the compiled core has the name
                functools.update_wrapper(wrapper, method)
            self.put(kind, name, wrapper)

    def put(self, kind: type | ModuleType, name: str, wrapper: Method | property) -> None:
        """Replace a method or a property, which there must be, by a wrapper of it."""
        self._replaced.append((kind, name, vars(kind)[name], wrapper))
        setattr(kind, name, wrapper)

    def uninstall(self) -> None:
        """Restore every method, except methods that other code has replaced since."""
        for kind, name, method, wrapper in self._replaced:
            if vars(kind).get(name) is wrapper:
                setattr(kind, name, method)
        self._replaced.clear()


class ModuleWrappers:
    """Wrappers of functions, put into all modules that hold the functions, no matter how these were imported.

    The first search looks at all names of all modules, which takes some 20 ms. Later ones look at modules
    that are new or have another number of names.

    Args:
        excluded: the namespace of a module that keeps its functions.
    """

    def __init__(self, excluded: dict[str, Any] | None = None) -> None:
        self._excluded = excluded
        self._pairs: dict[int, tuple[Any, Any]] = {}
        """Function and wrapper, by the id of either."""
        self._bindings: list[tuple[dict[str, Any], str, Any, Any]] = []
        """Namespace, name, function and wrapper."""
        self._sizes: dict[int, int] = {}
        """Number of names in each namespace at the last search, by its id."""

    def __contains__(self, function: Any) -> bool:
        """Return whether a function has a wrapper, or is one."""
        return id(function) in self._pairs

    def add(self, function: Any, wrapper: Any) -> None:
        """Wrap a function, from the next `install` on."""
        self._pairs[id(function)] = self._pairs[id(wrapper)] = function, wrapper
        self._sizes.clear()

    def search(self) -> None:
        """Find the modules that hold the functions, so that `install` finds little more."""
        changed, found, sizes = set(), [], self._sizes
        for names in namespaces():
            if sizes.get(id(names)) == len(names) or names is self._excluded:
                continue
            changed.add(id(names))
            sizes[id(names)] = len(names)
            for name, value in list(names.items()):
                pair = self._pairs.get(id(value))
                if pair is not None:
                    found.append((names, name, *pair))
        if changed:
            self._bindings = [each for each in self._bindings if id(each[0]) not in changed] + found

    def install(self) -> None:
        """Put the wrappers in the place of the functions."""
        self.search()
        for names, name, function, wrapper in self._bindings:
            if names.get(name) is function:
                names[name] = wrapper

    def uninstall(self) -> None:
        """Put the functions in the place of the wrappers, also in modules that were imported meanwhile."""
        self.search()
        for names, name, function, wrapper in self._bindings:
            if names.get(name) is wrapper:
                names[name] = function


dtype_key: Callable[[Any], int] = int if paddle.dtype is core.VarDesc.VarType else id
"""Returns a number for a data type, the same one for equal types.

Paddle 3 has one object of each type, whose hash takes half a microsecond. Paddle 2 makes an object for
each use, and its types are an enumeration.
"""


def namespaces() -> Iterator[dict[str, Any]]:
    """Yield the namespace of each loaded module."""
    of = object.__getattribute__  # `getattr` would trigger a lazily loaded module
    for module in list(sys.modules.values()):
        try:
            names = of(module, "__dict__")
        except AttributeError:
            continue
        if type(names) is dict:
            yield names
