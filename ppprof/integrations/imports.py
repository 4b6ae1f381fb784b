"""Run a function right after a module is imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(name: str, hook: Callable[[ModuleType], None]) -> None:
    """Call ``hook`` with the module when its code has run; at once if it is imported already.

    Importing Paddle here would be too early: it reads environment variables on import, and the
    script may set them first.
    """
    if name in sys.modules:
        hook(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, hook))


class _Finder(MetaPathFinder):
    """A finder that makes a hook run after the import of one module.

    It takes the module's spec from the other finders. It removes itself from ``sys.meta_path`` when
    the module is first looked up.
    """

    def __init__(self, name: str, hook: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._hook = hook

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec, whose loader also calls the hook; None for any other module."""
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
