"""Doing something right after a module was imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(name: str, hook: Callable[[ModuleType], None]) -> None:
    """Calls ``hook`` with the module once its code has run; now, if it has.

    Paddle reads environment variables when it is imported, and a script may set them before: so
    whoever runs a script must not be the one who imports it.
    """
    if name in sys.modules:
        hook(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, hook))


class _Finder(MetaPathFinder):
    """Finds one module, once, as the finders behind it do."""

    def __init__(self, name: str, hook: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._hook = hook

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, with the hook behind its code; None for every other module."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._hook(module)

        loader.exec_module = exec_module
        return spec
