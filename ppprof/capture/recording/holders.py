"""Which containers hold tensors, and how Python reaches them: ``Trainer.history``.

The garbage collector knows all containers, and what refers to each. A search takes some 0.3 s for 130,000
objects, so it is made where memory has grown in a window only.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple, TypeVar

from paddle.base import core

from ppprof.capture.recording.reached_tensors import CONTAINERS, ReachedTensors
from ppprof.capture.recording.user_files import UserFiles, function_name
from ppprof.rundir.python_stacks import Holder

T = TypeVar("T")

_MOST_HOLDERS = 8
"""Containers that are named, those with the most tensors."""
_LEAST_ELEMENTS = 5
"""Fewer elements of a container that have tensors are no growth."""
_MOST_OBJECTS = 1_000_000
"""With more objects, a search would take seconds: only variables are looked at."""
_AT_ONCE = 10_000
"""Objects whose references are listed at once: all of them would take several MiB, where memory may have run out."""
_MOST_DEPTH, _MOST_SEARCHES, _MOST_SECONDS = 4, 50, 1.0
"""Containers around a named one, searches of all objects for what refers to one, and the time of these searches."""
_MOST_KEY = 40
_READERS = frozenset(("locals", "vars", "exec"))
"""Functions that read a function's variables as a dict; so does `eval`, which is a method of layers, too."""


def allocator_bytes(device: str, kind: str) -> int | None:
    """Return the bytes that Paddle's allocator counts now; None where it counts none.

    Args:
        device: ``cpu``, ``gpu:0``.
        kind: ``Allocated`` or ``Reserved``.
    """
    name, _, number = device.partition(":")
    with suppress(Exception):
        if name == "cpu":
            return int(core.host_memory_stat_current_value(kind, 0))
        return int(core.device_memory_stat_current_value(kind, int(number or 0)))
    return None


class HeldContainer(NamedTuple):
    """A container of tensors that the user's code reaches by a name."""

    name: str
    """As in `ppprof.rundir.python_stacks.Holder`."""
    elements: list[list[Any]]
    """The tensors of its latest elements."""
    is_bounded: bool
    """Whether it is a deque that drops the oldest once it is full."""

    @property
    def has_graphs(self) -> bool:
        """Return whether each of the latest elements has a tensor that an operator with gradients computed."""
        latest = self.elements[:_LEAST_ELEMENTS]
        return all(any(not each.is_leaf for each in tensors) for tensors in latest)


def find_holders(frame: FrameType | None, files: UserFiles) -> list[Holder]:
    """Return the containers with the most tensors, and where these are in memory.

    Args:
        frame: the innermost frame in whose variables, and in whose callers', names are looked for.
        files: say what files are called, and which are the user's.
    """
    return [
        Holder(each.name, _addresses(each.elements), each.is_bounded, each.has_graphs)
        for each in held_containers(frames_of(frame), files)
    ]


