"""Run a function right after a module is imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(name: str, hook: Callable[[ModuleType], None]) -> None:
    """Call ``hook`` with a module once the module's code has run; at once if it is imported already.

    The module is not imported here. Paddle reads environment variables when it is imported, and the
    script may set these variables before it imports Paddle.

    Args:
        name: full name of the module, such as ``paddle.optimizer.optimizer``.
        hook: takes the module.
    """
    if name in sys.modules:
        hook(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, hook))


class _Finder(MetaPathFinder):
    """A finder that calls ``hook`` after the import of the module ``name``.

    It takes the module's spec from the other finders. When the module is first looked up, the
    finder removes itself from ``sys.meta_path``.
    """

    def __init__(self, name: str, hook: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._hook = hook

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec, whose loader also calls the hook after the module's code.

        None for any other module, and if no other finder finds the module.
        """
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
