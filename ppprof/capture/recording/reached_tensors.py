"""The tensors that the elements of a container hold, also inside of objects: ``[Transition(state, action), ...]``.

No code of the training runs: types, not objects, are asked what they are, and the methods are those of the built-in
types.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from paddle.base import core
from paddle.nn import Layer
from paddle.optimizer import Optimizer

from ppprof.capture.recording.user_files import UserFiles, is_own_class

CONTAINERS = (list, dict, deque, set)
MOST_ELEMENTS = 2000
"""Latest elements of a container that are looked at."""
_LATEST = 64
"""If none of so many is a tensor or has any, the others have none: a list of a million numbers."""
_MOST_LEVELS, _MOST_INSIDE = 5, 64
"""Of one element: objects within objects, and how many of them."""
_MOST_OBJECTS, _MOST_SECONDS = 300_000, 0.5
"""Objects within elements in all, and the time that they may take. Tensors that are elements themselves are always found."""
_NOT_WALKED = (Layer, Optimizer, ModuleType, type, core.eager.Tensor)
"""They hold parameters and code."""
_ALONE = (core.eager.Tensor, FunctionType, MethodType, CellType, SimpleNamespace)
"""Types that are not asked for subclasses: that of a parameter is one."""


class ReachedTensors:
    """Finds the tensors in containers, within limits of objects and time for all of them together.

    Args:
        files: say which classes are the user's: objects of others are not looked into.
    """

    def __init__(self, files: UserFiles) -> None:
        self._files = files
        self._kinds: dict[int, type | None] = {}
        """What to do with objects of a type, by its id: the built-in type that it is, or `object`."""
        self._left = _MOST_OBJECTS
        self._deadline_s: float | None = None

    def of_elements(self, container: Any) -> list[list[Any]]:
        """Return the tensors of each of the latest elements that has some; those of several count for the latest.

        Parameters are left out.

        Raises:
            RuntimeError: another thread changes the container.
        """
        elements = list(islice(_latest(container, self.kind(container)), MOST_ELEMENTS))
        if not self._walked(elements[:_LATEST]):
            return []
        seen = {id(container)}
        found = [list(self._inside(element, seen)) for element in self._walked(elements)]
        return [tensors for tensors in found if tensors]

    def _walked(self, values: Iterable[Any]) -> list[Any]:
        """Return the objects that are tensors, or that are looked into."""
        values = list(values)
        types = {id(kind): kind for kind in map(type, values)}
        walked = {number for number, kind in types.items() if self.known(kind) is not None}
        return [value for value in values if id(type(value)) in walked] if walked else []

    def num_elements(self, container: Any) -> int:
        """Return the length of one of `CONTAINERS`, or of a subclass."""
        kind: Any = self.kind(container)
        return int(kind.__len__(container))

    def kind(self, value: Any) -> type | None:
        """Return the type whose methods show what an object refers to; None for one that is not looked into."""
        return self.known(type(value))

    def known(self, kind: type) -> type | None:
        """Return `kind` of the objects of a type."""
        if id(kind) not in self._kinds:
            self._kinds[id(kind)] = self._known_kind(kind)
        return self._kinds[id(kind)]

    def _known_kind(self, kind: type) -> type | None:
        if any(kind is other for other in _ALONE):
            return kind
        for base in (*CONTAINERS, tuple, frozenset, partial):
            if issubclass(kind, base):
                return base
        is_walked = not issubclass(kind, _NOT_WALKED)
        return object if is_walked and is_own_class(kind, self._files) else None

    def _is_late(self) -> bool:
        now_s = time.thread_time()  # waits for a processor do not count
        self._deadline_s = self._deadline_s or now_s + _MOST_SECONDS
        return now_s > self._deadline_s

    def _inside(self, element: Any, seen: set[int]) -> Iterator[Any]:
        """Yield the tensors of an element, nearest first."""
        unseen, left = deque([(element, 0)]), _MOST_INSIDE
        while unseen and left:
            value, level = unseen.popleft()
            kind = self.kind(value)
            if id(value) in seen or kind is None:
                continue
            seen.add(id(value))
            left -= 1
            if kind is core.eager.Tensor:
                yield value
                continue
            if self._left:
                self._left -= 1
                if self._left % 256 == 0 and self._is_late():
                    self._left = 0
            if self._left and level < _MOST_LEVELS:
                inner = self._walked(islice(_references(value, kind), _MOST_INSIDE))
                unseen.extend((each, level + 1) for each in inner)


def _latest(container: Any, kind: type | None) -> Iterable[Any]:
    """Return the elements of a container, the latest first if they have an order."""
    if kind is dict:
        return reversed(dict.values(container))
    if kind in (set, frozenset):
        return kind.__iter__(container)
    if kind is tuple:
        return islice(tuple.__iter__(container), MOST_ELEMENTS)
    return (deque if kind is deque else list).__reversed__(container)


def _references(value: Any, kind: type) -> Iterable[Any]:
    """Return what an object refers to, of a function only what it keeps: no globals."""
    if kind is partial:
        return (partial.func.__get__(value), *partial.args.__get__(value), *_keywords(value))
    if kind is FunctionType:
        keywords = (value.__kwdefaults__ or {}).values()
        return (*(value.__closure__ or ()), *(value.__defaults__ or ()), *keywords)
    if kind is MethodType:
        return (value.__self__, value.__func__)
    if kind in (CellType, SimpleNamespace, object):
        return gc.get_referents(value)
    return _latest(value, kind)


def _keywords(value: Any) -> Iterable[Any]:
    return dict.values(partial.keywords.__get__(value))
