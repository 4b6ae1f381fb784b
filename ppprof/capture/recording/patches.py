"""Methods of other people's classes, wrapped for a while and given back."""

from __future__ import annotations

import functools
from typing import Any, Callable

Method = Callable[..., Any]


class Patches:
    """What was put on, so that it can be taken off."""

    def __init__(self) -> None:
        self._replaced: list[tuple[type, str, Method, Method]] = []

    def put(self, kind: type, name: str, call: Callable[..., Any]) -> None:
        """Has ``kind.name(...)`` be ``call(method, ...)``, where the class itself has that method.

        Args:
            kind: the class.
            name: of a method; one that the class inherits is wrapped where it is defined.
            call: gets the method, which is still to be called, then its arguments.
        """
        method = vars(kind).get(name)
        if method is None:
            return

        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return call(method, *args, **kwargs)

        setattr(kind, name, wrapper)
        self._replaced.append((kind, name, method, wrapper))

    def uninstall(self) -> None:
        """Gives every class its method back; what somebody else has put there since, stays."""
        for kind, name, method, wrapper in self._replaced:
            if vars(kind).get(name) is wrapper:
                setattr(kind, name, method)
        self._replaced.clear()
