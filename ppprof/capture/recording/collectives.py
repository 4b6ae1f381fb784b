"""Communication spans for calls of ``paddle.distributed``, while a window is open.

Paddle records none for gloo, and its events have no field for group or size, so the span's name
holds them: ``all_reduce[axis=dp group=0 bytes=4198400 dtype=float32 peers=0,1]``. ``axis`` is the
group's axis in the topology. ``peers`` are global ranks: the group's, or the other side of a send
or recv. ``bytes`` is the input of this rank; the output for recv, and for ranks that only receive
in a broadcast or a scatter. ``dtype`` is that of the first tensor. Objects are pickled inside and
have neither. Waiting for an asynchronous operation is a span of its own:
``wait[op=all_reduce axis=dp ...]``.

Every module that holds one of the functions gets the wrapper, however the function was imported,
and gets the function back after the window. The same holds for methods of the process groups, which
Fleet's tensor parallel layers and its pipeline call directly. Not seen: communication that starts
in C++, above all the gradient all-reduce of ``paddle.DataParallel``; a function in a class, a
closure or a list.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import paddle.distributed as dist
from paddle.base import core
from paddle.distributed import collective

from ppprof.capture.recording.patches import Patches
from ppprof.capture.recording.recorder import span
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
"""Functions of ``paddle.distributed`` (and of its ``stream``), and the parameters that may hold
their data: the first one that is not None counts. Empty if the size is not known beforehand."""

_METHODS = {
    "all_reduce": ("all_reduce", 0),
    "allreduce": ("all_reduce", 0),
    "all_gather": ("all_gather", 0),
    "all_gather_into_tensor": ("all_gather", 1),
    "all_gather_partial": ("all_gather", 1),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "reduce_scatter": ("reduce_scatter", 1),
    "reduce_scatter_tensor": ("reduce_scatter", 1),
    "all_to_all": ("alltoall", 1),
    "all_to_all_tensor": ("alltoall", 1),
    "all_to_all_single": ("alltoall_single", 1),
    "send": ("send", 0),
    "send_partial": ("send", 0),
    "recv": ("recv", 0),
    "recv_partial": ("recv", 0),
}
"""Methods of ``ProcessGroup``, also as ``..._on_calc_stream``: their name in a trace, and the
index of the argument that holds the data. In a send or recv, the argument after the tensor is the
peer; in a ``partial`` one, the argument after the peer is the number of ranks that share the
tensor."""

_PEER = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}

_Function = Callable[..., Any]


class _Spanned:
    """Replaces a function, and is equal to it.

    ``P2POp`` compares its ``isend`` argument with the one in ``paddle.distributed``. The training
    may have stored that argument before the window.
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
    """Wrappers of all communication: `install` at the start of a window, `uninstall` after it."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._axes: dict[int, str | None] = {}
        self._methods = Patches()
        self._groups: dict[int, Any] = {}
        self._tasks: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._nested = threading.local()

    def install(self) -> None:
        """Wrap the functions in every loaded module that holds them."""
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
        for kind in _process_groups():
            for method, (op, index) in _METHODS.items():
                for name in (method, f"{method}_on_calc_stream"):
                    self._methods.install(
                        kind, name, functools.partial(self._call_method, op, index)
                    )
        self._methods.install(core.task, "wait", self._call_wait)

    def uninstall(self) -> None:
        """Restore the functions, except where other code has replaced them since.

        All modules are searched: one that was imported in the window may hold a wrapper too.
        """
        for namespace in _namespaces():
            for name, value in list(namespace.items()):
                if type(value) is _Spanned:
                    namespace[name] = value.__wrapped__
        self._methods.uninstall()
        self._groups.clear()
        self._tasks.clear()
        self._axes.clear()

    def _call(self, op: _Spanned, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a wrapped function."""
        if getattr(self._nested, "inside", False):
            return op.__wrapped__(*args, **kwargs)
        return self._record(
            op.name, self._annotations(op, args, kwargs), op.__wrapped__, args, kwargs
        )

    def _call_method(
        self, op: str, index: int, method: _Function, group: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a method of a process group."""
        if getattr(self._nested, "inside", False):
            return method(group, *args, **kwargs)
        annotations = self._method_annotations(op, index, method.__name__, group, args)
        return self._record(op, annotations, method, (group, *args), kwargs)

    def _record(
        self, op: str, annotations: list[str], function: _Function, args: Any, kwargs: Any
    ) -> Any:
        """Call a function in a span, and keep its tasks: waiting for one is a span too."""
        name = f"{op}[{' '.join(annotations)}]" if annotations else op
        result = self._span(name, function, args, kwargs)
        for task in result if isinstance(result, list) else [result]:
            if isinstance(task, core.task):
                self._tasks[task] = f"wait[{' '.join([f'op={op}', *annotations])}]"
        return result

    def _annotations(
        self, op: _Spanned, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[str]:
        """Return ``axis=dp``, ``group=0`` ... of a call; nothing for invalid arguments.

        The called function rejects those itself.
        """
        try:
            call = op.signature.bind(*args, **kwargs)
            call.apply_defaults()
            arguments = call.arguments
            if op.name == "batch_isend_irecv":
                group = arguments["p2p_op_list"][0].group
                peers = sorted({p2p.peer for p2p in arguments["p2p_op_list"]})
            else:
                group = arguments["group"] or dist.get_group()
                peer = arguments.get(_PEER.get(op.name, ""))
                peers = group.ranks if peer is None else [peer]
            data = (arguments.get(name) for name in _DATA[op.name].split())
            tensors = _tensors(next((some for some in data if some is not None), None))
            return self._format_annotations(group, tensors, peers)
        except Exception:
            return []

    def _method_annotations(
        self, op: str, index: int, name: str, process_group: Any, args: tuple[Any, ...]
    ) -> list[str]:
        """Return ``axis=dp``, ``group=0`` ... of a method's call; nothing for invalid arguments.

        Args:
            op: name of the operation in a trace.
            index: position in ``args`` of the argument that holds the data.
            name: name of the method.
            process_group: the object whose method is called.
            args: the other positional arguments of the call.
        """
        try:
            group = self._group_of(process_group)
            peers = [group.ranks[args[1]]] if op in _PEER else group.ranks
            sharers = args[2] if "partial" in name else 1
            return self._format_annotations(group, _tensors(args[index]), peers, sharers)
        except Exception:
            return []

    def _group_of(self, process_group: Any) -> Any:
        if id(process_group) not in self._groups:
            self._groups = {
                id(group.process_group): group for group in collective._get_group_map().values()
            }
        return self._groups[id(process_group)]

    def _format_annotations(
        self, group: Any, tensors: list[Any], peers: Sequence[int], sharers: int = 1
    ) -> list[str]:
        if group.id not in self._axes:
            self._axes[group.id] = self._topology.axis_of(group.ranks)
        num_bytes = sum(tensor.size * tensor.element_size() for tensor in tensors) // sharers
        annotations = {
            "axis": self._axes[group.id],
            "group": group.id,
            "bytes": num_bytes if tensors else None,
            "dtype": str(tensors[0].dtype).rpartition(".")[2] if tensors else None,
            "peers": ",".join(map(str, peers)),
        }
        return [f"{key}={value}" for key, value in annotations.items() if value is not None]

    def _call_wait(self, wait: _Function, task: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a task's ``wait`` in a span, named after the operation that returned the task.

        A call inside another communication span gets no span of its own.
        """
        if getattr(self._nested, "inside", False):
            return wait(task, *args, **kwargs)
        return self._span(self._tasks.pop(task, "wait"), wait, (task, *args), kwargs)

    def _span(self, name: str, function: _Function, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call ``function`` in a span; communication inside it gets no span of its own."""
        self._nested.inside = True
        around = span(name, "Communication")
        try:
            return function(*args, **kwargs)
        finally:
            around.end()
            self._nested.inside = False


def _process_groups() -> list[type]:
    """Return Paddle's classes of process groups that this build has."""
    return [
        kind
        for name, kind in vars(core).items()
        if name.startswith("ProcessGroup") and isinstance(kind, type) and hasattr(kind, "barrier")
    ]


def _namespaces() -> Iterator[dict[str, Any]]:
    for module in list(sys.modules.values()):
        namespace = getattr(module, "__dict__", None)
        if isinstance(namespace, dict):
            yield namespace


def _tensors(data: Any) -> list[Any]:
    """Return the tensors in a tensor, a list of tensors or a list of ``P2POp``; empty for None."""
    if isinstance(data, (list, tuple)):
        return [tensor for item in data for tensor in _tensors(getattr(item, "tensor", item))]
    return [] if data is None else [data]