def frames_of(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def held_containers(frames: Iterable[FrameType], files: UserFiles) -> list[HeldContainer]:
    """Return the containers with the most tensors that the user's code reaches by a name.

    Parameters do not count. A container of objects, such as a list of pairs or of functions, has their tensors.

    Args:
        frames: in their variables names are looked for, in those of the first frame first.
        files: say what files are called, and which are the user's.
    """
    candidates: list[tuple[int, Any, list[list[Any]]]] = []
    reached = ReachedTensors(files)
    namer = _Namer(frames, files)
    # Variables of the calling functions first: the time may run out.
    every = (*_long(namer.take_variables(), reached), *_containers(reached))
    containers = {id(each): each for each in every}
    for container in containers.values():
        with suppress(RuntimeError):  # another thread changes it
            elements = reached.of_elements(container)
            if len(elements) >= _LEAST_ELEMENTS:
                candidates.append((sum(map(len, elements)), container, elements))
    # Of equally many tensors, the container with more elements: the other one may have it in an element.
    candidates.sort(key=lambda each: (-each[0], -len(each[2])))
    namer.begin([every, containers, candidates, *candidates])
    holders: list[HeldContainer] = []
    for _, container, elements in candidates:
        name = namer.name(container) if len(holders) < _MOST_HOLDERS else None
        if name is not None:
            is_deque = reached.kind(container) is deque
            is_bounded = is_deque and deque.maxlen.__get__(container) is not None
            kind = type.__getattribute__(type(container), "__name__")
            holders.append(HeldContainer(f"{name} ({kind})", elements, is_bounded))
    return holders


def _containers(reached: ReachedTensors) -> list[Any]:
    """Return the containers with enough elements, the latest first, but for variables of modules and of classes.

    The collector does not track a dict of tensors, but what refers to it.

    (Until Python 3.10, a generator's frame is one of the objects: it and the list of them would keep each other,
    and so all objects.)
    """
    every = gc.get_objects()
    if len(every) > _MOST_OBJECTS:
        return []
    # Behind the oldest generation, which is listed last: a search that has to stop has seen the training's.
    num_old = len(gc.get_objects(2))
    tracked = every[-num_old:] + every[:-num_old]
    types = {id(kind): kind for kind in map(type, tracked)}
    kinds = {number for number, kind in types.items() if reached.known(kind) in CONTAINERS}
    found = [each for each in tracked if id(type(each)) in kinds]
    untracked: dict[int, Any] = {}
    for begin in range(0, len(tracked), _AT_ONCE):
        for each in gc.get_referents(*tracked[begin : begin + _AT_ONCE]):
            if type(each) is dict and not gc.is_tracked(each):
                untracked[id(each)] = each
    found += untracked.values()
    owns = {number for number, kind in types.items() if issubclass(kind, (type, ModuleType))}
    owners = [each for each in tracked if id(type(each)) in owns]
    passed = {id(each) for each in gc.get_referents(*owners) if type(each) is dict}
    return _long((each for each in reversed(found) if id(each) not in passed), reached)


def _long(values: Iterable[Any], reached: ReachedTensors) -> list[Any]:
    """Return the containers with enough elements."""
    found = (each for each in values if reached.kind(each) in CONTAINERS)
    return [each for each in found if reached.num_elements(each) >= _LEAST_ELEMENTS]


def _addresses(elements: list[list[Any]]) -> list[int]:
    """Return where the tensors of a container's elements are in memory."""
    found = []
    for tensor in (each for tensors in elements for each in tensors):
        with suppress(Exception):  # without memory, or not dense
            found.append(tensor.data_ptr())
    return found


def _is_module(frame: FrameType) -> bool:
    return frame.f_code.co_name == "<module>"


def place_of(frame: FrameType, files: UserFiles) -> str:
    """Return where the variables of a frame are: ``main() of train.py``, ``train.py``."""
    file = files[frame.f_code.co_filename][0]
    return file if _is_module(frame) else f"{function_name(frame.f_code)}() of {file}"


def variables(frame: FrameType, read: Callable[[str, Any], T]) -> list[T]:
    """Return what a function reads of the names and values of a frame's variables.

    Until Python 3.12, reading them leaves a dict in the frame that would keep their values, and so a step's
    tensors, until the function ends. It is emptied, unless the function may have it, too: it is what
    ``locals()`` returns.
    """
    if _is_module(frame) or sys.version_info >= (3, 13):
        return [read(name, value) for name, value in list(frame.f_locals.items())]
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if not is_function or sys.gettrace() is not None or _reads_variables(frame.f_code):
        return []
    values = frame.f_locals
    try:
        return [read(name, value) for name, value in values.items()]
    finally:
        values.clear()


def _reads_variables(code: CodeType) -> bool:
    if "eval" not in code.co_names:
        return not _READERS.isdisjoint(code.co_names)
    calls = (each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
    return not _READERS.isdisjoint(code.co_names) or "eval" in calls


class _Namer:
    """Finds names of objects: variables of the calling functions, else what refers to them."""

    def __init__(self, frames: Iterable[FrameType], files: UserFiles) -> None:
        self._files = files
        self._passed: set[int] = set()
        """Ids of objects whose name does not count: those of the search itself."""
        self._searches = _MOST_SEARCHES
        self._deadline_s = 0.0
        self._variables: dict[int, str] = {}
        """Names that are known, by the ids of what has them."""
        self._values: list[Any] = []
        for frame in frames:
            is_own, place = files[frame.f_code.co_filename][1], place_of(frame, files)
            named = variables(frame, lambda name, value: (name, value)) if is_own else []
            for name, value in named:
                self._variables.setdefault(id(value), f"{name}, {place}")
                self._values.append(value)

    def take_variables(self) -> list[Any]:
        """Return the values of the variables, and keep them no longer."""
        values, self._values = self._values, []
        return values

    def begin(self, own: Iterable[object]) -> None:
        """Begin to look for names, but for those that objects of the search itself would give."""
        self._passed.update(map(id, own))
        self._deadline_s = time.thread_time() + _MOST_SECONDS

    def name(self, held: object, depth: int = _MOST_DEPTH) -> str | None:
        """Return the name of an object; None if none is found."""
        if id(held) in self._variables:
            return self._variables[id(held)]
        self._passed.add(id(held))
        for referrer in self._referrers(held) if depth else ():
            name = self._name_in(referrer, held, depth - 1)
            if name is not None:
                self._variables[id(held)] = name
                return name
        return None

    def _referrers(self, held: object) -> list[Any]:
        self._searches -= 1
        is_late = self._searches < 0 or time.thread_time() > self._deadline_s
        found = [] if is_late else gc.get_referrers(held)
        known = self._variables
        return [each for each in found if id(each) in known or id(each) not in self._passed]

    def _name_in(self, referrer: Any, held: object, depth: int) -> str | None:
        """Return the name of what a referrer holds: an element, or an attribute."""
        if type(referrer) is not dict:
            if type(referrer) in (list, tuple, deque):
                outer = self.name(referrer, depth)
                return None if outer is None else f"{outer}[...]"
            return self._attribute(referrer, held)
        for owner in self._referrers(referrer):
            name = self._attribute(owner, held)
            if name is not None:
                return name
        key = next((key for key, value in list(referrer.items()) if value is held), None)
        outer = self.name(referrer, depth)
        return None if outer is None else f"{outer}[{repr(key)[:_MOST_KEY]}]"

    def _attribute(self, owner: Any, held: object) -> str | None:
        """Return the name of an object as an attribute of another one, or of a module; None if it is not one."""
        # In this way, since `getattr` and `isinstance` may run code of the training.
        try:
            attributes = object.__getattribute__(owner, "__dict__")
        except (AttributeError, TypeError):
            return None
        name = next((name for name, value in list(attributes.items()) if value is held), None)
        if name is None:
            return None
        kind = type(owner)
        if issubclass(kind, ModuleType):
            file = attributes.get("__file__")  # __main__ has none in a notebook
            return f"{name}, {self._files[file][0]}" if type(file) is str else name
        return f"{(owner if issubclass(kind, type) else kind).__qualname__}.{name}"
