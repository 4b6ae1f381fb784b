"""Names of tensors whose graphs of gradients reach back over all steps: ``total_loss += loss``.

::

    first     total ─ a ─ b              a: noted as the window begins, with the nodes below it
    last      total ─ d ─ c ─ a ─ b      a is reached again, so one is computed from the other

While the chain exists, so does its node a, and no other one is at its address. Without a chain, a is freed, and
another node may be there. So the nodes below it have to be the same ones, and it has to be as far down as the
steps in between need at least.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from paddle.base import core

from ppprof.capture.recording.gradient_order import ACCUMULATION, node_reader
from ppprof.capture.recording.holders import place_of, variables
from ppprof.capture.recording.user_files import UserFiles, is_own_class

_MOST_ELEMENTS, _MOST_LEVELS = 16, 2
"""Of a list or dict that may have a number for each metric, and lists and dicts within one another."""
_MOST_BELOW = 16
"""Nodes that are noted below one, with it."""
_MOST_NODES, _MOST_SECONDS = 20_000, 0.3
"""Nodes that are looked at for one name, and for how long for all."""
_MOST_KEY = 40

_Node = Any
_Nodes = list[tuple[int, str]]
"""Addresses and names."""


class GraphChains:
    """Finds variables and attributes whose tensors are computed from those that they had before.

    Args:
        files: say what files are called, and which are the user's.

    Raises:
        RuntimeError: this Paddle does not show the graph.
    """

    def __init__(self, files: UserFiles) -> None:
        self._files = files
        self._node_of = node_reader()
        self._noted: dict[str, list[_Nodes]] = {}

    def note(self, frame: FrameType | None) -> None:
        """Note the graphs of what the variables of a frame and its callers refer to; none is kept alive."""
        self._noted = {}
        for name, nodes in self._each(frame, lambda _, node: _below(node)):
            self._noted.setdefault(name, []).append(nodes)

    def found(self, frame: FrameType | None, num_steps: int) -> list[str]:
        """Return the names whose graphs lead to those of `note`, so many steps ago, and forget these."""
        noted, self._noted = self._noted, {}
        deadline_s = time.thread_time() + _MOST_SECONDS

        def leads(name: str, node: _Node) -> bool:
            earlier = {nodes[0][0]: nodes for nodes in noted.get(name, [])}
            return bool(earlier) and _leads(node, earlier, num_steps, deadline_s)

        names = [name for name, is_chain in self._each(frame, leads) if is_chain] if noted else []
        return list(dict.fromkeys(names))

    def _each(
        self, frame: FrameType | None, read: Callable[[str, _Node], Any]
    ) -> Iterator[tuple[str, Any]]:
        """Yield the name of each tensor with a graph, and what is read of its node."""
        seen: set[int] = set()
        while frame is not None:
            if self._files[frame.f_code.co_filename][1]:
                place = f", {place_of(frame, self._files)}"

                def of_variable(name: str, value: Any, place: str = place) -> list[tuple[str, Any]]:
                    named = self._tensors(name, place, value, seen)
                    nodes = ((each, self._node_of(tensor)) for each, tensor in named)
                    return [(each, read(each, node)) for each, node in nodes if node is not None]

                for pairs in variables(frame, of_variable):
                    yield from pairs
            frame = frame.f_back

    def _tensors(
        self, name: str, place: str, value: Any, seen: set[int], level: int = 0
    ) -> Iterator[tuple[str, Any]]:
        """Yield the tensors with a graph that a variable refers to: in small lists and dicts, and attributes."""
        kind = type(value)
        if kind is core.eager.Tensor:
            if not value.is_leaf:
                yield f"{name}{place}", value
        elif kind in (dict, list):
            if level == _MOST_LEVELS or len(value) > _MOST_ELEMENTS:
                return
            for key, inner in list(value.items() if kind is dict else enumerate(value)):
                shown = f"{name}[{repr(key)[:_MOST_KEY] if type(key) in (int, str) else '...'}]"
                yield from self._tensors(shown, place, inner, seen, level + 1)
        elif not level and id(value) not in seen and is_own_class(kind, self._files):
            seen.add(id(value))
            attributes: dict[str, Any] = {}
            with suppress(AttributeError):  # it may have none
                attributes = object.__getattribute__(value, "__dict__")
            owner = type.__getattribute__(kind, "__qualname__")
            buffers: Any = attributes.get("_buffers")  # those that a layer's code sets, too
            more: dict[str, Any] = buffers if issubclass(type(buffers), dict) else {}
            for key, inner in [*attributes.items(), *dict.items(more)]:
                yield from self._tensors(f"{owner}.{key}", "", inner, seen, 1)


def _below(node: _Node) -> _Nodes:
    """Return a node and the nearest ones below it, without those of parameters, which stay."""
    return [(address, name) for address, name, _, _ in _walked(node, _MOST_BELOW)]


def _walked(node: _Node, most: int) -> Iterator[tuple[int, str, int, _Node]]:
    """Yield the address, the name and the distance of a node and of those below it, the nearest first."""
    unseen, seen = deque([(node, 0)]), {node.node_ptr()}
    while unseen and most:
        node, distance = unseen.popleft()
        name = node.name()
        if name == ACCUMULATION:
            continue
        most -= 1
        yield node.node_ptr(), name, distance, node
        for below in node.next_functions:
            if below is not None and below.node_ptr() not in seen:
                seen.add(below.node_ptr())
                unseen.append((below, distance + 1))


def _leads(node: _Node, earlier: dict[int, _Nodes], num_steps: int, deadline_s: float) -> bool:
    """Return whether a node leads to one of earlier ones, by a way that has nodes for the steps in between."""
    for address, _, distance, below in _walked(node, _MOST_NODES):
        if address in earlier and _below(below) == earlier[address]:
            return distance >= max(2, num_steps // 2)
        if time.thread_time() > deadline_s:
            break
    return False
