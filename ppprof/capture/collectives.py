"""Communication spans for what goes through ``paddle.distributed``, while a window is open.

Paddle records none for gloo, and its event has no field for group or size, so the name carries
them: ``all_reduce[axis=dp group=0 bytes=4198400 dtype=float32 peers=0,1]``. ``axis`` is the group's
in the topology; ``peers`` are global ranks: the group's, or the other side of a send or recv.
``bytes`` is what this rank puts in (what it takes out, for recv, and for the ranks that only take
part in a broadcast or a scatter), ``dtype`` that of the first tensor; objects, pickled inside, have
neither. Waiting for an asynchronous one is a span of its own: ``wait[op=all_reduce axis=dp ...]``.

Every module that holds one of the functions gets the wrapper, however it was imported, and gets the
function back afterwards. Not seen: communication that starts in C++, above all the gradient
all-reduce of ``paddle.DataParallel``; a function that was put into a class, a closure or a list.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Callable

import paddle.distributed as dist
from paddle.base import core

from ppprof.capture.recorder import communication
from ppprof.topology import Topology

_DATA = {
    "all_reduce": "tensor",
    "all_gather": "tensor",
    "all_gather_object": "",
    "reduce": "tensor",
    "broadcast": "tensor",
    "broadcast_object_list": "",
    "scatter": "tensor_list tensor_or_tensor_list tensor",
    "scatter_object_list": "",
    "reduce_scatter": "tensor_list tensor_or_tensor_list",
    "alltoall": "in_tensor_list in_tensor_or_tensor_list",
    "alltoall_single": "in_tensor",
    "gather": "tensor",
    "send": "tensor",
    "recv": "tensor",
    "isend": "tensor",
    "irecv": "tensor",
    "batch_isend_irecv": "p2p_op_list",
    "barrier": "",
}
"""Functions of ``paddle.distributed`` (and of its ``stream``) and the parameters that hold their
data, the first that is given; empty where the size is not known beforehand."""

_PEER = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}

_Function = Callable[..., Any]


class _Spanned:
    """Stands in for a function, and is equal to it.

    For ``P2POp`` compares the ``isend`` it is given, which may have been put away before the
    window, with the one in ``paddle.distributed``.
    """

    __wrapped__: _Function

    def __init__(self, name: str, function: _Function, call: _Function) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self.signature = inspect.signature(function)
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self, args, kwargs)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.__wrapped__

    def __hash__(self) -> int:
        return hash(self.__wrapped__)


class Collectives:
    """The wrappers: `put_on` at the start of a window, `take_off` after it."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._axes: dict[int, str | None] = {}
        self._replaced: list[tuple[dict[str, Any], str, _Function]] = []
        self._task_wait: _Function | None = None
        self._tasks: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._nested = threading.local()

    def put_on(self) -> None:
        """Wraps the functions wherever a loaded module holds them."""
        wrappers = {}
        for home in (dist, dist.stream):
            for op in _DATA:
                function = getattr(home, op, None)
                if function is not None:
                    wrappers[id(function)] = _Spanned(op, function, self._call)
        for namespace in _namespaces():
            for name, value in list(namespace.items()):
                wrapper = wrappers.get(id(value))
                if wrapper is not None:
                    namespace[name] = wrapper
                    self._replaced.append((namespace, name, value))
        self._task_wait = core.task.wait
        core.task.wait = self._spanned_wait(self._task_wait)

    def take_off(self) -> None:
        """Gives every module its function back; what somebody else has put there since, stays."""
        for namespace, name, function in self._replaced:
            if getattr(namespace.get(name), "__wrapped__", None) is function:
                namespace[name] = function
        self._replaced.clear()
        if self._task_wait is not None:
            core.task.wait, self._task_wait = self._task_wait, None
        self._tasks.clear()
        self._axes.clear()

    def _call(self, op: _Spanned, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a wrapped function; its tasks are remembered, for the wait of each is a span."""
        if getattr(self._nested, "inside", False):
            return op.__wrapped__(*args, **kwargs)
        facts = self._facts(op, args, kwargs)
        name = f"{op.name}[{' '.join(facts)}]" if facts else op.name
        done = self._span(name, op.__wrapped__, args, kwargs)
        for task in done if isinstance(done, list) else [done]:
            if isinstance(task, core.task):
                self._tasks[task] = f"wait[{' '.join([f'op={op.name}', *facts])}]"
        return done

    def _facts(self, op: _Spanned, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """``axis=dp``, ``group=0`` ... of a call; none where its arguments make no sense.

        They are the called function's to complain about.
        """
        try:
            call = op.signature.bind(*args, **kwargs)
            call.apply_defaults()
            given = call.arguments
            if op.name == "batch_isend_irecv":
                group = given["p2p_op_list"][0].group
                peers = sorted({p2p.peer for p2p in given["p2p_op_list"]})
            else:
                group = given["group"] or dist.get_group()
                peer = given.get(_PEER.get(op.name, ""))
                peers = group.ranks if peer is None else [peer]
            if group.id not in self._axes:
                self._axes[group.id] = self._topology.axis_of(group.ranks)
            data = (given.get(name) for name in _DATA[op.name].split())
            tensors = _tensors(next((some for some in data if some is not None), None))
            facts = {
                "axis": self._axes[group.id],
                "group": group.id,
                "bytes": sum(t.size * t.element_size() for t in tensors) if tensors else None,
                "dtype": str(tensors[0].dtype).rpartition(".")[2] if tensors else None,
                "peers": ",".join(map(str, peers)),
            }
            return [f"{key}={fact}" for key, fact in facts.items() if fact is not None]
        except Exception:
            return []

    def _spanned_wait(self, wait: _Function) -> _Function:
        @functools.wraps(wait)
        def wrapper(task: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._nested, "inside", False):
                return wait(task, *args, **kwargs)
            return self._span(self._tasks.pop(task, "wait"), wait, (task, *args), kwargs)

        return wrapper

    def _span(self, name: str, function: _Function, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Calls ``function`` in a span; whatever it calls in turn is part of it."""
        self._nested.inside = True
        span = communication(name)
        try:
            return function(*args, **kwargs)
        finally:
            span.end()
            self._nested.inside = False


def _namespaces() -> Iterator[dict[str, Any]]:
    for module in list(sys.modules.values()):
        namespace = getattr(module, "__dict__", None)
        if isinstance(namespace, dict):
            yield namespace


def _tensors(data: Any) -> list[Any]:
    """The tensors of a tensor, of a list of tensors or of a list of ``P2POp``; of none, none."""
    if isinstance(data, (list, tuple)):
        return [found for item in data for found in _tensors(getattr(item, "tensor", item))]
    return [] if data is None else [data]
